//! Nodes on one database, for operators to list, to drain and to forget.

use serde::{Deserialize, Serialize};

use crate::{Admin, NodeDrain, NodeForget, NodeList, Refusal, Result};
use pillarbox_store::{
    Change, FIRST_WITH_DRAIN, Forgotten, LEASE, NodeState, NodeStatus, SeenFrom,
};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Nodes {
    pub nodes: Vec<Node>,
}

/// Node, as the one that answers sees it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Node {
    pub name: String,
    pub answers: bool,
    /// `working`, `draining` or `silent`.
    pub state: String,
    /// Silence so far; `None` if it shows signs of life.
    pub silent_seconds: Option<u64>,
    pub version: String,
    /// Version of the database's schema that it was built for.
    pub schema: i32,
    pub started_at: String,
    /// Messages in its memory that are not finished.
    pub pending_messages: u64,
    /// Its part of the rate of all nodes, from 0 to 1.
    pub share: f64,
    /// Its duties for all nodes, such as `webhooks`.
    pub duties: Vec<String>,
    /// Codes of the conditions that hold for it.
    pub conditions: Vec<String>,
}

pub(super) fn list(admin: &Admin, _: &NodeList) -> Result<Nodes> {
    shared(admin)?;
    Ok(Nodes { nodes: admin.store.nodes().into_iter().map(Node::from).collect() })
}

pub(super) async fn drain(admin: &Admin, call: NodeDrain) -> Result<NodeDrain> {
    shared(admin)?;
    let NodeDrain { name, drain } = call;
    let known = admin.store.nodes().into_iter().find(|node| node.name == name);
    if let Some(node) = known.filter(|node| node.schema < FIRST_WITH_DRAIN) {
        return Err(Refusal::new(format!(
            "node {name} runs pillarbox {}, which cannot be drained: stop it normally, and it \
             sends what it holds within sending.drain",
            node.version
        )));
    }
    match admin.store.drain_node(&name, drain).await? {
        Change::Made => Ok(NodeDrain { name, drain }),
        Change::None => Err(unknown(&name)),
    }
}

pub(super) async fn forget(admin: &Admin, call: NodeForget) -> Result<NodeForget> {
    shared(admin)?;
    let name = call.name;
    match admin.store.forget_node(&name).await? {
        Forgotten::Removed => Ok(NodeForget { name }),
        Forgotten::Unknown => Err(unknown(&name)),
        Forgotten::Lives(since) => Err(Refusal::new(format!(
            "node {name} gave a sign of life {} seconds ago, and may still send what it holds; \
             stop its process, then try again after {} seconds",
            since.as_secs(),
            LEASE.as_secs()
        ))),
    }
}

impl Admin {
    /// Refuses what a node of a schema before this one could not read, as long as one works on the
    /// database; and keeps such nodes off from then on.
    pub(super) async fn require_no_node_before(&self, schema: i32) -> Result<()> {
        match self.store.keep_nodes_off_before(schema).await?.first() {
            None => Ok(()),
            Some(node) => Err(Refusal::new(format!(
                "node {} runs pillarbox {}, which does not support this: upgrade all nodes first",
                node.name, node.version
            ))),
        }
    }
}

fn shared(admin: &Admin) -> Result<()> {
    if admin.store.is_shared() {
        return Ok(());
    }
    Err(Refusal::new(
        "the store is a data file, so there is only one node; several nodes need [store] engine = \
         \"postgres\"",
    ))
}

fn unknown(name: &str) -> Refusal {
    Refusal::new(format!("there is no node {name}; to list the nodes: pillarbox node list"))
}

impl From<NodeStatus> for Node {
    fn from(status: NodeStatus) -> Self {
        let (state, silent_seconds) = match status.state {
            NodeState::Working => ("working", None),
            NodeState::Draining => ("draining", None),
            NodeState::Silent(since) => ("silent", Some(since.as_secs())),
        };
        Self {
            name: status.name,
            answers: status.seen_from == SeenFrom::Itself,
            state: state.to_owned(),
            silent_seconds,
            version: status.version,
            schema: status.schema,
            started_at: status.started_at.to_string(),
            pending_messages: status.load.pending,
            share: status.share,
            duties: status.duties,
            conditions: status.load.conditions,
        }
    }
}
