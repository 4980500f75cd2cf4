//! Sender domains that the provider does not accept for now: its messages, and the time from which
//! each is tried again. Their messages wait in the queue, whose lanes are closed and opened under
//! the same lock: a lane that is closed without a record would never be opened.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::time::Instant;
use tracing::{info, warn};

use pillarbox_domain::attempt::Problem;
use pillarbox_domain::id::OrganisationId;
use pillarbox_domain::mailbox::DomainName;
use pillarbox_domain::organisation::{Finding, SenderDomain};
use pillarbox_domain::retry::Backoff;
use pillarbox_queue::MessageQueue;

type Pauses = BTreeMap<(OrganisationId, DomainName<'static>), Pause>;

/// The paused domains, until each is seen to work.
#[derive(Debug)]
pub(super) struct PausedDomains {
    queue: Arc<MessageQueue>,
    /// Locked before the queue.
    pauses: Mutex<Pauses>,
}

/// Pause of one domain.
#[derive(Debug, Clone)]
pub(super) struct Pause {
    /// Time at which the provider last refused the domain. Calls that started earlier are no
    /// evidence about the time since.
    since: Instant,
    /// Time from which the domain is tried again.
    pub(super) until: Instant,
    failures: u32,
    /// Message of the provider.
    pub(super) message: String,
    /// The domain at the last check.
    domain: SenderDomain,
}

/// Refusal of a domain.
#[derive(Debug, Clone, Copy)]
pub(super) struct Fault<'a> {
    pub(super) problem: &'a Problem,
    /// Start of the call that was refused.
    pub(super) started: Instant,
    /// Delays between the tries of the domain.
    pub(super) backoff: Backoff,
}

/// Effect of a change of the directory on a paused domain.
#[derive(Debug, PartialEq, Eq)]
enum News {
    None,
    /// It may be sent from as far as is known: it is tried at once.
    Verified,
    /// It is not the one that was paused: it was removed, and perhaps added again.
    Replaced,
}

impl Pause {
    fn news(&self, domain: Option<&SenderDomain>) -> News {
        let Some(domain) = domain.filter(|domain| domain.added_at == self.domain.added_at) else {
            return News::Replaced;
        };
        let is_checked = domain.last_check != self.domain.last_check
            && domain.last_check.is_some_and(|check| check.finding == Finding::Verified);
        if domain.state.is_verified() && (is_checked || domain.state != self.domain.state) {
            News::Verified
        } else {
            News::None
        }
    }
}

impl PausedDomains {
    pub(super) fn new(queue: Arc<MessageQueue>) -> Self {
        Self { queue, pauses: Mutex::default() }
    }

    /// True if a domain is paused.
    pub(super) fn any(&self) -> bool {
        !self.lock().is_empty()
    }

    /// Pauses a domain because it was refused, longer each time, unless that call says nothing new
    /// or the domain is not the organisation's any more. `domains` are all sender domains, by
    /// organisation and name.
    pub(super) fn fault(
        &self,
        organisation: OrganisationId,
        domain: &DomainName<'_>,
        fault: Fault<'_>,
        domains: impl FnOnce() -> Vec<SenderDomain>,
    ) {
        let Fault { problem, started, backoff } = fault;
        let now = Instant::now();
        let mut paused = self.lock();
        let key = (organisation, domain.clone().into_owned());
        let failures = match paused.get(&key) {
            Some(pause) if started <= pause.since => return,
            Some(pause) => pause.failures.saturating_add(1),
            None => 1,
        };
        // Read under the lock: a later change is seen by `reconsider`.
        let Some(known) = find(&domains(), organisation, domain).cloned() else { return };
        let until = now + backoff.ceiling(failures);
        let message = problem.explained().into_owned();
        warn!(
            %domain,
            provider_code = problem.provider_code,
            message,
            "the provider does not accept messages from this domain; they wait"
        );
        paused.insert(key, Pause { since: now, until, failures, message, domain: known });
        self.queue.pause_domain(organisation, domain, until);
    }

    /// Ends the pause of a domain because the provider accepted a message in a call that was
    /// started at `started`, if that is after its last refusal.
    pub(super) fn works(
        &self,
        organisation: OrganisationId,
        domain: &DomainName<'_>,
        started: Instant,
    ) {
        let key = (organisation, domain.clone().into_owned());
        let mut paused = self.lock();
        if paused.get(&key).is_none_or(|pause| started <= pause.since) {
            return;
        }
        paused.remove(&key);
        self.queue.resume_domain(organisation, domain);
        info!(%domain, "the provider accepts messages from this domain again");
    }

    /// Compares the paused domains with the directory. One that has been found to be verified since
    /// is tried at `now`, by one message, and its delays begin anew. One that was removed is not
    /// paused any more.
    pub(super) fn reconsider(&self, domains: impl FnOnce() -> Vec<SenderDomain>, now: Instant) {
        let mut paused = self.lock();
        if paused.is_empty() {
            return;
        }
        let domains = domains();
        paused.retain(|(organisation, name), pause| {
            let known = find(&domains, *organisation, name);
            let news = pause.news(known);
            if let Some(known) = known {
                pause.domain = known.clone();
            }
            match news {
                News::None => true,
                News::Verified => {
                    (pause.until, pause.failures) = (now, 0);
                    self.queue.pause_domain(*organisation, name, now);
                    info!(domain = %name, "the domain is verified; one message tests it at once");
                    true
                }
                News::Replaced => {
                    self.queue.resume_domain(*organisation, name);
                    false
                }
            }
        });
    }

    /// The domains that were paused and have not been seen to work since.
    pub(super) fn paused(&self) -> Vec<(OrganisationId, DomainName<'static>, Pause)> {
        let paused = self.lock();
        let all = paused
            .iter()
            .map(|((organisation, domain), pause)| (*organisation, domain.clone(), pause.clone()));
        all.collect()
    }

    fn lock(&self) -> MutexGuard<'_, Pauses> {
        self.pauses.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn find<'a>(
    domains: &'a [SenderDomain],
    organisation: OrganisationId,
    name: &DomainName<'_>,
) -> Option<&'a SenderDomain> {
    let key = (organisation, name.as_str());
    let found =
        domains.binary_search_by(|domain| (domain.organisation, domain.name.as_str()).cmp(&key));
    found.ok().map(|position| &domains[position])
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use pillarbox_body_store::BodyStore;
    use pillarbox_domain::attempt::ProblemKind;
    use pillarbox_domain::organisation::{DomainCheck, DomainState};
    use pillarbox_domain::time::Timestamp;

    const ACME: OrganisationId = OrganisationId(1);

    fn problem() -> Problem {
        Problem {
            kind: ProblemKind::DomainFault,
            provider_code: None,
            message: "no".to_owned(),
            retry_after: None,
            answer: pillarbox_domain::attempt::ProviderAnswer::Missing,
        }
    }

    fn example() -> SenderDomain {
        let added_at = Timestamp::from_unix_millis(1);
        SenderDomain::new(ACME, "example.com".to_owned(), DomainState::Assumed, added_at)
    }

    fn backoff() -> Backoff {
        Backoff::try_new(Duration::from_secs(1), Duration::from_mins(5)).unwrap()
    }

    #[test]
    fn a_pause_ends_with_a_message_that_was_sent_after_it_began() {
        let name = DomainName::parse("example.com").unwrap();
        let queue = Arc::new(MessageQueue::new(BodyStore::of_this_process().unwrap(), 1 << 20));
        let domains = PausedDomains::new(queue);
        let fault = Fault { problem: &problem(), started: Instant::now(), backoff: backoff() };
        let before = fault.started;
        domains.fault(ACME, &name, fault, || vec![example()]);
        domains.works(ACME, &name, before);
        assert!(domains.any(), "it was sent before");
        domains.works(ACME, &name, Instant::now() + Duration::from_secs(1));
        assert!(!domains.any());
    }

    #[test]
    fn a_pause_follows_the_directory() {
        let name = DomainName::parse("example.com").unwrap();
        let queue = Arc::new(MessageQueue::new(BodyStore::of_this_process().unwrap(), 1 << 20));
        let domains = PausedDomains::new(queue);
        let now = Instant::now();
        let fault = |started| {
            let fault = Fault { problem: &problem(), started, backoff: backoff() };
            domains.fault(ACME, &name, fault, || vec![example()]);
        };
        let failures = || -> Vec<u32> {
            domains.paused().into_iter().map(|(_, _, pause)| pause.failures).collect()
        };
        fault(now);
        fault(now);
        assert_eq!(failures(), [1], "both calls started before the pause");
        assert!(domains.paused().iter().all(|(_, _, pause)| pause.until > pause.since));
        fault(Instant::now() + Duration::from_secs(1));
        domains.reconsider(|| vec![example()], now);
        assert_eq!(failures(), [2], "the directory has nothing new");
        let at = Timestamp::from_unix_millis(2);
        let last_check = Some(DomainCheck { at, finding: Finding::Verified });
        domains.reconsider(|| vec![SenderDomain { last_check, ..example() }], now);
        assert_eq!(failures(), [0], "a message tests it at once");
        domains.reconsider(Vec::new, now);
        assert!(!domains.any(), "it was removed");
    }

    #[test]
    fn only_a_new_check_or_a_new_state_tells_that_a_domain_is_verified() {
        let now = Instant::now();
        let known = |domain: &SenderDomain| Pause {
            since: now,
            until: now,
            failures: 1,
            message: String::new(),
            domain: domain.clone(),
        };
        let with = |state, finding| {
            let check = DomainCheck { at: Timestamp::from_unix_millis(2), finding };
            SenderDomain { state, last_check: Some(check), ..example() }
        };
        let verified = with(DomainState::Verified, Finding::Verified);
        let failed = with(DomainState::Verified, Finding::Failed);
        let pending = with(DomainState::Pending, Finding::Verified);
        for (before, after, is_verified) in [
            (&failed, &verified, true),
            (&pending, &verified, true),
            (&verified, &verified, false),
            (&verified, &failed, false),
            (&verified, &pending, false),
        ] {
            let news = known(before).news(Some(after));
            assert_eq!(matches!(news, News::Verified), is_verified, "{before:?} {after:?}");
            assert!(!matches!(news, News::Replaced));
        }
        let added_at = Timestamp::from_unix_millis(3);
        let again = SenderDomain { added_at, ..verified.clone() };
        assert!(matches!(known(&verified).news(Some(&again)), News::Replaced));
        assert!(matches!(known(&verified).news(None), News::Replaced));
    }

    /// Two threads at a time learn that the domain works, and that it does not.
    #[test]
    fn a_lane_is_closed_exactly_as_long_as_its_domain_is_known_to_be_paused() {
        let name = DomainName::parse("example.com").unwrap();
        let (domain, problem, backoff) = (example(), problem(), backoff());
        let queue = Arc::new(MessageQueue::new(BodyStore::of_this_process().unwrap(), 1 << 20));
        let domains = PausedDomains::new(Arc::clone(&queue));
        for round in 0..if cfg!(feature = "long") { 50_000 } else { 5_000 } {
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    let fault = Fault { problem: &problem, started: Instant::now(), backoff };
                    domains.fault(ACME, &name, fault, || vec![domain.clone()]);
                });
                domains.works(ACME, &name, Instant::now() + Duration::from_secs(1));
            });
            let is_closed = queue.is_closed(ACME, &name);
            assert_eq!(is_closed, domains.any(), "in round {round}");
        }
    }
}
