//! Encoded words of header fields (RFC 2047), decoded for people to read.
//!
//! Knows every charset of the WHATWG encoding standard. Nothing that is decoded here is sent on.

use base64::Engine as _;
use base64::alphabet::STANDARD;
use base64::engine::general_purpose::{GeneralPurpose, GeneralPurposeConfig};
use encoding_rs::{Encoding, ISO_2022_JP};

/// Reads the last bits of a word as leniently as other decoders do.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new()
        .with_decode_padding_mode(base64::engine::DecodePaddingMode::Indifferent)
        .with_decode_allow_trailing_bits(true),
);
/// Begins each escape sequence of ISO-2022-JP, which has three bytes.
const ESCAPE: u8 = 0x1b;
const ESCAPE_BYTES: usize = 3;

/// Returns a text with its encoded words decoded, at any position in it.
///
/// White space between two of them is dropped, and their bytes are joined before they are decoded
/// if both have the same charset, because programs split characters (RFC 2047 section 5 forbids
/// it). If the charset of a word is not known, or its bytes are not of that charset, only the ASCII
/// bytes stay.
pub fn decode(text: &str) -> String {
    let mut decoded = String::with_capacity(text.len());
    let mut rest = text;
    let mut open: Option<Word<'_>> = None;
    while let Some((before, word, after)) = next_word(rest) {
        let follows = before.bytes().all(|byte| byte.is_ascii_whitespace());
        match &mut open {
            Some(open) if follows && open.has_charset_of(&word) => open.bytes.extend(word.bytes),
            earlier => {
                let had_word = earlier.is_some();
                if let Some(earlier) = earlier.replace(word) {
                    decoded.push_str(&earlier.text());
                }
                if !(had_word && follows) {
                    decoded.push_str(before);
                }
            }
        }
        rest = after;
    }
    if let Some(last) = open {
        decoded.push_str(&last.text());
    }
    decoded.push_str(rest);
    decoded
}

/// Returns true if a text has an encoded word in it, or something that other programs take for one:
/// `=?`, and `?=` after it.
pub fn looks_encoded(text: &str) -> bool {
    first_sign(text).is_some_and(|start| text[start + 2..].contains("?="))
}

/// Returns the first position at which an encoded word may begin.
pub(crate) fn first_sign(text: &str) -> Option<usize> {
    // Hardly any text has the sign, and this check takes a fraction of the time.
    if text.contains('=') { text.find("=?") } else { None }
}

/// Encoded words that follow each other in one charset.
struct Word<'a> {
    charset: &'a str,
    bytes: Vec<u8>,
}

impl Word<'_> {
    fn has_charset_of(&self, other: &Self) -> bool {
        self.charset.eq_ignore_ascii_case(other.charset)
    }

    fn text(mut self) -> String {
        if let Some(encoding) = encoding(self.charset) {
            if encoding == ISO_2022_JP {
                drop_empty_shifts(&mut self.bytes);
            }
            let (text, _, has_errors) = encoding.decode(&self.bytes);
            if !has_errors {
                return text.into_owned();
            }
        }
        self.bytes.retain(u8::is_ascii);
        String::from_utf8(self.bytes).expect("ASCII is UTF-8")
    }
}

/// Finds a charset by its label in the encoding standard, or by one of the two names that only
/// Python's email package has.
fn encoding(label: &str) -> Option<&'static Encoding> {
    let label = match label {
        "eucgb2312_cn" => "gb2312",
        "big5_tw" => "big5",
        label => label,
    };
    Encoding::for_label(label.as_bytes())
}

/// Removes escape sequences that another one follows at once, as if two words are joined: the
/// encoding standard takes them for an attack.
fn drop_empty_shifts(bytes: &mut Vec<u8>) {
    let mut kept = Vec::with_capacity(bytes.len());
    let mut rest = bytes.as_slice();
    while let Some((&byte, after)) = rest.split_first() {
        if byte == ESCAPE && rest.get(ESCAPE_BYTES) == Some(&ESCAPE) {
            rest = &rest[ESCAPE_BYTES..];
        } else {
            kept.push(byte);
            rest = after;
        }
    }
    *bytes = kept;
}

/// Finds the next encoded word: the text before it, the word, and the text after it.
fn next_word(text: &str) -> Option<(&str, Word<'_>, &str)> {
    let mut from = 0;
    for (start, _) in text.match_indices("=?") {
        // Inside of what is no word.
        if start < from {
            continue;
        }
        match word_at(&text[start..]) {
            Read::Word(word, length) => {
                return Some((&text[..start], word, &text[start + length..]));
            }
            Read::Other(length) => from = start + length,
            Read::NoEnd => return None,
        }
    }
    None
}

enum Read<'a> {
    /// A word, and its length in bytes.
    Word(Word<'a>, usize),
    /// Nothing that is one, up to here.
    Other(usize),
    /// No word ends after this.
    NoEnd,
}

/// Reads the text that begins with `=?`.
fn word_at(text: &str) -> Read<'_> {
    const MARK: usize = "=?".len();
    let parts = text[MARK..].split_once('?').and_then(|(charset, rest)| {
        let (encoding, encoded) = rest.split_once('?')?;
        Some((charset, encoding, encoded))
    });
    let Some((charset, encoding, encoded)) = parts else { return Read::NoEnd };
    let charset = charset.split('*').next().unwrap_or_default();
    let is_token = !charset.is_empty() && charset.bytes().all(|byte| byte.is_ascii_graphic());
    if !is_token || !matches!(encoding, "B" | "b" | "Q" | "q") {
        return Read::Other(MARK);
    }
    let Some(end) = encoded.find("?=") else { return Read::NoEnd };
    let head = text.len() - encoded.len();
    // The end may be that of another word, which begins within.
    if let Some(inner) = encoded[..end].rfind("=?") {
        return Read::Other(head + inner);
    }
    let encoded = &encoded[..end];
    let bytes = match encoding {
        "B" | "b" => from_base64(encoded),
        _ => Some(from_q(encoded)),
    };
    match bytes {
        Some(bytes) => Read::Word(Word { charset, bytes }, head + end + MARK),
        None => Read::Other(head + end),
    }
}

/// Decodes the encoding "B" (RFC 2047 section 4.1), padded or not.
fn from_base64(encoded: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(encoded.len());
    // Several may have been put together, each with its padding.
    for part in encoded.split('=').map(|part| part.replace([' ', '\t'], "")) {
        BASE64.decode_vec(&part, &mut bytes).ok()?;
    }
    Some(bytes)
}

/// Decodes the encoding "Q" (RFC 2047 section 4.2). Characters that it does not allow are kept.
fn from_q(encoded: &str) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(encoded.len());
    let mut rest = encoded.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        let escaped = match after {
            [high, low, ..] if byte == b'=' => hex::decode([*high, *low]).ok(),
            _ => None,
        };
        if let Some(escaped) = escaped {
            bytes.extend(escaped);
            rest = &after[2..];
        } else {
            bytes.push(if byte == b'_' { b' ' } else { byte });
            rest = after;
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn words_are_decoded_wherever_they_stand() {
        for (text, read) in [
            ("", ""),
            ("plain text", "plain text"),
            ("=?utf-8?q?a?=", "a"),
            ("x =?utf-8?q?a?= y", "x a y"),
            ("x=?utf-8?q?a?=y", "xay"),
            ("=?utf-8?q?a?= x =?utf-8?q?b?=", "a x b"),
            ("=?iso-8859-1?q?=E9?= =?iso-8859-2?q?=B1?=", "\u{e9}\u{105}"),
            // RFC 2047 section 8.
            ("(=?ISO-8859-1?Q?a?=)", "(a)"),
            ("(=?ISO-8859-1?Q?a?= b)", "(a b)"),
            ("(=?ISO-8859-1?Q?a?= =?ISO-8859-1?Q?b?=)", "(ab)"),
            ("(=?ISO-8859-1?Q?a?=    =?ISO-8859-1?Q?b?=)", "(ab)"),
            ("(=?ISO-8859-1?Q?a_b?=)", "(a b)"),
            ("(=?ISO-8859-1?Q?a?= =?ISO-8859-2?Q?_b?=)", "(a b)"),
            ("=?ISO-8859-1?Q?Andr=E9?= Pirard", "Andr\u{e9} Pirard"),
            (
                "=?ISO-8859-1?B?SWYgeW91IGNhbiByZWFkIHRoaXMgeW8=?= \
                 =?ISO-8859-2?B?dSB1bmRlcnN0YW5kIHRoZSBleGFtcGxlLg==?=",
                "If you can read this you understand the example.",
            ),
            // Not allowed, but read by other programs.
            ("=?utf-8?Q?why?not?=", "why?not"),
            ("=?utf-8?Q?a b?=", "a b"),
            ("=?utf-8?q?a=3?=", "a=3"),
            ("=?utf-8?b?w7w?=", "\u{fc}"),
            ("=?utf-8?b?YQ==Yg==?=", "ab"),
            ("=?utf-8?q??=", ""),
            ("=?utf-8*de?q?a?=", "a"),
            ("=?utf8?q?=C3=BC?=", "\u{fc}"),
            (
                "=?eucgb2312_cn?b?xOO6ww==?= =?big5_tw?b?p0Gmbg==?=",
                "\u{4f60}\u{597d}\u{4f60}\u{597d}",
            ),
            // No words.
            ("=?utf-8?q?a", "=?utf-8?q?a"),
            ("=?utf-8?x?a?=", "=?utf-8?x?a?="),
            ("=??q?a?=", "=??q?a?="),
            ("=?utf 8?q?a?=", "=?utf 8?q?a?="),
            ("=?utf-8?b?!?=", "=?utf-8?b?!?="),
            ("=?utf-8?b?!?= =?utf-8?q?b?=", "=?utf-8?b?!?= b"),
            ("=?utf-8?q?a =?utf-8?q?b?=", "=?utf-8?q?a b"),
            ("=?=?utf-8?q?b?=", "=?b"),
            ("abcde=?=?utf-8?q?b?=", "abcde=?b"),
        ] {
            assert_eq!(decode(text), read, "{text}");
        }
    }

    #[test]
    fn characters_may_be_split_between_words() {
        for (text, read) in [
            ("=?utf-8?B?SsM=?= =?utf-8?B?tnJn?=", "J\u{f6}rg"),
            ("=?utf-8?B?SsM=?= =?UTF-8?Q?=B6rg?= x", "J\u{f6}rg x"),
            ("=?big5?Q?=A7?= =?big5?Q?A=A6n?=", "\u{4f60}\u{597d}"),
            // The shift continues in the next word, or ends with the word.
            ("=?iso-2022-jp?q?=1B$B@?= =?iso-2022-jp?q?A=1B(B?=", "\u{8acb}"),
            ("=?iso-2022-jp?q?=1B$B@A?= =?iso-2022-jp?q?5a=1B(B?=", "\u{8acb}\u{6c42}"),
            ("=?iso-2022-jp?q?=1B$B@A=1B(B?= =?iso-2022-jp?q?=1B$B5a=1B(B?=", "\u{8acb}\u{6c42}"),
        ] {
            assert_eq!(decode(text), read, "{text}");
        }
    }

    #[test]
    fn ascii_is_left_of_what_cannot_be_decoded() {
        for (text, read) in [
            ("=?x-unknown?Q?Gr=FC=DFe?=", "Gre"),
            ("=?utf-8?Q?Gr=FC=DFe?= =?utf-8?Q?=C3=BC?=", "Gre"),
            ("=?utf-8?Q?Gr=FC=DFe?= =?iso-8859-1?Q?=FC?=", "Gre\u{fc}"),
            ("=?hz-gb-2312?Q?~{<:Ky~}?=", "~{<:Ky~}"),
        ] {
            assert_eq!(decode(text), read, "{text}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_read_and_one_without_words_is_left(text in "(=\\?|\\?=|utf-8|\\?[qb]\\?|[a-z=?_ ]|\u{e9}){0,20}") {
            let decoded = decode(&text);
            if !looks_encoded(&text) {
                prop_assert_eq!(decoded, text);
            }
        }
    }
}
