//! Refusals of the server: the log has one line a minute for each kind, with their number.

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::Instant;

use crate::locks::{Mutex, locked};

/// Time between two lines of one kind.
const INTERVAL: Duration = Duration::from_mins(1);

/// Refusals by their codes. The server has a few hundred.
#[derive(Default)]
pub(super) struct Refusals(Mutex<HashMap<String, Kind>>);

struct Kind {
    logged_at: Instant,
    /// Refusals since then.
    unlogged: u64,
}

impl Refusals {
    /// Notes a refusal. Returns the number of refusals since the last line, if another line is due.
    pub(super) fn note(&self, code: &str, now: Instant) -> Option<u64> {
        let mut kinds = locked(&self.0);
        let Some(kind) = kinds.get_mut(code) else {
            kinds.insert(code.to_owned(), Kind { logged_at: now, unlogged: 0 });
            return Some(1);
        };
        kind.unlogged += 1;
        if now.duration_since(kind.logged_at) < INTERVAL {
            return None;
        }
        kind.logged_at = now;
        Some(std::mem::take(&mut kind.unlogged))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_code_has_a_line_a_minute_that_counts_all() {
        let refusals = Refusals::default();
        let start = Instant::now();
        let after = |millis| start + Duration::from_millis(millis);
        assert_eq!(refusals.note("P0001", start), Some(1));
        assert_eq!(refusals.note("23505", after(1)), Some(1), "another kind");
        for millis in 2..=100 {
            assert_eq!(refusals.note("P0001", after(millis)), None);
        }
        assert_eq!(refusals.note("P0001", after(59_999)), None);
        assert_eq!(refusals.note("P0001", after(60_000)), Some(101));
        assert_eq!(refusals.note("P0001", after(60_001)), None);
        assert_eq!(refusals.note("P0001", after(200_000)), Some(2));
    }
}
