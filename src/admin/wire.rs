//! Administration on the wire: what the commands ask of the service, and what it answers.
//!
//! One JSON document a line, one response for each request, both bounded in size. Texts come in
//! as given and are judged by the handler; nothing here knows the store, SES or a terminal.

use serde::{Deserialize, Serialize};

use crate::admin::identity::Identity;

pub use self::dead_letter::{
    DeadLetter, DeadLetterList, DeadLetterShown, DeadLettersCleared, Letters,
};
pub use self::doctor::{Examined, Finding, Part, TestSent, Verdict};
pub use self::domain::{
    DnsRecord, Domain, DomainCheck, DomainList, DomainRemoved, DomainReport, LastCheck, MailFrom,
    Purpose, SesAnswer, Setup, Sight,
};
pub use self::message::{
    Event, Failure, LastEvent, MessageList, MessageRecord, MessageSummary, MessagesCancelled,
    QueuedMessages, RecipientEvent, Timeline,
};
pub use self::status::{
    AccountFault, AccountProblem, Acknowledged, Cause, Certificate, ClockConfirmed, ClockJump,
    Counts, Damaged, DamagedRow, Events, LostMessages, PausedDomain, Provider, Sending,
    ServiceStatus, SlowCalls, StopLoss, StoreHealth, StoredEvents, TakenIn,
};
pub use self::suppression::{
    AtSes, ImportMode, ImportRow, RefusedRow, Suppression, SuppressionChange, SuppressionChanges,
    SuppressionCursor, SuppressionList, SuppressionOutcome, SuppressionsImported, UNREADABLE,
};
pub use self::tenant::{
    Key, KeyAdded, KeyInClear, KeyList, Organisation, OrganisationList, OrganisationRemoved,
};

mod dead_letter;
mod doctor;
mod domain;
mod message;
mod status;
mod suppression;
mod tenant;

/// The longest request, in bytes, its line break included.
pub const MAX_REQUEST_BYTES: usize = 1 << 20;
/// The longest response, in bytes, its line break included.
pub const MAX_RESPONSE_BYTES: usize = 16 << 20;
/// The most addresses that one request names; at their full length they fit into a request.
pub const MAX_ADDRESSES: usize = 1_000;
/// The most suppressions that one request imports: few enough that their commit, which acceptances
/// share, stays short.
pub const MAX_IMPORT_ROWS: usize = 500;
/// The most rows in one page of a list.
pub const MAX_PAGE: usize = 500;
/// The most messages that one request names.
pub const MAX_MESSAGES: usize = 1_000;

/// What a command asks. An unknown field is refused: what an older service does not know must not
/// be dropped without a word.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase", deny_unknown_fields)]
pub enum Request {
    /// Add an organisation.
    OrganisationAdd {
        /// Its name.
        name: String,
    },
    /// List the organisations.
    OrganisationList {},
    /// Remove an organisation with its keys and domains; its records stay.
    OrganisationRemove {
        /// Its name.
        name: String,
    },
    /// Make an API key.
    KeyAdd {
        /// Whose it is.
        organisation: String,
        /// What the operator calls it; may be empty.
        label: String,
        /// How long it lets in, or until when; for ever where it is not given. Left out where it
        /// is, so that an older service knows the request.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        expires: Option<String>,
    },
    /// List the API keys.
    KeyList {
        /// Only this organisation's.
        organisation: Option<String>,
    },
    /// Revoke an API key.
    KeyRevoke {
        /// Its number.
        id: u32,
    },
    /// Add a sender domain.
    DomainAdd {
        /// Whose it is.
        organisation: String,
        /// The domain.
        domain: String,
        /// Who says that it may be sent from.
        verification: Verification,
        /// The sub-domain that bounces come back to, in place of SES's own.
        mail_from: Option<String>,
    },
    /// List the sender domains.
    DomainList {
        /// Only this organisation's.
        organisation: Option<String>,
    },
    /// Ask SES about a sender domain now.
    DomainCheck {
        /// The domain, of whichever organisations have it.
        domain: String,
    },
    /// Withdraw a sender domain.
    DomainRemove {
        /// Whose it is.
        organisation: String,
        /// The domain.
        domain: String,
    },
    /// Suppress addresses.
    SuppressionAdd {
        /// For whom.
        scope: Scope,
        /// At most [`MAX_ADDRESSES`].
        addresses: Vec<String>,
    },
    /// End suppressions.
    SuppressionRemove {
        /// For whom.
        scope: Scope,
        /// At most [`MAX_ADDRESSES`].
        addresses: Vec<String>,
    },
    /// List suppressions, a page at a time.
    SuppressionList {
        /// Only those with this scope.
        scope: Option<Scope>,
        /// Only those behind this one.
        after: Option<SuppressionCursor>,
    },
    /// Take an address from the SES account's own suppression list.
    SuppressionClearAtSes {
        /// The address.
        address: String,
    },
    /// Suppress what a list says, each row judged for itself. What is suppressed already stays as
    /// it is, so that a list may be imported again.
    SuppressionImport {
        /// At most [`MAX_IMPORT_ROWS`].
        rows: Vec<ImportRow>,
        /// Whether good rows are taken in.
        mode: ImportMode,
    },
    /// Show a message with its events.
    MessageShow {
        /// Its identifier.
        id: String,
    },
    /// List messages, newest first, a page at a time.
    MessageList {
        /// Only this organisation's.
        organisation: Option<String>,
        /// Only those with this status.
        status: Option<String>,
        /// Only those to this recipient.
        #[serde(default)]
        recipient: Option<String>,
        /// Only those accepted before this one.
        before: Option<String>,
        /// At most so many; a page has at most [`MAX_PAGE`].
        limit: usize,
    },
    /// Cancel messages that are queued.
    MessageCancel {
        /// Which.
        messages: QueuedMessages,
    },
    /// List the provider's documents that could not be read.
    DeadLetterList {},
    /// Show one of them.
    DeadLetterShow {
        /// Its id, or the beginning of it.
        id: String,
    },
    /// Clear them away.
    DeadLetterClear {
        /// Which.
        letters: Letters,
    },
    /// Tell which data directory the service works on.
    Identity {},
    /// Tell how the service is doing.
    Status {},
    /// Note that an operator has seen the lost messages.
    Acknowledge {},
    /// Tell the address of the operators' page, with what opens it.
    Page {},
    /// Take the wall clock's time as right.
    ClockConfirm {},
    /// Send everything that is stored: the answer says how much, and what follows it is no line.
    Backup {},
    /// Examine a part of the set-up with the service's own credentials and clock.
    Examine {
        /// Which.
        part: Part,
    },
    /// Send a message to SES's mailbox simulator, the way that all messages go.
    TestSend {
        /// Its sender; an address of the first verified domain where it is not given.
        from: Option<String>,
    },
}

/// What the service answers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Response {
    /// The organisation is there.
    OrganisationAdded(Organisation),
    /// All organisations.
    Organisations(OrganisationList),
    /// The organisation is gone.
    OrganisationRemoved(OrganisationRemoved),
    /// The key, shown this once.
    KeyAdded(KeyAdded),
    /// API keys.
    Keys(KeyList),
    /// The key lets nobody in any more.
    KeyRevoked(Key),
    /// The domain is there.
    DomainAdded(DomainReport),
    /// Sender domains.
    Domains(DomainList),
    /// What SES says of the domain, and what followed.
    DomainChecked(DomainCheck),
    /// The domain is withdrawn.
    DomainRemoved(DomainRemoved),
    /// What was asked of each address holds.
    SuppressionsChanged(SuppressionChanges),
    /// What became of an address on SES's list.
    SuppressionClearedAtSes(AtSes),
    /// What became of the rows of a list.
    SuppressionsImported(SuppressionsImported),
    /// A page of suppressions.
    Suppressions(SuppressionList),
    /// A message.
    Message(Box<MessageRecord>),
    /// The address of the operators' page, with what opens it.
    Page {
        /// A URL for a browser. It is a secret.
        url: String,
    },
    /// A page of messages.
    Messages(MessageList),
    /// What became of the messages that were to be cancelled.
    MessagesCancelled(MessagesCancelled),
    /// The provider's documents that could not be read.
    DeadLetters(DeadLetterList),
    /// One of them.
    DeadLetter(DeadLetterShown),
    /// They are gone.
    DeadLettersCleared(DeadLettersCleared),
    /// The service's data directory.
    Identity(Identity),
    /// How the service is doing.
    Status(Box<ServiceStatus>),
    /// The lost messages are shown no more.
    Acknowledged(Acknowledged),
    /// The clock's time is taken as right.
    ClockConfirmed(ClockConfirmed),
    /// Everything that is stored follows.
    BackupBegins(BackupBegins),
    /// What an examination came to.
    Examined(Examined),
    /// The message of an examination was accepted.
    TestSent(TestSent),
    /// It was not done.
    Refused(Refusal),
}

/// How much follows: parts, each after its length in bytes (four, the highest first), and a length
/// of 0 at the end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BackupBegins {
    /// The version of the service, which the reader must be of too.
    pub version: String,
    /// How many rows follow.
    pub rows: u64,
}

/// Why something was not done.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    /// For a person to read: what is wrong, and what to do.
    pub message: String,
}

/// For whom an address is suppressed.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Scope {
    /// For every organisation.
    All,
    /// For the one with this name.
    Organisation(String),
}

/// Who says that a domain may be sent from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Verification {
    /// SES, once it found the domain's DNS records.
    BySes,
    /// The operator; SES is not asked.
    Assumed,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_on_the_wire_and_not_in_debug() {
        let key = KeyInClear("pb_secret".to_owned());
        let added = Response::KeyAdded(KeyAdded { id: 7, key, organisation: "acme".to_owned() });
        assert!(!format!("{added:?}").contains("secret"));
        let text = serde_json::to_string(&added).unwrap();
        assert_eq!(text, r#"{"keyAdded":{"id":7,"key":"pb_secret","organisation":"acme"}}"#);
    }

    #[test]
    fn what_an_older_service_does_not_know_is_refused() {
        for text in [
            r#"{"keyRevoke":{"id":1,"when":"later"}}"#,
            r#"{"status":{"of":"everything"}}"#,
            r#"{"compact":{}}"#,
        ] {
            assert!(serde_json::from_str::<Request>(text).is_err(), "{text}");
        }
        assert_eq!(
            serde_json::from_str::<Request>(r#"{"status":{}}"#).unwrap(),
            Request::Status {}
        );
    }

    #[test]
    fn the_largest_request_fits_its_bound() {
        // 64 + 1 + 255 octets, each escaped to two at most.
        let addresses = vec!["\"".repeat(320); MAX_ADDRESSES];
        let request = Request::SuppressionAdd { scope: Scope::All, addresses };
        assert!(serde_json::to_vec(&request).unwrap().len() < MAX_REQUEST_BYTES);
    }
}
