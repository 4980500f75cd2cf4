//! A site whose provider loses, delays and refuses some of the calls.

use std::process::Command;
use std::time::Duration;

use pillarbox_judge::history::{Answers, OnUnknown, Refusal, Run};
use pillarbox_simulator::{EventOptions, Events, Fault, Faults, Options, QueueOptions};

use crate::kit::{Manager, Process, Site, is_on_postgres};

/// Time after which an event that was handed out and not deleted comes again.
const VISIBILITY: Duration = Duration::from_secs(2);
const CONFIGURATION: &str = "[sending]\non_unknown = \"fail\"\nretry_initial = \"100ms\"\nretry_max = \"500ms\"\n\
     [resend_api]\nlisten = \"127.0.0.1:0\"\n[smtp]\nlisten = \"127.0.0.1:0\"\n";

/// Set-up of the run of such a site, for the judge.
pub(crate) fn run() -> Run {
    Run {
        on_unknown: OnUnknown::Fail,
        answers: Answers::MayBeLost,
        refusal: if is_on_postgres() { Refusal::MayBeOpen } else { Refusal::Definite },
        suppression_delay: 1_000_000,
    }
}

/// A site without a data file.
pub(crate) async fn faulty_site(seed: u64) -> Site {
    let faults = Faults::none()
        .with_probability(Fault::ResetAfter, 0.03)
        .and_then(|faults| faults.with_probability(Fault::ResetBefore, 0.03))
        .and_then(|faults| faults.with_probability(Fault::InternalErrorAfter, 0.02))
        .and_then(|faults| faults.with_probability(Fault::Unavailable, 0.02))
        .and_then(|faults| faults.with_probability(Fault::Throttled, 0.01))
        .and_then(|faults| faults.with_probability(Fault::Rejected, 0.02))
        .unwrap();
    let options = Options {
        latency: Duration::from_millis(5),
        faults,
        seed,
        events: Events::On(EventOptions::after(Duration::from_millis(50))),
        queue: QueueOptions { visibility_timeout: VISIBILITY, ..QueueOptions::default() },
        ..Options::default()
    };
    let site = Site::empty(CONFIGURATION, options).await;
    site.read_events();
    // The service makes it.
    std::fs::remove_dir(site.data_dir()).unwrap();
    site
}

/// Begins to start the service.
pub(crate) fn spawn(site: &Site) -> Process {
    spawn_by(site.service())
}

/// Begins to start the service, with the bodies that a service manager keeps for it.
pub(crate) fn spawn_under(manager: &Manager, site: &Site) -> Process {
    spawn_by(manager.command(site))
}

fn spawn_by(mut command: Command) -> Process {
    command.env("RUST_LOG", "warn,pillarbox_service=info");
    Process::spawn(command)
}

/// Waits until the service listens; gives its base address.
pub(crate) fn listening(process: &Process) -> String {
    format!("http://{}", process.listening())
}
