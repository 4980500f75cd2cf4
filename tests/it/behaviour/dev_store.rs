//! Stores of `dev` and of the service: neither takes the other's.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use pillarbox_simulator::Options;
use serde_json::{Value, json};

use crate::behaviour::dev::Dev;
use crate::kit::{DevProcess, Process, Site, is_on_postgres, pillarbox};

/// A command that runs until it is killed, unless it refuses to start.
fn run(command: Command) -> (Option<i32>, String) {
    Process::spawn(command).wait_at_most(Duration::from_secs(10))
}

/// Options of a `dev` on a site's configuration: on its database, or in a directory.
fn on_store_of<'a>(config: &'a str, directory: &'a str) -> Vec<&'a str> {
    let mut options = vec!["--config", config];
    if !is_on_postgres() {
        options.extend(["--data-dir", directory]);
    }
    options
}

fn dev(options: &[&str]) -> Command {
    let mut command = pillarbox(&["dev", "--listen", "127.0.0.1:0"]);
    command.args(["--operator-listen", "127.0.0.1:0", "--smtp-listen", "127.0.0.1:0"]);
    command.args(["--resend-listen", "127.0.0.1:0"]);
    command.args(options);
    command
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn listed(site: &Site, what: &str) -> Value {
    let output = site.done(&[what, "list", "--json"]);
    serde_json::from_slice(&output.stdout).unwrap()
}

#[tokio::test]
async fn dev_takes_no_store_of_a_service_and_changes_nothing_in_it() {
    let site = Site::new().await;
    let before = (listed(&site, "org"), listed(&site, "domain"), listed(&site, "key"));
    let (config, data_dir) = (site.config(), site.data_dir());
    let (code, log) = run(dev(&on_store_of(text(&config), text(&data_dir))));
    assert_eq!(code, Some(1), "{log}");
    assert!(log.contains("was not made by `pillarbox dev`"), "{log}");
    let after = (listed(&site, "org"), listed(&site, "domain"), listed(&site, "key"));
    assert_eq!(after, before);
    // The service goes on with it, also beside an attempt.
    let server = site.start();
    let (code, log) = run(dev(&on_store_of(text(&config), text(&data_dir))));
    assert_eq!(code, Some(1), "{log}");
    let id = server.send(&crate::kit::message()).await;
    server.wait_for(&id, "sent").await;
    assert_eq!(listed(&site, "org"), before.0);
}

#[tokio::test]
async fn a_store_of_a_service_without_organisations_is_not_devs() {
    let site = Site::empty("", Options::default()).await;
    let server = site.start();
    server.terminate().await;
    let (config, data_dir) = (site.config(), site.data_dir());
    let (code, log) = run(dev(&on_store_of(text(&config), text(&data_dir))));
    assert_eq!(code, Some(1), "{log}");
    assert_eq!(listed(&site, "org"), json!({"organisations": []}));
}

#[tokio::test]
async fn a_service_refuses_what_dev_made_and_dev_goes_on_with_it() {
    let site = Site::empty("", Options::default()).await;
    let (config, data_dir) = (site.config(), site.data_dir());
    let options = on_store_of(text(&config), text(&data_dir));
    let key = format!("pb_{}", "k".repeat(43));
    let options = [&options[..], &["--api-key", &key]].concat();
    let first = Dev::start(&options);
    let (status, answered) = first.post_its_line().await;
    assert_eq!(status, 200, "{answered}");
    first.end();
    let (code, log) = run(site.service());
    assert_eq!(code, Some(78), "{log}");
    assert!(log.contains("was made by `pillarbox dev`"), "{log}");
    let again = Dev::start(&options);
    assert_eq!(again.until_event(&answered["id"]).await["status"], "sent");
}

/// An earlier version made the file without a mark.
#[tokio::test]
async fn an_unmarked_data_file_whose_only_organisation_is_dev_is_taken_and_marked() {
    if is_on_postgres() {
        return;
    }
    let site = Site::empty("", Options::default()).await;
    let key = site.add_organisation("dev", "example.com");
    let data_dir = site.data_dir();
    let options = ["--data-dir", text(&data_dir), "--api-key", &key];
    let dev = Dev::start(&options);
    assert_eq!(dev.post_its_line().await.0, 200);
    dev.end();
    let (code, log) = run(site.service());
    assert_eq!(code, Some(78), "{log}");
    // Also what an operator adds to it does not make it another's.
    site.done(&["org", "add", "acme"]);
    let dev = Dev::start(&options);
    assert_eq!(dev.post_its_line().await.0, 200);
    dev.end();
    // The mark goes with copies.
    let backup = site.directory().join("copy.backup");
    site.back_up(&backup);
    site.done(&["compact"]);
    assert_eq!(run(site.service()).0, Some(78));
    site.restore(&backup);
    assert_eq!(run(site.service()).0, Some(78));
}

#[tokio::test]
async fn dev_uses_its_own_simulator_and_socket_and_every_other_key_of_the_configuration() {
    let site = Site::empty("", Options::default()).await;
    let ses = format!(
        "endpoint = \"{}\"\nregion = \"us-east-2\"\nconfiguration_set = \"real\"\n\
         [ses.events]\nqueue_url = \"http://127.0.0.1:1/1/real\"\n",
        site.simulator.endpoint()
    );
    site.configure("max_request_bytes = 4096\n", &ses);
    let config = site.config();
    let process = {
        let options = ["--config", text(&config)];
        let mut command = dev(&options);
        command.env("AWS_ENDPOINT_URL", "http://127.0.0.1:1").env("AWS_REGION", "us-east-2");
        command.env("AWS_ACCESS_KEY_ID", "real").env("AWS_SECRET_ACCESS_KEY", "real");
        command.env("HTTPS_PROXY", "http://127.0.0.1:1");
        DevProcess::of(command)
    };
    let dev = Dev::of(process);
    let (status, answered) = dev.post_its_line().await;
    assert_eq!(status, 200, "{answered}");
    let record = dev.until_event(&answered["id"]).await;
    assert_eq!(record["lastEvent"]["type"], "delivery", "{record}");
    assert_eq!(site.simulator.accepted_total(), 0, "nothing reached the configured endpoint");
    let large = json!({"text": "x".repeat(5_000)}).to_string();
    assert_eq!(dev.post(large).await.0, 413, "the key counts");
    assert!(Path::new(&dev.data).join("admin.sock").exists());
    assert!(!site.directory().join("admin.sock").exists());
}
