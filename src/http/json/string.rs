//! A string of a document: kept as it is written, decoded where its text is asked for.

use std::sync::OnceLock;

use memchr::memchr;

use super::Parser;

/// The longest string with escapes that is decoded, in bytes as it is written. Only bodies take
/// longer ones, and they go on as they are written.
pub const MAX_DECODED_BYTES: usize = 32 * 1024;

/// A well-formed string of a document.
#[derive(Debug, Clone)]
pub struct JsonString<'a> {
    /// As it is written, between its quotes.
    written: &'a str,
    has_escapes: bool,
    decoded: OnceLock<Box<str>>,
}

impl<'a> JsonString<'a> {
    pub(super) fn new(written: &'a str, has_escapes: bool) -> Self {
        Self { written, has_escapes, decoded: OnceLock::new() }
    }

    /// The text, copied the first time if it has escapes. `None` if it has escapes and is longer
    /// than [`MAX_DECODED_BYTES`].
    pub fn text(&self) -> Option<&str> {
        if !self.has_escapes {
            Some(self.written)
        } else if self.written.len() <= MAX_DECODED_BYTES {
            Some(self.decoded.get_or_init(|| decode(self.written)))
        } else {
            None
        }
    }

    /// The text if it can be decoded, otherwise the string as it is written: to be shown.
    pub fn shown(&self) -> &str {
        self.text().unwrap_or(self.written)
    }

    /// The string as it is written, without its quotes.
    pub fn written(&self) -> &'a str {
        self.written
    }
}

impl PartialEq for JsonString<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.shown() == other.shown()
    }
}

impl Eq for JsonString<'_> {}

/// The text of a string with escapes, which were read once and are well-formed.
fn decode(written: &str) -> Box<str> {
    let mut parser = Parser::new(written);
    let mut decoded = String::with_capacity(written.len());
    while let Some(length) = memchr(b'\\', &written.as_bytes()[parser.at..]) {
        decoded.push_str(&written[parser.at..parser.at + length]);
        parser.at += length;
        decoded.push(parser.escape().expect("the string is well-formed"));
    }
    decoded.push_str(&written[parser.at..]);
    decoded.into_boxed_str()
}
