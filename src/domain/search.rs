//! Search: how an operator finds messages by a part of what their records say.

use crate::domain::mailbox::{DomainName, Mailbox};
use crate::domain::suppression::SuppressedAddress;

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
