//! The simulator: a stand-in for Amazon SES v2 and SQS over real HTTP, with fault injection.
//!
//! For tests, for `dev`, and alone for other people's test suites. It checks what SES checks,
//! signatures included, keeps what SES would have sent, puts the events that SES would publish
//! into a queue, and goes wrong on request. Must not know
//! pillarbox: it shares nothing with the sending side but the notion of time, so that the two
//! cannot agree on a mistake.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::net::TcpListener;
use tokio::sync::{broadcast, watch};
use tokio::task::JoinHandle;
use tokio::time::Instant;

mod address;
mod answer;
mod call;
mod canonical;
mod caught;
mod chance;
mod configuration_sets;
mod control;
mod events;
mod faults;
mod identities;
mod ids;
mod kept;
mod limits;
mod md5;
mod options;
mod queue;
mod send;
mod server;
mod ses;
mod signature;
mod skew;
mod sqs;
mod state;
mod sts;
mod suppression;

pub use address::RecipientFate;
pub use caught::{CaughtMessage, Header, RecipientOutcome, Tag};
pub use chance::Chance;
pub use events::{Envelope, EventOptions, EventRoute, Events};
pub use faults::{Fault, FaultScope, Faults, NotAProbability};
pub use identities::{SenderCheck, VerificationStatus, VerifiedBy};
pub use kept::Kept;
pub use options::{AccountAccess, Credentials, Options};
pub use queue::{DeliveryOrder, QueueCounts, QueueFull, QueueOptions};

use state::State;

use crate::domain::time::Timestamp;

/// The account that everything belongs to.
const ACCOUNT: &str = "000000000000";
/// How long a shutdown waits for the calls under way.
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
        let server = tokio::spawn(server::run(listener, Arc::clone(&state), stopped));
        Self { state, addr, stop, server: Some(server) }
    }

    /// The address served.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// The endpoint to give to an AWS client.
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.addr)
    }

    /// The kept messages, oldest first.
    pub fn messages(&self) -> Vec<Arc<CaughtMessage>> {
        self.state.caught().kept().iter().cloned().collect()
    }

    /// A view of the kept messages that outlives this handle.
    pub fn kept(&self) -> Kept {
        Kept::new(Arc::clone(&self.state))
    }

    /// Messages accepted since the start, those included whose answer was lost.
    pub fn accepted_total(&self) -> u64 {
        self.state.caught().totals().accepted
    }

    /// SES calls since the start, whatever came of them.
    pub fn calls_total(&self) -> u64 {
        self.state.calls_total()
    }

    /// SQS calls since the start, whatever came of them.
    pub fn queue_calls_total(&self) -> u64 {
        self.state.queue_calls_total()
    }

    /// The URL of the queue that events go to.
    pub fn queue_url(&self) -> String {
        format!("{}{}", self.endpoint(), sqs::queue_path(self.state.queue().options()))
    }

    /// How much is in the queue now, and what came of messages since the start.
    pub fn queue_counts(&self) -> QueueCounts {
        self.state.queue().counts(Instant::now())
    }

    /// Puts any text into the queue, JSON or not.
    pub fn publish(&self, body: impl Into<Arc<str>>) -> Result<(), QueueFull> {
        self.state.publish(body.into(), Timestamp::from(SystemTime::now()))
    }

    /// Puts an event document into the queue as SNS would, in a notification of its own.
    pub fn publish_notification(&self, event: &str) -> Result<(), QueueFull> {
        self.state.notify(event, Timestamp::from(SystemTime::now()))
    }

    /// How many accepted messages carry this tag.
    pub fn accepted_by_tag(&self, name: &str, value: &str) -> u64 {
        self.state.caught().accepted_by_tag(name, value)
    }

    /// The values of a tag that more than one accepted message carries, with their counts.
    pub fn repeated_tags(&self, name: &str) -> Vec<(String, u64)> {
        self.state.caught().repeated_tags(name)
    }

    /// Messages as they are accepted. A receiver that falls far behind misses the oldest.
    pub fn subscribe(&self) -> broadcast::Receiver<Arc<CaughtMessage>> {
        self.state.subscribe()
    }

    /// Sets what goes wrong from now on. The script and the seed's sequence stay where they are.
    pub fn set_faults(&self, faults: Faults) {
        self.state.faults().set_faults(faults);
    }

    /// Sets what the next calls come to, one by one, before probabilities apply again.
    pub fn script(&self, script: Vec<Fault>) {
        self.state.faults().set_script(script);
    }

    /// Starts the sequence of drawn faults anew.
    pub fn restart_faults(&self, seed: u64) {
        self.state.faults().restart(seed);
    }

    /// Sets the time that every AWS call takes.
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

    /// Holds a domain or an address in this state, whatever its age and who looks.
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

    /// Creates an event destination, from the body of `CreateConfigurationSetEventDestination`;
    /// where that is refused, why.
    pub fn create_event_destination(&self, set: &str, body: &str) -> Result<(), String> {
        let created = self.state.configuration_sets().create_destination(set, body.as_bytes());
        created.map(drop).map_err(|refusal| refusal.message.into_owned())
    }

    /// Sets how far the simulator's clock is ahead of the system's, in seconds.
    pub fn set_clock_ahead(&self, seconds: i64) {
        self.state.clock.set(seconds);
    }

    /// Stops accepting, lets the calls under way end within a second, and closes.
    pub async fn shutdown(mut self) {
        self.stop.send_replace(());
        let Some(mut server) = self.server.take() else { return };
        if tokio::time::timeout(SHUTDOWN_GRACE, &mut server).await.is_err() {
            server.abort();
            // The task is over when this returns; that it was aborted is what was asked for.
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
