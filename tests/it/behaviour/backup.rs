//! Backup, restoration and compaction, by the commands, on the file of a real service.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Output;

use pillarbox_simulator::{Fault, Faults};
use redb::{Database, ReadableDatabase, ReadableTableMetadata, TableHandle};
use serde_json::{Value, json};

use crate::kit::{Site, message, message_with, refusal};

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn json_of(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap()
}

fn refused(output: &Output, why: &str) {
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(error.contains(why), "{error}");
}

fn names(directory: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(directory).unwrap();
    let mut names: Vec<_> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// Each table of a file with its number of rows.
fn tables(path: &Path) -> Vec<(String, u64)> {
    let database = Database::open(path).unwrap();
    let transaction = database.begin_read().unwrap();
    let mut tables: Vec<_> = transaction
        .list_tables()
        .unwrap()
        .map(|table| {
            let name = table.name().to_owned();
            (name, transaction.open_untyped_table(table).unwrap().len().unwrap())
        })
        .collect();
    tables.sort();
    tables
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backup_of_a_running_service_restores_to_what_it_was() {
    let site = Site::new().await;
    let backup = site.directory().join("backup.redb");
    let server = site.start();
    let with_key = message_with("idempotencyKey", json!("order-1"));
    let sent = server.send(&with_key).await;
    server.wait_for(&sent, "sent").await;
    site.done(&["suppression", "add", "--org", "acme", "gone@example.org"]);
    site.simulator.set_faults(Faults::always(Fault::Down));
    let pending = server.send(&message()).await;

    let output = site.done(&["backup", text(&backup), "--json"]);
    assert!(json_of(&output)["rows"].as_u64().unwrap() > 5, "{output:?}");
    assert_eq!(std::fs::metadata(&backup).unwrap().permissions().mode() & 0o777, 0o600);
    let later = server.send(&message()).await;
    refused(&site.run(&["restore", text(&backup)]), "stop it first");
    refused(&site.run(&["compact"]), "stop it first");
    refused(&site.run(&["backup", text(&backup)]), "--force");
    site.simulator.set_faults(Faults::none());
    server.wait_for(&pending, "sent").await;
    server.terminate().await;
    assert_eq!(tables(&backup).len(), tables(&site.data_dir().join("pillarbox.redb")).len());

    refused(&site.run(&["restore", text(&backup)]), "--replace");
    let checked = json_of(&site.done(&["restore", "--check", text(&backup), "--json"]));
    assert_eq!((&checked["messages"], &checked["installed"]), (&json!(2), &json!(false)));
    let restored = json_of(&site.done(&["restore", "--replace", text(&backup), "--json"]));
    assert_eq!(restored["messages"], 2);
    let kept = PathBuf::from(restored["kept"].as_str().unwrap());
    assert!(tables(&kept).contains(&("messages".to_owned(), 3)), "what was there is kept whole");

    let server = site.start();
    assert_eq!(server.record(&sent).await["status"], "sent");
    // As after a crash: its body was in memory when the backup was made.
    let record = server.record(&pending).await;
    assert_eq!(record["error"]["code"], "body_lost_on_restart", "{record}");
    let response = server.get(&format!("/emails/{later}")).send().await.unwrap();
    assert_eq!(refusal(response).await.0, 404);
    let response = server.post(&message_with("to", json!(["gone@example.org"]))).send().await;
    assert_eq!(refusal(response.unwrap()).await.1, "Suppressed");
    assert_eq!(server.send(&with_key).await, sent, "its key replays");
    server.terminate().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backup_is_verified_beside_the_running_service_and_nothing_is_written() {
    let site = Site::new().await;
    let server = site.start();
    server.send(&message()).await;
    let own_directory = site.directory().join("backups");
    std::fs::create_dir(&own_directory).unwrap();
    let backup = own_directory.join("nightly.redb");
    site.done(&["backup", text(&backup)]);
    let (bytes, beside) = (std::fs::read(&backup).unwrap(), names(&site.data_dir()));

    let checked = site.done(&["restore", "--check", text(&backup), "--json"]);
    assert_eq!(json_of(&checked)["messages"], 1);
    assert_eq!(json_of(&checked)["installed"], false);
    let told = String::from_utf8(site.done(&["restore", "--check", text(&backup)]).stdout).unwrap();
    assert!(told.contains("is good: 1 message"), "{told}");
    assert_eq!(std::fs::read(&backup).unwrap(), bytes);
    assert_eq!(names(&own_directory), ["nightly.redb"]);
    assert_eq!(names(&site.data_dir()), beside);

    let torn = own_directory.join("torn.redb");
    std::fs::write(&torn, &bytes[..bytes.len() / 2]).unwrap();
    refused(&site.run(&["restore", "--check", text(&torn)]), "cannot be used");
    refused(&site.run(&["restore", "--check", text(&own_directory.join("no"))]), "cannot be read");
    let data_file = site.data_dir().join("pillarbox.redb");
    refused(
        &site.run(&["restore", "--check", text(&data_file)]),
        "is the data file of the service",
    );
    refused(&site.run(&["restore", text(&backup)]), "stop it first");
    server.send(&message()).await;
    server.terminate().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backup_under_load_is_of_one_moment() {
    let site = Site::new().await;
    let server = site.start();
    let backup = site.directory().join("backup.redb");
    let arguments = ["backup", text(&backup), "--force"];
    for _ in 0..3 {
        let ((), output) = tokio::join!(
            async {
                for _ in 0..100 {
                    server.send(&message()).await;
                }
            },
            async { tokio::task::block_in_place(|| site.done(&arguments)) }
        );
        drop(output);
        let tables = tables(&backup);
        let rows = |name| tables.iter().find(|(table, _)| table == name).unwrap().1;
        // Each record is written together with its mark, or with what took the mark away.
        assert!(rows("pending") + rows("sent") == rows("messages"), "{tables:?}");
    }
    server.terminate().await;
}

#[tokio::test]
async fn what_is_no_good_backup_changes_nothing() {
    let site = Site::new().await;
    let (data, backup) = (site.data_dir(), site.directory().join("backup.redb"));
    site.done(&["backup", text(&backup)]);
    let before = (names(&data), tables(&data.join("pillarbox.redb")));
    let bytes = std::fs::read(&backup).unwrap();
    let bad = site.directory().join("bad.redb");
    let mut flipped = bytes.clone();
    // Within a leaf page: the organisation's name.
    let position = bytes.windows(4).position(|window| window == b"acme").unwrap();
    flipped[position] = b'b';
    let torn = bytes[..bytes.len() / 2].to_vec();
    for bad_bytes in [b"not a backup".to_vec(), flipped, torn, Vec::new()] {
        std::fs::write(&bad, &bad_bytes).unwrap();
        refused(&site.run(&["restore", "--replace", text(&bad)]), "cannot be used");
        assert_eq!((names(&data), tables(&data.join("pillarbox.redb"))), before);
    }
    let absent = site.directory().join("absent.redb");
    refused(&site.run(&["restore", "--replace", text(&absent)]), "cannot be read");
    let nowhere = site.directory().join("no/such/directory.redb");
    refused(&site.run(&["backup", text(&nowhere)]), "there is no directory");
}

#[tokio::test]
async fn a_damaged_data_file_is_replaced_by_a_backup() {
    let site = Site::new().await;
    let (data, backup) = (site.data_dir().join("pillarbox.redb"), site.directory().join("b.redb"));
    site.done(&["backup", text(&backup)]);
    std::fs::write(&data, "ruined").unwrap();
    refused(&site.run(&["org", "list"]), "cannot be opened");
    site.done(&["restore", "--replace", text(&backup)]);
    let output = site.done(&["org", "list"]);
    assert!(String::from_utf8_lossy(&output.stdout).contains("acme"));
}

#[tokio::test]
async fn compaction_gives_back_room_and_keeps_everything() {
    let site = Site::new().await;
    let file = site.data_dir().join("pillarbox.redb");
    for batch in 0..3 {
        let addresses: Vec<String> =
            (0..200).map(|n| format!("{n:0>60}@b{batch}.example.org")).collect();
        let addresses: Vec<&str> = addresses.iter().map(String::as_str).collect();
        let arguments = |verb| [&["suppression", verb, "--org", "acme"], &addresses[..]].concat();
        site.done(&arguments("add"));
        if batch > 0 {
            site.done(&arguments("remove"));
        }
    }
    let before = tables(&file);
    let compacted = json_of(&site.done(&["compact", "--json"]));
    let bytes = |name: &str| compacted[name].as_u64().unwrap();
    assert!(bytes("bytesAfter") < bytes("bytesBefore"), "{compacted}");
    assert_eq!(std::fs::metadata(&file).unwrap().len(), bytes("bytesAfter"));
    assert_eq!(tables(&file), before);
    assert_eq!(names(&site.data_dir()), ["pillarbox.journal", "pillarbox.redb"]);
}
