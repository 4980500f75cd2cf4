//! Requests of operators to all nodes: to stop messages, and to count those that wait. A node asks
//! the others through the database, and each answers for what it holds in memory. Must not know
//! connections between nodes: there are none.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::admin::Admin;
use crate::admin::message::owned_domain;
use crate::dispatch::Cancelled;
use crate::domain::id::{KeyId, OrganisationId};
use crate::domain::message::Cancellation;
use crate::queue::Selection;
use crate::store::{NodeRequest, StoreError};

/// Time that the other nodes have to answer (contract, section 12).
const PATIENCE: Duration = Duration::from_secs(5);

/// Request of one node to another.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
enum NodeCall {
    Cancel {
        messages: Messages,
        #[serde(with = "Reason")]
        why: Cancellation,
    },
    Count {
        messages: Messages,
    },
}

/// Messages that a node may hold.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
enum Messages {
    WithIds(BTreeSet<String>),
    OfOrganisation { organisation: u32, key: Option<u32>, domain: Option<String> },
}

/// Reason of a cancellation, as nodes write it.
#[derive(Serialize, Deserialize)]
#[serde(remote = "Cancellation", rename_all = "camelCase")]
enum Reason {
    ByOperator,
    OrganisationRemoved,
    DomainRemoved,
}

/// Counts of one node.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct NodeCounts {
    cancelled: usize,
    calls_under_way: usize,
    not_pending: usize,
    pending: usize,
}

/// Sum of what all nodes did or counted, and the names of those that did not answer.
pub(super) type OnAllNodes<T> = (T, Vec<String>);

impl Admin {
    /// Cancels pending messages on all nodes; none are where no service runs.
    pub(super) async fn cancel(
        &self,
        selection: Selection,
        why: Cancellation,
    ) -> Result<OnAllNodes<Cancelled>, StoreError> {
        let Some(live) = self.live() else {
            return Ok(Default::default());
        };
        let call = NodeCall::Cancel { messages: Messages::of(&selection), why };
        let named = match &selection {
            Selection::Ids(ids) => ids.len(),
            Selection::Organisation { .. } => 0,
        };
        let (own, others) = tokio::join!(live.cancel(selection, why), self.ask_others(&call));
        let (mut sum, (others, silent)) = (own?, others?);
        for other in &others {
            sum.cancelled += other.cancelled;
            sum.calls_under_way += other.calls_under_way;
            // Each message is on one node at most.
            let held = named.saturating_sub(other.not_pending);
            sum.not_pending = sum.not_pending.saturating_sub(held);
        }
        Ok((sum, silent))
    }

    /// Counts pending messages on all nodes.
    pub(super) async fn count_pending(
        &self,
        selection: &Selection,
    ) -> Result<OnAllNodes<usize>, StoreError> {
        let Some(live) = self.live() else {
            return Ok(Default::default());
        };
        let call = NodeCall::Count { messages: Messages::of(selection) };
        let (others, silent) = self.ask_others(&call).await?;
        let sum = live.count(selection) + others.iter().map(|other| other.pending).sum::<usize>();
        Ok((sum, silent))
    }

    async fn ask_others(&self, call: &NodeCall) -> Result<OnAllNodes<Vec<NodeCounts>>, StoreError> {
        let request = serde_json::to_vec(call).expect("a call is texts and numbers");
        let (mut answered, mut silent) = (Vec::new(), Vec::new());
        for other in self.store.ask_other_nodes(request, PATIENCE).await? {
            match other.answer.and_then(|answer| serde_json::from_slice(&answer).ok()) {
                Some(counts) => answered.push(counts),
                None => silent.push(other.node),
            }
        }
        Ok((answered, silent))
    }
}

/// Answers the other nodes for as long as it is polled.
pub async fn answer_others(admin: Arc<Admin>) {
    loop {
        let NodeRequest { id, request } = admin.store.next_request().await;
        let Some(counts) = answer(&admin, &request).await else {
            // Who asked learns that this node did not answer.
            tracing::warn!("a request of another node could not be answered");
            continue;
        };
        let counts = serde_json::to_vec(&counts).expect("counts are numbers");
        if let Err(error) = admin.store.answer_request(id, counts).await {
            tracing::warn!(%error, "the answer to another node could not be given");
        }
    }
}

async fn answer(admin: &Admin, request: &[u8]) -> Option<NodeCounts> {
    let live = admin.live()?;
    match serde_json::from_slice(request).ok()? {
        NodeCall::Cancel { messages, why } => {
            let cancelled = live.cancel(messages.selection()?, why).await.ok()?;
            let Cancelled { cancelled, calls_under_way, not_pending } = cancelled;
            Some(NodeCounts { cancelled, calls_under_way, not_pending, pending: 0 })
        }
        NodeCall::Count { messages } => {
            let pending = live.count(&messages.selection()?);
            Some(NodeCounts { pending, ..NodeCounts::default() })
        }
    }
}

impl Messages {
    fn of(selection: &Selection) -> Self {
        match selection {
            Selection::Ids(ids) => Self::WithIds(ids.iter().map(ToString::to_string).collect()),
            Selection::Organisation { organisation, key, sender_domain } => Self::OfOrganisation {
                organisation: organisation.0,
                key: key.map(|key| key.0),
                domain: sender_domain.as_ref().map(|domain| domain.as_str().to_owned()),
            },
        }
    }

    fn selection(self) -> Option<Selection> {
        Some(match self {
            Self::WithIds(ids) => {
                Selection::Ids(ids.iter().map(|id| id.parse().ok()).collect::<Option<_>>()?)
            }
            Self::OfOrganisation { organisation, key, domain } => Selection::Organisation {
                organisation: OrganisationId(organisation),
                key: key.map(KeyId),
                sender_domain: owned_domain(domain.as_deref()).ok()?,
            },
        })
    }
}
