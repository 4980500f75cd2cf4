//! The real process, killed while it takes in a backlog.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use pillarbox::domain::id::MessageId;
use pillarbox::domain::message::Status;

use crate::document::{delivery, in_sns};
use crate::queue::StubQueue;
use crate::site::{NOW, Site, until};

const EVENTS: usize = if cfg!(feature = "long") { 100_000 } else { 2_000 };

struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        // SIGKILL.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn serve(config: &Path) -> Process {
    let child = Command::new(env!("CARGO_BIN_EXE_pillarbox"))
        .args(["serve", "--config"])
        .arg(config)
        .env("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
        .env("AWS_SECRET_ACCESS_KEY", "secret")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    Process(child.unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn events_survive_kills_in_the_middle_of_a_backlog() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path();
    let data = root.join("data");
    let site = Site::in_directory(&data).await;
    let ids: Vec<MessageId> = site.new_messages(EVENTS).await;
    drop(site);
    let queue = StubQueue::start(Duration::from_secs(2)).await;
    for &id in &ids {
        queue.put(in_sns(&delivery(id)).to_string());
    }
    let config = root.join("pillarbox.toml");
    let text = format!(
        "listen = \"127.0.0.1:0\"\noperator_listen = \"127.0.0.1:0\"\ndata_dir = \"{}\"\n\
         admin_socket = \"{}/admin.sock\"\n[ses]\nendpoint = \"http://127.0.0.1:1\"\n\
         [ses.events]\nqueue_url = \"{}\"\n",
        data.display(),
        root.display(),
        queue.url()
    );
    std::fs::write(&config, text).unwrap();
    for part in 1..=3 {
        let process = serve(&config);
        until("a part of the backlog", || queue.deleted() >= EVENTS * part / 4).await;
        drop(process);
        println!("killed with {} of {EVENTS} events deleted", queue.deleted());
        assert!(part > 1 || queue.left() > 0, "killed too late to be in the middle");
    }
    let process = serve(&config);
    until("the rest of the backlog", || queue.left() == 0).await;
    drop(process);
    let site = Site::in_directory(&data).await;
    for id in ids {
        assert_eq!(site.events(id), 1);
        let message = site.store.message(id, NOW).unwrap().unwrap();
        assert_eq!(message.status(), Status::Sent);
        assert_eq!(message.last_event.unwrap().event_type.as_str(), "delivery");
    }
}
