//! Background tasks: each is made to panic in the real process. It begins again and operators learn
//! of it, or the process ends. (A release does not read `TEST_TASK_PANICS`.)

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use pillarbox_runtime::tasks::{AfterFault, EXIT_FAULT, Task};
use pillarbox_simulator::{EventOptions, Events, Options};
use serde_json::Value;

use crate::behaviour::operator::metrics;
use crate::kit::{PATIENCE, Process, Receiver, Reply, Site, is_on_postgres, message};

const VARIABLE: &str = "TEST_TASK_PANICS";

/// Tasks of this engine for which this is due after a fault.
fn tasks(after_fault: AfterFault) -> impl Iterator<Item = Task> {
    let tasks = Task::ALL.iter().copied().filter(|task| match task {
        Task::StoreWriter => !is_on_postgres(),
        Task::Acceptance
        | Task::Outcomes
        | Task::Replays
        | Task::FeedConfirmation
        | Task::SignsOfLife
        | Task::OtherNodesChanges
        | Task::DatabaseState
        | Task::DeadNodesMessages
        | Task::EngineTasks
        | Task::Fence
        | Task::ServerClock
        | Task::NodeShare
        | Task::NodeDrain => is_on_postgres(),
        _ => true,
    });
    tasks.filter(move |task| task.after_fault() == after_fault)
}

/// A site that has work for every task.
async fn site() -> Site {
    let events = Events::On(EventOptions::default());
    let more = "[smtp]\nlisten = \"127.0.0.1:0\"\n[resend_api]\nlisten = \"127.0.0.1:0\"\n";
    let site = Site::with(more, Options { events, ..Options::default() }).await;
    site.read_events();
    site
}

#[tokio::test(flavor = "multi_thread")]
async fn each_task_that_fails_begins_again_and_operators_learn_of_it() {
    let (site, receiver) = (site().await, Receiver::start(Reply::Status(200)).await);
    site.done(&["webhook", "add", "--org", "acme", &receiver.url]);
    let failing: Vec<_> = tasks(AfterFault::BeginAgain).collect();
    let names: Vec<_> = failing.iter().map(|task| task.name()).collect();
    let server = site.start_with(&[(VARIABLE, &names.join(","))]);
    // Each panics at its first two beginnings.
    let expected = |task: &Task| if failing.contains(task) { 2.0 } else { 0.0 };
    let end = Instant::now() + PATIENCE;
    loop {
        let metrics = metrics(&server).await;
        let faults = |task: &Task| {
            metrics[&format!("pillarbox_task_faults_total{{task=\"{}\"}}", task.name())]
        };
        let others: Vec<_> = Task::ALL.iter().filter(|it| faults(it) < expected(it)).collect();
        assert!(Task::ALL.iter().all(|task| faults(task) <= expected(task)), "{metrics:?}");
        if others.is_empty() {
            break;
        }
        assert!(Instant::now() < end, "{others:?} do not begin again: {}", server.log());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    // Each works after its pause.
    let id = server.send(&message()).await;
    server.wait_for(&id, "sent").await;
    let delivered = receiver.wait_for(2).await;
    assert!(delivered.iter().any(|event| event.event()["type"] == "email.delivery"));
    let told: BTreeSet<_> = loop {
        let status: Value =
            serde_json::from_slice(&site.done(&["status", "--json"]).stdout).unwrap();
        let conditions = status["conditions"].as_array().unwrap().iter();
        let told = conditions.filter(|condition| condition["code"] == "task_failed");
        let told: BTreeSet<_> =
            told.map(|condition| condition["message"].as_str().unwrap().to_owned()).collect();
        if !told.is_empty() {
            break told;
        }
        assert!(Instant::now() < end, "no condition: {status}");
    };
    let expected = names.iter().map(|name| {
        format!(
            "The background task {name} has failed 2 times since the start; pillarbox started it \
             again"
        )
    });
    assert_eq!(told, expected.collect());
    // A panic's text may contain a client's data: it is in the panic's own output, and nowhere
    // else.
    for name in &names {
        let text = format!("a test has {name} panic");
        assert_eq!(server.log().matches(&text).count(), 2, "{name}: {}", server.log());
    }
    server.terminate().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_process_ends_if_a_task_fails_that_nothing_works_without() {
    let site = site().await;
    for task in tasks(AfterFault::EndProcess) {
        let mut command = site.service();
        command.env(VARIABLE, task.name());
        let (code, log) = Process::spawn(command).wait_at_most(PATIENCE);
        assert_eq!(code, Some(EXIT_FAULT), "{}: {log}", task.name());
        assert!(
            log.contains("the process ends, because it cannot work without this task"),
            "{log}"
        );
        assert!(log.contains(task.name()), "{log}");
    }
}
