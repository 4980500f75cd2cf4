//! Conditions: everything that can be wrong, in one list, each with its rule over the snapshot.
//!
//! Readiness, the page and `status` show those that hold. `docs/conditions.md` is made from the
//! list, and a test compares it with `monitoring/alerts.yml`.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::snapshot::Snapshot;
use pillarbox_alerts::{FoundBy, Observed};
use pillarbox_dispatch::recent_calls;
use pillarbox_domain::history::Hour;
use pillarbox_domain::id::OrganisationId;
use pillarbox_domain::outcome::MessageOutcome;
use pillarbox_domain::time::Timestamp;
use pillarbox_domain::worded;
use pillarbox_runtime::error_chain::without_full_stop;

use list::{IMMEDIATE, OBSERVED};

mod list;

/// Window of the conditions that cover the last minutes.
pub const LATELY: Duration = recent_calls::WINDOW;
/// Fewer slow or throttled calls, or slow commits, than this are no trend.
const FEW: u64 = recent_calls::FEW;
/// SES throttles if it does so with more than one call in so many.
const THROTTLED_ONE_IN: u64 = recent_calls::ONE_IN;
/// Commits are slow if more than one in so many is.
const SLOW_COMMIT_ONE_IN: u64 = 100;
/// Time for which a store that takes writes again is still reported. On a disk with a little room
/// left it fails and recovers many times a second.
pub const STORE_FAILED: Duration = Duration::from_mins(1);
/// A provider that does not answer is a warning until it has not for so long.
const UNREACHABLE: Duration = Duration::from_mins(1);
/// The queue is stuck if messages wait and none is sent for so long.
pub const STUCK: Duration = Duration::from_mins(15);
/// The part of a limit above which it is nearly reached.
const NEAR_LIMIT: f64 = 0.8;
/// Time before their end at which the messages of a paused organisation are reported.
const ENDS_SOON: Duration = Duration::from_hours(1);
/// The part of the daily quota below which little is left.
const QUOTA_LOW: f64 = 0.1;
/// Time past its retention after which a stored record means that the purge is behind.
const PURGE_SLACK: Duration = Duration::from_hours(24);
/// Window in which an organisation's bounces and complaints count.
pub const DAY: Duration = Duration::from_hours(24);
/// Bounces and complaints from which SES reviews an account.
pub const BOUNCES: Limit = Limit { permille: 50, least: 100 };
/// Limit of complaints; see [`BOUNCES`].
pub const COMPLAINTS: Limit = Limit { permille: 1, least: 1_000 };
/// The most endpoints that are reported one by one.
const MAX_WEBHOOKS_TOLD: usize = 20;

/// The share of recipients from which SES reviews an account, and the fewest recipients of whom a
/// share says something (AWS: "Sending review process FAQs").
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Limit {
    /// The share, in thousandths. A condition begins at half of it.
    pub permille: u64,
    /// Fewest recipients in the window; below them the limit does not apply.
    pub least: u64,
}

impl Limit {
    /// The share of all, in words, if it is above half of the limit.
    fn share(&self, part: u64, all: u64) -> Option<String> {
        let is_near = all >= self.least && part * 2_000 > all * self.permille;
        // In hundredths of a percent.
        let share = part * 10_000 / all.max(1);
        is_near.then(|| format!("{}.{:02} %", share / 100, share % 100))
    }
}

/// Something that is wrong.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Condition {
    /// A name for programs.
    pub code: String,
    pub message: String,
    pub advice: String,
    #[serde(default)]
    pub severity: Severity,
    /// True if the service is ready although the condition holds.
    pub ready: bool,
    /// Messages that it concerns, if these are not all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub affected: Option<Affected>,
    /// Facts that only alerts carry; only the service that found the condition knows them.
    #[serde(skip)]
    pub alert: AlertFacts,
}

/// Messages that a condition concerns.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Affected {
    /// Outcome of these messages, as the listing filters by it.
    pub outcome: String,
    pub organisation: Option<String>,
    /// Domain that they are sent from.
    pub domain: Option<String>,
    /// Number of them that wait on this node; `None` if they do not wait.
    pub waiting: Option<u64>,
    /// Earliest acceptance of these messages; `None` if it does not matter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// Id of the organisation, for code that counts by it.
    #[serde(skip)]
    pub id: Option<OrganisationId>,
}

impl Affected {
    /// Leaves only those that were accepted within the last day.
    fn of_day(&mut self, now: Timestamp) {
        // A condition that says something else every second could not be read.
        self.from = Some(Hour::of(now.minus(DAY)).start().to_string());
    }
}

/// Facts about a condition that only alerts use.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AlertFacts {
    /// Organisation, domain or endpoint that distinguishes it from others of its code; empty if
    /// there is one at a time.
    about: String,
    /// Sentence in the place of one with words of others: these may name a recipient.
    message: Option<String>,
    found_by: FoundBy,
}

impl Condition {
    /// Names its subject, in its advice in place of a word in capitals.
    fn names(&mut self, word: &str, name: &str) -> &mut Self {
        self.advice = self.advice.replace(word, name);
        self.is_about(name)
    }

    /// Names an organisation as its subject. Organisations that are counted together have no id, and
    /// no command takes a name for them: the advice keeps its word in capitals.
    fn names_organisation(&mut self, id: Option<OrganisationId>, name: &str) -> &mut Self {
        if id.is_some() { self.names("ORG", name) } else { self.is_about(name) }
    }

    /// Names its subject, which distinguishes it from others of its code.
    fn is_about(&mut self, about: impl Into<String>) -> &mut Self {
        self.alert.about = about.into();
        self
    }

    /// Adds affected messages: those that an organisation, or all, have with an outcome, only those
    /// from a domain if one is given.
    fn affects(
        &mut self,
        outcome: MessageOutcome,
        organisation: Option<(OrganisationId, &str)>,
        domain: Option<&str>,
    ) -> &mut Affected {
        self.affected.insert(Affected {
            outcome: outcome.as_str().to_owned(),
            organisation: organisation.map(|(_, name)| name.to_owned()),
            domain: domain.map(str::to_owned),
            waiting: None,
            from: None,
            id: organisation.map(|(id, _)| id),
        })
    }

    /// The condition as alerts report it to operators.
    pub fn observed(&self) -> Observed {
        let AlertFacts { about, message, found_by } = self.alert.clone();
        Observed {
            code: self.code.clone(),
            about,
            severity: self.severity.as_str(),
            message: message.unwrap_or_else(|| self.message.clone()),
            advice: self.advice.clone(),
            found_by,
        }
    }
}

worded! {
    /// Severity of a condition.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
    #[serde(rename_all = "camelCase")]
    pub enum Severity {
        /// No mail flows, or mail will be lost if nobody acts.
        Critical = "critical",
        /// Mail still flows, but something needs attention.
        Warning = "warning",
        /// For information.
        #[default]
        Notice = "notice",
    }
}

/// State of readiness: requests can be accepted durably, and this instance's set-up lets it send
/// them. Problems of the provider, the account, an organisation or a domain never end readiness.
/// Messages wait in the queue, and behind a load balancer no message could arrive that shows the
/// recovery.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Readiness {
    /// Requests are accepted and can be sent.
    Ready,
    /// Requests cannot be accepted, or this instance cannot send them.
    NotReady,
}

/// Alert rules for a condition in `monitoring/alerts.yml`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Alerts {
    /// Their names. Those of a critical condition page, those of a warning are tickets.
    Rules(&'static [&'static str]),
    /// There is none, for this reason.
    None(&'static str),
}

/// Entry of the list.
#[derive(Debug, Clone, Copy)]
pub struct Definition {
    pub code: &'static str,
    pub readiness: Readiness,
    pub severity: Severity,
    pub alerts: Alerts,
    /// Problem that holds, in one sentence.
    pub meaning: &'static str,
    /// Next step of the operator. A word in capitals is a placeholder.
    pub advice: &'static str,
    /// Nodes that find it.
    found_by: FoundBy,
    /// Finds the conditions of this kind in a snapshot.
    rule: Rule,
}

type Rule = fn(&Snapshot, &mut Finder<'_>);

/// Takes what a rule finds.
struct Finder<'a> {
    definition: &'static Definition,
    found: &'a mut Vec<Condition>,
}

impl Finder<'_> {
    /// The condition holds in this case, said in general.
    fn if_so(&mut self, holds: bool) {
        if holds {
            self.says(self.definition.meaning);
        }
    }

    /// The condition holds, with these figures.
    fn says(&mut self, message: impl AsRef<str>) -> &mut Condition {
        let Definition { code, readiness, severity, advice, found_by, .. } = *self.definition;
        self.found.push_mut(Condition {
            code: code.to_owned(),
            // Each output ends the sentence itself.
            message: without_full_stop(message.as_ref()).to_owned(),
            advice: advice.to_owned(),
            severity,
            ready: readiness == Readiness::Ready,
            affected: None,
            alert: AlertFacts { found_by, ..AlertFacts::default() },
        })
    }

    /// The condition holds, and its sentence has words of others. Alerts leave these out.
    fn quotes(&mut self, before: &str, words: &str, after: &str) -> &mut Condition {
        let condition = self.says(format!("{before}{words}{after}"));
        condition.alert.message = Some(without_full_stop(&format!("{before}{after}")).to_owned());
        condition
    }
}

/// Returns every entry of the list, the worst first.
pub fn definitions() -> impl Iterator<Item = &'static Definition> {
    IMMEDIATE.iter().chain(&OBSERVED)
}

/// Returns the conditions that hold.
pub fn all(snapshot: &Snapshot) -> Vec<Condition> {
    found(definitions(), snapshot)
}

/// Returns the conditions that can be decided at once: they need no answer of the store and no
/// history.
pub fn immediate(snapshot: &Snapshot) -> Vec<Condition> {
    found(IMMEDIATE.iter(), snapshot)
}

fn found(
    definitions: impl Iterator<Item = &'static Definition>,
    snapshot: &Snapshot,
) -> Vec<Condition> {
    let mut found = Vec::new();
    for definition in definitions {
        (definition.rule)(snapshot, &mut Finder { definition, found: &mut found });
    }
    // Those of one severity stay in the order of the list.
    found.sort_by_key(|condition| condition.severity);
    found
}

/// So many things, in words.
pub fn several(count: u64, thing: &str) -> String {
    if count == 1 { format!("1 {thing}") } else { format!("{} {thing}s", grouped(count)) }
}

/// A number with a comma after each third digit, as the page has it.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let groups = digits.as_bytes().rchunks(3).rev().map(String::from_utf8_lossy);
    groups.collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests;
