//! Timelines: the steps that are kept, on both engines.

use std::collections::BTreeSet;
use std::time::Duration;

use super::{Fixture, MILLISECOND, START, in_directory, lost, reopened_with};
use crate::record::timeline::encode_step;
use crate::rows::{Key, KeyRange, Lock, Table};
use crate::timeline::{FIRST_ATTEMPTS, LAST_ATTEMPTS};
use crate::{Reference, Report, Store};
use pillarbox_domain::clock_corrections::{Correction, WindowTime};
use pillarbox_domain::id::{MessageId, MessageIds};
use pillarbox_domain::limits::RECORD_RETENTION;
use pillarbox_domain::message::{Acceptance, Cancellation, Failure, FailureCode, Transition};
use pillarbox_domain::time::Timestamp;
use pillarbox_domain::timeline::{Entry, Step, StepKind};

const SECOND: Duration = Duration::from_secs(1);

fn throttled() -> Failure {
    Failure {
        code: FailureCode::ProviderThrottled,
        message: "too fast".to_owned(),
        provider_code: Some("TooManyRequestsException".to_owned()),
    }
}

fn retry(next_attempt_at: Option<Timestamp>) -> Transition {
    Transition::RetryLater {
        failure: throttled(),
        acceptance: Acceptance::Excluded,
        next_attempt_at,
    }
}

fn sent() -> Transition {
    Transition::Sent { ses_message_id: "ses-1".to_owned(), sent_at: START }
}

/// Words for the steps, with the numbers of attempts.
async fn words(store: &Store, id: MessageId) -> String {
    let steps = store.steps(id, START).await.unwrap();
    let word = |step: &Step| match step.attempt {
        Some(attempt) => format!("{}:{attempt}", step.kind.as_str()),
        None => step.kind.as_str().to_owned(),
    };
    steps.iter().map(word).collect::<Vec<_>>().join(" ")
}

#[tokio::test]
async fn failed_attempts_and_ends_are_kept_as_they_happened() {
    let directory = tempfile::tempdir().unwrap();
    let fixture = Fixture::on(in_directory(&directory, START).await).await;
    let store = &fixture.store;
    let (id, at, next) = (fixture.new_message().await, START.plus(SECOND), START.plus(2 * SECOND));
    store.record(id, 1, retry(Some(next)), at).await.unwrap();
    let failed = Step {
        at,
        kind: StepKind::AttemptFailed,
        attempt: Some(1),
        attempts: 1,
        failure: Some(throttled()),
        next_attempt_at: Some(next),
    };
    assert_eq!(store.steps(id, START).await.unwrap(), std::slice::from_ref(&failed));
    let message = store.message(id, START).await.unwrap().unwrap();
    let timeline = store.timeline(&message, Vec::new(), START).await.unwrap();
    assert_eq!(timeline, [Entry::Accepted(START), Entry::Step(failed.clone())]);
    let correction = |from, shift_millis| Correction { from, shift_millis };
    let corrections = [correction(START, 5_000), correction(next.plus(SECOND), 0)];
    let shown = store.steps(id, WindowTime::new(next.plus(SECOND), &corrections.into())).await;
    let (shown, shift) = (shown.unwrap(), 5 * SECOND);
    assert_eq!((shown[0].at, shown[0].next_attempt_at), (at.plus(shift), Some(next.plus(shift))));
    let without_text = encode_step(&Step { failure: None, ..failed }).len() + 3;
    let key = size_of::<MessageId>() + size_of::<u32>();
    assert!(key + without_text <= 60, "{without_text}");
    // An outcome that is stored twice has one step. An outcome without a call is no attempt.
    store.record(id, 1, retry(None), at).await.unwrap();
    assert_eq!(words(store, id).await, "attempt_failed:1");
    store.record(id, 2, retry(None), at).await.unwrap();
    let cancelled = Cancellation::ByOperator.transition(Acceptance::Excluded);
    store.record(id, 2, cancelled, at.plus(SECOND)).await.unwrap();
    assert_eq!(words(store, id).await, "attempt_failed:1 attempt_failed:2 cancelled");

    let others = [
        (
            1,
            Transition::Failed { failure: throttled(), acceptance: Acceptance::Possible },
            "failed:1",
        ),
        (0, Transition::Suppressed, "suppressed"),
        (0, lost(START), "failed"),
        (1, sent(), ""),
    ];
    for (attempts, transition, expected) in others {
        let id = fixture.new_message().await;
        store.record(id, attempts, transition, at).await.unwrap();
        assert_eq!(words(store, id).await, expected);
    }
}

#[tokio::test]
async fn the_first_and_the_last_attempts_are_kept() {
    let directory = tempfile::tempdir().unwrap();
    let fixture = Fixture::on(in_directory(&directory, START).await).await;
    let id = fixture.new_message().await;
    let mut kept = Vec::new();
    for attempt in 1..=60 {
        fixture.store.record(id, attempt, retry(None), START).await.unwrap();
        kept.push(attempt);
        if kept.len() > (FIRST_ATTEMPTS + LAST_ATTEMPTS) as usize {
            kept.remove(FIRST_ATTEMPTS as usize);
        }
        let steps = fixture.store.steps(id, START).await.unwrap();
        let attempts: Vec<u32> = steps.iter().filter_map(|step| step.attempt).collect();
        assert_eq!(attempts, kept);
    }
    let cancelled = Cancellation::ByOperator.transition(Acceptance::Excluded);
    fixture.store.record(id, 60, cancelled, START).await.unwrap();
    let end = fixture.store.steps(id, START).await.unwrap().pop().unwrap();
    assert_eq!((end.kind, end.attempts), (StepKind::Cancelled, 60));
}

#[tokio::test]
async fn a_restart_is_told_with_the_next_row_and_by_no_start() {
    let directory = tempfile::tempdir().unwrap();
    let fixture = Fixture::on(in_directory(&directory, START).await).await;
    let [tried, new, proved] =
        [fixture.new_message().await, fixture.new_message().await, fixture.new_message().await];
    let organisation = fixture.organisation;
    let waiting = fixture.new_message().await;
    for id in [tried, waiting] {
        fixture.store.record(id, 1, retry(None), START).await.unwrap();
    }
    drop(fixture);
    let kept = BTreeSet::from([tried, new, proved, waiting]);
    // Nothing was written about them in the second life.
    let mut later = START;
    for _ in 0..2 {
        later = later.plus(SECOND);
        let (store, ..) = reopened_with(&directory, |_| kept.clone(), later).await;
        assert_eq!(words(&store, tried).await, "attempt_failed:1");
        assert_eq!(words(&store, new).await, "");
        assert_eq!(store.memory().restarts.untold(new), Some(later));
        drop(store);
    }
    let last = later.plus(SECOND);
    let (store, ..) = reopened_with(&directory, |_| kept.clone(), last).await;
    // The call under way at the end fails in this life, as one whose answer was lost.
    store.record(tried, 2, retry(None), last).await.unwrap();
    assert_eq!(words(&store, tried).await, "attempt_failed:1 restarted attempt_failed:2");
    assert_eq!(store.steps(tried, START).await.unwrap()[1].at, last);
    assert_eq!(
        (store.memory().restarts.untold(tried), store.memory().restarts.untold(new)),
        (None, Some(last))
    );
    store.record(tried, 3, retry(None), last).await.unwrap();
    store.record(tried, 4, sent(), last).await.unwrap();
    let told = "attempt_failed:1 restarted attempt_failed:2 attempt_failed:3";
    assert_eq!(words(&store, tried).await, told);
    // A message without a call has no attempt, and the timeline shows the restart.
    store.record(new, 0, retry(None), last).await.unwrap();
    store.record(new, 1, sent(), last).await.unwrap();
    assert_eq!(words(&store, new).await, "restarted");
    let cancelled = Cancellation::ByOperator.transition(Acceptance::Excluded);
    store.record(waiting, 1, cancelled, last).await.unwrap();
    assert_eq!(words(&store, waiting).await, "attempt_failed:1 restarted cancelled");
    let report = Report {
        message: Reference::Tag(proved),
        organisation: None,
        ses_message_id: "ses-2".to_owned(),
        accepted_at: last,
        event: None,
    };
    store.apply(report, last).await.unwrap();
    assert_eq!(
        (words(&store, proved).await.as_str(), store.memory().restarts.untold(proved)),
        ("restarted", None)
    );
    let fixture = Fixture { store, organisation, ids: MessageIds::new() };
    let own = fixture.new_message().await;
    fixture.store.record(own, 1, retry(None), last).await.unwrap();
    assert_eq!(words(&fixture.store, own).await, "attempt_failed:1");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_shows_also_while_it_is_being_recorded() {
    let directory = tempfile::tempdir().unwrap();
    let fixture = Fixture::on(in_directory(&directory, START).await).await;
    let mut ids = BTreeSet::new();
    for _ in 0..300 {
        ids.insert(fixture.new_message().await);
    }
    drop(fixture);
    let (store, ..) = reopened_with(&directory, |_| ids.clone(), START).await;
    for id in ids {
        let message = store.message(id, START).await.unwrap().unwrap();
        let writer = store.clone();
        let record = async move { writer.record(id, 1, retry(None), START).await.unwrap() };
        let record = tokio::spawn(record);
        loop {
            let is_last = record.is_finished();
            let shown = store.timeline(&message, Vec::new(), START).await.unwrap();
            assert_eq!(shown[1], Entry::Step(Step::restart(START)));
            if is_last {
                break;
            }
        }
    }
}

#[tokio::test]
async fn a_start_that_finds_no_body_tells_the_end() {
    let directory = tempfile::tempdir().unwrap();
    let fixture = Fixture::on(in_directory(&directory, START).await).await;
    let id = fixture.new_message().await;
    drop(fixture);
    let later = START.plus(SECOND);
    let (store, bodies_lost, _) = reopened_with(&directory, |_| BTreeSet::new(), later).await;
    assert_eq!(bodies_lost, 1);
    let steps = store.steps(id, START).await.unwrap();
    let told: Vec<_> = steps.iter().map(|step| (step.kind, step.at)).collect();
    assert_eq!(told, [(StepKind::Failed, later)]);
    let code = steps[0].failure.as_ref().map(|failure| failure.code);
    assert_eq!(code, Some(FailureCode::BodyLostOnRestart));
}

#[tokio::test]
async fn steps_go_with_the_record() {
    let directory = tempfile::tempdir().unwrap();
    let fixture = Fixture::on(in_directory(&directory, START).await).await;
    let later = START.plus(SECOND);
    let old = fixture.new_message().await;
    let crate::Accepted::New(kept) = fixture.accept(None, later).await.unwrap() else {
        panic!("it has no key")
    };
    for id in [old, kept] {
        for attempts in 1..=3 {
            fixture.store.record(id, attempts, retry(None), later).await.unwrap();
        }
        fixture.store.record(id, 4, sent(), later).await.unwrap();
    }
    let end = START.plus(RECORD_RETENTION).plus(MILLISECOND);
    assert_eq!(fixture.store.purge(end, 10).await.unwrap().messages, 1);
    let rows = fixture.store.rows(Table::Timeline, KeyRange::all(), 100).await.unwrap();
    assert!(rows.len() == 3 && rows.iter().all(|(key, _)| key.id(0) == kept), "{rows:?}");
}

#[tokio::test]
async fn a_step_that_cannot_be_read_is_left_out_and_told() {
    let directory = tempfile::tempdir().unwrap();
    let fixture = Fixture::on(in_directory(&directory, START).await).await;
    let id = fixture.new_message().await;
    for attempts in 1..=2 {
        fixture.store.record(id, attempts, retry(None), START).await.unwrap();
    }
    let damage = move |rows: &mut dyn crate::rows::Rows| {
        rows.put(Table::Timeline, &Key::from((id, 2_u32)), b"?")
    };
    fixture.store.change(Lock::Rows, 1, damage).await.unwrap();
    assert_eq!(words(&fixture.store, id).await, "attempt_failed:2");
    assert_eq!(fixture.store.damage().rows().len(), 1);
}
