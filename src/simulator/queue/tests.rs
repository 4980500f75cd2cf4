use super::super::chance::Chance;
use super::*;

const VISIBILITY: Duration = Duration::from_secs(30);
const WALL_CLOCK: Timestamp = Timestamp::from_unix_millis(1_000);

fn queue(options: QueueOptions) -> Queue {
    Queue::new(options, 7, 1)
}

fn message(n: usize) -> NewMessage {
    NewMessage {
        id: n.to_string(),
        body: n.to_string().into(),
        sent_at: WALL_CLOCK,
        delay: Duration::ZERO,
    }
}

fn filled(options: QueueOptions, count: usize, now: Instant) -> Queue {
    let mut queue = queue(options);
    for n in 0..count {
        queue.send(message(n), now).unwrap();
    }
    queue
}

fn receive(queue: &mut Queue, max: usize, now: Instant) -> Vec<Received> {
    queue.receive(max, VISIBILITY, now, WALL_CLOCK).unwrap()
}

fn bodies(received: &[Received]) -> Vec<&str> {
    received.iter().map(|r| &*r.body).collect()
}

#[test]
fn a_message_is_hidden_then_comes_again_until_deleted() {
    let now = Instant::now();
    let mut queue = filled(QueueOptions::default(), 3, now);
    assert_eq!(bodies(&receive(&mut queue, 2, now)), ["0", "1"]);
    assert_eq!(bodies(&receive(&mut queue, 2, now)), ["2"]);
    let just_before = now + VISIBILITY.checked_sub(Duration::from_millis(1)).unwrap();
    assert!(receive(&mut queue, 10, just_before).is_empty());
    assert_eq!(queue.next_ready_at(), Some(now + VISIBILITY));
    let again = receive(&mut queue, 10, now + VISIBILITY);
    assert_eq!(bodies(&again), ["0", "1", "2"]);
    assert!(again.iter().all(|r| r.receives == 2));
    for received in &again {
        queue.delete(&queue.seal(received.receipt), now + VISIBILITY).unwrap();
    }
    let counts = queue.counts(now + 3 * VISIBILITY);
    let expected = QueueCounts { received: 6, deleted: 3, ..QueueCounts::default() };
    assert_eq!(counts, expected);
    assert_eq!(queue.bytes, 0);
}

#[test]
fn a_handle_is_taken_late_but_not_after_a_later_receive() {
    let now = Instant::now();
    let mut queue = filled(QueueOptions::default(), 2, now);
    let first = receive(&mut queue, 2, now);
    let late = now + VISIBILITY;
    queue.delete(&queue.seal(first[0].receipt), late).unwrap();
    let again = receive(&mut queue, 2, late);
    assert_eq!(bodies(&again), ["1"], "an expired handle that is still the last one deletes");
    queue.delete(&queue.seal(first[1].receipt), late).unwrap();
    assert_eq!(queue.counts(late).in_flight, 1, "a replaced handle deletes nothing");
    let handle = queue.seal(again[0].receipt);
    queue.delete(&handle, late).unwrap();
    queue.delete(&handle, late).unwrap();
    assert_eq!(queue.counts(late).deleted, 2, "deleting again is fine and counts nothing");
}

#[test]
fn handles_of_others_are_not_taken() {
    let now = Instant::now();
    let mut queue = filled(QueueOptions::default(), 1, now);
    let receipt = receive(&mut queue, 1, now)[0].receipt;
    let forged = Receipt { receives: receipt.receives + 1, ..receipt };
    for handle in ["", "x", "AAAA", &receipt.seal(2), &forged.seal(2)] {
        assert_eq!(queue.delete(handle, now), Err(InvalidReceipt), "{handle}");
        assert_eq!(queue.change_visibility(handle, VISIBILITY, now), Err(InvalidReceipt));
    }
}

#[test]
fn visibility_can_be_ended_or_stretched_while_in_flight() {
    let now = Instant::now();
    let mut queue = filled(QueueOptions::default(), 2, now);
    let first = receive(&mut queue, 2, now);
    let handle = |queue: &Queue, n: usize| queue.seal(first[n].receipt);
    let (ended, stretched) = (handle(&queue, 0), handle(&queue, 1));
    let change = |queue: &mut Queue, handle: &str, visibility, at| {
        queue.change_visibility(handle, visibility, at).unwrap()
    };
    assert_eq!(change(&mut queue, &ended, Duration::ZERO, now), VisibilityChange::Done);
    assert_eq!(change(&mut queue, &stretched, 2 * VISIBILITY, now), VisibilityChange::Done);
    assert_eq!(change(&mut queue, &ended, VISIBILITY, now), VisibilityChange::NotInFlight);
    assert_eq!(bodies(&receive(&mut queue, 2, now + VISIBILITY)), ["0"]);
    assert_eq!(bodies(&receive(&mut queue, 2, now + 2 * VISIBILITY)), ["0", "1"]);
    queue.purge();
    assert_eq!(change(&mut queue, &stretched, VISIBILITY, now), VisibilityChange::Gone);
}

#[test]
fn a_delayed_message_comes_at_its_time() {
    let now = Instant::now();
    let mut queue = queue(QueueOptions::default());
    queue.send(NewMessage { delay: VISIBILITY, ..message(0) }, now).unwrap();
    assert!(receive(&mut queue, 1, now).is_empty());
    let counts = queue.counts(now);
    assert_eq!((counts.delayed, counts.in_flight, counts.queued), (1, 0, 0));
    assert_eq!(bodies(&receive(&mut queue, 1, now + VISIBILITY)), ["0"]);
}

#[test]
fn disorder_and_repeats_follow_the_seed_and_lose_nothing() {
    let drain = |seed| {
        let now = Instant::now();
        let repeats = Chance::new(0.3).unwrap();
        let order = DeliveryOrder::Shuffled;
        let options = QueueOptions { order, repeats, ..QueueOptions::default() };
        let mut queue = Queue::new(options, seed, 1);
        for n in 0..200 {
            queue.send(message(n), now).unwrap();
        }
        let mut all = Vec::new();
        loop {
            let received = receive(&mut queue, 10, now);
            if received.is_empty() {
                break;
            }
            for message in received {
                queue.delete(&queue.seal(message.receipt), now).unwrap();
                all.push(message.body.parse::<usize>().unwrap());
            }
        }
        let counts = queue.counts(now);
        assert_eq!(counts.deleted, 200 + counts.repeated);
        assert!((30..90).contains(&counts.repeated), "{counts:?}");
        all
    };
    let first = drain(3);
    assert_eq!(drain(3), first);
    assert_ne!(drain(4), first);
    assert!(!first.is_sorted());
    let distinct: BTreeSet<_> = first.iter().copied().collect();
    assert!(distinct.into_iter().eq(0..200));
}

#[test]
fn a_full_queue_drops_and_counts() {
    let now = Instant::now();
    let mut queue = filled(QueueOptions { capacity: 2, ..QueueOptions::default() }, 2, now);
    assert_eq!(queue.send(message(2), now), Err(QueueFull));
    let counts = queue.counts(now);
    assert_eq!((counts.queued, counts.dropped), (2, 1));
}
