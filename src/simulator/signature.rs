//! Checks AWS Signature Version 4, as AWS's front end does.
//!
//! Works from what arrived; only the HMAC chain is shared with the signer's own code. Must not
//! know the calls that are signed.
//! Source: <https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_sigv-create-signed-request.html>

use std::sync::Mutex;
use std::time::{Duration, SystemTime};

use aws_sigv4::sign::v4::{calculate_signature, generate_signing_key};
use http::header::AUTHORIZATION;
use http::request::Parts;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use super::Credentials;
use super::answer::Refusal;
use super::canonical::{canonical_request, hex};
use crate::domain::time::Timestamp;

const ALGORITHM: &str = "AWS4-HMAC-SHA256";
const TERMINATOR: &str = "aws4_request";
const MISMATCH: &str = "The request signature we calculated does not match the signature you \
    provided. Check your AWS Secret Access Key and signing method. Consult the service \
    documentation for details.";

/// A service that calls are signed for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Service {
    Ses,
    Sqs,
    Sts,
}

impl Service {
    fn name(self) -> &'static str {
        match self {
            Self::Ses => "ses",
            Self::Sqs => "sqs",
            Self::Sts => "sts",
        }
    }
}

/// Checks signatures for one pair of credentials in one region.
#[derive(Debug)]
pub(super) struct Verifier {
    credentials: Credentials,
    region: String,
    max_age: Option<Duration>,
    /// Each service's signing key of the last day that was asked for: it changes once a day.
    day_keys: Mutex<Vec<DayKey>>,
}

#[derive(Clone)]
struct DayKey {
    service: Service,
    day: String,
    key: Vec<u8>,
}

impl std::fmt::Debug for DayKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DayKey")
            .field("service", &self.service)
            .field("day", &self.day)
            .finish_non_exhaustive()
    }
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

impl Verifier {
    pub(super) fn new(credentials: Credentials, region: String, max_age: Option<Duration>) -> Self {
        Self { credentials, region, max_age, day_keys: Mutex::new(Vec::new()) }
    }

    /// Checks the signature of a call of this service.
    pub(super) fn verify(
        &self,
        service: Service,
        parts: &Parts,
        body: &[u8],
        now: SystemTime,
    ) -> Result<(), Refusal> {
        let header = parts.headers.get(AUTHORIZATION).ok_or_else(|| {
            Refusal::forbidden(
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
            return Err(Refusal::forbidden(
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
        let key = self.signing_key(service, secret_access_key, authorization.day, signed_at);
        let expected = calculate_signature(key, text.as_bytes());
        if bool::from(expected.as_bytes().ct_eq(authorization.signature.as_bytes())) {
            Ok(())
        } else {
            Err(invalid(MISMATCH))
        }
    }

    fn check_scope(
        &self,
        service: Service,
        authorization: &Authorization<'_>,
    ) -> Result<(), Refusal> {
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
    ) -> Result<(), Refusal> {
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

    fn signing_key(
        &self,
        service: Service,
        secret: &str,
        day: &str,
        signed_at: SystemTime,
    ) -> Vec<u8> {
        let mut cached = self.day_keys.lock().expect("no holder of this lock panics");
        if let Some(known) = cached.iter().find(|k| k.service == service && k.day == day) {
            return known.key.clone();
        }
        let key = generate_signing_key(secret, signed_at, &self.region, service.name());
        let key = key.as_ref().to_vec();
        cached.retain(|known| known.service != service);
        cached.push(DayKey { service, day: day.to_owned(), key: key.clone() });
        key
    }
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
fn check_signed_headers(parts: &Parts, signed_headers: &str) -> Result<(), Refusal> {
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

fn signing_time(parts: &Parts) -> Result<(&str, SystemTime), Refusal> {
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
) -> Result<String, Refusal> {
    let payload_hash = hex(&Sha256::digest(body));
    if let Some(claimed) = parts.headers.get("x-amz-content-sha256")
        && claimed.as_bytes() != payload_hash.as_bytes()
    {
        return Err(invalid(
            "The provided 'x-amz-content-sha256' header does not match what was computed.",
        ));
    }
    let request = canonical_request(parts, authorization.signed_headers, &payload_hash)
        .ok_or_else(|| invalid(MISMATCH))?;
    let request_hash = hex(&Sha256::digest(request.as_bytes()));
    // Region and service have been compared with what they must be.
    let Authorization { day, region, service, .. } = authorization;
    Ok(format!("{ALGORITHM}\n{amz_date}\n{day}/{region}/{service}/{TERMINATOR}\n{request_hash}"))
}

fn invalid(message: impl Into<std::borrow::Cow<'static, str>>) -> Refusal {
    Refusal::forbidden("InvalidSignatureException", message)
}

fn incomplete(message: &'static str) -> Refusal {
    Refusal::forbidden("IncompleteSignatureException", message)
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
}
