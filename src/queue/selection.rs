//! Selections of pending messages that are to be cancelled.
//!
//! Knows nothing of the store: the caller records the end of the messages that it takes out.

use std::collections::BTreeSet;

use crate::Claim;
use crate::lanes::DomainHash;
use pillarbox_domain::id::{KeyId, MessageId, OrganisationId};
use pillarbox_domain::mailbox::DomainName;

/// Pending messages that are to be cancelled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Selection {
    /// Those with these ids.
    Ids(BTreeSet<MessageId>),
    /// Those of an organisation.
    Organisation {
        /// Organisation of the messages.
        organisation: OrganisationId,
        /// Only those that this API key has posted.
        key: Option<KeyId>,
        /// Only those from this sender domain.
        sender_domain: Option<DomainName<'static>>,
    },
}

/// Result of a cancellation's way to the process that holds the message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CancelReach {
    /// It did: the message has ended, or is not tried again after the call that is under way.
    Holder,
    /// Of those that answered, no process holds it.
    Nobody,
}

/// Part of a selection that was handled in one step.
#[derive(Debug)]
pub struct Selected {
    /// Messages that waited and are taken out now.
    pub taken: Vec<Claim>,
    /// Messages whose call is under way.
    pub calls_under_way: usize,
    /// Messages with a selected id that are not pending, or are being ended already.
    pub not_pending: usize,
    /// Message after which the next step goes on; `None` at the end.
    pub next: Option<MessageId>,
}

impl Selection {
    /// Everything of an organisation.
    pub const fn of(organisation: OrganisationId) -> Self {
        Self::Organisation { organisation, key: None, sender_domain: None }
    }

    /// Returns true if it covers a message; whether an API key has posted it is asked last.
    pub(super) fn covers(
        &self,
        id: MessageId,
        of: OrganisationId,
        from: DomainHash,
        was_posted_by: impl FnOnce(KeyId) -> bool,
    ) -> bool {
        match self {
            Self::Ids(ids) => ids.contains(&id),
            Self::Organisation { organisation, key, sender_domain } => {
                let domain = sender_domain.as_ref();
                of == *organisation
                    && domain.is_none_or(|domain| from == DomainHash::of(domain))
                    && key.is_none_or(was_posted_by)
            }
        }
    }
}
