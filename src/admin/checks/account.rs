//! The SES account: whether it may send, to whom, and how much.

use crate::admin::checks::{Examiner, unanswered};
use crate::admin::wire::Finding;
use crate::ses::account::{Access, Account, Engagement, Sending, Standing};

/// The part of the daily quota from which on it deserves a look.
const QUOTA_WARNING: f64 = 0.8;

impl Examiner<'_> {
    pub(super) async fn account(&self) -> Vec<Finding> {
        match self.ses.account().await {
            Ok(account) => {
                let engagement = match self.ses.configuration_set() {
                    // The set's own word comes first, and is looked at with it.
                    Some(_) => None,
                    None => engagement(&account),
                };
                [access(&account), sending(&account), quota(&account), own_list(&account)]
                    .into_iter()
                    .chain(engagement)
                    .collect()
            }
            Err(error) => vec![unanswered("SES account", "ses:GetAccount", &error)],
        }
    }
}

fn access(account: &Account) -> Finding {
    match account.access {
        Access::Production => Finding::ok("SES account", "production: it may send to everybody"),
        Access::Sandbox => Finding::warning(
            "SES account",
            "in the sandbox: it may send to verified addresses and SES's mailbox simulator alone",
            "request production access in the SES console of this region",
        ),
    }
}

fn sending(account: &Account) -> Finding {
    const ABOUT: &str = "SES sending";
    match (account.sending, &account.standing) {
        (_, Standing::Shutdown) => Finding::not_ok(
            ABOUT,
            "SES has shut the account's sending down",
            "see the account's status in the SES console and answer AWS there",
        ),
        (Sending::Disabled, _) => Finding::not_ok(
            ABOUT,
            "sending is paused for the account",
            "see the account's status in the SES console; where you paused it yourself, aws sesv2 \
             put-account-sending-attributes --sending-enabled ends that",
        ),
        (Sending::Enabled, Standing::Probation) => Finding::warning(
            ABOUT,
            "the account is under review: SES may pause it",
            "see its status in the SES console, and mend what is named there",
        ),
        (Sending::Enabled, Standing::Healthy) => Finding::ok(ABOUT, "enabled, in good standing"),
        (Sending::Enabled, Standing::Unknown) => Finding::ok(ABOUT, "enabled"),
    }
}

fn quota(account: &Account) -> Finding {
    const ABOUT: &str = "SES quota";
    let rate = format!("{} recipients a second", account.max_send_rate);
    let Some(max) = account.max_24_hour_send else {
        return Finding::ok(ABOUT, format!("{rate}, no limit a day"));
    };
    let sent = account.sent_last_24_hours;
    let message = format!("{rate}; {sent} of {max} in the last 24 hours");
    let advice = "ask AWS for a higher quota (Service Quotas, SES, sending quota)";
    if sent >= max {
        Finding::not_ok(ABOUT, format!("{message}: it is used up"), advice)
    } else if sent >= max * QUOTA_WARNING {
        Finding::warning(ABOUT, message, advice)
    } else {
        Finding::ok(ABOUT, message)
    }
}

/// Either is fine: what SES refuses because of it comes back as an event and suppresses nobody.
fn own_list(account: &Account) -> Finding {
    const ABOUT: &str = "SES suppression";
    if account.suppressed_reasons.is_empty() {
        return Finding::ok(ABOUT, "the account's own list takes in nobody by itself");
    }
    let reasons = account.suppressed_reasons.join(", ").to_ascii_lowercase();
    Finding::ok(ABOUT, format!("the account's own list takes in addresses after: {reasons}"))
}

fn engagement(account: &Account) -> Option<Finding> {
    (account.engagement == Engagement::Watched).then(|| {
        Finding::not_ok(
            "tracking",
            "SES watches opens and clicks for the account, for which it rewrites links and adds a \
             pixel",
            "turn engagement tracking off in the SES console (Virtual Deliverability Manager), or \
             send with a configuration set that turns it off",
        )
    })
}
