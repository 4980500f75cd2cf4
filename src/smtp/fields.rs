//! Header fields of a submitted message (RFC 5322, section 3.6): those that are needed are read,
//! those that must not go to SES are left out, and the rest is unchanged.
//!
//! Every line of a field's form up to the empty line is one. Knows nothing of sessions.

use std::borrow::Cow;
use std::fmt;
use std::ops::Range;

use crate::address_field::{FieldMailbox, mailboxes};
use pillarbox_domain::encoded_words::decode;
use pillarbox_domain::limits::MAX_SUBJECT_CHARS;
use pillarbox_domain::mailbox::{Address, DomainName, MAILBOX_MAX_CHARS};
use pillarbox_domain::request::RawMessage;

/// Subject in the record of a message without one.
const NO_SUBJECT: &str = "(no subject)";
/// Bytes of a `Subject` field that are read for the record, which keeps fewer characters.
const MAX_SUBJECT_BYTES: usize = 16 * 1024;
/// Fields that a message has once, besides `From` (RFC 5322, section 3.6, and RFC 2045, section 3).
/// SES refuses a second one of most of them.
const ONCE: [&str; 13] = [
    "Sender",
    "Reply-To",
    "To",
    "Cc",
    "Bcc",
    "Date",
    "Message-ID",
    "In-Reply-To",
    "References",
    "Subject",
    "MIME-Version",
    "Content-Type",
    "Content-Transfer-Encoding",
];
/// Fields besides `From` whose addresses must be of the organisation's domains.
const SENDERS: [(&str, Count); 3] =
    [("Sender", Count::One), ("Resent-From", Count::Several), ("Resent-Sender", Count::One)];

/// Number of mailboxes in a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Count {
    One,
    Several,
}

/// Reason why a message is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum FieldsError {
    /// A line before the first empty one is neither a field nor the continuation of one.
    #[error("a header field is malformed: each has a name, a colon and a value")]
    Malformed,
    /// There is no `From` field, or more than one.
    #[error("the message must have exactly one From field")]
    FromCount,
    /// The `From` field does not name exactly one mailbox, or a longer one than there may be.
    #[error(
        "the From field must have exactly one address, as Name <address>, in at most \
         {MAILBOX_MAX_CHARS} characters"
    )]
    From,
    /// A sender field is in an unnamed charset.
    #[error(
        "the {0} field has bytes that are neither ASCII nor UTF-8; write the name as an encoded word \
         (RFC 2047), such as =?utf-8?q?J=C3=B6rg?="
    )]
    Charset(&'static str),
    /// Another field that a message has once is there twice.
    #[error("the message must have at most one {0} field")]
    Twice(&'static str),
    /// Another field that says who sends does not name mailboxes.
    #[error("the {0} field must have an address, as Name <address>")]
    Sender(&'static str),
}

/// Header fields that a message is asked for.
pub struct Fields<'m> {
    /// The sender in clear: `address` or `Display Name <address>`.
    pub from: String,
    /// The sender with the display name's own text, if that is ASCII.
    pub from_header: Option<String>,
    /// Domains of the other senders that the message names.
    pub other_senders: Vec<DomainName<'static>>,
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
        let mut once: [Option<Field<'m>>; ONCE.len()] = [const { None }; ONCE.len()];
        let mut other_senders = Vec::new();
        let mut cuts = Vec::new();
        let mut at = 0;
        while at < message.len() && !message[at..].starts_with(b"\r\n") {
            let field = Field::read(&message[at..])?;
            let end = at + field.all.len();
            if field.has_name("From") {
                if from.replace(field).is_some() {
                    return Err(FieldsError::FromCount);
                }
            } else {
                if field.is_kept_from_ses() {
                    cuts.push(at..end);
                }
                if let Some(position) = SENDERS.iter().position(|(name, _)| field.has_name(name)) {
                    other_senders.extend(senders(&field, SENDERS[position])?);
                }
                if let Some(position) = ONCE.iter().position(|name| field.has_name(name))
                    && once[position].replace(field).is_some()
                {
                    return Err(FieldsError::Twice(ONCE[position]));
                }
            }
            at = end;
        }
        let from = from.ok_or(FieldsError::FromCount)?;
        require_text("From", from.value)?;
        let from = one(mailboxes(from.value)).ok_or(FieldsError::From)?;
        let from_header = from.in_own_words();
        if from_header.as_ref().is_some_and(|from| from.len() > MAILBOX_MAX_CHARS) {
            return Err(FieldsError::From);
        }
        let mut field = |name| {
            let position = ONCE.iter().position(|one| *one == name);
            once[position.expect("a field that there is once")].take()
        };
        let subject = field("Subject").map(|field| shown_subject(&field));
        let message_id = field("Message-ID").map(|field| field.value.trim_ascii());
        Ok(Self {
            from: from.in_clear(),
            from_header,
            other_senders,
            subject: subject.unwrap_or_else(|| NO_SUBJECT.to_owned()),
            message_id: message_id.filter(|id| !id.is_empty()),
            kept: without(&message[..at], &cuts),
            rest: &message[at..],
        })
    }

    /// The message without what must not go to SES.
    pub fn message(&self) -> RawMessage<'_> {
        RawMessage { fields: &self.kept, rest: self.rest }
    }
}

/// A text without some of its parts, in their order.
fn without<'m>(text: &'m [u8], cuts: &[Range<usize>]) -> Cow<'m, [u8]> {
    if cuts.is_empty() {
        return Cow::Borrowed(text);
    }
    let ends = cuts.iter().map(|cut| cut.start).chain([text.len()]);
    let starts = [0].into_iter().chain(cuts.iter().map(|cut| cut.end));
    Cow::Owned(starts.zip(ends).flat_map(|(start, end)| &text[start..end]).copied().collect())
}

fn require_text(name: &'static str, value: &[u8]) -> Result<(), FieldsError> {
    std::str::from_utf8(value).map(|_| ()).map_err(|_| FieldsError::Charset(name))
}

fn one(found: Option<Vec<FieldMailbox>>) -> Option<FieldMailbox> {
    found.filter(|found| found.len() == 1)?.pop()
}

/// Domains of a field that says who sends.
fn senders(
    field: &Field<'_>,
    (name, count): (&'static str, Count),
) -> Result<Vec<DomainName<'static>>, FieldsError> {
    require_text(name, field.value)?;
    let found = mailboxes(field.value).filter(|found| count == Count::Several || found.len() == 1);
    let domains = found.ok_or(FieldsError::Sender(name))?.into_iter().map(|one| {
        Address::parse(&one.address).map(|address| address.domain().clone().into_owned())
    });
    domains.collect::<Result<_, _>>().map_err(|_| FieldsError::Sender(name))
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
            || self.has_name("Resent-Bcc")
            || self.has_name("Return-Path")
            || start.is_some_and(|start| start.eq_ignore_ascii_case(X_SES))
    }
}

/// The subject as people read it, as far as a record keeps it.
fn shown_subject(field: &Field<'_>) -> String {
    let start = &field.value[..field.value.len().min(MAX_SUBJECT_BYTES)];
    // Bytes that are neither ASCII nor UTF-8 are in an unnamed charset.
    let text: String = start.utf8_chunks().map(|chunk| chunk.valid()).collect();
    // Unfolding (RFC 5322, section 2.2.3).
    let subject = decode(text.trim_ascii_end().replace("\r\n", "").trim_matches([' ', '\t']));
    let plain = |c: char| if c.is_control() { ' ' } else { c };
    let subject: String = subject.trim().chars().map(plain).take(MAX_SUBJECT_CHARS).collect();
    if subject.trim().is_empty() { NO_SUBJECT.to_owned() } else { subject }
}

#[cfg(test)]
mod tests {
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
        let cut = b"bcc: a@x.org,\r\n b@x.org\r\nRESENT-BCC:\r\n\tc@x.org\r\nFrom: ann@example.com\r\nReturn-Path : <x@y.z>\r\n\
                    X-Ses-Configuration-Set: other\r\nX-SES: kept\r\nResent-Bcc: d@x.org\r\n\r\nHi\r\n";
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
        let name = |chars| format!("{} <a@x.org>", "n".repeat(chars - " <a@x.org>".len()));
        assert!(from(&name(MAILBOX_MAX_CHARS)).is_ok());
        assert_eq!(from(&name(MAILBOX_MAX_CHARS + 1)), Err(FieldsError::From));
        for (message, error) in [
            (&b"From: J\xf6rg <a@x.org>\r\n\r\n"[..], FieldsError::Charset("From")),
            (b"From: a@x.org\r\nSender: \xf6 <a@x.org>\r\n\r\n", FieldsError::Charset("Sender")),
            (b"From: a@x.org\r\nSender: a@x.org, b@x.org\r\n\r\n", FieldsError::Sender("Sender")),
            (b"From: a@x.org\r\nResent-From: a\r\n\r\n", FieldsError::Sender("Resent-From")),
            (b"From: a@x.org\r\nDate: 1\r\ndate: 2\r\n\r\n", FieldsError::Twice("Date")),
        ] {
            assert_eq!(Fields::read(message).unwrap_err(), error, "{}", message.escape_ascii());
        }
        let several = b"From: a@x.org\r\nResent-From: b@y.org, c@z.org\r\nSender: d@y.org\r\n\r\n";
        let senders = Fields::read(several).unwrap().other_senders;
        let senders: Vec<_> = senders.iter().map(DomainName::as_str).collect();
        assert_eq!(senders, ["y.org", "z.org", "y.org"]);
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
}
