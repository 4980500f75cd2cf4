//! Conditions: everything that can be wrong, in one list, with the thresholds and windows.
//!
//! Readiness, the page and `status` read this list. `docs/conditions.md` is made from it, and a test
//! compares it with `monitoring/alerts.yml`.

use std::time::Duration;

use serde::Serialize;

use crate::admin::live;
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
    /// Whether the service does its work all the same.
    #[serde(rename = "ready")]
    pub readiness: Readiness,
}

impl From<Condition> for live::Condition {
    fn from(Condition { code, message, advice, readiness }: Condition) -> Self {
        Self { code: code.to_owned(), message, advice, ready: readiness.into() }
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
    /// AWS has not been asked yet.
    Starting,
    /// The AWS credentials are at fault.
    Account(AccountFault),
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
    /// Records are past their retention.
    PurgeBehind,
    /// Requests fail by a fault in the service.
    InternalErrors,
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
    /// Whether the service can do its work in spite of it.
    pub readiness: Readiness,
    /// What is wrong.
    pub meaning: &'static str,
    /// What to do. A word in capitals stands for a name.
    pub advice: &'static str,
    /// The alert rules in `monitoring/alerts.yml` that fire for it.
    pub alerts: Alerts,
}

/// Whether the service can do its work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(into = "bool")]
pub enum Readiness {
    /// It takes messages and sends them.
    Ready,
    /// It does not take them, or does not send any.
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
    /// Their names, each with its severity.
    Rules(&'static [(&'static str, Severity)]),
    /// There is none, for this reason.
    None(&'static str),
}

/// Severity of an alert.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Severity {
    /// Mail does not go out, or somebody must act today.
    Page,
    /// Mail will not go out if nobody acts.
    Ticket,
}

use Alerts::Rules;
use Readiness::{NotReady, Ready};
use Severity::{Page, Ticket};

const QUEUE_ALERT: Alerts = Rules(&[("PillarboxQueueFilling", Page)]);
const QUEUE_ADVICE: &str = "See to the provider, or raise sending.max_pending_bytes";
const LIMIT_ALERT: Alerts = Rules(&[("PillarboxConnectionsNearLimit", Ticket)]);

impl Kind {
    /// Every kind, the worst first.
    pub const ALL: [Self; 53] = [
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
        Self::Starting,
        Self::Account(AccountFault::CredentialsMissing),
        Self::Account(AccountFault::CredentialsRefused),
        Self::Account(AccountFault::ClockWrong),
        Self::Account(AccountFault::AccessDenied),
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
        Self::PurgeBehind,
        Self::InternalErrors,
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
        let (code, readiness, alerts, meaning, advice) = match self {
            Self::Stopping => (
                "stopping",
                NotReady,
                Alerts::None("Somebody stops the service; PillarboxDown fires if it stays away"),
                "The service is stopping: new messages are refused",
                "Wait for its next start",
            ),
            Self::Draining => (
                "draining",
                NotReady,
                Alerts::None("Somebody drains the node; the other nodes accept messages"),
                "An operator drains this node: after five seconds, in which load balancers notice, it accepts \
                 no new messages; it sends what it holds",
                "Stop it once it holds none, or end the drain with: pillarbox node drain --undo NODE",
            ),
            Self::StoreRefusing => (
                "store_refusing",
                NotReady,
                Rules(&[("PillarboxStoreRefusesWrites", Page)]),
                "The store refuses writes: requests are answered with 503 and nothing is sent",
                "Make room on the disk, or repair it; the store then goes on by itself",
            ),
            Self::StoreFailing => (
                "store_refusing",
                Ready,
                Rules(&[("PillarboxStoreRefusesWrites", Page)]),
                "The store refuses writes now and then: some requests are answered with 503",
                "Make room on the disk, or repair it: small writes may pass where large ones do not",
            ),
            Self::DataFileLost => (
                "data_file_lost",
                NotReady,
                Rules(&[("PillarboxDataFileLost", Page)]),
                "The data file is gone, replaced or written over: new messages are refused with 503",
                "Save what the service holds with: pillarbox backup FILE. Do not restart it before",
            ),
            Self::SendingPaused(cause) => {
                let (meaning, advice) = cause.explained();
                let alerts = Rules(&[("PillarboxSendingPaused", Page)]);
                (cause.code(), NotReady, alerts, meaning, advice)
            }
            Self::Starting => (
                "starting",
                NotReady,
                Alerts::None("It is over within 20 seconds, or another condition takes its place"),
                "AWS has not answered yet whether the credentials are good",
                "Wait a few seconds",
            ),
            Self::Account(fault) => {
                let (meaning, advice) = fault.explained();
                let (readiness, alerts) = match fault {
                    AccountFault::CredentialsMissing
                    | AccountFault::CredentialsRefused
                    | AccountFault::ClockWrong => {
                        (NotReady, Rules(&[("PillarboxCredentialsUnusable", Page)]))
                    }
                    AccountFault::AccessDenied => {
                        (Ready, Rules(&[("PillarboxAccountAccessDenied", Ticket)]))
                    }
                };
                (fault.code(), readiness, alerts, meaning, advice)
            }
            Self::QueueFull => (
                "queue_full",
                NotReady,
                QUEUE_ALERT,
                "The queue is full: new messages are refused with 503 QueueFull",
                QUEUE_ADVICE,
            ),
            Self::QueueNearlyFull => (
                "queue_nearly_full",
                Ready,
                QUEUE_ALERT,
                "The queue is nearly full: large messages may be refused with 503 QueueFull",
                QUEUE_ADVICE,
            ),
            Self::QueueShareFull => (
                "queue_share_full",
                Ready,
                QUEUE_ALERT,
                "The queue is full for an organisation: its new messages are refused with 503 \
                 QueueFull",
                QUEUE_ADVICE,
            ),
            Self::QueueFilling => (
                "queue_filling",
                Ready,
                QUEUE_ALERT,
                "The queue, or an organisation's share of it, fills up",
                "Mail comes in faster than it goes out. See to the provider or its rate, or raise \
                 sending.max_pending_bytes",
            ),
            Self::QueueStuck => (
                "queue_stuck",
                Ready,
                Rules(&[("PillarboxQueueStuck", Page)]),
                "Messages wait, and none was sent for 15 minutes",
                "See why: pillarbox message list --status queued",
            ),
            Self::RequestsRefused => (
                "requests_refused",
                Ready,
                Rules(&[("PillarboxRefusesForWantOfRoom", Page)]),
                "Requests were refused with 503 QueueFull",
                "A memory limit, or an organisation's share of one, is used up. If the queue has \
                 room, clients send bodies too slowly or do not read responses (max_reading_bytes, \
                 max_writing_bytes)",
            ),
            Self::ClockJumped => (
                "clock_jumped",
                Ready,
                Rules(&[("PillarboxClockJumped", Ticket)]),
                "The wall clock is in doubt: nothing is purged and no idempotency key expires",
                "Set the clock right; on PostgreSQL, the database's. If it is right, confirm it: \
                 pillarbox clock confirm",
            ),
            Self::NodeSilent => (
                "node_silent",
                Ready,
                Rules(&[("PillarboxNodeSilent", Ticket)]),
                "Another node has given no sign of life for 20 seconds; the other nodes go on",
                "Start it again; its messages fail once cluster.dead_after is over. If its machine \
                 is gone for good: pillarbox node forget NODE",
            ),
            Self::StandbyLost => (
                "standby_lost",
                Ready,
                Rules(&[("PillarboxStandbyLost", Page)]),
                "Commits no longer wait for a standby: if the database's machine is lost, accepted \
                 messages are lost with it",
                "Bring the standby back. synchronous_standby_names of the primary names it again then",
            ),
            Self::DatabaseSilent => (
                "database_silent",
                Ready,
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
                Rules(&[("PillarboxClocksDiffer", Ticket)]),
                "This machine's clock and the database's differ by more than 5 seconds",
                "Have a time daemon keep both, such as chrony. Messages have the database's times, but \
                 AWS refuses calls of a machine whose clock is wrong by more than five minutes",
            ),
            Self::OrganisationPaused => (
                "organisation_paused",
                Ready,
                Rules(&[("PillarboxOrganisationPaused", Ticket)]),
                "All calls for an organisation fail, and others do not; its messages wait",
                "They are tried one at a time. See what it sends: pillarbox message list --status \
                 queued --org ORG",
            ),
            Self::RefusalsHeld => (
                "refusals_held",
                Ready,
                Rules(&[("PillarboxRefusalsHeld", Ticket)]),
                "The provider refused five messages of an organisation in a row in the same words; \
                 such messages wait until one of it is accepted",
                "Put right what it says, or cancel: pillarbox message list --status queued --org ORG",
            ),
            Self::DomainPaused => (
                "domain_paused",
                Ready,
                Rules(&[("PillarboxDomainPaused", Ticket)]),
                "The provider does not take a sender's domain; its messages wait",
                "Check it with: pillarbox domain check DOMAIN",
            ),
            Self::ProviderSlow => (
                "provider_slow",
                Ready,
                Rules(&[("PillarboxProviderSlow", Ticket)]),
                "More than one call in twenty to the provider takes over 2.5 seconds",
                "Check the network, and the AWS Health Dashboard",
            ),
            Self::OutcomesUnknown => (
                "outcomes_unknown",
                Ready,
                Rules(&[("PillarboxOutcomesUnknown", Ticket)]),
                "Calls got no answer, or a server's error: the provider may have the messages",
                "Check the network to SES: such messages may be sent twice, or not, as \
                 sending.on_unknown says",
            ),
            Self::UnexpectedAnswers => (
                "unexpected_answers",
                Ready,
                Alerts::None("If no mail goes out because of it, PillarboxSendingPaused fires"),
                "The provider answered calls with errors that do not blame the message, nor say more",
                "See the messages: pillarbox message list --status queued. Check ses.endpoint",
            ),
            Self::Throttled => (
                "throttled",
                Ready,
                Rules(&[("PillarboxThrottled", Ticket)]),
                "SES throttles more than one call in twenty",
                "Something else sends from the same account, or sending.max_rate is above what it \
                 allows",
            ),
            Self::MessagesFailed => (
                "messages_failed",
                Ready,
                Rules(&[("PillarboxMessagesFail", Ticket)]),
                "Messages failed",
                "See why: pillarbox message list --status failed --org ORG",
            ),
            Self::EventsUnavailable => (
                "events_unavailable",
                Ready,
                Rules(&[("PillarboxEventsUnavailable", Ticket)]),
                "Delivery events cannot be had; bounces and complaints suppress nobody meanwhile",
                "Check [ses.events], the credentials' permissions and the network: pillarbox doctor",
            ),
            Self::EventsUnreadable => (
                "events_unreadable",
                Ready,
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
                (fault.code(), Ready, alerts, meaning, advice)
            }
            Self::OutcomesUnrecorded => (
                "outcomes_unrecorded",
                Ready,
                Alerts::None(
                    "The store refuses writes then, and PillarboxStoreRefusesWrites fires",
                ),
                "Outcomes of calls wait for the store",
                "They are stored as soon as it takes writes; do not end the process before",
            ),
            Self::RowsDamaged => (
                "rows_damaged",
                Ready,
                Rules(&[("PillarboxRowsDamaged", Ticket)]),
                "Rows of the data file cannot be read",
                "See them with: pillarbox status. Check the disk, then restore a backup, or add \
                 again what is missing",
            ),
            Self::QuotaLow => (
                "quota_low",
                Ready,
                Rules(&[("PillarboxQuotaLow", Ticket)]),
                "Less than a tenth of the account's daily quota is left",
                "Find out who sends more than usual; ask AWS for a higher quota",
            ),
            Self::ConnectionsNearLimit => (
                "connections_near_limit",
                Ready,
                LIMIT_ALERT,
                "More than four fifths of max_connections are open, of HTTP or of SMTP",
                "See who opens them; raise max_connections and the limit of open files together",
            ),
            Self::FilesNearLimit => (
                "files_near_limit",
                Ready,
                LIMIT_ALERT,
                "More than four fifths of the process's file descriptors are open",
                "See who opens connections; raise the limit of open files (LimitNOFILE)",
            ),
            Self::BodiesLost => (
                "bodies_lost",
                Ready,
                Rules(&[("PillarboxBodiesLost", Page)]),
                "The process ended before it sent messages; that mail has failed",
                "List it: pillarbox message list --status failed. Its senders have to post it again \
                 with new keys. Then run: pillarbox status --acknowledge",
            ),
            Self::PurgeBehind => (
                "purge_behind",
                Ready,
                Rules(&[("PillarboxPurgeBehind", Ticket)]),
                "Records are kept for longer than 90 days",
                "See the log for why the purge waits: a clock in doubt, or a full disk",
            ),
            Self::InternalErrors => (
                "internal_errors",
                Ready,
                Rules(&[("PillarboxInternalErrors", Page)]),
                "Requests failed by a fault in the service",
                "Look for errors in the log, and report them with the request id",
            ),
            Self::CommitsSlow => (
                "commits_slow",
                Ready,
                Rules(&[("PillarboxCommitsSlow", Ticket)]),
                "More than one commit in a hundred takes over half a second",
                "The disk is slow or shared, and every acceptance waits for it: see what else uses \
                 it",
            ),
            Self::Bounces => (
                "bounces",
                Ready,
                Rules(&[
                    ("PillarboxBounceRateHigh", Ticket),
                    ("PillarboxBounceRateAboveLimit", Page),
                ]),
                "An organisation's bounces of the last 24 hours, of mail to at least 100 recipients, are \
                 above half of SES's limit of 5 %",
                "Its list is old or its sign-up unchecked. To stop it, revoke its key",
            ),
            Self::Complaints => (
                "complaints",
                Ready,
                Rules(&[
                    ("PillarboxComplaintRateHigh", Ticket),
                    ("PillarboxComplaintRateAboveLimit", Page),
                ]),
                "An organisation's complaints of the last 24 hours, about mail to at least 1000 \
                 recipients, are above half of SES's limit of 0.1 %",
                "Find out what it sends, and to whom. To stop it, revoke its key",
            ),
            Self::WebhookFailing => (
                "webhook_failing",
                Ready,
                Rules(&[("PillarboxWebhookFailing", Ticket)]),
                "An endpoint does not take events: the last attempts failed; they are repeated",
                "Tell the owner of the application, and see: pillarbox webhook deliveries ID",
            ),
            Self::WebhookGone => (
                "webhook_gone",
                Ready,
                Rules(&[("PillarboxWebhookGone", Ticket)]),
                "An endpoint answered that it wants no more events: it is paused, and they wait",
                "Ask the owner of the application. Then run: pillarbox webhook resume ID, or: \
                 pillarbox webhook remove ID",
            ),
            Self::TrackingNotOverridden => (
                "tracking_not_overridden",
                Ready,
                Alerts::None("It follows from ses.tracking_override, and from the endpoint alone"),
                "Messages do not turn open and click tracking off: SES may rewrite links",
                "Set ses.tracking_override = true if the endpoint knows ConfigurationOverrides",
            ),
        };
        Definition { code, readiness, meaning, advice, alerts }
    }

    /// Condition of this kind, said in general.
    pub(super) fn found(self) -> Condition {
        self.says(self.definition().meaning)
    }

    /// Condition of this kind, with its figures.
    pub(super) fn says(self, message: impl AsRef<str>) -> Condition {
        let Definition { code, readiness, advice, .. } = self.definition();
        // Whoever shows it ends the sentence.
        let message = without_full_stop(message.as_ref()).to_owned();
        Condition { code, message, advice: advice.to_owned(), readiness }
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
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use super::*;
    use crate::domain::policy::RECORD_RETENTION;
    use crate::store::metrics::SLOW_COMMIT;
    use crate::store::{CLOCKS_DIFFER, LEASE};

    const RULES: &str = include_str!("../../monitoring/alerts.yml");
    /// A service that does not answer cannot say so.
    const DOWN: &str = "PillarboxDown";

    /// An alert rule's expression and severity, by its name; and recording rules without severity.
    fn rules() -> BTreeMap<&'static str, (String, &'static str)> {
        let blocks = RULES.split("\n      - ").skip(1);
        let rules = blocks.map(|block| {
            let (name, body) = block.split_once('\n').unwrap();
            let (_, name) = name.split_once(": ").unwrap_or(("", name));
            let (_, rest) = body.split_once("expr: ").unwrap();
            // A folded expression is indented further than the rule's keys.
            let mut lines = rest.lines();
            let first = lines.next().unwrap().trim_start_matches(">-").to_owned();
            let folded = lines.take_while(|line| line.starts_with("          "));
            let expression = folded.fold(first, |all, line| all + " " + line.trim());
            let severity = body.split_once("severity: ").map_or("", |(_, rest)| rest);
            (name, (expression, severity.split(' ').next().unwrap()))
        });
        rules.collect()
    }

    #[test]
    fn each_condition_has_its_alert_and_each_alert_its_condition() {
        let mut expected = BTreeMap::from([(DOWN, "page")]);
        for definition in Kind::ALL.map(Kind::definition) {
            match definition.alerts {
                Alerts::None(reason) => assert!(!reason.is_empty(), "{}", definition.code),
                Rules(rules) => {
                    assert!(!rules.is_empty(), "{}", definition.code);
                    expected.extend(rules.iter().map(|(name, severity)| match severity {
                        Page => (*name, "page"),
                        Ticket => (*name, "ticket"),
                    }));
                    // A service that is not ready is worth a call at night.
                    let is_page = rules.iter().any(|(_, severity)| *severity == Page);
                    assert!(definition.readiness == Ready || is_page, "{}", definition.code);
                }
            }
        }
        let rules = rules();
        let rules = rules.iter().filter(|(_, (_, severity))| !severity.is_empty());
        let rules: BTreeMap<_, _> = rules.map(|(name, (_, severity))| (*name, *severity)).collect();
        assert_eq!(rules, expected);
    }

    /// Windows in an expression, and what its metrics are compared with but for 0 and 1.
    fn numbers(expression: &str) -> BTreeSet<String> {
        let mut found = BTreeSet::new();
        for window in expression.split(['[']).skip(1) {
            found.extend(window.split(']').next().map(str::to_owned));
        }
        for rest in expression.split(" offset ").skip(1) {
            found.extend(rest.split([' ', ')']).next().map(str::to_owned));
        }
        for rest in expression.split(['>', '<']).skip(1) {
            let number = rest.trim_start_matches('=').trim_start();
            let end = number.find(|c: char| !c.is_ascii_digit() && c != '.');
            let (number, rest) = number.split_at(end.unwrap_or(number.len()));
            let times = rest.strip_prefix(" * ").map_or("1", |rest| rest);
            let number = number.parse::<f64>().ok();
            found.extend(
                number
                    .zip(times.parse::<f64>().ok().or(Some(1.0)))
                    .and_then(|(a, b)| (a > 0.0).then(|| (a * b).to_string())),
            );
        }
        found
    }

    #[test]
    fn alert_rules_have_the_numbers_of_the_conditions() {
        let minutes = |window: Duration| format!("{}m", window.as_secs() / 60);
        let hours = |window: Duration| format!("{}h", window.as_secs() / 3_600);
        let number = |number: f64| number.to_string();
        #[expect(clippy::cast_precision_loss, reason = "such numbers are small")]
        let (few, one_in) = (number(FEW as f64), |n: u64| number(1.0 / n as f64));
        #[expect(clippy::cast_precision_loss, reason = "such numbers are small")]
        let share = |limit: Limit, part: f64| number(limit.permille as f64 / 1_000.0 * part);
        let least = |limit: Limit| limit.least.to_string();
        let kept = RECORD_RETENTION + PURGE_SLACK;
        let slow_commit = number(SLOW_COMMIT.as_secs_f64());
        let expected: [(&str, Vec<String>); 20] = [
            ("PillarboxClocksDiffer", vec![number(CLOCKS_DIFFER.as_secs_f64())]),
            ("PillarboxStoreRefusesWrites", vec![minutes(STORE_FAILED)]),
            ("PillarboxQueueStuck", vec![minutes(STUCK)]),
            ("PillarboxQueueFilling", vec![number(NEAR_LIMIT)]),
            ("PillarboxRefusesForWantOfRoom", vec![minutes(LATELY)]),
            ("PillarboxInternalErrors", vec![minutes(LATELY)]),
            // A domain that is tried again is none for as long as that call takes.
            ("PillarboxDomainPaused", vec!["1m".to_owned()]),
            ("PillarboxThrottled", vec![minutes(LATELY), one_in(THROTTLED_ONE_IN), few.clone()]),
            ("PillarboxOutcomesUnknown", vec![minutes(LATELY)]),
            ("PillarboxQuotaLow", vec![number(QUOTA_LOW)]),
            ("PillarboxMessagesFail", vec![minutes(LATELY)]),
            ("PillarboxBounceRateHigh", vec![share(BOUNCES, 0.5), least(BOUNCES)]),
            ("PillarboxBounceRateAboveLimit", vec![share(BOUNCES, 1.0), least(BOUNCES)]),
            ("PillarboxComplaintRateHigh", vec![share(COMPLAINTS, 0.5), least(COMPLAINTS)]),
            ("PillarboxComplaintRateAboveLimit", vec![share(COMPLAINTS, 1.0), least(COMPLAINTS)]),
            ("PillarboxPurgeBehind", vec![kept.as_secs().to_string()]),
            ("PillarboxCommitsSlow", vec![minutes(LATELY), one_in(SLOW_COMMIT_ONE_IN), few]),
            ("PillarboxConnectionsNearLimit", vec![number(NEAR_LIMIT)]),
            ("pillarbox:organisation_sent_recipients:increase24h", vec![hours(DAY)]),
            ("pillarbox:organisation_bounces:ratio24h", vec![hours(DAY)]),
        ];
        let mut expected: BTreeMap<_, BTreeSet<_>> =
            expected.map(|(name, numbers)| (name, numbers.into_iter().collect())).into();
        expected.insert("pillarbox:organisation_complaints:ratio24h", [hours(DAY)].into());
        let rules = rules();
        for (name, (expression, _)) in &rules {
            let expected = expected.remove(name).unwrap_or_default();
            assert_eq!(numbers(expression), expected, "{name}: {expression}");
        }
        assert!(expected.is_empty(), "there is no {expected:?}");
        let (commits_slow, _) = &rules["PillarboxCommitsSlow"];
        assert!(commits_slow.contains(&format!("le=\"{slow_commit}\"")), "{commits_slow}");
    }

    #[test]
    fn texts_have_the_numbers_of_the_conditions() {
        let says = |kind: Kind, text: String| {
            let Definition { meaning, .. } = kind.definition();
            assert!(meaning.contains(&text), "{meaning} without {text}");
        };
        let hours = |time: Duration| format!("{} hours", time.as_secs() / 3_600);
        says(Kind::QueueStuck, format!("{} minutes", STUCK.as_secs() / 60));
        says(Kind::ProviderSlow, format!("{} seconds", recent_calls::SLOW.as_secs_f64()));
        says(Kind::ClocksDiffer, format!("{} seconds", CLOCKS_DIFFER.as_secs()));
        says(Kind::NodeSilent, format!("{} seconds", LEASE.as_secs()));
        says(Kind::PurgeBehind, format!("{} days", RECORD_RETENTION.as_secs() / 86_400));
        says(Kind::Bounces, hours(DAY));
        says(Kind::Complaints, hours(DAY));
        says(Kind::Bounces, format!("{} %", BOUNCES.permille / 10));
        says(Kind::Complaints, format!("0.{} %", COMPLAINTS.permille));
        says(Kind::Bounces, format!("at least {} recipients", BOUNCES.least));
        says(Kind::Complaints, format!("at least {} recipients", COMPLAINTS.least));
    }
}
