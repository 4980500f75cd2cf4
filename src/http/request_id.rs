//! Request ids: what a client quotes and an operator finds in the log.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

use http::HeaderValue;

/// The name of the response header that carries the id.
pub const REQUEST_ID_HEADER: &str = "x-request-id";

/// An odd number without structure: multiplying by it is a bijection on 64 bits, so that
/// consecutive numbers become unlike ids that still never meet.
const SCRAMBLE: u64 = 0x9e37_79b9_7f4a_7c15;

/// One request's id, shown as 16 hexadecimal digits. Unique within the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RequestId(u64);

impl RequestId {
    fn digits(self) -> [u8; 16] {
        let mut digits = [0; 16];
        hex::encode_to_slice(self.0.to_be_bytes(), &mut digits).expect("two digits a byte");
        digits
    }

    /// The id as the value of a header.
    pub fn to_header_value(self) -> HeaderValue {
        HeaderValue::from_bytes(&self.digits()).expect("hexadecimal digits make a header value")
    }
}

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// Makes request ids from a random start, so that the ids of two runs are unlike as well.
#[derive(Debug)]
pub struct RequestIds(AtomicU64);

impl RequestIds {
    /// A generator with a random start.
    pub fn new() -> Result<Self, getrandom::Error> {
        getrandom::u64().map(|start| Self(AtomicU64::new(start)))
    }

    /// Returns a new id, from a scrambled counter.
    pub fn next(&self) -> RequestId {
        RequestId(self.0.fetch_add(1, Ordering::Relaxed).wrapping_mul(SCRAMBLE))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn ids_are_unique_and_read_the_same_in_header_and_log() {
        let ids = RequestIds::new().unwrap();
        let mut seen = HashSet::new();
        for _ in 0..10_000 {
            let id = ids.next();
            assert_eq!(id.to_header_value().to_str().unwrap(), id.to_string());
            assert!(seen.insert(id));
        }
    }
}
