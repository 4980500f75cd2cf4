//! Connections: accepts them, speaks HTTP/1.1 on them, and resets them on request.
//!
//! Must not know what the requests mean.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use http::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
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

/// Serves until told to stop, then until the open connections have ended.
pub(super) async fn run<H, F>(listener: TcpListener, handler: H, mut stop: watch::Receiver<()>)
where
    H: Fn(Request<Incoming>) -> F + Clone + Send + 'static,
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
    H: Fn(Request<Incoming>) -> F,
    F: Future<Output = Result<HttpResponse, ResetConnection>>,
{
    // Without it, small responses may wait for the client's acknowledgement; nothing else is lost.
    let _ = stream.set_nodelay(true);
    let reset = Arc::new(AtomicBool::new(false));
    let stream = ResettableStream { stream, reset: Arc::clone(&reset) };
    let service = service_fn(move |request| {
        let (reset, response) = (Arc::clone(&reset), handler(request));
        // The error makes hyper drop the stream, which then resets the connection.
        async move { response.await.inspect_err(|_| reset.store(true, Ordering::Release)) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_READ_TIMEOUT)
        .serve_connection(TokioIo::new(stream), service);
    let mut connection = std::pin::pin!(connection);
    let ended = tokio::select! {
        ended = &mut connection => Some(ended),
        _ = stop.changed() => None,
    };
    if ended.is_none() {
        connection.as_mut().graceful_shutdown();
        // An error here is the client's, or was asked for.
        let _ = connection.await;
    }
}

/// A TCP stream that closes with a reset instead of an end of stream if `reset` is set.
struct ResettableStream {
    stream: TcpStream,
    reset: Arc<AtomicBool>,
}

impl Drop for ResettableStream {
    fn drop(&mut self) {
        if self.reset.load(Ordering::Acquire) {
            // Closing with zero linger sends RST. If it fails, the client still sees an end.
            let _ = self.stream.set_zero_linger();
        }
    }
}

impl AsyncRead for ResettableStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for ResettableStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
