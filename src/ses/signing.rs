//! Signature Version 4 over exactly the method, URL, headers and bytes that are sent.
//!
//! Knows nothing of the source of credentials or of the transport. The canonical request is written
//! here, because calls have few headers, and none has a query or an empty part in its path.
//! aws-sigv4 makes the key and the signature.

use std::fmt::{self, Write as _};
use std::sync::{Arc, Mutex, PoisonError};

use aws_credential_types::Credentials;
use aws_sigv4::sign::v4::{calculate_signature, generate_signing_key};
use http::header::AUTHORIZATION;
use http::{HeaderMap, HeaderValue};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use reqwest::Url;
use sha2::{Digest as _, Sha256};

use crate::request::{Call, PART_BYTES};
use pillarbox_domain::attempt::RequestBody;
use pillarbox_domain::time::Timestamp;

const ALGORITHM: &str = "AWS4-HMAC-SHA256";
const DATE: &str = "x-amz-date";
const TOKEN: &str = "x-amz-security-token";
/// All that is encoded in a path, once more if it is encoded already (IAM user guide, "Create a signed
/// AWS API request").
const IN_PATH: &AsciiSet =
    &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~').remove(b'/');

/// Reason why a request cannot be signed.
#[derive(Debug, thiserror::Error)]
pub(super) enum SignError {
    /// A line break in the access key or in the session token, for example.
    #[error("the access key or the session token has characters that no header can carry")]
    Credentials,
    #[error("the message cannot be read")]
    Unreadable,
}

/// Signs calls, and keeps the last key, which is the same all day.
#[derive(Default)]
pub(super) struct Signer {
    last_key: Mutex<Option<Arc<SigningKey>>>,
}

impl fmt::Debug for Signer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Signer").finish_non_exhaustive()
    }
}

struct SigningKey {
    credentials: Credentials,
    /// Day, region and service.
    scope: String,
    key: Box<[u8]>,
}

impl Signer {
    /// The headers that prove who makes the call: `Authorization`, `X-Amz-Date` and, with temporary
    /// credentials, `X-Amz-Security-Token`. The host and all of the call's headers are signed too.
    pub(super) fn sign(
        &self,
        call: &Call<'_>,
        region: &str,
        credentials: &Credentials,
        now: Timestamp,
    ) -> Result<HeaderMap, SignError> {
        let (time, host) = (basic_format(now), host(call.url));
        let mut headers = call.headers.to_vec();
        headers.extend([("host", &*host), (DATE, &*time)]);
        headers.extend(credentials.session_token().map(|token| (TOKEN, token)));
        headers.sort_unstable();
        let names = headers.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(";");
        let path = utf8_percent_encode(call.url.path(), IN_PATH);
        // The empty line is the query.
        let mut canonical = format!("{}\n{path}\n\n", call.method);
        for (name, value) in headers {
            let _ = writeln!(canonical, "{name}:{}", value.trim());
        }
        let _ = write!(canonical, "\n{names}\n{}", digest(&call.body)?);
        let scope = format!("{}/{region}/{}/aws4_request", &time[.."YYYYMMDD".len()], call.service);
        let canonical = hex::encode(Sha256::digest(canonical));
        let to_sign = format!("{ALGORITHM}\n{time}\n{scope}\n{canonical}");
        let key = self.key(credentials, &scope, || {
            generate_signing_key(credentials.secret_access_key(), now.into(), region, call.service)
        });
        let signature = calculate_signature(&key.key, to_sign.as_bytes());
        let key_id = credentials.access_key_id();
        let authorization = format!(
            "{ALGORITHM} Credential={key_id}/{scope}, SignedHeaders={names}, Signature={signature}"
        );
        let secret = |text: &str| {
            let mut value = HeaderValue::from_str(text).map_err(|_| SignError::Credentials)?;
            value.set_sensitive(true);
            Ok(value)
        };
        let mut signed = HeaderMap::with_capacity(3);
        signed.insert(AUTHORIZATION, secret(&authorization)?);
        signed.insert(DATE, HeaderValue::try_from(time).expect("digits and two letters"));
        if let Some(token) = credentials.session_token() {
            signed.insert(TOKEN, secret(token)?);
        }
        Ok(signed)
    }

    fn key<K: AsRef<[u8]>>(
        &self,
        credentials: &Credentials,
        scope: &str,
        generate: impl FnOnce() -> K,
    ) -> Arc<SigningKey> {
        let mut last = self.last_key.lock().unwrap_or_else(PoisonError::into_inner);
        let known =
            last.as_ref().filter(|key| key.scope == scope && key.credentials == *credentials);
        if let Some(known) = known {
            return Arc::clone(known);
        }
        let (credentials, key) = (credentials.clone(), generate().as_ref().into());
        Arc::clone(last.insert(Arc::new(SigningKey { credentials, scope: scope.to_owned(), key })))
    }
}

/// A time as AWS writes it, such as `20261121T093000Z`.
fn basic_format(time: Timestamp) -> String {
    let text = time.to_string();
    let whole = text.split(['.', 'Z']).next().unwrap_or_default();
    whole.chars().filter(|c| !matches!(c, '-' | ':')).chain(['Z']).collect()
}

/// The host as the client's request has it: with its port if that is not the scheme's own.
fn host(url: &Url) -> String {
    let host = url.host_str().unwrap_or_default();
    url.port().map_or_else(|| host.to_owned(), |port| format!("{host}:{port}"))
}

/// SHA-256 of a body, in hexadecimal.
fn digest(body: &RequestBody) -> Result<String, SignError> {
    let (mut hasher, len) = (Sha256::new(), body.len_bytes());
    for from in (0..len).step_by(PART_BYTES) {
        let part = body.part(from, PART_BYTES.min(len - from)).ok_or(SignError::Unreadable)?;
        hasher.update(&part);
    }
    Ok(hex::encode(hasher.finalize()))
}

#[cfg(test)]
mod tests {
    use aws_sigv4::http_request::{
        SignableBody, SignableRequest, SigningSettings, sign as sign_http,
    };
    use aws_sigv4::sign::v4;
    use aws_smithy_runtime_api::client::identity::Identity;
    use bytes::Bytes;
    use http::Method;
    use proptest::collection::vec;
    use proptest::option;
    use proptest::prelude::*;

    use super::*;
    use crate::request::JSON;
    use pillarbox_domain::attempt::RequestParts;

    const BODY: &str = r#"{"FromEmailAddress":"Ann <ann@example.com>","Subject":"Grüße"}"#;
    const AWS: &str = "https://email.eu-west-1.amazonaws.com/v2/email";

    fn signed(token: Option<&str>, method: Method, url: &str, body: &'static str) -> HeaderMap {
        let credentials = Credentials::new(
            "AKIDEXAMPLE",
            "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY",
            token.map(str::to_owned),
            None,
            "test",
        );
        let url = Url::parse(url).unwrap();
        let headers: &[_] = if body.is_empty() { &[] } else { &[JSON] };
        let call = Call {
            service: "ses",
            method,
            url: &url,
            headers,
            body: Bytes::from_static(body.as_bytes()).into(),
        };
        let now = Timestamp::parse_rfc3339("2026-11-21T09:30:00Z").unwrap();
        Signer::default().sign(&call, "eu-west-1", &credentials, now).unwrap()
    }

    fn authorization(signed_headers: &str, signature: &str) -> String {
        format!(
            "AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/20261121/eu-west-1/ses/aws4_request, \
             SignedHeaders={signed_headers}, Signature={signature}"
        )
    }

    // The reference signatures are those of botocore 1.43 (`SigV4Auth`) for the same input.

    #[test]
    fn a_post_is_signed_as_botocore_signs_it() {
        let headers = signed(None, Method::POST, &format!("{AWS}/outbound-emails"), BODY);
        let signature = "56f06d785b0c6202a011dd076c101aca6f6ac2a6013fc43bb77427c0ab3d4f3e";
        assert_eq!(
            headers["authorization"],
            authorization("content-type;host;x-amz-date", signature)
        );
        assert_eq!(headers["x-amz-date"], "20261121T093000Z");
        assert_eq!(headers.len(), 2);
    }

    #[test]
    fn a_session_token_and_a_port_are_signed_as_botocore_signs_them() {
        let url = "http://127.0.0.1:9100/v2/email/outbound-emails";
        let headers = signed(Some("AQoEXAMPLE/token=="), Method::POST, url, BODY);
        let names = "content-type;host;x-amz-date;x-amz-security-token";
        let signature = "0c357c0622d65f6f52f0c0509c77f60ac17e1aad28454fc15080b1d579f1c0f0";
        assert_eq!(headers["authorization"], authorization(names, signature));
        assert_eq!(headers["x-amz-security-token"], "AQoEXAMPLE/token==");
        assert!(headers["x-amz-security-token"].is_sensitive());
    }

    #[test]
    fn a_get_without_a_body_is_signed_as_botocore_signs_it() {
        let headers = signed(None, Method::GET, &format!("{AWS}/identities/example.com"), "");
        let signature = "22ce5f452ecb4242ca2e8df53a3fd73d21df7ba7b27ff62721286fc3c06c58a9";
        assert_eq!(headers["authorization"], authorization("host;x-amz-date", signature));
    }

    #[test]
    fn a_body_in_parts_is_signed_as_the_same_one_in_memory() {
        struct Parts(Bytes);
        impl RequestParts for Parts {
            fn len_bytes(&self) -> usize {
                self.0.len()
            }

            fn part(&self, from: usize, len: usize) -> Option<Bytes> {
                (from + len <= self.0.len()).then(|| self.0.slice(from..from + len))
            }
        }
        let url = Url::parse(AWS).unwrap();
        let credentials = Credentials::new("AKIDEXAMPLE", "secret", None, None, "test");
        let signed = |body: RequestBody| {
            let (service, method, headers) = ("ses", Method::POST, &[JSON][..]);
            let call = Call { service, method, url: &url, headers, body };
            let now = Timestamp::from_unix_millis(0);
            Signer::default().sign(&call, "eu-west-1", &credentials, now).unwrap()
        };
        let body: Bytes = (0..=255).cycle().take(2 * PART_BYTES + 100).collect();
        let whole = signed(body.clone().into());
        assert_eq!(signed(RequestBody::Parts(Arc::new(Parts(body)))), whole);
    }

    #[test]
    fn a_token_that_no_header_can_hold_is_an_error() {
        let token = Some("token\n".to_owned());
        let credentials = Credentials::new("AKIDEXAMPLE", "secret", token, None, "test");
        let url = Url::parse(AWS).unwrap();
        let call = Call {
            service: "ses",
            method: Method::GET,
            url: &url,
            headers: &[],
            body: Bytes::new().into(),
        };
        let now = Timestamp::from_unix_millis(0);
        let error = Signer::default().sign(&call, "eu-west-1", &credentials, now).unwrap_err();
        assert!(!error.to_string().contains("token\n"), "{error}");
    }

    #[test]
    fn credentials_that_no_header_can_carry_are_an_error() {
        let url = Url::parse(AWS).unwrap();
        let call = Call {
            service: "ses",
            method: Method::GET,
            url: &url,
            headers: &[],
            body: Bytes::new().into(),
        };
        for (key, token) in [("AKID\n", None), ("AKID", Some("a\r\nb: c")), ("AKID\0", None)] {
            let token = token.map(str::to_owned);
            let credentials = Credentials::new(key, "secret", token, None, "test");
            let now = Timestamp::from_unix_millis(0);
            let signed = Signer::default().sign(&call, "eu-west-1", &credentials, now);
            assert!(matches!(signed, Err(SignError::Credentials)), "{key:?}");
        }
    }

    /// What the signing library makes of a whole call.
    fn signed_by_the_library(
        call: &Call<'_>,
        credentials: &Credentials,
        now: Timestamp,
    ) -> HeaderMap {
        let identity = Identity::from(credentials.clone());
        let params = v4::SigningParams::builder()
            .identity(&identity)
            .region("eu-west-1")
            .name(call.service)
            .time(now.into())
            .settings(SigningSettings::default())
            .build()
            .unwrap()
            .into();
        let body = call.body.whole().unwrap();
        let headers = call.headers.iter().copied();
        let (method, url) = (call.method.as_str(), call.url.as_str());
        let request =
            SignableRequest::new(method, url, headers, SignableBody::Bytes(&body)).unwrap();
        let (instructions, _) = sign_http(request, &params).unwrap().into_parts();
        let (headers, _) = instructions.into_parts();
        let text = |value: &str| HeaderValue::from_str(value).unwrap();
        let named = |name: &'static str| http::HeaderName::from_static(name);
        headers.iter().map(|one| (named(one.name()), text(one.value()))).collect()
    }

    proptest! {
        #[test]
        fn a_call_is_signed_as_the_library_signs_it(
            calls in vec(
                (
                    ("[a-z]{1,8}", 1_u16.., vec("([a-zA-Z0-9._~-]|%40|%2F|%25|:|@|,|\\+){1,9}", 0..4)),
                    (0..3_u64, 0..86_400_000_u64, 0..2_usize),
                    (0..2_usize, option::weighted(0.2, "[!-~]([ -~]{0,30}[!-~])?")),
                    vec(any::<u8>(), 0..200),
                ),
                1..8,
            ),
        ) {
            // The same one signs all of them, so often with the key of the last call.
            let signer = Signer::default();
            for ((host, port, path), (day, in_day, service), (secret, token), body) in calls {
                let url = format!("http://{host}.test:{port}/{}", path.join("/"));
                let url = Url::parse(&url).unwrap();
                let secret = ["one", "two"][secret];
                let credentials = Credentials::new("AKIDEXAMPLE", secret, token, None, "test");
                let call = Call {
                    service: ["ses", "sqs"][service],
                    method: Method::POST,
                    url: &url,
                    headers: &[("x-amz-target", "AmazonSQS.ReceiveMessage"), JSON],
                    body: Bytes::from(body).into(),
                };
                let now = Timestamp::from_unix_millis((20_000 + day) * 86_400_000 + in_day);
                let own = signer.sign(&call, "eu-west-1", &credentials, now).unwrap();
                prop_assert_eq!(own, signed_by_the_library(&call, &credentials, now));
            }
        }
    }
}
