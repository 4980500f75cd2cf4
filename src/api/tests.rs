//! Compares the `OpenAPI` document with the code.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::OPENAPI;
use crate::answers;
use crate::error::ApiError;
use crate::requests::{ATTACHMENT_MEMBERS, BATCH_FIELDS, FEED_PARAMETERS, FIELDS, PARAMETERS};
use pillarbox_domain::event::{BounceType, Event, EventDetail, EventType, LastEvent};
use pillarbox_domain::feed::{FeedChange, FeedEntry, FeedEventType, FeedPosition};
use pillarbox_domain::id::{MessageId, OrganisationId};
use pillarbox_domain::limits::{
    IDEMPOTENCY_WINDOW, MAX_ATTACHMENTS, MAX_BATCH, MAX_CONTENT_ID_CHARS, MAX_CONTENT_TYPE_CHARS,
    MAX_FILENAME_CHARS, MAX_HEADER_VALUE_CHARS, MAX_HEADERS, MAX_IDEMPOTENCY_KEY_CHARS,
    MAX_METADATA, MAX_METADATA_NAME_CHARS, MAX_METADATA_VALUE_CHARS, MAX_RECIPIENTS,
    MAX_SUBJECT_CHARS, TRANSACTIONAL,
};
use pillarbox_domain::message::{Acceptance, Failure, FailureCode, Message, State, Status};
use pillarbox_domain::message_terms::{
    MAX_EXPIRES_IN, MIN_EXPIRES_IN, MessagePriority, Priority, Terms,
};
use pillarbox_domain::organisation::{Limits, OrganisationKind};
use pillarbox_domain::time::Timestamp;
use pillarbox_domain::timeline::{Entry, Step, StepKind};
use pillarbox_domain::usage::Usage;
use pillarbox_intake::{Refusal, RequestRefusal};
use pillarbox_records::listing::Listing;
use pillarbox_store::Accepted;

const NOON: Timestamp = Timestamp::from_unix_millis(1_800_000_000_000);

fn document() -> Value {
    serde_json::from_str(OPENAPI).unwrap()
}

fn schema(name: &str) -> Value {
    document()["components"]["schemas"][name].clone()
}

fn strings(values: &Value) -> BTreeSet<String> {
    values.as_array().unwrap().iter().map(|value| value.as_str().unwrap().to_owned()).collect()
}

fn set<'a>(names: impl IntoIterator<Item = &'a str>) -> BTreeSet<String> {
    names.into_iter().map(str::to_owned).collect()
}

fn keys(object: &Value) -> BTreeSet<String> {
    object.as_object().unwrap().keys().cloned().collect()
}

fn failure() -> Failure {
    let mut failure = Failure::new(FailureCode::ProviderRejected, "refused");
    failure.provider_code = Some("MessageRejected".to_owned());
    failure
}

fn message() -> Message {
    Message {
        id: MessageId::first_of(NOON),
        organisation: OrganisationId(1),
        created_at: NOON,
        from: "a@example.com".to_owned(),
        recipients: vec!["b@example.org".to_owned()],
        subject: "Hello".to_owned(),
        metadata: Some([("order".to_owned(), "1815".to_owned())].into()),
        terms: Terms {
            priority: MessagePriority::Given(Priority::High),
            expires_in: Some(MIN_EXPIRES_IN),
        },
        attempts: 1,
        state: State::Failed { failure: failure(), acceptance: Acceptance::Excluded },
        last_event: Some(LastEvent { occurred_at: NOON, event_type: EventType::Bounce }),
        calling: None,
    }
}

#[test]
fn the_document_has_the_numbers_of_the_policy() {
    let fields = &schema("SendRequest")["properties"];
    for field in ["to", "cc", "bcc"] {
        assert_eq!(fields[field]["maxItems"], MAX_RECIPIENTS, "{field}");
    }
    let together = format!("together have at most {MAX_RECIPIENTS} entries");
    assert!(schema("SendRequest")["description"].as_str().unwrap().contains(&together));
    assert_eq!(fields["subject"]["maxLength"], MAX_SUBJECT_CHARS);
    assert_eq!(fields["headers"]["maxProperties"], MAX_HEADERS);
    assert_eq!(fields["headers"]["additionalProperties"]["maxLength"], MAX_HEADER_VALUE_CHARS);
    assert_eq!(fields["attachments"]["maxItems"], MAX_ATTACHMENTS);
    let members = &schema("Attachment")["properties"];
    assert_eq!(members["filename"]["maxLength"], MAX_FILENAME_CHARS);
    assert_eq!(members["content_type"]["maxLength"], MAX_CONTENT_TYPE_CHARS);
    assert_eq!(members["content_id"]["maxLength"], MAX_CONTENT_ID_CHARS);
    assert_eq!(fields["metadata"]["maxProperties"], MAX_METADATA);
    let name = format!("^[A-Za-z0-9_-]{{1,{MAX_METADATA_NAME_CHARS}}}$");
    assert_eq!(fields["metadata"]["propertyNames"]["pattern"], name);
    assert_eq!(fields["metadata"]["additionalProperties"]["maxLength"], MAX_METADATA_VALUE_CHARS);
    assert_eq!(fields["idempotencyKey"]["maxLength"], MAX_IDEMPOTENCY_KEY_CHARS);
    let window = format!("For {} hours the same key", IDEMPOTENCY_WINDOW.as_secs() / 3_600);
    assert!(fields["idempotencyKey"]["description"].as_str().unwrap().contains(&window));
    assert!(fields["tag"].to_string().contains(TRANSACTIONAL));
    let priorities = fields["priority"]["enum"].as_array().unwrap();
    let given = priorities.iter().filter_map(Value::as_str);
    assert_eq!(set(given), set(Priority::ALL.map(Priority::as_str)));
    let described = schema("Message")["properties"]["priority"]["enum"].clone();
    assert_eq!(strings(&described), set(Priority::ALL.map(Priority::as_str)));
    for (text, expires_in) in [("1 minute", MIN_EXPIRES_IN), ("7 days", MAX_EXPIRES_IN)] {
        assert_eq!(humantime::parse_duration(text), Ok(expires_in));
        assert!(fields["expiresIn"]["description"].as_str().unwrap().contains(text));
    }
}

#[test]
fn a_request_has_the_fields_that_the_code_takes() {
    let request = schema("SendRequest");
    assert_eq!(keys(&request["properties"]), set(FIELDS));
    assert_eq!(request["additionalProperties"], false);
    for name in ["WholeBatch", "PartialBatch"] {
        let batch = schema(name);
        assert_eq!(keys(&batch["properties"]), set(BATCH_FIELDS));
        assert_eq!(batch["additionalProperties"], false);
        assert_eq!(batch["properties"]["emails"]["maxItems"], MAX_BATCH);
    }
    let attachment = schema("Attachment");
    assert_eq!(keys(&attachment["properties"]), set(ATTACHMENT_MEMBERS));
    assert_eq!(attachment["additionalProperties"], false);
}

#[test]
fn a_record_a_page_and_an_answer_have_the_fields_that_the_code_gives() {
    let record: Value =
        serde_json::from_slice(&answers::message(OrganisationKind::Test, message(), None)).unwrap();
    let described = schema("Message");
    assert_eq!(keys(&described["properties"]), keys(&record));
    let mut always = keys(&record);
    for given in ["metadata", "priority", "expiresAt"] {
        assert!(always.remove(given), "it is there only if it was given");
    }
    assert!(always.remove("test"), "it is there only if it is true");
    assert_eq!(strings(&described["required"]), always);
    assert_eq!(keys(&schema("Failure")["properties"]), keys(&record["error"]));
    assert_eq!(keys(&schema("LastEvent")["properties"]), keys(&record["lastEvent"]));
    let listing =
        Listing { messages: vec![(message(), None)], looked_at: 0, next: Some(message().id) };
    let page: Value =
        serde_json::from_slice(&answers::emails(OrganisationKind::Test, listing)).unwrap();
    assert_eq!(keys(&schema("MessagePage")["properties"]), keys(&page));
    let accepted: Value = serde_json::from_slice(&answers::accepted(message().id)).unwrap();
    assert_eq!(keys(&schema("Accepted")["properties"]), keys(&accepted));
    let refused = Refusal::Suppressed { field: "to[0]".to_owned() };
    let told = vec![Ok(Accepted::Replayed(message().id)), Err(RequestRefusal::Refused(refused))];
    let batch = answers::accepted_batch(&answers::batch_answers(told).collect::<Vec<_>>());
    let batch: Value = serde_json::from_slice(&batch).unwrap();
    assert_eq!(keys(&schema("BatchAccepted")["properties"]), keys(&batch));
    let answers = &schema("BatchAnswer")["oneOf"];
    assert_eq!(keys(&answers[0]["properties"]), keys(&batch["emails"][0]));
    assert_eq!(answers[1]["$ref"], "#/components/schemas/Error");
    assert_eq!(keys(&schema("Error")["properties"]), keys(&batch["emails"][1]));
    let error = &schema("Error")["properties"]["error"]["properties"];
    assert_eq!(keys(error), keys(&batch["emails"][1]["error"]));
}

#[test]
fn events_have_the_details_that_the_code_gives() {
    let text = || Some(String::new());
    let details = [
        EventDetail::Delivery { smtp_response: text() },
        EventDetail::Bounce {
            bounce_type: BounceType::Permanent,
            sub_type: String::new(),
            diagnostic_code: text(),
        },
        EventDetail::Complaint { feedback_type: text(), sub_type: text() },
        EventDetail::Reject { reason: String::new() },
        EventDetail::DeliveryDelay { delay_type: String::new(), diagnostic_code: text() },
    ];
    let events = details.map(|detail| Event { occurred_at: NOON, recipients: Vec::new(), detail });
    let given: Value = serde_json::from_slice(&answers::events(&events)).unwrap();
    assert_eq!(keys(&schema("EventList")["properties"]), keys(&given));
    let given = given["events"].as_array().unwrap();
    assert_eq!(keys(&schema("Event")["properties"]), keys(&given[0]));
    let details: BTreeSet<_> = given.iter().flat_map(|event| keys(&event["detail"])).collect();
    assert_eq!(keys(&schema("EventDetail")["properties"]), details);
    let types = events.iter().map(|event| event.event_type().as_str());
    assert_eq!(strings(&schema("EventType")["enum"]), set(types));
    let types = [BounceType::Permanent, BounceType::Transient, BounceType::Undetermined];
    let described = schema("EventDetail")["properties"]["bounceType"]["enum"].clone();
    assert_eq!(strings(&described), set(types.map(BounceType::as_str)));
}

#[test]
fn timelines_and_usage_have_the_members_that_the_code_gives() {
    let step = |kind| Step {
        at: NOON,
        kind,
        attempt: Some(1),
        attempts: 1,
        failure: Some(failure()),
        next_attempt_at: Some(NOON),
    };
    let detail = EventDetail::Delivery { smtp_response: None };
    let event = Event { occurred_at: NOON, recipients: Vec::new(), detail };
    let entries = [
        Entry::Accepted(NOON),
        Entry::Sent { at: NOON, attempt: 1 },
        Entry::Event(event),
        Entry::Omitted(1),
    ];
    let steps = StepKind::ALL.map(|kind| Entry::Step(step(kind)));
    let given = answers::timeline(steps.into_iter().chain(entries).collect());
    let given: Value = serde_json::from_slice(&given).unwrap();
    assert_eq!(keys(&schema("Timeline")["properties"]), keys(&given));
    let given = given["timeline"].as_array().unwrap();
    let described = schema("TimelineEntry");
    let members: BTreeSet<_> = given.iter().flat_map(keys).collect();
    assert_eq!(keys(&described["properties"]), members);
    let words = described["properties"]["what"]["description"].as_str().unwrap();
    for entry in given {
        let what = entry["what"].as_str().unwrap();
        assert!(what == "delivery" || words.contains(&format!("`{what}`")), "{what}: {words}");
    }

    let given = answers::usage(&Limits::NONE, &Usage::default());
    let given: Value = serde_json::from_slice(&given).unwrap();
    let described = schema("Usage");
    assert_eq!(keys(&described["properties"]), keys(&given));
    assert_eq!(strings(&described["required"]), keys(&given));
    let described = schema("PeriodUsage");
    for period in given.as_object().unwrap().values() {
        assert_eq!(keys(&described["properties"]), keys(period));
        assert_eq!(strings(&described["required"]), keys(period));
    }
}

#[test]
fn statuses_and_codes_are_those_of_the_code() {
    assert_eq!(strings(&schema("Status")["enum"]), set(Status::ALL.map(Status::as_str)));
    let codes = schema("Failure")["properties"]["code"]["enum"].clone();
    assert_eq!(strings(&codes), set(FailureCode::ALL.map(FailureCode::as_str)));
}

#[test]
fn every_error_is_described_with_its_status() {
    let document = document();
    let codes = schema("Error")["properties"]["error"]["properties"]["code"]["enum"].clone();
    let errors = ApiError::one_of_each();
    assert_eq!(strings(&codes), set(errors.iter().map(|error| error.kind().1)));
    let responses = &document["components"]["responses"];
    for error in errors {
        let (status, code) = error.kind();
        // No operation that is described answers it: it takes another method.
        if code != "MethodNotAllowed" {
            let text = responses[format!("E{}", status.as_u16())]["description"].as_str().unwrap();
            assert!(text.contains(&format!("`{code}`")), "{status} {code}: {text}");
        }
    }
}

#[test]
fn a_listing_has_the_parameters_that_the_code_takes() {
    let parameters = document()["paths"]["/emails"]["get"]["parameters"].clone();
    let names = parameters.as_array().unwrap().iter().map(|p| p["name"].as_str().unwrap());
    assert_eq!(set(names), set(PARAMETERS));
}

#[test]
fn the_feed_has_the_parameters_and_fields_of_the_code() {
    let parameters = document()["paths"]["/events"]["get"]["parameters"].clone();
    let names = parameters.as_array().unwrap().iter().map(|p| p["name"].as_str().unwrap());
    assert_eq!(set(names), set(FEED_PARAMETERS));
    let types = FeedEventType::ALL.map(FeedEventType::as_str);
    assert_eq!(strings(&schema("FeedEventType")["enum"]), set(types));

    let detail = EventDetail::Reject { reason: String::new() };
    let event = Event { occurred_at: NOON, recipients: Vec::new(), detail };
    let sent = State::Sent { ses_message_id: "ses".to_owned(), sent_at: NOON };
    let entry = |state, change| FeedEntry {
        position: FeedPosition::first_of(NOON),
        recorded_at: NOON,
        message: Message { state, ..message() },
        change,
    };
    let entries = [
        entry(message().state, FeedChange::Failed),
        entry(sent.clone(), FeedChange::Sent),
        entry(sent, FeedChange::Observed(event)),
    ];
    let page: Value =
        serde_json::from_slice(&answers::feed(OrganisationKind::Test, &entries, "next".to_owned()))
            .unwrap();
    assert_eq!(keys(&schema("FeedPage")["properties"]), keys(&page));
    let events = page["events"].as_array().unwrap();
    assert_eq!(keys(&schema("FeedEvent")["properties"]), keys(&events[0]));
    let data: BTreeSet<_> = events.iter().flat_map(|event| keys(&event["data"])).collect();
    assert_eq!(keys(&schema("FeedData")["properties"]), data);
    let always = set(["id", "status", "to", "metadata"]);
    let with = |more: &str| &always | &set([more]);
    for (event, more) in events.iter().zip(["error", "sesMessageId", "event"]) {
        assert_eq!(keys(&event["data"]), with(more));
    }
    assert_eq!(events[0]["timestamp"], NOON.to_string());
}

#[test]
fn it_is_of_this_version_and_says_what_every_operation_is_called() {
    let document = document();
    assert_eq!(document["info"]["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(document["openapi"], json!("3.1.0"));
    let mut ids = BTreeSet::new();
    for path in document["paths"].as_object().unwrap().values() {
        for operation in path.as_object().unwrap().values() {
            assert!(ids.insert(operation["operationId"].as_str().unwrap()));
        }
    }
    assert_eq!(ids.len(), 10);
}
