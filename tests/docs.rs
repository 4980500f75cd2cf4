//! README and `docs/`: their lists match the code, and their links have targets.
//!
//! The reference pages are generated. `UPDATE_DOCS=1 cargo test --test docs` writes them anew.

#![expect(clippy::unwrap_used, reason = "a test fails if something is not as it must be")]

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use pillarbox_admin::conditions::{Alerts, Definition, Readiness, Severity, definitions};
use pillarbox_config::{Config, DefaultOrExample, KeyReference, reference};
use pillarbox_simulator::Fault;
use serde_json::Value;

const GENERATED: &str = "<!-- generated: UPDATE_DOCS=1 cargo test --test docs -->";
const MAX_README_LINES: usize = 150;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Compares a file with what it must be, or writes it if `UPDATE_DOCS` is set.
fn hold(path: &str, expected: &str) {
    // Other tests read the pages meanwhile.
    if std::env::var_os("UPDATE_DOCS").is_some() && read(path) != expected {
        let new = root().join(format!("{path}.new"));
        fs::write(&new, expected).unwrap();
        fs::rename(new, root().join(path)).unwrap();
    }
    assert!(
        read(path) == expected,
        "{path} is out of date; run: UPDATE_DOCS=1 cargo test --test docs"
    );
}

/// Compares the part of a page below its mark with what it must be.
fn hold_generated(path: &str, generated: &str) {
    let page = read(path);
    let (written_by_hand, _) = page.split_once(GENERATED).expect("the page has the mark");
    hold(path, &format!("{written_by_hand}{GENERATED}\n\n{}\n", generated.trim()));
}

/// The part of a page from a heading to the next one of the same or a higher level.
fn section(path: &str, heading: &str) -> String {
    let page = read(path);
    let level = heading.split(' ').next().unwrap().len();
    let mut lines = page.lines().skip_while(|line| *line != heading);
    assert!(lines.next().is_some(), "{path} has no {heading}");
    let ends = |line: &str| {
        let marks = line.split(' ').next().unwrap_or_default();
        !marks.is_empty() && marks.len() <= level && marks.bytes().all(|byte| byte == b'#')
    };
    lines.take_while(|line| !ends(line)).flat_map(|line| [line, "\n"]).collect()
}

/// The names in backticks in a column of a section's tables.
fn names(path: &str, heading: &str, column: usize) -> BTreeSet<String> {
    let section = section(path, heading);
    let rows = section.lines().filter(|line| line.starts_with("| "));
    rows.filter_map(|row| row.split('|').nth(column + 1)).flat_map(quoted).collect()
}

/// The names between backticks.
fn quoted(text: &str) -> Vec<String> {
    text.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

fn strings(values: &Value) -> BTreeSet<String> {
    values.as_array().unwrap().iter().map(|value| value.as_str().unwrap().to_owned()).collect()
}

fn keys(object: &Value) -> BTreeSet<String> {
    object.as_object().unwrap().keys().cloned().collect()
}

/// Every page: README and what it links to at the root, and `docs/`.
fn pages() -> Vec<PathBuf> {
    let at_root = ["README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"];
    let in_docs = fs::read_dir(root().join("docs")).unwrap().map(|entry| entry.unwrap().path());
    let in_docs = in_docs.filter(|path| path.extension().is_some_and(|end| end == "md"));
    at_root.iter().map(|name| root().join(name)).chain(in_docs).collect()
}

/// The text of a page without its code blocks.
fn prose(path: &Path) -> String {
    let page = fs::read_to_string(path).unwrap();
    page.split("\n```").step_by(2).collect()
}

/// The id that GitHub and mdBook give to a heading.
fn anchor(heading: &str) -> String {
    let text = heading.trim_start_matches('#').trim().to_lowercase();
    let kept = text.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}

fn links(text: &str) -> impl Iterator<Item = &str> {
    text.split("](").skip(1).map(|rest| rest.split(')').next().unwrap())
}

#[test]
fn every_link_leads_somewhere() {
    let mut broken = Vec::new();
    for page in pages() {
        for link in links(&prose(&page)).filter(|link| !link.starts_with("https://")) {
            let (file, id) = link.split_once('#').unwrap_or((link, ""));
            let target = match file {
                "" => page.clone(),
                file => page.parent().unwrap().join(file),
            };
            let has_id =
                || prose(&target).lines().any(|line| line.starts_with('#') && anchor(line) == id);
            // mdBook knows only what is in docs/.
            let leaves_the_book =
                page.parent() == Some(&root().join("docs")) && link.contains("..");
            if !target.exists() || leaves_the_book || (!id.is_empty() && !has_id()) {
                broken.push(format!("{}: {link}", page.display()));
            }
        }
    }
    assert!(broken.is_empty(), "links that lead nowhere:\n{}", broken.join("\n"));
}

#[test]
fn the_book_has_every_page_once() {
    let summary = read("docs/SUMMARY.md");
    let listed: Vec<_> = links(&summary).map(str::to_owned).collect();
    let distinct: BTreeSet<_> = listed.iter().cloned().collect();
    assert_eq!(listed.len(), distinct.len());
    let docs = pages().into_iter().filter(|page| page.parent() == Some(&root().join("docs")));
    let names = docs.map(|page| page.file_name().unwrap().to_str().unwrap().to_owned());
    assert_eq!(distinct, names.filter(|name| name != "SUMMARY.md").collect());
}

#[test]
fn the_readme_is_short_and_has_its_two_commands() {
    let readme = read("README.md");
    assert!(readme.lines().count() <= MAX_README_LINES);
    for command in ["    cargo run --release -- dev", "    cargo test"] {
        assert!(readme.lines().any(|line| line == command), "{command}");
    }
}

#[test]
fn programs_on_pages_are_those_of_the_examples() {
    let sending = [
        "send.py",
        "send.mjs",
        "send.sh",
        "batch.py",
        "batch.mjs",
        "batch.sh",
        "attach.py",
        "attach.mjs",
        "attach.sh",
    ];
    hold_programs("docs/sending.md", &sending);
    hold_programs("docs/message-life.md", &["message.sh"]);
    hold_programs("docs/following.md", &["events.py", "events.mjs"]);
    hold_programs("docs/webhooks.md", &["receive.py", "receive.mjs"]);
}

/// Compares the programs behind the marks of a page with the examples.
fn hold_programs(page: &str, programs: &[&str]) {
    let mut rest = read(page);
    let mut expected = String::new();
    for name in programs {
        let (_, ending) = name.split_once('.').unwrap();
        let language = match ending {
            "py" => "python",
            "mjs" => "js",
            other => other,
        };
        let mark = format!("<!-- file: examples/{name} -->\n");
        let (before, after) = rest.split_once(&mark).unwrap_or_else(|| panic!("no {mark}"));
        let after = after.trim_start();
        let after = match after.strip_prefix("```") {
            Some(block) => block.split_once("\n```\n").unwrap().1,
            None => after,
        };
        let program = read(&format!("examples/{name}"));
        write!(expected, "{before}{mark}\n```{language}\n{program}```\n\n").unwrap();
        rest = after.trim_start().to_owned();
    }
    hold(page, &format!("{}\n", (expected + &rest).trim_end()));
}

#[test]
fn configurations_on_pages_are_accepted() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("pillarbox.toml");
    let mut pages_with_one = BTreeSet::new();
    for page in pages() {
        let text = fs::read_to_string(&page).unwrap();
        for block in text.split("\n```toml\n").skip(1) {
            let (block, _) = block.split_once("\n```").unwrap();
            fs::write(&file, block).unwrap();
            // A secret is read from its file.
            let secret = directory.path().join("secret");
            fs::write(&secret, "whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYX").unwrap();
            let variable = ("PILLARBOX_ALERTS__SECRET_FILE", secret.to_str().unwrap());
            let variables = block.contains("[alerts]").then_some(variable).into_iter();
            let variables = variables.map(|(name, value)| (name.to_owned(), value.to_owned()));
            let loaded = Config::load(Some(&file), variables);
            assert!(loaded.is_ok(), "{}: {loaded:?}\n{block}", page.display());
            pages_with_one.insert(page.file_name().unwrap().to_str().unwrap().to_owned());
        }
    }
    for page in ["deployment.md", "resend.md", "smtp.md"] {
        assert!(pages_with_one.contains(page), "{pages_with_one:?}");
    }
}

#[test]
fn the_configuration_page_has_every_key() {
    let mut page = String::new();
    for KeyReference { key, variable, meaning, value, allowed } in reference() {
        let default = match value {
            DefaultOrExample::Default(value) => format!("`{value}`"),
            DefaultOrExample::Example(value) => format!("none; for example `{value}`"),
        };
        write!(
            page,
            "## `{key}`\n\n{meaning}\n\n- Default: {default}\n- Allowed: {allowed}\n- Variable: \
             `{variable}`\n\n",
        )
        .unwrap();
    }
    hold_generated("docs/configuration.md", &page);
}

#[test]
fn the_command_line_page_has_every_command() {
    let mut root = pillarbox_cli::command_line().disable_help_subcommand(true);
    root.build();
    let of_all = root.get_subcommands().find(|command| command.get_name() == "org").unwrap();
    let mut page = String::from(
        "## Options of the administration commands\n\nAll commands take these, except `serve`, `dev`, \
         `simulator`, `aws`, `cluster`, `doctor`, `completions` and `man`.\n\n",
    );
    page.push_str(&table(of_all.get_arguments().filter(|arg| is_of_all(arg))));
    for command in root.get_subcommands() {
        describe(command, &mut page);
    }
    hold_generated("docs/command-line.md", &page);
}

/// True if an option belongs to all administration commands.
fn is_of_all(arg: &clap::Arg) -> bool {
    arg.get_help_heading() == Some("Which service")
}

/// Writes a command with its arguments, then its subcommands.
fn describe(command: &clap::Command, page: &mut String) {
    let name = command.get_bin_name().unwrap();
    write!(page, "## {name}\n\n{}.\n\n", command.get_about().unwrap()).unwrap();
    if !command.has_subcommands() {
        let usage = command.clone().render_usage().to_string();
        write!(page, "    {}\n\n", usage.trim_start_matches("Usage: ")).unwrap();
    }
    let of_all = command.get_arguments().filter(|arg| is_of_all(arg)).map(clap::Arg::get_id);
    let of_all: Vec<_> = of_all.collect();
    assert!(of_all.is_empty() || of_all == ["config", "socket", "json"], "{name}: {of_all:?}");
    let is_own = |arg: &&clap::Arg| arg.get_id() != "help" && !is_of_all(arg);
    page.push_str(&table(command.get_arguments().filter(is_own)));
    for subcommand in command.get_subcommands() {
        describe(subcommand, page);
    }
}

fn table<'a>(args: impl Iterator<Item = &'a clap::Arg>) -> String {
    let rows: String = args.map(row).collect();
    if rows.is_empty() { rows } else { format!("| Argument | Meaning |\n|---|---|\n{rows}\n") }
}

fn row(arg: &clap::Arg) -> String {
    let help = arg.get_long_help().or(arg.get_help()).unwrap().to_string();
    let mut meaning = help.trim_end_matches('.').replace('\n', " ");
    if arg.get_action().takes_values() {
        let possible = arg.get_possible_values();
        if !possible.is_empty() {
            let names: Vec<_> = possible.iter().map(|v| format!("`{}`", v.get_name())).collect();
            write!(meaning, ". One of {}", names.join(", ")).unwrap();
        }
        let defaults = arg.get_default_values().iter().map(|value| value.to_str().unwrap());
        for default in defaults.filter(|text| !text.is_empty()) {
            write!(meaning, ". Default: `{default}`").unwrap();
        }
    }
    format!("| `{}` | {} |\n", escaped(&arg.to_string()), escaped(&meaning))
}

/// Text that a cell of a table can hold.
fn escaped(text: &str) -> String {
    text.replace('|', "\\|")
}

#[test]
fn the_metrics_page_has_every_metric() {
    let text = Dev::start().operators.get("/metrics");
    let mut page = String::from("| Metric | Type, meaning and labels |\n|---|---|\n");
    let helps = text.lines().filter_map(|line| line.strip_prefix("# HELP ")?.split_once(' '));
    for (name, help) in helps.collect::<BTreeMap<_, _>>() {
        let kind = format!("# TYPE {name} ");
        let kind = text.lines().find_map(|line| line.strip_prefix(&kind)).unwrap();
        let labels = labels(&text, name);
        let labels = if labels.is_empty() { labels } else { format!(" Labels: {labels}.") };
        writeln!(page, "| `{name}` | {kind}. {help}{labels} |").unwrap();
    }
    hold_generated("docs/metrics.md", &page);
}

/// A family's labels, with their values if these are fixed.
fn labels(text: &str, name: &str) -> String {
    let start = format!("{name}{{");
    let samples: Vec<_> = text.lines().filter_map(|line| line.strip_prefix(&start)).collect();
    let Some(first) = samples.first() else { return String::new() };
    let pairs = |sample: &str| -> Vec<(String, String)> {
        let pairs = sample.split('}').next().unwrap().split(',');
        let pair = |pair: &str| {
            let (label, value) = pair.split_once('=').unwrap();
            (label.to_owned(), value.trim_matches('"').to_owned())
        };
        pairs.map(pair).collect()
    };
    let described = pairs(first).into_iter().map(|(label, _)| {
        if matches!(label.as_str(), "organisation" | "version" | "webhook") {
            return format!("`{label}`");
        }
        let values = samples.iter().flat_map(|sample| pairs(sample));
        let values = values.filter(|(other, _)| *other == label);
        let values: BTreeSet<_> = values.map(|(_, value)| format!("`{value}`")).collect();
        format!("`{label}`: {}", Vec::from_iter(values).join(", "))
    });
    described.collect::<Vec<_>>().join("; ")
}

#[test]
fn the_conditions_page_has_every_condition() {
    let mut cases: Vec<(&str, Vec<&Definition>)> = Vec::new();
    for definition in definitions() {
        match cases.iter_mut().find(|(code, _)| *code == definition.code) {
            Some((_, cases)) => cases.push(definition),
            None => cases.push((definition.code, vec![definition])),
        }
    }
    let mut page = String::from("| Severity | Conditions |\n|---|---|\n");
    for severity in [Severity::Critical, Severity::Warning, Severity::Notice] {
        let has = |cases: &[&Definition]| cases.iter().any(|case| case.severity == severity);
        let links = cases.iter().filter(|(_, cases)| has(cases));
        let links: Vec<_> = links.map(|(code, _)| format!("[`{code}`](#{code})")).collect();
        writeln!(page, "| {} | {} |", severity.as_str(), links.join(", ")).unwrap();
    }
    for (code, cases) in cases {
        write!(page, "\n## `{code}`\n\n").unwrap();
        // Cases that differ in nothing but readiness are one.
        let mut described: Vec<(String, Vec<Readiness>)> = Vec::new();
        for case in &cases {
            let told = told(case);
            match described.iter_mut().find(|(known, _)| *known == told) {
                Some((_, readiness)) => readiness.push(case.readiness),
                None => described.push((told, vec![case.readiness])),
            }
        }
        let cases: Vec<_> = described
            .iter()
            .map(|(told, readiness)| {
                let ready = match readiness.as_slice() {
                    [Readiness::Ready] => "yes",
                    [Readiness::NotReady] => "no",
                    _ => "yes or no",
                };
                told.replace("READY", ready)
            })
            .collect();
        writeln!(page, "{}", cases.join("\n\nOr:\n\n")).unwrap();
    }
    hold_generated("docs/conditions.md", &page);
}

/// One case of a condition as the page has it, with `READY` for its readiness.
fn told(case: &Definition) -> String {
    let Definition { severity, meaning, advice, alerts, .. } = case;
    let alert = match alerts {
        Alerts::None(reason) => format!("none. {}", sentence(reason)),
        Alerts::Rules(rules) => {
            let how = if *severity == Severity::Critical { "page" } else { "ticket" };
            let rules: Vec<_> = rules.iter().map(|name| format!("`{name}` ({how})")).collect();
            rules.join(", ")
        }
    };
    let severity = severity.as_str();
    let (meaning, advice) = (sentence(meaning), sentence(advice));
    format!(
        "{meaning}\n\n- Severity: {severity}. Ready: READY\n- What to do: {advice}\n- Alert: {alert}"
    )
}

/// A text as a sentence of its own.
fn sentence(text: &str) -> String {
    let mut chars = text.chars();
    let first = chars.next().into_iter().flat_map(char::to_uppercase);
    let end = if text.ends_with('.') { "" } else { "." };
    first.chain(chars).chain(end.chars()).collect()
}

#[test]
fn the_openapi_page_has_the_whole_document() {
    let document: Value = serde_json::from_str(&read("src/api/openapi.json")).unwrap();
    let mut page = String::new();
    for (path, methods) in document["paths"].as_object().unwrap() {
        for (method, operation) in methods.as_object().unwrap() {
            write!(page, "## {} {path}\n\n", method.to_ascii_uppercase()).unwrap();
            describe_operation(operation, &mut page);
        }
    }
    page.push_str("## Error answers\n\nThe body of each is an [`Error`](#error).\n\n");
    page.push_str("| Status | Meaning | Headers |\n|---|---|---|\n");
    for (name, answer) in document["components"]["responses"].as_object().unwrap() {
        let status = name.trim_start_matches('E');
        writeln!(page, "| {status} | {} | {} |", described(answer), headers(answer)).unwrap();
    }
    page.push_str("\n## Schemas\n");
    for (name, schema) in document["components"]["schemas"].as_object().unwrap() {
        write!(page, "\n### {name}\n\n").unwrap();
        let about = described(schema);
        if !about.is_empty() {
            write!(page, "{about}\n\n").unwrap();
        }
        let mut rows = String::new();
        members(schema, "", &mut rows);
        if rows.is_empty() {
            writeln!(page, "{}", sentence(&type_of(schema))).unwrap();
        } else {
            write!(page, "| Member | Type | Meaning |\n|---|---|---|\n{rows}").unwrap();
        }
    }
    hold_generated("docs/openapi.md", &page);
}

fn describe_operation(operation: &Value, page: &mut String) {
    let text = |key: &str| operation[key].as_str().unwrap_or_default();
    write!(page, "{} (`{}`).\n\n", text("summary"), text("operationId")).unwrap();
    if !text("description").is_empty() {
        write!(page, "{}\n\n", text("description")).unwrap();
    }
    let mut rows = String::new();
    for parameter in operation["parameters"].as_array().into_iter().flatten() {
        let (name, schema) = (parameter["name"].as_str().unwrap(), &parameter["schema"]);
        let place = parameter["in"].as_str().unwrap();
        let (kind, about) = (escaped(&type_of(schema)), described(parameter));
        writeln!(rows, "| `{name}` | {place} | {kind} | {about} |").unwrap();
    }
    if !rows.is_empty() {
        write!(page, "| Parameter | In | Type | Meaning |\n|---|---|---|---|\n{rows}\n").unwrap();
    }
    if let Some(content) = operation["requestBody"]["content"].get("application/json") {
        write!(page, "Body: {}. For example:\n\n", type_of(&content["schema"])).unwrap();
        let example = serde_json::to_string_pretty(&content["example"]).unwrap();
        write!(page, "```json\n{example}\n```\n\n").unwrap();
    }
    let mut errors = Vec::new();
    for (status, answer) in operation["responses"].as_object().unwrap() {
        if answer.get("$ref").is_some() {
            errors.push(status.as_str());
            continue;
        }
        let schema = &answer["content"]["application/json"]["schema"];
        let (about, headers) = (described(answer), headers(answer));
        write!(page, "{status}: {} {about} Headers: {headers}.\n\n", sentence(&type_of(schema)))
            .unwrap();
    }
    write!(page, "[Errors](#error-answers): {}.\n\n", errors.join(", ")).unwrap();
}

fn described(of: &Value) -> String {
    escaped(&of["description"].as_str().unwrap_or_default().replace('\n', " "))
}

fn headers(answer: &Value) -> String {
    let names = answer["headers"].as_object().into_iter().flat_map(|headers| headers.keys());
    names.map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
}

/// Writes a row for each member of an object, and for the members of those.
fn members(schema: &Value, path: &str, rows: &mut String) {
    let required = schema.get("required").map(strings).unwrap_or_default();
    for (name, member) in schema["properties"].as_object().into_iter().flatten() {
        let optional = if required.contains(name) { "" } else { "; optional" };
        let kind = escaped(&type_of(member));
        writeln!(rows, "| `{path}{name}` | {kind}{optional} | {} |", described(member)).unwrap();
        members(member, &format!("{path}{name}."), rows);
    }
    for variant in ["oneOf", "anyOf"].iter().filter_map(|key| schema[key].as_array()).flatten() {
        members(variant, path, rows);
    }
}

/// A schema in words: its type and its limits.
fn type_of(schema: &Value) -> String {
    if let Some(reference) = schema["$ref"].as_str() {
        let (_, name) = reference.rsplit_once('/').unwrap();
        return format!("[`{name}`](#{})", name.to_lowercase());
    }
    for key in ["oneOf", "anyOf"] {
        if let Some(variants) = schema[key].as_array() {
            return variants.iter().map(type_of).collect::<Vec<_>>().join(" or ");
        }
    }
    let names: Vec<_> = match &schema["type"] {
        Value::String(name) => vec![name.as_str()],
        Value::Array(names) => names.iter().filter_map(Value::as_str).collect(),
        _ => vec!["anything"],
    };
    let kinds = names.into_iter().map(|name| match name {
        "array" => format!("list of ({})", type_of(&schema["items"])),
        "object" if schema["additionalProperties"].is_object() => {
            format!("object of ({})", type_of(&schema["additionalProperties"]))
        }
        other => other.to_owned(),
    });
    let mut words = kinds.collect::<Vec<_>>().join(" or ");
    let values = schema["enum"].as_array().into_iter().flatten().chain(schema.get("const"));
    let values = values.filter(|value| !value.is_null());
    let values: Vec<_> =
        values.map(|value| format!("`{}`", value.to_string().trim_matches('"'))).collect();
    if !values.is_empty() {
        write!(words, ": {}", values.join(", ")).unwrap();
    }
    for key in ["format", "pattern", "default"] {
        if let Some(value) = schema.get(key) {
            let value = value.to_string().replace("\\\\", "\\");
            write!(words, "; {key} `{}`", value.trim_matches('"')).unwrap();
        }
    }
    for (least, most, one, unit) in [
        ("minimum", "maximum", "", ""),
        ("minLength", "maxLength", " character", " characters"),
        ("minItems", "maxItems", " entry", " entries"),
        ("minProperties", "maxProperties", " member", " members"),
    ] {
        match (schema.get(least), schema.get(most)) {
            (Some(least), Some(most)) => write!(words, "; {least} to {most}{unit}").unwrap(),
            (Some(least), None) => {
                let unit = if *least == 1 { one } else { unit };
                write!(words, "; at least {least}{unit}").unwrap();
            }
            (None, Some(most)) => write!(words, "; at most {most}{unit}").unwrap(),
            (None, None) => {}
        }
    }
    words
}

#[test]
fn the_list_for_language_models_has_every_page() {
    let mut list = String::from(
        "# pillarbox\n\n> Self-hosted service for transactional email. Applications post JSON or submit \
         over SMTP; pillarbox sends through Amazon SES, retries, and reports by API, feed and \
         webhook. One binary, one data directory.\n\nIn the sources and in the packages, each page is \
         the file in `docs/` of the same name that ends in `.md`.\n\n",
    );
    for line in read("docs/SUMMARY.md").lines() {
        if let Some(part) = line.strip_prefix("# ").filter(|part| *part != "Summary") {
            write!(list, "\n## {part}\n\n").unwrap();
        } else if let Some(file) = links(line).next() {
            let title = line.trim_start_matches("- ").trim_start_matches('[');
            let (title, _) = title.split_once("](").unwrap();
            let page = prose(&root().join("docs").join(file));
            let about = page.split("\n\n").map(str::trim).find(|text| !text.starts_with('#'));
            let about = without_links(&about.unwrap().replace('\n', " "));
            writeln!(list, "- [{title}]({}): {about}", file.replace(".md", ".html")).unwrap();
        }
    }
    hold("docs/llms.txt", &list);
}

/// The text of Markdown with the words of each link alone.
fn without_links(text: &str) -> String {
    let mut words = text.split("](");
    let first = words.next().unwrap_or_default().to_owned();
    let rest = words.map(|part| part.split_once(')').map_or(part, |(_, rest)| rest));
    rest.fold(first, |text, part| text + part).replace('[', "")
}

#[test]
fn the_api_page_has_what_the_openapi_document_has() {
    const PAGE: &str = "docs/api.md";
    let document: Value = serde_json::from_str(&Dev::start().clients.get("/openapi.json")).unwrap();
    let schema = |name: &str| &document["components"]["schemas"][name];

    let paths = document["paths"].as_object().unwrap().iter().flat_map(|(path, methods)| {
        let methods = methods.as_object().unwrap().keys();
        methods.map(move |method| format!("{} {path}", method.to_ascii_uppercase()))
    });
    assert_eq!(names(PAGE, "## Endpoints", 0), paths.collect());
    let members = keys(&schema("Attachment")["properties"]);
    assert_eq!(names(PAGE, "### Attachments", 0), members);
    let fields = names(PAGE, "## Fields of a message", 0);
    assert_eq!(&fields - &members, keys(&schema("SendRequest")["properties"]));
    let record = names(PAGE, "## Record", 0);
    let codes = strings(&schema("Failure")["properties"]["code"]["enum"]);
    assert_eq!(names(PAGE, "### Failure codes", 0), codes);
    assert_eq!(&record - &codes, keys(&schema("Message")["properties"]));
    let parameters = &document["paths"]["/emails"]["get"]["parameters"];
    let parameters = parameters.as_array().unwrap().iter();
    let parameters = parameters.map(|parameter| parameter["name"].as_str().unwrap().to_owned());
    assert_eq!(names(PAGE, "## List messages", 0), parameters.collect());
    let parameters = document["paths"]["/events"]["get"]["parameters"].as_array().unwrap().iter();
    let parameters = parameters.map(|parameter| parameter["name"].as_str().unwrap().to_owned());
    assert_eq!(names(PAGE, "## List events", 0), parameters.collect());

    let errors = strings(&schema("Error")["properties"]["error"]["properties"]["code"]["enum"]);
    assert_eq!(names(PAGE, "## Errors", 1), errors);
    let section = section(PAGE, "## Errors");
    for (name, response) in document["components"]["responses"].as_object().unwrap() {
        let status = name.trim_start_matches('E');
        for code in quoted(response["description"].as_str().unwrap()) {
            let is_known = errors.contains(&code);
            assert!(!is_known || section.contains(&format!("| {status} | `{code}` |")), "{code}");
        }
    }

    let statuses = strings(&schema("Status")["enum"]);
    assert_eq!(names("docs/sending.md", "## Follow the message", 0), statuses);
    let types = strings(&schema("EventType")["enum"]);
    assert_eq!(names("docs/events.md", "## The five types", 0), types);
    let types = strings(&schema("FeedEventType")["enum"]);
    assert_eq!(names("docs/following.md", "## The feed", 0), types);
    let details = keys(&schema("EventDetail")["properties"]);
    assert_eq!(names("docs/events.md", "## Read the events of a message", 0), details);
}

#[test]
fn the_page_for_resends_clients_has_what_their_document_has() {
    const PAGE: &str = "docs/resend.md";
    let document: Value = serde_json::from_str(&read("src/resend_api/openapi.json")).unwrap();
    let schema = |name: &str| &document["components"]["schemas"][name];
    assert_eq!(names(PAGE, "## `last_event`", 1), strings(&schema("LastEvent")["enum"]));
    let errors = strings(&schema("Error")["properties"]["name"]["enum"]);
    assert_eq!(names(PAGE, "## Errors", 1), errors);
    let paths = document["paths"].as_object().unwrap().iter().flat_map(|(path, methods)| {
        let methods = methods.as_object().unwrap().keys();
        methods.map(move |method| format!("{} {path}", method.to_ascii_uppercase()))
    });
    let taken = section(PAGE, "## What it accepts");
    for path in paths {
        assert!(taken.contains(&format!("| `{path}` |")), "{path}");
    }
    for field in keys(&schema("Email")["properties"]) {
        assert!(taken.contains(&format!("`{field}`")), "{field}");
    }
}

#[test]
fn the_simulators_page_has_every_fault() {
    let error = serde_json::from_str::<Fault>("\"no fault\"").unwrap_err().to_string();
    let (_, known) = error.split_once("expected one of ").unwrap();
    let known: BTreeSet<_> = quoted(known).into_iter().collect();
    assert_eq!(names("docs/simulator.md", "### Faults", 0), known);
}

#[test]
fn there_is_a_reason_for_every_dependency() {
    const PAGE: &str = "docs/dependencies.md";
    let folders = fs::read_dir("src").unwrap().map(|entry| entry.unwrap().path());
    let manifests: Vec<toml::Table> = folders
        .map(|folder| folder.join("Cargo.toml"))
        .filter(|manifest| manifest.exists())
        .chain(["Cargo.toml".into()])
        .map(|path| fs::read_to_string(path).unwrap().parse().unwrap())
        .collect();
    let crates = |section: &str| -> BTreeSet<String> {
        let sections = manifests.iter().filter_map(|manifest| manifest.get(section)?.as_table());
        let names = sections.flat_map(toml::Table::keys).cloned();
        names.filter(|name| !name.starts_with("pillarbox-") || name == "pillarbox-judge").collect()
    };
    let named = names(PAGE, "# Dependencies", 0);
    assert_eq!(named, crates("dependencies"));
    let page = read(PAGE);
    let (_, for_tests) = page.split_once("\nOnly the tests use these:").unwrap();
    let for_tests: BTreeSet<_> = quoted(for_tests).into_iter().collect();
    assert_eq!(for_tests, &crates("dev-dependencies") - &named);
}

/// A `dev` process that ends with the test.
struct Dev {
    process: Child,
    clients: Address,
    operators: Address,
    /// `dev` ends if its output cannot be written.
    _output: BufReader<std::process::ChildStdout>,
    /// Place of its temporary files: a process that is killed removes none.
    _temporary: tempfile::TempDir,
}

/// The host and port of a listener.
struct Address(String);

impl Dev {
    fn start() -> Self {
        let temporary = tempfile::tempdir().unwrap();
        let mut process = Command::new(env!("CARGO_BIN_EXE_pillarbox"))
            .args(["dev", "--listen", "127.0.0.1:0", "--operator-listen", "127.0.0.1:0"])
            .args(["--smtp-listen", "127.0.0.1:0", "--resend-listen", "127.0.0.1:0"])
            // So that its metrics have their labels.
            .args(["--webhook", "http://127.0.0.1:1/"])
            .env_clear()
            .env("TMPDIR", temporary.path())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut output = BufReader::new(process.stdout.take().unwrap());
        let mut told = |name: &str| loop {
            let mut line = String::new();
            assert_ne!(output.read_line(&mut line).unwrap(), 0, "dev does not tell its {name}");
            if let Some(url) = line.trim().strip_prefix(name) {
                let host = url.trim().strip_prefix("http://").unwrap();
                return Address(host.split('/').next().unwrap().to_owned());
            }
        };
        let (clients, operators) = (told("address "), told("page "));
        Self { process, clients, operators, _output: output, _temporary: temporary }
    }
}

impl Address {
    fn get(&self, path: &str) -> String {
        let mut stream = TcpStream::connect(&self.0).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n", self.0)
            .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer.split_once("\r\n\r\n").unwrap().1.to_owned()
    }
}

impl Drop for Dev {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
