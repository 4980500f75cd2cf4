use std::collections::BTreeMap;
use std::time::Duration;

use super::*;
use pillarbox_domain::id::MessageIds;

const OWNER: ArenaOwner = ArenaOwner { boot: [1; 16], store: [2; 16] };
const ACME: OrganisationId = OrganisationId(7);

fn put(store: &BodyStore, id: MessageId, content: &str, request_len: usize) -> Body {
    let content = content.as_bytes();
    let accepted_at = Instant::now();
    let key = Some(KeyId(3));
    let new = NewBody { id, organisation: ACME, key, accepted_at, content, request_len };
    store.put(&new).unwrap()
}

/// Bytes of memory that the arena takes up, as the kernel counts it.
fn memory(store: &BodyStore) -> u64 {
    rustix::fs::fstat(store.as_fd()).unwrap().st_blocks.unsigned_abs() * 512
}

/// Takes the arena over as the next process does.
fn next_process(store: &BodyStore) -> Result<(BodyStore, Vec<Survivor>), NotTaken> {
    BodyStore::take_over(store.as_fd().try_clone_to_owned().unwrap(), OWNER)
}

fn ids() -> impl FnMut() -> MessageId {
    let ids = MessageIds::new();
    move || ids.next(Timestamp::from_unix_millis(1))
}

/// Text whose length depends on its number.
fn content(number: usize, len: usize) -> String {
    let part = format!("{number}-");
    let mut text = part.repeat(len / part.len() + 1);
    text.truncate(len);
    text
}

#[test]
fn a_body_is_read_as_it_was_put_in_whatever_its_size() {
    let (store, mut id) = (BodyStore::create(OWNER).unwrap(), ids());
    for len in [200, 3_000, 65_536, 65_537, 262_144 - 112, 262_144, 1_000_000, 10_000_000] {
        let text = content(len, len);
        let body = put(&store, id(), &text, len - 100);
        assert_eq!(body.request().unwrap(), &text.as_bytes()[..len - 100]);
        assert_eq!(body.envelope().unwrap(), &text[len - 100..]);
        assert_eq!(body.read_part(7, 50).unwrap(), &text.as_bytes()[7..57]);
        assert_eq!((body.request_len(), body.content_len()), (len - 100, len));
        assert_eq!(body.key().unwrap(), Some(KeyId(3)));
    }
    assert_eq!(store.usage().records, 0, "they are gone");
}

#[test]
fn what_is_alive_outlives_the_process_with_its_state() {
    let (store, mut id) = (BodyStore::create(OWNER).unwrap(), ids());
    let (idle, calling, sent, large) = (id(), id(), id(), id());
    let bodies: Vec<Body> =
        [idle, calling, sent].map(|id| put(&store, id, &content(5, 2_000), 1_900)).into();
    let _large = put(&store, large, &content(9, 3_000_000), 2_999_000);
    let due = Instant::now() + Duration::from_secs(90);
    let live = |call| LiveState { attempts: 4, acceptance: Acceptance::Possible, due, call };
    bodies[0].set_live(idle, &live(CallState::Idle)).unwrap();
    bodies[1].set_live(calling, &live(CallState::UnderWay)).unwrap();
    let answered = CallState::Answered {
        ses_message_id: "0102018b-ses".to_owned(),
        sent_at: Timestamp::from_unix_millis(77),
    };
    bodies[2].set_live(sent, &live(answered.clone())).unwrap();

    let (next, survivors) = next_process(&store).unwrap();
    let found: BTreeMap<MessageId, Survivor> =
        survivors.into_iter().map(|survivor| (survivor.id, survivor)).collect();
    assert_eq!(found.keys().copied().collect::<Vec<_>>(), [idle, calling, sent, large]);
    for (id, call) in [(idle, CallState::Idle), (calling, CallState::UnderWay), (sent, answered)] {
        let Survivor { organisation, key, live, .. } = &found[&id];
        assert_eq!((*organisation, *key), (ACME, Some(KeyId(3))));
        assert_eq!((live.attempts, live.acceptance), (4, Acceptance::Possible));
        assert_eq!(live.call, call);
        let apart = live.due.max(due) - live.due.min(due);
        assert!(apart < Duration::from_millis(50), "{apart:?}");
    }
    assert_eq!(found[&idle].body.request().unwrap(), &content(5, 2_000).as_bytes()[..1_900]);
    assert_eq!(found[&large].body.envelope().unwrap().len(), 1_000);
    assert_eq!(found[&large].live.attempts, 0);
    next.own();
    // New ones get room that none of them has.
    let more: Vec<Body> = (0..500).map(|n| put(&next, id(), &content(n, 5_000), 4_900)).collect();
    assert_eq!(
        found[&large].body.request().unwrap(),
        &content(9, 3_000_000).as_bytes()[..2_999_000]
    );
    for (n, body) in more.iter().enumerate() {
        assert_eq!(body.request().unwrap(), &content(n, 5_000).as_bytes()[..4_900]);
    }
}

#[test]
fn an_arena_of_others_is_refused_and_stays_as_it_is() {
    let store = BodyStore::create(OWNER).unwrap();
    let refused = |owner| {
        let fd = store.as_fd().try_clone_to_owned().unwrap();
        BodyStore::take_over(fd, owner).unwrap_err()
    };
    assert_eq!(refused(ArenaOwner { boot: [9; 16], ..OWNER }), NotTaken::OtherBoot);
    assert_eq!(refused(ArenaOwner { store: [9; 16], ..OWNER }), NotTaken::OtherStore);
    let empty = new_memory().unwrap();
    assert_eq!(BodyStore::take_over(empty, OWNER).unwrap_err(), NotTaken::Foreign);
    let file = tempfile::tempfile().unwrap();
    assert_eq!(BodyStore::take_over(file.into(), OWNER).unwrap_err(), NotTaken::Foreign);
    assert_eq!(next_process(&store).unwrap().1.len(), 0);
}

#[test]
fn a_record_with_a_wrong_byte_is_left_out_and_hides_no_other() {
    let (store, mut id) = (BodyStore::create(OWNER).unwrap(), ids());
    let ids: Vec<MessageId> = (0..20).map(|_| id()).collect();
    let bodies: Vec<Body> =
        ids.iter().map(|id| put(&store, *id, &content(1, 3_000), 2_900)).collect();
    let place = store.0.room().place(bodies[7].slot);
    store.0.write(b"?", place.content() + 1_234).unwrap();
    let (_, survivors) = next_process(&store).unwrap();
    let found: Vec<MessageId> = survivors.iter().map(|survivor| survivor.id).collect();
    let expected: Vec<_> = ids.iter().filter(|id| **id != ids[7]).copied().collect();
    assert_eq!(found, expected);
}

#[test]
fn a_state_that_cannot_be_read_counts_as_a_call_under_way() {
    let (store, mut id) = (BodyStore::create(OWNER).unwrap(), ids());
    let body = put(&store, id(), &content(1, 3_000), 2_900);
    let place = store.0.room().place(body.slot);
    store.0.write(&[9], place.offset() + LIVE_AT as u64 + 5).unwrap();
    let (_, survivors) = next_process(&store).unwrap();
    assert_eq!(survivors[0].live.call, CallState::UnderWay);
    assert_eq!(survivors[0].live.acceptance, Acceptance::Possible);
}

/// Clients choose bodies that look like blocks and records of the arena.
#[test]
fn bodies_that_look_like_records_are_none() {
    let (store, mut id) = (BodyStore::create(OWNER).unwrap(), ids());
    let seed = Seed(0);
    let block = BlockHead { blocks: 1, generation: 0 }.encode(seed, 2);
    let forged: Vec<u8> = block.iter().copied().cycle().take(600_000).collect();
    let forged: String = forged.iter().map(|byte| char::from(byte & 0x7f)).collect();
    let bodies: Vec<Body> = (0..5).map(|_| put(&store, id(), &forged, 599_000)).collect();
    // A start that fails frees nothing.
    assert_eq!(next_process(&store).unwrap().1.len(), 5);
    assert_eq!(next_process(&store).unwrap().1.len(), 5);
    drop(bodies);
    let (next, survivors) = next_process(&store).unwrap();
    assert!(survivors.is_empty());
    assert_eq!(next.usage().records, 0);
}

/// A kill may come at any point of a move.
#[test]
fn a_record_that_was_being_moved_is_found_once() {
    for is_marked in [false, true] {
        let (store, mut id) = (BodyStore::create(OWNER).unwrap(), ids());
        let (first, second) = (id(), id());
        let body = put(&store, first, &content(1, 3_000), 2_900);
        let other = put(&store, second, &content(2, 3_000), 2_900);
        let due = Instant::now();
        let live =
            LiveState { attempts: 3, acceptance: Acceptance::Excluded, due, call: CallState::Idle };
        body.set_live(first, &live).unwrap();
        let mut room = store.0.room();
        let old = room.place(body.slot);
        let mut record = store.0.read(old.offset(), RecordHead::BYTES + 3_000).unwrap();
        let placed = room.place_anew(body.slot, random);
        RecordHead::move_to(&mut record, store.0.seed, placed.generation);
        store.0.begin(&placed, [&record, &[]]).unwrap();
        if is_marked {
            let at = old.offset() + LIVE_AT as u64;
            store.0.write(&[0; RecordHead::BYTES - LIVE_AT], at).unwrap();
        }
        drop(room);
        let (next, survivors) = next_process(&store).unwrap();
        let found: Vec<_> = survivors.iter().map(|found| (found.id, found.live.attempts)).collect();
        assert_eq!(found, [(first, 3), (second, 0)], "{is_marked}");
        assert_eq!(survivors[0].body.request().unwrap(), &content(1, 3_000).as_bytes()[..2_900]);
        assert_eq!(next.usage().records, 2);
        drop(other);
    }
}

/// In quiet times each body is released before the next one comes.
#[test]
fn blocks_that_emptied_while_they_were_filled_are_free() {
    let (store, mut id) = (BodyStore::create(OWNER).unwrap(), ids());
    for n in 0..10_000 {
        drop(put(&store, id(), &content(n, 20_000), 19_900));
    }
    assert!(memory(&store) <= 9 << 20, "{}", memory(&store));
    assert!(store.usage().memory_bytes <= 9 << 20, "{:?}", store.usage());
}

/// A start that finds many bodies of messages that are final gives their memory back.
#[test]
fn what_was_dropped_before_the_arena_was_owned_is_given_back() {
    let (store, mut id) = (BodyStore::create(OWNER).unwrap(), ids());
    let bodies: Vec<Body> = (0..5_000).map(|n| put(&store, id(), &content(n, 9_000), 10)).collect();
    let large = put(&store, id(), &content(9, 30_000_000), 10);
    store.leave();
    drop((bodies, large));
    let (next, survivors) = next_process(&store).unwrap();
    assert_eq!(survivors.len(), 5_001);
    drop(survivors);
    assert!(memory(&next) > 70 << 20, "nothing is freed before: {}", memory(&next));
    next.own();
    assert!(memory(&next) <= 9 << 20, "{}", memory(&next));
    let again = put(&next, id(), &content(3, 9_000), 10);
    assert_eq!(again.request().unwrap(), &content(3, 9_000).as_bytes()[..10]);
}

/// Reads are right while records move and others come and go.
#[test]
fn bodies_are_read_right_while_they_move() {
    let (store, mut id) = (BodyStore::create(OWNER).unwrap(), ids());
    let kept: Vec<(usize, Body)> = (0..20_000)
        .map(|n| (n, put(&store, id(), &content(n, 4_000), 3_900)))
        .filter(|(n, _)| n % 10 == 0)
        .collect();
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            while !is_done.load(Ordering::SeqCst) {
                for (n, body) in &kept {
                    assert_eq!(body.request().unwrap(), &content(*n, 4_000).as_bytes()[..3_900]);
                }
            }
        });
        for round in 0..20 {
            let more: Vec<Body> =
                (0..2_000).map(|n| put(&store, id(), &content(n, 12_000), 11_000)).collect();
            // One stays in each block, and is moved.
            let _stays: Vec<Body> = more
                .into_iter()
                .enumerate()
                .filter(|(n, _)| n % 20 == round)
                .map(|(_, b)| b)
                .collect();
        }
        is_done.store(true, Ordering::SeqCst);
        reader.join().unwrap();
    });
    assert!(store.0.moves.load(Ordering::SeqCst) > 100, "records have moved");
}

/// Room is used again, and data of an earlier use is never found.
#[test]
fn room_that_is_free_is_used_again_and_given_back() {
    let (store, mut id) = (BodyStore::create(OWNER).unwrap(), ids());
    let mut alive: BTreeMap<MessageId, (Body, String)> = BTreeMap::new();
    fastrand::seed(7);
    for round in 0..20_000 {
        let len = if round % 500 == 0 { 400_000 } else { fastrand::usize(200..20_000) };
        let (id, text) = (id(), content(round, len));
        alive.insert(id, (put(&store, id, &text, len - 50), text));
        while alive.len() > 1_000 {
            let nth = fastrand::usize(..alive.len());
            let id = *alive.keys().nth(nth).unwrap();
            alive.remove(&id);
        }
    }
    let usage = store.usage();
    assert_eq!(usage.records, 1_000);
    let allowed = usage.alive_bytes * 5 / 4 + (32 << 20);
    assert!(usage.memory_bytes <= allowed, "{usage:?}");
    assert!(memory(&store) <= allowed, "the kernel counts {}, and {usage:?}", memory(&store));
    let (next, survivors) = next_process(&store).unwrap();
    let survivors: BTreeMap<MessageId, Survivor> =
        survivors.into_iter().map(|survivor| (survivor.id, survivor)).collect();
    for (id, (body, text)) in &alive {
        assert_eq!(body.request().unwrap(), &text.as_bytes()[..text.len() - 50]);
        assert_eq!(survivors[id].body.request().unwrap(), body.request().unwrap());
    }
    drop(next);
}

/// A process that ends in order leaves its bodies to the next one.
#[test]
fn what_a_process_leaves_is_there_for_the_next_one_and_what_it_freed_is_not() {
    let (store, mut id) = (BodyStore::create(OWNER).unwrap(), ids());
    let mut bodies: Vec<(MessageId, Body)> = Vec::new();
    for n in 0..300 {
        let id = id();
        bodies.push((id, put(&store, id, &content(n, 5_000), 4_900)));
    }
    let kept = bodies.split_off(100);
    drop(bodies);
    let kept: Vec<MessageId> = {
        store.leave();
        kept.into_iter().map(|(id, _body)| id).collect()
    };
    let (next, survivors) = next_process(&store).unwrap();
    let found: Vec<MessageId> = survivors.iter().map(|survivor| survivor.id).collect();
    assert!(kept.iter().all(|id| found.contains(id)));
    next.own();
    drop(survivors);
    assert_eq!(next_process(&store).unwrap().1.len(), 0);
}

#[test]
fn a_large_backlog_goes_back_to_the_kernel() {
    let (store, mut id) = (BodyStore::create(OWNER).unwrap(), ids());
    let mut bodies: Vec<Body> = (0..20_000)
        .map(|n| put(&store, id(), &content(n, fastrand::usize(2_000..20_000)), 1_000))
        .collect();
    fastrand::shuffle(&mut bodies);
    bodies.truncate(2_000);
    let usage = store.usage();
    let allowed = usage.alive_bytes * 5 / 4 + (32 << 20);
    assert!(memory(&store) <= allowed, "{} and {usage:?}", memory(&store));
    drop(bodies);
    assert!(memory(&store) <= 9 << 20, "{}", memory(&store));
}

/// Others come, go and are moved while a body of any size is being put in.
#[test]
fn bodies_are_whole_that_were_put_in_while_others_moved() {
    let store = BodyStore::create(OWNER).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4_u8 {
            let store = &store;
            scope.spawn(move || {
                let mut random = fastrand::Rng::with_seed(u64::from(thread));
                let mut kept: Vec<(Body, String)> = Vec::new();
                for n in 0..8_000 {
                    let number = thread as usize * 10_000 + n;
                    let len = match random.usize(..30) {
                        0 => random.usize(66_000..70_000),
                        1 => random.usize(70_000..300_000),
                        _ => random.usize(3_000..20_000),
                    };
                    let text = content(number, len);
                    let id = MessageId::from_bytes([thread; 16]);
                    let body = put(store, id, &text, len - 50);
                    assert_eq!(body.request().unwrap(), &text.as_bytes()[..len - 50]);
                    kept.push((body, text));
                    while kept.len() > 1_000 {
                        let (body, text) = kept.swap_remove(random.usize(..kept.len()));
                        assert_eq!(body.request().unwrap(), &text.as_bytes()[..text.len() - 50]);
                    }
                }
            });
        }
    });
    assert!(store.0.moves.load(Ordering::SeqCst) > 20, "records have moved");
}

#[test]
fn a_second_backlog_of_fewer_and_larger_messages_is_freed_as_the_first_was() {
    let (store, mut id) = (BodyStore::create(OWNER).unwrap(), ids());
    drop((0..5_000).map(|n| put(&store, id(), &content(n, 300), 200)).collect::<Vec<_>>());
    let mut second: Vec<Body> =
        (0..2_000).map(|n| put(&store, id(), &content(n, 20_000), 200)).collect();
    // One is left of those in the block that the first backlog had begun.
    second.drain(1..9);
    let mut left: Vec<Body> =
        second.into_iter().enumerate().filter(|(n, _)| n % 10 == 0).map(|(_, body)| body).collect();
    left.truncate(100);
    assert_eq!(store.usage().records, 100);
}

/// Memory may be short for a moment.
#[test]
fn a_body_that_could_not_be_put_in_hides_none_that_follows() {
    let memory = memfd_create(NAME, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    let file = File::from(memory);
    let head = ArenaHead { owner: OWNER, seed: Seed(5), origin: None };
    file.write_all_at(&head.encode(), 0).unwrap();
    let (store, _) = BodyStore::take_over(file.try_clone().unwrap().into(), OWNER).unwrap();
    store.own();
    let mut id = ids();
    let first: Vec<Body> = (0..30).map(|n| put(&store, id(), &content(n, 10_000), 100)).collect();
    let kept = put(&store, id(), &content(1, 10_000), 100);
    // Its block is free, and what was put in last lies behind it.
    drop(first);
    rustix::fs::fcntl_add_seals(&file, rustix::fs::SealFlags::GROW).unwrap();
    let (lost, next) = (id(), id());
    let text = content(2, 100_000);
    let new = NewBody {
        id: lost,
        organisation: ACME,
        key: None,
        accepted_at: Instant::now(),
        content: text.as_bytes(),
        request_len: 100,
    };
    store.put(&new).unwrap_err();
    let put_in = put(&store, next, &content(3, 10_000), 100);
    let (_, survivors) = next_process(&store).unwrap();
    let found: Vec<MessageId> = survivors.iter().map(|survivor| survivor.id).collect();
    assert!(found.contains(&next) && !found.contains(&lost), "{found:?}");
    drop((kept, put_in));
}

/// Only the present version may read new records, so an earlier one must not take it over.
#[test]
fn an_arena_of_the_version_before_is_read_and_has_the_present_one_once_it_is_owned() {
    let memory = memfd_create(NAME, MemfdFlags::CLOEXEC).unwrap();
    let file = File::from(memory);
    let store = BodyStore::create(OWNER).unwrap();
    let body = put(&store, ids()(), &content(1, 500), 400);
    let mut bytes = vec![0; usize::try_from(store.0.file.metadata().unwrap().len()).unwrap()];
    store.0.file.read_exact_at(&mut bytes, 0).unwrap();
    let head = ArenaHead { owner: OWNER, seed: store.0.seed, origin: None };
    bytes[..ArenaHead::BYTES].copy_from_slice(&head.encode_as(1));
    file.write_all_at(&bytes, 0).unwrap();
    let (next, survivors) = BodyStore::take_over(file.into(), OWNER).unwrap();
    assert_eq!(survivors[0].body.request().unwrap(), body.request().unwrap());
    let version = || {
        let mut version = [0; 4];
        next.0.file.read_exact_at(&mut version, 16).unwrap();
        u32::from_le_bytes(version)
    };
    assert_eq!(version(), 1, "a start that fails leaves it as it was");
    next.own();
    assert_eq!(version(), ARENA_FORMAT);
    assert_eq!(next_process(&next).unwrap().1.len(), 1);
}
