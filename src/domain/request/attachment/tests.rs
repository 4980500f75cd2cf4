use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use super::*;

fn draft<'a>(filename: &'a str, content: &'a str) -> AttachmentDraft<'a> {
    AttachmentDraft {
        filename: Some(filename.into()),
        content: Some(BodyText::Json(content)),
        ..AttachmentDraft::default()
    }
}

fn field(drafts: Vec<AttachmentDraft<'_>>) -> Option<String> {
    checked_attachments(drafts).err().map(|error| error.field.unwrap())
}

#[test]
fn base64_is_taken_as_a_decoder_takes_it() {
    let alphabet = ['A', 'Q', 'B', '/', '=', '-', '\u{e9}'];
    // Every text of up to six of these.
    for length in 1..=6 {
        for number in 0..alphabet.len().pow(length) {
            let digits =
                (0..length).map(|place| number / alphabet.len().pow(place) % alphabet.len());
            let text: String = digits.map(|digit| alphabet[digit]).collect();
            let expected = STANDARD.decode(&text).is_ok();
            assert_eq!(is_base64(BodyText::Plain(&text)), expected, "{text}");
            assert_eq!(is_base64(BodyText::Json(&text)), expected, "{text}");
            let escaped = text.replace('/', "\\/").replace('B', "\\u0042").replace('=', "\\u003D");
            for escaped in [&escaped, &escaped.replace('Q', "\\u0051")] {
                assert_eq!(is_base64(BodyText::Json(escaped)), expected, "{escaped}");
            }
        }
    }
}

#[test]
fn every_byte_has_its_digit_and_nothing_else_is_taken() {
    let all: Vec<u8> = (0..=255).cycle().take(3_000).collect();
    for end in [2_998, 2_999, 3_000] {
        assert!(is_base64(BodyText::Json(&STANDARD.encode(&all[..end]))));
    }
    for wrong in [
        "QUJD\\n",
        "QUJD\\r\\nQUJD",
        "QUJD\n",
        " QUJD",
        "QUI",
        "QUI==",
        "QU==QUJD",
        "QR==",
        "QUJ=",
        "====",
        "Q===",
        "_-_-",
        "\\u0141UJD",
        "\\u0021UJD",
        "QUI\\u0021",
        "\\\\QUJ",
    ] {
        assert!(!is_base64(BodyText::Json(wrong)), "{wrong}");
    }
}

#[test]
fn a_file_has_a_name_with_an_extension_that_ses_takes() {
    for name in [
        "a.pdf",
        ".a.b",
        "Rechnung \u{fc} \u{1f4ee}.PDF",
        "a.tar.gz",
        "exe.a",
        &format!("{}.b", "\u{e9}".repeat(253)),
    ] {
        assert_eq!(field(vec![draft(name, "QUJD")]), None, "{name}");
    }
    let long = format!("{}.b", "a".repeat(254));
    for name in [
        "",
        "a",
        "a.",
        ".pdf",
        "a. ",
        "a\n.pdf",
        "a/b.pdf",
        "a\\b.pdf",
        "a.EXE",
        "a.js ",
        "a.pdf\u{85}",
        &long,
    ] {
        let error = field(vec![draft("a.pdf", "QUJD"), draft(name, "QUJD")]);
        assert_eq!(error.as_deref(), Some("attachments[1].filename"), "{name}");
    }
    for extension in BLOCKED_EXTENSIONS {
        let name = format!("a.{extension}");
        assert!(field(vec![draft(&name, "QUJD")]).is_some(), "{name}");
    }
}

#[test]
fn a_type_is_the_clients_or_goes_by_the_extension() {
    for (name, expected) in [
        ("a.PDF", "application/pdf"),
        ("a.png", "image/png"),
        ("a.csv", "text/csv"),
        ("a.docx", "application/vnd.openxmlformats-officedocument.wordprocessingml.document"),
        ("a.ics", "text/calendar"),
        ("a.nobody-knows", UNKNOWN_TYPE),
    ] {
        let checked = checked_attachments(vec![draft(name, "QUJD")]).unwrap();
        assert_eq!(checked[0].content_type, expected, "{name}");
        assert!(is_media_type(expected));
    }
    let long = format!("a/{}", "b".repeat(76));
    for given in ["a/b", "image/svg+xml", &long] {
        let one = AttachmentDraft { content_type: Some(given), ..draft("a.pdf", "QUJD") };
        assert_eq!(checked_attachments(vec![one]).unwrap()[0].content_type, given);
    }
    let long = format!("a/{}", "b".repeat(77));
    for wrong in
        ["", "a", "/", "a/", "/b", "a/b/c", "a/b; c=d", "a /b", "a/b\r\nX: y", "a/\u{e9}", &long]
    {
        let one = AttachmentDraft { content_type: Some(wrong), ..draft("a.pdf", "QUJD") };
        assert_eq!(field(vec![one]).as_deref(), Some("attachments[0].content_type"), "{wrong}");
    }
}

#[test]
fn a_content_id_is_there_once() {
    let with = |id| AttachmentDraft { content_id: Some(id), ..draft("a.png", "QUJD") };
    let long = "i".repeat(78);
    assert_eq!(field(vec![with("a"), with("A"), with("logo@x.org"), with(&long)]), None);
    assert_eq!(field(vec![draft("a.png", "QUJD"), draft("a.png", "QUJD")]), None);
    let twice = field(vec![with("a"), with("b"), with("a")]);
    assert_eq!(twice.as_deref(), Some("attachments[2].content_id"));
    let long = "i".repeat(79);
    for wrong in ["", "a b", "<a", "a>", "\u{e9}", "a\n", &long] {
        assert_eq!(field(vec![with(wrong)]).as_deref(), Some("attachments[0].content_id"));
    }
}

#[test]
fn a_name_and_content_are_required_and_fifty_files_are_the_most() {
    let none = AttachmentDraft::default();
    assert_eq!(field(vec![none.clone()]).as_deref(), Some("attachments[0].filename"));
    let named = AttachmentDraft { filename: Some("a.pdf".into()), ..none };
    assert_eq!(field(vec![named]).as_deref(), Some("attachments[0].content"));
    assert_eq!(field(vec![draft("a.pdf", "")]).as_deref(), Some("attachments[0].content"));
    assert_eq!(field(vec![draft("a.pdf", "QUJD"); 50]), None);
    assert_eq!(field(vec![draft("a.pdf", "QUJD"); 51]).as_deref(), Some("attachments"));
}
