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
    fn defaults(&self) -> MessageDefaults;

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

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};
    use std::time::Duration;

    use super::*;
    use crate::message_terms::Priority;
    use crate::request::{AttachmentDraft, Draft, RawMessage, Submission};

    /// Facts of an organisation with one verified domain and a key that is for another one, too.
    struct Known {
        allowed: &'static [&'static str],
        suppressed: &'static str,
    }

    const ALL: Known = Known { allowed: &["example.com", "example.org"], suppressed: "" };

    impl Facts for Known {
        type Error = Infallible;

        fn is_verified(&self, domain: &DomainName<'_>) -> bool {
            domain.as_str() != "example.net"
        }

        fn verified_domains(&self) -> Vec<DomainName<'static>> {
            vec![domain("example.com")]
        }

        fn allows_sender(&self, domain: &DomainName<'_>) -> bool {
            self.allowed.contains(&domain.as_str())
        }

        fn defaults(&self) -> MessageDefaults {
            MessageDefaults::default()
        }

        async fn is_suppressed(&self, address: &SuppressedAddress) -> Result<bool, Infallible> {
            Ok(address.as_str() == self.suppressed)
        }
    }

    fn domain(name: &str) -> DomainName<'static> {
        DomainName::parse(name).unwrap().into_owned()
    }

    fn admitted<'a>(
        request: SendRequest<'a>,
        facts: &Known,
    ) -> Result<Admitted<'a>, AdmissionError<Infallible>> {
        match pin!(admit(request, facts)).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(admitted) => admitted,
            Poll::Pending => panic!("the facts are there at once"),
        }
    }

    fn draft() -> Draft<'static> {
        Draft {
            from: Some("Ann <ann@example.com>"),
            to: Some(vec!["a@x.org", "A <A@x.org>"]),
            cc: Some(vec!["b@x.org"]),
            bcc: Some(vec!["c@x.org", "d@x.org"]),
            reply_to: vec!["e@x.org"],
            subject: Some("Hello"),
            text: Some("Body".into()),
            headers: Some(vec![("X-A", "1")]),
            attachments: Some(vec![AttachmentDraft {
                filename: Some("a.txt".into()),
                content: Some("QQ==".into()),
                content_type: None,
                content_id: None,
            }]),
            metadata: Some(vec![("order", "7")]),
            idempotency_key: Some("k"),
            ..Draft::default()
        }
    }

    fn submission(others: Vec<DomainName<'_>>) -> SendRequest<'_> {
        SendRequest::of_submission(Submission {
            from: "Ann <ann@example.com>",
            from_header: Some("=?utf-8?q?Ann?= <ann@example.com>"),
            other_senders: others,
            recipients: vec!["a@x.org", "b@x.org", "A@X.org"],
            subject: "Hello",
            message: RawMessage { fields: b"Subject: Hello\r\n", rest: b"\r\nHi" },
            idempotency_key: None,
        })
        .unwrap()
    }

    #[test]
    fn every_sender_is_of_a_verified_domain_that_the_key_is_for() {
        let parse = |draft| SendRequest::parse(draft).unwrap();
        assert!(admitted(parse(draft()), &ALL).is_ok());
        let other = Draft { from: Some("ann@example.net"), ..draft() };
        let unverified = AdmissionError::UnverifiedDomain {
            domain: domain("example.net"),
            verified: vec![domain("example.com")],
        };
        assert_eq!(admitted(parse(other), &ALL).unwrap_err(), unverified);
        let error = admitted(submission(vec![domain("example.net")]), &ALL).unwrap_err();
        assert_eq!(error, unverified, "of a further sender");
        let narrow = Known { allowed: &["example.com"], ..ALL };
        assert!(admitted(submission(Vec::new()), &narrow).is_ok());
        let error = admitted(submission(vec![domain("example.org")]), &narrow).unwrap_err();
        assert_eq!(error, AdmissionError::SenderForbidden { domain: domain("example.org") });
        let accepted = admitted(submission(vec![domain("example.org")]), &ALL).unwrap();
        assert_eq!(accepted.other_senders(), [domain("example.org")]);
    }

    #[test]
    fn the_first_suppressed_recipient_is_named_by_its_field() {
        let fields = [
            ("a@x.org", "to[0]"),
            ("b@x.org", "cc[0]"),
            ("c@x.org", "bcc[0]"),
            ("d@x.org", "bcc[1]"),
        ];
        for (suppressed, field) in fields {
            let facts = Known { suppressed, ..ALL };
            let error = admitted(SendRequest::parse(draft()).unwrap(), &facts).unwrap_err();
            assert_eq!(error, AdmissionError::Suppressed { field: field.to_owned() });
        }
    }

    #[test]
    fn an_admitted_message_has_what_the_request_has() {
        let message = admitted(SendRequest::parse(draft()).unwrap(), &ALL).unwrap();
        let addresses = |mailboxes: &[Mailbox<'_>]| {
            mailboxes.iter().map(|one| one.address().to_string()).collect::<Vec<_>>()
        };
        assert_eq!(message.from().address().to_string(), "ann@example.com");
        assert_eq!(message.from_header(), "\"Ann\" <ann@example.com>");
        assert_eq!(message.other_senders(), []);
        assert_eq!(addresses(message.to()), ["a@x.org", "A@x.org"]);
        assert_eq!(message.distinct_to().len(), 2, "as the client gave them");
        assert_eq!(addresses(message.cc()), ["b@x.org"]);
        assert_eq!(addresses(message.bcc()), ["c@x.org", "d@x.org"]);
        assert_eq!(addresses(message.reply_to()), ["e@x.org"]);
        assert_eq!((message.recipients().count(), message.recipient_count()), (5, 5));
        let last = message.recipients().last().map(|one| one.address().to_string());
        assert_eq!(last.as_deref(), Some("d@x.org"));
        assert_eq!(message.subject(), "Hello");
        assert!(matches!(message.body(), Body::Text(_)));
        assert_eq!(message.headers(), [("X-A", "1")]);
        let files: Vec<_> = message.attachments().iter().map(|file| &*file.filename).collect();
        assert_eq!(files, ["a.txt"]);
        assert_eq!(message.metadata(), Some(&[("order", "7")][..]));
        assert_eq!(message.idempotency_key().map(|key| key.as_str()), Some("k"));
        assert_eq!((message.terms(), message.field_of_terms()), (Terms::NONE, None));
    }

    #[test]
    fn a_submitted_message_goes_to_each_address_once_with_its_own_sender_field() {
        let message = admitted(submission(Vec::new()), &ALL).unwrap();
        assert_eq!(message.from_header(), "=?utf-8?q?Ann?= <ann@example.com>");
        let to: Vec<_> =
            message.distinct_to().iter().map(|one| one.address().to_string()).collect();
        assert_eq!(to, ["a@x.org", "b@x.org"]);
        assert_eq!(message.to().len(), 3);
    }

    #[test]
    fn the_field_that_names_terms_is_known() {
        for (priority, expires_in, field) in [
            (None, None, None),
            (None, Some("5m"), Some("expiresIn")),
            (Some("high"), Some("5m"), Some("priority")),
        ] {
            let request = SendRequest::parse(Draft { priority, expires_in, ..draft() }).unwrap();
            let message = admitted(request, &ALL).unwrap();
            assert_eq!(message.field_of_terms(), field);
            let wanted = expires_in.map(|_| Duration::from_mins(5));
            assert_eq!(message.terms().expires_in, wanted);
            let given = priority.map(|_| Priority::High);
            assert_eq!(message.terms().priority.given(), given);
        }
    }
}
