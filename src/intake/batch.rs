//! A batch: several requests of one organisation that are accepted together, or not at all.
//!
//! Keeps the order of checks of one request, each check for all requests before the next one.

use std::collections::HashMap;
use std::fmt::Display;

use tokio::task::yield_now;

use crate::domain::admission::Admitted;
use crate::domain::clock_corrections::WindowTime;
use crate::domain::id::{KeyId, MessageId, OrganisationId};
use crate::domain::organisation::Organisation;
use crate::domain::request::{IdempotencyKey, OwnedIdempotencyKey, SendRequest};
use crate::intake::{Intake, Origin, Refusal};
use crate::store::{AcceptError, Accepted, NewMessage};

/// Why no request of a batch is accepted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BatchRefusal {
    /// One of them is at fault.
    Of {
        /// Its place in the batch, from 0.
        index: usize,
        /// Why it is refused.
        refusal: Refusal,
    },
    /// They cannot be taken together.
    Whole(Refusal),
}

/// A batch that passed every check and needs nothing of its requests any more.
pub struct PreparedBatch {
    organisation: OrganisationId,
    /// An answer for each request, in order.
    answers: Vec<Answer>,
    rest: Rest,
}

/// What a request of a batch comes to.
#[derive(Clone, Copy)]
enum Answer {
    /// An earlier message.
    Replayed(MessageId),
    /// The next of the new messages.
    New,
    /// The message of the request at this earlier place, which has the same key.
    SameAs(usize),
}

/// What is left to do with the new messages of a batch.
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
    /// Checks a batch, or says why not; the first request that is not well-formed is the answer. As
    /// [`Intake::accept`], it reads and encodes what it needs: the caller can let go of the
    /// requests. Others get their turn between two requests.
    pub async fn prepare_batch<'r, E: From<BatchRefusal>, D: Display + Clone + Send + 'static>(
        &self,
        organisation: &Organisation,
        key: Option<KeyId>,
        requests: impl Iterator<Item = Result<SendRequest<'r>, E>>,
        request_id: D,
    ) -> Result<PreparedBatch, E> {
        let mut well_formed = Vec::new();
        for request in requests {
            well_formed.push(request?);
            yield_now().await;
        }
        Ok(self.prepare_all(organisation, key, well_formed, request_id).await?)
    }

    async fn prepare_all<D: Display + Clone + Send + 'static>(
        &self,
        organisation: &Organisation,
        key: Option<KeyId>,
        requests: Vec<SendRequest<'_>>,
        request_id: D,
    ) -> Result<PreparedBatch, BatchRefusal> {
        let right = self.sending_right(organisation, key).map_err(BatchRefusal::Whole)?;
        let suppression_epoch = self.store.suppression_epoch();
        let mut all = Vec::with_capacity(requests.len());
        for (index, request) in requests.into_iter().enumerate() {
            let facts = self.store.facts(organisation.id).by_right(&right);
            let admitted = self.admit(request, &facts).await;
            all.push(admitted.map_err(|refusal| BatchRefusal::Of { index, refusal })?);
            yield_now().await;
        }
        let window_now = self.clock.window_time();
        let answers =
            self.answers(organisation.id, &all, &window_now).await.map_err(BatchRefusal::Whole)?;
        let new = || all.iter().zip(&answers).filter(|(_, answer)| matches!(answer, Answer::New));
        let mut acceptances = Vec::new();
        let recipients = new().map(|(admitted, _)| admitted.recipient_count()).sum();
        let mut refused = self.require_open(organisation.id, recipients).err();
        for (admitted, _) in new() {
            if refused.is_some() {
                break;
            }
            let request_id = request_id.clone();
            let right = right.clone();
            let origin = Origin { organisation, right, suppression_epoch, request_id };
            let times = (self.clock.record_time(), window_now.clone());
            match self.acceptance(admitted, times, origin) {
                Ok(acceptance) => acceptances.push(acceptance),
                Err(refusal) => refused = Some(refusal),
            }
            yield_now().await;
        }
        let rest = match refused {
            None => Rest::Accept(acceptances),
            Some(refusal) => {
                let key = |admitted: &Admitted<'_>| {
                    admitted.idempotency_key().map(IdempotencyKey::into_owned)
                };
                Rest::Refuse { refusal, keys: new().map(|(admitted, _)| key(admitted)).collect() }
            }
        };
        Ok(PreparedBatch { organisation: organisation.id, answers, rest })
    }

    /// Accepts a batch: when this returns acceptances, in order, all of them are on disk. If the
    /// caller stops waiting, all messages are accepted, or none is.
    pub async fn accept_batch(&self, batch: PreparedBatch) -> Result<Vec<Accepted>, BatchRefusal> {
        let PreparedBatch { organisation, answers, rest } = batch;
        let new = match rest {
            Rest::Accept(acceptances) if acceptances.is_empty() => Vec::new(),
            Rest::Accept(acceptances) => {
                let accepted = self.store.accept_all(acceptances).await;
                accepted.map_err(|error| refused_by_store(error, &answers))?
            }
            Rest::Refuse { refusal, keys: None } => return Err(BatchRefusal::Whole(refusal)),
            Rest::Refuse { refusal, keys: Some(keys) } => {
                let mut replayed = Vec::with_capacity(keys.len());
                for key in &keys {
                    let replay = self.replay_or(organisation, key, refusal.clone()).await;
                    replayed.push(replay.map_err(BatchRefusal::Whole)?);
                }
                replayed
            }
        };
        let mut new = new.into_iter();
        let mut accepted: Vec<Accepted> = Vec::with_capacity(answers.len());
        for answer in answers {
            accepted.push(match answer {
                Answer::Replayed(id) => Accepted::Replayed(id),
                Answer::New => new.next().expect("every new message has an answer"),
                Answer::SameAs(earlier) => Accepted::Replayed(accepted[earlier].id()),
            });
        }
        Ok(accepted)
    }

    /// Tells new messages from replays, and from repeats in the batch itself.
    async fn answers(
        &self,
        organisation: OrganisationId,
        all: &[Admitted<'_>],
        window_now: &WindowTime,
    ) -> Result<Vec<Answer>, Refusal> {
        let mut places: HashMap<IdempotencyKey<'_>, usize> = HashMap::new();
        let mut answers = Vec::with_capacity(all.len());
        let mut keys = Vec::new();
        for (index, admitted) in all.iter().enumerate() {
            let key = admitted.idempotency_key();
            let earlier = key.and_then(|key| places.get(&key));
            answers.push(match (key, earlier) {
                (Some(_), Some(earlier)) => Answer::SameAs(*earlier),
                (Some(key), None) => {
                    places.insert(key, index);
                    keys.push((key, index));
                    Answer::New
                }
                (None, _) => Answer::New,
            });
        }
        let (keys, places): (Vec<_>, Vec<_>) = keys.into_iter().unzip();
        let replays = self.store.replays(organisation, &keys, window_now.clone()).await?;
        for (place, replay) in places.into_iter().zip(replays) {
            answers[place] = replay.map_or(Answer::New, Answer::Replayed);
        }
        Ok(answers)
    }
}

/// Why the store did not accept the new messages of a batch.
fn refused_by_store(error: AcceptError, answers: &[Answer]) -> BatchRefusal {
    let mut new = answers.iter().enumerate().filter(|(_, answer)| matches!(answer, Answer::New));
    match &error {
        AcceptError::UnverifiedDomain { index, .. } => {
            let (index, _) = new.nth(*index).expect("it is one of the new messages");
            BatchRefusal::Of { index, refusal: error.into() }
        }
        AcceptError::Store(_) | AcceptError::KeyEnded | AcceptError::LimitReached(_) => {
            BatchRefusal::Whole(error.into())
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::body_store::BodyStore;
    use crate::clock::Clock;
    use crate::domain::mailbox::DomainName;
    use crate::domain::organisation::DomainState;
    use crate::domain::request::{Draft, RawMessage, Submission};
    use crate::domain::time::Timestamp;
    use crate::queue::MessageQueue;
    use crate::ses::send::RequestOptions;
    use crate::store::Store;

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
        let requests = (0..100).map(|_| Ok::<_, BatchRefusal>(request()));
        let prepared = tokio::select! {
            biased;
            prepared = intake.prepare_batch(&acme, None, requests, "request") => prepared.unwrap(),
            () = others => unreachable!("they go on for ever"),
        };
        assert!(turns >= 300, "{turns}: one for each of three steps with each message");
        assert_eq!(intake.queue.pending().messages, 0, "nothing is queued before the commit");
        let accepted = intake.accept_batch(prepared).await.unwrap();
        assert_eq!((accepted.len(), intake.queue.pending().messages), (100, 100));
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
            let prepared = intake.prepare(&acme, None, request, "request").await.unwrap();
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
            let requests = (0..count).map(|_| Ok::<_, BatchRefusal>(request()));
            intake.prepare_batch(&acme, None, requests, "request")
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
}
