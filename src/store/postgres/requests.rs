//! Requests of nodes to each other, as rows: the asking node writes one for each other node, and
//! each node answers its own. No node needs a connection to another one.

use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

use crate::StoreError;
use crate::cluster::{FIRST_WITH_REQUESTS, NodeAnswer, NodeRequest};
use crate::locks::{Mutex, locked};
use crate::postgres::connection::Connection;
use crate::postgres::error::QueryError;
use crate::postgres::session::Transaction;
use crate::postgres::tables::bigint;
use crate::postgres::{PostgresStore, Shared};

/// Largest number of requests that wait until this node begins to answer them.
const QUEUE_CAPACITY: usize = 64;
/// Time between two checks for answers.
const LOOK: Duration = Duration::from_millis(100);

const OTHERS: &str = "SELECT id, name, schema FROM node WHERE id <> $1 ORDER BY name";
const ASK: &str = "
INSERT INTO node_request (node, request) SELECT id, $2 FROM node WHERE id = ANY($1)
RETURNING id, node";
const ANSWERS: &str = "SELECT id, answer FROM node_request WHERE id = ANY($1)";
/// Requests of a node that ended while it asked are removed as well.
const REMOVE: &str = "
DELETE FROM node_request
WHERE id = ANY($1) OR asked_at < clock_timestamp() - interval '1 minute'";
const OWN: &str = "
SELECT id, request FROM node_request WHERE node = $1 AND answer IS NULL ORDER BY id LIMIT $2";
const ANSWER: &str = "UPDATE node_request SET answer = $2 WHERE id = $1";

pub(super) struct Requests {
    /// Requests that were handed over and may not be answered yet.
    taken: Mutex<HashSet<i64>>,
    sender: mpsc::Sender<NodeRequest>,
    receiver: tokio::sync::Mutex<mpsc::Receiver<NodeRequest>>,
}

impl Default for Requests {
    fn default() -> Self {
        let (sender, receiver) = mpsc::channel(QUEUE_CAPACITY);
        Self { taken: Mutex::default(), sender, receiver: receiver.into() }
    }
}

impl Shared {
    /// Reads the requests of other nodes to this one, and hands each over once.
    pub(super) async fn take_requests(&self, connection: &Connection) -> Result<(), QueryError> {
        let most = bigint(QUEUE_CAPACITY);
        let rows = connection.query(OWN, &[&self.node.id(), &most]).await?;
        let mut taken = locked(&self.requests.taken);
        let waiting: HashSet<i64> = rows.iter().map(|row| row.get(0)).collect();
        taken.retain(|id| waiting.contains(id));
        for row in &rows {
            let request = NodeRequest { id: row.get(0), request: row.get(1) };
            let id = request.id;
            // Requests that do not fit are read again.
            if !taken.contains(&id) && self.requests.sender.try_send(request).is_ok() {
                taken.insert(id);
            }
        }
        Ok(())
    }
}

impl PostgresStore {
    pub(crate) async fn ask_other_nodes(
        &self,
        request: Vec<u8>,
        patience: Duration,
        is_last: impl Fn(&[u8]) -> bool + Send + Sync,
    ) -> Result<Vec<NodeAnswer>, StoreError> {
        let end = Instant::now() + patience;
        let others = self.query(OTHERS, &[&self.shared.node.id()]).await?;
        let mut silent: BTreeMap<i32, String> =
            others.iter().map(|row| (row.get(0), row.get(1))).collect();
        let asked: Vec<i32> = others
            .iter()
            .filter(|row| row.get::<_, i32>(2) >= FIRST_WITH_REQUESTS)
            .map(|row| row.get(0))
            .collect();
        if asked.is_empty() {
            return Ok(without_answer(silent));
        }
        let rows = async {
            let change = Transaction::begin(&self.writer).await?;
            let rows = change.connection().query(ASK, &[&asked, &request]).await?;
            change.commit(rows).await
        };
        let rows = rows.await.map_err(|error| self.shared.refused(error))?;
        let mut waiting: BTreeMap<i64, i32> =
            rows.iter().map(|row| (row.get(0), row.get(1))).collect();
        // A node that has ended holds nothing any more.
        silent.retain(|node, _| !asked.contains(node) || waiting.values().any(|one| one == node));
        let ids: Vec<i64> = waiting.keys().copied().collect();
        let mut answers = Vec::new();
        let mut has_last = false;
        while !waiting.is_empty() && !has_last && Instant::now() < end {
            sleep_until(end.min(Instant::now() + LOOK)).await;
            let rows = self.query(ANSWERS, &[&waiting.keys().copied().collect::<Vec<_>>()]).await?;
            let found: BTreeMap<i64, Option<Vec<u8>>> =
                rows.iter().map(|row| (row.get(0), row.get(1))).collect();
            waiting.retain(|id, node| match found.get(id) {
                Some(None) => true,
                Some(Some(answer)) => {
                    has_last |= is_last(answer);
                    let name = silent.remove(node).unwrap_or_default();
                    answers.push(NodeAnswer { node: name, answer: Some(answer.clone()) });
                    false
                }
                None => {
                    silent.remove(node);
                    false
                }
            });
        }
        // A node that comes back later must not do what was reported to its operator as not done.
        self.execute(REMOVE, &[&ids]).await?;
        answers.extend(without_answer(silent));
        Ok(answers)
    }

    pub(crate) async fn next_request(&self) -> NodeRequest {
        let next = self.shared.requests.receiver.lock().await.recv().await;
        next.expect("the sender is beside the receiver")
    }

    pub(crate) async fn answer_request(&self, id: i64, answer: Vec<u8>) -> Result<(), StoreError> {
        self.execute(ANSWER, &[&id, &answer]).await.map(drop)
    }
}

fn without_answer(silent: BTreeMap<i32, String>) -> Vec<NodeAnswer> {
    silent.into_values().map(|node| NodeAnswer { node, answer: None }).collect()
}
