//! Request heads: checks that they may pass to hyper, and finds the length of their bodies.
//!
//! Stricter than hyper, which drops a Content-Length that comes with a Transfer-Encoding, and takes
//! requests without a Host or with several. If two readers can disagree on where a request ends,
//! the request is refused (RFC 9112 section 11.2).

use std::mem::MaybeUninit;

use http::{HeaderMap, Uri};

use crate::rejection::Rejection;

/// The most header fields of a request.
pub(super) const MAX_HEADER_FIELDS: usize = 64;
/// The longest request target, in bytes (RFC 9112 section 3 asks for 8000 at least).
const MAX_TARGET_BYTES: usize = 8 * 1024;
/// Bytes that a header field of HTTP/2 counts beside its name and its value (RFC 9113 section
/// 6.5.2).
const FIELD_BYTES: usize = 32;

/// Body that follows a head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Framing {
    /// A body of so many bytes; zero if there is none.
    Length(u64),
    /// A body in chunks.
    Chunked,
}

/// A complete and checked head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Head {
    /// Its length in bytes, the empty line included.
    pub(super) len: usize,
    /// The body that follows it.
    pub(super) framing: Framing,
}

/// The sizes at which a head or the body that it announces is refused.
#[derive(Debug, Clone, Copy)]
pub(super) struct HeadLimits {
    /// The longest head, in bytes.
    pub(super) max_head_bytes: usize,
    /// The largest body, in bytes; only named in answers here.
    pub(super) max_body_bytes: usize,
}

const fn bad(reason: &'static str) -> Rejection {
    Rejection::BadRequest { reason }
}

/// Checks the head at the start of `bytes`; `None` while more bytes are needed.
pub(super) fn check(bytes: &[u8], limits: HeadLimits) -> Result<Option<Head>, Rejection> {
    let mut fields = [const { MaybeUninit::uninit() }; MAX_HEADER_FIELDS];
    let mut request = httparse::Request::new(&mut []);
    let len = match request.parse_with_uninit_headers(bytes, &mut fields) {
        Ok(httparse::Status::Complete(len)) if len <= limits.max_head_bytes => len,
        Ok(httparse::Status::Partial) if bytes.len() <= limits.max_head_bytes => return Ok(None),
        Ok(_) => return Err(over_limit(bytes, limits.max_head_bytes)),
        Err(error) => return Err(malformed(error)),
    };
    if has_bare_newline(&bytes[..len]) {
        return Err(bad("the request has a line that does not end in CR LF"));
    }
    check_target(
        request.method.expect("a complete head has a method"),
        request.path.expect("a complete head has a target"),
    )?;
    let version = request.version.expect("a complete head has a version");
    let framing = check_fields(request.headers, version, limits)?;
    Ok(Some(Head { len, framing }))
}

/// Holds the head of a request over HTTP/2 to the sizes that one over HTTP/1.1 may have.
pub(super) fn check_sizes(
    target: &Uri,
    fields: &HeaderMap,
    max_head_bytes: usize,
) -> Result<(), Rejection> {
    let target = target.path_and_query().map_or(0, |target| target.as_str().len());
    if target > MAX_TARGET_BYTES {
        return Err(Rejection::UriTooLong);
    }
    let bytes = fields.iter().map(|(name, value)| name.as_str().len() + value.len() + FIELD_BYTES);
    if fields.len() > MAX_HEADER_FIELDS || target + bytes.sum::<usize>() > max_head_bytes {
        return Err(Rejection::HeadersTooLarge);
    }
    Ok(())
}

/// Returns true if a line ends in LF alone. A reader may take that for an end or not (RFC 9112
/// section 2.2), so that two in a row can disagree.
fn has_bare_newline(head: &[u8]) -> bool {
    memchr::memchr_iter(b'\n', head).any(|at| at == 0 || head[at - 1] != b'\r')
}

/// Says which part of a head made it too long.
fn over_limit(bytes: &[u8], max_head_bytes: usize) -> Rejection {
    if bytes[..max_head_bytes].contains(&b'\n') {
        Rejection::HeadersTooLarge
    } else {
        Rejection::UriTooLong
    }
}

fn malformed(error: httparse::Error) -> Rejection {
    match error {
        httparse::Error::TooManyHeaders => Rejection::HeadersTooLarge,
        httparse::Error::Version => bad("the request line must end in HTTP/1.1"),
        httparse::Error::HeaderName => bad("a header field's name is malformed"),
        httparse::Error::HeaderValue => bad("a header field's value is malformed"),
        httparse::Error::NewLine | httparse::Error::Status | httparse::Error::Token => {
            bad("the request is not valid HTTP/1.1")
        }
    }
}

/// Refuses what hyper would refuse after us, without a body to its answer.
fn check_target(method: &str, target: &str) -> Result<(), Rejection> {
    if target.len() > MAX_TARGET_BYTES {
        return Err(Rejection::UriTooLong);
    }
    let is_plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'/' | b'-' | b'_' | b'.');
    let plain = target.starts_with('/') && target.bytes().all(is_plain);
    if !plain && http::Uri::try_from(target).is_err() {
        return Err(bad("the request's target is malformed"));
    }
    if http::Method::from_bytes(method.as_bytes()).is_err() {
        return Err(bad("the request's method is malformed"));
    }
    Ok(())
}

fn check_fields(
    fields: &[httparse::Header<'_>],
    minor_version: u8,
    limits: HeadLimits,
) -> Result<Framing, Rejection> {
    let (mut host, mut length, mut encoding) = (None, None, None);
    for field in fields {
        // By length first: most fields are none of the three.
        let (slot, repeated) = match field.name.len() {
            4 if field.name.eq_ignore_ascii_case("host") => {
                (&mut host, "the request has more than one Host")
            }
            14 if field.name.eq_ignore_ascii_case("content-length") => {
                (&mut length, "the request has more than one Content-Length")
            }
            17 if field.name.eq_ignore_ascii_case("transfer-encoding") => {
                (&mut encoding, "the request has more than one Transfer-Encoding")
            }
            _ => continue,
        };
        if slot.replace(field.value).is_some() {
            return Err(bad(repeated));
        }
    }
    check_host(host, minor_version)?;
    match (length, encoding) {
        (Some(_), Some(_)) => {
            Err(bad("the request has both a Content-Length and a Transfer-Encoding"))
        }
        (None, Some(_)) if minor_version == 0 => {
            Err(bad("a Transfer-Encoding is not part of HTTP/1.0"))
        }
        (None, Some(encoding)) if encoding.eq_ignore_ascii_case(b"chunked") => Ok(Framing::Chunked),
        (None, Some(_)) => Err(bad("the only supported Transfer-Encoding is chunked")),
        (Some(length), None) => content_length(length, limits).map(Framing::Length),
        (None, None) => Ok(Framing::Length(0)),
    }
}

/// RFC 9112 section 3.2: exactly one Host, and a valid one; HTTP/1.0 may leave it out.
fn check_host(host: Option<&[u8]>, minor_version: u8) -> Result<(), Rejection> {
    match host {
        None if minor_version == 0 => Ok(()),
        None => Err(bad("the request has no Host")),
        Some(host) if is_host(host) => Ok(()),
        Some(_) => Err(bad("the request's Host is malformed")),
    }
}

/// `uri-host [ ":" port ]` (RFC 3986 sections 3.2.2 and 3.2.3); an empty host is allowed.
fn is_host(host: &[u8]) -> bool {
    let (name, rest) = match host.strip_prefix(b"[") {
        Some(literal) => {
            let Some(end) = literal.iter().position(|&b| b == b']') else { return false };
            let address = &literal[..end];
            let allowed = |b: u8| b.is_ascii_alphanumeric() || b":.-_~!$&'()*+,;=".contains(&b);
            if address.is_empty() || !address.iter().copied().all(allowed) {
                return false;
            }
            (&b""[..], &literal[end + 1..])
        }
        None => host.split_at(host.iter().position(|&b| b == b':').unwrap_or(host.len())),
    };
    let in_name = |b: u8| b.is_ascii_alphanumeric() || b"-._~!$&'()*+,;=%".contains(&b);
    let is_port = |rest: &[u8]| match rest.split_first() {
        None => true,
        Some((&colon, port)) => colon == b':' && port.iter().all(u8::is_ascii_digit),
    };
    name.iter().copied().all(in_name) && is_port(rest)
}

/// RFC 9110 section 8.6: digits alone. A list of equal lengths could be taken, and is not.
fn content_length(value: &[u8], limits: HeadLimits) -> Result<u64, Rejection> {
    if value.is_empty() || !value.iter().all(u8::is_ascii_digit) {
        return Err(bad("the Content-Length is not a number"));
    }
    // A number that is none for us is over every limit; hyper reserves the last few values.
    let text = std::str::from_utf8(value).expect("digits are ASCII");
    text.parse()
        .ok()
        .filter(|&length| length <= u64::MAX / 2)
        .ok_or(Rejection::PayloadTooLarge { limit: limits.max_body_bytes })
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: HeadLimits = HeadLimits { max_head_bytes: 1_000, max_body_bytes: 10 };

    fn framing(head: &str) -> Result<Framing, Rejection> {
        let head = head.replace('\n', "\r\n");
        let checked = check(head.as_bytes(), LIMITS)?.expect("the head is complete");
        assert_eq!(checked.len, head.len());
        Ok(checked.framing)
    }

    fn with_fields(fields: &str) -> Result<Framing, Rejection> {
        framing(&format!("POST /emails HTTP/1.1\nHost: a\n{fields}\n"))
    }

    fn is_bad<T>(result: &Result<T, Rejection>) -> bool {
        matches!(result, Err(Rejection::BadRequest { .. }))
    }

    #[test]
    fn a_body_is_framed_by_length_or_chunks() {
        assert_eq!(with_fields(""), Ok(Framing::Length(0)));
        assert_eq!(with_fields("content-LENGTH:  12 \n"), Ok(Framing::Length(12)));
        assert_eq!(with_fields("Transfer-Encoding: Chunked\n"), Ok(Framing::Chunked));
    }

    #[test]
    fn a_body_whose_end_is_in_doubt_is_refused() {
        for fields in [
            "Content-Length: 1\nTransfer-Encoding: chunked\n",
            "Transfer-Encoding: chunked\nContent-Length: 1\n",
            "Content-Length: 1\nContent-Length: 1\n",
            "Content-Length: 1, 1\n",
            "Content-Length: +1\n",
            "Content-Length: 0x1\n",
            "Content-Length: \n",
            "Transfer-Encoding: chunked\nTransfer-Encoding: chunked\n",
            "Transfer-Encoding: gzip, chunked\n",
            "Transfer-Encoding: chunked, identity\n",
            "Transfer-Encoding: xchunked\n",
            "Transfer-Encoding: \n",
            "Transfer-Encoding : chunked\n",
            "X: a\n folded\n",
        ] {
            assert!(is_bad(&with_fields(fields)), "{fields}");
        }
        assert!(is_bad(&framing("POST / HTTP/1.0\nTransfer-Encoding: chunked\n\n")));
    }

    #[test]
    fn a_length_beyond_all_numbers_is_too_large() {
        for length in ["99999999999999999999999", "18446744073709551615"] {
            assert_eq!(
                with_fields(&format!("Content-Length: {length}\n")),
                Err(Rejection::PayloadTooLarge { limit: 10 })
            );
        }
    }

    #[test]
    fn exactly_one_valid_host_is_needed() {
        for host in ["a", "a:80", "a:", "", "127.0.0.1:8025", "[::1]", "[::1]:80", "a%20b"] {
            assert!(framing(&format!("GET / HTTP/1.1\nHost: {host}\n\n")).is_ok(), "{host}");
        }
        for host in ["a b", "a@b", "a/b", "a:b", "[::1", "[]", "[::1]a", "::1", "a:80:80", "ä"] {
            assert!(is_bad(&framing(&format!("GET / HTTP/1.1\nHost: {host}\n\n"))), "{host}");
        }
        assert!(is_bad(&framing("GET / HTTP/1.1\n\n")));
        assert!(is_bad(&framing("GET / HTTP/1.1\nHost: a\nhost: a\n\n")));
        assert!(framing("GET / HTTP/1.0\n\n").is_ok());
    }

    #[test]
    fn other_versions_and_no_http_at_all_are_refused_before_they_are_complete() {
        for bytes in [&b"GET / HTTP/2.0\r\n"[..], b"PRI * HTTP/2.0\r\n", b"\x16\x03\x01", b"GET\0"]
        {
            assert!(is_bad(&check(bytes, LIMITS)), "{bytes:?}");
        }
        assert!(is_bad(&framing("GET /<> HTTP/1.1\nHost: a\n\n")));
    }

    #[test]
    fn sizes_are_limited() {
        let fields = |count| "X: y\n".repeat(count);
        assert!(with_fields(&fields(MAX_HEADER_FIELDS - 1)).is_ok());
        assert_eq!(with_fields(&fields(MAX_HEADER_FIELDS)), Err(Rejection::HeadersTooLarge));
        let long = format!("X: {}\n", "y".repeat(1_000));
        assert_eq!(with_fields(&long), Err(Rejection::HeadersTooLarge));
        let target = format!("GET /{} HTTP/1.1\nHost: a\n\n", "y".repeat(1_000));
        assert_eq!(framing(&target), Err(Rejection::UriTooLong));
        let of = |length: usize| {
            format!("{:y<1$}\r\n\r\n", "GET / HTTP/1.1\r\nHost: a\r\nX: ", length - 4)
        };
        assert!(check(of(1_000).as_bytes(), LIMITS).is_ok_and(|head| head.is_some()));
        assert_eq!(check(of(1_001).as_bytes(), LIMITS), Err(Rejection::HeadersTooLarge));
        let begun = |length: usize| format!("{:y<length$}", "GET /");
        assert_eq!(check(begun(1_000).as_bytes(), LIMITS), Ok(None));
        assert_eq!(check(begun(1_001).as_bytes(), LIMITS), Err(Rejection::UriTooLong));
        let limits = HeadLimits { max_head_bytes: 2 * MAX_TARGET_BYTES, ..LIMITS };
        let of = |length: usize| format!("GET {:y<length$} HTTP/1.1\r\nHost: a\r\n\r\n", "/");
        assert!(check(of(8_192).as_bytes(), limits).is_ok());
        assert_eq!(check(of(8_193).as_bytes(), limits), Err(Rejection::UriTooLong));
    }

    #[test]
    fn a_head_over_http_2_has_the_same_sizes() {
        let check = |target: usize, count: usize, value: usize, most: usize| {
            let target = format!("{:y<target$}", "/").parse().unwrap();
            let mut fields = HeaderMap::new();
            for _ in 0..count {
                fields.append("x-y", "z".repeat(value).parse().unwrap());
            }
            check_sizes(&target, &fields, most)
        };
        assert_eq!(check(8_192, 0, 0, 8_192), Ok(()));
        assert_eq!(check(8_193, 0, 0, 9_000), Err(Rejection::UriTooLong));
        assert_eq!(check(1, 64, 1, 9_000), Ok(()));
        assert_eq!(check(1, 65, 1, 9_000), Err(Rejection::HeadersTooLarge));
        // The target, and name, value and 32 bytes of each field.
        let all = 10 + 2 * (3 + 7 + 32);
        assert_eq!(check(10, 2, 7, all), Ok(()));
        assert_eq!(check(10, 2, 7, all - 1), Err(Rejection::HeadersTooLarge));
    }

    #[test]
    fn other_fields_and_targets_with_a_query_pass() {
        for field in ["From", "X-Custom-Field", "X-Custom-Field-18"] {
            assert_eq!(with_fields(&format!("{field}: a b\n")), Ok(Framing::Length(0)), "{field}");
        }
        assert!(framing("GET /emails?limit=7 HTTP/1.1\nHost: a\n\n").is_ok());
    }

    #[test]
    fn a_line_that_ends_in_lf_alone_is_refused() {
        for head in ["GET / HTTP/1.1\nHost: a\r\n\r\n", "GET / HTTP/1.1\r\nHost: a\n\r\n"] {
            assert!(is_bad(&check(head.as_bytes(), LIMITS)), "{head}");
        }
    }
}
