//! Numbers that the specification and SES fix, in one place. Texts that name one of them are made
//! from it.

use std::time::Duration;

/// Days for which a message record and its events can be read, from the message's creation
/// (specification, section 2.3).
pub const RECORD_RETENTION_DAYS: u64 = 90;
/// [`RECORD_RETENTION_DAYS`] as a duration.
pub const RECORD_RETENTION: Duration = Duration::from_hours(RECORD_RETENTION_DAYS * 24);

/// Time for which an idempotency key replays, from the original acceptance (specification,
/// section 4.1).
pub const IDEMPOTENCY_WINDOW: Duration = Duration::from_hours(24);

/// Tag that every message has: the only one that is accepted (specification, section 2.1).
pub const TRANSACTIONAL: &str = "transactional";

/// Most recipients of a message in `to`, `cc` and `bcc` together (specification, section 2.1, and
/// SES v2 API, `Destination`).
pub const MAX_RECIPIENTS: usize = 50;

/// Most messages of a batch.
pub const MAX_BATCH: usize = 100;

/// Longest subject, in characters (RFC 5322, section 2.1.1).
pub const MAX_SUBJECT_CHARS: usize = 998;

/// Longest idempotency key, in Unicode characters (specification, section 4.1).
pub const MAX_IDEMPOTENCY_KEY_CHARS: usize = 256;

/// Most custom headers of a message (SES v2 API, `Message.Headers`).
pub const MAX_HEADERS: usize = 15;

/// Longest name of a custom header, in characters (SES v2 API, `MessageHeader.Name`).
pub const MAX_HEADER_NAME_CHARS: usize = 126;

/// Longest value of a custom header, in characters (SES v2 API, `MessageHeader.Value`).
pub const MAX_HEADER_VALUE_CHARS: usize = 995;

/// Most characters of a custom header's name and value together (SES v2 API,
/// `MessageHeader.Value`).
pub const MAX_HEADER_CHARS: usize = 996;

/// Most files that go with a message.
pub const MAX_ATTACHMENTS: usize = 50;

/// Longest name of a file, in Unicode characters (SES v2 API, `Attachment.FileName`).
pub const MAX_FILENAME_CHARS: usize = 255;

/// Longest media type of a file, in characters (SES v2 API, `Attachment.ContentType`).
pub const MAX_CONTENT_TYPE_CHARS: usize = 78;

/// Longest content id of a file, in characters (SES v2 API, `Attachment.ContentId`).
pub const MAX_CONTENT_ID_CHARS: usize = 78;

/// Most members of a message's metadata.
pub const MAX_METADATA: usize = 20;

/// Longest name of a member of the metadata, in characters.
pub const MAX_METADATA_NAME_CHARS: usize = 40;

/// Longest value of a member of the metadata, in Unicode characters.
pub const MAX_METADATA_VALUE_CHARS: usize = 500;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_kept_for_90_days() {
        assert_eq!(RECORD_RETENTION, Duration::from_hours(2_160));
    }
}
