//! A document of the provider: no input leads to a panic, and no reason names an address.

use pillarbox_ses::event::{Document, EventKind, parse};

/// The longest text of the provider's that is kept, in bytes.
const MAX_KEPT_BYTES: usize = 2_048;

pub(crate) fn check(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    match parse(&text) {
        Ok(Document::Other(name)) => {
            assert!(name.chars().count() <= 64 && !name.chars().any(char::is_control), "{name:?}");
        }
        Ok(Document::Event(event)) => {
            assert!(!event.ses_message_id.is_empty());
            if let EventKind::Recipients(event) = event.kind {
                let kept = format!("{:?}", event.detail);
                // Escaped for display, a byte takes up to ten characters.
                assert!(kept.len() < 3 * 10 * MAX_KEPT_BYTES, "{}", kept.len());
            }
        }
        Err(unreadable) => {
            let reason = unreadable.to_string();
            // A domain may stay; what was before its `@` is left out.
            let is_left_out = |(at, _)| reason[..at].ends_with('…');
            assert!(reason.match_indices('@').all(is_left_out), "{reason}");
            assert!(reason.len() <= MAX_KEPT_BYTES, "{reason}");
        }
    }
}
