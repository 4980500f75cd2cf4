//! Setting AWS up so that delivery events reach a queue: what is missing is created, what is there
//! is completed, and each step says what it did.
//!
//! Events go from a configuration set over an SNS topic into an SQS queue. Knows nothing of the
//! configuration file or of how a report is shown.

use crate::SesClient;
use crate::account::Caller;

pub mod iam_policy;
mod queue;
mod resources;
mod step;
mod topic;

pub use resources::{BadName, Resources};
pub use step::{Outcome, Step};

use queue::Queue;
use step::{Failure, asking};
use topic::Topic;

/// Choice whether anything is changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Missing resources are created and completed.
    Apply,
    /// Nothing is; the report says what would be.
    DryRun,
}

/// Result of the set-up.
#[derive(Debug)]
pub struct Report {
    /// The steps, in the order in which they were taken.
    pub steps: Vec<Step>,
    /// Resources by name and ARN. The account is a placeholder if AWS did not return it.
    pub resources: Resources,
    /// The configuration set's name, once it is there.
    pub configuration_set: Option<String>,
    /// The queue's URL, once it is there.
    pub queue_url: Option<String>,
}

/// Sets everything of this name up, in the account and region of the client.
pub async fn run(client: &SesClient, name: &str, mode: Mode) -> Result<Report, BadName> {
    let mut resources = Resources::new(name, client.region())?;
    let mut steps = Vec::new();
    match client.caller().await {
        Ok(caller) => {
            resources.belong_to(&caller);
            Ok(Run { client, mode, resources, caller, steps }.run().await)
        }
        Err(error) => {
            // Without an account nothing can be named; the policies still can be shown.
            let failure = asking("sts:GetCallerIdentity")(error);
            let outcome = failure.outcome(None);
            steps.push(Step { what: "AWS account", name: String::new(), outcome });
            Ok(Report { steps, resources, configuration_set: None, queue_url: None })
        }
    }
}

struct Run<'a> {
    client: &'a SesClient,
    mode: Mode,
    resources: Resources,
    caller: Caller,
    steps: Vec<Step>,
}

impl Run<'_> {
    async fn run(mut self) -> Report {
        let who = format!("{} as {}", self.caller.account, self.caller.arn);
        self.steps.push(Step { what: "AWS account", name: who, outcome: Outcome::Found });

        let set = self.resources.name().to_owned();
        let done = self.configuration_set().await;
        let set_is_there = self.note("configuration set", &set, done);

        let topic_arn = self.resources.topic();
        let done = self.topic().await;
        let topic = self.note("SNS topic", &topic_arn, done);
        if let Some(topic) = &topic {
            let done = self.topic_policy(topic).await.map(|outcome| (outcome, ()));
            self.note("policy of the topic", &topic_arn, done);
        }

        let dead_letter = self.dead_letter_queue().await;
        let name = self.resources.dead_letter_name();
        let dead_letter = self.note("dead-letter queue", &name, dead_letter);
        let done = self.queue(dead_letter.as_ref()).await;
        let queue = self.note("SQS queue", &set, done);
        if let Some(queue) = &queue {
            let done = self.queue_policy(queue).await.map(|outcome| (outcome, ()));
            self.note("policy of the queue", &set, done);
        }
        if let (Some(topic), Some(queue)) = (&topic, &queue) {
            let done = self.subscription(topic, queue).await.map(|outcome| (outcome, ()));
            self.note("subscription of the queue", &queue.arn, done);
        } else {
            self.skip("subscription of the queue", &set, "it needs the topic and the queue");
        }
        if let (Some(set_is_there), Some(topic)) = (set_is_there, &topic) {
            let done = self.destination(set_is_there, topic).await;
            let done = done.map(|outcome| (outcome, ()));
            self.note("event destination", &set, done);
        } else {
            self.skip("event destination", &set, "it needs the configuration set and the topic");
        }
        Report {
            configuration_set: (set_is_there == Some(Presence::There)).then_some(set),
            queue_url: queue.and_then(|queue: Queue| queue.url),
            steps: self.steps,
            resources: self.resources,
        }
    }

    /// Writes a step down; what it brought, if it brought something.
    fn note<T>(
        &mut self,
        what: &'static str,
        name: &str,
        done: Result<(Outcome, T), Failure>,
    ) -> Option<T> {
        let (outcome, brought) = match done {
            Ok((outcome, brought)) => (outcome, Some(brought)),
            Err(failure) => (failure.outcome(Some(&self.caller)), None),
        };
        self.steps.push(Step { what, name: name.to_owned(), outcome });
        brought
    }

    fn skip(&mut self, what: &'static str, name: &str, why: &str) {
        let outcome = Outcome::Skipped(why.to_owned());
        self.steps.push(Step { what, name: name.to_owned(), outcome });
    }

    async fn configuration_set(&self) -> Result<(Outcome, Presence), Failure> {
        let name = self.resources.name();
        let there = self.client.has_configuration_set(name).await;
        if there.map_err(asking("ses:GetConfigurationSet"))? {
            return Ok((Outcome::Found, Presence::There));
        }
        if self.mode == Mode::DryRun {
            return Ok((Outcome::to_be_created(), Presence::Planned));
        }
        let created = self.client.create_configuration_set(name).await;
        created.map_err(asking("ses:CreateConfigurationSet"))?;
        Ok((Outcome::Created, Presence::There))
    }

    async fn subscription(&self, topic: &Topic, queue: &Queue) -> Result<Outcome, Failure> {
        if topic.attributes.is_none() {
            return Ok(Outcome::to_be_created());
        }
        let all = self.client.subscriptions(&topic.arn).await;
        let all = all.map_err(asking("sns:ListSubscriptionsByTopic"))?;
        if all.iter().any(|one| one.protocol == "sqs" && one.endpoint == queue.arn) {
            return Ok(Outcome::Found);
        }
        if self.mode == Mode::DryRun {
            return Ok(Outcome::to_be_created());
        }
        let subscribed = self.client.subscribe_queue(&topic.arn, &queue.arn).await;
        subscribed.map_err(asking("sns:Subscribe"))?;
        Ok(Outcome::Created)
    }
}

/// Presence of a resource: it is there, or is only planned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Presence {
    There,
    Planned,
}

#[cfg(test)]
mod tests;
