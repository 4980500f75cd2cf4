//! How the service is doing, where its page is, and the operator's word on its clock and on lost
//! messages.

use std::net::SocketAddr;
use std::sync::Arc;

use secrecy::ExposeSecret as _;
use serde::{Deserialize, Serialize};
use tracing::info;

use crate::admin::bodies::{Bodies, Keeper};
use crate::admin::live::{Condition, LiveView};
use crate::admin::{Acknowledge, Admin, ClockConfirm, Page, Place, Refusal, Status};
use crate::clock::{ConfirmedBy, Jump};
use crate::detached_thread;
use crate::dispatch::circuit_breaker::{BreakerState, Cause};
use crate::domain::event::EventType;
use crate::domain::time::Timestamp;
use crate::events::EventProcessor;
use crate::events::metrics::DocumentType;
use crate::queue::DrainForecast;
use crate::quota::{AccountCheck, AccountFault};
use crate::store::{self, DamagedRow, FileLoss, Health};
use crate::timekeeper;

/// How many damaged rows are shown one by one.
const MAX_DAMAGED_SHOWN: usize = 20;

/// The address of the operators' page, with what opens it.
#[derive(Clone, Serialize, Deserialize)]
pub struct PageAddress {
    /// A URL for a browser. It is a secret.
    pub url: String,
}

/// How the service is doing.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ServiceStatus {
    /// The version that answers.
    pub version: String,
    /// How long the service has been running; `None` where none runs.
    pub uptime_seconds: Option<u64>,
    /// Where clients are served, with the port that it was given; `None` where no service runs.
    pub client_address: Option<SocketAddr>,
    /// Where messages are submitted over SMTP; empty where no service runs.
    pub smtp_listeners: Vec<SmtpListener>,
    /// The certificate that clients are shown; `None` where no service speaks TLS.
    pub certificate: Option<Certificate>,
    /// Whether the store takes writes.
    pub store: StoreHealth,
    /// Rows of the data file that cannot be read.
    pub damaged: Damaged,
    /// Doubt of the clock that holds windows back, if there is one.
    pub clock_jump: Option<ClockJump>,
    /// Messages that failed because their process ended, and that nobody has acknowledged.
    pub lost_messages: Option<LostMessages>,
    /// How sending goes; `None` where no service runs.
    pub sending: Option<Sending>,
    /// Bodies of pending messages; `None` if no service runs.
    pub bodies: Option<Bodies>,
    /// How the provider's events come in.
    pub events: Events,
    /// What is wrong, as the operators' page says it; empty where no service runs.
    pub conditions: Vec<Condition>,
    /// How much is set up.
    pub counts: Counts,
}

/// Listener of SMTP submission.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SmtpListener {
    /// Its address, with the port that it was given.
    pub address: SocketAddr,
    /// How its sessions begin.
    pub begins: SessionStart,
    /// Who opened its socket.
    pub opened_by: SocketOpener,
}

/// Beginning of a session of SMTP.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum SessionStart {
    /// In plain text (`smtp.listen`).
    PlainText,
    /// With TLS (`smtp.tls_listen`).
    Tls,
}

/// Opener of a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum SocketOpener {
    /// The service, by its configuration.
    Service,
    /// A supervisor, such as systemd, which handed it over. The configuration's address has no
    /// effect.
    Supervisor,
}

/// Rows of the data file that cannot be read. What they held has no effect, but for suppressions,
/// which suppress all the same.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Damaged {
    /// How many are known.
    pub count: usize,
    /// The first of them.
    pub rows: Vec<DamagedRow>,
}

impl Damaged {
    /// What to do about them.
    pub const ADVICE: &'static str = "What they held has no effect, except that damaged \
        suppressions still suppress; everything else goes on. Check the disk, then restore a \
        backup, or add again what is missing";
}

/// The certificate that clients are shown.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Certificate {
    /// When it ends; `None` where it does not say so.
    pub expires_at: Option<String>,
    /// What is wrong with it or with the one that was to follow, and what to do.
    pub troubles: Vec<String>,
}

/// How the provider's events come in.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Events {
    /// What the running service took in; `None` where none runs or nothing brings events.
    pub taken_in: Option<TakenIn>,
    /// What waits in the store; `None` where it cannot be read.
    pub stored: Option<StoredEvents>,
}

/// What the running service took in since its start, repeats included.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TakenIn {
    /// The provider accepted a message.
    pub send: u64,
    /// The recipient's server accepted it.
    pub delivery: u64,
    /// It came back.
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
    /// Not readable.
    pub unreadable: u64,
    /// How long ago the last readable one came; `None` before the first.
    pub seconds_since_last: Option<u64>,
    /// Why none can be had now, where that is so.
    pub trouble: Option<String>,
}

/// What of the provider's events waits in the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StoredEvents {
    /// Events whose message is not known yet.
    pub unmatched_waiting: u64,
    /// Documents that could not be read.
    pub dead_letters: u64,
}

/// Whether the store takes writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum StoreHealth {
    /// It does.
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
    /// What became of the data file, and what to do; `None` if it is in its place.
    pub const fn file_loss(self) -> Option<(&'static str, &'static str)> {
        match self {
            Self::Writable | Self::Refusing => None,
            Self::FileGone => Some((
                "the data file is gone",
                "If it was moved, put it back. Otherwise run: pillarbox backup FILE, then restart \
                 the service: it puts a copy of what it holds in the place of the file",
            )),
            Self::FileReplaced => Some((
                "the data file is another than the one that the service has open",
                "If the right one was moved, put it back. Otherwise run: pillarbox backup FILE, \
                 stop the service, then run: pillarbox restore FILE --replace",
            )),
            Self::FileWrittenOver => Some((
                "another process has written over the data file",
                "What it held is lost, and outcomes of messages cannot be stored. Stop the service, \
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

/// Doubt of the wall clock.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ClockJump {
    /// Time that the clock should show, or the earliest such time.
    pub expected: String,
    /// Time that the clock shows.
    pub wall: String,
    /// Time at which windows stand still.
    pub since: String,
    /// End of a sentence that begins with "the clock": what is wrong.
    pub explanation: String,
}

/// How sending goes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Sending {
    /// Messages that are not settled.
    pub pending_messages: usize,
    /// Of these, the ones with a call under way.
    pub in_flight: usize,
    /// Bytes of the budget in use.
    pub pending_bytes: usize,
    /// The budget.
    pub max_pending_bytes: usize,
    /// Organisations whose share of the budget is used up: their new messages are refused.
    pub full_for: Vec<String>,
    /// The pace, in recipients per second; `None` is as fast as calls return.
    pub recipients_per_second: Option<f64>,
    /// Messages that a stop at this moment would lose or leave.
    pub stop_would_lose: StopLoss,
    /// What is wrong with the AWS credentials, if anything is.
    pub account: Option<AccountProblem>,
    /// What the calls say of the provider.
    pub provider: Provider,
    /// Sender domains that the provider does not take for now.
    pub paused_domains: Vec<PausedDomain>,
    /// The calls of the last five minutes, if too many of them were slow.
    pub slow_calls: Option<SlowCalls>,
    /// Calls of the last five minutes that got no answer.
    pub unanswered_calls: u64,
    /// Calls of the last five minutes that got an error after which it is not known whether the
    /// provider accepted the message.
    #[serde(default)]
    pub unclear_calls: u64,
}

/// Calls to a slow provider.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SlowCalls {
    /// Calls that ended in the last five minutes.
    pub calls: u64,
    /// Of these, the ones that took over 2.5 seconds.
    pub slow: u64,
}

/// Messages that a stop at this moment would lose, or leave to the next start, as far as can be
/// foreseen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StopLoss {
    /// All that are lost.
    pub messages: usize,
    /// Those that are not, because the service manager keeps their bodies for the next start.
    #[serde(default)]
    pub left_to_next_start: usize,
    /// Of both, the ones that wait because the provider takes no messages, or the store does not.
    pub waiting_for_provider: usize,
    /// The ones that wait because the provider does not take their sender's domain.
    pub waiting_for_domain: usize,
    /// The ones that may have been accepted, and whose retry is due only after the drain.
    pub waiting_for_retry: usize,
    /// The ones for which the drain is too short at the pace, or the daily quota too small.
    pub beyond_pace: usize,
}

/// What the calls say of the provider.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "condition")]
pub enum Provider {
    /// It takes messages.
    Up,
    /// It does not.
    Impaired {
        /// Why.
        cause: Cause,
        /// What the provider said, or what went wrong.
        message: String,
    },
}

/// What is wrong with the AWS credentials.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AccountProblem {
    /// What.
    pub fault: AccountFault,
    /// What AWS said, or why they cannot be loaded.
    pub message: String,
}

/// A sender domain that the provider does not take for now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PausedDomain {
    /// The name of the organisation.
    pub organisation: String,
    /// The domain.
    pub domain: String,
    /// What the provider said.
    pub message: String,
}

/// Messages that failed because the process that held their bodies ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LostMessages {
    /// How many.
    pub messages: u64,
    /// When the last of them was found.
    pub last_at: String,
}

/// An operator has seen the lost messages.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Acknowledged {
    /// Those that were still to be seen; `None` if there were none.
    pub lost_messages: Option<LostMessages>,
}

/// How much is set up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Counts {
    /// Organisations.
    pub organisations: usize,
    /// API keys.
    pub keys: usize,
    /// Sender domains.
    pub domains: usize,
    /// Of these, the ones that cannot be sent from yet.
    pub domains_pending: usize,
}

/// The wall clock's time is taken as right.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ClockConfirmed {
    /// The time.
    pub now: String,
    /// The jump that this ended, if there was one.
    pub jump: Option<ClockJump>,
}

pub(super) async fn status(admin: &Admin, _: Status) -> Result<ServiceStatus, Refusal> {
    let (uptime_seconds, facts, conditions, sending) = match &admin.place {
        Place::File => (None, None, Vec::new(), None),
        Place::Service { live, started, facts, .. } => {
            let uptime_seconds = started.elapsed().as_secs();
            // Both within a moment: they must not contradict each other.
            let (conditions, sending) = (live.conditions().await, admin.sending(live).await);
            (Some(uptime_seconds), facts.as_ref(), conditions, Some(sending))
        }
    };
    let domains = admin.store.domains();
    Ok(ServiceStatus {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        uptime_seconds,
        client_address: facts.map(|facts| facts.clients),
        bodies: facts.map(|facts| facts.bodies.show()),
        smtp_listeners: facts.map_or_else(Vec::new, |facts| facts.smtp.clone()),
        certificate: admin.certificate(),
        store: admin.store.health().into(),
        damaged: admin.damaged(),
        clock_jump: admin.clock.jump().map(ClockJump::from),
        lost_messages: admin
            .store
            .lost_messages(admin.clock.window_time().now())
            .await
            .ok()
            .flatten()
            .map(LostMessages::from),
        sending,
        events: admin.events().await,
        conditions,
        counts: Counts {
            organisations: admin.store.organisations().len(),
            keys: admin.store.api_keys().len(),
            domains: domains.len(),
            domains_pending: domains.iter().filter(|d| !d.state.is_verified()).count(),
        },
    })
}

pub(super) async fn acknowledge(admin: &Admin, _: Acknowledge) -> Result<Acknowledged, Refusal> {
    let lost = admin.store.acknowledge_lost_messages(admin.clock.window_time().now()).await?;
    if let Some(lost) = lost {
        info!(messages = lost.messages, "an operator has acknowledged the lost messages");
    }
    Ok(Acknowledged { lost_messages: lost.map(LostMessages::from) })
}

pub(super) fn page(admin: &Admin, _: &Page) -> Result<PageAddress, Refusal> {
    Ok(PageAddress { url: admin.facts()?.page.expose_secret().to_owned() })
}

pub(super) async fn confirm_clock(
    admin: &Admin,
    _: ClockConfirm,
) -> Result<ClockConfirmed, Refusal> {
    let jump = admin.clock.jump().map(ClockJump::from);
    timekeeper::settle(&admin.store, &admin.clock, ConfirmedBy::Operator).await?;
    Ok(ClockConfirmed { now: admin.clock.now().to_string(), jump })
}

impl Admin {
    fn damaged(&self) -> Damaged {
        let rows = self.store.damaged();
        let count = rows.len();
        Damaged { count, rows: rows.into_iter().take(MAX_DAMAGED_SHOWN).collect() }
    }

    /// The certificate that clients are shown, where TLS is spoken to them.
    fn certificate(&self) -> Option<Certificate> {
        let Place::Service { facts: Some(facts), .. } = &self.place else { return None };
        let tls = facts.tls.as_ref()?;
        let troubles = tls.troubles(self.clock.now()).into_iter();
        Some(Certificate {
            expires_at: tls.expires_at().map(|at| at.to_string()),
            troubles: troubles
                .map(|trouble| format!("{}. {}", trouble.message, trouble.fault.explained().1))
                .collect(),
        })
    }

    async fn events(&self) -> Events {
        let events = match &self.place {
            Place::File => None,
            Place::Service { live, .. } => live.events(),
        };
        let stored = self.store.event_backlog().await.ok().map(|backlog| StoredEvents {
            unmatched_waiting: backlog.unmatched,
            dead_letters: backlog.dead_letters,
        });
        Events { taken_in: events.map(|events| self.taken_in(events)), stored }
    }

    fn taken_in(&self, events: &EventProcessor) -> TakenIn {
        let metrics = events.metrics();
        let documents = |event_type| metrics.documents(DocumentType::Event(event_type));
        let now = self.clock.now().unix_millis();
        let since = |at: Timestamp| now.saturating_sub(at.unix_millis()) / 1_000;
        TakenIn {
            send: metrics.documents(DocumentType::Send),
            delivery: documents(EventType::Delivery),
            bounce: documents(EventType::Bounce),
            complaint: documents(EventType::Complaint),
            reject: documents(EventType::Reject),
            delivery_delay: documents(EventType::DeliveryDelay),
            ignored: metrics.documents(DocumentType::Other),
            unmatched: metrics.unmatched.get(),
            foreign: metrics.foreign.get(),
            unreadable: metrics.documents(DocumentType::Unreadable),
            seconds_since_last: events.last_event_at().map(since),
            trouble: events.trouble(),
        }
    }

    fn keeper(&self) -> Option<Keeper> {
        match &self.place {
            Place::Service { facts: Some(facts), .. } => Some((facts.bodies.keeper)()),
            Place::Service { facts: None, .. } | Place::File => None,
        }
    }

    async fn sending(&self, live: &Arc<dyn LiveView>) -> Sending {
        let looking = Arc::clone(live);
        // It takes the processor for long if much is pending.
        let forecast = detached_thread::run("forecast", move || looking.forecast_stop());
        let mut forecast = forecast.await.unwrap_or_else(|_| live.forecast_stop());
        let (status, account) = (live.sending(), AccountProblem::of(live.account()));
        if account.as_ref().is_some_and(|problem| problem.fault.stops_sending()) {
            let provider = status.pending.messages;
            forecast = DrainForecast { provider, ..DrainForecast::default() };
        }
        Sending {
            pending_messages: status.pending.messages,
            in_flight: status.pending.in_flight,
            pending_bytes: status.pending.bytes,
            max_pending_bytes: status.max_pending_bytes,
            full_for: status.full_for.into_iter().map(|id| self.shown(id)).collect(),
            recipients_per_second: status.rate.limit(),
            stop_would_lose: StopLoss::of(forecast, self.keeper().as_ref()),
            provider: provider(status.condition, account.as_ref()),
            account,
            slow_calls: status.recent_calls.are_slow().then_some(SlowCalls {
                calls: status.recent_calls.calls,
                slow: status.recent_calls.slow,
            }),
            unanswered_calls: status.recent_calls.unanswered,
            unclear_calls: status.recent_calls.unclear,
            paused_domains: status
                .paused_domains
                .into_iter()
                .map(|(organisation, domain, message)| PausedDomain {
                    organisation: self.shown(organisation),
                    domain,
                    message,
                })
                .collect(),
        }
    }
}

impl AccountProblem {
    fn of(check: AccountCheck) -> Option<Self> {
        match check {
            AccountCheck::Unasked | AccountCheck::Passed => None,
            AccountCheck::Failed { fault, message, .. } => Some(Self { fault, message }),
        }
    }
}

/// The provider's condition. Without good credentials it takes nothing, whether a call has shown
/// that or not.
fn provider(condition: BreakerState, account: Option<&AccountProblem>) -> Provider {
    match (condition, account) {
        (BreakerState::Open { cause, message }, _) => Provider::Impaired { cause, message },
        (BreakerState::Closed, Some(AccountProblem { fault, message }))
            if fault.stops_sending() =>
        {
            Provider::Impaired { cause: Cause::SetupFault, message: message.clone() }
        }
        (BreakerState::Closed, _) => Provider::Up,
    }
}

impl From<store::LostMessages> for LostMessages {
    fn from(lost: store::LostMessages) -> Self {
        Self { messages: lost.messages, last_at: lost.last_at.to_string() }
    }
}

impl From<Jump> for ClockJump {
    fn from(jump: Jump) -> Self {
        Self {
            expected: jump.expected.to_string(),
            wall: jump.wall.to_string(),
            since: jump.since.to_string(),
            explanation: jump.to_string(),
        }
    }
}

impl StopLoss {
    fn of(forecast: DrainForecast, keeper: Option<&Keeper>) -> Self {
        let (messages, left_to_next_start) = match keeper {
            Some(Keeper::ServiceManager) => (0, forecast.messages()),
            Some(Keeper::Nobody { .. } | Keeper::NotWanted) | None => (forecast.messages(), 0),
        };
        Self {
            messages,
            left_to_next_start,
            waiting_for_provider: forecast.provider,
            waiting_for_domain: forecast.domain,
            waiting_for_retry: forecast.retry,
            beyond_pace: forecast.pace,
        }
    }
}
