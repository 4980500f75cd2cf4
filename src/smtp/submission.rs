//! From a message's bytes and its envelope to the reply: the same way as a request of the API.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use sha2::{Digest as _, Sha256};

use crate::Shared;
use crate::fields::Fields;
use crate::reply::Reply;
use pillarbox_domain::id::{KeyId, OrganisationId};
use pillarbox_domain::mailbox::{Address, DomainName};
use pillarbox_domain::organisation::Organisation;
use pillarbox_domain::request::{FieldError, IdempotencyKey, SendRequest, Submission};
use pillarbox_http::body::RequestBody;
use pillarbox_intake::Refusal;
use pillarbox_store::Accepted;

/// Envelope of a message, from MAIL to DATA.
#[derive(Debug, Default)]
pub(super) struct Announced {
    /// The domain of its sender, unless that is empty.
    pub(super) sender_domain: Option<DomainName<'static>>,
    /// Recipients of the message.
    pub(super) recipients: Vec<String>,
}

/// Accepts a message, or says why not. The reply to success comes after the commit.
pub(super) async fn submit(
    shared: &Shared,
    (organisation, key): (&Organisation, KeyId),
    Announced { sender_domain, recipients }: Announced,
    message: RequestBody<OrganisationId>,
) -> Reply {
    let request_id = shared.ids.next();
    let prepared = {
        let fields = match Fields::read(&message) {
            Ok(fields) => fields,
            Err(error) => return Reply::new("550 5.6.0", &error.to_string()),
        };
        let other_senders = fields.other_senders.clone();
        let idempotency_key =
            fields.message_id.map(|message_id| submission_key(message_id, &recipients, &message));
        let submission = Submission {
            from: &fields.from,
            from_header: fields.from_header.as_deref(),
            // That of the envelope may have been withdrawn since MAIL.
            other_senders: sender_domain.into_iter().chain(other_senders).collect(),
            recipients: recipients.iter().map(String::as_str).collect(),
            subject: &fields.subject,
            message: fields.message(),
            idempotency_key: idempotency_key.as_deref().map(IdempotencyKey::of_submission),
        };
        match SendRequest::of_submission(submission) {
            Ok(request) => {
                shared.intake.prepare(organisation, Some(key), request, Some(request_id)).await
            }
            Err(FieldError { field, rule }) => {
                let text = match field {
                    Some(field) => format!("{field}: {rule}"),
                    None => rule,
                };
                return Reply::new("550 5.6.0", &text);
            }
        }
    };
    // What is sent is encoded by now: the memory of what was read is free again.
    drop(message);
    let accepted = match prepared {
        Ok(prepared) => shared.intake.accept(prepared).await,
        Err(refusal) => Err(refusal),
    };
    match accepted {
        Ok(accepted) => {
            tracing::debug!(%request_id, id = %accepted.id(), "accepted over SMTP");
            match accepted {
                Accepted::New(_) => shared.clients.accepted.inc(),
                Accepted::Replayed(_) => shared.clients.replayed.inc(),
            };
            Reply::new("250 2.0.0", &accepted.id().to_string())
        }
        Err(refusal) => {
            tracing::debug!(%request_id, ?refusal, "refused over SMTP");
            reply_to(&refusal)
        }
    }
}

/// The reply to a message, or to a part of it, that is refused for this reason.
fn reply_to(refusal: &Refusal) -> Reply {
    match refusal {
        Refusal::KeyEnded => Reply::KEY_ENDED,
        Refusal::UnverifiedDomain { domain, .. } => unverified(domain.as_str()),
        Refusal::SenderForbidden { domain } => sender_forbidden(domain.as_str()),
        Refusal::Suppressed { .. } => Reply::SUPPRESSED,
        Refusal::Paused => Reply::PAUSED,
        Refusal::LimitReached(exceeded) => {
            // The client may split what alone is too large, and repeat the rest later.
            let codes = if exceeded.retry.is_some() { "451 4.7.1" } else { "550 5.7.1" };
            Reply::new(codes, &exceeded.to_string())
        }
        Refusal::QueueFull(_) => Reply::QUEUE_FULL,
        Refusal::StorageUnavailable | Refusal::Internal | Refusal::TermsUnknown { .. } => {
            Reply::STORAGE_UNAVAILABLE
        }
        Refusal::OutcomeOpen => Reply::OUTCOME_OPEN,
        Refusal::ShuttingDown => Reply::STOPPING,
    }
}

/// The reply to a sender whose domain is not verified.
pub(super) fn unverified(domain: &str) -> Reply {
    let text = format!("the domain {domain} is not verified for your organisation");
    Reply::new("550 5.7.1", &text)
}

/// The reply to a sender whose domain the client's key is not for.
pub(super) fn sender_forbidden(domain: &str) -> Reply {
    Reply::new("550 5.7.1", &format!("this API key is not valid for the sender domain {domain}"))
}

/// The key of a submission: a digest of its `Message-ID`, its recipients in any order, and its
/// bytes.
fn submission_key(message_id: &[u8], recipients: &[String], message: &[u8]) -> String {
    let normal = |recipient: &String| {
        Address::parse(recipient).map_or_else(|_| recipient.clone(), |address| address.normalized())
    };
    let mut recipients: Vec<String> = recipients.iter().map(normal).collect();
    recipients.sort_unstable();
    let mut digest = Sha256::new();
    // No part has a line feed in it but the folded `Message-ID`, whose length comes first.
    digest.update(message_id.len().to_be_bytes());
    digest.update(message_id);
    for recipient in &recipients {
        digest.update(recipient);
        digest.update(b"\n");
    }
    digest.update(Sha256::digest(message));
    URL_SAFE_NO_PAD.encode(digest.finalize())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_of_message_id_recipients_and_bytes() {
        let key = |id: &str, recipients: &[&str], message: &str| {
            let recipients: Vec<_> = recipients.iter().map(|&one| one.to_owned()).collect();
            submission_key(id.as_bytes(), &recipients, message.as_bytes())
        };
        let first = key("<1>", &["a@x.org", "b@x.org"], "message");
        assert_eq!(key("<1>", &["B@X.org", "a@x.org"], "message"), first, "in whatever order");
        assert_ne!(key("<2>", &["a@x.org", "b@x.org"], "message"), first);
        assert_ne!(key("<1>", &["a@x.org"], "message"), first);
        assert_ne!(key("<1>", &["a@x.org", "b@x.org"], "another"), first);
        assert_ne!(key("<1>", &["a@x.org", "a@x.org", "b@x.org"], "message"), first);
    }
}
