//! Clients that post from many connections until the process has ended.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use pillarbox_judge::history::{Entry, Event, Page, Post, Read};
use reqwest::{Client, RequestBuilder};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::kit::{History, Process, SmtpClient, accepted_id};
use crate::ledger::{Ledger, Seen};
use crate::site::listening;

/// Number of connections that post at once.
const CLIENTS: u64 = 16;
/// Number of sessions of SMTP that submit besides.
const SESSIONS: u64 = 2;
/// Number of clients that share each of the keys that are posted at once.
const SHARING: u64 = 4;

/// Speaks to one life of the process.
#[derive(Clone)]
pub(crate) struct Api {
    pub(crate) base: String,
    /// The same service in Resend's shape.
    resend: String,
    /// Address for submissions over SMTP.
    smtp: String,
    pub(crate) key: String,
    client: Client,
    history: History,
}

/// Shape of a request. A key names one message in both.
#[derive(Debug, Clone, Copy)]
enum Shape {
    Own,
    Resend,
}

/// Pause of a client that is refused for now.
const REFUSED_PAUSE: Duration = Duration::from_millis(20);

/// The organisation of all clients.
const ORGANISATION: &str = "acme";

const SUCCESS: &str = "success@simulator.amazonses.com";

/// Message of a partial batch.
pub(crate) struct Email {
    key: Option<String>,
    /// True if there is nothing to refuse.
    is_right: bool,
}

impl Email {
    fn subject(&self) -> String {
        match &self.key {
            Some(key) if self.is_right => key.clone(),
            _ => format!("in a batch: {:x}", fastrand::u128(..)),
        }
    }
}

fn message(key: Option<&str>, to: &str, subject: &str) -> Value {
    let mut message = json!({
        "from": "Ann <ann@example.com>",
        "to": [to],
        "subject": subject,
        "text": "How are you?",
    });
    if let Some(key) = key {
        message["idempotencyKey"] = json!(key);
    }
    message
}

impl Api {
    pub(crate) fn new(process: &Process, key: String, history: History) -> Self {
        let base = listening(process);
        let resend = format!("http://{}", process.resend_listening());
        let smtp = process.smtp_listening();
        let client = Client::builder().no_proxy().timeout(Duration::from_mins(1)).build().unwrap();
        Self { base, resend, smtp, key, client, history }
    }

    /// Posts a message; its status and body, or `None` if the connection broke.
    pub(crate) async fn post(&self, key: Option<&str>, to: &str) -> Option<(u16, Value)> {
        self.post_over(Shape::Own, key, to).await
    }

    /// The same over the listener of this shape.
    async fn post_over(&self, shape: Shape, key: Option<&str>, to: &str) -> Option<(u16, Value)> {
        let subject =
            key.map_or_else(|| format!("without a key: {:x}", fastrand::u128(..)), str::to_owned);
        let began = self.history.now();
        let answer = match shape {
            Shape::Own => self.ask("/emails", &message(key, to, &subject)).await,
            Shape::Resend => {
                let request = self.request(&self.resend, "/emails", &message(None, to, &subject));
                let request = match key {
                    Some(key) => request.header("idempotency-key", key),
                    None => request,
                };
                answer_to(request).await
            }
        };
        let (status, replayed, body) = match &answer {
            Some((status, replayed, body)) => (Some(*status), *replayed, Some(body)),
            None => (None, false, None),
        };
        self.history.write(&Event::Post(Post {
            began,
            ended: self.history.now(),
            organisation: ORGANISATION.to_owned(),
            key: key.map(str::to_owned),
            subject,
            status,
            id: body.and_then(|body| Some(body["id"].as_str()?.to_owned())),
            replayed,
        }));
        answer.map(|(status, _, body)| (status, body))
    }

    /// Posts a partial batch; its status, and the id of each message that is accepted, or `None` if
    /// the connection broke. Each message is a post of its own.
    pub(crate) async fn post_partial(
        &self,
        emails: &[Email],
    ) -> Option<(u16, Vec<Option<String>>)> {
        let began = self.history.now();
        let subjects: Vec<String> = emails.iter().map(Email::subject).collect();
        let messages = emails.iter().zip(&subjects).map(|(email, subject)| {
            message(email.key.as_deref(), if email.is_right { SUCCESS } else { "nobody" }, subject)
        });
        let body = json!({ "emails": messages.collect::<Vec<_>>(), "partial": true });
        let answer = self.ask("/emails/batch", &body).await;
        let ended = self.history.now();
        let mut ids = Vec::with_capacity(emails.len());
        for (n, (email, subject)) in emails.iter().zip(subjects).enumerate() {
            let one = answer.as_ref().map(|(status, _, body)| (*status, &body["emails"][n]));
            let status = one.map(|(status, one)| match (status, one["error"]["code"].as_str()) {
                (200, Some(code)) => {
                    assert_eq!((code, email.is_right), ("ValidationError", false), "{one}");
                    422
                }
                (status, _) => status,
            });
            let id = one.and_then(|(_, one)| Some(one["id"].as_str()?.to_owned()));
            assert!(email.is_right || id.is_none(), "what is wrong is accepted");
            self.history.write(&Event::Post(Post {
                began,
                ended,
                organisation: ORGANISATION.to_owned(),
                key: email.key.clone(),
                subject,
                status,
                id: id.clone(),
                replayed: one.is_some_and(|(_, one)| one["replayed"] == true),
            }));
            ids.push(id);
        }
        answer.map(|(status, ..)| (status, ids))
    }

    /// Submits messages over one session of SMTP until it ends. They have no keys.
    async fn submit(&self, ledger: &Mutex<Ledger>) {
        let Ok(mut client) = SmtpClient::login(&self.smtp, &self.key).await else { return };
        loop {
            let subject = format!("over SMTP: {:x}", fastrand::u128(..));
            let message = format!(
                "From: Ann <ann@example.com>\r\nTo: {SUCCESS}\r\nSubject: {subject}\r\n\r\nHow are you?\r\n"
            );
            let began = self.history.now();
            let reply = client.submit(&[SUCCESS], &message).await.ok();
            let id = reply.as_deref().and_then(accepted_id);
            // What another reply refuses for now has the same meaning as this status.
            let answer = reply.as_ref().map(|_| (if id.is_some() { 200 } else { 503 }, id));
            self.history.write_post(began, &subject, answer);
            match (&reply, id) {
                (None, _) => return,
                (_, Some(id)) => ledger.lock().unwrap().answered(None, id),
                (Some(reply), None) => {
                    assert!(reply.starts_with('4'), "{reply}");
                    tokio::time::sleep(REFUSED_PAUSE).await;
                }
            }
        }
    }

    async fn ask(&self, path: &str, body: &Value) -> Option<(u16, bool, Value)> {
        answer_to(self.request(&self.base, path, body)).await
    }

    fn request(&self, base: &str, path: &str, body: &Value) -> RequestBuilder {
        let request = self.client.post(format!("{base}{path}")).bearer_auth(&self.key);
        request.header("content-type", "application/json").body(body.to_string())
    }

    /// Reads a message that must be there.
    pub(crate) async fn read(&self, id: &str) -> Seen {
        let began = self.history.now();
        let request = self.client.get(format!("{}/emails/{id}", self.base)).bearer_auth(&self.key);
        let response = request.send().await.unwrap();
        let (status, text) = (response.status(), response.text().await.unwrap());
        assert_eq!(status, 200, "{id}, which was answered with 200, reads {text}");
        let record: Value = serde_json::from_str(&text).unwrap();
        let status = record["status"].as_str().unwrap().to_owned();
        self.history.write(&Event::Read(Read {
            began,
            ended: self.history.now(),
            id: id.to_owned(),
            status: Some(status.clone()),
            attempts: record["attempts"].as_u64().unwrap(),
        }));
        Seen { status, has_event: !record["lastEvent"].is_null() }
    }

    /// Reads a page of the feed as a reader that follows it, and writes it down.
    pub(crate) async fn follow_page(
        &self,
        reader: &str,
        after: Option<&str>,
    ) -> Option<(Vec<Value>, String)> {
        let began = self.history.now();
        let (events, next) = self.feed(after).await?;
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let entries = events.iter().map(|event| Entry {
            id: text(&event["id"]),
            kind: text(&event["type"]),
            message: text(&event["data"]["id"]),
        });
        self.history.write(&Event::Feed(Page {
            began,
            ended: self.history.now(),
            organisation: ORGANISATION.to_owned(),
            reader: reader.to_owned(),
            entries: entries.collect(),
        }));
        Some((events, next))
    }

    /// Reads a page of the feed that must be given, or nothing if the connection broke.
    pub(crate) async fn feed(&self, after: Option<&str>) -> Option<(Vec<Value>, String)> {
        let after = after.map(|cursor| format!("&after={cursor}")).unwrap_or_default();
        let url = format!("{}/events?limit=100{after}", self.base);
        let response = self.client.get(url).bearer_auth(&self.key).send().await.ok()?;
        let status = response.status();
        let text = response.text().await.ok()?;
        assert_eq!(status, 200, "the feed reads {text}");
        let page: Value = serde_json::from_str(&text).unwrap();
        let next = page["next"].as_str().unwrap().to_owned();
        Some((page["events"].as_array().unwrap().clone(), next))
    }

    /// Reads the whole feed as a new reader.
    pub(crate) async fn read_feed(&self, reader: &str) -> Vec<Value> {
        let (mut all, mut next) = (Vec::new(), None);
        loop {
            let page = self.follow_page(reader, next.as_deref()).await;
            let (events, after) = page.unwrap();
            if events.is_empty() {
                return all;
            }
            all.extend(events);
            next = Some(after);
        }
    }

    /// Follows the feed from the ledger's cursor, to its end or until the process has ended.
    pub(crate) async fn follow(&self, ledger: &Mutex<Ledger>) {
        loop {
            let cursor = ledger.lock().unwrap().cursor.clone();
            let page = self.follow_page("follower", cursor.as_deref()).await;
            let Some((events, next)) = page else { return };
            if events.is_empty() {
                return;
            }
            let mut ledger = ledger.lock().unwrap();
            ledger.told.extend(events);
            ledger.cursor = Some(next);
        }
    }

    /// Posts from many connections until the process has ended, and follows the feed meanwhile.
    pub(crate) fn load(&self, round: u64, seed: u64, ledger: &Arc<Mutex<Ledger>>) -> JoinSet<()> {
        let mut clients = JoinSet::new();
        let (follower, followed) = (self.clone(), Arc::clone(ledger));
        clients.spawn(async move {
            while follower.feed(None).await.is_some() {
                follower.follow(&followed).await;
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        });
        for _ in 0..SESSIONS {
            let (client, ledger) = (self.clone(), Arc::clone(ledger));
            clients.spawn(async move { client.submit(&ledger).await });
        }
        for number in 0..CLIENTS {
            let random = fastrand::Rng::with_seed(seed ^ (round << 16) ^ number);
            let ledger = Arc::clone(ledger);
            clients.spawn(Poster { api: self.clone(), round, number, random, ledger }.run());
        }
        clients
    }
}

async fn answer_to(request: RequestBuilder) -> Option<(u16, bool, Value)> {
    let response = request.send().await.ok()?;
    let status = response.status().as_u16();
    let replayed = response.headers().contains_key("idempotent-replayed");
    Some((status, replayed, serde_json::from_str(&response.text().await.ok()?).unwrap()))
}

struct Poster {
    api: Api,
    round: u64,
    number: u64,
    random: fastrand::Rng,
    ledger: Arc<Mutex<Ledger>>,
}

impl Poster {
    async fn run(mut self) {
        for post in 0_u64.. {
            let answered = if self.random.u8(0..5) == 0 {
                self.post_partial(post).await
            } else {
                self.post_one(post).await
            };
            match answered {
                Some(200) => {}
                Some(503) => tokio::time::sleep(REFUSED_PAUSE).await,
                Some(status) => panic!("{status}"),
                None => return,
            }
        }
    }

    /// Posts a message; its status, or `None` if the connection broke.
    async fn post_one(&mut self, post: u64) -> Option<u16> {
        let key = self.key(post);
        let to = if key.is_none() && self.random.u8(0..5) == 0 {
            let label = format!("{}-{}-{post}", self.round, self.number);
            format!("bounce+{label}@simulator.amazonses.com")
        } else {
            SUCCESS.to_owned()
        };
        self.begin(key.as_deref());
        let shape = if self.random.bool() { Shape::Own } else { Shape::Resend };
        let (status, body) = self.api.post_over(shape, key.as_deref(), &to).await?;
        if let Some(id) = body["id"].as_str() {
            self.ledger.lock().unwrap().answered(key.as_deref(), id);
        }
        Some(status)
    }

    /// Posts messages as one partial batch. Before some there is a wrong one with the same key, which
    /// must not bind it.
    async fn post_partial(&mut self, post: u64) -> Option<u16> {
        let mut emails = Vec::new();
        for _ in 0..self.random.usize(1..5) {
            let key = self.key(post);
            if self.random.bool() {
                emails.push(Email { key: key.clone(), is_right: false });
            }
            self.begin(key.as_deref());
            emails.push(Email { key, is_right: true });
        }
        let (status, ids) = self.api.post_partial(&emails).await?;
        for (email, id) in emails.iter().zip(ids) {
            assert_eq!(id.is_some(), status == 200 && email.is_right, "{status}");
            if let Some(id) = id {
                self.ledger.lock().unwrap().answered(email.key.as_deref(), &id);
            }
        }
        Some(status)
    }

    /// Notes that a key is about to be posted.
    fn begin(&self, key: Option<&str>) {
        if let Some(key) = key {
            let mut ledger = self.ledger.lock().unwrap();
            if !ledger.keys.contains_key(key) {
                ledger.unanswered.insert(key.to_owned());
            }
        }
    }

    /// None, one of its own, one that others post at the same time, or one from before.
    fn key(&mut self, post: u64) -> Option<String> {
        let (round, number) = (self.round, self.number);
        match self.random.u8(0..8) {
            0 | 1 => None,
            2 => {
                let ledger = self.ledger.lock().unwrap();
                self.random.choice(ledger.keys.keys()).cloned()
            }
            3 => {
                let ledger = self.ledger.lock().unwrap();
                self.random.choice(&ledger.unanswered).cloned()
            }
            4 | 5 => Some(format!("shared-{round}-{}-{post}", number / SHARING)),
            _ => Some(format!("own-{round}-{number}-{post}")),
        }
    }
}
