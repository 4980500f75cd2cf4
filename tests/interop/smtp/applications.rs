//! The recipes of `docs/smtp-recipes.md`. The settings come from the page; a program here gives them to
//! the mail library of the application as the application's own source does. Each program names that
//! source, and refuses a setting that the application does not know.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::net::TcpListener;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::{PHP, Submitting, first_block, recipe_of_page};
use crate::kit::{PATIENCE, Site};
use crate::pasted::read_request;

/// The page with the recipes for applications.
pub(super) const PAGE: &str = include_str!("../../../docs/smtp-recipes.md");
/// Heading of the page that has no recipe.
const TROUBLESHOOTING: &str = "If it does not work";
/// Heading of the recipe that is a script.
const UMAMI: &str = "Umami";

/// Declares the test of each recipe: its heading, the program of the application, and the sender.
macro_rules! recipes {
    ($($test:ident: $heading:literal, $program:literal, $sender:literal;)*) => {
        /// Headings of the recipes that these tests run.
        const RUN: &[&str] = &[$($heading),*];
        $(
            #[tokio::test(flavor = "multi_thread")]
            async fn $test() {
                sends_by_its_recipe($heading, $program, $sender).await;
            }
        )*
    };
}

recipes! {
    ghost_sends_by_its_recipe: "Ghost", "ghost.mjs", "Blog <blog@example.com>";
    gitea_sends_by_its_recipe: "Gitea", "gitea.go", "Git <git@example.com>";
    nextcloud_sends_by_its_recipe: "Nextcloud", "nextcloud.php", "cloud@example.com";
    grafana_sends_by_its_recipe: "Grafana", "grafana.go", "Grafana <grafana@example.com>";
    discourse_sends_by_its_recipe: "Discourse", "discourse.rb", "forum@example.com";
    gitlab_sends_by_its_recipe: "GitLab", "gitlab.rb", "gitlab@example.com";
    mastodon_sends_by_its_recipe: "Mastodon", "mastodon.rb", "social@example.com";
    authentik_sends_by_its_recipe: "authentik", "authentik.py", "login@example.com";
    supabase_sends_by_its_recipe: "Supabase", "supabase.go", "Shop <auth@example.com>";
}

#[test]
fn every_recipe_of_the_page_is_run() {
    let headings: BTreeSet<_> = PAGE.lines().filter_map(|line| line.strip_prefix("## ")).collect();
    let run: BTreeSet<_> = RUN.iter().copied().chain([UMAMI, TROUBLESHOOTING]).collect();
    assert_eq!(headings, run);
}

/// Has a program send by the recipe under this heading, which must keep the key to itself, and checks
/// the message and whose it is.
async fn sends_by_its_recipe(heading: &str, program: &str, sender: &str) {
    let place = Submitting::new().await;
    place.site.add_organisation("other", "example.org");
    let command = command_of(program);
    let command: Vec<_> = command.iter().map(String::as_str).collect();
    let file = ("recipe", "RECIPE\n");
    place.keeps_its_key(heading, file, &command).await;
    let (_, own) = recipe_of_page(heading);
    let recipe = place.recipe(heading, own);
    place.run(place.command(&command, file, (&recipe, own))).await;
    is_sent(&place.site, sender).await;
}

/// The command that runs a program for the recipe.
fn command_of(program: &str) -> Vec<String> {
    let directory = "tests/interop/smtp/applications";
    let python = || std::env::var("DJANGO_PYTHON").expect("a Python with: pip install django");
    // Debian's libraries for Go.
    let go = ["env", "GO111MODULE=off", "GOPATH=/usr/share/gocode", "go", "run"].map(str::to_owned);
    let mut command = match program.rsplit('.').next() {
        Some("mjs") => vec!["node".to_owned()],
        Some("php") => PHP.map(str::to_owned).to_vec(),
        Some("rb") => ["ruby", "-W0"].map(str::to_owned).to_vec(),
        Some("py") => vec![python()],
        Some("go") => [go.as_slice(), &[format!("{directory}/settings.go")]].concat(),
        _ => panic!("no command for {program}"),
    };
    command.push(format!("{directory}/{program}"));
    command
}

/// Waits until the one message is sent, and checks that it is of the key's organisation.
async fn is_sent(site: &Site, sender: &str) {
    let listed = |organisation: &str| -> Value {
        let output = site.done(&["message", "list", "--org", organisation, "--json"]);
        let list: Value = serde_json::from_slice(&output.stdout).unwrap();
        list["messages"].clone()
    };
    let end = Instant::now() + PATIENCE;
    while listed("acme")[0]["status"] != "sent" {
        assert!(Instant::now() < end, "{}", listed("acme"));
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let own = listed("acme");
    let [message] = own.as_array().unwrap().as_slice() else { panic!("{own}") };
    assert_eq!((&message["from"], &message["to"]), (&json!(sender), &json!(["ada@example.net"])));
    assert_eq!(listed("other"), json!([]));
    let sent = site.simulator.messages();
    let [sent] = sent.as_slice() else { panic!("{sent:?}") };
    assert_eq!(sent.to, ["ada@example.net"]);
    // Some libraries quote the name.
    assert_eq!(sent.from.replace('"', ""), sender);
}

/// Umami's own answers to the two requests of the script, in their order
/// (src/app/api/auth/login/route.ts and src/app/api/websites/[websiteId]/stats/route.ts).
const UMAMIS_ANSWERS: [&str; 2] = [
    r#"{"token":"T0KEN","user":{"id":"1","username":"ada","role":"admin","isAdmin":true}}"#,
    r#"{"pageviews":9,"visitors":5,"visits":7,"bounces":2,"totaltime":60,"comparison":{"visits":3}}"#,
];

/// A stand-in for Umami. Returns its address; the thread ends with the requests.
fn umami() -> (String, std::thread::JoinHandle<Vec<String>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let requests = std::thread::spawn(move || {
        let answer = |body: &str| {
            let (mut client, _) = listener.accept().unwrap();
            let request = String::from_utf8(read_request(&mut client)).unwrap();
            let length = body.len();
            write!(client, "HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n{body}").unwrap();
            request
        };
        UMAMIS_ANSWERS.map(answer).to_vec()
    });
    (address, requests)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_script_for_umami_mails_the_visits() {
    let site = Site::new().await;
    site.add_organisation("other", "example.org");
    let server = site.start();
    let (address, requests) = umami();
    let mut script = Command::new("sh");
    script.args(["-c", first_block(PAGE, &format!("## {UMAMI}")).expect("a script")]);
    script.envs([("UMAMI_URL", &*address), ("UMAMI_WEBSITE", "b59e9c65")]);
    script.envs([("UMAMI_USER", "ada"), ("UMAMI_PASSWORD", r#"quote " and \ "#)]);
    script.envs([("MAIL_URL", &*server.base), ("MAIL_KEY", &*server.key)]);
    let output = tokio::task::spawn_blocking(move || script.output().unwrap()).await.unwrap();
    assert!(output.status.success(), "{output:?}");

    let requests = requests.join().unwrap();
    let (head, body) = requests[0].split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("POST /api/auth/login HTTP/1.1\r\n"), "{head}");
    let login: Value = serde_json::from_str(body).unwrap();
    assert_eq!(login, json!({"username": "ada", "password": r#"quote " and \ "#}));
    let query = requests[1].strip_prefix("GET /api/websites/b59e9c65/stats?startAt=").unwrap();
    let (start, query) = query.split_once("&endAt=").unwrap();
    let (end, head) = query.split_once(' ').unwrap();
    let days = (end.parse::<u64>().unwrap() - start.parse::<u64>().unwrap()) / 86_400_000;
    assert_eq!(days, 7);
    assert!(head.contains("\r\nAuthorization: Bearer T0KEN\r\n"), "{head}");

    is_sent(&site, "Umami <stats@example.com>").await;
    let text = site.simulator.messages()[0].text.clone().unwrap();
    assert_eq!(text.trim_end(), UMAMIS_ANSWERS[1]);
}
