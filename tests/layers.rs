//! Holds the layer map of `src/main.rs` against the manifests of the crates, and what no manifest says
//! against the sources.
//!
//! Reads the sources as rustfmt leaves them, without comments and unit tests: unit tests may import
//! anything. The compiler and lints hold the rest: `wildcard_imports` (no globs),
//! `unused_crate_dependencies`, `mod_module_files`, `dbg_macro`, `todo`, `unimplemented`.

#![expect(clippy::unwrap_used, reason = "a test fails if something is not as it must be")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use pillarbox_runtime::tasks::Task;

/// Lower crates, and crates of others, that a crate must not use.
const CLOSED: [(&str, &[&str]); 6] = [
    ("alerts", &["pillarbox-config", "pillarbox-http", "pillarbox-ses"]),
    ("api", &["pillarbox-config", "pillarbox-dispatch", "pillarbox-ses", "tokio"]),
    ("intake", &["pillarbox-config"]),
    ("resend_api", &["pillarbox-config", "pillarbox-dispatch", "pillarbox-ses", "tokio"]),
    ("smtp", &["pillarbox-config", "pillarbox-dispatch", "pillarbox-ses"]),
    ("webhooks", &["pillarbox-config", "pillarbox-http", "pillarbox-ses"]),
];
/// Crates that only these may use.
const RESERVED: [(&str, &[&str]); 3] = [
    ("clap", &["admin", "cli"]),
    ("pillarbox-simulator", &["cli", "providers", "service"]),
    ("reqwest", &["runtime", "ses", "webhooks"]),
];
/// Modules of a folder that import each other. This list only gets shorter.
const KNOWN_CIRCLES: [&str; 0] = [];

/// Files that spawn what is no background task, and what that is.
const SPAWNS: [(&str, &str); 21] = [
    ("src/admin/backup.rs", "a backup, which ends with its body"),
    ("src/admin/client.rs", "a command's connection"),
    ("src/admin/restart.rs", "a program"),
    ("src/runtime/detached_thread.rs", "a call, whose caller learns of its panic"),
    ("src/dispatch/lib.rs", "a message's attempt"),
    ("src/dispatch/attempt.rs", "a message's attempt"),
    ("src/dispatch/cancel.rs", "a cancellation"),
    ("src/dispatch/drain.rs", "an outcome"),
    ("src/events/poll.rs", "a batch of events"),
    ("src/http/lib.rs", "a connection"),
    ("src/http/http2.rs", "a request"),
    ("src/http/refusal_log.rs", "a line of the log, once its second is over"),
    ("src/runtime/resolver.rs", "a look-up"),
    ("src/simulator/lib.rs", "the simulator"),
    ("src/simulator/server.rs", "a connection of the simulator"),
    ("src/smtp/lib.rs", "a session"),
    ("src/store/postgres/connection.rs", "a connection of PostgreSQL"),
    ("src/store/listing.rs", "a page of messages or of the feed"),
    ("src/store/postgres/session.rs", "a transaction that is given up"),
    ("src/store/postgres/tasks.rs", "the task that it is given"),
    ("src/webhooks/endpoint.rs", "an attempt, or a commit"),
];

/// A source that is part of the program, and its module from the crate's root.
struct Source {
    path: String,
    module: Vec<String>,
    text: String,
    /// Without comments and unit tests.
    code: String,
}

impl Source {
    fn all() -> Vec<Self> {
        let (mut sources, mut tests) = (Vec::new(), BTreeSet::new());
        let mut folders = vec!["src".to_owned()];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(&folder).unwrap() {
                let name = entry.unwrap().file_name().into_string().unwrap();
                match name.strip_suffix(".rs") {
                    Some(_) => sources.push(Self::read(format!("{folder}/{name}"), &mut tests)),
                    None if name.contains('.') => {}
                    None => folders.push(format!("{folder}/{name}")),
                }
            }
        }
        let is_test = |module: &[String]| (1..=module.len()).any(|n| tests.contains(&module[..n]));
        sources.retain(|source| !is_test(&source.module));
        sources
    }

    fn read(path: String, tests: &mut BTreeSet<Vec<String>>) -> Self {
        let text = fs::read_to_string(&path).unwrap();
        let module = path.trim_end_matches(".rs").split('/').skip(1).filter(|part| *part != "lib");
        let module: Vec<_> = module.map(str::to_owned).collect();
        let (code, _) = text.split_once("\n#[cfg(test)]\nmod tests {").unwrap_or((&text, ""));
        let is_code = |line: &&str| !line.trim_start().starts_with("//");
        let code: Vec<_> = code.lines().filter(is_code).collect();
        for pair in code.windows(2).filter(|pair| pair[0].starts_with("#[cfg(")) {
            let name = pair[1].split_once("mod ").and_then(|(_, name)| name.strip_suffix(';'));
            tests.extend(name.map(|name| [&module[..], &[name.to_owned()]].concat()));
        }
        let code = code.join("\n");
        Self { path, module, text, code }
    }
}

/// The paths of our own that the code of a module names, from `src`.
fn own_paths(module: &[String], code: &str) -> BTreeSet<Vec<String>> {
    let root = &module[..1];
    let mut found = BTreeSet::new();
    for start in ["crate::", "super::", "pillarbox_"] {
        for (at, _) in code.match_indices(start) {
            if code[..at].ends_with(|c: char| c.is_alphanumeric() || "_:$".contains(c)) {
                continue;
            }
            for path in expand(&code[at..]) {
                let parts = path.split("::").map(str::to_owned).filter(|part| !part.is_empty());
                let (up, down): (Vec<_>, Vec<_>) = parts.partition(|part| part == "super");
                let other = down.first().and_then(|first| first.strip_prefix("pillarbox_"));
                found.insert(match (other, up.len()) {
                    (Some(other), _) => [&[other.to_owned()], &down[1..]].concat(),
                    (None, 0) => [root, &down[1..]].concat(),
                    (None, up) => [&module[..module.len() - up], &down].concat(),
                });
            }
        }
    }
    found.retain(|path| !path.is_empty());
    found
}

/// The paths of a tree such as `a::{b, c::d}`, at the start of the text.
fn expand(text: &str) -> Vec<String> {
    let end = text.find(|c: char| !c.is_alphanumeric() && c != '_' && c != ':');
    let (head, rest) = text.split_at(end.unwrap_or(text.len()));
    let (true, Some(body)) = (head.ends_with("::"), rest.strip_prefix('{')) else {
        return vec![head.to_owned()];
    };
    let (mut found, mut depth, mut start) = (Vec::new(), 0, 0);
    for (at, c) in body.char_indices() {
        if depth == 0 && matches!(c, ',' | '}') {
            let inner = expand(body[start..at].trim());
            found.extend(inner.into_iter().map(|path| format!("{head}{path}")));
            start = at + 1;
        }
        match c {
            '{' => depth += 1,
            '}' if depth == 0 => break,
            '}' => depth -= 1,
            _ => {}
        }
    }
    found
}

/// Layer of each crate, as `src/main.rs` has it.
fn layers() -> BTreeMap<&'static str, u32> {
    let map = include_str!("../src/main.rs").lines().filter_map(|line| line.strip_prefix("//! "));
    map.filter_map(|line| Some((line, line.split(' ').next()?.parse().ok()?)))
        .flat_map(|(line, layer)| {
            let crates = line.split_whitespace().skip(2).take_while(|word| !word.starts_with('('));
            crates.map(move |name| (name, layer))
        })
        .collect()
}

fn manifest(name: &str) -> toml::Table {
    fs::read_to_string(format!("src/{name}/Cargo.toml")).unwrap().parse().unwrap()
}

#[test]
fn crates_use_what_is_below_them() {
    const ADAPTERS: u32 = 3;
    let (layers, mut problems) = (layers(), BTreeSet::new());
    let entries = fs::read_dir("src").unwrap().map(|entry| entry.unwrap());
    let folders = entries.filter(|entry| entry.file_type().unwrap().is_dir());
    let folders: BTreeSet<_> =
        folders.map(|folder| folder.file_name().into_string().unwrap()).collect();
    assert_eq!(folders, layers.keys().map(|name| (*name).to_owned()).collect(), "left: folders");
    for (name, layer) in &layers {
        let closed = CLOSED.iter().filter(|(user, _)| user == name).flat_map(|(_, closed)| *closed);
        let reserved = RESERVED.iter().filter(|(_, users)| !users.contains(name));
        let refused: Vec<_> = closed.chain(reserved.map(|(used, _)| used)).collect();
        for used in manifest(name)["dependencies"].as_table().unwrap().keys() {
            let own = used.strip_prefix("pillarbox-");
            let is_above = own
                .map(|own| layers[&*own.replace('-', "_")])
                .is_some_and(|other| other > *layer || (other == ADAPTERS && *layer == ADAPTERS));
            if is_above || refused.contains(&&&**used) {
                problems.insert(format!("{name} uses {used}"));
            }
        }
    }
    assert_eq!(problems, BTreeSet::new());
}

/// Examples in documentation are compiled for each crate by itself, which takes time if it has none.
#[test]
fn each_crate_runs_the_examples_that_it_has() {
    let sources = Source::all();
    for name in layers().into_keys() {
        let own = sources.iter().filter(|source| source.module[0] == name);
        let has_one = own.flat_map(|source| source.text.lines()).any(|line| {
            let line = line.trim_start();
            line.starts_with("//! ```") || line.starts_with("/// ```")
        });
        let is_left_out = manifest(name)["lib"].get("doctest") == Some(&false.into());
        assert_ne!(has_one, is_left_out, "src/{name}/Cargo.toml: doctest = false");
    }
}

/// The server knows nothing of mail, the simulator shares nothing with the sending side, and the store
/// is told the time.
#[test]
fn crates_name_no_more_of_others_than_they_should() {
    let mut problems = BTreeSet::new();
    for Source { path, module, code, .. } in &Source::all() {
        for used in own_paths(module, code) {
            let is_foreign = match module.first().map(String::as_str) {
                Some("http" | "simulator") => used[0] == "domain" && used[1] != "time",
                Some("store") => used[..used.len().min(2)] == ["runtime", "clock"],
                _ => false,
            };
            if is_foreign {
                problems.insert(format!("{path} names {}", used.join("::")));
            }
        }
    }
    assert_eq!(problems, BTreeSet::new());
}

#[test]
fn modules_of_a_folder_do_not_import_each_other() {
    let sources = Source::all();
    let modules: BTreeSet<_> = sources.iter().map(|source| &source.module[..]).collect();
    let mut imports = BTreeMap::<_, BTreeSet<_>>::new();
    for Source { module, code, .. } in &sources {
        for path in own_paths(module, code) {
            let shared = module.iter().zip(&path).take_while(|(a, b)| a == b).count();
            if shared < module.len() && path.get(..=shared).is_some_and(|p| modules.contains(p)) {
                let user = module[..=shared].to_vec();
                imports.entry(user).or_default().insert(path[..=shared].to_vec());
            }
        }
    }
    let reached = |from| {
        let (mut seen, mut next) = (BTreeSet::new(), vec![from]);
        while let Some(module) = next.pop() {
            let used = imports.get(module).into_iter().flatten();
            next.extend(used.filter(|used| seen.insert(*used)));
        }
        seen
    };
    let mut circles = BTreeSet::new();
    for module in imports.keys().filter(|module| reached(module).contains(module)) {
        let members = reached(module).into_iter().filter(|other| reached(other).contains(module));
        let names: Vec<_> = members.map(|member| member.last().unwrap().as_str()).collect();
        circles.insert(format!("{}: {}", module[..module.len() - 1].join("::"), names.join(" ")));
    }
    assert_eq!(circles, KNOWN_CIRCLES.map(str::to_owned).into(), "left: the circles there are");
}

/// Functions that take a thread of the runtime's pool for blocking work, and the modules that may
/// call them. Store reads run there: what may hang has threads of its own.
#[test]
fn nothing_but_store_reads_runs_on_the_blocking_pool() {
    const CALLS: [&str; 4] = ["spawn_blocking(", "lookup_host(", "to_socket_addrs(", "GaiResolver"];
    let mut problems = BTreeSet::new();
    for Source { path, module, code, .. } in Source::all() {
        let module = module.join("::");
        for call in CALLS {
            let may = match call {
                "spawn_blocking(" => {
                    module.split("::").next() == Some("store")
                        || ["service::store", "admin::backup"].contains(&module.as_str())
                }
                "to_socket_addrs(" => module == "runtime::resolver",
                _ => false,
            };
            if !may && code.contains(call) {
                problems.insert(format!("{path} calls {call}"));
            }
        }
    }
    assert_eq!(problems, BTreeSet::new());
}

#[test]
fn what_goes_on_in_the_background_is_a_declared_task() {
    let (mut problems, mut spawning) = (BTreeSet::new(), BTreeSet::new());
    let mut begun: BTreeMap<_, _> = Task::ALL.iter().map(|task| (format!("{task:?}"), 0)).collect();
    for Source { path, code, .. } in Source::all() {
        let name = |at: usize| {
            let is_end = |c: char| !c.is_alphanumeric();
            code[at..].trim_start().strip_prefix("Task::")?.split(is_end).next()
        };
        for (at, call) in code.match_indices("spawn(") {
            if name(at + call.len()).is_some() || code[..at].ends_with("fn ") {
                continue;
            }
            if SPAWNS.iter().any(|(file, _)| *file == path) {
                spawning.insert(path.clone());
            } else {
                problems.insert(format!("{path} spawns something else than a Task"));
            }
        }
        for name in code.match_indices("Task::").filter_map(|(at, _)| name(at)) {
            if let Some(begun) = begun.get_mut(name) {
                *begun += 1;
            }
        }
    }
    assert_eq!(problems, BTreeSet::new());
    assert_eq!(spawning, SPAWNS.map(|(file, _)| file.to_owned()).into(), "left: what spawns");
    begun.retain(|_, times| *times != 1);
    assert!(begun.is_empty(), "tasks that are not begun at one place: {begun:?}");
}

#[test]
fn files_have_a_subject_and_an_end() {
    for Source { path, text, .. } in Source::all() {
        assert!(text.starts_with("//! "), "{path} does not say what it is for");
        assert!(text.lines().count() <= 800, "{path} has more than 800 lines");
    }
}
