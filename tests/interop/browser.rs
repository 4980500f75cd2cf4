//! The operators' page in a real browser: Chromium, driven by the scripts in
//! `browser/`.

use std::path::Path;
use std::process::Command;

use crate::kit::DevProcess;

mod faults;

#[tokio::test(flavor = "multi_thread")]
async fn the_page_works_in_a_browser_and_mail_stays_text_there() {
    drive("page.mjs").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn each_tab_does_its_task_keeps_its_place_and_is_accessible() {
    drive("tabs.mjs").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_caught_is_drawn_and_neither_acts_nor_loads_anything() {
    drive("captured.mjs").await;
}

/// Runs a script against a `dev` of its own.
async fn drive(script: &str) {
    let mut dev = DevProcess::start(&[]);
    let address = dev.told("address");
    let key = dev.told("API key");
    let page = dev.told("page");
    let caught = dev.told("caught");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/interop/browser").join(script);
    let run = Command::new("node")
        .arg(script)
        .env("PAGE", page)
        .env("API", address)
        .env("API_KEY", key)
        .env("SIMULATOR", caught.strip_suffix("/messages").unwrap())
        .output();
    let run = tokio::task::spawn_blocking(move || run.unwrap()).await.unwrap();
    let (said, failed) =
        (String::from_utf8_lossy(&run.stdout), String::from_utf8_lossy(&run.stderr));
    assert!(run.status.success(), "{said}\n{failed}");
    assert!(said.contains("all of it holds"), "{said}\n{failed}");
}
