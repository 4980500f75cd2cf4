//! Directory in memory: organisations, keys, domains and endpoints, read again when its version on
//! the server is another one.

use crate::store::directory::{Directory, OrganisationIndex};
use crate::store::postgres::connection::Connection;
use crate::store::postgres::error::QueryError;

const VERSION: &str = "SELECT directory_version FROM cluster";

impl Directory {
    /// Reads the directory if it has changed.
    pub(super) async fn follow(&self, connection: &Connection) -> Result<(), QueryError> {
        let version: i64 = connection.query_one(VERSION, &[]).await?.get(0);
        let is_known = version.cast_unsigned() == self.load().version;
        if is_known { Ok(()) } else { self.read(connection).await }
    }

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
        self.replace(index);
        Ok(())
    }

    pub(super) async fn read_uses(&self, connection: &Connection) -> Result<(), QueryError> {
        const READ: &str = "SELECT id, used_at FROM api_key WHERE used_at IS NOT NULL";
        let rows = connection.query(READ, &[]).await?;
        self.replace_uses(
            rows.iter().map(|row| {
                (row.get::<_, i32>(0).unsigned_abs(), row.get::<_, i64>(1).unsigned_abs())
            }),
        );
        Ok(())
    }
}
