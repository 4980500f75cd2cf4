//! Judge of histories: finds contradictions to pillarbox's guarantees.
//!
//! A test records what each party observed: clients, readers of the feed, receivers of webhooks,
//! operators and the provider. The judge knows the guarantees and nothing else; it shares no code
//! with pillarbox or the tests.

use std::io::BufRead;

use history::Event;

mod feed;
mod guarantees;
pub mod history;

/// Numbers of a history, for the test's output.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Summary {
    /// Posts that were answered with 200.
    pub acknowledged: usize,
    /// Messages that these posts made.
    pub messages: usize,
    /// Messages that the provider took.
    pub sent: usize,
    /// Entries of the longest feed of each organisation.
    pub entries: usize,
    /// Processes that were killed.
    pub killed: usize,
}

/// Observation that breaks a guarantee.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{guarantee}\n  {found}\n  the events around it:\n{around}")]
pub struct Contradiction {
    /// The guarantee that is broken.
    pub guarantee: &'static str,
    /// Description of the observation.
    pub found: String,
    /// The events that prove it, one a line.
    pub around: String,
}

/// A history that cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum Unreadable {
    /// A line cannot be read.
    #[error("line {line} of the history")]
    Line {
        /// Its number, from 1.
        line: usize,
        /// Error of the parser.
        source: serde_json::Error,
    },
    /// The source cannot be read.
    #[error("the history")]
    Source(#[from] std::io::Error),
    /// The first event does not say how the run was set up.
    #[error("the first event of the history is not `run`")]
    NoRun,
}

/// Reads a history, one event a line.
pub fn read(source: impl BufRead) -> Result<Vec<Event>, Unreadable> {
    let mut events = Vec::new();
    for (index, line) in source.lines().enumerate() {
        let event = serde_json::from_str(&line?);
        events.push(event.map_err(|source| Unreadable::Line { line: index + 1, source })?);
    }
    if !matches!(events.first(), Some(Event::Run(_))) {
        return Err(Unreadable::NoRun);
    }
    Ok(events)
}

/// Judges a history that is complete: each acknowledged message was read once more at its end.
///
/// Returns the first contradiction, in the order of the guarantees.
pub fn judge(history: &[Event]) -> Result<Summary, Contradiction> {
    let case = guarantees::Case::of(history);
    case.judge()?;
    let entries = feed::judge(history)?;
    Ok(Summary { entries, ..case.summary() })
}

/// Makes a contradiction with the events that prove it.
fn contradiction<'a>(
    guarantee: &'static str,
    found: String,
    around: impl IntoIterator<Item = &'a Event>,
) -> Contradiction {
    let lines = around.into_iter().map(|event| {
        let line = serde_json::to_string(event).expect("an event is JSON");
        format!("    {line}")
    });
    let around = lines.collect::<Vec<_>>().join("\n");
    Contradiction { guarantee, found, around }
}
