//! The envelope of a message (RFC 5321 section 2.3.1): its sender's domain and its recipients.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::time::Duration;

use crate::admission::Admitted;
use crate::mailbox::{Address, DomainName, Mailbox};
use crate::message_terms::{Priority, Terms, whole_millis};
use crate::suppression::SuppressedAddress;

/// Room for a message to one or a few recipients, in bytes.
const USUAL_BYTES: usize = 128;

/// Sender's domain and recipients of a message, as sending needs them.
///
/// One text, because every pending message keeps one: the sender's domain, then each recipient in
/// the normal form of suppressions, with a line feed before it. No address has a line feed in it.
/// Behind the domain, which has no space in it, follow `high` if that is the message's priority,
/// and the milliseconds for which it may be sent if there is such a time, each with a space before
/// it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Envelope<'a>(Cow<'a, str>);

impl Envelope<'_> {
    /// Envelope of a message from this domain to these recipients.
    pub fn new<'r>(
        sender_domain: &DomainName<'_>,
        recipients: impl IntoIterator<Item = &'r Address<'r>>,
    ) -> Self {
        let mut lines = String::with_capacity(USUAL_BYTES);
        lines.push_str(sender_domain.as_str());
        for recipient in recipients {
            lines.push('\n');
            lines.push_str(&recipient.normalized());
        }
        Self(Cow::Owned(lines))
    }

    /// The envelope with this text, which [`Envelope::as_str`] gave.
    pub const fn from_text(text: String) -> Self {
        Self(Cow::Owned(text))
    }

    /// The envelope as one text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The same envelope, of a message of this priority that may be sent for as long as this.
    #[must_use]
    pub fn with_terms(self, priority: Priority, expires_in: Option<Duration>) -> Self {
        if priority == Priority::Normal && expires_in.is_none() {
            return self;
        }
        let mut text = self.0.into_owned();
        let mut terms = String::new();
        if priority == Priority::High {
            terms.push(' ');
            terms.push_str(Priority::High.as_str());
        }
        if let Some(expires_in) = expires_in {
            let _ = write!(terms, " {}", whole_millis(expires_in));
        }
        text.insert_str(text.find('\n').unwrap_or(text.len()), &terms);
        Self(Cow::Owned(text))
    }

    /// The message's priority: `normal` unless the text says `high`.
    pub fn priority(&self) -> Priority {
        let is_high = self.first_line().skip(1).any(|word| word == Priority::High.as_str());
        if is_high { Priority::High } else { Priority::Normal }
    }

    /// Time after its acceptance for which the message may be sent; `None` if it has no end of its
    /// own.
    pub fn expires_in(&self) -> Option<Duration> {
        let millis = self.first_line().skip(1).find_map(|word| word.parse().ok())?;
        Some(Duration::from_millis(millis))
    }

    /// The sender's domain and the terms.
    fn first_line(&self) -> impl Iterator<Item = &str> {
        self.0.split('\n').next().unwrap_or_default().split(' ')
    }

    /// Domain of the sender's address, in the form in which verified domains are compared.
    pub fn sender_domain(&self) -> DomainName<'_> {
        DomainName::of_text(self.first_line().next().unwrap_or_default())
    }

    /// Recipients of to, cc and bcc, in that order.
    pub fn recipients(&self) -> impl Iterator<Item = SuppressedAddress> + '_ {
        self.0.split('\n').skip(1).map(SuppressedAddress::from_stored)
    }

    /// Number of recipients in `to`, `cc` and `bcc` together.
    pub fn recipient_count(&self) -> u32 {
        u32::try_from(self.0.split('\n').skip(1).count()).expect("at most 50 recipients")
    }
}

impl From<&Admitted<'_>> for Envelope<'_> {
    fn from(admitted: &Admitted<'_>) -> Self {
        let to = admitted.distinct_to();
        let recipients = to.iter().chain(admitted.cc()).chain(admitted.bcc()).map(Mailbox::address);
        let Terms { priority, expires_in } = admitted.terms();
        Self::new(admitted.from().address().domain(), recipients)
            .with_terms(priority.effective(), expires_in)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_envelope_keeps_the_senders_domain_and_every_recipient_in_order() {
        let texts = ["Bob <Bob@Example.org>", "\"a b\"@B\u{fc}cher.example", "bob@example.org"];
        let mailboxes = texts.map(|text| Mailbox::parse(text).unwrap());
        let domain = DomainName::parse("B\u{fc}cher.Example").unwrap();
        let envelope = Envelope::new(&domain, mailboxes.iter().map(Mailbox::address));
        assert_eq!(envelope.sender_domain(), domain);
        let recipients: Vec<_> = envelope.recipients().collect();
        let expected = mailboxes.each_ref().map(|mailbox| mailbox.address().into());
        assert_eq!(recipients, expected);
        assert_eq!(envelope.recipient_count(), 3);
    }

    #[test]
    fn an_envelope_keeps_the_terms_and_one_without_any_keeps_its_bytes() {
        let recipient = Address::parse("bob@example.org").unwrap();
        let domain = DomainName::parse("example.com").unwrap();
        let plain = || Envelope::new(&domain, [&recipient]);
        for (priority, expires_in, text) in [
            (Priority::Normal, None, "example.com\nbob@example.org"),
            (Priority::High, None, "example.com high\nbob@example.org"),
            (Priority::Normal, Some(60_000), "example.com 60000\nbob@example.org"),
            (Priority::High, Some(1), "example.com high 1\nbob@example.org"),
        ] {
            let expires_in = expires_in.map(Duration::from_millis);
            let envelope = plain().with_terms(priority, expires_in);
            assert_eq!(envelope.as_str(), text);
            assert_eq!((envelope.priority(), envelope.expires_in()), (priority, expires_in));
            assert_eq!(envelope.sender_domain(), domain);
            assert_eq!(envelope.recipients().collect::<Vec<_>>(), [(&recipient).into()]);
            assert_eq!(envelope.recipient_count(), 1);
        }
    }
}
