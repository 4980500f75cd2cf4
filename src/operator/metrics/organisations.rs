//! What is counted of each organisation, within a bound on the number of series.

use std::collections::BTreeMap;
use std::fmt;

use crate::domain::id::OrganisationId;
use crate::metrics::organisations::OrganisationCounts;
use crate::operator::Parts;
use crate::operator::families::Families;
use crate::operator::metrics::label;

/// How many organisations have counts of their own: those that were added first. The others are
/// counted together, so that the number of series stays bounded.
const MAX_ORGANISATIONS: usize = 200;
/// The others' name. No organisation can have it.
const OTHERS: &str = "(others)";

/// Writes what is counted of each organisation.
pub(super) fn write(parts: &Parts, to: &mut Families<'_>) -> fmt::Result {
    let accounts = accounts(parts);
    let mut each = |name: &str, help: &str, value: fn(&OrganisationCounts) -> u64| {
        let accounts = accounts.iter();
        let values = accounts.map(|one| ([label("organisation", &one.name)], value(&one.account)));
        to.counters(name, help, values)
    };
    each(
        "pillarbox_organisation_accepted_messages_total",
        "Messages that pillarbox accepted.",
        |account| account.accepted,
    )?;
    each(
        "pillarbox_organisation_sent_messages_total",
        "Messages that the provider accepted.",
        |account| account.sent,
    )?;
    each(
        "pillarbox_organisation_sent_recipients_total",
        "Recipients of the messages that the provider accepted.",
        |account| account.sent_recipients,
    )?;
    each(
        "pillarbox_organisation_failed_messages_total",
        "Failed messages, without those that an operator cancelled.",
        |account| account.failed,
    )?;
    each(
        "pillarbox_organisation_cancelled_messages_total",
        "Messages that an operator cancelled.",
        |account| account.cancelled,
    )?;
    each(
        "pillarbox_organisation_suppressed_messages_total",
        "Messages not sent because a recipient became suppressed.",
        |account| account.suppressed,
    )?;
    each(
        "pillarbox_organisation_hard_bounced_recipients_total",
        "Recipients with a permanent bounce.",
        |account| account.hard_bounces,
    )?;
    let events = accounts.iter().flat_map(|one| {
        let organisation = label("organisation", &one.name);
        types(&one.account).map(|(kind, n)| ([organisation.clone(), label("type", kind)], n))
    });
    to.counters(
        "pillarbox_organisation_events_total",
        "Delivery events, repeats not counted.",
        events,
    )
}

fn types(account: &OrganisationCounts) -> [(&'static str, u64); 5] {
    [
        ("delivery", account.deliveries),
        ("bounce", account.bounces),
        ("complaint", account.complaints),
        ("reject", account.rejects),
        ("delivery_delay", account.delivery_delays),
    ]
}

/// An organisation's account, or that of the others together, which have no number.
pub(in crate::operator) struct Named {
    pub(in crate::operator) id: Option<OrganisationId>,
    pub(in crate::operator) name: String,
    pub(in crate::operator) account: OrganisationCounts,
}

/// The organisations' accounts by name, with those beyond the limit as one. An organisation that
/// nothing was counted of has one too, so that its first message shows as an increase.
pub(in crate::operator) fn accounts(parts: &Parts) -> Vec<Named> {
    let mut accounts: BTreeMap<_, _> = parts
        .store
        .organisations()
        .into_iter()
        .map(|organisation| (organisation.id, OrganisationCounts::default()))
        .collect();
    accounts.extend(parts.store.counts().organisations.get());
    let mut others: Option<OrganisationCounts> = None;
    let mut named = Vec::new();
    for (organisation, account) in accounts {
        if named.len() < MAX_ORGANISATIONS {
            let name = parts.organisation_name(organisation);
            named.push(Named { id: Some(organisation), name, account });
        } else {
            others.get_or_insert_default().add(&account);
        }
    }
    let others = others.map(|account| Named { id: None, name: OTHERS.to_owned(), account });
    named.extend(others);
    named
}
