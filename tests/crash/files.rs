//! Files that the process must not touch, a second process, and files of every version.

use std::path::Path;
use std::time::{Duration, Instant};

use redb::{Database, TableDefinition};
use tempfile::TempDir;

use crate::kit::{self, PATIENCE, Process};
use crate::site::{faulty_site, spawn};

const META: TableDefinition<&str, u64> = TableDefinition::new("meta");
/// Positions of redb's two commit slots, each of which begins with its format (redb's `header.rs`).
const COMMIT_SLOTS: [usize; 2] = [64, 192];

/// Starts the service on a data directory; what it says when it ends, and how. One that goes on
/// is ended, and has no code.
fn serve(directory: &Path) -> (Option<i32>, String) {
    let config = directory.join("pillarbox.toml");
    let root = directory.display();
    let text = format!(
        "listen = \"127.0.0.1:0\"\noperator_listen = \"127.0.0.1:0\"\ndata_dir = \"{root}\"\n\
         admin_socket = \"{root}/admin.sock\"\n[ses]\nendpoint = \"http://127.0.0.1:1\"\n"
    );
    std::fs::write(&config, text).unwrap();
    let mut command = kit::pillarbox(&["serve", "--config"]);
    command.arg(&config).env("RUST_LOG", "info");
    Process::spawn(command).wait_at_most(PATIENCE)
}

/// The service must refuse this file with these words, and leave it as it is.
fn refuses(content: &[u8], because: &str) {
    let directory = TempDir::new().unwrap();
    let file = directory.path().join("pillarbox.redb");
    std::fs::write(&file, content).unwrap();
    let (code, said) = serve(directory.path());
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains(because), "{said}");
    assert!(!said.contains("panicked"), "{said}");
    assert!(std::fs::read(&file).unwrap() == content, "the file was touched: {said}");
}

/// A file of redb with one value in a table that is called as ours.
fn redb_file(key: &str, value: u64) -> Vec<u8> {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("file.redb");
    let database = Database::create(&path).unwrap();
    let transaction = database.begin_write().unwrap();
    transaction.open_table(META).unwrap().insert(key, value).unwrap();
    transaction.commit().unwrap();
    drop(database);
    std::fs::read(path).unwrap()
}

/// A file of ours.
fn our_file() -> Vec<u8> {
    let directory = TempDir::new().unwrap();
    drop(crate::kit::open_store(directory.path(), crate::old::now()));
    std::fs::read(directory.path().join("pillarbox.redb")).unwrap()
}

#[test]
fn a_file_that_is_not_ours_is_refused_and_left_as_it_is() {
    let foreign = "is not a pillarbox store";
    refuses(b"", foreign);
    refuses(b"SQLite format 3\0 and some more", foreign);
    refuses(&[0x5a; 10_000], foreign);
    refuses(&redb_file("something", 1), foreign);
    refuses(&redb_file("format", 0), foreign);
}

#[test]
fn a_file_of_redb_that_was_not_closed_is_left_as_it_is_if_it_is_not_ours() {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("file.redb");
    let database = Database::create(&path).unwrap();
    let transaction = database.begin_write().unwrap();
    transaction.open_table(META).unwrap().insert("something", 1).unwrap();
    transaction.commit().unwrap();
    let open = std::fs::read(&path).unwrap();
    refuses(&open, "is not a pillarbox store");
}

#[test]
fn a_file_of_a_newer_version_is_refused_and_left_as_it_is() {
    refuses(&redb_file("format", 1_000), "has format 1000, written by a newer pillarbox");
}

#[test]
fn a_file_in_another_format_of_redb_is_refused_and_left_as_it_is() {
    let mut content = our_file();
    for slot in COMMIT_SLOTS {
        assert_eq!(content[slot], 3);
        content[slot] = 2;
    }
    refuses(&content, "redb's format 2");
}

#[test]
fn a_truncated_file_is_refused_and_left_as_it_is() {
    let content = our_file();
    for length in [1, 9, 100, 319, 320, 4_095, 4_096, 10_000, content.len() / 2, content.len() - 1]
    {
        let because = if length < 9 { "is not a pillarbox store" } else { "damaged" };
        refuses(&content[..length], because);
    }
}

#[test]
fn a_directory_in_the_place_of_the_file_is_refused() {
    let directory = TempDir::new().unwrap();
    std::fs::create_dir(directory.path().join("pillarbox.redb")).unwrap();
    let (code, said) = serve(directory.path());
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("Is a directory"), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_killed_first_start_left_goes_with_the_next() {
    let site = faulty_site(1).await;
    std::fs::create_dir(site.data_dir()).unwrap();
    let left = site.data_dir().join(".pillarbox-new-aB3xY9");
    let other = site.data_dir().join(".pillarbox-new-notes.txt");
    std::fs::write(&left, "half a file").unwrap();
    std::fs::write(&other, "somebody's own").unwrap();
    let process = spawn(&site);
    process.listening();
    assert!(!left.exists());
    assert_eq!(std::fs::read_to_string(other).unwrap(), "somebody's own");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_process_on_the_same_file_says_so_and_the_first_goes_on() {
    let site = faulty_site(1).await;
    let first = spawn(&site);
    first.listening();
    let began = Instant::now();
    let (code, said) = serve(&site.data_dir());
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("another process has the file open"), "{said}");
    assert!(began.elapsed() < Duration::from_mins(1));
    site.add_organisation("acme", "example.com");
}
