//! The simulator over real HTTP: what it takes, what it refuses and by which name, and how it
//! goes wrong on request.

mod client;
mod destinations;
mod events;
mod queue;
mod suppression;

use std::error::Error;
use std::io::{self, BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant, SystemTime};

use client::{CLIENT_TIMEOUT, Client, message, message_to, message_with, start, start_with};
use pillarbox_simulator::{
    Credentials, Fault, FaultScope, Faults, Options, RecipientFate, SenderCheck, Simulator,
    VerifiedBy,
};
use reqwest::Method;
use serde_json::{Value, json};

use crate::kit::pillarbox;

const BAD_REQUEST: (u16, &str) = (400, "BadRequestException");
const BAD_SIGNATURE: (u16, &str) = (403, "InvalidSignatureException");

/// True if the failure is a connection reset, and not a mere end of the stream.
fn is_reset(error: &reqwest::Error) -> bool {
    let mut source: Option<&(dyn Error + 'static)> = Some(error);
    while let Some(error) = source {
        let io = error.downcast_ref::<io::Error>();
        if io.is_some_and(|e| e.kind() == io::ErrorKind::ConnectionReset) {
            return true;
        }
        source = error.source();
    }
    false
}

#[tokio::test]
async fn a_signed_message_is_accepted_and_kept_in_full() {
    let (simulator, client) = start().await;
    let mut accepted = simulator.subscribe();
    let mut request = message();
    request["Destination"]["CcAddresses"] = json!(["complaint+1@simulator.amazonses.com"]);
    request["Destination"]["BccAddresses"] = json!(["B <bounce@simulator.amazonses.com>"]);
    request["ReplyToAddresses"] = json!(["help@example.com"]);
    request["Content"]["Simple"]["Body"]["Html"] = json!({ "Data": "<p>Hi</p>" });
    request["Content"]["Simple"]["Headers"] = json!([{ "Name": "X-Case", "Value": "7" }]);
    request["EmailTags"] = json!([{ "Name": "message", "Value": "m-1" }]);
    let answer = client.send(&request).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    let id = answer.body["MessageId"].as_str().unwrap();
    assert!(id.starts_with("01000") && id.ends_with("-000000") && id.len() == 60, "{id}");

    let kept = simulator.messages();
    let caught = &kept[0];
    assert_eq!(accepted.recv().await.unwrap(), *caught);
    assert_eq!(caught.id, id);
    assert_eq!(caught.from, "Ann <ann@example.com>");
    assert_eq!(caught.subject, "Hello");
    assert_eq!(caught.text.as_deref(), Some("Hi Bob"));
    assert_eq!(caught.html.as_deref(), Some("<p>Hi</p>"));
    assert_eq!(caught.tag("message"), Some("m-1"));
    assert_eq!(caught.headers[0].name, "X-Case");
    let fates: Vec<_> = caught.recipients.iter().map(|r| (r.address.as_str(), r.fate)).collect();
    assert_eq!(
        fates,
        [
            ("bob@example.org", RecipientFate::Delivered),
            ("complaint+1@simulator.amazonses.com", RecipientFate::Complained),
            ("bounce@simulator.amazonses.com", RecipientFate::Bounced),
        ]
    );
    assert_eq!((simulator.accepted_total(), simulator.calls_total()), (1, 1));
}

#[tokio::test]
async fn a_tampered_call_is_refused() {
    let (simulator, client) = start().await;
    let good = client.sign_send(&message());

    let mut other_body = good.clone();
    other_body.body.push(b' ');
    let mut added_header = good.clone();
    added_header.headers.push(("x-amz-extra".to_owned(), "1".to_owned()));
    let mut other_hash = good.clone();
    other_hash.headers.push(("x-amz-content-sha256".to_owned(), "0".repeat(64)));
    let mut other_date = good.clone();
    let date = other_date.header_mut("x-amz-date");
    let last = if date.ends_with("00Z") { "01Z" } else { "00Z" };
    date.replace_range(13.., last);
    let mut other_query = good.clone();
    other_query.path.push_str("?a=b");
    let mut unsigned_host = good.clone();
    let authorization = unsigned_host.header_mut("authorization");
    *authorization = authorization.replace("host;", "");
    for call in [other_body, added_header, other_hash, other_date, other_query, unsigned_host] {
        let shown = format!("{call:?}");
        assert_eq!(client.call(call).await.refusal(), BAD_SIGNATURE, "{shown}");
    }
    let mut other_day = good.clone();
    let authorization = other_day.header_mut("authorization");
    let day = authorization.split('/').nth(1).unwrap().to_owned();
    *authorization = authorization.replacen(&day, "20200101", 1);
    let answer = client.call(other_day).await;
    assert!(answer.message().starts_with("Date in Credential scope"), "{answer:?}");
    let answer = client.call(good.clone().without_header("authorization")).await;
    assert_eq!(answer.refusal(), (403, "MissingAuthenticationTokenException"));
    for (name, value) in [("authorization", "Bearer x"), ("x-amz-date", "yesterday")] {
        let mut call = good.clone();
        *call.header_mut(name) = value.to_owned();
        assert_eq!(client.call(call).await.refusal(), (403, "IncompleteSignatureException"));
    }
    assert_eq!(simulator.accepted_total(), 0);
    assert_eq!(client.call(good).await.status, 200);
}

#[tokio::test]
async fn a_signature_of_another_key_region_service_or_time_is_refused() {
    let (_simulator, client) = start().await;
    let refused = async |change: fn(&mut Client)| {
        let mut client = client.clone();
        change(&mut client);
        client.send(&message()).await
    };
    let answer = refused(|c| c.access_key_id = "AKIAOTHER".to_owned()).await;
    assert_eq!(answer.refusal(), (403, "UnrecognizedClientException"));
    let answer = refused(|c| c.secret_access_key = "other".to_owned()).await;
    assert_eq!(answer.refusal(), BAD_SIGNATURE);
    let answer = refused(|c| c.region = "us-east-1".to_owned()).await;
    assert_eq!(answer.refusal(), BAD_SIGNATURE);
    assert!(answer.message().contains("valid region"), "{}", answer.message());
    let answer = refused(|c| c.service = "sqs").await;
    assert_eq!(answer.refusal(), BAD_SIGNATURE);
    assert!(answer.message().contains("correct service"), "{}", answer.message());
    let past = refused(|c| c.signing_time = Some(SystemTime::now() - Duration::from_mins(6))).await;
    assert_eq!(past.refusal(), BAD_SIGNATURE);
    assert!(past.message().starts_with("Signature expired: "), "{}", past.message());
    let next = refused(|c| c.signing_time = Some(SystemTime::now() + Duration::from_mins(6))).await;
    assert!(next.message().starts_with("Signature not yet current: "), "{}", next.message());
    let mut within = client.clone();
    within.signing_time = Some(SystemTime::now() - Duration::from_mins(4));
    assert_eq!(within.send(&message()).await.status, 200);
}

#[tokio::test]
async fn a_service_or_a_call_that_is_not_there_is_named_and_no_signature_blamed() {
    let (_simulator, client) = start().await;
    for (service, form, named) in [
        ("sns", "Action=CreateTopic&Version=2010-03-31&Name=x", "have the service sns."),
        ("ses", "Action=GetSendQuota&Version=2010-12-01", "have SES's API v1."),
    ] {
        let answer = client.query(service, form).await;
        let body = answer.body.as_str().unwrap();
        assert_eq!(answer.status, 400, "{body}");
        assert!(body.contains("<Code>UnknownOperation</Code>") && body.contains(named), "{body}");
    }
    let answer = client.query("sts", "Action=GetCallerIdentity&Version=2011-06-15").await;
    assert_eq!(answer.status, 200, "{answer:?}");
    let mut storage = client.clone();
    storage.service = "s3";
    let answer = storage.get("/").await;
    assert_eq!(answer.refusal(), (400, "UnknownOperationException"));
    assert!(answer.message().contains("have the service s3."), "{}", answer.message());
    let answer = client.sqs("CreateQueue", json!({ "QueueName": "x" })).await;
    assert_eq!(answer.status, 400, "{answer:?}");
    assert!(answer.message().contains("/000000000000/pillarbox-events"), "{answer:?}");
}

#[tokio::test]
async fn any_credentials_and_any_date_are_taken_on_request() {
    let options = Options { credentials: Credentials::Any, ..Options::default() };
    let (_simulator, mut client) = start_with(options).await;
    client.access_key_id = "whoever".to_owned();
    assert_eq!(client.send(&message()).await.status, 200);
    let unsigned = client.sign_send(&message()).without_header("authorization");
    assert_eq!(client.call(unsigned).await.status, 403);

    let options = Options { signature_max_age: None, ..Options::default() };
    let (_simulator, mut client) = start_with(options).await;
    client.signing_time = Some(SystemTime::now() + Duration::from_hours(24 * 91));
    assert_eq!(client.send(&message()).await.status, 200);
}

#[tokio::test]
async fn only_verified_identities_and_their_sub_domains_send() {
    let (simulator, client) = start().await;
    let from = |address: &str| message_with("/FromEmailAddress", json!(address));
    assert_eq!(client.send(&from("a@mail.Example.COM")).await.status, 200);
    for address in ["a@example.org", "a@notexample.com", "a@com"] {
        let answer = client.send(&from(address)).await;
        assert_eq!(answer.refusal(), (400, "MessageRejected"), "{address}");
        let expected = format!(
            "Email address is not verified. The following identities failed the check in region \
             EU-WEST-1: {address}"
        );
        assert_eq!(answer.message(), expected);
    }
    simulator.verify("a@example.org");
    assert_eq!(client.send(&from("A <a@Example.org>")).await.status, 200);
    assert_eq!(client.send(&from("b@example.org")).await.status, 400);

    let options = Options { sender_check: SenderCheck::Anyone, ..Options::default() };
    let (_simulator, client) = start_with(options).await;
    assert_eq!(client.send(&from("a@anywhere.test")).await.status, 200);
}

#[tokio::test]
async fn malformed_messages_are_bad_requests() {
    let (simulator, client) = start().await;
    let simple = "/Content/Simple";
    let cases: Vec<(String, Value)> = vec![
        ("/FromEmailAddress".into(), Value::Null),
        ("/FromEmailAddress".into(), json!("ann")),
        ("/FromEmailAddress".into(), json!("Jos\u{e9} <ann@example.com>")),
        ("/ReplyToAddresses".into(), json!(["a b@example.com"])),
        ("/FeedbackForwardingEmailAddress".into(), json!("x")),
        ("/Destination".into(), Value::Null),
        ("/Destination/ToAddresses".into(), json!([])),
        ("/Destination/ToAddresses".into(), json!(["a@x.org, b@x.org"])),
        ("/Destination/CcAddresses".into(), json!(["jos\u{e9}@example.org"])),
        ("/Destination/BccAddresses".into(), json!(["a@exampl\u{e9}.org"])),
        ("/Content".into(), Value::Null),
        (simple.into(), Value::Null),
        ("/Content/Raw".into(), json!({ "Data": "" })),
        ("/Content/Template".into(), json!({ "TemplateName": "t" })),
        (format!("{simple}/Subject"), Value::Null),
        (format!("{simple}/Subject/Data"), Value::Null),
        (format!("{simple}/Subject/Data"), json!("a\r\nBcc: b@example.org")),
        (format!("{simple}/Body"), Value::Null),
        (format!("{simple}/Body/Text"), Value::Null),
        (format!("{simple}/Attachments"), json!([{ "FileName": "f", "RawContent": "" }])),
    ];
    for (pointer, value) in cases {
        let answer = client.send(&message_with(&pointer, value.clone())).await;
        assert_eq!(answer.refusal(), BAD_REQUEST, "{pointer} = {value}");
        assert!(!answer.message().is_empty());
    }
    assert_eq!(client.send(&message_to(50)).await.status, 200);
    let answer = client.send(&message_to(51)).await;
    assert_eq!((answer.refusal(), answer.message()), (BAD_REQUEST, "Recipient count exceeds 50."));
    assert_eq!(simulator.accepted_total(), 1);
}

#[tokio::test]
async fn overrides_of_tracking_are_kept_and_held_to_the_model() {
    let (simulator, client) = start().await;
    let send = async |overrides: Value| {
        client.send(&message_with("/ConfigurationOverrides", overrides)).await
    };
    let both = json!({ "OpenTrackingEnabled": "DISABLED", "ClickTrackingEnabled": "ENABLED" });
    for good in [json!({ "Tracking": both }), json!({ "Tracking": {} }), json!({})] {
        assert_eq!(send(good.clone()).await.status, 200, "{good}");
    }
    let kept = simulator.messages();
    let of = |n: usize| (kept[n].open_tracking.as_deref(), kept[n].click_tracking.as_deref());
    assert_eq!(of(0), (Some("DISABLED"), Some("ENABLED")));
    assert_eq!(of(1), (None, None));
    for member in ["OpenTrackingEnabled", "ClickTrackingEnabled"] {
        for word in ["disabled", "OFF", ""] {
            let answer = send(json!({ "Tracking": { member: word } })).await;
            assert_eq!(answer.refusal(), BAD_REQUEST, "{member} {word}");
            assert!(answer.message().contains("enum value set: [ENABLED, DISABLED]"));
        }
        let answer = send(json!({ "Tracking": { member: false } })).await;
        assert_eq!(answer.refusal(), (400, "SerializationException"));
    }
    simulator.set_faults(Faults::always(Fault::UnknownMember));
    assert_eq!(send(json!({})).await.refusal(), BAD_REQUEST);
    assert_eq!(client.send(&message()).await.status, 200, "it goes without the member");
}

#[tokio::test]
async fn files_are_kept_and_held_to_sess_rules() {
    let (simulator, client) = start().await;
    let send =
        async |files: Value| client.send(&message_with("/Content/Simple/Attachments", files)).await;
    let file = json!({
        "FileName": "Rechnung \u{fc}.pdf", "RawContent": "AP8Q", "ContentType": "application/pdf",
        "ContentDisposition": "INLINE", "ContentId": "a", "ContentTransferEncoding": "BASE64",
    });
    let least = json!({ "FileName": "a.b", "RawContent": "QQ==" });
    assert_eq!(send(json!([file, least])).await.status, 200);
    let kept = simulator.messages();
    let [first, second] = &kept[0].attachments[..] else { panic!("{kept:?}") };
    assert_eq!((&*first.filename, &*first.content), ("Rechnung \u{fc}.pdf", &[0, 0xff, 0x10][..]));
    assert_eq!(first.disposition.as_deref(), Some("INLINE"));
    assert_eq!((&*second.content, &second.content_type), (&b"A"[..], &None));
    let shown = serde_json::to_value(&*kept[0]).unwrap();
    assert_eq!(shown["attachments"][0]["content"], "AP8Q");
    for (member, wrong) in [
        ("FileName", json!(null)),
        ("FileName", json!("a")),
        ("FileName", json!("a.exe")),
        ("FileName", json!("a.JS")),
        ("FileName", json!(format!("{}.pdf", "a".repeat(252)))),
        ("RawContent", json!(null)),
        ("ContentType", json!("")),
        ("ContentType", json!("a".repeat(79))),
        ("ContentId", json!("")),
        ("ContentId", json!("a".repeat(79))),
        ("ContentDisposition", json!("inline")),
        ("ContentTransferEncoding", json!("base64")),
    ] {
        let mut file = file.clone();
        file[member] = wrong.clone();
        assert_eq!(send(json!([file])).await.refusal(), BAD_REQUEST, "{member}: {wrong}");
    }
    let mut file = file.clone();
    file["RawContent"] = json!("A");
    assert_eq!(send(json!([file])).await.refusal(), (400, "SerializationException"));
    assert_eq!(simulator.accepted_total(), 1);
}

#[tokio::test]
async fn headers_are_held_to_sess_limits() {
    let (_simulator, client) = start().await;
    let send =
        async |headers: Value| client.send(&message_with("/Content/Simple/Headers", headers)).await;
    let one = |name: &str, value: &str| json!([{ "Name": name, "Value": value }]);
    let many = |count: usize| {
        let list = (0..count).map(|n| json!({ "Name": format!("X-{n}"), "Value": "v" }));
        Value::Array(list.collect())
    };
    for good in [
        many(15),
        one(&format!("X-{}", "n".repeat(124)), &"v".repeat(870)),
        one("X-A", &"v".repeat(993)),
        one("List-Unsubscribe", "<mailto:u@example.com>"),
        json!([{ "Name": "X-A", "Value": "1" }, { "Name": "x-a", "Value": "2" }]),
    ] {
        assert_eq!(send(good.clone()).await.status, 200, "{good}");
    }
    for bad in [
        many(16),
        one(&format!("X-{}", "n".repeat(125)), "v"),
        one("X-A", &"v".repeat(996)),
        one(&format!("X-{}", "n".repeat(124)), &"v".repeat(871)),
        one("", "v"),
        one("X-A", ""),
        one("X A", "v"),
        one("X:A", "v"),
        one("X-\u{e9}", "v"),
        one("X-A", "\u{e9}"),
        one("X-A", "a\r\nBcc: b@example.org"),
        one("Bcc", "b@example.org"),
        one("SUBJECT", "s"),
        json!([{ "Name": "X-A" }]),
        json!([{ "Name": "List-Id", "Value": "1" }, { "Name": "list-id", "Value": "2" }]),
    ] {
        assert_eq!(send(bad.clone()).await.refusal(), BAD_REQUEST, "{bad}");
    }
}

#[tokio::test]
async fn tags_are_held_to_sess_limits_and_counted() {
    let (simulator, client) = start().await;
    let tag = |name: &str, value: &str| json!([{ "Name": name, "Value": value }]);
    let send = async |tags: Value| client.send(&message_with("/EmailTags", tags)).await;
    for bad in [
        tag("a b", "v"),
        tag("a", "v.w"),
        tag("a", ""),
        tag("a", &"v".repeat(257)),
        tag("", "v"),
        json!([{ "Name": "a", "Value": "1" }, { "Name": "a", "Value": "2" }]),
    ] {
        assert_eq!(send(bad.clone()).await.refusal(), BAD_REQUEST, "{bad}");
    }
    for value in ["m-1", "m-2", "m-1", &"v".repeat(256)] {
        assert_eq!(send(tag("message", value)).await.status, 200);
    }
    assert_eq!(simulator.accepted_by_tag("message", "m-1"), 2);
    assert_eq!(simulator.accepted_by_tag("message", "m-3"), 0);
    assert_eq!(simulator.repeated_tags("message"), [("m-1".to_owned(), 2)]);
}

#[tokio::test]
async fn json_paths_and_sizes_beyond_the_protocol_are_refused() {
    let (_simulator, client) = start().await;
    for body in ["", "{", "[]", "{\"Content\":7}", "\u{1}"] {
        let call = client.sign(Method::POST, "/v2/email/outbound-emails", body.as_bytes());
        let answer = client.call(call).await;
        assert_eq!(answer.refusal(), (400, "SerializationException"), "{body}");
    }
    let answer = client.get("/v2/email/nothing").await;
    assert_eq!(answer.refusal(), (404, "UnknownOperationException"));
    let long = vec![b' '; 40 * 1024 * 1024 + 1];
    let call = client.sign(Method::POST, "/v2/email/outbound-emails", &long);
    assert_eq!(client.call(call).await.refusal(), (413, "RequestEntityTooLargeException"));
}

#[tokio::test]
async fn configuration_sets_must_exist() {
    let (_simulator, client) = start().await;
    let with_set = message_with("/ConfigurationSetName", json!("main"));
    let answer = client.send(&with_set).await;
    assert_eq!(answer.refusal(), (404, "NotFoundException"));
    assert_eq!(answer.message(), "Configuration set <main> does not exist.");
    let path = "/v2/email/configuration-sets";
    assert_eq!(client.get(&format!("{path}/main")).await.refusal(), (404, "NotFoundException"));
    let create = json!({ "ConfigurationSetName": "main" });
    assert_eq!(client.post(path, &create).await.status, 200);
    assert_eq!(client.post(path, &create).await.refusal(), (400, "AlreadyExistsException"));
    let odd = json!({ "ConfigurationSetName": "a b" });
    assert_eq!(client.post(path, &odd).await.refusal(), BAD_REQUEST);
    let found = client.get(&format!("{path}/main")).await;
    assert_eq!(found.body["ConfigurationSetName"], "main");
    assert_eq!(client.send(&with_set).await.status, 200);
}

#[tokio::test]
async fn a_created_domain_is_verified_at_the_second_look() {
    let (_simulator, client) = start().await;
    let path = "/v2/email/identities";
    let from_new = message_with("/FromEmailAddress", json!("a@new.test"));
    let answer = client.get(&format!("{path}/new.test")).await;
    assert_eq!(answer.refusal(), (404, "NotFoundException"));

    let created = client.post(path, &json!({ "EmailIdentity": "New.test" })).await;
    assert_eq!(created.body["VerifiedForSendingStatus"], false);
    let tokens = created.body["DkimAttributes"]["Tokens"].as_array().unwrap();
    assert!(tokens.len() == 3 && tokens[0] != tokens[1]);
    assert_eq!(client.send(&from_new).await.refusal(), (400, "MessageRejected"));
    let again = client.post(path, &json!({ "EmailIdentity": "new.test" })).await;
    assert_eq!(again.refusal(), (400, "AlreadyExistsException"));

    let first = client.get(&format!("{path}/new.test")).await;
    assert_eq!(first.body["VerificationStatus"], "PENDING");
    let second = client.get(&format!("{path}/new.test")).await;
    assert_eq!(second.body["VerifiedForSendingStatus"], true);
    assert_eq!(second.body["DkimAttributes"]["Status"], "SUCCESS");
    assert_eq!(second.body["DkimAttributes"]["Tokens"].as_array().unwrap(), tokens);
    assert_eq!(client.send(&from_new).await.status, 200);

    let listed = client.get(path).await;
    let names: Vec<_> = listed.body["EmailIdentities"].as_array().unwrap().iter().collect();
    assert_eq!(names.len(), 2);
    assert_eq!(names[1]["IdentityName"], "new.test");
    for odd in ["", "a b.test", "nodot", "a@"] {
        let answer = client.post(path, &json!({ "EmailIdentity": odd })).await;
        assert_eq!(answer.refusal(), BAD_REQUEST, "{odd}");
    }
}

#[tokio::test]
async fn an_address_identity_travels_encoded_in_the_path() {
    let options = Options { verified_by: VerifiedBy::Nothing, ..Options::default() };
    let (_simulator, client) = start_with(options).await;
    let path = "/v2/email/identities";
    let created = client.post(path, &json!({ "EmailIdentity": "a+b@new.test" })).await;
    assert_eq!(created.body["IdentityType"], "EMAIL_ADDRESS");
    for _ in 0..3 {
        let looked = client.get(&format!("{path}/a%2Bb%40new.test")).await;
        assert_eq!(looked.status, 200, "{looked:?}");
        assert_eq!(looked.body["VerifiedForSendingStatus"], false);
    }
}

#[tokio::test]
async fn the_account_shows_quota_rate_and_what_was_sent() {
    let options = Options { send_rate: Some(14.0), daily_quota: Some(200), ..Options::default() };
    let (_simulator, client) = start_with(options).await;
    client.send(&message_to(3)).await;
    let account = client.get("/v2/email/account").await.body;
    assert_eq!(
        account["SendQuota"],
        json!({ "Max24HourSend": 200.0, "MaxSendRate": 14.0, "SentLast24Hours": 3.0 })
    );
    assert_eq!(account["SendingEnabled"], true);
    assert_eq!(account["EnforcementStatus"], "HEALTHY");
}

#[tokio::test]
async fn the_rate_and_the_quota_count_recipients() {
    let options = Options { send_rate: Some(0.001), ..Options::default() };
    let (simulator, client) = start_with(options).await;
    simulator.set_send_rate(Some(5.0));
    assert_eq!(client.send(&message_to(50)).await.status, 200, "a big message may go into debt");
    let answer = client.send(&message()).await;
    assert_eq!(answer.refusal(), (429, "TooManyRequestsException"));
    assert_eq!(answer.message(), "Maximum sending rate exceeded.");
    simulator.set_send_rate(None);
    simulator.set_daily_quota(Some(60));
    assert_eq!(client.send(&message_to(11)).await.refusal(), (400, "LimitExceededException"));
    assert_eq!(client.send(&message_to(10)).await.status, 200);
    let answer = client.send(&message()).await;
    assert_eq!(answer.message(), "Daily message quota exceeded.");
    simulator.set_daily_quota(None);
    assert_eq!(client.send(&message()).await.status, 200);
}

#[tokio::test]
async fn calls_other_than_sends_have_a_rate_of_their_own() {
    let options = Options { other_call_rate: Some(0.001), ..Options::default() };
    let (_simulator, client) = start_with(options).await;
    assert_eq!(client.get("/v2/email/account").await.status, 200);
    let answer = client.get("/v2/email/account").await;
    assert_eq!(answer.refusal(), (429, "TooManyRequestsException"));
    assert_eq!(client.send(&message()).await.status, 200);
}

#[tokio::test]
async fn faults_that_refuse_leave_nothing_accepted() {
    let (simulator, client) = start().await;
    for (fault, expected) in [
        (Fault::Throttled, (429, "TooManyRequestsException")),
        (Fault::InternalError, (500, "InternalServiceErrorException")),
        (Fault::Unavailable, (503, "ServiceUnavailableException")),
        (Fault::Rejected, (400, "MessageRejected")),
        (Fault::QuotaExhausted, (400, "LimitExceededException")),
        (Fault::SendingPaused, (400, "SendingPausedException")),
        (Fault::AccountSuspended, (400, "AccountSuspendedException")),
        (Fault::MailFromDomainNotVerified, (400, "MailFromDomainNotVerifiedException")),
        (Fault::AccessDenied, (403, "AccessDeniedException")),
        (Fault::ExpiredToken, (403, "ExpiredTokenException")),
        (Fault::BadRequest, BAD_REQUEST),
        (Fault::ValidationError, (400, "ValidationException")),
        (Fault::TooLarge, (413, "RequestEntityTooLargeException")),
        (Fault::RequestTimeTooSkewed, (403, "RequestTimeTooSkewed")),
        (Fault::RequestInTheFuture, (403, "RequestInTheFuture")),
        (Fault::RequestExpired, (400, "RequestExpired")),
        (Fault::SignatureExpired, BAD_SIGNATURE),
        (Fault::AuthFailure, (400, "AuthFailure")),
        (Fault::RequestAborted, (400, "RequestAbortedException")),
        (Fault::RequestLimitExceeded, (503, "RequestLimitExceeded")),
        (Fault::MalformedRequest, (400, "MalformedHttpRequestException")),
    ] {
        simulator.set_faults(Faults::always(fault));
        assert_eq!(client.send(&message()).await.refusal(), expected);
        assert_eq!(client.get("/v2/email/account").await.status, 200, "{fault:?} spares others");
    }
    simulator.set_faults(Faults::always(Fault::AccessDenied).with_scope(FaultScope::AllCalls));
    let answer = client.get("/v2/email/account").await;
    assert_eq!(answer.refusal(), (403, "AccessDeniedException"));
    assert_eq!(simulator.accepted_total(), 0);
}

#[tokio::test]
async fn a_reset_before_loses_the_call_and_a_reset_after_only_the_answer() {
    let (simulator, client) = start().await;
    simulator.script(vec![Fault::ResetBefore, Fault::ResetAfter]);
    let error = client.try_send(&message()).await.unwrap_err();
    assert!(is_reset(&error), "{error:?}");
    assert_eq!(simulator.accepted_total(), 0);
    let error = client.try_send(&message()).await.unwrap_err();
    assert!(is_reset(&error), "{error:?}");
    assert_eq!(simulator.accepted_total(), 1);
    assert_eq!(client.send(&message()).await.status, 200);
    assert_eq!((simulator.accepted_total(), simulator.calls_total()), (2, 3));
}

#[tokio::test]
async fn a_slow_answer_comes_after_the_clients_timeout() {
    let (simulator, client) = start().await;
    simulator.set_faults(Faults::always(Fault::Slow).with_slow_for(CLIENT_TIMEOUT * 2));
    let error = client.try_send(&message()).await.unwrap_err();
    assert!(error.is_timeout(), "{error:?}");
    assert_eq!(simulator.accepted_total(), 1, "accepted at once");
    simulator.set_faults(Faults::always(Fault::Slow).with_slow_for(Duration::from_millis(200)));
    let started = Instant::now();
    assert_eq!(client.send(&message()).await.status, 200);
    assert!(started.elapsed() >= Duration::from_millis(200));
}

#[tokio::test]
async fn a_truncated_answer_has_a_status_but_not_all_of_its_body() {
    let (simulator, client) = start().await;
    simulator.script(vec![Fault::Truncated]);
    let error = client.try_send(&message()).await.unwrap_err();
    assert!(error.is_body() || error.is_decode(), "the head arrived: {error:?}");
    assert_eq!(simulator.accepted_total(), 1);
}

#[tokio::test]
async fn an_internal_error_may_hide_an_acceptance() {
    let (simulator, client) = start().await;
    simulator.script(vec![Fault::InternalErrorAfter]);
    let answer = client.send(&message()).await;
    assert_eq!(answer.refusal(), (500, "InternalServiceErrorException"));
    assert_eq!(simulator.accepted_total(), 1);
}

#[tokio::test]
async fn a_host_that_is_down_resets_every_call_until_it_is_told_to_come_back() {
    let (simulator, client) = start().await;
    let put = async |body: Value| client.control(Method::PUT, "/simulator/faults", &body).await;
    put(json!({ "always": "down" })).await;
    for _ in 0..3 {
        assert!(is_reset(&client.try_send(&message()).await.unwrap_err()));
        let account = client.sign(Method::GET, "/v2/email/account", b"");
        assert!(is_reset(&client.try_call(account).await.unwrap_err()));
    }
    assert_eq!((simulator.accepted_total(), simulator.calls_total()), (0, 0));
    put(json!({})).await;
    assert_eq!(client.send(&message()).await.status, 200);
}

#[tokio::test]
async fn the_same_seed_gives_the_same_faults() {
    let faults = || {
        Faults::none()
            .with_probability(Fault::Throttled, 0.3)
            .and_then(|f| f.with_probability(Fault::Unavailable, 0.3))
            .unwrap()
    };
    let run = async |simulator: &Simulator, client: &Client| {
        let mut statuses = Vec::new();
        for _ in 0..40 {
            // Other calls in between do not shift the sequence.
            client.get("/v2/email/account").await;
            statuses.push(client.send(&message()).await.status);
        }
        simulator.restart_faults(7);
        statuses
    };
    let options = || Options { faults: faults(), seed: 7, ..Options::default() };
    let (one, client) = start_with(options()).await;
    let first = run(&one, &client).await;
    assert_eq!(run(&one, &client).await, first);
    let (two, client) = start_with(options()).await;
    assert_eq!(run(&two, &client).await, first);
    for status in [200, 429, 503] {
        assert!(first.contains(&status), "{first:?}");
    }
    let (three, client) = start_with(Options { seed: 8, ..options() }).await;
    assert_ne!(run(&three, &client).await, first);
}

#[tokio::test]
async fn only_the_last_messages_are_kept() {
    let (simulator, client) =
        start_with(Options { max_captured_messages: 3, ..Options::default() }).await;
    for n in 0..5 {
        let subject = json!({ "Data": n.to_string() });
        client.send(&message_with("/Content/Simple/Subject", subject)).await;
    }
    let subjects: Vec<_> = simulator.messages().iter().map(|m| m.subject.clone()).collect();
    assert_eq!(subjects, ["2", "3", "4"]);
    assert_eq!(simulator.accepted_total(), 5);
}

#[tokio::test]
async fn the_own_api_lists_shows_and_forgets() {
    let (_simulator, client) = start().await;
    client.send(&message()).await;
    let mut second = message_to(2);
    second["EmailTags"] = json!([{ "Name": "message", "Value": "m-1" }]);
    let id = client.send(&second).await.body["MessageId"].clone();
    let get = async |path: &str| client.control(Method::GET, path, &Value::Null).await;

    let listed = get("/simulator/messages").await.body["messages"].clone();
    assert_eq!(listed.as_array().unwrap().len(), 2);
    assert_eq!(listed[0]["id"], id, "newest first");
    assert_eq!(listed[0]["tags"], json!([{ "name": "message", "value": "m-1" }]));
    let fate = json!({ "address": "r0@example.org", "fate": "delivered" });
    assert_eq!(listed[0]["recipients"][0], fate);
    assert!(listed[0]["receivedAt"].as_str().unwrap().ends_with('Z'));
    let bobs = get("/simulator/messages?to=Bob%40example.org&limit=5").await;
    assert_eq!(bobs.body["messages"], json!([listed[1]]));
    let shown = get(&format!("/simulator/messages/{}", id.as_str().unwrap())).await;
    assert_eq!(shown.body, listed[0]);
    assert_eq!(get("/simulator/messages/none").await.status, 404);
    assert_eq!(get("/simulator/messages?limit=x").await.status, 400);

    let status = client.control(Method::DELETE, "/simulator/messages", &Value::Null).await;
    let expected = json!({
        "calls": 2, "kept": 0, "accepted": 2, "acceptedRecipients": 3, "uncountedTags": 0,
        "queueCalls": 0, "queued": 0, "delayed": 0, "inFlight": 0, "received": 0, "repeated": 0,
        "deleted": 0, "dropped": 0,
    });
    assert_eq!(status.body, expected);
    assert_eq!(get("/simulator/status").await.body, expected);
}

#[tokio::test]
async fn the_own_api_sets_faults() {
    let (_simulator, client) = start().await;
    let put = async |body: Value| client.control(Method::PUT, "/simulator/faults", &body).await;
    let script = json!({ "script": ["pass", "rejected"], "always": "sending_paused", "seed": 3 });
    assert_eq!(put(script).await.status, 200);
    assert_eq!(client.send(&message()).await.status, 200);
    assert_eq!(client.send(&message()).await.refusal(), (400, "MessageRejected"));
    assert_eq!(client.send(&message()).await.refusal(), (400, "SendingPausedException"));
    let chances = json!({ "chances": { "throttled": 1.0 }, "slowFor": "1m 30s" });
    assert_eq!(put(chances).await.status, 200);
    assert_eq!(client.send(&message()).await.status, 429);
    let error = json!({ "status": 409, "name": "ses#BusyException", "message": "busy" });
    assert_eq!(put(json!({ "always": "error", "error": error })).await.status, 200);
    let answer = client.send(&message()).await;
    assert_eq!((answer.refusal(), answer.message()), ((409, "ses#BusyException"), "busy"));
    let error = json!({ "status": 503, "name": "Busy", "nameIn": "body" });
    assert_eq!(put(json!({ "script": ["error"], "error": error })).await.status, 200);
    let answer = client.send(&message()).await;
    assert_eq!((answer.refusal(), &answer.body["__type"]), ((503, "Busy"), &json!("Busy")));
    for bad in [
        json!({ "error": { "name": "Busy" } }),
        json!({ "chances": { "throttled": 1.5 } }),
        json!({ "chances": { "gone": 0.5 } }),
        json!({ "slowFor": "soon" }),
        json!({ "chance": {} }),
    ] {
        assert_eq!(put(bad.clone()).await.status, 400, "{bad}");
    }
    assert_eq!(put(json!({})).await.status, 200);
    assert_eq!(client.send(&message()).await.status, 200);
}

#[tokio::test]
async fn latency_delays_the_acceptance_itself() {
    let options = Options { latency: Duration::from_millis(150), ..Options::default() };
    let (simulator, client) = start_with(options).await;
    let started = Instant::now();
    assert_eq!(client.send(&message()).await.status, 200);
    assert!(started.elapsed() >= Duration::from_millis(150));
    simulator.set_latency(CLIENT_TIMEOUT * 2);
    assert!(client.try_send(&message()).await.unwrap_err().is_timeout());
    assert_eq!(simulator.accepted_total(), 1);
}

#[tokio::test]
async fn shutdown_frees_the_port_and_drop_does_too() {
    let (simulator, client) = start().await;
    let addr = simulator.addr();
    simulator.shutdown().await;
    assert!(client.try_send(&message()).await.unwrap_err().is_connect());
    tokio::net::TcpListener::bind(addr).await.unwrap();

    let (simulator, client) = start().await;
    drop(simulator);
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(client.try_send(&message()).await.is_err());
}

#[tokio::test]
async fn the_command_takes_its_options_and_publishes_events_as_ses_does() {
    let options = ["--latency", "50ms", "--send-rate", "14", "--verified", "example.com"];
    let mut command = pillarbox(&["simulator", "--listen", "127.0.0.1:0"]);
    let mut child = command.args(options).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let endpoint = line.split_whitespace().find(|word| word.starts_with("http://")).unwrap();
    let (client, start) = (Client::new(endpoint), Instant::now());
    let sent = client.send(&message()).await;
    let (took, account) = (start.elapsed(), client.get("/v2/email/account").await);
    let set = json!({ "ConfigurationSetName": "set" });
    client.post("/v2/email/configuration-sets", &set).await;
    let destination = json!({ "EventDestinationName": "all", "EventDestination": {
        "Enabled": true,
        "MatchingEventTypes": ["DELIVERY"],
        "SnsDestination": { "TopicArn": "arn:aws:sns:eu-west-1:000000000000:topic" },
    } });
    client.post("/v2/email/configuration-sets/set/event-destinations", &destination).await;
    client.send(&message_with("/ConfigurationSetName", json!("set"))).await;
    let received = client.sqs("ReceiveMessage", json!({ "MaxNumberOfMessages": 10 })).await;
    let signal = ["-TERM".to_owned(), child.id().to_string()];
    assert!(Command::new("kill").args(signal).status().unwrap().success());
    assert!(child.wait().unwrap().success());
    assert_eq!(sent.status, 200, "{sent:?}");
    assert!(took >= Duration::from_millis(50), "{took:?}");
    assert_eq!(account.body["SendQuota"]["MaxSendRate"], 14.0);
    let events = received.body["Messages"].as_array().unwrap();
    assert_eq!(events.len(), 1, "of the message with the set alone: {events:?}");
    assert!(events[0]["Body"].as_str().unwrap().contains("Delivery"), "{events:?}");
}
