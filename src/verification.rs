//! Verification: asks SES about sender domains that are pending until it says that they may be
//! sent from.

use std::time::Duration;

use tracing::{debug, info};

use crate::domain::mailbox::DomainName;
use crate::domain::organisation::DomainState;
use crate::ses::SesClient;
use crate::ses::identity::Verification;
use crate::store::{Change, Store};

/// How often pending domains are asked about. DNS takes minutes to hours; SES's other calls are
/// limited to one a second.
const INTERVAL: Duration = Duration::from_mins(1);

/// Checks for as long as it is polled.
pub async fn run(store: Store, ses: SesClient) {
    loop {
        for domain in store.domains() {
            if domain.state != DomainState::Pending {
                continue;
            }
            let Ok(name) = DomainName::parse(&domain.name) else { continue };
            match ses.identity(&name).await {
                Ok(Some(identity)) if identity.verification == Verification::Verified => {
                    let (from, to) = (DomainState::Pending, DomainState::Verified);
                    let change = store.change_domain(domain.organisation, name, from, to).await;
                    if change == Ok(Change::Made) {
                        info!(domain = domain.name, "verified: it may be sent from now on");
                    }
                }
                Ok(_) => debug!(domain = domain.name, "not verified yet"),
                Err(error) => debug!(domain = domain.name, %error, "SES could not be asked"),
            }
        }
        tokio::time::sleep(INTERVAL).await;
    }
}
