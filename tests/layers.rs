//! The layer map of `src/lib.rs`, and the tidiness of the sources, held against the code.
//!
//! Knows the files as text. Where it fails, either the code took a short cut or the map is to be
//! changed, here and in `src/lib.rs`, on purpose. Unit tests may reach for what they need.

#![expect(clippy::unwrap_used, reason = "a test fails where something is not as it must be")]

#[path = "layers/source.rs"]
mod source;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use source::{Named, Source, Target};

/// Uses within a layer: who, and what of the same layer.
const WITHIN_A_LAYER: [(&str, &[&str]); 13] = [
    ("clock", &["domain"]),
    ("config", &["domain"]),
    ("tally", &["domain"]),
    ("intake", &["outbox"]),
    ("dispatch", &["outbox"]),
    ("feedback", &["outbox"]),
    ("listing", &["outbox"]),
    ("quota", &["dispatch"]),
    ("admin", &["http"]),
    ("operator", &["admin", "http"]),
    ("service", &["admin", "http", "operator"]),
    ("cli", &["admin", "logging", "service"]),
    ("main", &["cli"]),
];
/// Uses of a lower layer that are closed to all but a few.
const RESERVED: [(&str, &[&str]); 1] = [("simulator", &["cli", "service"])];
/// Uses of a lower layer that are closed to some: the HTTP edge has no business with the provider,
/// and flows other than these are told the configuration's values by who starts them.
const CLOSED: [(&str, &[&str]); 4] = [
    ("http", &["config", "dispatch", "ses"]),
    ("intake", &["config"]),
    ("store", &["clock", "config"]),
    ("ses", &["config"]),
];
/// The simulator shares nothing with the sending side but the notion of time.
const SIMULATOR_MAY_USE: [&str; 2] = ["domain", "time"];

/// Crates that belong to some modules alone.
const CRATES: [(&str, &[&str]); 32] = [
    ("aws_config", &["ses"]),
    ("aws_credential_types", &["ses"]),
    ("aws_sigv4", &["ses", "simulator"]),
    ("aws_smithy_runtime_api", &["ses"]),
    ("aws_smithy_types", &["ses"]),
    ("clap", &["cli"]),
    ("clap_complete", &["cli"]),
    ("clap_mangen", &["cli"]),
    ("config", &["config"]),
    ("csv", &["cli"]),
    ("email_address", &["domain"]),
    ("form_urlencoded", &["http", "operator", "ses", "simulator"]),
    ("hashbrown", &["store"]),
    ("http_body_util", &["http", "operator", "simulator"]),
    ("httparse", &["http"]),
    ("hyper_util", &["http", "simulator"]),
    ("idna", &["domain"]),
    ("indicatif", &["cli"]),
    ("listenfd", &["service"]),
    ("mail_builder", &["domain"]),
    ("postcard", &["store"]),
    ("prometheus_client", &["operator"]),
    ("redb", &["store"]),
    ("reqwest", &["ses"]),
    ("roxmltree", &["ses"]),
    ("rustix", &["cli", "service"]),
    ("rustls", &["http", "ses"]),
    ("sd_notify", &["service"]),
    ("tokio_rustls", &["http"]),
    ("toml_edit", &["config"]),
    ("tracing_subscriber", &["logging"]),
    ("uuid", &["domain", "simulator"]),
];
/// What the rules of mail may be written with: nothing that does input or output.
const CRATES_OF_DOMAIN: [&str; 11] = [
    "base64",
    "bytes",
    "email_address",
    "getrandom",
    "humantime",
    "idna",
    "mail_builder",
    "secrecy",
    "sha2",
    "thiserror",
    "uuid",
];

/// The API's field names that mean nothing else.
const FIELD_NAMES: [&str; 7] = [
    "createdAt",
    "idempotencyKey",
    "lastEvent",
    "occurredAt",
    "reply_to",
    "sentAt",
    "sesMessageId",
];
/// Where they may be written down.
const FIELD_NAME_FILES: [&str; 1] = ["src/http/wire.rs"];

/// The longest file, in lines.
const MAX_LINES: usize = 800;
/// Files that are longer and may be.
const LONG_FILES: [&str; 0] = [];

/// Each module's layer, as `src/lib.rs` has it.
fn layers(sources: &[Source]) -> BTreeMap<String, u32> {
    let root = sources.iter().find(|source| source.path == "src/lib.rs").unwrap();
    let mut layers = BTreeMap::new();
    for line in root.text.lines().filter_map(|line| line.strip_prefix("//! ")) {
        let mut words = line.split_whitespace();
        if let Some(Ok(layer)) = words.next().map(str::parse) {
            let _name = words.next();
            for module in words.take_while(|word| !word.starts_with('(')) {
                assert_eq!(
                    layers.insert(module.to_owned(), layer),
                    None,
                    "{module} is there twice"
                );
            }
        }
    }
    layers
}

/// Fails with all problems, one a line.
fn none(problems: &BTreeSet<String>) {
    let lines: Vec<_> = problems.iter().map(String::as_str).collect();
    assert!(problems.is_empty(), "\n{}\n", lines.join("\n"));
}

fn listed<'a>(table: &[(&str, &'a [&'a str])], name: &str) -> Option<&'a [&'a str]> {
    table.iter().find(|(listed, _)| *listed == name).map(|(_, names)| *names)
}

#[test]
fn the_map_names_every_module() {
    let sources = Source::all();
    let map: BTreeSet<_> = layers(&sources).into_keys().collect();
    let modules: BTreeSet<_> =
        sources.iter().map(|source| source.top().to_owned()).filter(|top| top != "lib").collect();
    assert_eq!(map, modules);
}

#[test]
fn modules_use_what_is_below_them() {
    let sources = Source::all();
    let layers = layers(&sources);
    let mut problems = BTreeSet::new();
    let mut within = BTreeSet::new();
    for source in shipped(&sources).filter(|source| source.top() != "lib") {
        let user = source.top();
        for named in shipped_names(source) {
            let Target::Own(path) = &named.target else { continue };
            let Some(used) = path.first().filter(|used| *used != user) else { continue };
            let line = format!("{}:{}: {user} uses {}", source.path, named.line, path.join("::"));
            let Some(layer) = layers.get(used) else {
                problems.insert(format!("{line}, which is no module of the map"));
                continue;
            };
            if *layer > layers[user] {
                problems.insert(format!("{line}, which is above it"));
            }
            if *layer == layers[user] {
                within.insert((user.to_owned(), used.clone()));
                if !listed(&WITHIN_A_LAYER, user).is_some_and(|list| list.contains(&used.as_str()))
                {
                    problems.insert(format!("{line}, which is beside it"));
                }
            }
            if listed(&RESERVED, used).is_some_and(|list| !list.contains(&user)) {
                problems.insert(format!("{line}, which is not for it"));
            }
            if listed(&CLOSED, user).is_some_and(|list| list.contains(&used.as_str())) {
                problems.insert(format!("{line}, which is none of its business"));
            }
            if user == "simulator" && !path.starts_with(&SIMULATOR_MAY_USE.map(str::to_owned)) {
                problems.insert(format!("{line}, and could agree with it on a mistake"));
            }
        }
    }
    none(&problems);
    let expected: BTreeSet<_> = WITHIN_A_LAYER
        .iter()
        .flat_map(|(user, list)| list.iter().map(|used| ((*user).to_owned(), (*used).to_owned())))
        .collect();
    assert_eq!(within, expected, "the list of uses within a layer is out of date");
}

#[test]
fn crates_stay_where_they_belong() {
    let mut problems = BTreeSet::new();
    for source in shipped(&Source::all()) {
        for named in shipped_names(source) {
            let Target::External(name) = &named.target else { continue };
            if listed(&CRATES, name).is_some_and(|list| !list.contains(&source.top())) {
                problems.insert(format!("{}:{}: uses {name}", source.path, named.line));
            }
        }
    }
    none(&problems);
}

#[test]
fn the_domain_does_no_input_and_no_output() {
    let dependencies = dependencies("dependencies");
    let mut problems = BTreeSet::new();
    for source in shipped(&Source::all()).filter(|source| source.top() == "domain") {
        for named in shipped_names(source) {
            let Target::External(name) = &named.target else { continue };
            if dependencies.contains(name) && !CRATES_OF_DOMAIN.contains(&name.as_str()) {
                problems.insert(format!("{}:{}: uses {name}", source.path, named.line));
            }
        }
    }
    none(&problems);
}

#[test]
fn field_names_are_written_down_in_one_place() {
    let mut problems = BTreeSet::new();
    for source in shipped(&Source::all()).filter(|source| source.top() == "http") {
        if FIELD_NAME_FILES.contains(&source.path.as_str()) {
            continue;
        }
        for (text, line) in source.texts() {
            if FIELD_NAMES.iter().any(|name| text.contains(name)) {
                problems.insert(format!("{}:{line}: {text:?}", source.path));
            }
        }
    }
    none(&problems);
}

#[test]
fn files_are_short_and_say_what_they_are_for() {
    let sources = Source::all();
    let mut problems = BTreeSet::new();
    for source in shipped(&sources).filter(|source| !source.text.starts_with("//! ")) {
        problems.insert(format!("{}: does not say what it is for", source.path));
    }
    for source in &sources {
        let lines = source.text.lines().count();
        if lines > MAX_LINES && !LONG_FILES.contains(&source.path.as_str()) {
            problems.insert(format!("{}: {lines} lines; {MAX_LINES} are enough", source.path));
        }
        if source.path.ends_with("/mod.rs") {
            problems.insert(format!("{}: foo.rs, not foo/mod.rs", source.path));
        }
        for name in ["dbg", "todo", "unimplemented"] {
            for line in source.macro_calls(name) {
                problems.insert(format!("{}:{line}: {name}!", source.path));
            }
        }
    }
    none(&problems);
}

#[test]
fn every_dependency_is_used_outside_of_tests() {
    let mut used = BTreeSet::new();
    for source in shipped(&Source::all()) {
        for named in shipped_names(source) {
            if let Target::External(name) = named.target {
                used.insert(name);
            }
        }
    }
    let unused: BTreeSet<_> = dependencies("dependencies").difference(&used).cloned().collect();
    none(&unused);
}

fn dependencies(section: &str) -> BTreeSet<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let manifest: toml::Table =
        std::fs::read_to_string(root.join("Cargo.toml")).unwrap().parse().unwrap();
    manifest[section].as_table().unwrap().keys().map(|name| name.replace('-', "_")).collect()
}

/// The files that are not tests, by themselves or by a module above them.
fn shipped(sources: &[Source]) -> impl Iterator<Item = &Source> {
    let tests: BTreeSet<_> = sources.iter().flat_map(Source::test_modules).collect();
    sources.iter().filter(move |source| {
        !(1..=source.module.len()).any(|length| tests.contains(&source.module[..length]))
    })
}

/// What a file names outside of its tests.
fn shipped_names(source: &Source) -> impl Iterator<Item = Named> {
    source.names().into_iter().filter(|named| !named.is_test)
}
