//! A data file that is brought into the database of several nodes: everything that applications and
//! operators had is there.

use std::path::Path;

use pillarbox_simulator::{EventOptions, Events, Fault, Faults, Options};
use serde_json::{Value, json};

use crate::kit::{self, Receiver, Reply, Server, Site, message};
use crate::nodes::{configuration, psql};

/// Posts a message with a key; gives the status and the answer.
async fn post(server: &Server, to: &str, key: &str) -> (u16, Value) {
    let mut body = message();
    body["to"] = json!([to]);
    body["idempotencyKey"] = key.into();
    let response = server.post(&body).send().await.unwrap();
    let status = response.status().as_u16();
    (status, kit::answer(response).await.1)
}

async fn get(server: &Server, path: &str) -> Value {
    let (status, answer) = kit::answer(server.get(path).send().await.unwrap()).await;
    assert_eq!(status, 200, "{answer}");
    answer
}

/// Output of a command, as JSON.
fn listed(site: &Site, arguments: &[&str]) -> Value {
    let output = site.done(&[arguments, &["--json"]].concat());
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Lists of an operator that must not change.
fn lists(site: &Site) -> Vec<Value> {
    let lists = [
        &["org", "list"] as &[&str],
        &["key", "list"],
        &["domain", "list"],
        &["suppression", "list"],
        &["dead-letter", "list"],
        &["message", "list", "--status", "sent"],
    ];
    let mut lists: Vec<_> = lists.map(|arguments| listed(site, arguments)).into();
    for key in lists[1]["keys"].as_array_mut().unwrap() {
        // The last use that is stored, and not the last one.
        key.as_object_mut().unwrap().remove("lastUsedAt");
    }
    lists
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn everything_of_a_data_file_is_in_the_database_after_an_import() {
    let options = Options { events: Events::On(EventOptions::default()), ..Options::default() };
    let site = Site::with("", options).await;
    site.read_events();
    let server = site.start();
    let endpoint = Receiver::start(Reply::Status(200)).await;
    site.done(&["webhook", "add", "--org", "acme", &endpoint.url]);
    let (_, sent) = post(&server, "bob@example.org", "sent").await;
    server.wait_for(sent["id"].as_str().unwrap(), "sent").await;
    let (_, bounced) = post(&server, "bounce@simulator.amazonses.com", "bounced").await;
    server.wait_for(bounced["id"].as_str().unwrap(), "sent").await;
    // Sent, sent and bounced; the bounce suppresses.
    let told = endpoint.wait_for(4).await;
    let first = get(&server, "/events?limit=2").await;
    let cursor = first["next"].as_str().unwrap().to_owned();
    let rest = get(&server, &format!("/events?after={cursor}")).await;
    assert_eq!(rest["events"].as_array().unwrap().len() + 2, told.len(), "{rest}");
    site.done(&["suppression", "add", "--all", "eve@example.org"]);
    let kept = lists(&site);
    // One waits when the process ends: its body goes with it.
    site.simulator.set_faults(Faults::always(Fault::Down));
    let (_, waiting) = post(&server, "carol@example.org", "waiting").await;
    site.simulator.set_faults(Faults::default());
    server.kill();
    let backup = site.directory().join("copy.backup");
    site.done(&["backup", backup.to_str().unwrap()]);

    psql("postgres", "CREATE DATABASE imported");
    let import = |file: &str| site.command(&["cluster", "import", file]).output().unwrap();
    let refused = import(backup.to_str().unwrap());
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && said.contains("engine = \"postgres\""), "{said}");
    let text = std::fs::read_to_string(site.config()).unwrap();
    let text = text.replacen("[ses]", &(configuration("a", "imported") + "[ses]"), 1);
    std::fs::write(site.config(), text).unwrap();
    std::fs::write(site.directory().join("no.backup"), "no backup").unwrap();
    let refused = import(site.directory().join("no.backup").to_str().unwrap());
    assert!(!refused.status.success(), "{refused:?}");
    let imported = import(backup.to_str().unwrap());
    let said = String::from_utf8_lossy(&imported.stdout).into_owned();
    assert!(imported.status.success(), "{imported:?}");
    assert!(said.contains("3 messages") && said.contains("not sent yet: 1;"), "{said}");
    let again = import(backup.to_str().unwrap());
    let said = String::from_utf8_lossy(&again.stderr).into_owned();
    assert!(!again.status.success() && said.contains("nothing was imported"), "{said}");

    let server = site.start();
    assert_eq!(lists(&site), kept);
    let failed = server.wait_for(waiting["id"].as_str().unwrap(), "failed").await;
    assert_eq!(failed["error"]["code"], "body_lost_on_restart", "{failed}");
    // Keys replay, cursors go on, suppressions hold.
    assert_eq!(post(&server, "bob@example.org", "sent").await, (200, sent.clone()));
    assert_eq!(post(&server, "carol@example.org", "waiting").await, (200, waiting));
    assert_eq!(post(&server, "eve@example.org", "other").await.0, 422);
    let after = get(&server, &format!("/events?after={cursor}")).await;
    let events = |page: &Value| page["events"].as_array().unwrap().clone();
    assert_eq!(events(&after)[..events(&rest).len()], events(&rest)[..], "{after}");
    // The endpoint receives only new events.
    let (_, new) = post(&server, "bob@example.org", "new").await;
    server.wait_for(new["id"].as_str().unwrap(), "sent").await;
    let all = endpoint.wait_for(told.len() + 2).await;
    let repeated = all[told.len()..].iter().filter(|one| told.iter().any(|old| old.id == one.id));
    assert_eq!(repeated.count(), 0, "nothing is told twice");
    let refused = import(backup.to_str().unwrap());
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && said.contains("stop these nodes"), "{said}");
    server.terminate().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_of_every_version_of_the_format_are_imported() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/crash/versions");
    let files = std::fs::read_dir(directory).unwrap().map(|file| file.unwrap().path());
    let mut imported = 0;
    for (number, file) in
        files.filter(|file| file.extension().is_some_and(|it| it == "redb")).enumerate()
    {
        let database = format!("format_{number}");
        psql("postgres", &format!("CREATE DATABASE {database}"));
        let site = Site::empty(&configuration("a", &database), Options::default()).await;
        let done = site.command(&["cluster", "import", file.to_str().unwrap()]).output().unwrap();
        let said = String::from_utf8_lossy(&done.stdout).into_owned();
        assert!(done.status.success(), "{}: {done:?}", file.display());
        assert!(said.contains("4 messages, 1 organisation, 1 key"), "{}: {said}", file.display());
        let server = site.start();
        let messages = listed(&site, &["message", "list"]);
        assert_eq!(messages["messages"].as_array().unwrap().len(), 4, "{messages}");
        server.terminate().await;
        imported += 1;
    }
    assert!(imported > 1, "there are files of several versions");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_dev_made_does_not_become_the_services_by_an_import() {
    let directory = tempfile::tempdir().unwrap();
    let data = directory.path().join("data");
    let mut dev = kit::DevProcess::start(&["--data-dir", data.to_str().unwrap()]);
    dev.line(|line| line.starts_with("Messages as they move"));
    assert!(dev.interrupt().1.success());
    let copy = directory.path().join("copy.backup");
    let mut backup = kit::pillarbox(&["backup", copy.to_str().unwrap()]);
    backup.env("PILLARBOX_DATA_DIR", &data);
    backup.env("PILLARBOX_ADMIN_SOCKET", data.join("admin.sock"));
    let backup = backup.output().unwrap();
    assert!(backup.status.success(), "{backup:?}");
    psql("postgres", "CREATE DATABASE imported_dev");
    let site = Site::empty(&configuration("a", "imported_dev"), Options::default()).await;
    let imported = site.run_alone(&["cluster", "import", copy.to_str().unwrap()]);
    assert!(imported.status.success(), "{imported:?}");
    let refused = kit::Process::spawn(site.service()).wait_at_most(kit::PATIENCE);
    assert_eq!(refused.0, Some(78), "{}", refused.1);
    assert!(refused.1.contains("was made by `pillarbox dev`"), "{}", refused.1);
}
