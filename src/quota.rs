//! The account's quota: asks SES how fast and how much the account may send, and paces sending
//! accordingly.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tracing::{debug, info, warn};

use crate::config::MaxRate;
use crate::dispatch::pace::Rate;
use crate::dispatch::{DailyQuota, Dispatcher};
use crate::ses::SesClient;
use crate::ses::account::{Account, Sending};

/// The rate where SES does not tell one and none is configured: what a new account outside of the
/// sandbox is given (SES Developer Guide, "Managing your Amazon SES sending limits").
pub const SAFE_RATE: f64 = 14.0;

/// How often the account is asked about.
const INTERVAL: Duration = Duration::from_mins(2);
/// How often where the last answer was none.
const INTERVAL_AFTER_FAILURE: Duration = Duration::from_secs(30);

/// The rate before SES was asked.
pub fn initial_rate(max_rate: MaxRate) -> Rate {
    Rate::PerSecond(match max_rate {
        MaxRate::Auto => SAFE_RATE,
        MaxRate::PerSecond(rate) => rate,
    })
}

/// Refreshes the rate for as long as it is polled.
pub async fn run(
    ses: SesClient,
    dispatcher: Arc<Dispatcher<SesClient>>,
    mut max_rate: watch::Receiver<MaxRate>,
) {
    let mut last = None;
    loop {
        let pause = match ses.account().await {
            Ok(account) => {
                if last != Some(account.max_send_rate) {
                    info!(recipients_per_second = account.max_send_rate, "the account's send rate");
                    last = Some(account.max_send_rate);
                }
                apply(&dispatcher, &account, *max_rate.borrow_and_update());
                INTERVAL
            }
            Err(error) => {
                // An endpoint without the call must not stop sending: the rate stays.
                debug!(%error, "SES does not tell the account's quota; the rate stays as it is");
                INTERVAL_AFTER_FAILURE
            }
        };
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            // The rate and the quota may be others than before the outage.
            () = dispatcher.returned() => {}
            Ok(()) = max_rate.changed() => {
                // Holds at once, also where SES cannot be asked.
                dispatcher.set_rate(initial_rate(*max_rate.borrow_and_update()));
            }
        }
    }
}

fn apply(dispatcher: &Dispatcher<SesClient>, account: &Account, max_rate: MaxRate) {
    let rate = match max_rate {
        MaxRate::Auto => account.max_send_rate,
        MaxRate::PerSecond(cap) => cap.min(account.max_send_rate),
    };
    dispatcher.set_rate(Rate::PerSecond(rate));
    if account.sending == Sending::Disabled {
        warn!("SES reports that sending is disabled for the account");
    }
    dispatcher.set_quota(
        account
            .max_24_hour_send
            .map(|max| DailyQuota { max, left: max - account.sent_last_24_hours }),
    );
}
