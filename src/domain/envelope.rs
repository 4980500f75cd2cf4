//! The envelope of a message (RFC 5321 section 2.3.1): its sender's domain and its recipients.

use std::borrow::Cow;

use crate::domain::admission::Admitted;
use crate::domain::mailbox::{Address, DomainName, Mailbox};
use crate::domain::suppression::SuppressedAddress;

/// Room for a message to one or a few recipients, in bytes.
const USUAL_BYTES: usize = 128;

/// Sender's domain and recipients of a message, as sending needs them.
///
/// One text, because every pending message keeps one: the sender's domain, then each recipient in
/// the normal form of suppressions, with a line feed before it. No address has a line feed in it.
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
    pub(crate) const fn from_text(text: String) -> Self {
        Self(Cow::Owned(text))
    }

    /// The envelope as one text.
    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    /// Domain of the sender's address, in the form in which verified domains are compared.
    pub fn sender_domain(&self) -> DomainName<'_> {
        DomainName::of_text(self.0.split('\n').next().unwrap_or_default())
    }

    /// Recipients of to, cc and bcc, in that order.
    pub fn recipients(&self) -> impl Iterator<Item = SuppressedAddress> + '_ {
        self.0.split('\n').skip(1).map(SuppressedAddress::from_stored)
    }

    /// Number of recipients.
    pub fn recipient_count(&self) -> u32 {
        u32::try_from(self.0.split('\n').skip(1).count()).expect("at most 50 recipients")
    }
}

impl From<&Admitted<'_>> for Envelope<'_> {
    fn from(admitted: &Admitted<'_>) -> Self {
        let to = admitted.distinct_to();
        let recipients = to.iter().chain(admitted.cc()).chain(admitted.bcc()).map(Mailbox::address);
        Self::new(admitted.from().address().domain(), recipients)
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
}
