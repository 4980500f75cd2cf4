//! `pillarbox dev`: what it prints works when pasted, and shows the whole life of a message.

use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::kit::{DevProcess, Finished, PATIENCE, Process, Site, answer, http_client, pillarbox};

/// A `dev` process and what it printed.
pub(crate) struct Dev {
    /// The pasted line's address, API key and body.
    address: String,
    key: String,
    body: String,
    pub(crate) client: reqwest::Client,
    /// The operators' page: its address and its key.
    pub(crate) page: (String, String),
    /// Path of the data directory.
    pub(crate) data: String,
    process: DevProcess,
}

impl Dev {
    pub(crate) fn start(arguments: &[&str]) -> Self {
        Self::of(DevProcess::start(arguments))
    }

    pub(crate) fn of(mut process: DevProcess) -> Self {
        let page = process.told("page");
        let (page, page_key) = page.split_once("/#").expect("the page's key");
        let data = process.told("data");
        let pasted = process.line(|line| line.contains(" -d '"));
        let between = |from: &str, to: &str| {
            let (_, rest) = pasted.split_once(from).unwrap();
            rest.split_once(to).unwrap().0.to_owned()
        };
        Self {
            address: between("curl -sS ", "/emails"),
            key: between("Bearer ", "'"),
            body: between(" -d '", "'"),
            client: http_client(),
            page: (page.to_owned(), page_key.to_owned()),
            data,
            process,
        }
    }

    /// Posts the message of the printed line.
    pub(crate) async fn post_its_line(&self) -> (u16, Value) {
        self.post(self.body.clone()).await
    }

    /// Stops it as Ctrl-C does.
    pub(crate) fn end(self) {
        let (_, status) = self.process.interrupt();
        assert!(status.success(), "{status}");
    }

    pub(crate) async fn post(&self, body: String) -> (u16, Value) {
        let request = self.client.post(format!("{}/emails", self.address)).bearer_auth(&self.key);
        let request = request.header("content-type", "application/json").body(body);
        let (status, body) = answer(request.send().await.unwrap()).await;
        (status.as_u16(), body)
    }

    /// Waits for a message's first delivery event; gives its record.
    pub(crate) async fn until_event(&self, id: &Value) -> Value {
        let end = Instant::now() + PATIENCE;
        loop {
            let path = format!("{}/emails/{}", self.address, id.as_str().unwrap());
            let request = self.client.get(path).bearer_auth(&self.key);
            let record = answer(request.send().await.unwrap()).await.1;
            if record["lastEvent"] != Value::Null {
                return record;
            }
            assert!(Instant::now() < end, "{record}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

#[tokio::test]
async fn the_printed_line_sends_a_message_that_is_delivered() {
    let dev = Dev::start(&[]);
    let (status, answered) = dev.post(dev.body.clone()).await;
    assert_eq!(status, 200, "{answered}");
    let record = dev.until_event(&answered["id"]).await;
    assert_eq!(
        (&record["status"], &record["lastEvent"]["type"]),
        (&json!("sent"), &json!("delivery"))
    );
}

#[tokio::test]
async fn each_delivery_bounce_and_complaint_is_a_line() {
    let mut dev = Dev::of(DevProcess::start_with_log(&[]));
    for (address, told) in [
        ("success@", "delivery"),
        ("bounce@", "bounce"),
        ("complaint@", "delivery"),
        ("complaint@", "complaint"),
    ] {
        let (_, answered) = dev.post(dev.body.replace("success@", address)).await;
        let id = answered["id"].as_str().unwrap();
        let line = dev.process.line(|line| line.contains(&format!(" {told} id={id}")));
        assert!(!line.contains('@'), "addresses are not for the log: {line}");
    }
}

#[tokio::test]
async fn a_bounce_suppresses_and_the_data_stays_with_its_directory() {
    let directory = tempfile::tempdir().unwrap();
    let data = directory.path().to_str().unwrap().to_owned();
    let key = format!("pb_{}", "k".repeat(43));
    let arguments = ["--data-dir", &data, "--api-key", &key];
    let dev = Dev::start(&arguments);
    assert_eq!(dev.key, key);
    let bounces = dev.body.replace("success@", "bounce@");
    let (_, answered) = dev.post(bounces.clone()).await;
    assert_eq!(dev.until_event(&answered["id"]).await["lastEvent"]["type"], "bounce");
    drop(dev);
    let dev = Dev::start(&arguments);
    assert_eq!(dev.until_event(&answered["id"]).await["status"], "sent");
    let (status, refused) = dev.post(bounces).await;
    assert_eq!((status, &refused["error"]["code"]), (422, &json!("Suppressed")));
}

#[tokio::test]
async fn mail_of_domains_that_were_added_or_assumed_is_sent_also_after_another_start() {
    let directory = tempfile::tempdir().unwrap();
    let data = directory.path().to_str().unwrap().to_owned();
    let socket = format!("{data}/admin.sock");
    let domain = async |arguments: &[&str]| {
        let command = [&["domain"][..], arguments, &["--socket", &socket]].concat();
        let finished = Finished::run(pillarbox(&command)).await;
        assert_eq!(finished.code, 0, "{finished:?}");
        finished.out
    };
    let send_all = async |dev: &Dev| {
        for sender in ["added.example", "assumed.example"] {
            let body = dev.body.replace("dev@example.com", &format!("dev@{sender}"));
            assert!(body.contains(sender), "{body}");
            let (status, answered) = dev.post(body).await;
            assert_eq!(status, 200, "{sender}: {answered}");
            let record = dev.until_event(&answered["id"]).await;
            assert_eq!(record["lastEvent"]["type"], "delivery", "{sender}: {record}");
        }
    };
    let dev = Dev::start(&["--data-dir", &data]);
    domain(&["add", "--org", "dev", "added.example"]).await;
    domain(&["add", "--org", "dev", "assumed.example", "--assume-verified"]).await;
    let end = Instant::now() + PATIENCE;
    let verified = "\"ses\":\"verified\"";
    while !domain(&["check", "added.example", "--json"]).await.contains(verified) {
        assert!(Instant::now() < end, "it is not verified");
    }
    send_all(&dev).await;
    dev.end();
    let dev = Dev::start(&["--data-dir", &data]);
    send_all(&dev).await;
    // SES's stand-in still knows it.
    let checked = domain(&["check", "added.example", "--json"]).await;
    assert!(checked.contains(verified), "{checked}");
}

#[tokio::test]
async fn a_browser_is_told_where_it_is_and_programs_still_need_a_key() {
    let dev = Dev::start(&[]);
    let get = |accept: &str| {
        dev.client.get(format!("{}/", dev.address)).header("accept", accept.to_owned()).send()
    };
    let response = get("text/html,application/xhtml+xml,*/*;q=0.8").await.unwrap();
    assert_eq!(response.status(), 200);
    assert_eq!(response.headers()["content-type"], "text/html; charset=utf-8");
    let page = response.text().await.unwrap();
    assert!(page.contains(&format!("href=\"{}/\"", dev.page.0)), "{page}");
    assert!(!page.contains(&dev.page.1) && !page.contains(&dev.key), "no key is for everybody");
    for accept in ["*/*", "application/json"] {
        assert_eq!(get(accept).await.unwrap().status(), 401, "{accept}");
    }
    let other = dev.client.get(format!("{}/emails", dev.address)).header("accept", "text/html");
    assert_eq!(other.send().await.unwrap().status(), 401);
}

#[tokio::test]
async fn the_printed_commands_reach_the_service_when_pasted() {
    let directory = tempfile::tempdir().unwrap();
    let data = directory.path().join("it's here").to_str().unwrap().to_owned();
    let mut process = DevProcess::start(&["--data-dir", &data]);
    let mut line = |start: &str| process.line(|line| line.starts_with(start));
    assert!(line("  bounce@").contains("suppressed"));
    let (path, socket) = (line("export PATH="), line("export PILLARBOX_ADMIN_SOCKET="));
    let (data, status) = (line("export PILLARBOX_DATA_DIR="), line("pillarbox status"));
    let doctor = "pillarbox doctor".to_owned();
    let mut shell = std::process::Command::new("/bin/sh");
    shell.args(["-euc", &[path, socket, data, status, doctor].join("\n")]);
    shell.env_clear().current_dir("/");
    let finished = Finished::run(shell).await;
    assert_eq!(finished.code, 0, "{finished:?}");
    for told in ["takes writes", "dev publishes all useful events"] {
        assert!(finished.out.contains(told), "{finished:?}");
    }
}

#[test]
fn a_stop_with_nothing_pending_ends_at_once() {
    const LONGEST: Duration = Duration::from_secs(1);
    /// A machine that is busy holds up one stop, and hardly each of so many.
    const TRIES: usize = 5;
    let took = || {
        let mut process = DevProcess::start(&[]);
        process.line(|line| line.starts_with("Messages as they move"));
        // A receive on the queue of events is under way by now.
        std::thread::sleep(Duration::from_millis(1500));
        let (took, status) = process.interrupt();
        assert!(status.success(), "{status}");
        took
    };
    let mut tries = Vec::new();
    while tries.last().is_none_or(|&took| took > LONGEST) {
        assert!(tries.len() < TRIES, "{tries:?}");
        tries.push(took());
    }
}

#[tokio::test]
async fn a_second_ctrl_c_ends_it_at_once_and_leaves_no_directory_behind() {
    // An endpoint that takes a delivery and never answers holds up the stop.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/", silent.local_addr().unwrap());
    let mut dev = Dev::of(DevProcess::start_with_log(&["--webhook", &url]));
    assert!(std::path::Path::new(&dev.data).is_dir());
    assert_eq!(dev.post_its_line().await.0, 200);
    let accepted = tokio::task::spawn_blocking(move || silent.accept().unwrap());
    let _delivery = accepted.await.unwrap();
    dev.process.press_ctrl_c();
    dev.process.line(|line| line.contains("A second signal (Ctrl-C again) stops at once"));
    let (_, status) = dev.process.interrupt();
    assert_eq!(status.code(), Some(1), "the first one ended it");
    assert!(!std::path::Path::new(&dev.data).exists(), "{} is left", dev.data);
}

/// Output of a `dev` that cannot start.
async fn told(arguments: &[&str]) -> Finished {
    let mut command = pillarbox(&["dev"]);
    command.args(arguments);
    Finished::run(command).await
}

#[tokio::test]
async fn without_a_directory_for_temporary_files_it_says_what_to_give() {
    let mut command =
        pillarbox(&["dev", "--listen", "localhost:0", "--operator-listen", "localhost:0"]);
    command.env("TMPDIR", "/nonexistent");
    let ran = Finished::run(command).await;
    assert_eq!(ran.code, 1, "{ran:?}");
    assert!(ran.err.contains("--data-dir"), "{}", ran.err);
}

#[tokio::test]
async fn all_ports_that_are_taken_are_told_at_once_with_the_options_that_give_others() {
    let (one, other) = (taken_port(), taken_port());
    let at = |taken: &TcpListener| taken.local_addr().unwrap().to_string();
    let (one, other) = (at(&one), at(&other));
    for (listen, operator_listen, smtp_listen, addresses, options) in [
        (&*one, "localhost:0", "localhost:0", one.clone(), "--listen localhost:0"),
        ("localhost:0", &*one, "localhost:0", one.clone(), "--operator-listen localhost:0"),
        (
            &*one,
            "localhost:0",
            &*other,
            format!("{one} and {other}"),
            "--listen localhost:0 --smtp-listen localhost:0",
        ),
    ] {
        let finished = told(
            &[
                ["--listen", listen],
                ["--operator-listen", operator_listen],
                ["--smtp-listen", smtp_listen],
            ]
            .concat(),
        )
        .await;
        assert_eq!(finished.code, 1, "{finished:?}");
        let [line] = &finished.err.lines().collect::<Vec<_>>()[..] else { panic!("{finished:?}") };
        assert!(line.contains(&format!("{addresses} ")), "{line}");
        assert!(line.ends_with(&format!("pillarbox dev {options}")), "{line}");
    }
}

fn taken_port() -> TcpListener {
    TcpListener::bind("127.0.0.1:0").unwrap()
}

#[test]
fn a_trial_warns_of_nothing_and_opens_its_data_to_its_owner_alone() {
    let directory = tempfile::tempdir().unwrap();
    let data = directory.path().join("trial");
    // Fewer files than the default of `max_connections` needs.
    let mut shell = std::process::Command::new("sh");
    shell.args(["-c", "ulimit -n 4096; exec \"$@\"", "sh", env!("CARGO_BIN_EXE_pillarbox")]);
    shell.args(["dev", "--listen", "localhost:0", "--operator-listen", "localhost:0"]);
    shell.args(["--smtp-listen", "localhost:0", "--resend-listen", "localhost:0", "--data-dir"]);
    shell.arg(&data).env_clear();
    let process = Process::spawn(shell);
    let end = Instant::now() + PATIENCE;
    while !process.log().contains("the account's send rate") {
        assert!(Instant::now() < end, "{}", process.log());
        std::thread::sleep(Duration::from_millis(20));
    }
    let log = process.kill();
    assert!(!log.contains("WARN"), "{log}");
    assert!(log.contains("recipients_per_second=\"no limit\""), "{log}");
    let mode = std::fs::metadata(&data).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o700);
}

#[tokio::test]
async fn a_directory_that_cannot_be_used_is_named_with_what_to_do() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("file");
    std::fs::write(&file, "").unwrap();
    for path in [file.clone(), file.join("below")] {
        let finished = on_free_ports(&["--data-dir", path.to_str().unwrap()]).await;
        assert_eq!(finished.code, 1, "{finished:?}");
        let named = format!("{} is not a directory", file.display());
        assert!(finished.err.contains(&named), "{finished:?}");
    }
    let mut first = DevProcess::start(&[]);
    let data = first.told("data");
    let finished = on_free_ports(&["--data-dir", &data]).await;
    assert_eq!(finished.code, 1, "{finished:?}");
    let advice = "stop it, or choose another directory with --data-dir";
    assert!(finished.err.contains(advice) && finished.err.contains(&data), "{finished:?}");
}

async fn on_free_ports(options: &[&str]) -> Finished {
    let ports =
        ["--listen", "--operator-listen", "--smtp-listen"].map(|name| [name, "localhost:0"]);
    told(&[&ports.concat(), options].concat()).await
}

#[tokio::test]
async fn a_malformed_key_is_told_in_one_line_that_does_not_repeat_it() {
    let finished = told(&["--api-key", "abc"]).await;
    assert_eq!(finished.code, 2, "{finished:?}");
    assert_eq!(finished.err.lines().count(), 1, "{finished:?}");
    assert!(finished.err.contains("pb_ followed by 43 characters"), "{finished:?}");
    assert!(!finished.err.contains("abc"), "{finished:?}");
}

#[tokio::test]
async fn colours_are_for_terminals_and_for_those_who_want_them() {
    let mut process = DevProcess::start(&[]);
    let data = process.told("data");
    let listed = async |variable: Option<&str>| {
        let mut command = pillarbox(&["suppression", "list", "--socket"]);
        command.arg(format!("{data}/admin.sock"));
        if let Some(variable) = variable {
            command.env(variable, "1");
        }
        command.args(["--json"]);
        Finished::run(command).await.out
    };
    assert!(!listed(Some("CLICOLOR_FORCE")).await.contains('\x1b'), "JSON has no colours");
    let checked = async |variables: &[&str]| {
        let mut command = pillarbox(&["doctor"]);
        for variable in variables {
            command.env(variable, "1");
        }
        command.env("PILLARBOX_DATA_DIR", &data);
        command.env("PILLARBOX_ADMIN_SOCKET", format!("{data}/admin.sock"));
        Finished::run(command).await.out
    };
    assert!(checked(&["CLICOLOR_FORCE"]).await.contains("\x1b[32mok     \x1b[0m"));
    for variables in [&[][..], &["NO_COLOR"], &["NO_COLOR", "CLICOLOR_FORCE"]] {
        let text = checked(variables).await;
        assert!(!text.contains('\x1b') && text.contains("ok       "), "{variables:?}: {text}");
    }
}

#[tokio::test]
async fn a_variable_of_another_service_is_no_reason_to_work_on_it() {
    let site = Site::new().await;
    let elsewhere = site.data_dir().with_file_name("elsewhere");
    let elsewhere = elsewhere.to_str().unwrap();
    for variable in ["PILLARBOX_DATA_DIR", "PILLARBOX_ADMIN_SOCKET"] {
        for arguments in [
            &["org", "list"][..],
            &["status"],
            &["backup", "/nonexistent/backup"],
            &["doctor"],
            &["aws", "setup", "--dry-run"],
        ] {
            let mut command = site.command(arguments);
            command.env(variable, elsewhere);
            let finished = Finished::run(command).await;
            assert_eq!(finished.code, 2, "{finished:?}");
            for named in [variable, elsewhere, site.config().to_str().unwrap(), "unset"] {
                assert!(finished.err.contains(named), "{named}: {finished:?}");
            }
        }
    }
    // A service has its variables from its operator. It logs the place that it takes.
    let server = site.start_with(&[("PILLARBOX_DATA_DIR", elsewhere)]);
    let log = server.log();
    assert!(log.contains("the variable PILLARBOX_DATA_DIR says"), "{log}");
    assert!(log.contains("the variable wins"), "{log}");
}
