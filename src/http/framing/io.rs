//! The guard as hyper's socket: reads what passes, and writes with an eye on the time.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::http::framing::{End, FramingGuard, Place, WriteSide};

impl<I: AsyncRead + Unpin> AsyncRead for FramingGuard<I> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = buf.filled().len();
        loop {
            if this.cleared > 0 {
                this.pass_held(buf);
                return Poll::Ready(Ok(()));
            }
            if buf.remaining() == 0 {
                return Poll::Ready(Ok(()));
            }
            if matches!(this.place, Place::Ended(_)) {
                this.is_end_told = true;
                return Poll::Ready(Ok(()));
            }
            match Pin::new(&mut this.io).poll_read(cx, buf) {
                Poll::Ready(Ok(())) if buf.filled().len() == before => this.end_by_client(),
                Poll::Ready(Ok(())) => {
                    this.take_in(buf, before);
                    // Nothing passed would look like the end of the stream.
                    if buf.filled().len() > before {
                        return Poll::Ready(Ok(()));
                    }
                }
                Poll::Ready(Err(error)) => {
                    this.place = Place::Ended(End::ByClient);
                    this.is_end_told = true;
                    return Poll::Ready(Err(error));
                }
                Poll::Pending => ready!(this.poll_silence(cx)),
            }
        }
    }
}

impl<I: AsyncWrite + Unpin> FramingGuard<I> {
    /// Keeps the time of a write: it may wait, but not for ever.
    fn watch<T>(
        &mut self,
        cx: &mut Context<'_>,
        write: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        match write {
            Poll::Pending => {
                ready!(self.write_deadline.poll(cx, self.write_timeout));
                self.write_side = WriteSide::Failed;
                Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
            }
            Poll::Ready(Err(error)) => {
                self.write_side = WriteSide::Failed;
                Poll::Ready(Err(error))
            }
            Poll::Ready(Ok(done)) => {
                self.write_deadline.clear();
                Poll::Ready(Ok(done))
            }
        }
    }
}

impl<I: AsyncWrite + Unpin> AsyncWrite for FramingGuard<I> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let write = Pin::new(&mut this.io).poll_write(cx, bytes);
        this.watch(cx, write)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let write = Pin::new(&mut this.io).poll_write_vectored(cx, slices);
        this.watch(cx, write)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let flush = Pin::new(&mut this.io).poll_flush(cx);
        this.watch(cx, flush)
    }

    /// Flushes and leaves the socket open: its owner may have an answer of its own to write.
    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_flush(cx)
    }
}
