use super::*;

const NOON: Timestamp = Timestamp::from_unix_millis(1_800_000_000_000);
const DAY: Duration = Duration::from_hours(24);
const HOUR: Duration = Duration::from_hours(1);

/// A clock that reads `wall`, in a process that opens a file with this record.
fn opened(record: &TimeRecord, wall: Timestamp) -> Clock {
    let clock = Clock::manual(wall);
    clock.open(Some(record.clone()), None, ConfirmedBy::Nobody);
    clock
}

/// The record of a file that was in use at `NOON`, under a clock that was said to be right.
fn record() -> TimeRecord {
    TimeRecord::at(NOON)
}

/// Makes a record durable.
fn keep(clock: &Clock, word: ConfirmedBy) -> TimeRecord {
    let proposal = clock.propose(word);
    assert_eq!(clock.adopt(&proposal), Adoption::Adopted);
    proposal.record().clone()
}

#[test]
fn settled_time_follows_the_clock_and_its_small_corrections() {
    let clock = Clock::manual(NOON);
    clock.advance(DAY);
    assert_eq!(clock.window_time().now(), NOON.plus(DAY));
    clock.set(clock.now().minus(Duration::from_mins(59)));
    assert_eq!(clock.window_time().now(), clock.now());
    assert_eq!(clock.record_time(), clock.now());
    assert_eq!(clock.jump(), None);
}

#[test]
fn a_jump_holds_settled_time_back_until_the_clock_agrees_again() {
    let clock = Clock::manual(NOON);
    clock.set(NOON.plus(DAY));
    assert_eq!(clock.window_time().now(), NOON);
    let jump = clock.jump().unwrap();
    assert_eq!((jump.since, jump.expected, jump.wall), (NOON, NOON, NOON.plus(DAY)));
    clock.advance(HOUR * 2);
    assert_eq!(clock.window_time().now(), NOON);
    assert_eq!(clock.record_time(), NOON.plus(HOUR * 2), "what comes in is as old as it is");
    clock.set(NOON.plus(HOUR * 2));
    assert_eq!(clock.window_time().now(), NOON.plus(HOUR * 2));
    assert_eq!(clock.jump(), None);
}

#[test]
fn an_operator_or_the_kernel_can_say_that_the_new_time_is_right() {
    for word in [ConfirmedBy::Operator, ConfirmedBy::Kernel] {
        let clock = Clock::manual(NOON);
        clock.set(NOON.minus(DAY));
        assert_eq!(clock.window_time().now(), NOON);
        let nobody = clock.propose(ConfirmedBy::Nobody);
        assert!(nobody.record().doubt.is_some());
        assert_eq!(clock.adopt(&nobody), Adoption::Adopted);
        assert!(clock.jump().is_some(), "nobody has said so");
        let kept = keep(&clock, word);
        assert_eq!((kept.doubt, kept.assurance), (None, Assurance::Given));
        assert_eq!(clock.window_time().now(), NOON.minus(DAY));
    }
}

#[test]
fn a_doubt_does_not_end_before_its_end_is_durable() {
    let clock = Clock::manual(NOON);
    clock.set(NOON.plus(DAY * 95));
    let proposal = clock.propose(ConfirmedBy::Operator);
    assert_eq!(clock.window_time().now(), NOON);
    assert!(clock.jump().is_some());
    // It takes so long that the instants of the doubt overlap with those after it.
    clock.advance(DAY * 95);
    assert_eq!(clock.adopt(&proposal), Adoption::Outdated);
    keep(&clock, ConfirmedBy::Operator);
    assert_eq!(clock.window_time().now(), NOON.plus(DAY * 190));
    assert_eq!(clock.adopt(&proposal), Adoption::Outdated);
}

#[test]
fn what_was_stored_before_the_last_confirmation_is_not_corrected() {
    let clock = Clock::manual(NOON);
    clock.advance(HOUR);
    keep(&clock, ConfirmedBy::Kernel);
    clock.advance(HOUR);
    let unsure = clock.record_time();
    clock.set(NOON.plus(DAY * 40));
    keep(&clock, ConfirmedBy::Kernel);
    assert_eq!(clock.window_time().corrected(NOON), NOON);
    assert_eq!(clock.window_time().corrected(unsure), NOON.plus(DAY * 40));
}

#[test]
fn a_start_within_a_day_of_the_time_stamp_is_trusted() {
    for ahead in [Duration::ZERO, HOUR, DAY] {
        let clock = opened(&record(), NOON.plus(ahead));
        assert_eq!(clock.jump(), None, "{ahead:?}");
        assert_eq!(clock.window_time().now(), NOON.plus(ahead));
    }
}

#[test]
fn a_start_behind_the_time_stamp_or_over_a_day_ahead_of_it_is_in_doubt() {
    let millisecond = Duration::from_millis(1);
    for wall in [NOON.minus(millisecond), NOON.plus(DAY).plus(millisecond)] {
        let clock = opened(&record(), wall);
        let jump = clock.jump().unwrap();
        assert_eq!((jump.since, jump.expected, jump.wall), (NOON, NOON, wall));
        assert_eq!(clock.window_time().now(), NOON);
        assert_eq!(clock.record_time(), NOON);
        clock.advance(HOUR);
        assert_eq!(clock.record_time(), NOON.plus(HOUR));
        assert_eq!(clock.window_time().now(), NOON);
    }
}

#[test]
fn a_start_with_a_confirmed_clock_corrects_nothing_unless_the_clock_was_never_confirmed() {
    let wall = NOON.plus(DAY * 95);
    let clock = Clock::manual(wall);
    clock.open(Some(record()), None, ConfirmedBy::Kernel);
    assert_eq!(clock.jump(), None);
    assert_eq!((clock.window_time().now(), clock.record_time()), (wall, wall));
    assert_eq!(keep(&clock, ConfirmedBy::Kernel).corrections, []);

    // The file was made under a clock that was always behind.
    let clock = Clock::manual(wall);
    let never = TimeRecord { assurance: Assurance::Never, ..record() };
    clock.open(Some(never), None, ConfirmedBy::Kernel);
    keep(&clock, ConfirmedBy::Kernel);
    assert_eq!(clock.window_time().corrected(NOON), wall);
}

#[test]
fn a_doubt_of_the_start_ends_once_a_start_would_be_trusted() {
    let clock = opened(&record(), NOON.minus(HOUR));
    clock.advance(HOUR.saturating_sub(Duration::from_millis(1)));
    assert!(keep(&clock, ConfirmedBy::Nobody).doubt.is_some());
    clock.advance(Duration::from_millis(1));
    assert_eq!(keep(&clock, ConfirmedBy::Nobody).doubt, None);
    assert_eq!(clock.jump(), None);

    // Ten hours after the last use, once the clock is right.
    let clock = opened(&record(), NOON.plus(DAY * 95));
    let stored = clock.record_time();
    clock.set(NOON.plus(HOUR * 10));
    keep(&clock, ConfirmedBy::Nobody);
    assert_eq!(clock.window_time().now(), NOON.plus(HOUR * 10));
    assert_eq!(clock.window_time().corrected(stored), NOON.plus(HOUR * 10));
    assert_eq!(clock.window_time().corrected(NOON.minus(HOUR)), NOON.minus(HOUR));
}

#[test]
fn what_was_stored_since_the_time_stamp_is_not_part_of_the_doubt() {
    let before = NOON.plus(HOUR / 2);
    let clock = Clock::manual(NOON.plus(DAY * 95));
    clock.open(Some(record()), Some(before), ConfirmedBy::Nobody);
    let stored = clock.record_time();
    assert!(stored > before);
    keep(&clock, ConfirmedBy::Kernel);
    assert_eq!(clock.window_time().corrected(before), before);
    assert_eq!(clock.window_time().corrected(stored), NOON.plus(DAY * 95));
}

#[test]
fn a_confirmation_holds_over_restarts_until_the_next_jump() {
    let clock = opened(&record(), NOON.plus(DAY * 95));
    let mut kept = keep(&clock, ConfirmedBy::Operator);
    for hours in [1, 2, 3] {
        let wall = NOON.plus(DAY * 95).plus(HOUR * hours);
        let clock = opened(&kept, wall);
        assert_eq!(clock.jump(), None);
        kept = keep(&clock, ConfirmedBy::Nobody);
    }
    assert!(opened(&kept, NOON).jump().is_some());
}

#[test]
fn a_doubt_outlives_the_process_with_what_it_leaves_to_correct() {
    // In doubt, stored an instant, killed, started again, and only then put right.
    let clock = opened(&record(), NOON.plus(DAY * 300));
    clock.advance(HOUR);
    let stored = clock.record_time();
    let kept = keep(&clock, ConfirmedBy::Nobody);
    assert_eq!(kept.stamp, NOON.plus(HOUR));

    let clock = opened(&kept, NOON.plus(DAY * 300));
    assert_eq!(clock.window_time().now(), NOON, "it stands still where it stood");
    let later = clock.record_time();
    clock.set(NOON.plus(DAY * 95));
    let kept = keep(&clock, ConfirmedBy::Kernel);
    let right = NOON.plus(DAY * 95);
    assert_eq!(clock.window_time().corrected(later), right);
    // How long the process was away is not known: it counts as no time at all.
    assert_eq!(clock.window_time().corrected(stored), right);

    let clock = opened(&kept, right.plus(HOUR));
    assert_eq!(clock.window_time().corrected(stored), right);
    assert_eq!(clock.window_time().corrected(NOON.minus(HOUR)), NOON.minus(HOUR));
}

#[test]
fn a_trusted_start_after_a_doubt_corrects_what_the_doubt_left() {
    let clock = Clock::manual(NOON);
    clock.open(Some(record()), None, ConfirmedBy::Nobody);
    clock.set(NOON.plus(HOUR * 10));
    let stored = clock.record_time();
    let kept = keep(&clock, ConfirmedBy::Nobody);
    let clock = opened(&kept, NOON.plus(HOUR * 10));
    assert!(clock.jump().is_some(), "until the correction is durable");
    keep(&clock, ConfirmedBy::Nobody);
    assert_eq!(clock.jump(), None);
    assert_eq!(clock.window_time().corrected(stored), NOON.plus(HOUR * 10));
}

#[test]
fn what_is_stored_never_goes_back_though_the_clock_was_far_ahead() {
    let clock = Clock::manual(NOON.plus(DAY * 95));
    let ahead = clock.record_time();
    let kept = {
        clock.set(NOON);
        keep(&clock, ConfirmedBy::Kernel)
    };
    assert_eq!(clock.window_time().now(), NOON);
    assert_eq!(clock.window_time().corrected(ahead), NOON);
    clock.advance(HOUR);
    let after = clock.record_time();
    assert_eq!(after, ahead.plus(HOUR));
    assert_eq!(clock.window_time().corrected(after), NOON.plus(HOUR));

    // Also over a restart, until the clock has reached the stored instants.
    let kept = TimeRecord { stamp: after, ..kept };
    let clock = opened(&kept, NOON.plus(HOUR * 2));
    assert_eq!(clock.record_time(), ahead.plus(HOUR * 2));
    assert_eq!(clock.window_time().now(), NOON.plus(HOUR * 2));
    let kept = TimeRecord { stamp: ahead.plus(DAY), ..kept };
    let clock = opened(&kept, NOON.plus(DAY * 97));
    keep(&clock, ConfirmedBy::Operator);
    assert_eq!(clock.record_time(), NOON.plus(DAY * 97));
    assert_eq!(clock.window_time().corrected(ahead), NOON);
}

/// A reading of a clock that is so far ahead, which was there at once.
fn reading(ahead: Duration) -> ClockReading {
    let now = since_boot();
    ClockReading { time: Clock::system().now().plus(ahead), asked: now, answered: now }
}

fn is_about(one: Timestamp, other: Timestamp) -> bool {
    is_within(Duration::from_secs(5), one, other)
}

#[test]
fn a_followed_clock_counts_instead_of_the_machines_own() {
    let clock = Clock::system();
    clock.follow(reading(DAY * 100));
    let there = Clock::system().now().plus(DAY * 100);
    assert!(is_about(clock.now(), there));
    assert!(is_about(clock.record_time(), there));
    assert!(is_about(clock.window_time().now(), there));
    assert_eq!(clock.jump(), None, "it is no jump to begin to follow");
    assert!(is_about(clock.machine_time(), Clock::system().now()));
    assert!(!clock.agrees_with_machine());
}

#[test]
fn a_slow_answer_moves_a_followed_clock_no_further_than_it_tells() {
    let clock = Clock::system();
    clock.follow(reading(DAY));
    let known = clock.now();
    // Asked a minute ago: the reading agrees with what is known, and with many other times.
    let ClockReading { time, asked, answered } = reading(DAY);
    let asked = asked.saturating_sub(Duration::from_mins(1));
    clock.follow(ClockReading { time: time.minus(Duration::from_secs(30)), asked, answered });
    assert!(is_about(clock.now(), known));
    // The reading shows that the clock was set by at least ten seconds.
    clock.follow(ClockReading { time: time.plus(Duration::from_secs(10)), asked, answered });
    assert!(is_about(clock.now(), known.plus(Duration::from_secs(10))));
}

#[test]
fn a_jump_of_the_followed_clock_holds_settled_time_back_until_it_agrees_again() {
    let clock = Clock::system();
    clock.follow(reading(DAY));
    let before = clock.window_time().now();
    clock.follow(reading(DAY * 96));
    assert!(clock.jump().is_some());
    assert!(is_about(clock.window_time().now(), before));
    assert!(is_about(clock.record_time(), before));
    clock.follow(reading(DAY));
    assert_eq!(clock.jump(), None);
}

/// Alone, the same start would take the time for an absence.
#[test]
fn a_start_does_not_end_the_doubt_of_others_that_follow_the_same_clock() {
    let (running, starting) = (Clock::system(), Clock::system());
    running.follow(reading(DAY));
    running.follow(reading(DAY + HOUR * 20));
    let doubted = keep(&running, ConfirmedBy::Nobody);
    starting.follow(reading(DAY + HOUR * 20));
    starting.open(Some(doubted), None, ConfirmedBy::Nobody);
    assert!(keep(&starting, ConfirmedBy::Nobody).doubt.is_some());
    assert!(starting.jump().is_some());
    starting.follow(reading(DAY));
    assert_eq!(starting.jump(), None);
}

#[test]
fn another_process_ends_a_doubt_of_the_clock_that_both_follow() {
    let (one, other) = (Clock::manual(NOON), Clock::manual(NOON));
    for clock in [&one, &other] {
        keep(clock, ConfirmedBy::Operator);
        clock.advance(HOUR);
        clock.set(NOON.plus(DAY * 95));
        assert!(clock.jump().is_some());
    }
    let doubted = keep(&other, ConfirmedBy::Nobody);
    assert!(!other.adopt_end(doubted), "this is its own doubt");
    assert!(!other.adopt_end(record()), "this was stored before the doubt");
    let ended = keep(&one, ConfirmedBy::Operator);
    assert!(other.adopt_end(ended));
    for clock in [&one, &other] {
        assert_eq!(clock.window_time().now(), NOON.plus(DAY * 95));
        // What was stored before has its real age for both.
        assert_eq!(clock.window_time().corrected(NOON), NOON.plus(DAY * 95).minus(HOUR));
    }
}
