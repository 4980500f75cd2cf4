//! Connections: accepts them, speaks HTTP/1.1 on them, and resets those that are to break.
//!
//! Must not know what the calls mean.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;

use super::call;
use super::state::State;

/// Connections served at once; further ones wait to be accepted.
const MAX_CONNECTIONS: usize = 10_000;
/// How long a request's head may take, and a connection may be idle.
const HEAD_READ_TIMEOUT: Duration = Duration::from_mins(1);
/// The pause after a failed accept: usually file descriptors have run out.
const ACCEPT_PAUSE: Duration = Duration::from_millis(20);

/// The connection is to be broken instead of answered.
#[derive(Debug, thiserror::Error)]
#[error("the connection is severed on purpose")]
pub(super) struct Severed;

/// Marks one connection for a reset.
#[derive(Debug, Clone, Default)]
pub(super) struct Cut(Arc<AtomicBool>);

impl Cut {
    /// Marks the connection; returning the error from its service then closes it.
    pub(super) fn sever(&self) -> Severed {
        self.0.store(true, Ordering::Release);
        Severed
    }
}

/// A TCP stream that closes with a reset, not with an end of stream, if it is cut.
struct Line {
    stream: TcpStream,
    cut: Cut,
}

impl Drop for Line {
    fn drop(&mut self) {
        if self.cut.0.load(Ordering::Acquire) {
            // Closing with zero linger sends RST. On failure the client still sees an end.
            let _ = self.stream.set_zero_linger();
        }
    }
}

/// Serves until told to stop, then until the open connections are through.
pub(super) async fn run(listener: TcpListener, state: Arc<State>, mut stop: watch::Receiver<()>) {
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
                    let (state, stop) = (Arc::clone(&state), stop.clone());
                    connections.spawn(async move {
                        serve(stream, state, stop).await;
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

async fn serve(stream: TcpStream, state: Arc<State>, mut stop: watch::Receiver<()>) {
    let cut = Cut::default();
    // Without it, small answers may wait for the client's acknowledgement; nothing else is lost.
    let _ = stream.set_nodelay(true);
    let line = Line { stream, cut: cut.clone() };
    let service = service_fn(move |request| {
        let (state, cut) = (Arc::clone(&state), cut.clone());
        async move { call::answer(&state, &cut, request).await }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_READ_TIMEOUT)
        .serve_connection(TokioIo::new(line), service);
    let mut connection = std::pin::pin!(connection);
    let ended = tokio::select! {
        ended = &mut connection => Some(ended),
        _ = stop.changed() => None,
    };
    if ended.is_none() {
        connection.as_mut().graceful_shutdown();
        // Errors here are the clients' own, or asked for.
        let _ = connection.await;
    }
}

impl AsyncRead for Line {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for Line {
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
