//! Bytes of an SMTP session, in parts of any size: lines and messages are the same however they
//! come, and nothing that another server could read in another way comes through.

use pillarbox_smtp::command::Command;
use pillarbox_smtp::line::{Decoded, LineFault, MAX_LINE_OCTETS, MessageDecoder, first_line};

pub(crate) fn check(data: &[u8]) {
    let Some((&part, bytes)) = data.split_first() else { return };
    commands(bytes);
    let whole = message(bytes, bytes.len().max(1));
    assert_eq!(message(bytes, usize::from(part).max(1)), whole);
    let Ok(Some((message, used))) = whole else { return };
    // What every server agrees on ends it, and nothing like it comes before.
    let read = &bytes[..used];
    assert!(read == b".\r\n" || read.ends_with(b"\r\n.\r\n"), "{}", read.escape_ascii());
    let inner = &read[..used - 3];
    assert!(!inner.windows(5).any(|end| end == b"\r\n.\r\n") && !inner.starts_with(b".\r\n"));
    assert!(message.is_empty() || message.ends_with(b"\r\n"));
    for line in message.split_inclusive(|byte| *byte == b'\n') {
        let line = line.strip_suffix(b"\r\n").expect("every line ends in CRLF");
        assert!(line.len() <= MAX_LINE_OCTETS && !line.iter().any(|byte| b"\r\n\0".contains(byte)));
    }
}

/// Reads all command lines.
fn commands(mut bytes: &[u8]) {
    while let Ok(Some(len)) = first_line(bytes) {
        let (line, rest) = bytes.split_at(len);
        assert!(line.len() <= MAX_LINE_OCTETS && !line.iter().any(|byte| b"\r\n\0".contains(byte)));
        if let Ok(Command::Rcpt(address)) = Command::parse(line) {
            assert!(line.windows(address.len() + 2).any(|part| {
                part.first() == Some(&b'<')
                    && part.last() == Some(&b'>')
                    && &part[1..=address.len()] == address.as_bytes()
            }));
        }
        bytes = rest.strip_prefix(b"\r\n").expect("a line ends in CRLF");
    }
}

/// A message and the bytes that it took, if it has ended, read in parts of this size.
fn message(bytes: &[u8], part: usize) -> Result<Option<(Vec<u8>, usize)>, LineFault> {
    let (mut decoder, mut message, mut used) = (MessageDecoder::default(), Vec::new(), 0);
    for part in bytes.chunks(part) {
        match decoder.read(part, &mut message)? {
            Decoded::More => used += part.len(),
            Decoded::End { used: last } => return Ok(Some((message, used + last))),
        }
    }
    Ok(None)
}
