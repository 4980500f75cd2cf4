//! A connection's bytes: lines that come in, replies that go out, and the body of a message, as the
//! HTTP edge reads bodies.
//!
//! Replies are kept until the next read from the socket, so that a group of commands is answered in
//! one packet (RFC 2920). Knows no command.

use std::io;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf as _, Bytes, BytesMut};
use http_body_util::BodyExt as _;
use hyper::body::{Body, Frame};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::time::{Instant, timeout, timeout_at};

use crate::line::{Decoded, LineFault, MessageDecoder, first_line};
use crate::reply::Reply;
use pillarbox_http::limits::Linger;

/// Bytes that are read at one time while commands come: room for the longest line.
const COMMAND_BYTES: usize = 1_024;
/// Bytes that are read at one time while a message comes. Less than `http::body` counts for what is
/// read ahead.
const MESSAGE_BYTES: usize = 16 * 1_024;

/// Connection of a client.
pub(super) struct Connection<S> {
    stream: S,
    input: BytesMut,
    output: Vec<u8>,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Connection<S> {
    pub(super) fn new(stream: S) -> Self {
        Self { stream, input: BytesMut::new(), output: Vec::new() }
    }

    /// The stream alone. Bytes that were read and not used are dropped.
    pub(super) fn into_stream(self) -> S {
        self.stream
    }

    /// Returns the next line without its CRLF if it has been read.
    pub(super) fn line(&mut self) -> Result<Option<BytesMut>, LineFault> {
        let Some(len) = first_line(&self.input)? else { return Ok(None) };
        let line = self.input.split_to(len);
        self.input.advance(2);
        Ok(Some(line))
    }

    /// Returns true if bytes have been read that belong to no line yet.
    pub(super) fn has_unread(&self) -> bool {
        !self.input.is_empty()
    }

    /// Waits for more bytes; zero at the end.
    pub(super) async fn read_more(&mut self) -> io::Result<usize> {
        self.input.reserve(COMMAND_BYTES);
        self.stream.read_buf(&mut self.input).await
    }

    /// Adds a reply to those that are to be written.
    pub(super) fn put(&mut self, reply: &Reply) {
        self.put_line(reply.line());
    }

    /// Adds a line of a reply.
    pub(super) fn put_line(&mut self, line: &str) {
        self.output.extend_from_slice(line.as_bytes());
        self.output.extend_from_slice(b"\r\n");
    }

    /// Writes all replies that wait.
    pub(super) async fn flush(&mut self, patience: Duration) -> io::Result<()> {
        if self.output.is_empty() {
            return Ok(());
        }
        let writing = async {
            self.stream.write_all(&self.output).await?;
            self.stream.flush().await
        };
        timeout(patience, writing).await??;
        // Most sessions are idle most of the time: none keeps a buffer.
        self.output = Vec::new();
        Ok(())
    }

    /// The message that comes next.
    pub(super) fn message(&mut self) -> MessageBody<'_, S> {
        let decoder = MessageDecoder::default();
        MessageBody { connection: self, decoder, has_ended: false, failure: None }
    }

    /// Closes the connection. Bytes that the client still sends are discarded for a while, so that
    /// it reads the last reply and not a reset.
    pub(super) async fn close(mut self, linger: Linger) {
        let end = Instant::now() + linger.timeout;
        // If that fails, the client has disconnected already.
        if timeout_at(end, self.stream.shutdown()).await.is_err() {
            return;
        }
        let mut left = linger.max_bytes;
        while left > 0 {
            self.input.clear();
            self.input.reserve(MESSAGE_BYTES);
            let until = end.min(Instant::now() + linger.idle_timeout);
            match timeout_at(until, self.stream.read_buf(&mut self.input)).await {
                Ok(Ok(read @ 1..)) => left = left.saturating_sub(read as u64),
                _ => return,
            }
        }
    }
}

/// A message as it comes in after `DATA`: its text without the added dots, up to its end.
pub(super) struct MessageBody<'c, S> {
    connection: &'c mut Connection<S>,
    decoder: MessageDecoder,
    has_ended: bool,
    failure: Option<Failure>,
}

/// Reason why a message has no end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Failure {
    /// It has what is no line.
    Line,
    /// The client has disconnected.
    Gone,
}

/// End of a message that is thrown away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Skipped {
    /// The message has ended, and the next command may come.
    ToItsEnd,
    /// It did not end within the limits.
    TooLong,
    /// It has no end.
    Failed(Failure),
}

impl<S: AsyncRead + AsyncWrite + Unpin> MessageBody<'_, S> {
    /// Returns why the message has no end, if that is known.
    pub(super) const fn failure(&self) -> Option<Failure> {
        self.failure
    }

    /// Throws the rest of the message away.
    pub(super) async fn skip(mut self, limits: Linger) -> Skipped {
        let end = Instant::now() + limits.timeout;
        let mut left = limits.max_bytes;
        loop {
            let until = end.min(Instant::now() + limits.idle_timeout);
            match timeout_at(until, self.frame()).await {
                Ok(None) => return Skipped::ToItsEnd,
                Ok(Some(Ok(frame))) => {
                    let read = frame.data_ref().map_or(0, Bytes::len) as u64;
                    if read >= left {
                        return Skipped::TooLong;
                    }
                    left -= read;
                }
                Ok(Some(Err(_))) => return Skipped::Failed(self.failure.unwrap_or(Failure::Gone)),
                Err(_) => return Skipped::TooLong,
            }
        }
    }

    fn fail(&mut self, failure: Failure) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        self.failure = Some(failure);
        Poll::Ready(Some(Err(io::ErrorKind::InvalidData.into())))
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Body for MessageBody<'_, S> {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        let this = &mut *self;
        loop {
            if let Some(failure) = this.failure {
                return this.fail(failure);
            }
            if this.has_ended {
                return Poll::Ready(None);
            }
            let input = &mut this.connection.input;
            if !input.is_empty() {
                let mut text = Vec::with_capacity(input.len());
                match this.decoder.read(input, &mut text) {
                    Ok(Decoded::More) => input.clear(),
                    Ok(Decoded::End { used }) => {
                        input.advance(used);
                        this.has_ended = true;
                        if input.is_empty() {
                            *input = BytesMut::new();
                        }
                    }
                    Err(_) => return this.fail(Failure::Line),
                }
                if !text.is_empty() {
                    return Poll::Ready(Some(Ok(Frame::data(text.into()))));
                }
                continue;
            }
            input.reserve(MESSAGE_BYTES);
            let read = pin!(this.connection.stream.read_buf(input)).poll(context);
            match ready!(read) {
                Ok(1..) => {}
                Ok(0) | Err(_) => return this.fail(Failure::Gone),
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.has_ended
    }
}
