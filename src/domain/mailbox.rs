//! Mailboxes: a display name and an address, read from text and written for a mail header.
//!
//! The address rules are RFC 5321 section 4.1.2 and RFC 5322 section 3.4.1, narrowed to what SES
//! carries: an ASCII local part, no domain literal, no comment, no group, no obsolete form.

use std::borrow::Cow;
use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use email_address::EmailAddress;
use idna::uts46::{AsciiDenyList, DnsLength, Hyphens, Uts46};
use mail_builder::headers::Header;
use mail_builder::headers::address::Address as HeaderAddress;

use crate::encoded_words::{first_sign, looks_encoded};

/// The longest local part, in octets (RFC 5321 section 4.5.3.1.1).
const LOCAL_PART_MAX_OCTETS: usize = 64;
/// Characters that end an address, or begin another one, for a program that ignores quotes.
const DELIMITERS: [u8; 5] = *b"@<>,;";

/// The longest mailbox as it is given, in characters, spaces included.
pub const MAILBOX_MAX_CHARS: usize = 1_000;

/// Reason why a text is not a mailbox; shown to the client as the rule that it broke.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum MailboxError {
    /// Longer than any name and address.
    #[error("must have at most {MAILBOX_MAX_CHARS} characters")]
    TooLong,
    /// CR, LF, NUL or another control character anywhere.
    #[error("must not contain control characters")]
    ControlCharacter,
    /// Neither `address` nor `Display Name <address>`.
    #[error("must be `address` or `Display Name <address>`")]
    Form,
    /// An address without an `@`.
    #[error("must have an @ between its two parts")]
    NoAt,
    /// A character in an unquoted display name that would start another address.
    #[error("a display name with any of @ , ; < > \" must be in double quotes")]
    DisplayNameNeedsQuotes,
    /// A quoted display name that does not end, or has text after its end.
    #[error("the display name's double quotes are not closed")]
    DisplayNameQuotes,
    /// The part before the `@` has a character outside ASCII.
    #[error(
        "the part before the @ must be ASCII: SES does not carry internationalised local parts"
    )]
    LocalPartNotAscii,
    /// The part before the `@` is over its length.
    #[error("the part before the @ must have at most {LOCAL_PART_MAX_OCTETS} octets")]
    LocalPartTooLong,
    /// The part before the `@` is neither a dot-atom nor a quoted string.
    #[error("the part before the @ is not a valid local part")]
    LocalPart,
    /// A character in a quoted local part that other programs take for the end of the address.
    #[error("the part before the @ must not contain @ < > , or ; even in double quotes")]
    LocalPartDelimiter,
    /// A local part that other programs decode (RFC 2047 section 5 forbids it).
    #[error("the part before the @ must not contain an encoded word such as =?utf-8?q?bob?=")]
    LocalPartEncoded,
    /// An IP address in brackets.
    #[error("a domain literal is not accepted")]
    DomainLiteral,
    /// Not a domain name, also after IDNA.
    #[error("the part after the @ is not a valid domain name")]
    Domain,
}

/// A domain name as the DNS knows it: A-labels (IDNA, UTS 46), lower case, no trailing dot.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DomainName<'a>(Cow<'a, str>);

impl<'a> DomainName<'a> {
    /// Reads a domain name, internationalised or not. Its ASCII form has at most 253 octets, and each
    /// label 63 (UTS 46 section 4.2).
    pub fn parse(text: &'a str) -> Result<Self, MailboxError> {
        if text.starts_with('[') {
            return Err(MailboxError::DomainLiteral);
        }
        let ascii = Uts46::new()
            .to_ascii(
                text.as_bytes(),
                AsciiDenyList::STD3,
                Hyphens::CheckFirstLast,
                DnsLength::Verify,
            )
            .map_err(|_| MailboxError::Domain)?;
        Ok(Self(ascii))
    }

    /// A name that [`DomainName::parse`] has read before, as its text was then.
    pub(crate) const fn of_text(text: &'a str) -> Self {
        Self(Cow::Borrowed(text))
    }

    /// The name's text, as A-labels in lower case.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The name as a value that does not borrow from the text that it was read from.
    pub fn into_owned(self) -> DomainName<'static> {
        DomainName(Cow::Owned(self.0.into_owned()))
    }
}

impl fmt::Display for DomainName<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// An address: an ASCII local part as given, and a domain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Address<'a> {
    local: &'a str,
    domain: DomainName<'a>,
}

impl<'a> Address<'a> {
    /// Reads a bare address. One that other programs read differently is refused, so that the
    /// address that is checked is the one that gets the mail.
    pub fn parse(text: &'a str) -> Result<Self, MailboxError> {
        let address = Self::parse_stored(text)?;
        if address.local.bytes().any(|b| DELIMITERS.contains(&b)) {
            return Err(MailboxError::LocalPartDelimiter);
        }
        if looks_encoded(&address.unquoted_local()) {
            return Err(MailboxError::LocalPartEncoded);
        }
        Ok(address)
    }

    /// Reads an address that was accepted before, also by an earlier version, or that a provider
    /// names.
    pub fn parse_stored(text: &'a str) -> Result<Self, MailboxError> {
        if has_control(text) {
            return Err(MailboxError::ControlCharacter);
        }
        let (local, domain) = text.rsplit_once('@').ok_or(MailboxError::NoAt)?;
        if !local.is_ascii() {
            return Err(MailboxError::LocalPartNotAscii);
        }
        if local.len() > LOCAL_PART_MAX_OCTETS {
            return Err(MailboxError::LocalPartTooLong);
        }
        if !EmailAddress::is_valid_local_part(local) {
            return Err(MailboxError::LocalPart);
        }
        Ok(Self { local, domain: DomainName::parse(domain)? })
    }

    /// The domain, as compared with an organisation's verified domains.
    pub fn domain(&self) -> &DomainName<'a> {
        &self.domain
    }

    /// The form in which suppressions are stored and compared: unquoted and in lower case.
    pub fn normalized(&self) -> String {
        let mut text = joined(&self.unquoted_local(), &self.domain);
        // The domain is in lower case already.
        text.make_ascii_lowercase();
        text
    }

    fn unquoted_local(&self) -> Cow<'a, str> {
        let unquoted = self.local.strip_prefix('"').and_then(|s| s.strip_suffix('"'));
        unquoted.map_or(Cow::Borrowed(self.local), |quoted| Cow::Owned(unescape(quoted)))
    }
}

/// An address's text.
fn joined(local: &str, domain: &DomainName<'_>) -> String {
    [local, "@", domain.as_str()].concat()
}

impl fmt::Display for Address<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.local, self.domain)
    }
}

/// A name as RFC 2047 encoded words, also if it is ASCII: many readers decode anything like an
/// encoded word even between quotes, and would show another name than the given one.
fn encoded_words(name: &str) -> String {
    /// Largest number of bytes of a word, so that it has at most 75 characters in base64 (RFC 2047
    /// section 2).
    const MAX_WORD_BYTES: usize = 45;
    let (mut words, mut rest) = (Vec::new(), name);
    while !rest.is_empty() {
        let (word, left) = rest.split_at(rest.floor_char_boundary(MAX_WORD_BYTES));
        words.push(format!("=?utf-8?B?{}?=", STANDARD.encode(word)));
        rest = left;
    }
    words.join(" ")
}

/// `address` or `Display Name <address>`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mailbox<'a> {
    given: &'a str,
    display_name: Option<Cow<'a, str>>,
    address: Address<'a>,
}

impl<'a> Mailbox<'a> {
    /// Reads a mailbox. Spaces around the parts are ignored.
    pub fn parse(given: &'a str) -> Result<Self, MailboxError> {
        if given.chars().nth(MAILBOX_MAX_CHARS).is_some() {
            return Err(MailboxError::TooLong);
        }
        Self::read(given, Address::parse)
    }

    /// Reads a mailbox that was accepted before, also by an earlier version, or that a provider
    /// names.
    pub fn parse_stored(given: &'a str) -> Result<Self, MailboxError> {
        Self::read(given, Address::parse_stored)
    }

    fn read(
        given: &'a str,
        parse_address: impl Fn(&'a str) -> Result<Address<'a>, MailboxError>,
    ) -> Result<Self, MailboxError> {
        if has_control(given) {
            return Err(MailboxError::ControlCharacter);
        }
        let text = given.trim_matches(' ');
        let Some(before_close) = text.strip_suffix('>') else {
            return match text.find('<') {
                Some(_) if !text.starts_with('"') => Err(MailboxError::Form),
                _ => match parse_address(text) {
                    Err(MailboxError::NoAt) => Err(MailboxError::Form),
                    address => Ok(Self { given, display_name: None, address: address? }),
                },
            };
        };
        let (name, address) = split_at_angle(before_close)?;
        let display_name = parse_display_name(name.trim_matches(' '))?;
        Ok(Self { given, display_name, address: parse_address(address.trim_matches(' '))? })
    }

    /// The text as the client gave it.
    pub fn as_given(&self) -> &'a str {
        self.given
    }

    /// The display name in clear, without its quotes.
    pub fn display_name(&self) -> Option<&str> {
        self.display_name.as_deref()
    }

    /// The address, without the display name.
    pub fn address(&self) -> &Address<'a> {
        &self.address
    }

    /// The ASCII form for a mail header, on one line: the display name in quotes if it needs them,
    /// and as RFC 2047 encoded words if it is not ASCII; the domain as A-labels.
    pub fn to_header(&self) -> String {
        let address = joined(self.address.local, &self.address.domain);
        let Some(name) = &self.display_name else { return address };
        if first_sign(name).is_some() {
            return format!("{} <{address}>", encoded_words(name));
        }
        let mut folded = Vec::with_capacity(name.len() * 2 + 80);
        HeaderAddress::new_address(Some(name.as_ref()), address).write_header(&mut folded, 0);
        let mut text = String::from_utf8(folded).expect("the encoder writes ASCII");
        // Unfolding (RFC 5322 section 2.2.3): the white space after each line break stays. The last
        // one ends the field, and is nearly always the only one.
        text.truncate(text.strip_suffix("\r\n").map_or(text.len(), str::len));
        if text.contains('\r') { text.replace("\r\n", "") } else { text }
    }
}

/// Splits `Display Name <address` at its one `<` outside the display name's quotes.
fn split_at_angle(text: &str) -> Result<(&str, &str), MailboxError> {
    let start = match text.strip_prefix('"') {
        Some(quoted) => 1 + closing_quote(quoted).ok_or(MailboxError::DisplayNameQuotes)?,
        None => 0,
    };
    let (between, address) = text[start..].split_once('<').ok_or(MailboxError::Form)?;
    Ok((&text[..start + between.len()], address))
}

fn closing_quote(text: &str) -> Option<usize> {
    let mut escaped = false;
    text.bytes().position(|b| {
        let closes = b == b'"' && !escaped;
        escaped = b == b'\\' && !escaped;
        closes
    })
}

/// Returns true if a text has a control character.
fn has_control(text: &str) -> bool {
    if text.is_ascii() {
        text.bytes().any(|b| b.is_ascii_control())
    } else {
        text.chars().any(char::is_control)
    }
}

fn parse_display_name(text: &str) -> Result<Option<Cow<'_, str>>, MailboxError> {
    if let Some(rest) = text.strip_prefix('"') {
        let end = closing_quote(rest).ok_or(MailboxError::DisplayNameQuotes)?;
        if end + 1 != rest.len() {
            return Err(MailboxError::DisplayNameQuotes);
        }
        let name = unescape(&rest[..end]);
        return Ok((!name.trim().is_empty()).then_some(Cow::Owned(name)));
    }
    if text.contains(['@', ',', ';', '<', '>', '"']) {
        return Err(MailboxError::DisplayNameNeedsQuotes);
    }
    Ok((!text.is_empty()).then_some(Cow::Borrowed(text)))
}

/// Removes the backslashes of quoted pairs (RFC 5322 section 3.2.1).
fn unescape(quoted: &str) -> String {
    let mut text = String::with_capacity(quoted.len());
    let mut chars = quoted.chars();
    while let Some(c) = chars.next() {
        text.extend(if c == '\\' { chars.next() } else { Some(c) });
    }
    text
}

#[cfg(test)]
mod tests {
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
        // Its length is odd, that of the one before even.
        let odd = Mailbox::parse(r#""Lee" <ann@example.com>"#).unwrap();
        assert_eq!(odd.display_name(), Some("Lee"));
        let with_angle = Mailbox::parse(r#""Ann <<" <ann@example.com>"#).unwrap();
        assert_eq!(with_angle.display_name(), Some("Ann <<"));
        assert_eq!(Mailbox::parse("<ann@example.com>").unwrap().display_name(), None);
        assert_eq!(
            Mailbox::parse(r#""a b"@example.com"#).unwrap().to_header(),
            r#""a b"@example.com"#
        );
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
        assert_eq!(error("Ann"), MailboxError::Form);
        assert_eq!(Address::parse("Ann"), Err(MailboxError::NoAt));
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
    fn a_local_part_that_others_read_differently_is_refused_unless_it_was_stored() {
        use MailboxError::{LocalPartDelimiter, LocalPartEncoded};
        for (local, expected) in [
            (r#""a@b""#, LocalPartDelimiter),
            (r#""a\@b""#, LocalPartDelimiter),
            (r#""a<b""#, LocalPartDelimiter),
            (r#""a>b""#, LocalPartDelimiter),
            (r#""a,b""#, LocalPartDelimiter),
            (r#""a;b""#, LocalPartDelimiter),
            ("=?utf-8?q?bob?=", LocalPartEncoded),
            ("a.=?utf-8?B?Ym9i?=.b", LocalPartEncoded),
            (r#""=?utf-8?q?bob?=""#, LocalPartEncoded),
            (r#""=\?utf-8?q?bob\?=""#, LocalPartEncoded),
        ] {
            let address = format!("{local}@example.com");
            for text in [address.clone(), format!("Ann <{address}>")] {
                assert_eq!(error(&text), expected, "{text}");
                let stored = Mailbox::parse_stored(&text).unwrap();
                assert_eq!(stored.address().to_string(), address);
            }
        }
        for local in ["=?x", "x?=", "?=x=?", r#""a b""#, r#""a(b""#, r#""a\"b""#, r#""a..b""#] {
            assert!(Address::parse(&format!("{local}@example.com")).is_ok(), "{local}");
        }
    }

    #[test]
    fn lengths_are_those_of_rfc_5321() {
        let local = "l".repeat(64);
        assert!(Address::parse(&format!("{local}@example.com")).is_ok());
        let too_long = format!("l{local}@example.com");
        assert_eq!(Address::parse(&too_long).unwrap_err(), MailboxError::LocalPartTooLong);
        let label = "d".repeat(63);
        let domain = |last| format!("{}.{}", [label.as_str(); 3].join("."), "d".repeat(last));
        assert!(DomainName::parse(&domain(61)).is_ok(), "253 octets");
        assert!(DomainName::parse(&domain(62)).is_err(), "254 octets");
        assert!(DomainName::parse(&"d".repeat(64)).is_err());
        let of = |length: usize| format!("{} <a@x.org>", "😀".repeat(length - " <a@x.org>".len()));
        assert!(Mailbox::parse(&of(MAILBOX_MAX_CHARS)).is_ok());
        assert_eq!(error(&of(MAILBOX_MAX_CHARS + 1)), MailboxError::TooLong);
        let spaces = " ".repeat(MAILBOX_MAX_CHARS);
        assert_eq!(error(&format!("{spaces}a@example.com")), MailboxError::TooLong);
        assert!(Mailbox::parse_stored(&format!("{spaces}a@example.com")).is_ok());
    }

    #[test]
    fn an_internationalised_domain_becomes_a_labels() {
        let mailbox = Mailbox::parse("ann@B\u{fc}cher.example").unwrap();
        assert_eq!(mailbox.address().domain().as_str(), "xn--bcher-kva.example");
        assert_eq!(mailbox.to_header(), "ann@xn--bcher-kva.example");
    }

    #[test]
    fn the_normal_form_is_unquoted_and_in_lower_case() {
        for text in ["Ann.Lee@Example.COM", r#""ann.lee"@example.com"#, r#""Ann\.Lee"@example.com"#]
        {
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
}
