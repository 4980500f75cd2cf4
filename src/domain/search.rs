//! Search: finds messages for an operator by a part of their records.

use std::ops::RangeInclusive;

use crate::event::EventType;
use crate::id::{MessageId, OrganisationId};
use crate::mailbox::{DomainName, Mailbox};
use crate::message::{Message, State, Status};
use crate::outcome::MessageOutcome;
use crate::suppression::SuppressedAddress;
use crate::time::Timestamp;

/// Conditions for messages to list. A field that is not given excludes nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MessageFilter {
    /// Only those accepted before this one.
    pub before: Option<MessageId>,
    /// Only those with an id from the first to the last of these.
    pub ids: Option<RangeInclusive<MessageId>>,
    /// Only those accepted after this one. A page then has the oldest of them.
    pub after: Option<MessageId>,
    /// Only messages of this organisation.
    pub organisation: Option<OrganisationId>,
    /// Only those with this stored status.
    pub status: Option<Status>,
    /// Only messages whose latest event has this type.
    pub last_event: Option<EventType>,
    /// Only those with this outcome by the stored state: none is `sending`.
    pub outcome: Option<MessageOutcome>,
    /// Only those with this recipient.
    pub recipient: Option<SuppressedAddress>,
    /// Only those with this text in the address of a recipient.
    pub recipient_part: Option<SearchText>,
    /// Only those from an address of this domain.
    pub sender_domain: Option<DomainName<'static>>,
    /// Only those with each of these in the subject.
    pub subject_words: Vec<SearchText>,
    /// Only those with this text in any field that is searched.
    pub any_field: Option<AnyField>,
    /// Only those accepted at this instant or after it.
    pub created_from: Option<Timestamp>,
    /// Only those accepted before this instant.
    pub created_before: Option<Timestamp>,
}

impl MessageFilter {
    /// Returns true if every message that it finds is pending.
    pub fn finds_only_pending(&self) -> bool {
        self.status == Some(Status::Queued) || self.outcome == Some(MessageOutcome::Queued)
    }

    /// Returns true if a message meets every condition.
    pub fn matches(&self, message: &Message) -> bool {
        self.organisation.is_none_or(|organisation| organisation == message.organisation)
            && self.status.is_none_or(|status| status == message.status())
            && self.last_event.is_none_or(|wanted| is_last_event(wanted, message))
            && self.outcome.is_none_or(|wanted| has_outcome(wanted, message))
            && self.created_from.is_none_or(|from| from <= message.created_at)
            && self.created_before.is_none_or(|before| message.created_at < before)
            && self.recipient.as_ref().is_none_or(|wanted| is_recipient(wanted, message))
            && self.sender_domain.as_ref().is_none_or(|domain| is_sent_from(domain, &message.from))
            && self.subject_words.iter().all(|word| word.is_word_of(&message.subject))
            && self.recipient_part.as_ref().is_none_or(|part| has_in_recipient(part, message))
            && self.any_field.as_ref().is_none_or(|text| text.is_in(message))
    }
}

fn has_outcome(wanted: MessageOutcome, message: &Message) -> bool {
    MessageOutcome::of_message(message, message.status()) == wanted
}

fn has_in_recipient(part: &SearchText, message: &Message) -> bool {
    message.recipients.iter().any(|recipient| part.is_in_address_of(recipient))
}

fn is_last_event(wanted: EventType, message: &Message) -> bool {
    message.last_event.is_some_and(|last| last.event_type == wanted)
}

fn is_recipient(wanted: &SuppressedAddress, message: &Message) -> bool {
    let mut recipients = message.recipients.iter();
    recipients.any(|given| SuppressedAddress::of_recipient(given).as_ref() == Some(wanted))
}

/// Text that is searched for, regardless of case.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SearchText(String);

impl SearchText {
    /// Returns a search for this text.
    pub fn new(text: &str) -> Self {
        Self(text.to_lowercase())
    }

    /// Returns true if a text has this one in it.
    pub fn is_in(&self, text: &str) -> bool {
        self.is_in_where(text, |_, _| true)
    }

    /// Returns true if a text has this one in it, and not as a part of a longer number: `7` is in
    /// `Order 7`, and not in `Order 71`.
    pub fn is_word_of(&self, text: &str) -> bool {
        let is_digit = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_digit);
        let (first, last) = (self.0.as_bytes().first(), self.0.as_bytes().last());
        self.is_in_where(text, |before, after| {
            !(is_digit(first) && is_digit(before.last())
                || is_digit(last) && is_digit(after.first()))
        })
    }

    fn is_number(&self) -> bool {
        self.0.bytes().all(|byte| byte.is_ascii_digit())
    }

    /// Returns true if a text has this one in it, at a place where what is before and what is after
    /// it are as wanted.
    fn is_in_where(&self, text: &str, is_wanted: impl Fn(&[u8], &[u8]) -> bool) -> bool {
        let wanted = self.0.as_bytes();
        let Some(first) = wanted.first() else { return true };
        if !(self.0.is_ascii() && text.is_ascii()) {
            let text = text.to_lowercase();
            let mut places = text.match_indices(&self.0);
            return places.any(|(start, found)| {
                let (before, rest) = text.as_bytes().split_at(start);
                is_wanted(before, &rest[found.len()..])
            });
        }
        // Without an allocation: a search checks very many texts.
        let text = text.as_bytes();
        let Some(last_start) = text.len().checked_sub(wanted.len()) else { return false };
        memchr::memchr2_iter(*first, first.to_ascii_uppercase(), &text[..=last_start]).any(
            |start| {
                let (found, after) = text[start..].split_at(wanted.len());
                found.eq_ignore_ascii_case(wanted) && is_wanted(&text[..start], after)
            },
        )
    }

    /// Returns true if the address of a recipient has this text in it; the display name does not
    /// count. An internationalised domain is found in the form that was given and as A-labels. A
    /// number is found whole, as in a subject.
    pub fn is_in_address_of(&self, recipient: &str) -> bool {
        let is_in =
            |text: &str| if self.is_number() { self.is_word_of(text) } else { self.is_in(text) };
        let in_brackets = recipient.trim().strip_suffix('>').and_then(|text| text.rsplit_once('<'));
        let address = in_brackets.map_or(recipient, |(_, address)| address);
        let is_in_normal_form = || {
            let normal = SuppressedAddress::of_recipient(recipient);
            normal.is_some_and(|normal| is_in(normal.as_str()))
        };
        is_in(address) || (!address.is_ascii() && is_in_normal_form())
    }
}

/// Text that is searched for in each field that people search by: the message's id, the provider's
/// id, recipients, the sender's domain, the subject and the metadata.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AnyField {
    whole: SearchText,
    /// Words, each of which the subject must have.
    words: Vec<SearchText>,
    /// End of an id: a number, and the bits of it that count.
    id_end: Option<(u128, u128)>,
    sender_domain: Option<DomainName<'static>>,
    /// Name and value of metadata.
    metadata: Option<(String, String)>,
}

/// Smallest number of characters of the end of an id that a search accepts.
const FEWEST_OF_ID_END: usize = 8;

impl AnyField {
    /// Returns a search for a text.
    pub fn new(text: &str) -> Self {
        let text = text.trim();
        let domain = DomainName::parse(text).ok().filter(|_| text.contains('.'));
        let metadata = text.split_once(':');
        Self {
            whole: SearchText::new(text),
            words: text.split_whitespace().map(SearchText::new).collect(),
            id_end: id_end(text),
            sender_domain: domain.map(DomainName::into_owned),
            metadata: metadata.map(|(name, value)| (name.trim().into(), value.trim().into())),
        }
    }

    /// Returns true if a field of the message has the text.
    pub fn is_in(&self, message: &Message) -> bool {
        self.id_end.is_some_and(|(end, bits)| message.id.as_number() & bits == end)
            || message.recipients.iter().any(|one| self.whole.is_in_address_of(one))
            || self.words.iter().all(|word| word.is_word_of(&message.subject))
            || self.is_sender_domain(&message.from)
            || self.is_metadata(message)
            || matches!(&message.state, State::Sent { ses_message_id, .. }
                if ses_message_id.len() >= self.whole.0.len() && self.whole.0.len() > FEWEST_OF_ID_END
                    && self.whole.is_in(ses_message_id))
    }

    fn is_sender_domain(&self, from: &str) -> bool {
        let Some(domain) = &self.sender_domain else { return false };
        // Reading an address takes much longer than seeing that it cannot be the one.
        (self.whole.is_in(from) || !from.is_ascii()) && is_sent_from(domain, from)
    }

    fn is_metadata(&self, message: &Message) -> bool {
        let Some((name, value)) = &self.metadata else { return false };
        message.metadata.as_ref().is_some_and(|all| all.get(name) == Some(value))
    }
}

/// Reads the end of an id, if it is long enough.
fn id_end(text: &str) -> Option<(u128, u128)> {
    let digits: String = text.chars().filter(|one| *one != '-').collect();
    if !(FEWEST_OF_ID_END..32).contains(&digits.len()) {
        return None;
    }
    let end = u128::from_str_radix(&digits, 16).ok().filter(|_| !digits.starts_with('+'))?;
    Some((end, (1 << (4 * digits.len())) - 1))
}

/// Returns true if a sender, as given, has an address of this domain, and not of one below it.
pub fn is_sent_from(domain: &DomainName<'_>, sender: &str) -> bool {
    Mailbox::parse_stored(sender).is_ok_and(|sender| sender.address().domain() == domain)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::LastEvent;

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
        assert!(SearchText::new("kelvin").is_in("0 \u{212a}elvin"), "U+212A is a K");
    }

    #[test]
    fn a_number_is_found_whole_in_an_address_and_the_beginning_of_a_name_is_found() {
        let found = |text: &str| SearchText::new(text).is_in_address_of("user190210@example.org");
        assert!(["190210", "user19", "R1", "10@"].map(found).iter().all(|found| *found));
        assert!(["90210", "19", "1902"].map(found).iter().all(|found| !found));
    }

    fn message() -> Message {
        Message {
            id: "01a1fd35-1c2b-7abc-9def-0123456789ab".parse().unwrap(),
            organisation: OrganisationId(1),
            created_at: Timestamp::from_unix_millis(5),
            from: "Shop <shop@Mail.Example.com>".to_owned(),
            recipients: vec!["Ann <ann@example.org>".to_owned()],
            subject: "Your invoice 1815: paid".to_owned(),
            metadata: Some([("order".to_owned(), "18:15".to_owned())].into()),
            terms: crate::message_terms::Terms::NONE,
            attempts: 1,
            state: State::Sent {
                ses_message_id: "0100018f3a2b1c4d-11111111-2222-000000".to_owned(),
                sent_at: Timestamp::from_unix_millis(0),
            },
            last_event: None,
            calling: None,
        }
    }

    #[test]
    fn one_text_finds_a_message_by_each_of_its_fields() {
        let message = message();
        for text in [
            "456789ab",
            "0123456789AB",
            "9def-0123456789ab",
            "ANN@",
            "example.org",
            "mail.example.com",
            "1815 invoice",
            "order:18:15",
            "0100018F3A2B1C4D-1111",
            " your invoice ",
        ] {
            assert!(AnyField::new(text).is_in(&message), "{text}");
        }
        for text in
            ["56789ab0", "6789ab", "bob@", "example.com", "1816 invoice", "order:18", "0200018f"]
        {
            assert!(!AnyField::new(text).is_in(&message), "{text}");
        }
    }

    #[test]
    fn an_internationalised_sender_domain_is_found_in_both_forms() {
        let message = Message { from: "ann@b\u{fc}cher.example".to_owned(), ..message() };
        for text in ["b\u{fc}cher.example", "xn--bcher-kva.example"] {
            assert!(AnyField::new(text).is_in(&message), "{text}");
        }
    }

    #[test]
    fn a_message_meets_every_condition_of_a_filter() {
        let mut message = message();
        let occurred_at = Timestamp::from_unix_millis(0);
        message.last_event = Some(LastEvent { occurred_at, event_type: EventType::Bounce });
        let none = MessageFilter::default;
        let address = |text| SuppressedAddress::parse_stored(text).ok();
        let domain = |text| DomainName::parse(text).ok();
        let at = |millis| Some(Timestamp::from_unix_millis(millis));
        let text = |text| Some(SearchText::new(text));
        let any = |text| Some(AnyField::new(text));
        let created_at = message.created_at.unix_millis();
        for (met, unmet) in [
            (
                MessageFilter { organisation: Some(OrganisationId(1)), ..none() },
                MessageFilter { organisation: Some(OrganisationId(2)), ..none() },
            ),
            (
                MessageFilter { status: Some(Status::Sent), ..none() },
                MessageFilter { status: Some(Status::Queued), ..none() },
            ),
            (
                MessageFilter { last_event: Some(EventType::Bounce), ..none() },
                MessageFilter { last_event: Some(EventType::Delivery), ..none() },
            ),
            (
                MessageFilter { outcome: Some(MessageOutcome::Bounced), ..none() },
                MessageFilter { outcome: Some(MessageOutcome::Sent), ..none() },
            ),
            (
                MessageFilter { created_from: at(created_at), ..none() },
                MessageFilter { created_from: at(created_at + 1), ..none() },
            ),
            (
                MessageFilter { created_before: at(created_at + 1), ..none() },
                MessageFilter { created_before: at(created_at), ..none() },
            ),
            (
                MessageFilter { recipient: address("Ann@example.org"), ..none() },
                MessageFilter { recipient: address("bob@example.org"), ..none() },
            ),
            (
                MessageFilter { sender_domain: domain("mail.example.com"), ..none() },
                MessageFilter { sender_domain: domain("example.com"), ..none() },
            ),
            (
                MessageFilter { subject_words: vec![SearchText::new("invoice")], ..none() },
                MessageFilter {
                    subject_words: vec![SearchText::new("invoice"), SearchText::new("1816")],
                    ..none()
                },
            ),
            (
                MessageFilter { recipient_part: text("ann@"), ..none() },
                MessageFilter { recipient_part: text("bob@"), ..none() },
            ),
            (
                MessageFilter { any_field: any("order:18:15"), ..none() },
                MessageFilter { any_field: any("order:18:16"), ..none() },
            ),
        ] {
            assert!(met.matches(&message), "{met:?}");
            assert!(!unmet.matches(&message), "{unmet:?}");
        }
        assert!(none().matches(&message));
        for (filter, only_pending) in [
            (MessageFilter { status: Some(Status::Queued), ..none() }, true),
            (MessageFilter { outcome: Some(MessageOutcome::Queued), ..none() }, true),
            (MessageFilter { status: Some(Status::Failed), ..none() }, false),
            (none(), false),
        ] {
            assert_eq!(filter.finds_only_pending(), only_pending, "{filter:?}");
        }
    }

    #[test]
    fn a_number_is_not_found_within_a_longer_one() {
        for text in ["7", "Order 7", "order", "#7,", "7, p"] {
            assert!(
                SearchText::new(text).is_word_of("17 of 71: Order #7, paid for Order 7"),
                "{text}"
            );
        }
        for text in ["7", "71", "17", "r7"] {
            assert!(!SearchText::new(text).is_word_of("Order 171, Grüße 717"), "{text}");
        }
        assert!(SearchText::new("7").is_word_of("Größe 171, 7"));
    }

    #[test]
    fn words_are_found_in_any_case() {
        assert!(SearchText::new("GRÜSSE").is_in("Viele Grüße und grüsse"));
        assert!(SearchText::new("\u{e9}va").is_in("\u{c9}VA"));
        assert!(!SearchText::new("invoice").is_in("in voice"));
        assert!(SearchText::new("").is_in("anything"));
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
