//! Search: how an operator finds messages by a part of what their records say.

use crate::domain::event::EventType;
use crate::domain::id::{MessageId, OrganisationId};
use crate::domain::mailbox::{DomainName, Mailbox};
use crate::domain::message::Status;
use crate::domain::outcome::MessageOutcome;
use crate::domain::suppression::SuppressedAddress;
use crate::domain::time::Timestamp;

/// Which messages to list. What is not given excludes nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MessageFilter {
    /// Only those accepted before this one.
    pub before: Option<MessageId>,
    /// Only this organisation's.
    pub organisation: Option<OrganisationId>,
    /// Only those with this stored status.
    pub status: Option<Status>,
    /// Only those whose latest event is of this type.
    pub last_event: Option<EventType>,
    /// Only those with this outcome by what is stored: none is `sending`.
    pub outcome: Option<MessageOutcome>,
    /// Only those with this recipient.
    pub recipient: Option<SuppressedAddress>,
    /// Only those with this text in the address of a recipient.
    pub recipient_part: Option<SearchText>,
    /// Only those from an address of this domain.
    pub sender_domain: Option<DomainName<'static>>,
    /// Only those with each of these in the subject.
    pub subject_words: Vec<SearchText>,
    /// Only those accepted at this instant or after it.
    pub created_from: Option<Timestamp>,
    /// Only those accepted before this instant.
    pub created_before: Option<Timestamp>,
}

/// Text that is searched for, regardless of case.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SearchText(String);

impl SearchText {
    /// Returns what finds this text.
    pub fn new(text: &str) -> Self {
        Self(text.to_lowercase())
    }

    /// Returns true if a text has this one in it.
    pub fn is_in(&self, text: &str) -> bool {
        text.to_lowercase().contains(&self.0)
    }

    /// Returns true if the address of a recipient has this text in it; the display name does not
    /// count. An internationalised domain is found in the form that was given and as A-labels.
    pub fn is_in_address_of(&self, recipient: &str) -> bool {
        let in_brackets = recipient.trim().strip_suffix('>').and_then(|text| text.rsplit_once('<'));
        let address = in_brackets.map_or(recipient, |(_, address)| address);
        let is_in_normal_form = || {
            let normal = SuppressedAddress::of_recipient(recipient);
            normal.is_some_and(|normal| self.is_in(normal.as_str()))
        };
        self.is_in(address) || (!address.is_ascii() && is_in_normal_form())
    }
}

/// Returns true if a sender, as given, has an address of this domain, and not of one below it.
pub fn is_sent_from(domain: &DomainName<'_>, sender: &str) -> bool {
    Mailbox::parse_stored(sender).is_ok_and(|sender| sender.address().domain() == domain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_of_an_address_is_found_in_any_case_and_the_display_name_is_not_searched() {
        let given = "Éva Smith <Eva.Smith@Exämple.org>";
        for part in ["eva.s", "SMITH@", "@exämple", "EXÄMPLE.ORG", "xn--exmple-cua.org"] {
            assert!(SearchText::new(part).is_in_address_of(given), "{part}");
        }
        for part in ["éva", "smith <", "example"] {
            assert!(!SearchText::new(part).is_in_address_of(given), "{part}");
        }
        assert!(SearchText::new("ANN@").is_in_address_of("ann@example.org"));
    }

    #[test]
    fn words_are_found_in_any_case() {
        assert!(SearchText::new("GRÜSSE").is_in("Viele Grüße und grüsse"));
        assert!(!SearchText::new("invoice").is_in("in voice"));
    }

    #[test]
    fn a_sender_is_of_its_own_domain_alone() {
        let domain = DomainName::parse("example.com").unwrap();
        assert!(is_sent_from(&domain, "Ann <ann@Example.COM>"));
        for other in ["ann@mail.example.com", "ann@example.org", "example.com", ""] {
            assert!(!is_sent_from(&domain, other), "{other}");
        }
    }
}
