//! A sender domain: what SES says of its identity against what the service believes.

use crate::admin::checks::{Examiner, unanswered};
use crate::admin::wire::Finding;
use crate::domain::mailbox::DomainName;
use crate::domain::organisation::{self, DomainState};
use crate::domain_verification::finding;
use crate::ses::identity::{Identity, SetupStatus};

impl Examiner<'_> {
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
                "SES has verified it, and the service still has it as pending",
                format!("wait for the next look, or run: pillarbox domain check {name}"),
            ),
            // SES sends for the sub-domains of an identity without one of their own ("Creating and
            // verifying identities in Amazon SES"), which is what the operator's word is for.
            (organisation::Finding::Unknown, true) if believed == DomainState::Assumed.as_str() => {
                Finding::warning(
                    about,
                    "taken as verified by your word; SES has no identity for it",
                    format!(
                        "all is well where SES has verified a domain above it; otherwise run \
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
                format!("the service has it as {believed}, and SES does not: {}", word(other)),
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

/// A verified domain may still lack what makes its mail pass as its own.
fn verified(about: String, identity: Option<&Identity>) -> Finding {
    let dkim = identity.map_or(SetupStatus::Other, |identity| identity.dkim_status);
    let mail_from = identity.and_then(|identity| identity.mail_from.as_ref());
    match (dkim, mail_from) {
        (SetupStatus::Success, None) => Finding::ok(about, "verified, and signed by DKIM"),
        (SetupStatus::Success, Some(mail_from)) if mail_from.status == SetupStatus::Success => {
            let message = format!("verified, signed by DKIM, MAIL FROM {}", mail_from.domain);
            Finding::ok(about, message)
        }
        (SetupStatus::Success, Some(mail_from)) => Finding::warning(
            about,
            format!("verified, but the MX record of MAIL FROM {} is missing", mail_from.domain),
            "publish the MAIL FROM records: pillarbox domain check shows them",
        ),
        (_, _) => Finding::warning(
            about,
            "verified, but SES does not find its DKIM records: receivers may take its mail for \
             forged",
            "publish the DKIM records: pillarbox domain check shows them",
        ),
    }
}

fn word(finding: organisation::Finding) -> &'static str {
    match finding {
        organisation::Finding::Verified => "it is verified",
        organisation::Finding::Pending => "SES has not found its DNS records yet",
        organisation::Finding::TemporaryFailure => "SES cannot look for its DNS records for now",
        organisation::Finding::Failed => "SES has given up looking for its DNS records",
        organisation::Finding::Unknown => "SES has no identity for it",
    }
}
