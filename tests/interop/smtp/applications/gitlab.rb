# A mail as GitLab sends it by these settings. In omnibus-gitlab,
# files/gitlab-cookbooks/gitlab/templates/default/smtp_settings.rb.erb makes the settings of Action Mailer
# from them, which gives them to the library `mail`; attributes/default.rb beside has the defaults.
require "mail"

# GitLab's default is its own file of authorities. The test has another authority.
gitlab_rails = {
  "smtp_ca_file" => ENV.fetch("SSL_CERT_FILE"), "smtp_open_timeout" => 30, "smtp_read_timeout" => 60
}
eval File.read(ARGV[0])

NAMES = %w[address port user_name password domain enable_starttls_auto tls ssl openssl_verify_mode
           ca_path ca_file open_timeout read_timeout]
known = %w[enable authentication].concat(NAMES).map { |name| "smtp_#{name}" } << "gitlab_email_from"
unknown = gitlab_rails.keys - known
raise "GitLab does not know #{unknown}" unless unknown.empty?
raise "SMTP is off" unless gitlab_rails["smtp_enable"]
# As libraries/smtp_helper.rb does.
raise "they exclude each other" if gitlab_rails["smtp_tls"] && gitlab_rails["smtp_enable_starttls_auto"]

settings = NAMES.to_h { |name| [name.to_sym, gitlab_rails["smtp_#{name}"]] }.compact
settings[:authentication] = gitlab_rails["smtp_authentication"].to_sym

mail = Mail.new(
  from: gitlab_rails["gitlab_email_from"], to: "ada@example.net", subject: "Hello", body: "Hi"
)
mail.delivery_method :smtp, settings
mail.deliver!
