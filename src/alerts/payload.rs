//! Payloads: an alert as the receiver is sent it. No recipient, subject or key is in it.

use bytes::Bytes;
use serde::Serialize;
use sha2::{Digest, Sha256};

use crate::book::Book;
use pillarbox_domain::alert::{Alert, AlertEvent, AlertKey, ReportedCondition};
use pillarbox_domain::id::OrganisationId;
use pillarbox_domain::time::Timestamp;
use pillarbox_domain::webhook::WebhookFormat;
use pillarbox_webhooks::Delivery;

/// Bytes of the hash in an id.
const ID_BYTES: usize = 16;

/// Body of a post.
#[derive(Serialize)]
struct Payload<'a> {
    id: &'a str,
    #[serde(rename = "type")]
    event_type: &'static str,
    timestamp: String,
    data: Data<'a>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Data<'a> {
    Condition(ConditionData<'a>),
    Domain(DomainData<'a>),
    Key(KeyData<'a>),
    Current(CurrentData<'a>),
    Nothing {},
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ConditionData<'a> {
    code: &'a str,
    severity: &'a str,
    message: &'a str,
    advice: &'a str,
    /// Subject of the condition, such as an organisation, a domain or an endpoint.
    #[serde(skip_serializing_if = "str::is_empty")]
    about: &'a str,
    /// Left out if there is one node, and of what all nodes share.
    #[serde(skip_serializing_if = "str::is_empty")]
    node: &'a str,
    since: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    ended_at: Option<String>,
}

#[derive(Serialize)]
struct DomainData<'a> {
    domain: &'a str,
    organisation: String,
    message: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    advice: Option<String>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct KeyData<'a> {
    /// Number of the key, as in lists.
    id: u32,
    #[serde(skip_serializing_if = "str::is_empty")]
    label: &'a str,
    organisation: String,
    expires_at: String,
    message: String,
    advice: String,
}

#[derive(Serialize)]
struct CurrentData<'a> {
    /// Node that has started.
    #[serde(skip_serializing_if = "str::is_empty")]
    node: &'a str,
    conditions: Vec<ConditionData<'a>>,
}

/// Returns the body of an alert's post. `book` has the conditions that hold, and `organisation`
/// returns the name of an organisation that exists. `None` if it is about one that was removed.
pub(super) fn delivery(
    key: &AlertKey,
    alert: &Alert,
    book: &Book,
    organisation: impl Fn(OrganisationId) -> Option<String>,
) -> Option<Delivery> {
    let at = alert.news.at;
    let (event_type, data) = match (key, &alert.news.event) {
        (AlertKey::Condition { node, code, about }, AlertEvent::Raised(condition)) => {
            let data = condition_data((node, code, about), condition, None);
            ("condition.raised", Data::Condition(data))
        }
        (AlertKey::Condition { node, code, about }, AlertEvent::Cleared(condition)) => {
            let data = condition_data((node, code, about), condition, Some(at));
            ("condition.cleared", Data::Condition(data))
        }
        (AlertKey::Domain { organisation: of, name }, AlertEvent::DomainVerified) => {
            let (organisation, advice) = (organisation(*of)?, None);
            let message = format!("{name} is verified: {organisation} may send from it");
            let data = DomainData { domain: name, organisation, message, advice };
            ("domain.verified", Data::Domain(data))
        }
        (AlertKey::Domain { organisation: of, name }, AlertEvent::DomainFailed) => {
            let organisation = organisation(*of)?;
            let message = format!("{name} is not verified: {organisation} cannot send from it");
            let advice = Some(format!("See what is missing: pillarbox domain check {name}"));
            let data = DomainData { domain: name, organisation, message, advice };
            ("domain.failed", Data::Domain(data))
        }
        (
            AlertKey::KeyExpiry(id),
            AlertEvent::KeyExpiring { organisation: of, label, expires_at },
        ) => {
            let organisation = organisation(*of)?;
            let (id, expires_at) = (id.0, expires_at.to_string());
            let message = format!("API key {id} of {organisation} expires at {expires_at}");
            let advice = format!(
                "Create another key: pillarbox key add --org {organisation}. Give it to the \
                 application before the old one expires"
            );
            let data = KeyData { id, label, organisation, expires_at, message, advice };
            ("key.expiring", Data::Key(data))
        }
        (AlertKey::Start { node }, AlertEvent::Started) => {
            let conditions = book.alerts().filter_map(|(key, alert)| match key {
                AlertKey::Condition { node, code, about } => {
                    Some(condition_data((node, code, about), alert.holding()?, None))
                }
                _ => None,
            });
            let conditions = conditions.collect();
            ("conditions.current", Data::Current(CurrentData { node, conditions }))
        }
        // No such row is written.
        _ => return None,
    };
    Some(encode(&id(key, event_type, at), event_type, at, data))
}

/// Returns a test, which is about nothing.
pub(super) fn test(now: Timestamp) -> Delivery {
    let id = format!("alert_test_{:016x}", fastrand::u64(..));
    encode(&id, "alerts.test", now, Data::Nothing {})
}

fn condition_data<'a>(
    (node, code, about): (&'a str, &'a str, &'a str),
    condition: &'a ReportedCondition,
    ended_at: Option<Timestamp>,
) -> ConditionData<'a> {
    let ReportedCondition { severity, message, advice, since } = condition;
    let (since, ended_at) = (since.to_string(), ended_at.map(|at| at.to_string()));
    ConditionData { code, severity, message, advice, about, node, since, ended_at }
}

fn encode(id: &str, event_type: &'static str, at: Timestamp, data: Data<'_>) -> Delivery {
    let payload = Payload { id, event_type, timestamp: at.to_string(), data };
    let body = serde_json::to_vec(&payload).expect("texts and numbers serialize");
    Delivery { id: id.to_owned(), body: Bytes::from(body), format: WebhookFormat::Standard }
}

/// Returns the id of an event: the same at every attempt, after a restart and on each node.
fn id(key: &AlertKey, event_type: &str, at: Timestamp) -> String {
    let subject = match key {
        AlertKey::Condition { node, code, about } => format!("{node}\0{code}\0{about}"),
        AlertKey::Domain { organisation, name } => format!("{}\0{name}", organisation.0),
        AlertKey::KeyExpiry(id) => id.to_string(),
        AlertKey::Start { node } => node.clone(),
    };
    let text = format!("{event_type}\0{}\0{subject}", at.unix_millis());
    let digest = Sha256::digest(text.as_bytes());
    format!("alert_{}", hex::encode(&digest[..ID_BYTES]))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use pillarbox_domain::alert::{AlertChange, News};
    use pillarbox_domain::id::KeyId;

    const NOON: Timestamp = Timestamp::from_unix_millis(1_800_000_000_000);
    const SOON: Timestamp = Timestamp::from_unix_millis(1_800_000_060_000);

    fn told() -> ReportedCondition {
        ReportedCondition {
            severity: "critical".to_owned(),
            message: "The store refuses writes".to_owned(),
            advice: "Make room".to_owned(),
            since: NOON,
        }
    }

    fn condition(node: &str, about: &str) -> AlertKey {
        let code = "store_refusing".to_owned();
        AlertKey::Condition { node: node.to_owned(), code, about: about.to_owned() }
    }

    fn posted(key: &AlertKey, event: AlertEvent, book: &Book) -> Value {
        let alert = Alert::new(News { at: SOON, event });
        let name = |id: OrganisationId| (id.0 == 1).then(|| "acme".to_owned());
        let delivery = delivery(key, &alert, book, name).unwrap();
        let value: Value = serde_json::from_slice(&delivery.body).unwrap();
        assert_eq!(value["id"], json!(delivery.id));
        assert_eq!(value["timestamp"], "2027-01-15T08:01:00.000Z");
        value
    }

    #[test]
    fn a_condition_has_its_node_and_what_it_is_about_if_there_are_any() {
        let book = Book::default();
        let raised = posted(&condition("", ""), AlertEvent::Raised(told()), &book);
        assert_eq!(raised["type"], "condition.raised");
        let data = json!({
            "code": "store_refusing", "severity": "critical",
            "message": "The store refuses writes", "advice": "Make room",
            "since": "2027-01-15T08:00:00.000Z",
        });
        assert_eq!(raised["data"], data);
        let cleared = posted(&condition("mail-a", "acme"), AlertEvent::Cleared(told()), &book);
        assert_eq!(cleared["type"], "condition.cleared");
        assert_eq!(cleared["data"]["node"], "mail-a");
        assert_eq!(cleared["data"]["about"], "acme");
        assert_eq!(cleared["data"]["endedAt"], "2027-01-15T08:01:00.000Z");
    }

    #[test]
    fn a_start_lists_what_holds() {
        let mut book = Book::default();
        for (about, event) in
            [("a", AlertEvent::Raised(told())), ("b", AlertEvent::Cleared(told()))]
        {
            let news = Some(News { at: SOON, event });
            book.change(condition("", about), AlertChange { news, delivery: None });
        }
        let key = AlertKey::Start { node: String::new() };
        let current = posted(&key, AlertEvent::Started, &book);
        assert_eq!(current["type"], "conditions.current");
        let conditions = current["data"]["conditions"].as_array().unwrap();
        assert_eq!(conditions.len(), 1);
        assert_eq!(conditions[0]["about"], "a");
        let nothing = posted(&key, AlertEvent::Started, &Book::default());
        assert_eq!(nothing["data"], json!({ "conditions": [] }));
    }

    #[test]
    fn domains_and_keys_are_named_as_commands_name_them() {
        let book = Book::default();
        let domain = |of| AlertKey::Domain {
            organisation: OrganisationId(of),
            name: "example.com".to_owned(),
        };
        let verified = posted(&domain(1), AlertEvent::DomainVerified, &book);
        assert_eq!(verified["type"], "domain.verified");
        assert_eq!(verified["data"]["domain"], "example.com");
        assert_eq!(verified["data"]["organisation"], "acme");
        let failed = posted(&domain(1), AlertEvent::DomainFailed, &book);
        assert_eq!(failed["type"], "domain.failed");
        let expiring = AlertEvent::KeyExpiring {
            organisation: OrganisationId(1),
            label: "web".to_owned(),
            expires_at: SOON,
        };
        let expiring = posted(&AlertKey::KeyExpiry(KeyId(7)), expiring, &book);
        assert_eq!(expiring["type"], "key.expiring");
        assert_eq!(
            (&expiring["data"]["id"], &expiring["data"]["label"]),
            (&json!(7), &json!("web"))
        );
        assert_eq!(expiring["data"]["expiresAt"], "2027-01-15T08:01:00.000Z");
        let alert = Alert::new(News { at: SOON, event: AlertEvent::DomainVerified });
        assert!(delivery(&domain(2), &alert, &book, |_| None).is_none(), "it is gone");
    }

    #[test]
    fn an_id_is_that_of_the_event() {
        let id_of = |key: &AlertKey, kind, at| id(key, kind, at);
        let key = condition("a", "");
        let first = id_of(&key, "condition.raised", NOON);
        assert_eq!(first, id_of(&key, "condition.raised", NOON));
        for other in [
            id_of(&key, "condition.raised", SOON),
            id_of(&key, "condition.cleared", NOON),
            id_of(&condition("", "a"), "condition.raised", NOON),
        ] {
            assert_ne!(first, other);
        }
    }
}
