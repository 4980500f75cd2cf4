use bytes::Bytes;
use http::{HeaderMap, HeaderValue};
use proptest::prelude::*;

use super::*;
use ProblemKind::{
    AccountPaused, ClockWrong, DomainFault, QuotaExhausted, Rejected, SetupFault, Throttled,
    Unavailable, Unknown,
};
use pillarbox_domain::mailbox::Mailbox;

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
        outcome => panic!("{outcome:?}"),
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
    let inbox = "For more information, please check the inbox of the email address associated with \
                 your AWS account.";
    for sentence in ["Sending suspended for this account.", "Sending paused for this account."] {
        assert_eq!(kind(400, "MessageRejected", sentence), AccountPaused);
        assert_eq!(kind(400, "MessageRejected", &format!("{sentence} {inbox}")), AccountPaused);
        assert_eq!(kind(400, "MessageRejected", &format!("No: {sentence}")), Rejected);
    }
}

#[test]
fn the_messages_own_fault_is_rejected() {
    assert_eq!(kind(400, "MessageRejected", "Message contains a virus"), Rejected);
    assert_eq!(kind(400, "BadRequestException", "Illegal address"), Rejected);
    assert_eq!(kind(400, "ValidationException", "1 validation error detected"), Rejected);
    assert_eq!(kind(400, "ValidationError", "no"), Rejected);
    assert_eq!(kind(400, "InvalidParameterValue", "no"), Rejected);
    assert_eq!(kind(413, "RequestEntityTooLargeException", "no"), Rejected);
    assert_eq!(problem(&reply(413, None, "<html>")).kind, Rejected);
}

#[test]
fn any_other_name_is_tried_again_and_can_be_named() {
    for (status, name, expected) in [
        (400, "RequestAbortedException", Unavailable),
        (400, "MalformedHttpRequestException", Unavailable),
        (400, "SerializationException", Unavailable),
        (400, "ServiceUnavailable", Unavailable),
        (413, "NewException", Unavailable),
        (422, "NewException", Unavailable),
        (451, "NewException", Unavailable),
        (403, "NewException", DomainFault),
        (302, "MessageRejected", Unavailable),
        (500, "InternalFailure", Unknown),
        (503, "ServiceUnavailable", Unavailable),
        (500, "ServiceUnavailableException", Unavailable),
    ] {
        let problem = problem(&reply(status, Some(name), r#"{"message":"no"}"#));
        assert_eq!(problem.kind, expected, "{status} {name}");
        assert_eq!(problem.unexpected_name().as_deref(), Some(name), "{status}");
    }
    for status in [400, 422, 409, 418] {
        let problem = problem(&reply(status, None, r#"{"message":"no"}"#));
        assert_eq!(problem.kind, Unavailable, "{status}");
        assert!(problem.unexpected_name().unwrap().starts_with(&status.to_string()));
    }
}

#[test]
fn a_wrong_clock_is_told_by_name_or_by_awss_own_sentence() {
    for name in ["RequestTimeTooSkewed", "RequestInTheFutureException", "RequestExpired"] {
        for status in [400, 403, 500] {
            assert_eq!(kind(status, name, ""), ClockWrong, "{status} {name}");
        }
    }
    let late = "Signature expired: 20261121T093000Z is now earlier than 20261121T093500Z";
    let early = "Signature not yet current: 20261121T093000Z is still later than";
    for name in ["InvalidSignatureException", "SignatureDoesNotMatch"] {
        assert_eq!(kind(403, name, late), ClockWrong);
        assert_eq!(kind(403, name, early), ClockWrong);
        assert_eq!(kind(403, name, &format!("No: {late}")), SetupFault);
    }
    assert_eq!(kind(400, "BadRequestException", late), Rejected);
}

#[test]
fn a_refusal_of_what_every_request_has_is_the_set_ups_fault() {
    let constraint = "failed to satisfy constraint: Member must satisfy";
    for said in [
        format!(
            "1 validation error detected: Value 'DISABLED' at 'configurationOverrides' {constraint}"
        ),
        format!(
            "2 validation errors detected: Value null at \
             'configurationOverrides.tracking.openTrackingEnabled' {constraint}"
        ),
        format!("1 validation error detected: Value at 'emailTags.2.member.value' {constraint}"),
        format!(
            "1 validation error detected: Value 'UTF-8' at 'content.simple.subject.charset' {constraint}"
        ),
        "Unknown parameter in input: \"ConfigurationOverrides\", must be one of: Content"
            .to_owned(),
        "Unknown parameter: ConfigurationOverrides".to_owned(),
        "Unexpected key 'ConfigurationOverrides' found in params".to_owned(),
        "Unrecognized field \"EmailTags\" (class x)".to_owned(),
        "Extraneous key [ConfigurationOverrides] is not permitted".to_owned(),
        "ConfigurationOverrides is not supported".to_owned(),
        "ConfigurationSetName must not be empty".to_owned(),
    ] {
        for name in ["BadRequestException", "ValidationException"] {
            assert_eq!(kind(400, name, &said), SetupFault, "{said}");
        }
        assert_eq!(kind(400, "MessageRejected", &said), Rejected, "{said}");
    }
    for said in [
        // What a client chose stands there, or could.
        "Invalid value for the field: ConfigurationOverrides",
        "\"ConfigurationOverrides\" <bob@x.org> is not valid",
        "ConfigurationOverrides@x.org is not valid",
        "1 validation error detected: Value 'a' at 'configurationOverrides' failed' at \
         'content.simple.subject.data' failed to satisfy constraint: no",
        "1 validation error detected: Value 'DISABLED' at 'configurationOverrides' failed to \
         satisfy constraint: Member must not be null' at 'content.simple.subject.data' failed to \
         satisfy constraint: Member must have length less than 1",
        "1 validation error detected: Value 'x\" at 'emailTags' at 'x' failed",
        "Illegal header: Unknown parameter: ConfigurationOverrides",
        "1 validation error detected: Value at 'content.simple.subject' failed to satisfy",
        "Unknown parameter: X-ConfigurationOverrides",
    ] {
        assert_eq!(kind(400, "BadRequestException", said), Rejected, "{said}");
    }
}

#[test]
fn sess_own_sentences_count_under_each_name_that_blames_the_message() {
    for name in ["MessageRejected", "BadRequestException", "ValidationError"] {
        assert_eq!(kind(400, name, "Sending paused for this account."), AccountPaused);
        assert_eq!(kind(400, name, "Email address is not verified."), DomainFault);
        assert_eq!(kind(400, name, "Configuration set <x> does not exist."), SetupFault);
    }
}

#[test]
fn equal_refusals_of_the_request_can_be_told_from_others() {
    let sentence = |name: &str, said: &str| {
        let body = serde_json::json!({ "message": said }).to_string();
        match problem(&reply(400, Some(name), &body)).answer {
            ProviderAnswer::Disputable(sentence) => Some(sentence),
            _ => None,
        }
    };
    let bad = |said: &str| sentence("BadRequestException", said).unwrap();
    assert_eq!(bad("Illegal address"), bad("Illegal address"));
    // The text that is shown is the same.
    assert_ne!(bad("Illegal address ann@x.org"), bad("Illegal address bob@x.org"));
    assert!(sentence("ValidationException", "no").is_some());
    assert_eq!(sentence("MessageRejected", "no"), None);
    assert_eq!(sentence("BadRequestException", "Email address is not verified."), None);
}

#[test]
fn the_name_is_read_whatever_surrounds_it() {
    for name in [
        "MessageRejected:http://internal.amazon.com/coral/com.amazonaws.ses/",
        "com.amazonaws.sesv2#MessageRejected",
        "com.amazonaws.sesv2#MessageRejected:http://internal.amazon.com/coral/x#y",
        "http://internal.amazon.com/coral/com.amazonaws.ses/#MessageRejected",
        "com.amazonaws.ses.model.MessageRejectedException",
        " MessageRejected ",
    ] {
        assert_eq!(kind(400, name, "no"), Rejected, "{name}");
        let body = serde_json::json!({ "__type": name, "message": "no" }).to_string();
        assert_eq!(problem(&reply(400, None, &body)).kind, Rejected, "{name}");
        // A header that names nothing hides no name.
        assert_eq!(problem(&reply(400, Some("<none>"), &body)).kind, Rejected, "{name}");
    }
}

#[test]
fn mailboxes_that_ses_repeats_end_at_commas_outside_of_quotes() {
    for (list, mailboxes) in [
        (r#""a, b" <a@x.org>,c@x.org"#, [r#""a, b" <a@x.org>"#, "c@x.org"]),
        (r#""a\", b" <a@x.org>,c@x.org"#, [r#""a\", b" <a@x.org>"#, "c@x.org"]),
        (r#""a\\" <a@x.org>,c@x.org"#, [r#""a\\" <a@x.org>"#, "c@x.org"]),
        (r#"a\"b,c" <a@x.org>,c@x.org"#, [r#"a\"b,c" <a@x.org>"#, "c@x.org"]),
    ] {
        assert_eq!(identities_of(list).collect::<Vec<_>>(), mailboxes);
    }
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
    assert_eq!(kind(400, "MessageRejected", check), DomainFault, "a list without a name");
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
    ] {
        assert_eq!(kind(403, name, ""), SetupFault, "{name}");
    }
    assert_eq!(kind(400, "ExpiredToken", ""), SetupFault);
    assert_eq!(kind(404, "UnknownOperationException", ""), SetupFault);
}

#[test]
fn what_is_forbidden_under_no_name_of_awss_concerns_the_sender_alone() {
    for name in ["MessageRejected", "BadRequestException", "Anything"] {
        assert_eq!(kind(403, name, ""), DomainFault, "{name}");
    }
    for status in [401, 403] {
        assert_eq!(problem(&reply(status, None, "<html>")).kind, DomainFault, "{status}");
    }
}

#[test]
fn an_answer_that_is_not_sess_neither_rejects_the_message_nor_stops_all_mail() {
    for status in [301, 302, 307, 400, 404, 405, 407, 409, 415] {
        let problem = problem(&reply(status, None, "<html>secret</html>"));
        assert_eq!(problem.kind, Unavailable, "{status}");
        assert!(!problem.message.contains("secret"));
        assert!(problem.message.contains("endpoint"), "{}", problem.message);
    }
}

#[test]
fn a_policy_that_leaves_out_an_identity_pauses_the_senders_domain_alone() {
    let denied = |resource: &str| {
        let older = format!(
            "User `arn:aws:iam::1:user/x' is not authorized to perform `ses:SendEmail' on resource \
             `arn:aws:ses:eu-west-1:1:{resource}'"
        );
        let newer = format!(
            "User: arn:aws:sts::1:assumed-role/x/i-1 is not authorized to perform: ses:SendEmail \
             on resource: arn:aws:ses:eu-west-1:1:{resource} because no identity-based policy \
             allows the ses:SendEmail action"
        );
        let kinds = [older, newer].map(|said| kind(403, "AccessDeniedException", &said));
        assert_eq!(kinds[0], kinds[1]);
        kinds[0]
    };
    assert_eq!(denied("identity/example.com"), DomainFault);
    assert_eq!(denied("identity/ann@example.com"), DomainFault);
    // The name does not matter: a client chose it, and it must not stop the others.
    assert_eq!(denied("identity/\"on resource: arn:aws:ses:x:1:a/b\"@example.com"), DomainFault);
    assert_eq!(denied("identity/bob@x.org"), DomainFault);
    assert_eq!(denied("configuration-set/example.com"), SetupFault);
    assert_eq!(denied("configuration-set/identity/example.com"), SetupFault);
}

/// SES's error names for `SendEmail`, with a status of each.
const NAMES: [(u16, &str); 12] = [
    (400, "AccountSuspendedException"),
    (400, "BadRequestException"),
    (400, "LimitExceededException"),
    (400, "MailFromDomainNotVerifiedException"),
    (400, "MessageRejected"),
    (404, "NotFoundException"),
    (400, "SendingPausedException"),
    (429, "TooManyRequestsException"),
    (400, "Throttling"),
    (403, "AccessDeniedException"),
    (403, "ExpiredTokenException"),
    (500, "InternalServiceErrorException"),
];

/// Text of SES around what it repeats of a request.
const AROUND: [(&str, &str); 6] = [
    ("Email address is not verified. The following identities failed the check in region X: ", ""),
    ("Invalid value for the field: ", "."),
    ("Illegal address <", ">"),
    ("1 validation error detected: Value '", "' at 'content.simple.subject' failed to satisfy"),
    ("Header '", "' is not allowed as a custom header."),
    (
        "User: arn:aws:iam::1:user/x is not authorized to perform: ses:SendEmail on resource: \
         arn:aws:ses:eu-west-1:1:identity/",
        " because no identity-based policy allows the ses:SendEmail action",
    ),
];

/// Sentences that have a meaning only if SES itself writes them.
fn hostile_words() -> impl Strategy<Value = String> {
    let sentence = prop_oneof![
        Just("Daily message quota exceeded"),
        Just("daily message quota exceeded."),
        Just("Maximum sending rate exceeded."),
        Just("Sending paused for this account"),
        Just("Sending suspended for this account."),
        Just("Configuration set <x> does not exist."),
        Just("Email address is not verified"),
        Just("ConfigurationOverrides"),
        Just("Unknown parameter: ConfigurationOverrides is not supported"),
        Just("' at 'configurationOverrides' failed to satisfy constraint: Member must"),
        Just("1 validation error detected: Value at 'emailTags' failed to satisfy constraint: x"),
        Just("Signature expired: "),
        Just(" on resource: arn:aws:ses:eu-west-1:1:configuration-set/x"),
        Just(", ann@example.com, "),
        Just("ann@example.com"),
        Just("example.com"),
        Just("\\"),
        Just("<ann@example.com>"),
        Just("é"),
    ];
    let part = prop_oneof![3 => sentence.prop_map(str::to_owned), 1 => "[ -~]{0,20}"];
    proptest::collection::vec(part, 1..4).prop_map(|parts| parts.concat())
}

proptest! {
    #[test]
    fn what_a_client_chose_never_changes_the_kind(words in hostile_words()) {
        // As it stands in a display name, in a quoted local part, in a subject or a header.
        let quoted = words.replace('\\', r"\\").replace('"', "\\\"");
        let given = format!("\"{quoted}\" <bob@x.org>");
        let hostile = Mailbox::parse(&given).unwrap().to_header();
        let local = format!("\"{quoted}\"@x.org");
        for (status, name) in NAMES {
            for (before, after) in AROUND {
                let said = |text: &str| kind(status, name, &format!("{before}{text}{after}"));
                let usual = said("bob@x.org");
                for text in [&hostile, &local] {
                    prop_assert_eq!(said(text), usual, "{} {}{}{}", name, before, text, after);
                }
                // In a list of mailboxes such a text would be one of them.
                if !before.contains("identities") {
                    prop_assert_eq!(said(&words), usual, "{} {}{}{}", name, before, words, after);
                }
            }
        }
    }
}

#[test]
fn a_mailbox_in_the_list_is_read_as_a_whole() {
    let check = "Email address is not verified. The following identities failed the check in \
                 region EU-WEST-1: ";
    let listed = |list: &str| kind(400, "MessageRejected", &format!("{check}{list}"));
    assert_eq!(listed(r#""ann@example.com, x" <bob@x.org>"#), Rejected);
    assert_eq!(listed(r#""\", ann@example.com" <bob@x.org>"#), Rejected);
    assert_eq!(listed(r#""x" <bob@x.org>, "y, z" <ann@example.com>"#), DomainFault);
    assert_eq!(listed(r#""a, b"@example.com"#), DomainFault);
    assert_eq!(listed("ann@example.com.x.org"), Rejected);
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
