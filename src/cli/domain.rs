//! `domain`: sender domains.

use std::fmt::Write;

use clap::{Args, Subcommand};

use crate::admin::wire::{
    self, DnsRecord, DomainCheck, Request, Response, SesAnswer, Verification,
};
use crate::cli::error::CliError;
use crate::cli::reach::Reach;
use crate::cli::table::Table;

#[derive(Debug, Args)]
pub(super) struct Domain {
    #[command(flatten)]
    reach: Reach,
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Add a sender domain: creates its identity at SES and prints the DNS records to publish.
    Add {
        /// The organisation that sends from it.
        #[arg(long, value_name = "NAME")]
        org: String,
        /// The domain; a sub-domain is another domain.
        domain: String,
        /// Take it as verified without asking SES.
        #[arg(long)]
        assume_verified: bool,
    },
    /// List the sender domains.
    List {
        /// Only this organisation's.
        #[arg(long, value_name = "NAME")]
        org: Option<String>,
    },
    /// Ask SES about a domain now.
    Check {
        /// The domain.
        domain: String,
    },
    /// Withdraw a sender domain; its identity at SES stays.
    Remove {
        /// The organisation that sends from it.
        #[arg(long, value_name = "NAME")]
        org: String,
        /// The domain.
        domain: String,
    },
}

impl Action {
    fn into_request(self) -> Request {
        match self {
            Self::Add { org, domain, assume_verified } => Request::DomainAdd {
                organisation: org,
                domain,
                verification: if assume_verified {
                    Verification::Assumed
                } else {
                    Verification::BySes
                },
            },
            Self::List { org } => Request::DomainList { organisation: org },
            Self::Check { domain } => Request::DomainCheck { domain },
            Self::Remove { org, domain } => Request::DomainRemove { organisation: org, domain },
        }
    }
}

impl Domain {
    pub(super) async fn run(self) -> Result<String, CliError> {
        let mut session = self.reach.open().await?;
        match session.ask(self.action.into_request()).await? {
            Response::DomainAdded(report) => Ok(session.show(&report, |report| {
                let domain = &report.domain;
                let mut text = line(domain);
                if domain.state == "pending" {
                    text.push_str(&to_publish(&report.dns_records));
                }
                text
            })),
            Response::Domains(list) => Ok(session.show(&list, |list| {
                let mut table = Table::new(["DOMAIN", "ORGANISATION", "STATE", "ADDED"]);
                for domain in &list.domains {
                    let wire::Domain { organisation, domain, state, added_at } = domain;
                    table.row([domain, organisation, state, added_at]);
                }
                table.or("no domains; pillarbox domain add --org NAME DOMAIN adds one")
            })),
            Response::DomainChecked(check) => Ok(session.show(&check, checked)),
            Response::DomainRemoved(removed) => Ok(session.show(&removed, |removed| {
                format!(
                    "withdrew {} from {}; its identity at SES stays\n",
                    removed.domain, removed.organisation
                )
            })),
            _ => Err(CliError::Unexpected),
        }
    }
}

fn checked(check: &DomainCheck) -> String {
    let mut text = match check.ses {
        SesAnswer::Verified => "SES has verified it\n".to_owned(),
        SesAnswer::Unverified => "SES has not verified it\n".to_owned(),
        SesAnswer::Unknown => {
            "SES has no identity for it; pillarbox domain add --org NAME DOMAIN creates it\n"
                .to_owned()
        }
    };
    for domain in &check.domains {
        text.push_str(&line(domain));
    }
    if check.ses == SesAnswer::Unverified {
        text.push_str(&to_publish(&check.dns_records));
    }
    text
}

fn line(domain: &wire::Domain) -> String {
    let meaning = match domain.state.as_str() {
        "pending" => "pending: it cannot be sent from until SES has verified it",
        "verified" => "verified: it can be sent from",
        "assumed" => "assumed verified: it can be sent from as far as pillarbox is concerned",
        other => other,
    };
    format!("{} of {}: {meaning}\n", domain.domain, domain.organisation)
}

fn to_publish(records: &[DnsRecord]) -> String {
    if records.is_empty() {
        return "SES named no DNS records for it; see its identity in the SES console\n".to_owned();
    }
    let mut table = Table::new(["TYPE", "NAME", "VALUE"]);
    for record in records {
        table.row([&record.record_type, &record.name, &record.value]);
    }
    let mut text = String::new();
    write!(text, "\nPublish these DNS records:\n\n{}\n", table.or("none"))
        .expect("text takes everything");
    text.push_str(
        "The service asks SES every minute whether it has found them; pillarbox domain check asks \
         now.\n",
    );
    text
}
