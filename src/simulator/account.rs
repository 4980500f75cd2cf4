//! The SES account: its limits on sending and its suppression list.
//!
//! Pure arithmetic over instants that are passed in. Must not know messages or HTTP.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::address::Address;
use super::protocol::{ErrorResponse, read_json, required};
use pillarbox_domain::time::Timestamp;

/// SES: the quota counts recipients over a rolling 24 hours.
const QUOTA_WINDOW: Duration = Duration::from_hours(24);
/// The window rolls in steps, which bounds the number of counters.
const QUOTA_STEP: Duration = Duration::from_mins(1);

/// A token bucket that holds one second's tokens.
#[derive(Debug)]
pub(super) struct TokenBucket {
    rate: f64,
    tokens: f64,
    at: Instant,
}

impl TokenBucket {
    pub(super) fn new(rate: f64, now: Instant) -> Self {
        Self { rate, tokens: rate.max(1.0), at: now }
    }

    /// Takes `count` tokens if at least one is there. The bucket may go into debt, since a
    /// message with more recipients than a second's rate could otherwise never be sent.
    pub(super) fn take(&mut self, count: f64, now: Instant) -> bool {
        let passed = now.saturating_duration_since(self.at).as_secs_f64();
        self.tokens = (self.tokens + passed * self.rate).min(self.rate.max(1.0));
        self.at = now;
        let enough = self.tokens >= 1.0;
        if enough {
            self.tokens -= count;
        }
        enough
    }
}

/// The limits on recipients per second and per 24 hours, with their use.
#[derive(Debug)]
pub(super) struct SendingLimits {
    send_rate: Option<f64>,
    bucket: Option<TokenBucket>,
    daily_quota: Option<u64>,
    sent: VecDeque<(Instant, u64)>,
    sent_in_window: u64,
}

impl SendingLimits {
    pub(super) fn new(send_rate: Option<f64>, daily_quota: Option<u64>, now: Instant) -> Self {
        let mut limits = Self {
            send_rate: None,
            bucket: None,
            daily_quota,
            sent: VecDeque::new(),
            sent_in_window: 0,
        };
        limits.set_send_rate(send_rate, now);
        limits
    }

    pub(super) fn set_send_rate(&mut self, send_rate: Option<f64>, now: Instant) {
        self.send_rate = send_rate;
        self.bucket = send_rate.map(|rate| TokenBucket::new(rate, now));
    }

    pub(super) fn set_daily_quota(&mut self, daily_quota: Option<u64>) {
        self.daily_quota = daily_quota;
    }

    pub(super) fn send_rate(&self) -> Option<f64> {
        self.send_rate
    }

    pub(super) fn daily_quota(&self) -> Option<u64> {
        self.daily_quota
    }

    /// Recipients accepted within the last 24 hours.
    pub(super) fn sent_last_24_hours(&mut self, now: Instant) -> u64 {
        while let Some((at, count)) = self.sent.front()
            && now.saturating_duration_since(*at) >= QUOTA_WINDOW
        {
            self.sent_in_window -= count;
            self.sent.pop_front();
        }
        self.sent_in_window
    }

    /// Counts a message with this number of recipients, or returns the limit that it exceeds.
    pub(super) fn admit(&mut self, recipients: usize, now: Instant) -> Result<(), ErrorResponse> {
        let count = recipients as u64;
        if let Some(quota) = self.daily_quota
            && self.sent_last_24_hours(now).saturating_add(count) > quota
        {
            return Err(ErrorResponse::limit_exceeded("Daily message quota exceeded."));
        }
        let tokens = f64::from(u32::try_from(recipients).unwrap_or(u32::MAX));
        if let Some(bucket) = &mut self.bucket
            && !bucket.take(tokens, now)
        {
            return Err(ErrorResponse::too_many_requests("Maximum sending rate exceeded."));
        }
        self.count(count, now);
        Ok(())
    }

    fn count(&mut self, recipients: u64, now: Instant) {
        self.sent_last_24_hours(now);
        self.sent_in_window += recipients;
        match self.sent.back_mut() {
            Some((at, count)) if now.saturating_duration_since(*at) < QUOTA_STEP => {
                *count += recipients;
            }
            _ => self.sent.push_back((now, recipients)),
        }
    }
}

/// SES v2 API reference, `SuppressionListReason`.
const REASONS: [&str; 2] = ["BOUNCE", "COMPLAINT"];

/// An entry of the suppression list.
#[derive(Debug)]
struct SuppressedAddress {
    reason: String,
    since: Timestamp,
}

/// The account-level suppression list, by address in lower case.
#[derive(Debug, Default)]
pub(super) struct SuppressionList(BTreeMap<String, SuppressedAddress>);

impl SuppressionList {
    pub(super) fn contains(&self, address: &str) -> bool {
        !self.0.is_empty() && self.0.contains_key(&address.to_ascii_lowercase())
    }

    /// Puts an address on the list, in place of an earlier entry.
    pub(super) fn add(&mut self, address: &str, reason: String, now: Timestamp) {
        self.0.insert(address.to_ascii_lowercase(), SuppressedAddress { reason, since: now });
    }

    /// `PutSuppressedDestination`.
    pub(super) fn put(&mut self, body: &[u8], now: Timestamp) -> Result<Value, ErrorResponse> {
        #[derive(Deserialize)]
        #[serde(rename_all = "PascalCase")]
        struct Wire {
            email_address: Option<String>,
            reason: Option<String>,
        }
        let wire: Wire = read_json(body)?;
        let address = required(wire.email_address, "emailAddress")?;
        let reason = required(wire.reason, "reason")?;
        Address::parse(&address)?;
        if !REASONS.contains(&reason.as_str()) {
            let rule = "Member must satisfy enum value set: [BOUNCE, COMPLAINT]";
            return Err(ErrorResponse::constraint("reason", rule));
        }
        self.add(&address, reason, now);
        Ok(json!({}))
    }

    /// `GetSuppressedDestination`.
    pub(super) fn get(&self, address: &str) -> Result<Value, ErrorResponse> {
        let found = self.0.get_key_value(&address.to_ascii_lowercase());
        let (address, entry) = found.ok_or_else(|| not_suppressed(address))?;
        Ok(json!({ "SuppressedDestination": {
            "EmailAddress": address,
            "Reason": entry.reason,
            "LastUpdateTime": entry.since.unix_millis() / 1_000,
        } }))
    }

    /// `DeleteSuppressedDestination`.
    pub(super) fn delete(&mut self, address: &str) -> Result<Value, ErrorResponse> {
        let removed = self.0.remove(&address.to_ascii_lowercase());
        removed.map(|_| json!({})).ok_or_else(|| not_suppressed(address))
    }
}

fn not_suppressed(address: &str) -> ErrorResponse {
    ErrorResponse::not_found(format!(
        "Email address {address} does not exist on your suppression list."
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_counts_recipients_and_lets_a_big_message_into_debt() {
        let start = Instant::now();
        let mut limits = SendingLimits::new(Some(14.0), None, start);
        limits.admit(50, start).unwrap();
        let after = |s| start + Duration::from_secs_f64(s);
        assert_eq!(
            limits.admit(1, after(2.5)).unwrap_err().name,
            "TooManyRequestsException",
            "36 recipients of debt take 2.57 s, and one token more"
        );
        limits.admit(1, after(2.7)).unwrap();
        assert!(limits.admit(1, after(2.7)).is_err());
    }

    #[test]
    fn the_quota_rolls_over_24_hours() {
        let start = Instant::now();
        let mut limits = SendingLimits::new(None, Some(10), start);
        limits.admit(6, start).unwrap();
        assert_eq!(limits.admit(5, start).unwrap_err().name, "LimitExceededException");
        limits.admit(4, start + Duration::from_hours(23)).unwrap();
        assert!(limits.admit(1, start + Duration::from_hours(23)).is_err());
        limits.admit(6, start + Duration::from_hours(24)).unwrap();
        assert_eq!(limits.sent_last_24_hours(start + Duration::from_hours(24)), 10);
        assert_eq!(limits.sent_last_24_hours(start + Duration::from_hours(48)), 0);
    }
}
