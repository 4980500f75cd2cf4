//! `serve`, `dev` and `simulator`: what stays running.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use secrecy::{ExposeSecret, SecretString};
use tokio::runtime::Builder;

use crate::connect::Format;
use crate::error::CliError;
use crate::logging::{self, MessageLines};
use pillarbox_admin::restart::ProgramCheck;
use pillarbox_config::{self as config, Config};
use pillarbox_domain::api_key::ApiKey;
use pillarbox_domain::mailbox::{Address, DomainName};
use pillarbox_domain::webhook::WebhookUrl;
use pillarbox_runtime::tasks::Task;
use pillarbox_service::{self as service, DevOptions, Ended, Inherited, ServiceError};
use pillarbox_simulator::{EventOptions, EventRoute, Events, Options};

/// Time limit for threads that still work once the service has stopped.
const LAST_THREADS: Duration = Duration::from_millis(500);

#[derive(Debug, Args)]
pub(super) struct ServeArgs {
    /// Configuration file.
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    #[command(flatten)]
    check: CheckArgs,
    /// First discard all bodies that the service manager has kept, even usable ones. Use this if no
    /// start succeeds with them. Their pending messages fail. `pillarbox restart` does not repeat
    /// the option, but each start by the service manager does: remove it afterwards.
    #[arg(long, conflicts_with = "check")]
    pub(super) drop_bodies: bool,
}

#[derive(Debug, Args)]
struct CheckArgs {
    /// Only check whether the service would start: the configuration, the files that it names, and
    /// the format of the data file. The check writes nothing and opens no listener.
    #[arg(long)]
    check: bool,
    /// Print the result of the check as JSON, for programs.
    #[arg(long, requires = "check")]
    json: bool,
}

impl CheckArgs {
    /// Returns what to print of a check that found that the program can do this.
    fn report(&self, check: &ProgramCheck, can: &str) -> String {
        Format::of(self.json).show(check, |check| {
            format!(
                "version {} {can}; it reads data files up to format {}, and bodies of pending \
                 messages up to format {}\n",
                check.version, check.data_format, check.arena_format
            )
        })
    }
}

#[derive(Debug, Args)]
#[command(mut_arg("check", |check| check.help("Only check whether the configuration can be read; write \
    nothing, and open no listener")))]
pub(super) struct DevArgs {
    /// Address on which clients send and read; port 0 takes a free port. If not given: `listen` of
    /// the configuration, which is 127.0.0.1:8025 by default.
    #[arg(long, value_name = "ADDR", value_parser = socket_address)]
    listen: Option<SocketAddr>,
    /// Address for operators: the page, health, readiness and metrics; port 0 takes a free port. If
    /// not given: `operator_listen` of the configuration, which is 127.0.0.1:8026 by default.
    #[arg(long, value_name = "ADDR", value_parser = socket_address)]
    operator_listen: Option<SocketAddr>,
    /// Address for SMTP submission. If not given: the addresses of `[smtp]` in the
    /// configuration, or else 127.0.0.1:8587, or a free port if that is taken.
    #[arg(long, value_name = "ADDR", value_parser = socket_address)]
    smtp_listen: Option<SocketAddr>,
    /// Address of the API for Resend's clients. If not given: `resend_api.listen` of the configuration,
    /// or else 127.0.0.1:8028, or a free port if that is taken.
    #[arg(long, value_name = "ADDR", value_parser = socket_address)]
    resend_listen: Option<SocketAddr>,
    /// Directory of the data and the socket; a temporary one if not given.
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// API key to use, instead of a new one: pb_ and 43 characters of A-Z, a-z, 0-9, _ and -.
    // As a secret, so that neither Debug nor clap's own error shows it.
    #[arg(long, value_name = "KEY")]
    api_key: Option<SecretString>,
    /// Endpoint that receives every event; its secret is printed.
    #[arg(long, value_name = "URL", value_parser = webhook_url)]
    webhook: Option<WebhookUrl>,
    /// Configuration file, if you want to try one. Its [ses] section, `data_dir` and `admin_socket`
    /// have no effect. A store that `pillarbox dev` did not make is refused.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(flatten)]
    check: CheckArgs,
}

#[derive(Debug, Args)]
pub(super) struct SimulatorArgs {
    /// Address to listen on; port 0 takes a free port.
    #[arg(long, value_name = "ADDR", value_parser = socket_address)]
    listen: SocketAddr,
    /// Time that each call takes, such as 50ms.
    #[arg(long, value_name = "DURATION", default_value = "0s", value_parser = humantime::parse_duration)]
    latency: Duration,
    /// Recipients per second that the simulator allows; no limit if not given.
    #[arg(long, value_name = "N", value_parser = send_rate)]
    send_rate: Option<f64>,
    /// Seed of the random faults.
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    /// Domains and addresses that are verified from the start.
    #[arg(long, value_name = "DOMAIN", num_args = 1.., value_parser = identity)]
    verified: Vec<String>,
}

impl ServeArgs {
    pub(super) fn run(self) -> Result<String, CliError> {
        let load = || Config::load(Some(&self.config), config::environment());
        let (config, overruled) =
            Config::load_and_compare(Some(&self.config), config::environment())?;
        logging::start(MessageLines::Quiet);
        if self.check.check {
            let check = super::one_thread()?.block_on(async { service::check(&config) })?;
            return Ok(self.check.report(&check, "would start"));
        }
        if let Some(overruled) = overruled {
            tracing::warn!("{overruled}; the variable wins");
        }
        let mut inherited = Inherited::from_environment()?;
        if self.drop_bodies {
            service::drop_bodies(&mut inherited)?;
        }
        match finish(service::serve(config, inherited, load))? {
            Ended::Stopped(0) => Ok(String::new()),
            Ended::Stopped(messages) => Err(CliError::BodiesLost { messages }),
            Ended::Restart(next) => Err(next.execute().into()),
        }
    }
}

impl DevArgs {
    pub(super) fn run(self) -> Result<String, CliError> {
        let api_key = self
            .api_key
            .map(|given| ApiKey::parse(given.expose_secret()))
            .transpose()
            .map_err(|rule| CliError::Usage(format!("--api-key: {rule}")))?;
        let options = DevOptions {
            listen: self.listen,
            operator_listen: self.operator_listen,
            data_dir: self.data_dir,
            api_key,
            webhook: self.webhook,
            smtp_listen: self.smtp_listen,
            resend_listen: self.resend_listen,
            config: Config::load(self.config.as_deref(), config::environment())?,
        };
        if self.check.check {
            let check = service::check_dev(&options);
            return Ok(self.check.report(&check, "can read the configuration"));
        }
        logging::start(MessageLines::Shown);
        match finish(service::dev(options, Inherited::from_environment()?))? {
            // What a trial loses is no failure.
            Ended::Stopped(_) => Ok(String::new()),
            Ended::Restart(next) => Err(next.execute().into()),
        }
    }
}

impl SimulatorArgs {
    pub(super) fn run(self) -> Result<String, CliError> {
        // As at SES, so that a queue without readers does not fill.
        let route = EventRoute::Destinations;
        let options = Options {
            latency: self.latency,
            send_rate: self.send_rate,
            seed: self.seed,
            verified: self.verified,
            events: Events::On(EventOptions { route, ..EventOptions::default() }),
            ..Options::default()
        };
        logging::start(MessageLines::Quiet);
        finish(service::simulate(self.listen, options)).map(|()| String::new())
    }
}

fn finish<T>(run: impl Future<Output = Result<T, ServiceError>>) -> Result<T, CliError> {
    let runtime = Builder::new_multi_thread().enable_all().build().map_err(CliError::Runtime)?;
    let ended = runtime.block_on(Task::Main.result(run));
    // A thread may still wait for something that never answers, such as a resolver.
    runtime.shutdown_timeout(LAST_THREADS);
    Ok(ended?)
}

fn socket_address(text: &str) -> Result<SocketAddr, String> {
    config::listen_address(text).ok_or_else(|| {
        "it must be an IP address or localhost, and a port, such as 127.0.0.1:8025 or [::1]:8025"
            .to_owned()
    })
}

fn webhook_url(text: &str) -> Result<WebhookUrl, String> {
    WebhookUrl::parse(text).map_err(|rule| rule.to_string())
}

fn send_rate(text: &str) -> Result<f64, String> {
    let rate = text.parse().ok().filter(|rate: &f64| rate.is_finite() && *rate > 0.0);
    rate.ok_or_else(|| "a rate is a number greater than 0".to_owned())
}

fn identity(text: &str) -> Result<String, String> {
    if DomainName::parse(text).is_ok() || Address::parse(text).is_ok() {
        Ok(text.to_owned())
    } else {
        Err("neither a domain nor an address".to_owned())
    }
}
