//! Directory in memory: organisations, keys, domains and endpoints, read again when its version on
//! the server is another one. Changes of it, one at a time over all nodes.

use std::sync::Arc;

use arc_swap::ArcSwap;
use tokio::sync::watch;

use crate::domain::id::OrganisationId;
use crate::domain::mailbox::DomainName;
use crate::domain::organisation::{
    DomainCheck, DomainState, Organisation, OrganisationName, SenderDomain, SenderStatus,
};
use crate::domain::time::Timestamp;
use crate::store::directory::OrganisationIndex;
use crate::store::postgres::connection::Connection;
use crate::store::postgres::error::QueryError;
use crate::store::postgres::session::Transaction;
use crate::store::postgres::{PostgresStore, number};
use crate::store::record::{
    decode_domain, decode_organisation, encode_domain, encode_organisation,
};
use crate::store::{Change, StoreError};

const VERSION: &str = "SELECT directory_version FROM cluster";
/// Counts a change. Its lock makes changes come one after the other.
const COUNT: &str =
    "UPDATE cluster SET directory_version = directory_version + 1 RETURNING directory_version";

/// Directory as this node knows it.
#[derive(Default)]
pub(super) struct Directory {
    known: ArcSwap<OrganisationIndex>,
    changed: watch::Sender<()>,
}

impl Directory {
    pub(super) fn load(&self) -> Arc<OrganisationIndex> {
        self.known.load_full()
    }

    /// Version that is known.
    fn version(&self) -> i64 {
        self.known.load().version.cast_signed()
    }

    /// Is told of each change.
    pub(super) fn changes(&self) -> watch::Receiver<()> {
        self.changed.subscribe()
    }

    /// Reads the directory if it has changed.
    pub(super) async fn follow(&self, connection: &Connection) -> Result<(), QueryError> {
        let version: i64 = connection.query_one(VERSION, &[]).await?.get(0);
        if version == self.version() { Ok(()) } else { self.read(connection).await }
    }

    /// Reads the directory.
    pub(super) async fn read(&self, connection: &Connection) -> Result<(), QueryError> {
        // The version first: what changes in between is read twice rather than never.
        let version: i64 = connection.query_one(VERSION, &[]).await?.get(0);
        let mut index = OrganisationIndex::default();
        index.version = version.cast_unsigned();
        let organisations = "SELECT id, organisation FROM organisation ORDER BY id";
        for row in connection.query(organisations, &[]).await? {
            index.add_organisation(row.get::<_, i32>(0).unsigned_abs(), row.get(1));
        }
        for row in connection.query("SELECT id, api_key FROM api_key ORDER BY id", &[]).await? {
            index.add_api_key(row.get::<_, i32>(0).unsigned_abs(), row.get(1));
        }
        let domains = "SELECT organisation, name, domain FROM domain ORDER BY organisation, name";
        for row in connection.query(domains, &[]).await? {
            index.add_domain(row.get::<_, i32>(0).unsigned_abs(), row.get(1), row.get(2));
        }
        for row in connection.query("SELECT id, webhook FROM webhook ORDER BY id", &[]).await? {
            index.add_webhook(row.get::<_, i32>(0).unsigned_abs(), row.get(1));
        }
        let read = Arc::new(index);
        // Another read may have begun later and ended earlier: its directory is newer and stays.
        self.known.rcu(|known| {
            let is_newer = known.version.cast_signed() > version;
            Arc::clone(if is_newer { known } else { &read })
        });
        self.changed.send_replace(());
        Ok(())
    }
}

impl PostgresStore {
    /// Begins a change of the directory. Its lock makes them come one after the other.
    pub(super) async fn begin_directory(&self) -> Result<Transaction, QueryError> {
        let change = self.begin().await?;
        change.connection().query_one(COUNT, &[]).await?;
        Ok(change)
    }

    /// Makes a change of the directory, and reads it again.
    pub(super) async fn changed_directory<T>(
        &self,
        work: impl Future<Output = Result<T, QueryError>>,
    ) -> Result<T, StoreError> {
        let done = self.changed(work).await?;
        self.shared.reload_directory().await.map_err(|error| self.shared.refused(error))?;
        Ok(done)
    }

    pub(in crate::store) async fn add_organisation(
        &self,
        name: OrganisationName,
    ) -> Result<Option<Organisation>, StoreError> {
        const NEXT: &str = "
            UPDATE cluster SET last_organisation = last_organisation + 1
            RETURNING last_organisation";
        const ADD: &str = "INSERT INTO organisation (id, organisation) VALUES ($1, $2)";
        let name = &name;
        let added = self.changed_directory(async {
            let change = self.begin_directory().await?;
            let connection = change.connection();
            for row in connection.query("SELECT organisation FROM organisation", &[]).await? {
                if decode_organisation(row.get(0)).is_ok_and(|taken| taken == *name) {
                    return Ok(None);
                }
            }
            let id: i32 = connection.query_one(NEXT, &[]).await?.get(0);
            connection.execute(ADD, &[&id, &encode_organisation(name)]).await?;
            let id = OrganisationId(id.unsigned_abs());
            change.commit(Some(Organisation { id, name: name.clone() })).await
        });
        added.await
    }

    pub(in crate::store) async fn remove_organisation(
        &self,
        id: OrganisationId,
    ) -> Result<Change, StoreError> {
        let removed = self.changed_directory(async {
            let change = self.begin_directory().await?;
            let connection = change.connection();
            let id = number(id);
            if connection.execute("DELETE FROM organisation WHERE id = $1", &[&id]).await? == 0 {
                return Ok(Change::None);
            }
            for statement in [
                "DELETE FROM api_key WHERE organisation = $1",
                "DELETE FROM domain WHERE organisation = $1",
                "DELETE FROM webhook WHERE organisation = $1",
            ] {
                connection.execute(statement, &[&id]).await?;
            }
            change.commit(Change::Made).await
        });
        removed.await
    }

    pub(in crate::store) fn organisations(&self) -> Vec<Organisation> {
        self.shared.directory.load().organisations.clone()
    }

    pub(in crate::store) fn organisation(&self, name: &OrganisationName) -> Option<Organisation> {
        self.shared.directory.load().named(name.as_str()).cloned()
    }

    pub(in crate::store) fn organisation_by_id(&self, id: OrganisationId) -> Option<Organisation> {
        self.shared.directory.load().organisation(id).cloned()
    }

    pub(in crate::store) async fn put_domain(
        &self,
        organisation: OrganisationId,
        name: DomainName<'_>,
        state: DomainState,
        now: Timestamp,
    ) -> Result<Option<SenderDomain>, StoreError> {
        let name = name.as_str();
        let put = self.changed_directory(async {
            let change = self.begin_directory().await?;
            let connection = change.connection();
            if !organisation_exists(connection, organisation).await? {
                return Ok(None);
            }
            let domain = match read_domain(connection, organisation, name).await? {
                Some(known) => known.moved(state, now),
                None => SenderDomain::new(organisation, name.to_owned(), state, now),
            };
            write_domain(connection, &domain).await?;
            change.commit(Some(domain)).await
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
        let name = name.as_str();
        let changed = self.changed_directory(async {
            let change = self.begin_directory().await?;
            let connection = change.connection();
            match read_domain(connection, organisation, name).await? {
                Some(domain) if domain.state == from => {
                    let domain = domain.moved(to, check.at);
                    let domain = SenderDomain { last_check: Some(check), ..domain };
                    write_domain(connection, &domain).await?;
                    change.commit(Change::Made).await
                }
                Some(_) | None => Ok(Change::None),
            }
        });
        changed.await
    }

    pub(in crate::store) async fn remove_domain(
        &self,
        organisation: OrganisationId,
        name: DomainName<'_>,
    ) -> Result<Change, StoreError> {
        const REMOVE: &str = "DELETE FROM domain WHERE organisation = $1 AND name = $2";
        let name = name.as_str();
        let removed = self.changed_directory(async {
            let change = self.begin_directory().await?;
            let connection = change.connection();
            let removed = connection.execute(REMOVE, &[&number(organisation), &name]).await?;
            change.commit(if removed == 0 { Change::None } else { Change::Made }).await
        });
        removed.await
    }

    pub(in crate::store) fn sender_status(
        &self,
        organisation: OrganisationId,
        domain: &DomainName<'_>,
    ) -> SenderStatus {
        self.shared.directory.load().sender_status(organisation, domain.as_str())
    }

    pub(in crate::store) fn domains(&self) -> Vec<SenderDomain> {
        self.shared.directory.load().domains.clone()
    }
}

/// Returns true if the organisation has not been removed.
pub(super) async fn organisation_exists(
    connection: &Connection,
    organisation: OrganisationId,
) -> Result<bool, QueryError> {
    let found = "SELECT FROM organisation WHERE id = $1";
    Ok(connection.query_opt(found, &[&number(organisation)]).await?.is_some())
}

/// Reads a domain; `None` also if it cannot be read, so that it can be added again.
async fn read_domain(
    connection: &Connection,
    organisation: OrganisationId,
    name: &str,
) -> Result<Option<SenderDomain>, QueryError> {
    const READ: &str = "SELECT domain FROM domain WHERE organisation = $1 AND name = $2";
    let row = connection.query_opt(READ, &[&number(organisation), &name]).await?;
    Ok(row.and_then(|row| decode_domain(organisation.0, name, row.get(0)).ok()))
}

async fn write_domain(connection: &Connection, domain: &SenderDomain) -> Result<(), QueryError> {
    const WRITE: &str = "
        INSERT INTO domain (organisation, name, domain) VALUES ($1, $2, $3)
        ON CONFLICT (organisation, name) DO UPDATE SET domain = excluded.domain";
    let parameters = (number(domain.organisation), &domain.name, encode_domain(domain));
    connection.execute(WRITE, &[&parameters.0, parameters.1, &parameters.2]).await?;
    Ok(())
}
