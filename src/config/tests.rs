use std::fs;
use std::path::PathBuf;

use tempfile::TempDir;

use super::sources::{KEYS, variable};
use super::*;

/// 24 bytes.
const SECRET: &str = "whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYX\n";

fn load(file: &str, variables: &[(&str, &str)]) -> Result<Config, ConfigError> {
    let (_directory, path) = written(file);
    Config::load(Some(&path), pairs(variables))
}

fn written(text: &str) -> (TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("pillarbox.toml");
    fs::write(&path, text).unwrap();
    (directory, path)
}

fn pairs(variables: &[(&str, &str)]) -> impl Iterator<Item = (String, String)> {
    variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
}

fn problems(file: &str, variables: &[(&str, &str)]) -> Vec<Problem> {
    match load(file, variables) {
        Err(ConfigError::Invalid(problems)) => problems.iter().cloned().collect(),
        other => panic!("expected problems, got {other:?}"),
    }
}

fn bad_keys(file: &str, variables: &[(&str, &str)]) -> Vec<&'static str> {
    problems(file, variables)
        .into_iter()
        .map(|problem| match problem {
            Problem::BadValue { key, .. } => key,
            other => panic!("expected a bad value, got {other:?}"),
        })
        .collect()
}

fn the_inconsistency(file: &str) -> Vec<&'static str> {
    match problems(file, &[]).as_slice() {
        [Problem::Inconsistent(found)] => found.values.iter().map(|(key, ..)| *key).collect(),
        other => panic!("expected one inconsistency, got {other:?}"),
    }
}

fn the_message(file: &str, variables: &[(&str, &str)]) -> String {
    load(file, variables).unwrap_err().to_string()
}

/// The example with its commented keys switched on.
fn example_in_full() -> String {
    let switched_on = |line: &str| {
        let key = line.strip_prefix("# ")?;
        let (name, _) = key.split_once(" = ")?;
        let is_key = |known: &&str| *known == name || known.ends_with(&format!(".{name}"));
        KEYS.iter().any(is_key).then(|| key.to_owned())
    };
    EXAMPLE
        .lines()
        .map(|line| switched_on(line).unwrap_or_else(|| line.to_owned()) + "\n")
        .collect()
}

#[test]
fn the_example_is_the_defaults() {
    let default = format!("{:?}", Config::default());
    assert_eq!(format!("{:?}", load(EXAMPLE, &[]).unwrap()), default);
    assert_eq!(format!("{:?}", load("", &[]).unwrap()), default);
    assert_eq!(format!("{:?}", Config::load(None, pairs(&[])).unwrap()), default);
}

#[test]
fn the_example_names_every_key() {
    let table: toml::Value = toml::from_str(&example_in_full()).unwrap();
    for key in KEYS {
        let value = key.split('.').try_fold(&table, |table, part| table.get(part));
        assert!(value.is_some(), "{key}");
    }
    let (_directory, secret) = written(SECRET);
    let secret = secret.to_str().unwrap();
    let variables = [
        ("PILLARBOX_ALERTS__SECRET_FILE", secret),
        ("PILLARBOX_OPERATOR_PASSWORD_FILE", secret),
        ("PILLARBOX_OPERATOR_TRUSTED_PROXIES", "10.0.0.0/8"),
    ];
    let config = load(&example_in_full(), &variables).unwrap();
    assert_eq!(config.operator_sign_in.user_header.unwrap(), "x-forwarded-user");
    assert_eq!(config.ses.endpoint.unwrap(), "http://127.0.0.1:9100");
    assert_eq!(config.ses.configuration_set.unwrap(), "pillarbox");
    assert_eq!(config.ses.events.queue_url.unwrap().path(), "/123456789012/pillarbox");
}

#[test]
fn every_key_is_read_from_the_file_and_from_its_variable() {
    for key in KEYS {
        let takes_true =
            ["ses.tracking_override", "sending.keep_bodies", "test.capture"].contains(&key);
        let bad = if takes_true { "1" } else { "true" };
        let file = match key.rsplit_once('.') {
            Some((section, name)) => format!("[{section}]\n{name} = {bad}"),
            None => format!("{key} = {bad}"),
        };
        assert_eq!(bad_keys(&file, &[]), [key], "the file");
        let name = variable(key);
        assert_eq!(bad_keys("", &[(&name, "\0")]), [key], "{name}");
        assert_eq!(bad_keys("", &[(&name, "")]), [key], "{name}, empty");
    }
}

#[test]
fn tracking_is_turned_off_unless_it_is_said_otherwise() {
    use TrackingOverride::{Always, Auto, Never};
    let read = |file: &str, variables: &[(&str, &str)]| {
        load(file, variables).unwrap().ses.tracking_override
    };
    assert_eq!(read("", &[]), Always);
    for (value, expected) in [("true", Always), ("'auto'", Auto), ("false", Never)] {
        assert_eq!(read(&format!("ses.tracking_override = {value}"), &[]), expected);
        let variable = ("PILLARBOX_SES__TRACKING_OVERRIDE", value.trim_matches('\''));
        assert_eq!(read("", &[variable]), expected);
    }
}

#[test]
fn the_environment_wins_over_the_file() {
    let variables = [
        ("PILLARBOX_LISTEN", "[::1]:0"),
        ("PILLARBOX_MAX_REQUEST_BYTES", "4096"),
        ("PILLARBOX_SENDING__MAX_RATE", "2.5"),
        ("PILLARBOX_SENDING__RETRY_FOR", "1h 30m"),
        ("PILLARBOX_SENDING__ON_UNKNOWN", "fail"),
        ("PILLARBOX_OPERATOR_HOSTS", "Pillarbox, metrics.internal"),
        ("HOME", "/root"),
        ("pillarbox_listen", "not ours"),
    ];
    let config = load("listen = '127.0.0.1:1'\n[sending]\nmax_in_flight = 7", &variables).unwrap();
    assert_eq!(config.listen, "[::1]:0".parse().unwrap());
    assert_eq!(config.operator_hosts, ["pillarbox", "metrics.internal"]);
    assert_eq!(config.max_request_bytes, 4096);
    assert_eq!(config.sending.max_in_flight, 7, "the file's, as no variable names it");
    assert_eq!(config.sending.max_rate, MaxRate::PerSecond(2.5));
    assert_eq!(config.sending.retry_for, Duration::from_mins(90));
    assert_eq!(config.sending.on_unknown, OnUnknown::Fail);
}

#[test]
fn everything_wrong_is_reported_at_once() {
    let file = "
        listen = 'mail.example:8025'
        max_conections = 5
        [sending]
        drain = 60
        operator_listen = '127.0.0.1:1'
        [sednig]
        [ses]
        region = 'EU west'
    ";
    let variables = [
        ("PILLARBOX_SENDING__MAX_IN_FLIGHT", "many"),
        ("PILLARBOX_SENDING_DRAIN", "5s"),
        ("PILLARBOX_ZZZ", "1"),
    ];
    let message = the_message(file, &variables);
    assert!(message.starts_with("9 problems in the configuration:"), "{message}");
    let expected = [
        r#"listen: is "mail.example:8025" (in "#,
        r"pillarbox.toml); allowed: an IP address or localhost, and a port",
        r#"sending.max_in_flight: is "many" (in the environment variable PILLARBOX_SENDING__MAX_IN_FLIGHT); allowed: a whole number from 1 to 10000"#,
        "sending.drain: is 60 (in ",
        "a bare number is not enough",
        r#"ses.region: is "EU west""#,
        "max_conections: there is no such key (in ",
        "did you mean max_connections?",
        "sednig: there is no such key",
        "sending.operator_listen: there is no such key",
        "did you mean operator_listen?",
        "PILLARBOX_SENDING_DRAIN: there is no such key (in the environment variable PILLARBOX_SENDING_DRAIN); did you mean PILLARBOX_SENDING__DRAIN?",
        "PILLARBOX_ZZZ: there is no such key (in the environment variable PILLARBOX_ZZZ)",
    ];
    for part in expected {
        assert!(message.contains(part), "{part}\nis not in\n{message}");
    }
}

#[test]
fn values_out_of_bounds_are_refused() {
    for (file, key) in [
        ("max_request_bytes = 1023", "max_request_bytes"),
        ("max_request_bytes = 41943041", "max_request_bytes"),
        ("max_request_bytes = '4096'", "max_request_bytes"),
        ("max_request_bytes = 4096.0", "max_request_bytes"),
        ("max_connections = 0", "max_connections"),
        ("max_writing_bytes = 16777215", "max_writing_bytes"),
        ("max_connections = -1", "max_connections"),
        ("operator_hosts = 'pillarbox'", "operator_hosts"),
        ("operator_hosts = ['pillarbox:8026']", "operator_hosts"),
        ("operator_hosts = ['']", "operator_hosts"),
        ("operator_hosts = ['a..b']", "operator_hosts"),
        ("operator_hosts = [1]", "operator_hosts"),
        ("trusted_proxies = '10.0.0.0/8'", "trusted_proxies"),
        ("trusted_proxies = ['10.0.0.0/33']", "trusted_proxies"),
        ("trusted_proxies = ['proxy']", "trusted_proxies"),
        ("sending.max_in_flight = 10001", "sending.max_in_flight"),
        ("sending.max_rate = 0", "sending.max_rate"),
        ("sending.max_rate = -1.5", "sending.max_rate"),
        ("sending.max_rate = nan", "sending.max_rate"),
        ("sending.max_rate = inf", "sending.max_rate"),
        ("sending.max_rate = '14'", "sending.max_rate"),
        ("sending.request_timeout = '0s'", "sending.request_timeout"),
        ("sending.request_timeout = '11m'", "sending.request_timeout"),
        ("sending.retry_for = '31d'", "sending.retry_for"),
        ("sending.retry_for = '10'", "sending.retry_for"),
        ("sending.on_unknown = 'Retry'", "sending.on_unknown"),
        ("ses.region = '-'", "ses.region"),
        ("ses.configuration_set = 'a b'", "ses.configuration_set"),
        ("ses.tracking_override = 'true'", "ses.tracking_override"),
        ("ses.tracking_override = 'Auto'", "ses.tracking_override"),
    ] {
        let bad: Vec<_> = problems(file, &[])
            .into_iter()
            .filter_map(|problem| match problem {
                Problem::BadValue { key, .. } => Some(key),
                Problem::Unknown { .. } | Problem::Removed { .. } | Problem::Inconsistent(_) => {
                    None
                }
            })
            .collect();
        assert_eq!(bad, [key], "{file}");
    }
    assert_eq!(
        load("sending.max_rate = 14", &[]).unwrap().sending.max_rate,
        MaxRate::PerSecond(14.0),
        "a whole number is a rate as well"
    );
}

#[test]
fn an_endpoint_is_a_plain_web_address() {
    for good in ["http://127.0.0.1:9100", "https://ses.example.com/base", "http://[::1]:9100/"] {
        assert!(load(&format!("ses.endpoint = '{good}'"), &[]).is_ok(), "{good}");
    }
    for bad in [
        "ses.example.com",
        "ftp://ses.example.com",
        "https://",
        "http://host:99999",
        "http://host?x=1",
        "http://host/#x",
        "http://key:secret@host",
    ] {
        let message = the_message(&format!("ses.endpoint = '{bad}'"), &[]);
        assert!(message.contains("ses.endpoint"), "{bad}: {message}");
        assert!(!message.contains("secret"), "{message}");
    }
}

#[test]
fn a_socket_path_fits_the_kernels_address() {
    let longest = format!("/{}", "s".repeat(106));
    assert!(load(&format!("admin_socket = '{longest}'"), &[]).is_ok());
    assert_eq!(bad_keys(&format!("admin_socket = '{longest}s'"), &[]), ["admin_socket"]);
}

#[test]
fn values_that_do_not_go_together_name_all_their_keys() {
    assert_eq!(
        the_inconsistency("sending.retry_initial = '10m'"),
        ["sending.retry_initial", "sending.retry_max"]
    );
    assert_eq!(
        the_inconsistency("max_reading_bytes = 41943039"),
        ["max_reading_bytes", "max_request_bytes"]
    );
    assert_eq!(
        the_inconsistency("sending.max_pending_bytes = 41943039"),
        ["sending.max_pending_bytes", "max_request_bytes"]
    );
    let least = "max_reading_bytes = 41943040\nsending.max_pending_bytes = 41943040";
    assert!(load(least, &[]).is_ok());
    let message = the_message("sending.max_pending_bytes = 41943039", &[]);
    let advice = "raise sending.max_pending_bytes to 41943040 or lower max_request_bytes";
    assert!(message.contains("at least 4 times") && message.contains(advice), "{message}");
    let message = the_message("sending.retry_initial = '10m'", &[]);
    assert!(message.contains(r#"sending.retry_initial = "10m" (in "#), "{message}");
    assert!(message.contains("sending.retry_max (not given)"), "{message}");
}

#[test]
fn keys_of_the_removed_listener_for_sns_are_refused_and_say_what_to_use() {
    let file = "[ses.events]\nsns_listen = '0.0.0.0:8027'\n\
                sns_topics = ['arn:aws:sns:eu-west-1:123456789012:pillarbox']";
    for (file, variables, names) in [
        (file, &[][..], ["ses.events.sns_listen: ", "ses.events.sns_topics: "]),
        (
            "",
            &[
                ("PILLARBOX_SES__EVENTS__SNS_LISTEN", "0.0.0.0:8027"),
                ("PILLARBOX_SES__EVENTS__SNS_TOPICS", "arn:aws:sns:eu-west-1:123456789012:a"),
            ][..],
            ["PILLARBOX_SES__EVENTS__SNS_LISTEN: ", "PILLARBOX_SES__EVENTS__SNS_TOPICS: "],
        ),
    ] {
        let message = the_message(file, variables);
        assert!(message.starts_with("2 problems"), "{message}");
        for (line, name) in message.lines().skip(1).zip(names) {
            assert!(line.trim_start().starts_with(name), "{message}");
            assert!(line.contains("the key was removed"), "{message}");
            assert!(line.contains("ses.events.queue_url"), "{message}");
            assert!(line.contains("pillarbox aws setup"), "{message}");
        }
    }
}

#[test]
fn a_bad_value_is_not_reported_as_an_inconsistency_too() {
    let file = "[sending]\nretry_initial = '10m'\nretry_max = 5";
    assert_eq!(bad_keys(file, &[]), ["sending.retry_max"]);
}

#[test]
fn a_section_given_as_a_value_is_refused() {
    assert!(the_message("sending = 5", &[]).contains("sending: there is no such key"));
    assert!(the_message("listen.port = 5", &[]).contains("listen.port: there is no such key"));
    assert!(
        the_message("[[sending]]\ndrain = '5s'", &[]).contains("sending: there is no such key")
    );
}

#[test]
fn a_missing_file_is_an_error_that_names_it() {
    let error = Config::load(Some(Path::new("/nonexistent/p.toml")), pairs(&[])).unwrap_err();
    assert!(matches!(error, ConfigError::Unreadable { .. }));
    assert!(error.to_string().contains("/nonexistent/p.toml"), "{error}");
}

#[test]
fn a_syntax_error_shows_its_line() {
    let message = the_message("listen = '127.0.0.1:0'\ndata_dir = \n", &[]);
    assert!(message.contains("pillarbox.toml is not valid TOML"), "{message}");
    assert!(message.contains("line 2"), "{message}");
    let twice = the_message("listen = '127.0.0.1:0'\nlisten = '127.0.0.1:1'\n", &[]);
    assert!(twice.contains("line 2"), "{twice}");
}

#[test]
fn smtp_in_clear_is_for_this_machine_alone() {
    let tls = "[tls]\ncertificate = 'c'\nkey = 'k'\n";
    for (smtp, keys) in [
        ("listen = '192.0.2.1:587'", Some("smtp.listen")),
        ("listen = '[::]:587'", Some("smtp.listen")),
        ("tls_listen = '127.0.0.1:465'", Some("smtp.tls_listen")),
        ("listen = '127.0.0.2:587'", None),
        ("listen = '[::1]:587'", None),
    ] {
        let file = format!("[smtp]\n{smtp}\n");
        match keys {
            Some(key) => assert_eq!(the_inconsistency(&file)[0], key, "{smtp}"),
            None => assert!(load(&file, &[]).is_ok(), "{smtp}"),
        }
        assert!(load(&format!("{tls}{file}"), &[]).is_ok(), "{smtp}");
    }
    assert_eq!(load("", &[]).unwrap().smtp, Smtp::default());
}

#[test]
fn resends_shape_in_clear_is_for_this_machine_alone() {
    let tls = "[tls]\ncertificate = 'c'\nkey = 'k'\n";
    for (listen, is_taken) in [
        ("192.0.2.1:8028", false),
        ("[::]:8028", false),
        ("127.0.0.2:8028", true),
        ("[::1]:8028", true),
    ] {
        let file = format!("[resend_api]\nlisten = '{listen}'\n");
        if is_taken {
            assert_eq!(load(&file, &[]).unwrap().resend_listen, Some(listen.parse().unwrap()));
        } else {
            assert_eq!(the_inconsistency(&file)[0], "resend_api.listen", "{listen}");
        }
        assert!(load(&format!("{tls}{file}"), &[]).is_ok(), "{listen}");
    }
    assert_eq!(load("", &[]).unwrap().resend_listen, None);
}

#[test]
fn alerts_need_a_url_and_a_file_with_a_secret() {
    let (_directory, path) = written(SECRET);
    let path = path.to_str().unwrap();
    let alerts = |url: &str, file: &str| {
        load(&format!("[alerts]\nurl = '{url}'\nsecret_file = '{file}'"), &[])
    };
    let good = alerts("http://127.0.0.1:9/alerts", path).unwrap();
    assert!(!format!("{good:?}").contains("AAECAw"), "the secret is not shown");
    let alerts_of = good.alerts.unwrap();
    assert_eq!(alerts_of.url.as_str(), "http://127.0.0.1:9/alerts");
    assert_eq!(alerts_of.secret.bytes(), (0..24).collect::<Vec<u8>>());
    assert!(load("", &[]).unwrap().alerts.is_none());

    for (url, reason) in [
        ("ftp://example.com/", "neither https nor http"),
        ("https://user:pw@example.com/", "user name or a password"),
        ("hooks", "not a URL"),
    ] {
        let message = alerts(url, path).unwrap_err().to_string();
        assert!(message.contains("alerts.url") && message.contains(reason), "{message}");
        assert!(!message.contains("pw@"), "{message}");
    }
    let message = alerts("hooks", "/nowhere/secret").unwrap_err().to_string();
    assert!(message.starts_with("2 problems"), "{message}");
    assert!(message.contains("alerts.secret_file: is \"/nowhere/secret\""), "{message}");
    assert!(message.contains("cannot be read: No such file"), "{message}");
    for secret in ["", "PLANTED", "whsec_PLANTED", "whsec_QUJD"] {
        let (_directory, path) = written(secret);
        let message = alerts("https://example.com/", path.to_str().unwrap()).unwrap_err();
        let message = message.to_string();
        assert!(message.contains("24 to 64 bytes in base64"), "{message}");
        assert!(!message.contains("PLANTED"), "{message}");
    }
    let url = "[alerts]\nurl = 'https://example.com/'";
    assert_eq!(the_inconsistency(url), ["alerts.url", "alerts.secret_file"]);
    let file = format!("[alerts]\nsecret_file = '{path}'");
    assert_eq!(the_inconsistency(&file), ["alerts.url", "alerts.secret_file"]);
}
