//! The hand-over between acceptance, the writer, the journal and checkpoints: whoever is told that a
//! message is accepted finds it in every read from then on, also after the end of the process at
//! any moment; what was refused is nowhere; and the feed has each entry once, in one order.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

use shuttle::future::block_on;
use shuttle::rand::{Rng as _, thread_rng};
use shuttle::scheduler::RandomScheduler;
use shuttle::{Runner, thread};

use pillarbox_domain::admission::admit;
use pillarbox_domain::feed::{FeedEntry, FeedPosition, FeedTypes};
use pillarbox_domain::id::{MessageId, MessageIds, OrganisationId};
use pillarbox_domain::mailbox::DomainName;
use pillarbox_domain::message::{State, Transition};
use pillarbox_domain::organisation::DomainState;
use pillarbox_domain::request::{Draft, IdempotencyKey, SendRequest};
use pillarbox_domain::search::MessageFilter;
use pillarbox_domain::time::Timestamp;
use pillarbox_runtime::sync::between_accesses;
use pillarbox_store::{
    AcceptError, Accepted, BatchMode, Health, MemoryDisk, NewMessage, Store, StoreError,
};

use crate::{config, explore};

const NOW: Timestamp = Timestamp::from_unix_millis(1_800_000_000_000);

/// Knowledge about messages. No other thread runs while it changes.
#[derive(Debug, Clone, Default)]
struct Ledger {
    /// Messages that were handed to the store.
    handed: BTreeSet<MessageId>,
    /// Those that were answered as accepted, or that somebody has read.
    certain: BTreeSet<MessageId>,
    refused: BTreeSet<MessageId>,
    /// Those of which the outcome is recorded, or was read.
    sent: BTreeSet<MessageId>,
    /// The message that a key made.
    keys: BTreeMap<String, MessageId>,
    /// Entries of the feed that were read.
    fed: Vec<(FeedPosition, MessageId)>,
}

#[derive(Clone)]
struct Story {
    disk: MemoryDisk,
    store: Store,
    organisation: OrganisationId,
    ids: Arc<MessageIds>,
    ledger: Arc<Mutex<Ledger>>,
    /// True once a message was read before its client got the answer.
    was_early: Arc<AtomicBool>,
}

/// Returns a disk with an organisation that may send, as it is after a stop.
fn prepared() -> MemoryDisk {
    static DISK: OnceLock<MemoryDisk> = OnceLock::new();
    let disk = DISK.get_or_init(|| {
        let disk = MemoryDisk::new();
        let made = disk.clone();
        let make = move || {
            let store = Store::on_disk(&made, BTreeSet::new(), NOW).unwrap();
            let organisation = block_on(store.add_organisation("acme".parse().unwrap()));
            let OrganisationId(id) = organisation.unwrap().unwrap().id;
            let domain = DomainName::parse("example.com").unwrap();
            let put = store.put_domain(OrganisationId(id), domain, DomainState::Assumed, NOW);
            block_on(put).unwrap();
        };
        Runner::new(RandomScheduler::new(1), config()).run(make);
        disk
    });
    disk.copy().unwrap()
}

impl Story {
    fn new() -> Self {
        let disk = prepared();
        let store = Store::on_disk(&disk, BTreeSet::new(), NOW).unwrap();
        let organisation = store.organisation(&"acme".parse().unwrap()).unwrap().id;
        let (ids, ledger, was_early) = (Arc::default(), Arc::default(), Arc::default());
        Self { disk, store, organisation, ids, ledger, was_early }
    }

    fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap()
    }

    fn message(&self, key: Option<&str>) -> (MessageId, NewMessage) {
        let draft = Draft {
            from: Some("Ann <ann@example.com>"),
            to: Some(vec!["bob@example.org"]),
            subject: Some("Hello"),
            text: Some("Body".into()),
            idempotency_key: key,
            ..Draft::default()
        };
        let request = SendRequest::parse(draft).unwrap();
        let admitted = block_on(admit(request, &self.store.facts(self.organisation))).unwrap();
        let id = self.ids.next(NOW);
        self.ledger().handed.insert(id);
        let ledger = Arc::clone(&self.ledger);
        let on_new = move || {
            ledger.lock().unwrap().certain.insert(id);
        };
        (id, NewMessage::new(id, self.organisation, &admitted, NOW, NOW, on_new))
    }

    /// Posts messages with these keys as one request; returns those that are new.
    fn post(&self, keys: &[Option<&str>]) -> Vec<MessageId> {
        let (own, messages): (Vec<_>, _) = keys.iter().map(|key| self.message(*key)).unzip();
        let answers = match block_on(self.store.accept_all(messages, BatchMode::Whole)) {
            Ok(answers) => answers,
            Err(AcceptError::Store(StoreError::Unavailable)) => {
                let mut ledger = self.ledger();
                assert!(own.iter().all(|id| !ledger.certain.contains(id)), "it was read before");
                ledger.refused.extend(own);
                return Vec::new();
            }
            Err(error) => panic!("{error}"),
        };
        let mut new = Vec::new();
        for (key, answer) in keys.iter().zip(answers) {
            let answer = answer.unwrap();
            if let Accepted::New(id) = answer {
                new.push(id);
            }
            let mut ledger = self.ledger();
            assert!(ledger.certain.contains(&answer.id()), "it is told once it is durable");
            if let Some(key) = key {
                let id = ledger.keys.entry((*key).to_owned()).or_insert(answer.id());
                assert_eq!(*id, answer.id(), "a key makes one message");
            }
        }
        new
    }

    fn send(&self, id: MessageId) {
        let ses_message_id = format!("ses-{id}");
        let sent = Transition::Sent { ses_message_id, sent_at: NOW };
        if block_on(self.store.record(id, 1, sent, NOW)).is_ok() {
            self.ledger().sent.insert(id);
            let mut feed = self.feed(FeedPosition::START).into_iter().flatten();
            let is_fed = feed.any(|entry| entry.message.id == id);
            assert!(is_fed || self.store.health() != Health::Writable, "the feed lacks {id}");
        }
    }

    /// Reads each message by its key, and all of them as a list. While the disk fails, a read may
    /// fail too.
    fn read(&self) {
        let known = self.ledger().clone();
        for id in &known.handed {
            let Ok(message) = block_on(self.store.message(*id, NOW)) else { continue };
            let is_certain = known.certain.contains(id);
            assert!(message.is_some() || !is_certain, "{id} is accepted, and not found");
            let Some(message) = message else { continue };
            let is_sent = matches!(message.state, State::Sent { .. });
            assert!(is_sent || !known.sent.contains(id), "{id} is sent, and {:?}", message.state);
            self.see(*id, is_sent);
        }
        let known = self.ledger().clone();
        if let Ok(page) = block_on(self.store.list(MessageFilter::default(), 100, NOW)) {
            let listed: Vec<_> = page.messages.iter().map(|message| message.id).collect();
            let once: BTreeSet<_> = listed.iter().copied().collect();
            assert_eq!(once.len(), listed.len(), "the list has a message twice");
            assert!(once.is_superset(&known.certain), "the list lacks {:?}", known.certain);
            for id in listed {
                self.see(id, false);
            }
        }
        for (key, id) in known.keys {
            let key = IdempotencyKey::parse(&key).unwrap();
            if let Ok(found) = block_on(self.store.replay(self.organisation, key, NOW)) {
                assert_eq!(found, Some(id), "the key of an accepted message");
            }
        }
    }

    /// Notes what was read: it stays.
    fn see(&self, id: MessageId, is_sent: bool) {
        let mut ledger = self.ledger();
        assert!(!ledger.refused.contains(&id), "{id} was refused, and is there");
        let is_early = ledger.certain.insert(id);
        if is_sent {
            ledger.sent.insert(id);
        }
        drop(ledger);
        // The end of the process at this moment tells if it was there too soon.
        if is_early && !self.was_early.swap(true, Ordering::Relaxed) {
            self.kill();
        }
    }

    fn feed(&self, after: FeedPosition) -> Option<Vec<FeedEntry>> {
        let read = self.store.feed(self.organisation, after, FeedTypes::ALL, 100, NOW);
        Some(block_on(read).ok()?.entries)
    }

    /// Reads the feed on, as the delivery of webhooks does: nothing appears before what was read.
    fn read_feed_on(&self, times: usize) {
        let mut after = FeedPosition::START;
        for _ in 0..times {
            let sent = self.ledger().sent.clone();
            let Some(entries) = self.feed(after) else { continue };
            let mut ledger = self.ledger();
            for FeedEntry { position, message, .. } in entries {
                assert!(position > after, "positions rise");
                after = position;
                ledger.fed.push((position, message.id));
            }
            let fed: BTreeSet<_> = ledger.fed.iter().map(|(_, id)| *id).collect();
            assert!(fed.is_superset(&sent), "the feed lacks an outcome that was answered");
        }
    }

    /// Checks a store in which nobody writes.
    fn check(&self) {
        let known = self.ledger().clone();
        let all = known.handed.iter();
        let there: BTreeSet<_> = all
            .copied()
            .filter(|id| block_on(self.store.message(*id, NOW)).unwrap().is_some())
            .collect();
        assert!(there.is_superset(&known.certain), "lost: {:?}", &known.certain - &there);
        assert!(there.is_disjoint(&known.refused), "was refused: {:?}", &known.refused & &there);
        self.read();
        let feed = self.feed(FeedPosition::START).unwrap();
        let fed: Vec<_> = feed.iter().map(|entry| (entry.position, entry.message.id)).collect();
        assert!(fed.starts_with(&known.fed), "{fed:?} was read as {:?}", known.fed);
        let once: BTreeSet<_> = fed.iter().map(|(_, id)| *id).collect();
        assert_eq!(once.len(), fed.len(), "an outcome is in the feed twice");
        assert!(once.is_superset(&known.sent), "the feed lacks {:?}", &known.sent - &once);
    }

    /// Ends the process here, as far as the next one can see, and starts the next one.
    fn kill(&self) {
        let (known, disk) = (self.ledger().clone(), self.disk.copy().unwrap());
        let store = Store::on_disk(&disk, known.handed.clone(), NOW).unwrap();
        let ledger = Arc::new(Mutex::new(known));
        Self { disk, store, ledger, ..self.clone() }.check();
    }

    /// Stops the service, and starts it again.
    fn restart(self) {
        let Self { disk, store, organisation, ids, ledger, was_early } = self;
        drop(store);
        let bodies = ledger.lock().unwrap().handed.clone();
        let store = Store::on_disk(&disk, bodies, NOW).unwrap();
        Self { disk, store, organisation, ids, ledger, was_early }.check();
    }
}

/// Lets others run for a while.
fn wait(longest: usize) {
    for _ in 0..thread_rng().gen_range(0..longest) {
        between_accesses();
    }
}

#[test]
fn an_accepted_message_is_in_every_read_and_after_an_end_at_any_moment() {
    explore(100, || {
        let story = Story::new();
        let mut threads: Vec<_> = [["a", "b"], ["b", "c"]]
            .into_iter()
            .map(|keys| {
                let story = story.clone();
                thread::spawn(move || {
                    for key in keys {
                        let new = story.post(&[Some(key), None]);
                        story.read();
                        for id in new {
                            story.send(id);
                        }
                    }
                })
            })
            .collect();
        let reader = story.clone();
        threads.push(thread::spawn(move || {
            for _ in 0..3 {
                reader.read();
            }
        }));
        wait(400);
        story.kill();
        for thread in threads {
            thread.join().unwrap();
        }
        story.check();
        story.restart();
    });
}

#[test]
fn the_feed_is_read_in_one_order_without_a_gap() {
    explore(100, || {
        let story = Story::new();
        let mut threads: Vec<_> = (0..3)
            .map(|_| {
                let story = story.clone();
                thread::spawn(move || {
                    for id in story.post(&[None, None]) {
                        story.send(id);
                    }
                })
            })
            .collect();
        let reader = story.clone();
        threads.push(thread::spawn(move || reader.read_feed_on(6)));
        for thread in threads {
            thread.join().unwrap();
        }
        story.check();
        story.restart();
    });
}

#[test]
fn what_a_failing_disk_made_the_store_refuse_is_nowhere() {
    explore(100, || {
        let story = Story::new();
        let mut threads: Vec<_> = (0..2)
            .map(|_| {
                let story = story.clone();
                thread::spawn(move || {
                    for _ in 0..3 {
                        let new = story.post(&[None]);
                        story.read();
                        for id in new {
                            story.send(id);
                        }
                    }
                })
            })
            .collect();
        let disk = story.disk.clone();
        threads.push(thread::spawn(move || {
            wait(200);
            disk.fail();
            wait(60);
            disk.work();
        }));
        for thread in threads {
            thread.join().unwrap();
        }
        story.kill();
        block_on(story.store.answered());
        story.restart();
    });
}
