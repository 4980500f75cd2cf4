//! `SendEmail` without a connection: reads a request and refuses it as SES does, for a caller in the
//! same process.
//!
//! There is no account behind it: every sender is verified, every configuration set is there, and
//! nothing is limited. Must not know who calls, and sends nothing to anybody.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::Response;
use serde_json::json;

use super::captured::CapturedMessage;
use super::events::{Envelope, EventOptions, Publisher, events_of};
use super::protocol::{self, ResponseBody};
use super::random::IdGenerator;
use super::send_email;
use http::StatusCode;
use pillarbox_domain::time::Timestamp;

/// The region in the events' ARNs.
const REGION: &str = "eu-west-1";

/// SES's `SendEmail`, answered inside the process.
#[derive(Debug)]
pub struct InProcessSes {
    ids: IdGenerator,
    events: EventOptions,
}

/// An answer, and the message if it was accepted.
#[derive(Debug)]
pub struct InProcessAnswer {
    /// The answer as SES gives it.
    pub response: Response<Bytes>,
    /// The accepted message, with its events.
    pub accepted: Option<(CapturedMessage, Vec<LaterEvent>)>,
}

/// An event of an accepted message.
#[derive(Debug, Clone)]
pub struct LaterEvent {
    /// Time from the acceptance to the event.
    pub after: Duration,
    /// The event's document, as a queue brings it with raw message delivery.
    pub document: Arc<str>,
}

impl InProcessSes {
    /// Answers from now on. Deliveries and bounces come `delay` after the acceptance, complaints
    /// after twice that.
    pub fn new(delay: Duration) -> Self {
        let events = EventOptions { envelope: Envelope::Raw, ..EventOptions::after(delay) };
        Self { ids: IdGenerator::new(), events }
    }

    /// Answers a request of `SendEmail` with this body.
    pub fn send_email(&self, body: &[u8]) -> InProcessAnswer {
        let received_at = Timestamp::from(SystemTime::now());
        match send_email::read(body, self.ids.message_id(received_at), received_at) {
            Ok(message) => {
                let publisher = Publisher { ids: &self.ids, region: REGION, topic: "" };
                let events = events_of(publisher, &message, self.events, |_| true);
                let events = events
                    .into_iter()
                    .map(|event| LaterEvent { after: event.delay, document: event.body });
                let answer = json!({ "MessageId": message.id });
                InProcessAnswer {
                    response: whole(protocol::json(StatusCode::OK, &answer)),
                    accepted: Some((message, events.collect())),
                }
            }
            Err(error) => InProcessAnswer { response: whole(error.to_response()), accepted: None },
        }
    }
}

/// The response with its body as bytes.
fn whole(response: Response<ResponseBody>) -> Response<Bytes> {
    response.map(|body| match body {
        ResponseBody::Whole(bytes) => bytes.unwrap_or_default(),
        ResponseBody::Truncated { .. } => unreachable!("only a fault cuts an answer off"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(to: &str) -> Vec<u8> {
        let request = json!({
            "FromEmailAddress": "ann@example.com",
            "Destination": { "ToAddresses": [to] },
            "Content": { "Simple": {
                "Subject": { "Data": "Hello" }, "Body": { "Text": { "Data": "Hi" } },
            } },
        });
        serde_json::to_vec(&request).unwrap()
    }

    fn events(to: &str) -> Vec<(String, Duration)> {
        let ses = InProcessSes::new(Duration::from_secs(1));
        let (_, events) = ses.send_email(&request(to)).accepted.unwrap();
        let named = events.into_iter().map(|event| {
            let document: serde_json::Value = serde_json::from_str(&event.document).unwrap();
            (document["eventType"].as_str().unwrap().to_owned(), event.after)
        });
        named.collect()
    }

    #[test]
    fn addresses_of_the_mailbox_simulator_decide_what_is_reported() {
        let (second, two) = (Duration::from_secs(1), Duration::from_secs(2));
        let sent = ("Send".to_owned(), Duration::ZERO);
        let named = |name: &str, after| (name.to_owned(), after);
        assert_eq!(events("bob@example.org"), [sent.clone(), named("Delivery", second)]);
        assert_eq!(
            events("bounce@simulator.amazonses.com"),
            [sent.clone(), named("Bounce", second)]
        );
        assert_eq!(
            events("complaint+1@simulator.amazonses.com"),
            [sent, named("Delivery", second), named("Complaint", two)]
        );
    }

    #[test]
    fn a_request_that_ses_refuses_is_refused_in_its_words() {
        let answer = InProcessSes::new(Duration::ZERO).send_email(&request("not an address"));
        assert_eq!(answer.response.status(), StatusCode::BAD_REQUEST);
        assert_eq!(answer.response.headers()["x-amzn-errortype"], "BadRequestException");
        assert!(answer.accepted.is_none());
    }
}
