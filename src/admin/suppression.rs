//! Suppressions by the operator's hand: one by one, from a list of many rows, and on the SES
//! account's own list.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use crate::{
    Admin, MAX_PAGE, Refusal, Result, SuppressionAdd, SuppressionClearAtSes, SuppressionImport,
    SuppressionList, SuppressionRemove, UNREADABLE,
};
use pillarbox_domain::id::OrganisationId;
use pillarbox_domain::mailbox::MailboxError;
use pillarbox_domain::search::SearchText;
use pillarbox_domain::suppression::{self as domain, SuppressedAddress, SuppressionReason};
use pillarbox_domain::time::Timestamp;
use pillarbox_ses::account::Removal;
use pillarbox_store::Change;

/// The most addresses that one call names; at their full length they fit into a call.
pub const MAX_ADDRESSES: usize = 1_000;
/// The most suppressions that one call imports: few enough that their commit, which acceptances
/// share, stays short.
pub const MAX_IMPORT_ROWS: usize = 500;
/// The most rows that one call of a search reads.
const MAX_LOOKED_AT: usize = 20 * MAX_PAGE;

/// For whom an address is suppressed.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Scope {
    All,
    Organisation(String),
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SuppressionChanges {
    pub addresses: Vec<SuppressionChange>,
}

/// Result of a change to one address.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SuppressionChange {
    /// The address in the form in which it is compared.
    pub address: String,
    pub outcome: SuppressionOutcome,
    /// Result on the SES account's own list, if that was requested.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at_ses: Option<AtSes>,
}

/// Change made to an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum SuppressionOutcome {
    Added,
    /// It was suppressed before; that entry stays.
    AlreadyThere,
    Removed,
    NotThere,
    /// It is suppressed for all organisations, and stays so.
    StillForAll,
}

/// Result for an address on the SES account's own suppression list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum AtSes {
    Cleared,
    NotThere,
    Failed { message: String },
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Suppressions {
    /// Those for all organisations first, then by organisation; by address.
    pub suppressions: Vec<Suppression>,
    pub next: Option<SuppressionCursor>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Suppression {
    /// The name of the organisation; `None` for all of them.
    pub organisation: Option<String>,
    pub address: String,
    /// `bounce`, `complaint`, `manual` or [`UNREADABLE`].
    pub reason: String,
    /// Time of the suppression; empty if it cannot be read.
    pub since: String,
    pub message: Option<String>,
}

/// A place in the list of suppressions.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SuppressionCursor {
    pub organisation: Option<u32>,
    pub address: String,
}

/// A row of a list of suppressions, with its texts as they were given.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ImportRow {
    pub scope: Scope,
    pub address: String,
    /// Reason; an operator's decision if none is given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Time of the suppression; now if it is not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// Handling of the good rows of a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ImportMode {
    /// They are taken in, in one transaction.
    Apply,
    /// Nothing: the list is only checked.
    Check,
}

/// Result of an import, over the rows of a list.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SuppressionsImported {
    /// Number of addresses that are suppressed from now on.
    pub added: usize,
    /// Number of addresses that were suppressed before; those entries stay.
    pub already_there: usize,
    pub refused: Vec<RefusedRow>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefusedRow {
    /// Its position in the request, from 0 on.
    pub row: usize,
    pub rule: String,
}

pub(super) async fn add(admin: &Admin, call: SuppressionAdd) -> Result<SuppressionChanges> {
    let organisation = admin.existing(&call.scope)?;
    let mut addresses = Vec::new();
    for address in parse_all(&call.addresses, SuppressedAddress::parse)? {
        let suppression = domain::Suppression {
            address: address.clone(),
            reason: SuppressionReason::Manual,
            since: admin.clock.now(),
            cause: None,
        };
        let outcome = match admin.store.suppress(organisation, suppression).await? {
            Change::Made => SuppressionOutcome::Added,
            Change::None => SuppressionOutcome::AlreadyThere,
        };
        addresses.push(change_of(&address, outcome));
    }
    Ok(SuppressionChanges { addresses })
}

pub(super) async fn remove(admin: &Admin, call: SuppressionRemove) -> Result<SuppressionChanges> {
    let organisation = admin.scope(&call.scope)?;
    let mut addresses = Vec::new();
    // One of an earlier version may be refused today, and can be removed all the same.
    for address in parse_all(&call.addresses, SuppressedAddress::parse_stored)? {
        let change = admin.store.unsuppress(organisation, address.clone()).await?;
        let for_all = match organisation {
            Some(organisation) => admin.store.is_suppressed(organisation, &address).await?,
            None => false,
        };
        let outcome = match change {
            // The operator must not take it for removed.
            _ if for_all => SuppressionOutcome::StillForAll,
            Change::Made => SuppressionOutcome::Removed,
            Change::None => SuppressionOutcome::NotThere,
        };
        addresses.push(change_of(&address, outcome));
    }
    Ok(SuppressionChanges { addresses })
}

pub(super) async fn list(admin: &Admin, call: SuppressionList) -> Result<Suppressions> {
    let only = call.scope.as_ref().map(|scope| admin.scope(scope)).transpose()?;
    let after = call.after.as_ref().map(|after| {
        (after.organisation.map(OrganisationId), SuppressedAddress::from_stored(&after.address))
    });
    // Before the first address of the scope.
    let mut start = after.or_else(|| only.map(|it| (it, SuppressedAddress::from_stored(""))));
    let search = call.search.as_deref().map(SearchText::new);
    let is_wanted = |scope: Option<OrganisationId>, address: &SuppressedAddress| {
        only.is_none_or(|only| only == scope)
            && search.as_ref().is_none_or(|text| text.is_in(address.as_str()))
    };
    let mut looked_at = 0;
    // A search reads several pages, until it has found something or reached its limit.
    let (page, next) = loop {
        let from = start.as_ref().map(|(scope, address)| (*scope, address));
        let mut page = admin.store.suppressions(from, MAX_PAGE).await?;
        let next = page.next.take().filter(|(scope, _)| only.is_none_or(|only| only == *scope));
        page.suppressions.retain(|(scope, one)| is_wanted(*scope, &one.address));
        page.damaged.retain(|(scope, address)| is_wanted(*scope, address));
        looked_at += MAX_PAGE;
        let has_found = !(page.suppressions.is_empty() && page.damaged.is_empty());
        if next.is_none() || has_found || looked_at >= MAX_LOOKED_AT {
            break (page, next);
        }
        start = next;
    };
    let next = next.map(|(scope, address)| SuppressionCursor {
        organisation: scope.map(|organisation| organisation.0),
        address: address.as_str().to_owned(),
    });
    let whole = page.suppressions.iter();
    let whole =
        whole.map(|(scope, one)| (*scope, &one.address, admin.shown_suppression(*scope, one)));
    let damaged = page.damaged.iter().map(|(scope, address)| {
        let shown = Suppression {
            organisation: scope.map(|number| admin.shown(number)),
            address: address.to_string(),
            reason: UNREADABLE.to_owned(),
            ..Suppression::default()
        };
        (*scope, address, shown)
    });
    let mut rows: Vec<_> = whole.chain(damaged).collect();
    rows.sort_by_key(|(scope, address, _)| (*scope, *address));
    let suppressions = rows.into_iter().map(|(_, _, shown)| shown).collect();
    Ok(Suppressions { suppressions, next })
}

pub(super) async fn clear_at_ses(admin: &Admin, call: SuppressionClearAtSes) -> Result<AtSes> {
    let address = parse(&call.address, SuppressedAddress::parse_stored)?;
    let ses = admin.ses("start the service and clear the address then")?;
    Ok(match ses.unsuppress(&address).await {
        Ok(Removal::Removed) => AtSes::Cleared,
        Ok(Removal::NotThere) => AtSes::NotThere,
        Err(error) => AtSes::Failed { message: error.to_string() },
    })
}

pub(super) async fn import(admin: &Admin, call: SuppressionImport) -> Result<SuppressionsImported> {
    if call.rows.len() > MAX_IMPORT_ROWS {
        return Err(Refusal::new(format!(
            "one request takes at most {MAX_IMPORT_ROWS} rows; send them in parts"
        )));
    }
    let now = admin.clock.now();
    // Each scope is resolved once.
    let mut scopes = HashMap::<_, Result<Option<OrganisationId>, String>>::new();
    let mut good = Vec::with_capacity(call.rows.len());
    let mut imported = SuppressionsImported::default();
    for (position, row) in call.rows.iter().enumerate() {
        let scope = scopes
            .entry(&row.scope)
            .or_insert_with(|| admin.existing(&row.scope).map_err(|refusal| refusal.message));
        match scope.clone().and_then(|scope| Ok((scope, suppression(row, now)?))) {
            Ok(suppression) => good.push(suppression),
            Err(rule) => imported.refused.push(RefusedRow { row: position, rule }),
        }
    }
    if call.mode == ImportMode::Apply && !good.is_empty() {
        for change in admin.store.suppress_all(good).await? {
            match change {
                Change::Made => imported.added += 1,
                Change::None => imported.already_there += 1,
            }
        }
    }
    Ok(imported)
}

impl Admin {
    /// A suppression as it is shown.
    pub(super) fn shown_suppression(
        &self,
        scope: Option<OrganisationId>,
        one: &domain::Suppression,
    ) -> Suppression {
        Suppression {
            organisation: scope.map(|number| self.shown(number)),
            address: one.address.to_string(),
            reason: one.reason.as_str().to_owned(),
            since: one.since.to_string(),
            message: one.cause.map(|id| id.to_string()),
        }
    }

    fn scope(&self, scope: &Scope) -> Result<Option<OrganisationId>> {
        let Scope::Organisation(name) = scope else { return Ok(None) };
        Ok(Some(self.organisation_or_removed(name)?))
    }

    /// Only an organisation that is there: the number of one that was removed means nothing in
    /// another service's list.
    fn existing(&self, scope: &Scope) -> Result<Option<OrganisationId>> {
        let Scope::Organisation(name) = scope else { return Ok(None) };
        Ok(Some(self.organisation(name)?.id))
    }
}

fn change_of(address: &SuppressedAddress, outcome: SuppressionOutcome) -> SuppressionChange {
    SuppressionChange { address: address.to_string(), outcome, at_ses: None }
}

/// Reads an address, by the rules of today or by those of earlier versions.
type ReadAddress = fn(&str) -> Result<SuppressedAddress, MailboxError>;

/// Reads all addresses before anything is done about one.
fn parse_all(addresses: &[String], read: ReadAddress) -> Result<Vec<SuppressedAddress>> {
    if addresses.len() > MAX_ADDRESSES {
        return Err(Refusal::new(format!(
            "one request takes at most {MAX_ADDRESSES} addresses; send them in parts"
        )));
    }
    addresses.iter().map(|text| parse(text, read)).collect()
}

fn parse(text: &str, read: ReadAddress) -> Result<SuppressedAddress> {
    read(text).map_err(|rule| {
        Refusal::new(format!(
            "{text:?} is not an address: {rule}. Correct it and repeat the command"
        ))
    })
}

/// Parses a row, or returns the rule that it breaks.
fn suppression(row: &ImportRow, now: Timestamp) -> Result<domain::Suppression, String> {
    // A list of an earlier version or another service protects whom it can.
    let address = SuppressedAddress::parse_stored(&row.address)
        .map_err(|rule| format!("{:?} is not an address: {rule}", row.address))?;
    let reason = row.reason.as_deref().map_or(Ok(SuppressionReason::Manual), |word| {
        SuppressionReason::from_word(word)
            .ok_or_else(|| format!("{word:?} is not a reason; give bounce, complaint or manual"))
    })?;
    let since = row.since.as_deref().map_or(Ok(now), |text| {
        Timestamp::parse_rfc3339_with_offset(text)
            .map_err(|_| format!("{text:?} is not a time such as 2026-11-21T09:30:00Z"))
    })?;
    let cause = row.message.as_deref().map(|text| {
        text.parse().map_err(|_| format!("{text:?} is not the id of a pillarbox message"))
    });
    Ok(domain::Suppression { address, reason, since, cause: cause.transpose()? })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MAX_CALL_BYTES;

    #[test]
    fn the_largest_call_fits_its_bound() {
        // 64 + 1 + 255 octets, each escaped to two at most.
        let addresses = vec!["\"".repeat(320); MAX_ADDRESSES];
        let call = SuppressionAdd { scope: Scope::All, addresses };
        assert!(serde_json::to_vec(&call).unwrap().len() < MAX_CALL_BYTES);
    }
}
