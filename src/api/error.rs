//! Errors of the API: their codes, their texts, and the fields that they name.
//!
//! Those that need no rule of mail, such as a wrong API key, are [`Rejection`]s of `http`.

use std::borrow::Cow;

use bytes::Bytes;
use http::header::RETRY_AFTER;
use http::{Response, StatusCode};
use http_body_util::Full;

use pillarbox_domain::limits::RECORD_RETENTION_DAYS;
use pillarbox_domain::organisation::Scope;
use pillarbox_domain::request::{FieldError, RequestError};
use pillarbox_domain::usage::Exceeded;
use pillarbox_http::rejection::{ErrorAnswer, RETRY_AT_ONCE_SECONDS, Rejection};
use pillarbox_intake::{Refusal, RequestRefusal};
use pillarbox_queue::NoRoom;
use pillarbox_runtime::shared_limits::Exhausted;
use pillarbox_store::{ListError, StoreError};

/// The most characters of a client's own text that an answer repeats.
pub const MAX_ECHO_CHARS: usize = 100;
/// A path such as `emails[3].headers.X-Foo`: our own words, and the client's at their longest.
const MAX_FIELD_CHARS: usize = MAX_ECHO_CHARS + 40;

/// Seconds that a client should wait while the storage is unavailable.
const STORAGE_RETRY_SECONDS: u64 = 30;

/// Seconds that a client should wait while an operator has paused its organisation.
const PAUSED_RETRY_SECONDS: u64 = 60;

/// Seconds until a node that did not answer may do so again.
const HOLDER_RETRY_SECONDS: u64 = 5;

/// Every code that a client can get.
pub(super) const CODES: [&str; 22] = [
    "BadRequest",
    "InvalidJson",
    "Unauthorized",
    "Forbidden",
    "NotFound",
    "MethodNotAllowed",
    "RequestTimeout",
    "PayloadTooLarge",
    "UriTooLong",
    "HeadersTooLarge",
    "UnsupportedMediaType",
    "ValidationError",
    "UnsupportedTag",
    "UnverifiedDomain",
    "Suppressed",
    "QuotaExceeded",
    "InternalError",
    "QueueFull",
    "StorageUnavailable",
    "Paused",
    "ShuttingDown",
    "TooManyConnections",
];

/// Reason why a request is not answered with success.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ApiError {
    /// It is refused for reasons of HTTP.
    Rejected(Rejection),
    /// The body is not one JSON object.
    InvalidJson {
        /// The problem and its place.
        message: String,
    },
    /// A POST whose content type is not JSON.
    UnsupportedMediaType,
    /// A POST whose body is compressed.
    EncodedBody,
    /// A field is missing, unknown, of the wrong type, or breaks a rule.
    Validation(FieldError),
    /// The tag is not `transactional`.
    UnsupportedTag {
        /// Full name of the tag's field.
        field: String,
    },
    /// The sender's domain is not verified for the key's organisation.
    UnverifiedDomain {
        /// Full name of the sender's field.
        field: String,
        /// The domain, as given by the client.
        domain: String,
        /// Some of the domains from which the request may be sent.
        verified: Vec<String>,
    },
    /// The key lacks the scope that the request needs.
    MissingScope(Scope),
    /// The key is not for the sender's domain.
    SenderForbidden {
        /// Full name of the sender's field.
        field: String,
        /// The domain, as given by the client.
        domain: String,
    },
    /// A recipient is suppressed.
    Suppressed {
        /// The recipient's field, such as `cc[1]`.
        field: String,
    },
    /// A limit of the organisation is reached.
    QuotaExceeded(Exceeded),
    /// There is no such message that the organisation may see. The answer is the same for an id that
    /// never existed, is malformed, expired, or another organisation's.
    NoMessage,
    /// The memory for messages that wait to be sent, or the organisation's share of it, is used up.
    QueueFull(NoRoom),
    /// Too many listings of the organisation wait.
    TooManyListings,
    /// An operator has paused the organisation, and its requests are refused.
    Paused,
    /// The record could not be made durable.
    StorageUnavailable,
    /// The store did not say in time whether the record is durable.
    OutcomeOpen,
    /// The node that holds a message which is to be cancelled did not answer in time.
    HolderSilent,
}

impl ApiError {
    /// Returns the response's status and the code in its body.
    pub const fn kind(&self) -> (StatusCode, &'static str) {
        match self {
            Self::Rejected(rejection) => rejection.kind(),
            Self::InvalidJson { .. } => (StatusCode::BAD_REQUEST, "InvalidJson"),
            Self::UnsupportedMediaType | Self::EncodedBody => {
                (StatusCode::UNSUPPORTED_MEDIA_TYPE, "UnsupportedMediaType")
            }
            Self::Validation(_) => (StatusCode::UNPROCESSABLE_ENTITY, "ValidationError"),
            Self::UnsupportedTag { .. } => (StatusCode::UNPROCESSABLE_ENTITY, "UnsupportedTag"),
            Self::UnverifiedDomain { .. } => (StatusCode::UNPROCESSABLE_ENTITY, "UnverifiedDomain"),
            Self::MissingScope(_) | Self::SenderForbidden { .. } => {
                (StatusCode::FORBIDDEN, "Forbidden")
            }
            Self::Suppressed { .. } => (StatusCode::UNPROCESSABLE_ENTITY, "Suppressed"),
            Self::QuotaExceeded(_) => (StatusCode::TOO_MANY_REQUESTS, "QuotaExceeded"),
            Self::NoMessage => (StatusCode::NOT_FOUND, "NotFound"),
            Self::QueueFull(_) | Self::TooManyListings => {
                (StatusCode::SERVICE_UNAVAILABLE, "QueueFull")
            }
            Self::Paused => (StatusCode::SERVICE_UNAVAILABLE, "Paused"),
            Self::StorageUnavailable | Self::OutcomeOpen | Self::HolderSilent => {
                (StatusCode::SERVICE_UNAVAILABLE, "StorageUnavailable")
            }
        }
    }

    /// The same error of one message of a batch, whose path is `path`.
    #[must_use]
    pub fn within(self, path: &str) -> Self {
        let within = |field: String| format!("{path}.{field}");
        match self {
            Self::Validation(error) => Self::Validation(error.within(path)),
            Self::UnsupportedTag { field } => Self::UnsupportedTag { field: within(field) },
            Self::UnverifiedDomain { field, domain, verified } => {
                Self::UnverifiedDomain { field: within(field), domain, verified }
            }
            Self::SenderForbidden { field, domain } => {
                Self::SenderForbidden { field: within(field), domain }
            }
            Self::Suppressed { field } => Self::Suppressed { field: within(field) },
            Self::Rejected(_)
            | Self::InvalidJson { .. }
            | Self::UnsupportedMediaType
            | Self::EncodedBody
            | Self::MissingScope(_)
            | Self::QuotaExceeded(_)
            | Self::NoMessage
            | Self::QueueFull(_)
            | Self::TooManyListings
            | Self::Paused
            | Self::StorageUnavailable
            | Self::OutcomeOpen
            | Self::HolderSilent => self,
        }
    }

    /// Returns what the answer's body has.
    pub fn answer(&self) -> ErrorAnswer<'_> {
        let (message, field, retry_after): (Cow<'_, str>, _, _) = match self {
            Self::Rejected(rejection) => return rejection.answer(),
            Self::InvalidJson { message } => (Cow::Borrowed(message), None, None),
            Self::UnsupportedMediaType => {
                ("the Content-Type must be application/json, in UTF-8".into(), None, None)
            }
            Self::EncodedBody => {
                let message = "the Content-Encoding must be identity; send the body uncompressed";
                (message.into(), None, None)
            }
            Self::Validation(FieldError { field: None, rule }) => (Cow::Borrowed(rule), None, None),
            Self::Validation(FieldError { field: Some(field), rule }) => {
                let field = clip(field, MAX_FIELD_CHARS);
                (format!("{field}: {rule}").into(), Some(field), None)
            }
            Self::UnsupportedTag { field } => {
                let message = format!(
                    "{field}: only transactional messages are sent; leave it out, or set it to \
                     transactional"
                );
                (message.into(), Some(field), None)
            }
            Self::UnverifiedDomain { field, domain, verified } => {
                let (domain, advice) = (clip(domain, MAX_ECHO_CHARS), other_domains(verified));
                let message = format!(
                    "{field}: the domain {domain} is not verified for your organisation; {advice}"
                );
                (message.into(), Some(field), None)
            }
            Self::MissingScope(scope) => {
                let scope = scope.as_str();
                (format!("this API key does not have the {scope} scope").into(), None, None)
            }
            Self::SenderForbidden { field, domain } => {
                let domain = clip(domain, MAX_ECHO_CHARS);
                let message =
                    format!("{field}: this API key is not valid for the sender domain {domain}");
                (message.into(), Some(field), None)
            }
            Self::Suppressed { field } => {
                let message = format!(
                    "{field}: this recipient is suppressed, because of a bounce or a complaint, or \
                     by the operator"
                );
                (message.into(), Some(field), None)
            }
            Self::QuotaExceeded(exceeded) => {
                let wait = exceeded.retry.map(|(_, wait)| wait.as_secs());
                (exceeded.to_string().into(), None, wait)
            }
            Self::NoMessage => {
                let message = format!(
                    "your organisation has no message with this id; records are kept for \
                     {RECORD_RETENTION_DAYS} days"
                );
                (message.into(), None, None)
            }
            Self::QueueFull(NoRoom { exhausted, retry_after }) => {
                let message = match exhausted {
                    Exhausted::Whole => {
                        "the service's memory for waiting messages is used up; try again later"
                    }
                    Exhausted::Share => {
                        "your organisation's share of the queue is used up by its messages that \
                         wait to be sent; try again later"
                    }
                };
                (message.into(), None, Some(retry_after.as_secs()))
            }
            Self::TooManyListings => {
                let message =
                    "your organisation has too many list requests waiting; try again later";
                (message.into(), None, Some(RETRY_AT_ONCE_SECONDS))
            }
            Self::Paused => {
                let message = "the operator has paused your organisation: nothing was stored; try \
                               again later";
                (message.into(), None, Some(PAUSED_RETRY_SECONDS))
            }
            Self::StorageUnavailable => {
                let message = "the service cannot reach its storage for now: nothing was stored; \
                               try again later";
                (message.into(), None, Some(STORAGE_RETRY_SECONDS))
            }
            Self::OutcomeOpen => {
                let message = "the storage did not answer in time: the message may have been \
                               accepted, and may still go out; repeat the request with the same \
                               idempotency key";
                (message.into(), None, Some(STORAGE_RETRY_SECONDS))
            }
            Self::HolderSilent => {
                let message = "the node that holds the message does not answer: it is not known \
                               whether the message will be cancelled or sent; try again later";
                (message.into(), None, Some(HOLDER_RETRY_SECONDS))
            }
        };
        let (status, code) = self.kind();
        let header = retry_after.map(|seconds| (RETRY_AFTER, seconds.into()));
        ErrorAnswer { status, code, message, field, header }
    }

    /// Returns the response for hyper to send.
    pub fn into_response(self) -> Response<Full<Bytes>> {
        if let Self::Rejected(rejection) = self {
            rejection.into_response()
        } else {
            self.answer().into_response()
        }
    }

    /// One error of each kind.
    #[cfg(any(test, feature = "testing"))]
    pub fn one_of_each() -> Vec<Self> {
        use std::time::Duration;

        use pillarbox_domain::time::Timestamp;
        use pillarbox_domain::usage::Period;

        let text = String::new;
        let room = NoRoom { exhausted: Exhausted::Whole, retry_after: Duration::ZERO };
        let memory = pillarbox_http::rejection::Memory::Requests;
        let retry = Some((Timestamp::LAST, Duration::from_secs(1)));
        let exceeded = Exceeded { period: Period::Day, limit: 1, left: 0, retry };
        let rejections = [
            Rejection::BadRequest { reason: "" },
            Rejection::Unauthorized,
            Rejection::NotFound,
            Rejection::MethodNotAllowed { allow: "" },
            Rejection::RequestTimeout,
            Rejection::PayloadTooLarge { limit: 0 },
            Rejection::UriTooLong,
            Rejection::HeadersTooLarge,
            Rejection::Internal,
            Rejection::MemoryFull { memory, exhausted: Exhausted::Whole },
            Rejection::ShuttingDown,
            Rejection::TooManyConnections,
        ];
        let own = [
            Self::InvalidJson { message: text() },
            Self::UnsupportedMediaType,
            Self::Validation(FieldError::new("", "")),
            Self::UnsupportedTag { field: text() },
            Self::UnverifiedDomain { field: text(), domain: text(), verified: Vec::new() },
            Self::MissingScope(Scope::Send),
            Self::SenderForbidden { field: text(), domain: text() },
            Self::Suppressed { field: text() },
            Self::QuotaExceeded(exceeded),
            Self::QueueFull(room),
            Self::TooManyListings,
            Self::Paused,
            Self::StorageUnavailable,
            Self::OutcomeOpen,
            Self::HolderSilent,
        ];
        rejections.map(Self::from).into_iter().chain(own).collect()
    }
}

impl From<Rejection> for ApiError {
    fn from(rejection: Rejection) -> Self {
        Self::Rejected(rejection)
    }
}

impl From<FieldError> for ApiError {
    fn from(error: FieldError) -> Self {
        Self::Validation(error)
    }
}

impl From<RequestError> for ApiError {
    fn from(error: RequestError) -> Self {
        match error {
            RequestError::Invalid(error) => Self::Validation(error),
            RequestError::UnsupportedTag => Self::UnsupportedTag { field: "tag".to_owned() },
        }
    }
}

impl From<StoreError> for ApiError {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Unavailable | StoreError::FileLost => Self::StorageUnavailable,
            StoreError::OutcomeOpen => Self::OutcomeOpen,
            StoreError::Damaged => Rejection::Internal.into(),
        }
    }
}

impl From<ListError> for ApiError {
    fn from(error: ListError) -> Self {
        match error {
            ListError::Store(error) => error.into(),
            ListError::TooMany => Self::TooManyListings,
        }
    }
}

impl From<RequestRefusal> for ApiError {
    fn from(refusal: RequestRefusal) -> Self {
        match refusal {
            RequestRefusal::Invalid(error) => error.into(),
            RequestRefusal::Refused(refusal) => refusal.into(),
        }
    }
}

impl From<Refusal> for ApiError {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::KeyEnded => Rejection::Unauthorized.into(),
            Refusal::UnverifiedDomain { domain, verified } => Self::UnverifiedDomain {
                field: "from".to_owned(),
                domain: domain.to_string(),
                verified: verified.iter().map(ToString::to_string).collect(),
            },
            Refusal::TermsUnknown { field } => {
                let rule = "cannot be used as long as a node of an earlier version works on the \
                            database";
                Self::Validation(FieldError::new(field, rule))
            }
            Refusal::SenderForbidden { domain } => {
                Self::SenderForbidden { field: "from".to_owned(), domain: domain.to_string() }
            }
            Refusal::Suppressed { field } => Self::Suppressed { field },
            Refusal::Paused => Self::Paused,
            Refusal::LimitReached(exceeded) => Self::QuotaExceeded(exceeded),
            Refusal::QueueFull(room) => Self::QueueFull(room),
            Refusal::StorageUnavailable => Self::StorageUnavailable,
            Refusal::OutcomeOpen => Self::OutcomeOpen,
            Refusal::ShuttingDown => Rejection::ShuttingDown.into(),
            Refusal::Internal => Rejection::Internal.into(),
        }
    }
}

/// Returns the first `max_chars` characters.
pub fn clip(text: &str, max_chars: usize) -> &str {
    text.char_indices().nth(max_chars).map_or(text, |(end, _)| &text[..end])
}

/// Advice for a domain that is not verified.
fn other_domains(verified: &[String]) -> String {
    match verified {
        [] => "ask an operator to add it (pillarbox domain add)".to_owned(),
        some => format!("send from {}", some.join(" or ")),
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt as _;

    use super::*;

    #[tokio::test]
    async fn an_answer_names_the_field() {
        let error = ApiError::Validation(FieldError::new("to[2]", "is no address"));
        let response = error.into_response();
        assert_eq!(response.status(), 422);
        assert_eq!(
            response.into_body().collect().await.unwrap().to_bytes(),
            concat!(
                r#"{"error":{"code":"ValidationError","message":"to[2]: is no address","field":"to[2]"}}"#,
                "\n"
            )
        );
    }

    #[test]
    fn what_passes_says_when_to_try_again() {
        for error in ApiError::one_of_each() {
            let overloads = [StatusCode::SERVICE_UNAVAILABLE, StatusCode::TOO_MANY_REQUESTS];
            let is_overload = overloads.contains(&error.kind().0);
            let response = error.into_response();
            assert_eq!(response.headers().contains_key("retry-after"), is_overload, "{response:?}");
        }
    }

    #[test]
    fn a_clients_text_is_repeated_in_part_alone() {
        let field = format!("headers.X-{}", "é".repeat(10_000));
        let body = ApiError::Validation(FieldError::new(field, "is wrong")).answer().body();
        assert!(body.len() < 1_000, "{}", body.len());
    }

    #[test]
    fn every_code_that_a_client_can_get_is_listed_and_no_other() {
        let codes = |source: &'static str| {
            let kinds = source.split("pub const fn kind").nth(1).unwrap();
            let kinds = kinds.split("\n    }\n").next().unwrap();
            kinds.split('"').skip(1).step_by(2).collect::<std::collections::BTreeSet<_>>()
        };
        let mut known = codes(include_str!("error.rs"));
        known.extend(codes(include_str!("../http/rejection.rs")));
        assert_eq!(known, CODES.into());
        let made = ApiError::one_of_each();
        assert_eq!(known, made.iter().map(|error| error.kind().1).collect());
    }
}
