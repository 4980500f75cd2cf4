//! `domain`: sender domains.

use clap::{Args, Subcommand};

use crate::admin::wire::{self, Request, Response, SesAnswer, Verification};
use crate::cli::connect::Connection;
use crate::cli::error::CliError;
use crate::cli::table::Table;

mod shown;

#[derive(Debug, Args)]
pub(super) struct Domain {
    #[command(flatten)]
    connection: Connection,
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Add a sender domain: create its identity at SES and print the DNS records to publish.
    Add {
        /// Organisation that sends from the domain.
        #[arg(long, value_name = "NAME")]
        org: String,
        /// Domain. A sub-domain is another domain.
        domain: String,
        /// Treat the domain as verified, without asking SES.
        #[arg(long, conflicts_with = "mail_from")]
        assume_verified: bool,
        /// Sub-domain to which bounces come back, instead of SES's own domain, so that SPF passes
        /// for your domain.
        #[arg(long, value_name = "SUBDOMAIN")]
        mail_from: Option<String>,
    },
    /// List the sender domains.
    List {
        /// Only domains of this organisation.
        #[arg(long, value_name = "NAME")]
        org: Option<String>,
    },
    /// Ask SES now whether a domain is verified.
    Check {
        /// Domain.
        domain: String,
    },
    /// Remove a sender domain. What is queued from it fails. Its identity at SES stays.
    Remove {
        /// Organisation that sends from the domain.
        #[arg(long, value_name = "NAME")]
        org: String,
        /// Domain.
        domain: String,
    },
}

impl Action {
    fn into_request(self) -> Request {
        match self {
            Self::Add { org, domain, assume_verified, mail_from } => Request::DomainAdd {
                organisation: org,
                domain,
                verification: if assume_verified {
                    Verification::Assumed
                } else {
                    Verification::BySes
                },
                mail_from,
            },
            Self::List { org } => Request::DomainList { organisation: org },
            Self::Check { domain } => Request::DomainCheck { domain },
            Self::Remove { org, domain } => Request::DomainRemove { organisation: org, domain },
        }
    }
}

impl Domain {
    pub(super) async fn run(self) -> Result<String, CliError> {
        let mut session = self.connection.open().await?;
        match session.ask(self.action.into_request()).await? {
            Response::DomainAdded(report) => Ok(session.show(&report, shown::added)),
            Response::Domains(list) => Ok(session.show(&list, |list| {
                let mut table = Table::new([
                    "DOMAIN",
                    "ORGANISATION",
                    "STATE",
                    "SINCE",
                    "SES SAYS",
                    "LAST CHECKED",
                    "ADDED",
                ]);
                for domain in &list.domains {
                    let wire::Domain { organisation, domain, state, since, added_at, last_check } =
                        domain;
                    let (said, at) = last_check
                        .as_ref()
                        .map_or(("", "never"), |check| (said(check.ses), check.at.as_str()));
                    table.row([domain, organisation, state, since, said, at, added_at]);
                }
                table.or("no domains; pillarbox domain add --org NAME DOMAIN adds one")
            })),
            Response::DomainChecked(check) => Ok(session.show(&check, shown::checked)),
            Response::DomainRemoved(removed) => Ok(session.show(&removed, |removed| {
                format!(
                    "withdrew {} from {}: queued messages failed: {}, calls under way, not tried \
                     again: {}; its identity at SES stays\n",
                    removed.domain,
                    removed.organisation,
                    removed.messages_failed,
                    removed.calls_under_way
                )
            })),
            _ => Err(CliError::Unexpected),
        }
    }
}

fn said(answer: SesAnswer) -> &'static str {
    match answer {
        SesAnswer::Verified => "verified",
        SesAnswer::Pending => "pending",
        SesAnswer::TemporaryFailure => "temporary failure",
        SesAnswer::Failed => "failed",
        SesAnswer::Unknown => "no identity",
    }
}
