//! The canonical request of AWS Signature Version 4, rebuilt from a request that arrived.
//!
//! Written from AWS's description, not with the signer's code, so that the two cannot agree on a
//! mistake. Must not know keys or what a signature is good for.

use std::fmt::Write as _;

use http::request::Parts;

/// The canonical request, or nothing where a header that was signed did not arrive as text.
pub(super) fn canonical_request(
    parts: &Parts,
    signed_headers: &str,
    payload_hash: &str,
) -> Option<String> {
    let mut text = String::with_capacity(512);
    text.push_str(parts.method.as_str());
    text.push('\n');
    // Every service but S3 encodes the path that is already encoded on the wire once more.
    for (i, segment) in parts.uri.path().split('/').enumerate() {
        if i > 0 {
            text.push('/');
        }
        encode(segment.as_bytes(), &mut text);
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
    let mut encoded = String::with_capacity(text.len());
    encode(&percent_decode(text), &mut encoded);
    encoded
}

/// Percent-decodes; what is no valid escape stays as it is.
pub(super) fn percent_decode(text: &str) -> Vec<u8> {
    let mut decoded = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let escape = (*first == b'%').then(|| after.get(..2)).flatten();
        let byte = escape
            .filter(|digits| digits.iter().all(u8::is_ascii_hexdigit))
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .and_then(|digits| u8::from_str_radix(digits, 16).ok());
        decoded.push(byte.unwrap_or(*first));
        rest = if byte.is_some() { &after[2..] } else { after };
    }
    decoded
}

/// Percent-encodes all but RFC 3986's unreserved characters.
fn encode(bytes: &[u8], text: &mut String) {
    for &byte in bytes {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~') {
            text.push(char::from(byte));
        } else {
            write!(text, "%{byte:02X}").expect("writing to a String cannot fail");
        }
    }
}

/// Lower-case hexadecimal.
pub(super) fn hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut text = String::with_capacity(bytes.len() * 2);
    for byte in bytes {
        text.push(char::from(DIGITS[usize::from(byte >> 4)]));
        text.push(char::from(DIGITS[usize::from(byte & 15)]));
    }
    text
}

#[cfg(test)]
mod tests {
    use sha2::{Digest, Sha256};

    use super::*;

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
        let empty = hex(&Sha256::digest(b""));
        let text = canonical_request(&parts, "content-type;host;x-amz-date", &empty).unwrap();
        assert_eq!(
            hex(&Sha256::digest(text.as_bytes())),
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
