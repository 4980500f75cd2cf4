use std::collections::{BTreeMap, BTreeSet};

use super::*;
use crate::snapshot::{CertificateState, NamedCounts, StoreHealth, Totals};
use pillarbox_alerts::AlertsStatus;
use pillarbox_dispatch::circuit_breaker::{BreakerState, Cause};
use pillarbox_dispatch::quota::{AccountCheck, AccountFault, EarlierCredentials};
use pillarbox_dispatch::{DailyQuota, PausedByOperator, PausedMessages, RecentCalls};
use pillarbox_domain::feed::FeedTypes;
use pillarbox_domain::id::OrganisationId;
use pillarbox_domain::limits::RECORD_RETENTION;
use pillarbox_domain::organisation::{OrganisationKind, Pause, PausedRequests};
use pillarbox_domain::time::Timestamp;
use pillarbox_domain::webhook::{
    PausedBy, SigningSecret, Webhook, WebhookFormat, WebhookId, WebhookState, WebhookUrl,
};
use pillarbox_http::tls::{CertificateFault, CertificateTrouble};
use pillarbox_store::metrics::SLOW_COMMIT;
use pillarbox_store::organisation_counts::OrganisationCounts;
use pillarbox_store::{
    CLOCKS_DIFFER, DatabaseStatus, EventBacklog, LEASE, NodeLoad, NodeState, NodeStatus, SeenFrom,
    Standby,
};
use pillarbox_webhooks::EndpointStatus;

use Readiness::NotReady;
use Severity::{Critical, Notice, Warning};

const RULES: &str = include_str!("../../../monitoring/alerts.yml");
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
    for definition in definitions() {
        match definition.alerts {
            Alerts::None(reason) => assert!(!reason.is_empty(), "{}", definition.code),
            Alerts::Rules(rules) => {
                assert!(!rules.is_empty(), "{}", definition.code);
                let urgency = match definition.severity {
                    Critical => "page",
                    Warning => "ticket",
                    Notice => panic!("{}: a notice is no alert", definition.code),
                };
                for name in rules {
                    let before = expected.insert(*name, urgency);
                    assert!(before.is_none_or(|before| before == urgency), "{name}");
                }
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
fn only_what_the_instance_itself_suffers_from_ends_readiness() {
    let not_ready = definitions().filter(|definition| definition.readiness == NotReady);
    let codes: BTreeSet<_> = not_ready.map(|definition| definition.code).collect();
    let expected = [
        "stopping",
        "draining",
        "store_refusing",
        "data_file_lost",
        "starting",
        "credentials_missing",
        "credentials_refused",
        // As the cause why no credentials were taken since the start.
        "clock_wrong",
    ];
    assert_eq!(codes, expected.into());
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
    let expected: [(&str, Vec<String>); 23] = [
        ("PillarboxClocksDiffer", vec![number(CLOCKS_DIFFER.as_secs_f64())]),
        ("PillarboxStoreRefusesWrites", vec![minutes(STORE_FAILED)]),
        ("PillarboxQueueStuck", vec![minutes(STUCK)]),
        ("PillarboxQueueFilling", vec![number(NEAR_LIMIT)]),
        ("PillarboxRefusesForWantOfRoom", vec![minutes(LATELY)]),
        ("PillarboxInternalErrors", vec![minutes(LATELY)]),
        ("PillarboxTaskFails", vec![minutes(LATELY)]),
        // A domain that is tried again is none for as long as that call takes.
        ("PillarboxDomainPaused", vec!["1m".to_owned()]),
        ("PillarboxPausedMessagesEnd", vec![ENDS_SOON.as_secs().to_string()]),
        ("PillarboxThrottled", vec![minutes(LATELY), one_in(THROTTLED_ONE_IN), few.clone()]),
        ("PillarboxOutcomesUnknown", vec![minutes(LATELY)]),
        ("PillarboxQuotaLow", vec![number(QUOTA_LOW)]),
        ("PillarboxOrganisationNearLimit", vec![number(NEAR_LIMIT)]),
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
    let says = |code: &str, text: String| {
        let meaning = definitions().find(|one| one.code == code).unwrap().meaning;
        assert!(meaning.contains(&text), "{meaning} without {text}");
    };
    let hours = |time: Duration| format!("{} hours", time.as_secs() / 3_600);
    says("queue_stuck", format!("{} minutes", STUCK.as_secs() / 60));
    says("provider_slow", format!("{} seconds", recent_calls::SLOW.as_secs_f64()));
    says("clocks_differ", format!("{} seconds", CLOCKS_DIFFER.as_secs()));
    says("node_silent", format!("{} seconds", LEASE.as_secs()));
    says("purge_behind", format!("{} days", RECORD_RETENTION.as_secs() / 86_400));
    says("bounces", hours(DAY));
    says("complaints", hours(DAY));
    says("bounces", format!("{} %", BOUNCES.permille / 10));
    says("complaints", format!("0.{} %", COMPLAINTS.permille));
    says("bounces", format!("at least {} recipients", BOUNCES.least));
    says("complaints", format!("at least {} recipients", COMPLAINTS.least));
}

/// A service that nothing is wrong with.
fn well() -> Snapshot {
    let mut snapshot = Snapshot { account: AccountCheck::Passed, ..Snapshot::default() };
    snapshot.sending.max_pending_bytes = 1 << 30;
    snapshot.connections.max = 10;
    snapshot
}

/// Conditions that hold if this is changed about a service that is well.
fn with(change: impl FnOnce(&mut Snapshot)) -> Vec<Condition> {
    let mut snapshot = well();
    change(&mut snapshot);
    all(&snapshot)
}

fn codes(change: impl FnOnce(&mut Snapshot)) -> Vec<String> {
    with(change).into_iter().map(|one| one.code).collect()
}

#[test]
fn nothing_is_wrong_with_a_service_that_is_well() {
    assert_eq!(all(&well()), []);
    assert_eq!(codes(|s| s.account = AccountCheck::Unasked), ["starting"]);
    assert_eq!(codes(|s| s.is_stopping = true), ["stopping"]);
}

#[test]
fn a_provider_that_does_not_answer_is_critical_after_a_minute() {
    let told = |cause: Cause, seconds| {
        let found = with(|s| {
            s.sending.condition = BreakerState::Open { cause, message: "no".to_owned() };
            s.impaired_for = Some(Duration::from_secs(seconds));
        });
        assert_eq!((found.len(), found[0].ready, &*found[0].code), (1, true, cause.code()));
        found[0].severity
    };
    assert_eq!(told(Cause::Unreachable, 59), Warning);
    assert_eq!(told(Cause::Unreachable, 60), Critical);
    for cause in Cause::ALL.into_iter().filter(|cause| *cause != Cause::Unreachable) {
        assert_eq!(told(cause, 0), Critical);
    }
}

#[test]
fn only_a_process_that_never_had_credentials_is_not_ready_without_them() {
    let told = |fault: AccountFault, before| {
        let message = "no".to_owned();
        let found = with(|s| s.account = AccountCheck::Failed { fault, message, before });
        assert_eq!((found.len(), &*found[0].code), (1, fault.code()));
        (found[0].severity, found[0].ready)
    };
    for fault in AccountFault::ALL.into_iter().filter(|fault| fault.stops_sending()) {
        assert_eq!(told(fault, EarlierCredentials::None), (Critical, false), "{fault:?}");
        assert_eq!(told(fault, EarlierCredentials::Good), (Critical, true), "{fault:?}");
    }
    assert_eq!(told(AccountFault::AccessDenied, EarlierCredentials::None), (Warning, true));
}

#[test]
fn slow_and_unanswered_calls_are_told_of() {
    let codes = |slow, unanswered| {
        codes(|s| {
            s.sending.recent_calls = RecentCalls { calls: 100, slow, unanswered, unclear: 0 };
        })
    };
    assert!(codes(5, 0).is_empty());
    assert_eq!(codes(6, 0), ["provider_slow"]);
    assert_eq!(codes(1, 1), ["outcomes_unknown"]);
    assert_eq!(codes(6, 6), ["provider_slow", "outcomes_unknown"]);
}

#[test]
fn a_store_that_fails_by_turns_is_told_of_in_between() {
    let told = |store, lately| {
        let found = with(|s| (s.store, s.has_store_failed) = (store, lately));
        assert!(found.iter().all(|one| one.code == "store_refusing"));
        found.iter().map(|one| one.ready).collect::<Vec<_>>()
    };
    assert!(told(StoreHealth::Writable, false).is_empty());
    assert_eq!(told(StoreHealth::Writable, true), [true]);
    assert_eq!(told(StoreHealth::Refusing, true), [false]);
    let lost = with(|s| s.store = StoreHealth::FileGone);
    assert_eq!((&*lost[0].code, lost[0].ready), ("data_file_lost", false));
    assert!(lost[0].message.ends_with("because the data file is gone"), "{lost:?}");
}

#[test]
fn faults_of_the_certificate_are_told_each_by_itself() {
    let trouble = |fault| CertificateTrouble { fault, message: "Renew.".to_owned() };
    let troubles = [CertificateFault::Refused, CertificateFault::Expired].map(trouble).into();
    let found = codes(|s| {
        s.certificate = Some(CertificateState { troubles, ..CertificateState::default() });
    });
    assert_eq!(found, ["certificate_expired", "certificate_refused"]);
}

#[test]
fn a_pause_is_a_notice_and_an_hour_before_its_messages_end_a_warning() {
    let now = Timestamp::from_unix_millis(1_800_000_000_000);
    let told = |first_end| {
        let requests = PausedRequests::Accepted;
        let pause = Pause { since: now, requests };
        let messages = PausedMessages { waiting: 1, calls_under_way: 0, first_end };
        let organisation = OrganisationId(1);
        with(|s| {
            s.at = now;
            s.paused_by_operators = vec![PausedByOperator { organisation, pause, messages }];
        })
    };
    let notice = told(None);
    assert_eq!((notice.len(), &*notice[0].code), (1, "paused_by_operator"));
    assert!(notice[0].message.contains(&now.to_string()), "since when: {notice:?}");
    assert_eq!((notice[0].severity, notice[0].ready), (Notice, true));
    let at = |left| Some(now.plus(left));
    assert_eq!(told(at(ENDS_SOON + Duration::from_millis(1))).len(), 1);
    let both = told(at(ENDS_SOON));
    assert_eq!((&*both[0].code, both[0].severity), ("paused_messages_end", Warning));
    assert_eq!((&*both[1].code, both[1].severity), ("paused_by_operator", Notice));
}

#[test]
fn silent_nodes_a_lost_standby_and_clocks_that_differ_are_told_of() {
    let node = |state, seen_from| NodeStatus {
        name: "mail-b".to_owned(),
        version: String::new(),
        schema: 2,
        started_at: Timestamp::from_unix_millis(0),
        state,
        seen_from,
        least_dead_after: Duration::ZERO,
        share: 0.5,
        duties: Vec::new(),
        load: NodeLoad::default(),
    };
    let silent = NodeState::Silent(Duration::from_secs(21));
    let told = |state, seen_from| codes(|s| s.nodes = vec![node(state, seen_from)]);
    assert!(told(NodeState::Draining, SeenFrom::Another).is_empty());
    assert!(told(silent, SeenFrom::Itself).is_empty());
    assert_eq!(told(silent, SeenFrom::Another), ["node_silent"]);
    let database = |standby, clock_offset_millis| DatabaseStatus {
        server_version: String::new(),
        server_version_number: 150_000,
        schema: Some(2),
        standby,
        waits_for_disk: true,
        max_connections: 97,
        transactions_behind: 0,
        clock_offset_millis,
    };
    let told = |standby, offset| codes(|s| s.database = Some(database(standby, offset)));
    assert!(told(Standby::Synchronous, 5_000).is_empty());
    assert!(told(Standby::None, -5_000).is_empty());
    assert_eq!(told(Standby::Lost, 0), ["standby_lost"]);
    assert_eq!(told(Standby::None, 5_001), ["clocks_differ"]);
    assert_eq!(told(Standby::None, -5_001), ["clocks_differ"]);
}

#[test]
fn endpoints_beyond_the_limit_are_told_by_their_number() {
    let since = Timestamp::from_unix_millis(0);
    let told = |count, state| {
        let failing = EndpointStatus { failures_in_a_row: 3, ..EndpointStatus::default() };
        let endpoint = |number| Webhook {
            id: WebhookId(number),
            organisation: OrganisationId(number),
            url: WebhookUrl::parse("https://app.example.com/hooks").unwrap(),
            types: FeedTypes::default(),
            format: WebhookFormat::Standard,
            authority: None,
            created_at: since,
            secret: SigningSecret::generate().unwrap(),
            replaced: Vec::new(),
            state,
        };
        with(|s| s.endpoints = (0..count).map(|one| (endpoint(one), failing.clone())).collect())
    };
    let limit = u32::try_from(MAX_WEBHOOKS_TOLD).unwrap();
    for (state, code, end) in [
        (WebhookState::Active, "webhook_failing", "do not accept events"),
        (WebhookState::Paused { by: PausedBy::Endpoint, since }, "webhook_gone", "answered 410"),
    ] {
        let all = told(limit, state);
        assert_eq!(all.len(), MAX_WEBHOOKS_TOLD);
        assert!(all.iter().all(|one| one.message.starts_with("Endpoint ")), "{all:?}");
        let most = told(limit + 3, state);
        assert_eq!(most.len(), MAX_WEBHOOKS_TOLD + 1);
        assert!(most.iter().all(|one| one.code == code && one.severity == Warning), "{most:?}");
        let others = format!("Other endpoints that {end}, besides those that are named: 3");
        assert_eq!(most[MAX_WEBHOOKS_TOLD].message, others);
    }
}

#[test]
fn what_runs_out_is_told_before_it_is_gone() {
    let quota = |left| codes(|s| s.sending.quota = Some(DailyQuota { max: 100.0, left }));
    assert!(quota(10.0).is_empty());
    assert_eq!(quota(9.0), ["quota_low"]);
    let connections =
        |http, smtp| codes(|s| (s.connections.http, s.connections.smtp) = (http, smtp));
    assert!(connections(4, 4).is_empty());
    assert_eq!(connections(5, 4), ["connections_near_limit"]);
    let files = |open| {
        codes(|s| {
            s.process.open_descriptors = Some(open);
            s.process.max_descriptors = Some(100);
        })
    };
    assert!(files(80).is_empty());
    assert_eq!(files(81), ["files_near_limit"]);
}

#[test]
fn a_queue_that_is_full_is_told_and_leaves_the_service_ready() {
    const MAX: usize = 1 << 30;
    let told = |in_use, share| {
        let found = with(|s| {
            s.sending.pending.bytes = in_use;
            s.sending.greatest_share = share;
        });
        assert!(found.iter().all(|one| one.ready));
        found.into_iter().map(|one| one.code).collect::<Vec<_>>()
    };
    assert!(told(MAX / 5 * 4, 0.0).is_empty());
    assert_eq!(told(MAX - MAX / 6, 0.0), ["queue_filling"]);
    assert_eq!(told(MAX - MAX / 25, 0.0), ["queue_nearly_full"]);
    assert_eq!(told(MAX, 0.0), ["queue_full"]);
    assert_eq!(told(0, 0.81), ["queue_filling"]);
    assert!(told(MAX / 2, 1.0).is_empty());
    let of_one = with(|s| {
        s.sending.full_for = vec![OrganisationId(1)];
        s.names.insert(OrganisationId(1), "acme".to_owned());
    });
    assert_eq!((&*of_one[0].code, of_one[0].ready), ("queue_share_full", true));
    assert!(of_one[0].message.contains("full for acme:"), "{of_one:?}");
}

#[test]
fn a_few_throttled_calls_among_many_are_no_trouble() {
    let codes = |totals| codes(|s| s.recent.totals = totals);
    let quiet =
        Totals { calls: 100, throttled: 5, commits: 300, slow_commits: 3, ..Totals::default() };
    assert!(codes(quiet).is_empty());
    let few = Totals { calls: 2, throttled: 2, commits: 2, slow_commits: 2, ..Totals::default() };
    assert!(codes(few).is_empty());
    let bad = Totals {
        calls: 100,
        throttled: 6,
        commits: 299,
        slow_commits: 3,
        internal_errors: 1,
        refused_for_room: 1,
        ..Totals::default()
    };
    assert_eq!(codes(bad), ["internal_errors", "requests_refused", "commits_slow", "throttled"]);
    assert!(codes(bad.since(&bad)).is_empty(), "what is over is told no more");
}

#[test]
fn failed_messages_are_told_with_who_has_the_most() {
    let told = |counts: &[(&str, u64)]| {
        let found = with(|s| s.recent.minutes = failures(counts)).pop();
        found.map(|one| (one.message, one.advice))
    };
    assert_eq!(told(&[("acme", 0)]), None);
    let (one, advice) = told(&[("acme", 1), ("beta", 0)]).unwrap();
    assert_eq!(one, "1 message of acme failed in the last 5 minutes");
    assert!(advice.ends_with("--org acme"), "{advice}");
    let (two, _) = told(&[("acme", 2), ("beta", 3)]).unwrap();
    assert_eq!(two, "5 messages of beta and another organisation failed in the last 5 minutes");
    let (many, _) = told(&[("acme", 1_234_567)]).unwrap();
    assert_eq!(many, "1,234,567 messages of acme failed in the last 5 minutes");
}

#[test]
fn failures_link_to_the_messages_of_the_last_day_and_of_the_one_organisation() {
    let affected = |counts: &[(&str, u64)]| {
        let found = with(|s| {
            s.at = Timestamp::parse_rfc3339("2027-01-15T08:30:00Z").unwrap();
            s.recent.minutes = failures(counts);
        });
        found[0].affected.clone().unwrap()
    };
    let one = affected(&[("acme", 1), ("beta", 0)]);
    assert_eq!((one.outcome.as_str(), one.organisation.as_deref()), ("failed", Some("acme")));
    assert_eq!(one.from.as_deref(), Some("2027-01-14T08:00:00.000Z"));
    assert_eq!(affected(&[("acme", 1), ("beta", 1)]).organisation, None);
}

#[test]
fn pauses_and_throttling_link_to_what_waits() {
    let affected = |found: &[Condition]| found[0].affected.clone().map(|one| one.outcome);
    for cause in [Cause::QuotaExhausted, Cause::AccountPaused, Cause::SetupFault] {
        let found = with(|s| {
            let message = "no".to_owned();
            s.sending.condition = BreakerState::Open { cause, message };
        });
        assert_eq!(affected(&found).as_deref(), Some("queued"), "{cause:?}");
    }
    let found = with(|s| (s.recent.totals.throttled, s.recent.totals.calls) = (100, 200));
    assert_eq!(
        (found[0].code.as_str(), affected(&found).as_deref()),
        ("throttled", Some("queued"))
    );
}

/// So many failures of each organisation in the last minutes.
fn failures(counts: &[(&str, u64)]) -> Vec<NamedCounts> {
    let of = |(number, (name, failed)): (u32, &(&str, u64))| NamedCounts {
        id: Some(OrganisationId(number)),
        name: (*name).to_owned(),
        kind: OrganisationKind::Production,
        counts: OrganisationCounts { failed: *failed, ..OrganisationCounts::default() },
    };
    (1..).zip(counts).map(of).collect()
}

#[test]
fn a_reputation_is_told_from_half_the_limit_on_and_not_for_a_handful() {
    let day = |sent_recipients, hard_bounces, complaints| {
        let counts = OrganisationCounts {
            sent_recipients,
            hard_bounces,
            complaints,
            ..OrganisationCounts::default()
        };
        let of = |kind| {
            let name = "acme".to_owned();
            codes(|s| s.recent.day = vec![NamedCounts { id: None, name, kind, counts }])
        };
        assert!(of(OrganisationKind::Test).is_empty(), "SES knows nothing of it");
        of(OrganisationKind::Production)
    };
    assert!(day(99, 99, 99).is_empty());
    assert!(day(1_000, 25, 0).is_empty());
    assert_eq!(day(1_000, 26, 0), ["bounces"]);
    assert!(day(2_000, 0, 1).is_empty());
    assert_eq!(day(1_999, 0, 1), ["complaints"]);
    assert_eq!(BOUNCES.share(52, 1_000).as_deref(), Some("5.20 %"));
}

#[test]
fn no_command_is_given_the_name_of_organisations_that_are_counted_together() {
    let counts = OrganisationCounts {
        sent_recipients: 1_000,
        hard_bounces: 100,
        complaints: 100,
        failed: 1,
        ..OrganisationCounts::default()
    };
    let told = |id, name: &str| {
        let one =
            NamedCounts { id, name: name.to_owned(), kind: OrganisationKind::Production, counts };
        with(|s| (s.recent.day, s.recent.minutes) = (vec![one.clone()], vec![one]))
    };
    let acme = told(Some(OrganisationId(1)), "acme");
    let others = told(None, "(others)");
    assert_eq!((acme.len(), others.len()), (3, 3));
    for (acme, others) in acme.iter().zip(&others) {
        assert!(acme.advice.contains(" acme"), "{acme:?}");
        assert_eq!(others.advice, acme.advice.replace("acme", "ORG"));
    }
    assert!(acme[0].message.starts_with("acme's bounce rate"), "{acme:?}");
    assert!(others[0].message.starts_with("The other organisations' bounce rate"), "{others:?}");
}

#[test]
fn alerts_have_no_words_of_others_which_may_name_a_recipient() {
    const PLANTED: &str = "the address bob@example.org is not verified (key AKIDEXAMPLE)";
    let text = || PLANTED.to_owned();
    let acme = OrganisationId(1);
    let refused = AccountFault::AccessDenied;
    let before = EarlierCredentials::Good;
    let found = with(|s| {
        s.names.insert(acme, "acme".to_owned());
        s.impaired_for = Some(Duration::from_hours(1));
        s.sending.condition = BreakerState::Open { cause: Cause::SetupFault, message: text() };
        s.account = AccountCheck::Failed { fault: refused, message: text(), before };
        s.sending.paused_organisations.push((acme, text()));
        s.sending.held_refusals.push((acme, text()));
        s.sending.paused_domains.push((acme, "example.com".to_owned(), text()));
        s.events_trouble = Some(text());
        s.stored.backlog = Some(EventBacklog { dead_letters: 1, unmatched: 0 });
        s.stored.newest_letter = Some(text());
    });
    assert_eq!(found.len(), 7);
    for condition in found {
        assert!(condition.message.contains(PLANTED), "{condition:?}");
        let Observed { code, about, severity: _, message, advice, found_by: _ } =
            condition.observed();
        assert!(!message.contains('@') && !message.contains("AKID"), "{code}: {message}");
        assert!(!about.contains('@') && !advice.contains('@'), "{code}: {about}: {advice}");
        assert!(message.len() > 20 && !message.ends_with(['(', ' ', ':']), "{code}: {message}");
    }
}

#[test]
fn conditions_of_one_code_are_told_apart_by_what_they_are_about() {
    let failed = |one: u64, two: u64| {
        let found = with(|s| {
            s.recent.minutes = failures(&[("acme", one), ("other", two)]);
        });
        found[0].observed()
    };
    let (before, after) = (failed(3, 1), failed(3, 9));
    assert_eq!((before.code.as_str(), before.about.as_str()), ("messages_failed", ""));
    assert_eq!(after.about, "", "another one is the worst now, and it is the same condition");
    let two = with(|s| {
        for (id, name) in [(1, "acme"), (2, "other")] {
            s.names.insert(OrganisationId(id), name.to_owned());
            let domain = "example.com".to_owned();
            s.sending.paused_domains.push((OrganisationId(id), domain, "no".to_owned()));
        }
    });
    let about: Vec<_> = two.iter().map(|one| one.observed().about).collect();
    assert_eq!(about, ["example.com of acme", "example.com of other"]);
}

#[test]
fn alerts_that_do_not_get_through_are_told_of() {
    let failing = |failures_in_a_row| {
        codes(|s| s.alerts = Some(AlertsStatus { failures_in_a_row, ..AlertsStatus::default() }))
    };
    assert_eq!((failing(2), failing(3)), (vec![], vec!["alerts_failing".to_owned()]));
}
