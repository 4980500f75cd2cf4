//! A batch: several requests of one organisation that are accepted together, all of them or those that
//! are not refused for a reason of their own.
//!
//! Keeps the order of checks of one request, each check for all requests before the next one.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::fmt::Display;

use tokio::task::yield_now;

use crate::{Intake, Origin, Refusal};
use pillarbox_domain::admission::Admitted;
use pillarbox_domain::clock_corrections::WindowTime;
use pillarbox_domain::id::{KeyId, MessageId, OrganisationId};
use pillarbox_domain::organisation::Organisation;
use pillarbox_domain::request::{OwnedIdempotencyKey, RequestError, SendRequest};
use pillarbox_store::{AcceptError, Accepted, BatchMode, NewMessage};

/// Reason why no request of a batch is accepted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BatchRefusal {
    /// One of them is at fault.
    Of {
        /// Its place in the batch, from 0.
        index: usize,
        /// Reason why it is refused.
        refusal: RequestRefusal,
    },
    /// They cannot be taken together.
    Whole(Refusal),
}

/// Reason why one request of a batch is refused, independent of the others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RequestRefusal {
    /// It is not well-formed.
    Invalid(RequestError),
    /// It may not be sent.
    Refused(Refusal),
}

impl From<RequestError> for RequestRefusal {
    fn from(error: RequestError) -> Self {
        Self::Invalid(error)
    }
}

/// A batch that passed every check and needs nothing of its requests any more.
pub struct PreparedBatch {
    organisation: OrganisationId,
    mode: BatchMode,
    /// An answer for each request, in order.
    answers: Vec<Answer>,
    rest: Rest,
}

/// Answer to a request of a batch, before the new messages are stored.
enum Answer {
    /// It is refused alone.
    Refused(RequestRefusal),
    /// Id of an earlier message.
    Replayed(MessageId),
    /// The next of the new messages.
    New,
    /// The message of the request at this earlier place, which has the same key.
    SameAs(usize),
}

/// A request that is admitted, and its place in the batch.
type Placed<'r> = (usize, Admitted<'r>);

/// Remaining step for the new messages of a batch.
enum Rest {
    Accept(Vec<NewMessage>),
    /// They cannot be taken, unless the keys of all of them are those of messages that are
    /// being committed now.
    Refuse {
        refusal: Refusal,
        keys: Option<Vec<OwnedIdempotencyKey>>,
    },
}

impl Intake {
    /// Checks a batch, or returns why nothing of it can be accepted; if the reason is one request,
    /// it is the first that is not well-formed. As [`Intake::accept`], it reads and encodes what it
    /// needs: the caller can let go of the requests. Other tasks run between two requests.
    pub async fn prepare_batch<'r, D: Display + Clone + Send + 'static>(
        &self,
        organisation: &Organisation,
        key: Option<KeyId>,
        mode: BatchMode,
        requests: impl Iterator<Item = Result<SendRequest<'r>, RequestError>>,
        request_id: D,
    ) -> Result<PreparedBatch, BatchRefusal> {
        let mut well_formed = Vec::new();
        for (index, request) in requests.enumerate() {
            let request = mode.each(request.map_err(RequestRefusal::from));
            well_formed.push(request.map_err(|refusal| BatchRefusal::Of { index, refusal })?);
            yield_now().await;
        }
        let right = self.sending_right(organisation, key).map_err(BatchRefusal::Whole)?;
        let suppression_epoch = self.store.suppression_epoch();
        let mut answers = Vec::with_capacity(well_formed.len());
        let mut all = Vec::with_capacity(well_formed.len());
        for (index, request) in well_formed.into_iter().enumerate() {
            let facts = self.store.facts(organisation.id).by_right(&right);
            let admitted = match request {
                Ok(request) => match self.admit(request, &facts).await {
                    Ok(admitted) => Ok(admitted),
                    Err(refusal) if refusal.is_of_all() => {
                        return Err(BatchRefusal::Whole(refusal));
                    }
                    Err(refusal) => Err(RequestRefusal::Refused(refusal)),
                },
                Err(refusal) => Err(refusal),
            };
            let admitted = mode.each(admitted);
            answers.push(
                match admitted.map_err(|refusal| BatchRefusal::Of { index, refusal })? {
                    Ok(admitted) => {
                        all.push((index, admitted));
                        Answer::New
                    }
                    Err(refusal) => Answer::Refused(refusal),
                },
            );
            yield_now().await;
        }
        let window_now = self.clock.window_time();
        let found = self.find_replays(organisation.id, mode, &all, &window_now, &mut answers).await;
        found.map_err(BatchRefusal::Whole)?;
        all.retain(|(place, _)| matches!(answers[*place], Answer::New));
        let request_id = Some(request_id);
        let origin = Origin { organisation, right, suppression_epoch, request_id };
        let rest = self.encode_all(&all, &window_now, origin).await;
        Ok(PreparedBatch { organisation: organisation.id, mode, answers, rest })
    }

    /// Encodes the new messages of a batch, if all of them can be taken.
    async fn encode_all<D: Display + Clone + Send + 'static>(
        &self,
        new: &[Placed<'_>],
        window_now: &WindowTime,
        origin: Origin<'_, D>,
    ) -> Rest {
        let mut acceptances = Vec::with_capacity(new.len());
        // Of several with one key, the acceptance takes one.
        let mut keys = HashSet::new();
        let mut is_first = |key| keys.insert(key);
        let one_each =
            new.iter().filter(|(_, one)| one.idempotency_key().is_none_or(&mut is_first));
        let recipients = one_each.map(|(_, admitted)| admitted.recipient_count()).sum();
        let mut refused = self.require_open(origin.organisation.id, recipients).err();
        for (_, admitted) in new {
            if refused.is_some() {
                break;
            }
            let times = (self.clock.record_time(), window_now.clone());
            match self.acceptance(admitted, times, origin.clone()) {
                Ok(acceptance) => acceptances.push(acceptance),
                Err(refusal) => refused = Some(refusal),
            }
            yield_now().await;
        }
        let Some(refusal) = refused else { return Rest::Accept(acceptances) };
        let keys = new.iter().map(|(_, admitted)| admitted.idempotency_key());
        Rest::Refuse { refusal, keys: keys.map(|key| Some(key?.into_owned())).collect() }
    }

    /// Accepts a batch: when this returns answers, in order, all messages that it accepts are on disk.
    /// Only a partial batch has refusals among them. If the caller stops waiting, the batch is
    /// accepted all the same, or nothing of it is.
    pub async fn accept_batch(
        &self,
        batch: PreparedBatch,
    ) -> Result<Vec<Result<Accepted, RequestRefusal>>, BatchRefusal> {
        let PreparedBatch { organisation, mode, answers, rest } = batch;
        let new = match rest {
            Rest::Accept(acceptances) if acceptances.is_empty() => Vec::new(),
            Rest::Accept(acceptances) => {
                let accepted = self.store.accept_all(acceptances, mode).await;
                accepted.map_err(|error| refused_by_store(error, &answers))?
            }
            Rest::Refuse { refusal, keys: None } => return Err(BatchRefusal::Whole(refusal)),
            Rest::Refuse { refusal, keys: Some(keys) } => {
                let mut replayed = Vec::with_capacity(keys.len());
                for key in &keys {
                    let replay = self.replay_or(organisation, key, refusal.clone()).await;
                    replayed.push(Ok(replay.map_err(BatchRefusal::Whole)?));
                }
                replayed
            }
        };
        let mut new =
            new.into_iter().map(|one| one.map_err(|error| RequestRefusal::Refused(error.into())));
        let mut told: Vec<Result<Accepted, RequestRefusal>> = Vec::with_capacity(answers.len());
        for answer in answers {
            told.push(match answer {
                Answer::Refused(refusal) => Err(refusal),
                Answer::Replayed(id) => Ok(Accepted::Replayed(id)),
                Answer::New => new.next().expect("every new message has an answer"),
                Answer::SameAs(earlier) => {
                    told[earlier].clone().map(|earlier| Accepted::Replayed(earlier.id()))
                }
            });
        }
        Ok(told)
    }

    /// Separates new messages from replays, and from repeats in the batch itself.
    async fn find_replays(
        &self,
        organisation: OrganisationId,
        mode: BatchMode,
        all: &[Placed<'_>],
        window_now: &WindowTime,
        answers: &mut [Answer],
    ) -> Result<(), Refusal> {
        let mut places = HashMap::new();
        let (mut keys, mut of_keys) = (Vec::new(), Vec::new());
        for (place, admitted) in all {
            let Some(key) = admitted.idempotency_key() else { continue };
            // The acceptance can refuse one sender's domain and not another's. So the second of two with
            // one key is only sure to have the fate of the first if their domains are the same.
            let domain = || admitted.from().address().domain().as_str();
            let domain = (mode == BatchMode::Partial).then(domain);
            match places.entry((key, domain)) {
                Entry::Occupied(earlier) => answers[*place] = Answer::SameAs(*earlier.get()),
                Entry::Vacant(entry) => {
                    entry.insert(*place);
                    keys.push(key);
                    of_keys.push(*place);
                }
            }
        }
        if keys.is_empty() {
            return Ok(());
        }
        let replays = self.store.replays(organisation, &keys, window_now.clone()).await?;
        for (place, replay) in of_keys.into_iter().zip(replays) {
            if let Some(id) = replay {
                answers[place] = Answer::Replayed(id);
            }
        }
        Ok(())
    }
}

impl Refusal {
    /// Returns true if no request of a batch can be accepted either.
    const fn is_of_all(&self) -> bool {
        match self {
            Self::UnverifiedDomain { .. }
            | Self::SenderForbidden { .. }
            | Self::Suppressed { .. }
            | Self::TermsUnknown { .. } => false,
            Self::KeyEnded
            | Self::Paused
            | Self::LimitReached(_)
            | Self::QueueFull(_)
            | Self::StorageUnavailable
            | Self::OutcomeOpen
            | Self::ShuttingDown
            | Self::Internal => true,
        }
    }
}

/// Reason why the store did not accept the new messages of a batch.
fn refused_by_store(error: AcceptError, answers: &[Answer]) -> BatchRefusal {
    let mut new = answers.iter().enumerate().filter(|(_, answer)| matches!(answer, Answer::New));
    match &error {
        AcceptError::UnverifiedDomain { index, .. } => {
            let (index, _) = new.nth(*index).expect("it is one of the new messages");
            BatchRefusal::Of { index, refusal: RequestRefusal::Refused(error.into()) }
        }
        AcceptError::Store(_) | AcceptError::KeyEnded | AcceptError::LimitReached(_) => {
            BatchRefusal::Whole(error.into())
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;

    use super::*;
    use pillarbox_body_store::BodyStore;
    use pillarbox_domain::mailbox::DomainName;
    use pillarbox_domain::organisation::DomainState;
    use pillarbox_domain::request::{Draft, IdempotencyKey, RawMessage, Submission};
    use pillarbox_domain::suppression::{SuppressedAddress, Suppression, SuppressionReason};
    use pillarbox_domain::time::Timestamp;
    use pillarbox_queue::MessageQueue;
    use pillarbox_runtime::clock::Clock;
    use pillarbox_ses::send::RequestOptions;
    use pillarbox_store::Store;

    const NOON: Timestamp = Timestamp::from_unix_millis(1_800_000_000_000);

    fn request() -> SendRequest<'static> {
        let draft = Draft {
            from: Some("ann@example.com"),
            to: Some(vec!["bob@example.org"]),
            subject: Some("Hello"),
            text: Some("Hi".into()),
            ..Draft::default()
        };
        SendRequest::parse(draft).unwrap()
    }

    async fn intake(directory: &tempfile::TempDir, max_bytes: usize) -> (Intake, Organisation) {
        let store = Store::open(directory.path(), NOON).unwrap().0;
        let acme = store.add_organisation("acme".parse().unwrap()).await.unwrap().unwrap();
        let domain = DomainName::parse("example.com").unwrap();
        store.put_domain(acme.id, domain, DomainState::Assumed, NOON).await.unwrap();
        let queue = Arc::new(MessageQueue::new(BodyStore::of_this_process().unwrap(), max_bytes));
        (Intake::new(store, queue, Clock::manual(NOON), RequestOptions::default()), acme)
    }

    #[tokio::test]
    async fn others_have_their_turn_between_the_messages_of_a_batch() {
        let directory = tempfile::tempdir().unwrap();
        let (intake, acme) = intake(&directory, 1 << 24).await;
        let mut turns = 0;
        let others = async {
            loop {
                turns += 1;
                yield_now().await;
            }
        };
        let requests = (0..100).map(|_| Ok(request()));
        let preparing = intake.prepare_batch(&acme, None, BatchMode::Whole, requests, "request");
        let prepared = tokio::select! {
            biased;
            prepared = preparing => prepared.unwrap(),
            () = others => unreachable!("they go on for ever"),
        };
        assert!(turns >= 300, "{turns}: one for each of three steps with each message");
        assert_eq!(intake.queue.pending().messages, 0, "nothing is queued before the commit");
        let accepted = intake.accept_batch(prepared).await.unwrap();
        assert_eq!((accepted.len(), intake.queue.pending().messages), (100, 100));
        let accepted: Vec<_> = accepted.into_iter().map(Result::unwrap).collect();
        assert!(accepted.is_sorted_by_key(Accepted::id), "ids sort by the batch's order");
    }

    #[tokio::test]
    async fn a_submissions_key_is_no_clients_key() {
        let directory = tempfile::tempdir().unwrap();
        let (intake, acme) = intake(&directory, 1 << 24).await;
        let accept = async |key: IdempotencyKey<'_>| {
            let message = RawMessage { fields: b"From: ann@example.com\r\n", rest: b"\r\n" };
            let submission = Submission {
                from: "ann@example.com",
                from_header: None,
                other_senders: Vec::new(),
                recipients: vec!["bob@example.org"],
                subject: "Hello",
                message,
                idempotency_key: Some(key),
            };
            let request = SendRequest::of_submission(submission).unwrap();
            let prepared = intake.prepare(&acme, None, request, Some("request")).await.unwrap();
            intake.accept(prepared).await.unwrap()
        };
        let clients = accept(IdempotencyKey::parse("k").unwrap()).await;
        let submissions = accept(IdempotencyKey::of_submission("k")).await;
        assert_ne!(clients.id(), submissions.id());
        let again = accept(IdempotencyKey::of_submission("k")).await;
        assert_eq!(again, Accepted::Replayed(submissions.id()));
        let again = accept(IdempotencyKey::parse("k").unwrap()).await;
        assert_eq!(again, Accepted::Replayed(clients.id()));
        // As they are read when the file is opened.
        drop(intake);
        let store = Store::open(directory.path(), NOON).unwrap().0;
        for (key, id) in [
            (IdempotencyKey::parse("k").unwrap(), clients.id()),
            (IdempotencyKey::of_submission("k"), submissions.id()),
        ] {
            assert_eq!(store.replay(acme.id, key, NOON).await, Ok(Some(id)));
        }
    }

    #[tokio::test]
    async fn a_batch_that_does_not_fit_or_is_given_up_holds_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let (intake, acme) = intake(&directory, 20_000).await;
        let prepare = |count: usize| {
            let requests = (0..count).map(|_| Ok(request()));
            intake.prepare_batch(&acme, None, BatchMode::Partial, requests, "request")
        };
        let prepared = prepare(100).await.unwrap();
        assert_eq!(intake.queue.budget().in_use(), 0);
        let refused = intake.accept_batch(prepared).await;
        let is_full = matches!(refused, Err(BatchRefusal::Whole(Refusal::QueueFull(_))));
        assert!(is_full, "{refused:?}");
        let prepared = prepare(5).await.unwrap();
        assert!(intake.queue.budget().in_use() > 0);
        drop(prepared);
        assert_eq!((intake.queue.budget().in_use(), intake.under_way.count()), (0, 0));
        intake.close();
        let prepared = prepare(1).await.unwrap();
        let refused = intake.accept_batch(prepared).await;
        assert_eq!(refused, Err(BatchRefusal::Whole(Refusal::ShuttingDown)));
    }

    const OTHER: &str = "other.example";

    /// A request of a batch, by its outcome.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    enum Fate {
        Good,
        Invalid,
        Suppressed,
        Unverified,
        /// Its sender's domain is withdrawn between the checks and the acceptance.
        Withdrawn,
    }

    fn request_of(
        fate: Fate,
        key: Option<&'static str>,
    ) -> Result<SendRequest<'static>, RequestError> {
        SendRequest::parse(Draft {
            from: Some(match fate {
                Fate::Withdrawn => "ann@other.example",
                Fate::Unverified => "ann@third.example",
                Fate::Good | Fate::Invalid | Fate::Suppressed => "ann@example.com",
            }),
            to: Some(vec![if fate == Fate::Suppressed { "gone@example.org" } else { "b@x.org" }]),
            subject: (fate != Fate::Invalid).then_some("Hello"),
            text: Some("Hi".into()),
            idempotency_key: key,
            ..Draft::default()
        })
    }

    fn unverified(domain: &str, verified: &[&str]) -> Refusal {
        let parsed = |name: &&str| DomainName::parse(name).unwrap().into_owned();
        let verified = verified.iter().map(parsed).collect();
        Refusal::UnverifiedDomain { domain: parsed(&domain), verified }
    }

    impl Intake {
        /// Accepts a batch whose second domain is withdrawn after the checks.
        async fn accept_around_withdrawal(
            &self,
            organisation: &Organisation,
            mode: BatchMode,
            requests: &[(Fate, Option<&'static str>)],
        ) -> Result<Vec<Result<Accepted, RequestRefusal>>, BatchRefusal> {
            let domain = || DomainName::parse(OTHER).unwrap();
            let put = self.store.put_domain(organisation.id, domain(), DomainState::Assumed, NOON);
            put.await.unwrap().unwrap();
            let requests = requests.iter().map(|(fate, key)| request_of(*fate, *key));
            let prepared = self.prepare_batch(organisation, None, mode, requests, "request").await;
            self.store.remove_domain(organisation.id, domain()).await.unwrap();
            self.accept_batch(prepared?).await
        }
    }

    #[tokio::test]
    async fn a_domain_that_is_withdrawn_after_the_checks_refuses_a_whole_batch_by_its_place() {
        let directory = tempfile::tempdir().unwrap();
        let (intake, acme) = intake(&directory, 1 << 24).await;
        let first = [(Fate::Good, Some("k"))];
        intake.accept_around_withdrawal(&acme, BatchMode::Whole, &first).await.unwrap();
        let requests = [
            (Fate::Good, Some("k")),
            (Fate::Good, Some("l")),
            (Fate::Good, Some("l")),
            (Fate::Withdrawn, None),
            (Fate::Good, None),
        ];
        let refused = intake.accept_around_withdrawal(&acme, BatchMode::Whole, &requests).await;
        let refusal = RequestRefusal::Refused(unverified(OTHER, &[]));
        assert_eq!(refused, Err(BatchRefusal::Of { index: 3, refusal }));
        assert_eq!(intake.queue.pending().messages, 1);
        let again = intake.accept_around_withdrawal(&acme, BatchMode::Whole, &requests[..3]).await;
        assert!(matches!(again.unwrap()[1], Ok(Accepted::New(_))), "its key was not bound");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]
        /// Each request of a partial batch is answered as if the refused ones were not there.
        #[test]
        fn a_partial_batch_is_answered_as_its_good_requests_alone(
            batches in prop::collection::vec(prop::collection::vec((
                prop_oneof![
                    4 => Just(Fate::Good),
                    1 => Just(Fate::Invalid),
                    1 => Just(Fate::Suppressed),
                    1 => Just(Fate::Unverified),
                    2 => Just(Fate::Withdrawn),
                ],
                prop::option::weighted(0.8, prop::sample::select(vec!["a", "b", "c", "d"])),
            ), 1..12), 1..4),
        ) {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.unwrap().block_on(async {
                let directory = tempfile::tempdir().unwrap();
                let (intake, acme) = intake(&directory, 1 << 24).await;
                let suppression = Suppression {
                    address: SuppressedAddress::parse_stored("gone@example.org").unwrap(),
                    reason: SuppressionReason::Manual,
                    since: NOON,
                    cause: None,
                };
                intake.store.suppress(Some(acme.id), suppression).await.unwrap();
                let (mut bound, mut new) = (HashMap::<&str, MessageId>::new(), 0);
                for batch in batches {
                    let (mode, before) = (BatchMode::Partial, bound.clone());
                    let told = intake.accept_around_withdrawal(&acme, mode, &batch).await.unwrap();
                    assert_eq!(told.len(), batch.len());
                    for (told, (fate, key)) in told.into_iter().zip(batch) {
                        let refusal = match fate {
                            Fate::Good => {
                                let earlier = key.and_then(|key| bound.get(key).copied());
                                let id = told.as_ref().unwrap().id();
                                new += usize::from(earlier.is_none());
                                bound.extend(key.map(|key| (key, id)));
                                let expected =
                                    earlier.map_or(Accepted::New(id), Accepted::Replayed);
                                assert_eq!(told, Ok(expected));
                                continue;
                            }
                            Fate::Invalid => request_of(fate, key).unwrap_err().into(),
                            Fate::Suppressed => RequestRefusal::Refused(Refusal::Suppressed {
                                field: "to[0]".to_owned(),
                            }),
                            Fate::Unverified => {
                                let verified = ["example.com", OTHER];
                                RequestRefusal::Refused(unverified("third.example", &verified))
                            }
                            Fate::Withdrawn => match key.and_then(|key| before.get(key)) {
                                // The checks found the replay, before the domain went.
                                Some(id) => {
                                    assert_eq!(told, Ok(Accepted::Replayed(*id)));
                                    continue;
                                }
                                None => RequestRefusal::Refused(unverified(OTHER, &[])),
                            },
                        };
                        assert_eq!(told, Err(refusal));
                    }
                    assert_eq!(intake.queue.pending().messages, new);
                }
            });
        }
    }
}
