//! The limits of the HTTP edge: how much, how many and how long.

use std::time::Duration;

use crate::connections::ClientConnections;

/// Limits of a listener. Tests shrink them. `service` sets those of the client listener that have a
/// configuration key, so their defaults stand in `config`; the others stay at the defaults here.
/// Those of HTTP/2 alone are constants of [`http2`](crate::http2).
#[derive(Debug, Clone)]
pub struct Limits {
    /// The most connections served at one time; of a listener of `clients`, all listeners' together.
    pub max_connections: usize,
    /// Connections of all client listeners, if this is one of them. They decide who is served.
    pub clients: Option<ClientConnections>,
    /// The fate of further connections.
    pub when_full: WhenFull,
    /// The longest request head, from its first byte to the empty line, in bytes.
    pub max_head_bytes: usize,
    /// The longest that a request head may take from its first byte on, and that a new connection
    /// may stay silent.
    pub head_timeout: Duration,
    /// The longest that a connection may stay silent between two requests.
    pub idle_timeout: Duration,
    /// The longest that a client may leave a response unread, counted from the last byte it took.
    pub write_timeout: Duration,
    /// The largest request body, in bytes.
    pub max_request_bytes: usize,
    /// The bytes of request bodies held at one time, all connections together.
    pub max_reading_bytes: usize,
    /// The bytes of responses that clients have not read, all connections together.
    pub max_writing_bytes: usize,
    /// The longest that a body may pause, and that it may wait for memory.
    pub body_stall_timeout: Duration,
    /// The least speed of a body. With `max_request_bytes` it bounds the time of a whole body:
    /// 43 minutes for 10 MiB.
    pub body_pace: BodyPace,
    /// The bounds of a close while the client may still be sending.
    pub linger: Linger,
}

/// Fate of a connection that comes while as many are served as may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WhenFull {
    /// It receives a refusal and is closed.
    Refuse,
    /// It waits to be accepted.
    Wait,
}

/// The least speed of a body, averaged over one stretch of time after the other.
#[derive(Debug, Clone, Copy)]
pub struct BodyPace {
    /// The least bytes per second.
    pub bytes_per_second: usize,
    /// The length of one stretch. A body that ends within it may have any size.
    pub averaged_over: Duration,
}

/// The bounds of a lingering close: what the client still sends is read and thrown away, so that
/// it reads our answer and not a reset (RFC 9112 section 9.6).
#[derive(Debug, Clone, Copy)]
pub struct Linger {
    /// The most bytes thrown away.
    pub max_bytes: u64,
    /// The longest it may take in all.
    pub timeout: Duration,
    /// The longest wait for further bytes.
    pub idle_timeout: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_connections: 10_000,
            clients: None,
            when_full: WhenFull::Refuse,
            max_head_bytes: 16 * 1024,
            head_timeout: Duration::from_secs(10),
            idle_timeout: Duration::from_secs(75),
            write_timeout: Duration::from_secs(30),
            max_request_bytes: 10 * 1024 * 1024,
            max_reading_bytes: 256 * 1024 * 1024,
            max_writing_bytes: 256 * 1024 * 1024,
            body_stall_timeout: Duration::from_secs(10),
            body_pace: BodyPace::default(),
            linger: Linger::default(),
        }
    }
}

impl Default for BodyPace {
    fn default() -> Self {
        Self { bytes_per_second: 4 * 1024, averaged_over: Duration::from_secs(10) }
    }
}

impl Default for Linger {
    fn default() -> Self {
        Self {
            max_bytes: 64 * 1024 * 1024,
            timeout: Duration::from_secs(10),
            idle_timeout: Duration::from_secs(2),
        }
    }
}
