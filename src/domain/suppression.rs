//! Suppressions: addresses that an organisation must not write to any more, and the events that
//! suppress their recipients.

use std::fmt;

use email_address::EmailAddress;

use crate::event::{BounceType, Event, EventDetail};
use crate::id::MessageId;
use crate::mailbox::{Address, Mailbox, MailboxError};
use crate::time::Timestamp;
use crate::worded;

/// An address in the form in which suppressions are stored and compared: domain as A-label,
/// unquoted, lower case.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SuppressedAddress(String);

impl SuppressedAddress {
    /// The normal form of a bare address.
    pub fn parse(text: &str) -> Result<Self, MailboxError> {
        Ok(Self::from(&Address::parse(text)?))
    }

    /// The normal form of an address that was suppressed before, also by an earlier version.
    pub fn parse_stored(text: &str) -> Result<Self, MailboxError> {
        Ok(Self::from(&Address::parse_stored(text)?))
    }

    /// The address of a recipient as a record has it, or as a provider's report names it. The text
    /// may have a display name, an address type (RFC 3464 section 2.3.1) or a comment around the
    /// address; it is read if it holds exactly one.
    pub fn of_recipient(text: &str) -> Option<Self> {
        if let Ok(mailbox) = Mailbox::parse_stored(text) {
            return Some(Self::from(mailbox.address()));
        }
        // Providers write display names with less care than we require of clients: the text in the
        // angle brackets at the end is the address.
        let in_brackets = text.trim().strip_suffix('>').and_then(|rest| rest.rsplit_once('<'));
        if let Some((name, address)) = in_brackets
            && let Ok(address) = Self::parse_stored(address.trim())
        {
            let mut others = words(name).filter_map(Self::of_word);
            return others.all(|other| other == address).then_some(address);
        }
        let mut found = words(text).filter_map(Self::of_word);
        let first = found.next()?;
        found.all(|other| other == first).then_some(first)
    }

    /// Returns the address in a word, without quotes around it and a dot at its end.
    fn of_word(word: &str) -> Option<Self> {
        let word = word.trim_end_matches('.');
        let unquoted = ['\'', '`']
            .iter()
            .find_map(|quote| word.strip_prefix(*quote)?.strip_suffix(['\'', '`']));
        Self::parse_stored(unquoted.unwrap_or(word).trim_end_matches('.')).ok()
    }

    /// An address that was normalized before it was stored.
    pub fn from_stored(text: &str) -> Self {
        Self(text.to_owned())
    }

    /// The normal form's text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// The words of a text that may be addresses: without separators, and without comments (RFC 5322
/// section 3.2.2). A quoted string is part of its word.
fn words(text: &str) -> impl Iterator<Item = &str> {
    let (mut depth, mut is_quoted, mut is_escaped) = (0_usize, false, false);
    text.split(move |c: char| {
        let was_escaped = std::mem::replace(&mut is_escaped, false);
        // In a comment, the backslash before it is a separator, and one character is no address.
        if was_escaped {
            return false;
        }
        match c {
            '\\' if is_quoted || depth > 0 => is_escaped = true,
            '"' if depth == 0 => is_quoted = !is_quoted,
            _ if is_quoted => {}
            '(' => depth += 1,
            ')' => {
                depth = depth.saturating_sub(1);
                return true;
            }
            '<' | '>' | ',' | ';' | ':' | '[' | ']' => return true,
            _ => return depth > 0 || c.is_whitespace() || c.is_control(),
        }
        depth > 0
    })
}

impl From<&Address<'_>> for SuppressedAddress {
    fn from(address: &Address<'_>) -> Self {
        Self(address.normalized())
    }
}

impl fmt::Display for SuppressedAddress {
    /// As an address that [`SuppressedAddress::parse_stored`] reads: a local part that is no
    /// dot-atom is quoted again (RFC 5321 section 4.1.2).
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some((local, domain)) = self.0.rsplit_once('@') else { return f.write_str(&self.0) };
        if !local.starts_with('"') && EmailAddress::is_valid_local_part(local) {
            return f.write_str(&self.0);
        }
        let escaped = local.replace('\\', r"\\").replace('"', "\\\"");
        write!(f, "\"{escaped}\"@{domain}")
    }
}

worded! {
    /// Reason why an address is suppressed.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub enum SuppressionReason {
        /// A permanent bounce of a message.
        Bounce = "bounce",
        /// A complaint about a message.
        Complaint = "complaint",
        /// The decision of an operator.
        Manual = "manual",
    }
}

impl SuppressionReason {
    /// The reason with this word, in whatever case: SES writes them in capitals.
    pub fn from_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|reason| reason.as_str().eq_ignore_ascii_case(word))
    }
}

/// One suppressed address of an organisation, or of all of them. It has no expiry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Suppression {
    /// Address in the form in which suppressions are compared.
    pub address: SuppressedAddress,
    /// Reason of the suppression.
    pub reason: SuppressionReason,
    /// Time since which it is suppressed.
    pub since: Timestamp,
    /// The message that caused it, unless an operator did.
    pub cause: Option<MessageId>,
}

impl Event {
    /// Returns the reason for which the event suppresses its recipients; `None` if it suppresses
    /// nobody. An address that a list or a check at SES stopped is not suppressed here as well: the
    /// owner of that list decides.
    pub fn suppresses(&self) -> Option<SuppressionReason> {
        match &self.detail {
            EventDetail::Bounce { bounce_type: BounceType::Permanent, sub_type, .. } => {
                (!is_stopped_at_ses(sub_type)).then_some(SuppressionReason::Bounce)
            }
            EventDetail::Complaint { sub_type, feedback_type } => {
                let is_stopped = sub_type.as_deref().is_some_and(is_stopped_at_ses);
                // The report says that the mail was wanted (IANA, "Mail Parameters",
                // Feedback-Type).
                let is_wanted = feedback_type
                    .as_deref()
                    .is_some_and(|kind| kind.trim().eq_ignore_ascii_case("not-spam"));
                (!is_stopped && !is_wanted).then_some(SuppressionReason::Complaint)
            }
            _ => None,
        }
    }
}

/// Returns true if a subtype says that a list or a check at SES stopped the message, and not the
/// recipient's server or the recipient (SES developer guide, "Bounce types").
pub fn is_stopped_at_ses(sub_type: &str) -> bool {
    matches!(
        sub_type,
        "Suppressed"
            | "OnAccountSuppressionList"
            | "OnTenantSuppressionList"
            | "EmailValidationSuppressed"
            | "UnsubscribedRecipient"
    )
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{ProptestConfig, prop_assert_eq, prop_assume, proptest};

    use super::*;
    use crate::event::EventType;

    #[test]
    fn a_reason_is_read_in_any_case() {
        for reason in SuppressionReason::ALL {
            let word = reason.as_str().to_uppercase();
            assert_eq!(SuppressionReason::from_word(&word), Some(reason));
        }
        assert_eq!(SuppressionReason::from_word("bounced"), None);
    }

    #[test]
    fn a_shown_address_is_one_that_can_be_given() {
        for (given, shown) in [
            ("Bob@B\u{fc}cher.example", "bob@xn--bcher-kva.example"),
            (r#""bob"@x.org"#, "bob@x.org"),
            (r#""a b"@x.org"#, r#""a b"@x.org"#),
            (r#""a\"\\@b"@x.org"#, r#""a\"\\@b"@x.org"#),
            (r#""\"q\""@x.org"#, r#""\"q\""@x.org"#),
        ] {
            assert_eq!(SuppressedAddress::parse_stored(given).unwrap().to_string(), shown);
        }
    }

    #[test]
    fn a_reported_recipient_is_read_if_it_holds_exactly_one_address() {
        let read = |text: &str| {
            SuppressedAddress::of_recipient(text).map(|address| address.as_str().to_owned())
        };
        for text in [
            "bob@x.org",
            "Bob <bob@x.org>",
            "\"Lee, Bob\" <bob@x.org>",
            "rfc822; bob@x.org",
            "RFC822;bob@x.org",
            "rfc822; <bob@x.org>",
            "bob@x.org (Bob Lee)",
            "(Bob (the first) was@y.org) bob@x.org",
            "bob@x.org(Bob Lee)",
            "(5\" wide) bob@x.org",
            "a\\ bob@x.org",
            "bob@x.org (\\) eve@y.org)",
            "<<bob@x.org>>",
            "<bob@x.org>.",
            "bob@x.org.",
            "rfc822; Bob@X.org.",
            "bob@x.org\r\n",
            " \t<bob@x.org>\r\n",
            "mailto:bob@x.org",
            "'bob@x.org'",
            "`bob@x.org'",
            "bob@x.org;",
            "bob@x.org <bob@x.org> (Bob)",
            "bob@x.org <bob@x.org>",
            "Bob \"the first <bob@x.org>",
        ] {
            assert_eq!(read(text).as_deref(), Some("bob@x.org"), "{text:?}");
        }
        assert_eq!(read("rfc822; \"a b\"@x.org").as_deref(), Some("a b@x.org"));
        assert_eq!(read("rfc822; \"a\\\" b\"@x.org").as_deref(), Some("a\" b@x.org"));
        for text in [
            "",
            "Bob",
            "bob@",
            "@x.org",
            "bob@x.org, eve@y.org",
            "eve@y.org <bob@x.org>",
            "rfc822; bob@x.org; eve@y.org",
            "bob@x.org eve@y.org",
            "bob@eve@x.org",
            "bob@x_y.org",
            "bob@[192.0.2.1]",
            "bob at x.org",
            "(bob@x.org)",
            "\"bob@x.org",
        ] {
            assert_eq!(read(text), None, "{text:?}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2_000))]

        #[test]
        fn an_address_is_read_as_it_is_shown(local in r#"[a-z=+'-]{1,12}|"([ -~&&[^"\\]]|\\["\\]){0,12}""#) {
            let parsed = SuppressedAddress::parse_stored(&format!("{local}@x.org"));
            prop_assume!(parsed.is_ok());
            let address = parsed.unwrap();
            let again = SuppressedAddress::parse_stored(&address.to_string());
            prop_assert_eq!(again, Ok(address));
        }
    }

    fn event(detail: EventDetail) -> Event {
        let occurred_at = Timestamp::from_unix_millis(1);
        Event { occurred_at, recipients: vec!["ann@example.com".into()], detail }
    }

    fn bounce(bounce_type: BounceType, sub_type: &str) -> Event {
        let sub_type = sub_type.to_owned();
        event(EventDetail::Bounce { bounce_type, sub_type, diagnostic_code: None })
    }

    fn complaint(sub_type: Option<&str>) -> Event {
        let sub_type = sub_type.map(str::to_owned);
        event(EventDetail::Complaint { feedback_type: None, sub_type })
    }

    /// An event of each type that suppresses nobody. A new type must be decided here.
    fn harmless(event_type: EventType) -> Event {
        let sub_type = || "OnAccountSuppressionList".to_owned();
        event(match event_type {
            EventType::Delivery => EventDetail::Delivery { smtp_response: None },
            EventType::Reject => EventDetail::Reject { reason: "Bad content".to_owned() },
            EventType::DeliveryDelay => {
                EventDetail::DeliveryDelay { delay_type: sub_type(), diagnostic_code: None }
            }
            EventType::Bounce => return bounce(BounceType::Permanent, &sub_type()),
            EventType::Complaint => return complaint(Some(&sub_type())),
        })
    }

    #[test]
    fn an_event_that_is_nobodys_refusal_suppresses_nobody() {
        for event_type in EventType::ALL {
            let event = harmless(event_type);
            assert_eq!((event.event_type(), event.suppresses()), (event_type, None));
        }
    }

    #[test]
    fn only_permanent_bounces_and_complaints_of_recipients_suppress() {
        use SuppressionReason::{Bounce, Complaint};
        assert_eq!(bounce(BounceType::Permanent, "General").suppresses(), Some(Bounce));
        assert_eq!(bounce(BounceType::Permanent, "NoEmail").suppresses(), Some(Bounce));
        for sub_type in [
            "Suppressed",
            "OnAccountSuppressionList",
            "OnTenantSuppressionList",
            "EmailValidationSuppressed",
            "UnsubscribedRecipient",
        ] {
            assert_eq!(bounce(BounceType::Permanent, sub_type).suppresses(), None, "{sub_type}");
            assert_eq!(complaint(Some(sub_type)).suppresses(), None, "{sub_type}");
        }
        assert_eq!(bounce(BounceType::Transient, "General").suppresses(), None);
        assert_eq!(bounce(BounceType::Undetermined, "Undetermined").suppresses(), None);
        assert_eq!(complaint(None).suppresses(), Some(Complaint));
        assert_eq!(complaint(Some("SomethingNew")).suppresses(), Some(Complaint));
        let of = |feedback_type: &str| {
            let feedback_type = Some(feedback_type.to_owned());
            event(EventDetail::Complaint { feedback_type, sub_type: None }).suppresses()
        };
        assert_eq!((of("not-spam"), of("Not-Spam")), (None, None));
        assert_eq!((of("abuse"), of("other")), (Some(Complaint), Some(Complaint)));
    }
}
