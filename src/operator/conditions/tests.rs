use std::collections::{BTreeMap, BTreeSet};

use super::*;
use crate::domain::policy::RECORD_RETENTION;
use crate::store::metrics::SLOW_COMMIT;
use crate::store::{CLOCKS_DIFFER, LEASE};

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
    for definition in Kind::ALL.map(Kind::definition) {
        match definition.alerts {
            Alerts::None(reason) => assert!(!reason.is_empty(), "{}", definition.code),
            Rules(rules) => {
                assert!(!rules.is_empty(), "{}", definition.code);
                expected.extend(rules.iter().map(|(name, severity)| match severity {
                    Page => (*name, "page"),
                    Ticket => (*name, "ticket"),
                }));
                let urgency = match definition.severity {
                    Critical => Page,
                    Warning => Ticket,
                    Notice => panic!("{}: a notice is no alert", definition.code),
                };
                assert!(
                    rules.iter().all(|(_, severity)| *severity == urgency),
                    "{}",
                    definition.code
                );
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
    let not_ready = Kind::ALL.map(Kind::definition).into_iter();
    let not_ready = not_ready.filter(|definition| definition.readiness == NotReady);
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
    let expected: [(&str, Vec<String>); 21] = [
        ("PillarboxClocksDiffer", vec![number(CLOCKS_DIFFER.as_secs_f64())]),
        ("PillarboxStoreRefusesWrites", vec![minutes(STORE_FAILED)]),
        ("PillarboxQueueStuck", vec![minutes(STUCK)]),
        ("PillarboxQueueFilling", vec![number(NEAR_LIMIT)]),
        ("PillarboxRefusesForWantOfRoom", vec![minutes(LATELY)]),
        ("PillarboxInternalErrors", vec![minutes(LATELY)]),
        ("PillarboxTaskFails", vec![minutes(LATELY)]),
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
