//! Rows that cannot be read, put into the file while no process has it: the process starts all the
//! same, names these rows, and the mail of all others goes on.

use std::collections::BTreeSet;

use pillarbox_domain::id::MessageId;
use pillarbox_simulator::{Fault, Faults};
use redb::{Database, TableDefinition, Value as Stored};
use reqwest::Client;
use serde_json::{Value, json};

use crate::kit::{PATIENCE, Process, Site};
use crate::site::{faulty_site, listening, spawn};

type Rows = TableDefinition<'static, [u8; 16], &'static [u8]>;

const MESSAGES: Rows = TableDefinition::new("messages");
const IDEMPOTENCY: Rows = TableDefinition::new("idempotency");
const EVENTS: TableDefinition<&[u8], &[u8]> = TableDefinition::new("events");
const ORGANISATIONS: TableDefinition<u32, &[u8]> = TableDefinition::new("organisations");
const API_KEYS: TableDefinition<u32, &[u8]> = TableDefinition::new("api_keys");
const DOMAINS: TableDefinition<(u32, &str), &[u8]> = TableDefinition::new("domains");
const SUPPRESSIONS: TableDefinition<(u32, &str), &[u8]> = TableDefinition::new("suppressions");
const DEAD_LETTERS: TableDefinition<&[u8], (u64, &[u8])> = TableDefinition::new("dead_letters");

/// A row of a version that no pillarbox has written.
const GARBAGE: &[u8] = &[0xff, 1, 2, 3];

/// A site with one organisation, and a process on it.
pub(crate) struct Damaged {
    pub(crate) site: Site,
    key: String,
    client: Client,
}

impl Damaged {
    pub(crate) async fn new() -> Self {
        let site = faulty_site(1).await;
        site.simulator.set_faults(Faults::none());
        // Without it, a command takes the configuration for wrong.
        std::fs::create_dir(site.data_dir()).unwrap();
        let key = site.add_organisation("acme", "example.com");
        let client = Client::builder().no_proxy().timeout(PATIENCE).build().unwrap();
        Self { site, key, client }
    }

    /// Changes the file of a process that has ended.
    fn change(&self, change: impl FnOnce(&redb::WriteTransaction)) {
        let database = Database::open(self.site.data_dir().join("pillarbox.redb")).unwrap();
        let transaction = database.begin_write().unwrap();
        change(&transaction);
        // What came after the last checkpoint must not be put over it: no journal is needed.
        let meta = TableDefinition::<&str, u64>::new("meta");
        transaction.open_table(meta).unwrap().remove("journal_epoch").unwrap();
        transaction.commit().unwrap();
    }

    /// Kills a process once everything is in the data file.
    async fn kill(&self, process: Process) {
        self.checkpointed(&process).await;
        drop(process);
    }

    /// Waits until everything is in the data file.
    pub(crate) async fn checkpointed(&self, process: &Process) {
        let metrics = format!("http://{}/metrics", process.operator_listening());
        let end = std::time::Instant::now() + PATIENCE;
        loop {
            let text = self.client.get(&metrics).send().await.unwrap().text().await.unwrap();
            if text.contains("\npillarbox_store_journal_bytes 0.0\n") {
                break;
            }
            assert!(std::time::Instant::now() < end, "there is no checkpoint: {text}");
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    }

    pub(crate) async fn get(&self, base: &str, path: &str) -> (u16, Value) {
        let response = self.client.get(format!("{base}{path}")).bearer_auth(&self.key).send();
        let response = response.await.unwrap();
        let status = response.status().as_u16();
        (status, serde_json::from_str(&response.text().await.unwrap()).unwrap())
    }

    async fn post(&self, base: &str, to: &str, key: Option<&str>) -> (u16, Value) {
        self.post_as(&self.key, base, "ann@example.com", to, key).await
    }

    async fn post_as(
        &self,
        api_key: &str,
        base: &str,
        from: &str,
        to: &str,
        key: Option<&str>,
    ) -> (u16, Value) {
        let message = json!({
            "from": from, "to": [to], "subject": "Hello", "text": "Hi", "idempotencyKey": key,
        });
        let request = self.client.post(format!("{base}/emails")).bearer_auth(api_key);
        let request = request.header("content-type", "application/json");
        let response = request.body(message.to_string()).send().await.unwrap();
        let status = response.status().as_u16();
        (status, serde_json::from_str(&response.text().await.unwrap()).unwrap())
    }

    /// Posts a message that must be accepted; gives its id.
    pub(crate) async fn accepted(&self, base: &str, to: &str, key: Option<&str>) -> String {
        let (status, body) = self.post(base, to, key).await;
        assert_eq!(status, 200, "{body}");
        body["id"].as_str().unwrap().to_owned()
    }

    async fn until_sent(&self, base: &str, id: &str) {
        let end = std::time::Instant::now() + PATIENCE;
        while self.get(base, &format!("/emails/{id}")).await.1["status"] != "sent" {
            assert!(std::time::Instant::now() < end, "{id} is not sent");
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
    }

    /// The output of a command that must succeed.
    pub(crate) fn done(&self, arguments: &[&str]) -> String {
        let output = self.site.command(arguments).output().unwrap();
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// Damaged rows in the answer of `status`: table and id of each.
    fn told(&self) -> BTreeSet<(String, String)> {
        let status: Value = serde_json::from_str(&self.done(&["status", "--json"])).unwrap();
        let rows = status["damaged"]["rows"].as_array().unwrap_or_else(|| panic!("{status}"));
        assert_eq!(status["damaged"]["count"], rows.len(), "{status}");
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        rows.iter().map(|row| (text(&row["table"]), text(&row["id"]))).collect()
    }

    /// The operators' page, readiness and the log name the row too.
    async fn is_told_everywhere(&self, process: &Process, table: &str, id: &str) {
        assert_eq!(self.told(), BTreeSet::from([(table.to_owned(), id.to_owned())]));
        let people = self.done(&["status"]);
        assert!(people.contains("damaged rows") && people.contains(id), "{people}");
        let log = process.log();
        let says = |line: &&str| line.contains("a row of the store cannot be read");
        let said = log.lines().find(says).unwrap_or_default();
        assert!(said.contains(table) && said.contains(id), "{log}");
        assert!(said.contains("version 255"), "{log}");
        let operator = format!("http://{}", process.operator_listening());
        let metrics = self.client.get(format!("{operator}/metrics")).send().await.unwrap();
        let metrics = metrics.text().await.unwrap();
        assert!(metrics.contains("\npillarbox_store_damaged_rows 1"), "{metrics}");
        let ready = self.client.get(format!("{operator}/readyz")).send().await.unwrap();
        assert_eq!(ready.status(), 200, "one row keeps nobody from sending");
    }
}

fn row_of(id: &str) -> [u8; 16] {
    *id.parse::<MessageId>().unwrap().as_bytes()
}

fn ruin<K: redb::Key, V: Stored>(
    transaction: &redb::WriteTransaction,
    table: TableDefinition<'static, K, V>,
    key: K::SelfType<'_>,
    value: V::SelfType<'_>,
) {
    let mut table = transaction.open_table(table).unwrap();
    assert!(table.insert(key, value).unwrap().is_some(), "there is no such row");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pending_row_that_cannot_be_read_is_set_aside_and_the_start_goes_on() {
    let damaged = Damaged::new().await;
    let process = spawn(&damaged.site);
    let base = listening(&process);
    damaged.site.simulator.set_faults(Faults::always(Fault::Throttled));
    let bad = damaged.accepted(&base, "bob@example.org", Some("bad")).await;
    let good = damaged.accepted(&base, "bob@example.org", Some("good")).await;
    damaged.kill(process).await;
    damaged.change(|transaction| ruin(transaction, MESSAGES, row_of(&bad), GARBAGE));

    for _ in 0..2 {
        let process = spawn(&damaged.site);
        let base = listening(&process);
        let (status, record) = damaged.get(&base, &format!("/emails/{good}")).await;
        assert_eq!((status, &record["status"]), (200, &json!("failed")), "{record}");
        assert_eq!(record["error"]["code"], "body_lost_on_restart");
        // It was acknowledged: it must not read as if it had never been.
        let (status, refusal) = damaged.get(&base, &format!("/emails/{bad}")).await;
        assert_eq!((status, &refusal["error"]["code"]), (500, &json!("InternalError")));
        // Nor may its key make a second message.
        assert_eq!(damaged.accepted(&base, "bob@example.org", Some("bad")).await, bad);
        let (status, list) = damaged.get(&base, "/emails").await;
        assert_eq!(status, 200, "{list}");
        assert!(list.to_string().contains(&good) && !list.to_string().contains(&bad), "{list}");
        let listed = damaged.done(&["message", "list"]);
        assert!(listed.contains(&good) && !listed.contains(&bad), "{listed}");
        // The second start has nothing to set aside and still reports it.
        damaged.is_told_everywhere(&process, "messages", &bad).await;
    }
    let backup = damaged.site.data_dir().join("../backup.redb");
    let backup = backup.to_str().unwrap();
    damaged.done(&["backup", backup]);
    let restored = damaged.done(&["restore", "--replace", backup]);
    assert!(restored.contains("1 row cannot be read"), "{restored}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_record_that_cannot_be_read_is_left_out_of_listings_and_costs_no_other() {
    let damaged = Damaged::new().await;
    let process = spawn(&damaged.site);
    let base = listening(&process);
    let mut ids = Vec::new();
    for _ in 0..3 {
        let id = damaged.accepted(&base, "bob@example.org", None).await;
        damaged.until_sent(&base, &id).await;
        ids.push(id);
    }
    damaged.kill(process).await;
    let bad = &ids[1];
    damaged.change(|transaction| ruin(transaction, MESSAGES, row_of(bad), GARBAGE));
    let process = spawn(&damaged.site);
    let base = listening(&process);
    let (status, list) = damaged.get(&base, "/emails?limit=2").await;
    assert_eq!(status, 200, "{list}");
    let listed: Vec<_> = list["emails"].as_array().unwrap().iter().map(|one| &one["id"]).collect();
    assert_eq!(listed, [&json!(ids[2]), &json!(ids[0])], "{list}");
    let (status, refusal) = damaged.get(&base, &format!("/emails/{bad}")).await;
    assert_eq!((status, &refusal["error"]["code"]), (500, &json!("InternalError")));
    damaged.is_told_everywhere(&process, "messages", bad).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_that_cannot_be_read_is_left_out_of_its_timeline() {
    let damaged = Damaged::new().await;
    let process = spawn(&damaged.site);
    let base = listening(&process);
    let id = damaged.accepted(&base, "bounce@simulator.amazonses.com", None).await;
    let path = format!("/emails/{id}/events");
    let end = std::time::Instant::now() + PATIENCE;
    while damaged.get(&base, &path).await.1["events"].as_array().unwrap().is_empty() {
        assert!(std::time::Instant::now() < end, "no event comes");
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    damaged.kill(process).await;
    damaged.change(|transaction| {
        let mut events = transaction.open_table(EVENTS).unwrap();
        let key = events.first_key();
        events.insert(key.as_slice(), GARBAGE).unwrap();
        // Another one of the same message that is whole.
        let mut other = key;
        *other.last_mut().unwrap() ^= 1;
        let whole: &[u8] = &[1, 1, 1, 3, b'b', b'@', b'c', 0, 0];
        events.insert(other.as_slice(), whole).unwrap();
    });
    let process = spawn(&damaged.site);
    let base = listening(&process);
    let (status, timeline) = damaged.get(&base, &path).await;
    assert_eq!(status, 200, "{timeline}");
    assert_eq!(timeline["events"].as_array().unwrap().len(), 1, "{timeline}");
    let shown = damaged.done(&["message", "show", &id]);
    assert!(shown.contains("delivery"), "{shown}");
    damaged.is_told_everywhere(&process, "events", &id).await;
}

trait FirstKey {
    fn first_key(&self) -> Vec<u8>;
}

impl FirstKey for redb::Table<'_, &'static [u8], &'static [u8]> {
    fn first_key(&self) -> Vec<u8> {
        use redb::ReadableTable as _;
        self.first().unwrap().unwrap().0.value().to_vec()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_domain_cannot_be_sent_from_until_it_is_added_again() {
    let damaged = Damaged::new().await;
    let other = ["domain", "add", "--org", "acme", "other.example", "--assume-verified"];
    damaged.done(&other);
    damaged.change(|transaction| ruin(transaction, DOMAINS, (1, "other.example"), GARBAGE));
    let process = spawn(&damaged.site);
    let base = listening(&process);
    damaged.accepted(&base, "bob@example.org", None).await;
    let from_other =
        || damaged.post_as(&damaged.key, &base, "ann@other.example", "bob@example.org", None);
    let (status, refusal) = from_other().await;
    assert_eq!((status, &refusal["error"]["code"]), (422, &json!("UnverifiedDomain")));
    let id = "other.example of organisation 1";
    damaged.is_told_everywhere(&process, "domains", id).await;
    damaged.done(&other);
    assert_eq!(from_other().await.0, 200);
    assert!(damaged.told().is_empty(), "it is whole again");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_key_lets_nobody_in_and_can_be_revoked() {
    let damaged = Damaged::new().await;
    let added = damaged.done(&["key", "add", "--org", "acme", "--json"]);
    let added: Value = serde_json::from_str(&added).unwrap();
    let number = u32::try_from(added["id"].as_u64().unwrap()).unwrap();
    damaged.change(|transaction| ruin(transaction, API_KEYS, number, GARBAGE));
    let process = spawn(&damaged.site);
    let base = listening(&process);
    damaged.accepted(&base, "bob@example.org", None).await;
    let key = added["key"].as_str().unwrap();
    let post = damaged.post_as(key, &base, "ann@example.com", "bob@example.org", None).await;
    assert_eq!(post.0, 401);
    damaged.is_told_everywhere(&process, "api_keys", &number.to_string()).await;
    damaged.done(&["key", "revoke", &number.to_string()]);
    assert!(damaged.told().is_empty(), "it is gone");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_organisation_is_shut_out_and_no_other() {
    let damaged = Damaged::new().await;
    damaged.done(&["org", "add", "beta"]);
    let added = damaged.done(&["key", "add", "--org", "beta", "--json"]);
    let added: Value = serde_json::from_str(&added).unwrap();
    damaged.change(|transaction| ruin(transaction, ORGANISATIONS, 2, GARBAGE));
    let process = spawn(&damaged.site);
    let base = listening(&process);
    damaged.accepted(&base, "bob@example.org", None).await;
    let key = added["key"].as_str().unwrap();
    let post = damaged.post_as(key, &base, "ann@example.com", "bob@example.org", None).await;
    assert_eq!(post.0, 401);
    damaged.is_told_everywhere(&process, "organisations", "2").await;
    // Others can be added and removed all the same.
    damaged.done(&["org", "add", "gamma"]);
    damaged.done(&["org", "remove", "gamma"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_suppression_suppresses_and_is_listed_and_exported() {
    let damaged = Damaged::new().await;
    for address in ["gone@example.org", "left@example.org"] {
        damaged.done(&["suppression", "add", "--org", "acme", address]);
    }
    damaged.change(|transaction| ruin(transaction, SUPPRESSIONS, (1, "gone@example.org"), GARBAGE));
    let process = spawn(&damaged.site);
    let base = listening(&process);
    let (status, refusal) = damaged.post(&base, "gone@example.org", None).await;
    assert_eq!((status, &refusal["error"]["code"]), (422, &json!("Suppressed")));
    let listed = damaged.done(&["suppression", "list"]);
    assert!(listed.contains("gone@example.org") && listed.contains("left@example.org"), "{listed}");
    assert!(listed.contains("unreadable"), "{listed}");
    damaged.is_told_everywhere(&process, "suppressions", "organisation 1").await;
    assert!(damaged.done(&["status"]).contains("gone@example.org"));
    assert!(!process.log().contains("gone@example.org"), "addresses are not for the log");

    let list = damaged.site.data_dir().join("../list.csv");
    damaged.done(&["suppression", "export", list.to_str().unwrap()]);
    damaged.done(&["suppression", "remove", "--org", "acme", "gone@example.org"]);
    assert!(damaged.told().is_empty(), "it is gone");
    damaged.done(&["suppression", "import", list.to_str().unwrap()]);
    let (status, _) = damaged.post(&base, "gone@example.org", None).await;
    assert_eq!(status, 422, "an export keeps it suppressed");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_idempotency_key_is_named_and_the_others_replay() {
    let damaged = Damaged::new().await;
    let process = spawn(&damaged.site);
    let base = listening(&process);
    let bad = damaged.accepted(&base, "bob@example.org", Some("bad")).await;
    let good = damaged.accepted(&base, "bob@example.org", Some("good")).await;
    damaged.kill(process).await;
    damaged.change(|transaction| ruin(transaction, IDEMPOTENCY, row_of(&bad), GARBAGE));
    let process = spawn(&damaged.site);
    let base = listening(&process);
    assert_eq!(damaged.accepted(&base, "bob@example.org", Some("good")).await, good);
    damaged.is_told_everywhere(&process, "idempotency", &bad).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_dead_letter_is_left_out_of_their_list() {
    let damaged = Damaged::new().await;
    damaged.change(|transaction| {
        let mut letters = transaction.open_table(DEAD_LETTERS).unwrap();
        let whole: &[u8] = &[1, 7, b'n', b'o', b' ', b'J', b'S', b'O', b'N', 1, b'{', 1];
        let now = u64::try_from(std::time::UNIX_EPOCH.elapsed().unwrap().as_millis()).unwrap();
        letters.insert(&[1; 16][..], (now, whole)).unwrap();
        letters.insert(&[2; 16][..], (now, GARBAGE)).unwrap();
    });
    let process = spawn(&damaged.site);
    listening(&process);
    let listed = damaged.done(&["dead-letter", "list"]);
    assert!(listed.contains("no JSON"), "{listed}");
    damaged.is_told_everywhere(&process, "dead_letters", &"02".repeat(16)).await;
}
