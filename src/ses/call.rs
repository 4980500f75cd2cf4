//! The calls other than `SendEmail`: about the account and its identities.
//!
//! Each waits its turn within one call a second, is made once, and answers what it asked for or a
//! `CallError`. Knows no operation in particular.

use bytes::Bytes;
use http::{Method, StatusCode};
use serde::de::DeserializeOwned;

use crate::ses::aws_error::{AwsError, RefusedCredentials, stem};
use crate::ses::credentials::LoadError;
use crate::ses::redact::redact;
use crate::ses::transport::{Call, JSON, Reply, TransportError};
use crate::ses::{SesClient, joined};

/// Why a call brought no answer to go by.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// There are no credentials to sign with.
    #[error(transparent)]
    Credentials(#[from] LoadError),
    /// AWS could not be reached, or gave no answer.
    #[error("AWS could not be asked: {0}")]
    Unreachable(String),
    /// AWS refused the call.
    #[error("AWS refused the call with {}: {message}", name.as_deref().unwrap_or("an error"))]
    Refused {
        /// The HTTP status.
        status: u16,
        /// The error's name, such as `TooManyRequestsException`.
        name: Option<String>,
        /// What AWS said, without addresses.
        message: String,
    },
    /// The endpoint does not have the call: it answered so, and not as SES does.
    #[error("the endpoint does not have this call; it answered {status}")]
    NotSupported {
        /// The HTTP status.
        status: u16,
    },
    /// The answer is not what AWS answers.
    #[error("AWS's answer cannot be read: {0}")]
    Unreadable(String),
}

impl CallError {
    /// Whether AWS refused the call with one of these names.
    pub fn is_named(&self, names: &[&str]) -> bool {
        matches!(self, Self::Refused { name: Some(name), .. } if names.contains(&name.as_str()))
    }

    /// Whether AWS refused the credentials, and not what they may do.
    pub fn refuses_credentials(&self) -> bool {
        match self {
            Self::Refused { name: Some(name), .. } => {
                RefusedCredentials::by(stem(name)) != RefusedCredentials::No
            }
            _ => false,
        }
    }

    /// Whether AWS knows the credentials, and they may not make this call.
    pub fn denies_access(&self) -> bool {
        matches!(self, Self::Refused { status: 401 | 403, .. }) && !self.refuses_credentials()
    }
}

impl From<TransportError> for CallError {
    fn from(error: TransportError) -> Self {
        match error {
            TransportError::Credentials(error) => Self::Credentials(error),
            TransportError::Signing(_)
            | TransportError::NotWritten(_)
            | TransportError::NoAnswer(_) => Self::Unreachable(redact(&error.to_string())),
        }
    }
}

impl SesClient {
    /// Asks for `path` and reads the answer.
    pub(super) async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, CallError> {
        self.ask(Method::GET, path, &[], Bytes::new()).await
    }

    /// Posts a JSON document to `path` and reads the answer.
    pub(super) async fn post<T: DeserializeOwned>(
        &self,
        path: &str,
        body: Bytes,
    ) -> Result<T, CallError> {
        self.ask(Method::POST, path, &[JSON], body).await
    }

    /// Sends a JSON document whose answer says nothing but that it was taken.
    pub(super) async fn tell(
        &self,
        method: Method,
        path: &str,
        body: Bytes,
    ) -> Result<(), CallError> {
        accepted(&self.reply(method, path, &[JSON], body).await?)
    }

    /// Deletes what is at `path`. The answer has no body that would say anything.
    pub(super) async fn delete(&self, path: &str) -> Result<(), CallError> {
        let reply = self.reply(Method::DELETE, path, &[], Bytes::new()).await?;
        if reply.status.is_success() { Ok(()) } else { Err(refusal(&reply)) }
    }

    async fn ask<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        headers: &[(&'static str, &'static str)],
        body: Bytes,
    ) -> Result<T, CallError> {
        read(&self.reply(method, path, headers, body).await?)
    }

    async fn reply(
        &self,
        method: Method,
        path: &str,
        headers: &[(&'static str, &'static str)],
        body: Bytes,
    ) -> Result<Reply, CallError> {
        let url = joined(self.inner.endpoints.ses(), path)
            .map_err(|error| CallError::Unreachable(error.to_string()))?;
        self.inner.spacing.turn().await;
        let call = Call { service: "ses", method, url: &url, headers, body };
        Ok(self.inner.transport.call(&call).await?)
    }
}

/// Nothing, or the refusal that an answer is.
pub(super) fn accepted(reply: &Reply) -> Result<(), CallError> {
    if reply.status.is_success() { Ok(()) } else { Err(refusal(reply)) }
}

/// Reads an answer, or the refusal that it is.
pub(super) fn read<T: DeserializeOwned>(reply: &Reply) -> Result<T, CallError> {
    accepted(reply)?;
    let body = reply.body.as_ref().map_err(|error| CallError::Unreadable(error.clone()))?;
    // The parser's own message may repeat what it read; where it stopped is enough.
    serde_json::from_slice(body).map_err(|error| {
        CallError::Unreadable(format!("line {}, column {}", error.line(), error.column()))
    })
}

fn refusal(reply: &Reply) -> CallError {
    let status = reply.status.as_u16();
    let AwsError { name, message } = AwsError::read(reply);
    let lacking = matches!(
        reply.status,
        StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED | StatusCode::NOT_IMPLEMENTED
    );
    if lacking && name.is_none() {
        return CallError::NotSupported { status };
    }
    let message = message.map_or_else(|| format!("status {status}"), |message| redact(&message));
    CallError::Refused { status, name, message }
}
