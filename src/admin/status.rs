//! How the service is doing, and the operator's word on its clock.

use std::sync::Arc;

use secrecy::ExposeSecret as _;
use tokio::task::spawn_blocking;
use tracing::info;

use crate::admin::live::LiveView;
use crate::admin::wire::{
    AccountFault, AccountProblem, Acknowledged, Cause, Certificate, ClockConfirmed, ClockJump,
    Counts, Damaged, DamagedRow, Events, LostMessages, PausedDomain, Provider, Refusal, Response,
    Sending, ServiceStatus, SlowCalls, StopLoss, StoredEvents, TakenIn,
};
use crate::admin::{Admin, Place, Ways};
use crate::clock::{ConfirmedBy, Jump};
use crate::dispatch::circuit_breaker::{self, BreakerState};
use crate::domain::event::EventType;
use crate::domain::time::Timestamp;
use crate::events::EventProcessor;
use crate::events::metrics::DocumentType;
use crate::queue::DrainForecast;
use crate::quota::{self, AccountCheck};
use crate::store;
use crate::timekeeper;

/// How many damaged rows are shown one by one.
const MAX_DAMAGED_SHOWN: usize = 20;

impl Admin {
    pub(super) async fn status(&self) -> Response {
        let (uptime_seconds, client_address, sending) = match &self.place {
            Place::File => (None, None, None),
            Place::Service { live, started, ways, .. } => (
                Some(started.elapsed().as_secs()),
                ways.as_ref().map(|ways| ways.clients),
                Some(self.sending(live).await),
            ),
        };
        let domains = self.store.domains();
        Response::Status(Box::new(ServiceStatus {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            uptime_seconds,
            client_address,
            certificate: self.certificate(),
            store: self.store.health().into(),
            damaged: self.damaged(),
            clock_jump: self.clock.jump().map(ClockJump::from),
            lost_messages: self
                .store
                .lost_messages(self.clock.settled().now())
                .ok()
                .flatten()
                .map(LostMessages::from),
            sending,
            events: self.events(),
            counts: Counts {
                organisations: self.store.organisations().len(),
                keys: self.store.api_keys().len(),
                domains: domains.len(),
                domains_pending: domains.iter().filter(|d| !d.state.is_verified()).count(),
            },
        }))
    }

    fn damaged(&self) -> Damaged {
        let rows = self.store.damaged();
        let count = rows.len();
        let rows = rows.into_iter().take(MAX_DAMAGED_SHOWN).map(|row| DamagedRow {
            table: row.table,
            id: row.id,
            address: row.address,
            reason: row.reason,
        });
        Damaged { count, rows: rows.collect() }
    }

    /// The certificate that clients are shown, where TLS is spoken to them.
    fn certificate(&self) -> Option<Certificate> {
        let Place::Service { ways: Some(Ways { tls: Some(tls), .. }), .. } = &self.place else {
            return None;
        };
        let troubles = tls.troubles(self.clock.now()).into_iter();
        Some(Certificate {
            expires_at: tls.expires_at().map(|at| at.to_string()),
            troubles: troubles
                .map(|trouble| format!("{}. {}", trouble.message, trouble.advice))
                .collect(),
        })
    }

    fn events(&self) -> Events {
        let events = match &self.place {
            Place::File => None,
            Place::Service { live, .. } => live.events(),
        };
        let stored = self.store.event_backlog().ok().map(|backlog| StoredEvents {
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

    /// Takes an operator's word that the lost messages were seen.
    pub(super) async fn acknowledge(&self) -> Result<Response, Refusal> {
        let lost = self.store.acknowledge_lost_messages(self.clock.settled().now()).await?;
        if let Some(lost) = lost {
            info!(messages = lost.messages, "an operator has acknowledged the lost messages");
        }
        let lost_messages = lost.map(LostMessages::from);
        Ok(Response::Acknowledged(Acknowledged { lost_messages }))
    }

    /// Where the operators' page is.
    pub(super) fn page(&self) -> Result<Response, Refusal> {
        match &self.place {
            Place::Service { page: Some(url), .. } => {
                Ok(Response::Page { url: url.expose_secret().to_owned() })
            }
            Place::Service { .. } | Place::File => Err(Refusal::new(
                "no service runs, so there is no page; start it with `pillarbox serve`",
            )),
        }
    }

    pub(super) async fn confirm_clock(&self) -> Result<Response, Refusal> {
        match self.place {
            Place::Service { .. } => {}
            Place::File => {
                return Err(Refusal::new(
                    "no service runs, so there is nothing to confirm; start the service, and \
                     confirm the clock if `pillarbox status` says that it is in doubt",
                ));
            }
        }
        let jump = self.clock.jump().map(ClockJump::from);
        timekeeper::settle(&self.store, &self.clock, ConfirmedBy::Operator).await?;
        let now = self.clock.now().to_string();
        Ok(Response::ClockConfirmed(ClockConfirmed { now, jump }))
    }

    async fn sending(&self, live: &Arc<dyn LiveView>) -> Sending {
        let (status, account) = (live.sending(), live.account());
        let looking = Arc::clone(live);
        let forecast = spawn_blocking(move || looking.forecast_stop());
        let forecast = forecast.await.expect("a forecast does not panic and is not aborted");
        Sending {
            pending_messages: status.pending.messages,
            in_flight: status.pending.in_flight,
            pending_bytes: status.pending.bytes,
            max_pending_bytes: status.max_pending_bytes,
            full_for: status.full_for.into_iter().map(|id| self.shown(id)).collect(),
            recipients_per_second: status.rate.limit(),
            stop_would_lose: forecast.into(),
            account: match account {
                AccountCheck::Unasked | AccountCheck::Passed => None,
                AccountCheck::Failed { fault, message } => {
                    Some(AccountProblem { fault: fault.into(), message })
                }
            },
            slow_calls: status.recent_calls.are_slow().then_some(SlowCalls {
                calls: status.recent_calls.calls,
                slow: status.recent_calls.slow,
            }),
            unanswered_calls: status.recent_calls.unanswered,
            provider: match status.condition {
                BreakerState::Closed => Provider::Up,
                BreakerState::Open { cause, message } => {
                    Provider::Impaired { cause: cause.into(), message }
                }
            },
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

impl From<DrainForecast> for StopLoss {
    fn from(forecast: DrainForecast) -> Self {
        Self {
            messages: forecast.messages(),
            waiting_for_provider: forecast.provider,
            waiting_for_domain: forecast.domain,
            waiting_for_retry: forecast.retry,
            beyond_pace: forecast.pace,
        }
    }
}

impl From<quota::AccountFault> for AccountFault {
    fn from(fault: quota::AccountFault) -> Self {
        match fault {
            quota::AccountFault::CredentialsMissing => Self::CredentialsMissing,
            quota::AccountFault::CredentialsRefused => Self::CredentialsRefused,
            quota::AccountFault::AccessDenied => Self::AccessDenied,
        }
    }
}

impl From<circuit_breaker::Cause> for Cause {
    fn from(cause: circuit_breaker::Cause) -> Self {
        match cause {
            circuit_breaker::Cause::Unreachable => Self::Unreachable,
            circuit_breaker::Cause::QuotaExhausted => Self::QuotaExhausted,
            circuit_breaker::Cause::AccountPaused => Self::AccountPaused,
            circuit_breaker::Cause::SetupFault => Self::SetupFault,
        }
    }
}
