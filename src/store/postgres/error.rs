//! Errors of the engine.

use std::error::Error as _;
use std::iter::successors;

use tokio_postgres::error::{DbError, Severity, SqlState};

use crate::error::DamagedRow;
use pillarbox_runtime::resolver::ResolveError;

#[derive(Debug, thiserror::Error)]
pub(super) enum QueryError {
    #[error("{}", described(.0))]
    Server(#[from] tokio_postgres::Error),
    #[error(transparent)]
    Name(#[from] ResolveError),
    #[error(transparent)]
    Row(#[from] DamagedRow),
    #[error("the other nodes treat this node as dead")]
    Fenced,
    /// The transaction was not made, because the connection was lost or the server gave no answer.
    #[error("nothing was committed: the connection was lost, or the server did not answer")]
    NotMade,
    /// The server takes writes, and is not the one to work on.
    #[error("a server was not used: {0}")]
    WrongServer(&'static str),
    #[error("the server did not answer within {0:?}")]
    TimedOut(std::time::Duration),
    /// No answer came by one connection, which is closed. The server may answer by other
    /// connections.
    #[error("the server did not answer on the connection for {purpose} within {limit:?}")]
    Silent { purpose: &'static str, limit: std::time::Duration },
    /// The outcome of a transaction is not known: its answer was lost, and the row that shows it is
    /// out of reach.
    #[error("pillarbox could not find out in time whether the transaction was committed")]
    InDoubt,
    #[error("a fault in pillarbox: a transaction kept asking for rows")]
    Endless,
    #[error("a fault in pillarbox: a transaction panicked")]
    Panicked,
}

impl QueryError {
    /// Returns the server's code (SQLSTATE), if it answered.
    pub(super) fn code(&self) -> Option<&SqlState> {
        let Self::Server(error) = self else { return None };
        error.code()
    }

    /// Returns true if the server answered, and refused only this request: others may succeed.
    pub(super) fn is_refusal(&self) -> bool {
        // Class 57 is an operator's intervention, such as a shutdown; 25006 a server that only
        // reads.
        self.code()
            .map(SqlState::code)
            .is_some_and(|code| !code.starts_with("57P") && code != "25006")
    }

    /// Returns true if the server says that it ended the transaction, and still works: after the
    /// commit it could not say so.
    pub(super) fn is_rolled_back(&self) -> bool {
        let Self::Server(error) = self else { return false };
        let severity = error.as_db_error().and_then(DbError::parsed_severity);
        severity == Some(Severity::Error)
    }

    /// Returns true if the connection is lost: another connection may answer the same.
    pub(super) fn is_lost_connection(&self) -> bool {
        match self {
            Self::Silent { .. } => true,
            Self::Server(error) => error.as_db_error().is_none(),
            _ => false,
        }
    }

    /// Returns true if a transaction may succeed that is made again at once. A lost connection is
    /// replaced only after the first attempt.
    pub(super) fn may_be_repeated(&self, attempt: usize) -> bool {
        self.is_conflict()
            || matches!(self, Self::NotMade)
            || (attempt == 1 && self.is_lost_connection())
    }

    /// Returns true if the same transaction may succeed if it is made again at once.
    pub(super) fn is_conflict(&self) -> bool {
        // Of `unique_violation`: another transaction has meanwhile inserted a row that was missing.
        let codes = [
            SqlState::T_R_DEADLOCK_DETECTED,
            SqlState::T_R_SERIALIZATION_FAILURE,
            SqlState::UNIQUE_VIOLATION,
        ];
        self.code().is_some_and(|code| codes.contains(code))
    }
}

impl From<QueryError> for ConnectError {
    fn from(error: QueryError) -> Self {
        Self::Server(error.to_string())
    }
}

/// Describes an error with its causes: tokio-postgres alone says "db error".
fn described(error: &tokio_postgres::Error) -> String {
    let causes = successors(error.source(), |cause| (**cause).source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}

/// Reason why a store on a server could not be opened.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say it")]
pub enum ConnectError {
    #[error("PostgreSQL: {0}")]
    Server(String),
    #[error(
        "another node named {0:?} uses this database, from another machine, another data \
         directory or a copy of this one; give this node another name in cluster.node, and its own \
         data directory"
    )]
    NameTaken(String),
    #[error("the database has schema {version}, written by a newer pillarbox; upgrade this one")]
    Newer { version: i32 },
    #[error(
        "the database was made by `pillarbox dev`, for trials: its keys and domains are not real; \
         give the service another database in store.postgres.database"
    )]
    MadeByDev,
    #[error(
        "the database was not made by `pillarbox dev`, which would add an organisation, a domain \
         and a key to it, and take a share of the pace; give `pillarbox dev` an empty database"
    )]
    NotMadeByDev,
    #[error("{0}")]
    Damaged(String),
}
