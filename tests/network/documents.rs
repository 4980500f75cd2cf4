//! Bodies of the largest size, with any content: six at once take their own size and little more,
//! and none holds up other clients.

use std::time::{Duration, Instant};

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{Config, TestRunner};
use tokio::task::JoinSet;

use crate::client::{Client, post_head_to};
use crate::site::{Running, Target};

/// Size of a document, in bytes, and the number that come at once. The long form has the largest that
/// is read, for which a debug build takes minutes of processor time.
const SIZE: usize = if cfg!(feature = "long") { 10_000_000 } else { 2_000_000 };
const AT_ONCE: usize = 6;
/// Memory that they may take beyond their own size, in bytes.
const ROOM: usize = if cfg!(feature = "long") { 64 << 20 } else { 16 << 20 };
/// Number of generated shapes.
const MADE_UP: u32 = if cfg!(feature = "long") { 200 } else { 6 };

/// A document: what is repeated until it has its size, and what is before and after.
#[derive(Debug, Clone)]
struct Shape {
    name: String,
    path: &'static str,
    before: String,
    unit: Unit,
    after: String,
}

#[derive(Debug, Clone)]
enum Unit {
    Same(String),
    /// With a number in place of each `#`, another one each time.
    Numbered(String),
}

impl Shape {
    fn new(name: &str, before: &str, unit: &str, after: &str) -> Self {
        let text = unit.to_owned();
        let unit = if unit.contains('#') { Unit::Numbered(text) } else { Unit::Same(text) };
        let (before, after) = (before.to_owned(), after.to_owned());
        Self { name: name.to_owned(), path: "/emails", before, unit, after }
    }

    fn document(&self) -> String {
        let mut document = String::with_capacity(SIZE + 1_000);
        document.push_str(&self.before);
        let mut number = 0;
        while document.len() + self.after.len() < SIZE {
            match &self.unit {
                Unit::Same(unit) => document.push_str(unit),
                Unit::Numbered(unit) => document.push_str(&unit.replace('#', &number.to_string())),
            }
            number += 1;
        }
        document.push_str(&self.after);
        document
    }
}

/// An otherwise valid message with this field last, whose value is repeated.
fn field(name: &str, before: &str, unit: &str, after: &str) -> Shape {
    let rest: Vec<_> = [
        ("from", "\"ann@example.com\""),
        ("to", "[\"bob@example.org\"]"),
        ("subject", "\"Hi\""),
        ("text", "\"Hello\""),
    ]
    .iter()
    .filter(|(other, _)| *other != name)
    .map(|(other, value)| format!("\"{other}\":{value},"))
    .collect();
    let rest = rest.concat();
    let before = format!("{{{rest}\"{name}\":{before}");
    Shape::new(&format!("{name}: {unit}"), &before, unit, &format!("{after}}}"))
}

fn known() -> Vec<Shape> {
    let sixteen: Vec<_> = (0..16).map(|n| format!("\"{n}\":0,")).collect();
    let sixteen = sixteen.concat();
    let object = |members: u32| {
        let members: Vec<_> = (0..members).map(|n| format!("\"{n}\":0")).collect();
        format!("{{{}}},", members.join(","))
    };
    vec![
        Shape::new("equal keys after 16 others", &format!("{{{sixteen}"), "\"\":0,", "\"\":0}"),
        Shape::new("other keys each time", "{", "\"#\":0,", "\"x\":0}"),
        Shape::new("keys of one size", "{", "\"aaaaaaaaaaaaaaaaaaaa#\":0,", "\"x\":0}"),
        Shape::new("one key", "{\"", "\\n", "\":0}"),
        Shape::new("objects", "{\"to\":[", &object(1), "0]}"),
        Shape::new("objects of 15", "{\"to\":[", &object(15), "0]}"),
        Shape::new("objects of 60", "{\"to\":[", &object(60), "0]}"),
        Shape::new("lists of lists", "{\"to\":[", "[[[[[]]]]],", "[]]}"),
        Shape::new(
            "deep lists",
            "{\"to\":[",
            &format!("{}{},", "[".repeat(30), "]".repeat(30)),
            "[]]}",
        ),
        Shape::new(
            "deep objects",
            "{\"to\":[",
            &format!("{}0{},", "{\"a\":".repeat(30), "}".repeat(30)),
            "0]}",
        ),
        Shape::new("white space", "{", " \n", "}"),
        field("to", "[", "0,", "0]"),
        field("to", "[", "\"\",", "\"\"]"),
        field("to", "[", "\"\\u0061\",", "\"\"]"),
        field("to", "[\"", "a", "@example.org\"]"),
        field("to", "[\"", "\\n", "@example.org\"]"),
        field("from", "\"a@", "é", ".example\""),
        field("from", "\"a@", "a.", "example\""),
        field("from", "\"", "é", " <ann@example.com>\""),
        field("from", "\"\\\"", "\\\\", "\\\" <ann@example.com>\""),
        field("from", "\"", " ", "ann@example.com\""),
        field("subject", "\"", "\\u00e9", "\""),
        field("subject", "\"", "x", "\""),
        field("text", "\"", "x", "\""),
        field("text", "\"", "\\n", "\""),
        field("html", "\"", "\\u00e9", "\""),
        field("headers", "{", "\"X-#\":\"1\",", "\"X-A\":\"1\"}"),
        field("headers", "{\"X-A\":\"", "\\u0061", "\"}"),
        field("headers", "{\"X-", "a", "\":\"1\"}"),
        field("headers", "{\"X-", "\\u0061", "\":\"1\"}"),
        field("idempotencyKey", "\"", "\\u00e9", "\""),
        field("tag", "", "1", ""),
        field("tag", "0.", "1", "e9"),
    ]
}

/// Lists of files and batches: the largest trees that are kept.
fn large_lists() -> Vec<Shape> {
    let file = r##"{"filename":"#.pdf","content":"QUJD","content_type":"a/b","content_id":"#"},"##;
    let batch = |name: &str, unit: &str| {
        let shape = Shape::new(&format!("batch: {name}"), "{\"emails\":[", unit, "{}]}");
        Shape { path: "/emails/batch", ..shape }
    };
    let files = file.repeat(101);
    let files = files.trim_end_matches(',');
    vec![
        field("attachments", "[", file, "{}]"),
        field("attachments", "[", "{},", "{}]"),
        field("attachments", "[{\"filename\":\"a.pdf\",\"content\":\"", "\\/\\/\\/\\/", "\"}]"),
        field("metadata", "{", "\"#\":\"1\",", "\"a\":\"1\"}"),
        batch("one member", "{\"tag\":0},"),
        batch(
            "messages",
            "{\"from\":\"a@example.com\",\"to\":[\"#@example.org\"],\"subject\":\"#\",\"text\":\"#\"},",
        ),
        batch("files", &format!("{{\"attachments\":[{files}]}},")),
        batch("lists of files", &format!("{{\"attachments\":[{}0]}},", "[0],".repeat(100))),
    ]
}

/// Shapes that no author has thought of.
fn made_up() -> impl Strategy<Value = Shape> {
    let text = "([a-z#]|\\\\n|\\\\u00e9|é){0,6}";
    let leaf = prop_oneof![
        Just("0".to_owned()),
        Just("null".to_owned()),
        "[1-9][0-9]{0,9}",
        text.prop_map(|text| format!("\"{text}\"")),
    ];
    let value = leaf.prop_recursive(4, 40, 8, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..8)
                .prop_map(|values| format!("[{}]", values.join(","))),
            prop::collection::vec((text, inner), 0..8).prop_map(|members| {
                let members = members.iter().enumerate();
                // Keys that differ, so that most objects are read to their end.
                let members = members.map(|(n, (key, value))| format!("\"{n}{key}\":{value}"));
                format!("{{{}}}", members.collect::<Vec<_>>().join(","))
            }),
        ]
    });
    let level = prop_oneof![Just(('[', ']')), Just(('{', '}'))];
    let levels = prop::collection::vec(level, 1..25);
    let place = prop::sample::select(vec!["to", "headers", "attachments", "emails", "x", "text"]);
    (place, levels, value, text).prop_map(|(place, levels, value, key)| {
        let (mut before, mut after) = (format!("{{\"{place}\":"), String::from("}"));
        let last = levels.len() - 1;
        let mut unit = String::new();
        for (depth, (open, close)) in levels.into_iter().enumerate() {
            before.push(open);
            after.insert(0, close);
            match (open, depth == last) {
                ('{', true) => {
                    unit = format!("\"#{key}\":{value},");
                    after.insert_str(0, "\"\":0");
                }
                ('{', false) => before.push_str("\"a\":"),
                (_, true) => {
                    unit = format!("{value},");
                    after.insert(0, '0');
                }
                (_, false) => {}
            }
        }
        let shape = Shape::new(&format!("{before}{unit}"), &before, &unit, &after);
        let path = if place == "emails" { "/emails/batch" } else { "/emails" };
        Shape { path, ..shape }
    })
}

/// Sends a document so many times at once; how long the slowest answer took, and its status.
async fn send(target: &Target, path: &str, document: &str) -> (u16, Duration) {
    let head = post_head_to(target, path);
    let request = format!("{head}Content-Length: {}\r\n\r\n{document}", document.len());
    let request: std::sync::Arc<[u8]> = request.into_bytes().into();
    let mut answers = JoinSet::new();
    let start = Instant::now();
    for _ in 0..AT_ONCE {
        let (target, request) = (target.clone(), request.clone());
        answers.spawn(async move {
            let mut client = Client::connect(&target).await.unwrap();
            // A refusal may come before all is sent.
            let _ = client.send(&request).await;
            client.answer().await.unwrap().status
        });
    }
    let mut statuses = answers.join_all().await;
    statuses.sort_unstable();
    statuses.dedup();
    assert_eq!(statuses.len(), 1, "{statuses:?}");
    (statuses[0], start.elapsed())
}

#[tokio::test(flavor = "multi_thread")]
async fn six_of_the_largest_documents_take_their_own_size_and_little_more() {
    let mut shapes = known();
    shapes.extend(large_lists());
    let mut runner = TestRunner::new_with_rng(
        Config::default(),
        proptest::test_runner::TestRng::deterministic_rng(
            proptest::test_runner::RngAlgorithm::ChaCha,
        ),
    );
    shapes.extend((0..MADE_UP).map(|_| made_up().new_tree(&mut runner).unwrap().current()));
    let mut site = Running::start("", None).await;
    let mut too_much = Vec::new();
    for shape in shapes {
        let document = shape.document();
        let (before, ticks) = (site.process.resident_bytes(), site.process.processor_ticks());
        site.process.reset_peak();
        let (status, taken) = send(&site.target(), shape.path, &document).await;
        let more = site.process.peak_bytes().saturating_sub(before);
        let cpu = (site.process.processor_ticks() - ticks) * 10 / AT_ONCE as u64;
        let name: String = shape.name.chars().take(60).collect();
        println!(
            "{status} {:>4} MB more, {cpu:>4} ms each, {taken:.1?} in all: {name}",
            more / 1_000_000
        );
        assert!(matches!(status, 200 | 400 | 422), "{status}: {name}");
        if more > AT_ONCE * SIZE + ROOM {
            too_much.push((more, name));
        }
        // What the allocator keeps must not hide what the next one takes.
        if site.process.resident_bytes() > before + (32 << 20) || status == 200 {
            site = Running::start("", None).await;
        }
    }
    assert!(too_much.is_empty(), "{too_much:?}");
}
