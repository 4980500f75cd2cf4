//! Forecast of a drain: the pending messages that it would leave unsent.

use tokio::time::Instant;

use pillarbox_domain::id::OrganisationId;

/// Messages that a drain would leave unsent, by what they wait for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DrainForecast {
    /// The provider takes no messages, or none of the organisation, or the store does not.
    pub provider: usize,
    /// The provider does not accept the sender's domain.
    pub domain: usize,
    /// The provider may have accepted the message, and its retry is due only after the drain.
    pub retry: usize,
    /// An operator has paused the organisation.
    pub paused: usize,
    /// The rate or the daily quota lets no more messages go within the drain.
    pub pace: usize,
}

impl DrainForecast {
    /// Number of messages in all.
    pub const fn messages(&self) -> usize {
        self.provider + self.domain + self.retry + self.paused + self.pace
    }
}

/// A forecast in the making.
pub(super) struct Forecaster<F> {
    pub(super) end: Instant,
    /// Returns true if the provider takes no message of an organisation.
    pub(super) is_refused: F,
    /// Recipients that may still be sent to until then.
    recipients_left: f64,
    pub(super) forecast: DrainForecast,
}

impl<F: Fn(OrganisationId) -> bool> Forecaster<F> {
    pub(super) fn new(end: Instant, recipients: f64, is_refused: F) -> Self {
        let forecast = DrainForecast::default();
        Self { end, is_refused, recipients_left: recipients, forecast }
    }

    /// Adds a message that only the rate holds back.
    pub(super) fn goes(&mut self, recipients: u32) {
        let recipients = f64::from(recipients);
        if self.recipients_left >= recipients {
            self.recipients_left -= recipients;
        } else {
            self.recipients_left = 0.0;
            self.forecast.pace += 1;
        }
    }
}
