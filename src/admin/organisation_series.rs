//! Organisations in what is printed by organisation, such as the series of a metric: the first by
//! themselves, those beyond the limit as one.

use crate::snapshot::{NamedCounts, Snapshot, ratio};
use pillarbox_domain::id::OrganisationId;
use pillarbox_domain::organisation::OrganisationKind;
use pillarbox_domain::usage::Period;

/// Number of organisations with counts of their own in printed lists: those that were added first.
/// The others are counted together, so that the number of series stays bounded.
const MAX_ORGANISATIONS: usize = 200;
/// Name of the others. No organisation can have it.
const OTHERS: &str = "(others)";

impl Snapshot {
    /// Returns the organisations' counts as they are printed, those beyond the limit as one.
    pub fn organisations(&self) -> Vec<NamedCounts> {
        let mut all = self.organisations.iter();
        let own = all.by_ref().take(MAX_ORGANISATIONS);
        let mut printed: Vec<_> = own
            .map(|(&id, &counts)| NamedCounts {
                id: Some(id),
                name: self.name(id),
                kind: self.kind(id),
                counts,
            })
            .collect();
        // Alarms use their sum, and test organisations must not raise any.
        let others = all.filter(|(id, _)| self.kind(**id) == OrganisationKind::Production);
        let others = others.map(|(_, counts)| *counts).reduce(|sum, counts| sum.plus(&counts));
        printed.extend(others.map(|counts| NamedCounts {
            id: None,
            name: OTHERS.to_owned(),
            kind: OrganisationKind::Production,
            counts,
        }));
        printed
    }

    /// Returns the part that is used of each limit of an organisation, for those that are printed.
    pub fn limit_ratios(&self) -> Vec<(OrganisationId, Period, f64)> {
        let printed = self.stored.limited.iter().take(MAX_ORGANISATIONS);
        let ratios = printed.flat_map(|(id, limits, usage)| {
            usage.within(limits).map(|(period, used, limit)| (*id, period, ratio(used, limit)))
        });
        ratios.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pillarbox_store::organisation_counts::OrganisationCounts;

    #[test]
    fn organisations_beyond_the_limit_are_printed_as_one() {
        let accepted = |accepted| OrganisationCounts { accepted, ..OrganisationCounts::default() };
        let mut snapshot = Snapshot::default();
        for number in 1..=200 {
            snapshot.organisations.insert(OrganisationId(number), accepted(1));
        }
        snapshot.names.insert(OrganisationId(1), "acme".to_owned());
        let printed = snapshot.organisations();
        assert_eq!(printed.len(), 200);
        assert_eq!((&*printed[0].name, &*printed[199].name), ("acme", "#200"));
        for number in 201..=205 {
            snapshot.organisations.insert(OrganisationId(number), accepted(u64::from(number)));
        }
        let printed = snapshot.organisations();
        assert_eq!(printed.len(), 201);
        let others = &printed[200];
        assert_eq!((others.id, &*others.name), (None, "(others)"));
        assert_eq!(others.counts.accepted, (201..=205).sum::<u64>());
        assert_eq!(snapshot.sum(|counts| counts.accepted), 200 + others.counts.accepted);
    }
}
