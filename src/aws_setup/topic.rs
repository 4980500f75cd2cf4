//! The topic: that it is there and lets SES publish.

use std::collections::BTreeMap;

use super::step::{Failure, Outcome, asking};
use super::{Mode, Run, policy};
use crate::ses::sns::TopicArn;

/// The topic.
pub(super) struct Topic {
    pub(super) arn: TopicArn,
    /// `None` in a dry run, where it is not there.
    pub(super) attributes: Option<BTreeMap<String, String>>,
}

impl Topic {
    fn attribute(&self, name: &str) -> Option<&str> {
        self.attributes.as_ref()?.get(name).map(String::as_str)
    }
}

impl Run<'_> {
    pub(super) async fn topic(&self) -> Result<(Outcome, Topic), Failure> {
        let arn = TopicArn::parse(&self.resources.topic())
            .map_err(|error| Failure::Unfit(error.to_string()))?;
        if let Some(attributes) = self.topic_attributes(&arn).await? {
            return Ok((Outcome::Found, Topic { arn, attributes: Some(attributes) }));
        }
        if self.mode == Mode::DryRun {
            return Ok((Outcome::to_be_created(), Topic { arn, attributes: None }));
        }
        let created = self.client.create_topic(self.resources.name()).await;
        let arn = created.map_err(asking("sns:CreateTopic"))?;
        // Its policy has AWS's own first statement, which is to stay.
        let attributes = self.topic_attributes(&arn).await?.unwrap_or_default();
        Ok((Outcome::Created, Topic { arn, attributes: Some(attributes) }))
    }

    async fn topic_attributes(
        &self,
        arn: &TopicArn,
    ) -> Result<Option<BTreeMap<String, String>>, Failure> {
        self.client.topic_attributes(arn).await.map_err(asking("sns:GetTopicAttributes"))
    }

    pub(super) async fn topic_policy(&self, topic: &Topic) -> Result<Outcome, Failure> {
        let statement = policy::ses_publishes(&self.resources);
        let completed = policy::with_statement(topic.attribute("Policy"), statement)
            .map_err(|error| Failure::Unfit(format!("the topic's policy is not JSON: {error}")))?;
        let Some(completed) = completed else { return Ok(Outcome::Found) };
        let what = "lets SES publish, for this account and configuration set alone";
        if self.mode == Mode::DryRun {
            return Ok(Outcome::Planned(format!("would be set: {what}")));
        }
        let set = self.client.set_topic_attribute(&topic.arn, "Policy", &completed).await;
        set.map_err(asking("sns:SetTopicAttributes"))?;
        Ok(Outcome::Completed(what.to_owned()))
    }
}
