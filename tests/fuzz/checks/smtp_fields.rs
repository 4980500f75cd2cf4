//! Header fields of a message: what goes on is what came but for the removed fields, and a mail
//! parser that is not ours finds one sender, ours, and nothing that was to be removed.

use std::collections::HashSet;

use mail_parser::{Message, MessageParser};
use pillarbox_domain::mailbox::{DomainName, Mailbox};
use pillarbox_smtp::fields::Fields;

/// Fields that a message has once (RFC 5322, section 3.6).
const ONCE: [&str; 10] = [
    "sender",
    "reply-to",
    "to",
    "cc",
    "date",
    "message-id",
    "in-reply-to",
    "references",
    "subject",
    "content-type",
];

pub(crate) fn check(data: &[u8]) {
    // As a session hands it over: each line ends in CRLF, and has no other CR.
    let mut message = Vec::new();
    for line in data.split_inclusive(|byte| *byte == b'\n') {
        message.extend(line.iter().filter(|byte| !b"\r\n\0".contains(byte)));
        message.extend_from_slice(b"\r\n");
    }
    let Ok(fields) = Fields::read(&message) else { return };
    let mailbox = Mailbox::parse(&fields.from);
    assert!(!fields.subject.trim().is_empty() && !fields.subject.contains(char::is_control));
    let sent = fields.message();
    let sent = [sent.fields, sent.rest].concat();
    assert!(is_part_of(&sent, &message));
    let Some(parsed) = MessageParser::default().parse_headers(&sent) else { return };
    for (name, _) in parsed.headers_raw() {
        let name = name.trim().to_ascii_lowercase();
        let is_removed = ["bcc", "resent-bcc", "return-path"].contains(&name.as_str())
            || name.starts_with("x-ses-");
        assert!(!is_removed, "{name} is left in {}", sent.escape_ascii());
    }
    check_other_senders(&sent, &parsed, &fields);
    if let Some(own) = &fields.from_header {
        assert!(own.bytes().all(|byte| (b' '..=b'~').contains(&byte)), "{own:?}");
        let own = format!("From: {own}\r\n\r\n");
        let own = MessageParser::default().parse_headers(own.as_bytes()).expect("a field");
        let own: Vec<_> = own.from().expect("a sender").iter().collect();
        let [own] = own[..] else { panic!("{own:?} in {}", sent.escape_ascii()) };
        let address = own.address().expect("an address");
        let from = parsed.from().and_then(|from| from.first()).and_then(|one| one.address());
        assert_eq!(domain(address), domain(from.expect("an address")));
    }
    let senders = parsed.header_values("From").count();
    assert!(senders <= 1, "{senders} senders in {}", sent.escape_ascii());
    if let (Ok(mailbox), Some(from)) = (mailbox, parsed.from()) {
        let found: Vec<_> = from.iter().filter_map(|one| one.address()).collect();
        let [found] = found[..] else { panic!("{found:?} in {}", sent.escape_ascii()) };
        assert_eq!(&domain(found), mailbox.address().domain(), "{}", sent.escape_ascii());
    }
}

/// Other senders that a message names are ones whose domain we check.
fn check_other_senders(sent: &[u8], parsed: &Message<'_>, fields: &Fields<'_>) {
    let (mut theirs, mut once) = (Vec::new(), HashSet::new());
    for (name, value) in parsed.headers_raw() {
        let name = name.trim().to_ascii_lowercase();
        let is_new = once.insert(name.clone());
        assert!(is_new || !ONCE.contains(&name.as_str()), "two {name} in {}", sent.escape_ascii());
        if ["sender", "resent-from", "resent-sender"].contains(&name.as_str()) {
            let field = format!("From: {}\r\n\r\n", value.trim());
            let field = MessageParser::default().parse_headers(field.as_bytes()).expect("a field");
            let found = field.from().into_iter().flat_map(|found| found.iter());
            theirs.extend(found.filter_map(|one| one.address()).map(domain));
        }
    }
    assert_eq!(theirs, fields.other_senders, "{}", sent.escape_ascii());
}

fn domain(address: &str) -> DomainName<'static> {
    let domain = address.rsplit_once('@').expect("an address has a domain").1;
    DomainName::parse(domain).expect("a domain").into_owned()
}

/// Returns true if a text is another one without some of its bytes.
fn is_part_of(part: &[u8], whole: &[u8]) -> bool {
    let mut left = whole.iter();
    part.iter().all(|byte| left.any(|one| one == byte))
}
