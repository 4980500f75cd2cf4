//! The suppression list of the SES account, as far as operators clear it through us.

use crate::admin::Admin;
use crate::admin::wire::{AtSes, Refusal, Response};
use crate::domain::suppression::SuppressedAddress;
use crate::ses::account::Removal;

impl Admin {
    pub(in crate::admin) async fn clear_at_ses(&self, address: &str) -> Result<Response, Refusal> {
        let address = SuppressedAddress::parse(address).map_err(|rule| {
            Refusal::new(format!("{address:?} is not an address: {rule}. Nothing was changed"))
        })?;
        let ses = self.ses("start the service and clear the address then")?;
        let outcome = match ses.unsuppress(&address).await {
            Ok(Removal::Removed) => AtSes::Cleared,
            Ok(Removal::NotThere) => AtSes::NotThere,
            Err(error) => AtSes::Failed { message: error.to_string() },
        };
        Ok(Response::SuppressionClearedAtSes(outcome))
    }
}
