//! A list's bytes as text: UTF-16 becomes UTF-8, byte order marks are removed, and every line ends
//! in a line feed. A text that cannot be a list is refused with the reason.
//!
//! Other encodings pass as they are: the reader of a cell checks it. Must not know columns.

use std::io::{self, Read};

use encoding_rs::{Decoder, Encoding, UTF_16BE, UTF_16LE};

/// Size of one read, in bytes, and limit of the first line.
const CHUNK_BYTES: usize = 64 * 1024;
/// Before UTF-16, if anything is.
const MARKS: [(&[u8], &Encoding); 2] = [(&[0xff, 0xfe], UTF_16LE), (&[0xfe, 0xff], UTF_16BE)];
const UTF_8_MARK: &[u8] = &[0xef, 0xbb, 0xbf];
/// Beginnings of files that are no lists, and what to do about them.
const NO_LISTS: [(&[u8], &str); 8] = [
    (b"PK\x03\x04", "it is an Excel workbook or another ZIP archive; save it as CSV, or unpack it"),
    (b"\xd0\xcf\x11\xe0", "it is an old Excel workbook; save it as CSV"),
    (b"\x1f\x8b", "it is compressed by gzip; unpack it first"),
    (b"%PDF", "it is a PDF; export the list as CSV"),
    (b"{", JSON),
    (b"[", JSON),
    (b"<!", HTML),
    (b"<?", HTML),
];
const JSON: &str = "it is JSON; write it as CSV first, for example with jq -r and @csv";
const HTML: &str = "it is a web page or XML; export the list as CSV";

/// The text of a list.
pub(super) struct Text<R> {
    from: R,
    /// Decoder of UTF-16; `None` for other encodings.
    decoder: Option<Decoder>,
    content: Vec<u8>,
    /// Position in the chunk.
    at: usize,
    /// True if the last byte was a carriage return, whose line has ended: a line feed belongs to
    /// it.
    after_return: bool,
    /// True if the last line has not ended.
    is_in_line: bool,
    has_ended: bool,
    /// Number of bytes that have been read from the source.
    pub(super) taken: u64,
}

/// Reason why a text is no list.
#[derive(Debug)]
pub(super) enum NoList {
    Cause(&'static str),
    Io(io::Error),
}

impl<R: Read> Text<R> {
    pub(super) fn new(mut from: R) -> Result<Self, NoList> {
        let mut first = Vec::new();
        from.by_ref().take(CHUNK_BYTES as u64).read_to_end(&mut first).map_err(NoList::Io)?;
        let mut text = Self {
            from,
            decoder: None,
            content: Vec::new(),
            at: 0,
            after_return: false,
            is_in_line: false,
            has_ended: first.is_empty(),
            taken: 0,
        };
        let bytes = first.strip_prefix(UTF_8_MARK).unwrap_or(&first);
        let begins = |(mark, _): &(&[u8], _)| bytes.starts_with(mark);
        let encoding = MARKS.into_iter().find(begins).map(|(_, encoding)| encoding);
        let encoding = encoding.or_else(|| of_zeros(bytes));
        text.decoder = encoding.map(Encoding::new_decoder_with_bom_removal);
        if text.decoder.is_none() {
            let begun = bytes.trim_ascii_start();
            if let Some((_, cause)) = NO_LISTS.iter().find(|(mark, _)| begun.starts_with(mark)) {
                return Err(NoList::Cause(cause));
            }
        }
        text.taken = first.len() as u64;
        text.add(bytes);
        if text.content.contains(&0) {
            return Err(NoList::Cause("it is not text; export the list as CSV"));
        }
        Ok(text)
    }

    /// The first line that is not empty, as far as [`CHUNK_BYTES`] reach; it stays to be read.
    pub(super) fn first_line(&self) -> &[u8] {
        let mut lines = self.content[self.at..].split(|byte| *byte == b'\n');
        lines.find(|line| !line.is_empty()).unwrap_or_default()
    }

    /// Skips the first line.
    pub(super) fn skip_line(&mut self) {
        let end = self.content[self.at..].iter().position(|byte| *byte == b'\n');
        self.at = end.map_or(self.content.len(), |end| self.at + end + 1);
    }

    fn fill(&mut self) -> io::Result<()> {
        self.content.clear();
        self.at = 0;
        let mut bytes = Vec::with_capacity(CHUNK_BYTES);
        self.from.by_ref().take(CHUNK_BYTES as u64).read_to_end(&mut bytes)?;
        self.taken += bytes.len() as u64;
        self.has_ended = bytes.is_empty();
        self.add(&bytes);
        if self.has_ended && self.is_in_line {
            self.content.push(b'\n');
        }
        Ok(())
    }

    /// Adds bytes from below to the text. None mean the end.
    fn add(&mut self, bytes: &[u8]) {
        let mut decoded = String::new();
        let bytes = match &mut self.decoder {
            Some(decoder) => {
                let room = decoder.max_utf8_buffer_length(bytes.len()).unwrap_or(4 * bytes.len());
                decoded.reserve(room);
                let _ = decoder.decode_to_string(bytes, &mut decoded, self.has_ended);
                decoded.as_bytes()
            }
            None => bytes,
        };
        for &byte in bytes {
            let belongs = std::mem::replace(&mut self.after_return, byte == b'\r');
            match byte {
                b'\n' if belongs => {}
                b'\r' => self.content.push(b'\n'),
                byte => self.content.push(byte),
            }
        }
        self.is_in_line = self.content.last().map_or(self.is_in_line, |byte| *byte != b'\n');
    }
}

/// UTF-16 without a mark: every other byte of ASCII is a zero.
fn of_zeros(bytes: &[u8]) -> Option<&'static Encoding> {
    match bytes.first_chunk::<4>()?.map(|byte| byte == 0) {
        [true, false, true, false] => Some(UTF_16BE),
        [false, true, false, true] => Some(UTF_16LE),
        _ => None,
    }
}

impl<R: Read> Read for Text<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        while self.at == self.content.len() && !self.has_ended {
            self.fill()?;
        }
        let length = out.len().min(self.content.len() - self.at);
        out[..length].copy_from_slice(&self.content[self.at..self.at + length]);
        self.at += length;
        Ok(length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(bytes: &[u8]) -> String {
        let mut text = String::new();
        Text::new(bytes).ok().unwrap().read_to_string(&mut text).unwrap();
        text
    }

    #[test]
    fn texts_read_alike_however_they_are_encoded_and_their_lines_end() {
        const LINES: &str = "email;name\na@x.org;\u{e9}\u{1f4ee}\n";
        for ended in [LINES.to_owned(), LINES.replace('\n', "\r\n"), LINES.replace('\n', "\r")] {
            assert_eq!(read(ended.as_bytes()), LINES);
            assert_eq!(read(&[UTF_8_MARK, ended.as_bytes()].concat()), LINES);
            let units: Vec<u16> = ended.encode_utf16().collect();
            let little: Vec<u8> = units.iter().flat_map(|unit| unit.to_le_bytes()).collect();
            let big: Vec<u8> = units.iter().flat_map(|unit| unit.to_be_bytes()).collect();
            for (mark, encoded) in [(&[0xff, 0xfe][..], little), (&[0xfe, 0xff], big)] {
                assert_eq!(read(&encoded), LINES);
                assert_eq!(read(&[mark, &encoded].concat()), LINES);
            }
        }
        let long = "\u{fc}@x.org\r\n".repeat(CHUNK_BYTES);
        assert_eq!(read(long.as_bytes()), long.replace('\r', ""), "over the chunks' edges");
        assert_eq!(read(b"a\n\nb"), "a\n\nb\n");
        assert_eq!(read(b""), "");
    }

    #[test]
    fn what_is_no_list_is_refused_for_its_cause() {
        for (bytes, cause) in [
            (&b"PK\x03\x04\x14\0"[..], "Excel"),
            (b"\x1f\x8b\x08", "gzip"),
            (b"  [{\"email\":\"a@x.org\"}]", "JSON"),
            (b"\xef\xbb\xbf{}", "JSON"),
            (b"\n<!DOCTYPE html>", "web page"),
            (b"a@x.org\0\0\0", "not text"),
        ] {
            let Err(NoList::Cause(found)) = Text::new(bytes) else { panic!("{bytes:?}") };
            assert!(found.contains(cause), "{found}");
        }
    }
}
