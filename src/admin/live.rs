//! The live view: what the running service knows and does beyond what is stored.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::sync::{Notify, watch};
use tokio::time::timeout;

use crate::dispatch::{Cancelled, Dispatcher, SendingStatus};
use crate::domain::attempt::Provider;
use crate::domain::id::MessageId;
use crate::domain::message::Cancellation;
use crate::events::EventProcessor;
use crate::queue::{DrainForecast, Live, MessageQueue, Selection};
use crate::quota::AccountCheck;
use crate::store::StoreError;
use crate::webhooks::Webhooks;

/// How long to wait for what is wrong now, before what was wrong a second ago is told.
const LOOK: Duration = Duration::from_secs(1);

/// What only a running service can tell.
pub trait LiveView: Send + Sync {
    fn sending(&self) -> SendingStatus;

    /// What a stop at this moment would leave unsent. May take long, so it is no work for a task.
    fn forecast_stop(&self) -> DrainForecast {
        DrainForecast::default()
    }

    fn account(&self) -> AccountCheck {
        AccountCheck::Passed
    }

    /// What takes in the provider's events, where something brings them.
    fn events(&self) -> Option<&EventProcessor> {
        None
    }

    /// What delivers to endpoints, where something does.
    fn webhooks(&self) -> Option<&Webhooks> {
        None
    }

    /// What is wrong now, as the operators' page says it.
    fn conditions(&self) -> Looking<'_> {
        Box::pin(async { Vec::new() })
    }

    /// How a pending message stands this moment; `None` where it is not pending.
    fn message(&self, id: MessageId) -> Option<Live>;

    fn count(&self, _selection: &Selection) -> usize {
        0
    }

    fn cancel(&self, selection: Selection, why: Cancellation) -> Cancelling<'_>;
}

/// A look at what is wrong.
pub type Looking<'a> = Pin<Box<dyn Future<Output = Vec<Condition>> + Send + 'a>>;

/// A cancellation under way.
pub type Cancelling<'a> = Pin<Box<dyn Future<Output = Result<Cancelled, StoreError>> + Send + 'a>>;

/// The live view of a dispatcher and its queue.
#[derive(Debug)]
pub struct Sending<P> {
    pub dispatcher: Arc<Dispatcher<P>>,
    pub queue: Arc<MessageQueue>,
    pub account: watch::Receiver<AccountCheck>,
    /// What takes in the provider's events, where something brings them.
    pub events: Option<Arc<EventProcessor>>,
    pub webhooks: Arc<Webhooks>,
    pub conditions: Arc<Conditions>,
}

/// What is wrong, told by the one who looks to those who ask.
#[derive(Debug, Default)]
pub struct Conditions {
    told: watch::Sender<Vec<Condition>>,
    wanted: Notify,
}

impl Conditions {
    pub fn tell(&self, conditions: Vec<Condition>) {
        self.told.send_replace(conditions);
    }

    /// Ends when somebody asks for what is wrong now.
    pub async fn wanted(&self) {
        self.wanted.notified().await;
    }

    /// Has it looked at. If that hangs, for the database for example, the last look has to do.
    async fn now(&self) -> Vec<Condition> {
        let mut told = self.told.subscribe();
        self.wanted.notify_one();
        let _ = timeout(LOOK, told.changed()).await;
        told.borrow().clone()
    }
}

/// Something that is wrong.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Condition {
    pub code: String,
    pub message: String,
    pub advice: String,
    #[serde(default)]
    pub severity: Severity,
    pub ready: bool,
}

/// Severity of a condition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Severity {
    /// No mail flows, or mail is being lost.
    Critical,
    /// One organisation, domain or endpoint is affected, or a limit is near.
    Warning,
    #[default]
    Notice,
}

impl Severity {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Critical => "critical",
            Self::Warning => "warning",
            Self::Notice => "notice",
        }
    }
}

impl<P: Provider> LiveView for Sending<P> {
    fn sending(&self) -> SendingStatus {
        self.dispatcher.status()
    }

    fn forecast_stop(&self) -> DrainForecast {
        self.dispatcher.forecast_stop()
    }

    fn account(&self) -> AccountCheck {
        self.account.borrow().clone()
    }

    fn events(&self) -> Option<&EventProcessor> {
        self.events.as_deref()
    }

    fn webhooks(&self) -> Option<&Webhooks> {
        Some(&self.webhooks)
    }

    fn conditions(&self) -> Looking<'_> {
        Box::pin(self.conditions.now())
    }

    fn message(&self, id: MessageId) -> Option<Live> {
        self.queue.live(id)
    }

    fn count(&self, selection: &Selection) -> usize {
        self.queue.count(selection)
    }

    fn cancel(&self, selection: Selection, why: Cancellation) -> Cancelling<'_> {
        Box::pin(async move { self.dispatcher.cancel(&selection, why).await })
    }
}
