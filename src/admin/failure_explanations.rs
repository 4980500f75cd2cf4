//! Explains a step of a message to operators in plain words: its cause, and what to do. The page,
//! `message show` and the docs take it from here. Must not know how any of them prints it.

use pillarbox_domain::event::{BounceType, Event, EventDetail};
use pillarbox_domain::message::FailureCode;

/// Cause of something that happened to a message, and what to do about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Explanation {
    /// Name of it in the page's help: a failure code, or the kind of an event.
    pub topic: &'static str,
    pub cause: &'static str,
    pub advice: &'static str,
}

const fn told(topic: &'static str, cause: &'static str, advice: &'static str) -> Explanation {
    Explanation { topic, cause, advice }
}

/// Kinds of events that are explained.
const EVENTS: [Explanation; 8] = [
    told(
        "bounce_permanent",
        "The recipient's server refused the message for good: the address does not exist, or \
         accepts no mail",
        "Correct the address in your application. The suppression stops further mail to it; remove \
         the suppression only if the address works again",
    ),
    told(
        "bounce_transient",
        "The recipient's server refused the message for now, and SES gave up: the mailbox is full, the \
         message is too large, or the server had a fault",
        "Send it again later. The address is not suppressed",
    ),
    told(
        "bounce_undetermined",
        "The message came back, and SES could not tell why from the server's answer",
        "Read the server's answer (diagnosticCode). The address is not suppressed",
    ),
    told(
        "stopped_at_ses",
        "SES did not send the message: the address is on a suppression list at SES, or SES found it \
         invalid",
        "If the bounce's subtype is OnAccountSuppressionList and the address works again, remove it \
         from the list at SES: pillarbox suppression remove --at-ses --org ORG ADDRESS. It is not \
         suppressed in this service",
    ),
    told(
        "complaint",
        "The recipient's mailbox provider passed on a complaint. Unless its feedback type is \
         not-spam, the recipient marked the message as spam",
        "Send no more mail to this person unless they ask for it. If the complaint suppressed the \
         address, the suppression stops further mail to them",
    ),
    told(
        "reject",
        "SES accepted the message and then refused to send it: it found a virus or forbidden content",
        "Look at what the message contained, including attachments. Do not send it again unchanged",
    ),
    told(
        "delivery_delay",
        "The recipient's server does not accept the message at the moment. SES tries again for up \
         to 14 hours",
        "Wait: a delivery or a bounce follows",
    ),
    told(
        "delivery",
        "The recipient's server accepted the message",
        "If the recipient cannot find it, it may be in the spam folder, or in quarantine at their \
         provider",
    ),
];

/// Returns everything that is explained: failure codes, then kinds of events.
pub fn all() -> impl Iterator<Item = Explanation> {
    FailureCode::ALL.into_iter().map(of_failure).chain(EVENTS)
}

/// Explains why a message is not sent, or not yet.
pub const fn of_failure(code: FailureCode) -> Explanation {
    let (cause, advice) = match code {
        FailureCode::BodyLostOnRestart => (
            "The process ended while the message was pending, and nothing kept its body",
            "If its error says that SES may have it, look for an event of the message first. \
             Otherwise post it again from the application with a new idempotency key. To see what \
             keeps bodies: pillarbox bodies",
        ),
        FailureCode::ProviderRejected => (
            "SES refused this message for good, for the reason that it names",
            "Correct the message and post it again with a new idempotency key",
        ),
        FailureCode::ProviderUnavailable => (
            "SES could not be reached, or had a fault",
            "Nothing: the service tries again. If this continues, check the network and the AWS \
             Health Dashboard",
        ),
        FailureCode::ProviderThrottled => (
            "SES asked to slow down: the account sends faster than it may",
            "Nothing: the service tries again more slowly. If this continues, ask AWS for a higher \
             rate",
        ),
        FailureCode::ProviderQuotaExhausted => (
            "The account's 24-hour quota is used up",
            "Wait, or ask AWS for a higher quota. The service tries again automatically",
        ),
        FailureCode::SendingPaused => (
            "SES accepts no mail from this account or domain, or the set-up is wrong",
            "See what pillarbox status says, and run: pillarbox doctor --config FILE. The service \
             tries again automatically",
        ),
        FailureCode::RetriesExhausted => (
            "No attempt is known to have succeeded within sending.retry_for",
            "Find out why the attempts failed. If an answer was lost, look for an event of the \
             message first. Otherwise post it again from the application with a new idempotency key",
        ),
        FailureCode::OutcomeUnknown => (
            "The answer of SES was lost, so SES may have the message",
            "Before you post it again, look for an event of the message, or ask the recipient",
        ),
        FailureCode::RecipientSuppressed => (
            "A recipient became suppressed after the message was accepted, because of a bounce or \
             a complaint, or by an operator",
            "If the address works again, remove the suppression and post the message again from \
             the application with a new idempotency key",
        ),
        FailureCode::DomainUnverified => (
            "The sender's domain no longer belongs to the organisation",
            "Nothing, if this was intended. Otherwise add the domain again: pillarbox domain add \
             --org NAME DOMAIN. Once it is verified, post the message again from the application \
             with a new idempotency key",
        ),
        FailureCode::Cancelled => (
            "The application or an operator cancelled the message, or its organisation was removed",
            "Nothing, if this was intended. Otherwise post it again from the application with a \
             new idempotency key",
        ),
        FailureCode::Expired => (
            "The message was not sent within its own time (expiresIn)",
            "Find out what delayed it. If an answer was lost, look for an event of the message \
             first. If it is still useful, post it again from the application with a new idempotency key",
        ),
    };
    told(code.as_str(), cause, advice)
}

/// Explanation of an event, from its type and its details.
pub fn of_event(event: &Event) -> Explanation {
    let is_stopped = event.suppresses().is_none();
    let topic = match &event.detail {
        EventDetail::Bounce { bounce_type: BounceType::Permanent, .. } if is_stopped => {
            "stopped_at_ses"
        }
        EventDetail::Bounce { bounce_type: BounceType::Permanent, .. } => "bounce_permanent",
        EventDetail::Bounce { bounce_type: BounceType::Transient, .. } => "bounce_transient",
        EventDetail::Bounce { bounce_type: BounceType::Undetermined, .. } => "bounce_undetermined",
        EventDetail::Complaint { .. } => "complaint",
        EventDetail::Reject { .. } => "reject",
        EventDetail::DeliveryDelay { .. } => "delivery_delay",
        EventDetail::Delivery { .. } => "delivery",
    };
    let found = EVENTS.into_iter().find(|one| one.topic == topic);
    found.expect("every kind of event is explained")
}

#[cfg(test)]
mod tests {
    use super::*;
    use pillarbox_domain::time::Timestamp;

    #[test]
    fn every_event_is_explained_and_a_list_at_ses_is_told_from_a_bounce() {
        let explained = |detail| {
            let occurred_at = Timestamp::from_unix_millis(0);
            of_event(&Event { occurred_at, recipients: Vec::new(), detail }).topic
        };
        let bounce = |bounce_type, sub_type: &str| EventDetail::Bounce {
            bounce_type,
            sub_type: sub_type.to_owned(),
            diagnostic_code: None,
        };
        assert_eq!(explained(bounce(BounceType::Permanent, "General")), "bounce_permanent");
        let listed = bounce(BounceType::Permanent, "OnAccountSuppressionList");
        assert_eq!(explained(listed), "stopped_at_ses");
        assert_eq!(explained(bounce(BounceType::Transient, "MailboxFull")), "bounce_transient");
        assert_eq!(explained(bounce(BounceType::Undetermined, "")), "bounce_undetermined");
        assert_eq!(explained(EventDetail::Reject { reason: String::new() }), "reject");
        assert_eq!(explained(EventDetail::Delivery { smtp_response: None }), "delivery");
        let topics: std::collections::BTreeSet<_> = all().map(|one| one.topic).collect();
        assert_eq!(topics.len(), all().count(), "each has one name");
    }
}
