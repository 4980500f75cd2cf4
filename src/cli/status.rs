//! `status` and `clock`: how the service is doing, in plain words, and the operator's word on its
//! clock.

use std::fmt::Write;
use std::io::{self, IsTerminal, Write as _};
use std::time::Duration;

use clap::Args;
use clap::builder::styling::Style;

use crate::connect::{Connection, Format};
use crate::error::CliError;
use crate::output::{self, escaped, painted};
use pillarbox_admin::conditions::{Severity, several};
use pillarbox_admin::snapshot::{StoreHealth, TakenIn};
use pillarbox_admin::status::{
    AccountProblem, ClockConfirmed, ClockJump, Counts, Damaged, Events, LostMessages, PausedDomain,
    Provider, Sending, ServiceStatus, SlowCalls, StopLoss,
};
use pillarbox_admin::{self as admin, Acknowledge, Page};
use pillarbox_dispatch::circuit_breaker::Cause;
use pillarbox_dispatch::quota::{self, AccountFault};
use pillarbox_http::tls::CertificateFault;
use pillarbox_queue::Fill;
use pillarbox_runtime::error_chain::without_full_stop;
use pillarbox_store::{DamagedRow, EventBacklog};

const MIB: usize = 1 << 20;
const GIB: usize = 1 << 30;
/// Shortest interval between two reads of `--watch`.
const SHORTEST_INTERVAL: Duration = Duration::from_millis(100);
/// Takes a terminal to its beginning and clears it (ECMA-48: CUP, ED).
const CLEAR: &str = "\x1b[H\x1b[2J";

#[derive(Debug, Args)]
pub(super) struct Status {
    /// Print the address that opens the operator's page in a browser. It changes at each start.
    #[arg(long, conflicts_with = "watch")]
    page: bool,
    /// Confirm that you have seen the messages that were lost at a stop or a crash, so that the
    /// page, the metrics and the alerts do not show them any more. Without this, they show these
    /// messages for 24 hours.
    #[arg(long, conflicts_with_all = ["watch", "page"])]
    acknowledge: bool,
    #[command(flatten)]
    connection: Connection,
    /// Repeat until Ctrl-C, every two seconds or as often as given.
    #[arg(long, value_name = "DURATION", num_args = 0..=1, default_missing_value = "2s", value_parser = interval)]
    watch: Option<Duration>,
}

impl Status {
    pub(super) async fn run(self) -> Result<String, CliError> {
        if let Some(interval) = self.watch {
            return watch(&self.connection, interval).await;
        }
        let session = self.connection.open().await?;
        if self.page {
            return Ok(format!("{}\n", session.call(Page {}).await?.url));
        }
        if self.acknowledge {
            let acknowledged = session.run(Acknowledge {}, |answer| match &answer.lost_messages {
                Some(LostMessages { messages, last_at }) => {
                    let lost = several(*messages, "lost message");
                    format!("acknowledged: {lost}, the last at {last_at}\n")
                }
                None => "there are no lost messages to acknowledge\n".to_owned(),
            });
            return acknowledged.await;
        }
        let status = session.call(admin::Status {}).await?;
        let report = session.show(&status, shown);
        match critical(&status) {
            Some(what) => Err(CliError::Reported { report, what }),
            None => Ok(report),
        }
    }
}

/// Shows the status of the running service over and over, restarts included, for as long as it is
/// read: while none runs, the data file is left to the one that is coming.
async fn watch(reach: &Connection, interval: Duration) -> Result<String, CliError> {
    // A terminal shows the newest alone; elsewhere one follows the other.
    let people = reach.format() == Format::People;
    let clear = if people && io::stdout().is_terminal() { CLEAR } else { "" };
    loop {
        let status = async { reach.open_service().await?.run(admin::Status {}, shown).await };
        let text = match status.await {
            Err(error @ (CliError::Connect(_) | CliError::Call(_))) if people => {
                format!("{error}\n")
            }
            status => status?,
        };
        // Not a colour: it stays even if none are wanted.
        let cleared = io::stdout().write_all(clear.as_bytes());
        match cleared.and_then(|()| super::print(&text)) {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(String::new()),
            printed => printed.map_err(CliError::Print)?,
        }
        tokio::time::sleep(interval).await;
    }
}

/// The reason for which the status is critical, if it is: no service runs, or a critical condition
/// holds.
fn critical(status: &ServiceStatus) -> Option<String> {
    if status.uptime_seconds.is_none() {
        return Some("no service is running".to_owned());
    }
    match &critical_codes(status)[..] {
        [] => None,
        [code] => Some(format!("a critical condition holds: {code}")),
        codes => Some(format!("{} critical conditions hold: {}", codes.len(), codes.join(", "))),
    }
}

/// Codes of the critical conditions. In an older service's answer, the state of the store is newer
/// than this list.
fn critical_codes(status: &ServiceStatus) -> Vec<&str> {
    let mut codes = match status.store {
        StoreHealth::Writable => Vec::new(),
        StoreHealth::Refusing => vec!["store_refusing"],
        StoreHealth::FileGone | StoreHealth::FileReplaced | StoreHealth::FileWrittenOver => {
            vec!["data_file_lost"]
        }
    };
    let critical = status.conditions.iter().filter(|one| one.severity == Severity::Critical);
    for code in critical.map(|one| &*one.code) {
        if !codes.contains(&code) {
            codes.push(code);
        }
    }
    codes
}

/// True if lines of their own report a condition, with more facts.
fn has_lines(code: &str) -> bool {
    const OTHERS: [&str; 13] = [
        "store_refusing",
        "data_file_lost",
        "queue_full",
        "queue_nearly_full",
        "queue_share_full",
        "clock_jumped",
        "domain_paused",
        "provider_slow",
        "outcomes_unknown",
        "events_unavailable",
        "events_unreadable",
        "rows_damaged",
        "bodies_lost",
    ];
    OTHERS.contains(&code)
        || Cause::ALL.iter().any(|cause| cause.code() == code)
        || AccountFault::ALL.iter().any(|fault| fault.code() == code)
        || CertificateFault::ALL.iter().any(|fault| fault.code() == code)
}

fn interval(text: &str) -> Result<Duration, String> {
    let interval = humantime::parse_duration(text).map_err(|error| error.to_string())?;
    if interval < SHORTEST_INTERVAL {
        return Err("at least 100ms".to_owned());
    }
    Ok(interval)
}

fn shown(status: &ServiceStatus) -> String {
    let mut lines = vec![("pillarbox", running(status))];
    if status.uptime_seconds.is_some() {
        lines.push(("conditions", severities(status)));
    }
    lines.push(("store", store(status)));
    lines.extend(damaged(&status.damaged));
    if let Some(certificate) = &status.certificate {
        let expiry = certificate.expires_at.as_deref().unwrap_or("(unknown)");
        lines.push(("certificate", format!("expires {expiry}")));
        let troubles = certificate.troubles.iter();
        lines.extend(troubles.map(|trouble| ("certificate", trouble.clone())));
    }
    if let Some(ClockJump { explanation, since, .. }) = &status.clock_jump {
        let text = format!(
            "it {explanation}. Since {since} nothing has been purged and no idempotency key has \
             expired. If the clock is wrong, set it (on PostgreSQL: the database's clock). If it is \
             right, confirm it: pillarbox clock confirm"
        );
        lines.push(("clock", text));
    }
    if let Some(LostMessages { messages, last_at }) = &status.lost_messages {
        let text = format!(
            "{messages}; the process ended before it sent that mail, most recently at {last_at}. List \
             it with: pillarbox message list --status failed. If an error says that SES may have the \
             message, look for an event first. Senders must post the others again with new \
             idempotency keys. Then run: pillarbox status --acknowledge"
        );
        lines.push(("lost messages", text));
    }
    let besides = status.conditions.iter().filter(|one| !has_lines(&one.code));
    lines.extend(besides.map(|one| {
        let severity = one.severity.as_str();
        ("condition", format!("{severity}: {}. {}", one.message, one.advice))
    }));
    if let Some(sending) = &status.sending {
        lines.extend(sending_lines(sending, provider(status, sending)));
        lines.extend(status.bodies.iter().map(|bodies| ("bodies", bodies.summary())));
    }
    lines.extend(event_lines(&status.events, status.uptime_seconds));
    let Counts { organisations, keys, domains, domains_pending } = status.counts;
    lines.push(("organisations", organisations.to_string()));
    lines.push(("keys", keys.to_string()));
    let pending = match domains_pending {
        0 => String::new(),
        pending => format!(", {pending} of them not verified yet"),
    };
    lines.push(("domains", format!("{domains}{pending}")));
    let mut text = String::new();
    for (name, value) in lines {
        let style = match name {
            "condition" | "clock" | "lost messages" | "damaged rows" | "damaged row"
            | "unmatched events" | "dead letters" | "events trouble" | "account" => output::WARNING,
            "store" if status.store != StoreHealth::Writable || status.store_silent => output::BAD,
            "conditions" if !critical_codes(status).is_empty() => output::BAD,
            _ => Style::new(),
        };
        let label = painted(&format!("{:18}", format!("{name}:")), style);
        let _ = writeln!(text, "{label}{}", escaped(&value));
    }
    text
}

fn running(status: &ServiceStatus) -> String {
    match status.uptime_seconds {
        Some(seconds) => {
            let uptime = humantime::format_duration(Duration::from_secs(seconds));
            format!("version {}, running for {uptime}", status.version)
        }
        None => format!("version {}; no service is running", status.version),
    }
}

/// Conditions by their severity: the critical ones by their codes, the others by their number.
fn severities(status: &ServiceStatus) -> String {
    let mut parts = Vec::new();
    let critical = critical_codes(status);
    if !critical.is_empty() {
        parts.push(format!("critical: {}", critical.join(", ")));
    }
    for severity in [Severity::Warning, Severity::Notice] {
        let of_it = status.conditions.iter().filter(|one| one.severity == severity).count();
        if of_it > 0 {
            parts.push(several(of_it as u64, severity.as_str()));
        }
    }
    if parts.is_empty() { "none".to_owned() } else { parts.join("; ") }
}

fn store(status: &ServiceStatus) -> String {
    if let Some((what, advice)) = status.store.file_loss() {
        return format!("refuses new messages: {what}. {advice}");
    }
    let state = if status.store == StoreHealth::Refusing {
        "refuses writes: new messages are refused with 503, and nothing is sent. Make room on the \
         disk, or repair it; with PostgreSQL, check the database and the network to it. The store \
         then continues automatically"
    } else if status.store_silent {
        "does not answer. Lost messages and waiting events below are those of its last answer. \
         Check the disk, or the database and the network to it"
    } else if has(status, "store_refusing") {
        "accepts writes now, but refused some within the last minute: those requests were \
         answered with 503. Make room on the disk, or repair it; with PostgreSQL, check the \
         database and the network to it"
    } else {
        "takes writes"
    };
    state.to_owned()
}

fn has(status: &ServiceStatus, code: &str) -> bool {
    status.conditions.iter().any(|one| one.code == code)
}

fn damaged(damaged: &Damaged) -> Vec<(&'static str, String)> {
    let Damaged { count, rows } = damaged;
    if *count == 0 {
        return Vec::new();
    }
    let mut lines = vec![("damaged rows", format!("{count}. {}", Damaged::ADVICE))];
    lines.extend(rows.iter().map(|row| {
        let DamagedRow { table, id, address, reason } = row;
        let address = address.as_ref().map_or(String::new(), |address| format!(" ({address})"));
        ("damaged row", format!("{table}: {id}{address}: {reason}"))
    }));
    if *count > rows.len() {
        lines.push(("damaged row", "and more; the log has all of them".to_owned()));
    }
    lines
}

fn sending_lines(sending: &Sending, provider: String) -> Vec<(&'static str, String)> {
    let Sending { pending_messages, in_flight, pending_bytes, max_pending_bytes, .. } = *sending;
    let pending = several(pending_messages as u64, "message");
    let pending = format!("{pending}, {in_flight} in a call to the provider");
    let pace = match sending.recipients_per_second {
        Some(rate) if rate < quota::NO_LIMIT => format!("{rate:.1} recipients per second"),
        Some(_) | None => "no limit".to_owned(),
    };
    let mut lines = vec![
        ("pending", pending),
        ("queue memory", queue_memory(pending_bytes, max_pending_bytes, &sending.full_for)),
        ("pace", pace),
        ("a stop now", stop(&sending.stop_would_lose)),
    ];
    if let Some(AccountProblem { fault, message }) = &sending.account {
        let (what, advice) = fault.explained();
        lines.push(("account", format!("{what} ({}). {advice}", without_full_stop(message))));
    }
    lines.push(("provider", provider));
    if let Some(SlowCalls { slow, calls }) = &sending.slow_calls {
        let text = format!(
            "{slow} of {calls} calls to the provider took over 2.5 seconds in the last 5 minutes. \
             Check the network, and the AWS Health Dashboard"
        );
        lines.push(("slow calls", text));
    }
    let of_unknown_outcome = [
        ("unanswered", sending.unanswered_calls, "no answer. Check the network to SES"),
        ("unclear", sending.unclear_calls, "a server error from SES"),
    ];
    let of_unknown_outcome = of_unknown_outcome.into_iter().filter(|(_, calls, _)| *calls > 0);
    lines.extend(of_unknown_outcome.map(|(name, calls, got)| {
        let text = format!(
            "{} of the last 5 minutes got {got}. sending.on_unknown decides whether such messages \
             are sent again and may then arrive twice, or fail",
            several(calls, "call")
        );
        (name, text)
    }));
    lines
        .extend(sending.paused_domains.iter().map(|PausedDomain { organisation, domain, message }| {
        let text = format!(
            "{domain} of {organisation}: the provider does not accept it ({}). Its messages wait; \
             check it with: pillarbox domain check {domain}",
            without_full_stop(message)
        );
        ("paused domain", text)
    }));
    lines
}

fn stop(loss: &StopLoss) -> String {
    let StopLoss { messages, left_to_next_start, .. } = *loss;
    if messages + left_to_next_start == 0 {
        return "would probably lose no message".to_owned();
    }
    let parts = [
        (
            loss.waiting_for_provider,
            "waiting for the provider or the store, which makes no progress",
        ),
        (loss.waiting_for_domain, "waiting for a paused domain"),
        (loss.waiting_for_retry, "waiting for a retry after the drain"),
        (loss.waiting_for_resume, "waiting for a paused organisation to be resumed"),
        (loss.beyond_pace, "beyond what fits into the drain at this pace and quota"),
    ];
    let parts = parts.iter().filter(|(count, _)| *count > 0);
    let parts: Vec<_> = parts.map(|(count, what)| format!("{count} {what}")).collect();
    let parts = parts.join(", ");
    if messages == 0 {
        return format!(
            "would lose no message and leave {left_to_next_start} to the next start: {parts}. If no \
             start follows, as after systemctl stop, systemd before 254 drops their bodies"
        );
    }
    format!("would lose {}: {parts}", several(messages as u64, "message"))
}

fn queue_memory(in_use: usize, max: usize, full_for: &[String]) -> String {
    let in_use_of_max = of_max(in_use, max);
    let state = match Fill::of(in_use, max) {
        Fill::Room | Fill::NearlyFull if !full_for.is_empty() => {
            format!("full for {}: new messages are", full_for.join(", "))
        }
        Fill::Room => return format!("{in_use_of_max} in use"),
        Fill::NearlyFull => "nearly full: large messages may be".to_owned(),
        Fill::Full => "full: new messages are".to_owned(),
    };
    format!(
        "{in_use_of_max} in use. The queue is {state} refused with 503 QueueFull until some are \
         sent; fix what slows down sending, or raise sending.max_pending_bytes"
    )
}

/// So much of so much memory, with the unit of the greater one if that says it exactly.
fn of_max(in_use: usize, max: usize) -> String {
    let (unit, name) = if max.is_multiple_of(GIB) { (GIB, "GiB") } else { (MIB, "MiB") };
    if in_use.is_multiple_of(unit) || unit == MIB {
        return format!("{} of {} {name}", in_use.div_ceil(unit), max.div_ceil(unit));
    }
    format!("{} MiB of {} {name}", in_use.div_ceil(MIB), max / unit)
}

fn provider(status: &ServiceStatus, sending: &Sending) -> String {
    let (cause, message) = match &sending.provider {
        Provider::Up if status.store != StoreHealth::Writable => {
            return "gets no messages until the store accepts writes".to_owned();
        }
        Provider::Up if has(status, "starting") => {
            return "has not answered yet since the start".to_owned();
        }
        Provider::Up => return "takes messages".to_owned(),
        Provider::Impaired { cause, message } => (cause, message),
    };
    if let Some(problem) = sending.account.as_ref().filter(|one| one.fault.stops_sending()) {
        return format!("gets no messages: {}", problem.fault.code());
    }
    let (what, advice) = cause.explained();
    format!("sending is paused: {what} ({}). {advice}", without_full_stop(message))
}

/// The lines about the provider's events, of a running service or of its file alone.
fn event_lines(events: &Events, uptime_seconds: Option<u64>) -> Vec<(&'static str, String)> {
    let mut lines = Vec::new();
    match &events.taken_in {
        Some(taken_in) => lines.extend(taken_in_lines(taken_in)),
        None if uptime_seconds.is_some() => lines.push((
            "events",
            "off: pillarbox does not learn of deliveries, bounces and complaints, and suppresses \
             no bounced address. Set ses.events.queue_url"
                .to_owned(),
        )),
        None => {}
    }
    let Some(stored) = &events.stored else {
        lines.push(("waiting events", "cannot be read from the store".to_owned()));
        return lines;
    };
    let EventBacklog { unmatched, dead_letters, .. } = *stored;
    if unmatched > 0 {
        let text = format!(
            "{unmatched}, about messages without a record; pillarbox keeps each for a day. If \
             there are always many, another program sends through the same configuration set"
        );
        lines.push(("waiting events", text));
    }
    if dead_letters > 0 {
        let text = format!(
            "{}: not read in full, or of a test organisation; to list them: pillarbox dead-letter \
             list",
            several(dead_letters, "delivery event")
        );
        lines.push(("dead letters", text));
    }
    lines
}

fn taken_in_lines(taken_in: &TakenIn) -> Vec<(&'static str, String)> {
    let counts = [
        ("delivery", taken_in.delivery),
        ("bounce", taken_in.bounce),
        ("complaint", taken_in.complaint),
        ("reject", taken_in.reject),
        ("delivery_delay", taken_in.delivery_delay),
        ("send", taken_in.send),
        ("ignored", taken_in.ignored),
        ("unreadable", taken_in.unreadable),
    ];
    let counts = counts.map(|(name, count)| format!("{count} {name}")).join(", ");
    let text = match taken_in.seconds_since_last {
        Some(seconds) => {
            let ago = humantime::format_duration(Duration::from_secs(seconds));
            format!("since the start: {counts}; the last came {ago} ago")
        }
        None if taken_in.unreadable == 0 => "none since the start".to_owned(),
        None => format!("since the start: {counts}"),
    };
    let mut lines = vec![("events", text)];
    let TakenIn { unmatched, foreign, .. } = *taken_in;
    if unmatched + foreign > 0 {
        let text = format!(
            "events without a message when they arrived: {unmatched}; dropped because they did not \
             name the organisation of their message: {foreign}"
        );
        lines.push(("unmatched events", text));
    }
    if let Some(trouble) = &taken_in.trouble {
        let text = format!(
            "events cannot be read now ({trouble}). They wait in the SQS queue, for as long \
             as it retains them. Check the network, ses.events.queue_url, and that the credentials \
             allow sqs:ReceiveMessage and sqs:DeleteMessage; pillarbox then continues \
             automatically. After a change of ses.events.queue_url, restart the service"
        );
        lines.push(("events trouble", text));
    }
    lines
}

pub(super) fn confirmed(confirmed: &ClockConfirmed) -> String {
    match &confirmed.jump {
        Some(jump) => format!(
            "the clock, {}, is confirmed; nothing has been purged since {}\n",
            confirmed.now, jump.since
        ),
        None => format!("the clock, {}, was not in doubt\n", confirmed.now),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::json;

    use super::*;
    use pillarbox_admin::conditions::{AlertFacts, Condition, definitions};

    /// Status of a service whose store is like this, as a version answers that names no condition.
    fn status(store: StoreHealth) -> ServiceStatus {
        let answer = json!({
            "version": "0", "uptimeSeconds": 1, "smtpListeners": [], "store": store,
            "damaged": {"count": 0, "rows": []}, "events": {}, "conditions": [],
            "counts": {"organisations": 0, "keys": 0, "domains": 0, "domainsPending": 0},
        });
        serde_json::from_value(answer).unwrap()
    }

    #[test]
    fn a_store_that_takes_no_writes_is_critical_before_a_condition_says_so() {
        let is_critical = |code| {
            let mut of_it = definitions().filter(|one| one.code == code);
            of_it.all(|one| one.severity == Severity::Critical)
        };
        for (store, code) in [
            (StoreHealth::Refusing, "store_refusing"),
            (StoreHealth::FileGone, "data_file_lost"),
            (StoreHealth::FileReplaced, "data_file_lost"),
            (StoreHealth::FileWrittenOver, "data_file_lost"),
        ] {
            let mut status = status(store);
            assert!(is_critical(code) && has_lines(code), "{code}");
            assert_eq!(critical_codes(&status), [code]);
            status.conditions.push(Condition {
                code: code.to_owned(),
                message: String::new(),
                advice: String::new(),
                severity: Severity::Critical,
                ready: false,
                affected: None,
                alert: AlertFacts::default(),
            });
            assert_eq!(critical_codes(&status), [code], "it is told of once");
        }
        assert_eq!(critical(&status(StoreHealth::Writable)), None);
    }

    #[test]
    fn a_store_that_does_not_answer_is_told_of() {
        let mut status = status(StoreHealth::Writable);
        assert_eq!(super::store(&status), "takes writes");
        status.store_silent = true;
        assert!(super::store(&status).starts_with("does not answer."));
        status.store = StoreHealth::Refusing;
        assert!(super::store(&status).starts_with("refuses writes"), "it says more");
    }

    #[test]
    fn what_a_stop_would_lose_is_told_with_its_reasons() {
        assert!(stop(&StopLoss::default()).starts_with("would probably lose no message"));
        let loss = StopLoss {
            messages: 12,
            waiting_for_domain: 2,
            beyond_pace: 10,
            ..StopLoss::default()
        };
        assert_eq!(
            stop(&loss),
            "would lose 12 messages: 2 waiting for a paused domain, 10 beyond what fits into the \
             drain at this pace and quota"
        );
        let kept = StopLoss { messages: 0, left_to_next_start: 12, ..loss };
        let said = stop(&kept);
        assert!(
            said.starts_with("would lose no message and leave 12 to the next start: 2"),
            "{said}"
        );
    }

    #[test]
    fn conditions_with_lines_of_their_own_are_in_the_list() {
        let with_lines: BTreeSet<_> =
            definitions().map(|one| one.code).filter(|code| has_lines(code)).collect();
        // Five causes, three more faults of the account, and three of the certificate.
        assert_eq!(with_lines.len(), 13 + 5 + 3 + 3);
    }

    #[test]
    fn a_queue_is_called_full_only_where_it_is() {
        let max = 100 * MIB;
        assert_eq!(queue_memory(50 * MIB, max, &[]), "50 of 100 MiB in use");
        assert_eq!(queue_memory(0, GIB, &[]), "0 of 1 GiB in use");
        assert_eq!(queue_memory(MIB / 2, GIB, &[]), "1 MiB of 1 GiB in use");
        assert_eq!(queue_memory(0, 1_500 * MIB, &[]), "0 of 1500 MiB in use");
        let full_for = ["acme".to_owned(), "beta".to_owned()];
        let of_some = queue_memory(50 * MIB, max, &full_for);
        assert!(of_some.contains("full for acme, beta: new messages are refused"), "{of_some}");
        assert!(
            queue_memory(96 * MIB, max, &[]).contains("The queue is nearly full: large messages")
        );
        assert!(queue_memory(max, max, &full_for).contains("The queue is full: new messages"));
    }
}
