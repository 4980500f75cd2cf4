//! Resources of the set-up, by name and ARN.

use crate::account::Caller;

/// Placeholder for an unknown account.
const ACCOUNT_PLACEHOLDER: &str = "ACCOUNT_ID";
/// The longest name: a configuration set's (SES v2 API reference, `CreateConfigurationSet`).
const MAX_NAME_BYTES: usize = 64;

/// The name cannot be that of a configuration set, a topic and a queue.
#[derive(Debug, thiserror::Error)]
#[error("a name has 1 to 64 characters of A-Z, a-z, 0-9, _ and -")]
pub struct BadName;

/// Everything of one name, in one region of one account.
#[derive(Debug, Clone)]
pub struct Resources {
    name: String,
    partition: String,
    region: String,
    account: String,
}

impl Resources {
    /// Those of a region, in an account that is not known yet.
    pub fn new(name: &str, region: &str) -> Result<Self, BadName> {
        let allowed = |b: u8| b.is_ascii_alphanumeric() || b == b'_' || b == b'-';
        if !(1..=MAX_NAME_BYTES).contains(&name.len()) || !name.bytes().all(allowed) {
            return Err(BadName);
        }
        Ok(Self {
            name: name.to_owned(),
            partition: "aws".to_owned(),
            region: region.to_owned(),
            account: ACCOUNT_PLACEHOLDER.to_owned(),
        })
    }

    /// Puts them into the caller's account and partition.
    pub(super) fn belong_to(&mut self, caller: &Caller) {
        self.account.clone_from(&caller.account);
        if let Some(partition) = caller.arn.split(':').nth(1) {
            partition.clone_into(&mut self.partition);
        }
    }

    /// The name of the configuration set, its event destination, the topic and the queue.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The name of the queue for what could not be processed.
    pub fn dead_letter_name(&self) -> String {
        format!("{}-dead-letter", self.name)
    }

    /// The account's number, or its placeholder.
    pub fn account(&self) -> &str {
        &self.account
    }

    /// ARN of the SNS topic.
    pub fn topic(&self) -> String {
        self.arn("sns", &self.name)
    }

    /// ARN of the SQS queue.
    pub fn queue(&self) -> String {
        self.arn("sqs", &self.name)
    }

    /// The dead-letter queue's ARN.
    pub fn dead_letter(&self) -> String {
        self.arn("sqs", &self.dead_letter_name())
    }

    /// The configuration set's ARN.
    pub fn configuration_set(&self) -> String {
        self.arn("ses", &format!("configuration-set/{}", self.name))
    }

    /// The ARNs of all of the account's identities.
    pub fn identities(&self) -> String {
        self.arn("ses", "identity/*")
    }

    fn arn(&self, service: &str, resource: &str) -> String {
        let Self { partition, region, account, .. } = self;
        format!("arn:{partition}:{service}:{region}:{account}:{resource}")
    }
}
