use super::*;
use pillarbox_domain::request::{RequestError, SendRequest};

fn draft_error(text: &str) -> (String, String) {
    let document = SendDocument::parse(text.as_bytes()).expect(text);
    let error = document.draft().expect_err(text);
    (error.field.expect(text), error.rule)
}

#[test]
fn a_full_request_becomes_a_draft() {
    let body = br#"{
        "from": "Ann <ann@example.com>", "to": ["a@x.org", "b@x.org"], "cc": ["c@x.org"],
        "bcc": [], "reply_to": "r@x.org", "subject": "Hi \u263a", "html": "<p>", "text": "t",
        "headers": {"X-A": "1", "List-Unsubscribe": "<mailto:u@x.org>"},
        "metadata": {"order": "1815", "a\u002db": "\n"},
        "idempotencyKey": "k", "tag": "transactional"
    }"#;
    let document = SendDocument::parse(body).unwrap();
    let draft = document.draft().unwrap();
    assert_eq!(draft.from, Some("Ann <ann@example.com>"));
    assert_eq!(draft.to, Some(vec!["a@x.org", "b@x.org"]));
    assert_eq!(
        (draft.cc.as_deref(), draft.bcc.as_deref()),
        (Some(&["c@x.org"][..]), Some(&[][..]))
    );
    assert_eq!((draft.reply_to.as_slice(), draft.subject), (&["r@x.org"][..], Some("Hi ☺")));
    assert_eq!((draft.html, draft.text), (Some(BodyText::Json("<p>")), Some(BodyText::Json("t"))));
    let headers = vec![("X-A", "1"), ("List-Unsubscribe", "<mailto:u@x.org>")];
    assert_eq!(draft.headers, Some(headers));
    assert_eq!(draft.metadata, Some(vec![("order", "1815"), ("a-b", "\n")]));
    assert_eq!((draft.idempotency_key, draft.tag), (Some("k"), Some("transactional")));
    let error = SendRequest::parse(draft.clone()).unwrap_err();
    let rule = "must not contain control characters";
    assert_eq!(error, RequestError::Invalid(FieldError::new("metadata.a-b", rule)));
    assert!(SendRequest::parse(Draft { metadata: None, ..draft }).is_ok());
}

#[test]
fn null_means_absent() {
    let nulls: Vec<_> = FIELDS.iter().map(|field| format!("{field:?}:null")).collect();
    let body = format!("{{{}}}", nulls.join(","));
    let document = SendDocument::parse(body.as_bytes()).unwrap();
    let draft = document.draft().expect("every field is known");
    assert!(draft.to.is_none() && draft.headers.is_none() && draft.tag.is_none());
    let error = SendRequest::parse(draft).unwrap_err();
    assert_eq!(error, RequestError::Invalid(FieldError::new("from", "is required")));
}

#[test]
fn wrong_types_are_named_by_path() {
    for (text, field, rule) in [
        (r#"{"from":1}"#, "from", "must be a string, not a number"),
        (
            r#"{"to":"a@x.org"}"#,
            "to",
            r#"must be an array of strings, not a string; write ["ada@example.net"], even for one address"#,
        ),
        (r#"{"to":["a",true]}"#, "to[1]", "must be a string, not a boolean"),
        (r#"{"cc":[null]}"#, "cc[0]", "must be a string, not null"),
        (r#"{"headers":[]}"#, "headers", "must be an object of strings, not an array"),
        (r#"{"headers":{"X-A":null}}"#, "headers.X-A", "must be a string, not null"),
        (r#"{"attachments":{}}"#, "attachments", "must be an array of objects, not an object"),
        (r#"{"attachments":[""]}"#, "attachments[0]", "must be an object, not a string"),
        (
            r#"{"attachments":[{"filename":1}]}"#,
            "attachments[0].filename",
            "must be a string, not a number",
        ),
        (
            r#"{"attachments":[{},{"content":[]}]}"#,
            "attachments[1].content",
            "must be a string, not an array",
        ),
        (r#"{"metadata":{"a":1}}"#, "metadata.a", "must be a string, not a number"),
        (r#"{"tag":{}}"#, "tag", "must be a string, not an object"),
    ] {
        assert_eq!(draft_error(text), (field.to_owned(), rule.to_owned()));
    }
}

#[test]
fn unknown_fields_are_named_with_their_likely_spelling() {
    for (name, likely) in [
        ("idempotency_key", "idempotencyKey"),
        ("idempotencykey", "idempotencyKey"),
        ("idempotentKey", "idempotencyKey"),
        ("replyTo", "reply_to"),
        ("reply-to", "reply_to"),
        ("From", "from"),
        ("subjct", "subject"),
        ("header", "headers"),
    ] {
        let (field, rule) = draft_error(&format!("{{\"{name}\":1}}"));
        assert_eq!(field, name);
        assert_eq!(rule, format!("unknown field; did you mean `{likely}`?"));
    }
    for (name, advice) in [
        ("tags", "use `metadata`, an object of strings"),
        ("htmlBody", "use `html`"),
        ("scheduled_at", "a message is sent at once"),
    ] {
        let (_, rule) = draft_error(&format!("{{\"{name}\":1}}"));
        assert_eq!(rule, format!("unknown field; {advice}"));
    }
    for (name, likely) in [("contentType", "content_type"), ("fileName", "filename")] {
        let text = format!("{{\"attachments\":[{{}},{{\"{name}\":1}}]}}");
        let (field, rule) = draft_error(&text);
        assert_eq!(field, format!("attachments[1].{name}"));
        assert_eq!(rule, format!("unknown member; did you mean `{likely}`?"));
    }
    let (field, rule) = draft_error(r#"{"attachments":[{"path":"/etc/passwd"}]}"#);
    assert_eq!(field, "attachments[0].path");
    assert!(rule.starts_with("unknown member; the members are filename, content,"), "{rule}");
    for name in ["urgency", "", "é"] {
        let (_, rule) = draft_error(&format!("{{\"{name}\":1}}"));
        assert!(rule.starts_with("unknown field; the fields are from, to,"), "{name}: {rule}");
    }
}

#[test]
fn long_names_are_cut_short_in_answers() {
    let name = "n".repeat(100_000);
    assert_eq!(draft_error(&format!("{{\"{name}\":1}}")).0.len(), MAX_ECHO_CHARS);
    assert!(draft_error(&format!("{{\"headers\":{{\"{name}\":1}}}}")).0.len() < 120);
}

#[test]
fn far_too_many_recipients_are_one_error() {
    let body = format!("{{\"from\":\"a@x.org\",\"to\":[{}\"a\"]}}", "\"a\",".repeat(200_000));
    let document = SendDocument::parse(body.as_bytes()).unwrap();
    let error = SendRequest::parse(document.draft().unwrap()).unwrap_err();
    assert_eq!(error, RequestError::Invalid(FieldError::new("to", "must have at most 50 entries")));
}
