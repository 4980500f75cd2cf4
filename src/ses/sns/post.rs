//! A post of SNS's, and the text that its signature is over.
//!
//! Sources: "Parsing Amazon SNS message formats" and "Verifying the signatures of Amazon SNS
//! messages" in the SNS developer guide. Reads, and believes nothing.

use serde::Deserialize;
use serde_json::json;

use crate::ses::sns::TopicArn;

/// What SNS posts, as far as it counts. Other fields are not signed, and not looked at; a field
/// that is there twice is refused, because nobody could tell which of the two was signed.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct Post {
    #[serde(rename = "Type")]
    kind: Kind,
    message_id: String,
    pub(super) topic_arn: String,
    message: String,
    subject: Option<String>,
    pub(super) timestamp: String,
    token: Option<String>,
    #[serde(rename = "SubscribeURL")]
    subscribe_url: Option<String>,
    pub(super) signature_version: String,
    pub(super) signature: String,
    #[serde(rename = "SigningCertURL")]
    pub(super) signing_cert_url: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
enum Kind {
    Notification,
    SubscriptionConfirmation,
    UnsubscribeConfirmation,
}

/// A post that SNS made, for a topic that is believed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verified {
    /// Something was published.
    Notification {
        /// The topic.
        topic: TopicArn,
        /// SNS's envelope with nothing in it but what was signed.
        document: String,
    },
    /// SNS asks whether this endpoint wants the topic's messages.
    SubscriptionConfirmation {
        /// The topic.
        topic: TopicArn,
        /// What the subscription is confirmed by.
        token: String,
    },
    /// This endpoint's subscription was removed.
    UnsubscribeConfirmation {
        /// The topic.
        topic: TopicArn,
    },
}

impl Verified {
    /// The topic that it is for.
    pub fn topic(&self) -> &TopicArn {
        match self {
            Self::Notification { topic, .. }
            | Self::SubscriptionConfirmation { topic, .. }
            | Self::UnsubscribeConfirmation { topic } => topic,
        }
    }
}

/// The body is no post of SNS's: what is wrong with it, without repeating it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Malformed(String);

impl Post {
    pub(super) fn read(body: &[u8]) -> Result<Self, Malformed> {
        let post: Self = serde_json::from_slice(body).map_err(|error| {
            // The parser's own message may repeat what it read; where it stopped is enough.
            let (line, column) = (error.line(), error.column());
            Malformed(format!("it is not what SNS posts, at line {line}, column {column}"))
        })?;
        // The signed text is lines of names and values. Where a value other than the message had
        // lines of its own, one text could be read as different posts.
        for (name, value) in post.signed().into_iter().skip(1) {
            if value.contains(['\n', '\r']) {
                return Err(Malformed(format!("{name} has a line break")));
            }
        }
        if post.kind != Kind::Notification && (post.token.is_none() || post.subscribe_url.is_none())
        {
            return Err(Malformed("a confirmation needs Token and SubscribeURL".to_owned()));
        }
        Ok(post)
    }

    /// The text that the signature is over.
    pub(super) fn string_to_sign(&self) -> String {
        let mut text = String::with_capacity(self.message.len() + 512);
        for (name, value) in self.signed() {
            for part in [name, value] {
                text.push_str(part);
                text.push('\n');
            }
        }
        text
    }

    /// The signed fields in their order, the message first.
    fn signed(&self) -> Vec<(&'static str, &str)> {
        let mut fields = vec![("Message", self.message.as_str()), ("MessageId", &self.message_id)];
        let kind = match self.kind {
            Kind::Notification => {
                fields.extend(self.subject.as_deref().map(|subject| ("Subject", subject)));
                fields.push(("Timestamp", &self.timestamp));
                "Notification"
            }
            Kind::SubscriptionConfirmation | Kind::UnsubscribeConfirmation => {
                fields.extend(self.subscribe_url.as_deref().map(|url| ("SubscribeURL", url)));
                fields.push(("Timestamp", &self.timestamp));
                fields.extend(self.token.as_deref().map(|token| ("Token", token)));
                if self.kind == Kind::SubscriptionConfirmation {
                    "SubscriptionConfirmation"
                } else {
                    "UnsubscribeConfirmation"
                }
            }
        };
        fields.extend([("TopicArn", self.topic_arn.as_str()), ("Type", kind)]);
        fields
    }

    /// What the post says, once it is known to be SNS's.
    pub(super) fn into_verified(self, topic: TopicArn) -> Verified {
        match self.kind {
            Kind::Notification => {
                // Built anew: whatever else was in the body was signed by nobody.
                let document = json!({
                    "Type": "Notification",
                    "MessageId": self.message_id,
                    "TopicArn": topic.as_str(),
                    "Message": self.message,
                    "Timestamp": self.timestamp,
                });
                Verified::Notification { topic, document: document.to_string() }
            }
            Kind::SubscriptionConfirmation => Verified::SubscriptionConfirmation {
                topic,
                token: self.token.expect("a confirmation has been read with its token"),
            },
            Kind::UnsubscribeConfirmation => Verified::UnsubscribeConfirmation { topic },
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn notification() -> Value {
        json!({
            "Type": "Notification", "MessageId": "id", "TopicArn": "arn", "Message": "a\nb",
            "Timestamp": "then", "SignatureVersion": "2", "Signature": "s", "SigningCertURL": "u",
        })
    }

    fn read(document: &Value) -> Result<Post, Malformed> {
        Post::read(document.to_string().as_bytes())
    }

    #[test]
    fn a_notification_is_signed_with_its_subject_where_it_has_one() {
        let mut document = notification();
        let without = "Message\na\nb\nMessageId\nid\nTimestamp\nthen\nTopicArn\narn\nType\n\
                       Notification\n";
        assert_eq!(read(&document).unwrap().string_to_sign(), without);
        // A token is no part of a notification.
        document["Token"] = json!("t");
        document["Subject"] = json!("S");
        let with = without.replace("Timestamp\n", "Subject\nS\nTimestamp\n");
        assert_eq!(read(&document).unwrap().string_to_sign(), with);
    }

    #[test]
    fn a_confirmation_is_signed_with_its_url_and_token() {
        let mut document = notification();
        document["Subject"] = json!("no part of it");
        for kind in ["SubscriptionConfirmation", "UnsubscribeConfirmation"] {
            document["Type"] = json!(kind);
            document["Token"] = json!("t");
            assert!(read(&document).is_err(), "without SubscribeURL");
            document["SubscribeURL"] = json!("u");
            assert_eq!(
                read(&document).unwrap().string_to_sign(),
                format!(
                    "Message\na\nb\nMessageId\nid\nSubscribeURL\nu\nTimestamp\nthen\nToken\nt\n\
                     TopicArn\narn\nType\n{kind}\n"
                )
            );
            document["Token"].take();
            assert!(read(&document).is_err(), "without Token");
            document["SubscribeURL"].take();
        }
    }

    #[test]
    fn what_could_be_read_in_two_ways_is_refused() {
        for field in ["MessageId", "Subject", "Timestamp", "TopicArn"] {
            let mut document = notification();
            document[field] = json!("a\nTimestamp\nb");
            assert!(read(&document).is_err(), "{field}");
        }
        let twice = notification().to_string().replacen('{', r#"{"Message":"other","#, 1);
        assert!(Post::read(twice.as_bytes()).is_err());
    }

    #[test]
    fn only_what_was_signed_is_handed_on() {
        let mut document = notification();
        document["eventType"] = json!("Bounce");
        document["MessageAttributes"] = json!({"a": 1});
        let topic = || TopicArn::parse("arn:aws:sns:eu-west-1:123456789012:t").unwrap();
        let Verified::Notification { document, .. } =
            read(&document).unwrap().into_verified(topic())
        else {
            panic!("it is a notification");
        };
        let document: Value = serde_json::from_str(&document).unwrap();
        assert_eq!(
            document,
            json!({
                "Type": "Notification", "MessageId": "id", "TopicArn": topic().as_str(),
                "Message": "a\nb", "Timestamp": "then",
            })
        );
    }
}
