//! Policies: who may publish and send, and the least that the set-up and the service need.
//!
//! The resources that an action can be limited to are those of AWS's service authorization
//! reference, under SES v2, SNS and SQS.

use serde_json::{Value, json};

use super::Resources;

/// The version of AWS's policy language.
const VERSION: &str = "2012-10-17";

/// Lets SES publish to the topic: for this account and configuration set alone, so that no other
/// account's SES can ("confused deputy").
pub(super) fn ses_publishes(resources: &Resources) -> Value {
    json!({
        "Sid": "PillarboxSesPublishes",
        "Effect": "Allow",
        "Principal": { "Service": "ses.amazonaws.com" },
        "Action": "sns:Publish",
        "Resource": resources.topic(),
        "Condition": { "StringEquals": {
            "AWS:SourceAccount": resources.account(),
            "AWS:SourceArn": resources.configuration_set(),
        } },
    })
}

/// Lets the topic, and nothing else, send to the queue.
pub(super) fn topic_sends(resources: &Resources) -> Value {
    json!({
        "Sid": "PillarboxTopicSends",
        "Effect": "Allow",
        "Principal": { "Service": "sns.amazonaws.com" },
        "Action": "sqs:SendMessage",
        "Resource": resources.queue(),
        "Condition": { "ArnEquals": { "aws:SourceArn": resources.topic() } },
    })
}

/// The policy with the statement in it: `None` if it is there already. A statement of the same
/// `Sid` is replaced, and all others stay.
pub(super) fn with_statement(
    policy: Option<&str>,
    statement: Value,
) -> Result<Option<String>, serde_json::Error> {
    let mut policy: Value = match policy.filter(|text| !text.is_empty()) {
        Some(text) => serde_json::from_str(text)?,
        None => json!({ "Version": VERSION, "Statement": [] }),
    };
    let mut statements = match policy.get_mut("Statement").map(Value::take) {
        Some(Value::Array(statements)) => statements,
        Some(Value::Null) | None => Vec::new(),
        Some(one) => vec![one],
    };
    if statements.contains(&statement) {
        return Ok(None);
    }
    statements.retain(|known| known.get("Sid") != statement.get("Sid"));
    statements.push(statement);
    if !policy.is_object() {
        policy = json!({ "Version": VERSION });
    }
    policy["Statement"] = Value::Array(statements);
    Ok(Some(policy.to_string()))
}

/// The least that the set-up needs.
pub fn for_setup(resources: &Resources) -> Value {
    json!({ "Version": VERSION, "Statement": [
        {
            "Effect": "Allow",
            // This one cannot be limited to a resource.
            "Action": "ses:CreateConfigurationSet",
            "Resource": "*",
        },
        {
            "Effect": "Allow",
            "Action": [
                "ses:GetConfigurationSet",
                "ses:GetConfigurationSetEventDestinations",
                "ses:CreateConfigurationSetEventDestination",
                "ses:UpdateConfigurationSetEventDestination",
            ],
            "Resource": resources.configuration_set(),
        },
        {
            "Effect": "Allow",
            "Action": [
                "sns:GetTopicAttributes",
                "sns:CreateTopic",
                "sns:SetTopicAttributes",
                "sns:ListSubscriptionsByTopic",
                "sns:Subscribe",
            ],
            "Resource": resources.topic(),
        },
        {
            "Effect": "Allow",
            "Action": [
                "sqs:GetQueueUrl",
                "sqs:GetQueueAttributes",
                "sqs:CreateQueue",
                "sqs:SetQueueAttributes",
            ],
            "Resource": [resources.queue(), resources.dead_letter()],
        },
    ] })
}

/// The least that the running service needs.
pub fn for_service(resources: &Resources) -> Value {
    json!({ "Version": VERSION, "Statement": [
        {
            "Sid": "Send",
            "Effect": "Allow",
            // SES asks for the second one if a message came whole, over SMTP.
            "Action": ["ses:SendEmail", "ses:SendRawEmail"],
            "Resource": [resources.identities(), resources.configuration_set()],
        },
        {
            "Sid": "LimitsAndDomains",
            "Effect": "Allow",
            "Action": ["ses:GetAccount", "ses:CreateEmailIdentity", "ses:GetEmailIdentity"],
            "Resource": "*",
        },
        {
            "Sid": "Events",
            "Effect": "Allow",
            "Action": ["sqs:ReceiveMessage", "sqs:DeleteMessage"],
            "Resource": resources.queue(),
        },
        {
            "Sid": "OnlyForSuppressionRemoveAtSes",
            "Effect": "Allow",
            "Action": "ses:DeleteSuppressedDestination",
            "Resource": "*",
        },
        {
            "Sid": "OnlyForDomainAddMailFrom",
            "Effect": "Allow",
            "Action": "ses:PutEmailIdentityMailFromAttributes",
            "Resource": resources.identities(),
        },
        {
            "Sid": "OnlyForDoctorSes",
            "Effect": "Allow",
            "Action": [
                "ses:GetConfigurationSet",
                "ses:GetConfigurationSetEventDestinations",
            ],
            "Resource": resources.configuration_set(),
        },
        {
            "Sid": "OnlyForDoctorQueues",
            "Effect": "Allow",
            "Action": "sqs:GetQueueAttributes",
            "Resource": [resources.queue(), resources.dead_letter()],
        },
    ] })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ours() -> Value {
        topic_sends(&Resources::new("pillarbox", "eu-west-1").unwrap())
    }

    #[test]
    fn the_services_policy_has_what_every_command_asks_through_it() {
        let policy = for_service(&Resources::new("pillarbox", "eu-west-1").unwrap()).to_string();
        for action in [
            "ses:SendEmail",
            "ses:SendRawEmail",
            "ses:GetAccount",
            "ses:CreateEmailIdentity",
            "ses:GetEmailIdentity",
            "ses:PutEmailIdentityMailFromAttributes",
            "ses:GetConfigurationSet",
            "ses:GetConfigurationSetEventDestinations",
            "ses:DeleteSuppressedDestination",
            "sqs:ReceiveMessage",
            "sqs:DeleteMessage",
            "sqs:GetQueueAttributes",
        ] {
            assert!(policy.contains(&format!("{action:?}")), "{action}: {policy}");
        }
    }

    #[test]
    fn a_statement_is_added_once_and_others_stay() {
        let other =
            r#"{"Version":"2008-10-17","Id":"x","Statement":{"Sid":"Mine","Effect":"Deny"}}"#;
        let policy = with_statement(Some(other), ours()).unwrap().unwrap();
        let read: Value = serde_json::from_str(&policy).unwrap();
        assert_eq!(read["Version"], "2008-10-17");
        assert_eq!(read["Statement"], json!([{"Sid": "Mine", "Effect": "Deny"}, ours()]));
        assert_eq!(with_statement(Some(&policy), ours()).unwrap(), None);
    }

    #[test]
    fn an_earlier_form_of_the_statement_is_replaced() {
        let mut wider = ours();
        wider.as_object_mut().unwrap().remove("Condition");
        let policy = json!({ "Version": VERSION, "Statement": [wider] }).to_string();
        let policy = with_statement(Some(&policy), ours()).unwrap().unwrap();
        let read: Value = serde_json::from_str(&policy).unwrap();
        assert_eq!(read["Statement"], json!([ours()]));
    }

    #[test]
    fn no_policy_becomes_one_and_what_is_none_is_an_error() {
        for none in [None, Some("")] {
            let policy = with_statement(none, ours()).unwrap().unwrap();
            let read: Value = serde_json::from_str(&policy).unwrap();
            assert_eq!(read, json!({ "Version": VERSION, "Statement": [ours()] }));
        }
        assert!(with_statement(Some("{"), ours()).is_err());
    }
}
