//! A client of SMTP.
//!
//! Must not know which replies are right.

use std::io;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use tokio::io::{
    AsyncBufReadExt as _, AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, BufReader,
};
use tokio::net::{TcpStream, ToSocketAddrs};
use tokio::time::timeout;

use super::PATIENCE;

/// Session of SMTP. Its methods fail if the connection ends, a reply takes too long, or a reply that
/// must begin in some way does not.
pub(crate) struct SmtpClient<S = TcpStream> {
    stream: BufReader<S>,
}

impl SmtpClient<TcpStream> {
    /// Connects and reads the greeting.
    pub(crate) async fn connect(address: impl ToSocketAddrs) -> io::Result<Self> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let mut client = Self::of(stream);
        client.expect("220 ").await?;
        Ok(client)
    }

    /// The same, with EHLO and AUTH.
    pub(crate) async fn login(address: impl ToSocketAddrs, key: &str) -> io::Result<Self> {
        let mut client = Self::connect(address).await?;
        client.authenticate(key).await?;
        Ok(client)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> SmtpClient<S> {
    /// A session whose greeting is still to be read.
    pub(crate) fn of(stream: S) -> Self {
        Self { stream: BufReader::new(stream) }
    }

    /// The connection, without what was read ahead of it.
    pub(crate) fn into_stream(self) -> S {
        self.stream.into_inner()
    }

    pub(crate) async fn authenticate(&mut self, key: &str) -> io::Result<()> {
        self.ask_for("EHLO client", "250").await?;
        self.ask_for(&auth_plain(key), "235 2.7.0 ").await?;
        Ok(())
    }

    /// Writes a text as it is.
    pub(crate) async fn write(&mut self, text: &str) -> io::Result<()> {
        self.stream.write_all(text.as_bytes()).await?;
        self.stream.flush().await
    }

    /// A reply, its lines joined.
    pub(crate) async fn reply(&mut self) -> io::Result<String> {
        let mut reply = String::new();
        loop {
            let start = reply.len();
            if timeout(PATIENCE, self.stream.read_line(&mut reply)).await?? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            if reply.as_bytes().get(start + 3) != Some(&b'-') {
                return Ok(reply);
            }
        }
    }

    /// A reply that must begin like this.
    pub(crate) async fn expect(&mut self, start: &str) -> io::Result<String> {
        let reply = self.reply().await?;
        if reply.starts_with(start) { Ok(reply) } else { Err(io::Error::other(reply)) }
    }

    /// The reply to a command.
    pub(crate) async fn ask(&mut self, command: &str) -> io::Result<String> {
        self.write(&format!("{command}\r\n")).await?;
        self.reply().await
    }

    /// The reply to a command, which must begin like this.
    pub(crate) async fn ask_for(&mut self, command: &str, start: &str) -> io::Result<String> {
        self.write(&format!("{command}\r\n")).await?;
        self.expect(start).await
    }

    /// Begins a message to these recipients, who must all be taken.
    pub(crate) async fn begin(&mut self, recipients: &[&str]) -> io::Result<()> {
        self.ask_for("MAIL FROM:<ann@example.com>", "250 2.1.0 ").await?;
        for recipient in recipients {
            self.ask_for(&format!("RCPT TO:<{recipient}>"), "250 2.1.5 ").await?;
        }
        self.ask_for("DATA", "354 ").await?;
        Ok(())
    }

    /// Hands a message over up to the reply to its end.
    pub(crate) async fn submit(
        &mut self,
        recipients: &[&str],
        message: &str,
    ) -> io::Result<String> {
        self.begin(recipients).await?;
        self.write(&format!("{message}.\r\n")).await?;
        self.reply().await
    }

    /// All that comes before the connection ends, and after what time.
    pub(crate) async fn last_words(&mut self) -> io::Result<(String, Duration)> {
        let start = tokio::time::Instant::now();
        let mut words = Vec::new();
        self.stream.read_to_end(&mut words).await?;
        Ok((String::from_utf8_lossy(&words).into_owned(), start.elapsed()))
    }
}

/// The command that authenticates with a key. The user name is ignored.
pub(crate) fn auth_plain(key: &str) -> String {
    format!("AUTH PLAIN {}", STANDARD.encode(format!("\0anybody\0{key}")))
}

/// The codes of a reply, such as `250 2.0.0`.
pub(crate) fn codes(reply: &str) -> String {
    reply.split_whitespace().take(2).collect::<Vec<_>>().join(" ")
}

/// The id in a reply to a message that was accepted; `None` for any other reply.
pub(crate) fn accepted_id(reply: &str) -> Option<&str> {
    reply.strip_prefix("250 2.0.0 ").map(str::trim_end)
}
