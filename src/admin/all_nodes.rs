//! Requests of operators to all nodes: to stop messages, to count those that wait, and to follow
//! what was stored for an organisation. A node asks the others through the database, and each
//! answers for what it holds in memory. Must not know connections between nodes: there are none.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::time::timeout;

use crate::Admin;
use crate::message::owned_domain;
use pillarbox_dispatch::{Cancelled, PausedMessages};
use pillarbox_domain::id::{KeyId, MessageId, OrganisationId};
use pillarbox_domain::message::Cancellation;
use pillarbox_domain::time::Timestamp;
use pillarbox_queue::{CancelReach, Selection};
use pillarbox_store::{NodeRequest, StoreError};

/// Time that the other nodes have to answer (contract, section 12).
const PATIENCE: Duration = Duration::from_secs(5);

/// The same for the cancellation of one message, whose client gets an answer within 5 seconds
/// (contract, section 1).
const CLIENTS_PATIENCE: Duration = Duration::from_secs(4);
/// The longest that such a cancellation may take.
const CLIENTS_LIMIT: Duration = Duration::from_millis(4_500);

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
    /// Reads the directory anew and follows its pauses.
    FollowPauses {
        organisation: u32,
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
    ByApplication,
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

/// Pending messages of one node of an organisation that is paused or was resumed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct NodePaused {
    waiting: usize,
    calls_under_way: usize,
    /// In milliseconds since the Unix epoch.
    first_end: Option<u64>,
}

/// Sum of what all nodes did or counted, and the names of those that did not answer.
pub(super) type OnAllNodes<T> = (T, Vec<String>);

impl Admin {
    /// Cancels pending messages on all nodes; there are none if no service runs.
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
        let (own, others) =
            tokio::join!(live.cancel(selection, why), self.ask_others::<NodeCounts>(&call));
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

    /// Cancels a message for its application, on the node that holds it. If this takes too long,
    /// the message may be cancelled all the same.
    pub async fn cancel_message(&self, id: MessageId) -> Result<CancelReach, StoreError> {
        let reached = timeout(CLIENTS_LIMIT, self.cancel_wherever(id)).await;
        reached.unwrap_or(Ok(CancelReach::Nobody))
    }

    async fn cancel_wherever(&self, id: MessageId) -> Result<CancelReach, StoreError> {
        let Some(live) = self.live() else {
            return Ok(CancelReach::Nobody);
        };
        let (selection, why) = (Selection::Ids([id].into()), Cancellation::ByApplication);
        let call = NodeCall::Cancel { messages: Messages::of(&selection), why };
        let own = live.cancel(selection, why).await?;
        // One that is held and not counted is being ended by another part of this process.
        if own.not_pending == 0 || live.message(id).is_some() {
            return Ok(CancelReach::Holder);
        }
        let is_holder = |counts: &NodeCounts| counts.not_pending == 0;
        let (others, _) = self.ask_others_until(&call, CLIENTS_PATIENCE, is_holder).await?;
        let is_held = others.iter().any(is_holder);
        Ok(if is_held { CancelReach::Holder } else { CancelReach::Nobody })
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
        let (others, silent) = self.ask_others::<NodeCounts>(&call).await?;
        let sum = live.count(selection) + others.iter().map(|other| other.pending).sum::<usize>();
        Ok((sum, silent))
    }

    /// Has each call that starts on any node from the end of this on be one that the directory allows,
    /// as far as the nodes answer. Returns the pending messages of an organisation as they are then.
    pub(super) async fn follow_pauses_on_all(
        &self,
        organisation: OrganisationId,
    ) -> Result<OnAllNodes<PausedMessages>, StoreError> {
        let Some(live) = self.live() else {
            return Ok(Default::default());
        };
        let call = NodeCall::FollowPauses { organisation: organisation.0 };
        let (own, others) =
            tokio::join!(live.follow_pauses(organisation), self.ask_others::<NodePaused>(&call));
        let (mut sum, (others, silent)) = (own, others?);
        for NodePaused { waiting, calls_under_way, first_end } in others {
            sum.waiting += waiting;
            sum.calls_under_way += calls_under_way;
            let first_end = first_end.map(Timestamp::from_unix_millis);
            sum.first_end = sum.first_end.into_iter().chain(first_end).min();
        }
        Ok((sum, silent))
    }

    async fn ask_others<A: DeserializeOwned>(
        &self,
        call: &NodeCall,
    ) -> Result<OnAllNodes<Vec<A>>, StoreError> {
        self.ask_others_until(call, PATIENCE, |_| false).await
    }

    /// Asks the other nodes, until one of the answers is enough or all are there.
    async fn ask_others_until<A: DeserializeOwned>(
        &self,
        call: &NodeCall,
        patience: Duration,
        is_enough: impl Fn(&A) -> bool + Send + Sync,
    ) -> Result<OnAllNodes<Vec<A>>, StoreError> {
        let request = serde_json::to_vec(call).expect("a call is texts and numbers");
        let (mut answered, mut silent) = (Vec::new(), Vec::new());
        let read = |answer: &[u8]| serde_json::from_slice(answer).ok();
        let is_last = |answer: &[u8]| read(answer).is_some_and(|answer| is_enough(&answer));
        for other in self.store.ask_other_nodes(request, patience, is_last).await? {
            match other.answer.and_then(|answer| read(&answer)) {
                Some(answer) => answered.push(answer),
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
        let Some(answer) = answer(&admin, &request).await else {
            // Who asked learns that this node did not answer.
            tracing::warn!("another node's request could not be answered");
            continue;
        };
        if let Err(error) = admin.store.answer_request(id, answer).await {
            tracing::warn!(%error, "the answer to another node's request could not be stored");
        }
    }
}

async fn answer(admin: &Admin, request: &[u8]) -> Option<Vec<u8>> {
    let live = admin.live()?;
    let answer = match serde_json::from_slice(request).ok()? {
        NodeCall::Cancel { messages, why } => {
            let cancelled = live.cancel(messages.selection()?, why).await.ok()?;
            let Cancelled { cancelled, calls_under_way, not_pending } = cancelled;
            serde_json::to_vec(&NodeCounts { cancelled, calls_under_way, not_pending, pending: 0 })
        }
        NodeCall::Count { messages } => {
            let pending = live.count(&messages.selection()?);
            serde_json::to_vec(&NodeCounts { pending, ..NodeCounts::default() })
        }
        NodeCall::FollowPauses { organisation } => {
            // What this node last read may be older than the request.
            admin.store.reload_directory().await.ok()?;
            let messages = live.follow_pauses(OrganisationId(organisation)).await;
            let PausedMessages { waiting, calls_under_way, first_end } = messages;
            let first_end = first_end.map(Timestamp::unix_millis);
            serde_json::to_vec(&NodePaused { waiting, calls_under_way, first_end })
        }
    };
    answer.ok()
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
