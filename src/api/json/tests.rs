use std::fmt::Write as _;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use serde_json::Value;

use super::*;

fn problem(text: &str) -> String {
    parse_object(text.as_bytes()).expect_err(text).to_string()
}

#[test]
fn an_object_reads_in_order_and_borrows() {
    let text = r#" {"b":"x","a":[null,true,-1.5e+3],"\u0041\n":"\ud83d\ude00"} "#;
    let Json::Object(members) = parse_object(text.as_bytes()).unwrap() else { panic!() };
    assert_eq!(members[0].0.text(), Some("b"));
    let string = |value: &Json<'_>| match value {
        Json::String(string) => (string.text().unwrap().to_owned(), string.written().to_owned()),
        _ => panic!("{value:?}"),
    };
    assert_eq!(string(&members[0].1), ("x".to_owned(), "x".to_owned()));
    let list = vec![Json::Null, Json::Bool(true), Json::Number("-1.5e+3")];
    assert_eq!((members[1].0.text(), &members[1].1), (Some("a"), &Json::Array(list)));
    assert_eq!(members[2].0.text(), Some("A\n"));
    assert_eq!(string(&members[2].1), ("😀".to_owned(), "\\ud83d\\ude00".to_owned()));
}

#[test]
fn errors_say_what_and_where() {
    for (text, expected) in [
        ("", "the body is empty, not a JSON object at line 1 column 1"),
        (" ", "the body is empty, not a JSON object at line 1 column 2"),
        ("[1]", "the body is not a JSON object at line 1 column 1"),
        ("\u{feff}{}", "the body begins with a byte order mark at line 1 column 1"),
        ("{}x", "something follows the JSON object at line 1 column 3"),
        ("{} {}", "something follows the JSON object at line 1 column 4"),
        ("{\n\"é\": x}", "expected a value at line 2 column 6"),
        ("{\"a\":1,}", "expected a key in double quotes at line 1 column 8"),
        ("{\"a\" 1}", "expected a colon at line 1 column 6"),
        ("{\"a\":1", "the body ends where a comma or } is expected at line 1 column 7"),
        ("{\"a\":[1,]}", "expected a value at line 1 column 9"),
        ("{\"a\":tru}", "expected true at line 1 column 6"),
        ("{\"a\":\"\n\"}", "a string has a control character in it at line 1 column 7"),
        ("{\"a\":\"", "the body ends within a string at line 1 column 7"),
        (r#"{"a":"\ud800"}"#, "a string has half of a surrogate pair in it at line 1 column 7"),
        (r#"{"a":"\udc00"}"#, "a string has half of a surrogate pair in it at line 1 column 7"),
        (
            r#"{"a":"\ud800\u0041"}"#,
            "a string has half of a surrogate pair in it at line 1 column 7",
        ),
        (r#"{"a":"\u00g0"}"#, "expected four hexadecimal digits at line 1 column 11"),
    ] {
        assert_eq!(problem(text), expected, "{text}");
    }
    let not_utf8 = parse_object(b"{\"a\":\"\xff\"}").unwrap_err();
    assert_eq!(not_utf8.to_string(), "the body is not UTF-8 at line 1 column 7");
}

#[test]
fn keys_given_twice_are_refused_at_any_level_and_in_any_spelling() {
    for text in
        [r#"{"a":1,"a":1}"#, r#"{"a":1,"\u0061":1}"#, r#"{"x":[{"y":{"a":1,"b":2,"a":3}}]}"#]
    {
        assert!(problem(text).contains(r#"the key "a" is given twice"#), "{text}");
    }
    let many = |last: &str| {
        let mut text = String::from("{");
        for n in 0..99 {
            write!(text, "\"k{n}\":1,").unwrap();
        }
        text + last + "}"
    };
    assert!(problem(&many(r#""k\u0035":1"#)).contains(r#"the key "k5" is given twice"#));
    assert!(parse_object(many(r#""k99":1"#).as_bytes()).is_ok());
}

#[test]
fn a_key_given_twice_is_found_in_objects_of_every_size() {
    for count in 1..=2 * FEW_MEMBERS {
        let members = (0..count).map(|n| format!("\"k{n}\":{{\"k0\":1}},"));
        let members = members.collect::<Vec<_>>().concat();
        assert!(parse_object(format!("{{{members}\"k{count}\":1}}").as_bytes()).is_ok());
        for again in 0..count {
            let text = format!("{{{members}\"k{again}\":1}}");
            let expected = format!("the key \"k{again}\" is given twice");
            assert!(problem(&text).contains(&expected), "{text}");
        }
    }
}

#[test]
fn a_control_character_in_a_string_is_refused_whatever_white_space_there_is() {
    for text in ["{\"a\":\"b\nc\"}", "{\n\t\"a\": \"b\\n\tc\"\r\n}", "{\"a\n\":1}"] {
        assert!(problem(text).starts_with("a string has a control character in it"), "{text}");
    }
    assert!(parse_object(b"{\n\t\"a\": \"b\\nc\"\r\n}").is_ok());
}

#[test]
fn depth_counts_the_outermost_object_as_one() {
    let nested = |depth: usize| format!("{{\"a\":{}{}}}", "[".repeat(depth), "]".repeat(depth));
    assert!(parse_object(nested(MAX_DEPTH - 1).as_bytes()).is_ok());
    assert!(problem(&nested(MAX_DEPTH)).contains("nested deeper than 32 levels"));
    assert!(problem(&nested(1_000_000)).contains("nested deeper than 32 levels"));
}

#[test]
fn numbers_of_any_size_are_well_formed() {
    for number in ["1e999", "-0", "0.1E-5", &"9".repeat(1_000)] {
        assert!(parse_object(format!("{{\"a\":{number}}}").as_bytes()).is_ok(), "{number}");
    }
    for number in ["01", "+1", ".5", "1.", "1e", "-", "0x1", "NaN"] {
        assert!(parse_object(format!("{{\"a\":{number}}}").as_bytes()).is_err(), "{number}");
    }
}

#[test]
fn huge_documents_are_read_in_full_and_kept_in_part() {
    let count = 80_000;
    let array = format!("{{\"a\":[{}1]}}", "1,".repeat(count));
    let Json::Object(members) = parse_object(array.as_bytes()).unwrap() else { panic!() };
    assert!(matches!(&members[0].1, Json::Array(kept) if kept.len() == MAX_KEPT_ELEMENTS));
    assert!(problem(&format!("{{\"a\":[{}x]}}", "1,".repeat(count))).contains("expected a value"));
    let objects = format!("{{\"a\":[{}1]}}", "{\"a\":1},".repeat(count));
    let Json::Object(members) = parse_object(objects.as_bytes()).unwrap() else { panic!() };
    assert_eq!(members[0].1, Json::Omitted);
    let lists = format!("{{\"a\":[{}1]}}", "[[]],".repeat(count));
    let Json::Object(members) = parse_object(lists.as_bytes()).unwrap() else { panic!() };
    assert_eq!(members[0].1, Json::Omitted);
}

#[test]
fn an_object_has_so_many_members_and_no_more() {
    let members = |count: usize| {
        let members: Vec<_> = (0..count).map(|n| format!("\"k{n}\":{{\"k0\":1}}")).collect();
        format!("{{{}}}", members.join(","))
    };
    assert!(parse_object(members(MAX_MEMBERS).as_bytes()).is_ok());
    let too_many = problem(&members(MAX_MEMBERS + 1));
    assert!(too_many.starts_with("an object has more than 100 members at line 1"), "{too_many}");
    // What follows is not read.
    assert!(problem(&(members(MAX_MEMBERS + 1) + "x")).contains("more than 100 members"));
}

#[test]
fn a_document_has_so_many_values_and_no_more() {
    let values = |count: usize| format!("{{\"a\":[{}1]}}", "1,".repeat(count - 3));
    assert!(parse_object(values(MAX_VALUES).as_bytes()).is_ok());
    let too_many = problem(&values(MAX_VALUES + 1));
    assert!(too_many.starts_with("the body has more than 250000 values at line 1"), "{too_many}");
    let start = Instant::now();
    assert!(problem(&values(5_000_000)).contains("more than 250000 values"));
    assert!(start.elapsed() < Duration::from_secs(10), "the rest is not read");
}

#[test]
fn long_texts_with_escapes_are_not_copied() {
    let written = "\\n".repeat(MAX_DECODED_BYTES / 2);
    let too_long = format!("{{\"{written}\\n\":1}}");
    assert!(
        problem(&too_long).starts_with("a key with escapes is over 32768 bytes long at line 1")
    );
    let text = format!("{{\"{written}\":\"{written}\\n\"}}");
    let Json::Object(members) = parse_object(text.as_bytes()).unwrap() else { panic!() };
    assert_eq!(members[0].0.text().unwrap().len(), MAX_DECODED_BYTES / 2);
    let Json::String(value) = &members[0].1 else { panic!() };
    assert_eq!((value.text(), value.shown().len()), (None, MAX_DECODED_BYTES + 2));
}

/// True if serde's value equals ours, as far as ours was kept.
fn is_same(ours: &Json<'_>, theirs: &Value) -> bool {
    match (ours, theirs) {
        (Json::Null, Value::Null) | (Json::Number(_), Value::Number(_)) => true,
        (Json::Bool(ours), Value::Bool(theirs)) => ours == theirs,
        (Json::String(ours), Value::String(theirs)) => ours.text() == Some(theirs.as_str()),
        (Json::Array(ours), Value::Array(theirs)) => {
            ours.len() == theirs.len() && ours.iter().zip(theirs).all(|(a, b)| is_same(a, b))
        }
        (Json::Object(ours), Value::Object(theirs)) => {
            ours.len() == theirs.len()
                && ours
                    .iter()
                    .all(|(key, a)| theirs.get(key.shown()).is_some_and(|b| is_same(a, b)))
        }
        _ => false,
    }
}

/// Text that is JSON or nearly so.
fn documents() -> impl Strategy<Value = String> {
    let leaf = prop_oneof![
        Just("null".to_owned()),
        Just("true".to_owned()),
        "-?(0|[1-9][0-9]{0,5})(\\.[0-9]{1,3})?([eE][+-]?[0-9]{1,2})?",
        "\"([ -!#-\\[\\]-~é😀]|\\\\[\"\\\\/bfnrt]|\\\\u[0-9a-fA-F]{4}){0,8}\"",
        Just("\"\\ud83d\\ude00\"".to_owned()),
    ];
    let value = leaf.prop_recursive(4, 32, 5, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..5)
                .prop_map(|values| format!("[ {} ]", values.join(" , "))),
            prop::collection::vec(("[a-e]|\\\\u006[1-5]", inner), 0..4).prop_map(|members| {
                let members = members.iter().map(|(key, value)| format!("\"{key}\":{value}"));
                format!("{{{}}}", members.collect::<Vec<_>>().join(",\n"))
            }),
        ]
    });
    let object = value.prop_map(|value| format!("{{\"a\":{value}}}"));
    (object, any::<prop::sample::Index>(), prop::option::weighted(0.5, "[\\[\\]{},:\"\\\\0eE.x-]"))
        .prop_map(|(mut text, index, typo)| {
            if let Some(typo) = typo {
                let at = index.index(text.len());
                if text.is_char_boundary(at) {
                    text.insert_str(at, &typo);
                }
            }
            text
        })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn any_bytes_are_read_without_panic(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
        let _ = parse_object(&bytes);
        let inner = [b"{\"a\":\"", bytes.as_slice(), b"\"}"].concat();
        let _ = parse_object(&inner);
    }

    #[test]
    fn agrees_with_serde_json_but_for_duplicate_keys(text in documents()) {
        let theirs = serde_json::from_str::<Value>(&text);
        match (parse_object(text.as_bytes()), theirs) {
            (Ok(ours), Ok(theirs)) => prop_assert!(is_same(&ours, &theirs), "{text}"),
            (Err(_), Err(_)) => {}
            (Err(error), Ok(theirs)) => prop_assert!(
                error.problem.ends_with("is given twice") || !theirs.is_object(), "{text}: {error}"
            ),
            (Ok(_), Err(error)) => {
                prop_assert!(error.to_string().contains("number out of range"), "{text}: {error}");
            }
        }
    }
}

#[test]
fn lists_of_bytes_are_bytes_only_if_the_reader_asks_for_them() {
    let read = |list: &str, form| {
        let document = format!("{{\"a\":{list}}}");
        let Ok(Json::Object(members)) = parse(document.as_bytes(), form) else { panic!("{list}") };
        match &members[0].1 {
            Json::Bytes(base64) => Some(STANDARD.decode(base64).unwrap()),
            Json::Array(_) => None,
            other => panic!("{other:?}"),
        }
    };
    for (list, bytes) in
        [("[0]", &[0][..]), ("[ 1,2 ,\t3\r\n]", &[1, 2, 3]), ("[255,0,10,100]", &[255, 0, 10, 100])]
    {
        assert_eq!(read(list, Form::ObjectWithBytes).as_deref(), Some(bytes), "{list}");
        assert_eq!(read(list, Form::Object), None, "{list}");
    }
    for list in ["[]", "[256]", "[1.5]", "[-1]", "[1,\"2\"]", "[[1.5]]", "[1e2]", "[1,null]"] {
        assert_eq!(read(list, Form::ObjectWithBytes), None, "{list}");
    }
    // More than are kept of another list.
    let many = format!("[{}7]", "255,".repeat(300_000));
    assert_eq!(read(&many, Form::ObjectWithBytes).unwrap().len(), 300_001);
    for wrong in ["[01]", "[1,]", "[,1]", "[1 2]", "[1", "[00]", "[1,,2]"] {
        let document = format!("{{\"a\":{wrong}}}");
        let (with, without) =
            (parse(document.as_bytes(), Form::ObjectWithBytes), parse_object(document.as_bytes()));
        assert_eq!(with, without, "{wrong}");
        assert!(with.is_err(), "{wrong}");
    }
}

#[test]
fn an_array_is_a_document_of_its_own_form() {
    fn read(text: &str) -> Result<Json<'_>, JsonError> {
        parse(text.as_bytes(), Form::ArrayWithBytes)
    }
    assert!(matches!(read(" [{}, {}] "), Ok(Json::Array(elements)) if elements.len() == 2));
    for (text, problem) in [
        ("{}", "the body is not a JSON array"),
        ("", "the body is empty, not a JSON array"),
        ("[] []", "something follows the JSON array"),
        ("\u{feff}[]", "the body begins with a byte order mark"),
    ] {
        assert_eq!(read(text).unwrap_err().problem, problem, "{text}");
    }
}
