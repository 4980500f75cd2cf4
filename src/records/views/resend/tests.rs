use serde_json::{Value, json};

use super::*;
use pillarbox_domain::event::LastEvent;
use pillarbox_domain::feed::FeedPosition;
use pillarbox_domain::id::{MessageId, OrganisationId};
use pillarbox_domain::message::{Acceptance, Failure};
use pillarbox_domain::message_terms::Terms;
use pillarbox_domain::time::Timestamp;

const NOON: Timestamp = Timestamp::from_unix_millis(1_800_000_000_000);
const LATER: Timestamp = Timestamp::from_unix_millis(1_800_000_060_000);

fn message(state: State) -> Message {
    Message {
        id: MessageId::first_of(NOON),
        organisation: OrganisationId(1),
        created_at: NOON,
        from: "a@example.com".to_owned(),
        recipients: vec!["b@example.org".to_owned(), "c@example.org".to_owned()],
        subject: "Hello".to_owned(),
        metadata: Some([("order".to_owned(), "1815".to_owned())].into()),
        terms: Terms::NONE,
        attempts: 1,
        state,
        last_event: None,
        calling: None,
    }
}

fn sent() -> State {
    State::Sent { ses_message_id: "s".to_owned(), sent_at: NOON }
}

fn failed(code: FailureCode) -> State {
    State::Failed { failure: Failure::new(code, "why"), acceptance: Acceptance::Excluded }
}

#[test]
fn the_last_event_is_that_of_the_table() {
    let waiting = State::Queued { last_failure: None, acceptance: Acceptance::Excluded };
    let suppressed =
        State::Suppressed { failure: Failure::new(FailureCode::RecipientSuppressed, "why") };
    for (state, word) in [
        (waiting, "queued"),
        (sent(), "sent"),
        (suppressed, "suppressed"),
        (failed(FailureCode::Cancelled), "canceled"),
        (failed(FailureCode::ProviderRejected), "failed"),
        (failed(FailureCode::Expired), "failed"),
    ] {
        assert_eq!(last_event(&message(state)), word);
    }
    for (event_type, word) in [
        (EventType::Delivery, "delivered"),
        (EventType::DeliveryDelay, "delivery_delayed"),
        (EventType::Bounce, "bounced"),
        (EventType::Complaint, "complained"),
        (EventType::Reject, "failed"),
    ] {
        let last_event_of = Some(LastEvent { occurred_at: NOON, event_type });
        let message = Message { last_event: last_event_of, ..message(sent()) };
        assert_eq!(last_event(&message), word);
    }
}

fn told(state: State, change: FeedChange) -> Value {
    let position = FeedPosition::first_of(NOON);
    let entry = FeedEntry { position, recorded_at: NOON, message: message(state), change };
    serde_json::to_value(ResendEventView::new(&entry)).unwrap()
}

fn observed(detail: EventDetail) -> Value {
    let recipients = vec!["c@example.org".to_owned()];
    told(sent(), FeedChange::Observed(Event { occurred_at: LATER, recipients, detail }))
}

#[test]
fn an_event_has_the_members_that_clients_read() {
    let id = MessageId::first_of(NOON).to_string();
    assert_eq!(
        told(sent(), FeedChange::Sent),
        json!({
            "type": "email.sent",
            "created_at": NOON.to_string(),
            "data": {
                "email_id": id,
                "created_at": NOON.to_string(),
                "from": "a@example.com",
                "to": ["b@example.org", "c@example.org"],
                "subject": "Hello",
                "tags": { "order": "1815" },
            },
        })
    );
    let event = told(failed(FailureCode::ProviderRejected), FeedChange::Failed);
    assert_eq!(
        (&event["type"], &event["data"]["failed"]),
        (&json!("email.failed"), &json!({ "reason": "why" }))
    );
    let state =
        State::Suppressed { failure: Failure::new(FailureCode::RecipientSuppressed, "why") };
    let event = told(state, FeedChange::Suppressed);
    assert_eq!(event["type"], "email.suppressed");
    let expected = json!({ "message": "why", "type": "recipient_suppressed" });
    assert_eq!(event["data"]["suppressed"], expected);
}

#[test]
fn an_event_of_a_recipient_names_that_one_and_its_own_time() {
    let event = observed(EventDetail::Delivery { smtp_response: None });
    assert_eq!(event["type"], "email.delivered");
    assert_eq!(event["created_at"], LATER.to_string());
    assert_eq!(event["data"]["created_at"], NOON.to_string());
    assert_eq!(event["data"]["to"], json!(["c@example.org"]));
    let event = observed(EventDetail::Reject { reason: "Bad content".to_owned() });
    assert_eq!(
        (&event["type"], &event["data"]["failed"]["reason"]),
        (&json!("email.failed"), &json!("Bad content"))
    );
}

#[test]
fn bounces_have_the_words_by_which_clients_tell_them_apart() {
    let bounce = |bounce_type, sub_type: &str, diagnostic: Option<&str>| {
        let diagnostic_code = diagnostic.map(str::to_owned);
        let sub_type = sub_type.to_owned();
        observed(EventDetail::Bounce { bounce_type, sub_type, diagnostic_code })["data"]["bounce"]
            .clone()
    };
    let hard = bounce(BounceType::Permanent, "General", Some("550 no such user"));
    assert_eq!((&hard["type"], &hard["subType"]), (&json!("Permanent"), &json!("General")));
    let message = hard["message"].as_str().unwrap();
    assert!(
        message.contains("bounce message") && message.ends_with("550 no such user"),
        "{message}"
    );
    let listed = bounce(BounceType::Permanent, "OnAccountSuppressionList", None);
    let message = listed["message"].as_str().unwrap();
    assert!(message.contains("suppressed sending") && !message.contains("bounce message"));
    for other in [BounceType::Transient, BounceType::Undetermined] {
        let message = bounce(other, "MailboxFull", None)["message"].clone();
        assert!(message.as_str().unwrap().contains("bounce message"));
    }
}
