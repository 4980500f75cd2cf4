//! A wrong clock, over starts, stops and kills: nothing is lost, and windows have their whole length
//! once the clock is right.
//!
//! A process here is a runtime of the test's own. Faults of its tasks, which a kill may leave, are those
//! of the whole test program, so no other test that runs beside these may look at conditions.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use pillarbox_config::Config;
use pillarbox_domain::api_key::ApiKey;
use pillarbox_domain::organisation::KeyRights;
use pillarbox_domain::time::Timestamp;
use pillarbox_maintenance::timekeeper::resolve;
use pillarbox_runtime::clock::{Clock, ConfirmedBy};
use pillarbox_service::Service;
use pillarbox_simulator::{Options, Simulator};
use pillarbox_store::{FILE_NAME, NewApiKey};
use redb::{Database, TableDefinition};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinSet;

use crate::kit::{
    self, NOON, PATIENCE, add_organisation, http_client, local_config, pillarbox, send_with_key,
    start_service, start_simulator, store_api_key,
};

const MILLISECOND: Duration = Duration::from_millis(1);
const HOUR: Duration = Duration::from_hours(1);
const DAY: Duration = Duration::from_hours(24);

/// A file, and processes on it that follow each other.
struct Place {
    config: Config,
    key: ApiKey,
    client: reqwest::Client,
    _simulator: Simulator,
    _directory: TempDir,
}

/// A process: the service in a runtime of its own, so that it can be killed.
struct Process {
    clock: Clock,
    service: Service,
    runtime: Runtime,
}

/// State of the clock by the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kernel {
    Synchronised,
    Silent,
}

/// Event between two checks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Meanwhile {
    GoesOn,
    Restarts,
    IsKilled,
}

/// End of a wrong clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    /// It is set right, and the kernel says so.
    Synchronised,
    /// It is set right, near the file's time stamp, and no operator confirms it.
    SetRight,
    /// It is set right days after the file's time stamp, and an operator says so.
    SetRightAndConfirmed,
    /// It was right all along, and an operator says so.
    Confirmed,
    /// The process stops, and the next one starts with the right clock.
    RightAtTheNextStart,
}

impl Place {
    async fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let options = Options {
            verified: vec!["example.com".to_owned()],
            signature_max_age: None,
            ..Options::default()
        };
        let simulator = start_simulator(options).await;
        let config = local_config(directory.path(), &simulator);
        let client = http_client();
        let key = ApiKey::generate().unwrap();
        Self { config, key, client, _simulator: simulator, _directory: directory }
    }

    /// The first process, which makes the file.
    async fn first(&self, at: Timestamp, kernel: Kernel) -> Process {
        let process = self.start(at, kernel).await;
        let store = process.service.store();
        let acme = add_organisation(store, "acme", at).await;
        store_api_key(store, acme, &self.key, at).await;
        process
    }

    async fn start(&self, at: Timestamp, kernel: Kernel) -> Process {
        let end = Instant::now() + PATIENCE;
        loop {
            let clock = Clock::manual(at);
            if kernel == Kernel::Synchronised {
                clock.synchronise();
            }
            let runtime =
                Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
            let (config, of_service) = (self.config.clone(), clock.clone());
            let started = runtime.spawn(async move { start_service(&config, of_service).await });
            match started.await.unwrap() {
                Ok(service) => return Process { clock, service, runtime },
                // One that was killed a moment ago may still hold the file.
                Err(error) => {
                    assert!(Instant::now() < end, "{error}");
                    runtime.shutdown_background();
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
            }
        }
    }

    async fn then(&self, process: Process, meanwhile: Meanwhile) -> Process {
        let at = process.clock.now().plus(Duration::from_mins(1));
        match meanwhile {
            Meanwhile::GoesOn => return process,
            Meanwhile::Restarts => process.stop().await,
            Meanwhile::IsKilled => process.kill(),
        }
        self.start(at, Kernel::Silent).await
    }

    async fn send(&self, process: &Process, idempotency_key: &str) -> (String, bool) {
        send_with_key(&self.client, &process.service, &self.key, idempotency_key).await
    }

    async fn get(&self, process: &Process, path: &str) -> (u16, Value) {
        kit::get(&self.client, &process.service, &self.key, path).await
    }

    async fn record(&self, process: &Process, id: &str) -> u16 {
        self.get(process, &format!("/emails/{id}")).await.0
    }

    /// The purge, as the process does it by itself every minute: how many messages and keys go.
    async fn purge(&self, process: &Process) -> (usize, usize) {
        let purged =
            process.service.store().purge(process.clock.window_time(), 1_000).await.unwrap();
        (purged.messages, purged.idempotency_keys)
    }

    /// A message that has to be there whole: its record is read and listed, its key replays.
    async fn is_whole(&self, process: &Process, (id, key): (&str, &str), when: &str) {
        self.purge(process).await;
        assert_eq!(self.record(process, id).await, 200, "{when}: the record of {key}");
        assert_eq!(self.send(process, key).await, (id.to_owned(), true), "{when}: the key {key}");
        assert!(self.listed(process, "").await.contains(&id.to_owned()), "{when}: {key} in a list");
    }

    async fn listed(&self, process: &Process, query: &str) -> Vec<String> {
        let (status, page) = self.get(process, &format!("/emails?limit=100{query}")).await;
        assert_eq!(status, 200, "{page}");
        let emails = page["emails"].as_array().unwrap_or_else(|| panic!("{page}"));
        emails.iter().map(|email| email["id"].as_str().unwrap().to_owned()).collect()
    }
}

impl Process {
    async fn stop(self) {
        let Self { service, runtime, .. } = self;
        runtime.spawn(service.stop()).await.unwrap();
        runtime.shutdown_background();
    }

    fn kill(self) {
        self.runtime.shutdown_background();
    }

    /// Has the kernel or an operator confirm that the clock is right, or neither: as the timekeeper
    /// and the command do.
    async fn resolve(&self, word: ConfirmedBy) {
        resolve(self.service.store(), &self.clock, word).await.unwrap();
    }
}

/// A file that was in use at noon is started with a wrong clock, takes a message, and then the
/// clock is put right, or was right.
async fn wrong_at_the_start(wrong: Timestamp, meanwhile: Meanwhile, end: End) {
    let when = format!("{wrong}, {meanwhile:?}, {end:?}");
    let place = Place::new().await;
    let process = place.first(NOON, Kernel::Synchronised).await;
    let (old, _) = place.send(&process, "old").await;
    process.stop().await;

    let process = place.start(wrong, Kernel::Silent).await;
    assert!(process.clock.jump().is_some(), "{when}");
    place.is_whole(&process, (&old, "old"), &when).await;
    let (new, replayed) = place.send(&process, "new").await;
    assert!(!replayed, "{when}");
    process.clock.advance(HOUR);
    let process = place.then(process, meanwhile).await;
    assert!(process.clock.jump().is_some(), "{when}");
    place.is_whole(&process, (&old, "old"), &when).await;
    place.is_whole(&process, (&new, "new"), &when).await;

    // How old the old message is by the right clock; the new one is an hour old.
    let mut process = process;
    let age = match end {
        End::Synchronised => {
            process.clock.set(NOON.plus(DAY * 40));
            process.clock.synchronise();
            process.resolve(ConfirmedBy::Kernel).await;
            DAY * 40
        }
        End::SetRight => {
            process.clock.set(NOON.plus(HOUR * 10));
            process.resolve(ConfirmedBy::Nobody).await;
            HOUR * 10
        }
        End::SetRightAndConfirmed => {
            process.clock.set(NOON.plus(DAY * 40));
            process.resolve(ConfirmedBy::Nobody).await;
            assert!(process.clock.jump().is_some(), "{when}: it stays in doubt");
            process.resolve(ConfirmedBy::Operator).await;
            DAY * 40
        }
        End::Confirmed => {
            process.resolve(ConfirmedBy::Operator).await;
            let now = process.clock.now().unix_millis();
            Duration::from_millis(now.saturating_sub(NOON.unix_millis()))
        }
        End::RightAtTheNextStart => {
            process.stop().await;
            process = place.start(NOON.plus(DAY * 40), Kernel::Synchronised).await;
            DAY * 40
        }
    };
    assert_eq!(process.clock.jump(), None, "{when}");
    place.is_whole(&process, (&new, "new"), &when).await;
    place.purge(&process).await;
    let is_kept = age < DAY * 90;
    assert_eq!(place.record(&process, &old).await, if is_kept { 200 } else { 404 }, "{when}");
    assert_eq!(place.send(&process, "old").await.0 == old, age < DAY, "{when}");

    // Not a moment too early: the new message is at least an hour old, and at most what follows.
    let exact = meanwhile == Meanwhile::GoesOn && end != End::RightAtTheNextStart;
    process.clock.advance((HOUR * 23).saturating_sub(MILLISECOND));
    place.is_whole(&process, (&new, "new"), &when).await;
    process.clock.advance(if exact { MILLISECOND } else { HOUR * 2 });
    let (next, replayed) = place.send(&process, "new").await;
    assert!(!replayed && next > new, "{when}: its key is over, and ids go on");
    // As every hour.
    process.resolve(ConfirmedBy::Nobody).await;
    let process = place.then(process, Meanwhile::Restarts).await;
    assert_eq!(process.clock.jump(), None, "{when}: a confirmation holds over restarts");
    process.clock.advance(DAY * 80);
    assert_eq!(place.record(&process, &new).await, 200, "{when}");
    place.purge(&process).await;
    let settled = process.clock.window_time();
    let oldest = process.service.store().oldest(settled.clone()).await.unwrap().unwrap();
    assert!(!oldest.is_past(DAY * 90, settled.now()), "{when}: the purge takes what is over");
    process.clock.advance(DAY * 10);
    assert_eq!(place.record(&process, &new).await, 404, "{when}");
    process.stop().await;
}

async fn wrong_at_the_start_in_all_orders(wrong: Timestamp) {
    // Together, because each waits more than it works.
    let mut all = JoinSet::new();
    for meanwhile in [Meanwhile::GoesOn, Meanwhile::Restarts, Meanwhile::IsKilled] {
        for end in [
            End::Synchronised,
            End::SetRight,
            End::SetRightAndConfirmed,
            End::Confirmed,
            End::RightAtTheNextStart,
        ] {
            all.spawn(wrong_at_the_start(wrong, meanwhile, end));
        }
    }
    all.join_all().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_start_95_days_ahead_loses_nothing_whatever_follows() {
    wrong_at_the_start_in_all_orders(NOON.plus(DAY * 95)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_start_95_days_behind_loses_nothing_whatever_follows() {
    wrong_at_the_start_in_all_orders(NOON.minus(DAY * 95)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_start_with_a_synchronised_clock_waits_for_nobody() {
    let place = Place::new().await;
    let process = place.first(NOON, Kernel::Synchronised).await;
    let (old, _) = place.send(&process, "old").await;
    process.stop().await;
    let process = place.start(NOON.plus(DAY * 95), Kernel::Synchronised).await;
    assert_eq!(process.clock.jump(), None);
    assert_eq!(place.record(&process, &old).await, 404);
    assert!(!place.send(&process, "old").await.1);
    process.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_record_of_the_clock_leaves_the_newest_message_to_compare_with() {
    const CLOCK: TableDefinition<&str, &[u8]> = TableDefinition::new("clock");
    let place = Place::new().await;
    let process = place.first(NOON, Kernel::Synchronised).await;
    let (old, _) = place.send(&process, "old").await;
    process.stop().await;
    // Until the last task of the process has let go of the file.
    let end = Instant::now() + PATIENCE;
    let file = loop {
        match Database::open(place.config.data_dir.join(FILE_NAME)) {
            Ok(file) => break file,
            Err(error) => assert!(Instant::now() < end, "{error}"),
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    let writing = file.begin_write().unwrap();
    writing.open_table(CLOCK).unwrap().insert("time", &[0xff; 9][..]).unwrap();
    writing.commit().unwrap();
    drop(file);

    let process = place.start(NOON.plus(DAY * 95), Kernel::Silent).await;
    assert!(process.clock.jump().is_some());
    place.is_whole(&process, (&old, "old"), "a damaged record").await;
    assert_eq!(process.service.store().damaged().len(), 1);
    process.resolve(ConfirmedBy::Operator).await;
    assert_eq!(process.clock.jump(), None);
    assert_eq!(place.record(&process, &old).await, 404);
    process.stop().await;
}

/// A file made under a wrong clock that is not in doubt, because there is nothing to compare it
/// with.
async fn wrong_from_the_beginning(wrong: Timestamp, meanwhile: Meanwhile, word: ConfirmedBy) {
    let when = format!("{wrong}, {meanwhile:?}, {word:?}");
    let place = Place::new().await;
    let process = place.first(wrong, Kernel::Silent).await;
    let (before, _) = place.send(&process, "before").await;
    let process = place.then(process, meanwhile).await;
    let (first, _) = place.send(&process, "first").await;
    process.clock.advance(HOUR);
    process.clock.set(NOON);
    let (second, _) = place.send(&process, "second").await;
    let all = [(before.as_str(), "before"), (first.as_str(), "first"), (second.as_str(), "second")];
    for message in all {
        place.is_whole(&process, message, &when).await;
    }
    process.resolve(word).await;
    assert_eq!(process.clock.jump(), None, "{when}");
    for message in all {
        place.is_whole(&process, message, &when).await;
    }
    let created = place.get(&process, &format!("/emails/{first}")).await.1["createdAt"].clone();
    assert_eq!(created, json!(NOON.minus(HOUR).to_string()), "{when}");
    let recent = format!("&createdFrom={}&createdBefore={NOON}", NOON.minus(HOUR * 2));
    assert!(place.listed(&process, &recent).await.contains(&first), "{when}");
    let process = place.then(process, meanwhile).await;
    let (third, _) = place.send(&process, "third").await;
    let ids = [before.clone(), first.clone(), second, third];
    assert!(ids.is_sorted(), "{when}: ids sort by acceptance over the restart: {ids:?}");
    process.clock.advance((HOUR * 23).saturating_sub(Duration::from_mins(2)));
    place.is_whole(&process, (&first, "first"), &when).await;
    process.clock.advance(Duration::from_mins(2));
    assert!(!place.send(&process, "first").await.1, "{when}");
    process.clock.advance(DAY * 89);
    place.purge(&process).await;
    assert_eq!(place.record(&process, &first).await, 404, "{when}");
    process.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_made_under_a_wrong_clock_loses_nothing_once_it_is_right() {
    let mut all = JoinSet::new();
    for wrong in [NOON.minus(DAY * 95), NOON.plus(DAY * 95)] {
        for meanwhile in [Meanwhile::GoesOn, Meanwhile::Restarts, Meanwhile::IsKilled] {
            for word in [ConfirmedBy::Kernel, ConfirmedBy::Operator] {
                all.spawn(wrong_from_the_beginning(wrong, meanwhile, word));
            }
        }
    }
    all.join_all().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_api_key_expires_by_the_current_clock_also_in_doubt() {
    let place = Place::new().await;
    let process = place.first(NOON, Kernel::Silent).await;
    let store = process.service.store();
    let acme = store.organisations().remove(0);
    let short = ApiKey::generate().unwrap();
    let expires_at = Some(NOON.plus(DAY));
    let new = NewApiKey {
        label: String::new(),
        expires_at,
        hash: short.hash(),
        rights: KeyRights::all(),
    };
    store.add_api_key(acme.id, new, NOON).await.unwrap();
    let got = async || {
        let url = format!("http://{}/emails", process.service.address());
        place.client.get(url).bearer_auth(short.reveal()).send().await.unwrap().status().as_u16()
    };
    assert_eq!(got().await, 200);
    process.clock.set(NOON.plus(DAY * 2));
    assert!(process.clock.jump().is_some());
    assert_eq!(got().await, 401);
    process.clock.set(NOON.minus(DAY * 2));
    assert_eq!(got().await, 200);
    process.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn operators_are_told_what_stands_still_since_when_and_what_to_do() {
    let place = Place::new().await;
    place.first(NOON, Kernel::Silent).await.stop().await;
    let process = place.start(NOON.plus(DAY * 95), Kernel::Silent).await;
    let metrics = format!("http://{}/metrics", process.service.operator_address());
    let metrics = place.client.get(metrics).send().await.unwrap().text().await.unwrap();
    assert!(metrics.contains("\npillarbox_clock_jumped 1.0\n"), "{metrics}");
    let told = place.command(&["status"]).await;
    assert!(told.contains("in doubt"), "{told}");
    assert!(told.contains(&format!("Since {NOON} nothing has been purged")), "{told}");
    assert!(told.contains("pillarbox clock confirm"), "{told}");
    let output = place.command(&["clock", "confirm"]).await;
    assert!(output.contains("is confirmed"), "{output}");
    assert_eq!(process.clock.jump(), None);
    let output = place.command(&["status"]).await;
    assert!(!output.contains("clock:"), "{output}");
    process.stop().await;
}

impl Place {
    async fn command(&self, arguments: &[&str]) -> String {
        let mut command = pillarbox(arguments);
        command.arg("--socket").arg::<&PathBuf>(&self.config.admin_socket);
        let output = tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    }
}
