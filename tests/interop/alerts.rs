//! Alerts of several nodes on one database, as processes.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use pillarbox_simulator::Options;
use serde_json::Value;
use tokio::time::sleep;

use crate::kit::{Received, Receiver, Reply, Server, Site};
use crate::nodes::{configuration, psql};

const SECRET: &str = "whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYX";
/// A condition is reported after a minute, and a node is silent after 20 seconds.
const LONGEST: Duration = Duration::from_mins(4);

/// Events once they are as wanted.
async fn events(receiver: &Receiver, is_wanted: impl Fn(&[Value]) -> bool) -> Vec<Value> {
    let end = Instant::now() + LONGEST;
    loop {
        let events: Vec<_> = receiver.received().iter().map(Received::event).collect();
        if is_wanted(&events) {
            return events;
        }
        assert!(Instant::now() < end, "{events:?}");
        sleep(Duration::from_millis(200)).await;
    }
}

fn summary(event: &Value) -> String {
    let text = |value: &Value| value.as_str().unwrap_or("-").to_owned();
    let data = &event["data"];
    [&event["type"], &data["code"], &data["about"], &data["node"]].map(text).join(" ")
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_nodes_one_posts_what_each_finds_and_the_other_takes_over() {
    let database = "alerts_of_nodes";
    psql("postgres", &format!("CREATE DATABASE {database}"));
    let receiver = Receiver::start(Reply::Status(200)).await;
    let mut sites = Vec::new();
    for name in ["a", "b"] {
        let site = Site::empty("", Options::default()).await;
        let secret = site.directory().join("secret");
        std::fs::write(&secret, SECRET).unwrap();
        let more = format!(
            "{}[alerts]\nurl = \"{}\"\nsecret_file = \"{}\"\n",
            configuration(name, database),
            receiver.url,
            secret.display()
        );
        let endpoint = site.simulator.endpoint();
        site.configure(&more, &format!("endpoint = \"{endpoint}\"\ntracking_override = false\n"));
        sites.push(site);
    }
    let mut servers: Vec<Server> = sites.iter().map(Site::start).collect();
    let first = events(&receiver, |events| events.len() >= 4).await;
    let told: BTreeSet<_> = first.iter().map(summary).collect();
    let expected = [
        "condition.raised tracking_not_overridden - a",
        "condition.raised tracking_not_overridden - b",
        "conditions.current - - a",
        "conditions.current - - b",
    ];
    assert_eq!(told, expected.map(str::to_owned).into(), "{first:?}");
    sleep(Duration::from_secs(5)).await;
    assert_eq!(receiver.count(), 4, "each is posted once");
    assert!(receiver.received().iter().all(|received| received.is_signed_by(SECRET)));

    let nodes = sites[0].done(&["node", "list", "--json"]);
    let nodes: Value = serde_json::from_slice(&nodes.stdout).unwrap();
    let nodes = nodes["nodes"].as_array().unwrap();
    let has_duty = |node: &&Value| node["duties"].as_array().unwrap().contains(&"alerts".into());
    let posting: Vec<_> = nodes.iter().filter(has_duty).collect();
    assert_eq!(posting.len(), 1, "{nodes:?}");
    let name = posting[0]["name"].as_str().unwrap();
    servers.remove(usize::from(name == "b")).kill();
    let silent = format!("condition.raised node_silent {name} -");
    let cleared = format!("condition.cleared tracking_not_overridden - {name}");
    let all = events(&receiver, |events| {
        let told: BTreeSet<_> = events.iter().map(summary).collect();
        told.contains(&silent) && told.contains(&cleared)
    })
    .await;
    for wanted in [&silent, &cleared] {
        let times = all.iter().filter(|event| summary(event) == **wanted).count();
        assert_eq!(times, 1, "{wanted}: {all:?}");
    }
}
