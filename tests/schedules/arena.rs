//! The arena: a body is read as it was put while others come, go and are moved, and a process that
//! takes the arena over at any moment finds all that are there.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write as _;
use std::ops::RangeInclusive;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::FileExt as _;
use std::sync::{Arc, Mutex};

use rustix::fs::{MemfdFlags, memfd_create};
use shuttle::rand::{Rng as _, thread_rng};
use shuttle::thread;
use tokio::time::Instant;

use pillarbox_body_store::{
    ArenaOwner, Body, BodyStore, CallState, HeldBody, LiveState, NewBody, Survivor,
};
use pillarbox_domain::id::{MessageId, MessageIds, OrganisationId};
use pillarbox_domain::message::Acceptance;
use pillarbox_domain::time::Timestamp;
use pillarbox_runtime::sync::between_accesses;

use crate::explore;

const OWNER: ArenaOwner = ArenaOwner { boot: [1; 16], store: [2; 16] };
const NOW: Timestamp = Timestamp::from_unix_millis(1);
/// Bytes of an envelope.
const ENVELOPE_LEN: usize = 100;
/// Sizes of bodies: two or more of a block, and one of more than a block.
const SMALL: RangeInclusive<usize> = 60_000..=120_000;
const LARGE: usize = 300_000;

/// Presence of a message's body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Presence {
    BeingPut,
    There,
    BeingDropped,
}

#[derive(Debug, Clone)]
struct Known {
    presence: Presence,
    content: Vec<u8>,
    /// Numbers of attempts that may be found.
    attempts: RangeInclusive<u32>,
}

/// Knowledge of the bodies: no other thread runs while it changes.
type Ledger = Arc<Mutex<BTreeMap<MessageId, Known>>>;

#[derive(Clone)]
struct Story {
    store: BodyStore,
    ids: Arc<MessageIds>,
    ledger: Ledger,
}

/// A body that is checked at each use.
struct Checked {
    id: MessageId,
    body: Body,
    content: Vec<u8>,
}

impl Story {
    fn new() -> Self {
        let store = BodyStore::create(OWNER).unwrap();
        Self { store, ids: Arc::new(MessageIds::new()), ledger: Ledger::default() }
    }

    fn change(&self, id: MessageId, change: impl FnOnce(&mut Known)) {
        change(self.ledger.lock().unwrap().get_mut(&id).unwrap());
    }

    fn put(&self, len: usize) -> Checked {
        let id = self.ids.next(NOW);
        let content = {
            let mut ledger = self.ledger.lock().unwrap();
            // Another byte for each body.
            let content = vec![b' ' + u8::try_from(ledger.len()).unwrap(); len];
            let (presence, attempts) = (Presence::BeingPut, 0..=0);
            ledger.insert(id, Known { presence, content: content.clone(), attempts });
            content
        };
        let body = self.store.put(&new_body(id, &content)).unwrap();
        self.change(id, |known| known.presence = Presence::There);
        Checked { id, body, content }
    }

    fn put_any(&self) -> Checked {
        self.put(if thread_rng().gen_ratio(1, 6) { LARGE } else { thread_rng().gen_range(SMALL) })
    }

    fn attempt(&self, Checked { id, body, .. }: &Checked) {
        let mut attempts = 0;
        self.change(*id, |known| {
            attempts = known.attempts.end() + 1;
            known.attempts = attempts - 1..=attempts;
        });
        let (due, acceptance) = (Instant::now(), Acceptance::Excluded);
        let live = LiveState { attempts, acceptance, due, call: CallState::UnderWay };
        body.set_live(*id, &live).unwrap();
        self.change(*id, |known| known.attempts = attempts..=attempts);
    }

    fn drop(&self, Checked { id, body, .. }: Checked) {
        self.change(id, |known| known.presence = Presence::BeingDropped);
        drop(body);
    }

    /// Ends the process here, as far as the next one can see.
    fn kill(&self) {
        let known = self.ledger.lock().unwrap().clone();
        let (store, survivors) = BodyStore::take_over(copy(&self.store), OWNER).unwrap();
        let mut survivors: BTreeMap<_, Survivor> =
            survivors.into_iter().map(|survivor| (survivor.id, survivor)).collect();
        store.own();
        let mut kept = Vec::new();
        for (id, known) in known {
            let Some(Survivor { body, live, .. }) = survivors.remove(&id) else {
                assert_ne!(known.presence, Presence::There, "{id} is lost");
                continue;
            };
            let attempts = live.attempts;
            assert!(known.attempts.contains(&attempts), "{attempts} of {:?}", known.attempts);
            kept.push(Checked { id, body, content: known.content });
        }
        assert!(survivors.is_empty(), "bodies that nobody has put");
        // The next process has its own.
        let content = vec![b'~'; *SMALL.start()];
        for _ in 0..4 {
            let id = self.ids.next(NOW);
            let body = store.put(&new_body(id, &content)).unwrap();
            kept.push(Checked { id, body, content: content.clone() });
        }
        for checked in &kept {
            checked.read();
        }
        drop(kept);
        assert_eq!((store.usage().records, store.usage().alive_bytes), (0, 0));
    }

    fn end(self) {
        let usage = self.store.usage();
        assert_eq!((usage.records, usage.alive_bytes), (0, 0));
    }
}

impl Checked {
    fn read(&self) {
        let Self { id, body, content } = self;
        let request_len = content.len() - ENVELOPE_LEN;
        let request = body.request().unwrap();
        assert!(request == content[..request_len], "{id} has the content of another");
        let envelope = body.envelope().unwrap();
        assert!(envelope.as_bytes() == &content[request_len..], "{id} has another's envelope");
    }

    fn another(&self) -> Self {
        Self { id: self.id, body: self.body.clone(), content: self.content.clone() }
    }
}

fn new_body(id: MessageId, content: &[u8]) -> NewBody<'_> {
    NewBody {
        id,
        organisation: OrganisationId(7),
        key: None,
        accepted_at: Instant::now(),
        content,
        request_len: content.len() - ENVELOPE_LEN,
    }
}

/// Copies the memory, as it is now.
fn copy(store: &BodyStore) -> OwnedFd {
    let from = File::from(store.as_fd().try_clone_to_owned().unwrap());
    let mut bytes = vec![0; usize::try_from(from.metadata().unwrap().len()).unwrap()];
    from.read_exact_at(&mut bytes, 0).unwrap();
    let mut to = File::from(memfd_create("copy", MemfdFlags::CLOEXEC).unwrap());
    to.write_all(&bytes).unwrap();
    to.into()
}

/// Lets others run for a while.
fn wait() {
    for _ in 0..thread_rng().gen_range(0..60) {
        between_accesses();
    }
}

#[test]
fn a_body_is_read_as_it_was_put_while_others_come_and_go() {
    explore(200, || {
        let story = Story::new();
        let first: Vec<Checked> = (0..5).map(|_| story.put_any()).collect();
        let others: Vec<Checked> = first.iter().map(Checked::another).collect();
        let reader = thread::spawn(move || {
            for checked in &others {
                checked.read();
            }
        });
        let (coming, going) = (story.clone(), story.clone());
        let coming = thread::spawn(move || {
            for _ in 0..3 {
                let checked = coming.put_any();
                checked.read();
                coming.drop(checked);
            }
        });
        let going = thread::spawn(move || {
            for checked in first {
                going.drop(checked);
            }
        });
        for thread in [reader, coming, going] {
            thread.join().unwrap();
        }
        story.end();
    });
}

#[test]
fn a_process_that_takes_over_at_any_moment_finds_all_bodies() {
    explore(200, || {
        let story = Story::new();
        let threads: Vec<_> = (0..3)
            .map(|_| {
                let story = story.clone();
                thread::spawn(move || {
                    let mut there = Vec::new();
                    for _ in 0..6 {
                        match thread_rng().gen_range(0..5) {
                            0..=1 => there.push(story.put_any()),
                            2 if !there.is_empty() => {
                                let any = thread_rng().gen_range(0..there.len());
                                story.drop(there.swap_remove(any));
                            }
                            _ => there.iter().for_each(|checked| story.attempt(checked)),
                        }
                    }
                    for checked in there {
                        checked.read();
                        story.drop(checked);
                    }
                })
            })
            .collect();
        wait();
        story.kill();
        for thread in threads {
            thread.join().unwrap();
        }
        story.end();
    });
}

#[test]
fn a_body_stays_until_its_last_holder_has_gone() {
    explore(200, || {
        let story = Story::new();
        let checked = story.put(*SMALL.start());
        let (id, content) = (checked.id, checked.content);
        let entry = shuttle::sync::Mutex::new(Some(checked.body.into_held()));
        let entry: Arc<shuttle::sync::Mutex<Option<HeldBody>>> = Arc::new(entry);
        let (calling, store) = (Arc::clone(&entry), story.store.clone());
        let call = thread::spawn(move || {
            let held = calling.lock().unwrap();
            let Some(body) = held.as_ref().map(|held| store.hold(held)) else { return };
            drop(held);
            Checked { id, body, content }.read();
        });
        let (other, store) = (story.clone(), story.store.clone());
        let finish = thread::spawn(move || {
            let held = entry.lock().unwrap().take().unwrap();
            other.change(id, |known| known.presence = Presence::BeingDropped);
            drop(store.body(held));
            for _ in 0..3 {
                let checked = other.put_any();
                other.drop(checked);
            }
        });
        story.kill();
        for thread in [call, finish] {
            thread.join().unwrap();
        }
        story.end();
    });
}
