//! Suppressions by the operator's hand.

use crate::admin::Admin;
use crate::admin::wire::{
    MAX_ADDRESSES, MAX_PAGE, Refusal, Response, Scope, Suppression, SuppressionChange,
    SuppressionChanges, SuppressionCursor, SuppressionList, SuppressionOutcome, UNREADABLE,
};
use crate::domain::admission::Facts;
use crate::domain::id::OrganisationId;
use crate::domain::suppression::{self, SuppressedAddress, SuppressionReason};
use crate::store::Change;

mod account;
mod import;

impl Admin {
    pub(super) async fn suppress(
        &self,
        scope: &Scope,
        addresses: &[String],
    ) -> Result<Response, Refusal> {
        let organisation = match scope {
            Scope::All => None,
            Scope::Organisation(name) => Some(self.organisation(name)?.id),
        };
        let mut changes = Vec::new();
        for address in parse_all(addresses)? {
            let suppression = suppression::Suppression {
                address: address.clone(),
                reason: SuppressionReason::Manual,
                since: self.clock.now(),
                cause: None,
            };
            let outcome = match self.store.suppress(organisation, suppression).await? {
                Change::Made => SuppressionOutcome::Added,
                Change::None => SuppressionOutcome::AlreadyThere,
            };
            changes.push(change_of(&address, outcome));
        }
        Ok(Response::SuppressionsChanged(SuppressionChanges { addresses: changes }))
    }

    pub(super) async fn unsuppress(
        &self,
        scope: &Scope,
        addresses: &[String],
    ) -> Result<Response, Refusal> {
        let organisation = self.scope(scope)?;
        let mut changes = Vec::new();
        for address in parse_all(addresses)? {
            let change = self.store.unsuppress(organisation, address.clone()).await?;
            let for_all = match organisation {
                Some(organisation) => self.store.facts(organisation).is_suppressed(&address)?,
                None => false,
            };
            let outcome = match change {
                // The operator must not take it for gone.
                _ if for_all => SuppressionOutcome::StillForAll,
                Change::Made => SuppressionOutcome::Removed,
                Change::None => SuppressionOutcome::NotThere,
            };
            changes.push(change_of(&address, outcome));
        }
        Ok(Response::SuppressionsChanged(SuppressionChanges { addresses: changes }))
    }

    pub(super) fn list_suppressions(
        &self,
        scope: Option<&Scope>,
        after: Option<&SuppressionCursor>,
    ) -> Result<Response, Refusal> {
        let only = scope.map(|scope| self.scope(scope)).transpose()?;
        let start = match (after, only) {
            (Some(cursor), _) => Some((
                cursor.organisation.map(OrganisationId),
                SuppressedAddress::from_stored(&cursor.address),
            )),
            // Before the first address of the scope.
            (None, Some(scope)) => Some((scope, SuppressedAddress::from_stored(""))),
            (None, None) => None,
        };
        let start = start.as_ref().map(|(scope, address)| (*scope, address));
        let page = self.store.suppressions(start, MAX_PAGE)?;
        let is_wanted = |scope: Option<OrganisationId>| only.is_none_or(|only| only == scope);
        let next = page.next.filter(|(scope, _)| is_wanted(*scope));
        let next = next.map(|(scope, address)| SuppressionCursor {
            organisation: scope.map(|organisation| organisation.0),
            address: address.as_str().to_owned(),
        });
        let whose = |scope: Option<OrganisationId>| scope.map(|number| self.shown(number));
        let whole = page.suppressions.into_iter().map(|(scope, suppression)| {
            let shown = Suppression {
                organisation: whose(scope),
                address: suppression.address.to_string(),
                reason: suppression.reason.as_str().to_owned(),
                since: suppression.since.to_string(),
                message: suppression.cause.map(|id| id.to_string()),
            };
            ((scope, suppression.address), shown)
        });
        let damaged = page.damaged.into_iter().map(|(scope, address)| {
            let shown = Suppression {
                organisation: whose(scope),
                address: address.to_string(),
                reason: UNREADABLE.to_owned(),
                since: String::new(),
                message: None,
            };
            ((scope, address), shown)
        });
        let mut rows: Vec<_> = whole.chain(damaged).collect();
        rows.retain(|((scope, _), _)| is_wanted(*scope));
        rows.sort_by(|(a, _), (b, _)| a.cmp(b));
        let suppressions = rows.into_iter().map(|(_, shown)| shown).collect();
        Ok(Response::Suppressions(SuppressionList { suppressions, next }))
    }

    fn scope(&self, scope: &Scope) -> Result<Option<OrganisationId>, Refusal> {
        match scope {
            Scope::All => Ok(None),
            Scope::Organisation(name) => Ok(Some(self.organisation_or_removed(name)?)),
        }
    }
}

fn change_of(address: &SuppressedAddress, outcome: SuppressionOutcome) -> SuppressionChange {
    SuppressionChange { address: address.to_string(), outcome, at_ses: None }
}

/// Reads all addresses before anything is done about one.
fn parse_all(addresses: &[String]) -> Result<Vec<SuppressedAddress>, Refusal> {
    if addresses.len() > MAX_ADDRESSES {
        return Err(Refusal::new(format!(
            "one request takes at most {MAX_ADDRESSES} addresses; send them in parts"
        )));
    }
    let parse = |text: &String| {
        SuppressedAddress::parse(text).map_err(|rule| {
            Refusal::new(format!("{text:?} is not an address: {rule}. Nothing was changed"))
        })
    };
    addresses.iter().map(parse).collect()
}
