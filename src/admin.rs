//! Administration: what operators ask of the store, the provider and the running service.
//!
//! Each call is a type, with its answer and with what it does. The Unix socket of a running service
//! takes the calls; where none runs, the commands make them on the data file themselves. Nothing
//! here knows terminals.

use std::net::SocketAddr;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Instant;

use secrecy::SecretString;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::clock::Clock;
use crate::domain::id::OrganisationId;
use crate::domain::mailbox::DomainName;
use crate::domain::organisation::{Organisation, OrganisationName};
use crate::http::tls::Tls;
use crate::intake::Intake;
use crate::ses::SesClient;
use crate::store::{ListError, Snapshot, Store, StoreError};

pub mod all_nodes;
mod backup;
pub mod bodies;
pub mod checks;
pub mod client;
pub mod conditions;
pub mod dead_letter;
pub mod domain;
pub mod identity;
pub mod key;
pub mod live;
pub mod message;
mod moment;
pub mod node;
pub mod organisation;
pub mod process;
pub mod restart;
pub mod snapshot;
pub mod socket;
pub mod status;
pub mod suppression;
pub mod test_send;
pub mod webhook;

use bodies::BodyFacts;
use checks::EventRoute;
use identity::Identity;
use live::LiveView;
use restart::Restarts;
use status::SmtpListener;

/// The largest call, in bytes.
pub const MAX_CALL_BYTES: usize = 1 << 20;
/// The largest answer but a backup, in bytes.
pub const MAX_ANSWER_BYTES: usize = 16 << 20;
/// The most rows in one page of a list.
pub const MAX_PAGE: usize = 500;

/// Stands for what a row that cannot be read would say: the reason of a suppression, which
/// suppresses all the same, or whose a key was.
pub const UNREADABLE: &str = "unreadable";

/// Marks the number of an organisation that was removed: no name has this character.
pub const REMOVED_MARK: char = '#';

/// Call of the administration. Its texts come in as given, and the call judges them. A call refuses
/// unknown fields: what an older service does not know must not be dropped without a word.
pub trait Call: Served + Serialize + DeserializeOwned + Send {
    /// Does what is asked.
    fn answer(self, admin: &Admin) -> impl Future<Output = Result<Self::Answer, Refusal>> + Send;
}

/// Place of a call in the table of the [`socket`], which alone gives it: every call is in the table.
pub trait Served {
    /// Name of the call: `POST /NAME` on the socket makes it.
    const NAME: &'static str;
    /// Answer to the call.
    type Answer: Serialize + DeserializeOwned + Send;
}

/// Reason why something was not done.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct Refusal {
    /// For a person to read: what is wrong, and what to do.
    pub message: String,
}

/// What answers all calls.
pub struct Admin {
    store: Store,
    clock: Clock,
    place: Place,
}

/// Where the calls are answered.
enum Place {
    /// On the file itself: no service runs.
    File,
    /// In a running service.
    Service {
        ses: SesClient,
        live: Arc<dyn LiveView>,
        started: Instant,
        facts: Option<Box<ServiceFacts>>,
    },
}

/// What a running service tells of itself, and tries out on itself.
#[derive(Debug)]
pub struct ServiceFacts {
    /// Where clients are served, on whichever socket that is.
    pub clients: SocketAddr,
    /// Where messages are submitted over SMTP.
    pub smtp: Vec<SmtpListener>,
    /// What TLS is spoken with there, where it is.
    pub tls: Option<Arc<Tls>>,
    /// How messages come in.
    pub intake: Arc<Intake>,
    /// How their events come back.
    pub events: EventRoute,
    /// The address of the operators' page, with what opens it.
    pub page: SecretString,
    /// Bodies of pending messages.
    pub bodies: Arc<BodyFacts>,
    /// Restarts in place.
    pub restarts: Arc<Restarts>,
    /// What commands check, to know that this is the service that they mean.
    pub identity: Identity,
}

impl Admin {
    /// The administration in a process that only has the file open.
    pub fn on_file(store: Store, clock: Clock) -> Self {
        Self { store, clock, place: Place::File }
    }

    /// The administration in a running service; without `facts`, it can neither be examined nor be
    /// told from others.
    pub fn in_service(
        store: Store,
        clock: Clock,
        ses: SesClient,
        live: Arc<dyn LiveView>,
        facts: Option<ServiceFacts>,
    ) -> Self {
        let place =
            Place::Service { ses, live, started: Instant::now(), facts: facts.map(Box::new) };
        Self { store, clock, place }
    }

    /// This moment of everything that is stored.
    pub async fn snapshot(&self) -> Result<Snapshot, Refusal> {
        if self.store.is_shared() {
            return Err(Refusal::new(
                "the store is on PostgreSQL: back up its database with PostgreSQL's own tools, such as \
                 pg_dump or pgBackRest",
            ));
        }
        Ok(self.store.snapshot().await?)
    }

    fn ses(&self, advice: &str) -> Result<&SesClient, Refusal> {
        match &self.place {
            Place::Service { ses, .. } => Ok(ses),
            Place::File => Err(Refusal::new(format!(
                "no service runs, and only a running service asks SES: {advice}"
            ))),
        }
    }

    /// The organisation with this name.
    fn organisation(&self, name: &str) -> Result<Organisation, Refusal> {
        let name = organisation_name(name)?;
        self.store.organisation(&name).ok_or_else(|| {
            Refusal::new(format!(
                "there is no organisation {name}; `pillarbox org list` shows those there are, and \
                 `pillarbox org add {name}` adds it"
            ))
        })
    }

    /// The number of the organisation that a list is limited to, if it is.
    fn only(&self, organisation: Option<&str>) -> Result<Option<OrganisationId>, Refusal> {
        organisation.map(|name| Ok(self.organisation(name)?.id)).transpose()
    }

    /// What to say where an organisation was removed between two looks.
    fn gone(organisation: &Organisation) -> Refusal {
        Refusal::new(format!("the organisation {} was removed meanwhile", organisation.name))
    }

    /// The number of the organisation with this name, or of a removed one as it is listed.
    fn organisation_or_removed(&self, name: &str) -> Result<OrganisationId, Refusal> {
        match name.strip_prefix(REMOVED_MARK).map(u32::from_str) {
            Some(Ok(number)) => Ok(OrganisationId(number)),
            Some(Err(_)) | None => Ok(self.organisation(name)?.id),
        }
    }

    /// The name of an organisation, or the number of one that was removed.
    fn shown(&self, id: OrganisationId) -> String {
        shown_name(&self.store, id)
    }
}

impl Refusal {
    fn new(message: impl Into<String>) -> Self {
        Self { message: message.into() }
    }
}

impl From<ListError> for Refusal {
    fn from(error: ListError) -> Self {
        match error {
            ListError::Store(error) => error.into(),
            ListError::TooMany => Self::new(error.to_string()),
        }
    }
}

impl From<StoreError> for Refusal {
    fn from(error: StoreError) -> Self {
        let advice = match error {
            StoreError::Unavailable => "make room or repair the disk, then try again",
            StoreError::FileLost => {
                "see pillarbox status for what to do; pillarbox backup FILE saves what the service \
                 holds"
            }
            StoreError::OutcomeOpen => "look whether it was made before you try again",
            StoreError::Damaged => "restore a backup of the data directory",
        };
        Self::new(format!("{error}; {advice}"))
    }
}

/// The name of an organisation, or the number of one that was removed.
pub fn shown_name(store: &Store, id: OrganisationId) -> String {
    store.organisation_by_id(id).map_or_else(
        || format!("{REMOVED_MARK}{}", id.0),
        |organisation| organisation.name.as_str().to_owned(),
    )
}

fn organisation_name(text: &str) -> Result<OrganisationName, Refusal> {
    text.parse().map_err(|rule| Refusal::new(format!("{text:?} cannot be a name: {rule}")))
}

fn domain_name(text: &str) -> Result<DomainName<'_>, Refusal> {
    DomainName::parse(text).map_err(|_| {
        Refusal::new(format!("{text:?} is not a domain name; write it as in mail.example.com"))
    })
}
