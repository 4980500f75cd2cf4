//! Sentence of an error and its sources, and the text that continues it.

use std::error::Error;

/// Returns an error with its sources, on one line.
pub fn error_chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        let next = error.to_string();
        if !text.ends_with(&next) {
            text.push_str(": ");
            text.push_str(&next);
        }
        source = error.source();
    }
    text
}

/// Returns a text that more text may follow: AWS ends its messages with a full stop, and others do
/// not.
pub fn without_full_stop(text: &str) -> &str {
    text.trim_end().trim_end_matches('.')
}
