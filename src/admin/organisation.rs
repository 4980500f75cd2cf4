//! Organisations: added, listed, and removed with everything of theirs but their records.

use std::str::FromStr as _;

use serde::{Deserialize, Serialize};

use crate::all_nodes::OnAllNodes;
use crate::{
    Admin, OrganisationAdd, OrganisationLimit, OrganisationList, OrganisationPause,
    OrganisationRemove, OrganisationResume, OrganisationUsage, REMOVED_MARK, Refusal, Result,
    organisation_name,
};
use pillarbox_dispatch::PausedMessages;
use pillarbox_domain::id::OrganisationId;
use pillarbox_domain::message::Cancellation;
use pillarbox_domain::organisation as domain;
use pillarbox_domain::usage::{Period, first_of_month};
use pillarbox_queue::Selection;
use pillarbox_records::views::is_false;
use pillarbox_store::{Change, FIRST_WITH_RIGHTS, Store};

/// The largest limit: every sum of such numbers is one that JSON and databases know.
const MAX_LIMIT: u64 = 1_000_000_000_000;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Organisation {
    pub id: u32,
    pub name: String,
    /// True if its mail never goes to SES.
    #[serde(default, skip_serializing_if = "is_false")]
    pub test: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paused: Option<Paused>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<Limits>,
}

/// Since when an organisation is paused.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Paused {
    pub since: String,
    /// Handling of its send requests: `accepted` or `refused`.
    pub requests: String,
}

impl From<domain::Pause> for Paused {
    fn from(pause: domain::Pause) -> Self {
        Self { since: pause.since.to_string(), requests: pause.requests.as_str().to_owned() }
    }
}

/// The most recipients in each period that has a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Limits {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub per_minute: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub per_hour: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub per_day: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub per_month: Option<u64>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Organisations {
    pub organisations: Vec<Organisation>,
}

/// Data that was deleted with an organisation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct OrganisationRemoved {
    pub name: String,
    pub keys_revoked: usize,
    pub domains_removed: usize,
    pub messages_cancelled: usize,
    /// Messages whose call to the provider was under way. They are not tried again after it.
    pub calls_under_way: usize,
    /// Nodes that did not answer. The messages that they hold end when their attempt is due, and
    /// are not counted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nodes_without_answer: Vec<String>,
}

/// Handling of the send requests of a paused organisation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum SendsWhilePaused {
    #[default]
    Accept,
    Refuse,
}

/// A paused organisation, with its messages on all nodes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct OrganisationPaused {
    pub name: String,
    pub paused: Paused,
    pub messages_waiting: usize,
    /// Messages whose call to the provider was under way. Its result stands.
    pub calls_under_way: usize,
    /// End of the first message to expire, if the organisation stays paused until then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_end: Option<String>,
    /// Nodes that did not answer. They follow as soon as they reach the database, and start no call
    /// without it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nodes_without_answer: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct OrganisationResumed {
    pub name: String,
    pub messages_waiting: usize,
    /// Nodes that did not answer. They follow as soon as they reach the database.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nodes_without_answer: Vec<String>,
}

pub(super) async fn add(admin: &Admin, call: OrganisationAdd) -> Result<Organisation> {
    let name = organisation_name(&call.name)?;
    let added = if call.test {
        admin.require_no_node_before(FIRST_WITH_RIGHTS).await?;
        admin.store.add_test_organisation(name.clone()).await?
    } else {
        admin.store.add_organisation(name.clone()).await?
    };
    added.map(|added| shown(&added)).ok_or_else(|| {
        Refusal::new(format!("there is already an organisation {name}; choose another name"))
    })
}

#[expect(clippy::unnecessary_wraps, reason = "other calls may be refused")]
pub(super) fn list(admin: &Admin, _: &OrganisationList) -> Result<Organisations> {
    Ok(Organisations { organisations: admin.store.organisations().iter().map(shown).collect() })
}

/// Recipients of the messages that were accepted in a month.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UsageOfMonth {
    /// The month in UTC, such as `2026-11`.
    pub month: String,
    pub organisations: Vec<RecipientsAccepted>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecipientsAccepted {
    pub organisation: String,
    pub recipients: u64,
}

pub(super) async fn limit(admin: &Admin, call: OrganisationLimit) -> Result<Organisation> {
    let organisation = admin.organisation(&call.name)?;
    let given = [
        (Period::Minute, call.per_minute),
        (Period::Hour, call.per_hour),
        (Period::Day, call.per_day),
        (Period::Month, call.per_month),
    ];
    let mut changes = Vec::new();
    for (period, text) in given {
        match text {
            Some(text) => changes.push((period, limit_of(period, &text)?)),
            None if call.none => changes.push((period, None)),
            None => {}
        }
    }
    if changes.is_empty() {
        return Err(Refusal::new("say which limit to change, such as --per-day 10000"));
    }
    admin.require_no_node_before(FIRST_WITH_RIGHTS).await?;
    let change = move |organisation: &mut domain::Organisation| {
        for (period, limit) in &changes {
            organisation.limits.set(*period, *limit);
        }
    };
    let changed = admin.store.change_organisation(organisation.id, change).await?;
    changed.map(|changed| shown(&changed)).ok_or_else(|| Admin::gone(&organisation))
}

/// Reads a limit: a number, or `none`.
fn limit_of(period: Period, text: &str) -> Result<Option<u64>> {
    if text == "none" {
        return Ok(None);
    }
    match text.parse() {
        Ok(limit @ 1..=MAX_LIMIT) => Ok(Some(limit)),
        _ => Err(Refusal::new(format!(
            "{text:?} is not a limit per {}: give a number from 1 to {MAX_LIMIT}, or none. To stop \
             an organisation: pillarbox org pause",
            period.as_str()
        ))),
    }
}

pub(super) async fn usage(admin: &Admin, call: OrganisationUsage) -> Result<UsageOfMonth> {
    let month = match call.month {
        None => Period::Month.start(admin.clock.period_time()),
        Some(text) => first_of_month(&text)
            .filter(|_| text.len() == "2026-11".len())
            .ok_or_else(|| Refusal::new(format!("{text:?} is not a month such as 2026-11")))?,
    };
    let used = admin.store.usage_of_month(month).await?;
    let used = used.into_iter().map(|(organisation, recipients)| RecipientsAccepted {
        organisation: admin.shown(organisation),
        recipients,
    });
    let month = month.to_string()[.."2026-11".len()].to_owned();
    Ok(UsageOfMonth { month, organisations: used.collect() })
}

pub(super) async fn remove(admin: &Admin, call: OrganisationRemove) -> Result<OrganisationRemoved> {
    let name = call.name;
    let organisation = admin.organisation(&name)?;
    let keys = admin.store.api_keys();
    let domains = admin.store.domains();
    if admin.store.remove_organisation(organisation.id).await? == Change::None {
        // Another command was first.
        return Err(Refusal::new(format!("{name} has just been removed")));
    }
    let selection = Selection::of(organisation.id);
    let cancelled = admin.cancel(selection, Cancellation::OrganisationRemoved).await;
    let (cancelled, nodes_without_answer) = cancelled.map_err(|error| {
        Refusal::new(format!(
            "{name} was removed, and none of its messages is sent any more. Not all queued \
             messages are recorded as cancelled yet ({error}); the service records each of the \
             others when its turn in the queue comes"
        ))
    })?;
    Ok(OrganisationRemoved {
        name: organisation.name.as_str().to_owned(),
        keys_revoked: keys.iter().filter(|k| k.organisation == organisation.id).count(),
        domains_removed: domains.iter().filter(|d| d.organisation == organisation.id).count(),
        messages_cancelled: cancelled.cancelled,
        calls_under_way: cancelled.calls_under_way,
        nodes_without_answer,
    })
}

pub(super) async fn pause(admin: &Admin, call: OrganisationPause) -> Result<OrganisationPaused> {
    let organisation = admin.organisation(&call.name)?;
    admin.require_no_node_before(FIRST_WITH_RIGHTS).await?;
    let requests = match call.sends {
        SendsWhilePaused::Accept => domain::PausedRequests::Accepted,
        SendsWhilePaused::Refuse => domain::PausedRequests::Refused,
    };
    let now = admin.clock.now();
    // One that is paused already stays so since then.
    let set = move |one: &mut domain::Organisation| {
        let since = one.pause.map_or(now, |pause| pause.since);
        one.pause = Some(domain::Pause { since, requests });
    };
    let paused = admin.store.change_organisation(organisation.id, set).await?;
    let pause = paused.and_then(|one| one.pause).ok_or_else(|| Admin::gone(&organisation))?;
    let (messages, nodes_without_answer) = admin.follow_pauses(&organisation, "paused").await?;
    Ok(OrganisationPaused {
        name: organisation.name.as_str().to_owned(),
        paused: pause.into(),
        messages_waiting: messages.waiting,
        calls_under_way: messages.calls_under_way,
        first_end: messages.first_end.map(|end| end.to_string()),
        nodes_without_answer,
    })
}

pub(super) async fn resume(admin: &Admin, call: OrganisationResume) -> Result<OrganisationResumed> {
    let organisation = admin.organisation(&call.name)?;
    let resumed = admin.store.change_organisation(organisation.id, |one| one.pause = None).await?;
    resumed.ok_or_else(|| Admin::gone(&organisation))?;
    let (messages, nodes_without_answer) = admin.follow_pauses(&organisation, "resumed").await?;
    Ok(OrganisationResumed {
        name: organisation.name.as_str().to_owned(),
        messages_waiting: messages.waiting,
        nodes_without_answer,
    })
}

impl Admin {
    /// Has all nodes follow what was just stored for an organisation.
    async fn follow_pauses(
        &self,
        organisation: &domain::Organisation,
        done: &str,
    ) -> Result<OnAllNodes<PausedMessages>> {
        self.follow_pauses_on_all(organisation.id).await.map_err(|error| {
            Refusal::new(format!(
                "{name} is {done} in the store, but it is unknown whether all nodes know this \
                 yet ({error}); run the command again",
                name = organisation.name
            ))
        })
    }
}

fn shown(organisation: &domain::Organisation) -> Organisation {
    let domain::Organisation { id, name, kind, pause, limits } = organisation;
    let domain::Limits { per_minute, per_hour, per_day, per_month } = *limits;
    let has_limits = *limits != domain::Limits::NONE;
    Organisation {
        id: id.0,
        name: name.as_str().to_owned(),
        test: *kind == domain::OrganisationKind::Test,
        paused: pause.map(Paused::from),
        limits: has_limits.then_some(Limits { per_minute, per_hour, per_day, per_month }),
    }
}
impl Admin {
    pub(super) fn organisation(&self, name: &str) -> Result<domain::Organisation> {
        let name = organisation_name(name)?;
        self.store.organisation(&name).ok_or_else(|| {
            Refusal::new(format!(
                "there is no organisation {name}; to list the organisations: pillarbox org list; \
                 to add it: pillarbox org add {name}"
            ))
        })
    }

    /// Filters these items by organisation; returns all if none is named.
    pub(super) fn only<T>(
        &self,
        organisation: Option<&str>,
        mut all: Vec<T>,
        whose: impl Fn(&T) -> OrganisationId,
    ) -> Result<Vec<T>> {
        if let Some(name) = organisation {
            let only = self.organisation(name)?.id;
            all.retain(|one| whose(one) == only);
        }
        Ok(all)
    }

    /// Refusal if an organisation was removed between two reads.
    pub(super) fn gone(organisation: &domain::Organisation) -> Refusal {
        Refusal::new(format!("the organisation {} was removed meanwhile", organisation.name))
    }

    /// The number of the organisation with this name, or of a removed one as it is listed.
    pub(super) fn organisation_or_removed(&self, name: &str) -> Result<OrganisationId> {
        match name.strip_prefix(REMOVED_MARK).map(u32::from_str) {
            Some(Ok(number)) => Ok(OrganisationId(number)),
            Some(Err(_)) | None => Ok(self.organisation(name)?.id),
        }
    }

    /// The name of an organisation, or the number of one that was removed.
    pub(super) fn shown(&self, id: OrganisationId) -> String {
        shown_name(&self.store, id)
    }
}

/// The name of an organisation, or the number of one that was removed.
pub fn shown_name(store: &Store, id: OrganisationId) -> String {
    store.organisation_by_id(id).map_or_else(
        || format!("{REMOVED_MARK}{}", id.0),
        |organisation| organisation.name.as_str().to_owned(),
    )
}
