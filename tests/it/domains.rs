//! Sender domains: the times of questions to SES, the meaning of its answers, and the output.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use pillarbox_admin::Admin;
use pillarbox_admin::live::{Cancelling, LiveView, Looking};
use pillarbox_admin::snapshot::Snapshot;
use pillarbox_admin::socket::Socket;
use pillarbox_dispatch::Cancelled;
use pillarbox_domain::id::{MessageId, OrganisationId};
use pillarbox_domain::mailbox::DomainName;
use pillarbox_domain::message::Cancellation;
use pillarbox_domain::organisation::{DomainState, Finding, SenderDomain};
use pillarbox_http::drain::Drain;
use pillarbox_maintenance::domain_verification::Verifier;
use pillarbox_queue::{Live, Selection};
use pillarbox_runtime::clock::Clock;
use pillarbox_ses::SesClient;
use pillarbox_simulator::{Fault, FaultScope, Faults, Options, Simulator, VerificationStatus};
use pillarbox_store::Store;
use serde_json::Value;

use crate::kit::{self, Finished, NOON};

const MINUTE: Duration = Duration::from_mins(1);

/// Sender domains in a store, and the simulated provider that is asked about them.
struct DomainChecks {
    directory: tempfile::TempDir,
    store: Store,
    clock: Clock,
    simulator: Simulator,
    ses: SesClient,
}

impl DomainChecks {
    async fn new(options: Options) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let store = kit::open_store(directory.path(), NOON);
        store.add_organisation("acme".parse().unwrap()).await.unwrap().unwrap();
        store.add_organisation("other".parse().unwrap()).await.unwrap().unwrap();
        let options = Options { signature_max_age: None, ..options };
        let simulator = kit::start_simulator(options).await;
        let clock = Clock::manual(NOON);
        let ses = kit::ses_client(&simulator.endpoint(), &clock);
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

    /// Result of a round: the number of calls that it made, and the domain's state afterwards.
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
    let checks = DomainChecks::new(Options::default()).await;
    checks.put("acme", "example.com", DomainState::Pending).await;
    checks.put("other", "example.com", DomainState::Pending).await;
    checks.simulator.set_identity("example.com", VerificationStatus::Pending);
    assert_eq!(checks.round().await, (1, DomainState::Pending), "one call for both organisations");
    assert_eq!(checks.round().await, (0, DomainState::Pending), "it was just asked about");
    checks.clock.advance(MINUTE);
    assert_eq!(checks.round().await, (1, DomainState::Pending), "a young one soon");
    checks.clock.advance(MINUTE * 80);
    assert_eq!(checks.round().await, (1, DomainState::Pending));
    checks.clock.advance(MINUTE * 9);
    assert_eq!(checks.round().await, (0, DomainState::Pending), "an older one less often");
    checks.clock.advance(MINUTE * 2);
    checks.simulator.verify("example.com");
    assert_eq!(checks.round().await, (1, DomainState::Verified));
    assert!(checks.store.domains().iter().all(|domain| domain.state == DomainState::Verified));
}

#[tokio::test]
async fn a_failed_domain_stays_pending_with_what_ses_said_and_may_still_be_verified() {
    let checks = DomainChecks::new(Options::default()).await;
    checks.put("acme", "example.com", DomainState::Pending).await;
    for (status, finding) in [
        (VerificationStatus::TemporaryFailure, Finding::TemporaryFailure),
        (VerificationStatus::Failed, Finding::Failed),
    ] {
        checks.simulator.set_identity("example.com", status);
        assert_eq!(checks.round().await, (1, DomainState::Pending));
        assert_eq!(checks.domain("example.com").last_check.unwrap().finding, finding);
        checks.clock.advance(MINUTE);
    }
    checks.simulator.verify("example.com");
    assert_eq!(checks.round().await, (1, DomainState::Verified));
}

#[tokio::test]
async fn a_verified_domain_that_ses_no_longer_takes_is_lost_at_the_second_look_and_comes_back() {
    let checks = DomainChecks::new(Options::default()).await;
    checks.put("acme", "example.com", DomainState::Verified).await;
    checks.simulator.verify("example.com");
    assert_eq!(checks.round().await, (1, DomainState::Verified));
    checks.clock.advance(MINUTE * 60 * 11);
    assert_eq!(checks.round().await, (0, DomainState::Verified), "verified ones rarely");
    checks.clock.advance(MINUTE * 60);
    checks.simulator.remove_identity("example.com");
    assert_eq!(checks.round().await, (1, DomainState::Verified), "one answer is not enough");
    checks.clock.advance(MINUTE * 5);
    assert_eq!(checks.round().await, (1, DomainState::Pending));
    let lost = checks.domain("example.com");
    assert_eq!((lost.since, lost.added_at), (checks.clock.now(), NOON));
    assert_eq!(lost.last_check.unwrap().finding, Finding::Unknown);
    checks.simulator.verify("example.com");
    checks.clock.advance(MINUTE);
    assert_eq!(checks.round().await, (1, DomainState::Verified));
}

#[tokio::test]
async fn an_endpoint_that_is_down_changes_nothing_and_is_not_asked_about_every_domain() {
    let checks = DomainChecks::new(Options::default()).await;
    for name in ["a.example", "b.example", "example.com"] {
        checks.put("acme", name, DomainState::Verified).await;
    }
    let reset = Faults::always(Fault::ResetBefore).with_scope(FaultScope::AllCalls);
    checks.simulator.set_faults(reset);
    let mut verifier = checks.verifier();
    for calls in [1, 2, 3, 3] {
        verifier.round().await;
        assert_eq!(checks.simulator.calls_total(), calls, "one a round, each domain in its turn");
    }
    assert!(checks.store.domains().iter().all(|domain| domain.last_check.is_none()));
    assert!(checks.store.domains().iter().all(|domain| domain.state == DomainState::Verified));
}

/// A service that sends nothing.
struct Idle;

impl LiveView for Idle {
    fn snapshot(&self) -> Looking<'_> {
        Box::pin(async { Snapshot::default() })
    }

    fn message(&self, _: MessageId) -> Option<Live> {
        None
    }

    fn cancel(&self, _: Selection, _: Cancellation) -> Cancelling<'_> {
        Box::pin(async { Ok(Cancelled::default()) })
    }
}

/// Serves the administration socket for as long as the test runs.
async fn serve(checks: &DomainChecks) {
    let admin = Admin::in_service(
        checks.store.clone(),
        checks.clock.clone(),
        checks.ses.clone(),
        Arc::new(Idle),
        None,
    );
    let socket = Socket::bind(&socket(checks.directory.path())).await.unwrap();
    // A drain without a driver stops nothing.
    let (_, signal) = Drain::new();
    tokio::spawn(socket.serve(Arc::new(admin), signal));
}

fn socket(directory: &Path) -> std::path::PathBuf {
    directory.join("admin.sock")
}

/// Runs a command: its exit code, and what it printed to both outputs.
async fn pillarbox(checks: &DomainChecks, arguments: &[&str]) -> (i32, String) {
    let mut command = kit::pillarbox(&["domain"]);
    command.args(arguments).arg("--socket").arg(socket(checks.directory.path()));
    let finished = Finished::run(command).await;
    (finished.code, finished.out + &finished.err)
}

#[tokio::test]
async fn adding_a_domain_prints_its_records_as_a_table_a_zone_file_and_json() {
    let zone = "dkim.region.example";
    let checks =
        DomainChecks::new(Options { dkim_zone: zone.to_owned(), ..Options::default() }).await;
    serve(&checks).await;
    let mail_from = "bounce.example.com";
    let add = ["add", "--org", "acme", "example.com", "--mail-from", mail_from];
    let (code, text) = pillarbox(&checks, &add).await;
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

    let (_, text) = pillarbox(&checks, &[&add[..], &["--json"]].concat()).await;
    let json: Value = serde_json::from_str(&text).unwrap();
    let records = json["dnsRecords"].as_array().unwrap();
    let kinds: Vec<_> = records.iter().map(|record| record["purpose"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["dkim", "dkim", "dkim", "mailFrom", "mailFrom", "dmarc"]);
    assert_eq!(records[3]["value"], "10 feedback-smtp.eu-west-1.amazonses.com");
}

#[tokio::test]
async fn a_mail_from_domain_is_below_the_sender_domain_and_nothing_is_sent_from_it() {
    let checks = DomainChecks::new(Options::default()).await;
    serve(&checks).await;
    checks.put("other", "news.example.com", DomainState::Assumed).await;
    for mail_from in ["example.com", "bounce.example.org", "badexample.com", "news.example.com"] {
        let add = ["add", "--org", "acme", "example.com", "--mail-from", mail_from];
        let (code, text) = pillarbox(&checks, &add).await;
        assert_eq!(code, 1, "{mail_from}: {text}");
        assert!(text.contains("has no other use"), "{mail_from}: {text}");
    }
    assert_eq!(checks.simulator.calls_total(), 0);
    let both = ["add", "--org", "acme", "a.b", "--mail-from", "bounce.a.b", "--assume-verified"];
    assert_eq!(pillarbox(&checks, &both).await.0, 2);
}

#[tokio::test]
async fn a_check_tells_pending_failed_and_temporary_failure_apart_and_says_what_to_do() {
    let checks = DomainChecks::new(Options::default()).await;
    serve(&checks).await;
    let add = ["add", "--org", "acme", "example.com", "--mail-from", "bounce.example.com"];
    assert_eq!(pillarbox(&checks, &add).await.0, 0);
    for (status, words) in [
        (VerificationStatus::Pending, "has not found the DNS records of example.com yet"),
        (VerificationStatus::TemporaryFailure, "for now (HOST_NOT_FOUND), and tries again"),
        (VerificationStatus::Failed, "delete-email-identity --email-identity example.com"),
    ] {
        checks.simulator.set_identity("example.com", status);
        let (code, text) = pillarbox(&checks, &["check", "example.com"]).await;
        assert_eq!(code, 0, "{text}");
        assert!(text.contains(words), "{text}");
        assert!(text.contains("MAIL FROM bounce.example.com: "), "{text}");
        assert!(text.contains("missing"), "{text}");
    }
    let (_, listed) = pillarbox(&checks, &["list"]).await;
    let row: Vec<_> = listed.lines().nth(1).unwrap().split_whitespace().collect();
    let now = checks.clock.now().to_string();
    assert_eq!(row[2..6], ["pending", now.as_str(), "failed", now.as_str()]);
    checks.simulator.verify("example.com");
    let (_, text) = pillarbox(&checks, &["check", "example.com"]).await;
    assert!(text.contains("SES has verified example.com\nDKIM: SES found the records\n"), "{text}");
    assert!(!text.contains("missing"), "{text}");
}
