//! A real Prometheus on the scrape configuration and the rules that we ship, in fast motion.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;
use tokio::time::sleep;

use crate::Program;
use crate::kit::{PATIENCE, free_port, http_client};

/// Factor by which time goes faster for the rules: every window, offset, `for` and interval is
/// divided by this, and so is the time for which Prometheus takes a sample for the present. Nothing
/// else of them is changed. (Numbers that they compare instants with, as an hour after a start and
/// 91 days of retention, stay.)
const FASTER: u64 = 15;

/// An alarm that fires: the instance's name, and the alarm's with the cause or organisation that
/// it names.
pub(crate) type Firing = (String, String);

pub(crate) struct Prometheus {
    _process: Program,
    directory: TempDir,
    base: String,
    client: reqwest::Client,
}

impl Prometheus {
    /// Has it scrape these: the name and address of each.
    pub(crate) fn start<'a>(targets: impl Iterator<Item = (&'a str, &'a str)>) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let shipped = Path::new(env!("CARGO_MANIFEST_DIR")).join("monitoring");
        let read = |name| fast(&std::fs::read_to_string(shipped.join(name)).unwrap());
        let (config, rules) = (read("prometheus.yml"), read("alerts.yml"));
        // One target is named there; here there are several, each by a name.
        let (config, _) = config.split_once("      - targets: ").unwrap();
        let mut config = config.to_owned();
        for (name, address) in targets {
            let target = format!(
                "      - targets: [\"{address}\"]
"
            );
            config = config
                + &target
                + &format!(
                    "        labels: {{ instance: {name} }}
"
                );
        }
        let path = |name: &str| directory.path().join(name);
        std::fs::write(path("prometheus.yml"), config).unwrap();
        std::fs::write(path("alerts.yml"), rules).unwrap();
        let address = format!("127.0.0.1:{}", free_port());
        let child = Command::new("prometheus")
            .arg(format!("--config.file={}", path("prometheus.yml").display()))
            .arg(format!("--storage.tsdb.path={}", path("data").display()))
            .arg(format!("--web.listen-address={address}"))
            .arg(format!("--query.lookback-delta={}", fast("5m")))
            .stdout(Stdio::null())
            .stderr(std::fs::File::create(path("log")).unwrap())
            .spawn()
            .expect("prometheus is installed");
        let client = http_client();
        let base = format!("http://{address}/api/v1");
        Self { _process: Program(child), directory, base, client }
    }

    /// The series that an expression gives; nothing if it gives none or is wrong.
    pub(crate) async fn query(&self, expression: &str) -> Vec<Value> {
        let query = form_urlencoded::Serializer::new(String::new())
            .append_pair("query", expression)
            .finish();
        let data = self.ask(&format!("query?{query}")).await;
        data.and_then(|data| data["result"].as_array().cloned()).unwrap_or_default()
    }

    /// Answer to the query; `None` while it starts.
    async fn ask(&self, path: &str) -> Option<Value> {
        let answer = self.client.get(format!("{}/{path}", self.base)).send().await.ok()?;
        let document: Value = serde_json::from_str(&answer.text().await.ok()?).ok()?;
        (document["status"] == "success").then(|| document["data"].clone())
    }

    /// Waits until it has scraped so many targets, and has evaluated every rule once.
    pub(crate) async fn until_scraped(&self, targets: usize) {
        let end = Instant::now() + PATIENCE;
        while !self.has_scraped(targets).await {
            let log = || std::fs::read_to_string(self.directory.path().join("log")).unwrap();
            assert!(Instant::now() < end, "not everything is scraped: {}", log());
            sleep(Duration::from_millis(200)).await;
        }
    }

    async fn has_scraped(&self, targets: usize) -> bool {
        let (Some(found), Some(rules)) =
            (self.ask("targets?state=active").await, self.ask("rules").await)
        else {
            return false;
        };
        let up = found["activeTargets"].as_array().unwrap().iter().filter(|t| t["health"] == "up");
        let groups = rules["groups"].as_array().unwrap();
        let rules: Vec<_> =
            groups.iter().flat_map(|group| group["rules"].as_array().unwrap()).collect();
        up.count() == targets
            && !rules.is_empty()
            && rules.iter().all(|rule| rule["health"] == "ok")
    }

    /// The alarms that fire now.
    pub(crate) async fn firing(&self) -> BTreeSet<Firing> {
        let Some(data) = self.ask("alerts").await else { return BTreeSet::new() };
        let alerts = data["alerts"].as_array().unwrap().iter();
        let firing = alerts.filter(|alert| alert["state"] == "firing").map(|alert| {
            let label = |name: &str| alert["labels"][name].as_str();
            let named = label("cause").or(label("organisation"));
            let alarm = label("alertname").unwrap();
            let alarm = named.map_or_else(|| alarm.to_owned(), |named| format!("{alarm} {named}"));
            (label("instance").unwrap().to_owned(), alarm)
        });
        firing.collect()
    }
}

/// A text with every duration in it divided: digits and a unit, with neither a letter nor a digit
/// on either side.
fn fast(text: &str) -> String {
    let is_word = |c: char| c.is_ascii_alphanumeric() || "_.".contains(c);
    let mut whole = String::new();
    let mut rest = text;
    while let Some(at) = rest.find(is_word) {
        let (before, from) = rest.split_at(at);
        let (word, after) = from.split_at(from.find(|c| !is_word(c)).unwrap_or(from.len()));
        whole.push_str(before);
        match millis(word) {
            Some(millis) => write!(whole, "{}ms", millis / FASTER).unwrap(),
            None => whole.push_str(word),
        }
        rest = after;
    }
    whole + rest
}

/// A word's milliseconds, if it is a duration.
fn millis(word: &str) -> Option<u64> {
    let unit = match word.chars().last()? {
        's' => 1_000,
        'm' => 60_000,
        'h' => 3_600_000,
        _ => return None,
    };
    Some(word[..word.len() - 1].parse::<u64>().ok()? * unit)
}

#[test]
fn durations_alone_are_made_shorter() {
    let rule = "increase(x_total[24h]) / y:ratio24h > 0.5 # 5 m\nfor: 30s\ntime() - 91 * 86400";
    let fast_rule = "increase(x_total[5760000ms]) / y:ratio24h > 0.5 # 5 m\nfor: 2000ms\n\
                     time() - 91 * 86400";
    assert_eq!(fast(rule), fast_rule);
}
