//! `aws setup`: makes what delivery events need at AWS, and writes it into the configuration.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use serde_json::json;

use crate::connect;
use crate::error::CliError;
use crate::output::Table;
use pillarbox_config::{self as config, Config};
use pillarbox_runtime::clock::Clock;
use pillarbox_service::{self as service, ServiceError};
use pillarbox_ses::SesClient;
use pillarbox_ses::aws_setup::{self, Mode, Outcome, Report, Step, iam_policy};
use pillarbox_ses::credentials::Credentials;

/// The keys that are written.
const CONFIGURATION_SET: &str = "ses.configuration_set";
const QUEUE_URL: &str = "ses.events.queue_url";

#[derive(Debug, Subcommand)]
pub(super) enum Aws {
    /// Create the AWS resources that delivery events need, and complete existing ones.
    Setup(Setup),
}

#[derive(Debug, Args)]
pub(super) struct Setup {
    /// Configuration file. It gives the region and endpoint, and the command writes the names of the
    /// set and the queue into it.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Name of the configuration set, the topic and the queue.
    #[arg(long, value_name = "NAME", default_value = "pillarbox")]
    name: String,
    /// Change nothing. Print what the command would do, and the permissions that it needs.
    #[arg(long)]
    dry_run: bool,
    /// Print JSON, for programs.
    #[arg(long)]
    json: bool,
}

impl Setup {
    pub(super) async fn run(self) -> Result<String, CliError> {
        let config = connect::load(self.config.as_deref())?;
        let options = service::ses_options(&config, Credentials::aws());
        let client = SesClient::new(options, Clock::system()).map_err(ServiceError::from)?;
        let mode = if self.dry_run { Mode::DryRun } else { Mode::Apply };
        let mut report = aws_setup::run(&client, &self.name, mode)
            .await
            .map_err(|rule| CliError::Usage(format!("--name: {rule}")))?;
        let keys = keys(&report);
        self.configure(&keys, &mut report);
        let text = if self.json { as_json(&report, mode) } else { for_people(&report, mode) };
        match report.steps.iter().filter(|step| step.outcome.is_open()).count() {
            0 => Ok(text),
            open => {
                let are = if open == 1 { "is" } else { "are" };
                let what = format!("{open} of the steps above {are} not done");
                Err(CliError::Reported { report: text, what })
            }
        }
    }

    /// Adds the last step to the report: the configuration.
    fn configure(&self, keys: &[(&'static str, String)], report: &mut Report) {
        let name = self.config.as_deref().map(|path| path.display().to_string());
        let (what, name) = ("configuration file", name.unwrap_or_default());
        let outcome = match &self.config {
            _ if keys.is_empty() && self.dry_run => {
                Outcome::Planned(format!("{CONFIGURATION_SET} and {QUEUE_URL} would be written"))
            }
            _ if keys.is_empty() => Outcome::Skipped("there is nothing to write yet".to_owned()),
            None => Outcome::Planned(format!(
                "not written without --config; add to the file: {}",
                lines(keys)
            )),
            Some(path) if self.dry_run && in_effect(Some(path), keys).is_ok() => Outcome::Found,
            Some(_) if self.dry_run => {
                Outcome::Planned(format!("would be written: {}", lines(keys)))
            }
            Some(path) => write(path, keys),
        };
        report.steps.push(Step { what, name, outcome });
    }
}

/// The keys and what they are to say.
fn keys(report: &Report) -> Vec<(&'static str, String)> {
    let set = report.configuration_set.clone().map(|name| (CONFIGURATION_SET, name));
    let queue = report.queue_url.clone().map(|url| (QUEUE_URL, url));
    set.into_iter().chain(queue).collect()
}

fn write(path: &Path, keys: &[(&'static str, String)]) -> Outcome {
    let texts: Vec<_> = keys.iter().map(|(key, text)| (*key, text.as_str())).collect();
    match config::set_texts(path, &texts) {
        Err(error) => Outcome::Failed(format!("{error}; add to the file: {}", lines(keys))),
        Ok(changed) => match in_effect(Some(path), keys) {
            Err(other) => Outcome::Failed(other),
            Ok(()) if changed.is_empty() => Outcome::Found,
            Ok(()) => Outcome::Completed(format!(
                "wrote {}; restart a running service to apply it",
                lines(keys)
            )),
        },
    }
}

fn lines(keys: &[(&'static str, String)]) -> String {
    let lines: Vec<_> = keys.iter().map(|(key, text)| format!("{key} = {text:?}")).collect();
    lines.join(", ")
}

/// Checks that the configuration has these keys' values: an environment variable wins over the
/// file.
fn in_effect(path: Option<&Path>, keys: &[(&'static str, String)]) -> Result<(), String> {
    let config = Config::load(path, config::environment()).map_err(|error| error.to_string())?;
    let queue = config.ses.events.queue_url.map(|url| url.to_string());
    for (key, wanted) in keys {
        let read = if *key == QUEUE_URL { &queue } else { &config.ses.configuration_set };
        if read.as_ref() != Some(wanted) {
            return Err(format!(
                "{key} is {:?} and not {wanted:?}: an environment variable may override the file",
                read.as_deref().unwrap_or_default()
            ));
        }
    }
    Ok(())
}

fn for_people(report: &Report, mode: Mode) -> String {
    let mut table = Table::new(["RESULT", "WHAT", "WHICH", "DETAIL"]);
    for Step { what, name, outcome } in &report.steps {
        table.row([outcome.word(), what, name, outcome.detail()]);
    }
    let mut text = table.or("");
    if mode == Mode::DryRun {
        let setup = iam_policy::for_setup(&report.resources);
        let service = iam_policy::for_service(&report.resources);
        let _ = writeln!(
            text,
            "\nThe policy for the person who runs the set-up:\n{setup:#}\n\nThe policy for the \
             service:\n{service:#}"
        );
    }
    text
}

fn as_json(report: &Report, mode: Mode) -> String {
    let steps = report.steps.iter().map(|step| {
        let detail = Some(step.outcome.detail()).filter(|detail| !detail.is_empty());
        json!({
            "what": step.what,
            "name": step.name,
            "result": step.outcome.word(),
            "detail": detail,
        })
    });
    let mut answer = json!({
        "steps": steps.collect::<Vec<_>>(),
        "configurationSet": report.configuration_set,
        "queueUrl": report.queue_url,
    });
    if mode == Mode::DryRun {
        answer["policies"] = json!({
            "setup": iam_policy::for_setup(&report.resources),
            "service": iam_policy::for_service(&report.resources),
        });
    }
    format!("{answer}\n")
}
