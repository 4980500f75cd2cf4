//! Terms of a message: its priority, and the time for which it may be sent.

use std::time::Duration;

use crate::worded;

/// The shortest time for which a message may be sent.
pub const MIN_EXPIRES_IN: Duration = Duration::from_mins(1);
/// The longest such time.
pub const MAX_EXPIRES_IN: Duration = Duration::from_hours(7 * 24);

worded! {
    /// Class of a message among those of its organisation.
    #[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub enum Priority {
        /// It gets nine of ten calls while both classes wait.
        High = "high",
        /// It gets the others.
        #[default]
        Normal = "normal",
    }
}

/// A message's priority, and its origin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MessagePriority {
    /// The request named it.
    Given(Priority),
    /// The request named none: the priority is the API key's, or `normal`.
    Default(Priority),
}

impl MessagePriority {
    /// The priority that counts.
    pub const fn effective(self) -> Priority {
        match self {
            Self::Given(priority) | Self::Default(priority) => priority,
        }
    }

    /// The priority that the request named, if it named one.
    pub const fn given(self) -> Option<Priority> {
        match self {
            Self::Given(priority) => Some(priority),
            Self::Default(_) => None,
        }
    }
}

/// Terms of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Terms {
    /// Priority, and whether the request named it.
    pub priority: MessagePriority,
    /// Time after its acceptance for which it may be sent, in whole milliseconds; `None` if it has
    /// no end of its own.
    pub expires_in: Option<Duration>,
}

impl Terms {
    /// Terms of a message if neither its request nor its API key says anything.
    pub const NONE: Self =
        Self { priority: MessagePriority::Default(Priority::Normal), expires_in: None };

    /// Returns the terms of a message with these terms in its request, posted with a key that has
    /// these defaults.
    pub fn new(
        priority: Option<Priority>,
        expires_in: Option<Duration>,
        defaults: MessageDefaults,
    ) -> Self {
        let of_key = MessagePriority::Default(defaults.priority);
        Self {
            priority: priority.map_or(of_key, MessagePriority::Given),
            expires_in: expires_in.or(defaults.expires_in),
        }
    }
}

/// Terms that an API key gives to messages that name none themselves.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MessageDefaults {
    /// Priority of the messages.
    pub priority: Priority,
    /// Time after their acceptance for which they may be sent; `None` for no end.
    pub expires_in: Option<Duration>,
}

/// The text is no duration for which a message may be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("must be a duration from 1m to 7d, such as 10m or 1h 30m")]
pub struct NotAnExpiry;

/// Reads the time for which a message may be sent, in humantime's words.
pub fn parse_expires_in(text: &str) -> Result<Duration, NotAnExpiry> {
    let read = humantime::parse_duration(text).map_err(|_| NotAnExpiry)?;
    if !(MIN_EXPIRES_IN..=MAX_EXPIRES_IN).contains(&read) {
        return Err(NotAnExpiry);
    }
    // Its parts of a millisecond are not kept with it.
    Ok(Duration::from_millis(whole_millis(read)))
}

/// Whole milliseconds of a time for which a message may be sent.
pub fn whole_millis(expires_in: Duration) -> u64 {
    u64::try_from(expires_in.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_from_a_minute_to_a_week_are_read() {
        let seconds = Duration::from_secs;
        for (text, read) in [
            ("1m", seconds(60)),
            ("60s", seconds(60)),
            ("1h 30m", seconds(5_400)),
            ("7d", seconds(604_800)),
            ("1week", seconds(604_800)),
            ("1m 1ms 999us", Duration::from_millis(60_001)),
        ] {
            assert_eq!(parse_expires_in(text), Ok(read), "{text}");
        }
        for text in ["", "10", "soon", "59s 999ms", "7d 1ms", "-1h", "1e3s", "999999999999y"] {
            assert_eq!(parse_expires_in(text), Err(NotAnExpiry), "{text}");
        }
    }

    #[test]
    fn a_request_comes_before_its_key() {
        let expires_in = |minutes| Some(Duration::from_mins(minutes));
        let key = MessageDefaults { priority: Priority::High, expires_in: expires_in(5) };
        let own = Terms::new(Some(Priority::Normal), expires_in(1), key);
        assert_eq!(own.priority, MessagePriority::Given(Priority::Normal));
        assert_eq!(own.expires_in, expires_in(1));
        let of_key = Terms::new(None, None, key);
        assert_eq!(of_key.priority, MessagePriority::Default(Priority::High));
        assert_eq!((of_key.priority.given(), of_key.expires_in), (None, expires_in(5)));
        assert_eq!(Terms::new(None, None, MessageDefaults::default()), Terms::NONE);
    }
}
