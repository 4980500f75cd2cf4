//! Verification: asks SES about sender domains, the pending ones until they may be sent from, and
//! the verified ones now and then, because their DNS records can go.
//!
//! When a domain was last asked about is stored with it, so a restart asks no sooner.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use tokio::time::Instant;
use tracing::{debug, info, warn};

use pillarbox_domain::mailbox::DomainName;
use pillarbox_domain::organisation::{
    DomainCheck, DomainState, Finding, OrganisationKind, SenderDomain,
};
use pillarbox_domain::time::Timestamp;
use pillarbox_runtime::clock::Clock;
use pillarbox_ses::SesClient;
use pillarbox_ses::error::CallError;
use pillarbox_ses::identity::Identity;
use pillarbox_store::{Change, Duty, Store};

/// Interval between two searches for domains that are due.
const ROUND: Duration = Duration::from_secs(15);
/// The shortest wait between two checks of a pending domain: DNS takes minutes at least.
const SHORTEST_WAIT: Duration = Duration::from_mins(1);
/// The longest one: who publishes the records after weeks waits no longer, or asks by hand.
const LONGEST_WAIT: Duration = Duration::from_hours(6);
/// A pending domain is checked again after this part of the time that it has been pending.
const PART_OF_AGE: u32 = 8;
/// Interval between two checks of a verified domain. SES itself gives records that vanish three
/// days.
const VERIFIED_WAIT: Duration = Duration::from_hours(12);
/// Wait before the second check of a verified domain that SES no longer lets send: one odd answer
/// must not stop an organisation's mail.
const DOUBT_WAIT: Duration = Duration::from_mins(5);
/// The longest wait after calls about one domain that failed.
const LONGEST_FAILURE_WAIT: Duration = Duration::from_hours(1);

/// Time of the next question about a domain; `None` for never, the epoch for a domain that was
/// never asked about.
pub fn due_at(domain: &SenderDomain) -> Option<Timestamp> {
    let wait = |check: DomainCheck| match (domain.state, check.finding) {
        (DomainState::Assumed, _) => None,
        (DomainState::Verified, Finding::Verified) => Some(VERIFIED_WAIT),
        (DomainState::Verified, _) => Some(DOUBT_WAIT),
        (DomainState::Pending, _) => {
            let age = check.at.unix_millis().saturating_sub(domain.since.unix_millis());
            let part = Duration::from_millis(age) / PART_OF_AGE;
            Some(part.clamp(SHORTEST_WAIT, LONGEST_WAIT))
        }
    };
    match (domain.state, domain.last_check) {
        (DomainState::Assumed, _) => None,
        (DomainState::Pending | DomainState::Verified, None) => {
            Some(Timestamp::from_unix_millis(0))
        }
        (DomainState::Pending | DomainState::Verified, Some(check)) => {
            wait(check).map(|wait| check.at.plus(wait))
        }
    }
}

/// State of a domain after this answer of SES. A verified one is lost only if two answers in a row
/// agree.
pub fn state_after(domain: &SenderDomain, finding: Finding) -> DomainState {
    match (domain.state, finding) {
        (DomainState::Assumed, _) => DomainState::Assumed,
        (_, Finding::Verified) => DomainState::Verified,
        (DomainState::Pending, _) => DomainState::Pending,
        (DomainState::Verified, _) => match domain.last_check {
            Some(DomainCheck { finding: Finding::Verified, .. }) | None => DomainState::Verified,
            Some(_) => DomainState::Pending,
        },
    }
}

/// Meaning of SES's answer about a domain.
pub fn finding(identity: Option<&Identity>) -> Finding {
    identity.map_or(Finding::Unknown, Identity::finding)
}

/// Checks for as long as it is polled. Of several nodes one does: two that ask at one time would
/// take one odd answer for two.
pub async fn run(store: Store, ses: SesClient, clock: Clock) {
    let is_ours = store.has_duty(Duty::Domains);
    let mut verifier = Verifier::new(store, ses, clock);
    loop {
        if *is_ours.borrow() {
            verifier.round().await;
        }
        tokio::time::sleep(ROUND).await;
    }
}

/// Asks about the domains that are due.
#[derive(Debug)]
pub struct Verifier {
    store: Store,
    ses: SesClient,
    clock: Clock,
    /// The domains that SES could not be asked about.
    failures: HashMap<String, Failure>,
}

#[derive(Debug, Clone, Copy)]
struct Failure {
    in_a_row: u32,
    retry_at: Instant,
}

impl Verifier {
    /// A verifier that has asked about nothing yet.
    pub fn new(store: Store, ses: SesClient, clock: Clock) -> Self {
        Self { store, ses, clock, failures: HashMap::new() }
    }

    /// Asks once about each domain that is due, even if several organisations have it. If SES
    /// cannot be reached at all, the rest is left to the next round.
    pub async fn round(&mut self) {
        let due = self.due();
        self.failures.retain(|name, _| due.contains_key(name));
        for (text, domains) in due {
            let Ok(name) = DomainName::parse(&text) else { continue };
            if self.failures.get(&text).is_some_and(|failure| failure.retry_at > Instant::now()) {
                continue;
            }
            match self.ses.identity(&name).await {
                Ok(identity) => {
                    self.failures.remove(&text);
                    for domain in domains {
                        self.apply(&domain, &name, finding(identity.as_ref())).await;
                    }
                }
                Err(error) => {
                    debug!(domain = text, %error, "SES could not be asked about the domain");
                    self.failed(text);
                    if matches!(error, CallError::Credentials(_) | CallError::Unreachable(_)) {
                        break;
                    }
                }
            }
        }
    }

    fn due(&self) -> BTreeMap<String, Vec<SenderDomain>> {
        let now = self.clock.now();
        let mut due: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for domain in self.store.domains() {
            // SES knows nothing of a test organisation's domains.
            let kind = self.store.organisation_kind(domain.organisation);
            if kind != Some(OrganisationKind::Production) {
                continue;
            }
            // A check in the future was made by a clock that has been set back since.
            let ahead = domain.last_check.is_some_and(|check| check.at > now);
            if due_at(&domain).is_some_and(|at| at <= now || ahead) {
                due.entry(domain.name.clone()).or_default().push(domain);
            }
        }
        due
    }

    fn failed(&mut self, name: String) {
        let in_a_row = self.failures.get(&name).map_or(1, |failure| failure.in_a_row + 1);
        let wait = SHORTEST_WAIT.saturating_mul(1 << (in_a_row - 1).min(16));
        let retry_at = Instant::now() + wait.min(LONGEST_FAILURE_WAIT);
        self.failures.insert(name, Failure { in_a_row, retry_at });
    }

    async fn apply(&self, domain: &SenderDomain, name: &DomainName<'_>, finding: Finding) {
        let to = state_after(domain, finding);
        let check = DomainCheck { at: self.clock.now(), finding };
        let change =
            self.store.change_domain(domain.organisation, name.clone(), domain.state, to, check);
        match change.await {
            Ok(Change::Made) => report(domain, to, finding),
            // It was changed or withdrawn while SES was asked.
            Ok(Change::None) => {}
            Err(error) => debug!(domain = domain.name, %error, "SES's answer was not stored"),
        }
    }
}

fn report(domain: &SenderDomain, to: DomainState, finding: Finding) {
    let name = &domain.name;
    let is_news = domain.last_check.is_none_or(|check| check.finding != finding);
    match (domain.state, to) {
        (DomainState::Pending, DomainState::Verified) => {
            info!(domain = name, "the domain is verified: messages may be sent from it");
        }
        (DomainState::Verified, DomainState::Pending) => warn!(
            domain = name,
            "SES no longer lets the account send from the domain, so pillarbox refuses messages \
             from it. To see what is missing: pillarbox domain check {name}"
        ),
        (DomainState::Verified, _) if finding != Finding::Verified && is_news => warn!(
            domain = name,
            "SES says that the domain is not verified any more; pillarbox asks again before it \
             refuses messages"
        ),
        (DomainState::Pending, _) if finding == Finding::Failed && is_news => warn!(
            domain = name,
            "SES has given up looking for the domain's DNS records. \
             `pillarbox domain check {name}` shows what to do"
        ),
        _ => debug!(domain = name, ?finding, "asked SES"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pillarbox_domain::id::OrganisationId;

    const START: Timestamp = Timestamp::from_unix_millis(1_800_000_000_000);

    fn domain(state: DomainState, last_check: Option<(Timestamp, Finding)>) -> SenderDomain {
        SenderDomain {
            organisation: OrganisationId(1),
            name: "example.com".to_owned(),
            state,
            added_at: START,
            since: START,
            last_check: last_check.map(|(at, finding)| DomainCheck { at, finding }),
        }
    }

    #[test]
    fn a_pending_domain_is_asked_about_ever_more_rarely_and_never_more_than_six_hours_apart() {
        let mut at = START;
        let mut last = Duration::ZERO;
        let mut looks_on_the_first_day = 0;
        for _ in 0..500 {
            let pending = domain(DomainState::Pending, Some((at, Finding::Failed)));
            let next = due_at(&pending).unwrap();
            let wait = Duration::from_millis(next.unix_millis() - at.unix_millis());
            assert!(wait >= last && (SHORTEST_WAIT..=LONGEST_WAIT).contains(&wait), "{wait:?}");
            looks_on_the_first_day += u32::from(!START.is_past(Duration::from_hours(24), next));
            (at, last) = (next, wait);
        }
        assert_eq!(last, LONGEST_WAIT);
        assert!((20..80).contains(&looks_on_the_first_day), "{looks_on_the_first_day}");
    }

    #[test]
    fn a_verified_domain_is_lost_only_where_two_looks_agree() {
        let verified = domain(DomainState::Verified, Some((START, Finding::Verified)));
        assert_eq!(due_at(&verified), Some(START.plus(VERIFIED_WAIT)));
        assert_eq!(state_after(&verified, Finding::Failed), DomainState::Verified);
        let doubted = domain(DomainState::Verified, Some((START, Finding::Failed)));
        assert_eq!(due_at(&doubted), Some(START.plus(DOUBT_WAIT)));
        assert_eq!(state_after(&doubted, Finding::Unknown), DomainState::Pending);
        assert_eq!(state_after(&doubted, Finding::Verified), DomainState::Verified);
    }

    #[test]
    fn an_assumed_domain_is_nobodys_question() {
        let assumed = domain(DomainState::Assumed, None);
        assert_eq!(due_at(&assumed), None);
        assert_eq!(state_after(&assumed, Finding::Failed), DomainState::Assumed);
    }
}
