//! The history of a run: the observations of all parties, for the judge of `tests/judge`.
//!
//! Must not know what is right.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{BufReader, BufWriter, Write as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use pillarbox_domain::time::Timestamp;
use pillarbox_judge::Summary;
use pillarbox_judge::history::{
    Accepted, Answers, Entry, Event, Limited, OnUnknown, Page, Post, Read, Refusal, Run,
};
use pillarbox_ses::send::{MESSAGE_ID_TAG, ORGANISATION_TAG};
use pillarbox_simulator::Simulator;
use serde_json::Value;
use tokio::time::sleep;

use super::{PATIENCE, http_client, is_on_postgres};

/// The organisation whose clients write histories.
pub(crate) const ORGANISATION: &str = "acme";
/// Pause before something is read again.
const PAUSE: Duration = Duration::from_millis(20);

/// Writes down what happens. Clones write the same history.
#[derive(Clone)]
pub(crate) struct History {
    began: Instant,
    began_at: Timestamp,
    written: Arc<Mutex<Written>>,
}

struct Written {
    path: PathBuf,
    file: BufWriter<File>,
    /// Messages whose posts were answered with success.
    acknowledged: BTreeSet<String>,
    /// Messages that the provider took.
    taken: u64,
}

impl History {
    /// Begins a history of a site with the default configuration, whose provider's answers arrive.
    pub(crate) fn by_default(name: &str, simulator: &Simulator) -> Self {
        let refusal = if is_on_postgres() { Refusal::MayBeOpen } else { Refusal::Definite };
        let run = Run {
            on_unknown: OnUnknown::Retry,
            answers: Answers::Arrive,
            refusal,
            suppression_delay: 1_000_000,
        };
        Self::begin(name, run, simulator)
    }

    /// Begins a history, in a file of this name. Messages that the provider takes are added by
    /// themselves.
    pub(crate) fn begin(name: &str, run: Run, simulator: &Simulator) -> Self {
        let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("histories");
        std::fs::create_dir_all(&directory).unwrap();
        let path = directory.join(format!("{name}.jsonl"));
        let file = BufWriter::new(File::create(&path).unwrap());
        let (acknowledged, taken) = (BTreeSet::new(), 0);
        let written = Arc::new(Mutex::new(Written { path, file, acknowledged, taken }));
        let began_at = Timestamp::from(SystemTime::now());
        let history = Self { began: Instant::now(), began_at, written };
        history.write(&Event::Run(run));
        history.follow(simulator);
        history
    }

    /// The time in the history, in microseconds.
    pub(crate) fn now(&self) -> u64 {
        self.began.elapsed().as_micros().try_into().unwrap()
    }

    /// An instant of the machine's clock as time in the history.
    fn at(&self, instant: Timestamp) -> u64 {
        instant.unix_millis().saturating_sub(self.began_at.unix_millis()) * 1_000
    }

    /// Writes an event down.
    pub(crate) fn write(&self, event: &Event) {
        let mut line = serde_json::to_vec(event).unwrap();
        line.push(b'\n');
        let mut written = self.written.lock().unwrap();
        match event {
            Event::Post(Post { id: Some(id), .. }) => drop(written.acknowledged.insert(id.clone())),
            Event::Provider(_) => written.taken += 1,
            _ => {}
        }
        written.file.write_all(&line).unwrap();
    }

    /// Writes down a post without a key that began at this time, and its answer: the status and the
    /// id, or nothing if the connection broke.
    pub(crate) fn write_post(
        &self,
        began: u64,
        subject: &str,
        answer: Option<(u16, Option<&str>)>,
    ) {
        self.write(&Event::Post(Post {
            began,
            ended: self.now(),
            organisation: ORGANISATION.to_owned(),
            key: None,
            subject: subject.to_owned(),
            status: answer.map(|(status, _)| status),
            id: answer.and_then(|(_, id)| id.map(str::to_owned)),
            replayed: false,
        }));
    }

    /// Writes down that the operator begins to limit the organisation to so many messages in all.
    pub(crate) fn write_limit(&self, most: u64) {
        let organisation = ORGANISATION.to_owned();
        self.write(&Event::Limited(Limited { began: self.now(), organisation, most }));
    }

    /// Writes down that a process was killed.
    pub(crate) fn write_kill(&self) {
        self.write(&Event::Killed { at: self.now() });
    }

    /// Writes down a record that was read.
    pub(crate) fn write_read(&self, began: u64, record: &Value) {
        self.write(&Event::Read(Read {
            began,
            ended: self.now(),
            id: record["id"].as_str().unwrap().to_owned(),
            status: Some(record["status"].as_str().unwrap().to_owned()),
            attempts: record["attempts"].as_u64().unwrap(),
        }));
    }

    /// Ends a history: reads each message that was acknowledged until it is final, and the feed
    /// until it has each, with a key of the organisation. Then it is judged.
    pub(crate) async fn finish(&self, base: &str, key: &str, simulator: &Simulator) -> Summary {
        let acknowledged = self.written.lock().unwrap().acknowledged.clone();
        let client = http_client();
        let end = Instant::now() + PATIENCE;
        let get = async |path: &str| {
            let response = client.get(format!("{base}{path}")).bearer_auth(key).send().await;
            let (status, answer) = super::answer(response.unwrap()).await;
            assert!(Instant::now() < end, "{path} is still {answer}");
            (status.as_u16() == 200).then_some(answer)
        };
        for id in &acknowledged {
            loop {
                let began = self.now();
                let Some(record) = get(&format!("/emails/{id}")).await else {
                    let (id, status) = (id.clone(), None);
                    self.write(&Event::Read(Read {
                        began,
                        ended: self.now(),
                        id,
                        status,
                        attempts: 0,
                    }));
                    break;
                };
                self.write_read(began, &record);
                if !matches!(record["status"].as_str().unwrap(), "queued" | "sending") {
                    break;
                }
                sleep(PAUSE).await;
            }
        }
        let (mut told, mut after) = (BTreeSet::new(), String::new());
        loop {
            let began = self.now();
            let page = get(&format!("/events?limit=100{after}")).await.expect("the feed is read");
            let entries = page["events"].as_array().unwrap().iter().map(entry);
            let entries: Vec<Entry> = entries.collect();
            let is_last = entries.is_empty();
            told.extend(entries.iter().map(|entry| entry.message.clone()));
            self.write(&Event::Feed(Page {
                began,
                ended: self.now(),
                organisation: ORGANISATION.to_owned(),
                reader: "reader".to_owned(),
                entries,
            }));
            after = format!("&after={}", page["next"].as_str().unwrap());
            if is_last && acknowledged.is_subset(&told) {
                break;
            }
            if is_last {
                sleep(PAUSE).await;
            }
        }
        while self.written.lock().unwrap().taken < simulator.accepted_total() {
            assert!(Instant::now() < end, "not all is written that the provider took");
            sleep(PAUSE).await;
        }
        self.judge()
    }

    /// Judges what is written so far; the file stays.
    pub(crate) fn judge(&self) -> Summary {
        let path = {
            let mut written = self.written.lock().unwrap();
            written.file.flush().unwrap();
            written.path.clone()
        };
        let history = pillarbox_judge::read(BufReader::new(File::open(&path).unwrap())).unwrap();
        match pillarbox_judge::judge(&history) {
            Ok(summary) => summary,
            Err(contradiction) => panic!("{}: {contradiction}", path.display()),
        }
    }

    fn follow(&self, simulator: &Simulator) {
        let (history, mut accepted) = (self.clone(), simulator.subscribe());
        tokio::spawn(async move {
            loop {
                let message = match accepted.recv().await {
                    Ok(message) => message,
                    Err(tokio::sync::broadcast::error::RecvError::Closed) => return,
                    Err(missed) => panic!("the history is not whole: {missed}"),
                };
                let tag = |name| message.tag(name).unwrap_or_default().to_owned();
                let recipients = message.recipients.iter().map(|one| one.address.clone());
                history.write(&Event::Provider(Accepted {
                    at: history.at(message.received_at),
                    organisation: tag(ORGANISATION_TAG),
                    id: tag(MESSAGE_ID_TAG),
                    subject: message.subject.clone(),
                    recipients: recipients.collect(),
                }));
            }
        });
    }
}

fn entry(event: &Value) -> Entry {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    Entry {
        id: text(&event["id"]),
        kind: text(&event["type"]),
        message: text(&event["data"]["id"]),
    }
}
