//! Admission: the one way from a well-formed request to one that may be stored and sent.
//!
//! `Admitted` has no other constructor, so code that skips the sender's domain or the
//! suppressions does not compile.

use std::borrow::Cow;
use std::collections::HashSet;

use crate::mailbox::{DomainName, Mailbox};
use crate::message_terms::{MessageDefaults, Terms};
use crate::request::{Attachment, Body, IdempotencyKey, SendRequest};
use crate::suppression::SuppressedAddress;

/// Facts of an organisation that admission needs.
pub trait Facts {
    /// Reason why a fact could not be had.
    type Error;

    /// Returns true if the domain is verified for the organisation, exactly and not by a parent
    /// domain.
    fn is_verified(&self, domain: &DomainName<'_>) -> bool;

    /// Some of the domains from which the request may be sent, for the refusal of a request that
    /// names another one.
    fn verified_domains(&self) -> Vec<DomainName<'static>>;

    /// Returns true if the request's API key may be used for senders of the domain.
    fn allows_sender(&self, domain: &DomainName<'_>) -> bool;

    /// Defaults of the request's API key, for messages that name no terms themselves.
    fn defaults(&self) -> MessageDefaults {
        MessageDefaults::default()
    }

    /// Returns true if the organisation must not write to the address.
    fn is_suppressed(
        &self,
        address: &SuppressedAddress,
    ) -> impl Future<Output = Result<bool, Self::Error>> + Send;
}

/// Reason why a well-formed request is not admitted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AdmissionError<E> {
    /// The sender's domain is not verified for the organisation.
    UnverifiedDomain {
        /// Domain of the sender, as A-labels.
        domain: DomainName<'static>,
        /// Some of those from which the request may be sent.
        verified: Vec<DomainName<'static>>,
    },
    /// The request's API key is not for this sender domain.
    SenderForbidden {
        /// Domain of the sender, as A-labels.
        domain: DomainName<'static>,
    },
    /// A recipient is suppressed.
    Suppressed {
        /// The recipient's field, such as `cc[1]`.
        field: String,
    },
    /// A fact could not be had.
    Facts(E),
}

/// A request whose sender may send and whose recipients may be written to.
#[derive(Debug)]
pub struct Admitted<'a>(SendRequest<'a>, Terms);

/// Admits a request, or returns the reason of its refusal. Checks the senders' domains first, then
/// the recipients in order.
pub async fn admit<'a, F: Facts>(
    request: SendRequest<'a>,
    facts: &F,
) -> Result<Admitted<'a>, AdmissionError<F::Error>> {
    let senders = || [request.from.address().domain()].into_iter().chain(&request.other_senders);
    if let Some(domain) = senders().find(|domain| !facts.is_verified(domain)) {
        let (domain, verified) = (domain.clone().into_owned(), facts.verified_domains());
        return Err(AdmissionError::UnverifiedDomain { domain, verified });
    }
    if let Some(domain) = senders().find(|domain| !facts.allows_sender(domain)) {
        return Err(AdmissionError::SenderForbidden { domain: domain.clone().into_owned() });
    }
    for (name, mailboxes) in [("to", &request.to), ("cc", &request.cc), ("bcc", &request.bcc)] {
        for (index, mailbox) in mailboxes.iter().enumerate() {
            let address = SuppressedAddress::from(mailbox.address());
            if facts.is_suppressed(&address).await.map_err(AdmissionError::Facts)? {
                return Err(AdmissionError::Suppressed { field: format!("{name}[{index}]") });
            }
        }
    }
    let terms = Terms::new(request.priority, request.expires_in, facts.defaults());
    Ok(Admitted(request, terms))
}

impl<'a> Admitted<'a> {
    /// The mailbox of the sender, as the client gave it.
    pub fn from(&self) -> &Mailbox<'a> {
        &self.0.from
    }

    /// The sender as it goes upstream: in ASCII, on one line.
    pub fn from_header(&self) -> Cow<'a, str> {
        self.0.from_header.map_or_else(|| self.0.from.to_header().into(), Cow::Borrowed)
    }

    /// Domains of the other senders that a submitted message names.
    pub fn other_senders(&self) -> &[DomainName<'a>] {
        &self.0.other_senders
    }

    /// The recipients in `to`, as given.
    pub fn to(&self) -> &[Mailbox<'a>] {
        &self.0.to
    }

    /// The recipients as they go upstream: an address that an envelope has several times, once.
    pub fn distinct_to(&self) -> Cow<'_, [Mailbox<'a>]> {
        match self.0.body {
            Body::Raw(_) => {
                let mut known = HashSet::new();
                let is_new = |to: &&Mailbox<'_>| known.insert(to.address().normalized());
                Cow::Owned(self.0.to.iter().filter(is_new).cloned().collect())
            }
            Body::Html(_) | Body::Text(_) | Body::Both { .. } => Cow::Borrowed(&self.0.to),
        }
    }

    /// The recipients in `cc`, as given.
    pub fn cc(&self) -> &[Mailbox<'a>] {
        &self.0.cc
    }

    /// The recipients in `bcc`, as given.
    pub fn bcc(&self) -> &[Mailbox<'a>] {
        &self.0.bcc
    }

    /// All recipients: to, cc and bcc, in that order.
    pub fn recipients(&self) -> impl Iterator<Item = &Mailbox<'a>> {
        self.0.to.iter().chain(&self.0.cc).chain(&self.0.bcc)
    }

    /// Number of recipients in `to`, `cc` and `bcc` together.
    pub fn recipient_count(&self) -> u64 {
        (self.0.to.len() + self.0.cc.len() + self.0.bcc.len()) as u64
    }

    /// Mailboxes to which replies go; empty if they go to the sender.
    pub fn reply_to(&self) -> &[Mailbox<'a>] {
        &self.0.reply_to
    }

    /// The subject, as given.
    pub fn subject(&self) -> &'a str {
        self.0.subject
    }

    /// The bodies of the message, or the submitted message itself.
    pub fn body(&self) -> Body<'a> {
        self.0.body
    }

    /// The custom headers, in the order given.
    pub fn headers(&self) -> &[(&'a str, &'a str)] {
        &self.0.headers
    }

    /// The files that go with the message.
    pub fn attachments(&self) -> &[Attachment<'a>] {
        &self.0.attachments
    }

    /// The client's own names and values, if it gave any.
    pub fn metadata(&self) -> Option<&[(&'a str, &'a str)]> {
        self.0.metadata.as_deref()
    }

    /// Priority of the message, and time for which it may be sent.
    pub fn terms(&self) -> Terms {
        self.1
    }

    /// The field of the request that names terms of its own, if there is one.
    pub fn field_of_terms(&self) -> Option<&'static str> {
        let Self(SendRequest { priority, expires_in, .. }, _) = self;
        let priority = priority.map(|_| "priority");
        priority.or_else(|| expires_in.map(|_| "expiresIn"))
    }

    /// The key that identifies the logical message.
    pub fn idempotency_key(&self) -> Option<IdempotencyKey<'a>> {
        self.0.idempotency_key
    }
}
