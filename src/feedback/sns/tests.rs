//! Posts while the store refuses writes, and how long doubts last; all else is tested from outside, in `tests/feedback`.

use secrecy::SecretString;

use super::*;
use crate::clock::Clock;
use crate::domain::time::Timestamp;
use crate::outbox::Outbox;
use crate::ses::SesOptions;
use crate::ses::credentials::Credentials;
use crate::ses::sns::Trust;
use crate::store::{DeadLetter, Health, Store};

const NOW: Timestamp = Timestamp::from_unix_millis(1_800_000_000_000);

fn posts(store: &Store) -> Posts {
    let clock = Clock::manual(NOW);
    let outbox = Arc::new(Outbox::new(1 << 20));
    let feedback = Arc::new(Feedback::new(store.clone(), outbox, clock.clone()));
    let trust = Trust::Only { roots: Vec::new(), address: "127.0.0.1:1".parse().unwrap() };
    let verifier = Verifier::new(vec![topic()], &trust, clock.clone()).unwrap();
    let options = SesOptions {
        region: "eu-west-1".to_owned(),
        endpoint: Some("http://127.0.0.1:1".to_owned()),
        configuration_set: None,
        request_timeout: Duration::from_secs(5),
        connect_timeout: Duration::from_secs(2),
        credentials: Credentials::fixed("AKIDEXAMPLE", SecretString::from("secret")),
    };
    Posts::new(feedback, verifier, SesClient::new(options, clock).unwrap())
}

fn topic() -> TopicArn {
    TopicArn::parse("arn:aws:sns:eu-west-1:123456789012:pillarbox").unwrap()
}

#[tokio::test]
async fn a_post_that_the_store_refuses_is_to_come_again() {
    let (store, fill, free) = Store::on_small_disk(NOW);
    let posts = posts(&store);
    // Each is a long document that nobody can read, and is kept as such.
    let post = |number: u64| {
        let document = format!("{number} {}", "x".repeat(DeadLetter::MAX_DOCUMENT_BYTES));
        Verified::Notification { topic: topic(), document }
    };
    let mut taken = 0;
    assert_eq!(posts.follow(post(taken)).await, Outcome::Taken);
    fill();
    loop {
        taken += 1;
        match posts.follow(post(taken)).await {
            Outcome::Taken => {}
            other => break assert_eq!(other, Outcome::NotStored),
        }
    }
    assert_eq!(store.health(), Health::Refusing);
    assert_eq!(posts.feedback.counts().unreadable, taken);
    free();
    store.writable().await;
    assert_eq!(posts.follow(post(taken)).await, Outcome::Taken);
    let kept = store.dead_letters(usize::MAX).unwrap().len();
    assert_eq!(u64::try_from(kept).unwrap(), taken + 1);
}

#[tokio::test(start_paused = true)]
async fn what_an_unproved_post_hints_at_is_trouble_for_an_hour() {
    let (store, ..) = Store::on_small_disk(NOW);
    let posts = posts(&store);
    let refused = Refused { topic: Some(topic()), why: Reason::Version1 };
    assert_eq!(posts.refuse(&refused), Outcome::Refused);
    tokio::time::advance(Duration::from_mins(59)).await;
    assert!(posts.feedback.trouble().unwrap().contains("version 1"));
    tokio::time::advance(Duration::from_mins(1)).await;
    assert_eq!(posts.feedback.trouble(), None);
}

#[tokio::test(start_paused = true)]
async fn an_unproved_post_hides_nothing_that_is_proved() {
    let (store, ..) = Store::on_small_disk(NOW);
    let posts = posts(&store);
    let removed = Verified::UnsubscribeConfirmation { topic: topic() };
    assert_eq!(posts.follow(removed).await, Outcome::Taken);
    posts.refuse(&Refused { topic: Some(topic()), why: Reason::Stale });
    let trouble = posts.feedback.trouble().unwrap();
    assert!(trouble.contains("removed") && trouble.contains("clock"), "{trouble}");
    tokio::time::advance(Duration::from_hours(2)).await;
    let trouble = posts.feedback.trouble().unwrap();
    assert!(trouble.contains("removed") && !trouble.contains("clock"), "{trouble}");
}
