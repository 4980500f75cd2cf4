//! `pillarbox doctor` over real processes: a set-up in which all is well, and each of its faults.

use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use pillarbox_simulator::{
    AccountAccess, EventOptions, EventRoute, Events, Options, VerificationStatus,
};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use crate::behaviour::tls::{self, Certificate};
use crate::kit::{Finished, Site, is_on_postgres};

const WRONG_SECRET: &str = "PLANTED-9e107d9d372bb6826bd81d3542a419d6";
/// All that SES publishes and the service can use.
const EVENTS: [&str; 6] = ["SEND", "REJECT", "BOUNCE", "COMPLAINT", "DELIVERY", "DELIVERY_DELAY"];

/// Findings of doctor.
#[derive(Debug)]
struct Examined {
    code: i32,
    checks: Vec<Value>,
}

/// A site in which all is well, but for what the options say. No events are published yet.
async fn sound_site(options: Options) -> Site {
    let route = EventRoute::Destinations;
    let events = EventOptions { route, ..EventOptions::after(Duration::ZERO) };
    let options = Options {
        configuration_sets: vec!["mail".to_owned()],
        events: Events::On(events),
        ..options
    };
    let site = Site::empty("", options).await;
    configure(&site, &site.simulator.endpoint(), "mail", &site.simulator.queue_url());
    site.add_organisation("acme", "example.com");
    site
}

/// Lets the set publish these events.
fn publish(site: &Site, events: &[&str]) {
    let body = json!({
        "EventDestinationName": "queue",
        "EventDestination": {
            "Enabled": true,
            "MatchingEventTypes": events,
            "SnsDestination": { "TopicArn": "arn:aws:sns:eu-west-1:000000000000:mail" },
        },
    });
    site.simulator.create_event_destination("mail", &body.to_string()).unwrap();
}

fn configure(site: &Site, endpoint: &str, set: &str, queue: &str) {
    let ses = format!(
        "endpoint = \"{endpoint}\"\nconfiguration_set = \"{set}\"\n\
         [ses.events]\nqueue_url = \"{queue}\"\n"
    );
    site.configure("", &ses);
}

async fn doctor(site: &Site, arguments: &[&str]) -> Examined {
    examine(site.command(&[&["doctor", "--json"], arguments].concat())).await
}

async fn examine(command: Command) -> Examined {
    let Finished { code, out, err } = Finished::run(command).await;
    assert!(!out.contains(WRONG_SECRET) && !err.contains(WRONG_SECRET), "{out}{err}");
    let document: Value = serde_json::from_str(&out).unwrap_or_else(|_| panic!("{out}{err}"));
    let checks = document["checks"].as_array().unwrap().clone();
    let faults = checks.iter().filter(|check| check["verdict"] == "notOk").count();
    assert_eq!(document["ok"], faults == 0);
    assert_eq!(code, i32::from(faults > 0), "{checks:?}");
    Examined { code, checks }
}

impl Examined {
    /// The worst verdict about something, and what is said with it.
    fn about(&self, about: &str) -> (&str, String) {
        let found: Vec<_> = self.checks.iter().filter(|check| check["about"] == about).collect();
        assert!(!found.is_empty(), "nothing about {about}: {self:?}");
        let rank = |check: &&Value| {
            ["ok", "warning", "notOk"].iter().position(|v| check["verdict"] == **v)
        };
        let worst = found.into_iter().max_by_key(rank).unwrap();
        let advice = worst["advice"].as_str().unwrap_or_default();
        let text = format!("{} {advice}", worst["message"].as_str().unwrap());
        (worst["verdict"].as_str().unwrap(), text)
    }

    /// Checks one verdict and a word of its text.
    fn says(&self, about: &str, verdict: &str, word: &str) {
        let (found, text) = self.about(about);
        assert!(found == verdict && text.contains(word), "{about}: {found}: {text}: {self:?}");
    }

    /// Subjects of the other faults.
    fn faults(&self) -> Vec<&str> {
        let faults = self.checks.iter().filter(|check| check["verdict"] == "notOk");
        faults.map(|check| check["about"].as_str().unwrap()).collect()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn all_is_well_from_the_configuration_to_the_delivery_event() {
    let site = sound_site(Options::default()).await;
    publish(&site, &EVENTS);
    let _server = site.start();
    let examined = doctor(&site, &["--send"]).await;
    for about in [
        "configuration",
        "data directory",
        if is_on_postgres() { "database" } else { "data file" },
        "admin socket",
        "service",
        "client listener",
        "credentials",
        "clock",
        "SES account",
        "SES sending",
        "SES quota",
        "domain example.com",
        "configuration set",
        "event destination",
        "tracking",
        "tracking override",
        "event queue",
        "sending",
        "delivery event",
    ] {
        assert_eq!(examined.about(about).0, "ok", "{about}: {examined:?}");
    }
    let kernel = examined.about("clock synchronisation");
    assert!(kernel.1.starts_with("the kernel"), "{kernel:?}");
    assert_eq!(examined.code, 0);
    let sent = site.simulator.messages();
    // One of each kind of request.
    assert_eq!(sent.len(), 2);
    assert_eq!(sent.iter().filter(|message| message.raw.is_some()).count(), 1);
    for message in sent {
        assert_eq!(message.from, "pillarbox-doctor@example.com");
        assert_eq!(message.open_tracking.as_deref(), Some("DISABLED"));
        assert_eq!(message.click_tracking.as_deref(), Some("DISABLED"));
    }

    let Finished { code, out: text, .. } = Finished::run(site.command(&["doctor"])).await;
    assert!(code == 0 && text.contains("\nNo check found a fault"), "{text}");
    assert!(text.contains("ok       credentials: account 000000000000, arn:"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn where_no_service_runs_that_is_said_and_the_rest_is_looked_at() {
    let site = sound_site(Options::default()).await;
    publish(&site, &EVENTS);
    let examined = doctor(&site, &[]).await;
    examined.says("service", "warning", "not running");
    assert_eq!(examined.code, 0, "{examined:?}");
    assert_eq!(doctor(&site, &["--send"]).await.faults(), ["sending"]);
    if is_on_postgres() {
        examined.says("database", "ok", "schema");
        return;
    }
    examined.says("domain example.com", "ok", "verified");

    std::fs::remove_file(site.data_dir().join("pillarbox.redb")).unwrap();
    let examined = doctor(&site, &[]).await;
    examined.says("data file", "warning", "does not exist yet");
    assert!(!site.data_dir().join("pillarbox.redb").exists(), "looking makes nothing");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_key_is_told_and_never_shown() {
    let site = sound_site(Options::default()).await;
    let examined = {
        let mut command = site.command(&["doctor", "--json"]);
        command.env("AWS_SECRET_ACCESS_KEY", WRONG_SECRET);
        examine(command).await
    };
    examined.says("credentials", "notOk", "the secret key does not belong to the access key");
    examined.says("clock", "ok", "");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_clock_that_is_off_is_warned_of_and_then_refused() {
    let site = sound_site(Options::default()).await;
    publish(&site, &EVENTS);
    site.simulator.set_clock_ahead(120);
    let examined = doctor(&site, &[]).await;
    examined.says("clock", "warning", "behind AWS's");
    examined.says("credentials", "ok", "account");
    site.simulator.set_clock_ahead(-600);
    let examined = doctor(&site, &[]).await;
    examined.says("clock", "notOk", "ahead of AWS's");
    examined.says("credentials", "notOk", "the clock is wrong");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_configuration_set_that_is_not_there_or_publishes_nothing_is_a_fault() {
    let site = sound_site(Options::default()).await;
    let server = site.start();
    let examined = doctor(&site, &["--send", "--wait", "2s"]).await;
    examined.says("event destination", "notOk", "no enabled event destination");
    examined.says("sending", "ok", "at the first attempt");
    examined.says("delivery event", "notOk", "none arrived within 2s");
    drop(server);
    configure(&site, &site.simulator.endpoint(), "mial", &site.simulator.queue_url());
    let examined = doctor(&site, &[]).await;
    examined.says("configuration set", "notOk", "no configuration set mial");
    assert_eq!(examined.faults(), ["configuration set"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_set_that_has_ses_rewrite_links_or_that_publishes_too_little_is_a_fault() {
    let site = sound_site(Options::default()).await;
    publish(&site, &["DELIVERY", "BOUNCE", "OPEN"]);
    let examined = doctor(&site, &[]).await;
    examined.says("tracking", "notOk", "rewrites links and adds a pixel");
    examined.says("event destination", "notOk", "does not publish: complaint");
    assert_eq!(examined.faults().len(), 2, "{examined:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn events_that_go_where_no_queue_can_be_are_as_good_as_none() {
    let site = sound_site(Options::default()).await;
    let body = json!({
        "EventDestinationName": "figures",
        "EventDestination": {
            "Enabled": true,
            "MatchingEventTypes": EVENTS,
            "CloudWatchDestination": { "DimensionConfigurations": [{
                "DimensionName": "set",
                "DimensionValueSource": "MESSAGE_TAG",
                "DefaultDimensionValue": "mail",
            }] },
        },
    });
    site.simulator.create_event_destination("mail", &body.to_string()).unwrap();
    let examined = doctor(&site, &[]).await;
    examined.says("event destination", "notOk", "no enabled event destination at SNS");
    assert_eq!(examined.faults(), ["event destination"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_sandbox_and_a_queue_that_is_not_there_are_told() {
    let options = Options { access: AccountAccess::Sandbox, ..Options::default() };
    let site = sound_site(options).await;
    publish(&site, &EVENTS);
    let queue = format!("{}/000000000000/another", site.simulator.endpoint());
    configure(&site, &site.simulator.endpoint(), "mail", &queue);
    let examined = doctor(&site, &[]).await;
    examined.says("SES account", "warning", "sandbox");
    examined.says("event queue", "notOk", "there is no queue");
    assert_eq!(examined.faults(), ["event queue"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_domain_that_ses_does_not_take_is_a_fault_and_cannot_be_sent_from() {
    let site = sound_site(Options::default()).await;
    publish(&site, &EVENTS);
    site.simulator.set_identity("example.com", VerificationStatus::Failed);
    let _server = site.start();
    let examined = doctor(&site, &["--send", "--from", "a@example.org"]).await;
    examined.says("domain example.com", "notOk", "the service treats it as assumed");
    examined.says("sending", "notOk", "example.org is not verified for any organisation");
    site.simulator.remove_identity("example.com");
    let examined = doctor(&site, &[]).await;
    // A sub-domain of one that SES has verified gives the same answer, and is sent from.
    examined.says("domain example.com", "warning", "no identity");
    assert!(examined.faults().is_empty(), "{examined:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_or_a_directory_that_is_open_to_others_is_a_fault() {
    let site = sound_site(Options::default()).await;
    publish(&site, &EVENTS);
    let file = site.data_dir().join("pillarbox.redb");
    let set_mode = |path: &PathBuf, mode| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    let modes = |mode| {
        if !is_on_postgres() {
            set_mode(&file, mode);
        }
    };
    modes(0o644);
    set_mode(&site.data_dir(), 0o777);
    let examined = doctor(&site, &[]).await;
    if !is_on_postgres() {
        examined.says("data file", "notOk", "chmod 0600");
    }
    examined.says("data directory", "notOk", "chmod 0700");
    modes(0o600);
    set_mode(&site.data_dir(), 0o700);
    assert_eq!(doctor(&site, &[]).await.faults(), Vec::<&str>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_endpoint_that_lacks_the_calls_is_no_fault_of_the_set_up() {
    let site = sound_site(Options::default()).await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            tokio::spawn(async move {
                let mut head = [0; 8_192];
                let _ = stream.read(&mut head).await;
                let answer = "HTTP/1.1 404 NOT FOUND\r\ncontent-type: text/html\r\n\
                              content-length: 9\r\nconnection: close\r\n\r\n<p>no</p>";
                let _ = stream.write_all(answer.as_bytes()).await;
            });
        }
    });
    configure(&site, &endpoint, "mail", &format!("{endpoint}/000000000000/queue"));
    let examined = doctor(&site, &[]).await;
    for about in ["credentials", "SES account", "configuration set", "event queue"] {
        examined.says(about, "warning", "does not have this call");
    }
    assert_eq!(examined.code, 0, "{examined:?}");
}

/// An address at which nothing listens.
fn free_address() -> SocketAddr {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

fn smtp_table(listen: SocketAddr, tls_listen: SocketAddr) -> String {
    format!("[smtp]\nlisten = \"{listen}\"\ntls_listen = \"{tls_listen}\"\n[ses]")
}

#[tokio::test(flavor = "multi_thread")]
async fn listeners_of_smtp_are_asked_and_a_mistake_about_them_is_named() {
    const SMTP: &str = "SMTP listener";
    let (plain, secure) = (free_address(), free_address());
    let (site, files) = tls::site(&Certificate::new()).await;
    let right = smtp_table(plain, secure);
    site.reconfigure("[ses]", &right);
    let server = site.start();
    let examined = doctor(&site, &[]).await;
    let said: Vec<_> = examined.checks.iter().filter(|check| check["about"] == SMTP).collect();
    let [of_plain, of_secure] = said[..] else { panic!("{said:?}") };
    let text = |check: &Value| check["message"].as_str().unwrap().to_owned();
    assert_eq!(text(of_plain), format!("{plain} answers, and takes submissions after STARTTLS"));
    assert_eq!(text(of_secure), format!("{secure} answers, and takes submissions over TLS"));
    examined.says(SMTP, "ok", "takes submissions");
    examined.says("certificate", "ok", "valid until");

    // One address for the other, as the two ports are easily confused.
    site.reconfigure(&right, &smtp_table(secure, plain));
    let examined = doctor(&site, &[]).await;
    for wrong in ["speaks TLS from the first byte", "begins in plain text"] {
        let is_said = |check: &Value| check["verdict"] == "notOk" && text(check).contains(wrong);
        assert!(examined.checks.iter().any(is_said), "{wrong}: {examined:?}");
    }
    // A configuration that the running service has not read.
    site.reconfigure(&smtp_table(secure, plain), &smtp_table(free_address(), secure));
    doctor(&site, &[]).await.says(SMTP, "notOk", "restart the service, which reads [smtp]");
    drop(server);

    // A service without a certificate, and one whose certificate has ended.
    let text = std::fs::read_to_string(site.config()).unwrap();
    let (before, rest) = text.split_once("[tls]").unwrap();
    let (_, after) = rest.split_once("[ses]").unwrap();
    let without = format!("{before}[smtp]\nlisten = \"{plain}\"\n[ses]{after}");
    std::fs::write(site.config(), without).unwrap();
    let server = site.start();
    doctor(&site, &[]).await.says(SMTP, "ok", "takes submissions without TLS");
    std::fs::write(site.config(), &text).unwrap();
    let (start, _) = text.split_once("[smtp]").unwrap();
    let with = format!("{start}[smtp]\nlisten = \"{plain}\"\n[ses]{after}");
    std::fs::write(site.config(), with).unwrap();
    doctor(&site, &[]).await.says(SMTP, "notOk", "offers no STARTTLS");
    drop(server);
    Certificate::until(2021).write(&files);
    let _server = site.start();
    let examined = doctor(&site, &[]).await;
    examined.says("certificate", "notOk", "expired at 2021-01-01");
    examined.says("certificate file", "ok", "with its key");
    examined.says(SMTP, "ok", "after STARTTLS");
    std::fs::write(&files.key, "no key").unwrap();
    doctor(&site, &[]).await.says(
        "certificate file",
        "notOk",
        "it contains no unencrypted private key",
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn sockets_of_smtp_that_a_supervisor_hands_over_are_asked() {
    let (site, _files) = tls::site(&Certificate::new()).await;
    // The socket's address counts, not that of the configuration.
    let ignored = free_address();
    let configured = |key: &str| format!("[smtp]\n{key} = \"{ignored}\"\n[ses]");
    for (name, key, said) in
        [("smtp", "listen", "after STARTTLS"), ("smtps", "tls_listen", "over TLS")]
    {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let expected = format!("{address} answers, and takes submissions {said}");
        let server = site.start_on_named(&listener, name);
        let examined = doctor(&site, &[]).await;
        assert_eq!(examined.about("SMTP listener").1.trim(), expected, "{examined:?}");
        site.reconfigure("[ses]", &configured(key));
        let examined = doctor(&site, &[]).await;
        assert_eq!(examined.about("SMTP listener").1.trim(), expected, "{examined:?}");
        site.reconfigure(&configured(key), "[ses]");
        drop(server);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_directory_that_the_first_start_creates_is_no_fault() {
    let site = sound_site(Options::default()).await;
    publish(&site, &EVENTS);
    std::fs::remove_dir_all(site.data_dir()).unwrap();
    let examined = doctor(&site, &[]).await;
    examined.says("data directory", "warning", "the service creates it when it first starts");
    assert_eq!(examined.code, 0, "{examined:?}");
    assert!(!site.data_dir().exists(), "looking makes nothing");
    let _server = site.start();
    doctor(&site, &[]).await.says("data directory", "ok", "mode 0700");
}

#[tokio::test(flavor = "multi_thread")]
async fn another_server_of_smtp_is_not_taken_for_pillarbox() {
    let site = Site::new().await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let _server = site.start();
    site.reconfigure("[ses]", &format!("[smtp]\nlisten = \"{address}\"\n[ses]"));
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let _ = stream.write_all(b"220 mail.example.com ESMTP Postfix\r\n").await;
        }
    });
    let examined = doctor(&site, &[]).await;
    examined.says("SMTP listener", "notOk", "not as pillarbox does: 220 mail.example.com ESMTP");
}
