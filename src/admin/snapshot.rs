//! The running service at one moment. Metrics, the page, `status`, the conditions and the
//! supervisor's line are views of it. Must not know how any of them prints it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::REMOVED_MARK;
use crate::bodies::Bodies;
use crate::process::Process;
use pillarbox_alerts::AlertsStatus;
use pillarbox_dispatch::quota::AccountCheck;
use pillarbox_dispatch::{PausedByOperator, SendingStatus};
use pillarbox_domain::attempt::TrackingOverride;
use pillarbox_domain::id::OrganisationId;
use pillarbox_domain::organisation::{Limits, OrganisationKind};
use pillarbox_domain::time::Timestamp;
use pillarbox_domain::usage::Usage;
use pillarbox_domain::webhook::Webhook;
use pillarbox_http::connections::Closed;
use pillarbox_http::tls::CertificateTrouble;
use pillarbox_runtime::clock::{Clock, Jump};
use pillarbox_store::organisation_counts::OrganisationCounts;
use pillarbox_store::{
    DamagedRow, DatabaseStatus, EventBacklog, FileLoss, Health, LostMessages, NodeStatus, Store,
    StoreError,
};
use pillarbox_webhooks::EndpointStatus;

/// The running service at one moment.
#[derive(Debug, Clone, Default)]
#[expect(clippy::struct_excessive_bools, reason = "facts that have nothing to do with each other")]
pub struct Snapshot {
    /// The moment, by the service's clock.
    pub at: Timestamp,
    /// True once new messages are refused because the service stops.
    pub is_stopping: bool,
    /// Name of this node, if an operator drains it.
    pub draining: Option<String>,
    pub store: StoreHealth,
    /// True if a commit failed within [`STORE_FAILED`](crate::conditions::STORE_FAILED).
    pub has_store_failed: bool,
    /// Purposes of connections on which the database gave no answer in time.
    pub silent_connections: Vec<&'static str>,
    pub sending: SendingStatus,
    /// Time for which the provider has taken no messages.
    pub impaired_for: Option<Duration>,
    pub account: AccountCheck,
    pub clock_jump: Option<Jump>,
    /// Reason why no delivery events can be received.
    pub events_trouble: Option<String>,
    /// Delivery events that were received; `None` if nothing brings any.
    pub taken_in: Option<TakenIn>,
    /// Certificate of the client listeners, if they speak TLS.
    pub certificate: Option<CertificateState>,
    pub names: BTreeMap<OrganisationId, String>,
    /// The test organisations among them.
    pub tests: BTreeSet<OrganisationId>,
    pub stored: Stored,
    pub damaged: Vec<DamagedRow>,
    /// Size of the data file, in bytes. Metrics alone ask for it, because a disk may hang.
    pub file_bytes: Option<u64>,
    /// Bytes in the journal that are not in the data file yet.
    pub journal_bytes: u64,
    /// True if several nodes may use the store.
    pub is_shared: bool,
    /// Nodes on the database; none if the store is a file.
    pub nodes: Vec<NodeStatus>,
    /// The database, if the store is on one.
    pub database: Option<DatabaseStatus>,
    /// Counts of each organisation since the start. One that nothing was counted of has them too, so
    /// that its first message shows as an increase.
    pub organisations: BTreeMap<OrganisationId, OrganisationCounts>,
    pub totals: Totals,
    pub recent: Recent,
    pub task_faults: Vec<TaskFaults>,
    pub endpoints: Vec<(Webhook, EndpointStatus)>,
    /// Posts of alerts; `None` if operators have no receiver.
    pub alerts: Option<AlertsStatus>,
    pub bodies: Option<Bodies>,
    /// `sending.max_pending_bytes`, in bytes. The memory limit may lower what is in effect.
    pub configured_pending_bytes: usize,
    /// Setting `ses.tracking_override`.
    pub tracking: TrackingOverride,
    /// True if the last message went without the override, because the endpoint does not know it.
    pub went_without_override: bool,
    /// Organisations that operators have paused.
    pub paused_by_operators: Vec<PausedByOperator>,
    pub connections: Connections,
    pub process: Process,
    /// Start of the process, in seconds since the Unix epoch.
    pub started: f64,
}

/// Faults of a background task since the start.
#[derive(Debug, Clone)]
pub struct TaskFaults {
    pub task: &'static str,
    pub count: u64,
    /// True if the last one was within [`LATELY`](crate::conditions::LATELY).
    pub is_recent: bool,
}

/// State of writes to the store.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum StoreHealth {
    /// Writes succeed.
    #[default]
    Writable,
    /// The last commit failed and none has succeeded since.
    Refusing,
    /// There is no data file at its path.
    FileGone,
    /// There is another data file at its path.
    FileReplaced,
    /// Another process wrote over the data file.
    FileWrittenOver,
}

impl StoreHealth {
    /// Loss of the data file and the advice for it; `None` if it is in its place.
    pub const fn file_loss(self) -> Option<(&'static str, &'static str)> {
        match self {
            Self::Writable | Self::Refusing => None,
            Self::FileGone => Some((
                "the data file is gone",
                "If it was moved, put it back. Otherwise run: pillarbox backup FILE, then stop \
                 and start the service: it writes a copy of its data in place of the file",
            )),
            Self::FileReplaced => Some((
                "the data file is not the one that the service has open",
                "If the right one was moved, put it back. Otherwise run: pillarbox backup FILE, \
                 stop the service, then run: pillarbox restore FILE --replace",
            )),
            Self::FileWrittenOver => Some((
                "another process has overwritten the data file",
                "Its data is lost, and outcomes of messages cannot be stored. Stop the service, \
                 then restore the newest backup: pillarbox restore FILE --replace",
            )),
        }
    }
}

impl From<Health> for StoreHealth {
    fn from(health: Health) -> Self {
        match health {
            Health::Writable => Self::Writable,
            Health::Refusing => Self::Refusing,
            Health::FileLost(FileLoss::Gone) => Self::FileGone,
            Health::FileLost(FileLoss::Replaced) => Self::FileReplaced,
            Health::FileLost(FileLoss::WrittenOver) => Self::FileWrittenOver,
        }
    }
}

/// Events that the running service took in since its start, repeats included.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TakenIn {
    /// The provider accepted a message.
    pub send: u64,
    /// The recipient's server accepted it.
    pub delivery: u64,
    /// Bounced messages.
    pub bounce: u64,
    /// The recipient called it unwanted.
    pub complaint: u64,
    /// SES accepted it, then refused to send it on.
    pub reject: u64,
    /// The recipient's server does not take it for now.
    pub delivery_delay: u64,
    /// Of a type that is dropped.
    pub ignored: u64,
    /// Of those above, the ones about messages that are not known, or not yet.
    pub unmatched: u64,
    /// Of those above, the ones that name another organisation than the message's own.
    pub foreign: u64,
    /// Documents that could not be read.
    pub unreadable: u64,
    /// Age of the last readable one; `None` before the first.
    pub seconds_since_last: Option<u64>,
    /// Reason why none can be fetched now; `None` if they can.
    pub trouble: Option<String>,
}

/// Certificate of the client listeners.
#[derive(Debug, Clone, Default)]
pub struct CertificateState {
    pub expires_at: Option<Timestamp>,
    /// Latest time to renew it.
    pub renew_by: Option<Timestamp>,
    /// True while newer files cannot be used.
    pub is_refused: bool,
    /// Faults, now or soon.
    pub troubles: Vec<CertificateTrouble>,
}

#[derive(Debug, Clone, Default)]
pub struct Connections {
    /// Open ones of HTTP.
    pub http: usize,
    /// Open ones of SMTP submission.
    pub smtp: usize,
    /// Most of both together: `max_connections`.
    pub max: usize,
    /// Open ones of HTTP without a valid key.
    pub keyless: usize,
    /// Those without a key that were closed to have room, by the reason's place in [`Closed::ALL`].
    pub closed: [u64; Closed::ALL.len()],
}

/// Counts of the process since its start, or their growth.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Totals {
    pub accepted: u64,
    pub refused: u64,
    /// Requests refused with `QueueFull`.
    pub refused_for_room: u64,
    /// Requests that failed because of a fault in the service.
    pub internal_errors: u64,
    /// Finished calls to the provider.
    pub calls: u64,
    pub call_micros: u64,
    pub throttled: u64,
    pub commits: u64,
    /// Those that took over half a second.
    pub slow_commits: u64,
}

impl Totals {
    /// Growth since an earlier moment.
    #[must_use]
    pub const fn since(&self, earlier: &Self) -> Self {
        Self {
            accepted: self.accepted - earlier.accepted,
            refused: self.refused - earlier.refused,
            refused_for_room: self.refused_for_room - earlier.refused_for_room,
            internal_errors: self.internal_errors - earlier.internal_errors,
            calls: self.calls - earlier.calls,
            call_micros: self.call_micros - earlier.call_micros,
            throttled: self.throttled - earlier.throttled,
            commits: self.commits - earlier.commits,
            slow_commits: self.slow_commits - earlier.slow_commits,
        }
    }
}

/// Growth of counts within a window.
#[derive(Debug, Clone, Default)]
pub struct Recent {
    /// True if messages wait and none was sent for
    /// [`STUCK`](crate::conditions::STUCK).
    pub is_stuck: bool,
    /// Growth in the last minutes.
    pub totals: Totals,
    /// Growth in the last minutes, by organisation.
    pub minutes: Vec<NamedCounts>,
    /// Growth in the last day, by organisation.
    pub day: Vec<NamedCounts>,
}

/// Answers of the store to questions that may take long. An answer that it could not give is
/// `None`.
#[derive(Debug, Clone)]
pub struct Stored {
    /// True if newer answers did not come in time.
    pub is_silent: bool,
    /// Reports of the provider that wait.
    pub backlog: Option<EventBacklog>,
    /// Id and reason of the newest document that could not be read.
    pub newest_letter: Option<String>,
    /// Messages whose body was lost, if there are any.
    pub lost: Result<Option<LostMessages>, StoreError>,
    /// Time of the oldest record, if there is one.
    pub oldest: Option<Timestamp>,
    /// Organisations that have limits, with what they have used of them.
    pub limited: Vec<(OrganisationId, Limits, Usage)>,
}

impl Default for Stored {
    fn default() -> Self {
        Self {
            is_silent: false,
            backlog: None,
            newest_letter: None,
            lost: Err(StoreError::Unavailable),
            oldest: None,
            limited: Vec::new(),
        }
    }
}

impl Stored {
    /// Asks the store. The newest unreadable document is read only if their number differs from
    /// that of the answers `before`, because the store reads all of them.
    pub async fn ask(store: &Store, clock: &Clock, before: &Self) -> Self {
        const ID_CHARS: usize = 12;
        let window_now = clock.window_time();
        let now = window_now.now();
        // At once: each may take long if the database does not answer.
        let (backlog, lost, oldest, limited) = tokio::join!(
            store.event_backlog(),
            store.lost_messages(now),
            store.oldest(window_now),
            limited(store, clock),
        );
        let backlog = backlog.ok();
        let number = |backlog: Option<EventBacklog>| backlog.map_or(0, |one| one.dead_letters);
        let newest_letter = match number(backlog) {
            0 => None,
            now if now == number(before.backlog) => before.newest_letter.clone(),
            _ => {
                let letters = store.dead_letters(1).await.unwrap_or_default();
                let newest = letters.first();
                newest.map(|newest| format!("{:.ID_CHARS$}: {}", newest.id(), newest.reason))
            }
        };
        let oldest = oldest.ok().flatten();
        let limited = limited.unwrap_or_else(|_| before.limited.clone());
        Self { is_silent: false, backlog, newest_letter, lost, oldest, limited }
    }
}

/// Returns the organisations that have limits, with what they have used of them.
async fn limited(
    store: &Store,
    clock: &Clock,
) -> Result<Vec<(OrganisationId, Limits, Usage)>, StoreError> {
    let limited = store.limits();
    if limited.is_empty() {
        return Ok(Vec::new());
    }
    let ids: Vec<_> = limited.iter().map(|(id, _)| *id).collect();
    let usage = store.usage(&ids, clock.period_time()).await?;
    Ok(limited.into_iter().zip(usage).map(|((id, limits), used)| (id, limits, used)).collect())
}

/// Returns the part of a limit that is in use.
#[expect(clippy::cast_precision_loss, reason = "such numbers are small")]
pub(super) fn ratio(used: u64, max: u64) -> f64 {
    used as f64 / max as f64
}

/// Counts of an organisation, or of the others together, which have no number.
#[derive(Debug, Clone)]
pub struct NamedCounts {
    pub id: Option<OrganisationId>,
    pub name: String,
    pub kind: OrganisationKind,
    pub counts: OrganisationCounts,
}

impl Snapshot {
    /// Returns the name of an organisation, or the marked number of one that was removed.
    pub fn name(&self, id: OrganisationId) -> String {
        self.names.get(&id).cloned().unwrap_or_else(|| format!("{REMOVED_MARK}{}", id.0))
    }

    /// Returns the kind of an organisation. One that was removed counts as one of production.
    pub fn kind(&self, id: OrganisationId) -> OrganisationKind {
        if self.tests.contains(&id) { OrganisationKind::Test } else { OrganisationKind::Production }
    }

    /// Messages of production that were accepted since the start.
    pub fn accepted_in_production(&self) -> u64 {
        let all = self.organisations.iter();
        let production = all.filter(|(id, _)| self.kind(**id) == OrganisationKind::Production);
        production.map(|(_, counts)| counts.accepted).sum()
    }

    /// Returns the sum of a count over all organisations.
    pub fn sum(&self, count: impl Fn(&OrganisationCounts) -> u64) -> u64 {
        self.organisations.values().map(count).sum()
    }
}
