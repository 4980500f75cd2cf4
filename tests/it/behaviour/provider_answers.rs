//! Answers of the provider that do not blame the message: it waits and is sent later, and a
//! condition names the answer. The simulator gives each of them.

use std::time::{Duration, Instant};

use pillarbox_simulator::{ErrorFault, Fault, FaultScope, Faults, NamePlace, Options};
use serde_json::{Value, json};

use crate::kit::{PATIENCE, Server, Site, answer, message, message_with};

/// Tries again soon, so that a test waits for nothing else.
const SOON: &str = "[sending]\nretry_initial = \"20ms\"\nretry_max = \"100ms\"";
/// Tries again only after the test.
const LATE: &str = "[sending]\nretry_initial = \"2h\"\nretry_max = \"2h\"";

fn error(status: u16, name: &str, message: &str) -> Faults {
    let (name, message) = (name.to_owned(), message.to_owned());
    let error = ErrorFault { status, name, message, name_in: NamePlace::Header };
    Faults::always(Fault::Error).with_error(error)
}

fn in_body(status: u16, name: &str) -> Faults {
    let (name, message) = (name.to_owned(), "no".to_owned());
    let error = ErrorFault { status, name, message, name_in: NamePlace::Body };
    Faults::always(Fault::Error).with_error(error)
}

/// The conditions that hold, as code, message and advice.
fn conditions(site: &Site) -> Vec<(String, String)> {
    let status = crate::kit::status(site);
    let conditions = status["conditions"].as_array().unwrap().iter();
    let text = |one: &Value, member: &str| one[member].as_str().unwrap().to_owned();
    conditions
        .map(|one| {
            (text(one, "code"), format!("{}. {}", text(one, "message"), text(one, "advice")))
        })
        .collect()
}

/// Waits for a condition with this code and this word in its text; gives all that hold then.
async fn condition_with(site: &Site, code: &str, word: &str) -> Vec<(String, String)> {
    let end = Instant::now() + PATIENCE;
    loop {
        let found = conditions(site);
        if found.iter().any(|(of, text)| of == code && text.contains(word)) {
            return found;
        }
        assert!(Instant::now() < end, "no {code} with {word:?}: {found:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

fn has(conditions: &[(String, String)], code: &str) -> bool {
    conditions.iter().any(|(of, _)| of == code)
}

/// Waits until a message's first call has ended, and gives its record.
async fn tried(server: &Server, id: &str) -> Value {
    let end = Instant::now() + PATIENCE;
    loop {
        let record = server.record(id).await;
        // The reason is on the record just before the call has ended.
        if !record["error"].is_null() && record["status"] != "sending" {
            return record;
        }
        assert!(Instant::now() < end, "no attempt has ended: {record}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_does_not_blame_the_message_is_tried_again_and_named() {
    let site = Site::with(SOON, Options::default()).await;
    let server = site.start();
    let unavailable = "provider_unavailable";
    for (faults, code, named) in [
        (Faults::always(Fault::RequestAborted), unavailable, "RequestAbortedException"),
        (Faults::always(Fault::MalformedRequest), unavailable, "MalformedHttpRequestException"),
        (error(400, "ServiceUnavailable", "no"), unavailable, "ServiceUnavailable"),
        (
            error(503, "ServiceUnavailableException", "no"),
            unavailable,
            "ServiceUnavailableException",
        ),
        (error(400, "NewInNextYearException", "no"), unavailable, "NewInNextYearException"),
        (error(422, "UnprocessableEntity", "no"), unavailable, "UnprocessableEntity"),
        (error(409, "ConflictException", "busy"), unavailable, "ConflictException"),
        (error(413, "QueryTooLargeException", "no"), unavailable, "QueryTooLargeException"),
        (error(400, "", "Something is wrong."), unavailable, "400 without an error name"),
        (error(422, "", "Something is wrong."), unavailable, "422 without an error name"),
        (
            in_body(400, "com.amazonaws.sesv2#AnotherNewException"),
            unavailable,
            "AnotherNewException",
        ),
        (
            in_body(400, "InternalFailureOfNext:http://internal.amazon.com/coral/"),
            unavailable,
            "InternalFailureOfNext",
        ),
        (error(401, "WhoAreYouException", "no"), "sending_paused", "WhoAreYouException"),
        (Faults::always(Fault::AuthFailure), "sending_paused", "AuthFailure"),
        (error(400, "RequestLimitExceeded", "no"), "provider_throttled", ""),
        (Faults::always(Fault::RequestLimitExceeded), "provider_throttled", ""),
    ] {
        site.simulator.set_faults(faults);
        let id = server.send(&message()).await;
        let record = tried(&server, &id).await;
        assert_ne!(record["status"], "failed", "{named}: {record}");
        assert_eq!(record["error"]["code"], code, "{named}: {record}");
        if !named.is_empty() {
            let end = Instant::now() + PATIENCE;
            while !conditions(&site).iter().any(|(_, text)| text.contains(named)) {
                assert!(Instant::now() < end, "{named}: {:?}", conditions(&site));
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
        site.simulator.set_faults(Faults::none());
        server.wait_for(&id, "sent").await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_blames_the_message_fails_it_at_once() {
    let site = Site::with(SOON, Options::default()).await;
    let server = site.start();
    for faults in [
        Faults::always(Fault::Rejected),
        Faults::always(Fault::BadRequest),
        Faults::always(Fault::ValidationError),
        Faults::always(Fault::TooLarge),
        error(400, "ValidationError", "no"),
        error(400, "InvalidParameterValue:http://internal.amazon.com/coral/", "no, really"),
        error(413, "", "Request Too Long"),
        in_body(400, "com.amazonaws.sesv2#MessageRejected"),
    ] {
        site.simulator.set_faults(faults);
        let id = server.send(&message()).await;
        let record = server.wait_for(&id, "failed").await;
        assert_eq!(record["error"]["code"], "provider_rejected", "{record}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_error_that_says_that_nothing_was_done_is_not_unknown() {
    let more = format!("{SOON}\non_unknown = \"fail\"");
    let site = Site::with(&more, Options::default()).await;
    let server = site.start();
    for faults in [
        Faults::always(Fault::Unavailable),
        Faults::always(Fault::RequestLimitExceeded),
        error(500, "ThrottlingException", "Rate exceeded"),
        error(503, "SlowDown", "no"),
        error(500, "AccessDeniedException", "no"),
        error(500, "RequestTimeTooSkewed", "no"),
    ] {
        site.simulator.set_faults(faults);
        let id = server.send(&message()).await;
        let record = tried(&server, &id).await;
        assert_ne!(record["status"], "failed", "{record}");
        site.simulator.set_faults(Faults::none());
        server.wait_for(&id, "sent").await;
    }
    site.simulator.set_faults(Faults::always(Fault::InternalError));
    let id = server.send(&message()).await;
    let record = server.wait_for(&id, "failed").await;
    assert_eq!(record["error"]["code"], "outcome_unknown", "{record}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answered_server_error_is_never_called_no_answer() {
    let site = Site::with(LATE, Options::default()).await;
    let server = site.start();
    server.ready().await;
    site.simulator.set_faults(Faults::always(Fault::InternalError));
    let mut last = String::new();
    for _ in 0..6 {
        last = server.send(&message()).await;
        let record = server.record(&last).await;
        assert_ne!(record["status"], "failed", "{record}");
    }
    let found = condition_with(&site, "outcomes_unknown", "error").await;
    let found = if has(&found, "unreachable") {
        found
    } else {
        condition_with(&site, "unreachable", "InternalServiceErrorException").await
    };
    let status = String::from_utf8(site.done(&["status"]).stdout).unwrap();
    let record = server.record(&last).await.to_string();
    for text in found.iter().map(|(_, text)| text).chain([&status, &record]) {
        let lower = text.to_lowercase();
        for wrong in ["no answer", "not answer", "unanswered", "answer was lost"] {
            assert!(!lower.contains(wrong), "{wrong:?} in {text}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_clock_is_told_as_the_clocks_fault() {
    for (fault, scope) in [
        (Fault::RequestTimeTooSkewed, FaultScope::AllCalls),
        (Fault::RequestInTheFuture, FaultScope::Sends),
        (Fault::RequestExpired, FaultScope::Sends),
        (Fault::SignatureExpired, FaultScope::AllCalls),
    ] {
        let site = Site::with(SOON, Options::default()).await;
        site.simulator.set_faults(Faults::always(fault).with_scope(scope));
        let server = site.start();
        let id = server.send(&message()).await;
        let record = tried(&server, &id).await;
        assert_eq!(record["error"]["code"], "sending_paused", "{fault:?}: {record}");
        let found = condition_with(&site, "clock_wrong", "clock").await;
        for other in
            ["domain_paused", "credentials_refused", "setup_fault", "account_access_denied"]
        {
            assert!(!has(&found, other), "{fault:?}: {found:?}");
        }
        site.simulator.set_faults(Faults::none());
        server.wait_for(&id, "sent").await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_of_what_every_request_has_is_the_set_ups_fault() {
    let site = Site::with(SOON, Options::default()).await;
    let server = site.start();
    for message_of_ses in [
        "Unknown parameter in input: \"ConfigurationOverrides\", must be one of: Content",
        "1 validation error detected: Value 'DISABLED' at \
         'configurationOverrides.tracking.openTrackingEnabled' failed to satisfy constraint: no",
        "1 validation error detected: Value at 'emailTags.1.member.name' failed to satisfy \
         constraint: Member must satisfy regular expression pattern: x",
    ] {
        site.simulator.set_faults(error(400, "BadRequestException", message_of_ses));
        let id = server.send(&message()).await;
        let record = tried(&server, &id).await;
        assert_ne!(record["status"], "failed", "{record}");
        assert_eq!(record["error"]["code"], "sending_paused", "{record}");
        condition_with(&site, "setup_fault", &message_of_ses[..12]).await;
        site.simulator.set_faults(Faults::none());
        server.wait_for(&id, "sent").await;
    }
}

/// Posts a message of another organisation; gives its id.
async fn send_as(server: &Server, key: &str, body: &Value) -> String {
    let post = server.client.post(format!("{}/emails", server.base)).bearer_auth(key);
    let post = post.header("content-type", "application/json").body(body.to_string());
    answer(post.send().await.unwrap()).await.1["id"].as_str().unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_fifth_equal_refusal_in_a_row_waits_until_a_message_is_accepted() {
    const SENTENCE: &str = "The request is not valid.";
    let site = Site::with(LATE, Options::default()).await;
    let beta = site.add_organisation("beta", "beta.example");
    site.simulator.verify("beta.example");
    let server = site.start();
    let from_beta = message_with("from", json!("b@beta.example"));
    site.simulator.set_faults(Faults::always(Fault::BadRequest));
    for _ in 0..4 {
        let id = server.send(&message()).await;
        let record = server.wait_for(&id, "failed").await;
        assert_eq!(record["error"]["code"], "provider_rejected", "{record}");
    }
    // Another organisation's, and one with another sentence, are none of this row.
    let other = send_as(&server, &beta, &from_beta).await;
    let fifth = server.send(&message()).await;
    let record = tried(&server, &fifth).await;
    assert_eq!(record["status"], "queued", "{record}");
    assert_ne!(record["error"]["code"], "provider_rejected", "{record}");
    assert_eq!(record["error"]["providerCode"], "BadRequestException", "{record}");
    let found = condition_with(&site, "refusals_held", SENTENCE.trim_end_matches('.')).await;
    let (_, text) = found.iter().find(|(code, _)| code == "refusals_held").unwrap();
    assert!(text.contains("acme") && !text.contains("beta"), "{text}");
    assert!(!has(&found, "unreachable") && !has(&found, "organisation_paused"), "{found:?}");
    // A retry shows at once, an end once it is stored: it is waited for.
    let url = format!("{}/emails/{other}", server.base);
    let end = Instant::now() + PATIENCE;
    loop {
        let read = server.client.get(&url).bearer_auth(&beta).send().await.unwrap();
        let record = answer(read).await.1;
        if record["status"] == "failed" {
            break;
        }
        assert!(Instant::now() < end, "{record}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }

    // Another sentence is another row: such a message fails.
    site.simulator.set_faults(error(400, "BadRequestException", "Another sentence."));
    let id = server.send(&message()).await;
    server.wait_for(&id, "failed").await;
    // The sentence waits still, and the organisation's other messages go on.
    site.simulator.set_faults(Faults::always(Fault::BadRequest));
    let sixth = server.send(&message()).await;
    assert_eq!(tried(&server, &sixth).await["status"], "queued");
    site.simulator.set_faults(Faults::none());
    let id = server.send(&message()).await;
    server.wait_for(&id, "sent").await;

    // One was accepted, so the row begins anew and nothing waits for it.
    let end = Instant::now() + PATIENCE;
    while has(&conditions(&site), "refusals_held") {
        assert!(Instant::now() < end, "{:?}", conditions(&site));
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    site.simulator.set_faults(Faults::always(Fault::BadRequest));
    let id = server.send(&message()).await;
    server.wait_for(&id, "failed").await;
    for waiting in [&fifth, &sixth] {
        assert_eq!(server.record(waiting).await["status"], "queued");
    }
}
