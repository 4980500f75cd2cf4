//! Conditions: everything that can be wrong, in one list, with the thresholds and windows.
//!
//! Readiness, the page and `status` read this list, which also says how bad each is.
//! `docs/conditions.md` is made from it, and a test compares it with `monitoring/alerts.yml`.

use std::time::Duration;

use serde::Serialize;

use crate::admin::live::{self, Severity};
use crate::dispatch::circuit_breaker::Cause;
use crate::dispatch::recent_calls;
use crate::error_chain::without_full_stop;
use crate::http::tls::CertificateFault;
use crate::quota::AccountFault;

/// How far back the conditions of the last minutes look.
pub const LATELY: Duration = recent_calls::WINDOW;
/// Fewer slow or throttled calls, or slow commits, than this are no trend.
pub const FEW: u64 = recent_calls::FEW;
/// SES throttles if it does so with more than one call in so many.
pub const THROTTLED_ONE_IN: u64 = recent_calls::ONE_IN;
/// Commits are slow if more than one in so many is.
pub const SLOW_COMMIT_ONE_IN: u64 = 100;
/// How long a store that takes writes again is still told of: on a disk with a little room left it
/// fails and recovers by turns, many times a second.
pub const STORE_FAILED: Duration = Duration::from_mins(1);
/// A provider that does not answer is a warning until it has not for so long.
pub const UNREACHABLE: Duration = Duration::from_mins(1);
/// The queue is stuck if messages wait and none is sent for so long.
pub const STUCK: Duration = Duration::from_mins(15);
/// The part of a limit above which it is nearly reached.
pub const NEAR_LIMIT: f64 = 0.8;
/// The part of the daily quota below which little is left.
pub const QUOTA_LOW: f64 = 0.1;
/// How much longer than its retention a record may be there before the purge is behind.
pub const PURGE_SLACK: Duration = Duration::from_hours(24);
/// How far back an organisation's bounces and complaints count.
pub const DAY: Duration = Duration::from_hours(24);
/// Bounces and complaints from which SES reviews an account.
pub const BOUNCES: Limit = Limit { permille: 50, least: 100 };
/// See [`BOUNCES`].
pub const COMPLAINTS: Limit = Limit { permille: 1, least: 1_000 };

/// The share of recipients from which SES reviews an account, and the fewest recipients of whom a
/// share says something (AWS: "Sending review process FAQs").
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Limit {
    /// The share, in thousandths. A condition begins at half of it.
    pub permille: u64,
    /// The fewest recipients.
    pub least: u64,
}

/// Something that is wrong.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Condition {
    /// A name for programs.
    pub code: &'static str,
    /// What is wrong.
    pub message: String,
    /// What to do.
    pub advice: String,
    /// How bad it is.
    pub severity: Severity,
    /// Whether the service is ready all the same.
    #[serde(rename = "ready")]
    pub readiness: Readiness,
}

impl From<Condition> for live::Condition {
    fn from(Condition { code, message, advice, severity, readiness }: Condition) -> Self {
        Self { code: code.to_owned(), message, advice, severity, ready: readiness.into() }
    }
}

/// Something that can be wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The service stops.
    Stopping,
    /// An operator drains this node.
    Draining,
    /// No commit succeeds.
    StoreRefusing,
    /// Some commits fail.
    StoreFailing,
    /// The data file is not the one that was opened.
    DataFileLost,
    /// The provider does not take messages.
    SendingPaused(Cause),
    /// The provider does not answer, for less than [`UNREACHABLE`].
    Unanswered,
    /// AWS has not been asked yet.
    Starting,
    /// The AWS credentials are at fault.
    Account(AccountFault),
    /// They have been since the start.
    NoCredentialsYet(AccountFault),
    /// No message finds room.
    QueueFull,
    /// Large messages find no room.
    QueueNearlyFull,
    /// Messages of some organisations find no room.
    QueueShareFull,
    /// The queue, or an organisation's share of it, fills up.
    QueueFilling,
    /// Messages wait and none is sent.
    QueueStuck,
    /// Requests are refused for want of memory.
    RequestsRefused,
    /// The wall clock is in doubt.
    ClockJumped,
    /// Another node gives no sign of life.
    NodeSilent,
    /// Commits no longer wait for a standby.
    StandbyLost,
    /// No answer of the database comes by a connection.
    DatabaseSilent,
    /// This machine's clock and the database's differ.
    ClocksDiffer,
    /// Calls for an organisation fail, and others do not.
    OrganisationPaused,
    /// The provider refuses messages of an organisation alike.
    RefusalsHeld,
    /// The provider refuses a sender's domain.
    DomainPaused,
    /// Calls take long.
    ProviderSlow,
    /// It is not known what came of calls.
    OutcomesUnknown,
    /// The provider gives errors that do not blame the message, nor say more.
    UnexpectedAnswers,
    /// SES throttles calls.
    Throttled,
    /// Messages fail.
    MessagesFailed,
    /// No event can be received.
    EventsUnavailable,
    /// Event documents cannot be read.
    EventsUnreadable,
    /// The certificate is at fault.
    Certificate(CertificateFault),
    /// Outcomes of calls are not stored yet.
    OutcomesUnrecorded,
    /// Rows cannot be read.
    RowsDamaged,
    /// Little of the daily quota is left.
    QuotaLow,
    /// Many client connections are open.
    ConnectionsNearLimit,
    /// Many files are open.
    FilesNearLimit,
    /// The process ended before it sent messages.
    BodiesLost,
    /// Bodies of an earlier process cannot be used.
    BodiesUnusable,
    /// Pending messages have less memory than the configuration says.
    QueueLowered,
    /// Records are past their retention.
    PurgeBehind,
    /// Requests fail by a fault in the service.
    InternalErrors,
    /// A background task panicked, or ended.
    TaskFailed,
    /// Commits take long.
    CommitsSlow,
    /// An organisation's mail bounces.
    Bounces,
    /// An organisation's mail is complained about.
    Complaints,
    /// An endpoint does not take events.
    WebhookFailing,
    /// An endpoint wants no more events.
    WebhookGone,
    /// Messages do not turn tracking off for themselves.
    TrackingNotOverridden,
}

/// A kind of condition in the list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Definition {
    /// A name for programs.
    pub code: &'static str,
    /// Whether requests can be accepted durably, and this instance's set-up lets it send them.
    pub readiness: Readiness,
    /// How bad it is.
    pub severity: Severity,
    /// What is wrong.
    pub meaning: &'static str,
    /// What to do. A word in capitals stands for a name.
    pub advice: &'static str,
    /// The alert rules in `monitoring/alerts.yml` that fire for it.
    pub alerts: Alerts,
}

/// Whether requests can be accepted durably, and this instance's set-up lets it send them. What the
/// provider, the account, an organisation or a domain suffers from never ends readiness: messages
/// wait in the queue, and behind a load balancer none could arrive that shows that it is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(into = "bool")]
pub enum Readiness {
    /// They can.
    Ready,
    /// They cannot.
    NotReady,
}

impl From<Readiness> for bool {
    fn from(readiness: Readiness) -> Self {
        readiness == Readiness::Ready
    }
}

/// Alert rules for a condition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Alerts {
    /// Their names, each with its severity: critical conditions page, warnings are tickets.
    Rules(&'static [(&'static str, AlertSeverity)]),
    /// There is none, for this reason.
    None(&'static str),
}

/// Severity of an alert.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AlertSeverity {
    /// No mail flows, or mail is being lost.
    Page,
    /// One organisation, domain or endpoint is affected, or a limit is near.
    Ticket,
}

use AlertSeverity::{Page, Ticket};
use Alerts::Rules;
use Readiness::{NotReady, Ready};
use Severity::{Critical, Notice, Warning};

const CREDENTIALS_ALERT: Alerts = Rules(&[("PillarboxCredentialsUnusable", Page)]);
const QUEUE_ALERT: Alerts = Rules(&[("PillarboxQueueFilling", Ticket)]);
const QUEUE_ADVICE: &str = "See to the provider, or raise sending.max_pending_bytes";
const LIMIT_ALERT: Alerts = Rules(&[("PillarboxConnectionsNearLimit", Ticket)]);

impl Kind {
    /// Every kind, the worst first.
    pub const ALL: [Self; 60] = [
        Self::Stopping,
        Self::Draining,
        Self::StoreRefusing,
        Self::StoreFailing,
        Self::DataFileLost,
        Self::SendingPaused(Cause::Unreachable),
        Self::SendingPaused(Cause::QuotaExhausted),
        Self::SendingPaused(Cause::AccountPaused),
        Self::SendingPaused(Cause::SetupFault),
        Self::SendingPaused(Cause::ClockWrong),
        Self::Unanswered,
        Self::Starting,
        Self::Account(AccountFault::CredentialsMissing),
        Self::Account(AccountFault::CredentialsRefused),
        Self::Account(AccountFault::ClockWrong),
        Self::Account(AccountFault::AccessDenied),
        Self::NoCredentialsYet(AccountFault::CredentialsMissing),
        Self::NoCredentialsYet(AccountFault::CredentialsRefused),
        Self::NoCredentialsYet(AccountFault::ClockWrong),
        Self::QueueFull,
        Self::QueueNearlyFull,
        Self::QueueShareFull,
        Self::QueueFilling,
        Self::QueueStuck,
        Self::RequestsRefused,
        Self::ClockJumped,
        Self::NodeSilent,
        Self::StandbyLost,
        Self::DatabaseSilent,
        Self::ClocksDiffer,
        Self::OrganisationPaused,
        Self::RefusalsHeld,
        Self::DomainPaused,
        Self::ProviderSlow,
        Self::OutcomesUnknown,
        Self::UnexpectedAnswers,
        Self::Throttled,
        Self::MessagesFailed,
        Self::EventsUnavailable,
        Self::EventsUnreadable,
        Self::Certificate(CertificateFault::Expired),
        Self::Certificate(CertificateFault::Expires),
        Self::Certificate(CertificateFault::Refused),
        Self::OutcomesUnrecorded,
        Self::RowsDamaged,
        Self::QuotaLow,
        Self::ConnectionsNearLimit,
        Self::FilesNearLimit,
        Self::BodiesLost,
        Self::BodiesUnusable,
        Self::QueueLowered,
        Self::PurgeBehind,
        Self::InternalErrors,
        Self::TaskFailed,
        Self::CommitsSlow,
        Self::Bounces,
        Self::Complaints,
        Self::WebhookFailing,
        Self::WebhookGone,
        Self::TrackingNotOverridden,
    ];

    /// The list.
    #[expect(clippy::too_many_lines, reason = "one list, with an entry for each kind")]
    pub const fn definition(self) -> Definition {
        let (code, readiness, severity, alerts, meaning, advice) = match self {
            Self::Stopping => (
                "stopping",
                NotReady,
                Notice,
                Alerts::None("Somebody stops the service; PillarboxDown fires if it stays away"),
                "The service is stopping: new messages are refused",
                "Wait for its next start",
            ),
            Self::Draining => (
                "draining",
                NotReady,
                Notice,
                Alerts::None("Somebody drains the node; the other nodes accept messages"),
                "An operator drains this node: after five seconds, in which load balancers notice, it accepts \
                 no new messages; it sends what it holds",
                "Stop it once it holds none, or end the drain with: pillarbox node drain --undo NODE",
            ),
            Self::StoreRefusing => (
                "store_refusing",
                NotReady,
                Critical,
                Rules(&[("PillarboxStoreRefusesWrites", Page)]),
                "The store refuses writes: requests are answered with 503 and nothing is sent",
                "Make room on the disk, or repair it; the store then goes on by itself",
            ),
            Self::StoreFailing => (
                "store_refusing",
                Ready,
                Critical,
                Rules(&[("PillarboxStoreRefusesWrites", Page)]),
                "The store refuses writes now and then: some requests are answered with 503",
                "Make room on the disk, or repair it: small writes may pass where large ones do not",
            ),
            Self::DataFileLost => (
                "data_file_lost",
                NotReady,
                Critical,
                Rules(&[("PillarboxDataFileLost", Page)]),
                "The data file is gone, replaced or written over: new messages are refused with 503",
                "Save what the service holds with: pillarbox backup FILE. Do not restart it before",
            ),
            Self::SendingPaused(cause) => {
                let (meaning, advice) = cause.explained();
                let alerts = Rules(&[("PillarboxSendingPaused", Page)]);
                (cause.code(), Ready, Critical, alerts, meaning, advice)
            }
            Self::Unanswered => {
                let (meaning, advice) = Cause::Unreachable.explained();
                let alerts = Alerts::None("PillarboxSendingPaused fires if it lasts for a minute");
                (Cause::Unreachable.code(), Ready, Warning, alerts, meaning, advice)
            }
            Self::Starting => (
                "starting",
                NotReady,
                Notice,
                Alerts::None("It is over within 20 seconds, or another condition takes its place"),
                "AWS has not answered yet whether the credentials are good",
                "Wait a few seconds",
            ),
            Self::Account(fault) => {
                let (meaning, advice) = fault.explained();
                let (severity, alerts) = match fault {
                    AccountFault::CredentialsMissing
                    | AccountFault::CredentialsRefused
                    | AccountFault::ClockWrong => (Critical, CREDENTIALS_ALERT),
                    AccountFault::AccessDenied => {
                        (Warning, Rules(&[("PillarboxAccountAccessDenied", Ticket)]))
                    }
                };
                (fault.code(), Ready, severity, alerts, meaning, advice)
            }
            Self::NoCredentialsYet(fault) => {
                let (meaning, advice) = fault.explained();
                (fault.code(), NotReady, Critical, CREDENTIALS_ALERT, meaning, advice)
            }
            Self::QueueFull => (
                "queue_full",
                Ready,
                Warning,
                QUEUE_ALERT,
                "The queue is full: new messages are refused with 503 QueueFull",
                QUEUE_ADVICE,
            ),
            Self::QueueNearlyFull => (
                "queue_nearly_full",
                Ready,
                Warning,
                QUEUE_ALERT,
                "The queue is nearly full: large messages may be refused with 503 QueueFull",
                QUEUE_ADVICE,
            ),
            Self::QueueShareFull => (
                "queue_share_full",
                Ready,
                Warning,
                QUEUE_ALERT,
                "The queue is full for an organisation: its new messages are refused with 503 \
                 QueueFull",
                QUEUE_ADVICE,
            ),
            Self::QueueFilling => (
                "queue_filling",
                Ready,
                Warning,
                QUEUE_ALERT,
                "The queue, or an organisation's share of it, fills up",
                "Mail comes in faster than it goes out. See to the provider or its rate, or raise \
                 sending.max_pending_bytes",
            ),
            Self::QueueStuck => (
                "queue_stuck",
                Ready,
                Critical,
                Rules(&[("PillarboxQueueStuck", Page)]),
                "Messages wait, and none was sent for 15 minutes",
                "See why: pillarbox message list --status queued",
            ),
            Self::RequestsRefused => (
                "requests_refused",
                Ready,
                Warning,
                Rules(&[("PillarboxRefusesForWantOfRoom", Ticket)]),
                "Requests were refused with 503 QueueFull",
                "A memory limit, or an organisation's share of one, is used up. If the queue has \
                 room, clients send bodies too slowly or do not read responses (max_reading_bytes, \
                 max_writing_bytes)",
            ),
            Self::ClockJumped => (
                "clock_jumped",
                Ready,
                Warning,
                Rules(&[("PillarboxClockJumped", Ticket)]),
                "The wall clock is in doubt: nothing is purged and no idempotency key expires",
                "Set the clock right; on PostgreSQL, the database's. If it is right, confirm it: \
                 pillarbox clock confirm",
            ),
            Self::NodeSilent => (
                "node_silent",
                Ready,
                Warning,
                Rules(&[("PillarboxNodeSilent", Ticket)]),
                "Another node has given no sign of life for 20 seconds; the other nodes go on",
                "Start it again; its messages fail once cluster.dead_after is over. If its machine \
                 is gone for good: pillarbox node forget NODE",
            ),
            Self::StandbyLost => (
                "standby_lost",
                Ready,
                Warning,
                Rules(&[("PillarboxStandbyLost", Ticket)]),
                "Commits no longer wait for a standby: if the database's machine is lost, accepted \
                 messages are lost with it",
                "Bring the standby back. synchronous_standby_names of the primary names it again then",
            ),
            Self::DatabaseSilent => (
                "database_silent",
                Ready,
                Warning,
                Alerts::None(
                    "The node uses another connection; if that does not help, \
                     PillarboxStoreRefusesWrites or an alert on what waits fires",
                ),
                "The database gave no answer in time by one connection of this node, now or in the last \
                 minute, though it answers by others",
                "It is closed, and another one made. If this goes on, look for a process of the \
                 database that hangs (pg_stat_activity), and at what is between it and this machine",
            ),
            Self::ClocksDiffer => (
                "clocks_differ",
                Ready,
                Warning,
                Rules(&[("PillarboxClocksDiffer", Ticket)]),
                "This machine's clock and the database's differ by more than 5 seconds",
                "Have a time daemon keep both, such as chrony. Messages have the database's times, but \
                 AWS refuses calls of a machine whose clock is wrong by more than five minutes",
            ),
            Self::OrganisationPaused => (
                "organisation_paused",
                Ready,
                Warning,
                Rules(&[("PillarboxOrganisationPaused", Ticket)]),
                "All calls for an organisation fail, and others do not; its messages wait",
                "They are tried one at a time. See what it sends: pillarbox message list --status \
                 queued --org ORG",
            ),
            Self::RefusalsHeld => (
                "refusals_held",
                Ready,
                Warning,
                Rules(&[("PillarboxRefusalsHeld", Ticket)]),
                "The provider refused five messages of an organisation in a row in the same words; \
                 such messages wait until one of it is accepted",
                "Put right what it says, or cancel: pillarbox message list --status queued --org ORG",
            ),
            Self::DomainPaused => (
                "domain_paused",
                Ready,
                Warning,
                Rules(&[("PillarboxDomainPaused", Ticket)]),
                "The provider does not take a sender's domain; its messages wait",
                "Check it with: pillarbox domain check DOMAIN",
            ),
            Self::ProviderSlow => (
                "provider_slow",
                Ready,
                Warning,
                Rules(&[("PillarboxProviderSlow", Ticket)]),
                "More than one call in twenty to the provider takes over 2.5 seconds",
                "Check the network, and the AWS Health Dashboard",
            ),
            Self::OutcomesUnknown => (
                "outcomes_unknown",
                Ready,
                Warning,
                Rules(&[("PillarboxOutcomesUnknown", Ticket)]),
                "Calls got no answer, or a server's error: the provider may have the messages",
                "Check the network to SES: such messages may be sent twice, or not, as \
                 sending.on_unknown says",
            ),
            Self::UnexpectedAnswers => (
                "unexpected_answers",
                Ready,
                Warning,
                Alerts::None("If no mail goes out because of it, PillarboxSendingPaused fires"),
                "The provider answered calls with errors that do not blame the message, nor say more",
                "See the messages: pillarbox message list --status queued. Check ses.endpoint",
            ),
            Self::Throttled => (
                "throttled",
                Ready,
                Warning,
                Rules(&[("PillarboxThrottled", Ticket)]),
                "SES throttles more than one call in twenty",
                "Something else sends from the same account, or sending.max_rate is above what it \
                 allows",
            ),
            Self::MessagesFailed => (
                "messages_failed",
                Ready,
                Warning,
                Rules(&[("PillarboxMessagesFail", Ticket)]),
                "Messages failed",
                "See why: pillarbox message list --status failed --org ORG",
            ),
            Self::EventsUnavailable => (
                "events_unavailable",
                Ready,
                Warning,
                Rules(&[("PillarboxEventsUnavailable", Ticket)]),
                "Delivery events cannot be had; bounces and complaints suppress nobody meanwhile",
                "Check [ses.events], the credentials' permissions and the network: pillarbox doctor",
            ),
            Self::EventsUnreadable => (
                "events_unreadable",
                Ready,
                Warning,
                Rules(&[("PillarboxEventsUnreadable", Ticket)]),
                "Documents of the provider could not be read in full, and are kept as dead letters",
                "See them: pillarbox dead-letter list. Suppress recipients that were not read, and see \
                 what else writes to the queue; then clear them: pillarbox dead-letter clear",
            ),
            Self::Certificate(fault) => {
                let (meaning, advice) = fault.explained();
                let alerts = match fault {
                    CertificateFault::Expired | CertificateFault::Expires => {
                        Rules(&[("PillarboxCertificateExpires", Ticket)])
                    }
                    CertificateFault::Refused => Rules(&[("PillarboxCertificateRefused", Ticket)]),
                };
                (fault.code(), Ready, Warning, alerts, meaning, advice)
            }
            Self::OutcomesUnrecorded => (
                "outcomes_unrecorded",
                Ready,
                Notice,
                Alerts::None(
                    "The store refuses writes then, and PillarboxStoreRefusesWrites fires",
                ),
                "Outcomes of calls wait for the store",
                "They are stored as soon as it takes writes; do not end the process before",
            ),
            Self::RowsDamaged => (
                "rows_damaged",
                Ready,
                Warning,
                Rules(&[("PillarboxRowsDamaged", Ticket)]),
                "Rows of the data file cannot be read",
                "See them with: pillarbox status. Check the disk, then restore a backup, or add \
                 again what is missing",
            ),
            Self::QuotaLow => (
                "quota_low",
                Ready,
                Warning,
                Rules(&[("PillarboxQuotaLow", Ticket)]),
                "Less than a tenth of the account's daily quota is left",
                "Find out who sends more than usual; ask AWS for a higher quota",
            ),
            Self::ConnectionsNearLimit => (
                "connections_near_limit",
                Ready,
                Warning,
                LIMIT_ALERT,
                "More than four fifths of max_connections are open, of HTTP and SMTP together",
                "See who opens them; raise max_connections and the limit of open files together",
            ),
            Self::FilesNearLimit => (
                "files_near_limit",
                Ready,
                Warning,
                LIMIT_ALERT,
                "More than four fifths of the process's file descriptors are open",
                "See who opens connections; raise the limit of open files (LimitNOFILE)",
            ),
            Self::BodiesLost => (
                "bodies_lost",
                Ready,
                Warning,
                Rules(&[("PillarboxBodiesLost", Ticket)]),
                "The process ended before it sent messages; that mail has failed",
                "List it: pillarbox message list --status failed. Its senders have to post it again \
                 with new keys. Then run: pillarbox status --acknowledge",
            ),
            Self::BodiesUnusable => (
                "bodies_unusable",
                Ready,
                Warning,
                Rules(&[("PillarboxBodiesUnusable", Ticket)]),
                "Bodies of an earlier process cannot be used; their messages have failed",
                "If a newer version made them, install it again. Otherwise give them up, so that those \
                 of this process can be kept: pillarbox bodies drop",
            ),
            Self::QueueLowered => (
                "queue_lowered",
                Ready,
                Notice,
                Alerts::None("It follows from the configuration and the memory limit alone"),
                "The memory limit of the service's cgroup leaves less for pending messages than \
                 sending.max_pending_bytes",
                "Raise MemoryMax= of pillarbox.service and pillarbox.slice, or lower \
                 sending.max_pending_bytes, max_reading_bytes or max_writing_bytes",
            ),
            Self::PurgeBehind => (
                "purge_behind",
                Ready,
                Warning,
                Rules(&[("PillarboxPurgeBehind", Ticket)]),
                "Records are kept for longer than 90 days",
                "See the log for why the purge waits: a clock in doubt, or a full disk",
            ),
            Self::InternalErrors => (
                "internal_errors",
                Ready,
                Warning,
                Rules(&[("PillarboxInternalErrors", Ticket)]),
                "Requests failed by a fault in the service",
                "Look for errors in the log, and report them with the request id",
            ),
            Self::TaskFailed => (
                "task_failed",
                Ready,
                Warning,
                Rules(&[("PillarboxTaskFails", Ticket)]),
                "A background task failed by a fault in the service; it begins again by itself",
                "Look for errors in the log, and report them. If it fails again and again, restart the \
                 service: pillarbox restart",
            ),
            Self::CommitsSlow => (
                "commits_slow",
                Ready,
                Warning,
                Rules(&[("PillarboxCommitsSlow", Ticket)]),
                "More than one commit in a hundred takes over half a second",
                "The disk is slow or shared, and every acceptance waits for it: see what else uses \
                 it",
            ),
            Self::Bounces => (
                "bounces",
                Ready,
                Warning,
                Rules(&[
                    ("PillarboxBounceRateHigh", Ticket),
                    ("PillarboxBounceRateAboveLimit", Ticket),
                ]),
                "An organisation's bounces of the last 24 hours, of mail to at least 100 recipients, are \
                 above half of SES's limit of 5 %",
                "Its list is old or its sign-up unchecked. To stop it, revoke its key",
            ),
            Self::Complaints => (
                "complaints",
                Ready,
                Warning,
                Rules(&[
                    ("PillarboxComplaintRateHigh", Ticket),
                    ("PillarboxComplaintRateAboveLimit", Ticket),
                ]),
                "An organisation's complaints of the last 24 hours, about mail to at least 1000 \
                 recipients, are above half of SES's limit of 0.1 %",
                "Find out what it sends, and to whom. To stop it, revoke its key",
            ),
            Self::WebhookFailing => (
                "webhook_failing",
                Ready,
                Warning,
                Rules(&[("PillarboxWebhookFailing", Ticket)]),
                "An endpoint does not take events: the last attempts failed; they are repeated",
                "Tell the owner of the application, and see: pillarbox webhook deliveries ID",
            ),
            Self::WebhookGone => (
                "webhook_gone",
                Ready,
                Warning,
                Rules(&[("PillarboxWebhookGone", Ticket)]),
                "An endpoint answered that it wants no more events: it is paused, and they wait",
                "Ask the owner of the application. Then run: pillarbox webhook resume ID, or: \
                 pillarbox webhook remove ID",
            ),
            Self::TrackingNotOverridden => (
                "tracking_not_overridden",
                Ready,
                Notice,
                Alerts::None("It follows from ses.tracking_override, and from the endpoint alone"),
                "Messages do not turn open and click tracking off: SES may rewrite links",
                "Set ses.tracking_override = true if the endpoint knows ConfigurationOverrides",
            ),
        };
        Definition { code, readiness, severity, meaning, advice, alerts }
    }

    /// Condition of this kind, said in general.
    pub(super) fn found(self) -> Condition {
        self.says(self.definition().meaning)
    }

    /// Condition of this kind, with its figures.
    pub(super) fn says(self, message: impl AsRef<str>) -> Condition {
        let Definition { code, readiness, severity, advice, .. } = self.definition();
        // Whoever shows it ends the sentence.
        let message = without_full_stop(message.as_ref()).to_owned();
        Condition { code, message, advice: advice.to_owned(), severity, readiness }
    }

    /// Condition of this kind, whose advice names something in place of a word in capitals.
    pub(super) fn names(self, message: String, word: &str, name: &str) -> Condition {
        let condition = self.says(message);
        Condition { advice: condition.advice.replace(word, name), ..condition }
    }
}

/// So many things, in words.
pub fn several(count: u64, thing: &str) -> String {
    if count == 1 { format!("1 {thing}") } else { format!("{count} {thing}s") }
}

/// How far back the conditions of the last minutes look, in words.
pub(super) fn lately() -> String {
    format!(" in the last {} minutes", LATELY.as_secs() / 60)
}

#[cfg(test)]
mod tests;
