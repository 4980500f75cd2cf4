//! Connection as the handler of its requests sees it.
//!
//! Must not know what the handler counts, or why it lets a connection go.

use std::any::Any;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use tokio::sync::Notify;

use crate::connections::ClientConnection;

/// Connection that a request came on. Clones are the same one.
#[derive(Debug, Clone, Default)]
pub struct Connection(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    /// Its place among the client connections, if it is one.
    client: Option<Arc<ClientConnection>>,
    /// Address of its other end, if it has one and no TLS is spoken.
    peer: Option<IpAddr>,
    mark: OnceLock<Box<dyn Any + Send + Sync>>,
    is_ending: AtomicBool,
    ending: Notify,
}

impl Connection {
    /// A connection with this place among the client connections.
    pub(super) fn of(client: Option<Arc<ClientConnection>>, peer: Option<IpAddr>) -> Self {
        Self(Arc::new(Inner { client, peer, ..Inner::default() }))
    }

    /// Returns the address of its other end, if it has one and no TLS is spoken.
    pub fn peer(&self) -> Option<IpAddr> {
        self.0.peer
    }

    /// Notes that a request has brought a valid key.
    pub fn accept_key(&self) {
        if let Some(client) = &self.0.client {
            client.accept_key();
        }
    }

    /// Notes that a request has brought no valid key. If room for such connections is short, this
    /// one is closed once its requests are answered.
    pub fn refuse_key(&self) {
        if self.0.client.as_ref().is_some_and(|client| client.ends_without_key()) {
            self.end();
        }
    }

    /// Returns true if the handler has marked the connection.
    pub fn is_marked(&self) -> bool {
        self.0.mark.get().is_some()
    }

    /// Keeps a mark for as long as the connection is open. The first one stays.
    pub fn mark(&self, mark: impl Any + Send + Sync) {
        // One that comes later is dropped.
        let _ = self.0.mark.set(Box::new(mark));
    }

    /// Has the connection closed once the requests that it has are answered.
    pub fn end(&self) {
        self.0.is_ending.store(true, Ordering::Relaxed);
        self.0.ending.notify_one();
    }

    /// Returns true if the connection is to be closed.
    pub(super) fn is_ending(&self) -> bool {
        self.0.is_ending.load(Ordering::Relaxed)
    }

    /// Ends once the connection is to be closed.
    pub(super) async fn ending(&self) {
        self.0.ending.notified().await;
    }
}
