//! The message that an examination sends: admitted, stored and sent as every other one.

use serde::{Deserialize, Serialize};

use crate::{Admin, Refusal, Result, TestSend};
use pillarbox_domain::mailbox::Mailbox;
use pillarbox_domain::organisation::{DomainState, Organisation, OrganisationKind};
use pillarbox_domain::request::{Draft, RawMessage, SendRequest, Submission};
use pillarbox_intake as intake;

/// SES's mailbox simulator: it counts for no reputation, and is open to accounts in the sandbox
/// (SES developer guide, "Using the mailbox simulator").
const RECIPIENT: &str = "success@simulator.amazonses.com";
const SUBJECT: &str = "A test of the set-up";
const TEXT: &str = "pillarbox doctor sent this to see whether sending works.";
/// The sender's address before the `@` if none is given.
const LOCAL_PART: &str = "pillarbox-doctor";

/// Form in which SES gets a message.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum MessageForm {
    /// In parts, as the API sends messages.
    #[default]
    Simple,
    /// Whole, as SMTP submission sends them.
    Raw,
}

/// A message of the examination's own was accepted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TestSent {
    pub id: String,
    pub from: String,
    pub to: String,
}

pub(super) async fn send(admin: &Admin, call: TestSend) -> Result<TestSent> {
    let facts = admin.facts()?;
    let (organisation, from) = admin.sender(call.from.as_deref())?;
    let unusable = || Refusal::new(format!("{from:?} cannot be the sender"));
    let header = Mailbox::parse(&from).map_err(|_| unusable())?.to_header();
    let fields = format!(
        "From: {header}\r\nTo: {RECIPIENT}\r\nSubject: {SUBJECT}\r\nMIME-Version: 1.0\r\n\
         Content-Type: text/plain; charset=utf-8\r\n"
    );
    let rest = format!("\r\n{TEXT}\r\n");
    let request = match call.form {
        MessageForm::Simple => SendRequest::parse(Draft {
            from: Some(&from),
            to: Some(vec![RECIPIENT]),
            subject: Some(SUBJECT),
            text: Some(TEXT.into()),
            ..Draft::default()
        })
        .ok(),
        MessageForm::Raw => SendRequest::of_submission(Submission {
            from: &from,
            from_header: None,
            other_senders: Vec::new(),
            recipients: vec![RECIPIENT],
            subject: SUBJECT,
            message: RawMessage { fields: fields.as_bytes(), rest: rest.as_bytes() },
            idempotency_key: None,
        })
        .ok(),
    };
    // The sender was read before, and the rest is ours.
    let request = request.ok_or_else(unusable)?;
    let prepared = facts.intake.prepare(&organisation, None, request, Some("doctor")).await;
    let prepared = prepared.map_err(|refusal| said(&refusal))?;
    let accepted = facts.intake.accept(prepared).await.map_err(|refusal| said(&refusal))?;
    let id = accepted.id().to_string();
    Ok(TestSent { id, from, to: RECIPIENT.to_owned() })
}

impl Admin {
    /// Sender: the given address, or one of the first domain that may be sent from, those that SES
    /// has verified first.
    fn sender(&self, from: Option<&str>) -> Result<(Organisation, String)> {
        let wanted = match from {
            Some(text) => {
                let mailbox = Mailbox::parse(text)
                    .map_err(|error| Refusal::new(format!("{text:?} is not a sender: {error}")))?;
                Some(mailbox.address().domain().as_str().to_owned())
            }
            None => None,
        };
        let mut domains = self.store.domains();
        domains.retain(|domain| {
            domain.state.is_verified() && wanted.as_ref().is_none_or(|name| *name == domain.name)
        });
        domains.sort_by_key(|domain| domain.state != DomainState::Verified);
        let senders = domains.into_iter().filter_map(|domain| {
            let organisation = self.store.organisation_by_id(domain.organisation)?;
            // Its mail would show nothing of the set-up at SES.
            (organisation.kind == OrganisationKind::Production)
                .then_some((organisation, domain.name))
        });
        let (organisation, domain) = senders.into_iter().next().ok_or_else(|| {
            Refusal::new(match &wanted {
                Some(name) => format!(
                    "{name} is not verified for any organisation; to list the domains: pillarbox \
                     domain list"
                ),
                None => {
                    "there is no verified domain to send from; to add one: pillarbox domain add"
                        .to_owned()
                }
            })
        })?;
        let from = from.map_or_else(|| format!("{LOCAL_PART}@{domain}"), str::to_owned);
        Ok((organisation, from))
    }
}

fn said(refusal: &intake::Refusal) -> Refusal {
    Refusal::new(match refusal {
        intake::Refusal::KeyEnded => "the organisation was removed meanwhile".to_owned(),
        intake::Refusal::UnverifiedDomain { domain, .. } => {
            format!("the sender's domain {domain} is not verified")
        }
        intake::Refusal::SenderForbidden { domain } => {
            format!("the sender's domain {domain} is not allowed")
        }
        intake::Refusal::TermsUnknown { field } => {
            format!("{field} cannot be used while a node of an earlier version is in use")
        }
        intake::Refusal::Suppressed { .. } => {
            format!("{RECIPIENT} is suppressed; to change that: pillarbox suppression remove")
        }
        intake::Refusal::Paused => "the organisation is paused, and its requests are refused; to \
                                    resume it: pillarbox org resume"
            .to_owned(),
        intake::Refusal::LimitReached(exceeded) => {
            format!("a limit of the organisation is reached: {exceeded}")
        }
        intake::Refusal::QueueFull(_) => {
            "the queue is full; to see what slows down sending: pillarbox status".to_owned()
        }
        intake::Refusal::StorageUnavailable => {
            "the store refuses writes: make room on the disk, or repair it; with PostgreSQL, check \
             the database and the network to it"
                .to_owned()
        }
        intake::Refusal::OutcomeOpen => {
            "the store did not answer in time, so the message may still be sent".to_owned()
        }
        intake::Refusal::ShuttingDown => "the service is stopping; try again later".to_owned(),
        intake::Refusal::Internal => "the store is damaged; restore a backup".to_owned(),
    })
}
