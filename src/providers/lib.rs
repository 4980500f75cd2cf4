//! Providers that take the calls for pending messages. SES takes those of production; those of test
//! organisations are answered inside the process.
//!
//! The choice is made here alone, from the kind that each pending message carries. Knows neither
//! the queue nor the rate.

#![cfg_attr(not(test), warn(unused_crate_dependencies))]

use std::sync::Arc;

use pillarbox_config::Capture;
use pillarbox_domain::attempt::{Outcome, Provider, RequestBody};
use pillarbox_domain::envelope::Envelope;
use pillarbox_domain::organisation::OrganisationKind;
use pillarbox_ses::SesClient;

pub use captured::CapturedByOrganisation;
pub use simulated::SimulatedProvider;

mod captured;
mod simulated;

/// SES, and the simulator of test organisations. Clones are the same ones.
#[derive(Debug, Clone)]
pub struct Providers {
    ses: SesClient,
    simulated: Arc<SimulatedProvider>,
}

impl Providers {
    /// This client of SES, and a simulator that keeps messages for operators or does not.
    pub fn new(ses: SesClient, capture: Capture) -> Self {
        Self { ses, simulated: Arc::new(SimulatedProvider::new(capture)) }
    }

    /// SES, for everything but messages.
    pub fn ses(&self) -> &SesClient {
        &self.ses
    }

    /// The simulator of test organisations.
    pub fn simulated(&self) -> &Arc<SimulatedProvider> {
        &self.simulated
    }
}

impl Provider for Providers {
    async fn send(
        &self,
        kind: OrganisationKind,
        envelope: &Envelope<'_>,
        request: RequestBody,
    ) -> Outcome {
        match kind {
            OrganisationKind::Production => self.ses.send(envelope, request).await,
            OrganisationKind::Test => self.simulated.send(envelope, request).await,
        }
    }
}
