//! JSON documents as a tree that borrows from their text.
//!
//! Stricter than common parsers if laxness does harm: one object, no key twice, limited depth and
//! number of members (RFC 8259 leaves all four open). A whole document is read before any field is
//! checked, so that errors of syntax come before those of content. The kept part is bounded for
//! every shape. Knows no field names.

use std::borrow::Cow;
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::sync::OnceLock;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use memchr::{memchr, memchr2};

use crate::error::{MAX_ECHO_CHARS, clip};

/// The deepest nesting; the outermost object is level 1.
pub const MAX_DEPTH: usize = 32;
/// The most elements of one array that are kept. Longer ones are read to their end all the same;
/// no field takes as many.
const MAX_KEPT_ELEMENTS: usize = 101;
/// The most values of a document that are kept: a small text of many small values must not become
/// a huge tree. No valid request has as many: a batch of the largest messages has 35,000.
const MAX_KEPT_VALUES: usize = 40_000;
/// Kept values from which on lists give back the room that they do not need: many small ones have
/// room for more than they hold. A usual document is not made slower.
const MANY_VALUES: usize = 1_000;
/// The most values of a document that are read. One that has more is refused there: it must not
/// take long to find out what is wrong with it.
const MAX_VALUES: usize = 250_000;
/// The most members of one object. No field takes as many, and each of them is kept to find keys
/// that are given twice, so more are refused.
const MAX_MEMBERS: usize = 100;
/// So many keys of an object are compared with each other. From there on their hashes are.
const FEW_MEMBERS: usize = 16;

/// The longest string with escapes that is decoded, in bytes as it is written. Only bodies take
/// longer ones, and they go on as they are written.
pub const MAX_DECODED_BYTES: usize = 32 * 1024;

/// JSON value that borrows from the text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Json<'a> {
    /// `null`.
    Null,
    /// `true` or `false`.
    Bool(bool),
    /// A number, as written: of any size and precision.
    Number(&'a str),
    /// A string, decoded only if it is asked for.
    String(JsonString<'a>),
    /// An array; of a long one, the first elements.
    Array(Vec<Json<'a>>),
    /// A list of numbers from 0 to 255, of any length: bytes, in base64 (RFC 4648, section 4). Only
    /// if the reader asks for such lists.
    Bytes(String),
    /// An object, in the order given, every key different.
    Object(Vec<(JsonString<'a>, Json<'a>)>),
    /// A value of a document that has too many of them: well-formed and not kept.
    Omitted,
}

/// A well-formed string of a document.
#[derive(Debug, Clone)]
pub struct JsonString<'a> {
    /// As it is written, between its quotes.
    written: &'a str,
    has_escapes: bool,
    decoded: OnceLock<Box<str>>,
}

impl<'a> JsonString<'a> {
    fn new(written: &'a str, has_escapes: bool) -> Self {
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

/// Reason why bytes are not one JSON object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JsonError {
    /// Rule that the text breaks, for the client.
    pub problem: String,
    /// The line, from 1.
    pub line: usize,
    /// The character in the line, from 1.
    pub column: usize,
}

impl fmt::Display for JsonError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at line {} column {}", self.problem, self.line, self.column)
    }
}

/// Form of a document.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// An object without lists of bytes.
    Object,
    /// One object, in which lists of bytes stand for files.
    ObjectWithBytes,
    /// An array of such objects.
    ArrayWithBytes,
}

impl Form {
    /// The document's first byte, and what the document is called.
    const fn opening(self) -> (u8, &'static str) {
        match self {
            Self::Object | Self::ObjectWithBytes => (b'{', "a JSON object"),
            Self::ArrayWithBytes => (b'[', "a JSON array"),
        }
    }
}

/// Reads a document that is one object.
pub fn parse_object(bytes: &[u8]) -> Result<Json<'_>, JsonError> {
    parse(bytes, Form::Object)
}

/// Reads a document of this form.
pub fn parse(bytes: &[u8], form: Form) -> Result<Json<'_>, JsonError> {
    let text = simdutf8::compat::from_utf8(bytes).map_err(|error| {
        let valid = std::str::from_utf8(&bytes[..error.valid_up_to()]);
        let valid = valid.expect("checked up to here");
        error_at(valid, valid.len(), "the body is not UTF-8".into())
    })?;
    let mut parser = Parser { reads_bytes: form != Form::Object, ..Parser::new(text) };
    parser.skip_whitespace();
    let (first, name) = form.opening();
    let problem = match parser.peek() {
        Some(found) if found == first => {
            let document = parser.value(1)?;
            parser.skip_whitespace();
            if parser.peek().is_none() {
                return Ok(document);
            }
            format!("something follows {}", name.replace("a JSON", "the JSON")).into()
        }
        None => format!("the body is empty, not {name}").into(),
        Some(_) if text.starts_with('\u{feff}') => "the body begins with a byte order mark".into(),
        Some(_) => format!("the body is not {name}").into(),
    };
    Err(error_at(text, parser.at, problem))
}

fn error_at(text: &str, at: usize, problem: Cow<'_, str>) -> JsonError {
    let before = text.get(..at).unwrap_or(text);
    let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
    JsonError {
        problem: problem.into_owned(),
        line: before.bytes().filter(|&b| b == b'\n').count() + 1,
        column: before[line_start..].chars().count() + 1,
    }
}

struct Parser<'a> {
    text: &'a str,
    /// The next byte to read.
    at: usize,
    /// The values that have begun so far.
    values: usize,
    /// The values kept so far.
    kept: usize,
    /// Lists of bytes are kept as such.
    reads_bytes: bool,
    /// Any control character is in the text. White space between values can be one.
    has_controls: bool,
    /// With a secret: otherwise a client could choose keys of one hash, and how long it takes.
    hashing: RandomState,
}

impl<'a> Parser<'a> {
    fn new(text: &'a str) -> Self {
        let has_controls = has_control_character(text.as_bytes());
        let hashing = RandomState::new();
        Self { text, at: 0, values: 0, kept: 0, reads_bytes: false, has_controls, hashing }
    }

    fn error(&self, problem: &'static str) -> JsonError {
        error_at(self.text, self.at, problem.into())
    }

    fn unexpected(&self, expected: &str) -> JsonError {
        let problem = match self.text[self.at..].chars().next() {
            None => format!("the body ends where {expected} is expected"),
            Some(_) => format!("expected {expected}"),
        };
        error_at(self.text, self.at, problem.into())
    }

    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn skip_whitespace(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }

    /// Takes `byte` if it comes next.
    fn take(&mut self, byte: u8) -> Option<()> {
        (self.peek() == Some(byte)).then(|| self.at += 1)
    }

    /// Takes part in the count of values that are kept.
    fn keep(&mut self, value: Json<'a>) -> Json<'a> {
        self.kept += 1;
        if self.kept > MAX_KEPT_VALUES { Json::Omitted } else { value }
    }

    /// Reads a value; an object or array is at level `depth`.
    fn value(&mut self, depth: usize) -> Result<Json<'a>, JsonError> {
        self.values += 1;
        if self.values > MAX_VALUES {
            let problem = format!("the body has more than {MAX_VALUES} values");
            return Err(error_at(self.text, self.at, problem.into()));
        }
        match self.peek() {
            Some(b'{' | b'[') if depth > MAX_DEPTH => {
                Err(self.error("the JSON is nested deeper than 32 levels"))
            }
            Some(b'{') => self.object(depth),
            Some(b'[') => match self.reads_bytes.then(|| self.bytes()).flatten() {
                Some(bytes) => Ok(bytes),
                None => self.array(depth),
            },
            Some(b'"') => self.string().map(Json::String),
            Some(b'-' | b'0'..=b'9') => self.number(),
            Some(b't') => self.literal("true", Json::Bool(true)),
            Some(b'f') => self.literal("false", Json::Bool(false)),
            Some(b'n') => self.literal("null", Json::Null),
            _ => Err(self.unexpected("a value")),
        }
    }

    fn literal(&mut self, word: &str, value: Json<'a>) -> Result<Json<'a>, JsonError> {
        if self.text.as_bytes()[self.at..].starts_with(word.as_bytes()) {
            self.at += word.len();
            Ok(value)
        } else {
            Err(self.unexpected(word))
        }
    }

    fn array(&mut self, depth: usize) -> Result<Json<'a>, JsonError> {
        let mut elements = Vec::new();
        self.at += 1;
        self.skip_whitespace();
        if self.take(b']').is_some() {
            return Ok(Json::Array(elements));
        }
        loop {
            self.skip_whitespace();
            let element = self.value(depth + 1)?;
            if elements.len() < MAX_KEPT_ELEMENTS {
                let element = self.keep(element);
                elements.push(element);
            }
            self.skip_whitespace();
            if self.take(b',').is_none() {
                break;
            }
        }
        self.take(b']').ok_or_else(|| self.unexpected("a comma or ]"))?;
        if self.kept > MANY_VALUES {
            elements.shrink_to_fit();
        }
        Ok(Json::Array(elements))
    }

    /// Reads an array if it is a list of bytes and not empty; otherwise it is still to be read.
    fn bytes(&mut self) -> Option<Json<'a>> {
        let rest = &self.text.as_bytes()[self.at + 1..];
        // A client's list is long, or it is no list of bytes and ends this soon.
        let mut bytes = Vec::new();
        let (mut number, mut digits, mut is_over) = (0_u16, 0_u8, false);
        for (index, &b) in rest.iter().enumerate() {
            match b {
                b'0'..=b'9' if !is_over && (digits == 0 || number != 0) => {
                    number = number * 10 + u16::from(b - b'0');
                    digits += 1;
                    if number > u16::from(u8::MAX) {
                        return None;
                    }
                }
                b' ' | b'\t' | b'\n' | b'\r' => is_over = digits > 0,
                b',' | b']' if digits > 0 => {
                    bytes.push(u8::try_from(number).ok()?);
                    if b == b']' {
                        self.at += index + 2;
                        return Some(Json::Bytes(STANDARD.encode(bytes)));
                    }
                    (number, digits, is_over) = (0, 0, false);
                }
                _ => return None,
            }
        }
        None
    }

    fn object(&mut self, depth: usize) -> Result<Json<'a>, JsonError> {
        // As many as a usual message has. Deeper objects are smaller, and there can be many.
        let room = if depth == 1 { FEW_MEMBERS } else { 0 };
        let mut members: Vec<(JsonString<'a>, Json<'a>)> = Vec::with_capacity(room);
        let mut hashes = Vec::new();
        self.at += 1;
        self.skip_whitespace();
        if self.take(b'}').is_some() {
            return Ok(Json::Object(members));
        }
        loop {
            self.skip_whitespace();
            if self.peek() != Some(b'"') {
                return Err(self.unexpected("a key in double quotes"));
            }
            let key_at = self.at;
            if members.len() == MAX_MEMBERS {
                let problem = format!("an object has more than {MAX_MEMBERS} members");
                return Err(error_at(self.text, key_at, problem.into()));
            }
            let key = self.string()?;
            let Some(name) = key.text() else {
                let problem = format!("a key with escapes is over {MAX_DECODED_BYTES} bytes long");
                return Err(error_at(self.text, key_at, problem.into()));
            };
            if self.is_there(&key, &members, &mut hashes) {
                return Err(duplicate(self.text, key_at, name));
            }
            self.skip_whitespace();
            self.take(b':').ok_or_else(|| self.unexpected("a colon"))?;
            self.skip_whitespace();
            let value = self.value(depth + 1)?;
            let value = self.keep(value);
            members.push((key, value));
            self.skip_whitespace();
            if self.take(b',').is_none() {
                break;
            }
        }
        self.take(b'}').ok_or_else(|| self.unexpected("a comma or }"))?;
        if self.kept > MANY_VALUES {
            members.shrink_to_fit();
        }
        Ok(Json::Object(members))
    }

    /// Returns true if an object has a key already. Of an object with many keys, `hashes` gets
    /// their hashes.
    fn is_there(
        &self,
        key: &JsonString<'a>,
        members: &[(JsonString<'a>, Json<'a>)],
        hashes: &mut Vec<u64>,
    ) -> bool {
        let is_member = || members.iter().any(|(other, _)| other == key);
        if members.len() < FEW_MEMBERS {
            return is_member();
        }
        let hash = |key: &JsonString<'_>| self.hashing.hash_one(key.shown());
        if hashes.is_empty() {
            hashes.extend(members.iter().map(|(other, _)| hash(other)));
        }
        let hash = hash(key);
        let is_there = hashes.contains(&hash) && is_member();
        hashes.push(hash);
        is_there
    }

    /// RFC 8259 section 6. The digits are only kept as text, so no number is too large.
    fn number(&mut self) -> Result<Json<'a>, JsonError> {
        let start = self.at;
        let _ = self.take(b'-');
        if self.take(b'0').is_none() {
            self.digits()?;
        }
        if self.take(b'.').is_some() {
            self.digits()?;
        }
        if matches!(self.peek(), Some(b'e' | b'E')) {
            self.at += 1;
            if matches!(self.peek(), Some(b'+' | b'-')) {
                self.at += 1;
            }
            self.digits()?;
        }
        Ok(Json::Number(&self.text[start..self.at]))
    }

    fn digits(&mut self) -> Result<(), JsonError> {
        let rest = &self.text.as_bytes()[self.at..];
        let count = rest.iter().take_while(|b| b.is_ascii_digit()).count();
        if count == 0 {
            return Err(self.unexpected("a digit"));
        }
        self.at += count;
        Ok(())
    }

    fn string(&mut self) -> Result<JsonString<'a>, JsonError> {
        self.at += 1;
        let start = self.at;
        let mut has_escapes = false;
        loop {
            let rest = &self.text.as_bytes()[self.at..];
            let end = memchr2(b'"', b'\\', rest);
            let plain = &rest[..end.unwrap_or(rest.len())];
            if self.has_controls
                && let Some(control) = control_character(plain)
            {
                self.at += control;
                return Err(self.error("a string has a control character in it"));
            }
            self.at += plain.len();
            match self.peek() {
                Some(b'\\') => {
                    has_escapes = true;
                    self.escapes()?;
                }
                Some(_) => {
                    let written = &self.text[start..self.at];
                    self.at += 1;
                    return Ok(JsonString::new(written, has_escapes));
                }
                None => return Err(self.error("the body ends within a string")),
            }
        }
    }

    /// Reads one escape after the other, from the first one's backslash on.
    fn escapes(&mut self) -> Result<(), JsonError> {
        let bytes = self.text.as_bytes();
        while bytes.get(self.at) == Some(&b'\\') {
            match bytes.get(self.at + 1) {
                Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => self.at += 2,
                _ => {
                    self.escape()?;
                }
            }
        }
        Ok(())
    }

    /// Reads from the backslash on.
    fn escape(&mut self) -> Result<char, JsonError> {
        let escape_at = self.at;
        self.at += 1;
        let decoded = match self.peek() {
            Some(b'"') => '"',
            Some(b'\\') => '\\',
            Some(b'/') => '/',
            Some(b'b') => '\u{8}',
            Some(b'f') => '\u{c}',
            Some(b'n') => '\n',
            Some(b'r') => '\r',
            Some(b't') => '\t',
            Some(b'u') => {
                self.at += 1;
                return self.unicode_escape(escape_at);
            }
            _ => return Err(self.unexpected("one of \" \\ / b f n r t u after a backslash")),
        };
        self.at += 1;
        Ok(decoded)
    }

    /// Reads from the first of the four digits on; two escapes if they are a surrogate pair.
    fn unicode_escape(&mut self, escape_at: usize) -> Result<char, JsonError> {
        let text = self.text;
        let lone = || {
            let problem = "a string has half of a surrogate pair in it";
            error_at(text, escape_at, problem.into())
        };
        let first = self.hex4()?;
        let mut code = first;
        if (0xd800..=0xdbff).contains(&first) {
            if !text.as_bytes()[self.at..].starts_with(b"\\u") {
                return Err(lone());
            }
            self.at += 2;
            let second = self.hex4()?;
            if !(0xdc00..=0xdfff).contains(&second) {
                return Err(lone());
            }
            code = 0x1_0000 + ((first - 0xd800) << 10) + (second - 0xdc00);
        }
        char::from_u32(code).ok_or_else(lone)
    }

    fn hex4(&mut self) -> Result<u32, JsonError> {
        let mut code = 0;
        for _ in 0..4 {
            let digit = self.peek().and_then(|b| char::from(b).to_digit(16));
            code = code * 16 + digit.ok_or_else(|| self.unexpected("four hexadecimal digits"))?;
            self.at += 1;
        }
        Ok(code)
    }
}

/// Place of the first control character.
fn control_character(bytes: &[u8]) -> Option<usize> {
    if has_control_character(bytes) { bytes.iter().position(|&b| b < b' ') } else { None }
}

/// Returns true if there is a control character. There is none, more often than not, and to see
/// that without stopping takes a fraction of the time.
fn has_control_character(bytes: &[u8]) -> bool {
    bytes.iter().fold(0, |any, &b| any | u8::from(b < b' ')) != 0
}

fn duplicate(text: &str, at: usize, key: &str) -> JsonError {
    let key = clip(key, MAX_ECHO_CHARS);
    error_at(text, at, format!("the key {key:?} is given twice").into())
}

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

#[cfg(test)]
mod tests;
