//! The topic, which lets SES publish, and the event destination: which events the configuration set
//! publishes to it.

use std::collections::BTreeMap;

use super::step::{Failure, Outcome, asking};
use super::{Mode, Presence, Run, iam_policy};

use crate::configuration_set::{EventDestination, SnsDestination};
use crate::sns::TopicArn;

/// Event types that are published. Not `RENDERING_FAILURE`, which is of templates, and none are
/// used.
const WANTED: [&str; 6] = ["SEND", "REJECT", "BOUNCE", "COMPLAINT", "DELIVERY", "DELIVERY_DELAY"];
/// Event types that are never requested: for the first, SES adds a pixel to HTML, for the second it
/// rewrites links (SES developer guide, "Configuring custom domains to handle open and click
/// tracking").
const TRACKING: [&str; 2] = ["OPEN", "CLICK"];

/// Topic as it is set up.
pub(super) struct Topic {
    pub(super) arn: TopicArn,
    /// `None` in a dry run, if it does not exist.
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
        let statement = iam_policy::ses_publishes(&self.resources);
        let completed = iam_policy::with_statement(topic.attribute("Policy"), statement)
            .map_err(|error| Failure::Unfit(format!("the topic's policy is not JSON: {error}")))?;
        let Some(completed) = completed else { return Ok(Outcome::Found) };
        let what = "lets SES publish, for this account and configuration set alone";
        if self.mode == Mode::DryRun {
            return Ok(Outcome::Planned(format!("would be changed; it then {what}")));
        }
        let set = self.client.set_topic_attribute(&topic.arn, "Policy", &completed).await;
        set.map_err(asking("sns:SetTopicAttributes"))?;
        Ok(Outcome::Completed(what.to_owned()))
    }

    pub(super) async fn destination(
        &self,
        set_is: Presence,
        topic: &Topic,
    ) -> Result<Outcome, Failure> {
        let set = self.resources.name();
        if set_is == Presence::Planned {
            return Ok(Outcome::to_be_created());
        }
        let all = self.client.event_destinations(set).await;
        let all = all.map_err(asking("ses:GetConfigurationSetEventDestinations"))?;
        let arn = topic.arn.as_str();
        let is_ours = |one: &&EventDestination| one.name == set || one.topic() == Some(arn);
        let outcome = match all.iter().find(is_ours) {
            Some(ours) => self.complete(ours, arn).await?,
            None => self.create(arn).await?,
        };
        let ours = all.iter().find(is_ours).map(|ours| &ours.name);
        match all.iter().find(|one| Some(&one.name) != ours && one.enabled && tracks(one)) {
            None => Ok(outcome),
            Some(other) => Err(Failure::Unfit(format!(
                "{}, but the set's destination {:?} asks for open or click events, so SES rewrites \
                 links or adds a pixel to messages. pillarbox does not change that destination: \
                 remove these events from it, or run the set-up with another --name",
                outcome.word(),
                other.name
            ))),
        }
    }

    async fn create(&self, topic: &str) -> Result<Outcome, Failure> {
        if self.mode == Mode::DryRun {
            return Ok(Outcome::to_be_created());
        }
        let destination = EventDestination {
            name: self.resources.name().to_owned(),
            enabled: true,
            matching_event_types: WANTED.map(str::to_owned).to_vec(),
            sns_destination: Some(SnsDestination { topic_arn: topic.to_owned() }),
            event_bridge_destination: None,
        };
        let set = self.resources.name();
        let created = self.client.create_event_destination(set, &destination).await;
        created.map_err(asking("ses:CreateConfigurationSetEventDestination"))?;
        Ok(Outcome::Created)
    }

    async fn complete(&self, ours: &EventDestination, topic: &str) -> Result<Outcome, Failure> {
        let mut done = Vec::new();
        let mut wanted = ours.clone();
        if !ours.enabled {
            wanted.enabled = true;
            done.push("enabled".to_owned());
        }
        if ours.topic() != Some(topic) {
            wanted.sns_destination = Some(SnsDestination { topic_arn: topic.to_owned() });
            done.push("publishes to the topic".to_owned());
        }
        let types = &mut wanted.matching_event_types;
        if tracks(ours) {
            types.retain(|name| !TRACKING.contains(&name.as_str()));
            done.push(
                "no longer asks for OPEN and CLICK, for which SES rewrites links and adds a pixel"
                    .to_owned(),
            );
        }
        let missing: Vec<_> = WANTED.into_iter().filter(|name| !has(types, name)).collect();
        if !missing.is_empty() {
            types.extend(missing.iter().map(|&name| name.to_owned()));
            done.push(format!("publishes {} too", missing.join(", ")));
        }
        if done.is_empty() {
            return Ok(Outcome::Found);
        }
        let done = done.join("; ");
        if self.mode == Mode::DryRun {
            return Ok(Outcome::Planned(format!("would be changed: {done}")));
        }
        let updated = self.client.update_event_destination(self.resources.name(), &wanted).await;
        updated.map_err(asking("ses:UpdateConfigurationSetEventDestination"))?;
        Ok(Outcome::Completed(done))
    }
}

fn has(types: &[String], name: &str) -> bool {
    types.iter().any(|known| known == name)
}

fn tracks(destination: &EventDestination) -> bool {
    TRACKING.iter().any(|name| has(&destination.matching_event_types, name))
}
