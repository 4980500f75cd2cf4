//! A request's body, from bytes to a request: never a panic, one reading of a text that another
//! JSON parser agrees with, and refusals that stay short and give nothing of theirs away.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use pillarbox_api::error::ApiError;
use pillarbox_api::requests::{BatchDocument, SendDocument};
use pillarbox_domain::limits::{MAX_BATCH, MAX_RECIPIENTS};
use pillarbox_domain::mailbox::Mailbox;
use pillarbox_domain::request::{BodyText, Draft, RequestError, SendRequest};
use serde::de::IgnoredAny;
use serde_json::Value;

/// The longest message of a refusal, in characters: a client's own text is clipped.
const MAX_MESSAGE_CHARS: usize = 600;

pub(crate) fn check(data: &[u8]) {
    check_batch(data);
    let document = match SendDocument::parse(data) {
        Ok(document) => document,
        Err(error) => {
            // What is JSON elsewhere is refused for what RFC 8259 leaves open, and nothing else.
            if serde_json::from_slice::<Value>(data).is_ok_and(|value| value.is_object()) {
                let known = ["twice", "nested deeper", "more than", "escapes is over"];
                assert!(known.iter().any(|known| error.problem.contains(known)), "{error}");
            }
            return check_refusal(&error.into());
        }
    };
    serde_json::from_slice::<IgnoredAny>(data).expect("what is taken is JSON elsewhere too");
    let draft = match document.draft() {
        Ok(draft) => draft,
        Err(error) => return check_refusal(&ApiError::Validation(error)),
    };
    if let Ok(value) = serde_json::from_slice::<Value>(data) {
        check_reading(&draft, &value);
    }
    let recipients = [&draft.to, &draft.cc, &draft.bcc].into_iter().flatten().flatten();
    let recipients: Vec<String> = recipients.map(|text| (*text).to_owned()).collect();
    let subject = draft.subject.map(str::to_owned);
    let files = draft.attachments.iter().flatten().map(|file| read(file.content));
    let files: Vec<Value> = files.collect();
    match SendRequest::parse(draft) {
        Ok(_) => {
            assert!((1..=MAX_RECIPIENTS).contains(&recipients.len()));
            assert!(recipients.iter().all(|text| Mailbox::parse(text).is_ok()));
            for file in files {
                let base64 = file.as_str().expect("content is required");
                assert!(STANDARD.decode(base64).is_ok_and(|file| !file.is_empty()), "{base64}");
            }
            assert!(!subject.expect("a subject is required").contains(['\r', '\n', '\0']));
        }
        Err(error) => check_refusal(&error.into()),
    }
}

/// Every text is what another parser reads in its place.
fn check_reading(draft: &Draft<'_>, value: &Value) {
    let texts = [
        ("from", draft.from),
        ("reply_to", draft.reply_to.first().copied()),
        ("subject", draft.subject),
        ("idempotencyKey", draft.idempotency_key),
        ("tag", draft.tag),
    ];
    for (name, text) in texts {
        assert_eq!(text, value[name].as_str(), "{name}");
    }
    // Bodies go on as they are written.
    for (name, body) in [("html", draft.html), ("text", draft.text)] {
        assert_eq!(read(body), value[name], "{name}");
    }
    for (name, list) in [("to", &draft.to), ("cc", &draft.cc), ("bcc", &draft.bcc)] {
        let elsewhere = value[name].as_array().map(Vec::as_slice).unwrap_or_default();
        for (text, elsewhere) in list.iter().flatten().zip(elsewhere) {
            assert_eq!(Some(*text), elsewhere.as_str(), "{name}");
        }
    }
    let list = value["attachments"].as_array().map(Vec::as_slice).unwrap_or_default();
    for (file, elsewhere) in draft.attachments.iter().flatten().zip(list) {
        for (name, text) in [
            ("filename", file.filename.as_deref()),
            ("content_type", file.content_type),
            ("content_id", file.content_id),
        ] {
            assert_eq!(text, elsewhere[name].as_str(), "{name}");
        }
        assert_eq!(read(file.content), elsewhere["content"], "content");
    }
    for (field, members) in [("headers", &draft.headers), ("metadata", &draft.metadata)] {
        for (name, text) in members.iter().flatten() {
            assert_eq!(Some(*text), value[field][*name].as_str(), "{field}.{name}");
        }
    }
}

/// A batch of any bytes is read or refused, and a refusal names the message at fault.
fn check_batch(data: &[u8]) {
    let Ok(document) = BatchDocument::parse(data) else { return };
    let (_, drafts) = match document.drafts() {
        Ok(drafts) => drafts,
        Err(error) => return check_refusal(&ApiError::Validation(error)),
    };
    assert!((1..=MAX_BATCH).contains(&drafts.len()));
    for draft in drafts {
        if let Err(error) = draft.map_err(RequestError::from).and_then(SendRequest::parse) {
            let error = ApiError::from(error).within("emails[0]");
            if let ApiError::Validation(error) = &error {
                assert!(error.field.as_ref().is_some_and(|field| field.starts_with("emails[")));
            }
            check_refusal(&error);
        }
    }
}

/// A body as another parser reads it; null if there is none.
fn read(body: Option<BodyText<'_>>) -> Value {
    match body {
        Some(BodyText::Json(written)) => {
            serde_json::from_str(&format!("\"{written}\"")).expect("it is written as JSON")
        }
        Some(BodyText::Plain(text)) => text.into(),
        None => Value::Null,
    }
}

/// A refusal is the client's fault, and its answer is short and one line.
fn check_refusal(error: &ApiError) {
    assert!(error.kind().0.is_client_error(), "{error:?}");
    let text = match error {
        ApiError::InvalidJson { message } => message,
        ApiError::Validation(error) => {
            let field = error.field.as_deref().unwrap_or_default();
            assert!(field.chars().count() <= MAX_MESSAGE_CHARS, "{field}");
            &error.rule
        }
        _ => return,
    };
    assert!(text.chars().count() <= MAX_MESSAGE_CHARS, "{text}");
    assert!(!text.chars().any(char::is_control), "{text:?}");
}
