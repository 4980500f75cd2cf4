use super::*;

fn refused(name: &str, policy: HeaderPolicy) -> bool {
    checked_headers(vec![(name, "value")], policy).is_err()
}

#[test]
fn each_policy_permits_its_own_headers() {
    for name in ["X-Order", "x-a", "List-Unsubscribe"] {
        for policy in [HeaderPolicy::Specification, HeaderPolicy::Submission] {
            assert!(!refused(name, policy), "{name}");
        }
    }
    for name in ["List-Unsubscribe-Post", "In-Reply-To", "References", "Auto-Submitted"] {
        assert!(refused(name, HeaderPolicy::Specification), "{name}");
        assert!(!refused(name, HeaderPolicy::Submission), "{name}");
    }
    let given = OTHERWISE_GIVEN.into_iter();
    let more = ["reply-to", "Resent-From", "Content-Type", "content-language", "X-SES-A", "a:b"];
    for name in given.chain(more) {
        for policy in [HeaderPolicy::Specification, HeaderPolicy::Submission] {
            assert!(refused(name, policy), "{name}");
        }
    }
    let twice = vec![("References", "a"), ("references", "b")];
    assert!(checked_headers(twice, HeaderPolicy::Submission).is_err());
}

#[test]
fn keys_of_a_batchs_elements_meet_no_other() {
    let key = |text, index| batch_key(IdempotencyKey::parse(text).unwrap(), index);
    let first = key("k", 0);
    assert_eq!(key("k", 0), first);
    assert_ne!(key("k", 1), first);
    assert_ne!(key("l", 0), first);
    let text = first.as_key().as_str();
    assert_ne!(IdempotencyKey::parse(text).unwrap(), first.as_key(), "a client cannot give it");
    // A submission's is a digest in base64url.
    assert!(text.contains(':'));
}

#[test]
fn several_mailboxes_may_take_replies() {
    let draft = |reply_to| Draft {
        from: Some("a@example.com"),
        to: Some(vec!["b@example.org"]),
        subject: Some("Hello"),
        text: Some("Hi".into()),
        reply_to,
        ..Draft::default()
    };
    let two = vec!["c@example.org", "D <d@example.org>"];
    assert_eq!(SendRequest::parse(draft(two)).unwrap().reply_to.len(), 2);
    for (reply_to, field) in [(vec!["c"], "reply_to"), (vec!["c@example.org", "d"], "reply_to[1]")]
    {
        let Err(RequestError::Invalid(error)) = SendRequest::parse(draft(reply_to)) else {
            panic!("{field}");
        };
        assert_eq!(error.field.as_deref(), Some(field));
    }
}

fn draft() -> Draft<'static> {
    Draft {
        from: Some("a@example.com"),
        to: Some(vec!["b@example.org"]),
        subject: Some("Hello"),
        text: Some("Hi".into()),
        ..Draft::default()
    }
}

fn with_headers<'a>(headers: Vec<(&'a str, &'a str)>) -> Draft<'a> {
    Draft { headers: Some(headers), ..draft() }
}

fn with_metadata<'a>(metadata: Vec<(&'a str, &'a str)>) -> Draft<'a> {
    Draft { metadata: Some(metadata), ..draft() }
}

/// The field of the error, or an empty text if there is none or it is of no single field.
fn wrong_field(draft: Draft<'_>) -> String {
    match SendRequest::parse(draft) {
        Err(RequestError::Invalid(error)) => error.field.unwrap_or_default(),
        Err(RequestError::UnsupportedTag) => "tag".to_owned(),
        Ok(_) => String::new(),
    }
}

#[test]
fn required_fields_are_there() {
    for (given, field) in [
        (Draft { from: None, ..draft() }, "from"),
        (Draft { to: None, ..draft() }, "to"),
        (Draft { subject: None, ..draft() }, "subject"),
        (Draft { text: None, ..draft() }, ""),
        (Draft { text: Some("".into()), html: Some("".into()), ..draft() }, ""),
    ] {
        let Err(RequestError::Invalid(error)) = SendRequest::parse(given) else {
            panic!("{field}");
        };
        assert!(error.is_missing(), "{error}");
        assert_eq!(error.field.unwrap_or_default(), field);
    }
    let Err(RequestError::Invalid(error)) =
        SendRequest::parse(Draft { to: Some(Vec::new()), ..draft() })
    else {
        panic!("nobody gets it");
    };
    assert_eq!((error.is_missing(), error.field.as_deref()), (false, Some("to")));
    let within = error.within("emails[2]");
    assert_eq!(within.field.as_deref(), Some("emails[2].to"));
    let of_all = FieldError { field: None, ..within }.within("emails[2]");
    assert_eq!(of_all.field.as_deref(), Some("emails[2]"));
}

#[test]
fn a_body_is_what_is_not_empty_of_html_and_text() {
    let body = |html: &'static str, text: &'static str| {
        let (html, text) = (Some(html.into()), Some(text.into()));
        SendRequest::parse(Draft { html, text, ..draft() }).unwrap().body
    };
    let (html, text) = (BodyText::Plain("<p>"), BodyText::Plain("p"));
    assert_eq!(body("<p>", ""), Body::Html(html));
    assert_eq!(body("", "p"), Body::Text(text));
    assert_eq!(body("<p>", "p"), Body::Both { html, text });
}

#[test]
fn at_most_fifty_recipients_in_all() {
    let some = |count| Some(vec!["b@example.org"; count]);
    let of = |to, cc, bcc| Draft { to: some(to), cc: some(cc), bcc: some(bcc), ..draft() };
    for (to, cc, bcc) in [(50, 0, 0), (1, 49, 0), (1, 0, 49), (20, 20, 10)] {
        assert!(SendRequest::parse(of(to, cc, bcc)).is_ok(), "{to} {cc} {bcc}");
    }
    for (to, cc, bcc) in [(50, 1, 0), (50, 0, 1), (17, 17, 17)] {
        let rule = "to, cc and bcc together must have at most 50 entries".to_owned();
        let error = FieldError { field: None, rule };
        let refused = SendRequest::parse(of(to, cc, bcc)).unwrap_err();
        assert_eq!(refused, RequestError::Invalid(error), "{to} {cc} {bcc}");
    }
    for (wrong, field) in [
        (of(51, 0, 0), "to"),
        (of(1, 51, 0), "cc"),
        (of(1, 0, 51), "bcc"),
        (Draft { cc: Some(vec!["b@example.org", "c"]), ..draft() }, "cc[1]"),
        (Draft { bcc: Some(vec!["c"]), ..draft() }, "bcc[0]"),
    ] {
        assert_eq!(wrong_field(wrong), field);
    }
}

#[test]
fn a_subject_is_one_line_that_is_not_blank() {
    let longest = "\u{e9}".repeat(MAX_SUBJECT_CHARS);
    for subject in ["a", " a ", &longest] {
        let request = SendRequest::parse(Draft { subject: Some(subject), ..draft() });
        assert_eq!(request.unwrap().subject, subject);
    }
    for subject in ["", "  ", "\u{a0}", "a\nb", "a\u{85}", &format!("{longest}a")] {
        let wrong = Draft { subject: Some(subject), ..draft() };
        assert_eq!(wrong_field(wrong), "subject", "{subject:?}");
    }
}

#[test]
fn a_header_has_the_form_and_the_lengths_that_ses_takes() {
    let longest = format!("X-{}", "a".repeat(MAX_HEADER_NAME_CHARS - 2));
    let value = "v".repeat(MAX_HEADER_VALUE_CHARS);
    let together = "v".repeat(MAX_HEADER_CHARS - 3);
    for header in
        [("X-A", "1"), ("X-A", "a ~"), (longest.as_str(), "v"), ("X-A", together.as_str())]
    {
        let request = SendRequest::parse(with_headers(vec![header])).unwrap();
        assert_eq!(request.headers, [header]);
    }
    let names = (0..=MAX_HEADERS).map(|number| format!("X-{number}")).collect::<Vec<_>>();
    let headers: Vec<_> = names.iter().map(|name| (name.as_str(), "v")).collect();
    assert_eq!(wrong_field(with_headers(headers[..MAX_HEADERS].to_vec())), "");
    assert_eq!(wrong_field(with_headers(headers)), "headers");
    for (name, value) in [
        ("X-\u{e9}", "v"),
        ("X A", "v"),
        ("X-A:", "v"),
        (&format!("{longest}a"), "v"),
        ("X-A", ""),
        ("X-A", "a\tb"),
        ("X-A", "\u{e9}"),
        ("X-A", &format!("{value}v")),
        ("X-A", &value),
        ("X-A", &format!("{together}v")),
    ] {
        let field = format!("headers.{name:.MAX_HEADER_NAME_CHARS$}");
        assert_eq!(wrong_field(with_headers(vec![(name, value)])), field, "{name} {value}");
    }
    // The last one of several.
    let twice = vec![("X-A", "v"), ("X-B", "v"), ("x-a", "v")];
    assert_eq!(wrong_field(with_headers(twice)), "headers.x-a");
}

#[test]
fn metadata_has_short_names_and_values() {
    let (name, value) =
        ("n".repeat(MAX_METADATA_NAME_CHARS), "\u{e9}".repeat(MAX_METADATA_VALUE_CHARS));
    for member in [("a", "b"), ("A-z_9", "b c"), (name.as_str(), value.as_str())] {
        let request = SendRequest::parse(with_metadata(vec![member])).unwrap();
        assert_eq!(request.metadata, Some(vec![member]));
    }
    assert_eq!(wrong_field(with_metadata(vec![("a", "b"); MAX_METADATA])), "");
    assert_eq!(wrong_field(with_metadata(vec![("a", "b"); MAX_METADATA + 1])), "metadata");
    for (name, value) in [
        ("", "v"),
        ("a b", "v"),
        ("\u{e9}", "v"),
        (&format!("{name}n"), "v"),
        ("a", ""),
        ("a", "b\nc"),
        ("a", &format!("{value}v")),
    ] {
        let field = wrong_field(with_metadata(vec![(name, value)]));
        assert_eq!(field, format!("metadata.{name}"), "{value:?}");
    }
}

#[test]
fn key_and_terms_are_read_or_refused() {
    let longest = "\u{e9}".repeat(MAX_IDEMPOTENCY_KEY_CHARS);
    for key in ["k", &longest] {
        let request = SendRequest::parse(Draft { idempotency_key: Some(key), ..draft() });
        let read = request.unwrap().idempotency_key.unwrap();
        assert_eq!((read.origin(), read.as_str()), (KeyOrigin::Client, key));
        assert_eq!(read.into_owned().as_key(), read);
        let stored = IdempotencyKey::from_stored(KeyOrigin::Derived, key);
        assert_eq!(stored, IdempotencyKey::of_submission(key));
        assert_ne!(stored, read);
    }
    let request = SendRequest::parse(draft()).unwrap();
    let of_batch = request.identified_by(IdempotencyKey::of_submission("k"));
    assert_eq!(of_batch.idempotency_key, Some(IdempotencyKey::of_submission("k")));
    for (wrong, field) in [
        (Draft { idempotency_key: Some(""), ..draft() }, "idempotencyKey"),
        (Draft { idempotency_key: Some(&format!("{longest}k")), ..draft() }, "idempotencyKey"),
        (Draft { priority: Some("urgent"), ..draft() }, "priority"),
        (Draft { expires_in: Some("59s"), ..draft() }, "expiresIn"),
        (Draft { tag: Some("marketing"), ..draft() }, "tag"),
    ] {
        assert_eq!(wrong_field(wrong), field);
    }
    let request = SendRequest::parse(Draft {
        priority: Some("high"),
        expires_in: Some("1m"),
        tag: Some(TRANSACTIONAL),
        ..draft()
    });
    let request = request.unwrap();
    assert_eq!(request.priority, Some(Priority::High));
    assert_eq!(request.expires_in, Some(Duration::from_mins(1)));
}

#[test]
fn a_submission_has_a_recipient_and_a_subject() {
    let submission = |recipients, subject| Submission {
        from: "a@example.com",
        from_header: None,
        other_senders: Vec::new(),
        recipients,
        subject,
        message: RawMessage { fields: b"", rest: b"\r\nsecret" },
        idempotency_key: None,
    };
    assert!(SendRequest::of_submission(submission(vec!["b@x.org"], "Hello")).is_ok());
    let error = SendRequest::of_submission(submission(Vec::new(), "Hello")).unwrap_err();
    assert_eq!(error.field.as_deref(), Some("to"));
    let error = SendRequest::of_submission(submission(vec!["b@x.org"], "")).unwrap_err();
    assert_eq!(error.field.as_deref(), Some("subject"));
    let shown = format!("{:?}", submission(vec!["b@x.org"], "Hello").message);
    assert!(!shown.contains("secret"), "{shown}");
}
