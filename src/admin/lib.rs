//! Administration: what operators ask of the store, the provider and the running service.
//!
//! Each call is declared once, in the list below. From it follow the call's arguments, as JSON and on
//! the command line, and what the Unix socket of a running service takes. If none runs, the commands
//! make the calls on the data file themselves. Nothing here knows terminals.

#![cfg_attr(not(test), warn(unused_crate_dependencies))]
#![expect(missing_docs, reason = "the names of an answer's members say what most of them are")]

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use clap::builder::{PossibleValuesParser, RangedU64ValueParser};
use clap::{ArgAction, ArgGroup, Args};
use secrecy::SecretString;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use pillarbox_alerts::Alerts;
use pillarbox_domain::message_terms::Priority;
use pillarbox_domain::outcome::MessageOutcome;
use pillarbox_domain::webhook::WebhookFormat;
use pillarbox_intake::Intake;
use pillarbox_records::views::is_false;
use pillarbox_runtime::clock::Clock;
use pillarbox_runtime::proxy::ProxyRule;
use pillarbox_ses::SesClient;
use pillarbox_store::{DrainOrder, Snapshot, Store};

pub mod alerts;
pub mod all_nodes;
mod backup;
pub mod bodies;
pub mod checks;
pub mod client;
pub mod conditions;
pub mod dead_letter;
pub mod domain;
pub mod failure_explanations;
pub mod identity;
pub mod key;
pub mod live;
pub mod message;
pub mod node;
mod options;
pub mod organisation;
mod organisation_series;
pub mod process;
mod refusal;
pub mod restart;
pub mod snapshot;
pub mod socket;
pub mod status;
pub mod suppression;
pub mod test_send;
pub mod webhook;

use bodies::BodyFacts;
use identity::Identity;
use live::LiveView;
use options::{StatusParser, flag};
use refusal::{Result, domain_name, moment, organisation_name};
use restart::Restarts;
use status::SmtpListener;

pub use organisation::shown_name;
pub use refusal::Refusal;

/// The largest call, in bytes.
pub const MAX_CALL_BYTES: usize = 1 << 20;
/// The largest answer but a backup, in bytes.
pub const MAX_ANSWER_BYTES: usize = 16 << 20;
/// The most rows in one page of a list.
pub const MAX_PAGE: usize = 500;

/// Placeholder for the content of a row that cannot be read: the reason of a suppression, which
/// still suppresses, or the owner of a key.
pub const UNREADABLE: &str = "unreadable";

/// Marks the number of an organisation that was removed: no name has this character.
pub const REMOVED_MARK: char = '#';

/// Call of the administration. Its texts come in as given, and the call judges them. A call refuses
/// unknown fields: what an older service does not know must not be dropped without a word.
pub trait Call: Serialize + DeserializeOwned + Send {
    /// Name of the call: `POST /NAME` on the socket makes it.
    const NAME: &'static str;
    const SCOPE: CallScope;
    type Answer: Serialize + DeserializeOwned + Send;

    fn answer(self, admin: &Admin) -> impl Future<Output = Result<Self::Answer>> + Send;
}

/// Services that a call needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallScope {
    /// None: it works on what is stored, if necessary on the data file itself.
    File,
    /// The running service of this node. This text refuses the call if none runs.
    Node(&'static str),
    /// The running services of all nodes, for the messages that each holds in memory; and what is
    /// stored, if none runs.
    AllNodes,
}

/// Reason why a call that came in by its name has no answer.
#[derive(Debug)]
pub enum CallFault {
    Unknown,
    /// It is not written as this version knows it.
    Invalid(serde_json::Error),
    Refused(Refusal),
}

/// Declares the calls: what each does, its name, its arguments, its answer, its scope, and the
/// function that does it, asynchronously (`=>`) or at once (`=`). The arguments are those of the
/// command line too, with its help.
macro_rules! calls {
    ($(
        $(#[$about:meta])*
        $name:literal $call:ident { $($(#[$option:meta])* $field:ident: $type:ty),* $(,)? }
        -> $answer:ty: $scope:ident $(($stopped:literal))? $(=> $waits:path)? $(= $acts:path)?;
    )*) => {
        $(
            #[derive(Debug, Clone, Serialize, Deserialize, Args)]
            $(#[$about])*
            #[serde(rename_all = "camelCase", deny_unknown_fields)]
            pub struct $call {
                $($(#[$option])* pub $field: $type,)*
            }

            impl Call for $call {
                const NAME: &'static str = $name;
                const SCOPE: CallScope = CallScope::$scope $(($stopped))?;
                type Answer = $answer;

                async fn answer(self, admin: &Admin) -> Result<$answer> {
                    admin.serves(Self::SCOPE)?;
                    $($waits(admin, self).await)? $($acts(admin, &self))?
                }
            }
        )*

        impl Admin {
            /// Makes the call of a name, with its arguments and its answer as JSON.
            pub async fn make(&self, name: &str, document: &[u8]) -> Result<Vec<u8>, CallFault> {
                match name {
                    $($name => Box::pin(self.make_one::<$call>(document)).await,)*
                    _ => Err(CallFault::Unknown),
                }
            }
        }
    };
}

calls! {
    /// Add an organisation.
    "organisation-add" OrganisationAdd {
        /// Name: 1 to 64 characters of A-Z, a-z, 0-9, _ and -.
        name: String,
        /// Make it a test organisation: its mail never goes to SES; a simulator in the service answers
        /// instead. This cannot be changed later.
        #[arg(long)]
        #[serde(default, skip_serializing_if = "is_false")]
        test: bool,
    } -> organisation::Organisation: File => organisation::add;

    /// List the organisations.
    "organisation-list" OrganisationList {} -> organisation::Organisations: File = organisation::list;

    /// Limit the recipients that an organisation may send to, in UTC minutes, hours, days and
    /// months. Limits that are not given stay as they are.
    #[command(group(ArgGroup::new("limits").required(true).multiple(true)))]
    "organisation-limit" OrganisationLimit {
        /// Name.
        name: String,
        /// Maximum number of recipients in a minute, or none for no limit.
        #[arg(long, value_name = "N|none", group = "limits")]
        #[serde(default, skip_serializing_if = "Option::is_none")]
        per_minute: Option<String>,
        /// Maximum number of recipients in an hour, or none for no limit.
        #[arg(long, value_name = "N|none", group = "limits")]
        #[serde(default, skip_serializing_if = "Option::is_none")]
        per_hour: Option<String>,
        /// Maximum number of recipients in a day, or none for no limit.
        #[arg(long, value_name = "N|none", group = "limits")]
        #[serde(default, skip_serializing_if = "Option::is_none")]
        per_day: Option<String>,
        /// Maximum number of recipients in a month, or none for no limit.
        #[arg(long, value_name = "N|none", group = "limits")]
        #[serde(default, skip_serializing_if = "Option::is_none")]
        per_month: Option<String>,
        /// Remove each limit that this command does not set.
        #[arg(long, group = "limits")]
        #[serde(default, skip_serializing_if = "is_false")]
        none: bool,
    } -> organisation::Organisation: File => organisation::limit;

    /// Show how many recipients were accepted for each organisation in a month, for example for
    /// billing.
    "organisation-usage" OrganisationUsage {
        /// Month in UTC; the current month if not given.
        #[arg(long, value_name = "YYYY-MM")]
        #[serde(default, skip_serializing_if = "Option::is_none")]
        month: Option<String>,
    } -> organisation::UsageOfMonth: File => organisation::usage;

    /// Remove an organisation with its keys and domains, and cancel its queued messages. Its
    /// records stay.
    "organisation-remove" OrganisationRemove {
        /// Name.
        name: String,
    } -> organisation::OrganisationRemoved: AllNodes => organisation::remove;

    /// Pause an organisation: no call for it starts, and its messages wait. Their time limits still
    /// count.
    "organisation-pause" OrganisationPause {
        /// Name.
        name: String,
        #[command(flatten)]
        #[serde(default)]
        sends: organisation::SendsWhilePaused,
    } -> organisation::OrganisationPaused: AllNodes => organisation::pause;

    /// Resume an organisation: pillarbox continues to send its messages.
    "organisation-resume" OrganisationResume {
        /// Name.
        name: String,
    } -> organisation::OrganisationResumed: AllNodes => organisation::resume;

    /// Create an API key and print it. It is shown only once.
    "key-add" KeyAdd {
        /// Organisation that the key belongs to.
        #[arg(long = "org", value_name = "NAME")]
        organisation: String,
        /// Label, to tell the key from others.
        #[arg(long = "name", value_name = "LABEL", default_value = "")]
        label: String,
        /// Lifetime (90d), or the day on which it expires at 00:00 UTC (2027-01-31); never if not
        /// given.
        #[arg(long, value_name = "DURATION|DATE")]
        expires: Option<String>,
        /// What the key may be used for: send, read or both; both if not given.
        #[arg(long = "scope", value_name = "SCOPES", value_delimiter = ',')]
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        scopes: Vec<String>,
        /// Sender domain that the key is for; repeat the option for several. Every domain of the
        /// organisation if not given.
        #[arg(long = "domain", value_name = "DOMAIN")]
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        domains: Vec<String>,
        /// Priority of messages without a priority of their own; normal if not given.
        #[arg(long, value_name = "PRIORITY", value_parser = PossibleValuesParser::new(Priority::ALL.map(Priority::as_str)))]
        #[serde(default, skip_serializing_if = "Option::is_none")]
        priority: Option<String>,
        /// Time after which messages without an expiry of their own expire: 1m to 7d; never if not given.
        #[arg(long, value_name = "DURATION")]
        #[serde(default, skip_serializing_if = "Option::is_none")]
        message_expires_in: Option<String>,
    } -> key::KeyAdded: File => key::add;

    /// Replace an API key: create one with the same label, scopes, domains, defaults and lifetime,
    /// and print it. The old key still works during the overlap.
    "key-rotate" KeyRotate {
        /// Number of the key, from the list.
        id: u32,
        /// How long the old key still works, unless it expires earlier; 0s ends it at once.
        #[arg(long, value_name = "DURATION", default_value = "24h")]
        overlap: String,
    } -> key::KeyAdded: File => key::rotate;

    /// List the API keys. The keys themselves are not stored.
    "key-list" KeyList {
        /// Only keys of this organisation.
        #[arg(long = "org", value_name = "NAME")]
        organisation: Option<String>,
    } -> key::Keys: File = key::list;

    /// Revoke an API key. It stops working at once.
    "key-revoke" KeyRevoke {
        /// Number of the key, from the list.
        id: u32,
    } -> key::Key: File => key::revoke;

    /// Add a sender domain: create its identity at SES and print the DNS records to publish.
    "domain-add" DomainAdd {
        /// Organisation that sends from the domain.
        #[arg(long = "org", value_name = "NAME")]
        organisation: String,
        /// Domain. Add each sub-domain separately.
        domain: String,
        /// Treat the domain as verified, without asking SES.
        #[arg(long = "assume-verified", action = ArgAction::SetTrue, conflicts_with = "mail_from")]
        #[arg(value_parser = flag(domain::Verification::BySes, domain::Verification::Assumed))]
        verification: domain::Verification,
        /// Sub-domain that receives bounces, instead of SES's own domain, so that SPF passes
        /// for your domain.
        #[arg(long, value_name = "SUBDOMAIN")]
        mail_from: Option<String>,
    } -> domain::DomainReport: File => domain::add;

    /// List the sender domains.
    "domain-list" DomainList {
        /// Only domains of this organisation.
        #[arg(long = "org", value_name = "NAME")]
        organisation: Option<String>,
    } -> domain::Domains: File = domain::list;

    /// Ask SES now whether a domain is verified.
    "domain-check" DomainCheck {
        /// Domain.
        domain: String,
    } -> domain::DomainChecked: File => domain::check;

    /// Remove a sender domain. Queued messages from it fail. Its identity at SES stays.
    "domain-remove" DomainRemove {
        /// Organisation that sends from the domain.
        #[arg(long = "org", value_name = "NAME")]
        organisation: String,
        /// Domain.
        domain: String,
    } -> domain::DomainRemoved: AllNodes => domain::remove;

    /// Suppress addresses.
    #[command(group(ArgGroup::new("whose").required(true).args(["org", "all"])))]
    "suppression-add" SuppressionAdd {
        #[command(flatten)]
        scope: suppression::Scope,
        /// Addresses.
        #[arg(required = true, value_name = "ADDRESS")]
        addresses: Vec<String>,
    } -> suppression::SuppressionChanges: File => suppression::add;

    /// Remove suppressions.
    #[command(group(ArgGroup::new("whose").required(true).args(["org", "all"])))]
    "suppression-remove" SuppressionRemove {
        #[command(flatten)]
        scope: suppression::Scope,
        /// Addresses.
        #[arg(required = true, value_name = "ADDRESS")]
        addresses: Vec<String>,
    } -> suppression::SuppressionChanges: File => suppression::remove;

    /// List suppressions.
    #[command(mut_arg("org", |org| org.help("Only suppressions of this organisation")))]
    #[command(mut_arg("all", |all| all.help("Only suppressions for all organisations")))]
    "suppression-list" SuppressionList {
        #[command(flatten)]
        scope: Option<suppression::Scope>,
        /// Only suppressions of addresses with this text, ignoring case.
        #[arg(long, value_name = "TEXT")]
        #[serde(default, skip_serializing_if = "Option::is_none")]
        search: Option<String>,
        /// Only those behind this one.
        #[arg(skip)]
        after: Option<suppression::SuppressionCursor>,
    } -> suppression::Suppressions: File => suppression::list;

    /// Remove an address from the SES account's own suppression list.
    "suppression-clear-at-ses" SuppressionClearAtSes {
        /// Address.
        address: String,
    } -> suppression::AtSes: File => suppression::clear_at_ses;

    /// Suppress what a list says. Each row is judged for itself. Existing suppressions stay as they
    /// are, so that a list may be imported again.
    "suppression-import" SuppressionImport {
        /// At most [`suppression::MAX_IMPORT_ROWS`].
        #[arg(skip)]
        rows: Vec<suppression::ImportRow>,
        /// Whether good rows are taken in.
        #[arg(skip = suppression::ImportMode::Check)]
        mode: suppression::ImportMode,
    } -> suppression::SuppressionsImported: File => suppression::import;

    /// Show a message with what happened to each recipient.
    "message-show" MessageShow {
        /// Id of the message.
        id: String,
    } -> message::MessageShown: File => message::show;

    /// List messages, newest first.
    #[derive(Default)]
    "message-list" MessageList {
        /// Only messages of this organisation.
        #[arg(long = "org", value_name = "NAME")]
        organisation: Option<String>,
        /// Only messages with this status.
        #[arg(long, value_parser = StatusParser)]
        status: Option<String>,
        /// Only messages with this outcome: the status, or after "sent" what the latest event says.
        #[arg(long, value_parser = PossibleValuesParser::new(MessageOutcome::ALL.map(MessageOutcome::as_str)))]
        #[serde(skip_serializing_if = "Option::is_none")]
        outcome: Option<String>,
        /// Only messages with this text in the address of a recipient, ignoring case.
        #[arg(long, value_name = "TEXT")]
        recipient: Option<String>,
        /// Only messages from an address of this domain.
        #[arg(long, value_name = "DOMAIN")]
        #[serde(skip_serializing_if = "Option::is_none", alias = "sender_domain")]
        sender_domain: Option<String>,
        /// Only messages with each of these words in the subject, in any order, ignoring case.
        #[arg(long, value_name = "WORDS")]
        #[serde(skip_serializing_if = "Option::is_none")]
        subject: Option<String>,
        /// Only messages accepted at or after this time (2027-01-31T12:00:00Z), on or after this
        /// day (2027-01-31), or within this duration (2h for the last two hours).
        #[arg(long = "since", value_name = "TIME")]
        #[serde(skip_serializing_if = "Option::is_none")]
        from: Option<String>,
        /// Only messages accepted before this time or day, or longer ago than this duration.
        #[arg(long, value_name = "TIME")]
        #[serde(skip_serializing_if = "Option::is_none")]
        until: Option<String>,
        /// Only messages with this text: a message id (whole, its first 16 characters, or 8 or more from
        /// its end), a request id, SES's id, an idempotency key, a part of a recipient's address, the
        /// sender's domain, words of the subject, or metadata as NAME:VALUE.
        #[arg(long, value_name = "TEXT")]
        #[serde(skip_serializing_if = "Option::is_none")]
        search: Option<String>,
        /// Count the messages instead, by organisation and outcome.
        #[arg(long)]
        #[serde(default, skip_serializing_if = "is_false")]
        count: bool,
        /// Maximum number of messages to list.
        #[arg(long, default_value = "50")]
        #[arg(value_parser = RangedU64ValueParser::<usize>::new().range(1..=message::MAX_LISTED))]
        limit: usize,
        /// Only messages accepted before the one with this id.
        #[arg(long, value_name = "ID")]
        before: Option<String>,
    } -> message::Messages: File => message::list;

    /// Cancel queued messages: they are not sent. A message whose call to the provider is under way
    /// is not tried again after that call.
    "message-cancel" MessageCancel {
        #[command(flatten)]
        messages: message::QueuedMessages,
    } -> message::MessagesCancelled: AllNodes => message::cancel;

    /// Count the messages that a cancellation would end or keep from another attempt.
    "message-count" MessageCount {
        #[command(flatten)]
        messages: message::QueuedMessages,
    } -> message::MessagesCounted: AllNodes => message::count;

    /// List dead letters, newest first.
    "dead-letter-list" DeadLetterList {} -> dead_letter::DeadLetters: File => dead_letter::list;

    /// Show a dead letter with its document.
    "dead-letter-show" DeadLetterShow {
        /// Id, or the beginning of the id.
        id: String,
    } -> dead_letter::DeadLetterShown: File => dead_letter::show;

    /// Delete dead letters. pillarbox deletes the remaining ones after 90 days.
    "dead-letter-clear" DeadLetterClear {
        #[command(flatten)]
        letters: dead_letter::Letters,
    } -> dead_letter::DeadLettersCleared: File => dead_letter::clear;

    /// Add an endpoint, and print the secret that signs its deliveries. It is shown only once.
    "webhook-add" WebhookAdd {
        /// Organisation of the events.
        #[arg(long = "org", value_name = "NAME")]
        organisation: String,
        /// URL to which pillarbox posts events, https or http.
        url: String,
        /// Types of events, such as email.bounce,email.complaint; all types if not given. With --format
        /// resend, Resend's names, such as email.bounced, are accepted too.
        #[arg(long, value_name = "TYPES", value_delimiter = ',')]
        types: Vec<String>,
        /// Format of the events; the format of the feed if not given.
        #[arg(long, value_name = "FORMAT", value_parser = PossibleValuesParser::new(WebhookFormat::ALL.map(WebhookFormat::as_str)))]
        #[serde(default, skip_serializing_if = "Option::is_none")]
        format: Option<String>,
        /// Certificates in PEM that the endpoint's own is checked against; the system's roots if not
        /// given.
        #[arg(skip)]
        authority: Option<String>,
    } -> webhook::WebhookSecret: File => webhook::add;

    /// List the endpoints with the state of their deliveries.
    "webhook-list" WebhookList {
        /// Only endpoints of this organisation.
        #[arg(long = "org", value_name = "NAME")]
        organisation: Option<String>,
    } -> webhook::Webhooks: File = webhook::list;

    /// Show an endpoint with its last 100 attempts since the start of the service, and the
    /// beginning of each answer.
    "webhook-show" WebhookShow {
        /// Number of the endpoint, from the list.
        id: u32,
    } -> webhook::WebhookShown: File = webhook::show;

    /// Remove an endpoint. It does not get the events that still wait for it.
    "webhook-remove" WebhookRemove {
        /// Number of the endpoint, from the list.
        id: u32,
    } -> webhook::Webhook: File => webhook::remove;

    /// Stop deliveries to an endpoint. Its events wait.
    "webhook-pause" WebhookPause {
        /// Number of the endpoint, from the list.
        id: u32,
    } -> webhook::Webhook: File => webhook::pause;

    /// Continue the deliveries to a paused endpoint.
    "webhook-resume" WebhookResume {
        /// Number of the endpoint, from the list.
        id: u32,
    } -> webhook::Webhook: File => webhook::resume;

    /// Create a new secret and print it. Earlier secrets still sign for 24 hours; at most 5 secrets
    /// sign at the same time.
    "webhook-rotate" WebhookRotate {
        /// Number of the endpoint, from the list.
        id: u32,
        /// End the earlier secrets at once, for example if others have read one.
        #[arg(long)]
        #[serde(default, skip_serializing_if = "is_false")]
        now: bool,
    } -> webhook::WebhookSecret: File => webhook::rotate;

    /// Ask an endpoint whether it is there, without an event.
    "webhook-reach" WebhookReach {
        /// Number of the endpoint, from the list.
        id: u32,
    } -> webhook::WebhookReached: File => webhook::reach;

    /// Send the event email.test to an endpoint, and print its answer.
    "webhook-test" WebhookTest {
        /// Number of the endpoint, from the list.
        id: u32,
    } -> webhook::WebhookTested: File => webhook::test;

    /// List deliveries to an endpoint: the last ones, those that wait for their next attempt, and
    /// those that failed.
    "webhook-delivery-list" WebhookDeliveryList {
        /// Number of the endpoint, from the list.
        id: u32,
        /// Only those that failed for good.
        #[arg(long = "failed", action = ArgAction::SetTrue)]
        #[arg(value_parser = flag(webhook::WhichDeliveries::All, webhook::WhichDeliveries::Failed))]
        which: webhook::WhichDeliveries,
    } -> webhook::WebhookDeliveryPage: File => webhook::deliveries;

    /// Deliver events again: all since a time, or one.
    "webhook-replay" WebhookReplay {
        /// Number of the endpoint, from the list.
        id: u32,
        #[command(flatten)]
        events: webhook::ReplayedEvents,
    } -> webhook::WebhookReplayed: File => webhook::replay;

    /// List the nodes on the database, as the node on this machine sees them.
    "node-list" NodeList {} -> node::Nodes: File = node::list;

    /// Make a node send the messages that it holds and accept no new ones. You can stop it without
    /// loss once it holds none. After its next start, it accepts messages again.
    "node-drain" NodeDrain {
        /// Name of the node (`cluster.node`).
        name: String,
        /// Make it accept messages again.
        #[arg(long = "undo", action = ArgAction::SetTrue)]
        #[arg(value_parser = flag(DrainOrder::Begin, DrainOrder::End))]
        drain: DrainOrder,
    } -> NodeDrain: File => node::drain;

    /// Remove a node whose machine is gone, so that its messages fail at once instead of after
    /// `cluster.dead_after`.
    "node-forget" NodeForget {
        /// Name of the node (`cluster.node`).
        name: String,
    } -> NodeForget: File => node::forget;

    /// Tell which data directory the service works on.
    "identify" Identify {} -> Identity: Node("no data directory is known here") = identity::identify;

    /// Have the running service execute the installed program in its own place.
    "restart" Restart {} -> restart::RestartBegun:
        Node("no service is running, so there is none to restart; start it") => restart::begin;

    /// Tell which program answers.
    "running-program" AskRunningProgram {} -> restart::RunningProgram:
        Node("no service is running, so there is none to restart; start it") = restart::running;

    /// Show the bodies of pending messages, and what they survive.
    "bodies-show" BodiesShow {} -> bodies::Bodies:
        Node("no service is running, so no process has bodies; start it") = bodies::show;

    /// Discard bodies of an earlier process that cannot be used and that the service manager still
    /// keeps. Their messages have failed or will fail.
    "bodies-drop" BodiesDrop {} -> bodies::BodiesDropped:
        Node("no service is running, so no process has bodies; start it") = bodies::drop_unreadable;

    /// Show how the service is doing.
    "status" Status {} -> status::ServiceStatus: File => status::status;

    /// Confirm that the lost messages have been seen.
    "acknowledge" Acknowledge {} -> status::Acknowledged: File => status::acknowledge;

    /// Show the address that opens the operator's page.
    "page" Page {} -> status::PageAddress: Node(
        "no service is running, so there is no page; start it with `pillarbox serve`"
    ) = status::page;

    /// Confirm that the clock's time is right. Records and idempotency keys that are expired by this
    /// time are deleted. Messages that were accepted while the clock was in doubt are kept for
    /// their whole time.
    "clock-confirm" ClockConfirm {} -> status::ClockConfirmed: Node(
        "no service is running, so there is nothing to confirm; start the service, and confirm the \
         clock if `pillarbox status` says that it is in doubt"
    ) => status::confirm_clock;

    /// Examine a part of the set-up with the service's own credentials and clock.
    "examine" Examine {
        /// Part.
        #[arg(skip = checks::Part::Account)]
        part: checks::Part,
    } -> checks::Examined: Node("no service is running that could be examined") => checks::examine;

    /// Post a test to the receiver of alerts, and tell its answer.
    "alerts-test" AlertsTest {} -> alerts::AlertsTested: Node(
        "no service is running that could post a test: start it and try again"
    ) => alerts::test;

    /// Send a message to SES's mailbox simulator, the way that all messages go.
    "test-send" TestSend {
        /// Sender; an address of the first verified domain if not given.
        #[arg(skip)]
        from: Option<String>,
        /// Form in which SES gets the message.
        #[arg(skip)]
        #[serde(default)]
        form: test_send::MessageForm,
    } -> test_send::TestSent: Node(
        "no service is running, and only a running service sends: start it and try again"
    ) => test_send::send;
}

/// Administration that answers all calls.
pub struct Admin {
    store: Store,
    clock: Clock,
    /// Proxy of calls to endpoints of webhooks.
    pub webhooks_proxy: ProxyRule,
    /// The running service; `None` if the calls are answered on the file itself.
    service: Option<Service>,
}

/// A running service, in whose process the calls are answered.
struct Service {
    ses: SesClient,
    live: Arc<dyn LiveView>,
    started: Instant,
    facts: Option<ServiceFacts>,
}

/// Facts that a running service reports about itself, and checks that it runs on itself.
#[derive(Debug)]
pub struct ServiceFacts {
    /// Address at which clients are served, on a socket of our own or an inherited one.
    pub clients: SocketAddr,
    /// Address of the API in Resend's shape; `None` if it is off.
    pub resend: Option<SocketAddr>,
    /// Listeners at which messages are submitted over SMTP.
    pub smtp: Vec<SmtpListener>,
    pub intake: Arc<Intake>,
    /// URL of the queue by which their events come back, if there is one.
    pub events_queue: Option<String>,
    /// The address of the operators' page, with what opens it.
    pub page: SecretString,
    pub bodies: Arc<BodyFacts>,
    pub alerts: Arc<Alerts>,
    pub restarts: Arc<Restarts>,
    /// Identity that commands check before they act, so that they reach the service they mean.
    pub identity: Identity,
}

impl Admin {
    /// The administration in a process that only has the file open.
    pub fn on_file(store: Store, clock: Clock) -> Self {
        Self { store, clock, webhooks_proxy: ProxyRule::Direct, service: None }
    }

    /// The administration in a running service. Without `facts`, it cannot be examined, and
    /// commands cannot identify it.
    pub fn in_service(
        store: Store,
        clock: Clock,
        ses: SesClient,
        live: Arc<dyn LiveView>,
        facts: Option<ServiceFacts>,
    ) -> Self {
        let service = Service { ses, live, started: Instant::now(), facts };
        Self { service: Some(service), ..Self::on_file(store, clock) }
    }

    /// This moment of everything that is stored.
    pub async fn snapshot(&self) -> Result<Snapshot> {
        if self.store.is_shared() {
            return Err(Refusal::new(
                "the store is on PostgreSQL: back up its database with PostgreSQL's own tools, such as \
                 pg_dump or pgBackRest",
            ));
        }
        Ok(self.store.snapshot().await?)
    }

    async fn make_one<C: Call>(&self, document: &[u8]) -> Result<Vec<u8>, CallFault> {
        let call: C = serde_json::from_slice(document).map_err(CallFault::Invalid)?;
        let answer = call.answer(self).await.map_err(CallFault::Refused)?;
        Ok(serde_json::to_vec(&answer).expect("an answer's maps have text as keys"))
    }

    /// Refuses a call that needs a running service, if none runs.
    fn serves(&self, scope: CallScope) -> Result<()> {
        match scope {
            CallScope::Node(stopped) if self.service.is_none() => Err(Refusal::new(stopped)),
            CallScope::File | CallScope::Node(_) | CallScope::AllNodes => Ok(()),
        }
    }

    /// State and actions of the running service; `None` if none runs.
    fn live(&self) -> Option<&Arc<dyn LiveView>> {
        self.service.as_ref().map(|service| &service.live)
    }

    /// Address at which clients are served, if a running service reports it.
    pub fn client_address(&self) -> Option<SocketAddr> {
        self.facts().ok().map(|facts| facts.clients)
    }

    /// Facts that the running service reports about itself.
    fn facts(&self) -> Result<&ServiceFacts> {
        let facts = self.service.as_ref().and_then(|service| service.facts.as_ref());
        facts.ok_or_else(|| Refusal::new("this needs a running service; start it first"))
    }

    fn ses(&self, advice: &str) -> Result<&SesClient> {
        self.service.as_ref().map(|service| &service.ses).ok_or_else(|| {
            Refusal::new(format!("no service is running, and only the service asks SES: {advice}"))
        })
    }
}
