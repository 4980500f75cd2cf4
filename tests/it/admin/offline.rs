//! Commands without a service: on the data file, and what they say if they cannot reach either.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt;

use pillarbox_domain::api_key::ApiKey;
use pillarbox_domain::id::MessageIds;
use pillarbox_domain::organisation::DomainState;
use pillarbox_domain::request::Draft;
use pillarbox_runtime::clock::Clock;
use pillarbox_store::Store;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::admin::{pillarbox, write_config};
use crate::kit::{self, Finished, NOON};

const NOBODY: u32 = 65_534;

/// A data directory with a configuration and no service.
struct Offline {
    directory: tempfile::TempDir,
    config: String,
}

impl Offline {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let config = write_config(directory.path()).to_str().unwrap().to_owned();
        Self { directory, config }
    }

    async fn command(&self, arguments: &[&str]) -> Finished {
        pillarbox(&[arguments, &["--config", &self.config]].concat()).await
    }
}
#[tokio::test]
async fn where_no_service_runs_commands_work_on_the_file() {
    let offline = Offline::new();
    let added = offline.command(&["org", "add", "acme"]).await;
    assert_eq!(added.code, 0, "{added:?}");
    assert!(added.err.contains("no service is running; working on "), "{added:?}");
    // What is to be done next is for the same service.
    let next = format!("  pillarbox key add --config {} --org acme\n", offline.config);
    assert!(added.out.ends_with(&next), "{added:?}");

    let key = offline.command(&["key", "add", "--org", "acme", "--name", "shop", "--json"]).await;
    assert!(key.out.starts_with(r#"{"id":1,"key":"pb_"#), "{key:?}");
    assert!(key.out.ends_with("\",\"organisation\":\"acme\"}\n"), "{key:?}");
    assert_eq!(key.err, "");
    let text = key.json()["key"].as_str().unwrap().to_owned();

    let listed = offline.command(&["key", "list"]).await;
    let row: Vec<_> = listed.out.lines().nth(1).unwrap().split_whitespace().collect();
    assert_eq!((row[0], row[1], row[7]), ("1", "acme", "shop"));
    assert_eq!((row[5], row[6]), ("send,read", "all"));
    assert!(!listed.out.contains(&text));

    let asking = offline.command(&["domain", "add", "--org", "acme", "example.com"]).await;
    assert_eq!(asking.code, 1);
    assert!(asking.err.contains("--assume-verified"), "{asking:?}");
    let assumed = ["domain", "add", "--org", "acme", "example.com", "--assume-verified", "--json"];
    assert_eq!(offline.command(&assumed).await.json()["state"], "assumed");
    let status = offline.command(&["status"]).await;
    assert_eq!(status.code, 1, "{status:?}");
    assert!(status.out.contains("no service is running"), "{status:?}");
    assert_eq!(offline.command(&["clock", "confirm"]).await.code, 1);

    // A socket that a dead process left makes no difference.
    drop(UnixListener::bind(offline.directory.path().join("admin.sock")).unwrap());
    assert_eq!(offline.command(&["suppression", "add", "--all", "bob@example.org"]).await.code, 0);

    let store = kit::open_store(offline.directory.path(), NOON);
    assert!(store.authenticate(&ApiKey::parse(&text).unwrap().hash(), NOON).is_some());
    assert_eq!(store.domains()[0].state, DomainState::Assumed);
    assert_eq!(store.suppressions(None, 10).await.unwrap().suppressions.len(), 1);
}

/// The next start of the service reports the number of bodies that its last end has lost.
#[tokio::test]
async fn commands_on_the_file_leave_what_is_pending_to_the_next_start() {
    let offline = Offline::new();
    let directory = offline.directory.path();
    let now = Clock::system().now();
    let store = kit::open_store(directory, now);
    let acme = kit::add_organisation(&store, "acme", now).await;
    let draft = Draft {
        from: Some("ann@example.com"),
        to: Some(vec!["bob@example.org"]),
        subject: Some("Hello"),
        text: Some("Hi".into()),
        ..Draft::default()
    };
    let id = MessageIds::new().next(now);
    kit::accept(&store, acme, draft, id, now).await;
    let id = id.to_string();
    drop(store);
    let reading: [&[&str]; 3] = [&["message", "list"], &["org", "list"], &["key", "list"]];
    let writing: [&[&str]; 2] =
        [&["org", "add", "other"], &["suppression", "add", "--all", "eve@example.org"]];
    for command in reading.into_iter().chain(writing) {
        let ran = offline.command(command).await;
        assert_eq!(ran.code, 0, "{ran:?}");
    }
    // Some of what it finds is not in order on a machine without a service.
    let examined = offline.command(&["doctor"]).await;
    assert!(!examined.out.is_empty(), "{examined:?}");
    let shown = offline.command(&["message", "show", &id, "--json"]).await.json();
    assert_eq!(shown["status"], "queued", "{shown}");
    // It cannot be sent any more, and it has not failed yet.
    let cancelled = offline.command(&["message", "cancel", &id]).await;
    assert_eq!(cancelled.code, 1, "{cancelled:?}");
    assert!(
        cancelled.err.contains("otherwise they fail with body_lost_on_restart"),
        "{cancelled:?}"
    );
    let (_, recovery) = Store::open(directory, now).unwrap();
    assert_eq!(recovery.bodies_lost, 1);
}

#[tokio::test]
async fn the_file_of_a_running_service_is_never_worked_on() {
    let offline = Offline::new();
    let store = kit::open_store(offline.directory.path(), NOON);
    let absent = offline.command(&["org", "list"]).await;
    assert_eq!(absent.code, 1);
    assert!(absent.err.contains("a service is running"), "{absent:?}");
    drop(UnixListener::bind(offline.directory.path().join("admin.sock")).unwrap());
    let refused = offline.command(&["org", "list"]).await;
    assert_eq!(refused.code, 1);
    assert!(refused.err.contains("a service is running"), "{refused:?}");
    drop(store);
    assert_eq!(offline.command(&["org", "list"]).await.code, 0);
}

#[tokio::test]
async fn a_socket_that_may_not_be_used_is_an_error_and_no_reason_to_use_the_file() {
    let offline = Offline::new();
    fs::set_permissions(offline.directory.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let socket = offline.directory.path().join("admin.sock");
    let _listener = UnixListener::bind(&socket).unwrap();
    fs::set_permissions(&socket, fs::Permissions::from_mode(0o000)).unwrap();
    let mut command = kit::pillarbox(&["org", "list", "--config", &offline.config]);
    // Permissions do not hold for root.
    if fs::metadata("/proc/self").is_ok_and(|own| std::os::unix::fs::MetadataExt::uid(&own) == 0) {
        command.uid(NOBODY);
    }
    let denied = Finished::run(command).await;
    assert_eq!(denied.code, 1, "{denied:?}");
    assert!(denied.err.contains("run the command as the service's user"), "{denied:?}");
    assert!(!offline.directory.path().join("pillarbox.redb").exists());
}

#[tokio::test]
async fn a_service_of_another_version_has_an_exit_code_of_its_own() {
    let offline = Offline::new();
    let socket = offline.directory.path().join("admin.sock");
    let answer = |status: &str, code: &str| {
        let error = format!(r#"{{"error":{{"code":"{code}","message":"it is of 0.1.0"}}}}"#);
        format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\n\r\n{error}", error.len())
    };
    let by_path = ["restart", "--socket", socket.to_str().unwrap()];
    let by_configuration = ["restart", "--config", &offline.config];
    for (answer, code) in [
        (answer("404 Not Found", "UnknownCall"), 75),
        (answer("400 Bad Request", "InvalidCall"), 75),
        (answer("422 Unprocessable Entity", "Refused"), 1),
    ] {
        let listener = tokio::net::UnixListener::bind(&socket).unwrap();
        let service = tokio::spawn(async move {
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                let mut asked = Vec::new();
                // Some connections only check that something listens.
                while !asked.ends_with(b"}") && stream.read_buf(&mut asked).await.unwrap() > 0 {}
                let _ = stream.write_all(answer.as_bytes()).await;
            }
        });
        for arguments in [&by_path, &by_configuration] {
            let finished = pillarbox(arguments).await;
            assert_eq!(finished.code, code, "{finished:?}");
            assert!(finished.err.contains("it is of 0.1.0"), "{finished:?}");
        }
        service.abort();
        fs::remove_file(&socket).unwrap();
    }
}

#[tokio::test]
async fn a_socket_that_is_named_is_the_only_place_to_ask() {
    let offline = Offline::new();
    let socket = offline.directory.path().join("none.sock");
    let ran = pillarbox(&["org", "list", "--socket", socket.to_str().unwrap()]).await;
    assert_eq!(ran.code, 1);
    assert!(ran.err.contains("there is no socket"), "{ran:?}");
    assert!(ran.err.contains("To reach a `pillarbox dev`, paste the lines"), "{ran:?}");
    assert!(!offline.directory.path().join("pillarbox.redb").exists());
    let both = offline.command(&["org", "list", "--socket", socket.to_str().unwrap()]).await;
    assert_eq!(both.code, 2, "{both:?}");
}

#[tokio::test]
async fn exit_codes_tell_failure_usage_and_configuration_apart() {
    let offline = Offline::new();
    assert_eq!(offline.command(&["org", "list"]).await.code, 0);
    assert_eq!(offline.command(&["org", "remove", "nobody"]).await.code, 1);
    for usage in [
        &["org", "add"][..],
        &["suppression", "add", "a@example.org"],
        &["suppression", "add", "--all"],
        &["suppression", "add", "--org", "acme", "--all", "a@example.org"],
        &["message", "list", "--status", "lost"],
        &["message", "list", "--limit", "0"],
        &["nothing"],
    ] {
        assert_eq!(offline.command(usage).await.code, 2, "{usage:?}");
    }
    let dev = pillarbox(&["dev", "--api-key", "pb_too-short"]).await;
    assert_eq!(dev.code, 2);
    assert!(dev.err.contains("pb_ followed by 43 characters"), "{dev:?}");
    assert!(!dev.err.contains("too-short"), "{dev:?}");

    for (given, meant) in [("dve", "dev"), ("sever", "serve")] {
        let mistyped = pillarbox(&[given]).await;
        assert_eq!(mistyped.code, 2);
        assert!(mistyped.err.contains(&format!("'{meant}'")), "{mistyped:?}");
    }

    fs::write(&offline.config, "lisen = \"x\"\n").unwrap();
    for arguments in [&["org", "list"][..], &["serve"]] {
        let ran = offline.command(arguments).await;
        assert_eq!(ran.code, 78, "{ran:?}");
        assert!(ran.err.contains("did you mean listen?"), "{ran:?}");
    }
    let config = offline.directory.path().join("elsewhere.toml");
    fs::write(&config, "data_dir = \"/nonexistent\"\nadmin_socket = \"/nonexistent/s\"\n").unwrap();
    let lost = pillarbox(&["status", "--config", config.to_str().unwrap()]).await;
    assert_eq!(lost.code, 1);
    assert!(lost.err.contains("no data directory /nonexistent"), "{lost:?}");
}
