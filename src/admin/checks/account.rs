//! The SES account and its sender domains: whether they may send, to whom, and how much.

use crate::checks::{Examiner, Finding, unanswered};
use pillarbox_domain::mailbox::DomainName;
use pillarbox_domain::organisation::{self, DomainState};
use pillarbox_maintenance::domain_verification::finding;
use pillarbox_ses::account::{Access, Account, EnforcementStatus, Engagement, Sending};
use pillarbox_ses::identity::{Identity, SetupStatus};

/// Part of the daily quota from which an account gets a warning.
const QUOTA_WARNING: f64 = 0.8;

impl Examiner<'_> {
    pub(super) async fn account(&self) -> Vec<Finding> {
        match self.ses.account().await {
            Ok(account) => {
                let mut findings =
                    vec![access(&account), sending(&account), quota(&account), own_list(&account)];
                // The finding of a set itself comes first and covers this.
                if self.ses.configuration_set().is_none() {
                    findings.extend(engagement(&account));
                }
                findings
            }
            Err(error) => vec![unanswered("SES account", "ses:GetAccount", &error)],
        }
    }

    /// Compares SES's status of an identity with the service's.
    pub(super) async fn domain(&self, name: &DomainName<'_>, believed: &str) -> Finding {
        let about = format!("domain {name}");
        let identity = match self.ses.identity(name).await {
            Ok(identity) => identity,
            Err(error) => return unanswered(about, "ses:GetEmailIdentity", &error),
        };
        let found = finding(identity.as_ref());
        let sendable = believed != DomainState::Pending.as_str();
        match (found, sendable) {
            (organisation::Finding::Verified, true) => verified(about, identity.as_ref()),
            (organisation::Finding::Verified, false) => Finding::warning(
                about,
                "SES has verified it, but the service still treats it as pending",
                format!("wait for the next check, or run: pillarbox domain check {name}"),
            ),
            // SES sends for the sub-domains of an identity without one of their own ("Creating and
            // verifying identities in Amazon SES"), which is what the operator's word is for.
            (organisation::Finding::Unknown, true) if believed == DomainState::Assumed.as_str() => {
                Finding::warning(
                    about,
                    "assumed to be verified, as you said; SES has no identity for it",
                    format!(
                        "this is fine if SES has verified a domain above it; otherwise run \
                         pillarbox domain add --org NAME {name}, and publish the records"
                    ),
                )
            }
            (organisation::Finding::Unknown, _) => Finding::not_ok(
                about,
                "SES has no identity for it",
                format!("run pillarbox domain add --org NAME {name}, and publish the records"),
            ),
            (other, true) => Finding::not_ok(
                about,
                format!("the service treats it as {believed}, but {}", word(other)),
                format!("see what is missing: pillarbox domain check {name}"),
            ),
            (organisation::Finding::Failed, false) => Finding::not_ok(
                about,
                "SES has given up looking for its DNS records",
                format!("see what to do: pillarbox domain check {name}"),
            ),
            (other, false) => Finding::warning(
                about,
                format!("pending: {}", word(other)),
                format!("publish its records: pillarbox domain check {name}"),
            ),
        }
    }
}

fn access(account: &Account) -> Finding {
    match account.access {
        Access::Production => Finding::ok("SES account", "production: it may send to everybody"),
        Access::Sandbox => Finding::warning(
            "SES account",
            "in the sandbox: it may send only to verified addresses and SES's mailbox simulator",
            "request production access in the SES console of this region",
        ),
    }
}

fn sending(account: &Account) -> Finding {
    const ABOUT: &str = "SES sending";
    match (account.sending, &account.standing) {
        (_, EnforcementStatus::Shutdown) => Finding::not_ok(
            ABOUT,
            "SES has shut the account's sending down",
            "see the account's status in the SES console and answer AWS there",
        ),
        (Sending::Disabled, _) => Finding::not_ok(
            ABOUT,
            "sending is paused for the account",
            "see the account's status in the SES console; if you paused it yourself, resume it: \
             aws sesv2 put-account-sending-attributes --sending-enabled",
        ),
        (Sending::Enabled, EnforcementStatus::Probation) => Finding::warning(
            ABOUT,
            "the account is under review: SES may pause it",
            "see its status in the SES console, and fix the problems shown there",
        ),
        (Sending::Enabled, EnforcementStatus::Healthy) => {
            Finding::ok(ABOUT, "enabled, in good standing")
        }
        (Sending::Enabled, EnforcementStatus::Unknown) => Finding::ok(ABOUT, "enabled"),
    }
}

fn quota(account: &Account) -> Finding {
    const ABOUT: &str = "SES quota";
    let rate = format!("{} recipients a second", account.max_send_rate);
    let Some(max) = account.max_24_hour_send else {
        return Finding::ok(ABOUT, format!("{rate}, no daily limit"));
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

/// Either is fine: a message that SES refuses because of it comes back as an event and causes no
/// suppression.
fn own_list(account: &Account) -> Finding {
    const ABOUT: &str = "SES suppression";
    if account.suppressed_reasons.is_empty() {
        return Finding::ok(ABOUT, "SES adds no address to the account's own list");
    }
    let reasons = account.suppressed_reasons.join(", ").to_ascii_lowercase();
    Finding::ok(ABOUT, format!("SES adds addresses to the account's own list after: {reasons}"))
}

fn engagement(account: &Account) -> Option<Finding> {
    (account.engagement == Engagement::Watched).then(|| {
        Finding::not_ok(
            "tracking",
            "SES tracks opens and clicks for the account: it rewrites links and adds a pixel",
            "turn engagement tracking off in the SES console (Virtual Deliverability Manager), or \
             send with a configuration set that turns it off",
        )
    })
}

/// A verified domain may still miss records that make its mail pass as its own.
fn verified(about: String, identity: Option<&Identity>) -> Finding {
    let dkim = identity.map_or(SetupStatus::Other, |identity| identity.dkim_status);
    let mail_from = identity.and_then(|identity| identity.mail_from.as_ref());
    match (dkim, mail_from) {
        (SetupStatus::Success, None) => Finding::ok(about, "verified, and signed with DKIM"),
        (SetupStatus::Success, Some(mail_from)) if mail_from.status == SetupStatus::Success => {
            let message = format!("verified, signed with DKIM, MAIL FROM {}", mail_from.domain);
            Finding::ok(about, message)
        }
        (SetupStatus::Success, Some(mail_from)) => Finding::warning(
            about,
            format!("verified, but the MX record of MAIL FROM {} is missing", mail_from.domain),
            "publish the MAIL FROM records: pillarbox domain check shows them",
        ),
        (_, _) => Finding::warning(
            about,
            "verified, but SES does not find its DKIM records: receivers may treat its mail as \
             forged",
            "publish the DKIM records: pillarbox domain check shows them",
        ),
    }
}

fn word(finding: organisation::Finding) -> &'static str {
    match finding {
        organisation::Finding::Verified => "it is verified",
        organisation::Finding::Pending => "SES has not found its DNS records yet",
        organisation::Finding::TemporaryFailure => "SES cannot check its DNS records at the moment",
        organisation::Finding::Failed => "SES has given up looking for its DNS records",
        organisation::Finding::Unknown => "SES has no identity for it",
    }
}
