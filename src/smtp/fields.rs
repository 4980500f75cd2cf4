//! Header fields of a submitted message (RFC 5322, section 3.6): those that are asked for are read,
//! those that must not go to SES are left out, and nothing else is touched.
//!
//! Strict about `From`, because a sender that two parsers read differently could be somebody else's;
//! whatever looks like a field up to the empty line is one. Knows nothing of sessions.

use std::borrow::Cow;
use std::fmt;

use mail_parser::MessageParser;

use crate::domain::mailbox::{Address, DomainName};
use crate::domain::policy::MAX_SUBJECT_CHARS;
use crate::domain::request::RawMessage;

/// Subject in the record of a message without one.
const NO_SUBJECT: &str = "(no subject)";
/// Longest `From` field that is read, in bytes; a mailbox has fewer.
const MAX_FROM_BYTES: usize = 16 * 1024;
/// Bytes of a `Subject` field that are read for the record, which keeps fewer characters.
const MAX_SUBJECT_BYTES: usize = 16 * 1024;

/// Reason why a message is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum FieldsError {
    /// A line before the first empty one is neither a field nor the continuation of one.
    #[error("a header field is malformed: each has a name, a colon and a value")]
    Malformed,
    /// There is no `From` field, or more than one.
    #[error("the message must have exactly one From field")]
    FromCount,
    /// The `From` field does not name exactly one mailbox.
    #[error("the From field must have exactly one address, as Name <address>")]
    From,
}

/// What is asked of a message's header fields.
pub struct Fields<'m> {
    /// The sender: `address` or `Display Name <address>`.
    pub from: String,
    /// The subject for the record.
    pub subject: String,
    /// The `Message-ID` field's value.
    pub message_id: Option<&'m [u8]>,
    kept: Cow<'m, [u8]>,
    rest: &'m [u8],
}

impl fmt::Debug for Fields<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Fields(..)")
    }
}

impl<'m> Fields<'m> {
    /// Reads the header fields of a message whose lines end in CRLF.
    pub fn read(message: &'m [u8]) -> Result<Self, FieldsError> {
        let mut from = None;
        let (mut subject, mut message_id) = (None, None);
        let mut cuts = Vec::new();
        let mut at = 0;
        while at < message.len() && !message[at..].starts_with(b"\r\n") {
            let field = Field::read(&message[at..])?;
            let end = at + field.all.len();
            if field.has_name("From") {
                if from.replace(field).is_some() {
                    return Err(FieldsError::FromCount);
                }
            } else if field.has_name("Subject") {
                subject.get_or_insert(field);
            } else if field.has_name("Message-ID") {
                message_id.get_or_insert(field.value.trim_ascii());
            } else if field.is_kept_from_ses() {
                cuts.push(at..end);
            }
            at = end;
        }
        let from = from.ok_or(FieldsError::FromCount)?;
        let kept = match cuts.as_slice() {
            [] => Cow::Borrowed(&message[..at]),
            cuts => {
                let ends = cuts.iter().map(|cut| cut.start).chain([at]);
                let starts = [0].into_iter().chain(cuts.iter().map(|cut| cut.end));
                Cow::Owned(
                    starts
                        .zip(ends)
                        .flat_map(|(start, end)| &message[start..end])
                        .copied()
                        .collect(),
                )
            }
        };
        Ok(Self {
            from: mailbox(&from)?,
            subject: subject.map_or_else(|| NO_SUBJECT.to_owned(), |field| shown_subject(&field)),
            message_id: message_id.filter(|id| !id.is_empty()),
            kept,
            rest: &message[at..],
        })
    }

    /// The message without what must not go to SES.
    pub fn message(&self) -> RawMessage<'_> {
        RawMessage { fields: &self.kept, rest: self.rest }
    }
}

/// A header field with its lines' ends.
struct Field<'m> {
    all: &'m [u8],
    name: &'m [u8],
    value: &'m [u8],
}

impl<'m> Field<'m> {
    /// Reads the field that a text begins with, and the lines that continue it.
    fn read(text: &'m [u8]) -> Result<Self, FieldsError> {
        let mut end = 0;
        loop {
            let line_end = memchr::memchr(b'\n', &text[end..]);
            end = line_end.map_or(text.len(), |line_end| end + line_end + 1);
            if !matches!(text.get(end), Some(b' ' | b'\t')) {
                break;
            }
        }
        let all = &text[..end];
        // It is on the first line: others take a line without one for the end of the field, or of all.
        let colon = memchr::memchr2(b':', b'\r', all).filter(|&at| all[at] == b':');
        let colon = colon.ok_or(FieldsError::Malformed)?;
        // White space before the colon is an obsolete form that others still read.
        let name = all[..colon].trim_ascii_end();
        if name.is_empty() || !name.iter().all(u8::is_ascii_graphic) {
            return Err(FieldsError::Malformed);
        }
        Ok(Self { all, name, value: &all[colon + 1..] })
    }

    fn has_name(&self, name: &str) -> bool {
        self.name.eq_ignore_ascii_case(name.as_bytes())
    }

    /// Returns true for hidden recipients, the envelope's sender, which SES sets, and SES's own
    /// instructions.
    fn is_kept_from_ses(&self) -> bool {
        const X_SES: &[u8] = b"X-SES-";
        let start = self.name.get(..X_SES.len());
        self.has_name("Bcc")
            || self.has_name("Return-Path")
            || start.is_some_and(|start| start.eq_ignore_ascii_case(X_SES))
    }
}

/// The one mailbox of a `From` field, with its display name decoded.
fn mailbox(from: &Field<'_>) -> Result<String, FieldsError> {
    if from.all.len() > MAX_FROM_BYTES {
        return Err(FieldsError::From);
    }
    let value = std::str::from_utf8(from.value).map_err(|_| FieldsError::From)?;
    // Unfolding (RFC 5322, section 2.2.3).
    let value = value.replace("\r\n", "");
    let address = only_address(&value).ok_or(FieldsError::From)?;
    let name = display_name(from.all, &address).ok_or(FieldsError::From)?;
    Ok(with_display_name(&name, address))
}

/// The address of a field that has exactly one: outside quotes and comments there is nothing that
/// could begin another one.
fn only_address(value: &str) -> Option<String> {
    let mut chars = value.chars();
    // What is outside angle brackets, and what is between them.
    let (mut outside, mut between) = (String::new(), None);
    let mut has_at_outside = false;
    while let Some(c) = chars.next() {
        match c {
            ' ' | '\t' => outside.push(' '),
            '(' => {
                skip_comment(&mut chars)?;
                outside.push(' ');
            }
            // Nothing but a comment comes after the address.
            _ if between.is_some() => return None,
            '"' => quoted(&mut chars, &mut outside)?,
            '<' if !has_at_outside => between = Some(to_angle(&mut chars)?),
            '<' | '>' | ',' | ';' | ':' | ')' => return None,
            _ => {
                has_at_outside |= c == '@';
                outside.push(c);
            }
        }
    }
    let address = between.unwrap_or(outside).trim_matches([' ', '\t']).to_owned();
    is_plain(&address).then_some(address)
}

/// Returns false for an address of which other parsers could read another domain. Some look for
/// comments and brackets within quotes, or decode encoded words first.
fn is_plain(address: &str) -> bool {
    let specials = ['(', ')', '<', '>', '[', ']', ':', ';', ',', '\\'];
    !address.contains(specials) && !address.contains("=?") && address.matches('@').count() < 2
}

/// Reads a quoted string whose first quote has been read.
fn quoted(chars: &mut std::str::Chars<'_>, to: &mut String) -> Option<()> {
    to.push('"');
    loop {
        let c = chars.next()?;
        to.push(c);
        match c {
            '\\' => to.push(chars.next()?),
            '"' => return Some(()),
            _ => {}
        }
    }
}

/// Skips a comment whose first parenthesis has been read.
fn skip_comment(chars: &mut std::str::Chars<'_>) -> Option<()> {
    let mut depth = 1_usize;
    while depth > 0 {
        match chars.next()? {
            '\\' => drop(chars.next()?),
            '(' => depth += 1,
            ')' => depth -= 1,
            _ => {}
        }
    }
    Some(())
}

/// Reads what comes before the closing angle bracket.
fn to_angle(chars: &mut std::str::Chars<'_>) -> Option<String> {
    let mut between = String::new();
    loop {
        match chars.next()? {
            '"' => quoted(chars, &mut between)?,
            '>' => return Some(between),
            c => between.push(c),
        }
    }
}

/// The display name as people read it, or an empty one. `None` if this is no address, or if another
/// parser does not find one address with the same domain.
fn display_name(field: &[u8], address: &str) -> Option<String> {
    let text = [field, b"\r\n"].concat();
    let message = MessageParser::default().parse_headers(&text)?;
    let [found] = message.from()?.as_list()? else { return None };
    let found_address = found.address()?;
    let (_, domain) = found_address.rsplit_once('@')?;
    if DomainName::parse(domain).ok()? != *Address::parse(address).ok()?.domain() {
        return None;
    }
    let is_same = found_address.eq_ignore_ascii_case(address);
    Some(found.name().filter(|_| is_same).map(one_line).unwrap_or_default())
}

fn with_display_name(name: &str, address: String) -> String {
    if name.is_empty() {
        return address;
    }
    if name.contains(['@', ',', ';', '<', '>', '"', '\\']) {
        let escaped = name.replace('\\', "\\\\").replace('"', "\\\"");
        return format!("\"{escaped}\" <{address}>");
    }
    format!("{name} <{address}>")
}

/// The subject as people read it, as far as a record keeps it.
fn shown_subject(field: &Field<'_>) -> String {
    let start = &field.all[..field.all.len().min(MAX_SUBJECT_BYTES)];
    let text = [start, b"\r\n\r\n"].concat();
    let message = MessageParser::default().parse_headers(&text);
    let decoded = message.as_ref().and_then(|message| message.subject()).unwrap_or_default();
    let subject: String = one_line(decoded).chars().take(MAX_SUBJECT_CHARS).collect();
    if subject.trim().is_empty() { NO_SUBJECT.to_owned() } else { subject }
}

/// A text without control characters and without space around it.
fn one_line(text: &str) -> String {
    let plain = |c: char| if c.is_control() { ' ' } else { c };
    text.trim().chars().map(plain).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sent(message: &[u8]) -> Vec<u8> {
        let fields = Fields::read(message).unwrap();
        let RawMessage { fields, rest } = fields.message();
        [fields, rest].concat()
    }

    fn from(value: &str) -> Result<String, FieldsError> {
        let message = format!("From: {value}\r\n\r\n");
        Fields::read(message.as_bytes()).map(|fields| fields.from)
    }

    #[test]
    fn all_goes_byte_for_byte_but_what_ses_must_not_see() {
        let whole =
            b"From: Ann <ann@example.com>\r\nX-Odd:\xff \t\r\n folded\r\nBcc-Like: x\r\n\r\n\
                      Bcc: in the body\r\n";
        assert_eq!(sent(whole), whole);
        let cut = b"bcc: a@x.org,\r\n b@x.org\r\nFrom: ann@example.com\r\nReturn-Path : <x@y.z>\r\n\
                    X-Ses-Configuration-Set: other\r\nX-SES: kept\r\nBCC:\r\n\tc@x.org\r\n\r\nHi\r\n";
        assert_eq!(sent(cut), b"From: ann@example.com\r\nX-SES: kept\r\n\r\nHi\r\n");
        assert_eq!(sent(b"From: ann@example.com\r\n"), b"From: ann@example.com\r\n");
    }

    #[test]
    fn record_and_key_have_what_they_need() {
        let message =
            b"Subject: =?utf-8?q?Gr=C3=BC=C3=9Fe?=\r\n and\tmore\r\nmessage-id:\r\n <1@x>\r\n\
                        From: =?utf-8?q?J=C3=BCrgen?= <ann@example.com>\r\n\r\n";
        let fields = Fields::read(message).unwrap();
        assert_eq!(fields.from, "J\u{fc}rgen <ann@example.com>");
        assert!(fields.subject.starts_with("Gr\u{fc}\u{df}e"), "{}", fields.subject);
        assert_eq!(fields.message_id, Some(&b"<1@x>"[..]));
        for subject in ["", "Subject:\r\n", "Subject: \t \r\n", "Subject: =?utf-8?q?=0D=0A?=\r\n"] {
            let message = format!("{subject}From: ann@example.com\r\nMessage-ID: \r\n\r\n");
            let fields = Fields::read(message.as_bytes()).unwrap();
            assert_eq!((fields.subject.as_str(), fields.message_id), (NO_SUBJECT, None));
        }
        let long = format!("Subject: {}\r\nFrom: a@x.org\r\n\r\n", "\u{e9} ".repeat(20_000));
        let subject = Fields::read(long.as_bytes()).unwrap().subject;
        assert_eq!(subject.chars().count(), MAX_SUBJECT_CHARS);
    }

    #[test]
    fn a_sender_is_one_mailbox_that_cannot_be_read_as_another() {
        for (value, read) in [
            ("ann@example.com", "ann@example.com"),
            ("<ann@example.com>", "ann@example.com"),
            ("Ann Lee\r\n <ann@example.com>", "Ann Lee <ann@example.com>"),
            ("\"Lee, Ann\" <ann@example.com>", "\"Lee, Ann\" <ann@example.com>"),
            ("\"a <b@x.org>\" <ann@example.com>", "\"a <b@x.org>\" <ann@example.com>"),
            ("=?utf-8?q?b=40x.org=2C?= <ann@example.com>", "\"b@x.org,\" <ann@example.com>"),
        ] {
            assert_eq!(from(value).as_deref(), Ok(read), "{value}");
        }
        for value in ["ann@example.com (Ann)", "Ann (b@x.org) <ann@example.com> (c)"] {
            assert!(from(value).unwrap().contains("ann@example.com"), "{value}");
        }
        for value in [
            "",
            "Ann",
            "a@x.org, b@x.org",
            "a@x.org b@x.org",
            "<a@x.org> <b@x.org>",
            "<a@x.org> b@x.org",
            "a@x.org <b@x.org>",
            "Group: a@x.org;",
            "Group: a@x.org",
            "<@x.org:a@y.org>",
            "<a@x.org",
            "\"Ann <a@x.org>",
            "(Ann <a@x.org>",
            "Ann) <a@x.org>",
            "a@[127.0.0.1]",
            "a@x.org\0",
            "a(b)@x.org",
            "<a(b)@x.org>",
            "<\"a (b\"@x.org>",
            "<\"a>b\"@x.org>",
            "\"b@y.org\"@x.org",
            "\"b\\\"c\"@x.org",
            "=?utf-8?q?b=40y.org?=@x.org",
            "=?utf-8?q?b\"utf-8?q?=3C\" <a@x.org>",
        ] {
            assert_eq!(from(value), Err(FieldsError::From), "{value}");
        }
        let twice = b"From: a@x.org\r\nfrom : b@x.org\r\n\r\n";
        assert_eq!(Fields::read(twice).unwrap_err(), FieldsError::FromCount);
        assert_eq!(Fields::read(b"\r\nFrom: a@x.org\r\n").unwrap_err(), FieldsError::FromCount);
        assert_eq!(Fields::read(b"").unwrap_err(), FieldsError::FromCount);
        for malformed in [
            &b" From: a@x.org\r\n"[..],
            b"From ann\r\n",
            b"no field\r\n",
            b": x\r\n",
            b"X-A\r\n : From: b@x.org\r\n",
        ] {
            let message = [malformed, b"From: a@x.org\r\n\r\n"].concat();
            assert_eq!(Fields::read(&message).unwrap_err(), FieldsError::Malformed);
        }
    }

    proptest! {
        #[test]
        fn an_address_that_is_taken_is_the_one_that_another_parser_reads(
            value in "[a-z@.,;:<>()\"\\\\ ]{0,40}|(\"?[a-z ,@]{0,9}\"? )?<?[a-z]{1,4}@[a-z]{1,3}\\.org>?( ?\\([a-z@]{0,5}\\))?"
        ) {
            if let Some(address) = only_address(&value)
                && Address::parse(&address).is_ok()
            {
                let text = format!("From: {value}\r\n\r\n");
                let message = MessageParser::default().parse_headers(text.as_bytes()).unwrap();
                let all: Vec<_> = message.from().unwrap().iter().filter_map(|one| one.address()).collect();
                // The other parser takes a quoted local part for a display name.
                let known = address.rsplit_once('"').map_or(address.as_str(), |(_, rest)| rest);
                prop_assert_eq!(all, vec![known], "{}", value);
            }
        }
    }
}
