//! The commands of README and quickstart as a reader pastes them, and the programs of `examples/`.

use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::kit::{DevProcess, PATIENCE};

/// A `dev` process and what a reader knows of it.
struct Reader {
    address: String,
    key: String,
    data: String,
    _dev: DevProcess,
}

impl Reader {
    fn new() -> Self {
        let mut dev = DevProcess::start(&[]);
        let (address, key) = (dev.told("address"), dev.told("API key"));
        Self { address, key, data: dev.told("data"), _dev: dev }
    }

    /// Runs a line or a block in a shell, at the root of the sources.
    fn paste(&self, text: &str, id: &str) -> Output {
        let text = text
            .replace("http://127.0.0.1:8025", &self.address)
            .replace("target/release/pillarbox", env!("CARGO_BIN_EXE_pillarbox"))
            .replace("DIR/", &format!("{}/", self.data));
        Command::new("bash")
            .args(["-euc", &text])
            .envs([("MAIL_KEY", &*self.key), ("MAIL_URL", &*self.address), ("ID", id)])
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .output()
            .unwrap()
    }

    /// What a block prints.
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
    assert_eq!(reader.sent(send), first, "the same key is the same message");
    assert_eq!(reader.sent(send), first);

    let end = Instant::now() + PATIENCE;
    loop {
        let printed = reader.printed(read, &first);
        let (record, events) = printed.split_once("}{").unwrap_or((&printed, ""));
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

    let page = std::fs::read_to_string("docs/quickstart.md").unwrap();
    let commands = page.lines().filter(|line| line.starts_with("    target/release/pillarbox "));
    let commands: Vec<_> = commands.map(|line| reader.printed(line, "")).collect();
    let [status, list] = commands.as_slice() else { panic!("{commands:?}") };
    assert!(status.contains("takes messages"), "{status}");
    assert!(list.contains(&first), "{list}");
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

    for program in
        ["python3 examples/attach.py", "node examples/attach.mjs", "sh examples/attach.sh"]
    {
        let id =
            reader.printed(&format!("{program} docs/images/page.png docs/images/page.png"), "");
        assert!(ids.insert(id), "{program}");
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

/// What a program that follows the feed prints until there are so many lines; it is killed then.
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
