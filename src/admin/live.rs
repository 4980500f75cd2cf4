//! The live view: what the running service knows and does beyond what is stored.

use std::pin::Pin;

use crate::admin::snapshot::Snapshot;
use crate::dispatch::{Cancelled, PausedMessages};
use crate::queue::{DrainForecast, Live, Selection};
use crate::webhooks::Webhooks;
use pillarbox_domain::id::{MessageId, OrganisationId};
use pillarbox_domain::message::Cancellation;
use pillarbox_store::StoreError;

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
