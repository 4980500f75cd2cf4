//! Lets the AWS credential providers make their few calls over our own HTTP client.
//!
//! Without it they would bring a second HTTP and TLS stack. Knows nothing of credentials.

use std::time::Duration;

use aws_smithy_runtime_api::client::http::{
    HttpClient, HttpConnector, HttpConnectorFuture, HttpConnectorSettings, SharedHttpConnector,
};
use aws_smithy_runtime_api::client::orchestrator::{HttpRequest, HttpResponse};
use aws_smithy_runtime_api::client::result::ConnectorError;
use aws_smithy_runtime_api::client::runtime_components::RuntimeComponents;
use aws_smithy_types::body::SdkBody;
use bytes::Bytes;

use crate::ses::transport::{MAX_ANSWER_BYTES, read_bounded};

/// The time limit of a call whose provider sets none.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(5);

/// An `HttpClient` for the AWS libraries.
#[derive(Debug, Clone)]
pub(super) struct Connector {
    http: reqwest::Client,
    timeout: Duration,
}

impl Connector {
    pub(super) fn new(http: reqwest::Client) -> Self {
        Self { http, timeout: DEFAULT_TIMEOUT }
    }
}

impl HttpClient for Connector {
    fn http_connector(
        &self,
        settings: &HttpConnectorSettings,
        _: &RuntimeComponents,
    ) -> SharedHttpConnector {
        // One limit stands for both: a provider that allows a second to connect and one to answer
        // (instance metadata) waits two at most where nothing is there.
        let timeout = match (settings.connect_timeout(), settings.read_timeout()) {
            (Some(connect), Some(read)) => connect + read,
            (Some(limit), None) | (None, Some(limit)) => limit.max(DEFAULT_TIMEOUT),
            (None, None) => DEFAULT_TIMEOUT,
        };
        SharedHttpConnector::new(Self { http: self.http.clone(), timeout })
    }
}

impl HttpConnector for Connector {
    fn call(&self, request: HttpRequest) -> HttpConnectorFuture {
        let Self { http, timeout } = self.clone();
        HttpConnectorFuture::new(async move {
            let mut request = converted(request)?;
            *request.timeout_mut() = Some(timeout);
            let response = http.execute(request).await.map_err(failed)?;
            let status = response.status();
            let headers = response.headers().clone();
            let body = read_bounded(response, MAX_ANSWER_BYTES)
                .await
                .map_err(|error| ConnectorError::io(error.into()))?;
            let mut answer = http::Response::new(SdkBody::from(body));
            *answer.status_mut() = status;
            *answer.headers_mut() = headers;
            HttpResponse::try_from(answer).map_err(|error| ConnectorError::user(error.into()))
        })
    }
}

fn converted(request: HttpRequest) -> Result<reqwest::Request, ConnectorError> {
    let request = request.try_into_http1x().map_err(|error| ConnectorError::user(error.into()))?;
    let (parts, body) = request.into_parts();
    // A streamed body has no bytes; no credential provider sends one.
    let body = body.bytes().map(Bytes::copy_from_slice).ok_or_else(|| {
        ConnectorError::user("a streamed body, where credential providers send none".into())
    })?;
    reqwest::Request::try_from(http::Request::from_parts(parts, body))
        .map_err(|error| ConnectorError::user(error.into()))
}

fn failed(error: reqwest::Error) -> ConnectorError {
    let (timed_out, unconnected) = (error.is_timeout(), error.is_connect());
    // The URL may hold what the provider was told in confidence.
    let source = error.without_url().into();
    let error =
        if timed_out { ConnectorError::timeout(source) } else { ConnectorError::io(source) };
    if unconnected { error.never_connected() } else { error }
}
