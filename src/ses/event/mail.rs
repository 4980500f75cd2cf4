//! The `mail` object of every document: which message it is about.

use std::collections::HashMap;

use serde::Deserialize;

use crate::domain::time::Timestamp;
use crate::ses::event::{Unreadable, instant};

/// The longest message id that is believed; SES's own have about 60 characters.
const MAX_ID_CHARS: usize = 200;

/// The message, as far as we need it (SES Developer Guide, "The mail object").
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Mail<'a> {
    timestamp: &'a str,
    message_id: &'a str,
    #[serde(default)]
    pub(super) destination: Option<Vec<&'a str>>,
    #[serde(default, borrow)]
    tags: Option<HashMap<&'a str, Values<'a>>>,
}

/// A tag's values: a list, though a message carries each tag once.
#[derive(Deserialize)]
#[serde(untagged)]
enum Values<'a> {
    List(#[serde(borrow)] Vec<&'a str>),
    One(&'a str),
    /// A form that no tag of ours has.
    Unknown(serde::de::IgnoredAny),
}

impl Mail<'_> {
    pub(super) fn accepted_at(&self) -> Result<Timestamp, Unreadable> {
        instant(self.timestamp, "mail.timestamp")
    }

    pub(super) fn ses_message_id(&self) -> Result<&str, Unreadable> {
        let id = self.message_id;
        if (1..=MAX_ID_CHARS).contains(&id.len()) && id.bytes().all(|b| b.is_ascii_graphic()) {
            Ok(id)
        } else {
            Err(Unreadable::new("`mail.messageId` is not a message id"))
        }
    }

    pub(super) fn tag(&self, name: &str) -> Option<&str> {
        match self.tags.as_ref()?.get(name)? {
            Values::List(values) => values.first().copied(),
            Values::One(value) => Some(value),
            Values::Unknown(_) => None,
        }
    }
}
