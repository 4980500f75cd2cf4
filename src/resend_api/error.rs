//! Errors in Resend's shape: the name and the status that its SDKs know for each of ours.

use http::header::WWW_AUTHENTICATE;
use http::{HeaderValue, StatusCode};
use serde::Serialize;

use crate::IDEMPOTENCY_KEY;
use pillarbox_api::error::ApiError;
use pillarbox_domain::request::FieldError;
use pillarbox_domain::usage::Period;
use pillarbox_http::rejection::{Rejection, WrittenAnswer};

/// Presence of an API key in a request, valid or not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum KeyGiven {
    Yes,
    No,
}

/// Returns the answer to a request that is refused: `{"statusCode":…,"name":"…","message":"…"}`.
pub(super) fn written(error: &ApiError, key: KeyGiven) -> WrittenAnswer {
    #[derive(Serialize)]
    struct Body<'a> {
        #[serde(rename = "statusCode")]
        status_code: u16,
        name: &'static str,
        message: &'a str,
    }
    let (status, name) = kind(error, key);
    let answer = error.answer();
    let body = Body { status_code: status.as_u16(), name, message: &answer.message };
    let mut body = serde_json::to_vec(&body).expect("numbers and strings serialize");
    body.push(b'\n');
    let challenge = || (WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    let is_challenge = status == StatusCode::UNAUTHORIZED;
    let own = answer.header.filter(|(name, _)| is_challenge || *name != WWW_AUTHENTICATE);
    let code = answer.code;
    WrittenAnswer { status, code, body, header: own.or_else(|| is_challenge.then(challenge)) }
}

/// The status and the name of an error. PHP's SDK takes an error with another name than Resend's for a
/// success, so each has one of those.
fn kind(error: &ApiError, key: KeyGiven) -> (StatusCode, &'static str) {
    let (status, _) = error.kind();
    match error {
        ApiError::Rejected(rejection) => match (rejection, key) {
            (Rejection::Unauthorized, KeyGiven::No) => (status, "missing_api_key"),
            (Rejection::Unauthorized, KeyGiven::Yes) => (StatusCode::FORBIDDEN, "invalid_api_key"),
            (Rejection::NotFound | Rejection::UnknownPath { .. }, _) => (status, "not_found"),
            (Rejection::MethodNotAllowed { .. }, _) => (status, "method_not_allowed"),
            (
                Rejection::BadRequest { .. }
                | Rejection::ForeignHost
                | Rejection::RequestTimeout
                | Rejection::PayloadTooLarge { .. }
                | Rejection::UriTooLong
                | Rejection::HeadersTooLarge,
                _,
            ) => (status, "validation_error"),
            (
                Rejection::Internal
                | Rejection::MemoryFull { .. }
                | Rejection::ShuttingDown
                | Rejection::TooManyConnections,
                _,
            ) => (status, "application_error"),
        },
        ApiError::Validation(error) => field_kind(status, error),
        ApiError::InvalidJson { .. }
        | ApiError::UnsupportedMediaType
        | ApiError::EncodedBody
        | ApiError::UnsupportedTag { .. }
        | ApiError::Suppressed { .. } => (status, "validation_error"),
        ApiError::UnverifiedDomain { .. } => (StatusCode::FORBIDDEN, "validation_error"),
        ApiError::MissingScope(_) | ApiError::SenderForbidden { .. } => {
            (StatusCode::UNAUTHORIZED, "restricted_api_key")
        }
        ApiError::NoMessage => (status, "not_found"),
        ApiError::QuotaExceeded(exceeded) => match exceeded.period {
            Period::Day => (status, "daily_quota_exceeded"),
            Period::Month => (status, "monthly_quota_exceeded"),
            Period::Minute | Period::Hour => (status, "rate_limit_exceeded"),
        },
        ApiError::QueueFull(_)
        | ApiError::TooManyListings
        | ApiError::Paused
        | ApiError::StorageUnavailable
        | ApiError::OutcomeOpen
        | ApiError::HolderSilent => (status, "application_error"),
    }
}

/// Names of errors of single fields.
#[cfg(test)]
pub(super) const FIELD_NAMES: [&str; 5] = [
    "missing_required_field",
    "invalid_idempotency_key",
    "invalid_from_address",
    "invalid_attachment",
    "invalid_parameter",
];

fn field_kind(status: StatusCode, error: &FieldError) -> (StatusCode, &'static str) {
    if error.is_missing() {
        return (status, "missing_required_field");
    }
    let path = error.field.as_deref().unwrap_or_default();
    // Of a batch, the field of one message.
    let path =
        path.strip_prefix("emails[").and_then(|rest| rest.split_once("].")).map_or(path, |it| it.1);
    match path.split(['[', '.']).next().unwrap_or_default() {
        field if field == IDEMPOTENCY_KEY => (StatusCode::BAD_REQUEST, "invalid_idempotency_key"),
        "from" => (status, "invalid_from_address"),
        "attachments" => (status, "invalid_attachment"),
        "limit" | "after" | "before" => (status, "invalid_parameter"),
        _ => (status, "validation_error"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Names of errors that official SDKs know (Node 6.38, `RESEND_ERROR_CODE_KEY`; PHP 1.10).
    const KNOWN: [&str; 21] = [
        "application_error",
        "concurrent_idempotent_requests",
        "daily_quota_exceeded",
        "internal_server_error",
        "invalid_access",
        "invalid_api_key",
        "invalid_attachment",
        "invalid_from_address",
        "invalid_idempotency_key",
        "invalid_idempotent_request",
        "invalid_parameter",
        "invalid_region",
        "method_not_allowed",
        "missing_api_key",
        "missing_required_field",
        "monthly_quota_exceeded",
        "not_found",
        "rate_limit_exceeded",
        "restricted_api_key",
        "security_error",
        "validation_error",
    ];

    #[test]
    fn every_error_has_a_name_that_sdks_know_and_the_status_of_its_answer() {
        for error in ApiError::one_of_each() {
            for key in [KeyGiven::Yes, KeyGiven::No] {
                let (own_status, _) = error.kind();
                let own_wait = error.answer().header.filter(|(name, _)| *name == "retry-after");
                let answer = written(&error, key);
                let body: serde_json::Value = serde_json::from_slice(&answer.body).unwrap();
                assert!(KNOWN.contains(&body["name"].as_str().unwrap()), "{body}");
                assert_eq!(body["statusCode"], answer.status.as_u16());
                assert_eq!(body.as_object().unwrap().len(), 3, "{body}");
                // A client repeats what passes, and nothing else.
                let passes = |status: StatusCode| {
                    status.is_server_error() || [408, 429].contains(&status.as_u16())
                };
                assert_eq!(passes(answer.status), passes(own_status), "{body}");
                let wait = answer.header.clone().filter(|(name, _)| *name == "retry-after");
                assert_eq!(wait, own_wait, "{body}");
                let challenge = answer.header.filter(|(name, _)| *name == WWW_AUTHENTICATE);
                assert_eq!(challenge.is_some(), answer.status == 401, "{body}");
            }
        }
    }

    #[test]
    fn a_field_has_the_name_that_fits_alone_and_in_a_batch() {
        let name = |field: &str| {
            let error = FieldError::new(field, "is wrong");
            field_kind(StatusCode::UNPROCESSABLE_ENTITY, &error).1
        };
        for (field, expected) in [
            ("from", "invalid_from_address"),
            ("emails[7].from", "invalid_from_address"),
            ("emails[7].attachments[2].content", "invalid_attachment"),
            ("attachments", "invalid_attachment"),
            ("limit", "invalid_parameter"),
            ("idempotency-key", "invalid_idempotency_key"),
            ("to[2]", "validation_error"),
            ("emails[7]", "validation_error"),
            ("emails", "validation_error"),
        ] {
            assert_eq!(name(field), expected, "{field}");
        }
        let missing = FieldError::new("emails[0].from", "is required");
        assert_eq!(field_kind(StatusCode::IM_A_TEAPOT, &missing).1, "missing_required_field");
    }
}
