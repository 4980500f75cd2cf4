//! Alerts: a test of their receiver.

use serde::{Deserialize, Serialize};

use crate::{Admin, AlertsTest, Refusal, Result};
use pillarbox_webhooks::TestAnswer;

/// Answer of the receiver to a test.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AlertsTested {
    /// True if the receiver accepted it.
    pub delivered: bool,
    /// Status, or what went wrong.
    pub answer: String,
    /// Beginning of the answer's body.
    pub body: String,
}

impl From<TestAnswer> for AlertsTested {
    fn from(TestAnswer { is_delivered, answer, took: _, body }: TestAnswer) -> Self {
        Self { delivered: is_delivered, answer, body }
    }
}

pub(super) async fn test(admin: &Admin, _: AlertsTest) -> Result<AlertsTested> {
    let tested = admin.facts()?.alerts.test().await;
    tested.map(AlertsTested::from).ok_or_else(|| {
        Refusal::new(
            "no receiver of alerts is configured: set alerts.url and alerts.secret_file, then send \
             SIGHUP (systemctl reload pillarbox)",
        )
    })
}
