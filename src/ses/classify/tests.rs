use bytes::Bytes;
use http::{HeaderMap, HeaderValue};

use super::*;
use ProblemKind::{
    AccountPaused, DomainFault, QuotaExhausted, Rejected, SetupFault, Throttled, Unavailable,
    Unknown,
};

fn outcome(reply: &Reply) -> Outcome {
    classify(reply, &DomainName::parse("Example.com").unwrap())
}

fn reply(status: u16, name: Option<&str>, body: &str) -> Reply {
    let mut headers = HeaderMap::new();
    if let Some(name) = name {
        headers.insert("x-amzn-errortype", HeaderValue::from_str(name).unwrap());
    }
    let body = Ok(Bytes::from(body.to_owned()));
    Reply { status: StatusCode::from_u16(status).unwrap(), headers, body }
}

fn problem(reply: &Reply) -> Problem {
    match outcome(reply) {
        Outcome::NotSent(problem) => problem,
        Outcome::Sent { .. } => panic!("sent"),
    }
}

fn kind(status: u16, name: &str, message: &str) -> ProblemKind {
    let body = serde_json::json!({ "message": message }).to_string();
    problem(&reply(status, Some(name), &body)).kind
}

#[test]
fn an_answer_with_a_message_id_means_sent() {
    let sent = outcome(&reply(200, None, r#"{"MessageId":"0102-abc"}"#));
    assert_eq!(sent, Outcome::Sent { ses_message_id: "0102-abc".to_owned() });
}

#[test]
fn a_success_that_cannot_be_read_is_unknown() {
    for body in ["", "{}", "[]", "<html>", r#"{"MessageId":""}"#, r#"{"MessageId":"a"#] {
        assert_eq!(problem(&reply(200, None, body)).kind, Unknown, "{body}");
    }
    let mut broken = reply(200, None, "");
    broken.body = Err("connection reset".to_owned());
    assert_eq!(problem(&broken).kind, Unknown);
}

#[test]
fn too_fast_is_throttled() {
    assert_eq!(kind(429, "TooManyRequestsException", "Too many requests"), Throttled);
    assert_eq!(kind(400, "LimitExceededException", "Maximum sending rate exceeded."), Throttled);
    assert_eq!(kind(400, "Throttling", "Maximum sending rate exceeded."), Throttled);
    assert_eq!(kind(503, "ThrottlingException", ""), Throttled);
    assert_eq!(problem(&reply(429, None, "<html>")).kind, Throttled);
}

#[test]
fn the_daily_quota_is_told_from_the_rate() {
    assert_eq!(kind(400, "LimitExceededException", "Too many"), QuotaExhausted);
    assert_eq!(
        kind(429, "TooManyRequestsException", "Daily message quota exceeded."),
        QuotaExhausted
    );
    assert_eq!(kind(400, "Throttling", "Daily message quota exceeded."), QuotaExhausted);
}

#[test]
fn an_account_that_may_not_send_is_paused() {
    for name in ["SendingPausedException", "AccountSuspendedException"] {
        assert_eq!(kind(400, name, ""), AccountPaused);
    }
    let message =
        "Sending suspended for this account. For more information, please check the inbox";
    assert_eq!(kind(400, "MessageRejected", message), AccountPaused);
}

#[test]
fn the_messages_own_fault_is_rejected() {
    assert_eq!(kind(400, "MessageRejected", "Message contains a virus"), Rejected);
    assert_eq!(kind(400, "BadRequestException", "Illegal address"), Rejected);
    assert_eq!(kind(400, "ValidationException", "1 validation error detected"), Rejected);
    assert_eq!(problem(&reply(422, None, r#"{"message":"no"}"#)).kind, Rejected);
    assert_eq!(problem(&reply(413, None, "<html>")).kind, Rejected);
}

#[test]
fn an_unverified_sender_is_the_domains_fault() {
    let check = "Email address is not verified. The following identities failed the check in \
                 region EU-WEST-1: ";
    for listed in [
        "ann@example.com",
        "Ann <ann@example.com>",
        "bob@x.org, ann@example.com",
        "example.com",
        "arn:aws:ses:eu-west-1:1:identity/ann@example.com",
    ] {
        assert_eq!(
            kind(400, "MessageRejected", &format!("{check}{listed}")),
            DomainFault,
            "{listed}"
        );
    }
    assert_eq!(kind(400, "MessageRejected", "Email address is not verified."), DomainFault);
    assert_eq!(kind(400, "MailFromDomainNotVerifiedException", ""), DomainFault);
}

#[test]
fn an_unverified_recipient_in_the_sandbox_is_the_messages_fault() {
    let message = "Email address is not verified. The following identities failed the check in \
                   region EU-WEST-1: bob@x.org, eve@sub.example.com";
    let problem = problem(&reply(
        400,
        Some("MessageRejected:http://internal.amazon.com/coral/com.amazonaws.ses/"),
        &serde_json::json!({ "message": message }).to_string(),
    ));
    assert_eq!(problem.kind, Rejected);
    assert_eq!(problem.provider_code.as_deref(), Some("MessageRejected"));
    assert!(problem.message.ends_with("…@x.org, …@sub.example.com"), "{}", problem.message);
}

#[test]
fn the_set_ups_fault_never_rejects() {
    assert_eq!(kind(404, "NotFoundException", "Configuration set x does not exist"), SetupFault);
    assert_eq!(
        kind(400, "BadRequestException", "Configuration set <x> does not exist."),
        SetupFault
    );
    for name in [
        "ExpiredTokenException",
        "UnrecognizedClientException",
        "AccessDeniedException",
        "InvalidSignatureException",
        "SignatureDoesNotMatch",
        "MessageRejected",
        "Anything",
    ] {
        assert_eq!(kind(403, name, ""), SetupFault, "{name}");
    }
    assert_eq!(kind(400, "ExpiredToken", ""), SetupFault);
    for status in [301, 302, 307, 400, 401, 403, 404, 405, 407, 415] {
        let problem = problem(&reply(status, None, "<html>secret</html>"));
        assert_eq!(problem.kind, SetupFault, "{status}");
        assert!(!problem.message.contains("secret"));
    }
}

#[test]
fn a_policy_that_leaves_out_one_domain_pauses_that_domain_alone() {
    let denied = |resource: &str| {
        let message = format!(
            "User `arn:aws:iam::1:user/x' is not authorized to perform `ses:SendEmail' on resource \
             `arn:aws:ses:eu-west-1:1:{resource}'"
        );
        kind(403, "AccessDeniedException", &message)
    };
    assert_eq!(denied("identity/example.com"), DomainFault);
    assert_eq!(denied("identity/ann@example.com"), DomainFault);
    assert_eq!(denied("identity/example.community"), SetupFault);
    assert_eq!(denied("configuration-set/example.com"), SetupFault);
}

#[test]
fn what_may_have_been_accepted_is_unknown() {
    for status in [500, 502, 503, 504, 408] {
        assert_eq!(problem(&reply(status, None, "")).kind, Unknown, "{status}");
        assert_eq!(kind(status, "InternalServiceErrorException", "oops"), Unknown);
        assert_eq!(kind(status, "MessageRejected", "oops"), Unknown);
    }
}

#[test]
fn a_conflict_is_tried_again() {
    assert_eq!(kind(409, "ConflictException", "busy"), Unavailable);
}

#[test]
fn the_name_is_found_in_the_body_too() {
    for body in [
        r#"{"__type":"com.amazonaws.ses#MessageRejected","Message":"no"}"#,
        r#"{"code":"MessageRejected","message":"no"}"#,
        r#"{"Code":"MessageRejected:x","message":"no","Message":"other"}"#,
    ] {
        let problem = problem(&reply(400, None, body));
        assert_eq!(problem.provider_code.as_deref(), Some("MessageRejected"), "{body}");
        assert_eq!((problem.kind, problem.message.as_str()), (Rejected, "no"));
    }
    let odd = problem(&reply(400, None, r#"{"code":"not a name <x>","message":"no"}"#));
    assert_eq!(odd.provider_code, None);
}

#[test]
fn a_broken_body_leaves_the_name_in_the_header() {
    let mut broken = reply(400, Some("SendingPausedException"), "");
    broken.body = Err("connection reset".to_owned());
    assert_eq!(problem(&broken).kind, AccountPaused);
}

#[test]
fn retry_after_is_read_as_seconds_or_a_date() {
    let wait = |text: &str| {
        let mut reply = reply(429, None, "");
        reply.headers.insert(RETRY_AFTER, HeaderValue::from_str(text).unwrap());
        problem(&reply).retry_after
    };
    assert_eq!(wait("7"), Some(Duration::from_secs(7)));
    assert_eq!(wait("999999999"), Some(MAX_RETRY_AFTER));
    assert_eq!(wait("Wed, 21 Oct 2015 07:28:00 GMT"), Some(Duration::ZERO));
    assert_eq!(wait("Wed, 21 Oct 2199 07:28:00 GMT"), Some(MAX_RETRY_AFTER));
    assert_eq!(wait("soon"), None);
    assert_eq!(wait("-1"), None);
}
