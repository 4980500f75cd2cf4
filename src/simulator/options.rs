//! How a simulator starts.
//!
//! Only values: what they do is written where they are used.

use std::fmt;
use std::time::Duration;

use super::events::Events;
use super::faults::Faults;
use super::identities::{SenderCheck, VerifiedBy};
use super::queue::QueueOptions;

/// AWS takes a signature within five minutes of its date.
const SIGNATURE_MAX_AGE: Duration = Duration::from_mins(5);
/// Messages kept in full unless told otherwise.
const KEPT_MESSAGES: usize = 1_000;
/// Tag values counted unless told otherwise.
const COUNTED_TAGS: usize = 1_000_000;
/// Which credentials the simulator takes.
#[derive(Clone, PartialEq, Eq)]
pub enum Credentials {
    /// This pair alone, and the signature is checked.
    Only {
        /// The access key id.
        access_key_id: String,
        /// The secret that signatures are made with.
        secret_access_key: String,
    },
    /// Any: a call must be signed, but the signature cannot be checked.
    Any,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Only { access_key_id, .. } => {
                f.debug_struct("Only").field("access_key_id", access_key_id).finish_non_exhaustive()
            }
            Self::Any => f.write_str("Any"),
        }
    }
}

impl Default for Credentials {
    fn default() -> Self {
        let simulator = || "simulator".to_owned();
        Self::Only { access_key_id: simulator(), secret_access_key: simulator() }
    }
}

/// To whom the account may send, as `GetAccount` has it; the simulator itself sends to all.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum AccountAccess {
    /// To everybody.
    #[default]
    Production,
    /// To verified identities alone.
    Sandbox,
}

/// How a simulator starts.
#[derive(Debug, Clone)]
pub struct Options {
    /// Time that every SES call takes before it is handled; SQS's take none.
    pub latency: Duration,
    /// Recipients per second, with one second's burst; `None` is unlimited.
    pub send_rate: Option<f64>,
    /// Recipients per 24 hours; `None` is unlimited.
    pub daily_quota: Option<u64>,
    /// SES calls per second of everything but `SendEmail` (SES: one); `None` is unlimited.
    pub other_call_rate: Option<f64>,
    /// To whom the account may send.
    pub access: AccountAccess,
    /// Domains and addresses that are verified from the start.
    pub verified: Vec<String>,
    /// Whether the sender must be verified at all.
    pub sender_check: SenderCheck,
    /// How identities that are created over the API become verified.
    pub verified_by: VerifiedBy,
    /// The zone that Easy DKIM's records of new identities point into.
    pub dkim_zone: String,
    /// Configuration sets that exist from the start.
    pub configuration_sets: Vec<String>,
    /// The credentials that are taken.
    pub credentials: Credentials,
    /// The region that calls must be signed for.
    pub region: String,
    /// How far a signature's date may be from now, both ways; `None` takes any date, for callers
    /// whose clock is not the system's.
    pub signature_max_age: Option<Duration>,
    /// What goes wrong.
    pub faults: Faults,
    /// Where the sequence of faults starts, and the queue's disorder.
    pub seed: u64,
    /// Whether and how accepted messages come back as events.
    pub events: Events,
    /// The queue that events go to.
    pub queue: QueueOptions,
    /// How many of the last messages are kept in full.
    pub kept_messages: usize,
    /// How many distinct tag values are counted; further ones are not, and their number is shown.
    pub counted_tags: usize,
}

impl Default for Options {
    /// No limit, no latency, no fault; nothing verified.
    fn default() -> Self {
        Self {
            latency: Duration::ZERO,
            send_rate: None,
            daily_quota: None,
            other_call_rate: None,
            access: AccountAccess::default(),
            verified: Vec::new(),
            sender_check: SenderCheck::default(),
            verified_by: VerifiedBy::Look(2),
            dkim_zone: "dkim.amazonses.com".to_owned(),
            configuration_sets: Vec::new(),
            credentials: Credentials::default(),
            region: "eu-west-1".to_owned(),
            signature_max_age: Some(SIGNATURE_MAX_AGE),
            faults: Faults::none(),
            seed: 0,
            events: Events::default(),
            queue: QueueOptions::default(),
            kept_messages: KEPT_MESSAGES,
            counted_tags: COUNTED_TAGS,
        }
    }
}
