//! Configuration sets and their event destinations.
//!
//! Knows SES's responses about them. Must not know messages, or the shape of an event.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::protocol::{ErrorResponse, read_json, required};

/// SES: configuration sets per account and region.
const MAX_CONFIGURATION_SETS: usize = 10_000;
/// SES: event destinations per configuration set.
const MAX_DESTINATIONS: usize = 10;
/// SES: the length of a configuration set's or a destination's name.
const MAX_NAME_LENGTH: usize = 64;
/// The event types that a destination may ask for.
const EVENT_TYPES: [&str; 10] = [
    "SEND",
    "REJECT",
    "BOUNCE",
    "COMPLAINT",
    "DELIVERY",
    "OPEN",
    "CLICK",
    "RENDERING_FAILURE",
    "DELIVERY_DELAY",
    "SUBSCRIPTION",
];
/// The kinds of destinations; each destination is of one kind.
const KINDS: [&str; 5] = [
    "KinesisFirehoseDestination",
    "CloudWatchDestination",
    "SnsDestination",
    "EventBridgeDestination",
    "PinpointDestination",
];
/// Destination kinds that can publish to a queue.
const KINDS_TO_QUEUE: [&str; 2] = ["SnsDestination", "EventBridgeDestination"];

/// A destination's definition, checked, and otherwise as it was given.
type Destination = Map<String, Value>;

/// All configuration sets by name, with their destinations by name.
#[derive(Debug, Default)]
pub(super) struct ConfigurationSets(BTreeMap<String, BTreeMap<String, Destination>>);

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct DestinationWire {
    event_destination_name: Option<String>,
    event_destination: Option<Destination>,
}

impl ConfigurationSets {
    pub(super) fn new(names: Vec<String>) -> Self {
        Self(names.into_iter().map(|name| (name, BTreeMap::new())).collect())
    }

    /// Fails unless there is a set of this name.
    pub(super) fn check(&self, name: &str) -> Result<(), ErrorResponse> {
        self.destinations(name).map(drop)
    }

    /// Returns `true` if events of this type reach a queue through this set.
    pub(super) fn publishes(&self, name: &str, event_type: &str) -> bool {
        let destinations = self.0.get(name).into_iter().flat_map(BTreeMap::values);
        destinations.into_iter().any(|destination| {
            let types = destination.get("MatchingEventTypes").and_then(Value::as_array);
            destination["Enabled"] == json!(true)
                && types.is_some_and(|types| types.iter().any(|known| known == event_type))
                && KINDS_TO_QUEUE.iter().any(|kind| destination.contains_key(*kind))
        })
    }

    /// `CreateConfigurationSet`.
    pub(super) fn create(&mut self, body: &[u8]) -> Result<Value, ErrorResponse> {
        #[derive(Deserialize)]
        #[serde(rename_all = "PascalCase")]
        struct Wire {
            configuration_set_name: Option<String>,
        }
        let wire: Wire = read_json(body)?;
        let name = required(wire.configuration_set_name, "configurationSetName")?;
        check_name(&name, "configuration set")?;
        if self.0.contains_key(&name) {
            let message = format!("Configuration set <{name}> already exists.");
            return Err(ErrorResponse::already_exists(message));
        }
        if self.0.len() >= MAX_CONFIGURATION_SETS {
            return Err(ErrorResponse::limit_exceeded(format!(
                "Cannot have more than {MAX_CONFIGURATION_SETS} configuration sets."
            )));
        }
        self.0.insert(name, BTreeMap::new());
        Ok(json!({}))
    }

    /// `GetConfigurationSet`.
    pub(super) fn get(&self, name: &str) -> Result<Value, ErrorResponse> {
        self.check(name)?;
        Ok(json!({
            "ConfigurationSetName": name,
            "DeliveryOptions": { "TlsPolicy": "OPTIONAL" },
            "ReputationOptions": { "ReputationMetricsEnabled": false },
            "SendingOptions": { "SendingEnabled": true },
            "Tags": [],
        }))
    }

    /// `CreateConfigurationSetEventDestination`.
    pub(super) fn create_destination(
        &mut self,
        set: &str,
        body: &[u8],
    ) -> Result<Value, ErrorResponse> {
        let wire: DestinationWire = read_json(body)?;
        let name = required(wire.event_destination_name, "eventDestinationName")?;
        check_name(&name, "event destination")?;
        let destinations = self.destinations_mut(set)?;
        if destinations.contains_key(&name) {
            return Err(ErrorResponse::already_exists(format!(
                "An event destination with name <{name}> already exists."
            )));
        }
        if destinations.len() >= MAX_DESTINATIONS {
            return Err(ErrorResponse::limit_exceeded(format!(
                "Cannot have more than {MAX_DESTINATIONS} event destinations."
            )));
        }
        destinations.insert(name, check_destination(wire.event_destination)?);
        Ok(json!({}))
    }

    /// `UpdateConfigurationSetEventDestination`: the definition is replaced as a whole.
    pub(super) fn update_destination(
        &mut self,
        set: &str,
        name: &str,
        body: &[u8],
    ) -> Result<Value, ErrorResponse> {
        let wire: DestinationWire = read_json(body)?;
        let known =
            self.destinations_mut(set)?.get_mut(name).ok_or_else(|| no_destination(name))?;
        *known = check_destination(wire.event_destination)?;
        Ok(json!({}))
    }

    /// `GetConfigurationSetEventDestinations`.
    pub(super) fn list_destinations(&self, set: &str) -> Result<Value, ErrorResponse> {
        let named = self.destinations(set)?.iter().map(|(name, destination)| {
            let mut shown = destination.clone();
            shown.insert("Name".to_owned(), json!(name));
            Value::Object(shown)
        });
        Ok(json!({ "EventDestinations": named.collect::<Vec<_>>() }))
    }

    fn destinations(&self, set: &str) -> Result<&BTreeMap<String, Destination>, ErrorResponse> {
        self.0.get(set).ok_or_else(|| no_configuration_set(set))
    }

    fn destinations_mut(
        &mut self,
        set: &str,
    ) -> Result<&mut BTreeMap<String, Destination>, ErrorResponse> {
        self.0.get_mut(set).ok_or_else(|| no_configuration_set(set))
    }
}

fn check_destination(definition: Option<Destination>) -> Result<Destination, ErrorResponse> {
    let mut destination = required(definition, "eventDestination")?;
    // Members that are null are absent; unknown ones are ignored, as AWS does.
    let known = |name: &str| ["Enabled", "MatchingEventTypes"].contains(&name);
    destination
        .retain(|name, value| !value.is_null() && (known(name) || KINDS.contains(&name.as_str())));
    destination.entry("Enabled").or_insert(json!(false));
    let types = destination.get("MatchingEventTypes").and_then(Value::as_array);
    let types = types
        .filter(|types| !types.is_empty())
        .ok_or_else(|| ErrorResponse::bad_request("At least one event type must be specified."))?;
    if let Some(unknown) = types.iter().find(|t| !EVENT_TYPES.iter().any(|known| *t == known)) {
        return Err(ErrorResponse::constraint(
            "eventDestination.matchingEventTypes",
            &format!("Member must satisfy enum value set: {EVENT_TYPES:?}, and {unknown} does not"),
        ));
    }
    let kinds = KINDS.iter().filter(|kind| destination.contains_key(**kind)).count();
    if kinds != 1 {
        return Err(ErrorResponse::bad_request("Exactly one destination must be specified."));
    }
    if let Some(sns) = destination.get("SnsDestination") {
        let arn = sns["TopicArn"].as_str().unwrap_or_default();
        if !arn.starts_with("arn:aws:sns:") {
            return Err(ErrorResponse::bad_request(format!("Invalid SNS topic <{arn}>.")));
        }
    }
    Ok(destination)
}

fn check_name(name: &str, what: &str) -> Result<(), ErrorResponse> {
    let allowed = |b: u8| b.is_ascii_alphanumeric() || b == b'_' || b == b'-';
    if (1..=MAX_NAME_LENGTH).contains(&name.len()) && name.bytes().all(allowed) {
        Ok(())
    } else {
        Err(ErrorResponse::bad_request(format!("Invalid {what} name <{name}>.")))
    }
}

fn no_configuration_set(name: &str) -> ErrorResponse {
    ErrorResponse::not_found(format!("Configuration set <{name}> does not exist."))
}

fn no_destination(name: &str) -> ErrorResponse {
    ErrorResponse::not_found(format!("Event destination <{name}> does not exist."))
}
