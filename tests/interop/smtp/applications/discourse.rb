# A mail as Discourse sends it by these settings. Its launcher makes variables of the environment from
# them; `smtp_settings` of app/models/global_setting.rb reads these with the defaults of
# config/discourse_defaults.conf, and Action Mailer gives the result to the library `mail`.
require "mail"
require "yaml"

DEFAULTS = {
  smtp_port: 25, smtp_authentication: "plain", smtp_enable_start_tls: true, smtp_force_tls: false,
  smtp_open_timeout: 5, smtp_read_timeout: 30
}
KNOWN = DEFAULTS.keys + %i[smtp_address smtp_domain smtp_user_name smtp_password
                           smtp_openssl_verify_mode notification_email]

given = YAML.load_file(ARGV[0]).to_h do |name, value|
  [name.delete_prefix("DISCOURSE_").downcase.to_sym, value]
end
unknown = given.keys - KNOWN
raise "Discourse does not know #{unknown}" unless unknown.empty?
setting = DEFAULTS.merge(given)

settings = {
  address: setting[:smtp_address], port: setting[:smtp_port], domain: setting[:smtp_domain],
  user_name: setting[:smtp_user_name], password: setting[:smtp_password],
  enable_starttls_auto: !setting[:smtp_force_tls] && setting[:smtp_enable_start_tls],
  open_timeout: setting[:smtp_open_timeout].to_f, read_timeout: setting[:smtp_read_timeout].to_f,
  authentication: setting[:smtp_authentication]
}
verify = setting[:smtp_openssl_verify_mode]
settings[:openssl_verify_mode] = verify if verify
settings[:tls] = true if setting[:smtp_force_tls]

mail = Mail.new(from: setting[:notification_email], to: "ada@example.net", subject: "Hello", body: "Hi")
mail.delivery_method :smtp, settings
mail.deliver!
