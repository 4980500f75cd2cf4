//! The posts of SNS: verified, then taken in; subscriptions confirmed.
//!
//! Knows nothing of HTTP. What is wrong is named in the trouble of [`Feedback`], with what to do,
//! because SNS itself tells nobody; what strangers send must not be able to fill the log.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;
use tracing::{error, info, warn};

use crate::feedback::{Counts, Feedback, Route};
use crate::ses::SesClient;
use crate::ses::sns::{FetchError, Reason, Refused, TopicArn, Verified, Verifier};

/// The least time between two lines of the log about refused posts.
const WARN_INTERVAL: Duration = Duration::from_secs(10);

/// Takes in what SNS posts.
#[derive(Debug)]
pub struct Posts {
    feedback: Arc<Feedback>,
    verifier: Verifier,
    ses: SesClient,
    /// Whether any post since the start was SNS's own.
    any_verified: AtomicBool,
    last_warning: Mutex<Option<Instant>>,
}

/// How SNS says that it delivers a post.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Delivery {
    /// In its envelope, which is signed.
    Enveloped,
    /// The bare message, which nobody has signed.
    Raw,
}

/// What became of a post.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// All that follows from it is durable; it may be forgotten.
    Taken,
    /// It is not believed, and nothing has changed.
    Refused,
    /// It could not be verified, or its subscription not be confirmed, for now: it should come
    /// again.
    NotNow,
    /// The store does not take it for now: it should come again.
    NotStored,
}

impl Posts {
    /// Takes in posts for `feedback` that `verifier` believes, and confirms subscriptions through
    /// `ses`.
    pub fn new(feedback: Arc<Feedback>, verifier: Verifier, ses: SesClient) -> Self {
        let (any_verified, last_warning) = (AtomicBool::new(false), Mutex::default());
        Self { feedback, verifier, ses, any_verified, last_warning }
    }

    /// Takes in a post, given its body.
    pub async fn take(&self, body: &[u8], delivery: Delivery) -> Outcome {
        if delivery == Delivery::Raw {
            return self.refuse_raw();
        }
        match self.verifier.verify(body).await {
            Err(refused) => self.refuse(&refused),
            Ok(verified) => {
                self.any_verified.store(true, Ordering::Relaxed);
                self.feedback.clear_trouble(&Route::Strangers);
                self.feedback.clear_trouble(&unproved(verified.topic()));
                self.follow(verified).await
            }
        }
    }

    async fn follow(&self, verified: Verified) -> Outcome {
        match verified {
            Verified::Notification { topic, document } => {
                self.settled(&topic);
                match self.feedback.ingest(&[&document]).await {
                    Ok(()) => Outcome::Taken,
                    Err(error) => {
                        warn!(%error, "an event could not be stored; SNS posts it again");
                        Outcome::NotStored
                    }
                }
            }
            Verified::SubscriptionConfirmation { topic, token } => {
                self.confirm(&topic, &token).await
            }
            Verified::UnsubscribeConfirmation { topic } => {
                // Whoever did it was allowed to, and may have meant it.
                let trouble = format!(
                    "the subscription to {topic} was removed, so no more events come from it; \
                     subscribe this endpoint again, or take the topic out of ses.events.sns_topics"
                );
                warn!("{trouble}");
                self.feedback.set_trouble(route(&topic), trouble);
                Outcome::Taken
            }
        }
    }

    /// Confirms a subscription by our own signed call. The URL that the post carries for that is
    /// never fetched.
    async fn confirm(&self, topic: &TopicArn, token: &str) -> Outcome {
        match self.ses.confirm_subscription(topic, token).await {
            Ok(subscription) => {
                info!(%topic, subscription, "confirmed the subscription to a topic");
                self.settled(topic);
                Outcome::Taken
            }
            Err(error) => {
                let trouble = format!(
                    "the subscription to {topic} could not be confirmed ({error}); allow the \
                     action sns:ConfirmSubscription on it, then subscribe again"
                );
                error!("{trouble}");
                self.feedback.set_trouble(route(topic), trouble);
                Outcome::NotNow
            }
        }
    }

    fn settled(&self, topic: &TopicArn) {
        self.feedback.clear_trouble(&route(topic));
    }

    fn refuse_raw(&self) -> Outcome {
        let trouble = "a post came by raw delivery, which nobody signs: turn it off with `aws sns \
                       set-subscription-attributes --subscription-arn ARN --attribute-name \
                       RawMessageDelivery --attribute-value false`";
        self.warn(trouble);
        self.suspect(Route::Strangers, trouble.to_owned());
        Outcome::Refused
    }

    fn refuse(&self, refused: &Refused) -> Outcome {
        let Refused { topic, why } = refused;
        let advice = advice(why, topic.as_ref());
        let (route, trouble) = match topic {
            Some(topic) => {
                let trouble = format!("a post for {topic} was not believed: {why}{advice}");
                (unproved(topic), trouble)
            }
            None => (Route::Strangers, format!("a post was not believed: {why}{advice}")),
        };
        self.warn(&trouble);
        if hints_at_set_up(why) {
            self.suspect(route, trouble);
        }
        // SNS gives up a post that is answered with 4xx ("Amazon SNS message delivery retries"), so
        // none may be lost to a clock that is in doubt.
        if why.is_temporary() || (why.is_of_time() && self.feedback.clock.jump().is_some()) {
            return Outcome::NotNow;
        }
        self.feedback.counts_mut().add(Counts { forged: 1, ..Counts::default() });
        Outcome::Refused
    }

    /// Counts it as trouble that a post was not believed. Where not even its topic is, that is so
    /// only for as long as no post was SNS's own: then the set-up is likely to be at fault, and
    /// afterwards a stranger is.
    fn suspect(&self, route: Route, trouble: String) {
        if route != Route::Strangers || !self.any_verified.load(Ordering::Relaxed) {
            self.feedback.suspect_trouble(route, trouble);
        }
    }

    fn warn(&self, text: &str) {
        let now = Instant::now();
        let mut last = self.last_warning.lock().unwrap_or_else(PoisonError::into_inner);
        if last.is_none_or(|last| now.duration_since(last) >= WARN_INTERVAL) {
            *last = Some(now);
            warn!("{text}");
        }
    }
}

fn route(topic: &TopicArn) -> Route {
    Route::Topic(topic.as_str().to_owned())
}

fn unproved(topic: &TopicArn) -> Route {
    Route::Unproved(topic.as_str().to_owned())
}

/// Whether SNS's own posts may be refused for this, because of how the topic or this machine is
/// set up. All else comes of forgery alone, which is no trouble of ours and is counted.
fn hints_at_set_up(why: &Reason) -> bool {
    match why {
        Reason::Version1
        | Reason::ForeignTopic(Some(_))
        | Reason::Stale
        | Reason::Certificate(_)
        | Reason::Fetch(FetchError::Unavailable(_) | FetchError::TooMany) => true,
        Reason::Malformed(_)
        | Reason::ForeignTopic(None)
        | Reason::UnknownVersion
        | Reason::CertificateUrl(_)
        | Reason::Fetch(FetchError::Refused(_) | FetchError::NoCertificate(_))
        | Reason::Signature => false,
    }
}

/// What to do about a post that should have been believed.
fn advice(why: &Reason, topic: Option<&TopicArn>) -> String {
    match why {
        Reason::Version1 => {
            let arn = topic.map_or("ARN", TopicArn::as_str);
            format!(
                "; set the topic to version 2 with `aws sns set-topic-attributes --topic-arn {arn} \
                 --attribute-name SignatureVersion --attribute-value 2`"
            )
        }
        Reason::ForeignTopic(Some(topic)) => {
            format!("; if {topic} is yours, name it in ses.events.sns_topics")
        }
        Reason::Fetch(_) if why.is_temporary() => {
            "; this machine has to reach sns.REGION.amazonaws.com over HTTPS, directly".to_owned()
        }
        Reason::Stale => "; is this machine's clock right?".to_owned(),
        Reason::Certificate(_) => {
            "; is this machine's clock right, and are its root certificates up to date?".to_owned()
        }
        Reason::Malformed(_)
        | Reason::ForeignTopic(None)
        | Reason::UnknownVersion
        | Reason::CertificateUrl(_)
        | Reason::Fetch(_)
        | Reason::Signature => String::new(),
    }
}

#[cfg(test)]
mod tests;
