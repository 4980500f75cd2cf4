//! Files of every version of the format: each must be read by this one.
//!
//! `tests/crash/versions/format-N.redb` was written by the last pillarbox with the format N. If the
//! format changes, a new one is made first, by the first test below.

use std::path::{Path, PathBuf};
use std::time::Duration;

use pillarbox_domain::admission::admit;
use pillarbox_domain::api_key::ApiKey;
use pillarbox_domain::event::{BounceType, Event, EventDetail};
use pillarbox_domain::id::MessageId;
use pillarbox_domain::mailbox::DomainName;
use pillarbox_domain::message::{FailureCode, Message, State, Status, Transition};
use pillarbox_domain::organisation::{DomainState, KeyRights};
use pillarbox_domain::request::{Draft, IdempotencyKey, SendRequest};
use pillarbox_domain::suppression::{SuppressedAddress, Suppression, SuppressionReason};
use pillarbox_domain::time::Timestamp;
use pillarbox_store::{
    Accepted, Candidate, Contents, DeadLetter, Existing, MessageFilter, NewApiKey, NewMessage,
    Reference, Report, Store, Unclosed,
};
use redb::{ReadableTableMetadata, TableDefinition};

const THEN: Timestamp = Timestamp::from_unix_millis(1_800_000_000_000);
const KEY: &str = "pb_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA";
const META: TableDefinition<&str, u64> = TableDefinition::new("meta");
/// Table that version 2 has and version 1 has not.
const BY_ORGANISATION: TableDefinition<(u32, [u8; 16]), ()> =
    TableDefinition::new("messages_by_organisation");
/// Number of messages that are left pending, beside one that is sent and bounced.
const PENDING: usize = 3;

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/crash/versions")
}

fn bounce() -> Event {
    let detail = EventDetail::Bounce {
        bounce_type: BounceType::Permanent,
        sub_type: "General".to_owned(),
        diagnostic_code: Some("smtp; 550 5.1.1".to_owned()),
    };
    let recipients = vec!["bob@example.org".to_owned()];
    Event { occurred_at: THEN.plus(Duration::from_secs(5)), recipients, detail }
}

/// The id of the n-th message.
fn id(n: u8) -> MessageId {
    let mut bytes = *MessageId::first_of(THEN).as_bytes();
    bytes[6] = 0x70;
    bytes[8] = 0x80;
    bytes[15] = n;
    MessageId::from_bytes(bytes)
}

async fn fill(store: &Store) {
    let acme = store.add_organisation("acme".parse().unwrap()).await.unwrap().unwrap();
    let key = ApiKey::parse(KEY).unwrap();
    let new = NewApiKey {
        label: "web".to_owned(),
        expires_at: None,
        hash: key.hash(),
        rights: KeyRights::all(),
    };
    store.add_api_key(acme.id, new, THEN).await.unwrap();
    let domain = DomainName::parse("example.com").unwrap();
    store.put_domain(acme.id, domain, DomainState::Assumed, THEN).await.unwrap();
    for n in 0..=u8::try_from(PENDING).unwrap() {
        let key = format!("key-{n}");
        let draft = Draft {
            from: Some("Ann <ann@example.com>"),
            to: Some(vec!["Bob <bob@example.org>"]),
            cc: Some(vec!["carol@example.org"]),
            subject: Some("Grüße"),
            text: Some("Body".into()),
            idempotency_key: Some(&key),
            ..Draft::default()
        };
        let facts = store.facts(acme.id);
        let admitted = admit(SendRequest::parse(draft).unwrap(), &facts).await.unwrap();
        let accepted =
            store.accept(NewMessage::new(id(n), acme.id, &admitted, THEN, THEN, || {})).await;
        assert_eq!(accepted, Ok(Accepted::New(id(n))));
    }
    let sent = Transition::Sent { ses_message_id: "ses-0".to_owned(), sent_at: THEN };
    store.record(id(0), 2, sent, THEN).await.unwrap();
    let report = Report {
        message: Reference::Tag(id(0)),
        organisation: Some("acme".to_owned()),
        ses_message_id: "ses-0".to_owned(),
        accepted_at: THEN,
        event: Some(bounce()),
    };
    store.apply(report.clone(), THEN).await.unwrap();
    let unknown =
        Report { message: Reference::ProviderId, ses_message_id: "ses-9".to_owned(), ..report };
    store.apply(unknown, THEN).await.unwrap();
    store.keep_dead_letters(vec![DeadLetter::new(THEN, "no JSON", "{")]).await.unwrap();
    let manual = Suppression {
        address: SuppressedAddress::parse("eve@example.org").unwrap(),
        reason: SuppressionReason::Manual,
        since: THEN,
        cause: None,
    };
    store.suppress(None, manual).await.unwrap();
}

/// If `KEEP_FORMAT` names a file, the one that was made is kept there: this way the next version's
/// file comes among the sources.
#[tokio::test]
async fn a_file_of_the_current_version_is_read() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(directory.path(), THEN).unwrap().0;
    fill(&store).await;
    drop(store);
    if let Some(kept) = std::env::var_os("KEEP_FORMAT") {
        let file = directory.path().join(pillarbox_store::FILE_NAME);
        // A file as small as it can be, for it is kept with the sources.
        redb::Database::open(&file).unwrap().compact().unwrap();
        std::fs::copy(file, fixtures().join(kept)).unwrap();
    }
    check(&Store::open(directory.path(), THEN).unwrap().0).await;
}

#[tokio::test]
async fn files_of_every_version_are_read() {
    let mut versions = 0;
    for file in std::fs::read_dir(fixtures()).unwrap() {
        let file = file.unwrap().path();
        let directory = tempfile::tempdir().unwrap();
        std::fs::copy(&file, directory.path().join(pillarbox_store::FILE_NAME)).unwrap();
        let (store, recovery) = Store::open(directory.path(), THEN).unwrap();
        assert_eq!((recovery.bodies_lost, recovery.live_keys), (PENDING, PENDING + 1), "{file:?}");
        assert_eq!(store.time_record().await, Ok(None), "{file:?}: no time stamp, so no doubt");
        check(&store).await;
        versions += 1;
    }
    assert!(versions > 0);
}

#[tokio::test]
async fn files_of_every_version_are_restored() {
    let mut versions = 0;
    for file in std::fs::read_dir(fixtures()).unwrap() {
        let file = file.unwrap().path();
        let directory = tempfile::tempdir().unwrap();
        let contents = Contents::of(&file, Unclosed::Refuse).unwrap();
        let candidate = Candidate::check(&file, directory.path(), Unclosed::Refuse, |_| ());
        let candidate = candidate.unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        let messages = u64::try_from(PENDING + 1).unwrap();
        assert_eq!((contents.messages, contents.damaged), (messages, 0));
        candidate.install(Existing::Keep, THEN).unwrap();
        check(&Store::open(directory.path(), THEN).unwrap().0).await;
        versions += 1;
    }
    assert!(versions > 0);
}

/// As if the process had been killed after it had brought a part of the messages to the new layout.
#[tokio::test]
async fn a_change_of_version_that_was_broken_off_is_made_to_its_end() {
    for made in 0..=PENDING + 1 {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join(pillarbox_store::FILE_NAME);
        std::fs::copy(fixtures().join("format-1.redb"), &file).unwrap();
        drop(Store::open(directory.path(), THEN).unwrap());
        let database = redb::Database::open(&file).unwrap();
        let transaction = database.begin_write().unwrap();
        transaction.open_table(META).unwrap().insert("format", 1).unwrap();
        let mut lists = transaction.open_table(BY_ORGANISATION).unwrap();
        assert_eq!(lists.len().unwrap(), u64::try_from(PENDING + 1).unwrap());
        while lists.len().unwrap() > u64::try_from(made).unwrap() {
            lists.pop_last().unwrap();
        }
        drop(lists);
        transaction.commit().unwrap();
        drop(database);
        check(&Store::open(directory.path(), THEN).unwrap().0).await;
    }
}

async fn check(store: &Store) {
    let client = store.authenticate(&ApiKey::parse(KEY).unwrap().hash(), THEN).unwrap();
    let acme = client.organisation;
    assert_eq!(acme.name, "acme".parse().unwrap());
    let own = MessageFilter { organisation: Some(acme.id), ..MessageFilter::default() };
    let own = store.list(own, 100, THEN).await.unwrap();
    assert_eq!(own, store.list(MessageFilter::default(), 100, THEN).await.unwrap());
    let listed: Vec<Message> = store
        .list(MessageFilter::default(), 100, THEN)
        .await
        .unwrap()
        .messages
        .into_iter()
        .rev()
        .collect();
    assert_eq!(listed.len(), PENDING + 1);
    for (n, message) in (0..).zip(&listed) {
        assert_eq!(message.id, id(n));
        assert_eq!((message.organisation, message.created_at), (acme.id, THEN));
        assert_eq!(message.recipients, ["Bob <bob@example.org>", "carol@example.org"]);
        assert_eq!(message.subject, "Grüße");
        let key = format!("key-{n}");
        let key = IdempotencyKey::parse(&key).unwrap();
        assert_eq!(store.replay(acme.id, key, THEN).await, Ok(Some(message.id)));
    }
    let sent = State::Sent { ses_message_id: "ses-0".to_owned(), sent_at: THEN };
    assert_eq!((&listed[0].state, listed[0].attempts), (&sent, 2));
    assert_eq!(store.events(id(0)).await.unwrap(), [bounce()]);
    for lost in &listed[1..] {
        assert_eq!(lost.status(), Status::Failed);
        assert_eq!(lost.failure().unwrap().code, FailureCode::BodyLostOnRestart);
    }
    let suppressions = store.suppressions(None, 10).await.unwrap().suppressions;
    let suppressions: Vec<_> = suppressions
        .iter()
        .map(|(whose, s)| (*whose, s.address.as_str(), s.reason, s.since, s.cause))
        .collect();
    let bounced = (
        Some(acme.id),
        "bob@example.org",
        SuppressionReason::Bounce,
        bounce().occurred_at,
        Some(id(0)),
    );
    let manual = (None, "eve@example.org", SuppressionReason::Manual, THEN, None);
    assert_eq!(suppressions, [manual, bounced]);
    let backlog = store.event_backlog().await.unwrap();
    assert_eq!((backlog.unmatched, backlog.dead_letters), (1, 1));
}
