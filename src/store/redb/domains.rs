//! Sender domains of organisations, and what the provider says of them.

use redb::ReadableTable;

use crate::domain::id::OrganisationId;
use crate::domain::mailbox::DomainName;
use crate::domain::organisation::{DomainCheck, DomainState, SenderDomain, SenderStatus};
use crate::domain::time::Timestamp;
use crate::store::record::{decode_domain, encode_domain};
use crate::store::redb::batch::Batch;
use crate::store::redb::error::ReadError;
use crate::store::redb::{ROW_WEIGHT, RedbStore};
use crate::store::{Change, StoreError};

impl RedbStore {
    pub(in crate::store) async fn put_domain(
        &self,
        organisation: OrganisationId,
        name: DomainName<'_>,
        state: DomainState,
        now: Timestamp,
    ) -> Result<Option<SenderDomain>, StoreError> {
        let name = name.into_owned();
        let put = self.writer.run(ROW_WEIGHT, move |batch| {
            if batch.tables.organisations.open()?.get(organisation.0)?.is_none() {
                return Ok(None);
            }
            let domain = match read(batch, organisation, &name)? {
                Some(known) => known.moved(state, now),
                None => SenderDomain::new(organisation, name.as_str().to_owned(), state, now),
            };
            write(batch, &domain)?;
            Ok(Some(domain))
        });
        put.await
    }

    pub(in crate::store) async fn change_domain(
        &self,
        organisation: OrganisationId,
        name: DomainName<'_>,
        from: DomainState,
        to: DomainState,
        check: DomainCheck,
    ) -> Result<Change, StoreError> {
        let name = name.into_owned();
        let change =
            self.writer.run(ROW_WEIGHT, move |batch| match read(batch, organisation, &name)? {
                Some(domain) if domain.state == from => {
                    let domain = domain.moved(to, check.at);
                    write(batch, &SenderDomain { last_check: Some(check), ..domain })?;
                    Ok(Change::Made)
                }
                Some(_) | None => Ok(Change::None),
            });
        change.await
    }

    pub(in crate::store) async fn remove_domain(
        &self,
        organisation: OrganisationId,
        name: DomainName<'_>,
    ) -> Result<Change, StoreError> {
        let name = name.into_owned();
        let remove = self.writer.run(ROW_WEIGHT, move |batch| {
            let key = (organisation.0, name.as_str());
            if batch.tables.domains.open()?.remove(key)?.is_none() {
                return Ok(Change::None);
            }
            batch.organisations = Change::Made;
            Ok(Change::Made)
        });
        remove.await
    }

    pub(in crate::store) fn sender_status(
        &self,
        organisation: OrganisationId,
        domain: &DomainName<'_>,
    ) -> SenderStatus {
        self.shared.organisations().sender_status(organisation, domain.as_str())
    }

    pub(in crate::store) fn domains(&self) -> Vec<SenderDomain> {
        self.shared.organisations().domains.clone()
    }
}

/// Reads the domain's row; `None` also if it cannot be read, so that it can be added again.
fn read(
    batch: &mut Batch<'_>,
    organisation: OrganisationId,
    name: &DomainName<'_>,
) -> Result<Option<SenderDomain>, ReadError> {
    let row = batch.tables.domains.open()?.get((organisation.0, name.as_str()))?;
    Ok(row.and_then(|row| decode_domain(organisation.0, name.as_str(), row.value()).ok()))
}

fn write(batch: &mut Batch<'_>, domain: &SenderDomain) -> Result<(), ReadError> {
    let key = (domain.organisation.0, domain.name.as_str());
    batch.tables.domains.open()?.insert(key, encode_domain(domain).as_slice())?;
    batch.organisations = Change::Made;
    Ok(())
}
