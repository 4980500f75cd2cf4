//! The simulator: a stand-in for Amazon SES v2 over real HTTP, with fault injection.
//!
//! For tests, for `dev`, and alone for other people's test suites. It checks what SES checks,
//! signatures included, keeps what SES would have sent, and goes wrong on request. Must not know
//! pillarbox: it shares nothing with the sending side but the notion of time, so that the two
//! cannot agree on a mistake.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::{broadcast, watch};
use tokio::task::JoinHandle;
use tokio::time::Instant;

mod address;
mod answer;
mod call;
mod canonical;
mod caught;
mod control;
mod faults;
mod identities;
mod limits;
mod send;
mod server;
mod signature;
mod state;

pub use address::RecipientFate;
pub use caught::{CaughtMessage, Header, RecipientOutcome, Tag};
pub use faults::{Fault, FaultScope, Faults, NotAProbability};
pub use identities::{SenderCheck, VerifiedBy};

use state::State;

/// AWS takes a signature within five minutes of its date.
const SIGNATURE_MAX_AGE: Duration = Duration::from_mins(5);
/// Messages kept in full unless told otherwise.
const KEPT_MESSAGES: usize = 1_000;
/// How long a shutdown waits for the calls under way.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(1);

/// Which credentials the simulator takes.
#[derive(Clone, PartialEq, Eq)]
pub enum Credentials {
    /// This pair alone, and the signature is checked.
    Only {
        /// The access key id.
        access_key_id: String,
        /// The secret that signatures are made with.
        secret_access_key: String,
    },
    /// Any: a call must be signed, but the signature cannot be checked.
    Any,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Only { access_key_id, .. } => {
                f.debug_struct("Only").field("access_key_id", access_key_id).finish_non_exhaustive()
            }
            Self::Any => f.write_str("Any"),
        }
    }
}

impl Default for Credentials {
    fn default() -> Self {
        let simulator = || "simulator".to_owned();
        Self::Only { access_key_id: simulator(), secret_access_key: simulator() }
    }
}

/// How a simulator starts.
#[derive(Debug, Clone)]
pub struct Options {
    /// Time that every AWS call takes before it is handled.
    pub latency: Duration,
    /// Recipients per second, with one second's burst; `None` is unlimited.
    pub send_rate: Option<f64>,
    /// Recipients per 24 hours; `None` is unlimited.
    pub daily_quota: Option<u64>,
    /// Calls per second of everything but `SendEmail` (SES: one); `None` is unlimited.
    pub other_call_rate: Option<f64>,
    /// Domains and addresses that are verified from the start.
    pub verified: Vec<String>,
    /// Whether the sender must be verified at all.
    pub sender_check: SenderCheck,
    /// How identities that are created over the API become verified.
    pub verified_by: VerifiedBy,
    /// Configuration sets that exist from the start.
    pub configuration_sets: Vec<String>,
    /// The credentials that are taken.
    pub credentials: Credentials,
    /// The region that calls must be signed for.
    pub region: String,
    /// How far a signature's date may be from now, both ways; `None` takes any date, for callers
    /// whose clock is not the system's.
    pub signature_max_age: Option<Duration>,
    /// What goes wrong.
    pub faults: Faults,
    /// Where the sequence of faults starts.
    pub seed: u64,
    /// How many of the last messages are kept in full.
    pub kept_messages: usize,
}

impl Default for Options {
    /// No limit, no latency, no fault; nothing verified.
    fn default() -> Self {
        Self {
            latency: Duration::ZERO,
            send_rate: None,
            daily_quota: None,
            other_call_rate: None,
            verified: Vec::new(),
            sender_check: SenderCheck::default(),
            verified_by: VerifiedBy::Look(2),
            configuration_sets: Vec::new(),
            credentials: Credentials::default(),
            region: "eu-west-1".to_owned(),
            signature_max_age: Some(SIGNATURE_MAX_AGE),
            faults: Faults::none(),
            seed: 0,
            kept_messages: KEPT_MESSAGES,
        }
    }
}

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
        let state = Arc::new(State::new(options, Instant::now()));
        let (stop, stopped) = watch::channel(());
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

    /// Messages accepted since the start, those included whose answer was lost.
    pub fn accepted_total(&self) -> u64 {
        self.state.caught().totals().accepted
    }

    /// AWS calls since the start, whatever came of them.
    pub fn calls_total(&self) -> u64 {
        self.state.calls_total()
    }

    /// How many accepted messages carry this tag.
    pub fn accepted_by_tag(&self, name: &str, value: &str) -> u64 {
        self.state.caught().accepted_by_tag(name, value)
    }

    /// The values of a tag that more than one accepted message carries, with their counts.
    pub fn repeated_tags(&self, name: &str) -> Vec<(String, u64)> {
        self.state.caught().repeated_tags(name)
    }

    /// Forgets the kept messages and the counts by tag; the totals stay.
    pub fn clear_messages(&self) {
        self.state.caught().clear();
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
