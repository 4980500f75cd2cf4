//! Lines of SMTP (RFC 5321, section 2.3.8) and the end of a message, distinguished from sequences
//! that resemble them.
//!
//! A line ends in CRLF and in nothing else. A sequence that two servers could read in two ways,
//! such as a bare line feed, is a fault and not a line: a message could otherwise smuggle a second
//! one past the first server (CVE-2023-51764 and its kin). Knows neither commands nor sockets.

use memchr::memchr3;

/// Longest line without its CRLF (RFC 5321, section 4.5.3.1.6).
pub const MAX_LINE_OCTETS: usize = 998;

/// Reason why bytes are no line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LineFault {
    /// A CR without an LF after it.
    BareCr,
    /// An LF without a CR before it.
    BareLf,
    /// A NUL byte.
    Nul,
    /// More octets than a line may have.
    TooLong,
}

/// Returns the length of the first line of a buffer without its CRLF, or `None` if the line is not
/// complete.
pub fn first_line(buffer: &[u8]) -> Result<Option<usize>, LineFault> {
    let found = memchr3(b'\r', b'\n', 0, buffer);
    if found.unwrap_or(buffer.len()) > MAX_LINE_OCTETS {
        return Err(LineFault::TooLong);
    }
    let Some(end) = found else { return Ok(None) };
    match (buffer[end], buffer.get(end + 1)) {
        (b'\r', Some(b'\n')) => Ok(Some(end)),
        (b'\r', None) => Ok(None),
        (b'\r', Some(_)) => Err(LineFault::BareCr),
        (b'\n', _) => Err(LineFault::BareLf),
        _ => Err(LineFault::Nul),
    }
}

/// Reads a message up to the line with a single dot, and takes away the dots that were added for
/// transparency (RFC 5321, section 4.5.2).
#[derive(Debug)]
pub struct MessageDecoder {
    state: State,
    /// Octets of the line so far, without an added dot.
    line_octets: usize,
}

/// Place in a message.
#[derive(Debug, Clone, Copy)]
enum State {
    LineStart,
    /// After a dot at a line's start.
    Dot,
    /// After a dot at a line's start and a CR.
    DotCr,
    Text,
    /// After a CR that a line's text came before.
    Cr,
}

/// Progress of a message's decoding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decoded {
    /// All bytes belong to the message, and more follow.
    More,
    /// The message has ended.
    End {
        /// Bytes that belong to the message and to its end.
        used: usize,
    },
}

impl Default for MessageDecoder {
    fn default() -> Self {
        Self { state: State::LineStart, line_octets: 0 }
    }
}

impl MessageDecoder {
    /// Reads further bytes; what belongs to the message is added to `message`.
    pub fn read(&mut self, bytes: &[u8], message: &mut Vec<u8>) -> Result<Decoded, LineFault> {
        let mut rest = bytes;
        while let Some((&byte, after)) = rest.split_first() {
            match self.state {
                State::LineStart => {
                    self.line_octets = 0;
                    self.state = State::Text;
                    if byte == b'.' {
                        self.state = State::Dot;
                        rest = after;
                    }
                }
                State::Dot if byte == b'\r' => {
                    self.state = State::DotCr;
                    rest = after;
                }
                State::Dot => self.state = State::Text,
                State::DotCr if byte == b'\n' => {
                    return Ok(Decoded::End { used: bytes.len() - after.len() });
                }
                State::Text => rest = &rest[self.text(rest, message)?..],
                State::Cr if byte == b'\n' => {
                    message.extend_from_slice(b"\r\n");
                    self.state = State::LineStart;
                    rest = after;
                }
                State::DotCr | State::Cr => return Err(LineFault::BareCr),
            }
        }
        Ok(Decoded::More)
    }

    /// Reads the rest of a line, its CR included; returns how many bytes that were.
    fn text(&mut self, bytes: &[u8], message: &mut Vec<u8>) -> Result<usize, LineFault> {
        let found = memchr3(b'\r', b'\n', 0, bytes);
        let text = &bytes[..found.unwrap_or(bytes.len())];
        self.line_octets += text.len();
        if self.line_octets > MAX_LINE_OCTETS {
            return Err(LineFault::TooLong);
        }
        message.extend_from_slice(text);
        match found.map(|end| bytes[end]) {
            None => Ok(text.len()),
            Some(b'\r') => {
                self.state = State::Cr;
                Ok(text.len() + 1)
            }
            Some(b'\n') => Err(LineFault::BareLf),
            Some(_) => Err(LineFault::Nul),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A message and how many bytes it took, read in parts of this size.
    fn read(bytes: &[u8], part: usize) -> Result<Option<(Vec<u8>, usize)>, LineFault> {
        let (mut decoder, mut message, mut used) = (MessageDecoder::default(), Vec::new(), 0);
        for part in bytes.chunks(part) {
            match decoder.read(part, &mut message)? {
                Decoded::More => used += part.len(),
                Decoded::End { used: last } => return Ok(Some((message, used + last))),
            }
        }
        Ok(None)
    }

    #[test]
    fn a_command_line_ends_in_crlf_and_in_nothing_else() {
        assert_eq!(first_line(b"NOOP\r\nQUIT\r\n"), Ok(Some(4)));
        assert_eq!(first_line(b"\r\n"), Ok(Some(0)));
        for incomplete in [&b""[..], b"NOOP", b"NOOP\r"] {
            assert_eq!(first_line(incomplete), Ok(None));
        }
        assert_eq!(first_line(b"NOOP\n"), Err(LineFault::BareLf));
        assert_eq!(first_line(b"NOOP\rQUIT\r\n"), Err(LineFault::BareCr));
        assert_eq!(first_line(b"NOOP\r\r\n"), Err(LineFault::BareCr));
        assert_eq!(first_line(b"NO\0OP\r\n"), Err(LineFault::Nul));
        let longest = "x".repeat(MAX_LINE_OCTETS);
        assert_eq!(first_line(longest.as_bytes()), Ok(None));
        assert_eq!(first_line(format!("{longest}\r\n").as_bytes()), Ok(Some(MAX_LINE_OCTETS)));
        assert_eq!(first_line(format!("{longest}x").as_bytes()), Err(LineFault::TooLong));
    }

    #[test]
    fn only_a_dot_between_two_line_ends_ends_a_message() {
        let ended = |bytes: &[u8], message: &[u8], used| {
            for part in 1..=bytes.len() {
                assert_eq!(read(bytes, part), Ok(Some((message.to_vec(), used))), "{part}");
            }
        };
        ended(b".\r\n", b"", 3);
        ended(b"a\r\n.\r\nQUIT\r\n", b"a\r\n", 6);
        ended(b"..\r\n...a\r\n.b\r\n.\r\n", b".\r\n..a\r\nb\r\n", 17);
        let fault = |bytes: &[u8], fault| {
            for part in 1..=bytes.len() {
                assert_eq!(read(bytes, part), Err(fault), "{}", bytes.escape_ascii());
            }
        };
        // Ends that one server takes for an end and another for text.
        for bytes in [&b"a\n.\n"[..], b"a\n.\r\n", b"a\r\n.\n", b"a\r\n\n.\r\n", b".\n"] {
            fault(bytes, LineFault::BareLf);
        }
        for bytes in
            [&b"a\r.\r"[..], b"a\r\n.\r\r\n", b"a\r\r\n.\r\n", b"a\r.\r\n", b"a\r\n.\rb", b".\r\r"]
        {
            fault(bytes, LineFault::BareCr);
        }
        fault(b"a\0\r\n.\r\n", LineFault::Nul);
        fault(b"a\r\n.\0\r\n", LineFault::Nul);
    }

    #[test]
    fn a_line_has_at_most_998_octets_however_it_comes() {
        let longest = [&b"."[..], &[b'.'; MAX_LINE_OCTETS], b"\r\n.\r\n"].concat();
        let too_long = [&b"."[..], &[b'.'; MAX_LINE_OCTETS + 1], b"\r\n.\r\n"].concat();
        for part in [1, 7, 500, 2_000] {
            let (message, _) = read(&longest, part).unwrap().unwrap();
            assert_eq!(message.len(), MAX_LINE_OCTETS + 2);
            assert_eq!(read(&too_long, part), Err(LineFault::TooLong));
        }
    }

    proptest! {
        #[test]
        fn a_message_is_the_same_however_it_comes(
            bytes in "[.a\r\n]{0,40}|([.a]{0,3}\r\n){0,8}(\\.\r\n)?[.a\r\n]{0,3}", part in 1_usize..10,
        ) {
            let whole = read(bytes.as_bytes(), bytes.len().max(1));
            prop_assert_eq!(read(bytes.as_bytes(), part), whole.clone());
            if let Ok(Some((message, used))) = whole {
                let stuffed = String::from_utf8(message).unwrap();
                let stuffed: String = stuffed
                    .split_inclusive("\r\n")
                    .map(|line| if line.starts_with('.') { format!(".{line}") } else { line.into() })
                    .collect();
                // A dot before other text may be left out by the client, and is the one difference.
                let read_again = read(format!("{stuffed}.\r\n").as_bytes(), 1).unwrap().unwrap();
                prop_assert_eq!(read_again.1, stuffed.len() + 3);
                prop_assert!(bytes.as_bytes()[..used].ends_with(b".\r\n"));
            }
        }

        #[test]
        fn any_message_comes_through_as_it_is(lines in prop::collection::vec("[^\r\n\0]{0,60}", 0..20)) {
            let (mut message, mut stuffed) = (String::new(), String::new());
            for line in &lines {
                message.extend([line, "\r\n"]);
                stuffed.extend([if line.starts_with('.') { "." } else { "" }, line, "\r\n"]);
            }
            let (read, _) = read(format!("{stuffed}.\r\n").as_bytes(), 7).unwrap().unwrap();
            prop_assert_eq!(read, message.into_bytes());
        }
    }
}
