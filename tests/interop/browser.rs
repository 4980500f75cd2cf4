//! The operators' page in a real browser: Chromium, driven by the scripts in
//! `browser/`.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use pillarbox_runtime::clock::Clock;
use pillarbox_simulator::Options;
use secrecy::ExposeSecret as _;

use crate::kit::{
    DevProcess, LocalService, PATIENCE, Receiver, Reply, get, local_config, send_with_key,
    start_service,
};

mod faults;

#[tokio::test(flavor = "multi_thread")]
async fn the_page_works_in_a_browser_and_mail_stays_text_there() {
    drive("page.mjs", &[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn each_tab_does_its_task_keeps_its_place_and_is_accessible() {
    let receiver = Receiver::start(Reply::Status(200)).await;
    drive("tabs.mjs", &["--webhook", &receiver.url]).await;
    assert!(receiver.count() > 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_looks_for_a_lost_message_finds_it_and_why() {
    let receiver = Receiver::start(Reply::Status(200)).await;
    receiver.next([Reply::Saying(500, "no room at the inn"), Reply::Saying(500, "<b>still</b>")]);
    drive("night.mjs", &["--webhook", &receiver.url]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_password_signs_in_until_somebody_signs_out() {
    const PASSWORD: &str = "correct horse battery";
    let directory = tempfile::tempdir().unwrap();
    let (password, config) = (directory.path().join("password"), directory.path().join("dev.toml"));
    std::fs::write(&password, PASSWORD).unwrap();
    let text = format!("operator_password_file = \"{}\"\n", password.display());
    std::fs::write(&config, text).unwrap();
    let mut dev = DevProcess::start(&["--config", config.to_str().unwrap()]);
    let (address, page) = (dev.told("address"), dev.told("page"));
    let variables =
        [("PAGE", &*page), ("API", &*address), ("SIMULATOR", ""), ("PASSWORD", PASSWORD)];
    run("sign_in.mjs", &variables).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_caught_is_drawn_and_neither_acts_nor_loads_anything() {
    drive("captured.mjs", &[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn last_week_is_seen_after_a_restart() {
    let place = LocalService::start(Options::default(), |_, _| ()).await;
    let LocalService { service, simulator, clock, key, client, directory } = place;
    for message in ["a", "b", "c"] {
        let (id, _) = send_with_key(&client, &service, &key, message).await;
        let end = Instant::now() + PATIENCE;
        while get(&client, &service, &key, &format!("/emails/{id}")).await.1["status"] != "sent" {
            assert!(Instant::now() < end, "the simulator does not take it");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
    let now = clock.now();
    service.stop().await;

    let clock = Clock::manual(now.plus(Duration::from_hours(6 * 24)));
    clock.synchronise();
    let config = local_config(directory.path(), &simulator);
    let service = start_service(&config, clock).await.unwrap();
    send_with_key(&client, &service, &key, "d").await;
    for name in ["constructor", "__proto__"] {
        service.store().add_organisation(name.parse().unwrap()).await.unwrap();
    }
    run("week.mjs", &[("PAGE", service.page().expose_secret())]).await;
    service.stop().await;
    simulator.shutdown().await;
}

/// Runs a script against a `dev` of its own, which has these arguments.
async fn drive(script: &str, arguments: &[&str]) {
    let mut dev = DevProcess::start(arguments);
    let address = dev.told("address");
    let key = dev.told("API key");
    let page = dev.told("page");
    let caught = dev.told("captured");
    let simulator = caught.strip_suffix("/messages").unwrap();
    let variables =
        [("PAGE", &*page), ("API", &*address), ("API_KEY", &*key), ("SIMULATOR", simulator)];
    run(script, &variables).await;
}

/// Runs a script with these environment variables to its good end.
async fn run(script: &str, variables: &[(&str, &str)]) {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/interop/browser").join(script);
    let mut node = Command::new("node");
    node.arg(script).envs(variables.iter().copied());
    let run = tokio::task::spawn_blocking(move || node.output().unwrap()).await.unwrap();
    let (said, failed) =
        (String::from_utf8_lossy(&run.stdout), String::from_utf8_lossy(&run.stderr));
    assert!(run.status.success(), "{said}\n{failed}");
    assert!(said.contains("all of it holds"), "{said}\n{failed}");
}
