//! Receipt handles: which receive of which message, sealed so that no other text is taken.
//!
//! Must not know the queue.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use super::super::faults::nth_random;

const LENGTH: usize = 20;

/// One receive of one message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Receipt {
    pub(crate) number: u64,
    pub(crate) receives: u32,
}

/// The handle was not given by this queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct InvalidReceipt;

impl Receipt {
    pub(super) fn seal(self, key: u64) -> String {
        let mut bytes = [0; LENGTH];
        bytes[..8].copy_from_slice(&self.number.to_be_bytes());
        bytes[8..12].copy_from_slice(&self.receives.to_be_bytes());
        bytes[12..].copy_from_slice(&self.mark(key).to_be_bytes());
        STANDARD.encode(bytes)
    }

    pub(super) fn open(handle: &str, key: u64) -> Result<Self, InvalidReceipt> {
        let bytes = STANDARD.decode(handle).map_err(|_| InvalidReceipt)?;
        let bytes: [u8; LENGTH] = bytes.try_into().map_err(|_| InvalidReceipt)?;
        let (number, rest) = bytes.split_first_chunk::<8>().expect("20 bytes hold 8");
        let (receives, mark) = rest.split_first_chunk::<4>().expect("12 bytes hold 4");
        let receipt =
            Self { number: u64::from_be_bytes(*number), receives: u32::from_be_bytes(*receives) };
        if receipt.mark(key).to_be_bytes() == mark { Ok(receipt) } else { Err(InvalidReceipt) }
    }

    fn mark(self, key: u64) -> u64 {
        nth_random(nth_random(key, self.number), u64::from(self.receives))
    }
}
