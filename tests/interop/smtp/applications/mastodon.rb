# A mail as Mastodon sends it by these settings: config/email.yml makes the settings of Action Mailer
# from the environment, which gives them to the library `mail`.
require "mail"

env = File.readlines(ARGV[0], chomp: true).grep_v(/\A#/).to_h { |line| line.split("=", 2) }
# Mastodon's default is Debian's file of authorities. The test has another authority.
env["SMTP_CA_FILE"] = ENV.fetch("SSL_CERT_FILE")

settings = {
  port: env.delete("SMTP_PORT").to_i, address: env.delete("SMTP_SERVER"),
  user_name: env.delete("SMTP_LOGIN"), password: env.delete("SMTP_PASSWORD"),
  domain: env.delete("SMTP_DOMAIN"), authentication: env.delete("SMTP_AUTH_METHOD") || "plain",
  ca_file: env.delete("SMTP_CA_FILE"), openssl_verify_mode: env.delete("SMTP_OPENSSL_VERIFY_MODE"),
  enable_starttls: env.delete("SMTP_ENABLE_STARTTLS"),
  enable_starttls_auto: env.delete("SMTP_ENABLE_STARTTLS_AUTO") != "false",
  tls: env.delete("SMTP_TLS") == "true" || nil, ssl: env.delete("SMTP_SSL") == "true" || nil,
  read_timeout: 20
}
from = env.delete("SMTP_FROM_ADDRESS")
raise "Mastodon does not know #{env.keys}" unless env.empty?

mail = Mail.new(from: from, to: "ada@example.net", subject: "Hello", body: "Hi")
mail.delivery_method :smtp, settings
mail.deliver!
