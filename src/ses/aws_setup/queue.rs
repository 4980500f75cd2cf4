//! The queue that events wait in, and the one for what could not be processed.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::json;

use super::step::{Failure, Outcome, asking};
use super::{Mode, Run, iam_policy};

/// Time for which SQS keeps messages: its longest (SQS developer guide, "message retention
/// period").
const RETENTION: Duration = Duration::from_hours(14 * 24);
/// Time for which a received message stays hidden: many times what a batch takes to be stored.
const VISIBILITY: Duration = Duration::from_mins(2);
/// Time for which a receive waits for messages: SQS's longest.
const WAIT: Duration = Duration::from_secs(20);
/// After so many receives a message goes to the dead-letter queue. An unreadable message never
/// comes that far, because it is set aside at the first receive; a readable one is received again
/// while the data file cannot be written, and that may last for hours.
const MAX_RECEIVES: u32 = 100;

/// Queue as it is set up.
pub(super) struct Queue {
    pub(super) arn: String,
    /// `None` in a dry run, if it does not exist.
    pub(super) url: Option<String>,
    attributes: BTreeMap<String, String>,
}

type Wanted = BTreeMap<&'static str, String>;

fn seconds(duration: Duration) -> String {
    duration.as_secs().to_string()
}

impl Run<'_> {
    pub(super) async fn dead_letter_queue(&self) -> Result<(Outcome, Queue), Failure> {
        let wanted = Wanted::from([("MessageRetentionPeriod", seconds(RETENTION))]);
        let arn = self.resources.dead_letter();
        self.find_or_create(&self.resources.dead_letter_name(), arn, &wanted).await
    }

    /// The queue. Of one that is there, only what is missing is set: how long it hides and keeps
    /// messages is its owner's to say.
    pub(super) async fn queue(
        &self,
        dead_letter: Option<&Queue>,
    ) -> Result<(Outcome, Queue), Failure> {
        let mut wanted = Wanted::from([
            ("MessageRetentionPeriod", seconds(RETENTION)),
            ("ReceiveMessageWaitTimeSeconds", seconds(WAIT)),
            ("VisibilityTimeout", seconds(VISIBILITY)),
        ]);
        let redrive = dead_letter.map(|queue| {
            json!({ "deadLetterTargetArn": queue.arn, "maxReceiveCount": MAX_RECEIVES }).to_string()
        });
        if let Some(redrive) = &redrive {
            wanted.insert("RedrivePolicy", redrive.clone());
        }
        let arn = self.resources.queue();
        let (outcome, mut queue) = self.find_or_create(self.resources.name(), arn, &wanted).await?;
        let lacks_redrive = queue.attributes.get("RedrivePolicy").is_none_or(String::is_empty);
        let (Outcome::Found, true, Some(redrive)) = (&outcome, lacks_redrive, redrive) else {
            return Ok((outcome, queue));
        };
        let wanted = Wanted::from([("RedrivePolicy", redrive)]);
        let outcome = self.set_queue(&queue, &wanted, "sends to the dead-letter queue").await?;
        if let Some(url) = &queue.url {
            queue.attributes = self.queue_attributes(url).await?;
        }
        Ok((outcome, queue))
    }

    pub(super) async fn queue_policy(&self, queue: &Queue) -> Result<Outcome, Failure> {
        let statement = iam_policy::topic_sends(&self.resources);
        let current = queue.attributes.get("Policy").map(String::as_str);
        let completed = iam_policy::with_statement(current, statement)
            .map_err(|error| Failure::Unfit(format!("the queue's policy is not JSON: {error}")))?;
        let Some(completed) = completed else { return Ok(Outcome::Found) };
        let wanted = Wanted::from([("Policy", completed)]);
        self.set_queue(queue, &wanted, "lets the topic send").await
    }

    async fn find_or_create(
        &self,
        name: &str,
        expected: String,
        wanted: &Wanted,
    ) -> Result<(Outcome, Queue), Failure> {
        let found = self.client.queue_url(name).await.map_err(asking("sqs:GetQueueUrl"))?;
        let (outcome, url) = match found {
            Some(url) => (Outcome::Found, url),
            None if self.mode == Mode::DryRun => {
                let queue = Queue { arn: expected, url: None, attributes: BTreeMap::new() };
                return Ok((Outcome::to_be_created(), queue));
            }
            None => {
                let created = self.client.create_queue(name, wanted).await;
                (Outcome::Created, created.map_err(asking("sqs:CreateQueue"))?)
            }
        };
        let attributes = self.queue_attributes(&url).await?;
        let arn = attributes.get("QueueArn").cloned().unwrap_or(expected);
        Ok((outcome, Queue { arn, url: Some(url), attributes }))
    }

    async fn queue_attributes(&self, url: &str) -> Result<BTreeMap<String, String>, Failure> {
        self.client.queue_attributes(url).await.map_err(asking("sqs:GetQueueAttributes"))
    }

    async fn set_queue(
        &self,
        queue: &Queue,
        wanted: &Wanted,
        what: &str,
    ) -> Result<Outcome, Failure> {
        let (Mode::Apply, Some(url)) = (self.mode, &queue.url) else {
            return Ok(Outcome::Planned(format!("would be changed; it then {what}")));
        };
        let set = self.client.set_queue_attributes(url, wanted).await;
        set.map_err(asking("sqs:SetQueueAttributes"))?;
        Ok(Outcome::Completed(what.to_owned()))
    }
}
