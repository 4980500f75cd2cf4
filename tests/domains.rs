//! Sender domains: when SES is asked about them, what its answers come to, and what is printed.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking, also in its helpers")]

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use pillarbox::admin::Admin;
use pillarbox::admin::live::{Cancelling, LiveView};
use pillarbox::admin::socket::Socket;
use pillarbox::clock::Clock;
use pillarbox::dispatch::health::Condition;
use pillarbox::dispatch::pace::Rate;
use pillarbox::dispatch::{Cancelled, RecentCalls, SendingStatus};
use pillarbox::domain::id::{MessageId, OrganisationId};
use pillarbox::domain::mailbox::DomainName;
use pillarbox::domain::message::Cancellation;
use pillarbox::domain::organisation::{DomainState, Finding, SenderDomain};
use pillarbox::domain::time::Timestamp;
use pillarbox::outbox::{Live, Pending, Selection};
use pillarbox::ses::credentials::Credentials;
use pillarbox::ses::{SesClient, SesOptions};
use pillarbox::simulator::{Fault, FaultScope, Faults, Options, Simulator, VerificationStatus};
use pillarbox::store::Store;
use pillarbox::verification::Verifier;
use secrecy::SecretString;
use serde_json::Value;
use tokio::net::TcpListener;

const NOON: Timestamp = Timestamp::from_unix_millis(1_800_000_000_000);
const MINUTE: Duration = Duration::from_mins(1);

struct Site {
    directory: tempfile::TempDir,
    store: Store,
    clock: Clock,
    simulator: Simulator,
    ses: SesClient,
}

impl Site {
    async fn new(options: Options) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(directory.path(), NOON).unwrap().0;
        store.add_organisation("acme".parse().unwrap()).await.unwrap().unwrap();
        store.add_organisation("other".parse().unwrap()).await.unwrap().unwrap();
        let clock = Clock::manual(NOON);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let options = Options { signature_max_age: None, ..options };
        let simulator = Simulator::start(listener, options).await;
        let ses = SesOptions {
            region: "eu-west-1".to_owned(),
            endpoint: Some(simulator.endpoint()),
            configuration_set: None,
            request_timeout: Duration::from_secs(5),
            connect_timeout: Duration::from_secs(2),
            credentials: Credentials::fixed("simulator", SecretString::from("simulator")),
        };
        let ses = SesClient::new(ses, clock.clone()).unwrap();
        Self { directory, store, clock, simulator, ses }
    }

    async fn put(&self, organisation: &str, name: &str, state: DomainState) {
        let name = DomainName::parse(name).unwrap();
        let id = self.organisation(organisation);
        self.store.put_domain(id, name, state, self.clock.now()).await.unwrap().unwrap();
    }

    fn organisation(&self, name: &str) -> OrganisationId {
        self.store.organisation(&name.parse().unwrap()).unwrap().id
    }

    /// A verifier as after a start of the service: it remembers nothing.
    fn verifier(&self) -> Verifier {
        Verifier::new(self.store.clone(), self.ses.clone(), self.clock.clone())
    }

    /// What a round leads to: how many calls it made, and the domain's state afterwards.
    async fn round(&self) -> (u64, DomainState) {
        let before = self.simulator.calls_total();
        self.verifier().round().await;
        (self.simulator.calls_total() - before, self.domain("example.com").state)
    }

    fn domain(&self, name: &str) -> SenderDomain {
        self.store.domains().into_iter().find(|domain| domain.name == name).unwrap()
    }
}

#[tokio::test]
async fn a_pending_domain_is_asked_about_with_growing_waits_that_a_restart_keeps() {
    let site = Site::new(Options::default()).await;
    site.put("acme", "example.com", DomainState::Pending).await;
    site.put("other", "example.com", DomainState::Pending).await;
    site.simulator.set_identity("example.com", VerificationStatus::Pending);
    assert_eq!(site.round().await, (1, DomainState::Pending), "one call for both organisations");
    assert_eq!(site.round().await, (0, DomainState::Pending), "it was just asked about");
    site.clock.advance(MINUTE);
    assert_eq!(site.round().await, (1, DomainState::Pending), "a young one soon");
    site.clock.advance(MINUTE * 80);
    assert_eq!(site.round().await, (1, DomainState::Pending));
    site.clock.advance(MINUTE * 9);
    assert_eq!(site.round().await, (0, DomainState::Pending), "an older one less often");
    site.clock.advance(MINUTE * 2);
    site.simulator.verify("example.com");
    assert_eq!(site.round().await, (1, DomainState::Verified));
    assert!(site.store.domains().iter().all(|domain| domain.state == DomainState::Verified));
}

#[tokio::test]
async fn a_failed_domain_stays_pending_with_what_ses_said_and_may_still_be_verified() {
    let site = Site::new(Options::default()).await;
    site.put("acme", "example.com", DomainState::Pending).await;
    for (status, finding) in [
        (VerificationStatus::TemporaryFailure, Finding::TemporaryFailure),
        (VerificationStatus::Failed, Finding::Failed),
    ] {
        site.simulator.set_identity("example.com", status);
        assert_eq!(site.round().await, (1, DomainState::Pending));
        assert_eq!(site.domain("example.com").last_check.unwrap().finding, finding);
        site.clock.advance(MINUTE);
    }
    site.simulator.verify("example.com");
    assert_eq!(site.round().await, (1, DomainState::Verified));
}

#[tokio::test]
async fn a_verified_domain_that_ses_no_longer_takes_is_lost_at_the_second_look_and_comes_back() {
    let site = Site::new(Options::default()).await;
    site.put("acme", "example.com", DomainState::Verified).await;
    site.simulator.verify("example.com");
    assert_eq!(site.round().await, (1, DomainState::Verified));
    site.clock.advance(MINUTE * 60 * 11);
    assert_eq!(site.round().await, (0, DomainState::Verified), "verified ones rarely");
    site.clock.advance(MINUTE * 60);
    site.simulator.remove_identity("example.com");
    assert_eq!(site.round().await, (1, DomainState::Verified), "one answer is not enough");
    site.clock.advance(MINUTE * 5);
    assert_eq!(site.round().await, (1, DomainState::Pending));
    let lost = site.domain("example.com");
    assert_eq!((lost.since, lost.added_at), (site.clock.now(), NOON));
    assert_eq!(lost.last_check.unwrap().finding, Finding::Unknown);
    site.simulator.verify("example.com");
    site.clock.advance(MINUTE);
    assert_eq!(site.round().await, (1, DomainState::Verified));
}

#[tokio::test]
async fn an_endpoint_that_is_down_changes_nothing_and_is_not_asked_about_every_domain() {
    let site = Site::new(Options::default()).await;
    for name in ["a.example", "b.example", "example.com"] {
        site.put("acme", name, DomainState::Verified).await;
    }
    let reset = Faults::always(Fault::ResetBefore).with_scope(FaultScope::AllCalls);
    site.simulator.set_faults(reset);
    let mut verifier = site.verifier();
    for calls in [1, 2, 3, 3] {
        verifier.round().await;
        assert_eq!(site.simulator.calls_total(), calls, "one a round, each domain in its turn");
    }
    assert!(site.store.domains().iter().all(|domain| domain.last_check.is_none()));
    assert!(site.store.domains().iter().all(|domain| domain.state == DomainState::Verified));
}

/// A service that sends nothing.
struct Idle;

impl LiveView for Idle {
    fn sending(&self) -> SendingStatus {
        SendingStatus {
            pending: Pending { messages: 0, in_flight: 0, bytes: 0 },
            max_pending_bytes: 1 << 30,
            full_for: Vec::new(),
            greatest_share: 0.0,
            rate: Rate::PerSecond(14.0),
            rate_limit: Rate::PerSecond(14.0),
            quota: None,
            unrecorded: 0,
            sent: 0,
            condition: Condition::Up,
            paused_domains: Vec::new(),
            recent_calls: RecentCalls::default(),
        }
    }

    fn message(&self, _: MessageId) -> Option<Live> {
        None
    }

    fn cancel(&self, _: Selection, _: Cancellation) -> Cancelling<'_> {
        Box::pin(async { Ok(Cancelled::default()) })
    }
}

/// Serves the site's administration socket for as long as the test runs.
async fn serve(site: &Site) {
    let admin =
        Admin::in_service(site.store.clone(), site.clock.clone(), site.ses.clone(), Arc::new(Idle));
    let socket = Socket::bind(&socket(site.directory.path())).await.unwrap();
    tokio::spawn(socket.serve(Arc::new(admin), std::future::pending()));
}

fn socket(directory: &Path) -> std::path::PathBuf {
    directory.join("admin.sock")
}

/// Runs a command: its exit code, and what it printed to both outputs.
async fn pillarbox(site: &Site, arguments: &[&str]) -> (i32, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pillarbox"));
    command.arg("domain").args(arguments).arg("--socket").arg(socket(site.directory.path()));
    let output = tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.code().unwrap(), String::from_utf8(text).unwrap())
}

#[tokio::test]
async fn adding_a_domain_prints_its_records_as_a_table_a_zone_file_and_json() {
    let zone = "dkim.region.example";
    let site = Site::new(Options { dkim_zone: zone.to_owned(), ..Options::default() }).await;
    serve(&site).await;
    let mail_from = "bounce.example.com";
    let add = ["add", "--org", "acme", "example.com", "--mail-from", mail_from];
    let (code, text) = pillarbox(&site, &add).await;
    assert_eq!(code, 0, "{text}");
    let (_, pasted) = text.split_once("zone file:\n\n").unwrap();
    let lines: Vec<_> = pasted.lines().take_while(|line| !line.is_empty()).collect();
    let records: Vec<_> = lines.iter().filter(|line| !line.starts_with(';')).collect();
    assert_eq!(records.len(), 5, "{text}");
    for record in &records[..3] {
        let (name, target) = record.split_once(" 3600 IN CNAME ").unwrap();
        let token = name.strip_suffix("._domainkey.example.com.").unwrap();
        assert_eq!(target, format!("{token}.{zone}."));
    }
    let mx = format!("{mail_from}. 3600 IN MX 10 feedback-smtp.eu-west-1.amazonses.com.");
    let spf = format!("{mail_from}. 3600 IN TXT \"v=spf1 include:amazonses.com ~all\"");
    assert_eq!(records[3..], [&mx.as_str(), &spf.as_str()]);
    assert!(text.contains("; _dmarc.example.com. 3600 IN TXT \"v=DMARC1; p=none;\"\n"), "{text}");

    let (_, text) = pillarbox(&site, &[&add[..], &["--json"]].concat()).await;
    let json: Value = serde_json::from_str(&text).unwrap();
    let records = json["dnsRecords"].as_array().unwrap();
    let kinds: Vec<_> = records.iter().map(|record| record["purpose"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["dkim", "dkim", "dkim", "mailFrom", "mailFrom", "dmarc"]);
    assert_eq!(records[3]["value"], "10 feedback-smtp.eu-west-1.amazonses.com");
}

#[tokio::test]
async fn a_mail_from_domain_is_below_the_sender_domain_and_nothing_is_sent_from_it() {
    let site = Site::new(Options::default()).await;
    serve(&site).await;
    site.put("other", "news.example.com", DomainState::Assumed).await;
    for mail_from in ["example.com", "bounce.example.org", "badexample.com", "news.example.com"] {
        let add = ["add", "--org", "acme", "example.com", "--mail-from", mail_from];
        let (code, text) = pillarbox(&site, &add).await;
        assert_eq!(code, 1, "{mail_from}: {text}");
        assert!(text.contains("used for nothing else"), "{mail_from}: {text}");
    }
    assert_eq!(site.simulator.calls_total(), 0);
    let both = ["add", "--org", "acme", "a.b", "--mail-from", "bounce.a.b", "--assume-verified"];
    assert_eq!(pillarbox(&site, &both).await.0, 2);
}

#[tokio::test]
async fn a_check_tells_pending_failed_and_temporary_failure_apart_and_says_what_to_do() {
    let site = Site::new(Options::default()).await;
    serve(&site).await;
    let add = ["add", "--org", "acme", "example.com", "--mail-from", "bounce.example.com"];
    assert_eq!(pillarbox(&site, &add).await.0, 0);
    for (status, words) in [
        (VerificationStatus::Pending, "has not found its DNS records yet"),
        (VerificationStatus::TemporaryFailure, "for now (HOST_NOT_FOUND), and tries again"),
        (VerificationStatus::Failed, "delete-email-identity --email-identity example.com"),
    ] {
        site.simulator.set_identity("example.com", status);
        let (code, text) = pillarbox(&site, &["check", "example.com"]).await;
        assert_eq!(code, 0, "{text}");
        assert!(text.contains(words), "{text}");
        assert!(text.contains("MAIL FROM bounce.example.com: "), "{text}");
        assert!(text.contains("missing"), "{text}");
    }
    let (_, listed) = pillarbox(&site, &["list"]).await;
    let row: Vec<_> = listed.lines().nth(1).unwrap().split_whitespace().collect();
    let now = site.clock.now().to_string();
    assert_eq!(row[2..6], ["pending", now.as_str(), "failed", now.as_str()]);
    site.simulator.verify("example.com");
    let (_, text) = pillarbox(&site, &["check", "example.com"]).await;
    assert!(text.contains("SES: has verified it\nDKIM: SES found the records\n"), "{text}");
    assert!(!text.contains("missing"), "{text}");
}
