//! Validity of a certificate: from when until when it is good, as it says itself (RFC 5280 section
//! 4.1.2.5).
//!
//! Reads no more of a certificate than that, and does not judge whether it is good: clients do.

use std::time::Duration;

use pillarbox_domain::time::Timestamp;

/// The longest time before its end at which a certificate is to be renewed.
const LONGEST_NOTICE: Duration = Duration::from_hours(14 * 24);
/// And what part of its life that is, at most: there are certificates for six days.
const NOTICE_PART: u64 = 8;

/// DER's tags (X.690 section 8.1.2) of what is read over or into.
const INTEGER: u8 = 0x02;
const SEQUENCE: u8 = 0x30;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;
const VERSION: u8 = 0xa0;

/// A certificate's own validity.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Validity {
    pub(super) from: Timestamp,
    pub(super) until: Timestamp,
}

/// Version of a certificate, as it says itself (RFC 5280 section 4.1.2.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Version {
    /// Version 3, which alone names hosts in the form that clients check.
    Three,
    /// Version 1 or 2.
    Old,
}

impl Version {
    /// Reads it out of a certificate.
    pub(super) fn of(certificate: &[u8]) -> Option<Self> {
        let mut certificate = Der(Der(certificate).take(SEQUENCE)?);
        let mut signed = Der(certificate.take(SEQUENCE)?);
        let version = signed.take(VERSION).and_then(|version| Der(version).take(INTEGER));
        Some(if version == Some(&[2]) { Self::Three } else { Self::Old })
    }
}

impl Validity {
    /// Reads it from a certificate; `None` if the bytes are not one.
    pub(super) fn of(certificate: &[u8]) -> Option<Self> {
        let mut certificate = Der(Der(certificate).take(SEQUENCE)?);
        let mut signed = Der(certificate.take(SEQUENCE)?);
        // A version need not be said; then the serial number comes first, the signature's
        // algorithm, and the issuer.
        let _ = signed.take(VERSION);
        signed.take(INTEGER)?;
        signed.take(SEQUENCE)?;
        signed.take(SEQUENCE)?;
        let mut validity = Der(signed.take(SEQUENCE)?);
        Some(Self { from: validity.time()?, until: validity.time()? })
    }

    /// Returns the latest time to renew it.
    pub(super) fn renew_by(self) -> Timestamp {
        let lifetime = self.until.unix_millis().saturating_sub(self.from.unix_millis());
        self.until.minus(LONGEST_NOTICE.min(Duration::from_millis(lifetime / NOTICE_PART)))
    }
}

/// Elements that follow one another.
struct Der<'a>(&'a [u8]);

impl<'a> Der<'a> {
    /// The contents of the next element, if it has this tag; else it stays the next.
    fn take(&mut self, tag: u8) -> Option<&'a [u8]> {
        let (&[found, first], rest) = self.0.split_first_chunk::<2>()?;
        if found != tag {
            return None;
        }
        let (length, rest) = match first {
            0..=0x7f => (usize::from(first), rest),
            0x81..=0x84 => {
                let (length, rest) = rest.split_at_checked(usize::from(first & 0x7f))?;
                (length.iter().fold(0, |length, byte| length << 8 | usize::from(*byte)), rest)
            }
            _ => return None,
        };
        let (contents, rest) = rest.split_at_checked(length)?;
        self.0 = rest;
        Some(contents)
    }

    /// The next element as a time: to the second, and in UTC.
    fn time(&mut self) -> Option<Timestamp> {
        let digits = match self.take(UTC_TIME) {
            Some(short) => {
                let short = str::from_utf8(short).ok()?;
                let century = if short >= "50" { "19" } else { "20" };
                format!("{century}{short}")
            }
            None => str::from_utf8(self.take(GENERALIZED_TIME)?).ok()?.to_owned(),
        };
        let part = |from, to| digits.get(from..to);
        let (year, month, day) = (part(0, 4)?, part(4, 6)?, part(6, 8)?);
        let (hour, minute, rest) = (part(8, 10)?, part(10, 12)?, digits.get(12..)?);
        Timestamp::parse_rfc3339(&format!("{year}-{month}-{day}T{hour}:{minute}:{rest}")).ok()
    }
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, KeyPair, date_time_ymd};

    use super::*;

    fn certificate(from: (i32, u8, u8), until: (i32, u8, u8)) -> Vec<u8> {
        let mut params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        params.not_before = date_time_ymd(from.0, from.1, from.2);
        params.not_after = date_time_ymd(until.0, until.1, until.2);
        params.self_signed(&KeyPair::generate().unwrap()).unwrap().der().to_vec()
    }

    #[test]
    fn both_forms_of_time_are_read() {
        for (from, until, expected) in [
            ((2026, 11, 21), (2027, 2, 19), ["2026-11-21", "2027-02-19"]),
            ((1999, 1, 1), (2049, 12, 31), ["1999-01-01", "2049-12-31"]),
            ((2050, 1, 1), (4096, 1, 1), ["2050-01-01", "4096-01-01"]),
        ] {
            let validity = Validity::of(&certificate(from, until)).unwrap();
            let [from, until] = expected.map(|day| format!("{day}T00:00:00.000Z"));
            assert_eq!((validity.from.to_string(), validity.until.to_string()), (from, until));
        }
    }

    #[test]
    fn what_is_cut_short_or_bent_is_not_read_and_harms_nobody() {
        let whole = certificate((2026, 1, 1), (2027, 1, 1));
        for length in 0..whole.len() {
            assert_eq!(Validity::of(&whole[..length]), None, "{length}");
        }
        for at in 0..whole.len() {
            for byte in [0x00, 0x7f, 0x80, 0x84, 0xff] {
                let mut bent = whole.clone();
                bent[at] = byte;
                let _ = Validity::of(&bent);
            }
        }
    }
}
