//! The sending ceiling: a message is accepted and passed on through the same HTTP client as the
//! service's, unsigned, and nothing is stored. Its provider answers at once.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde::Deserialize;
use serde_json::json;
use tokio::sync::Semaphore;

/// Calls at one time, as `sending.max_in_flight` has it by default.
const CALLS_AT_ONCE: usize = 256;
/// Begin of the paths of the provider.
pub(crate) const PROVIDER_PATHS: &str = "/v2/email/";
/// Path at which a relay says how many messages wait.
pub(crate) const PENDING_PATH: &str = "/pending";

/// A message as the API takes it.
#[derive(Deserialize)]
#[expect(dead_code, reason = "parsing is the work; not every field is used")]
pub(crate) struct Email {
    from: String,
    to: Vec<String>,
    reply_to: Option<String>,
    subject: String,
    html: Option<String>,
    text: Option<String>,
    headers: Option<BTreeMap<String, String>>,
    #[serde(rename = "idempotencyKey")]
    idempotency_key: Option<String>,
    tag: Option<String>,
}

/// Passes messages on to a provider.
#[derive(Debug, Clone)]
pub(crate) struct Relay {
    client: reqwest::Client,
    url: reqwest::Url,
    calls: Arc<Semaphore>,
    pending: Arc<AtomicUsize>,
}

impl Relay {
    pub(crate) fn new(provider: SocketAddr) -> anyhow::Result<Self> {
        // The client wants it, though no connection is encrypted.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let client = reqwest::Client::builder()
            .http1_only()
            .no_proxy()
            .redirect(reqwest::redirect::Policy::none())
            .retry(reqwest::retry::never())
            .pool_max_idle_per_host(CALLS_AT_ONCE)
            .build()?;
        Ok(Self {
            client,
            url: format!("http://{provider}{PROVIDER_PATHS}outbound-emails").parse()?,
            calls: Arc::new(Semaphore::new(CALLS_AT_ONCE)),
            pending: Arc::default(),
        })
    }

    /// Takes a message, which waits from now on.
    pub(crate) fn pass_on(&self, email: &Email) {
        self.pending.fetch_add(1, Ordering::Relaxed);
        let request = json!({
            "FromEmailAddress": email.from,
            "Destination": { "ToAddresses": email.to },
            "Content": { "Simple": {
                "Subject": { "Data": email.subject },
                "Body": { "Text": { "Data": email.text }, "Html": { "Data": email.html } },
            } },
        });
        let (relay, body) = (self.clone(), request.to_string());
        tokio::spawn(async move {
            let _call = relay.calls.acquire().await.expect("the semaphore is never closed");
            let answer = relay.client.post(relay.url.clone()).body(body).send().await;
            let answer = answer.expect("the provider answers").bytes().await;
            answer.expect("the answer is whole");
            relay.pending.fetch_sub(1, Ordering::Relaxed);
        });
    }

    /// Returns how many messages wait.
    pub(crate) fn pending(&self) -> usize {
        self.pending.load(Ordering::Relaxed)
    }
}

/// Answer of a provider that takes everything at once and has no limits.
pub(crate) fn provider_answer(path: &str) -> String {
    match path.strip_prefix(PROVIDER_PATHS) {
        Some("outbound-emails") => {
            json!({ "MessageId": "0100019aa5f0c3a1-00000000-0000-0000-0000-000000000000-000000" })
        }
        _ => json!({
            "SendQuota": { "MaxSendRate": 1e6, "Max24HourSend": -1.0, "SentLast24Hours": 0.0 },
            "SendingEnabled": true,
            "ProductionAccessEnabled": true,
        }),
    }
    .to_string()
}
