//! Sending under outage, throttling and load, on a simulated provider and simulated time.

mod cancel;
mod drain;
mod expiry;
mod faults;
mod harness;
mod outage;
mod pauses;
mod proof;
mod rate;
mod recheck;
mod unanswered;
