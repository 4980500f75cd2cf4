//! The processes: the service and the simulator, until a signal ends them.

use std::future::ready;
use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::pin::pin;
use std::process;
use std::sync::Arc;

use tokio::net::TcpListener;
use tokio::signal::unix::SignalKind;
use tracing::{error, warn};

use crate::error::ListenerName;
use crate::hand_over::{HandedOver, NextProgram};
use crate::inherited::Inherited;
use crate::signals::{Signals, listen_for};
use crate::supervisor::{self, Supervisor};
use crate::{Service, ServiceError, failed_starts};
use pillarbox_config::{Config, ConfigError, StoreConfig};
use pillarbox_dispatch::Rest;
use pillarbox_runtime::clock::Clock;
use pillarbox_ses::credentials::Credentials;
use pillarbox_simulator::{Options, Simulator};

/// The exit code of a process that a second signal ended at once.
const ENDED_AT_ONCE: i32 = 1;

/// End of a service.
#[derive(Debug)]
pub enum Ended {
    /// It stopped, and lost so many messages.
    Stopped(u64),
    /// The next program is to be executed in its place.
    Restart(NextProgram),
}

/// Runs the service until SIGTERM or SIGINT, then drains it; or until a restart is asked for.
/// SIGHUP has the configuration read again by `load`; if that fails, everything stays unchanged.
pub async fn serve(
    config: Config,
    inherited: Inherited,
    load: impl Fn() -> Result<Config, ConfigError>,
) -> Result<Ended, ServiceError> {
    let is_to_stop = inherited.own.is_to_stop;
    let mut signals = Signals::new()?;
    let mut hangup = listen_for(SignalKind::hangup())?;
    if let StoreConfig::Postgres(postgres) = &config.store {
        supervisor::starting(postgres.dead_after);
    }
    let mut service = tokio::select! {
        // A service that has started is stopped in order.
        biased;
        started = Service::start(&config, Clock::system(), Credentials::aws(), inherited) => started?,
        () = signals.next() => {
            tracing::info!("stopped before the start was complete");
            return Ok(Ended::Stopped(0));
        }
    };
    service.tell_of_proxies();
    tracing::info!("operator's page at {}", service.operator_address());
    for address in service.smtp_addresses() {
        tracing::info!("SMTP submission at {address}");
    }
    if let Some(address) = service.resend_address() {
        tracing::info!("Resend-compatible API at {address}");
    }
    tracing::info!("listening on {}", service.address());
    supervisor::ready();
    failed_starts::forget();
    let supervisor = Supervisor::from_environment();
    let mut watch = pin!(supervisor.watch(service.vitals(), service.observer()));
    loop {
        tokio::select! {
            () = ready(()), if is_to_stop => break,
            () = signals.next() => break,
            () = service.restart_asked() => {
                watch.set(supervisor.watch(service.vitals().stopping(), service.observer()));
                let handed_over = service.hand_over(&mut signals);
                let handed_over = tokio::select! {
                    handed_over = handed_over => handed_over,
                    never = &mut watch => match never {},
                };
                match handed_over {
                    HandedOver::To(next) => return Ok(Ended::Restart(next)),
                    HandedOver::Stopping(stopping) => {
                        service = *stopping;
                        break;
                    }
                }
            }
            _ = hangup.recv() => {
                supervisor::reloading();
                match load() {
                    Ok(config) => service.reload(&config),
                    Err(error) => error!(%error, "the new configuration cannot be used; the old one stays in use"),
                }
                service.reload_credentials();
                supervisor::ready();
            }
            never = &mut watch => match never {},
        }
    }
    supervisor::stopping(service.drain_time());
    let vitals = service.vitals().stopping();
    watch.set(supervisor.watch(vitals, service.observer()));
    tokio::select! {
        bodies_lost = stop(service, signals, || ()) => Ok(Ended::Stopped(bodies_lost)),
        never = &mut watch => match never {},
    }
}

/// Runs the simulator alone until SIGTERM or SIGINT.
pub async fn simulate(listen: SocketAddr, options: Options) -> Result<(), ServiceError> {
    let mut signals = Signals::new()?;
    let failed = |source| ServiceError::Listen {
        listener: ListenerName::Simulator,
        address: listen,
        source,
    };
    let listener = TcpListener::bind(listen).await.map_err(failed)?;
    let region = options.region.clone();
    let simulator = Simulator::start(listener, options).await;
    // The reader may have closed the pipe: that is no reason to stop.
    let _ = writeln!(
        io::stdout(),
        "simulator listening on http://{} (region {region}, access key and secret: simulator)",
        simulator.addr()
    );
    signals.next().await;
    simulator.shutdown().await;
    Ok(())
}

/// Stops the service, and returns how many messages this lost. Another signal ends the process at
/// once; before that, `clean_up` does what must not be left undone.
pub(super) async fn stop(service: Service, mut signals: Signals, clean_up: impl FnOnce()) -> u64 {
    let (queue, rest) = (Arc::clone(&service.queue), service.rest());
    tokio::select! {
        bodies_lost = service.stop() => bodies_lost,
        () = signals.next() => {
            let unsent = queue.pending().messages;
            warn!(unsent, "stopped at once; the next start {}", fate(rest, "all that is not sent"));
            clean_up();
            process::exit(ENDED_AT_ONCE);
        }
    }
}

/// Handling by the next start of messages, named by `what`, that this process does not send.
pub(super) fn fate(rest: Rest, what: &str) -> String {
    match rest {
        Rest::Kept => format!("continues with {what}"),
        Rest::Lost => format!("marks {what} as failed"),
    }
}
