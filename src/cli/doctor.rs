//! `doctor`: checks the set-up, from the configuration to a message's delivery event.
//!
//! This process checks the machine, as the user who runs it. The running service asks AWS, with its
//! credentials and its clock; if none runs, this process asks.

use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use serde::Serialize;

use crate::connect::{self, Format};
use crate::error::CliError;
use crate::output::{self, escaped, painted};
use pillarbox_admin::checks::{Examiner, Finding, Part, Verdict};
use pillarbox_admin::client::{Client, ConnectError};
use pillarbox_admin::domain::Domain;
use pillarbox_admin::webhook::Webhook;
use pillarbox_admin::{DomainList, Examine, WebhookList, WebhookReach};
use pillarbox_runtime::clock::{Clock, Synchronisation};
use pillarbox_service as service;
use pillarbox_ses::SesClient;
use pillarbox_ses::credentials::Credentials;

mod alerts;
mod machine;
mod sending;
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

impl Doctor {
    pub(super) async fn run(self) -> Result<String, CliError> {
        let mut report = Report { format: Format::of(self.json), findings: Vec::new() };
        let config = connect::load(self.config.as_deref())?;
        report.add_all(machine::settings(&config));
        report.add_all(machine::files(&config));
        report.add(synchronisation().await);
        let (client, findings) = socket::look(&config).await;
        report.add_all(findings);
        let events_queue = service::events_queue(&config);
        match &client {
            Ok(client) => {
                report.add_all(client.call(&Examine { part: Part::Database }).await?.findings);
                let list = client.call(&DomainList { organisation: None }).await?;
                for part in parts(&list.domains) {
                    report.add_all(client.call(&Examine { part }).await?.findings);
                }
                report.add_all(endpoints(client).await?);
            }
            Err(error) => {
                report.add_all(machine::database(&config).await);
                let stopped =
                    matches!(error, ConnectError::Absent { .. } | ConnectError::Refused { .. });
                let (domains, finding) =
                    if stopped { machine::domains(&config).await } else { (Vec::new(), None) };
                report.add_all(finding);
                let options = service::ses_options(&config, Credentials::aws());
                match SesClient::new(options, Clock::system()) {
                    Ok(ses) => {
                        let events_queue = events_queue.as_deref();
                        let examiner = Examiner { ses: &ses, events_queue };
                        for part in parts(&domains) {
                            report.add_all(examiner.examine(&part).await?);
                        }
                    }
                    Err(error) => {
                        let advice = "correct ses.region, ses.endpoint and ses.proxy, or install \
                                      the root certificates";
                        report.add(Finding::not_ok("SES", error.to_string(), advice));
                    }
                }
            }
        }
        if let Some(configured) = &config.alerts {
            let service = client.as_ref().ok();
            report.add(alerts::test(configured, &config.webhooks.proxy, service).await);
        }
        if self.send {
            match client {
                Ok(client) => {
                    let waits_for_events = events_queue.is_some();
                    let test = sending::DeliveryTest { client, wait: self.wait, waits_for_events };
                    test.run(self.from, &mut report).await?;
                }
                Err(_) => report.add(Finding::not_ok(
                    "sending",
                    "no service is running that could send",
                    "start the service, then run this command again",
                )),
            }
        }
        report.finish()
    }
}

/// Asks endpoints with deliveries for a sign of life, from the running service's machine.
async fn endpoints(client: &Client) -> Result<Vec<Finding>, CliError> {
    let mut findings = Vec::new();
    for webhook in client.call(&WebhookList { organisation: None }).await?.webhooks {
        let Webhook { id, organisation, url, state, .. } = webhook;
        let about = format!("webhook {id} of {organisation}");
        if state != "active" {
            let message = format!("{url} is paused, and its events wait");
            let advice = format!("if it works again: pillarbox webhook resume {id}");
            findings.push(Finding::warning(about, message, advice));
            continue;
        }
        let reached = client.call(&WebhookReach { id }).await?;
        findings.push(match (reached.status, reached.reason) {
            (Some(status), _) => {
                let through = reached.proxy.map(|proxy| format!(", through {proxy}"));
                let through = through.unwrap_or_default();
                Finding::ok(about, format!("{url} answers (status {status} to HEAD){through}"))
            }
            (None, reason) => {
                let message = format!("{url} does not answer: {}", reason.unwrap_or_default());
                let advice = "check its host, the network and its certificate; events wait for it";
                Finding::warning(about, message, advice)
            }
        });
    }
    Ok(findings)
}

/// Asks whether the kernel's clock is synchronised. If it is, no start waits for an operator.
async fn synchronisation() -> Finding {
    const ABOUT: &str = "clock synchronisation";
    const ADVICE: &str = "run a time daemon, such as systemd-timesyncd or chrony; without one, \
                          confirm the clock if it is in doubt: pillarbox clock confirm";
    let message = match Clock::system().synchronisation().await {
        Synchronisation::Yes => {
            return Finding::ok(ABOUT, "the kernel says that its clock is synchronised");
        }
        Synchronisation::No => "the kernel does not say that its clock is synchronised".to_owned(),
        Synchronisation::Unknown { reason } => {
            format!("the kernel's state of synchronisation is unknown: {reason}")
        }
    };
    Finding::warning(ABOUT, message, ADVICE)
}

fn parts(domains: &[Domain]) -> Vec<Part> {
    // SES knows nothing of a test organisation's.
    let mut names: Vec<_> = domains.iter().filter(|domain| !domain.test).collect();
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

/// Collects findings; prints them for people as they come, for programs at the end.
struct Report {
    format: Format,
    findings: Vec<Finding>,
}

#[derive(Serialize)]
struct Document<'a> {
    ok: bool,
    checks: &'a [Finding],
}

impl Report {
    fn add_all(&mut self, findings: impl IntoIterator<Item = Finding>) {
        for finding in findings {
            self.add(finding);
        }
    }

    fn add(&mut self, finding: Finding) {
        if self.format == Format::People {
            // If standard output is closed, the exit code still reports the result.
            let _ = super::print(&lines(&finding));
        }
        self.findings.push(finding);
    }

    /// Shows a person who waits the progress.
    fn progress(&self, text: &str) {
        if self.format == Format::People {
            // Standard error may be closed; `eprintln` would panic.
            let _ = writeln!(io::stderr(), "         {}", escaped(text));
        }
    }

    /// Returns the rest of the output, or the error that there are faults.
    fn finish(self) -> Result<String, CliError> {
        let count = |verdict| self.findings.iter().filter(|f| f.verdict == verdict).count();
        let (faults, warnings) = (count(Verdict::NotOk), count(Verdict::Warning));
        let document = Document { ok: faults == 0, checks: &self.findings };
        let report = self.format.show(&document, |_| match (faults, warnings) {
            (0, 0) => "\nNo check found a fault.\n".to_owned(),
            (0, 1) => "\nNo check found a fault; one thing deserves a look.\n".to_owned(),
            (0, more) => format!("\nNo check found a fault; {more} things deserve a look.\n"),
            (_, _) => String::new(),
        });
        if faults > 0 {
            let what = format!("{faults} of the checks found a fault");
            return Err(CliError::Reported { report, what });
        }
        Ok(report)
    }
}

fn lines(finding: &Finding) -> String {
    let (verdict, style) = match finding.verdict {
        Verdict::Ok => ("ok", output::GOOD),
        Verdict::Warning => ("warning", output::WARNING),
        Verdict::NotOk => ("NOT OK", output::BAD),
    };
    let verdict = painted(&format!("{verdict:7}"), style);
    let (about, message) = (escaped(&finding.about), escaped(&finding.message));
    let mut text = format!("{verdict}  {about}: {message}\n");
    if let Some(advice) = &finding.advice {
        let _ = writeln!(text, "         -> {}", escaped(advice));
    }
    text
}
