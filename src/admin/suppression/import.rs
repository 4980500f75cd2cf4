//! Suppressions taken in from a list: many rows at a time, each judged for itself.

use std::collections::HashMap;

use crate::admin::Admin;
use crate::admin::wire::{
    ImportMode, ImportRow, MAX_IMPORT_ROWS, Refusal, RefusedRow, Response, Scope,
    SuppressionsImported,
};
use crate::domain::id::OrganisationId;
use crate::domain::suppression::{SuppressedAddress, Suppression, SuppressionReason};
use crate::domain::time::Timestamp;
use crate::store::Change;

/// The scopes that rows name, each looked up once.
type Scopes<'a> = HashMap<&'a Scope, Result<Option<OrganisationId>, String>>;

impl Admin {
    pub(in crate::admin) async fn import_suppressions(
        &self,
        rows: &[ImportRow],
        mode: ImportMode,
    ) -> Result<Response, Refusal> {
        if rows.len() > MAX_IMPORT_ROWS {
            return Err(Refusal::new(format!(
                "one request takes at most {MAX_IMPORT_ROWS} rows; send them in parts"
            )));
        }
        let now = self.clock.now();
        let mut scopes = Scopes::new();
        let mut good = Vec::with_capacity(rows.len());
        let mut imported = SuppressionsImported::default();
        for (position, row) in rows.iter().enumerate() {
            let scope = scopes.entry(&row.scope).or_insert_with(|| self.existing(&row.scope));
            match scope.clone().and_then(|scope| Ok((scope, suppression(row, now)?))) {
                Ok(suppression) => good.push(suppression),
                Err(rule) => imported.refused.push(RefusedRow { row: position, rule }),
            }
        }
        if mode == ImportMode::Apply && !good.is_empty() {
            for change in self.store.suppress_all(good).await? {
                match change {
                    Change::Made => imported.added += 1,
                    Change::None => imported.already_there += 1,
                }
            }
        }
        Ok(Response::SuppressionsImported(imported))
    }

    /// Only an organisation that is there: the number of one that was removed means nothing in
    /// another service's list.
    fn existing(&self, scope: &Scope) -> Result<Option<OrganisationId>, String> {
        match scope {
            Scope::All => Ok(None),
            Scope::Organisation(name) => match self.organisation(name) {
                Ok(organisation) => Ok(Some(organisation.id)),
                Err(refusal) => Err(refusal.message),
            },
        }
    }
}

/// What a row says, or the rule that it breaks.
fn suppression(row: &ImportRow, now: Timestamp) -> Result<Suppression, String> {
    let address = SuppressedAddress::parse(&row.address)
        .map_err(|rule| format!("{:?} is not an address: {rule}", row.address))?;
    let reason = row.reason.as_deref().map_or(Ok(SuppressionReason::Manual), |word| {
        SuppressionReason::from_word(word)
            .ok_or_else(|| format!("{word:?} is not a reason: bounce, complaint or manual"))
    })?;
    let since = row.since.as_deref().map_or(Ok(now), |text| {
        Timestamp::parse_rfc3339_with_offset(text)
            .map_err(|_| format!("{text:?} is not a time, such as 2026-11-21T09:30:00Z"))
    })?;
    let cause = row.message.as_deref().map(|text| {
        text.parse().map_err(|_| format!("{text:?} is not the id of a message of pillarbox"))
    });
    Ok(Suppression { address, reason, since, cause: cause.transpose()? })
}
