//! HTTP/2 frames as bytes (RFC 9113), so that what is sent is what is meant.

use std::io;

use tokio::io::{AsyncRead, AsyncReadExt};

use crate::site::Target;

/// Beginning of a client's connection (RFC 9113, section 3.4).
pub(crate) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// The types of frames (RFC 9113, section 6).
pub(crate) const DATA: u8 = 0;
pub(crate) const HEADERS: u8 = 1;
pub(crate) const RST_STREAM: u8 = 3;
pub(crate) const SETTINGS: u8 = 4;
pub(crate) const PING: u8 = 6;
pub(crate) const GOAWAY: u8 = 7;
pub(crate) const WINDOW_UPDATE: u8 = 8;
pub(crate) const CONTINUATION: u8 = 9;

/// Flags of frames.
pub(crate) const END_STREAM: u8 = 1;
pub(crate) const ACK: u8 = 1;
pub(crate) const END_HEADERS: u8 = 4;

/// The error codes (RFC 9113, section 7) with which a connection is given up.
pub(crate) const ENHANCE_YOUR_CALM: u32 = 11;

/// The setting of how much of a response may come before the client asks for more.
const INITIAL_WINDOW_SIZE: u16 = 4;
/// The longest payload that need not be agreed on.
pub(crate) const MAX_PAYLOAD: usize = 16_384;

pub(crate) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// The preface and the first settings, with room for so many bytes of each response.
pub(crate) fn hello(window: u32) -> Vec<u8> {
    let setting = [&INITIAL_WINDOW_SIZE.to_be_bytes()[..], &window.to_be_bytes()].concat();
    [PREFACE, &frame(SETTINGS, 0, 0, &setting)].concat()
}

/// The fields of a request with the target's key, none of them kept by the other side (RFC 7541).
pub(crate) fn request(target: &Target, method: &str, path: &str) -> Vec<u8> {
    let authorization = format!("Bearer {}", target.key);
    [
        field(":method", method),
        field(":scheme", "https"),
        field(":authority", "localhost"),
        field(":path", path),
        field("authorization", &authorization),
        field("content-type", "application/json"),
    ]
    .concat()
}

/// A field as it is, not to be kept (RFC 7541, section 6.2.2).
pub(crate) fn field(name: &str, value: &str) -> Vec<u8> {
    [vec![0], text(name), text(value)].concat()
}

/// A field that is to be kept (RFC 7541, section 6.2.1): the newest is number 62.
pub(crate) fn kept_field(name: &str, value: &str) -> Vec<u8> {
    [vec![0x40], text(name), text(value)].concat()
}

/// The newest of the fields that are kept (RFC 7541, section 6.1).
pub(crate) const NEWEST: u8 = 0x80 | 0x3e;

/// A text without Huffman's code (RFC 7541, sections 5.1 and 5.2).
fn text(text: &str) -> Vec<u8> {
    const PREFIX: usize = 127;
    let mut bytes = Vec::new();
    match u8::try_from(text.len()) {
        Ok(length) if usize::from(length) < PREFIX => bytes.push(length),
        _ => {
            bytes.push(127);
            let mut rest = text.len() - PREFIX;
            while rest >= 128 {
                bytes.push(u8::try_from(rest % 128).unwrap() | 128);
                rest /= 128;
            }
            bytes.push(u8::try_from(rest).unwrap());
        }
    }
    bytes.extend_from_slice(text.as_bytes());
    bytes
}

/// Data that came from the other side until it closed.
#[derive(Debug, Default)]
pub(crate) struct Received {
    /// The code of its GOAWAY frame, if it sent one.
    pub(crate) goaway: Option<u32>,
    /// Number of answers that began.
    pub(crate) answers: usize,
    /// Streams that it reset.
    pub(crate) resets: usize,
    /// Acknowledgements of settings and pings.
    pub(crate) acknowledged: usize,
}

impl Received {
    /// Reads until the connection ends, noting what comes.
    pub(crate) async fn until_closed(mut from: impl AsyncRead + Unpin) -> Self {
        let mut received = Self::default();
        // However it ends, it has.
        while let Ok((kind, flags, payload)) = read(&mut from).await {
            match kind {
                HEADERS => received.answers += 1,
                RST_STREAM => received.resets += 1,
                SETTINGS | PING if flags & ACK != 0 => received.acknowledged += 1,
                GOAWAY => {
                    let code = payload[4..8].try_into().unwrap();
                    received.goaway = Some(u32::from_be_bytes(code));
                }
                _ => {}
            }
        }
        received
    }
}

async fn read(from: &mut (impl AsyncRead + Unpin)) -> io::Result<(u8, u8, Vec<u8>)> {
    let mut head = [0; 9];
    from.read_exact(&mut head).await?;
    let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
    let mut payload = vec![0; usize::try_from(length).unwrap()];
    from.read_exact(&mut payload).await?;
    Ok((head[3], head[4], payload))
}
