use super::*;

fn with_email<T>(json: &str, then: impl FnOnce(Result<Draft<'_>, FieldError>) -> T) -> T {
    let document = EmailDocument::parse(json.as_bytes()).unwrap();
    then(document.draft())
}

/// Headers that are left of an email with this `Reply-To` among them.
fn left(reply_to: &str, header: &str) -> usize {
    let header = serde_json::Value::from(header);
    let json = format!(r#"{{"reply_to":{reply_to},"headers":{{"reply-to":{header}}}}}"#);
    with_email(&json, |email| email.unwrap().headers.unwrap().len())
}

#[test]
fn a_reply_to_that_repeats_the_field_is_dropped_and_no_other() {
    for (reply_to, header) in [
        (r#""Ann <a@x.org>""#, "a@X.org"),
        (r#""a@x.org""#, r#""Lee, Ann" <A@x.org>"#),
        (r#""a@b\u00fccher.example""#, "=?utf-8?q?J=C3=BCrgen?= <a@xn--bcher-kva.example>"),
        (r#"["a@x.org", "B <b@x.org>"]"#, "A <a@x.org>, b@x.org"),
    ] {
        assert_eq!(left(reply_to, header), 0, "{reply_to} {header}");
    }
    for (reply_to, header) in [
        ("null", "a@x.org"),
        (r#""a@x.org""#, "b@x.org"),
        (r#""a@x.org""#, "a@x.org, b@x.org"),
        (r#"["a@x.org", "b@x.org"]"#, "a@x.org"),
        (r#""a@x.org""#, "a@x.org <b@x.org>"),
        (r#""wrong""#, "wrong"),
    ] {
        assert_eq!(left(reply_to, header), 1, "{reply_to} {header}");
    }
}

#[test]
fn no_headers_may_be_an_empty_list() {
    assert!(with_email(r#"{"headers":[]}"#, |email| email.unwrap().headers.is_none()));
    for json in [r#"{"headers":["a"]}"#, r#"{"headers":[1]}"#, r#"{"headers":[{"a":"b"}]}"#] {
        let error = with_email(json, |email| email.map(drop).unwrap_err());
        assert_eq!(error.field.as_deref(), Some("headers"), "{json}");
    }
}

#[test]
fn tags_come_in_three_shapes() {
    for json in [
        r#"{"tags":[{"name":"a","value":"1"},{"value":"2","name":"b"}]}"#,
        r#"{"tags":{"a":"1","b":"2"}}"#,
        r#"{"tags":[{"a":"1"},{"b":"2"}]}"#,
    ] {
        with_email(json, |email| {
            assert_eq!(email.unwrap().metadata.unwrap(), [("a", "1"), ("b", "2")], "{json}");
        });
    }
    for (json, field) in [
        (r#"{"tags":[{"name":"a"}]}"#, "tags[0].value"),
        (r#"{"tags":[{"value":"a"}]}"#, "tags[0].name"),
        (r#"{"tags":[{}]}"#, "tags[0].name"),
        (r#"{"tags":[{"name":"a","value":1}]}"#, "tags[0].value"),
        (r#"{"tags":[{"name":"a","value":"b","x":"c"}]}"#, "tags[0].x"),
        (r#"{"tags":["a"]}"#, "tags[0]"),
        (r#"{"tags":"a"}"#, "tags"),
        (r#"{"tags":{"a":1}}"#, "tags.a"),
        (r#"{"tags":[{"name":"a","value":"b"},{"a":"c"}]}"#, "tags[1]"),
    ] {
        let error = with_email(json, |email| email.map(drop).unwrap_err());
        assert_eq!(error.field.as_deref(), Some(field), "{json}");
    }
}

#[test]
fn files_are_the_same_in_each_shape() {
    let base64 = |content: &str| {
        let json = format!(r#"{{"attachments":[{{"filename":"a.txt","content":{content}}}]}}"#);
        with_email(&json, |email| {
            let email = email.map_err(|error| error.field)?;
            match email.attachments.unwrap()[0].content {
                Some(BodyText::Plain(text) | BodyText::Json(text)) => Ok(text.to_owned()),
                None => Ok(String::new()),
            }
        })
    };
    for content in [
        r#""SGk=""#,
        "[72, 105]",
        r#"{"type":"Buffer","data":[72,105]}"#,
        r#"{"data":[72,105],"type":"Buffer"}"#,
    ] {
        assert_eq!(base64(content).unwrap(), "SGk=", "{content}");
    }
    assert_eq!(base64("null").unwrap(), "");
    for content in ["7", "[]", "[300]", "{}", r#"{"type":"Buffer"}"#, r#"{"type":"X","data":[1]}"#]
    {
        assert_eq!(base64(content), Err(Some("attachments[0].content".to_owned())), "{content}");
    }
    for (given, read) in [
        ("text/plain; charset=\"utf-8\"", "text/plain"),
        ("text/plain;CHARSET=UTF-8", "text/plain"),
        ("text/plain; charset=latin-1", "text/plain; charset=latin-1"),
        ("text/calendar; method=REQUEST", "text/calendar; method=REQUEST"),
        ("image/png", "image/png"),
    ] {
        assert_eq!(without_utf8(given), read);
    }
    for (name, content_type, named) in [
        ("x1f", "image/png", "x1f.png"),
        ("x1f", "image/jpeg", "x1f.jpeg"),
        ("logo", "image/svg+xml", "logo.svg"),
        ("logo.gif", "image/png", "logo.gif"),
        ("logo", "application/x-none", "logo"),
    ] {
        let file = format!(r#"{{"filename":"{name}","content_type":"{content_type}"}}"#);
        let named_by = |email: Result<Draft<'_>, FieldError>| {
            email.unwrap().attachments.unwrap()[0].filename.clone().unwrap().into_owned()
        };
        assert_eq!(with_email(&format!(r#"{{"attachments":[{file}]}}"#), named_by), named);
    }
}

#[test]
fn fields_that_are_not_supported_are_refused_unless_they_are_null() {
    for (field, _) in REFUSED_FIELDS {
        let set = format!(r#"{{"{field}":"x"}}"#);
        let error = with_email(&set, |email| email.map(drop).unwrap_err());
        assert_eq!(error.field.as_deref(), Some(field));
        assert!(with_email(&format!(r#"{{"{field}":null}}"#), |email| email.is_ok()));
    }
    assert!(with_email(r#"{"replyTo":null}"#, |email| email.is_err()), "a misspelling");
}

#[test]
fn a_query_has_one_cursor() {
    let id = "01990000-0000-7000-8000-000000000000";
    let list = ListQuery::parse(&format!("limit=5&after={id}")).unwrap();
    assert_eq!(
        (list.limit, list.filter.before, list.filter.after),
        (Some(5), id.parse().ok(), None)
    );
    let list = ListQuery::parse(&format!("before={id}")).unwrap();
    assert_eq!((list.filter.before, list.filter.after), (None, id.parse().ok()));
    for wrong in [format!("before={id}&after={id}"), "x=1".to_owned(), "limit=101".to_owned()] {
        assert!(ListQuery::parse(&wrong).is_err(), "{wrong}");
    }
}
