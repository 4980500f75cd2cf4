//! `domain`: sender domains, their state, the records to publish, and the next step.

use std::fmt::Write;

use crate::confirmation::{Confirmed, ENDS_BY_ITSELF, on_all_nodes};
use crate::connect::Session;
use crate::error::CliError;
use crate::output::{Columns, Table, escaped};
use pillarbox_admin::DomainRemove;
use pillarbox_admin::domain::{
    self, DnsRecord, DomainChecked, DomainRemoved, DomainReport, Domains, MailFrom,
};
use pillarbox_admin::message::QueuedMessages;
use pillarbox_domain::organisation::Finding;
use pillarbox_ses::identity::SetupStatus;
use pillarbox_ses::identity::records::{Purpose, RecordPresence};

pub(super) async fn remove(
    session: &Session,
    given: Confirmed<DomainRemove>,
) -> Result<String, CliError> {
    let DomainRemove { organisation, domain } = given.call.clone();
    let what = format!("Removing the domain {domain} from {organisation}");
    let messages =
        QueuedMessages::OfOrganisation { name: organisation, key: None, domain: Some(domain) };
    if let Some(told) = given.confirmation.ask(session, messages, &what).await? {
        return Ok(told);
    }
    let answer = session.call(given.call).await?;
    on_all_nodes(session.show(&answer, removed), &answer.nodes_without_answer, ENDS_BY_ITSELF)
}

pub(super) fn table(list: &Domains) -> String {
    let columns: Columns<domain::Domain, 7> = [
        ("DOMAIN", |one| one.domain.clone()),
        ("ORGANISATION", |one| one.organisation.clone()),
        ("STATE", |one| one.state.clone()),
        ("SINCE", |one| one.since.clone()),
        ("SES SAYS", |one| one.last_check.as_ref().map_or("", |check| said(check.ses)).to_owned()),
        ("LAST CHECKED", |one| {
            one.last_check.as_ref().map_or("never", |check| &check.at).to_owned()
        }),
        ("ADDED", |one| one.added_at.clone()),
    ];
    let none = "no domains; pillarbox domain add --org NAME DOMAIN adds one";
    Table::of(&list.domains, columns).or(none)
}

fn removed(removed: &DomainRemoved) -> String {
    format!(
        "removed {} from {}: queued messages failed: {}; calls under way (not tried again): {}; \
         its identity at SES stays\n",
        removed.domain, removed.organisation, removed.messages_failed, removed.calls_under_way
    )
}

fn said(answer: Finding) -> &'static str {
    match answer {
        Finding::Verified => "verified",
        Finding::Pending => "pending",
        Finding::TemporaryFailure => "temporary failure",
        Finding::Failed => "failed",
        Finding::Unknown => "no identity",
    }
}

/// Output of `domain add`.
pub(super) fn added(report: &DomainReport) -> String {
    let mut text = line(&report.domain);
    let open: Vec<_> =
        report.dns_records.iter().filter(|r| r.ses != RecordPresence::Found).collect();
    if report.domain.state == "pending" || open.iter().any(|r| r.purpose == Purpose::MailFrom) {
        text.push_str(&to_publish(&report.dns_records));
    }
    text
}

/// Output of `domain check`.
pub(super) fn checked(check: &DomainChecked) -> String {
    let mut text = format!("SES {}\n", verdict(check));
    if let Some(dkim) = check.dkim {
        let _ = writeln!(text, "DKIM: {}", setup(dkim));
    }
    if let Some(MailFrom { domain, setup: state }) = &check.mail_from {
        let fallback = match state {
            SetupStatus::Success => "",
            _ => "; without the records, it uses its own domain, and sending continues",
        };
        let state = setup(*state);
        let _ = writeln!(text, "MAIL FROM {}: {state}{fallback}", escaped(domain));
    }
    for domain in &check.domains {
        text.push_str(&line(domain));
    }
    if check.dns_records.iter().any(|record| record.ses == RecordPresence::Missing)
        || (check.ses != Finding::Verified && check.ses != Finding::Unknown)
    {
        text.push_str(&to_publish(&check.dns_records));
    }
    text
}

fn verdict(check: &DomainChecked) -> String {
    let name = check.domains.first().map_or("", |domain| domain.domain.as_str());
    let reason = match &check.reason {
        Some(reason) => format!(" ({})", escaped(reason)),
        None => String::new(),
    };
    match check.ses {
        Finding::Verified => format!("has verified {name}"),
        Finding::Pending => format!(
            "has not found the DNS records of {name} yet{reason}. Once they are published, wait"
        ),
        Finding::TemporaryFailure => format!(
            "cannot look for the DNS records of {name} for now{reason}, and tries again \
             automatically. Check that the domain's name servers answer everyone and that the \
             records below exist"
        ),
        Finding::Failed => format!(
            "has given up looking for the DNS records of {name}{reason}, as it does after 72 \
             hours. Delete the identity at SES: aws sesv2 delete-email-identity --email-identity \
             {name}. Then run pillarbox domain add --org NAME {name}, and publish the records \
             that it prints; they may differ from those below"
        ),
        Finding::Unknown => {
            format!("has no identity for {name}; pillarbox domain add --org NAME DOMAIN creates it")
        }
    }
}

fn setup(setup: SetupStatus) -> &'static str {
    match setup {
        SetupStatus::NotStarted => "SES has not started to look for the records",
        SetupStatus::Pending => "SES has not found the records yet",
        SetupStatus::Success => "SES found the records",
        SetupStatus::Failed => "SES did not find the records, and has given up",
        SetupStatus::TemporaryFailure => "SES cannot look for the records for now, and tries again",
        SetupStatus::Other => "SES says something that this version does not know",
    }
}

fn line(domain: &domain::Domain) -> String {
    let meaning = match domain.state.as_str() {
        "pending" => "pending: the organisation cannot send from it until SES has verified it",
        "verified" => "verified: the organisation can send from it",
        "assumed" => "assumed verified: the organisation can send from it without a check at SES",
        other => other,
    };
    format!("{} of {}: {meaning}\n", domain.domain, domain.organisation)
}

fn to_publish(records: &[DnsRecord]) -> String {
    let (advice, needed): (Vec<_>, Vec<_>) =
        records.iter().partition(|record| record.purpose == Purpose::Dmarc);
    if needed.is_empty() {
        return "SES named no DNS records for it; see its identity in the SES console\n".to_owned();
    }
    let mut table = Table::new(["TYPE", "NAME", "VALUE", "FOR", "SES"]);
    for record in needed.iter().chain(&advice) {
        let DnsRecord { record_type, name, value, .. } = *record;
        table.row([record_type, name, value, purpose(record.purpose), sight(record.ses)]);
    }
    let mut text = format!("\nPublish these DNS records:\n\n{}", table.or("none"));
    text.push_str("\nThe same, to paste into the domain's zone file:\n\n");
    for record in &needed {
        let _ = writeln!(text, "{}", escaped(&record.zone_line));
    }
    for record in &advice {
        let domain = record.name.strip_prefix("_dmarc.").unwrap_or(&record.name);
        let (line, domain) = (escaped(&record.zone_line), escaped(domain));
        let rule = "nor a domain above it has a DMARC record";
        let _ = write!(text, "; only if neither {domain} {rule}:\n; {line}\n");
    }
    text.push_str(hint(&needed));
    text.push_str(
        "The service asks SES regularly whether it has found them, often at first and less often \
         later; pillarbox domain check asks now.\n",
    );
    text
}

fn hint(needed: &[&DnsRecord]) -> &'static str {
    if needed.iter().any(|record| record.purpose == Purpose::MailFrom) {
        "\nSPF: the TXT record above is only for the MAIL FROM domain; the sender domain's own SPF \
         record does not have to name SES.\n"
    } else {
        "\nSPF: bounces go to SES's own domain, so your SPF record does not have to name SES. \
         Receivers then check DKIM; --mail-from bounce.DOMAIN makes SPF count for your domain \
         too.\n"
    }
}

fn purpose(purpose: Purpose) -> &'static str {
    match purpose {
        Purpose::Dkim => "DKIM",
        Purpose::MailFrom => "MAIL FROM",
        Purpose::Dmarc => "DMARC (advice)",
    }
}

fn sight(sight: RecordPresence) -> &'static str {
    match sight {
        RecordPresence::Found => "found",
        RecordPresence::Missing => "missing",
        RecordPresence::NotLookedFor => "not looked for",
    }
}
