//! What is about to run out.

use crate::dispatch::DailyQuota;
use crate::operator::conditions::{Condition, not_ready, ready};
use crate::operator::process::Process;
use crate::queue::Fill;

/// The queue's memory, of which so many bytes are in use, and the organisations whose share of it
/// is used up.
pub(super) fn queue(in_use: usize, max: usize, full_for: &[String]) -> Option<Condition> {
    const ADVICE: &str = "See to the provider, or raise sending.max_pending_bytes";
    match Fill::of(in_use, max) {
        Fill::Room | Fill::NearlyFull if !full_for.is_empty() => Some(ready(
            "queue_share_full",
            format!(
                "The queue is full for {}: new messages are refused with 503 QueueFull",
                full_for.join(", ")
            ),
            ADVICE,
        )),
        Fill::Room => None,
        Fill::NearlyFull => Some(ready(
            "queue_nearly_full",
            "The queue is nearly full: large messages may be refused with 503 QueueFull",
            ADVICE,
        )),
        Fill::Full => Some(not_ready(
            "queue_full",
            "The queue is full: new messages are refused with 503 QueueFull",
            ADVICE,
        )),
    }
}

/// The account's quota, where less than a tenth of it is left.
pub(super) fn quota(DailyQuota { max, left }: DailyQuota) -> Option<Condition> {
    (left < max * 0.1).then(|| {
        let left = left.max(0.0);
        ready(
            "quota_low",
            format!("{left:.0} recipients are left of the account's daily quota of {max:.0}"),
            "Find out who sends more than usual; ask AWS for a higher quota",
        )
    })
}

/// Clients' connections, where more than four fifths of them are taken.
pub(super) fn connections(open: usize, max: usize) -> Option<Condition> {
    is_near(open as u64, max as u64).then(|| {
        ready(
            "connections_near_limit",
            format!("{open} of {max} client connections are open"),
            "See who opens them; raise max_connections and the limit of open files together",
        )
    })
}

/// The process's file descriptors, where more than four fifths of them are taken.
pub(super) fn descriptors(process: Process) -> Option<Condition> {
    let (open, max) = process.open_descriptors.zip(process.max_descriptors)?;
    is_near(open, max).then(|| {
        ready(
            "files_near_limit",
            format!("{open} of {max} file descriptors are open"),
            "See who opens connections; raise the limit of open files (LimitNOFILE)",
        )
    })
}

fn is_near(open: u64, max: u64) -> bool {
    open * 5 > max * 4
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operator::conditions::Readiness;

    #[test]
    fn what_runs_out_is_told_before_it_is_gone() {
        assert_eq!(quota(DailyQuota { max: 100.0, left: 10.0 }), None);
        assert_eq!(quota(DailyQuota { max: 100.0, left: 9.0 }).unwrap().code, "quota_low");
        assert_eq!(connections(8, 10), None);
        assert_eq!(connections(9, 10).unwrap().code, "connections_near_limit");
        let process = |open| Process {
            open_descriptors: Some(open),
            max_descriptors: Some(100),
            ..Process::default()
        };
        assert_eq!(descriptors(process(80)), None);
        assert_eq!(descriptors(process(81)).unwrap().code, "files_near_limit");
    }

    #[test]
    fn a_queue_that_is_nearly_full_is_told_and_leaves_the_service_ready() {
        const MAX: usize = 1 << 30;
        let told =
            |in_use| queue(in_use, MAX, &[]).map(|condition| (condition.code, condition.readiness));
        assert_eq!(told(MAX / 2), None);
        assert_eq!(told(MAX - MAX / 25), Some(("queue_nearly_full", Readiness::Ready)));
        assert_eq!(told(MAX), Some(("queue_full", Readiness::NotReady)));
        let of_one = queue(MAX / 2, MAX, &["acme".to_owned()]).unwrap();
        assert_eq!((of_one.code, of_one.readiness), ("queue_share_full", Readiness::Ready));
        assert!(of_one.message.contains("full for acme"), "{}", of_one.message);
    }
}
