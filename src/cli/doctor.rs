//! `doctor`: checks the set-up, from the configuration to a message's delivery event.
//!
//! What is on this machine is looked at here, as the user who asks; AWS is asked by the running
//! service, with its credentials and its clock, or by this process where none runs.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use crate::admin::checks::Examiner;
use crate::admin::client::{Client, ConnectError};
use crate::admin::wire::{Domain, Finding, Part, Request, Response};
use crate::cli::error::CliError;
use crate::clock::{Clock, Synchronisation};
use crate::config::{self, Config};
use crate::service;
use crate::ses::SesClient;
use crate::ses::credentials::Credentials;

use report::Report;

mod files;
mod report;
mod sending;
mod settings;
mod socket;

#[derive(Debug, Args)]
pub(super) struct Doctor {
    /// Configuration file of the service.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Send a message to SES's mailbox simulator and wait for its delivery event.
    #[arg(long)]
    send: bool,
    /// Sender of that message; an address of the first verified domain if not given.
    #[arg(long, value_name = "ADDRESS", requires = "send")]
    from: Option<String>,
    /// Longest wait for the event.
    #[arg(
        long, value_name = "DURATION", default_value = "2m", requires = "send",
        value_parser = humantime::parse_duration
    )]
    wait: Duration,
    /// Print JSON, for programs.
    #[arg(long)]
    json: bool,
}

/// Who asks AWS.
enum Asker {
    /// The running service.
    Service(Client),
    /// This process.
    Own(SesClient),
}

impl Doctor {
    pub(super) async fn run(self) -> Result<String, CliError> {
        let mut report = Report::new(self.json);
        let config = Config::load(self.config.as_deref(), config::environment())?;
        report.add_all(settings::look(&config));
        report.add_all(files::look(&config));
        report.add(synchronisation().await);
        let (client, findings) = socket::look(&config).await;
        report.add_all(findings);
        let (mut asker, domains) = match client {
            Ok(mut client) => {
                let domains = match client.ask(&Request::DomainList { organisation: None }).await? {
                    Response::Domains(list) => list.domains,
                    _ => return Err(CliError::Unexpected),
                };
                (Some(Asker::Service(client)), domains)
            }
            Err(error) => {
                let stopped =
                    matches!(error, ConnectError::Absent { .. } | ConnectError::Refused { .. });
                let (domains, finding) =
                    if stopped { files::domains(&config).await } else { (Vec::new(), None) };
                report.add_all(finding);
                (own(&config, &mut report), domains)
            }
        };
        if let Some(asker) = &mut asker {
            for part in parts(&domains) {
                report.add_all(asker.examine(&part, &config).await?);
            }
        }
        if self.send {
            match asker {
                Some(Asker::Service(client)) => {
                    let waits_for_events = service::event_route(&config).is_given();
                    let trial = sending::Trial { client, wait: self.wait, waits_for_events };
                    trial.run(self.from, &mut report).await?;
                }
                Some(Asker::Own(_)) | None => report.add(Finding::not_ok(
                    "sending",
                    "no service runs that could send",
                    "start the service, and run this again",
                )),
            }
        }
        report.finish()
    }
}

/// A client of our own, where one can be had.
fn own(config: &Config, report: &mut Report) -> Option<Asker> {
    let options = service::ses_options(config, Credentials::aws());
    match SesClient::new(options, Clock::system()) {
        Ok(ses) => Some(Asker::Own(ses)),
        Err(error) => {
            let advice = "correct ses.region and ses.endpoint, or install the root certificates";
            report.add(Finding::not_ok("SES", error.to_string(), advice));
            None
        }
    }
}

/// Asks whether the kernel's clock is synchronised. If it is, no start waits for an operator.
async fn synchronisation() -> Finding {
    const ABOUT: &str = "clock synchronisation";
    const ADVICE: &str = "run a time daemon, such as systemd-timesyncd or chrony; without one, \
                          confirm the clock if it is in doubt: pillarbox clock confirm";
    match Clock::system().synchronisation().await {
        Synchronisation::Yes => {
            Finding::ok(ABOUT, "the kernel says that its clock is synchronised")
        }
        Synchronisation::No => {
            let message = "the kernel does not say that its clock is synchronised";
            Finding::warning(ABOUT, message, ADVICE)
        }
        Synchronisation::Unknown { reason } => {
            let message = format!("the kernel's answer is not known: {reason}");
            Finding::warning(ABOUT, message, ADVICE)
        }
    }
}

fn parts(domains: &[Domain]) -> Vec<Part> {
    let mut names: Vec<_> = domains.iter().collect();
    // SES has one identity of a name, however many organisations have it.
    names.sort_by(|a, b| (&a.domain, &a.state).cmp(&(&b.domain, &b.state)));
    names.dedup_by(|a, b| a.domain == b.domain && a.state == b.state);
    let domains = names
        .into_iter()
        .map(|domain| Part::Domain { domain: domain.domain.clone(), state: domain.state.clone() });
    [Part::Credentials, Part::Account]
        .into_iter()
        .chain(domains)
        .chain([Part::ConfigurationSet, Part::Events])
        .collect()
}

impl Asker {
    async fn examine(&mut self, part: &Part, config: &Config) -> Result<Vec<Finding>, CliError> {
        match self {
            Self::Service(client) => {
                match client.ask(&Request::Examine { part: part.clone() }).await? {
                    Response::Examined(examined) => Ok(examined.findings),
                    Response::Refused(refusal) => Err(CliError::Refused(refusal.message)),
                    _ => Err(CliError::Unexpected),
                }
            }
            Self::Own(ses) => {
                let events = service::event_route(config);
                let examined = Examiner::new(ses, &events).examine(part).await;
                examined.map_err(|refusal| CliError::Refused(refusal.message))
            }
        }
    }
}
