//! The processes: the service and the simulator, until a signal ends them.

use std::net::SocketAddr;
use std::process;

use listenfd::ListenFd;
use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tracing::warn;

use crate::clock::Clock;
use crate::config::Config;
use crate::service::{Service, ServiceError};
use crate::ses::credentials::Credentials;
use crate::simulator::{Options, Simulator};

/// The exit code of a process that a second signal ended at once.
const ENDED_AT_ONCE: i32 = 1;

/// The listening socket that a supervisor has handed over, by systemd's protocol (`LISTEN_FDS`,
/// see `sd_listen_fds(3)`). To be asked for once, before there is any other thread.
pub fn inherited_listener() -> Result<Option<std::net::TcpListener>, ServiceError> {
    ListenFd::from_env().take_tcp_listener(0).map_err(|source| ServiceError::System {
        what: "the socket handed over cannot be listened on",
        source,
    })
}

/// Runs the service until SIGTERM or SIGINT, then drains it.
pub async fn serve(
    config: Config,
    inherited: Option<std::net::TcpListener>,
) -> Result<(), ServiceError> {
    let signals = Signals::new()?;
    let service = Service::start(&config, Clock::system(), Credentials::aws(), inherited).await?;
    tracing::info!("listening on {}", service.address());
    stop_on_signal(service, signals).await;
    Ok(())
}

/// Runs the simulator alone until SIGTERM or SIGINT.
pub async fn simulate(listen: SocketAddr, options: Options) -> Result<(), ServiceError> {
    let mut signals = Signals::new()?;
    let failed = |source| ServiceError::Listen { address: listen, source };
    let listener = TcpListener::bind(listen).await.map_err(failed)?;
    let simulator = Simulator::start(listener, options).await;
    println!("simulator listening on http://{}", simulator.addr());
    signals.next().await;
    simulator.shutdown().await;
    Ok(())
}

/// Waits for a signal and stops the service; a second signal ends the process at once.
pub(super) async fn stop_on_signal(service: Service, mut signals: Signals) {
    signals.next().await;
    tokio::select! {
        () = service.stop() => {}
        () = signals.next() => {
            warn!("ended at once; pending messages are settled at the next start");
            process::exit(ENDED_AT_ONCE);
        }
    }
}

/// The signals that end a process.
pub(super) struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    pub(super) fn new() -> Result<Self, ServiceError> {
        let listen = |kind| {
            signal(kind)
                .map_err(|source| ServiceError::System { what: "cannot wait for signals", source })
        };
        Ok(Self {
            terminate: listen(SignalKind::terminate())?,
            interrupt: listen(SignalKind::interrupt())?,
        })
    }

    pub(super) async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}
