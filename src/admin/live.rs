//! The live view: what the running service knows and does beyond what is stored.

use std::pin::Pin;

use crate::admin::snapshot::Snapshot;
use crate::dispatch::Cancelled;
use crate::domain::id::MessageId;
use crate::domain::message::Cancellation;
use crate::queue::{DrainForecast, Live, Selection};
use crate::store::StoreError;
use crate::webhooks::Webhooks;

/// What only a running service can tell.
pub trait LiveView: Send + Sync {
    /// The service at this moment.
    fn snapshot(&self) -> Looking<'_>;

    /// What a stop at this moment would leave unsent. May take long, so it is no work for a task.
    fn forecast_stop(&self) -> DrainForecast {
        DrainForecast::default()
    }

    /// What delivers to endpoints, where something does.
    fn webhooks(&self) -> Option<&Webhooks> {
        None
    }

    /// How a pending message stands this moment; `None` where it is not pending.
    fn message(&self, id: MessageId) -> Option<Live>;

    fn count(&self, _selection: &Selection) -> usize {
        0
    }

    fn cancel(&self, selection: Selection, why: Cancellation) -> Cancelling<'_>;
}

/// A snapshot that is being made.
pub type Looking<'a> = Pin<Box<dyn Future<Output = Snapshot> + Send + 'a>>;

/// A cancellation under way.
pub type Cancelling<'a> = Pin<Box<dyn Future<Output = Result<Cancelled, StoreError>> + Send + 'a>>;
