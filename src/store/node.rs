//! Node: the store as one of several on a database, which shares the pace and the duties with the
//! others. A data file has only one node.

use std::collections::BTreeSet;
use std::future::pending;
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::task::spawn_blocking;

use crate::cluster::{
    DatabaseStatus, DrainOrder, Duty, Forgotten, Joined, NodeAnswer, NodeLoad, NodeRequest,
    NodeStatus,
};
use crate::interface::{Change, StoreOwner};
use crate::postgres::{ConnectError, Import, NodeIdentity, PostgresServer, PostgresStore};
use crate::transfer::{CHUNKS_AHEAD, ImportError, Imported};
use crate::{Engine, Store, StoreError, StoreId};
use pillarbox_domain::id::MessageId;
use pillarbox_domain::time::{ClockReading, Timestamp};
use pillarbox_runtime::tasks::Task;

impl Store {
    /// Connects to the server, makes the schema if there is none, joins the other nodes, and fails
    /// the messages that dead nodes held; returns their number. `now` gets the server's clock, and
    /// returns the time to use.
    pub async fn connect(
        server: &PostgresServer,
        identity: NodeIdentity,
        answer_timeout: Duration,
        now: impl FnOnce(ClockReading) -> Timestamp,
    ) -> Result<(Self, usize), ConnectError> {
        let (owner, none) = (StoreOwner::Service, |_| BTreeSet::new());
        let (store, joined) =
            Self::connect_as(owner, server, identity, answer_timeout, none, now).await?;
        Ok((store, joined.bodies_lost))
    }

    /// As [`Store::connect`], for the service or for `pillarbox dev`. Refuses the other's database
    /// before anything in it changes. Messages of this node's life before stay pending if their
    /// body is there; `bodies` returns the messages whose bodies are.
    pub async fn connect_as(
        owner: StoreOwner,
        server: &PostgresServer,
        identity: NodeIdentity,
        answer_timeout: Duration,
        bodies: impl FnOnce(StoreId) -> BTreeSet<MessageId>,
        now: impl FnOnce(ClockReading) -> Timestamp,
    ) -> Result<(Self, Joined), ConnectError> {
        let (postgres, joined) =
            PostgresStore::connect(owner, server, identity, answer_timeout, bodies, now).await?;
        Ok((Self { engine: Engine::Postgres(postgres) }, joined))
    }

    /// Leaves the other nodes while this one holds nothing. Then nobody has to wait until it is
    /// taken for dead.
    pub async fn leave(&self) {
        on_server!(self, engine => engine.leave().await, else ());
    }

    /// Returns true if other nodes work on the same store.
    pub fn is_shared(&self) -> bool {
        matches!(self.engine, Engine::Postgres(_))
    }

    /// Connects to a server to read the state of its database once, without joining the nodes on
    /// it.
    pub async fn look_at(server: &PostgresServer) -> Result<DatabaseStatus, ConnectError> {
        PostgresStore::look_at(server).await
    }

    /// All nodes on the database, this one included, by name; none if the store is a file.
    pub fn nodes(&self) -> Vec<NodeStatus> {
        on_server!(self, engine => engine.nodes(), else Vec::new())
    }

    /// The database's state when it last answered that question, which is asked every ten seconds;
    /// `None` if the store is a file.
    pub fn database(&self) -> Option<DatabaseStatus> {
        on_server!(self, engine => Some(engine.database()), else None)
    }

    /// Purposes of the connections by which no answer of the server came lately.
    pub fn silent_connections(&self) -> Vec<&'static str> {
        on_server!(self, engine => engine.silence().shown(), else Vec::new())
    }

    /// Reports this load to the other nodes, from this node's next sign of life on.
    pub fn say_load(&self, load: NodeLoad) {
        on_server!(self, engine => engine.node().say_load(load), else ());
    }

    /// Returns the latest order to this node to accept messages or not.
    pub fn drains(&self) -> watch::Receiver<DrainOrder> {
        on_server!(self, engine => engine.node().drains(), else watch::channel(DrainOrder::End).1)
    }

    /// Asks a node to accept no more messages, or to accept them again. The node follows within a
    /// second. Changes nothing if there is no node of this name.
    pub async fn drain_node(&self, name: &str, drain: DrainOrder) -> Result<Change, StoreError> {
        on_server!(self, engine => engine.drain_node(name, drain).await, else Ok(Change::None))
    }

    /// Removes a node that has ended, so that the messages that it held fail now, instead of after
    /// `dead_after`. A node that gave a sign of life within its lease stays: it may still send.
    pub async fn forget_node(&self, name: &str) -> Result<Forgotten, StoreError> {
        on_server!(self, engine => engine.forget_node(name).await, else Ok(Forgotten::Unknown))
    }

    /// Excludes nodes of schemas before this one from the database from now on, because they could
    /// not read the rows that are to be written. Returns those that work on it now. If there is
    /// one, nothing is changed.
    pub async fn keep_nodes_off_before(&self, schema: i32) -> Result<Vec<NodeStatus>, StoreError> {
        on_server!(self, engine => engine.keep_nodes_off_before(schema).await, else Ok(Vec::new()))
    }

    /// Asks all other nodes that work on the store. Returns the answers that came until `patience`
    /// was over, or until one of them was the last that is needed. A node that is removed meanwhile
    /// is left out: it holds nothing any more.
    pub async fn ask_other_nodes(
        &self,
        request: Vec<u8>,
        patience: Duration,
        is_last: impl Fn(&[u8]) -> bool + Send + Sync,
    ) -> Result<Vec<NodeAnswer>, StoreError> {
        on_server!(
            self,
            engine => engine.ask_other_nodes(request, patience, is_last).await,
            else Ok(Vec::new())
        )
    }

    /// Reads the directory anew, so that this node knows every change that another node made before
    /// this call. On a data file it always does.
    pub async fn reload_directory(&self) -> Result<(), StoreError> {
        on_server!(self, engine => engine.reload_directory().await, else Ok(()))
    }

    /// Waits for the next request of another node.
    pub async fn next_request(&self) -> NodeRequest {
        on_server!(self, engine => engine.next_request().await, else pending().await)
    }

    /// Answers a request of another node.
    pub async fn answer_request(&self, id: i64, answer: Vec<u8>) -> Result<(), StoreError> {
        on_server!(self, engine => engine.answer_request(id, answer).await, else Ok(()))
    }

    /// Reports to the other nodes, within half a second, that a call to the provider is under way,
    /// with its number for its message. The call's outcome ends the report.
    pub fn tell_of_call(&self, id: MessageId, attempts: u32) {
        on_server!(self, engine => engine.tell_of_call(id, attempts), else ());
    }

    /// This node's part of the pace of all nodes, from 0 to 1.
    pub fn share(&self) -> watch::Receiver<f64> {
        on_server!(self, engine => engine.node().share(), else watch::channel(1.0).1)
    }

    /// Readings of the server's clock, one every second; `None` if the store is a file.
    pub fn server_clock(&self) -> Option<watch::Receiver<ClockReading>> {
        on_server!(self, engine => Some(engine.server_clock()), else None)
    }

    /// Takes the next slot for a call to the provider; all nodes share the slots, which are
    /// `interval` apart. Returns the time until it begins. A data file has only one node, which
    /// does not wait for others.
    pub async fn take_call_slot(&self, interval: Duration) -> Result<Duration, StoreError> {
        on_server!(self, engine => engine.take_call_slot(interval).await, else Ok(Duration::ZERO))
    }

    /// Returns a receiver that holds true while this node has a duty for all nodes.
    pub fn has_duty(&self, duty: Duty) -> watch::Receiver<bool> {
        on_server!(self, engine => engine.node().has_duty(duty), else watch::channel(true).1)
    }

    /// Returns true if the other nodes took this one for dead. Its messages have failed, and it
    /// takes nothing any more: the process has to end.
    pub fn is_fenced(&self) -> bool {
        on_server!(self, engine => engine.node().is_fenced(), else false)
    }

    /// Waits until a task that the engine needs has ended, and returns the task: the process has to
    /// end. The writer of a data file ends the process itself.
    pub async fn task_ended(&self) -> Task {
        on_server!(self, engine => engine.task_ended().await, else std::future::pending().await)
    }

    /// Returns the reason why nothing can be imported into a database, if there is one.
    pub async fn can_import_into(server: &PostgresServer) -> Result<(), ImportError> {
        Import::begin(server).await.map(|_| ())
    }

    /// Copies all rows of this data file into an empty database that no node works on, all or
    /// nothing. `progress` gets the number of rows that were written.
    pub async fn import_into(
        &self,
        server: &PostgresServer,
        progress: impl Fn(u64),
    ) -> Result<Imported, ImportError> {
        let Engine::Redb(file) = &self.engine else { return Err(ImportError::SameEngine) };
        let mut import = Import::begin(server).await?;
        let (sender, mut chunks) = mpsc::channel(CHUNKS_AHEAD);
        let file = file.clone();
        let reading = spawn_blocking(move || file.export(&sender));
        let written = import.write(&mut chunks, progress).await;
        // A reader that still has rows ends now.
        drop(chunks);
        let facts = reading.await.expect("an export does not panic and is not aborted");
        written?;
        import.finish(facts?).await
    }
}
