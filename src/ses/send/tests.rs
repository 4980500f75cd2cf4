use std::convert::Infallible;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use base64::Engine as _;
use secrecy::SecretString;
use serde_json::{Value, json};
use tokio::io::AsyncReadExt;

use super::*;
use crate::SesOptions;
use crate::credentials::Credentials;
use crate::request::CallOptions;
use crate::stub::{Answer, Server, client, options};
use pillarbox_domain::admission::{Admitted, Facts, admit};
use pillarbox_domain::mailbox::{Address, DomainName};
use pillarbox_domain::message_terms::MessageDefaults;
use pillarbox_domain::request::{AttachmentDraft, Draft, SendRequest, Submission};
use pillarbox_domain::suppression::SuppressedAddress;
use pillarbox_runtime::clock::Clock;

const ID: &str = "019f0000-0000-7000-8000-000000000001";
const ACCEPTED: &str = r#"{"MessageId":"0102018f-abc-000000"}"#;

struct Everything;

impl Facts for Everything {
    type Error = Infallible;

    fn is_verified(&self, _: &DomainName<'_>) -> bool {
        true
    }

    fn verified_domains(&self) -> Vec<DomainName<'static>> {
        Vec::new()
    }

    fn allows_sender(&self, _: &DomainName<'_>) -> bool {
        true
    }

    fn defaults(&self) -> MessageDefaults {
        MessageDefaults::default()
    }

    async fn is_suppressed(&self, _: &SuppressedAddress) -> Result<bool, Infallible> {
        Ok(false)
    }
}

fn draft() -> Draft<'static> {
    Draft {
        from: Some("Ann <ann@example.com>"),
        to: Some(vec!["bob@example.org"]),
        subject: Some("Hello"),
        text: Some("Hi".into()),
        ..Draft::default()
    }
}

fn admitted(request: SendRequest<'_>) -> Admitted<'_> {
    let admitting = pin!(admit(request, &Everything));
    match admitting.poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(admitted) => admitted.unwrap(),
        Poll::Pending => panic!("facts that are known at once"),
    }
}

fn encoded(draft: Draft<'_>, configuration_set: Option<&str>) -> Bytes {
    let admitted = admitted(SendRequest::parse(draft).unwrap());
    let organisation = "acme".parse().unwrap();
    let options = with_set(configuration_set);
    encode(&admitted, ID.parse().unwrap(), &organisation, &options, 0).to_vec().into()
}

fn with_set(configuration_set: Option<&str>) -> RequestOptions {
    let configuration_set = configuration_set.map(str::to_owned);
    RequestOptions { configuration_set, ..RequestOptions::default() }
}

fn tracking_off() -> Value {
    json!({ "Tracking": { "OpenTrackingEnabled": "DISABLED", "ClickTrackingEnabled": "DISABLED" } })
}

fn envelope() -> Envelope<'static> {
    let recipient = Address::parse("bob@example.org").unwrap();
    Envelope::new(&DomainName::parse("example.com").unwrap(), [&recipient])
}

fn parsed(draft: Draft<'_>) -> Value {
    serde_json::from_slice(&encoded(draft, None)).unwrap()
}

#[test]
fn a_message_that_came_whole_goes_as_it_is_with_the_envelopes_recipients() {
    let fields = b"From: Ann <ann@example.com>\r\nSubject: \xff\r\n";
    // Every place that base64's groups of three can break at.
    for cut in 0..fields.len() {
        let (head, tail) = fields.split_at(cut);
        let rest = [tail, b"\r\nHi\r\n"].concat();
        let submission = Submission {
            from: "Ann <ann@example.com>",
            from_header: None,
            other_senders: Vec::new(),
            recipients: vec!["bob@example.org", "\"c d\"@example.org"],
            subject: "Hello",
            message: RawMessage { fields: head, rest: &rest },
            idempotency_key: None,
        };
        let request = SendRequest::of_submission(submission).unwrap();
        let admitted = admitted(request);
        let organisation = "acme".parse().unwrap();
        let options = with_set(Some("set"));
        let request = encode(&admitted, ID.parse().unwrap(), &organisation, &options, 10);
        assert_eq!(request.capacity(), request.len() + 10, "it is not copied");
        let data = STANDARD.encode([fields.as_slice(), b"\r\nHi\r\n"].concat());
        let expected = json!({
            "FromEmailAddress": "\"Ann\" <ann@example.com>",
            "Destination": { "ToAddresses": ["bob@example.org", "\"c d\"@example.org"] },
            "Content": { "Raw": { "Data": data } },
            "EmailTags": [
                { "Name": "pillarbox-message-id", "Value": ID },
                { "Name": "pillarbox-organisation", "Value": "acme" },
            ],
            "ConfigurationSetName": "set",
            "ConfigurationOverrides": tracking_off(),
        });
        assert_eq!(serde_json::from_slice::<Value>(&request).unwrap(), expected);
    }
}

fn utf8(data: &str) -> Value {
    json!({ "Data": data, "Charset": "UTF-8" })
}

#[test]
fn a_plain_message_has_what_it_needs_and_nothing_else() {
    let expected = json!({
        "FromEmailAddress": "\"Ann\" <ann@example.com>",
        "Destination": { "ToAddresses": ["bob@example.org"] },
        "Content": { "Simple": { "Subject": utf8("Hello"), "Body": { "Text": utf8("Hi") } } },
        "EmailTags": [
            { "Name": "pillarbox-message-id", "Value": ID },
            { "Name": "pillarbox-organisation", "Value": "acme" },
        ],
        "ConfigurationOverrides": tracking_off(),
    });
    assert_eq!(parsed(draft()), expected);
}

#[test]
fn a_request_goes_without_the_override_only_if_that_is_said() {
    let never =
        RequestOptions { tracking_override: TrackingOverride::Never, ..RequestOptions::default() };
    let organisation = "acme".parse().unwrap();
    let admitted = admitted(SendRequest::parse(draft()).unwrap());
    let bare = encode(&admitted, ID.parse().unwrap(), &organisation, &never, 0);
    let bare = String::from_utf8(bare.to_vec()).unwrap();
    assert!(!bare.contains("ConfigurationOverrides"), "{bare}");
    assert_eq!(without_override(&encoded(draft(), None)).unwrap(), bare);
    assert_eq!(without_override(bare.as_bytes()), None);
}

/// Takes what an endpoint takes that does not know the override.
async fn older_endpoint() -> Server {
    Server::with(|request| {
        if request.body.windows(22).any(|part| part == b"ConfigurationOverrides") {
            let message = "Unknown parameter in input: \"ConfigurationOverrides\"";
            Answer::error(400, "BadRequestException", message)
        } else {
            Answer::json(200, ACCEPTED)
        }
    })
    .await
}

#[tokio::test]
async fn an_endpoint_that_refuses_the_override_gets_the_message_without_it_if_that_is_allowed() {
    for (tracking_override, calls) in [(TrackingOverride::Auto, 2), (TrackingOverride::Always, 1)] {
        let server = older_endpoint().await;
        let options = SesOptions { tracking_override, ..options(&server.url()) };
        let client = SesClient::new(options, Clock::system()).unwrap();
        let outcome = client.send(&envelope(), encoded(draft(), None).into()).await;
        let is_sent = matches!(outcome, Outcome::Sent { .. });
        assert_eq!(is_sent, tracking_override == TrackingOverride::Auto, "{outcome:?}");
        assert_eq!(server.requests().len(), calls);
        assert_eq!(client.went_without_override(), is_sent);
    }
}

#[tokio::test]
async fn no_other_refusal_is_repeated_without_the_override() {
    for message in ["Illegal address", "Invalid subject: ConfigurationOverrides", ""] {
        let server = Server::start(Answer::error(400, "BadRequestException", message)).await;
        let tracking_override = TrackingOverride::Auto;
        let options = SesOptions { tracking_override, ..options(&server.url()) };
        let client = SesClient::new(options, Clock::system()).unwrap();
        let outcome = client.send(&envelope(), encoded(draft(), None).into()).await;
        assert_eq!(kind(&outcome), ProblemKind::Rejected, "{message}");
        assert_eq!(server.requests().len(), 1, "{message}");
    }
}

#[test]
fn every_field_goes_to_its_place() {
    let all = encoded(
        Draft {
            from: Some("Jos\u{e9} <ann@b\u{fc}cher.example>"),
            to: Some(vec!["a@x.org", "Bob <b@x.org>"]),
            cc: Some(vec!["c@x.org"]),
            bcc: Some(vec!["d@x.org"]),
            reply_to: vec!["e@x.org"],
            subject: Some("Gr\u{fc}\u{df}e \u{1f4ee}"),
            html: Some("<p class=\"x\">\u{e9}\r\n</p>".into()),
            headers: Some(vec![("X-B", "1"), ("List-Unsubscribe", "<https://x.org>")]),
            ..draft()
        },
        Some("events"),
    );
    let all: Value = serde_json::from_slice(&all).unwrap();
    let from = all["FromEmailAddress"].as_str().unwrap();
    assert!(from.is_ascii() && from.ends_with(" <ann@xn--bcher-kva.example>"), "{from}");
    let destination = &all["Destination"];
    assert_eq!(destination["ToAddresses"], json!(["a@x.org", "\"Bob\" <b@x.org>"]));
    assert_eq!(destination["CcAddresses"], json!(["c@x.org"]));
    assert_eq!(destination["BccAddresses"], json!(["d@x.org"]));
    assert_eq!(all["ReplyToAddresses"], json!(["e@x.org"]));
    let simple = &all["Content"]["Simple"];
    assert_eq!(simple["Subject"], utf8("Gr\u{fc}\u{df}e \u{1f4ee}"));
    assert_eq!(simple["Body"]["Html"], utf8("<p class=\"x\">\u{e9}\r\n</p>"));
    assert_eq!(simple["Body"]["Text"], utf8("Hi"));
    let headers = json!([
        { "Name": "X-B", "Value": "1" },
        { "Name": "List-Unsubscribe", "Value": "<https://x.org>" },
    ]);
    assert_eq!(simple["Headers"], headers);
    assert_eq!(all["ConfigurationSetName"], "events");
}

#[test]
fn html_alone_has_no_text() {
    let body = parsed(Draft { text: None, html: Some("<p>".into()), ..draft() });
    assert_eq!(body["Content"]["Simple"]["Body"], json!({ "Html": utf8("<p>") }));
}

#[test]
fn a_body_that_came_as_json_goes_on_as_it_is_written() {
    let written = r#"<p class=\"x\">\u00e9\ud83d\ude00\/\n</p>"#;
    let html = BodyText::Json(written);
    let encoded = encoded(Draft { html: Some(html), ..draft() }, None);
    assert!(String::from_utf8_lossy(&encoded).contains(&format!("{{\"Data\":\"{written}\"")));
    let request: Value = serde_json::from_slice(&encoded).unwrap();
    let body = &request["Content"]["Simple"]["Body"];
    assert_eq!(body["Html"], utf8("<p class=\"x\">\u{e9}\u{1f600}/\n</p>"));
    assert_eq!(body["Text"], utf8("Hi"));
}

#[test]
fn files_go_in_base64_as_they_came() {
    let file = |filename: &'static str, content, content_id| AttachmentDraft {
        filename: Some(filename.into()),
        content: Some(BodyText::Json(content)),
        content_id,
        content_type: None,
    };
    let encoded = encoded(
        Draft {
            attachments: Some(vec![
                file("Rechnung \"\u{fc}\" \u{1f4ee}.pdf", "QUJD\\/\\u0041==", None),
                file("logo.png", "QUI=", Some("logo@x")),
            ]),
            headers: Some(vec![("X-B", "1")]),
            ..draft()
        },
        None,
    );
    let text = String::from_utf8_lossy(&encoded);
    assert!(text.contains(r#""RawContent":"QUJD\/\u0041==""#), "{text}");
    let request: Value = serde_json::from_slice(&encoded).unwrap();
    let simple = &request["Content"]["Simple"];
    let expected = json!([
        {
            "FileName": "Rechnung \"\u{fc}\" \u{1f4ee}.pdf", "ContentType": "application/pdf",
            "ContentTransferEncoding": "BASE64", "ContentDisposition": "ATTACHMENT",
            "RawContent": "QUJD/A==",
        },
        {
            "FileName": "logo.png", "ContentType": "image/png",
            "ContentTransferEncoding": "BASE64", "ContentDisposition": "INLINE",
            "ContentId": "logo@x", "RawContent": "QUI=",
        },
    ]);
    assert_eq!(simple["Attachments"], expected);
    assert_eq!(simple["Headers"], json!([{ "Name": "X-B", "Value": "1" }]));
    assert_eq!(simple["Body"], json!({ "Text": utf8("Hi") }));
}

#[test]
fn no_memory_beyond_the_encoded_bytes_is_held() {
    let html = "<p style=\"a\">\u{e9}\t\u{1}\n</p>".repeat(100_000);
    let content = "QUJD".repeat(100_000);
    let file = AttachmentDraft {
        filename: Some("a.pdf".into()),
        content: Some(BodyText::Json(&content)),
        ..AttachmentDraft::default()
    };
    let attachments = Some(vec![file; 3]);
    let encoded = encoded(Draft { html: Some(html.as_str().into()), attachments, ..draft() }, None);
    let vec = encoded.try_into_mut().expect("nobody else holds the bytes");
    assert_eq!(vec.capacity(), vec.len());
}

async fn outcome(server: &Server) -> Outcome {
    client(&server.url()).send(&envelope(), encoded(draft(), None).into()).await
}

fn kind(outcome: &Outcome) -> ProblemKind {
    match outcome {
        Outcome::NotSent(problem) => problem.kind,
        Outcome::Sent { .. } | Outcome::NotCalled(_) => panic!("{outcome:?}"),
    }
}

#[tokio::test]
async fn an_accepted_message_is_sent_once_signed_and_as_encoded() {
    let server = Server::start(Answer::json(200, ACCEPTED)).await;
    let sent = Outcome::Sent { ses_message_id: "0102018f-abc-000000".to_owned() };
    assert_eq!(outcome(&server).await, sent);
    let requests = server.requests();
    assert_eq!(requests.len(), 1);
    let request = &requests[0];
    assert!(request.head.starts_with("POST /v2/email/outbound-emails HTTP/1.1\r\n"));
    assert_eq!(request.body, encoded(draft(), None));
    assert_eq!(request.header("content-type"), Some("application/json"));
    let length = request.body.len().to_string();
    assert_eq!(request.header("content-length"), Some(length.as_str()));
    let host = server.url().replace("http://", "");
    assert_eq!(request.header("host"), Some(host.as_str()));
    let authorization = request.header("authorization").unwrap();
    assert!(
        authorization.contains("SignedHeaders=content-type;host;x-amz-date,"),
        "{authorization}"
    );
}

#[tokio::test]
async fn connections_are_used_again() {
    let server = Server::start(Answer::json(200, ACCEPTED)).await;
    let client = client(&server.url());
    for _ in 0..3 {
        assert!(matches!(
            client.send(&envelope(), encoded(draft(), None).into()).await,
            Outcome::Sent { .. }
        ));
    }
    assert_eq!(server.requests().len(), 3);
    assert_eq!(server.connections(), 1);
}

#[tokio::test]
async fn what_was_never_written_is_unavailable() {
    // Nothing listens; no such name; no TLS there.
    let plain = Server::start(Answer::json(200, ACCEPTED)).await;
    let no_tls = plain.url().replace("http", "https");
    for endpoint in ["http://127.0.0.1:1", "http://nowhere.invalid", &no_tls] {
        let outcome = client(endpoint).send(&envelope(), encoded(draft(), None).into()).await;
        assert_eq!(kind(&outcome), ProblemKind::Unavailable, "{endpoint}: {outcome:?}");
    }
    assert_eq!(plain.requests().len(), 0);
}

#[tokio::test]
async fn a_time_limit_that_ends_while_connecting_is_unavailable_whichever_it_is() {
    let server = Server::start(Answer::Silence).await;
    let mut options = options(&server.url().replace("http", "https"));
    for (connect, whole) in [(100, 5_000), (5_000, 100)] {
        options.connect_timeout = Duration::from_millis(connect);
        options.request_timeout = Duration::from_millis(whole);
        let client = SesClient::new(options.clone(), Clock::system()).unwrap();
        let start = Instant::now();
        let outcome = client.send(&envelope(), encoded(draft(), None).into()).await;
        assert_eq!(kind(&outcome), ProblemKind::Unavailable, "{outcome:?}");
        assert!(start.elapsed() < Duration::from_secs(3));
    }
}

#[tokio::test]
async fn a_request_that_was_written_and_not_answered_is_unknown() {
    let head = "HTTP/1.1 200 OK\r\ncontent-length: 200\r\n\r\n";
    for answer in [
        Answer::Reset,
        Answer::Stall,
        Answer::Close(String::new()),
        Answer::Close("HTTP/1.1 200 O".to_owned()),
        Answer::Close("garbage\r\n\r\n".to_owned()),
        Answer::Close(format!("{head}{{\"MessageId\":\"0102")),
        Answer::Keep(format!("{head}{{\"MessageId\":\"0102")),
        Answer::json(200, &"x".repeat(65 * 1024)),
    ] {
        let server = Server::start(answer.clone()).await;
        let mut options = options(&server.url());
        options.request_timeout = Duration::from_millis(300);
        let client = SesClient::new(options, Clock::system()).unwrap();
        let outcome = client.send(&envelope(), encoded(draft(), None).into()).await;
        assert_eq!(kind(&outcome), ProblemKind::Unknown, "{answer:?}: {outcome:?}");
        assert_eq!(server.requests().len(), 1, "{answer:?}");
    }
}

/// A message of this many bytes or a few more.
fn large(bytes: usize) -> Bytes {
    let html = "x".repeat(bytes);
    encoded(Draft { html: Some(html.as_str().into()), ..draft() }, None)
}

/// Takes this much of a request, and then nothing more; resets the connection or keeps it.
async fn reader_of(limit: usize, reset: Reset) -> String {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut buffer = vec![0; limit];
        stream.read_exact(&mut buffer).await.unwrap();
        match reset {
            Reset::Yes => stream.set_zero_linger().unwrap(),
            Reset::No => std::future::pending().await,
        }
    });
    url
}

#[derive(Debug, Clone, Copy)]
enum Reset {
    Yes,
    No,
}

#[tokio::test]
async fn a_request_whose_last_byte_was_not_written_was_not_accepted() {
    const BYTES: usize = 20 << 20;
    for reset in [Reset::Yes, Reset::No] {
        let client = client(&reader_of(1_000, reset).await);
        let call = Call {
            service: "ses",
            method: Method::POST,
            url: &client.inner.outbound_emails,
            headers: &[JSON],
            body: large(BYTES).into(),
        };
        let transport = &client.inner.transport;
        let options =
            CallOptions { timeout: Some(Duration::from_millis(300)), ..transport.options() };
        let error = transport.call_on(options, &call).await.unwrap_err();
        assert!(matches!(error, TransportError::NotWritten(_)), "{reset:?}: {error:?}");
    }
    let client = client(&reader_of(1_000, Reset::Yes).await);
    let outcome = client.send(&envelope(), large(BYTES).into()).await;
    assert_eq!(kind(&outcome), ProblemKind::Unavailable, "{outcome:?}");
}

#[test]
fn a_large_request_has_more_time() {
    let client = client("http://127.0.0.1:1");
    let time = |bytes| client.inner.transport.options_of(bytes).timeout.unwrap();
    assert_eq!(time(0), Duration::from_secs(5));
    assert_eq!(time(512 * 1024), Duration::from_secs(6));
    assert_eq!(time(10 << 20), Duration::from_secs(25));
}

#[tokio::test]
async fn a_large_request_that_was_written_and_not_answered_is_unknown() {
    let server = Server::start(Answer::Reset).await;
    let outcome = client(&server.url()).send(&envelope(), large(5 << 20).into()).await;
    assert_eq!(kind(&outcome), ProblemKind::Unknown, "{outcome:?}");
    assert!(server.requests()[0].body.len() > 5 << 20);
}

#[tokio::test]
async fn a_large_request_arrives_whole() {
    let server = Server::start(Answer::json(200, ACCEPTED)).await;
    for bytes in [1_000, 16_000, 17_000, 100_000, 3_000_000] {
        let request = large(bytes);
        let outcome = client(&server.url()).send(&envelope(), request.clone().into()).await;
        assert!(matches!(outcome, Outcome::Sent { .. }), "{outcome:?}");
        assert_eq!(server.requests().last().unwrap().body, request);
    }
}

#[tokio::test]
async fn without_credentials_no_call_is_started() {
    let server = Server::start(Answer::json(200, ACCEPTED)).await;
    let mut options = options(&server.url());
    options.credentials = Credentials::fixed("AKID\nEXAMPLE", SecretString::from("secret"));
    let client = SesClient::new(options, Clock::system()).unwrap();
    let outcome = client.send(&envelope(), encoded(draft(), None).into()).await;
    let Outcome::NotCalled(problem) = outcome else { panic!("{outcome:?}") };
    assert_eq!(problem.kind, ProblemKind::SetupFault);
    assert_eq!(server.connections(), 0);
}

#[tokio::test]
async fn a_connection_closed_while_idle_costs_no_attempt() {
    let length = ACCEPTED.len();
    let bytes = format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\n{ACCEPTED}");
    let server = Server::start(Answer::Close(bytes)).await;
    let client = client(&server.url());
    for _ in 0..5 {
        assert!(matches!(
            client.send(&envelope(), encoded(draft(), None).into()).await,
            Outcome::Sent { .. }
        ));
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn redirects_are_not_followed() {
    for status in [301, 302, 303, 307, 308] {
        let answer = Answer::with_headers(status, "location: /elsewhere\r\n", "");
        let server = Server::start(answer).await;
        assert_eq!(kind(&outcome(&server).await), ProblemKind::Unavailable, "{status}");
        assert_eq!(server.requests().len(), 1, "{status}");
    }
}

#[tokio::test]
async fn expired_fixed_credentials_are_refused_once_and_not_repeated() {
    let server = Server::start(Answer::error(403, "ExpiredTokenException", "expired")).await;
    assert_eq!(kind(&outcome(&server).await), ProblemKind::SetupFault);
    assert_eq!(server.requests().len(), 1);
}

#[test]
fn a_text_is_escaped_as_serde_json_escapes_it() {
    let ends =
        ["", "\"", "\\", "\\\"", "\n", "\u{1f}", " ", "\u{7f}", "\u{2028}", "ü", "\u{1f4ee}"];
    for (start, end) in ends.iter().flat_map(|start| ends.map(|end| (start, end))) {
        for middle in ["", "a", "\"a\" <b@example.com>", "\\n\"\"\\\\", "a\tb", "Grüße"] {
            let text = format!("{start}{middle}{end}");
            let mut json = Json(String::new());
            json.text(&text);
            assert_eq!(json.0, serde_json::to_string(&text).unwrap(), "{text:?}");
        }
    }
}
