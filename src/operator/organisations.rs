//! Organisations and sender domains on the page: what the commands list, a page at a time.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::Parts;
use pillarbox_admin::domain::Domain;
use pillarbox_admin::key::Key;
use pillarbox_admin::organisation::Paused;
use pillarbox_admin::{Admin, shown_name};
use pillarbox_domain::id::OrganisationId;
use pillarbox_domain::organisation::OrganisationKind;
use pillarbox_domain::time::Timestamp;
use pillarbox_domain::usage::Period;
use pillarbox_store::ListError;

/// The most organisations in one answer.
const MAX_ORGANISATIONS: usize = 100;
/// The most domains of an organisation that are shown with it.
const MAX_DOMAINS_SHOWN: usize = 20;
/// The most API keys of an organisation that are shown with it.
const MAX_KEYS_SHOWN: usize = 20;
/// The most domains in one answer.
const MAX_DOMAINS: usize = 200;

/// A page of organisations.
#[derive(Debug, Serialize)]
pub(super) struct OrganisationPage {
    /// Organisations in ascending order of their number.
    organisations: Vec<Organisation>,
    /// Value of `after` for the next page, if there is one.
    next: Option<u32>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Organisation {
    id: u32,
    name: String,
    /// True if its mail never goes to SES.
    test: bool,
    paused: Option<Paused>,
    /// Its limits, with what is used of them.
    limits: Vec<LimitInUse>,
    /// Number of its API keys.
    key_count: usize,
    /// The first of them.
    keys: Vec<Key>,
    /// Last use of any of them; `None` if none was used.
    last_used_at: Option<String>,
    /// Number of its sender domains.
    domain_count: usize,
    /// The first of them.
    domains: Vec<Domain>,
}

/// Limit of an organisation.
#[derive(Debug, Serialize)]
struct LimitInUse {
    period: &'static str,
    limit: u64,
    used: u64,
}

/// A page of sender domains.
#[derive(Debug, Serialize)]
pub(super) struct DomainPage {
    /// By organisation, then by name.
    domains: Vec<Domain>,
    /// Value of `after` for the next page, if there is one.
    next: Option<String>,
}

/// Returns organisations with what there is to know of them, that of a name or those after a number.
pub(super) async fn organisations(
    parts: &Parts,
    admin: &Admin,
    only: Option<&str>,
    after: Option<u32>,
) -> Result<OrganisationPage, ListError> {
    let mut keys = BTreeMap::<OrganisationId, (Vec<_>, Option<Timestamp>)>::new();
    for key in parts.store.api_keys() {
        let (all, used) = keys.entry(key.organisation).or_default();
        *used = (*used).max(parts.store.key_last_used(key.id));
        all.push(key);
    }
    let mut domains = BTreeMap::<OrganisationId, Vec<_>>::new();
    for domain in parts.store.domains() {
        domains.entry(domain.organisation).or_default().push(domain);
    }
    let mut all = parts.store.organisations();
    all.sort_by_key(|organisation| organisation.id.0);
    all.retain(|organisation| {
        only.is_none_or(|only| organisation.name.as_str() == only)
            && after.is_none_or(|after| organisation.id.0 > after)
    });
    let is_last = all.len() <= MAX_ORGANISATIONS;
    all.truncate(MAX_ORGANISATIONS);
    let next = all.last().filter(|_| !is_last).map(|last| last.id.0);
    let ids: Vec<_> = all.iter().map(|organisation| organisation.id).collect();
    let usage = parts.store.usage(&ids, parts.clock.period_time()).await?;
    let in_use =
        |(period, used, limit): (Period, _, _)| LimitInUse { period: period.as_str(), limit, used };
    let shown = all.into_iter().zip(usage).map(|(organisation, usage)| {
        let id = organisation.id;
        let (keys, used) = keys.remove(&id).unwrap_or_default();
        let domains = domains.remove(&id).unwrap_or_default();
        let first = domains.iter().take(MAX_DOMAINS_SHOWN);
        Organisation {
            id: id.0,
            name: organisation.name.as_str().to_owned(),
            test: organisation.kind == OrganisationKind::Test,
            paused: organisation.pause.map(Paused::from),
            limits: usage.within(&organisation.limits).map(in_use).collect(),
            key_count: keys.len(),
            keys: keys.iter().take(MAX_KEYS_SHOWN).map(|key| admin.key(key)).collect(),
            last_used_at: used.map(|at| at.to_string()),
            domain_count: domains.len(),
            domains: first.map(|domain| admin.domain(domain)).collect(),
        }
    });
    Ok(OrganisationPage { organisations: shown.collect(), next })
}

/// Returns sender domains, of one organisation if a name is given, those after a place.
pub(super) fn domains(
    parts: &Parts,
    admin: &Admin,
    organisation: Option<&str>,
    after: Option<&str>,
) -> DomainPage {
    let place = |number: OrganisationId, name: &str| (number.0, name.to_owned());
    let after = after.and_then(|text| {
        let (number, name) = text.split_once('/')?;
        Some((number.parse().ok()?, name.to_owned()))
    });
    let mut all = parts.store.domains();
    all.retain(|domain| {
        let here = place(domain.organisation, &domain.name);
        let is_its = |name| shown_name(&parts.store, domain.organisation) == name;
        after.as_ref().is_none_or(|after| here > *after) && organisation.is_none_or(is_its)
    });
    all.sort_by_key(|domain| place(domain.organisation, &domain.name));
    let is_last = all.len() <= MAX_DOMAINS;
    all.truncate(MAX_DOMAINS);
    let next = all.last().filter(|_| !is_last);
    DomainPage {
        next: next.map(|last| format!("{}/{}", last.organisation.0, last.name)),
        domains: all.iter().map(|domain| admin.domain(domain)).collect(),
    }
}
