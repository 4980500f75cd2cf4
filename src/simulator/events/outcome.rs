//! Recipients grouped as SES reports them: those with one fate at one domain together.
//!
//! Must not know documents or times.

use super::super::address::RecipientFate;
use super::super::caught::{CaughtMessage, RecipientOutcome};

/// One recipient in both of its forms.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Recipient<'a> {
    /// The bare address, as a mail server names it.
    pub(super) address: &'a str,
    /// As the request gave it, display name included.
    pub(super) given: &'a str,
    fate: RecipientFate,
}

/// What a group's first event says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum GroupFate {
    Delivered,
    Bounced,
    Suppressed,
}

impl GroupFate {
    fn of(fate: RecipientFate) -> Self {
        match fate {
            RecipientFate::Delivered | RecipientFate::Complained | RecipientFate::OutOfOffice => {
                Self::Delivered
            }
            RecipientFate::Bounced => Self::Bounced,
            RecipientFate::Suppressed => Self::Suppressed,
        }
    }
}

/// Recipients that one event names. There is at least one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Group<'a> {
    pub(super) fate: GroupFate,
    /// As the first recipient writes it.
    pub(super) domain: &'a str,
    pub(super) recipients: Vec<Recipient<'a>>,
}

impl Group<'_> {
    /// Those of the group that complain about what they got.
    pub(super) fn complaining(&self) -> Option<Self> {
        let complains = |r: &&Recipient<'_>| r.fate == RecipientFate::Complained;
        let recipients: Vec<_> = self.recipients.iter().filter(complains).copied().collect();
        (!recipients.is_empty()).then_some(Self { recipients, ..*self })
    }
}

/// The groups in the order of their first recipients; an address given twice is named once.
pub(super) fn groups(message: &CaughtMessage) -> Vec<Group<'_>> {
    let given = message.to.iter().chain(&message.cc).chain(&message.bcc);
    let mut groups: Vec<Group<'_>> = Vec::new();
    for (RecipientOutcome { address, fate }, given) in message.recipients.iter().zip(given) {
        let recipient = Recipient { address, given, fate: *fate };
        let domain = address.rsplit_once('@').map_or(address.as_str(), |(_, domain)| domain);
        let fate = GroupFate::of(*fate);
        let same = |g: &&mut Group<'_>| g.fate == fate && g.domain.eq_ignore_ascii_case(domain);
        let Some(group) = groups.iter_mut().find(same) else {
            groups.push(Group { fate, domain, recipients: vec![recipient] });
            continue;
        };
        if !group.recipients.iter().any(|known| known.address.eq_ignore_ascii_case(address)) {
            group.recipients.push(recipient);
        }
    }
    groups
}
