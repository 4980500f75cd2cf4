//! Administration: what operators ask of the store, the provider and the running service.
//!
//! One handler serves the Unix socket of a running service and, where none runs, the commands that
//! work on the file themselves. It knows nothing of terminals, and of HTTP only through the SES
//! client.

use std::net::SocketAddr;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Instant;

use secrecy::SecretString;

use crate::clock::Clock;
use crate::domain::id::OrganisationId;
use crate::domain::mailbox::DomainName;
use crate::domain::organisation::{Organisation, OrganisationName};
use crate::http::tls::Tls;
use crate::intake::Intake;
use crate::ses::SesClient;
use crate::store::{ListError, Snapshot, Store, StoreError};

use wire::{Refusal, Request, Response};

mod backup;
pub mod checks;
pub mod client;
mod dead_letter;
mod domain;
mod expiry;
pub mod identity;
mod line;
pub mod live;
mod message;
pub mod socket;
mod status;
mod suppression;
mod tenant;
mod test_send;
pub mod wire;

use checks::EventRoute;
use identity::Identity;
use live::LiveView;

/// Marks the number of an organisation that was removed: no name has this character.
const REMOVED_MARK: char = '#';

/// The handler of all requests.
pub struct Admin {
    store: Store,
    clock: Clock,
    place: Place,
}

/// Where the handler works.
enum Place {
    /// On the file itself: no service runs.
    File,
    /// In a running service.
    Service {
        ses: SesClient,
        live: Arc<dyn LiveView>,
        started: Instant,
        ways: Option<Ways>,
        /// The address of the operators' page, with what opens it.
        page: Option<SecretString>,
        identity: Option<Identity>,
    },
}

/// The ways of messages and their events through a running service.
#[derive(Debug)]
pub struct Ways {
    /// Where clients are served, on whichever socket that is.
    pub clients: SocketAddr,
    /// What TLS is spoken with there, where it is.
    pub tls: Option<Arc<Tls>>,
    /// How messages come in.
    pub intake: Arc<Intake>,
    /// How their events come back.
    pub events: EventRoute,
}

impl Admin {
    /// A handler in a process that only has the file open.
    pub fn on_file(store: Store, clock: Clock) -> Self {
        Self { store, clock, place: Place::File }
    }

    /// A handler in a running service.
    pub fn in_service(store: Store, clock: Clock, ses: SesClient, live: Arc<dyn LiveView>) -> Self {
        let started = Instant::now();
        let place = Place::Service { ses, live, started, ways: None, page: None, identity: None };
        Self { store, clock, place }
    }

    /// Lets examinations try the ways of messages and events.
    #[must_use]
    pub fn with_ways(mut self, given: Ways) -> Self {
        if let Place::Service { ways, .. } = &mut self.place {
            *ways = Some(given);
        }
        self
    }

    /// Lets operators be told where their page is, and what opens it.
    #[must_use]
    pub fn with_page(mut self, url: SecretString) -> Self {
        if let Place::Service { page, .. } = &mut self.place {
            *page = Some(url);
        }
        self
    }

    /// Lets commands check that this is the service that they mean.
    #[must_use]
    pub fn with_identity(mut self, given: Identity) -> Self {
        if let Place::Service { identity, .. } = &mut self.place {
            *identity = Some(given);
        }
        self
    }

    /// Does what is asked.
    pub async fn handle(&self, request: Request) -> Response {
        self.answer(request).await.unwrap_or_else(Response::Refused)
    }

    async fn answer(&self, request: Request) -> Result<Response, Refusal> {
        match request {
            Request::OrganisationAdd { name } => self.add_organisation(&name).await,
            Request::OrganisationList {} => Ok(self.list_organisations()),
            Request::OrganisationRemove { name } => self.remove_organisation(&name).await,
            Request::KeyAdd { organisation, label, expires } => {
                self.add_key(&organisation, label, expires.as_deref()).await
            }
            Request::KeyList { organisation } => self.list_keys(organisation.as_deref()),
            Request::KeyRevoke { id } => self.revoke_key(id).await,
            Request::DomainAdd { organisation, domain, verification, mail_from } => {
                let mail_from = mail_from.as_deref();
                self.add_domain(&organisation, &domain, verification, mail_from).await
            }
            Request::DomainList { organisation } => self.list_domains(organisation.as_deref()),
            Request::DomainCheck { domain } => self.check_domain(&domain).await,
            Request::DomainRemove { organisation, domain } => {
                self.remove_domain(&organisation, &domain).await
            }
            Request::SuppressionAdd { scope, addresses } => self.suppress(&scope, &addresses).await,
            Request::SuppressionRemove { scope, addresses } => {
                self.unsuppress(&scope, &addresses).await
            }
            Request::SuppressionClearAtSes { address } => self.clear_at_ses(&address).await,
            Request::SuppressionImport { rows, mode } => {
                self.import_suppressions(&rows, mode).await
            }
            Request::SuppressionList { scope, after } => {
                self.list_suppressions(scope.as_ref(), after.as_ref())
            }
            Request::MessageShow { id } => self.show_message(&id),
            Request::MessageList { organisation, status, recipient, before, limit } => {
                let query = message::Query { organisation, status, recipient, before, limit };
                self.list_messages(&query).await
            }
            Request::MessageCancel { messages } => self.cancel_messages(&messages).await,
            Request::DeadLetterList {} => self.list_dead_letters(),
            Request::DeadLetterShow { id } => self.show_dead_letter(&id),
            Request::DeadLetterClear { letters } => self.clear_dead_letters(&letters).await,
            Request::Identity {} => self.identity(),
            Request::Status {} => Ok(self.status().await),
            Request::Acknowledge {} => self.acknowledge().await,
            Request::Page {} => self.page(),
            Request::ClockConfirm {} => self.confirm_clock().await,
            // Only the socket can go on after the answer.
            Request::Backup {} => Err(Refusal::new("a backup is read from a running service")),
            Request::Examine { part } => self.examine(&part).await,
            Request::TestSend { from } => self.test_send(from.as_deref()).await,
        }
    }

    /// This moment of everything that is stored.
    pub fn snapshot(&self) -> Result<Snapshot, Refusal> {
        Ok(self.store.snapshot()?)
    }

    fn identity(&self) -> Result<Response, Refusal> {
        match &self.place {
            Place::Service { identity: Some(identity), .. } => {
                Ok(Response::Identity(identity.clone()))
            }
            Place::Service { identity: None, .. } | Place::File => {
                Err(Refusal::new("no data directory is known here"))
            }
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
        self.store.organisation_by_id(id).map_or_else(
            || format!("{REMOVED_MARK}{}", id.0),
            |organisation| organisation.name.as_str().to_owned(),
        )
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
            StoreError::Damaged => "restore a backup of the data directory",
        };
        Self::new(format!("{error}; {advice}"))
    }
}

fn organisation_name(text: &str) -> Result<OrganisationName, Refusal> {
    text.parse().map_err(|rule| Refusal::new(format!("{text:?} cannot be a name: {rule}")))
}

fn domain_name(text: &str) -> Result<DomainName<'_>, Refusal> {
    DomainName::parse(text).map_err(|_| {
        Refusal::new(format!("{text:?} is not a domain name; write it as in mail.example.com"))
    })
}
