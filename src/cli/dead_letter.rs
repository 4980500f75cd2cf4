//! `dead-letter`: documents of the provider that could not be read.

use crate::output::{Table, escaped};
use pillarbox_admin::conditions::several;
use pillarbox_admin::dead_letter::{DeadLetterShown, DeadLetters};

/// Length of an id in a table, in characters; it does for the other commands.
const ID_CHARS: usize = 12;

pub(super) fn table(list: &DeadLetters) -> String {
    let mut table = Table::new(["ID", "RECEIVED", "BYTES", "REASON"]);
    for letter in &list.dead_letters {
        let id = letter.id.get(..ID_CHARS).unwrap_or(&letter.id);
        table.row([id, &letter.received_at, &letter.length.to_string(), &letter.reason]);
    }
    table.or("no dead letters")
}

pub(super) fn with_document(shown: &DeadLetterShown) -> String {
    let DeadLetterShown { letter, document } = shown;
    let mut lines = vec![
        format!("id:        {}", letter.id),
        format!("received:  {}", letter.received_at),
        format!("reason:    {}", escaped(&letter.reason)),
    ];
    if document.len() < letter.length {
        lines.push(format!("length:    {}, of which {} are kept", letter.length, document.len()));
    }
    lines.push(String::new());
    lines.extend(document.lines().map(escaped));
    lines.join("\n") + "\n"
}

pub(super) fn cleared(documents: usize) -> String {
    format!("cleared {}\n", several(documents as u64, "dead letter"))
}
