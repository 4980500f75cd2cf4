//! The list of conditions: a new one is an entry here, an alert, and a line of the docs that is made.

use std::cmp::Reverse;
use std::time::Duration;

use crate::conditions::{
    Alerts, BOUNCES, COMPLAINTS, Definition, ENDS_SOON, FEW, Finder, LATELY, MAX_WEBHOOKS_TOLD,
    NEAR_LIMIT, PURGE_SLACK, QUOTA_LOW, Readiness, Rule, SLOW_COMMIT_ONE_IN, Severity,
    THROTTLED_ONE_IN, UNREACHABLE, several,
};
use crate::snapshot::{NamedCounts, Snapshot, StoreHealth, ratio};
use pillarbox_alerts::FoundBy;
use pillarbox_dispatch::PausedByOperator;
use pillarbox_dispatch::circuit_breaker::{BreakerState, Cause};
use pillarbox_dispatch::quota::{AccountCheck, AccountFault, EarlierCredentials};
use pillarbox_dispatch::recent_calls;
use pillarbox_domain::attempt::TrackingOverride;
use pillarbox_domain::id::OrganisationId;
use pillarbox_domain::limits::RECORD_RETENTION;
use pillarbox_domain::organisation::OrganisationKind;
use pillarbox_domain::outcome::MessageOutcome;
use pillarbox_domain::webhook::{PausedBy, Webhook, WebhookState};
use pillarbox_http::tls::CertificateFault;
use pillarbox_queue::Fill;
use pillarbox_runtime::error_chain::without_full_stop;
use pillarbox_store::{CLOCKS_DIFFER, EventBacklog, NodeState, SeenFrom, Standby};

use Alerts::Rules;
use MessageOutcome::{Bounced, Complained, Failed, Queued};
use Severity::{Critical, Warning};

/// [`LATELY`] in words.
const LATELY_SAID: &str = " in the last 5 minutes";
const _: () = assert!(LATELY.as_secs() == 5 * 60, "as the words say");
const CREDENTIALS_ALERT: Alerts = Rules(&["PillarboxCredentialsUnusable"]);
const CERTIFICATE_ALERT: Alerts = Rules(&["PillarboxCertificateExpires"]);
const QUEUE_ALERT: Alerts = Rules(&["PillarboxQueueFilling"]);
const QUEUE_ADVICE: &str = "Fix what slows down sending, or raise sending.max_pending_bytes";
const LIMIT_ALERT: Alerts = Rules(&["PillarboxConnectionsNearLimit"]);

type Text = &'static str;

const fn critical(c: Text, a: Alerts, meaning: Text, advice: Text, rule: Rule) -> Definition {
    entry(Critical, c, a, (meaning, advice), rule)
}

const fn warning(c: Text, a: Alerts, meaning: Text, advice: Text, rule: Rule) -> Definition {
    entry(Warning, c, a, (meaning, advice), rule)
}

/// A notice has no alert, for this reason.
const fn notice(c: Text, reason: Text, meaning: Text, advice: Text, rule: Rule) -> Definition {
    entry(Severity::Notice, c, Alerts::None(reason), (meaning, advice), rule)
}

const fn entry(
    severity: Severity,
    code: Text,
    alerts: Alerts,
    (meaning, advice): (Text, Text),
    rule: Rule,
) -> Definition {
    let (readiness, found_by) = (Readiness::Ready, FoundBy::OneNode);
    Definition { code, readiness, severity, alerts, meaning, advice, found_by, rule }
}

impl Definition {
    const fn not_ready(self) -> Self {
        Self { readiness: Readiness::NotReady, ..self }
    }

    /// Every node finds it.
    const fn found_by_each_node(self) -> Self {
        Self { found_by: FoundBy::EachNode, ..self }
    }
}

/// Pause of sending for a cause.
const fn paused(cause: Cause) -> Definition {
    const ALERT: Alerts = Rules(&["PillarboxSendingPaused"]);
    entry(Critical, cause.code(), ALERT, cause.explained(), |s, found| {
        if !is_unanswered(s) {
            sending_paused(s, found);
        }
    })
}

/// True if the provider has not answered for less than [`UNREACHABLE`].
fn is_unanswered(s: &Snapshot) -> bool {
    matches!(s.sending.condition, BreakerState::Open { cause: Cause::Unreachable, .. })
        && s.impaired_for.is_none_or(|time| time < UNREACHABLE)
}

fn sending_paused(s: &Snapshot, found: &mut Finder<'_>) {
    if let BreakerState::Open { cause, message } = &s.sending.condition
        && cause.code() == found.definition.code
    {
        let paused = format!("Sending is paused: {}", found.definition.meaning);
        found.quotes(&paused, &format!(" ({message})"), "").affects(Queued, None, None);
    }
}

/// Fault of the AWS credentials.
const fn account(severity: Severity, fault: AccountFault, alerts: Alerts) -> Definition {
    entry(severity, fault.code(), alerts, fault.explained(), |s, found| {
        if let AccountCheck::Failed { fault, message, before } = &s.account
            && fault.code() == found.definition.code
        {
            let is_new = fault.stops_sending() && *before == EarlierCredentials::None;
            if is_new == (found.definition.readiness == Readiness::NotReady) {
                found.quotes(found.definition.meaning, &format!(" ({message})"), "");
            }
        }
    })
}

/// Fault of the certificate.
const fn certificate(fault: CertificateFault, alerts: Alerts) -> Definition {
    entry(Warning, fault.code(), alerts, fault.explained(), |s, found| {
        for trouble in s.certificate.iter().flat_map(|certificate| &certificate.troubles) {
            if trouble.fault.code() == found.definition.code {
                found.says(&trouble.message);
            }
        }
    })
}

/// Conditions for which nothing has to be waited for.
#[rustfmt::skip] // A table.
pub(super) static IMMEDIATE: [Definition; 35] = [
    notice("stopping",
        "Somebody stopped the service; PillarboxDown fires if it does not come back",
        "The service is stopping: new messages are refused", "Wait until it starts again",
        |s, found| found.if_so(s.is_stopping),
    ).not_ready(),
    notice("draining",
        "Somebody is draining the node; the other nodes accept messages",
        "An operator is draining this node: it sends the messages that it holds, and accepts no \
         new ones after five seconds, so that load balancers have time to notice",
        "Stop the node once it holds no messages, or end the drain with: pillarbox node drain \
         --undo NODE",
        |s, found| if let Some(name) = &s.draining {
            found.says(found.definition.meaning).names("NODE", name);
        },
    ).not_ready(),
    critical("store_refusing", Rules(&["PillarboxStoreRefusesWrites"]),
        "The store refuses writes: new messages are refused with 503, and nothing is sent",
        "Make room on the disk, or repair it; with PostgreSQL, check the database and the network \
         to it. The store then continues automatically",
        |s, found| found.if_so(s.store == StoreHealth::Refusing),
    ).not_ready(),
    critical("store_refusing", Rules(&["PillarboxStoreRefusesWrites"]),
        "The store refuses some writes: some requests are answered with 503",
        "Make room on the disk, or repair it: small writes may succeed while large ones fail. With \
         PostgreSQL, check the database and the network to it",
        |s, found| found.if_so(s.store == StoreHealth::Writable && s.has_store_failed),
    ),
    critical("data_file_lost", Rules(&["PillarboxDataFileLost"]),
        "The data file is missing, replaced or overwritten: new messages are refused with 503",
        "If the file is missing or replaced, save its data before you restart the service: \
         pillarbox backup FILE. If it was overwritten, its data is lost: restore the newest backup",
        |s, found| if let Some((what, advice)) = s.store.file_loss() {
            let message = format!("New messages are refused with 503, because {what}");
            found.says(message).advice = advice.into();
        },
    ).not_ready(),
    paused(Cause::Unreachable),
    paused(Cause::QuotaExhausted),
    paused(Cause::AccountPaused),
    paused(Cause::SetupFault),
    paused(Cause::ClockWrong),
    entry(Warning, Cause::Unreachable.code(),
        Alerts::None("PillarboxSendingPaused fires if it lasts for a minute"),
        Cause::Unreachable.explained(),
        |s, found| if is_unanswered(s) {
            sending_paused(s, found);
        },
    ),
    notice("starting",
        "It ends within 20 seconds, or another condition replaces it",
        "AWS has not said yet whether the credentials are good", "Wait a few seconds",
        |s, found| found.if_so(s.account == AccountCheck::Unasked),
    ).not_ready(),
    account(Critical, AccountFault::CredentialsMissing, CREDENTIALS_ALERT),
    account(Critical, AccountFault::CredentialsRefused, CREDENTIALS_ALERT),
    account(Critical, AccountFault::ClockWrong, CREDENTIALS_ALERT),
    account(Warning, AccountFault::AccessDenied, Rules(&["PillarboxAccountAccessDenied"])),
    account(Critical, AccountFault::CredentialsMissing, CREDENTIALS_ALERT).not_ready(),
    account(Critical, AccountFault::CredentialsRefused, CREDENTIALS_ALERT).not_ready(),
    account(Critical, AccountFault::ClockWrong, CREDENTIALS_ALERT).not_ready(),
    warning("queue_full", QUEUE_ALERT,
        "The queue is full: new messages are refused with 503 QueueFull",
        QUEUE_ADVICE,
        |s, found| found.if_so(fill(s) == Fill::Full),
    ),
    warning("queue_nearly_full", QUEUE_ALERT,
        "The queue is nearly full: large messages may be refused with 503 QueueFull",
        QUEUE_ADVICE,
        |s, found| found.if_so(fill(s) == Fill::NearlyFull && s.sending.full_for.is_empty()),
    ),
    warning("queue_share_full", QUEUE_ALERT,
        "The queue is full for an organisation: its new messages are refused with 503 QueueFull",
        QUEUE_ADVICE,
        |s, found| if fill(s) != Fill::Full && !s.sending.full_for.is_empty() {
            let names: Vec<_> = s.sending.full_for.iter().map(|id| s.name(*id)).collect();
            let names = names.join(", ");
            found.says(format!(
                "The queue is full for {names}: new messages are refused with 503 QueueFull"));
        },
    ),
    warning("clock_jumped", Rules(&["PillarboxClockJumped"]),
        "The wall clock is in doubt: nothing is purged and no idempotency key expires",
        "If the clock is wrong, set it; on PostgreSQL, set the database's clock. If it is right, \
         confirm it: pillarbox clock confirm",
        |s, found| if let Some(jump) = &s.clock_jump {
            found.says(format!(
                "The clock {jump}. Since {} nothing has been purged and no idempotency key has \
                 expired",
                jump.since));
        },
    ),
    warning("organisation_paused", Rules(&["PillarboxOrganisationPaused"]),
        "All calls for an organisation fail, but calls for others do not; its messages wait",
        "The service tries one message of the organisation at a time, until SES accepts one. Check \
         what the organisation sends: pillarbox message list --status queued --org ORG",
        |s, found| for (id, message) in &s.sending.paused_organisations {
            let name = s.name(*id);
            let fail = format!("All calls for {name} fail");
            let others = ", but calls for others do not; its messages wait";
            let condition = found.quotes(&fail, &format!(" ({message})"), others);
            condition.names("ORG", &name).affects(Queued, Some((*id, &name)), None);
        },
    ),
    warning("refusals_held", Rules(&["PillarboxRefusalsHeld"]),
        "The provider refused five consecutive messages of an organisation with the same error text; \
         messages that it refuses with this text wait until it accepts another message of the \
         organisation",
        "Correct what the provider complains about, or cancel the messages: pillarbox message list \
         --status queued --org ORG",
        |s, found| for (id, said) in &s.sending.held_refusals {
            let (name, said) = (s.name(*id), without_full_stop(said));
            let refuses =
                format!("The provider refuses messages of {name} with the same error text");
            let condition = found.quotes(&refuses, &format!(" (\"{said}\")"), "; they wait");
            condition.names("ORG", &name).affects(Queued, Some((*id, &name)), None);
        },
    ),
    warning("domain_paused", Rules(&["PillarboxDomainPaused"]),
        "The provider does not accept a sender domain; its messages wait",
        "Check the domain with: pillarbox domain check DOMAIN",
        |s, found| for (id, domain, message) in &s.sending.paused_domains {
            let name = s.name(*id);
            let refuses = format!("The provider does not accept {domain} of {name}");
            let condition = found.quotes(&refuses, &format!(" ({message})"), "; its messages wait");
            condition.names("DOMAIN", domain).is_about(format!("{domain} of {name}"));
            condition.affects(Queued, Some((*id, &name)), Some(domain));
        },
    ),
    warning("provider_slow", Rules(&["PillarboxProviderSlow"]),
        "More than one call in twenty to the provider takes over 2.5 seconds",
        "Check the network, and the AWS Health Dashboard",
        |s, found| {
            let recent = &s.sending.recent_calls;
            if recent.are_slow() {
                found.says(format!(
                    "{} of {} calls to the provider took over {} seconds{LATELY_SAID}",
                    recent.slow, recent.calls, recent_calls::SLOW.as_secs_f64()));
            }
        },
    ),
    warning("outcomes_unknown", Rules(&["PillarboxOutcomesUnknown"]),
        "Calls got no answer or a server error: the provider may have the messages",
        "Check the network to SES. sending.on_unknown decides whether such messages are sent \
         again and may then arrive twice, or fail",
        |s, found| {
            let recent = &s.sending.recent_calls;
            let got = [(recent.unanswered, "no answer"), (recent.unclear, "a server error")];
            let got = got.into_iter().filter(|(calls, _)| *calls > 0);
            let got = got.map(|(calls, what)| format!("{} got {what}", several(calls, "call")));
            let got = got.collect::<Vec<_>>().join(", ");
            if !got.is_empty() {
                found.says(format!(
                    "{got}{LATELY_SAID}: it is not known whether the provider accepted these messages"));
            }
        },
    ),
    warning("unexpected_answers",
        Alerts::None("If no mail goes out because of it, PillarboxSendingPaused fires"),
        "The provider answered calls with errors that pillarbox does not know and does not \
         treat as the message's fault",
        "Check the messages: pillarbox message list --status queued. Check ses.endpoint",
        |s, found| if !s.sending.unexpected_answers.is_empty() {
            let names = s.sending.unexpected_answers.join(", ");
            found.says(format!(
                "The provider answered calls with errors that pillarbox does not know{LATELY_SAID}: {names}"));
        },
    ),
    warning("events_unavailable", Rules(&["PillarboxEventsUnavailable"]),
        "Delivery events cannot be read; until they can, bounces and complaints suppress nobody",
        "Check [ses.events], the credentials' permissions and the network: pillarbox doctor --config \
         FILE",
        |s, found| if let Some(trouble) = &s.events_trouble {
            found.quotes("Delivery events cannot be read", &format!(": {trouble}"), "");
        },
    ),
    certificate(CertificateFault::Expired, CERTIFICATE_ALERT),
    certificate(CertificateFault::Expires, CERTIFICATE_ALERT),
    certificate(CertificateFault::Refused, Rules(&["PillarboxCertificateRefused"])),
    warning("database_silent",
        Alerts::None("The node uses another connection; if that does not help, \
                      PillarboxStoreRefusesWrites or an alert about waiting messages fires"),
        "The database did not answer in time on one connection of this node, now or in the last \
         minute, but answers on others",
        "The node closes the connection and opens another one. If this continues, look for a \
         database process that hangs (pg_stat_activity), and check the network between the \
         database and this machine",
        |s, found| if !s.silent_connections.is_empty() {
            found.says(format!(
                "The database did not answer in time on a connection for {}; the connection was \
                 closed", s.silent_connections.join(", ")));
        },
    ),
    notice("outcomes_unrecorded",
        "The store then refuses writes, and PillarboxStoreRefusesWrites fires",
        "Outcomes of calls wait for the store",
        "The service records them as soon as the store accepts writes; do not end the process \
         before that",
        |s, found| if s.sending.unrecorded > 0 {
            let outcomes = s.sending.unrecorded;
            found.says(format!("Outcomes of calls wait for the store: {outcomes}"));
        },
    ),
];

/// Conditions that need an answer of the store, a reading of the process, or history. None of them
/// stops the service from working.
#[rustfmt::skip] // A table.
pub(super) static OBSERVED: [Definition; 30] = [
    warning("queue_filling", QUEUE_ALERT,
        "The queue, or an organisation's share of it, is filling up",
        "Mail comes in faster than it goes out. Fix what slows down sending, ask AWS for a higher \
         rate, or raise sending.max_pending_bytes",
        |s, found| {
            let share = s.sending.greatest_share;
            let used = ratio(s.sending.pending.bytes as u64, s.sending.max_pending_bytes as u64)
                .max(share);
            if used > NEAR_LIMIT && fill(s) == Fill::Room && share < 1.0 {
                found.says(format!(
                    "The queue, or an organisation's share of it, has used {:.0} % of its memory",
                    used * 100.0));
            }
        },
    ),
    warning("bounces", Rules(&["PillarboxBounceRateHigh", "PillarboxBounceRateAboveLimit"]),
        "An organisation's bounce rate of the last 24 hours is above half of SES's limit of 5 %, \
         with at least 100 recipients",
        "Its address list may be old, or it may not check addresses at sign-up. To stop its mail, \
         pause it: pillarbox org pause ORG",
        |s, found| for NamedCounts { id, name, counts: day, .. } in production(&s.recent.day) {
            if let Some(share) = BOUNCES.share(day.hard_bounces, day.sent_recipients) {
                let whose = whose(*id, name);
                let message = format!(
                    "{whose} bounce rate of the last 24 hours is {share}; SES reviews accounts \
                     at 5 % or more");
                let organisation = id.map(|id| (id, name.as_str()));
                found.says(message).names_organisation(*id, name).affects(Bounced, organisation, None).of_day(s.at);
            }
        },
    ).found_by_each_node(),
    warning("complaints", Rules(&["PillarboxComplaintRateHigh", "PillarboxComplaintRateAboveLimit"]),
        "An organisation's complaint rate of the last 24 hours is above half of SES's limit of \
         0.1 %, with at least 1000 recipients",
        "Find out what it sends, and to whom. To stop its mail, pause it: pillarbox org pause ORG",
        |s, found| for NamedCounts { id, name, counts: day, .. } in production(&s.recent.day) {
            if let Some(share) = COMPLAINTS.share(day.complaints, day.sent_recipients) {
                let whose = whose(*id, name);
                let message = format!(
                    "{whose} complaint rate of the last 24 hours is {share}; SES reviews accounts \
                     at 0.1 % or more");
                let organisation = id.map(|id| (id, name.as_str()));
                found.says(message).names_organisation(*id, name).affects(Complained, organisation, None).of_day(s.at);
            }
        },
    ).found_by_each_node(),
    warning("events_unreadable", Rules(&["PillarboxEventsUnreadable"]),
        "Delivery events were set aside as dead letters: they could not be read in full, or they \
         name a test organisation",
        "Open each: pillarbox dead-letter list, then pillarbox dead-letter show ID. If it is a \
         bounce or a complaint, suppress its recipients by hand. If it is not from SES, find out \
         what else writes to the SQS queue; if it names a test organisation, find out what else \
         sends with that name. Then clear the list: pillarbox dead-letter clear --all",
        |s, found| if let Some(EventBacklog { dead_letters: letters @ 1.., .. }) = s.stored.backlog {
            let kept = format!(
                "{} {} set aside as dead letters: not read in full, or of a test organisation",
                several(letters, "delivery event"),
                if letters == 1 { "was" } else { "were" },
            );
            let newest = s.stored.newest_letter.as_ref();
            let newest = newest.map(|newest| format!("; the newest is {newest}"));
            found.quotes(&kept, &newest.unwrap_or_default(), "");
        },
    ).found_by_each_node(),
    warning("webhook_failing", Rules(&["PillarboxWebhookFailing"]),
        "An endpoint does not accept events: the last attempts failed, and pillarbox repeats them",
        "Tell the owner of the application. To see the attempts: pillarbox webhook deliveries ID",
        |s, found| {
            let failing = s.endpoints.iter().filter(|(webhook, status)| {
                webhook.state == WebhookState::Active && status.is_failing()
            });
            let failing = failing.map(|(webhook, status)| {
                let answer = status.last.as_ref().map_or("no answer", |last| &last.answer);
                (webhook, format!("does not accept events ({answer})"))
            });
            endpoints(s, found, failing, "do not accept events");
        },
    ),
    warning("webhook_gone", Rules(&["PillarboxWebhookGone"]),
        "An endpoint answered 410, so it wants no more events: it is paused, and its events wait",
        "Ask the owner of the application. Then run: pillarbox webhook resume ID, or: \
         pillarbox webhook remove ID",
        |s, found| {
            let gone = s.endpoints.iter().filter_map(|(webhook, _)| match webhook.state {
                WebhookState::Paused { by: PausedBy::Endpoint, since } => {
                    Some((webhook, format!("answered 410 at {since}: it is paused, and events wait")))
                }
                WebhookState::Paused { by: PausedBy::Operator, .. } | WebhookState::Active => None,
            });
            endpoints(s, found, gone, "answered 410");
        },
    ).found_by_each_node(),
    warning("alerts_failing", Rules(&["PillarboxAlertsFailing"]),
        "Alerts do not get through: the receiver of [alerts] does not accept them; pillarbox \
         repeats them",
        "Check the receiver and the network, then send a test: pillarbox doctor --config FILE",
        |s, found| if let Some(alerts) = s.alerts.as_ref().filter(|alerts| alerts.is_failing()) {
            let answer = alerts.last.as_ref().map_or("no answer", |last| &last.answer);
            found.says(format!("Alerts do not get through ({answer}); they are repeated"));
        },
    ),
    notice("paused_by_operator",
        "An operator paused the organisation; PillarboxPausedMessagesEnd fires before its messages fail",
        "An operator has paused an organisation: its messages wait, and none is sent",
        "Resume it if it may send again: pillarbox org resume ORG",
        |s, found| for PausedByOperator { organisation, pause, messages } in &s.paused_by_operators {
            let (name, since, sends) = (s.name(*organisation), pause.since, pause.requests.as_str());
            let waiting = several(messages.waiting as u64, "message");
            let message = format!(
                "{name} has been paused by an operator since {since}; its send requests are \
                 {sends}, with {waiting} waiting");
            let affected = Some((*organisation, name.as_str()));
            found.says(message).names("ORG", &name).affects(Queued, affected, None);
        },
    ),
    warning("paused_messages_end", Rules(&["PillarboxPausedMessagesEnd"]),
        "A waiting message of an organisation that an operator paused reaches its time limit \
         within an hour, and then fails",
        "Resume the organisation, so that its messages are sent: pillarbox org resume ORG. Or \
         raise sending.retry_for, unless the message's own expiresIn sets the time limit",
        |s, found| for PausedByOperator { organisation, messages, .. } in &s.paused_by_operators {
            if let Some(end) = messages.first_end && s.at.plus(ENDS_SOON) >= end {
                let name = s.name(*organisation);
                let message = format!(
                    "{name} is paused, and its first waiting message fails at {end}");
                found.says(message).names("ORG", &name);
            }
        },
    ),
    notice("tracking_not_overridden",
        "It depends only on ses.tracking_override and on the endpoint",
        "Messages do not turn off open and click tracking: SES may rewrite links",
        "Set ses.tracking_override = true if the endpoint supports ConfigurationOverrides",
        |s, found| match s.tracking {
            TrackingOverride::Never => found.if_so(true),
            TrackingOverride::Auto if s.went_without_override => {
                let condition = found.says(
                    "The endpoint does not support ConfigurationOverrides, so messages go without it: \
                     SES rewrites links and adds a pixel if the account or the configuration set \
                     asks for it");
                condition.advice = "To keep links as they are, turn off open and click tracking in \
                                    the account and the configuration set".into();
            }
            TrackingOverride::Always | TrackingOverride::Auto => {}
        },
    ),
    warning("rows_damaged", Rules(&["PillarboxRowsDamaged"]),
        "Rows of the store cannot be read",
        "See them with: pillarbox status. Check the disk, then restore a backup, or add the \
         missing entries again",
        |s, found| {
            // Recipients' addresses are not for this page.
            if let Some(first) = s.damaged.first() {
                let rows = several(s.damaged.len() as u64, "row");
                found.says(format!(
                    "{rows} of the store cannot be read, the first in table {}: {} ({})",
                    first.table, first.id, first.reason));
            }
        },
    ),
    warning("quota_low", Rules(&["PillarboxQuotaLow"]),
        "Less than a tenth of the account's daily quota is left",
        "Find out who sends more than usual; ask AWS for a higher quota",
        |s, found| if let Some(quota) = s.sending.quota
            && quota.left < quota.max * QUOTA_LOW
        {
            found.says(format!("{:.0} recipients are left of the account's daily quota of {:.0}",
                quota.left.max(0.0), quota.max));
        },
    ),
    warning("organisation_near_limit", Rules(&["PillarboxOrganisationNearLimit"]),
        "An organisation has used four fifths of a limit that was set for it",
        "Find out whether it sends as it should. To raise a limit, for example the daily one: \
         pillarbox org limit NAME --per-day N",
        |s, found| limits(s, found, |used| (NEAR_LIMIT..1.0).contains(&used)),
    ),
    warning("organisation_at_limit", Rules(&["PillarboxOrganisationNearLimit"]),
        "An organisation has used up a limit that was set for it: its requests get 429",
        "Find out whether it sends as it should. To raise a limit, for example the daily one: \
         pillarbox org limit NAME --per-day N",
        |s, found| limits(s, found, |used| used >= 1.0),
    ),
    warning("connections_near_limit", LIMIT_ALERT,
        "More than four fifths of max_connections are in use, by HTTP and SMTP together",
        "Find out who opens them; raise max_connections and the limit of open files together",
        |s, found| {
            let (open, max) = (s.connections.http + s.connections.smtp, s.connections.max);
            if ratio(open as u64, max as u64) > NEAR_LIMIT {
                found.says(format!("{open} of {max} client connections are open"));
            }
        },
    ),
    warning("files_near_limit", LIMIT_ALERT,
        "More than four fifths of the process's file descriptors are open",
        "Find out who opens connections; raise the limit of open files (LimitNOFILE)",
        |s, found| if let Some((open, max)) = s.process.open_descriptors.zip(s.process.max_descriptors)
            && ratio(open, max) > NEAR_LIMIT
        {
            found.says(format!("{open} of {max} file descriptors are open"));
        },
    ),
    warning("node_silent", Rules(&["PillarboxNodeSilent"]),
        "Another node has given no sign of life for 20 seconds; the other nodes continue",
        "Start it again. If it stays silent for cluster.dead_after, its messages fail. If its \
         machine is gone for good: pillarbox node forget NODE",
        |s, found| for node in s.nodes.iter().filter(|node| node.seen_from == SeenFrom::Another) {
            if let NodeState::Silent(since) = node.state {
                let (name, seconds) = (&node.name, since.as_secs());
                let message = format!("Node {name} has given no sign of life for {seconds} seconds");
                found.says(message).names("NODE", name);
            }
        },
    ).found_by_each_node(),
    warning("standby_lost", Rules(&["PillarboxStandbyLost"]),
        "Commits no longer wait for a standby: if the database's machine is lost, accepted \
         messages are lost with it",
        "Bring the standby back, so that synchronous_standby_names of the primary names it again",
        |s, found| found.if_so(s.database.as_ref().is_some_and(|one| one.standby == Standby::Lost)),
    ),
    warning("clocks_differ", Rules(&["PillarboxClocksDiffer"]),
        "This machine's clock and the database's differ by more than 5 seconds",
        "Run a time daemon, such as chrony, on both machines. Messages get the database's time, \
         but AWS refuses calls from a machine whose clock is wrong by more than five minutes",
        |s, found| {
            let offset = s.database.as_ref().map_or(0, |database| database.clock_offset_millis);
            let apart = Duration::from_millis(offset.unsigned_abs());
            if apart > CLOCKS_DIFFER {
                let ahead = if offset < 0 { "ahead of" } else { "behind" };
                let apart = apart.as_secs_f64();
                found.says(format!(
                    "This machine's clock is {apart:.1} seconds {ahead} the database's"));
            }
        },
    ),
    warning("bodies_lost", Rules(&["PillarboxBodiesLost"]),
        "The process ended before it sent messages; those messages have failed",
        "List the messages: pillarbox message list --status failed. If the error of one says that \
         SES may have it, look for an event first. Senders must post the others again with new \
         idempotency keys. Then run: pillarbox status --acknowledge",
        |s, found| if let Ok(Some(lost)) = s.stored.lost {
            let message = format!(
                "The process ended before it sent {}, most recently at {}; that mail has failed",
                several(lost.messages, "message"), lost.last_at);
            found.says(message).affects(Failed, None, None);
        },
    ).found_by_each_node(),
    warning("bodies_unusable", Rules(&["PillarboxBodiesUnusable"]),
        "Bodies of an earlier process cannot be used",
        "If they belong to another data directory, database or node, start the service with the \
         configuration of that directory, database or node; the service then sends their messages. \
         Otherwise their messages have failed; discard the bodies: pillarbox bodies drop. Until \
         then, the service manager keeps no bodies of this process",
        |s, found| if let Some(why) = s.bodies.as_ref().and_then(|one| one.unreadable.as_ref()) {
            found.says(format!("Bodies of an earlier process cannot be used: {why}"));
        },
    ),
    notice("queue_lowered",
        "It depends only on the configuration and the memory limit",
        "The memory limit of the service's cgroup leaves less for pending messages than \
         sending.max_pending_bytes",
        "Raise MemoryMax= of pillarbox.service and pillarbox.slice, or lower \
         sending.max_pending_bytes, max_reading_bytes or max_writing_bytes",
        |s, found| {
            let (max, configured) = (s.sending.max_pending_bytes, s.configured_pending_bytes);
            if max < configured {
                found.says(format!(
                    "The memory limit of the service's cgroup leaves {} MiB for pending messages, \
                     but sending.max_pending_bytes allows {} MiB", max >> 20, configured >> 20));
            }
        },
    ),
    warning("purge_behind", Rules(&["PillarboxPurgeBehind"]),
        "Records are kept for longer than 90 days",
        "The log says why the purge waits: a clock in doubt, or a full disk",
        |s, found| {
            let limit = RECORD_RETENTION + PURGE_SLACK;
            found.if_so(s.stored.oldest.is_some_and(|oldest| oldest.is_past(limit, s.at)));
        },
    ).found_by_each_node(),
    critical("queue_stuck", Rules(&["PillarboxQueueStuck"]),
        "Messages wait, and none has been sent for 15 minutes",
        "See why: pillarbox message list --status queued",
        |s, found| if s.recent.is_stuck {
            found.says(found.definition.meaning).affects(Queued, None, None);
        },
    ),
    warning("internal_errors", Rules(&["PillarboxInternalErrors"]),
        "Requests failed because of a fault in the service",
        "Look for errors in the log, and report them with the request id",
        |s, found| if s.recent.totals.internal_errors > 0 {
            let requests = several(s.recent.totals.internal_errors, "request");
            found.says(format!("{requests} failed because of a fault in the service{LATELY_SAID}"));
        },
    ),
    warning("task_failed", Rules(&["PillarboxTaskFails"]),
        "A background task failed because of a fault in the service; pillarbox started it again",
        "Look for errors in the log, and report them. If it fails again and again, restart the \
         service: pillarbox restart",
        |s, found| for one in s.task_faults.iter().filter(|one| one.is_recent) {
            let message = format!(
                "The background task {} has failed {} since the start; pillarbox started it again",
                one.task, several(one.count, "time"));
            found.says(message).is_about(one.task);
        },
    ),
    warning("requests_refused", Rules(&["PillarboxRefusesForWantOfRoom"]),
        "Requests were refused with 503 QueueFull",
        "A memory limit, or an organisation's share of one, is used up, or an organisation has too \
         many list requests waiting. If the queue has room, clients send bodies too slowly or do \
         not read responses (max_reading_bytes, max_writing_bytes)",
        |s, found| if s.recent.totals.refused_for_room > 0 {
            let requests = several(s.recent.totals.refused_for_room, "request");
            found.says(format!("{requests} got 503 QueueFull{LATELY_SAID}"));
        },
    ),
    warning("commits_slow", Rules(&["PillarboxCommitsSlow"]),
        "More than one commit in a hundred takes over half a second",
        "Every acceptance waits for the commits. The disk is slow or shared: find out what else uses \
         it; with PostgreSQL, check the server, its standby and the network to it",
        |s, found| {
            let slow = s.recent.totals.slow_commits;
            if slow >= FEW && slow * SLOW_COMMIT_ONE_IN > s.recent.totals.commits {
                found.says(format!("{slow} commits took over half a second{LATELY_SAID}"));
            }
        },
    ),
    warning("throttled", Rules(&["PillarboxThrottled"]),
        "SES throttles more than one call in twenty",
        "Something else sends from the same account, or sending.max_rate is above what the account \
         allows",
        |s, found| {
            let (throttled, calls) = (s.recent.totals.throttled, s.recent.totals.calls);
            if throttled >= FEW && throttled * THROTTLED_ONE_IN > calls {
                let message = format!("SES throttled {throttled} of {calls} calls{LATELY_SAID}");
                found.says(message).affects(Queued, None, None);
            }
        },
    ),
    warning("messages_failed", Rules(&["PillarboxMessagesFail"]),
        "Messages failed", "See why: pillarbox message list --status failed --org ORG",
        |s, found| {
            let mut failed: Vec<_> =
                production(&s.recent.minutes).filter(|one| one.counts.failed > 0).collect();
            failed.sort_by_key(|one| Reverse(one.counts.failed));
            let Some(&NamedCounts { id, name: worst, .. }) = failed.first() else { return };
            let all = failed.iter().map(|one| one.counts.failed).sum();
            let others = match failed.len() - 1 {
                0 => String::new(),
                1 => " and another organisation".to_owned(),
                others => format!(" and {others} other organisations"),
            };
            let messages = several(all, "message");
            let only = id.filter(|_| failed.len() == 1).map(|id| (id, worst.as_str()));
            let condition = found.says(format!("{messages} of {worst}{others} failed{LATELY_SAID}"));
            // The worst is another one in the next minute: there is one condition for all.
            if id.is_some() {
                condition.advice = condition.advice.replace("ORG", worst);
            }
            condition.affects(Failed, only, None).of_day(s.at);
        },
    ),
];

/// Those of production: SES judges the account by them alone.
fn production(all: &[NamedCounts]) -> impl Iterator<Item = &NamedCounts> {
    all.iter().filter(|one| one.kind == OrganisationKind::Production)
}

/// Whose rate it is; organisations that are counted together have no id.
fn whose(id: Option<OrganisationId>, name: &str) -> String {
    id.map_or_else(|| "The other organisations'".to_owned(), |_| format!("{name}'s"))
}

/// Reports endpoints one by one with what each does, and the number of those beyond the limit.
fn endpoints<'a>(
    s: &Snapshot,
    found: &mut Finder<'_>,
    mut all: impl Iterator<Item = (&'a Webhook, String)>,
    what: &str,
) {
    for (webhook, does) in all.by_ref().take(MAX_WEBHOOKS_TOLD) {
        let (id, name) = (webhook.id.to_string(), s.name(webhook.organisation));
        found.says(format!("Endpoint {id} of {name} {does}")).names("ID", &id);
    }
    let others = all.count();
    if others > 0 {
        let message =
            format!("Other endpoints that {what}, besides those that are named: {others}");
        found.says(message).advice = "List them with: pillarbox webhook list".into();
    }
}

fn fill(s: &Snapshot) -> Fill {
    Fill::of(s.sending.pending.bytes, s.sending.max_pending_bytes)
}

/// Reports limits of organisations of which this part is used.
fn limits(s: &Snapshot, found: &mut Finder<'_>, is_told: impl Fn(f64) -> bool) {
    for (id, limits, usage) in &s.stored.limited {
        let told = usage.within(limits).filter(|(_, used, limit)| is_told(ratio(*used, *limit)));
        for (period, used, limit) in told {
            let (name, period) = (s.name(*id), period.as_str());
            let message = format!(
                "{name} has used {used} of the {limit} recipients that it may send to per {period}"
            );
            found.says(message).names("NAME", &name);
        }
    }
}
