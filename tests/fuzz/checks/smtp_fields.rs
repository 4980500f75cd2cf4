//! Header fields of a message: what goes on is what came but for the removed fields, and a mail
//! parser that is not ours finds one sender, ours, and nothing that was to be removed.

use mail_parser::MessageParser;
use pillarbox::domain::mailbox::Mailbox;
use pillarbox::smtp::fields::Fields;

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
        let is_removed = name == "bcc" || name == "return-path" || name.starts_with("x-ses-");
        assert!(!is_removed, "{name} is left in {}", sent.escape_ascii());
    }
    let senders = parsed.header_values("From").count();
    assert!(senders <= 1, "{senders} senders in {}", sent.escape_ascii());
    if let (Ok(mailbox), Some(from)) = (mailbox, parsed.from()) {
        let found: Vec<_> = from.iter().filter_map(|one| one.address()).collect();
        let [found] = found[..] else { panic!("{found:?} in {}", sent.escape_ascii()) };
        let domain = found.rsplit_once('@').expect("an address has a domain").1;
        let domain = pillarbox::domain::mailbox::DomainName::parse(domain).expect("a domain");
        assert_eq!(&domain, mailbox.address().domain(), "{}", sent.escape_ascii());
    }
}

/// Returns true if a text is another one without some of its bytes.
fn is_part_of(part: &[u8], whole: &[u8]) -> bool {
    let mut left = whole.iter();
    part.iter().all(|byte| left.any(|one| one == byte))
}
