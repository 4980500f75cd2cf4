//! Connections: accepts them, speaks HTTP/1.1 on them, and resets them on request.
//!
//! Must not know what the requests mean.

use std::error::Error;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use http::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;

use super::protocol::HttpResponse;

/// Connections served at once; further ones wait to be accepted.
const MAX_CONNECTIONS: usize = 10_000;
/// Time that a request's head may take, and that a connection may be idle.
const HEAD_READ_TIMEOUT: Duration = Duration::from_mins(1);
/// Pause after a failed accept: usually file descriptors have run out.
const ACCEPT_PAUSE: Duration = Duration::from_millis(20);

/// The handler asks to reset the connection instead of answering.
#[derive(Debug, thiserror::Error)]
#[error("the simulator resets this connection on purpose")]
pub(super) struct ResetConnection;

/// Serves until asked to stop, then until the open connections have ended.
pub(super) async fn run<H, F>(listener: TcpListener, handler: H, mut stop: watch::Receiver<()>)
where
    H: Fn(Request<Incoming>) -> F + Clone + Send + Unpin + 'static,
    F: Future<Output = Result<HttpResponse, ResetConnection>> + Send,
{
    let permits = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let mut connections = JoinSet::new();
    loop {
        let accepting = async {
            let permit = Arc::clone(&permits).acquire_owned().await;
            (listener.accept().await, permit.expect("the semaphore is never closed"))
        };
        tokio::select! {
            _ = stop.changed() => break,
            Some(_) = connections.join_next(), if !connections.is_empty() => {}
            (accepted, permit) = accepting => match accepted {
                Ok((stream, _)) => {
                    let (handler, stop) = (handler.clone(), stop.clone());
                    connections.spawn(async move {
                        serve(stream, handler, stop).await;
                        drop(permit);
                    });
                }
                Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
            },
        }
    }
    drop(listener);
    while connections.join_next().await.is_some() {}
}

async fn serve<H, F>(stream: TcpStream, handler: H, mut stop: watch::Receiver<()>)
where
    H: Fn(Request<Incoming>) -> F + Unpin,
    F: Future<Output = Result<HttpResponse, ResetConnection>>,
{
    // Without it, small responses may wait for the client's acknowledgement; nothing else is lost.
    let _ = stream.set_nodelay(true);
    let mut connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_READ_TIMEOUT)
        .serve_connection(TokioIo::new(stream), service_fn(handler));
    let ended = tokio::select! {
        ended = &mut connection => Some(ended),
        _ = stop.changed() => None,
    };
    let ended = if let Some(ended) = ended {
        ended
    } else {
        Pin::new(&mut connection).graceful_shutdown();
        (&mut connection).await
    };
    // Other errors are the client's.
    let is_reset =
        |error: hyper::Error| error.source().is_some_and(<dyn Error>::is::<ResetConnection>);
    if ended.is_err_and(is_reset) {
        // Closing with zero linger sends RST. If it fails, the client still sees an end.
        let _ = connection.into_parts().io.into_inner().set_zero_linger();
    }
}
