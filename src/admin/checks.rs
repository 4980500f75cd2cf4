//! Examinations of the set-up at AWS and of the database: what is checked, its verdict, and what to
//! do.
//!
//! Only asks: nothing here changes anything. A running service examines with its own credentials
//! and clock; if none runs, the command does the same in its own process.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{Admin, Examine, Result, domain_name};
use pillarbox_ses::error::CallError;
use pillarbox_ses::{SesClient, Skew};

mod account;
pub mod database;
mod events;

/// Skew from which a clock gets a warning.
const SKEW_WARNING: Duration = Duration::from_mins(1);
/// AWS refuses requests that are signed further off ("Troubleshoot AWS Signature Version 4").
const SKEW_REFUSED: Duration = Duration::from_mins(5);

/// Part of the set-up to examine. Each part takes a few calls, which are made a second apart.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase", deny_unknown_fields)]
pub enum Part {
    Credentials,
    Account,
    Domain {
        domain: String,
        state: String,
    },
    ConfigurationSet,
    Events,
    /// The database, and the nodes on it. Nothing is to be said of a data file.
    Database,
}

/// Result of an examination.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Examined {
    pub findings: Vec<Finding>,
}

/// One checked item, its verdict, and what to do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    pub about: String,
    pub verdict: Verdict,
    pub message: String,
    /// Advice; `None` if nothing is to be done.
    pub advice: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Verdict {
    Ok,
    /// It works, or its state is unknown: the operator should check it.
    Warning,
    /// It keeps something from working.
    NotOk,
}

/// Examines the set-up at AWS.
#[derive(Debug)]
pub struct Examiner<'a> {
    pub ses: &'a SesClient,
    /// URL of the queue by which events come back; `None` if the service waits for none.
    pub events_queue: Option<&'a str>,
}

impl Finding {
    pub fn ok(about: impl Into<String>, message: impl Into<String>) -> Self {
        let (about, message) = (about.into(), message.into());
        Self { about, verdict: Verdict::Ok, message, advice: None }
    }

    /// A finding that the operator should check.
    pub fn warning(
        about: impl Into<String>,
        message: impl Into<String>,
        advice: impl Into<String>,
    ) -> Self {
        Self { verdict: Verdict::Warning, ..Self::not_ok(about, message, advice) }
    }

    /// Something keeps something from working.
    pub fn not_ok(
        about: impl Into<String>,
        message: impl Into<String>,
        advice: impl Into<String>,
    ) -> Self {
        Self { verdict: Verdict::NotOk, advice: Some(advice.into()), ..Self::ok(about, message) }
    }
}

pub(super) async fn examine(admin: &Admin, call: Examine) -> Result<Examined> {
    let findings = match &call.part {
        Part::Database => {
            let (database, nodes) = (admin.store.database(), admin.store.nodes());
            database.map_or_else(Vec::new, |database| database::findings(&database, &nodes))
        }
        part => {
            let ses = admin.ses("start it")?;
            let events_queue = admin.facts()?.events_queue.as_deref();
            Examiner { ses, events_queue }.examine(part).await?
        }
    };
    Ok(Examined { findings })
}

impl Examiner<'_> {
    pub async fn examine(&self, part: &Part) -> Result<Vec<Finding>> {
        Ok(match part {
            Part::Credentials => self.credentials().await,
            Part::Account => self.account().await,
            Part::Domain { domain, state } => {
                vec![self.domain(&domain_name(domain)?, state).await]
            }
            Part::ConfigurationSet => self.configuration_set().await,
            Part::Events => self.event_route().await,
            // Not at AWS.
            Part::Database => Vec::new(),
        })
    }

    async fn credentials(&self) -> Vec<Finding> {
        const ABOUT: &str = "credentials";
        let caller = match self.ses.caller().await {
            Ok(caller) => Finding::ok(ABOUT, format!("account {}, {}", caller.account, caller.arn)),
            Err(error) => unanswered(ABOUT, "sts:GetCallerIdentity", &error),
        };
        // The route of calls from this machine to AWS.
        let route = Finding::ok("proxy", self.ses.route());
        vec![route, caller, self.clock()]
    }

    /// Judged by the last answer's date, so to be asked after some call.
    fn clock(&self) -> Finding {
        const ABOUT: &str = "clock";
        const ADVICE: &str = "set the clock and keep it right, with chrony or systemd-timesyncd \
                              for example";
        let Some(skew) = self.ses.clock_skew() else {
            let message = "AWS has not answered, so its time is not known";
            return Finding::warning(ABOUT, message, "correct the connection first");
        };
        let apart = humantime::format_duration(Duration::from_secs(skew.apart().as_secs()));
        let message = match skew {
            Skew::Behind(_) => format!("{apart} behind AWS's"),
            Skew::Ahead(_) => format!("{apart} ahead of AWS's"),
        };
        let refused = "AWS refuses requests if the difference is 5 minutes or more";
        if skew.apart() >= SKEW_REFUSED {
            Finding::not_ok(ABOUT, format!("{message}; {refused}"), ADVICE)
        } else if skew.apart() >= SKEW_WARNING {
            Finding::warning(ABOUT, format!("{message}; {refused}"), ADVICE)
        } else {
            Finding::ok(ABOUT, "agrees with AWS's to within a minute")
        }
    }
}

/// Finding for a call that brought no answer. `action` is its name in IAM's policies.
fn unanswered(about: impl Into<String>, action: &str, error: &CallError) -> Finding {
    let message = error.to_string();
    match error {
        CallError::NotSupported { .. } => Finding::warning(
            about,
            message,
            format!(
                "{action} is not available there, so this cannot be checked; check it yourself"
            ),
        ),
        CallError::Credentials(_) => Finding::not_ok(
            about,
            message,
            "provide credentials where the AWS tools look for them: environment, shared profile, \
             container, web identity or instance metadata",
        ),
        CallError::Unreachable(_) => {
            let advice = "check the network, ses.region, ses.endpoint and, if only a proxy can \
                          reach AWS, ses.proxy";
            Finding::not_ok(about, message, advice)
        }
        CallError::Refused { status: 401 | 403, name, .. } => {
            let advice = refused(name.as_deref(), action);
            let clock = || "the clock is wrong: set it, and keep it right".to_owned();
            Finding::not_ok(about, message, if error.refuses_clock() { clock() } else { advice })
        }
        CallError::Refused { status: 429, .. } => Finding::warning(
            about,
            message,
            "AWS limits the rate of these calls; try again in a minute",
        ),
        CallError::Refused { .. } | CallError::Unreadable(_) => {
            Finding::not_ok(about, message, "check ses.region and ses.endpoint")
        }
    }
}

fn refused(name: Option<&str>, action: &str) -> String {
    let stem = name.unwrap_or_default();
    match stem.strip_suffix("Exception").unwrap_or(stem) {
        "AccessDenied" | "NotAuthorized" => {
            format!("allow the action {action} in the IAM policy of these credentials")
        }
        "InvalidSignature" | "SignatureDoesNotMatch" => {
            "the secret key does not belong to the access key, or ses.region is not the endpoint's"
                .to_owned()
        }
        "ExpiredToken" => "the credentials have expired: renew them".to_owned(),
        _ => "AWS does not know these credentials: check the access key, or make a new one"
            .to_owned(),
    }
}
