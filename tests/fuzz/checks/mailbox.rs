//! A mailbox, from any text to a header: one line of ASCII in which a mail parser that is not ours
//! finds one address, the very one that we compare with suppressions and verified domains.

use mail_parser::MessageParser;
use pillarbox_domain::mailbox::{Mailbox, MailboxError};

pub(crate) fn check(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let Ok(mailbox) = Mailbox::parse(&text) else { return };
    assert_eq!(mailbox.as_given(), text);
    let header = mailbox.to_header();
    assert!(header.bytes().all(|b| (b' '..=b'~').contains(&b)), "{header:?}");
    let normalized = mailbox.address().normalized();
    assert!(normalized.ends_with(&format!("@{}", mailbox.address().domain())), "{normalized}");
    match Mailbox::parse(&header) {
        Ok(again) => assert_eq!(again.address().normalized(), normalized, "{header:?}"),
        // Encoded, a name takes more characters.
        Err(error) => assert_eq!(error, MailboxError::TooLong, "{header:?}"),
    }

    let message = format!("From: {header}\r\n\r\n");
    let message = MessageParser::default().parse(message.as_bytes()).expect("a message");
    let list = message.from().and_then(|from| from.as_list()).expect("a list of addresses");
    assert_eq!(list.len(), 1, "{header}");
    let address = list[0].address().expect("an address");
    // The other parser reads a quoted local part as it should not, a parenthesis in it as a comment;
    // what ends it is refused by us.
    let ours = mailbox.address().to_string();
    if !ours.starts_with('"') {
        assert_eq!(address, ours, "{header}");
    } else if !ours.contains('(') {
        let domain = address.rsplit_once('@').expect("a domain").1;
        assert_eq!(domain, mailbox.address().domain().as_str(), "{header}");
    }
}
