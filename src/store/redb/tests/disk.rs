//! The store on a disk that fails.

use std::collections::{BTreeSet, HashSet};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use redb::{Database, StorageBackend};
use tokio::time::timeout;

use crate::conformance::{Fixture, START};
use crate::redb::open::{Opener, initialize};
use crate::{Accepted, Health, MessageFilter, Store, StoreError};
use pillarbox_domain::admission::Facts as _;
use pillarbox_domain::feed::{FeedChange, FeedPosition, FeedTypes};
use pillarbox_domain::id::MessageId;
use pillarbox_domain::mailbox::Mailbox;
use pillarbox_domain::message::{FailureCode, Recorded, State, Transition};
use pillarbox_domain::request::IdempotencyKey;
use pillarbox_domain::suppression::{SuppressedAddress, Suppression, SuppressionReason};

/// Time for which a disk panics: several attempts to open the file again fall into this.
const PANICS_GO_ON: Duration = Duration::from_millis(400);
/// Longest time that the store may take to recover by itself.
const PATIENCE: Duration = Duration::from_mins(1);
/// More rows than one page of a table has.
const ROWS_OF_SEVERAL_PAGES: usize = 100;
/// Cache size that makes every read one of the disk.
const NO_CACHE: usize = 0;

fn address(text: &str) -> SuppressedAddress {
    SuppressedAddress::from(Mailbox::parse(text).unwrap().address())
}

/// A store on a disk in memory that fails if it is set to.
async fn on_disk(disk: &Disk) -> Fixture {
    Fixture::on(Store::on_redb(disk.opener(NO_CACHE), START).unwrap().0).await
}

#[tokio::test]
async fn a_full_disk_refuses_and_reads_and_replays_go_on_until_there_is_space() {
    let disk = Disk::formatted();
    let fixture = on_disk(&disk).await;
    let Accepted::New(id) = fixture.accept(Some("k"), START).await.unwrap() else { panic!() };
    disk.set(Fault::Full);
    // Freed pages of earlier commits may take a few more messages, and the rows that the store
    // writes to check that it can, so that it tries again and again.
    let (mut accepted, mut refused) = (0, 0);
    while refused < 20 {
        match fixture.accept(None, START).await {
            Ok(_) => (accepted, refused) = (accepted + 1, 0),
            Err(error) => {
                assert_eq!(error, StoreError::Unavailable);
                refused += 1;
            }
        }
        assert!(accepted < 400, "the disk is full");
    }
    let key = IdempotencyKey::parse("k").unwrap();
    let replay = fixture.store.replay_after_commit(fixture.organisation, key, START).await;
    assert_eq!(replay.unwrap(), Some(id));
    assert!(fixture.store.message(id, START).await.unwrap().is_some());
    assert_eq!(fixture.accept(None, START).await, Err(StoreError::Unavailable));
    disk.set(Fault::None);
    fixture.store.writable().await;
    assert!(matches!(fixture.accept(None, START).await, Ok(Accepted::New(_))));
}

#[tokio::test]
async fn a_refused_message_never_comes_to_life_whichever_sync_failed() {
    for failing in 0..6 {
        let (arrives, is_lost) =
            (Fault::SyncFails { after: failing }, Fault::SyncLoses { after: failing });
        for fault in [arrives, is_lost, Fault::SyncPanics { after: failing }] {
            let disk = Disk::formatted();
            let fixture = on_disk(&disk).await;
            fixture.accept(Some("before"), START).await.unwrap();
            disk.set(fault);
            let answer = fixture.accept(Some("k"), START).await;
            disk.set(Fault::None);
            fixture.store.writable().await;
            let key = IdempotencyKey::parse("k").unwrap();
            let replay = fixture.store.replay(fixture.organisation, key, START).await.unwrap();
            let listed =
                fixture.store.list(MessageFilter::default(), 9, START).await.unwrap().messages;
            match answer {
                Ok(Accepted::New(id)) => assert_eq!((replay, listed.len()), (Some(id), 2)),
                Err(StoreError::Unavailable) => assert_eq!((replay, listed.len()), (None, 1)),
                other => panic!("{other:?}"),
            }
            drop(fixture);
            let fixture = on_disk(&disk).await;
            let after =
                fixture.store.list(MessageFilter::default(), 9, START).await.unwrap().messages;
            assert_eq!(after.len(), listed.len(), "{fault:?}");
        }
    }
}

#[tokio::test]
async fn what_is_in_memory_is_what_is_on_disk_whichever_sync_failed() {
    for failing in 0..6 {
        for fault in [Fault::SyncFails { after: failing }, Fault::SyncLoses { after: failing }] {
            let disk = Disk::formatted();
            let fixture = on_disk(&disk).await;
            disk.set(fault);
            let _ = fixture.store.add_organisation("other".parse().unwrap()).await;
            disk.set(Fault::None);
            fixture.store.writable().await;
            let in_memory = fixture.store.organisations();
            drop(fixture);
            assert_eq!(on_disk(&disk).await.store.organisations(), in_memory, "{fault:?}");
        }
    }
}

/// Linux takes pages for clean that a failed sync did not write: what was answered before and after
/// that must be there once the cache is gone.
#[tokio::test]
async fn what_was_answered_is_there_after_a_power_cut_whichever_sync_forgot_its_writes() {
    for failing in 0..6 {
        let disk = Disk::formatted();
        let fixture = on_disk(&disk).await;
        let mut ids = Vec::new();
        let mut accept = async |count: usize| {
            for _ in 0..count {
                match fixture.accept(None, START).await {
                    Ok(Accepted::New(id)) => ids.push(id),
                    Err(StoreError::Unavailable) => fixture.store.writable().await,
                    other => panic!("{other:?}"),
                }
            }
        };
        // With several checkpoints.
        accept(200).await;
        disk.set(Fault::SyncForgets { after: failing });
        accept(200).await;
        disk.set(Fault::WritesFail);
        drop(fixture);
        disk.set(Fault::None);
        disk.cut();
        let store = Store::on_redb(disk.opener(NO_CACHE), START).unwrap().0;
        for id in ids {
            assert!(store.message(id, START).await.unwrap().is_some(), "{failing}: {id} is lost");
        }
    }
}

#[tokio::test]
async fn a_disk_that_takes_no_writes_is_read_and_refusals_do_not_wait_for_its_end() {
    let disk = Disk::formatted();
    let fixture = on_disk(&disk).await;
    let Accepted::New(id) = fixture.accept(Some("k"), START).await.unwrap() else { panic!() };
    disk.set(Fault::WritesFail);
    for _ in 0..3 {
        assert_eq!(fixture.accept(Some("new"), START).await, Err(StoreError::Unavailable));
        let key = IdempotencyKey::parse("k").unwrap();
        let replay = fixture.store.replay_after_commit(fixture.organisation, key, START).await;
        assert_eq!(replay, Ok(Some(id)));
        assert!(fixture.store.message(id, START).await.unwrap().is_some());
        // Long enough for the file to be opened again, without success.
        tokio::time::sleep(Duration::from_millis(120)).await;
    }
    assert_eq!(fixture.store.health(), Health::Refusing);
    disk.set(Fault::None);
    fixture.store.writable().await;
    let Ok(Accepted::New(new)) = fixture.accept(Some("new"), START).await else { panic!() };
    drop(fixture);
    let fixture = on_disk(&disk).await;
    let key = IdempotencyKey::parse("new").unwrap();
    assert_eq!(fixture.store.replay(fixture.organisation, key, START).await, Ok(Some(new)));
    let listed = fixture.store.list(MessageFilter::default(), 9, START).await.unwrap();
    assert_eq!(listed.messages.len(), 2);
}

/// Kills a store that has a sent message and a pending one with the key `k`; returns their ids.
async fn killed(disk: &Disk) -> [MessageId; 2] {
    let fixture = on_disk(disk).await;
    let sent = fixture.new_message().await;
    let transition = Transition::Sent { ses_message_id: "ses".to_owned(), sent_at: START };
    fixture.store.record(sent, 1, transition, START).await.unwrap();
    let Accepted::New(pending) = fixture.accept(Some("k"), START).await.unwrap() else { panic!() };
    disk.set(Fault::WritesFail);
    drop(fixture);
    disk.set(Fault::None);
    [sent, pending]
}

/// The changes in the feed of the first organisation.
async fn fed(store: &Store) -> Vec<FeedChange> {
    let organisation = store.organisation(&"acme".parse().unwrap()).unwrap().id;
    let page = store.feed(organisation, FeedPosition::START, FeedTypes::ALL, 9, START).await;
    page.unwrap().entries.into_iter().map(|entry| entry.change).collect()
}

#[tokio::test]
async fn a_start_on_a_disk_that_takes_no_writes_reads_and_writes_what_was_lost_later() {
    let disk = Disk::formatted();
    let [sent, pending] = killed(&disk).await;
    disk.set(Fault::WritesFail);
    let (store, recovery) = Store::on_redb(disk.opener(NO_CACHE), START).unwrap();
    assert_eq!((recovery.bodies_lost, recovery.live_keys), (1, 1));
    let code = async |id| {
        let message = store.message(id, START).await.unwrap().unwrap();
        message.failure().map(|failure| failure.code)
    };
    let organisation = store.organisation(&"acme".parse().unwrap()).unwrap().id;
    let key = IdempotencyKey::parse("k").unwrap();
    for _ in 0..3 {
        assert_eq!(store.health(), Health::Refusing);
        assert_eq!(code(pending).await, Some(FailureCode::BodyLostOnRestart));
        assert_eq!(code(sent).await, None);
        assert_eq!(store.replay_after_commit(organisation, key, START).await, Ok(Some(pending)));
        let listed = store.list(MessageFilter::default(), 9, START).await.unwrap();
        assert_eq!(listed.messages.len(), 2);
        assert_eq!(store.lost_messages(START).await.unwrap().unwrap().messages, 1);
        assert_eq!(fed(&store).await, [FeedChange::Sent], "it is told of once it is written");
        let added = store.add_organisation("other".parse().unwrap()).await;
        assert_eq!(added, Err(StoreError::Unavailable));
        // Long enough for another attempt, without success.
        tokio::time::sleep(Duration::from_millis(120)).await;
    }
    disk.set(Fault::None);
    timeout(PATIENCE, store.writable()).await.expect("the store takes writes");
    assert_eq!(code(pending).await, Some(FailureCode::BodyLostOnRestart));
    assert_eq!(store.lost_messages(START).await.unwrap().unwrap().messages, 1);
    assert_eq!(fed(&store).await, [FeedChange::Sent, FeedChange::Failed]);
    let fixture = Fixture::on(store).await;
    fixture.new_message().await;
    drop(fixture);
    let (store, recovery) = Store::on_redb(disk.opener(NO_CACHE), START).unwrap();
    assert_eq!(recovery.bodies_lost, 1, "the new one");
    assert_eq!(store.lost_messages(START).await.unwrap().unwrap().messages, 2);
}

#[tokio::test]
async fn a_start_on_a_disk_that_takes_no_writes_keeps_what_has_a_body() {
    let disk = Disk::formatted();
    let [sent, pending] = killed(&disk).await;
    disk.set(Fault::WritesFail);
    let bodies = BTreeSet::from([sent, pending]);
    let (store, recovery) = Store::on_redb_with(disk.opener(NO_CACHE), bodies, START).unwrap();
    assert_eq!((recovery.bodies_lost, recovery.kept), (0, BTreeSet::from([pending])));
    let is_queued = async |store: &Store| {
        let message = store.message(pending, START).await.unwrap().unwrap();
        matches!(message.state, State::Queued { .. })
    };
    assert!(is_queued(&store).await);
    disk.set(Fault::None);
    timeout(PATIENCE, store.writable()).await.expect("the store takes writes");
    assert!(is_queued(&store).await, "what was laid over the file is written");
    let transition = Transition::Sent { ses_message_id: "ses".to_owned(), sent_at: START };
    assert_eq!(store.record(pending, 1, transition, START).await, Ok(Recorded::Changed));
}

/// Accepts messages until the disk is full; returns their ids.
async fn filled(disk: &Disk) -> Vec<MessageId> {
    let fixture = on_disk(disk).await;
    let mut ids = Vec::new();
    for _ in 0..ROWS_OF_SEVERAL_PAGES {
        ids.push(fixture.new_message().await);
    }
    disk.set(Fault::Full);
    let mut refused = 0;
    while refused < 20 {
        match fixture.accept(None, START).await {
            Ok(Accepted::New(id)) => {
                ids.push(id);
                refused = 0;
            }
            Err(StoreError::Unavailable) => refused += 1,
            other => panic!("{other:?}"),
        }
        assert!(ids.len() < 500, "the disk is full");
    }
    ids
}

#[tokio::test]
async fn a_start_on_a_full_disk_that_can_only_read_keeps_what_has_a_body_until_there_is_room() {
    let disk = Disk::formatted();
    let ids = filled(&disk).await;
    let with: BTreeSet<MessageId> = ids.iter().copied().step_by(3).collect();
    let lost = ids.len() - with.len();
    let is_queued = async |store: &Store, id| {
        let message = store.message(id, START).await.unwrap().unwrap();
        match &message.state {
            State::Queued { .. } => true,
            State::Failed { failure, .. } => {
                assert_eq!(failure.code, FailureCode::BodyLostOnRestart);
                false
            }
            other => panic!("{id} is {other:?}"),
        }
    };
    let sent = || Transition::Sent { ses_message_id: "ses".to_owned(), sent_at: START };
    let first = *with.first().unwrap();
    let start = || Store::on_redb_with(disk.opener(NO_CACHE), with.clone(), START).unwrap();
    // Each of them ends before there is room.
    for _ in 0..3 {
        let (store, recovery) = start();
        assert_eq!(store.health(), Health::Refusing, "it can only read");
        assert_eq!((recovery.bodies_lost, recovery.kept), (lost, with.clone()));
        for id in &ids {
            assert_eq!(is_queued(&store, *id).await, with.contains(id));
        }
        let recorded = store.record(first, 1, sent(), START).await;
        assert_eq!(recorded, Err(StoreError::Unavailable));
        assert!(is_queued(&store, first).await);
        assert_eq!(fed(&store).await, [], "it is told of once it is written");
    }
    let (store, _) = start();
    disk.set(Fault::None);
    timeout(PATIENCE, store.writable()).await.expect("the store takes writes");
    for id in &ids {
        assert_eq!(is_queued(&store, *id).await, with.contains(id));
    }
    assert_eq!(store.record(first, 1, sent(), START).await, Ok(Recorded::Changed));
    assert_eq!(store.lost_messages(START).await.unwrap().unwrap().messages, lost as u64);
    drop(store);
    let (store, recovery) = start();
    let left: BTreeSet<MessageId> = with.iter().copied().skip(1).collect();
    assert_eq!((recovery.bodies_lost, recovery.kept), (0, left), "each is told of once");
    assert_eq!(store.lost_messages(START).await.unwrap().unwrap().messages, lost as u64);
}

#[tokio::test]
async fn a_start_with_bodies_goes_on_whichever_sync_failed_and_whatever_is_killed_after_it() {
    let mut met = 0;
    for failing in 0..16 {
        for fault in [Fault::SyncFails { after: failing }, Fault::SyncLoses { after: failing }] {
            let disk = Disk::formatted();
            let [_, kept] = killed(&disk).await;
            let start = || {
                let opener = disk.opener(NO_CACHE);
                let (store, recovery) = Store::on_redb_with(opener, [kept].into(), START).unwrap();
                assert_eq!(recovery.kept, [kept].into(), "{fault:?}");
                store
            };
            let told = async |store: &Store| {
                let lost = store.lost_messages(START).await.unwrap().unwrap();
                assert_eq!(lost.messages, 1, "{fault:?}");
                assert_eq!(fed(store).await, [FeedChange::Sent, FeedChange::Failed], "{fault:?}");
            };
            let fixture = Fixture::on(start()).await;
            let gone = fixture.new_message().await;
            disk.set(Fault::WritesFail);
            drop(fixture);
            disk.set(fault);
            let store = start();
            met += u32::from(store.health() == Health::Refusing);
            disk.set(Fault::None);
            timeout(PATIENCE, store.writable()).await.expect("the store takes writes");
            told(&store).await;
            disk.set(Fault::WritesFail);
            drop(store);
            disk.set(Fault::None);
            let store = start();
            told(&store).await;
            assert!(store.message(gone, START).await.unwrap().unwrap().failure().is_some());
        }
    }
    assert!(met > 8, "only {met} starts met a fault");
}

/// More messages than one transaction of a start recovers.
#[tokio::test]
async fn of_many_pending_messages_each_stays_or_fails_by_its_body() {
    const COUNT: usize = 11_000;
    let disk = Disk::formatted();
    let fixture = on_disk(&disk).await;
    let mut ids = Vec::new();
    for _ in 0..COUNT {
        ids.push(fixture.new_message().await);
    }
    drop(fixture);
    let bodies: BTreeSet<MessageId> =
        ids.iter().copied().filter(|id| id.as_bytes()[15] % 3 == 0).collect();
    let opened = Store::on_redb_with(disk.opener(NO_CACHE), bodies.clone(), START);
    let (_, recovery) = opened.unwrap();
    assert_eq!(recovery.bodies_lost, COUNT - bodies.len());
    assert_eq!(recovery.kept, bodies);
}

#[tokio::test]
async fn a_start_goes_on_whichever_sync_failed_and_whatever_is_killed_after_it() {
    let mut met = 0;
    for failing in 0..16 {
        for fault in [Fault::SyncFails { after: failing }, Fault::SyncLoses { after: failing }] {
            let disk = Disk::formatted();
            let [sent, pending] = killed(&disk).await;
            disk.set(fault);
            let (store, _) = Store::on_redb(disk.opener(NO_CACHE), START).unwrap();
            met += u32::from(store.health() == Health::Refusing);
            assert!(store.message(sent, START).await.unwrap().is_some(), "{fault:?}");
            disk.set(Fault::None);
            timeout(PATIENCE, store.writable()).await.expect("the store takes writes");
            assert_eq!(fed(&store).await, [FeedChange::Sent, FeedChange::Failed], "{fault:?}");
            disk.set(Fault::WritesFail);
            drop(store);
            disk.set(Fault::None);
            let (store, recovery) = Store::on_redb(disk.opener(NO_CACHE), START).unwrap();
            assert_eq!(recovery.bodies_lost, 0, "{fault:?}");
            assert!(store.message(pending, START).await.unwrap().is_some(), "{fault:?}");
        }
    }
    assert!(met > 8, "only {met} starts met a fault");
}

#[tokio::test]
async fn reads_that_failed_succeed_again_though_nobody_writes() {
    let disk = Disk::formatted();
    let fixture = on_disk(&disk).await;
    let Accepted::New(id) = fixture.accept(Some("k"), START).await.unwrap() else { panic!() };
    // The first page of a table stays in memory while it is open.
    for _ in 0..ROWS_OF_SEVERAL_PAGES {
        fixture.new_message().await;
    }
    let carol = address("carol@example.org");
    let suppression = Suppression {
        address: carol.clone(),
        reason: SuppressionReason::Manual,
        since: START,
        cause: None,
    };
    fixture.store.suppress(None, suppression).await.unwrap();
    disk.set(Fault::ReadsFail);
    assert_eq!(fixture.store.message(id, START).await, Err(StoreError::Unavailable));
    let facts = fixture.store.facts(fixture.organisation);
    assert_eq!(facts.is_suppressed(&carol).await, Err(StoreError::Unavailable));
    assert_eq!(facts.is_suppressed(&address("dan@example.org")).await, Ok(false));
    disk.set(Fault::None);
    let end = std::time::Instant::now() + Duration::from_mins(1);
    while fixture.store.message(id, START).await.is_err() {
        assert!(std::time::Instant::now() < end, "reads never succeed again");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    fixture.store.writable().await;
    assert_eq!(fixture.accept(Some("k"), START).await, Ok(Accepted::Replayed(id)));
}

#[tokio::test]
async fn the_writer_outlives_panics_while_the_file_is_opened_again() {
    let disk = Disk::formatted();
    let fixture = on_disk(&disk).await;
    let Accepted::New(id) = fixture.accept(Some("k"), START).await.unwrap() else { panic!() };
    disk.set(Fault::ReadsPanic);
    // It may be in the journal before a table is read.
    let during = fixture.accept(None, START).await;
    fixture.store.answered().await;
    assert!(fixture.accept(None, START).await.is_err());
    // Long enough for several attempts to open the file again.
    tokio::time::sleep(PANICS_GO_ON).await;
    timeout(PATIENCE, fixture.store.answered()).await.expect("the writer answers");
    assert_eq!(fixture.store.health(), Health::Refusing);
    disk.set(Fault::None);
    timeout(PATIENCE, fixture.store.writable()).await.expect("the store takes writes again");
    assert_eq!(fixture.accept(Some("k"), START).await, Ok(Accepted::Replayed(id)));
    assert!(matches!(fixture.accept(Some("new"), START).await, Ok(Accepted::New(_))));
    if let Ok(Accepted::New(id)) = during {
        assert!(fixture.store.message(id, START).await.unwrap().is_some());
    }
}

#[tokio::test]
async fn what_was_answered_is_there_though_the_tables_did_not_take_it() {
    let disk = Disk::formatted();
    let fixture = on_disk(&disk).await;
    fixture.accept(Some("before"), START).await.unwrap();
    disk.set(Fault::ReadsFail);
    let answer = fixture.accept(Some("k"), START).await;
    fixture.store.answered().await;
    assert_eq!(fixture.accept(Some("refused"), START).await, Err(StoreError::Unavailable));
    disk.set(Fault::None);
    timeout(PATIENCE, fixture.store.writable()).await.expect("the store takes writes again");
    let expected = match answer {
        Ok(Accepted::New(id)) => (Ok(Some(id)), 2),
        // A checkpoint came in between, and the next transaction begins with a read.
        Err(StoreError::Unavailable) => (Ok(None), 1),
        other => panic!("{other:?}"),
    };
    assert_eq!(replay_and_listed(&fixture).await, expected);
    drop(fixture);
    assert_eq!(replay_and_listed(&on_disk(&disk).await).await, expected);
}

/// Returns the message that the key `k` made, and the number of listed messages.
async fn replay_and_listed(fixture: &Fixture) -> (Result<Option<MessageId>, StoreError>, usize) {
    let key = IdempotencyKey::parse("k").unwrap();
    let replay = fixture.store.replay(fixture.organisation, key, START).await;
    let listed = fixture.store.list(MessageFilter::default(), 9, START).await.unwrap();
    (replay, listed.messages.len())
}

#[tokio::test]
async fn a_sign_of_life_costs_no_commit() {
    let fixture = on_disk(&Disk::formatted()).await;
    let commits = || fixture.store.metrics().commits();
    let before = commits();
    fixture.store.answered().await;
    assert_eq!(commits(), before);
}

/// A block of the file system, in bytes.
const BLOCK: u64 = 4_096;

/// Fault of the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Fault {
    /// No fault.
    #[default]
    None,
    /// No space is left: a block that was not written before cannot be written, as on a file system
    /// that allocates blocks at the first write.
    Full,
    /// Writes arrive, and the one sync after `after` more fails.
    SyncFails { after: usize },
    /// The one sync after `after` more fails, and the writes since the last one are lost.
    SyncLoses { after: usize },
    /// The one sync of the data file after `after` more fails. The writes since the last one are lost,
    /// but reads show them until the disk loses its power, and no later sync writes them: as on Linux.
    SyncForgets { after: usize },
    /// No write and no sync succeeds.
    WritesFail,
    /// Every read fails.
    ReadsFail,
    /// Every read panics, as redb does on pages that it cannot interpret.
    ReadsPanic,
    /// Writes arrive, and the one sync after `after` more panics.
    SyncPanics { after: usize },
}

/// One of the two files of a disk; clones are the same file.
#[derive(Debug, Clone)]
pub(crate) struct Disk {
    content: Arc<Mutex<Content>>,
    file: Which,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Which {
    Data,
    Journal,
}

#[derive(Debug, Default)]
struct Content {
    data: FileContent,
    journal: FileContent,
    fault: Fault,
}

#[derive(Debug, Default)]
struct FileContent {
    bytes: Vec<u8>,
    /// Content as of the last sync.
    synced: Vec<u8>,
    /// Blocks that were written since then, and are not forgotten.
    dirty: BTreeSet<u64>,
    /// The blocks that have been allocated.
    given: HashSet<u64>,
}

impl FileContent {
    /// Makes the blocks durable that are not forgotten.
    fn sync(&mut self) {
        self.synced.resize(self.bytes.len(), 0);
        for block in std::mem::take(&mut self.dirty) {
            let start = usize::try_from(block * BLOCK).unwrap().min(self.bytes.len());
            let end = self.bytes.len().min(start + usize::try_from(BLOCK).unwrap());
            self.synced[start..end].copy_from_slice(&self.bytes[start..end]);
        }
    }

    /// Loses the writes since the last sync.
    fn lose(&mut self) {
        self.bytes.clone_from(&self.synced);
        self.dirty.clear();
    }
}

impl Content {
    fn file(&mut self, which: Which) -> &mut FileContent {
        match which {
            Which::Data => &mut self.data,
            Which::Journal => &mut self.journal,
        }
    }
}

impl Disk {
    /// A disk that holds an empty store.
    pub(crate) fn formatted() -> Self {
        let disk = Self { content: Arc::default(), file: Which::Data };
        let database = Database::builder().create_with_backend(disk.clone()).unwrap();
        initialize(&database).unwrap();
        disk
    }

    /// Opens a store on it.
    pub(crate) fn opener(&self, cache_bytes: usize) -> Opener {
        let data = self.clone();
        let journal = Self { content: Arc::clone(&self.content), file: Which::Journal };
        Opener::backend(cache_bytes, move || data.clone(), move || journal.clone())
    }

    /// Loses its power: both files are as of the last sync.
    fn cut(&self) {
        let mut content = self.content();
        for which in [Which::Data, Which::Journal] {
            content.file(which).lose();
        }
    }

    /// Sets its fault from now on.
    pub(super) fn set(&self, fault: Fault) {
        self.content().fault = fault;
    }

    fn content(&self) -> MutexGuard<'_, Content> {
        self.content.lock().unwrap()
    }
}

impl StorageBackend for Disk {
    fn len(&self) -> io::Result<u64> {
        Ok(self.content().file(self.file).bytes.len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let offset = usize::try_from(offset).unwrap();
        let mut content = self.content();
        match content.fault {
            Fault::ReadsFail => return Err(io::Error::other("read failed")),
            Fault::ReadsPanic => {
                // Others use the disk after this.
                drop(content);
                panic!("read panics");
            }
            _ => {}
        }
        let bytes = content.file(self.file).bytes.get(offset..offset + out.len());
        out.copy_from_slice(bytes.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut content = self.content();
        if content.fault == Fault::WritesFail {
            return Err(io::Error::other("write failed"));
        }
        let is_full = content.fault == Fault::Full;
        let file = content.file(self.file);
        let length = usize::try_from(len).unwrap();
        if self.file == Which::Journal && length > file.bytes.len() {
            // The journal's file is written to its end when it grows.
            if is_full {
                return Err(io::ErrorKind::StorageFull.into());
            }
            file.given.extend(0..len.div_ceil(BLOCK));
        }
        file.bytes.resize(length, 0);
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        let mut guard = self.content();
        let content = &mut *guard;
        match &mut content.fault {
            Fault::SyncFails { after: 0 } => {
                content.fault = Fault::None;
                return Err(io::Error::other("sync failed"));
            }
            Fault::SyncLoses { after: 0 } => {
                content.fault = Fault::None;
                content.file(self.file).lose();
                return Err(io::Error::other("sync failed"));
            }
            // Each write to the journal is synced by itself.
            Fault::SyncForgets { .. } if self.file == Which::Journal => {}
            Fault::SyncForgets { after: 0 } => {
                content.fault = Fault::None;
                content.file(self.file).dirty.clear();
                return Err(io::Error::other("sync failed"));
            }
            Fault::SyncPanics { after: 0 } => {
                content.fault = Fault::None;
                content.file(self.file).sync();
                drop(guard);
                panic!("sync panics");
            }
            Fault::WritesFail => return Err(io::Error::other("sync failed")),
            Fault::SyncFails { after }
            | Fault::SyncLoses { after }
            | Fault::SyncForgets { after }
            | Fault::SyncPanics { after } => *after -= 1,
            Fault::None | Fault::Full | Fault::ReadsFail | Fault::ReadsPanic => {}
        }
        content.file(self.file).sync();
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut content = self.content();
        if content.fault == Fault::WritesFail {
            return Err(io::Error::other("write failed"));
        }
        let is_full = content.fault == Fault::Full;
        let file = content.file(self.file);
        for block in offset / BLOCK..=(offset + data.len() as u64 - 1) / BLOCK {
            if is_full && !file.given.contains(&block) {
                return Err(io::ErrorKind::StorageFull.into());
            }
            file.given.insert(block);
            file.dirty.insert(block);
        }
        let offset = usize::try_from(offset).unwrap();
        let bytes = file.bytes.get_mut(offset..offset + data.len());
        bytes.ok_or(io::ErrorKind::UnexpectedEof)?.copy_from_slice(data);
        Ok(())
    }
}
