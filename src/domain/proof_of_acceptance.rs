//! The rule by which an event makes a message `sent`, also one that failed: SES reports only on what it
//! accepted.

use crate::message::{Acceptance, Message, Recorded, State};
use crate::time::Timestamp;

impl Message {
    /// Records an event's proof that the provider accepted the message at `accepted_at`.
    pub fn prove_accepted(&mut self, ses_message_id: &str, accepted_at: Timestamp) -> Recorded {
        match self.state {
            State::Queued { .. } | State::Failed { acceptance: Acceptance::Possible, .. } => {
                self.attempts = self.attempts.max(1);
                self.state =
                    State::Sent { ses_message_id: ses_message_id.to_owned(), sent_at: accepted_at };
                Recorded::Changed
            }
            State::Sent { .. }
            | State::Failed { acceptance: Acceptance::Excluded, .. }
            | State::Suppressed { .. } => Recorded::AlreadyFinal,
        }
    }
}
