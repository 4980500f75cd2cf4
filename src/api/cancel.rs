//! `POST /emails/{id}/cancel`: an application stops one of its messages. Must not know where the body
//! of the message is.

use std::fmt::Debug;
use std::pin::Pin;
use std::time::{Duration, Instant};

use crate::RequestHandler;
use crate::error::ApiError;
use pillarbox_domain::id::MessageId;
use pillarbox_domain::message::{Message, Status};
use pillarbox_domain::organisation::Organisation;
use pillarbox_queue::{CancelReach, Live, View, live_changes};
use pillarbox_store::StoreError;

/// Time that a cancelled message has to end, or to show that its call is under way. The client gets an
/// answer within 5 seconds (contract, section 1).
const PATIENCE: Duration = Duration::from_millis(4_500);

/// Cancels messages wherever they wait.
pub trait Canceller: Debug + Send + Sync {
    /// Has a message end, or not be tried again after the call that is under way. That is durable when
    /// the process is reached that holds it.
    fn cancel(&self, id: MessageId) -> Cancelling<'_>;
}

/// A cancellation under way. It also completes if its caller has disconnected.
pub type Cancelling<'a> =
    Pin<Box<dyn Future<Output = Result<CancelReach, StoreError>> + Send + 'a>>;

impl RequestHandler {
    /// Cancels a message, and returns it as it is then. One that is final is left as it is.
    pub async fn cancel(
        &self,
        organisation: &Organisation,
        text: &str,
    ) -> Result<(Message, Option<Live>), ApiError> {
        let end = Instant::now() + PATIENCE;
        let message = self.message_of(organisation, text).await?;
        if message.status() == Status::Queued {
            let canceller = self.canceller.get().ok_or(ApiError::StorageUnavailable)?;
            match canceller.cancel(message.id).await? {
                CancelReach::Holder => {}
                CancelReach::Nobody => {
                    // It may have ended in between. Then its record says so now.
                    let message = self.message_of(organisation, text).await?;
                    if message.status() == Status::Queued {
                        return Err(ApiError::HolderSilent);
                    }
                }
            }
        }
        // If its call has just failed, or something else is ending it, that is about to be stored.
        // Reports of calls on other nodes arrive a little later.
        loop {
            let (message, live) = self.current(organisation, text).await?;
            if View::of(&message, live.as_ref()).status != Status::Queued {
                return Ok((message, live));
            }
            if Instant::now() >= end {
                return Err(ApiError::HolderSilent);
            }
            live_changes().await;
        }
    }
}
