//! File descriptors: as many as the system gives, and enough of them kept from clients.
//!
//! Without that, clients that only connect could use them all up, and no call to the provider
//! could be made.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tracing::warn;

/// What is needed beside clients and calls to the provider: operators' connections, refusals,
/// administration, files.
const OTHERS: usize = 600;

/// Raises the process's own limit as far as it may go (nothing here uses `select(2)`, which alone
/// could not take more), and gives how many of the client connections that are wanted fit into it.
pub(super) fn make_room(wanted: usize, max_in_flight: usize) -> usize {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    // Where it cannot be raised, it is as it was.
    let current =
        if setrlimit(Resource::Nofile, raised).is_ok() { limit.maximum } else { limit.current };
    let Some(current) = current else { return wanted };
    let fitting = fitting(wanted, max_in_flight, usize::try_from(current).unwrap_or(usize::MAX));
    if fitting < wanted {
        warn!(
            max_connections = fitting,
            "the process may have {current} files open, too few for max_connections = {wanted}; \
             raise that limit (LimitNOFILE= of the unit, ulimit -Hn)"
        );
    }
    fitting
}

/// How many client connections fit: at least half of the limit is theirs.
fn fitting(wanted: usize, max_in_flight: usize, limit: usize) -> usize {
    let kept = OTHERS.saturating_add(max_in_flight).min(limit / 2);
    wanted.min(limit - kept)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_get_what_is_left_and_never_less_than_half() {
        assert_eq!(fitting(10_000, 256, 524_288), 10_000);
        assert_eq!(fitting(10_000, 256, 10_500), 9_644);
        assert_eq!(fitting(10_000, 256, 1_024), 512);
        assert_eq!(fitting(10, 256, 1_024), 10);
        assert_eq!(fitting(10_000, usize::MAX, 65), 33);
    }
}
