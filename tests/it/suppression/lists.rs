//! Lists as other programs write them. The files have invented addresses, and the columns that their
//! programs' documentation or exports show.

use pillarbox_domain::suppression::SuppressionReason::{self, Bounce, Complaint, Manual};

use super::Lists;

const THEN: &str = "2020-04-10T21:03:05";

/// Each list with its addresses (`u` and the number at `example.org`) and their reasons, in order.
const LISTS: [(&str, &[(u32, SuppressionReason)]); 12] = [
    ("aws-cli-v1.csv", &[(2, Bounce), (3, Complaint)]),
    ("aws-cli-text.tsv", &[(27, Bounce)]),
    ("excel-semicolon.csv", &[(5, Bounce)]),
    ("hardbounce.csv", &[(10, Bounce)]),
    ("sendgrid-bounces.csv", &[(7, Bounce), (8, Bounce)]),
    ("mailgun-bounces.csv", &[(11, Bounce), (12, Bounce)]),
    ("postmark-suppressions.csv", &[(13, Bounce), (14, Complaint), (15, Manual)]),
    ("resend-contacts.csv", &[(16, Manual)]),
    ("mailchimp-cleaned.csv", &[(18, Bounce)]),
    ("mailchimp-unsubscribed.csv", &[(19, Manual), (20, Complaint)]),
    ("sparkpost-suppressions.csv", &[(21, Bounce), (22, Complaint), (23, Manual)]),
    ("mandrill-denylist.csv", &[(24, Bounce), (25, Complaint), (26, Manual)]),
];

fn bytes_of(name: &str) -> Vec<u8> {
    let path = format!("{}/tests/it/suppression/lists/{name}", env!("CARGO_MANIFEST_DIR"));
    std::fs::read(path).unwrap()
}

fn in_utf_16(text: &str, encode: fn(u16) -> [u8; 2]) -> Vec<u8> {
    text.encode_utf16().flat_map(encode).collect()
}

/// Imports a list for an organisation and compares what is suppressed then.
async fn assert_imported(name: &str, bytes: &[u8], expected: &[(u32, SuppressionReason)]) {
    let lists = Lists::new().await;
    let ran = lists.run(&["suppression", "import", "-", "--org", "acme"], bytes);
    let listed = lists.listed();
    let found: Vec<_> = listed.iter().map(|(_, one)| (one.address.as_str(), one.reason)).collect();
    let addresses: Vec<_> = expected.iter().map(|(n, _)| format!("u{n}@example.org")).collect();
    let reasons = expected.iter().map(|(_, reason)| *reason);
    let expected: Vec<_> = addresses.iter().map(String::as_str).zip(reasons).collect();
    assert_eq!(found, expected, "{name}: {ran:?}");
    if name != "excel-semicolon.csv" {
        let since = listed[0].1.since.to_string();
        assert!(since.starts_with(THEN), "{name}: {since}");
    }
    // A contact who takes mail is no suppression.
    assert_eq!(ran.code, i32::from(name == "resend-contacts.csv"), "{name}: {ran:?}");
}

#[tokio::test]
async fn lists_of_other_programs_are_read_with_their_reasons_and_times() {
    for (name, expected) in LISTS {
        assert_imported(name, &bytes_of(name), expected).await;
    }
}

#[tokio::test]
async fn a_list_reads_alike_in_every_encoding_and_with_every_end_of_lines() {
    for (name, expected) in LISTS {
        let bytes = bytes_of(name);
        // The bytes that are not UTF-8 are in columns that are not needed.
        let text = String::from_utf8_lossy(&bytes).trim_start_matches('\u{feff}').to_owned();
        let text = text.replace("\r\n", "\n");
        let marked = format!("\u{feff}{text}");
        assert_imported(name, marked.replace('\n', "\r\n").as_bytes(), expected).await;
        assert_imported(name, text.replace('\n', "\r").as_bytes(), expected).await;
        let little = in_utf_16(&marked.replace('\n', "\r\n"), u16::to_le_bytes);
        assert_imported(name, &little, expected).await;
        assert_imported(name, &in_utf_16(&marked, u16::to_be_bytes), expected).await;
        assert_imported(name, &in_utf_16(&text, u16::to_le_bytes), expected).await;
    }
}

#[tokio::test]
async fn what_cannot_be_read_is_refused_once_for_its_cause() {
    let lists = Lists::new().await;
    let many = |row: &str| format!("email,reason\n{}", format!("{row}\n").repeat(2_000));
    let workbook = [&b"PK\x03\x04\x14\0"[..], &[7; 5_000]].concat();
    let plain = "a@x.org\nb@x.org\n".repeat(1_000);
    for (arguments, list, cause) in [
        (&["--org", "acme"][..], workbook, "Excel workbook"),
        (&["--org", "acme"], b"[{\"email\":\"a@x.org\"}]".repeat(1_000), "it is JSON"),
        (&["--org", "acme"], b"\x1f\x8b\x08binary\n".repeat(1_000), "gzip"),
        (&["--org", "acme"], b"name,phone\nAnn,1\n".repeat(1_000), "\"name,phone\""),
        (&[], plain.clone().into_bytes(), "give --org NAME"),
        (&["--org", "nobody"], plain.into_bytes(), "there is no organisation nobody"),
    ] {
        let ran = lists.run(&[&["suppression", "import", "-"], arguments].concat(), &list);
        assert_eq!(ran.code, 1, "{cause}: {ran:?}");
        assert!(ran.err.contains(cause), "{cause}: {}", ran.err);
        // The first line says on which file it works.
        assert_eq!(ran.err.lines().count(), 2, "{cause}: {}", ran.err);
        assert!(lists.listed().is_empty());
    }
    for (row, cause) in [
        ("not an address,bounce", "2,000 rows"),
        ("a@x.org,spite", "1,990 more lines: is not a reason"),
    ] {
        let ran = lists.import(&["--org", "acme"], &many(row));
        assert_eq!(ran.code, 1, "{ran:?}");
        assert!(ran.err.contains(cause), "{}", ran.err);
        assert!(ran.err.lines().count() < 15, "{}", ran.err);
        let ran = lists.import(&["--org", "acme", "--json"], &many(row));
        let answer: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
        assert_eq!(answer["refused"].as_array().unwrap().len(), 2_000);
    }
}

#[tokio::test]
async fn rows_without_a_reason_get_the_one_of_the_command_line() {
    let lists = Lists::new().await;
    let list = "sep=;\nip;email;created\n10.0.0.1;a@x.org;1586552585\n;not one;\n";
    let ran = lists.import(&["--org", "acme", "--reason", "complaint"], list);
    assert!(ran.err.contains("line 4: \"not one\" is not an address"), "{ran:?}");
    let listed = lists.listed();
    assert_eq!((listed.len(), listed[0].1.reason), (1, Complaint));
    let ran = lists.import(&["--org", "acme", "--reason", "spite"], list);
    assert_eq!(ran.code, 2, "{ran:?}");
}
