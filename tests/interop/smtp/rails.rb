# A mail by the library that Rails sends with, which takes the settings of a Rails application. Prints
# the bytes that Net::SMTP was given, as base64.
require "mail"
require "net/smtp"
require "ostruct"

config = OpenStruct.new(action_mailer: OpenStruct.new)

RECIPE

settings = config.action_mailer
Mail.defaults { delivery_method settings.delivery_method, settings.smtp_settings }

GIVEN = []
Net::SMTP.prepend(Module.new do
  def sendmail(message, *envelope)
    GIVEN << message
    super
  end
end)

content = (0..255).map(&:chr).join.b * 20
mail = Mail.new(charset: "UTF-8") do
  from "Jürgen Groß <orders@example.com>"
  to ["Bob <bob@example.org>", "cy@example.org"]
  bcc "hidden@example.org"
  subject "Grüße ✉"
  text_part { body "Grüße\n.\n..\nFrom here on\n" }
  html_part do
    content_type "text/html; charset=UTF-8"
    body "<p>Grüße</p>"
  end
  add_file filename: "résumé.pdf", content: content
end
mail["X-SES-CONFIGURATION-SET"] = "other"
mail.deliver!
puts [GIVEN.fetch(0)].pack("m0")
