//! The live view: what the running service knows and does beyond what is stored.

use std::pin::Pin;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use crate::dispatch::{Cancelled, Dispatcher, SendingStatus};
use crate::domain::attempt::Provider;
use crate::domain::id::MessageId;
use crate::domain::message::Cancellation;
use crate::events::EventProcessor;
use crate::queue::{DrainForecast, Live, MessageQueue, Selection};
use crate::quota::AccountCheck;
use crate::store::StoreError;
use crate::webhooks::Webhooks;

/// What only a running service can tell.
pub trait LiveView: Send + Sync {
    /// How sending goes.
    fn sending(&self) -> SendingStatus;

    /// What a stop at this moment would leave unsent. May take long, so it is no work for a task.
    fn forecast_stop(&self) -> DrainForecast {
        DrainForecast::default()
    }

    /// What is known of the AWS credentials.
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

    /// What is wrong, as the operators' page says it.
    fn conditions(&self) -> Vec<Condition> {
        Vec::new()
    }

    /// How a pending message stands this moment; `None` where it is not pending.
    fn message(&self, id: MessageId) -> Option<Live>;

    /// Counts pending messages.
    fn count(&self, _selection: &Selection) -> usize {
        0
    }

    /// Cancels pending messages.
    fn cancel(&self, selection: Selection, why: Cancellation) -> Cancelling<'_>;
}

/// A cancellation under way.
pub type Cancelling<'a> = Pin<Box<dyn Future<Output = Result<Cancelled, StoreError>> + Send + 'a>>;

/// The live view of a dispatcher and its queue.
#[derive(Debug)]
pub struct Sending<P> {
    /// What sends.
    pub dispatcher: Arc<Dispatcher<P>>,
    /// What it sends from.
    pub queue: Arc<MessageQueue>,
    /// What is known of the AWS credentials.
    pub account: watch::Receiver<AccountCheck>,
    /// What takes in the provider's events, where something brings them.
    pub events: Option<Arc<EventProcessor>>,
    /// What delivers to endpoints.
    pub webhooks: Arc<Webhooks>,
    /// What is wrong, a second ago at most.
    pub conditions: watch::Receiver<Vec<Condition>>,
}

/// Something that is wrong.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Condition {
    /// A name for programs.
    pub code: String,
    /// What is wrong.
    pub message: String,
    /// What to do.
    pub advice: String,
    /// Whether the service does its work all the same.
    pub ready: bool,
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

    fn conditions(&self) -> Vec<Condition> {
        self.conditions.borrow().clone()
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
