//! Retries of deliveries: when a failed one is attempted again.

use std::time::Duration;

/// Waits after the first, the second … failed attempt. After the attempt that follows the last of
/// them, the delivery has failed.
const RETRY_DELAYS: [Duration; 9] = [
    Duration::from_secs(5),
    Duration::from_mins(5),
    Duration::from_mins(30),
    Duration::from_hours(2),
    Duration::from_hours(5),
    Duration::from_hours(10),
    Duration::from_hours(14),
    Duration::from_hours(20),
    Duration::from_hours(24),
];
/// The largest random addition to a wait, as a part of it.
const JITTER: f64 = 0.1;

/// Wait after the failed attempt number `attempts`, which is 1 for the first; `draw` is taken
/// evenly from 0 to 1. The endpoint may ask for a longer wait, up to the next one of the schedule.
/// `None` after the last attempt.
pub(super) fn retry_delay(attempts: u32, draw: f64, asked: Option<Duration>) -> Option<Duration> {
    let index = usize::try_from(attempts).ok()?.checked_sub(1)?;
    let scheduled = *RETRY_DELAYS.get(index)?;
    let longest = RETRY_DELAYS.get(index + 1).copied().unwrap_or(scheduled);
    let wait = asked.map_or(scheduled, |asked| asked.clamp(scheduled, longest));
    Some(wait.mul_f64(1.0 + JITTER * draw.clamp(0.0, 1.0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_follow_the_schedule_and_end_with_it() {
        let waits: Vec<_> = (1..).map_while(|n| retry_delay(n, 0.0, None)).collect();
        assert_eq!(waits, RETRY_DELAYS);
        assert_eq!(retry_delay(0, 0.0, None), None);
        let longest = retry_delay(1, 1.0, None).unwrap();
        assert!(longest > RETRY_DELAYS[0] && longest < 2 * RETRY_DELAYS[0]);
    }

    #[test]
    fn an_endpoint_may_ask_for_a_longer_wait_up_to_the_next_one() {
        let asked = |attempts, seconds| {
            let asked = Some(Duration::from_secs(seconds));
            retry_delay(attempts, 0.0, asked).unwrap().as_secs()
        };
        assert_eq!(asked(1, 0), 5);
        assert_eq!(asked(1, 120), 120);
        assert_eq!(asked(1, 3_600), 300);
        assert_eq!(asked(9, 1_000_000), RETRY_DELAYS[8].as_secs());
    }
}
