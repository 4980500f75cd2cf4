//! Applying what the provider reports: events, proofs of acceptance and suppressions, in such a
//! way that neither order nor repetition makes a difference.

use crate::domain::time::Timestamp;
use crate::store::redb::RedbStore;
use crate::store::{Applied, Report, StoreError, transitions};

/// About how many bytes a report writes.
const REPORT_WEIGHT: usize = 1_024;

impl RedbStore {
    pub(in crate::store) async fn apply(
        &self,
        report: Report,
        now: Timestamp,
    ) -> Result<Applied, StoreError> {
        let applied = self.apply_all(vec![report], now).await?;
        Ok(applied[0])
    }

    pub(in crate::store) async fn apply_all(
        &self,
        reports: Vec<Report>,
        now: Timestamp,
    ) -> Result<Vec<Applied>, StoreError> {
        let weight = REPORT_WEIGHT * reports.len();
        self.writer
            .run(weight, move |batch| {
                reports.iter().map(|report| transitions::apply(batch, report, now)).collect()
            })
            .await
    }
}
