//! The provider's side door: where SNS posts events, on a listener of its own.
//!
//! It carries no key; what is posted proves itself or is refused. Knows nothing of what a proof
//! is.

use std::sync::Arc;

use bytes::Bytes;
use http::header::HeaderMap;
use http::{Method, Request, Response};
use http_body_util::Full;
use hyper::body::Incoming;

use crate::feedback::sns::{Delivery, Outcome, Posts};
use crate::http::Handler;
use crate::http::body::BodyReader;
use crate::http::error::ApiError;
use crate::http::limits::Limits;
use crate::http::request_id::RequestId;

/// The one path.
pub const PATH: &str = "/provider/sns";
/// The header by which SNS says that there is no envelope ("Amazon SNS raw message delivery").
const RAW_DELIVERY: &str = "x-amz-sns-rawdelivery";

/// The largest message of SNS's, in bytes ("Amazon SNS quotas").
const MAX_MESSAGE_BYTES: usize = 256 * 1024;
/// What is around it.
const ENVELOPE_BYTES: usize = 16 * 1024;
/// SNS's connections are few; whoever else comes must not take what clients need.
const MAX_CONNECTIONS: usize = 256;
const MAX_READING_BYTES: usize = 16 * 1024 * 1024;

/// Answers what the provider posts.
#[derive(Debug, Clone)]
pub struct ProviderApi {
    posts: Arc<Posts>,
    bodies: BodyReader,
}

impl ProviderApi {
    /// Answers from `posts`, within [`limits`].
    pub fn new(posts: Arc<Posts>, limits: &Limits) -> Self {
        Self { posts, bodies: BodyReader::new(limits) }
    }

    async fn answer(&self, request: Request<Incoming>) -> Result<(), ApiError> {
        let (head, body) = request.into_parts();
        if head.uri.path() != PATH {
            return Err(ApiError::NotFound);
        }
        if head.method != Method::POST {
            return Err(ApiError::MethodNotAllowed { allow: "POST" });
        }
        let body = self.bodies.read(body).await?;
        match self.posts.take(&body, delivery(&head.headers)).await {
            Outcome::Taken => Ok(()),
            Outcome::Refused => Err(ApiError::Forbidden),
            Outcome::NotNow => Err(ApiError::ProviderUnavailable),
            Outcome::NotStored => Err(ApiError::StorageUnavailable),
        }
    }
}

/// The limits of this listener.
pub fn limits() -> Limits {
    Limits {
        max_connections: MAX_CONNECTIONS,
        // In JSON, a quotation mark of the message becomes two characters; its documents are JSON
        // themselves and have many.
        max_request_bytes: 2 * MAX_MESSAGE_BYTES + ENVELOPE_BYTES,
        max_reading_bytes: MAX_READING_BYTES,
        ..Limits::default()
    }
}

fn delivery(headers: &HeaderMap) -> Delivery {
    match headers.get(RAW_DELIVERY) {
        Some(value) if value.as_bytes().eq_ignore_ascii_case(b"true") => Delivery::Raw,
        Some(_) | None => Delivery::Enveloped,
    }
}

impl Handler for ProviderApi {
    type Body = Full<Bytes>;

    async fn handle(&self, request: Request<Incoming>, id: RequestId) -> Response<Full<Bytes>> {
        match self.answer(request).await {
            Ok(()) => Response::new(Full::default()),
            Err(error) => {
                let (status, code) = error.kind();
                tracing::debug!(request_id = %id, status = status.as_u16(), code, "post refused");
                error.into_response()
            }
        }
    }
}
