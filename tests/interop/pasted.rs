//! The commands of README and quickstart as a reader pastes them, and the programs of `examples/`.

use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::kit::{DevProcess, PATIENCE, free_port};

/// A `dev` process and what a reader knows of it.
struct Reader {
    address: String,
    key: String,
    data: String,
    _dev: DevProcess,
}

impl Reader {
    fn new() -> Self {
        Self::with(&[])
    }

    fn with(arguments: &[&str]) -> Self {
        let mut dev = DevProcess::start(arguments);
        let (address, key) = (dev.told("address"), dev.told("API key"));
        Self { address, key, data: dev.told("data"), _dev: dev }
    }

    /// Runs a line or a block in a shell, at the root of the sources.
    fn paste(&self, text: &str, id: &str) -> Output {
        let text = text
            .replace("http://127.0.0.1:8025", &self.address)
            .replace("venv/bin/python", "\"$STANDARDWEBHOOKS_PYTHON\"");
        Command::new("bash")
            .args(["-euc", &text])
            .envs([("MAIL_KEY", &*self.key), ("MAIL_URL", &*self.address), ("ID", id)])
            .env("PATH", with_pillarbox())
            .env("PILLARBOX_ADMIN_SOCKET", format!("{}/admin.sock", self.data))
            .env("PILLARBOX_DATA_DIR", &self.data)
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .output()
            .unwrap()
    }

    /// Output of a block.
    fn printed(&self, text: &str, id: &str) -> String {
        let output = self.paste(text, id);
        assert!(output.status.success(), "{text}\n{output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// The id in the answer to a block that sends a message.
    fn sent(&self, text: &str) -> String {
        let printed = self.printed(text, "");
        let answer: Value = serde_json::from_str(&printed).unwrap();
        answer["id"].as_str().unwrap_or_else(|| panic!("{printed}")).to_owned()
    }
}

/// The search path of a reader who has pillarbox installed.
fn with_pillarbox() -> String {
    let program = Path::new(env!("CARGO_BIN_EXE_pillarbox")).parent().unwrap();
    format!("{}:{}", program.display(), std::env::var("PATH").unwrap())
}

/// The shell blocks of a page, without the line in which readers put in their own key.
fn blocks(page: &str) -> Vec<String> {
    let page = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(page)).unwrap();
    let blocks = page.split("```sh\n").skip(1).map(|rest| rest.split("```").next().unwrap());
    let is_complete = |line: &&str| !line.contains('…');
    blocks.map(|block| block.lines().filter(is_complete).collect::<Vec<_>>().join("\n")).collect()
}

#[test]
fn the_commands_of_readme_and_quickstart_do_what_they_say() {
    let reader = Reader::new();
    let readme = blocks("README.md");
    let [send] = readme.as_slice() else { panic!("README has one snippet: {readme:?}") };
    let first = reader.sent(send);

    let quickstart = blocks("docs/quickstart.md");
    let [send, read, bounce, again] = quickstart.as_slice() else { panic!("{quickstart:?}") };
    let readmes = first;
    let first = reader.sent(send);
    assert_ne!(first, readmes, "another key is another message");
    assert_eq!(reader.sent(send), first, "the same key is the same message");

    let end = Instant::now() + PATIENCE;
    loop {
        let printed = reader.printed(read, &first);
        let (record, events) = printed.split_once("}\n{").unwrap_or((&printed, ""));
        if record.contains(r#""status":"sent""#) && events.contains(r#""type":"delivery""#) {
            break;
        }
        assert!(Instant::now() < end, "{printed}");
        std::thread::sleep(Duration::from_millis(100));
    }

    reader.sent(bounce);
    std::thread::sleep(Duration::from_secs(2));
    let printed = reader.printed(again, "");
    assert!(printed.contains(r#""code":"Suppressed""#), "{printed}");

    receive_a_webhook(&reader);

    let [status, messages, suppressed] = ["status", "message list", "suppression list"]
        .map(|command| reader.printed(&quickstart_line(&format!("pillarbox {command}")), ""));
    assert!(status.contains("takes writes"), "{status}");
    assert!(messages.contains(&first), "{messages}");
    assert!(suppressed.contains("bounce@simulator.amazonses.com"), "{suppressed}");
}

/// A line of the quickstart that is to be pasted by itself.
fn quickstart_line(start: &str) -> String {
    let page = std::fs::read_to_string("docs/quickstart.md").unwrap();
    let line = page.lines().find(|line| line.trim_start().starts_with(start));
    line.unwrap_or_else(|| panic!("the quickstart has no {start}")).trim().to_owned()
}

/// Follows the quickstart to a verified webhook.
fn receive_a_webhook(reader: &Reader) {
    let port = free_port().to_string();
    let add = quickstart_line("pillarbox webhook add ").replace("4000", &port);
    let added = reader.printed(&add, "");
    let secret = added.split_whitespace().find(|word| word.starts_with("whsec_")).unwrap();
    let receive = quickstart_line("WEBHOOK_SECRET=").replace("whsec_…", secret);
    let receive = receive.replace("venv/bin/python", "exec \"$STANDARDWEBHOOKS_PYTHON\"");
    let mut receiver = Command::new("bash")
        .args(["-euc", &format!("export {}", receive.replacen(' ', "; ", 1))])
        .env("PORT", &port)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .stdout(Stdio::piped())
        .spawn()
        .map(crate::Program)
        .unwrap();
    let mut lines = BufReader::new(receiver.0.stdout.take().unwrap()).lines();
    let end = Instant::now() + PATIENCE;
    while std::net::TcpStream::connect(format!("127.0.0.1:{port}")).is_err() {
        assert!(Instant::now() < end, "the receiver does not start");
        std::thread::sleep(Duration::from_millis(50));
    }
    reader.printed(&quickstart_line("pillarbox webhook test "), "");
    let line = lines.next().unwrap().unwrap();
    assert!(line.starts_with("email.test"), "{line}");
}

/// Pages whose commands are run, each on a `dev` of its own.
const PAGES: [&str; 16] = [
    "docs/applications.md",
    "docs/aws-console.md",
    "docs/aws.md",
    "docs/backup.md",
    "docs/compose.md",
    "docs/deployment.md",
    "docs/domains.md",
    "docs/nodes.md",
    "docs/operating.md",
    "docs/page.md",
    "docs/simulator.md",
    "docs/staging.md",
    "docs/suppressions.md",
    "docs/testing.md",
    "docs/troubleshooting.md",
    "docs/webhooks.md",
];

/// The organisation of the pages.
const ADD_ORGANISATION: &str = "pillarbox org add acme";

/// Commands of these pages that no test here runs, by their beginnings, with the reason.
const NOT_RUN: [(&str, &str); 43] = [
    ("pillarbox aws setup", "it needs an AWS account; tests run it on stand-ins of SNS and SQS"),
    ("pillarbox doctor --config pillarbox.toml", "it needs an AWS account"),
    ("pillarbox simulator --listen 127.0.0.1:9100", "it runs until it is stopped; tests start it"),
    ("pillarbox webhook add --org acme https://app.example.com", "the endpoint is the reader's"),
    ("pillarbox webhook test 1", "the endpoint is the reader's; the quickstart's is tested"),
    ("pillarbox webhook deliveries 1", "the endpoint is the reader's"),
    ("pillarbox webhook replay 1", "the endpoint is the reader's"),
    ("pillarbox dead-letter show ID", "nothing unreadable comes from the simulator"),
    ("apt install", "the gate installs the package on a copy of the machine"),
    ("packaging/build.sh", "the gate runs it"),
    ("cargo install cargo-auditable cargo-deb", "the gate installs them"),
    ("minisign ", "the gate verifies the release that it made"),
    ("sha256sum ", "the gate verifies the release that it made"),
    ("packaging/verify.sh ", "the gate verifies the release that it made"),
    (
        "python3 -m venv venv && . venv/bin/activate && pip install cargo-zigbuild",
        "the gate installs them",
    ),
    ("rustup target add ", "the gate installs them"),
    ("tar -xzf pillarbox-", "the gate runs the archive's binary"),
    ("install -m 755 pillarbox-", "the gate runs the archive's binary"),
    ("pillarbox node ", "it needs a database; a test of its own runs them"),
    ("pillarbox cluster import ", "it needs a database; a test of its own runs it"),
    ("kubectl ", "it needs a cluster; a test imports by a pipe without a writable directory"),
    ("docker ", "the gate runs the image without an engine"),
    ("/usr/share/pillarbox/monitoring/install.sh", "a test of its own runs it"),
    ("systemd-sysusers", "the gate installs the package"),
    ("systemctl ", "it needs a running systemd; a test with a manager of its own starts the units"),
    ("install -o pillarbox ", "the certificate is the reader's"),
    ("aws sesv2 ", "it needs an AWS account"),
    ("CRASH_ROUNDS=", "it is a test itself"),
    ("POWER_SEEDS=", "it is a test itself"),
    ("SYSTEMD_PREVIOUS=", "it is a test itself"),
    ("cargo test", "it is a test itself"),
    ("CUTS=", "it is a test itself"),
    ("SCHEDULES=", "it is a test itself"),
    ("tests/schedules/faults.py", "it is a test itself"),
    ("tests/mutants.sh ", "it is a test itself"),
    ("SHARD=", "it is a test itself"),
    ("cargo build -p pillarbox-lossy-disk", "the gate builds it for the test of the next line"),
    ("tests/with-postgres.sh ", "it is a test itself"),
    ("POSTGRES_CLOCK=", "it is a test itself"),
    ("tests/with-patroni.sh ", "it is a test itself"),
    ("cargo +nightly fuzz", "it needs a nightly compiler and runs until it is stopped"),
    (".ci/run", "it runs this test"),
    ("| ", "it is the second line of a command for AWS"),
];

/// The indented and fenced command lines of a page, in their order.
fn commands(page: &str) -> Vec<String> {
    let text = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(page)).unwrap();
    let (mut commands, mut language) = (Vec::new(), None);
    for line in text.lines() {
        match (line.trim_start().strip_prefix("```"), &language) {
            (Some(_), Some(_)) => language = None,
            (Some(name), None) => language = Some(name.to_owned()),
            (None, Some(name)) if name == "sh" => commands.push(line.trim().to_owned()),
            (None, None) if is_indented(line) => commands.push(line.trim().to_owned()),
            (None, _) => {}
        }
    }
    commands
}

/// True if a line stands in an indented block, of the page or of a numbered list.
fn is_indented(line: &str) -> bool {
    let spaces = line.len() - line.trim_start().len();
    spaces == 4 || (spaces == 7 && line.trim_start().starts_with("pillarbox "))
}

#[test]
fn every_command_of_the_pages_runs_or_is_named_with_its_reason() {
    let mut used = BTreeSet::new();
    for page in PAGES {
        let directory = tempfile::tempdir().unwrap();
        let data = directory.path().join("data").to_str().unwrap().to_owned();
        std::fs::write(directory.path().join("pillarbox.toml"), "").unwrap();
        let mut reader = Some(Reader::with(&["--data-dir", &data]));
        let lines = commands(page);
        assert!(!lines.is_empty(), "{page} has no commands");
        let paste = |text: &str, reader: Option<&Reader>| {
            let text = text
                .replace("/backups/", &format!("{}/", directory.path().display()))
                .replace("/etc/pillarbox/pillarbox.toml", "pillarbox.toml")
                .replace("ID…", "$ID");
            // The second key is the one that the page adds; the first is the reader's own.
            let text = text.replace(" ID", " 2");
            let mut shell = Command::new("bash");
            shell.args(["-euc", &text]).current_dir(directory.path());
            shell.env("PATH", with_pillarbox()).env("PILLARBOX_DATA_DIR", &data);
            shell.env("PILLARBOX_ADMIN_SOCKET", format!("{data}/admin.sock"));
            if let Some(reader) = reader {
                shell.env("ID", reader.sent(&blocks("README.md")[0]));
            }
            let output = shell.output().unwrap();
            assert!(output.status.success(), "{page}: {text}\n{output:?}");
        };
        // Pages have commands for it before and after the line that adds it.
        paste(ADD_ORGANISATION, None);
        for line in lines.iter().filter(|line| *line != ADD_ORGANISATION) {
            let known = NOT_RUN.iter().find(|(start, _)| line.starts_with(start));
            if let Some((start, _)) = known {
                used.insert(*start);
                continue;
            }
            // Both say that the service has to be stopped, but for a check.
            let stops = ["pillarbox restore", "pillarbox compact"];
            if stops.iter().any(|name| line.starts_with(name)) && !line.contains(" --check ") {
                reader = None;
            }
            paste(line, reader.as_ref());
        }
    }
    let unused: Vec<_> = NOT_RUN.iter().filter(|(start, _)| !used.contains(start)).collect();
    assert!(unused.is_empty(), "no page has these any more: {unused:?}");
}

/// Stands between a program and the service: it loses the first answer after the service has given
/// it, answers the second request with 503, and passes on all others.
fn faulty(address: &str) -> String {
    let service = address.strip_prefix("http://").unwrap().to_owned();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for (number, client) in listener.incoming().enumerate() {
            let mut client = client.unwrap();
            let request = read_request(&mut client);
            if number == 1 {
                let busy = "HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\n\
                            Content-Length: 2\r\nConnection: close\r\n\r\n{}";
                client.write_all(busy.as_bytes()).unwrap();
                continue;
            }
            let mut upstream = std::net::TcpStream::connect(&service).unwrap();
            upstream.write_all(&request).unwrap();
            let mut answer = Vec::new();
            upstream.read_to_end(&mut answer).unwrap();
            if number > 0 {
                client.write_all(&answer).unwrap();
            }
        }
    });
    address
}

/// A whole request, which asks for the end of the connection.
pub(crate) fn read_request(client: &mut std::net::TcpStream) -> Vec<u8> {
    let mut reader = BufReader::new(client);
    let (mut head, mut length) = (String::new(), 0);
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        let lower = line.to_ascii_lowercase();
        if let Some(value) = lower.strip_prefix("content-length:") {
            length = value.trim().parse().unwrap();
        }
        if line.trim().is_empty() {
            break;
        }
        if !lower.starts_with("connection:") {
            head.push_str(&line);
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).unwrap();
    [head.as_bytes(), b"Connection: close\r\n\r\n", &body].concat()
}

#[test]
fn the_fifteen_lines_send_once_through_lost_answers_and_refusals() {
    for (program, first, last) in [
        ("examples/send.py", "def send(", "    raise TimeoutError"),
        ("examples/send.mjs", "async function send(", "}"),
    ] {
        let text = std::fs::read_to_string(program).unwrap();
        let lines = text.lines().skip_while(|line| !line.starts_with(first));
        let count = lines.take_while(|line| !line.starts_with(last)).count() + 1;
        assert!((5..=15).contains(&count), "{program}: send() has {count} lines");
    }
    for program in ["python3 examples/send.py", "node examples/send.mjs"] {
        let mut reader = Reader::new();
        let direct = std::mem::take(&mut reader.address);
        reader.address = faulty(&direct);
        let printed = reader.printed(program, "");
        let id = printed.split_whitespace().next().unwrap();
        reader.address = direct;
        let list = reader.printed("pillarbox message list", "");
        assert_eq!(list.lines().count(), 2, "one message and the head: {list}");
        assert!(list.contains(id), "{id}: {list}");
    }
}

#[test]
fn the_examples_send_and_repeat_without_a_second_message() {
    let reader = Reader::new();
    let mut ids = BTreeSet::new();
    for program in ["python3 examples/send.py", "node examples/send.mjs", "sh examples/send.sh"] {
        let id = |printed: String| {
            let words = printed.split(|c: char| !c.is_ascii_hexdigit() && c != '-');
            words.filter(|word| word.len() == 36).map(str::to_owned).next().unwrap()
        };
        let first = id(reader.printed(program, ""));
        assert_eq!(id(reader.printed(program, "")), first, "{program}");
        ids.insert(first);
    }
    assert_eq!(ids.len(), 3, "each program sends a message of its own");

    for program in ["python3 examples/batch.py", "node examples/batch.mjs", "sh examples/batch.sh"]
    {
        let first = reader.printed(program, "");
        assert!(first.contains("[1].to[0]: must be"), "{program}: {first}");
        let again = reader.printed(program, "");
        assert_eq!(again.replace(",\"replayed\":true", ""), first, "{program}");
    }

    for program in
        ["python3 examples/attach.py", "node examples/attach.mjs", "sh examples/attach.sh"]
    {
        let id =
            reader.printed(&format!("{program} docs/images/page.png docs/images/page.png"), "");
        assert!(ids.insert(id), "{program}");
    }

    let id = ids.first().unwrap();
    for (arguments, member) in [
        (format!("show {id}"), "\"status\""),
        (format!("events {id}"), "{\"events\":["),
        (format!("timeline {id}"), "{\"timeline\":[{\"at\":"),
        (format!("cancel {id}"), "\"status\""),
        ("usage".to_owned(), "{\"day\":{\"limit\":null"),
    ] {
        let printed = reader.printed(&format!("sh examples/message.sh {arguments}"), "");
        assert!(printed.contains(member), "{arguments}: {printed}");
    }

    // A refusal ends them at once.
    let stranger = Reader { key: format!("pb_{}", "x".repeat(43)), ..reader };
    for program in ["python3 examples/send.py", "node examples/send.mjs", "sh examples/send.sh"] {
        let output = stranger.paste(program, "");
        let told = [output.stdout, output.stderr].concat();
        assert!(String::from_utf8(told).unwrap().contains("Unauthorized"), "{program}");
        assert!(!output.status.success(), "{program}");
    }
}

#[test]
fn the_examples_say_what_to_do_without_a_service_and_without_files() {
    let nowhere = format!("http://127.0.0.1:{}", free_port());
    let run = |program: &str, until: &str| {
        let mut process = Command::new("sh")
            .args(["-c", &format!("exec {program}")])
            .envs([("MAIL_KEY", "pb_none"), ("MAIL_URL", &nowhere)])
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(process.stderr.take().unwrap()).lines().map(Result::unwrap);
        let mut told = Vec::new();
        for line in lines {
            let is_last = line.contains(until);
            told.push(line);
            if is_last {
                break;
            }
        }
        // Some of them would ask again and again.
        process.kill().unwrap();
        process.wait().unwrap();
        told
    };
    let files = "docs/images/page.png docs/images/page.png";
    for program in [
        "send.py",
        "send.mjs",
        "batch.py",
        "batch.mjs",
        "events.py",
        "events.mjs",
        "attach.py",
        "attach.mjs",
    ] {
        let with = if program.ends_with("py") { "python3" } else { "node" };
        let told = run(&format!("{with} examples/{program} {files}"), "set MAIL_URL");
        assert_eq!(told.len(), 2, "{program}: {told:?}");
        assert!(told[0].starts_with(&format!("No answer from {nowhere} (")), "{told:?}");
    }
    for program in
        ["python3 examples/attach.py", "node examples/attach.mjs", "sh examples/attach.sh"]
    {
        let told = run(program, program);
        assert_eq!(told.len(), 1, "{program}: {told:?}");
        assert!(told[0].to_lowercase().contains("name "), "{told:?}");
    }
}

/// Output of a program that follows the feed, until there are so many lines; it is killed then.
fn followed(reader: &Reader, program: &str, cursor: &Path, lines: usize) -> Vec<String> {
    let mut words = program.split(' ');
    let mut process = Command::new(words.next().unwrap())
        .args(words)
        .envs([("MAIL_KEY", &*reader.key), ("MAIL_URL", &*reader.address)])
        .env("MAIL_CURSOR", cursor)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let output = BufReader::new(process.stdout.take().unwrap()).lines();
    let told: Vec<_> = output.take(lines).map(Result::unwrap).collect();
    let end = Instant::now() + PATIENCE;
    // The last page is handled; its cursor follows.
    let before = std::fs::read(cursor).unwrap_or_default();
    while std::fs::read(cursor).unwrap_or_default() == before && before.is_empty() {
        assert!(Instant::now() < end, "{program} keeps no cursor");
        std::thread::sleep(Duration::from_millis(20));
    }
    std::thread::sleep(Duration::from_millis(500));
    process.kill().unwrap();
    process.wait().unwrap();
    told
}

#[test]
fn the_examples_follow_the_feed_and_go_on_where_they_were() {
    let reader = Reader::new();
    reader.printed("python3 examples/send.py", "");
    let directory = tempfile::tempdir().unwrap();
    let mut first = Vec::new();
    for (name, program) in
        [("py", "python3 examples/events.py"), ("js", "node examples/events.mjs")]
    {
        let told = followed(&reader, program, &directory.path().join(name), 2);
        assert!(told[0].contains(" email.sent ") && told[1].contains(" email.delivery "));
        first.push(told);
    }
    assert_eq!(first[0], first[1]);
    reader.printed("node examples/send.mjs", "");
    for (name, program) in
        [("py", "python3 examples/events.py"), ("js", "node examples/events.mjs")]
    {
        let told = followed(&reader, program, &directory.path().join(name), 2);
        assert!(told[0].contains(" email.sent ") && !first[0].contains(&told[0]), "{told:?}");
    }
}
