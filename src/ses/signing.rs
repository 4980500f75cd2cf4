//! Signature Version 4 over exactly the method, URL, headers and bytes that are sent.
//!
//! Knows nothing of the source of credentials or of the transport.

use aws_credential_types::Credentials;
use aws_sigv4::http_request::{
    SignableBody, SignableRequest, SigningError, SigningSettings, sign as sign_http,
};
use aws_sigv4::sign::v4;
use aws_smithy_runtime_api::client::identity::Identity;
use http::{HeaderMap, HeaderValue};
use sha2::{Digest as _, Sha256};

use crate::request::{Call, PART_BYTES};
use pillarbox_domain::attempt::RequestBody;
use pillarbox_domain::time::Timestamp;

/// Reason why a request cannot be signed.
#[derive(Debug, thiserror::Error)]
pub(super) enum SignError {
    /// A line break in the access key or in the session token, for example.
    #[error("the access key or the session token has characters that no header can carry")]
    Credentials,
    #[error(transparent)]
    Signing(#[from] SigningError),
    #[error("the message cannot be read")]
    Unreadable,
}

/// SHA-256 of a large body, in hexadecimal.
fn digest(body: &RequestBody) -> Result<String, SignError> {
    let (mut hasher, len) = (Sha256::new(), body.len_bytes());
    for from in (0..len).step_by(PART_BYTES) {
        let part = body.part(from, PART_BYTES.min(len - from)).ok_or(SignError::Unreadable)?;
        hasher.update(&part);
    }
    Ok(hex::encode(hasher.finalize()))
}

/// The headers that prove who makes the call: `Authorization`, `X-Amz-Date` and, with temporary
/// credentials, `X-Amz-Security-Token`. The host and all of the call's headers are signed too.
pub(super) fn sign(
    call: &Call<'_>,
    region: &str,
    credentials: &Credentials,
    now: Timestamp,
) -> Result<HeaderMap, SignError> {
    // The signing library takes it that they are fit for a header.
    let texts = [Some(credentials.access_key_id()), credentials.session_token()];
    if texts.into_iter().flatten().any(|text| HeaderValue::from_str(text).is_err()) {
        return Err(SignError::Credentials);
    }
    let identity = Identity::from(credentials.clone());
    let params = v4::SigningParams::builder()
        .identity(&identity)
        .region(region)
        .name(call.service)
        .time(now.into())
        .settings(SigningSettings::default())
        .build()
        .expect("all that signing needs is given")
        .into();
    let payload = match &call.body {
        RequestBody::Whole(bytes) => SignableBody::Bytes(bytes),
        RequestBody::Parts(_) => SignableBody::Precomputed(digest(&call.body)?),
    };
    let signable = SignableRequest::new(
        call.method.as_str(),
        call.url.as_str(),
        call.headers.iter().copied(),
        payload,
    )?;
    let (instructions, _signature) = sign_http(signable, &params)?.into_parts();
    let (headers, _query) = instructions.into_parts();
    let mut signed = HeaderMap::with_capacity(headers.len());
    for header in headers {
        let mut value =
            HeaderValue::from_str(header.value()).map_err(|_| SignError::Credentials)?;
        value.set_sensitive(header.sensitive());
        signed.insert(header.name(), value);
    }
    Ok(signed)
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use http::Method;
    use reqwest::Url;

    use super::*;
    use crate::request::JSON;

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
        sign(&call, "eu-west-1", &credentials, now).unwrap()
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
        let error = sign(&call, "eu-west-1", &credentials, now).unwrap_err();
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
            let signed = sign(&call, "eu-west-1", &credentials, Timestamp::from_unix_millis(0));
            assert!(matches!(signed, Err(SignError::Credentials)), "{key:?}");
        }
    }
}
