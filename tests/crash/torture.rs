//! The rounds: when the process is killed, and what must hold whenever it is up again.

use std::collections::BTreeMap;
use std::process::Child;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use pillarbox_domain::message::{FailureCode, Status};
use pillarbox_judge::history::{Event, Suppressed};
use pillarbox_ses::send::MESSAGE_ID_TAG;
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::clients::Api;
use crate::kit::{History, Manager, PATIENCE, Process, Site, is_on_postgres};
use crate::ledger::Ledger;
use crate::lossy_disk::LossyDisk;
use crate::old;
use crate::site::{faulty_site, run, spawn, spawn_under};
use copies::{AS_LONG, Copies, strays};

// By its path, because `tests/power` includes this file, too.
#[path = "torture/copies.rs"]
mod copies;

/// Number of times that the first creation of the data file is cut short.
const CUT_CREATIONS: u32 = if cfg!(feature = "long") { 50 } else { 5 };
/// After so many rounds the queue of events is waited for.
const SETTLE_EVERY: u64 = 10;
/// Messages past their retention that a round puts into the file.
const OLD: usize = 2_500;
/// Faults of the disk beside cuts: about every third round has one of them. With `DISK_FAULT`, every
/// round has that one.
const FAULTS: [&str; 5] = ["eio-on-sync", "eio-on-write", "full", "short-write", "slow-sync"];
/// The power fails in the middle of the operation after fewer than this, from a random moment on.
const MAX_OPERATIONS_BEFORE_A_CUT: u64 = 100;
/// Number of older messages that are read again in each round.
const READ_AGAIN: usize = 100;

/// Keeper of the bodies while no process runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Keeper {
    /// Nothing keeps them: each kill loses the pending ones.
    Nobody,
    /// The service manager: no kill loses any.
    Manager,
}

/// End of a life of the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(dead_code, reason = "`tests/crash` has the kills, `tests/power` the cuts")]
pub(crate) enum End {
    /// The process is killed. The kernel keeps what it wrote.
    Kill,
    /// The power fails: what was not synced may be lost. The disk ignores these syncs.
    PowerCut { ignored: &'static str },
}

pub(crate) struct Torture {
    /// The disk of the data directory, if its power fails. It is unmounted before the site goes.
    disk: Option<LossyDisk>,
    site: Site,
    manager: Option<Manager>,
    key: String,
    seed: u64,
    random: fastrand::Rng,
    ledger: Arc<Mutex<Ledger>>,
    history: History,
    /// Number of times that the whole feed was read.
    feeds_read: u32,
    /// Duration of the last start.
    start_took: Duration,
    kills: u32,
    /// Lives of the process in which the disk failed a write.
    refusing: u32,
    kills_while_starting: u32,
    /// Duration of the last copy.
    copy_took: Duration,
    copies: Copies,
    old: usize,
    /// Prints what each cut lost.
    shows_losses: bool,
}

impl Torture {
    pub(crate) async fn new(seed: u64, keeper: Keeper, end: End) -> Self {
        let mut site = faulty_site(seed).await;
        let (name, disk) = match end {
            End::Kill => (format!("killed-{seed}-{keeper:?}"), None),
            End::PowerCut { ignored } => {
                let mounted = site.directory().join("disk");
                std::fs::create_dir(&mounted).unwrap();
                let disk = LossyDisk::mount(&mounted, seed, ignored);
                site.move_data_to(mounted.join("data"));
                (format!("cut-{seed}-{ignored}"), Some(disk))
            }
        };
        let history = History::begin(&name, run(), &site.simulator);
        let manager = (keeper == Keeper::Manager).then(|| Manager::of(&site, 2, Vec::new()));
        let mut torture = Self {
            disk,
            site,
            manager,
            key: String::new(),
            seed,
            random: fastrand::Rng::with_seed(seed),
            ledger: Arc::default(),
            history,
            feeds_read: 0,
            start_took: Duration::from_millis(200),
            kills: 0,
            refusing: 0,
            kills_while_starting: 0,
            copy_took: Duration::from_millis(200),
            copies: Copies::default(),
            old: 0,
            shows_losses: std::env::var_os("SHOW_LOSSES").is_some(),
        };
        for _ in 0..CUT_CREATIONS {
            torture.cut_start().await;
        }
        let (process, _) = torture.start();
        torture.key = torture.site.add_organisation("acme", "example.com");
        torture.kill(process);
        torture
    }

    /// One life of the process, from its start to its death, and what it finds at its start.
    pub(crate) async fn round(&mut self, round: u64) {
        // They come by a start of the store, which has no bodies.
        if self.manager.is_none() && self.random.u8(0..4) == 0 {
            old::add(&self.site, OLD).await;
            self.old += OLD;
        }
        for _ in 0..self.random.u32(0..3) {
            self.cut_start().await;
        }
        // A database has backups of its own.
        if !is_on_postgres() && self.random.u8(0..3) == 0 {
            self.cut_copy().await;
        }
        let (process, api) = self.start();
        if self.random.u8(0..5) == 0 {
            // While it purges, and reads what is in the queue.
            sleep(self.up_to(Duration::from_millis(200))).await;
            self.kill(process);
            return;
        }
        self.check(&api).await;
        if round % SETTLE_EVERY == SETTLE_EVERY - 1 {
            self.settle(&api).await;
        }
        let clients = api.load(round, self.seed, &self.ledger);
        let suppression = format!("manual-{round}@example.org");
        let arguments = ["suppression", "add", "--org", "acme", suppression.as_str()];
        let mut command = copies::begin(self.site.command(&arguments));
        self.make_fault();
        sleep(self.up_to(Duration::from_millis(800))).await;
        if !is_on_postgres() && self.random.u8(0..3) == 0 {
            let backup = self.begin_backup();
            sleep(self.up_to(AS_LONG * self.copy_took)).await;
            self.kill_during(backup, process, &mut command).await;
        } else {
            self.end(Some(process), &mut [&mut command]);
        }
        clients.join_all().await;
        // It works on the file after the process has ended, so it has to end before the next start.
        let ended = tokio::task::spawn_blocking(|| command.wait_with_output().unwrap()).await;
        if ended.unwrap().status.success() {
            self.history.write(&Event::Suppressed(Suppressed {
                ended: self.history.now(),
                organisation: "acme".to_owned(),
                address: suppression.clone(),
            }));
            self.ledger.lock().unwrap().suppressed.push(suppression);
        }
    }

    /// Number of times that the power failed.
    pub(crate) fn cuts(&self) -> u64 {
        self.disk.as_ref().map_or(0, |disk| disk.cuts().into())
    }

    /// Waits until all messages are final, compares everything, and returns a summary of the run.
    pub(crate) async fn finish(mut self) -> String {
        let (process, api) = self.start();
        self.check(&api).await;
        self.settle(&api).await;
        let end = Instant::now() + PATIENCE;
        self.kill(process);
        // The purge takes a step at each start, and the next ones soon after.
        loop {
            let store = self.site.open_store(old::now()).await;
            let all = old::all(&store).await;
            drop(store);
            if all.iter().all(|message| message.subject != old::OLD_SUBJECT) {
                break self.compare(&all);
            }
            assert!(Instant::now() < end, "messages past their retention are not purged");
            let (process, _) = self.start();
            sleep(Duration::from_secs(1)).await;
            drop(process);
        }
        let ledger = self.ledger.lock().unwrap();
        format!(
            "{} cuts of power, {} lives that refused writes, {} kills ({} while starting), {} \
             backups, restorations and compactions broken off ({} backups whole all the same), {} \
             answers of 200 for {} messages and {} keys, {} sent, {} events in the feed, {} \
             suppressions by hand, {} records purged; lost: 0",
            self.cuts(),
            self.refusing,
            self.kills,
            self.kills_while_starting,
            self.copies.broken_off,
            self.copies.whole,
            ledger.answers,
            ledger.ids.len(),
            ledger.keys.len(),
            self.site.simulator.accepted_total(),
            ledger.told.len(),
            ledger.suppressed.len(),
            self.old,
        )
    }

    fn start(&mut self) -> (Process, Api) {
        let began = Instant::now();
        let process = self.spawn();
        let api = Api::new(&process, self.key.clone(), self.history.clone());
        self.start_took = began.elapsed();
        assert_eq!(strays(&self.site.data_dir()), [""; 0], "left by those that were killed");
        (process, api)
    }

    fn spawn(&self) -> Process {
        match &self.manager {
            Some(manager) => spawn_under(manager, &self.site),
            None => spawn(&self.site),
        }
    }

    /// Begins a start and kills it at any moment until it would have listened.
    async fn cut_start(&mut self) {
        let process = self.spawn();
        sleep(self.up_to(self.start_took)).await;
        self.kills_while_starting += 1;
        self.kill(process);
    }

    fn kill(&mut self, process: Process) {
        self.end(Some(process), &mut []);
    }

    /// Ends the process. If the power fails, these commands end at the same moment.
    fn end(&mut self, mut process: Option<Process>, commands: &mut [&mut Child]) {
        self.kills += u32::from(process.is_some());
        if let Some(disk) = &mut self.disk {
            let operations = self.random.u64(0..MAX_OPERATIONS_BEFORE_A_CUT);
            tokio::task::block_in_place(|| disk.freeze_after(operations));
            for command in &mut *commands {
                command.kill().unwrap();
            }
            if let Some(process) = &mut process {
                process.begin_kill();
            }
            let lost = disk.cut(self.random.u64(..));
            if self.shows_losses {
                println!("cut {}: {lost}", disk.cuts());
            }
            for command in commands {
                command.wait().unwrap();
            }
        }
        if let Some(process) = process {
            let log = process.kill();
            self.refusing += u32::from(log.contains("writes are refused for now"));
            assert!(!log.contains("panicked") && !log.contains("damaged"), "{log}");
            self.history.write_kill();
        }
        if let Some(disk) = &mut self.disk {
            disk.start();
        }
    }

    /// Gives a disk whose power will fail a fault, or none.
    fn make_fault(&mut self) {
        let Some(disk) = &mut self.disk else { return };
        let chosen = FAULTS.get(self.random.usize(0..3 * FAULTS.len())).copied();
        if let Some(fault) = std::env::var("DISK_FAULT").ok().as_deref().or(chosen) {
            disk.fault(fault);
        }
    }

    fn up_to(&mut self, longest: Duration) -> Duration {
        longest.mul_f64(self.random.f64())
    }

    /// Checks what must hold before the first request of a new life.
    async fn check(&mut self, api: &Api) {
        let (mut ids, suppressed, unanswered) = {
            let mut ledger = self.ledger.lock().unwrap();
            let fresh = std::mem::take(&mut ledger.fresh);
            let suppressed: Vec<String> = ledger.suppressed.iter().rev().take(5).cloned().collect();
            (fresh, suppressed, std::mem::take(&mut ledger.unanswered))
        };
        {
            let ledger = self.ledger.lock().unwrap();
            ids.extend(self.random.choose_multiple(ledger.ids.keys().cloned(), READ_AGAIN));
        }
        // Two reads of one message at once may end in any order.
        ids.sort();
        ids.dedup();
        self.read(api, ids, |id, status| {
            let is_final = matches!(status, "sent" | "failed" | "suppressed");
            assert!(self.manager.is_some() || is_final, "{id} is still {status}");
        })
        .await;
        for address in suppressed {
            let (status, body) = api.post(None, &address).await.unwrap();
            assert_eq!((status, body["error"]["code"].as_str()), (422, Some("Suppressed")));
        }
        for key in unanswered {
            for _ in 0..2 {
                let answer = api.post(Some(&key), "success@simulator.amazonses.com").await;
                let (status, body) = answer.unwrap();
                assert_eq!(status, 200, "{body}");
                self.ledger.lock().unwrap().answered(Some(&key), body["id"].as_str().unwrap());
            }
        }
    }

    async fn read(&self, api: &Api, ids: Vec<String>, check: impl Fn(&str, &str)) {
        for part in ids.chunks(32) {
            let mut reading = JoinSet::new();
            for id in part {
                let (api, id) = (api.clone(), id.clone());
                reading.spawn(async move { (api.read(&id).await, id) });
            }
            for (seen, id) in reading.join_all().await {
                check(&id, &seen.status);
                self.ledger.lock().unwrap().read(&id, seen);
            }
        }
    }

    /// Waits until nothing is pending and the queue of events is empty; then every message that
    /// the provider accepted is sent and has its event, and no other is.
    async fn settle(&mut self, api: &Api) {
        self.feeds_read += 1;
        let reader = format!("reader {}", self.feeds_read);
        let end = Instant::now() + PATIENCE;
        loop {
            let counts = self.site.simulator.queue_counts();
            assert_eq!(counts.dropped, 0);
            let open = {
                let ledger = self.ledger.lock().unwrap();
                let ids = ledger.ids.iter();
                let open = ids.filter(|(_, seen)| !(seen.status == "sent" && seen.has_event));
                open.map(|(id, _)| id.clone()).collect::<Vec<_>>()
            };
            self.read(api, open, |_, _| {}).await;
            let is_settled = {
                let ledger = self.ledger.lock().unwrap();
                ledger.ids.values().all(|seen| !matches!(&*seen.status, "queued" | "sending"))
            };
            if is_settled && counts.queued + counts.delayed + counts.in_flight == 0 {
                break;
            }
            assert!(Instant::now() < end, "does not settle: {counts:?}");
            sleep(Duration::from_millis(100)).await;
        }
        let ids: Vec<String> = self.ledger.lock().unwrap().ids.keys().cloned().collect();
        self.read(api, ids, |_, _| {}).await;
        for (id, seen) in &self.ledger.lock().unwrap().ids {
            let accepted = self.site.simulator.accepted_by_tag(MESSAGE_ID_TAG, id);
            let is_sent = seen.status == "sent";
            assert_eq!(accepted, u64::from(is_sent), "the provider has {id} so often: {seen:?}");
            assert_eq!(seen.has_event, is_sent, "{id} has lost its event: {seen:?}");
        }
        assert_eq!(self.site.simulator.repeated_tags(MESSAGE_ID_TAG), []);
        api.follow(&self.ledger).await;
        let all = api.read_feed(&reader).await;
        self.ledger.lock().unwrap().compare_feed(&all);
        println!("{:?}", self.history.judge());
    }

    /// Compares all that is in the file with all that was answered.
    fn compare(&self, all: &[pillarbox_domain::message::Message]) {
        let ledger = self.ledger.lock().unwrap();
        let mut subjects: BTreeMap<&str, u32> = BTreeMap::new();
        let mut sent = 0;
        for message in all {
            *subjects.entry(message.subject.as_str()).or_default() += 1;
            sent += u64::from(message.status() == Status::Sent);
            let is_lost = message
                .failure()
                .is_some_and(|failure| failure.code == FailureCode::BodyLostOnRestart);
            // The bodies of the old ones were never kept.
            let is_kept = self.manager.is_some() && message.subject != old::OLD_SUBJECT;
            assert!(!(is_kept && is_lost), "the body of {} is lost", message.id);
            assert_ne!(message.status(), Status::Queued);
        }
        assert_eq!(sent, self.site.simulator.accepted_total());
        for (key, id) in &ledger.keys {
            assert_eq!(subjects.get(key.as_str()), Some(&1), "the key {key} of {id}");
        }
        let there: Vec<String> = all.iter().map(|message| message.id.to_string()).collect();
        let missing = ledger.ids.keys().filter(|id| !there.contains(id)).count();
        assert_eq!(missing, 0, "messages that were answered with 200");
    }
}
