//! HTTP server: takes connections and has their requests handled.
//!
//! This part accepts, limits and drains; the modules below it see to the protocols. It must not
//! know mail, stores or what its requests ask for: a handler stands between.

#![cfg_attr(not(test), warn(unused_crate_dependencies))]

use std::future::{Future, pending};
use std::io;
use std::net::IpAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use http::{HeaderValue, Request, Response};
use hyper::body::Incoming;
use hyper::server::conn;
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tokio_rustls::TlsAcceptor;

use crate::body::ResponseBody;
use crate::connections::{Activity, CROWDED_PAUSE, ClientConnection, ClientConnections};
use crate::drain::{DrainPhase, DrainSignal};
use crate::erased::{AnyHandler, AnyListener, AnyStream};
use crate::limits::{Limits, Linger, WhenFull};
use crate::refusal_log::{AnsweredTo, FailureCause, Refusal, RefusalCode, RefusalLog};
use crate::rejection::{Rejection, WrittenAnswer};
use crate::request_id::{REQUEST_ID_HEADER, RequestId, RequestIds};
use crate::tls::Tls;
use crate::write_progress::CountedStream;
use pillarbox_runtime::in_flight::InFlightGuard;
use pillarbox_runtime::tasks::caught;

pub use connection::Connection;

pub mod body;
mod connection;
pub mod connections;
pub mod drain;
mod erased;
mod framing;
mod head;
mod http1;
mod http2;
pub mod limits;
pub mod refusal_log;
pub mod rejection;
pub mod request_id;
pub mod tls;
mod write_progress;

/// The pause after an accept that failed for want of something, such as file descriptors.
pub const ACCEPT_BACKOFF: Duration = Duration::from_millis(100);
/// The most connections that receive a refusal at one time because there are too many: so many, and
/// a quarter of those that are served.
const MAX_REFUSALS: usize = 256;
/// Bytes of responses that wait in the kernel to be sent, on each connection (tcp(7),
/// `TCP_NOTSENT_LOWAT`). With its own measure, which grows to megabytes, a client that reads slowly
/// takes longer for a part of them than it may leave a response unread.
const MAX_UNSENT_BYTES: u32 = 64 * 1024;
/// Time in which the client of a refused connection may still send.
const REFUSAL_LINGER: Linger = Linger {
    max_bytes: 1024 * 1024,
    timeout: Duration::from_secs(1),
    idle_timeout: Duration::from_millis(500),
};

/// Time in which the client of a connection that makes room may still send: it is not counted any
/// more.
pub const LINGER_FOR_ROOM: Linger = Linger {
    max_bytes: 64 * 1024,
    timeout: Duration::from_millis(500),
    idle_timeout: Duration::from_millis(250),
};

/// Service that answers requests. Any `Fn(Request<Incoming>, RequestId) -> impl Future` is one.
pub trait Handler: Send + Sync + 'static {
    /// Answers a request of a connection. The response gets its `X-Request-Id` afterwards.
    ///
    /// The call is dropped if the connection breaks: an action that must complete must not depend
    /// on it.
    fn handle(
        &self,
        request: Request<Incoming>,
        id: RequestId,
        connection: &Connection,
    ) -> impl Future<Output = Response<ResponseBody>> + Send;

    /// Receives a request that was refused before it came to the handler, or in its place.
    fn refused(&self, _rejection: &Rejection) {}

    /// Writes the answer to such a request.
    fn write(rejection: &Rejection) -> WrittenAnswer {
        rejection.answer().written()
    }

    /// Returns a mark that is held for as long as a connection is open.
    fn connected(&self) -> Option<InFlightGuard> {
        None
    }
}

impl<F, R, B> Handler for F
where
    F: Fn(Request<Incoming>, RequestId) -> R + Send + Sync + 'static,
    R: Future<Output = Response<B>> + Send,
    B: Into<ResponseBody>,
{
    async fn handle(
        &self,
        request: Request<Incoming>,
        id: RequestId,
        _: &Connection,
    ) -> Response<ResponseBody> {
        self(request, id).await.map(Into::into)
    }
}

/// Source of connections. When the drain stops, the server drops it before anything else ends.
pub trait Listener: Send + Sync + 'static {
    /// Stream of one connection.
    type Connection: AsyncRead + AsyncWrite + Unpin + Send + 'static;

    /// Waits for the next connection. A call that is dropped loses none.
    fn accept(&self) -> impl Future<Output = io::Result<Self::Connection>> + Send;

    /// Returns the address of a connection's other end, if it has one.
    fn address(_connection: &Self::Connection) -> Option<IpAddr> {
        None
    }
}

impl Listener for TcpListener {
    type Connection = TcpStream;

    async fn accept(&self) -> io::Result<TcpStream> {
        let (stream, _) = self.accept().await?;
        // Small responses must not wait for the client's acknowledgements. If it cannot be set, the
        // connection is gone already.
        let _ = stream.set_nodelay(true);
        // If it cannot be set, a slow reader may be taken for one that does not read.
        let _ = SockRef::from(&stream).set_tcp_notsent_lowat(MAX_UNSENT_BYTES);
        Ok(stream)
    }

    fn address(connection: &TcpStream) -> Option<IpAddr> {
        connection.peer_addr().ok().map(|address| address.ip())
    }
}

/// End of a drain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Drained {
    /// The connections that were still open at the deadline, and were cut off.
    pub cut_off: usize,
}

/// Serves a listener until the drain stops it; ends when every connection has ended.
pub async fn serve<L: Listener, H: Handler>(
    listener: L,
    handler: H,
    limits: Limits,
    drain: DrainSignal,
) -> Result<Drained, getrandom::Error> {
    serve_over(None, Box::new(listener), Box::new(handler), limits, drain).await
}

/// Serves a listener as [`serve`] does, over TLS: HTTP/2 or HTTP/1.1, as each client wishes.
pub async fn serve_tls<L: Listener, H: Handler>(
    tls: Arc<Tls>,
    listener: L,
    handler: H,
    limits: Limits,
    drain: DrainSignal,
) -> Result<Drained, getrandom::Error> {
    serve_over(Some(tls), Box::new(listener), Box::new(handler), limits, drain).await
}

/// Serves over TLS if it is given.
async fn serve_over(
    tls: Option<Arc<Tls>>,
    listener: Box<dyn AnyListener>,
    handler: Box<dyn AnyHandler>,
    limits: Limits,
    drain: DrainSignal,
) -> Result<Drained, getrandom::Error> {
    let shared = Arc::new(Shared::new(handler, limits, drain.clone(), RequestIds::new()?));
    let mut connections = JoinSet::new();
    let mut refusals = JoinSet::new();
    let mut watched = drain.clone();
    let stopped = drain.stopped();
    tokio::pin!(stopped);
    let deadline = loop {
        let phase = watched.phase();
        let is_crowded = shared.limits.clients.as_ref().is_some_and(ClientConnections::is_crowded);
        let has_room = shared.limits.when_full == WhenFull::Refuse
            || connections.len() < shared.limits.max_connections;
        tokio::select! {
            biased;
            deadline = &mut stopped => break deadline,
            () = watched.left(phase) => {}
            Some(ended) = connections.join_next() => note_end(ended),
            Some(ended) = refusals.join_next() => note_end(ended),
            () = sleep(CROWDED_PAUSE), if is_crowded => {}
            accepted = listener.accept(), if has_room && !is_crowded && phase != DrainPhase::Holding => match accepted {
                Ok((stream, address)) => {
                    let to = (&mut connections, &mut refusals);
                    admit(stream, address, tls.as_deref(), &shared, to);
                }
                Err(error) if is_of_one_connection(&error) => {}
                Err(error) => {
                    tracing::error!(%error, "connections cannot be accepted for now");
                    sleep(ACCEPT_BACKOFF).await;
                }
            },
        }
    };
    drop(listener);
    refusals.shutdown().await;
    let ended = timeout_at(deadline, async {
        while let Some(ended) = connections.join_next().await {
            note_end(ended);
        }
    });
    // Within its time or not, the rest is counted and cut off.
    let _ = ended.await;
    let cut_off = connections.len();
    connections.shutdown().await;
    Ok(Drained { cut_off })
}

/// Parts that all connections of a listener share.
struct Shared {
    handler: Box<dyn AnyHandler>,
    limits: Limits,
    drain: DrainSignal,
    request_ids: RequestIds,
    refusals: RefusalLog,
    http1: conn::http1::Builder,
}

impl Shared {
    fn new(
        handler: Box<dyn AnyHandler>,
        limits: Limits,
        drain: DrainSignal,
        request_ids: RequestIds,
    ) -> Self {
        let http1 = http1::builder(&limits);
        let refusals = RefusalLog::default();
        Self { handler, limits, drain, request_ids, refusals, http1 }
    }

    /// Has a request of a connection handled, and marks the response with the request's id.
    async fn answer(
        &self,
        request: Request<Incoming>,
        connection: &Connection,
    ) -> Response<ResponseBody> {
        let (id, begun) = (self.request_ids.next(), Instant::now());
        let response = marked(self.handle(request, id, connection).await, id);
        self.log(&response, id, begun.elapsed());
        response
    }

    /// Writes the line of a response.
    fn log<B>(&self, response: &Response<B>, request_id: RequestId, took: Duration) {
        let organisation = response.extensions().get().map(|AnsweredTo(name)| name.as_str());
        let status = response.status();
        if let Some(RefusalCode(code)) = response.extensions().get() {
            let took = Some(took);
            let cause = response.extensions().get().map(|FailureCause(text)| text.as_str());
            let refusal = Refusal { request_id, organisation, status, code, cause, took };
            self.refusals.write(&refusal);
        } else {
            let (status, took_ms) = (status.as_u16(), took.as_millis());
            let given = response.headers().get(REQUEST_ID_HEADER).map(HeaderValue::to_str);
            let request_id = given.and_then(Result::ok).unwrap_or_default();
            tracing::debug!(request_id, organisation, status, took_ms, "answered");
        }
    }

    /// Refuses a request in the handler's stead, and marks the response with the request's id.
    fn refuse(&self, rejection: &Rejection) -> Response<ResponseBody> {
        let id = self.refused(rejection);
        marked(rejection.respond(self.handler.write(rejection)).map(Into::into), id)
    }

    /// Notes a request that never came to the handler, and returns its id.
    fn refused(&self, rejection: &Rejection) -> RequestId {
        let (request_id, (status, code)) = (self.request_ids.next(), rejection.kind());
        self.handler.refused(rejection);
        let refusal =
            Refusal { request_id, organisation: None, status, code, cause: None, took: None };
        self.refusals.write(&refusal);
        request_id
    }

    /// Calls the handler; its panic costs this one request.
    async fn handle(
        &self,
        request: Request<Incoming>,
        id: RequestId,
        connection: &Connection,
    ) -> Response<ResponseBody> {
        // The handler's own state is behind the locks and transactions of its owners.
        let handling = pin!(async { self.handler.handle(request, id, connection).await });
        caught(handling).await.unwrap_or_else(|_| {
            tracing::error!(request_id = %id, "a handler panicked");
            self.handler.refused(&Rejection::Internal);
            let answer = self.handler.write(&Rejection::Internal);
            Rejection::Internal.respond(answer).map(Into::into)
        })
    }
}

/// Marks a response with the request's id, unless the handler has given it another one.
fn marked<B>(mut response: Response<B>, id: RequestId) -> Response<B> {
    let headers = response.headers_mut();
    headers.entry(REQUEST_ID_HEADER).or_insert_with(|| id.to_header_value());
    response
}

/// Serves a new connection, or refuses it. The tasks of either are added to those there are.
fn admit(
    stream: AnyStream,
    address: Option<IpAddr>,
    tls: Option<&Tls>,
    shared: &Arc<Shared>,
    (connections, refusals): (&mut JoinSet<()>, &mut JoinSet<()>),
) {
    let shared = Arc::clone(shared);
    let activity = if tls.is_some() { Activity::Handshake } else { Activity::Silent };
    let admitted = match &shared.limits.clients {
        Some(clients) => clients.admit(address, activity).map(Arc::new).map(Some),
        None => (connections.len() < shared.limits.max_connections).then_some(None),
    };
    if let Some(client) = admitted {
        let mark = shared.handler.connected();
        let acceptor = tls.map(Tls::acceptor);
        connections.spawn(async move {
            match acceptor {
                Some(acceptor) => serve_secure(stream, acceptor, shared, client).await,
                None => http1::serve(stream, &shared, client, address).await,
            }
            drop(mark);
        });
        return;
    }
    let id = shared.refused(&Rejection::TooManyConnections);
    let max_refusals = match tls {
        None => MAX_REFUSALS.min(shared.limits.max_connections.div_ceil(4)),
        Some(_) => 0,
    };
    if refusals.len() < max_refusals {
        refusals.spawn(async move {
            let answer = shared.handler.write(&Rejection::TooManyConnections);
            let answer = answer.to_raw(id, SystemTime::now());
            http1::finish(stream, &answer, &shared.limits, REFUSAL_LINGER).await;
        });
    }
    // Beyond that, and if a handshake would come first, the connection is closed at once.
}

/// Serves a connection until it is closed, once its handshake is done.
async fn serve_secure(
    stream: AnyStream,
    acceptor: TlsAcceptor,
    shared: Arc<Shared>,
    client: Option<Arc<ClientConnection>>,
) {
    let written = Arc::default();
    let stream = CountedStream::new(stream, Arc::clone(&written));
    let handshake = timeout(shared.limits.head_timeout, acceptor.accept(stream));
    let handshake = tokio::select! {
        biased;
        handshake = handshake => handshake,
        () = told(client.as_deref()) => return tracing::debug!("a handshake ended to make room for others"),
    };
    if let Some(client) = &client {
        client.enter(Activity::Silent);
    }
    let stream = match handshake {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => return tracing::debug!(%error, "a handshake failed"),
        Err(_) => return tracing::debug!("a handshake took too long"),
    };
    if stream.get_ref().1.alpn_protocol() == Some(tls::HTTP_2) {
        http2::serve(Box::new(stream), shared, client).await;
    } else {
        http1::serve_counted(Box::new(stream), &shared, client, written).await;
    }
}

/// Ends once a client connection is to make room.
async fn told(client: Option<&ClientConnection>) {
    match client {
        Some(client) => client.told().await,
        None => pending().await,
    }
}

/// Returns true if an accept failed for a reason of that one connection (accept(2)), so that the
/// next one may succeed.
pub fn is_of_one_connection(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted
            | io::ErrorKind::ConnectionRefused
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::Interrupted
    )
}

/// Logs the end of a connection's task that panicked.
pub fn note_end(ended: Result<(), tokio::task::JoinError>) {
    if let Err(error) = ended {
        tracing::error!(%error, "a connection's task failed");
    }
}
