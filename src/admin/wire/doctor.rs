//! An examination of the set-up, on the administration's wire.

use serde::{Deserialize, Serialize};

/// What is examined. Each part takes a few calls, which are made a second apart.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase", deny_unknown_fields)]
pub enum Part {
    /// Whose the credentials are, and the clock.
    Credentials,
    /// The SES account.
    Account,
    /// A sender domain's identity.
    Domain {
        /// The domain.
        domain: String,
        /// The state that the service has it in.
        state: String,
    },
    /// The configuration set.
    ConfigurationSet,
    /// The way that events come by.
    Events,
}

/// What an examination came to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Examined {
    /// One for each thing that was looked at.
    pub findings: Vec<Finding>,
}

/// What was looked at, how it is, and what to do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Finding {
    /// What was looked at, in a word or two.
    pub about: String,
    /// How it is.
    pub verdict: Verdict,
    /// What was seen.
    pub message: String,
    /// What to do; `None` where nothing is to be done.
    pub advice: Option<String>,
}

/// How something is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Verdict {
    /// As it should be.
    Ok,
    /// It works, or cannot be told, and deserves a look.
    Warning,
    /// It keeps something from working.
    NotOk,
}

/// A message of the examination's own was accepted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TestSent {
    /// The message.
    pub id: String,
    /// Its sender.
    pub from: String,
    /// Its recipient.
    pub to: String,
}

impl Finding {
    /// Something is as it should be.
    pub fn ok(about: impl Into<String>, message: impl Into<String>) -> Self {
        let (about, message) = (about.into(), message.into());
        Self { about, verdict: Verdict::Ok, message, advice: None }
    }

    /// Something deserves a look.
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
        let (about, message) = (about.into(), message.into());
        Self { about, verdict: Verdict::NotOk, message, advice: Some(advice.into()) }
    }
}
