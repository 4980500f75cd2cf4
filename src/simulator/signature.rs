//! Verifies AWS Signature Version 4, as AWS's front end does.
//!
//! The canonical request is rebuilt from AWS's description, not with the signer's code, so that the
//! two cannot agree on a mistake; only the HMAC chain is shared. Must not know the signed calls.
//! Source: <https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_sigv-create-signed-request.html>

use std::borrow::Cow;
use std::fmt;
use std::fmt::Write as _;
use std::time::{Duration, SystemTime};

use aws_sigv4::sign::v4::{calculate_signature, generate_signing_key};
use http::header::AUTHORIZATION;
use http::request::Parts;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, percent_encode};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use super::protocol::ErrorResponse;
use pillarbox_domain::time::Timestamp;

const ALGORITHM: &str = "AWS4-HMAC-SHA256";
const TERMINATOR: &str = "aws4_request";
const MISMATCH: &str = "The request signature we calculated does not match the signature you \
    provided. Check your AWS Secret Access Key and signing method. Consult the service \
    documentation for details.";
/// All but RFC 3986's unreserved characters.
const RESERVED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// The credentials that the simulator takes.
#[derive(Clone, PartialEq, Eq)]
pub enum Credentials {
    /// This pair alone, and the signature is checked.
    Only {
        /// The access key id.
        access_key_id: String,
        /// The secret that signatures are made with.
        secret_access_key: String,
    },
    /// Any: a call must be signed, but the signature cannot be checked.
    Any,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Only { access_key_id, .. } => {
                f.debug_struct("Only").field("access_key_id", access_key_id).finish_non_exhaustive()
            }
            Self::Any => f.write_str("Any"),
        }
    }
}

impl Default for Credentials {
    fn default() -> Self {
        let simulator = || "simulator".to_owned();
        Self::Only { access_key_id: simulator(), secret_access_key: simulator() }
    }
}

/// The AWS services that the simulator stands in for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AwsService {
    Ses,
    Sqs,
    Sts,
}

impl AwsService {
    fn name(self) -> &'static str {
        match self {
            Self::Ses => "ses",
            Self::Sqs => "sqs",
            Self::Sts => "sts",
        }
    }
}

/// Verifies signatures for one pair of credentials in one region.
#[derive(Debug)]
pub(super) struct SignatureVerifier {
    credentials: Credentials,
    region: String,
    max_age: Option<Duration>,
}

/// The parts of an `Authorization` header.
struct Authorization<'a> {
    access_key_id: &'a str,
    day: &'a str,
    region: &'a str,
    service: &'a str,
    terminator: &'a str,
    signed_headers: &'a str,
    signature: &'a str,
}

impl SignatureVerifier {
    pub(super) fn new(credentials: Credentials, region: String, max_age: Option<Duration>) -> Self {
        Self { credentials, region, max_age }
    }

    /// Verifies the signature of a call of this service.
    pub(super) fn verify(
        &self,
        service: AwsService,
        parts: &Parts,
        body: &[u8],
        now: SystemTime,
    ) -> Result<(), ErrorResponse> {
        let header = parts.headers.get(AUTHORIZATION).ok_or_else(|| {
            ErrorResponse::forbidden(
                "MissingAuthenticationTokenException",
                "Missing Authentication Token",
            )
        })?;
        let authorization =
            header.to_str().ok().and_then(parse_authorization).ok_or_else(|| {
                incomplete("Authorization header is not a complete SigV4 header.")
            })?;
        let Credentials::Only { access_key_id, secret_access_key } = &self.credentials else {
            return Ok(());
        };
        if authorization.access_key_id != access_key_id {
            return Err(ErrorResponse::forbidden(
                "UnrecognizedClientException",
                "The security token included in the request is invalid.",
            ));
        }
        self.check_scope(service, &authorization)?;
        check_signed_headers(parts, authorization.signed_headers)?;
        let (amz_date, signed_at) = signing_time(parts)?;
        if amz_date.get(..8) != Some(authorization.day) {
            return Err(invalid(format!(
                "Date in Credential scope does not match YYYYMMDD from ISO-8601 version of date \
                 from HTTP: '{}' != '{}', from '{amz_date}'.",
                authorization.day,
                amz_date.get(..8).unwrap_or_default(),
            )));
        }
        self.check_age(amz_date, signed_at, now)?;
        let text = string_to_sign(parts, body, &authorization, amz_date)?;
        let key = generate_signing_key(secret_access_key, signed_at, &self.region, service.name());
        let expected = calculate_signature(key, text.as_bytes());
        if bool::from(expected.as_bytes().ct_eq(authorization.signature.as_bytes())) {
            Ok(())
        } else {
            Err(invalid(MISMATCH))
        }
    }

    fn check_scope(
        &self,
        service: AwsService,
        authorization: &Authorization<'_>,
    ) -> Result<(), ErrorResponse> {
        if authorization.terminator != TERMINATOR {
            return Err(invalid(format!(
                "Credential should be scoped with a valid terminator: '{TERMINATOR}', not '{}'.",
                authorization.terminator
            )));
        }
        if authorization.region != self.region {
            return Err(invalid(format!(
                "Credential should be scoped to a valid region, not '{}'.",
                authorization.region
            )));
        }
        if authorization.service != service.name() {
            return Err(invalid(format!(
                "Credential should be scoped to correct service: '{}'.",
                service.name()
            )));
        }
        Ok(())
    }

    fn check_age(
        &self,
        amz_date: &str,
        signed_at: SystemTime,
        now: SystemTime,
    ) -> Result<(), ErrorResponse> {
        let Some(max_age) = self.max_age else { return Ok(()) };
        let minutes = max_age.as_secs() / 60;
        let shown = amz_format(now);
        if signed_at + max_age < now {
            return Err(invalid(format!(
                "Signature expired: {amz_date} is now earlier than {} ({shown} - {minutes} min.)",
                amz_format(now - max_age)
            )));
        }
        if signed_at > now + max_age {
            return Err(invalid(format!(
                "Signature not yet current: {amz_date} is still later than {} ({shown} + \
                 {minutes} min.)",
                amz_format(now + max_age)
            )));
        }
        Ok(())
    }
}

/// The service that a call is signed for, if its `Authorization` header names one.
pub(super) fn signed_service(parts: &Parts) -> Option<&str> {
    let header = parts.headers.get(AUTHORIZATION)?.to_str().ok()?;
    parse_authorization(header).map(|authorization| authorization.service)
}

fn parse_authorization(header: &str) -> Option<Authorization<'_>> {
    let fields = header.strip_prefix(ALGORITHM)?.strip_prefix(' ')?;
    let (mut credential, mut signed_headers, mut signature) = (None, None, None);
    for field in fields.split(',') {
        match field.trim().split_once('=')? {
            ("Credential", value) => credential = Some(value),
            ("SignedHeaders", value) => signed_headers = Some(value),
            ("Signature", value) => signature = Some(value),
            _ => return None,
        }
    }
    let mut scope = credential?.split('/');
    let authorization = Authorization {
        access_key_id: scope.next()?,
        day: scope.next()?,
        region: scope.next()?,
        service: scope.next()?,
        terminator: scope.next()?,
        signed_headers: signed_headers?,
        signature: signature?,
    };
    scope.next().is_none().then_some(authorization)
}

/// `host` and every `x-amz-…` header must be signed, or a relay could change them.
fn check_signed_headers(parts: &Parts, signed_headers: &str) -> Result<(), ErrorResponse> {
    let is_signed = |name: &str| signed_headers.split(';').any(|signed| signed == name);
    if !is_signed("host") {
        return Err(invalid("'Host' must be a 'SignedHeader' in the AWS Authorization."));
    }
    for name in parts.headers.keys() {
        if name.as_str().starts_with("x-amz-") && !is_signed(name.as_str()) {
            return Err(invalid(format!(
                "'{name}' must be a 'SignedHeader' in the AWS Authorization."
            )));
        }
    }
    Ok(())
}

fn signing_time(parts: &Parts) -> Result<(&str, SystemTime), ErrorResponse> {
    let text =
        parts.headers.get("x-amz-date").and_then(|value| value.to_str().ok()).ok_or_else(|| {
            incomplete("Authorization header requires existence of 'X-Amz-Date'.")
        })?;
    let time = parse_amz_date(text).ok_or_else(|| {
        incomplete("Date must be in ISO-8601 'basic format', as in 20261121T093000Z.")
    })?;
    Ok((text, time))
}

/// Reads `20261121T093000Z`.
fn parse_amz_date(text: &str) -> Option<SystemTime> {
    if text.len() != 16 || !text.is_ascii() {
        return None;
    }
    let (date, time) = (&text[..8], &text[8..]);
    let extended = format!(
        "{}-{}-{}{}:{}:{}",
        &date[..4],
        &date[4..6],
        &date[6..],
        &time[..3],
        &time[3..5],
        &time[5..]
    );
    Timestamp::parse_rfc3339(&extended).ok().map(SystemTime::from)
}

fn amz_format(time: SystemTime) -> String {
    let text = Timestamp::from(time).to_string();
    let seconds = text.split('.').next().expect("a split has a first part");
    seconds.chars().filter(|c| !matches!(c, '-' | ':')).chain(['Z']).collect()
}

fn string_to_sign(
    parts: &Parts,
    body: &[u8],
    authorization: &Authorization<'_>,
    amz_date: &str,
) -> Result<String, ErrorResponse> {
    let payload_hash = hex::encode(Sha256::digest(body));
    if let Some(claimed) = parts.headers.get("x-amz-content-sha256")
        && claimed.as_bytes() != payload_hash.as_bytes()
    {
        return Err(invalid(
            "The provided 'x-amz-content-sha256' header does not match what was computed.",
        ));
    }
    let request = canonical_request(parts, authorization.signed_headers, &payload_hash)
        .ok_or_else(|| invalid(MISMATCH))?;
    let request_hash = hex::encode(Sha256::digest(request));
    // Region and service have been compared with what they must be.
    let Authorization { day, region, service, .. } = authorization;
    Ok(format!("{ALGORITHM}\n{amz_date}\n{day}/{region}/{service}/{TERMINATOR}\n{request_hash}"))
}

/// Rebuilds the canonical request; `None` if a signed header is absent or not text.
fn canonical_request(parts: &Parts, signed_headers: &str, payload_hash: &str) -> Option<String> {
    let mut text = String::with_capacity(512);
    text.push_str(parts.method.as_str());
    text.push('\n');
    // Every service but S3 encodes the path that is already encoded on the wire once more.
    for (i, segment) in parts.uri.path().split('/').enumerate() {
        if i > 0 {
            text.push('/');
        }
        text.extend(percent_encode(segment.as_bytes(), RESERVED));
    }
    text.push('\n');
    canonical_query(parts.uri.query().unwrap_or_default(), &mut text);
    text.push('\n');
    for name in signed_headers.split(';') {
        canonical_header(parts, name, &mut text)?;
    }
    text.push('\n');
    text.push_str(signed_headers);
    text.push('\n');
    text.push_str(payload_hash);
    Some(text)
}

fn canonical_query(query: &str, text: &mut String) {
    let mut pairs: Vec<(String, String)> = query
        .split('&')
        .filter(|pair| !pair.is_empty())
        .map(|pair| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            (recode(name), recode(value))
        })
        .collect();
    pairs.sort();
    for (i, (name, value)) in pairs.iter().enumerate() {
        let separator = if i > 0 { "&" } else { "" };
        write!(text, "{separator}{name}={value}").expect("writing to a String cannot fail");
    }
}

fn canonical_header(parts: &Parts, name: &str, text: &mut String) -> Option<()> {
    text.push_str(name);
    text.push(':');
    let mut found = false;
    for value in parts.headers.get_all(name) {
        let value = value.to_str().ok()?;
        if found {
            text.push(',');
        }
        found = true;
        for (i, word) in value.split_ascii_whitespace().enumerate() {
            if i > 0 {
                text.push(' ');
            }
            text.push_str(word);
        }
    }
    text.push('\n');
    found.then_some(())
}

/// Decodes percent encoding and encodes again in the one canonical way.
fn recode(text: &str) -> String {
    let decoded: Cow<'_, [u8]> = percent_decode_str(text).into();
    percent_encode(&decoded, RESERVED).to_string()
}

fn invalid(message: impl Into<Cow<'static, str>>) -> ErrorResponse {
    ErrorResponse::forbidden("InvalidSignatureException", message)
}

fn incomplete(message: &'static str) -> ErrorResponse {
    ErrorResponse::forbidden("IncompleteSignatureException", message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_read_and_shown_in_the_basic_form() {
        let time = parse_amz_date("20261121T093000Z").unwrap();
        assert_eq!(amz_format(time), "20261121T093000Z");
        for text in ["", "2026-11-21T09:30", "20261321T093000Z", "20261121T0930\u{e9}Z"] {
            assert!(parse_amz_date(text).is_none(), "{text}");
        }
    }

    #[test]
    fn the_canonical_request_of_awss_example_is_rebuilt() {
        // The worked example "GET ListUsers" of AWS's documentation and its published hash.
        let request = http::Request::get("/?Version=2010-05-08&Action=ListUsers")
            .header("host", "iam.amazonaws.com")
            .header("content-type", "application/x-www-form-urlencoded; charset=utf-8")
            .header("x-amz-date", "20150830T123600Z")
            .body(())
            .unwrap();
        let (parts, ()) = request.into_parts();
        let empty = hex::encode(Sha256::digest(b""));
        let text = canonical_request(&parts, "content-type;host;x-amz-date", &empty).unwrap();
        assert_eq!(
            hex::encode(Sha256::digest(text)),
            "f536975d06c0309214f805bb90ccff089219ecd68b2577efef23edd43b7e1a59"
        );
    }

    #[test]
    fn paths_are_encoded_twice_and_queries_sorted() {
        let request = http::Request::get("/v2/email/identities/a%40x.org?b=%7e&a=+&c")
            .header("host", "h")
            .body(())
            .unwrap();
        let (parts, ()) = request.into_parts();
        let text = canonical_request(&parts, "host", "-").unwrap();
        assert!(
            text.starts_with("GET\n/v2/email/identities/a%2540x.org\na=%2B&b=~&c=\nhost:h\n"),
            "{text}"
        );
    }
}
