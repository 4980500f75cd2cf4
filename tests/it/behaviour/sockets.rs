//! One administration socket, one service; and a command reaches the service that it means.

use std::fs;
use std::io::Read as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Output, Stdio};
use std::time::{Duration, Instant};

use crate::kit::{PATIENCE, Site, pillarbox};

fn configure(directory: &Path, name: &str, data: &Path, socket: &Path) -> PathBuf {
    let config = directory.join(format!("{name}.toml"));
    let text = format!(
        "listen = \"127.0.0.1:0\"\noperator_listen = \"127.0.0.1:0\"\ndata_dir = \"{}\"\n\
         admin_socket = \"{}\"\n[ses]\nendpoint = \"http://127.0.0.1:1\"\n",
        data.display(),
        socket.display()
    );
    fs::write(&config, text).unwrap();
    config
}

fn serve(config: &Path) -> Child {
    let mut command = pillarbox(&["serve", "--config"]);
    command.arg(config).env("RUST_LOG", "info");
    command.env("AWS_ACCESS_KEY_ID", "a").env("AWS_SECRET_ACCESS_KEY", "b");
    command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap()
}

/// Output of a service that must not run, and its exit code.
fn refused(mut child: Child) -> (Option<i32>, String) {
    let end = Instant::now() + PATIENCE;
    while child.try_wait().unwrap().is_none() {
        if Instant::now() > end {
            child.kill().unwrap();
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    let mut said = String::new();
    child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    (child.wait().unwrap().code(), said)
}

fn run(arguments: &[&str]) -> Output {
    pillarbox(arguments).output().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_service_does_not_take_the_socket_of_the_first() {
    let site = Site::new().await;
    let server = site.start();
    let socket = site.directory().join("admin.sock");
    let data = site.directory().join("other");
    let (code, said) = refused(serve(&configure(site.directory(), "other", &data, &socket)));
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("another service answers") && said.contains("admin_socket"), "{said}");
    assert!(!data.join("pillarbox.redb").exists(), "a refused start leaves no data file");
    let listed = String::from_utf8(site.done(&["org", "list"]).stdout).unwrap();
    assert!(listed.contains("acme"), "{listed}");
    server.kill();
    // What a dead process left is replaced.
    assert!(socket.exists());
    site.start().terminate().await;
    assert!(!socket.exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_services_that_start_at_once_one_gets_the_socket() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("admin.sock");
    for round in 0..5 {
        let configs = ["a", "b"].map(|name| {
            let name = format!("{name}{round}");
            configure(directory.path(), &name, &directory.path().join(&name), &socket)
        });
        let mut children = configs.each_ref().map(|config| serve(config));
        let end = Instant::now() + PATIENCE;
        let loser = loop {
            let ended = children.iter_mut().position(|child| child.try_wait().unwrap().is_some());
            if let Some(ended) = ended {
                break ended;
            }
            if Instant::now() > end {
                for child in &mut children {
                    child.kill().unwrap();
                }
                panic!("both run");
            }
            std::thread::sleep(Duration::from_millis(10));
        };
        let [a, b] = children;
        let (mut winner, lost) = if loser == 0 { (b, a) } else { (a, b) };
        let (code, said) = refused(lost);
        assert_eq!(code, Some(1), "{said}");
        assert!(said.contains("another service answers"), "{said}");
        winner.kill().unwrap();
        winner.wait().unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_refuses_the_answer_of_a_service_with_other_data() {
    let site = Site::new().await;
    let server = site.start();
    let socket = site.directory().join("admin.sock");
    let data = site.directory().join("other");
    fs::create_dir(&data).unwrap();
    let config = configure(site.directory(), "other", &data, &socket);
    let config = config.to_str().unwrap();
    let file = site.directory().join("file");
    for command in [
        &["org", "add", "intruder"][..],
        &["status"],
        &["status", "--page"],
        &["suppression", "export", file.to_str().unwrap()],
        &["backup", file.to_str().unwrap()],
    ] {
        let output = run(&[command, &["--config", config]].concat());
        assert_eq!(output.status.code(), Some(1), "{command:?}: {output:?}");
        let error = String::from_utf8(output.stderr).unwrap();
        let both = [site.data_dir(), data.clone()];
        assert!(both.iter().all(|name| error.contains(name.to_str().unwrap())), "{error}");
    }
    let found = String::from_utf8(run(&["doctor", "--config", config]).stdout).unwrap();
    assert!(found.contains("NOT OK") && found.contains(data.to_str().unwrap()), "{found}");
    assert!(!file.exists());
    // With the socket alone there is nothing to compare, and a link is the same directory.
    assert!(run(&["org", "list", "--socket", socket.to_str().unwrap()]).status.success());
    let link = site.directory().join("link");
    std::os::unix::fs::symlink(site.data_dir(), &link).unwrap();
    let config = configure(site.directory(), "linked", &link, &socket);
    assert!(run(&["org", "list", "--config", config.to_str().unwrap()]).status.success());
    // A directory that is moved away is still the one that the configuration names.
    fs::rename(site.data_dir(), site.directory().join("moved")).unwrap();
    site.done(&["suppression", "export", file.to_str().unwrap()]);
    fs::rename(site.directory().join("moved"), site.data_dir()).unwrap();
    server.terminate().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_socket_that_somebody_else_holds_is_left_to_them() {
    let site = Site::new().await;
    // It listens and never answers, as a process that is stopped.
    let listener = UnixListener::bind(site.directory().join("admin.sock")).unwrap();
    let (code, said) = refused(serve(&site.directory().join("pillarbox.toml")));
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("another service answers"), "{said}");
    drop(listener);
    // A child of another test may have a copy of the listener until it runs its own program.
    let end = Instant::now() + PATIENCE;
    while UnixStream::connect(site.directory().join("admin.sock")).is_ok() {
        assert!(Instant::now() < end, "somebody still listens");
        std::thread::sleep(Duration::from_millis(10));
    }
    site.start().terminate().await;
}
