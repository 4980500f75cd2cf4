//! The simulator: a stand-in for Amazon SES v2 and SQS over real HTTP, with fault injection.
//!
//! For tests, for `dev`, and alone for other people's test suites. It checks what SES checks,
//! signatures included, captures the mail that SES would have sent, puts the events that SES would
//! publish into a queue, and injects faults on request. Must not know pillarbox: it shares nothing
//! with the sending side but the notion of time, so that the two cannot agree on a mistake.
//!
//! # In the tests of another project
//!
//! Depend on this crate by the path of a checkout of pillarbox. A test starts a simulator, gives its
//! endpoint to the program under test, and looks at what arrived:
//!
//! ```
//! use pillarbox_simulator::{Fault, Options, Simulator};
//! use tokio::net::TcpListener;
//!
//! # use std::time::SystemTime;
//! # use aws_credential_types::Credentials;
//! # use aws_sigv4::{http_request::{sign, SignableBody, SignableRequest, SigningSettings}, sign::v4};
//! # use tokio::io::{AsyncReadExt, AsyncWriteExt};
//! # async fn send_an_order(endpoint: &str) {
//! #     let body = r#"{"FromEmailAddress":"shop@example.com","Destination":{"ToAddresses":["ann@example.org"]},"Content":{"Simple":{"Subject":{"Data":"Your order"},"Body":{"Text":{"Data":"It is on its way."}}}}}"#;
//! #     let path = "/v2/email/outbound-emails";
//! #     loop {
//! #         let identity = Credentials::new("simulator", "simulator", None, None, "test").into();
//! #         let params = v4::SigningParams::builder().identity(&identity).region("eu-west-1").name("ses");
//! #         let params = params.time(SystemTime::now()).settings(SigningSettings::default()).build().unwrap().into();
//! #         let (url, given) = (format!("{endpoint}{path}"), [("content-type", "application/json")]);
//! #         let request = SignableRequest::new("POST", &url, given.into_iter(), SignableBody::Bytes(body.as_bytes()));
//! #         let (signed, _) = sign(request.unwrap(), &params).unwrap().into_parts();
//! #         let host = endpoint.trim_start_matches("http://");
//! #         let mut text = format!("POST {path} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\ncontent-length: {}\r\n", body.len());
//! #         for (name, value) in given.into_iter().chain(signed.headers()) {
//! #             text += &format!("{name}: {value}\r\n");
//! #         }
//! #         let mut connection = tokio::net::TcpStream::connect(host).await.unwrap();
//! #         connection.write_all(format!("{text}\r\n{body}").as_bytes()).await.unwrap();
//! #         let mut answer = String::new();
//! #         connection.read_to_string(&mut answer).await.unwrap();
//! #         if answer.starts_with("HTTP/1.1 200") {
//! #             break;
//! #         }
//! #         assert!(answer.starts_with("HTTP/1.1 429"), "{answer}");
//! #     }
//! # }
//! # tokio::runtime::Runtime::new().unwrap().block_on(async {
//! let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
//! let options = Options { verified: vec!["example.com".to_owned()], ..Options::default() };
//! let simulator = Simulator::start(listener, options).await;
//! // The first call is throttled, so the program has to try again.
//! simulator.script(vec![Fault::Throttled]);
//!
//! // It signs for `eu-west-1` with the access key `simulator` and the secret `simulator`.
//! send_an_order(&simulator.endpoint()).await;
//!
//! let messages = simulator.messages();
//! assert_eq!(messages.len(), 1);
//! assert_eq!(messages[0].subject, "Your order");
//! assert_eq!(messages[0].recipients[0].address, "ann@example.org");
//! assert_eq!(simulator.calls_total(), 2);
//! simulator.shutdown().await;
//! # });
//! ```

#![cfg_attr(not(test), warn(unused_crate_dependencies))]

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use http::Request;
use hyper::body::Incoming;
use tokio::net::TcpListener;
use tokio::sync::{broadcast, watch};
use tokio::task::JoinHandle;
use tokio::time::Instant;

mod account;
mod address;
mod call;
mod captured;
mod configuration_sets;
mod control;
mod events;
mod fault_injection;
mod identities;
mod in_process;
mod protocol;
mod queue;
mod random;
mod raw_email;
mod send_email;
mod server;
mod ses;
mod signature;
mod sqs;
mod state;

pub use address::RecipientFate;
pub use captured::{
    CapturedAttachment, CapturedMail, CapturedMessage, CapturedRecipient, NameValue,
};
pub use events::{Envelope, EventOptions, EventRoute, Events};
pub use fault_injection::{ErrorFault, Fault, FaultScope, Faults};
pub use identities::{SenderCheck, VerificationStatus, VerifiedBy};
pub use in_process::{InProcessAnswer, InProcessSes, LaterEvent};
pub use protocol::NamePlace;
pub use queue::{DeliveryOrder, QueueCounts, QueueFull, QueueOptions};
pub use random::{InvalidProbability, Probability};
pub use signature::Credentials;
pub use state::{AccountAccess, Options};

use protocol::HttpResponse;
use server::ResetConnection;
use state::State;

use pillarbox_domain::time::Timestamp;

/// Time that a shutdown waits for the calls under way.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(1);

/// A running simulator. It stops when dropped.
#[derive(Debug)]
pub struct Simulator {
    state: Arc<State>,
    addr: SocketAddr,
    stop: watch::Sender<()>,
    server: Option<JoinHandle<()>>,
}

impl Simulator {
    /// Serves on the listener until shut down or dropped.
    #[expect(clippy::unused_async, reason = "starting needs a runtime, and may come to wait")]
    pub async fn start(listener: TcpListener, options: Options) -> Self {
        let unspecified = SocketAddr::from((IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0));
        let addr = listener.local_addr().unwrap_or(unspecified);
        let (stop, stopped) = watch::channel(());
        let state = Arc::new(State::new(options, Instant::now(), stopped.clone()));
        let shared = Arc::clone(&state);
        let handler = move |request| handle(Arc::clone(&shared), request);
        let server = tokio::spawn(server::run(listener, handler, stopped));
        Self { state, addr, stop, server: Some(server) }
    }

    /// Address that it serves, with the port in use.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// The endpoint to give to an AWS client.
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.addr)
    }

    /// The captured messages, oldest first.
    pub fn messages(&self) -> Vec<Arc<CapturedMessage>> {
        self.state.captured.messages()
    }

    /// The captured mail, in a handle that outlives this one.
    pub fn captured_mail(&self) -> CapturedMail {
        self.state.captured.clone()
    }

    /// Messages accepted since the start, also those whose response was lost.
    pub fn accepted_total(&self) -> u64 {
        self.state.captured.accepted_total()
    }

    /// SES calls since the start, also failed ones.
    pub fn calls_total(&self) -> u64 {
        self.state.calls_total()
    }

    /// SQS calls since the start, also failed ones.
    pub fn queue_calls_total(&self) -> u64 {
        self.state.queue_calls_total()
    }

    /// The URL of the queue that events go to.
    pub fn queue_url(&self) -> String {
        format!("{}{}", self.endpoint(), sqs::queue_path(self.state.queue().options()))
    }

    /// The number of messages in the queue now, and of those handled since the start.
    pub fn queue_counts(&self) -> QueueCounts {
        self.state.queue().counts(Instant::now())
    }

    /// Puts any text into the queue, JSON or not.
    pub fn publish(&self, body: impl Into<Arc<str>>) -> Result<(), QueueFull> {
        self.state.publish(body.into())
    }

    /// Puts an event document into the queue as SNS would, in a notification of its own.
    pub fn publish_notification(&self, event: &str) -> Result<(), QueueFull> {
        self.state.publish_notification(event)
    }

    /// The number of accepted messages with this tag.
    pub fn accepted_by_tag(&self, name: &str, value: &str) -> u64 {
        self.state.captured.accepted_by_tag(name, value)
    }

    /// The values of a tag that more than one accepted message carries, with their counts.
    pub fn repeated_tags(&self, name: &str) -> Vec<(String, u64)> {
        self.state.captured.repeated_tags(name)
    }

    /// Messages as they are accepted. A receiver that falls far behind misses the oldest.
    pub fn subscribe(&self) -> broadcast::Receiver<Arc<CapturedMessage>> {
        self.state.subscribe()
    }

    /// Sets the faults from now on. The script and the seed's sequence stay in their positions.
    pub fn set_faults(&self, faults: Faults) {
        self.state.faults().set_faults(faults);
    }

    /// Sets the faults of the next calls, one by one, before the other faults apply again.
    pub fn script(&self, script: Vec<Fault>) {
        self.state.faults().set_script(script);
    }

    /// Restarts the sequence of random faults with this seed.
    pub fn restart_faults(&self, seed: u64) {
        self.state.faults().restart(seed);
    }

    /// Sets the time that every SES call takes.
    pub fn set_latency(&self, latency: Duration) {
        self.state.set_latency(latency);
    }

    /// Sets the limit on recipients per second, with a full bucket.
    pub fn set_send_rate(&self, send_rate: Option<f64>) {
        self.state.limits().set_send_rate(send_rate, Instant::now());
    }

    /// Sets the limit on recipients per 24 hours.
    pub fn set_daily_quota(&self, daily_quota: Option<u64>) {
        self.state.limits().set_daily_quota(daily_quota);
    }

    /// Makes a domain or an address verified.
    pub fn verify(&self, identity: &str) {
        self.state.identities().verify(identity);
    }

    /// Holds a domain or an address in this state, also after more time or lookups.
    pub fn set_identity(&self, identity: &str, status: VerificationStatus) {
        self.state.identities().set(identity, status);
    }

    /// Forgets a domain or an address, as if it had been deleted at SES.
    pub fn remove_identity(&self, identity: &str) {
        self.state.identities().remove(identity);
    }

    /// Puts an address on the account's suppression list, as after a bounce.
    pub fn suppress(&self, address: &str) {
        let now = Timestamp::from(SystemTime::now());
        self.state.suppressed().add(address, "BOUNCE".to_owned(), now);
    }

    /// Creates an event destination, from the body of `CreateConfigurationSetEventDestination`.
    /// The error is SES's message.
    pub fn create_event_destination(&self, set: &str, body: &str) -> Result<(), String> {
        let created = self.state.configuration_sets().create_destination(set, body.as_bytes());
        created.map(drop).map_err(|error| error.message.into_owned())
    }

    /// Sets how far the simulator's clock is ahead of the system's, in seconds.
    pub fn set_clock_ahead(&self, seconds: i64) {
        self.state.set_clock_ahead(seconds);
    }

    /// Stops accepting, lets the calls under way end within a second, and closes.
    pub async fn shutdown(mut self) {
        self.stop.send_replace(());
        let Some(mut server) = self.server.take() else { return };
        if tokio::time::timeout(SHUTDOWN_GRACE, &mut server).await.is_err() {
            server.abort();
            // The task has ended when this returns. The error says that it was aborted.
            let _ = server.await;
        }
    }
}

impl Drop for Simulator {
    fn drop(&mut self) {
        if let Some(server) = &self.server {
            server.abort();
        }
    }
}

async fn handle(
    state: Arc<State>,
    request: Request<Incoming>,
) -> Result<HttpResponse, ResetConnection> {
    if request.uri().path().starts_with(control::PREFIX) {
        Ok(control::handle(&state, request).await)
    } else {
        call::handle(&state, request).await
    }
}
