//! The calls other than `SendEmail`, in AWS's JSON and query protocols.
//!
//! Those of SES wait for their turn within one call a second, its own limit; those of other
//! services do not count towards it. Each is made once, and answers what it asked for or a
//! `CallError`. Knows no operation in particular.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::Method;
use reqwest::Url;
use roxmltree::Node;
use serde::de::DeserializeOwned;
use tokio::time::{Instant, sleep_until};

use crate::ses::error::CallError;
use crate::ses::query::{self, FORM, Service};
use crate::ses::request::{Call, JSON, Reply, Terms};
use crate::ses::{SesClient, joined};

/// Between the starts of two calls (SES API quotas: "one request per second" for every action
/// but `SendEmail` and its kin).
const INTERVAL: Duration = Duration::from_secs(1);

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
        accepted(&self.reply(Method::DELETE, path, &[], Bytes::new()).await?)
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

    /// Calls `action` of a service in `region`, the client's own if none is named. `read` takes
    /// what it needs from the answer's root, and gives `None` where it is not there.
    pub(super) async fn query<T>(
        &self,
        service: Service,
        region: Option<&str>,
        action: &str,
        parameters: &[(&str, &str)],
        read: impl FnOnce(Node<'_, '_>) -> Option<T>,
    ) -> Result<T, CallError> {
        let transport = &self.inner.transport;
        let own = transport.terms();
        let region = region.unwrap_or(own.region);
        let base = self.inner.endpoints.of(service.name, region);
        // A region comes from an ARN at times, and so from outside.
        let url = Url::parse(&format!("{base}/"))
            .map_err(|_| CallError::Unreachable(format!("no endpoint in region {region:?}")))?;
        let call = Call {
            service: service.name,
            method: Method::POST,
            url: &url,
            headers: &[FORM],
            body: query::form(service, action, parameters),
        };
        let reply = transport.call_on(Terms { region, ..own }, &call).await?;
        accepted(&reply)?;
        let body = reply.body.map_err(CallError::Unreadable)?;
        query::answer(&body, read)
            .map_err(|what| CallError::Unreadable(format!("{action}: {what}")))
    }
}

/// Gives out one start a second, in the order asked for.
#[derive(Debug, Default)]
pub(super) struct CallSpacing {
    next: Mutex<Option<Instant>>,
}

impl CallSpacing {
    /// Returns when the caller may make its call.
    pub(super) async fn turn(&self) {
        sleep_until(self.reserve()).await;
    }

    fn reserve(&self) -> Instant {
        let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        let turn = next.map_or(now, |next| next.max(now));
        *next = Some(turn + INTERVAL);
        turn
    }
}

/// Nothing, or the refusal that an answer is.
pub(super) fn accepted(reply: &Reply) -> Result<(), CallError> {
    if reply.status.is_success() { Ok(()) } else { Err(CallError::of(reply)) }
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

#[cfg(test)]
mod tests;
