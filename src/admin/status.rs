//! State of the service, address of its page, and the operator's decisions about its clock and lost
//! messages.

use std::net::SocketAddr;
use std::sync::Arc;

use secrecy::ExposeSecret as _;
use serde::{Deserialize, Serialize};
use tracing::info;

use crate::bodies::{Bodies, Keeper};
use crate::conditions::{self, Condition};
use crate::live::LiveView;
use crate::snapshot::{CertificateState, Snapshot, StoreHealth, Stored, TakenIn};
use crate::{Acknowledge, Admin, ClockConfirm, Page, Result, Status};
use pillarbox_dispatch::circuit_breaker::{BreakerState, Cause};
use pillarbox_dispatch::quota::{AccountCheck, AccountFault};
use pillarbox_maintenance::timekeeper;
use pillarbox_queue::DrainForecast;
use pillarbox_runtime::clock::{ConfirmedBy, Jump};
use pillarbox_runtime::detached_thread;
use pillarbox_store::{DamagedRow, EventBacklog};

/// Number of damaged rows that are shown one by one.
const MAX_DAMAGED_SHOWN: usize = 20;

/// The address of the operators' page, with what opens it.
#[derive(Clone, Serialize, Deserialize)]
pub struct PageAddress {
    /// A URL for a browser. It is a secret.
    pub url: String,
}

/// State of the service.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ServiceStatus {
    pub version: String,
    /// Time since the start of the service; `None` if none runs.
    pub uptime_seconds: Option<u64>,
    /// Address at which clients are served, with the port in use; `None` if no service runs.
    pub client_address: Option<SocketAddr>,
    /// Address of the API in Resend's shape, with the port in use; `None` if it is off or no
    /// service runs.
    pub resend_address: Option<SocketAddr>,
    /// Listeners at which messages are submitted over SMTP; empty if no service runs.
    pub smtp_listeners: Vec<SmtpListener>,
    /// The certificate that clients are shown; `None` if no service speaks TLS.
    pub certificate: Option<Certificate>,
    pub store: StoreHealth,
    /// True if the store did not answer in time. Lost messages and events that wait are then those of
    /// its last answer.
    #[serde(default)]
    pub store_silent: bool,
    pub damaged: Damaged,
    /// Doubt of the clock that holds windows back, if there is one.
    pub clock_jump: Option<ClockJump>,
    /// Messages that failed because their process ended, and that no operator has acknowledged.
    pub lost_messages: Option<LostMessages>,
    /// State of sending; `None` if no service runs.
    pub sending: Option<Sending>,
    /// Bodies of pending messages; `None` if no service runs.
    pub bodies: Option<Bodies>,
    pub events: Events,
    /// Conditions that hold, in the words of the operators' page; empty if no service runs.
    pub conditions: Vec<Condition>,
    pub counts: Counts,
}

/// Listener of SMTP submission.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SmtpListener {
    /// Its address, with the port that it was given.
    pub address: SocketAddr,
    pub begins: SessionStart,
    pub opened_by: SocketOpener,
}

/// Beginning of a session of SMTP.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum SessionStart {
    /// In plain text (`smtp.listen`).
    PlainText,
    /// TLS from the first byte (`smtp.tls_listen`).
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

/// Rows of the store that cannot be read. The data that they held has no effect, except that
/// damaged suppressions still suppress.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Damaged {
    pub count: usize,
    /// The first of them.
    pub rows: Vec<DamagedRow>,
}

impl Damaged {
    /// Advice for damaged rows.
    pub const ADVICE: &'static str = "Their content has no effect, except that damaged \
                                      suppressions still suppress; everything else works. Check \
                                      the disk, then restore a backup, or add the missing \
                                      entries again";
}

/// The certificate that clients are shown.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Certificate {
    /// End of its validity; `None` if it states none.
    pub expires_at: Option<String>,
    /// Problems with it or with its successor, and what to do.
    pub troubles: Vec<String>,
}

/// State of the provider's events.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Events {
    /// Events that the running service took in; `None` if none runs or nothing brings events.
    pub taken_in: Option<TakenIn>,
    /// Events that wait in the store; `None` if it cannot be read.
    pub stored: Option<EventBacklog>,
}

/// Doubt of the wall clock.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
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

/// State of sending to the provider.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Sending {
    pub pending_messages: usize,
    /// Of these, the ones with a call under way.
    pub in_flight: usize,
    pub pending_bytes: usize,
    pub max_pending_bytes: usize,
    /// Organisations whose share of the budget is used up: their new messages are refused.
    pub full_for: Vec<String>,
    /// Rate in recipients per second; `None` if only the calls limit it.
    pub recipients_per_second: Option<f64>,
    /// Messages that a stop at this moment would lose or leave.
    pub stop_would_lose: StopLoss,
    /// Problem with the AWS credentials, if there is one.
    pub account: Option<AccountProblem>,
    pub provider: Provider,
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
    /// The ones that wait because the provider does not accept their sender's domain.
    pub waiting_for_domain: usize,
    /// The ones that may have been accepted, and whose retry is due only after the drain.
    pub waiting_for_retry: usize,
    /// The ones of organisations that an operator has paused.
    #[serde(default)]
    pub waiting_for_resume: usize,
    /// The ones for which the drain is too short at this rate, or the daily quota too small.
    pub beyond_pace: usize,
}

/// State of the provider, from the results of calls.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "condition")]
pub enum Provider {
    /// Calls succeed.
    Up,
    /// Calls fail, or get no answer.
    Impaired {
        cause: Cause,
        /// Message of the provider, or the failure of the call.
        message: String,
    },
}

/// Problem with the AWS credentials.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AccountProblem {
    pub fault: AccountFault,
    /// Message of AWS, or the reason why they cannot be loaded.
    pub message: String,
}

/// A sender domain that the provider does not accept for now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PausedDomain {
    pub organisation: String,
    pub domain: String,
    pub message: String,
}

/// Messages that failed because the process that held their bodies ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LostMessages {
    pub messages: u64,
    /// Time at which the last of them was found.
    pub last_at: String,
}

/// An operator has seen the lost messages.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Acknowledged {
    /// Those that were still to be seen; `None` if there were none.
    pub lost_messages: Option<LostMessages>,
}

/// Numbers of what is set up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Counts {
    pub organisations: usize,
    pub keys: usize,
    pub domains: usize,
    /// Of these, the ones that cannot be sent from yet.
    pub domains_pending: usize,
}

/// The wall clock's time is taken as right.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClockConfirmed {
    pub now: String,
    /// The jump that this ended, if there was one.
    pub jump: Option<ClockJump>,
}

pub(super) async fn status(admin: &Admin, _: Status) -> Result<ServiceStatus> {
    let (store, clock) = (&admin.store, &admin.clock);
    let facts = admin.facts().ok();
    let observed = match admin.live() {
        Some(live) => {
            let forecast = forecast(live).await;
            Some((live.snapshot().await, forecast))
        }
        None => None,
    };
    let snapshot = observed.as_ref().map(|(snapshot, _)| snapshot);
    let stored = match snapshot {
        Some(snapshot) => snapshot.stored.clone(),
        None => Stored::ask(store, clock, &Stored::default()).await,
    };
    let (rows, domains) = (store.damaged(), store.domains());
    Ok(ServiceStatus {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        uptime_seconds: admin.service.as_ref().map(|service| service.started.elapsed().as_secs()),
        client_address: facts.map(|facts| facts.clients),
        resend_address: facts.and_then(|facts| facts.resend),
        smtp_listeners: facts.map_or_else(Vec::new, |facts| facts.smtp.clone()),
        certificate: snapshot.and_then(|it| it.certificate.as_ref()).map(certificate),
        store: snapshot.map_or_else(|| store.health().into(), |snapshot| snapshot.store),
        store_silent: stored.is_silent,
        damaged: Damaged {
            count: rows.len(),
            rows: rows.into_iter().take(MAX_DAMAGED_SHOWN).collect(),
        },
        clock_jump: clock.jump().map(ClockJump::from),
        lost_messages: stored.lost.ok().flatten().map(LostMessages::from),
        sending: observed.as_ref().map(|(snapshot, forecast)| admin.sending(snapshot, *forecast)),
        bodies: snapshot.and_then(|snapshot| snapshot.bodies.clone()),
        events: Events {
            taken_in: snapshot.and_then(|snapshot| snapshot.taken_in.clone()),
            stored: stored.backlog,
        },
        conditions: snapshot.map(conditions::all).unwrap_or_default(),
        counts: Counts {
            organisations: store.organisations().len(),
            keys: store.api_keys().len(),
            domains: domains.len(),
            domains_pending: domains.iter().filter(|d| !d.state.is_verified()).count(),
        },
    })
}

/// Returns what a stop now would leave unsent. It takes the processor for long if much is pending.
async fn forecast(live: &Arc<dyn LiveView>) -> DrainForecast {
    let looking = Arc::clone(live);
    let forecast = detached_thread::run("forecast", move || looking.forecast_stop());
    forecast.await.unwrap_or_else(|_| live.forecast_stop())
}

pub(super) async fn acknowledge(admin: &Admin, _: Acknowledge) -> Result<Acknowledged> {
    let lost = admin.store.acknowledge_lost_messages(admin.clock.window_time().now()).await?;
    if let Some(lost) = lost {
        info!(messages = lost.messages, "an operator has acknowledged the lost messages");
    }
    Ok(Acknowledged { lost_messages: lost.map(LostMessages::from) })
}

pub(super) fn page(admin: &Admin, _: &Page) -> Result<PageAddress> {
    Ok(PageAddress { url: admin.facts()?.page.expose_secret().to_owned() })
}

pub(super) async fn confirm_clock(admin: &Admin, _: ClockConfirm) -> Result<ClockConfirmed> {
    let jump = admin.clock.jump().map(ClockJump::from);
    timekeeper::resolve(&admin.store, &admin.clock, ConfirmedBy::Operator).await?;
    Ok(ClockConfirmed { now: admin.clock.now().to_string(), jump })
}

impl Admin {
    fn sending(&self, snapshot: &Snapshot, mut forecast: DrainForecast) -> Sending {
        let (status, recent) = (&snapshot.sending, snapshot.sending.recent_calls);
        let account = match &snapshot.account {
            AccountCheck::Unasked | AccountCheck::Passed => None,
            AccountCheck::Failed { fault, message, .. } => {
                Some(AccountProblem { fault: *fault, message: message.clone() })
            }
        };
        if account.as_ref().is_some_and(|problem| problem.fault.stops_sending()) {
            let provider = status.pending.messages;
            forecast = DrainForecast { provider, ..DrainForecast::default() };
        }
        let paused = |(organisation, domain, message)| {
            let organisation = self.shown(organisation);
            PausedDomain { organisation, domain, message }
        };
        let slow = SlowCalls { calls: recent.calls, slow: recent.slow };
        let keeper = snapshot.bodies.as_ref().map(|bodies| &bodies.keeper);
        Sending {
            pending_messages: status.pending.messages,
            in_flight: status.pending.in_flight,
            pending_bytes: status.pending.bytes,
            max_pending_bytes: status.max_pending_bytes,
            full_for: status.full_for.iter().map(|id| self.shown(*id)).collect(),
            recipients_per_second: status.rate.limit(),
            stop_would_lose: StopLoss::of(forecast, keeper),
            provider: provider(status.condition.clone(), account.as_ref()),
            account,
            slow_calls: recent.are_slow().then_some(slow),
            unanswered_calls: recent.unanswered,
            unclear_calls: recent.unclear,
            paused_domains: status.paused_domains.iter().cloned().map(paused).collect(),
        }
    }
}

fn certificate(state: &CertificateState) -> Certificate {
    let troubles = state.troubles.iter();
    let troubles = troubles.map(|it| format!("{}. {}", it.message, it.fault.explained().1));
    let expires_at = state.expires_at.map(|at| at.to_string());
    Certificate { expires_at, troubles: troubles.collect() }
}

/// The provider's condition. Without good credentials it takes nothing, whether a call has shown
/// that or not.
fn provider(condition: BreakerState, account: Option<&AccountProblem>) -> Provider {
    match (condition, account) {
        (BreakerState::Open { cause, message }, _) => Provider::Impaired { cause, message },
        (BreakerState::Closed, Some(problem)) if problem.fault.stops_sending() => {
            Provider::Impaired { cause: Cause::SetupFault, message: problem.message.clone() }
        }
        (BreakerState::Closed, _) => Provider::Up,
    }
}

impl From<pillarbox_store::LostMessages> for LostMessages {
    fn from(lost: pillarbox_store::LostMessages) -> Self {
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
            waiting_for_resume: forecast.paused,
            beyond_pace: forecast.pace,
        }
    }
}
