//! The live view: what the running service knows beyond what is stored.

use std::sync::Arc;

use tokio::sync::watch;

use crate::dispatch::{Dispatcher, SendingStatus};
use crate::domain::attempt::Provider;
use crate::domain::id::MessageId;
use crate::feedback::Feedback;
use crate::outbox::{Live, Outbox};
use crate::quota::AccountCheck;

/// What only a running service can tell.
pub trait LiveView: Send + Sync {
    /// How sending goes.
    fn sending(&self) -> SendingStatus;

    /// What is known of the AWS credentials.
    fn account(&self) -> AccountCheck {
        AccountCheck::Passed
    }

    /// What takes in the provider's events, where something brings them.
    fn feedback(&self) -> Option<&Feedback> {
        None
    }

    /// How a pending message stands this moment; `None` where it is not pending.
    fn message(&self, id: MessageId) -> Option<Live>;
}

/// The live view of a dispatcher and its outbox.
#[derive(Debug)]
pub struct Sending<P> {
    /// What sends.
    pub dispatcher: Arc<Dispatcher<P>>,
    /// What it sends from.
    pub outbox: Arc<Outbox>,
    /// What is known of the AWS credentials.
    pub account: watch::Receiver<AccountCheck>,
    /// What takes in the provider's events, where something brings them.
    pub feedback: Option<Arc<Feedback>>,
}

impl<P: Provider> LiveView for Sending<P> {
    fn sending(&self) -> SendingStatus {
        self.dispatcher.status()
    }

    fn account(&self) -> AccountCheck {
        self.account.borrow().clone()
    }

    fn feedback(&self) -> Option<&Feedback> {
        self.feedback.as_deref()
    }

    fn message(&self, id: MessageId) -> Option<Live> {
        self.outbox.live(id)
    }
}
