//! The live view: what the running service knows and does beyond what is stored.

use std::pin::Pin;

use crate::snapshot::Snapshot;
use pillarbox_dispatch::{Cancelled, PausedMessages};
use pillarbox_domain::id::{MessageId, OrganisationId};
use pillarbox_domain::message::Cancellation;
use pillarbox_queue::{DrainForecast, Live, Selection};
use pillarbox_store::StoreError;
use pillarbox_webhooks::Webhooks;

/// State that only a running service knows.
pub trait LiveView: Send + Sync {
    /// The service at this moment.
    fn snapshot(&self) -> Looking<'_>;

    /// Forecast of the messages that a stop at this moment would leave unsent. May take long, so it
    /// is no work for a task.
    fn forecast_stop(&self) -> DrainForecast {
        DrainForecast::default()
    }

    /// Deliveries to endpoints; `None` if nothing delivers to them.
    fn webhooks(&self) -> Option<&Webhooks> {
        None
    }

    /// State of a pending message at this moment; `None` if it is not pending.
    fn message(&self, id: MessageId) -> Option<Live>;

    fn count(&self, _selection: &Selection) -> usize {
        0
    }

    fn cancel(&self, selection: Selection, why: Cancellation) -> Cancelling<'_>;

    /// Has each call that starts from the end of this on be one that the directory allows. Returns the
    /// pending messages of an organisation as they are then.
    fn follow_pauses(&self, _organisation: OrganisationId) -> Pausing<'_> {
        Box::pin(async { PausedMessages::default() })
    }
}

/// A snapshot that is being made.
pub type Looking<'a> = Pin<Box<dyn Future<Output = Snapshot> + Send + 'a>>;

/// A pause that is being followed.
pub type Pausing<'a> = Pin<Box<dyn Future<Output = PausedMessages> + Send + 'a>>;

/// A cancellation under way.
pub type Cancelling<'a> = Pin<Box<dyn Future<Output = Result<Cancelled, StoreError>> + Send + 'a>>;
