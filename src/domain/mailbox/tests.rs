use mail_parser::MessageParser;
use proptest::prelude::*;

use super::*;

fn error(text: &str) -> MailboxError {
    Mailbox::parse(text).expect_err(text)
}

#[test]
fn plain_and_named_forms_are_read() {
    let plain = Mailbox::parse("ann@example.com").unwrap();
    assert_eq!((plain.display_name(), plain.to_header().as_str()), (None, "ann@example.com"));
    let named = Mailbox::parse("Ann Lee <ann@example.com>").unwrap();
    assert_eq!(named.display_name(), Some("Ann Lee"));
    assert_eq!(named.as_given(), "Ann Lee <ann@example.com>");
    let quoted = Mailbox::parse(r#""Lee, \"Ann\"" <ann@example.com>"#).unwrap();
    assert_eq!(quoted.display_name(), Some(r#"Lee, "Ann""#));
    assert_eq!(Mailbox::parse("<ann@example.com>").unwrap().display_name(), None);
    assert_eq!(Mailbox::parse(r#""a<b"@example.com"#).unwrap().to_header(), r#""a<b"@example.com"#);
}

#[test]
fn a_second_recipient_is_an_error_and_never_lost() {
    assert_eq!(error("a@x.org, Bob <b@x.org>"), MailboxError::DisplayNameNeedsQuotes);
    for text in ["a@x.org,b@x.org", "a@x.org; b@x.org", "<a@x.org>, <b@x.org>", "g: a@x.org;"] {
        error(text);
    }
}

#[test]
fn what_ses_would_misread_is_refused() {
    assert_eq!(error("jos\u{e9}@example.com"), MailboxError::LocalPartNotAscii);
    assert_eq!(error("a@[127.0.0.1]"), MailboxError::DomainLiteral);
    assert_eq!(error("a@b@example.com"), MailboxError::LocalPart);
    assert_eq!(error("a@exa\r\nmple.com"), MailboxError::ControlCharacter);
    assert_eq!(error("A\0nn <a@example.com>"), MailboxError::ControlCharacter);
    assert_eq!(error("Ann <a@example.com> x"), MailboxError::Form);
    assert_eq!(error("Ann <a@example.com"), MailboxError::Form);
    assert_eq!(error("\"Ann <a@example.com>"), MailboxError::DisplayNameQuotes);
    assert_eq!(error("\"Ann\" Lee <a@example.com>"), MailboxError::DisplayNameQuotes);
    for text in ["", " ", "a", "@example.com", "a@", ".a@x.org", "a..b@x.org", "a b@x.org"] {
        error(text);
    }
    for text in ["a(c)@x.org", "a@x.org(c)", "a@-x.org", "a@x_y.org", "a@x.org.", "a@x..org"] {
        error(text);
    }
}

#[test]
fn lengths_are_those_of_rfc_5321() {
    let local = "l".repeat(64);
    assert!(Address::parse(&format!("{local}@example.com")).is_ok());
    let too_long = format!("l{local}@example.com");
    assert_eq!(Address::parse(&too_long).unwrap_err(), MailboxError::LocalPartTooLong);
    let label = "d".repeat(63);
    assert!(DomainName::parse(&[label.as_str(); 3].join(".")).is_ok());
    assert!(DomainName::parse(&[label.as_str(); 4].join(".")).is_err());
    assert!(DomainName::parse(&"d".repeat(64)).is_err());
    // The longest there is, in the longest form.
    let name = "\\😀".repeat(998);
    let longest =
        format!("\"{name}\" <\"{}\"@{}>", "a".repeat(62), vec!["é".repeat(20); 9].join("."));
    assert!(longest.len() < MAILBOX_MAX_OCTETS, "{}", longest.len());
    let spaces = " ".repeat(MAILBOX_MAX_OCTETS);
    assert_eq!(error(&format!("{spaces}a@example.com")), MailboxError::TooLong);
}

#[test]
fn an_internationalised_domain_becomes_a_labels() {
    let mailbox = Mailbox::parse("ann@B\u{fc}cher.example").unwrap();
    assert_eq!(mailbox.address().domain().as_str(), "xn--bcher-kva.example");
    assert_eq!(mailbox.to_header(), "ann@xn--bcher-kva.example");
}

#[test]
fn the_normal_form_is_unquoted_and_in_lower_case() {
    for text in ["Ann.Lee@Example.COM", r#""ann.lee"@example.com"#, r#""Ann\.Lee"@example.com"#] {
        assert_eq!(Address::parse(text).unwrap().normalized(), "ann.lee@example.com");
    }
}

/// Reads a header with a parser that is not ours.
fn parsed_by_another(header: &str) -> (Option<String>, String) {
    let message = format!("From: {header}\r\n\r\n");
    let message = MessageParser::default().parse(message.as_bytes()).unwrap();
    let list = message.from().unwrap().as_list().unwrap();
    assert_eq!(list.len(), 1, "{header}");
    (list[0].name().map(str::to_owned), list[0].address().unwrap().to_owned())
}

#[test]
fn what_looks_like_an_encoded_word_is_read_as_it_was_given() {
    for name in ["=?utf-8?q?Bank?=", "a =?utf-8?q?=C3=A9?= b", "\u{e9}=?x?b?eA==?=\u{1f4ee}"] {
        let text = format!("{} <ann@example.com>", name.repeat(20));
        let header = Mailbox::parse(&text).unwrap().to_header();
        assert_eq!(parsed_by_another(&header).0, Some(name.repeat(20)), "{header}");
        let mut words = header.strip_suffix(" <ann@example.com>").unwrap().split(' ');
        assert!(words.all(|word| word.starts_with("=?utf-8?B?") && word.len() <= 75));
    }
}

proptest! {
    #[test]
    fn any_text_is_refused_or_becomes_one_line_of_ascii(text in "\\PC*|.*") {
        if let Ok(mailbox) = Mailbox::parse(&text) {
            let header = mailbox.to_header();
            prop_assert!(header.bytes().all(|b| (b' '..=b'~').contains(&b)), "{header:?}");
        }
    }

    #[test]
    fn text_like_a_mailbox_never_yields_a_control_character(
        text in "[\"<>@,;:()\\\\ a-z\\.\\[\\]\r\n\0é]{0,40}"
    ) {
        if let Ok(mailbox) = Mailbox::parse(&text) {
            let header = mailbox.to_header();
            prop_assert!(header.bytes().all(|b| (b' '..=b'~').contains(&b)), "{header:?}");
        }
    }

    #[test]
    fn another_parser_reads_the_same_name_and_address(
        name in "[^\\p{Cc}\"\\\\@,;<> ]([^\\p{Cc}\"\\\\@,;<>]{0,60}[^\\p{Cc}\"\\\\@,;<> ])?"
    ) {
        let text = format!("{name} <ann@example.com>");
        let header = Mailbox::parse(&text).unwrap().to_header();
        let (read, address) = parsed_by_another(&header);
        prop_assert_eq!(address, "ann@example.com");
        // Runs of white space fold into one on the way through a header.
        let words = |s: &str| s.split(' ').filter(|w| !w.is_empty()).collect::<Vec<_>>().join(" ");
        prop_assert_eq!(words(&read.unwrap_or_default()), words(&name), "{}", header);
    }
}
