//! Address fields of a message's senders (RFC 5322, sections 3.6.2 and 3.6.6): `From`, `Sender`,
//! `Resent-From` and `Resent-Sender`.
//!
//! Strict, because a sender that two parsers read differently could be another person's. Must not
//! know which domains are verified.

use mail_parser::MessageParser;

use pillarbox_domain::encoded_words::decode;
use pillarbox_domain::mailbox::{Address, DomainName};

/// Longest address field that is read, in bytes.
const MAX_BYTES: usize = 16 * 1024;
/// Most mailboxes of a field; a message has as many recipients.
const MAX_MAILBOXES: usize = 50;

/// Mailbox of an address field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct FieldMailbox {
    /// The address, as it is written.
    pub(super) address: String,
    /// Phrase before the address in angle brackets, without comments: atoms, quoted strings and
    /// encoded words, in one line.
    phrase: String,
}

/// Reads a field's value: one mailbox, or several with commas between them. `None` if it is not
/// that, or if another parser does not find as many addresses with the same domains.
pub(super) fn mailboxes(value: &[u8]) -> Option<Vec<FieldMailbox>> {
    if value.len() > MAX_BYTES {
        return None;
    }
    let folded = std::str::from_utf8(value).ok()?;
    // Unfolding (RFC 5322, section 2.2.3).
    let value = folded.replace("\r\n", "").replace('\t', " ");
    if value.contains(char::is_control) {
        return None;
    }
    let mut chars = value.chars();
    let mut found = Vec::new();
    loop {
        let (mailbox, end) = mailbox(&mut chars)?;
        found.push(mailbox);
        match end {
            End::OfField => break,
            End::OfMailbox if found.len() == MAX_MAILBOXES => return None,
            End::OfMailbox => {}
        }
    }
    let is_alike = |text: &str| are_read_alike(text, &found);
    // Another parser may read it with its folds, and then end a comment elsewhere.
    (is_alike(&value) && (value == folded || is_alike(folded))).then_some(found)
}

/// Returns the addresses of a field that names mailboxes, in the form in which addresses are compared.
pub fn addresses(value: &[u8]) -> Option<Vec<String>> {
    let addresses = mailboxes(value)?
        .into_iter()
        .map(|one| Address::parse(&one.address).ok().map(|address| address.normalized()));
    addresses.collect()
}

impl FieldMailbox {
    /// The mailbox for the record: `address` or `Display Name <address>`, with the name in clear.
    pub(super) fn in_clear(&self) -> String {
        let mut name = String::new();
        for (part, is_quoted) in parts(&self.phrase) {
            // Many programs put encoded words between quotes, and many decode them there.
            let text = if is_quoted { decode(&unquoted(part)) } else { decode(part) };
            name.push_str(&text);
        }
        let plain = |c: char| if c.is_control() { ' ' } else { c };
        let name: String = name.trim().chars().map(plain).collect();
        let (name, address) = (name.trim(), &self.address);
        if name.is_empty() {
            return address.clone();
        }
        if name.contains(['@', ',', ';', '<', '>', '"', '\\']) {
            let escaped = name.replace('\\', "\\\\").replace('"', "\\\"");
            return format!("\"{escaped}\" <{address}>");
        }
        format!("{name} <{address}>")
    }

    /// The mailbox for a header, with the name's own text, so that no charset is applied to it. `None`
    /// if that is not ASCII, or if another parser reads another address in it.
    pub(super) fn in_own_words(&self) -> Option<String> {
        if !self.phrase.is_ascii() {
            return None;
        }
        let address = Address::parse(&self.address).ok()?;
        if self.phrase.is_empty() {
            return Some(address.to_string());
        }
        let mut words = String::new();
        for (part, is_quoted) in parts(&self.phrase) {
            if is_quoted {
                words.push_str(part);
                continue;
            }
            for (position, word) in part.split(' ').enumerate() {
                if position > 0 {
                    words.push(' ');
                }
                words.push_str(&quoted_if_need_be(word));
            }
        }
        let own = format!("{words} <{address}>");
        are_read_alike(&own, std::slice::from_ref(self)).then_some(own)
    }
}

/// A word of a phrase as an atom, an encoded word or a quoted string. Some programs leave out the
/// quotes that RFC 5322 section 3.2.3 asks for.
fn quoted_if_need_be(word: &str) -> String {
    let is_atom =
        |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-/=?^_`{|}~.".contains(&byte);
    let is_encoded = word.starts_with("=?") && word.ends_with("?=");
    if is_encoded || word.bytes().all(is_atom) {
        return word.to_owned();
    }
    format!("\"{}\"", word.replace('\\', "\\\\").replace('"', "\\\""))
}

/// The quoted strings of a phrase, with their quotes, and what is between them.
fn parts(phrase: &str) -> impl Iterator<Item = (&str, bool)> {
    let mut rest = phrase;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let is_quoted = rest.starts_with('"');
        let end = if is_quoted { quoted_length(rest) } else { rest.find('"') };
        let (part, after) = rest.split_at(end.unwrap_or(rest.len()));
        debug_assert!(!part.is_empty(), "each step takes a part of the phrase");
        rest = after;
        Some((part, is_quoted))
    })
}

/// Length in bytes of the quoted string that a text begins with.
fn quoted_length(text: &str) -> Option<usize> {
    let mut is_escaped = false;
    let end = text.bytes().skip(1).position(|byte| {
        let closes = byte == b'"' && !is_escaped;
        is_escaped = byte == b'\\' && !is_escaped;
        closes
    });
    Some(end? + 2)
}

/// The content of a quoted string, without the backslashes of quoted pairs.
fn unquoted(quoted: &str) -> String {
    let mut chars = quoted[1..quoted.len() - 1].chars();
    let mut text = String::with_capacity(quoted.len());
    while let Some(c) = chars.next() {
        text.extend(if c == '\\' { chars.next() } else { Some(c) });
    }
    text
}

/// Character that ends a mailbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    /// A comma: another one follows.
    OfMailbox,
    OfField,
}

/// Reads a mailbox up to its end.
fn mailbox(chars: &mut std::str::Chars<'_>) -> Option<(FieldMailbox, End)> {
    // What is outside angle brackets, and what is between them.
    let (mut outside, mut between) = (String::new(), None);
    let mut has_at_outside = false;
    let end = loop {
        match chars.next() {
            None => break End::OfField,
            Some(',') => break End::OfMailbox,
            // White space of any length is one space.
            Some(' ') => space(&mut outside),
            Some('(') => {
                skip_comment(chars)?;
                space(&mut outside);
            }
            // Nothing but a comment comes after the address.
            Some(_) if between.is_some() => return None,
            Some('"') => quoted(chars, &mut outside)?,
            Some('<') if !has_at_outside => between = Some(to_angle(chars)?),
            Some('<' | '>' | ';' | ':' | ')') => return None,
            Some(c) => {
                has_at_outside |= c == '@';
                outside.push(c);
            }
        }
    };
    let (phrase, address) = match between {
        Some(between) => (outside.trim_matches(' ').to_owned(), between),
        None => (String::new(), outside),
    };
    let address = address.trim_matches(' ').to_owned();
    (is_plain(&address) && Address::parse(&address).is_ok())
        .then_some((FieldMailbox { address, phrase }, end))
}

fn space(text: &mut String) {
    if !text.ends_with(' ') {
        text.push(' ');
    }
}

/// Returns false for an address of which other parsers could read another domain because it stands
/// in a field: some find comments and groups within quotes, or join text that resembles encoded
/// words.
fn is_plain(address: &str) -> bool {
    !address.contains(['(', ')', '[', ']', ':', '\\']) && !address.contains("=?")
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

/// Returns true if a parser that is not ours finds the same number of addresses, and the same domain
/// in each.
fn are_read_alike(value: &str, ours: &[FieldMailbox]) -> bool {
    let text = format!("From: {value}\r\n\r\n");
    let Some(message) = MessageParser::default().parse_headers(text.as_bytes()) else {
        return false;
    };
    let Some(theirs) = message.from().and_then(|from| from.as_list()) else { return false };
    let domain_of = |address: &str| {
        let (_, domain) = address.rsplit_once('@')?;
        Some(DomainName::parse(domain).ok()?.into_owned())
    };
    theirs.len() == ours.len()
        && theirs.iter().zip(ours).all(|(theirs, ours)| {
            let domain = theirs.address().and_then(domain_of);
            domain.is_some() && domain == domain_of(&ours.address)
        })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_name_is_read_in_clear_and_kept_in_its_own_words() {
        for (value, in_clear, own) in [
            ("a@x.org", "a@x.org", "a@x.org"),
            (" <a@X.org> (c)", "a@X.org", "a@x.org"),
            ("A  (c)\tB <a@x.org>", "A B <a@x.org>", "A B <a@x.org>"),
            ("A\r\n B <a@x.org>", "A B <a@x.org>", "A B <a@x.org>"),
            ("\"A, B\" C <a@x.org>", "\"A, B C\" <a@x.org>", "\"A, B\" C <a@x.org>"),
            ("\"\" <a@x.org>", "a@x.org", "\"\" <a@x.org>"),
            (
                "\"A \\\\ \\\" B\" <a@x.org>",
                "\"A \\\\ \\\" B\" <a@x.org>",
                "\"A \\\\ \\\" B\" <a@x.org>",
            ),
            (
                "=?utf-8?q?J=C3=B6?= =?utf-8?q?rg?= X <a@x.org>",
                "J\u{f6}rg X <a@x.org>",
                "=?utf-8?q?J=C3=B6?= =?utf-8?q?rg?= X <a@x.org>",
            ),
            (
                "\"=?utf-8?q?J=C3=B6rg?=\" <a@x.org>",
                "J\u{f6}rg <a@x.org>",
                "\"=?utf-8?q?J=C3=B6rg?=\" <a@x.org>",
            ),
            (
                "=?utf-8?q?=0D=0ABcc=3A_x?= <a@x.org>",
                "Bcc: x <a@x.org>",
                "=?utf-8?q?=0D=0ABcc=3A_x?= <a@x.org>",
            ),
            ("[A] B <a@x.org>", "[A] B <a@x.org>", "\"[A]\" B <a@x.org>"),
            ("[A]?= <a@x.org>", "[A]?= <a@x.org>", "\"[A]?=\" <a@x.org>"),
            ("a@b\u{fc}cher.example", "a@b\u{fc}cher.example", "a@xn--bcher-kva.example"),
        ] {
            let found = mailboxes(value.as_bytes()).unwrap_or_else(|| panic!("{value}"));
            let [mailbox] = &found[..] else { panic!("{value}: {found:?}") };
            assert_eq!(mailbox.in_clear(), in_clear, "{value}");
            assert_eq!(mailbox.in_own_words().as_deref(), Some(own), "{value}");
        }
        for value in [
            "J\u{f6}rg <a@x.org>",
            "=?ISO-202\"-JP?B?GyRCQEE1YT1xGyhC?= \"q \\\" =?q?\" [x] <a@x.org>",
        ] {
            let found = mailboxes(value.as_bytes()).unwrap();
            assert_eq!(found[0].in_own_words(), None, "{value}");
        }
    }

    #[test]
    fn several_are_read_up_to_a_bound() {
        let found = mailboxes(b"\"a, b\" <a@x.org>, (c, d) b@y.org ,\r\n <c@z.org>").unwrap();
        let found: Vec<_> = found.into_iter().map(|one| one.address).collect();
        assert_eq!(found, ["a@x.org", "b@y.org", "c@z.org"]);
        for value in ["A\u{1} <a@x.org>", "\"A\u{7f}\" <a@x.org>", "A\u{9b} <a@x.org>"] {
            assert_eq!(mailboxes(value.as_bytes()), None, "{value:?}");
        }
        for value in ["a@x.org,", ",a@x.org", "a@x.org,,b@x.org", "g: a@x.org;", "a@x.org; b@x.org"]
        {
            assert_eq!(mailboxes(value.as_bytes()), None, "{value}");
        }
        assert!(mailboxes(vec!["a@x.org"; MAX_MAILBOXES].join(",").as_bytes()).is_some());
        assert!(mailboxes(vec!["a@x.org"; MAX_MAILBOXES + 1].join(",").as_bytes()).is_none());
        let address = " <a@x.org>";
        for (bytes, is_read) in [(MAX_BYTES, true), (MAX_BYTES + 1, false)] {
            let value = "a".repeat(bytes - address.len()) + address;
            assert_eq!(mailboxes(value.as_bytes()).is_some(), is_read, "{bytes}");
        }
        assert_eq!(MAX_BYTES, 16_384);
    }

    #[test]
    fn another_parser_must_find_as_many_addresses_with_the_same_domains() {
        let ours = |addresses: &[&str]| -> Vec<_> {
            let one = |address: &&str| FieldMailbox {
                address: (*address).to_owned(),
                phrase: String::new(),
            };
            addresses.iter().map(one).collect()
        };
        for (value, addresses, is_alike) in [
            ("a@x.org", &["b@X.org"][..], true),
            ("a@x.org", &["a@y.org"], false),
            ("a@x.org", &["a@x.org", "b@x.org"], false),
            ("a@x.org, b@x.org", &["a@x.org"], false),
            ("a@x.org, b@y.org", &["a@y.org", "b@x.org"], false),
            ("a@x..org", &["a@x..org"], false),
        ] {
            assert_eq!(are_read_alike(value, &ours(addresses)), is_alike, "{value}");
        }
    }

    #[test]
    fn another_parser_reads_the_field_as_it_was_folded() {
        for (value, is_read) in [
            ("(a \\\r\n ) \"b, <c@x.org>\" <d@x.org>", false),
            ("(a \\ ) \"b, <c@x.org>\" <d@x.org>", true),
            ("(a\r\n ) \"b,\r\n\t<c@x.org>\" <d@x.org>", true),
        ] {
            assert_eq!(mailboxes(value.as_bytes()).is_some(), is_read, "{value:?}");
        }
    }

    #[test]
    fn a_comment_ends_with_its_own_parenthesis() {
        for value in ["(a (b) c) a@x.org", "a@x.org ((b) (c))", "(a \\) b) a@x.org"] {
            let found = mailboxes(value.as_bytes()).unwrap_or_else(|| panic!("{value}"));
            assert_eq!(found[0].address, "a@x.org", "{value}");
        }
        for value in ["(a (b) a@x.org", "(a) b) a@x.org", "(a \\) a@x.org"] {
            assert_eq!(mailboxes(value.as_bytes()), None, "{value}");
        }
    }

    #[test]
    fn addresses_are_in_the_form_in_which_they_are_compared() {
        let found = addresses(b"Ann <Ann@X.org>, b@b\xc3\xbccher.example").unwrap();
        assert_eq!(found, ["ann@x.org", "b@xn--bcher-kva.example"]);
        assert_eq!(addresses(b"a@x.org, b"), None);
    }

    proptest! {
        #[test]
        fn an_address_that_is_taken_is_the_one_that_another_parser_reads(
            value in "[a-z@.,;:<>()\"\\\\ ]{0,40}|(\"?[a-z ,@]{0,9}\"? )?<?[a-z]{1,4}@[a-z]{1,3}\\.org>?( ?\\([a-z@]{0,5}\\))?"
        ) {
            if let Some(found) = mailboxes(value.as_bytes()) {
                let text = format!("From: {value}\r\n\r\n");
                let message = MessageParser::default().parse_headers(text.as_bytes()).unwrap();
                let all: Vec<_> = message.from().unwrap().iter().filter_map(|one| one.address()).collect();
                // The other parser takes a quoted local part for a display name.
                let known: Vec<_> = found.iter().map(|one| {
                    one.address.rsplit_once('"').map_or(one.address.as_str(), |(_, rest)| rest)
                }).collect();
                prop_assert_eq!(all, known, "{}", value);
            }
        }

        #[test]
        fn own_words_are_one_mailbox_of_ascii_with_the_same_address(
            value in "(\"?([a-z \\[\\]\\\\.]|=\\?utf-8\\?q\\?a=22\\?=|\\(c\\)){0,9}\"? ?){0,3}<a@x\\.org>"
        ) {
            if let Some(own) = mailboxes(value.as_bytes()).and_then(|found| found[0].in_own_words()) {
                let again = mailboxes(own.as_bytes());
                prop_assert!(again.is_some_and(|again| again.len() == 1 && again[0].address == "a@x.org"), "{own}");
            }
        }
    }
}
