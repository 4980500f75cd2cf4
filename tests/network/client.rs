//! A connection as bytes, so that what is sent is what is meant.

use std::io;
use std::time::{Duration, Instant};

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::timeout;

use crate::kit::PATIENCE;
use crate::site::Target;

/// A connection and what was read of it beyond the last answer.
pub(crate) struct Client {
    pub(crate) stream: TcpStream,
    unread: Vec<u8>,
}

/// Response to a request.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    /// Head of the response, in lower case.
    head: String,
    pub(crate) body: String,
}

impl Answer {
    /// The value of the header of this name, which is in lower case.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
    }
}

impl Client {
    pub(crate) async fn connect(target: &Target) -> io::Result<Self> {
        let stream = TcpStream::connect(target.address).await?;
        stream.set_nodelay(true)?;
        Ok(Self { stream, unread: Vec::new() })
    }

    /// A connection that takes next to nothing before it is read.
    pub(crate) async fn with_little_room(target: &Target) -> io::Result<Self> {
        let socket = TcpSocket::new_v4()?;
        socket.set_recv_buffer_size(4_096)?;
        Ok(Self { stream: socket.connect(target.address).await?, unread: Vec::new() })
    }

    pub(crate) async fn send(&mut self, bytes: impl AsRef<[u8]>) -> io::Result<()> {
        self.stream.write_all(bytes.as_ref()).await
    }

    /// Sends a request and reads its answer.
    pub(crate) async fn ask(&mut self, request: impl AsRef<[u8]>) -> io::Result<Answer> {
        self.send(request).await?;
        self.answer().await
    }

    pub(crate) async fn answer(&mut self) -> io::Result<Answer> {
        loop {
            if let Some(answer) = self.take_answer() {
                return Ok(answer);
            }
            let read = timeout(PATIENCE, self.stream.read_buf(&mut self.unread)).await?;
            if read? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    }

    /// Waits until the message that was accepted with this answer is sent.
    pub(crate) async fn until_sent(&mut self, target: &Target, accepted: &str) {
        let accepted: Value = serde_json::from_str(accepted).unwrap();
        let path = format!("/emails/{}", accepted["id"].as_str().unwrap());
        let end = Instant::now() + PATIENCE;
        loop {
            let answer = self.ask(get(target, &path)).await.unwrap();
            let record: Value = serde_json::from_str(&answer.body).unwrap();
            if record["status"] == "sent" {
                return;
            }
            assert!(Instant::now() < end, "{record}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    fn take_answer(&mut self) -> Option<Answer> {
        let end = self.unread.windows(4).position(|window| window == b"\r\n\r\n")? + 4;
        let head = std::str::from_utf8(&self.unread[..end]).unwrap().to_ascii_lowercase();
        let value = head.split_once("\r\ncontent-length: ").unwrap().1;
        let length: usize = value.split_once('\r').unwrap().0.parse().unwrap();
        let body = self.unread.get(end..end + length)?;
        let body = String::from_utf8(body.to_vec()).unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        self.unread.drain(..end + length);
        Some(Answer { status, head, body })
    }

    /// Reads until the connection ends, or nothing has come for so long.
    pub(crate) async fn rest(mut self, pause: Duration) -> String {
        loop {
            match timeout(pause, self.stream.read_buf(&mut self.unread)).await {
                Ok(Ok(1..)) => {}
                _ => return String::from_utf8_lossy(&self.unread).into_owned(),
            }
        }
    }
}

/// A GET with the target's key.
pub(crate) fn get(target: &Target, path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {}\r\n\r\n", target.key)
}

/// A POST's head with the target's key, up to its framing.
pub(crate) fn post_head(target: &Target) -> String {
    post_head_to(target, "/emails")
}

/// The same to another path.
pub(crate) fn post_head_to(target: &Target, path: &str) -> String {
    format!(
        "POST {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {}\r\n\
         Content-Type: application/json\r\n",
        target.key
    )
}

/// A message that is accepted.
pub(crate) fn message(subject: &str) -> String {
    format!(
        "{{\"from\":\"ann@example.com\",\"to\":[\"bob@example.org\"],\"subject\":\"{subject}\",\
         \"text\":\"How are you?\"}}"
    )
}

/// A POST of a message.
pub(crate) fn post(target: &Target, subject: &str) -> String {
    let body = message(subject);
    format!("{}Content-Length: {}\r\n\r\n{body}", post_head(target), body.len())
}
