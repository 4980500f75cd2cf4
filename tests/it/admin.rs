//! Administration end to end: the socket of a running service, the handler behind it, and the
//! commands over the socket.

mod offline;

use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use pillarbox_admin::client::{CallError, Client, ConnectError};
use pillarbox_admin::domain::Verification;
use pillarbox_admin::live::{Cancelling, LiveView, Looking};
use pillarbox_admin::message::QueuedMessages;
use pillarbox_admin::snapshot::Snapshot;
use pillarbox_admin::socket::{BindError, Socket};
use pillarbox_admin::suppression::{Scope, SuppressionChanges, SuppressionOutcome};
use pillarbox_admin::{
    Admin, Call, DomainAdd, DomainCheck, DomainRemove, KeyAdd, KeyRevoke, MessageCancel,
    OrganisationAdd, OrganisationRemove, SuppressionAdd, SuppressionRemove,
};
use pillarbox_dispatch::circuit_breaker::{BreakerState, Cause};
use pillarbox_dispatch::quota::AccountCheck;
use pillarbox_dispatch::token_bucket::Rate;
use pillarbox_dispatch::{Cancelled, RecentCalls, SendingStatus};
use pillarbox_domain::api_key::ApiKey;
use pillarbox_domain::event::{BounceType, Event, EventDetail};
use pillarbox_domain::id::{KeyId, MessageId, MessageIds, OrganisationId};
use pillarbox_domain::mailbox::DomainName;
use pillarbox_domain::message::Cancellation;
use pillarbox_domain::organisation::{DomainState, Finding};
use pillarbox_domain::request::Draft;
use pillarbox_http::drain::Drain;
use pillarbox_queue::{Live, Pending, Selection};
use pillarbox_runtime::clock::Clock;
use pillarbox_simulator::{Options, Simulator};
use pillarbox_store::{Reference, Report, Store};
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};

use crate::kit::{self, Finished, NOON};

const PATIENCE: Duration = Duration::from_secs(20);

/// A running service's facts, as a test sets them.
struct Facts {
    condition: Mutex<BreakerState>,
    live: Mutex<HashMap<MessageId, Live>>,
    cancelled: Mutex<Vec<(Selection, Cancellation)>>,
}

impl LiveView for Facts {
    fn snapshot(&self) -> Looking<'_> {
        let sending = SendingStatus {
            pending: Pending { messages: 3, in_flight: 1, bytes: 2 << 20, ..Pending::default() },
            max_pending_bytes: 1 << 30,
            rate: Rate::PerSecond(14.0),
            condition: self.condition.lock().unwrap().clone(),
            recent_calls: RecentCalls { calls: 50, slow: 10, unanswered: 2, unclear: 0 },
            paused_domains: vec![(OrganisationId(1), "example.com".into(), "no MX".into())],
            ..SendingStatus::default()
        };
        let account = AccountCheck::Passed;
        Box::pin(async { Snapshot { sending, account, ..Snapshot::default() } })
    }

    fn message(&self, id: MessageId) -> Option<Live> {
        self.live.lock().unwrap().get(&id).cloned()
    }

    fn cancel(&self, selection: Selection, why: Cancellation) -> Cancelling<'_> {
        self.cancelled.lock().unwrap().push((selection, why));
        Box::pin(async { Ok(Cancelled { cancelled: 3, calls_under_way: 1, not_pending: 0 }) })
    }
}

/// The administration of a service, with the simulator as its SES.
struct Service {
    directory: tempfile::TempDir,
    store: Store,
    clock: Clock,
    facts: Arc<Facts>,
    simulator: Simulator,
    drain: Drain,
    served: JoinHandle<()>,
}

impl Service {
    async fn start() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let store = kit::open_store(directory.path(), NOON);
        let clock = Clock::manual(NOON);
        let options = Options { signature_max_age: None, ..Options::default() };
        let simulator = kit::start_simulator(options).await;
        let ses = kit::ses_client(&simulator.endpoint(), &clock);
        let facts = Arc::new(Facts {
            condition: Mutex::new(BreakerState::Closed),
            live: Mutex::new(HashMap::new()),
            cancelled: Mutex::default(),
        });
        let live: Arc<dyn LiveView> = facts.clone();
        let admin = Arc::new(Admin::in_service(store.clone(), clock.clone(), ses, live, None));
        let socket = Socket::bind(&directory.path().join("admin.sock")).await.unwrap();
        let (drain, signal) = Drain::new();
        let served = tokio::spawn(socket.serve(admin, signal));
        write_config(directory.path());
        Self { directory, store, clock, facts, simulator, drain, served }
    }

    fn socket(&self) -> PathBuf {
        self.directory.path().join("admin.sock")
    }

    async fn try_call<C: Call>(&self, call: C) -> Result<C::Answer, CallError> {
        Client::connect(&self.socket()).await.unwrap().call(&call).await
    }

    async fn call<C: Call>(&self, call: C) -> C::Answer {
        self.try_call(call).await.unwrap_or_else(|error| panic!("{}: {error}", C::NAME))
    }

    async fn refusal<C: Call>(&self, call: C) -> String {
        match self.try_call(call).await {
            Err(CallError::Refused(refusal)) => refusal.message,
            Err(other) => panic!("{}: not refused: {other}", C::NAME),
            Ok(_) => panic!("{}: not refused", C::NAME),
        }
    }

    async fn add_organisation(&self, name: &str) {
        self.call(OrganisationAdd { name: name.to_owned(), test: false }).await;
    }

    /// Runs a command against this service.
    async fn command(&self, arguments: &[&str]) -> Finished {
        let socket = self.socket();
        let with_socket = [arguments, &["--socket", socket.to_str().unwrap()]].concat();
        pillarbox(&with_socket).await
    }

    async fn stop(self) -> tempfile::TempDir {
        self.drain.stop(Instant::now() + PATIENCE);
        self.served.await.unwrap();
        self.directory
    }
}

fn write_config(directory: &Path) -> PathBuf {
    let path = directory.join("pillarbox.toml");
    let shown = directory.display();
    let text = format!("data_dir = \"{shown}\"\nadmin_socket = \"{shown}/admin.sock\"\n");
    fs::write(&path, text).unwrap();
    path
}

async fn pillarbox(arguments: &[&str]) -> Finished {
    Finished::run(kit::pillarbox(arguments)).await
}

async fn accept(store: &Store, subject: &str) -> MessageId {
    let acme = store.organisation(&"acme".parse().unwrap()).unwrap().id;
    let domain = DomainName::parse("example.com").unwrap();
    store.put_domain(acme, domain, DomainState::Assumed, NOON).await.unwrap();
    let draft = Draft {
        from: Some("Ann <ann@example.com>"),
        to: Some(vec!["bob@example.org"]),
        cc: Some(vec!["eve@example.org"]),
        subject: Some(subject),
        text: Some("Hi".into()),
        ..Draft::default()
    };
    let id = MessageIds::new().next(NOON);
    kit::accept(store, acme, draft, id, NOON).await;
    id
}

#[tokio::test]
async fn the_socket_is_its_owners_alone_and_goes_with_the_service() {
    let service = Service::start().await;
    let mode = fs::symlink_metadata(service.socket()).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let socket = service.socket();
    let directory = service.stop().await;
    assert!(!socket.exists());
    let mut left: Vec<_> = fs::read_dir(directory.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    left.sort();
    assert_eq!(left, ["pillarbox.journal", "pillarbox.redb", "pillarbox.toml"]);
}

#[tokio::test]
async fn a_stale_socket_is_replaced_and_anything_else_is_left_alone() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("admin.sock");
    drop(UnixListener::bind(&path).unwrap());
    assert!(matches!(Client::connect(&path).await, Err(ConnectError::Refused { .. })));
    let socket = Socket::bind(&path).await.unwrap();
    Client::connect(&path).await.unwrap();

    assert!(matches!(Socket::bind(&path).await, Err(BindError::InUse { .. })));
    Client::connect(&path).await.unwrap();
    drop(socket);
    assert!(matches!(Client::connect(&path).await, Err(ConnectError::Absent { .. })));

    fs::write(&path, "precious").unwrap();
    assert!(matches!(Socket::bind(&path).await, Err(BindError::NotASocket { .. })));
    assert_eq!(fs::read_to_string(&path).unwrap(), "precious");
}

/// Sends bytes to a socket, and reads all that comes until the service closes the connection.
async fn exchange(socket: &Path, bytes: &[u8]) -> String {
    let mut stream = UnixStream::connect(socket).await.unwrap();
    // A service that has heard enough may close before the last byte.
    let _ = stream.write_all(bytes).await;
    let mut answer = String::new();
    let read = timeout(PATIENCE, stream.read_to_string(&mut answer)).await;
    read.expect("the service ends the connection").unwrap();
    answer
}

fn post(name: &str, document: &str) -> String {
    let length = document.len();
    format!("POST /{name} HTTP/1.1\r\nhost: x\r\ncontent-length: {length}\r\n\r\n{document}")
}

#[tokio::test]
async fn one_connection_takes_several_calls_and_bad_ones_are_refused() {
    let service = Service::start().await;
    let last = "POST /page HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
    let calls = [
        post("compact", "{}"),
        post("key-revoke", r#"{"id":1,"when":"later"}"#),
        post("organisation-list", "{}"),
        // By hand, a call without fields needs no body.
        post("organisation-list", ""),
        post("organisation-add", "nonsense"),
        "GET /status HTTP/1.1\r\nhost: x\r\n\r\n".to_owned(),
        last.to_owned(),
    ];
    let answers = exchange(&service.socket(), calls.concat().as_bytes()).await;
    let expected = [
        ("404 Not Found", "does not know the call compact; if pillarbox was upgraded, restart"),
        ("400 Bad Request", "unknown field `when`"),
        ("200 OK", r#"{"organisations":[]}"#),
        ("200 OK", r#"{"organisations":[]}"#),
        ("400 Bad Request", "does not understand this call organisation-add (expected"),
        ("405 Method Not Allowed", "it allows POST"),
        (
            "422 Unprocessable Entity",
            r#"{"error":{"code":"Refused","message":"this needs a running service"#,
        ),
    ];
    let answers: Vec<_> = answers.split("HTTP/1.1 ").skip(1).collect();
    assert_eq!(answers.len(), expected.len(), "{answers:?}");
    for (answer, (status, text)) in answers.iter().zip(expected) {
        assert!(answer.starts_with(status) && answer.contains(text), "{answer} is not {text}");
    }
    let version = format!("the service, version {},", env!("CARGO_PKG_VERSION"));
    assert!(answers[..2].iter().all(|answer| answer.contains(&version)), "{answers:?}");
}

#[tokio::test]
async fn a_hostile_client_is_refused_and_keeps_nobody_else_waiting() {
    let service = Service::start().await;
    let socket = service.socket();
    let announced = "POST /status HTTP/1.1\r\nhost: x\r\ncontent-length: 1048577\r\n\r\n";
    let head = format!("POST /status HTTP/1.1\r\nhost: x\r\nx: {}\r\n\r\n", "x".repeat(64 << 10));
    let chunk = format!("100001\r\n{}\r\n0\r\n\r\n", " ".repeat(0x10_0001));
    let chunked = "POST /status HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n";
    for (bytes, status) in [
        (announced.to_owned(), "413"),
        (format!("{chunked}{chunk}"), "413"),
        (head, "431"),
        ("{\"status\":{}}\n\r\n\r\n".to_owned(), "400"),
        ("\0\0\0\r\n\r\n".to_owned(), "400"),
    ] {
        let answer = exchange(&socket, bytes.as_bytes()).await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{answer}");
        assert!(answer.contains("connection: close"), "{answer}");
    }
    // As many as are served but one send half a head and then nothing.
    let mut silent = Vec::new();
    for _ in 0..63 {
        let mut stream = UnixStream::connect(&socket).await.unwrap();
        stream.write_all(b"POST /status HT").await.unwrap();
        silent.push(stream);
    }
    service.add_organisation("acme").await;
    // One more, and the next command waits to be accepted until there is room.
    silent.push(UnixStream::connect(&socket).await.unwrap());
    let waiting = service.add_organisation("beta");
    tokio::pin!(waiting);
    assert!(timeout(Duration::from_millis(300), &mut waiting).await.is_err(), "there is no room");
    silent.pop();
    timeout(PATIENCE, waiting).await.expect("there is room again");
    assert_eq!(service.store.organisations().len(), 2);
}

#[tokio::test]
async fn what_was_asked_is_done_though_nobody_waits_for_the_answer() {
    let service = Service::start().await;
    let mut stream = UnixStream::connect(service.socket()).await.unwrap();
    stream.write_all(post("organisation-add", r#"{"name":"acme"}"#).as_bytes()).await.unwrap();
    drop(stream);
    let added = async {
        while service.store.organisations().is_empty() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(PATIENCE, added).await.expect("it is done");
}

#[tokio::test]
async fn a_stop_lets_nobody_wait_who_has_asked_nothing() {
    let service = Service::start().await;
    let _silent = UnixStream::connect(service.socket()).await.unwrap();
    let begun = Instant::now();
    service.add_organisation("acme").await;
    service.stop().await;
    assert!(begun.elapsed() < PATIENCE / 2, "{:?}", begun.elapsed());
}

#[tokio::test]
async fn a_command_says_what_is_wrong_with_an_answer() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("admin.sock");
    let listener = tokio::net::UnixListener::bind(&path).unwrap();
    let length = (16 << 20) + 1;
    let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\n");
    let too_long = head + &" ".repeat(length);
    for (answer, problem) in [
        // A service of an earlier version.
        ("{\"refused\":{\"message\":\"no\"}}\n", "run the command with"),
        ("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n[]", "cannot be read (invalid length"),
        (&too_long, "cannot be read (length limit"),
        ("HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{\"id\"", "closed the connection; it may"),
        ("", "it may or may not have done what the command asked"),
    ] {
        let client = Client::connect(&path).await.unwrap();
        // What `connect` tried the socket with.
        listener.accept().await.unwrap();
        let serve = async {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut asked = Vec::new();
            while !asked.ends_with(b"}") {
                assert_ne!(stream.read_buf(&mut asked).await.unwrap(), 0);
            }
            // An answer that is too long is not read to its end.
            let _ = stream.write_all(answer.as_bytes()).await;
        };
        let call = OrganisationAdd { name: "acme".to_owned(), test: false };
        let (answered, ()) = tokio::join!(client.call(&call), serve);
        let error = answered.unwrap_err().to_string();
        assert!(error.contains(problem), "not {problem}: {error}");
    }
    let client = Client::connect(&path).await.unwrap();
    drop(listener);
    let call = OrganisationAdd { name: "acme".to_owned(), test: false };
    let end = Instant::now() + PATIENCE;
    // A process that another test starts holds the listener too, until it becomes its program.
    loop {
        match client.call(&call).await.unwrap_err() {
            CallError::Gone(_) => break,
            CallError::Broken(error) => assert!(Instant::now() < end, "{error}"),
            error => panic!("{error}"),
        }
    }
    let long = OrganisationAdd { name: "a".repeat(1 << 20), test: false };
    assert!(matches!(client.call(&long).await.unwrap_err(), CallError::TooLong));
}

#[tokio::test]
async fn a_key_lets_in_until_it_is_revoked_or_its_organisation_goes() {
    let service = Service::start().await;
    service.add_organisation("acme").await;
    let again = service.refusal(OrganisationAdd { name: "acme".into(), test: false }).await;
    assert!(again.contains("already"), "{again}");
    let bad = service.refusal(OrganisationAdd { name: "a b".into(), test: false }).await;
    assert!(bad.contains("1 to 64 characters"), "{bad}");

    let mut hashes = Vec::new();
    for label in ["first", "second"] {
        let call = KeyAdd {
            organisation: "acme".into(),
            label: label.into(),
            expires: None,
            scopes: Vec::new(),
            domains: Vec::new(),
            priority: None,
            message_expires_in: None,
        };
        let added = service.call(call).await;
        let hash = ApiKey::parse(&added.key.0).unwrap().hash();
        assert!(service.store.authenticate(&hash, NOON).is_some());
        hashes.push((added.id, hash));
    }
    let revoked = service.call(KeyRevoke { id: hashes[0].0 }).await;
    assert_eq!((revoked.id, revoked.label.as_str()), (hashes[0].0, "first"));
    assert!(service.store.authenticate(&hashes[0].1, NOON).is_none());
    assert!(service.store.authenticate(&hashes[1].1, NOON).is_some());
    service.refusal(KeyRevoke { id: hashes[0].0 }).await;

    let removed = service.call(OrganisationRemove { name: "acme".into() }).await;
    assert_eq!((removed.keys_revoked, removed.domains_removed), (1, 0));
    assert!(service.store.authenticate(&hashes[1].1, NOON).is_none());
    let gone = KeyAdd {
        organisation: "acme".into(),
        label: String::new(),
        expires: None,
        scopes: Vec::new(),
        domains: Vec::new(),
        priority: None,
        message_expires_in: None,
    };
    assert!(service.refusal(gone).await.contains("pillarbox org add acme"));
}

#[tokio::test]
async fn a_domain_is_verified_once_ses_says_so_and_no_longer_than_that() {
    let service = Service::start().await;
    service.add_organisation("acme").await;
    let add = |domain: &str, verification| DomainAdd {
        organisation: "acme".into(),
        domain: domain.into(),
        verification,
        mail_from: None,
    };
    let check = |domain: &str| DomainCheck { domain: domain.into() };

    let added = service.call(add("Example.com", Verification::BySes)).await;
    assert_eq!(
        (added.domain.domain.as_str(), added.domain.state.as_str()),
        ("example.com", "pending")
    );
    assert_eq!(added.dns_records.len(), 4);
    for record in &added.dns_records[..3] {
        let token = record.name.strip_suffix("._domainkey.example.com").unwrap();
        assert_eq!(record.value, format!("{token}.dkim.amazonses.com"));
    }

    service.simulator.verify("example.com");
    let checked = service.call(check("example.com")).await;
    assert_eq!((checked.ses, checked.domains[0].state.as_str()), (Finding::Verified, "verified"));

    // SES knows nothing of these two.
    let acme = service.store.organisation(&"acme".parse().unwrap()).unwrap().id;
    let lost = DomainName::parse("lost.example").unwrap();
    service.store.put_domain(acme, lost, DomainState::Verified, NOON).await.unwrap();
    service.call(add("assumed.example", Verification::Assumed)).await;
    for (domain, state) in [("lost.example", "pending"), ("assumed.example", "assumed")] {
        let checked = service.call(check(domain)).await;
        assert_eq!((checked.ses, checked.domains[0].state.as_str()), (Finding::Unknown, state));
    }

    let remove = DomainRemove { organisation: "acme".into(), domain: "example.com".into() };
    service.call(remove.clone()).await;
    service.refusal(remove).await;
    assert!(service.refusal(check("example.com")).await.contains("pillarbox domain add"));
    assert!(service.refusal(add("a b", Verification::BySes)).await.contains("not a domain"));
}

#[tokio::test]
async fn suppressions_are_for_one_organisation_or_for_all() {
    let service = Service::start().await;
    service.add_organisation("acme").await;
    let acme = || Scope::Organisation("acme".into());
    let outcome = |changes: SuppressionChanges| changes.addresses[0].outcome;
    let add = async |scope| {
        let addresses = vec!["Bob@Example.org".into()];
        outcome(service.call(SuppressionAdd { scope, addresses }).await)
    };
    let remove = async |scope| {
        let addresses = vec!["bob@example.org".into()];
        outcome(service.call(SuppressionRemove { scope, addresses }).await)
    };
    assert_eq!(add(acme()).await, SuppressionOutcome::Added);
    assert_eq!(add(acme()).await, SuppressionOutcome::AlreadyThere);
    assert_eq!(add(Scope::All).await, SuppressionOutcome::Added);
    assert_eq!(remove(acme()).await, SuppressionOutcome::StillForAll);
    assert_eq!(remove(Scope::All).await, SuppressionOutcome::Removed);
    assert_eq!(remove(Scope::All).await, SuppressionOutcome::NotThere);

    let addresses = vec!["good@example.org".into(), "bad".into()];
    let refused = service.refusal(SuppressionAdd { scope: Scope::All, addresses }).await;
    assert!(refused.contains("is not an address"), "{refused}");
    let ran = service.command(&["suppression", "list", "--json"]).await;
    assert_eq!(ran.json()["suppressions"], serde_json::json!([]));
}

#[tokio::test]
async fn a_long_list_of_suppressions_is_read_to_its_end() {
    let service = Service::start().await;
    service.add_organisation("acme").await;
    let addresses: Vec<_> = (0..700).map(|n| format!("user{n:04}@example.org")).collect();
    for scope in [Scope::Organisation("acme".into()), Scope::All] {
        let addresses = addresses.clone();
        service.call(SuppressionAdd { scope, addresses }).await;
    }
    for (arguments, count) in [
        (&["suppression", "list", "--json"][..], 1_400),
        (&["suppression", "list", "--json", "--org", "acme"], 700),
        (&["suppression", "list", "--json", "--all"], 700),
    ] {
        let listed = service.command(arguments).await.json();
        assert_eq!(listed["suppressions"].as_array().unwrap().len(), count, "{arguments:?}");
        assert_eq!(listed["next"], Value::Null);
    }
}

#[tokio::test]
async fn a_message_is_shown_with_its_events_and_its_live_state() {
    let service = Service::start().await;
    service.add_organisation("acme").await;
    let waiting = accept(&service.store, "Waiting").await;
    let sending = accept(&service.store, "Sending").await;
    let bounced = accept(&service.store, "Bounced \u{202e}").await;
    service.facts.live.lock().unwrap().insert(sending, Live::Sending { attempts: 2 });
    let detail = EventDetail::Bounce {
        bounce_type: BounceType::Permanent,
        sub_type: "General".into(),
        diagnostic_code: None,
    };
    let event = Event { occurred_at: NOON, recipients: vec!["bob@example.org".into()], detail };
    let report = Report {
        message: Reference::Tag(bounced),
        organisation: None,
        ses_message_id: "ses-1".into(),
        accepted_at: NOON,
        event: Some(event),
    };
    service.store.apply(report, NOON).await.unwrap();

    let shown = service.command(&["message", "show", &bounced.to_string(), "--json"]).await.json();
    assert_eq!((&shown["status"], &shown["outcome"]), (&"sent".into(), &"bounced".into()));
    assert_eq!(shown["to"], serde_json::json!(["bob@example.org", "eve@example.org"]));
    assert_eq!(shown["lastEvent"]["type"], "bounce");
    assert_eq!(shown["events"][0]["detail"]["bounceSubType"], "General");
    let people = service.command(&["message", "show", &bounced.to_string()]).await;
    assert!(people.out.contains("Bounced \\u{202e}"), "{people:?}");
    let shown = service.command(&["message", "show", &sending.to_string(), "--json"]).await.json();
    assert_eq!((&shown["status"], &shown["attempts"]), (&"sending".into(), &2.into()));
    assert_eq!(shown["outcome"], "sending");

    let listed = async |arguments: &[&str]| {
        let listed =
            service.command(&[&["message", "list", "--json"], arguments].concat()).await.json();
        let ids = listed["messages"].as_array().unwrap().iter();
        ids.map(|message| message["id"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let mut all = [waiting, sending, bounced].map(|id| id.to_string());
    all.sort();
    all.reverse();
    assert_eq!(listed(&[]).await, all);
    assert_eq!(listed(&["--status", "sending"]).await, [sending.to_string()]);
    assert_eq!(listed(&["--status", "queued"]).await, [waiting.to_string()]);
    assert_eq!(listed(&["--outcome", "sending"]).await, [sending.to_string()]);
    assert_eq!(listed(&["--outcome", "queued"]).await, [waiting.to_string()]);
    assert_eq!(listed(&["--outcome", "bounced"]).await, [bounced.to_string()]);
    assert_eq!(listed(&["--outcome", "sent"]).await, [""; 0]);
    assert_eq!(listed(&["--status", "sent", "--org", "acme"]).await, [bounced.to_string()]);
    assert_eq!(listed(&["--limit", "1", "--before", &all[0]]).await, all[1..2]);
    // The clock stands at noon, and the messages were accepted then.
    let day = NOON.to_string()[..10].to_owned();
    for since in ["2h", day.as_str(), &NOON.to_string()] {
        assert_eq!(listed(&["--since", since]).await, all, "{since}");
        assert_eq!(listed(&["--until", since]).await, [""; 0], "{since}");
    }
    let soon = service.command(&["message", "list", "--since", "soon"]).await;
    assert!(soon.err.contains("or a duration such as 2h for two hours ago"), "{soon:?}");
    let outcome = service.command(&["message", "list", "--status", "delivered"]).await;
    assert_eq!(outcome.code, 2, "{outcome:?}");
    assert!(outcome.err.contains("Use: --outcome delivered"), "{outcome:?}");
    let typo = service.command(&["message", "list", "--status", "snet"]).await;
    assert!(typo.err.contains("possible values: queued, sending, sent"), "{typo:?}");
    let missing = service.command(&["message", "show", "no-id"]).await;
    assert_eq!(missing.code, 1);
    assert!(missing.err.contains("not a message id"), "{missing:?}");
}

#[tokio::test]
async fn what_is_to_be_cancelled_reaches_the_service_as_it_was_asked() {
    let service = Service::start().await;
    service.add_organisation("acme").await;
    let organisation = service.store.organisations()[0].id;
    let asked = || std::mem::take(&mut *service.facts.cancelled.lock().unwrap());
    let mut ids: Vec<MessageId> = Vec::new();
    for subject in ["one", "two"] {
        ids.push(accept(&service.store, subject).await);
    }
    let named: Vec<String> = ids.iter().map(ToString::to_string).collect();
    let by_id = ["message", "cancel", &named[0], &named[1], &named[0]];
    let ran = service.command(&[&by_id[..], &["--json"]].concat()).await;
    let counts = serde_json::json!({"cancelled": 3, "callsUnderWay": 1, "notPending": 0});
    assert_eq!(ran.json(), counts);
    let ids = Selection::Ids(ids.into_iter().collect());
    assert_eq!(asked(), [(ids, Cancellation::ByOperator)]);

    let domain = DomainName::parse("b\u{fc}cher.example").unwrap();
    let part = ["--key", "7", "--domain", "B\u{fc}cher.example"];
    service.command(&[&["message", "cancel", "--org", "acme"], &part[..]].concat()).await;
    let (key, sender_domain) = (Some(KeyId(7)), Some(domain.into_owned()));
    let part = Selection::Organisation { organisation, key, sender_domain };
    assert_eq!(asked(), [(part, Cancellation::ByOperator)]);

    service.command(&["domain", "remove", "--org", "acme", "example.com"]).await;
    let sender_domain = Some(DomainName::parse("example.com").unwrap());
    let from_it = Selection::Organisation { organisation, key: None, sender_domain };
    assert_eq!(asked(), [(from_it, Cancellation::DomainRemoved)]);
    service.command(&["org", "remove", "acme"]).await;
    let all = Selection::of(organisation);
    assert_eq!(asked(), [(all.clone(), Cancellation::OrganisationRemoved)]);
    // What was queued for it may still be named by its number.
    let number = format!("#{}", organisation.0);
    service.command(&["message", "cancel", "--org", &number]).await;
    assert_eq!(asked(), [(all, Cancellation::ByOperator)]);

    let messages = QueuedMessages::WithIds(vec![named[0].clone(), "no id".to_owned()]);
    let refused = service.refusal(MessageCancel { messages }).await;
    assert!(refused.contains("not a message id"), "{refused}");
    let messages = QueuedMessages::WithIds(vec![named[0].clone(); 1_001]);
    let refused = service.refusal(MessageCancel { messages }).await;
    assert!(refused.contains("in parts"), "{refused}");
    assert_eq!(asked(), []);
}

#[tokio::test]
async fn status_says_in_plain_words_what_is_wrong_and_what_to_do() {
    let service = Service::start().await;
    service.add_organisation("acme").await;
    let well = service.command(&["status"]).await;
    assert!(well.out.contains("takes messages"), "{well:?}");
    assert!(!well.out.contains("clock confirm"), "{well:?}");

    *service.facts.condition.lock().unwrap() =
        BreakerState::Open { cause: Cause::QuotaExhausted, message: "200 of 200".into() };
    service.clock.set(NOON.plus(Duration::from_hours(48)));
    let ill = service.command(&["status"]).await;
    let expected = "sending is paused: the account's daily quota is used up (200 of 200). ";
    assert!(ill.out.contains(expected), "{ill:?}");
    assert!(ill.out.contains("pillarbox clock confirm"), "{ill:?}");
    assert!(ill.out.contains("example.com of acme"), "{ill:?}");
    assert_eq!(ill.code, 1, "{ill:?}");
    let json = service.command(&["status", "--json"]).await;
    assert_eq!(json.code, 1, "{json:?}");
    let json: serde_json::Value = serde_json::from_str(&json.out).unwrap();
    assert_eq!(json["sending"]["provider"]["cause"], "quotaExhausted");
    assert_eq!(json["counts"]["organisations"], 1);

    let confirmed = service.command(&["clock", "confirm"]).await;
    assert!(confirmed.out.contains("is confirmed"), "{confirmed:?}");
    assert_eq!(service.clock.window_time().now(), service.clock.now());
    *service.facts.condition.lock().unwrap() = BreakerState::Closed;
    assert_eq!(service.command(&["status", "--json"]).await.json()["clockJump"], Value::Null);
}
