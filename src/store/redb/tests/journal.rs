//! The data file and its journal: after a kill, apart, and of another file.

use std::path::{Path, PathBuf};

use sha2::Digest as _;

use crate::conformance::{Fixture, START};
use crate::redb::{FILE_NAME, JOURNAL_NAME, OpenError};
use crate::{Accepted, Health, MessageFilter, Store, StoreError};
use pillarbox_domain::message::{Status, Transition};
use pillarbox_domain::request::IdempotencyKey;

fn opened(directory: &Path) -> Result<Store, OpenError> {
    Ok(Store::open(directory, START)?.0)
}

/// Copies both files as they are between two writes, like a kill.
fn killed(store: &Store) -> tempfile::TempDir {
    let left = tempfile::tempdir().unwrap();
    let database = &store.redb().shared.database;
    let directory = database.data_file().unwrap().path().parent().unwrap();
    database.between_writes(|| {
        for name in [JOURNAL_NAME, FILE_NAME] {
            std::fs::copy(directory.join(name), left.path().join(name)).unwrap();
        }
    });
    left
}

/// A store in a directory, with a message.
async fn with_a_message() -> (tempfile::TempDir, Fixture) {
    let directory = tempfile::tempdir().unwrap();
    let fixture = Fixture::on(opened(directory.path()).unwrap()).await;
    fixture.new_message().await;
    (directory, fixture)
}

/// Accepts messages until there was a checkpoint, and leaves some in the journal.
async fn until_after_a_checkpoint(fixture: &Fixture) {
    let mut bytes = 0;
    while bytes <= fixture.store.journal_bytes() {
        bytes = fixture.store.journal_bytes();
        fixture.new_message().await;
    }
    fixture.new_message().await;
}

/// The one journal in a directory that was kept under another name.
fn kept_journal(directory: &Path) -> PathBuf {
    let names = std::fs::read_dir(directory).unwrap();
    let names: Vec<_> =
        names.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    let prefix = format!("{JOURNAL_NAME}.kept-");
    let kept: Vec<_> = names.iter().filter(|name| name.starts_with(&prefix)).collect();
    let [kept] = &kept[..] else { panic!("{names:?}") };
    directory.join(kept)
}

async fn message_count(store: Store) -> usize {
    store.list(MessageFilter::default(), 100, START).await.unwrap().messages.len()
}

fn reason(opened: Result<Store, OpenError>) -> String {
    match opened {
        Err(error @ OpenError::Journal(_)) => error.to_string(),
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("it opens"),
    }
}

#[tokio::test]
async fn what_was_answered_is_there_after_a_kill_whether_a_checkpoint_has_it_or_not() {
    let directory = tempfile::tempdir().unwrap();
    let fixture = Fixture::on(opened(directory.path()).unwrap()).await;
    for accepted in 1..=60 {
        fixture.new_message().await;
        if accepted % 7 == 0 {
            let left = killed(&fixture.store);
            assert_eq!(message_count(opened(left.path()).unwrap()).await, accepted);
            // The first start has replayed it all.
            assert_eq!(message_count(opened(left.path()).unwrap()).await, accepted);
        }
    }
}

#[tokio::test]
async fn what_is_durable_is_read_at_once_though_its_transaction_is_still_open() {
    let directory = tempfile::tempdir().unwrap();
    let fixture = Fixture::on(opened(directory.path()).unwrap()).await;
    let store = &fixture.store;
    for accepted in 1..=60 {
        let key = format!("key {accepted}");
        let Ok(Accepted::New(id)) = fixture.accept(Some(&key), START).await else {
            panic!("it is new");
        };
        let replayed =
            store.replay(fixture.organisation, IdempotencyKey::parse(&key).unwrap(), START).await;
        assert_eq!(replayed, Ok(Some(id)));
        assert_eq!(store.message(id, START).await.unwrap().unwrap().status(), Status::Queued);
        let transition = Transition::Sent { ses_message_id: "ses".to_owned(), sent_at: START };
        store.record(id, 1, transition, START).await.unwrap();
        assert_eq!(store.message(id, START).await.unwrap().unwrap().status(), Status::Sent);
        let sent = MessageFilter { status: Some(Status::Sent), ..MessageFilter::default() };
        let list = store.list(sent, 100, START).await.unwrap();
        assert_eq!((list.messages.len(), list.messages[0].id), (accepted, id));
    }
}

#[tokio::test]
async fn a_listing_publishes_only_changes_that_it_can_show() {
    let directory = tempfile::tempdir().unwrap();
    let fixture = Fixture::on(opened(directory.path()).unwrap()).await;
    let (store, database) = (&fixture.store, &fixture.store.redb().shared.database);
    let (first, second) = (fixture.new_message().await, fixture.new_message().await);
    let before = async |id| {
        let filter = MessageFilter { before: Some(id), ..MessageFilter::default() };
        let page = store.list(filter, 100, START).await.unwrap();
        let shown = page.messages.iter().map(|message| (message.id, message.status()));
        shown.collect::<Vec<_>>()
    };
    assert_eq!(before(second).await, [(first, Status::Queued)]);
    assert!(!database.is_unpublished());
    let third = fixture.new_message().await;
    assert_eq!(before(third).await, [(second, Status::Queued), (first, Status::Queued)]);
    assert!(database.is_unpublished(), "the third message is none of those");
    let transition = Transition::Sent { ses_message_id: "ses".to_owned(), sent_at: START };
    store.record(first, 1, transition, START).await.unwrap();
    assert_eq!(before(second).await, [(first, Status::Sent)]);
    assert!(!database.is_unpublished());
}

#[tokio::test]
async fn an_operation_that_fails_takes_no_earlier_one_with_it() {
    let directory = tempfile::tempdir().unwrap();
    let fixture = Fixture::on(opened(directory.path()).unwrap()).await;
    for accepted in 1..=60 {
        let id = fixture.new_message().await;
        if accepted % 7 == 0 {
            let panics =
                fixture.store.redb().writer.run(0, |_| -> Result<(), _> { panic!("as it must") });
            assert_eq!(panics.await, Err(StoreError::Damaged));
            assert!(fixture.store.message(id, START).await.unwrap().is_some());
            fixture.store.writable().await;
            assert!(fixture.store.message(id, START).await.unwrap().is_some());
            assert_eq!(message_count(fixture.store.clone()).await, accepted);
        }
    }
    drop(fixture);
    assert_eq!(message_count(opened(directory.path()).unwrap()).await, 60);
}

#[tokio::test]
async fn a_file_that_was_closed_needs_no_journal() {
    let (directory, fixture) = with_a_message().await;
    drop(fixture);
    std::fs::remove_file(directory.path().join(JOURNAL_NAME)).unwrap();
    assert_eq!(message_count(opened(directory.path()).unwrap()).await, 1);
}

#[tokio::test]
async fn a_killed_file_without_its_journal_is_refused_and_left_as_it_is() {
    let (_directory, fixture) = with_a_message().await;
    let (left, other) = (killed(&fixture.store), killed(&fixture.store));
    let (journal, aside) = (left.path().join(JOURNAL_NAME), left.path().join("aside"));
    std::fs::rename(&journal, &aside).unwrap();
    assert!(reason(opened(left.path())).contains("it is missing"));
    assert!(!journal.exists(), "an empty one would be taken for the right one");
    // Later starts of the same file wrote this one.
    drop(opened(other.path()).unwrap());
    let later = killed(&opened(other.path()).unwrap());
    std::fs::copy(later.path().join(JOURNAL_NAME), &journal).unwrap();
    assert!(reason(opened(left.path())).contains("with another journal"));
    std::fs::rename(&aside, &journal).unwrap();
    assert_eq!(message_count(opened(left.path()).unwrap()).await, 1);
}

#[tokio::test]
async fn the_journal_of_a_file_that_is_not_there_is_kept() {
    let (_directory, fixture) = with_a_message().await;
    let left = killed(&fixture.store);
    let (file, aside) = (left.path().join(FILE_NAME), left.path().join("aside"));
    std::fs::rename(&file, &aside).unwrap();
    assert_eq!(message_count(opened(left.path()).unwrap()).await, 0);
    let kept = kept_journal(left.path());
    std::fs::rename(&aside, &file).unwrap();
    std::fs::rename(kept, left.path().join(JOURNAL_NAME)).unwrap();
    assert_eq!(message_count(opened(left.path()).unwrap()).await, 1);
}

#[tokio::test]
async fn a_journal_that_is_deleted_while_it_is_in_use_is_made_anew() {
    let (directory, fixture) = with_a_message().await;
    std::fs::remove_file(directory.path().join(JOURNAL_NAME)).unwrap();
    assert_eq!(fixture.accept(None, START).await, Err(StoreError::Unavailable));
    fixture.store.writable().await;
    fixture.new_message().await;
    let left = killed(&fixture.store);
    assert_eq!(message_count(opened(left.path()).unwrap()).await, 2);
}

#[tokio::test]
async fn an_earlier_copy_of_the_data_file_does_not_take_a_later_journal() {
    let (_directory, fixture) = with_a_message().await;
    let (earlier, left) = (killed(&fixture.store), killed(&fixture.store));
    let later = killed(&opened(left.path()).unwrap());
    std::fs::copy(earlier.path().join(FILE_NAME), later.path().join(FILE_NAME)).unwrap();
    assert!(reason(opened(later.path())).contains("with another journal"));
}

#[tokio::test]
async fn a_copy_of_the_data_file_in_its_place_does_not_get_the_journal_that_is_in_use() {
    let (directory, fixture) = with_a_message().await;
    let left = killed(&fixture.store);
    std::fs::rename(left.path().join(FILE_NAME), directory.path().join(FILE_NAME)).unwrap();
    assert!(matches!(opened(directory.path()), Err(OpenError::InUse)));
}

#[tokio::test]
async fn a_journal_that_is_put_in_the_place_of_the_one_in_use_is_kept() {
    let (directory, fixture) = with_a_message().await;
    let other = tempfile::tempdir().unwrap();
    let other = killed(&Fixture::on(opened(other.path()).unwrap()).await.store);
    std::fs::rename(other.path().join(JOURNAL_NAME), directory.path().join(JOURNAL_NAME)).unwrap();
    assert_eq!(fixture.accept(None, START).await, Err(StoreError::Unavailable));
    fixture.store.writable().await;
    fixture.new_message().await;
    let kept = kept_journal(directory.path());
    let left = killed(&fixture.store);
    assert_eq!(message_count(opened(left.path()).unwrap()).await, 2);
    std::fs::rename(kept, other.path().join(JOURNAL_NAME)).unwrap();
    assert_eq!(message_count(opened(other.path()).unwrap()).await, 0);
}

#[tokio::test]
async fn a_journal_from_before_the_last_checkpoint_is_refused() {
    let (_directory, fixture) = with_a_message().await;
    let earlier = killed(&fixture.store);
    until_after_a_checkpoint(&fixture).await;
    let (left, journal) = (killed(&fixture.store), earlier.path().join(JOURNAL_NAME));
    let accepted = message_count(fixture.store.clone()).await;
    let (own, aside) = (left.path().join(JOURNAL_NAME), left.path().join("aside"));
    std::fs::rename(&own, &aside).unwrap();
    std::fs::copy(journal, &own).unwrap();
    let reason = reason(opened(left.path()));
    assert!(reason.contains("is older than the data file"), "{reason}");
    for way_on in ["pillarbox restore", "--accept-loss", "pillarbox backup"] {
        assert!(reason.contains(way_on), "{reason}");
    }
    std::fs::rename(&aside, &own).unwrap();
    assert_eq!(message_count(opened(left.path()).unwrap()).await, accepted);
}

#[tokio::test]
async fn a_journal_from_after_a_later_checkpoint_is_refused_however_many_there_were() {
    let (_directory, fixture) = with_a_message().await;
    let earlier = killed(&fixture.store);
    for _ in 0..3 {
        until_after_a_checkpoint(&fixture).await;
        let left = killed(&fixture.store);
        std::fs::copy(earlier.path().join(FILE_NAME), left.path().join(FILE_NAME)).unwrap();
        let reason = reason(opened(left.path()));
        assert!(reason.contains("is newer than the data file"), "{reason}");
    }
}

#[tokio::test]
async fn a_journal_that_was_moved_away_is_refused_once_there_is_a_new_one() {
    let (directory, fixture) = with_a_message().await;
    let moved = directory.path().join("moved");
    std::fs::rename(directory.path().join(JOURNAL_NAME), &moved).unwrap();
    assert_eq!(fixture.accept(None, START).await, Err(StoreError::Unavailable));
    fixture.store.writable().await;
    fixture.new_message().await;
    let left = killed(&fixture.store);
    std::fs::copy(&moved, left.path().join(JOURNAL_NAME)).unwrap();
    let reason = reason(opened(left.path()));
    assert!(reason.contains("is older than the data file"), "{reason}");
}

#[tokio::test]
async fn the_journal_of_a_version_that_made_no_marks_is_taken() {
    let (_directory, fixture) = with_a_message().await;
    until_after_a_checkpoint(&fixture).await;
    let accepted = message_count(fixture.store.clone()).await;
    let left = killed(&fixture.store);
    let journal = left.path().join(JOURNAL_NAME);
    let mut bytes = std::fs::read(&journal).unwrap();
    // Its owners are as they were, and nothing else is in the first block.
    bytes[15] = b'1';
    let sum = sha2::Sha256::digest(&bytes[..32]);
    bytes[32..48].copy_from_slice(&sum[..16]);
    bytes[48..4096].fill(0);
    std::fs::write(&journal, bytes).unwrap();
    for _ in 0..2 {
        assert_eq!(message_count(opened(left.path()).unwrap()).await, accepted);
    }
}

#[tokio::test]
async fn a_start_whose_journal_cannot_be_made_reads_and_goes_on_once_it_can() {
    let (directory, fixture) = with_a_message().await;
    drop(fixture);
    let journal = directory.path().join(JOURNAL_NAME);
    std::fs::remove_file(&journal).unwrap();
    std::fs::create_dir(&journal).unwrap();
    let store = opened(directory.path()).unwrap();
    assert_eq!(store.health(), Health::Refusing);
    assert_eq!(message_count(store.clone()).await, 1);
    // A command opens nothing that it cannot write.
    drop(store);
    assert!(Store::observe(directory.path(), START).is_err());
    let store = opened(directory.path()).unwrap();
    std::fs::remove_dir(&journal).unwrap();
    store.writable().await;
    let fixture = Fixture::on(store).await;
    fixture.new_message().await;
    let left = killed(&fixture.store);
    assert_eq!(message_count(opened(left.path()).unwrap()).await, 2);
}
