//! Output for people: aligned columns, in which nothing can steer the terminal, and the progress of
//! a long command.

use std::borrow::Cow;
use std::env;
use std::fmt::Write;
use std::io::{self, IsTerminal as _, Write as _};

use clap::builder::styling::{AnsiColor, Style};

use indicatif::{ProgressBar, ProgressStyle};

const GAP: &str = "  ";
/// Columns whose words have colours.
const COLOURED_COLUMNS: [&str; 4] = ["STATUS", "STATE", "OUTCOME", "EVENT"];

pub(super) const GOOD: Style = AnsiColor::Green.on_default();
/// Style of a warning.
pub(super) const WARNING: Style = AnsiColor::Yellow.on_default();
pub(super) const BAD: Style = AnsiColor::Red.on_default();

/// The text in a style. The printer removes the colours if no terminal wants them.
pub(super) fn painted(text: &str, style: Style) -> String {
    format!("{style}{text}{style:#}")
}

/// The text as standard output takes it: without colours unless it is a terminal, and without them
/// wherever `NO_COLOR` is set (<https://no-color.org>). `CLICOLOR_FORCE` asks for them elsewhere.
pub(super) fn for_standard_output(text: &str) -> Cow<'_, str> {
    let is_set = |name| env::var_os(name).is_some_and(|value| !value.is_empty());
    let is_dumb = || env::var_os("TERM").is_some_and(|value| value == "dumb");
    let has_colours = is_set("CLICOLOR_FORCE") || (io::stdout().is_terminal() && !is_dumb());
    if has_colours && !is_set("NO_COLOR") { text.into() } else { without_colours(text) }
}

/// The text without what [`painted`] adds. No other escape is in it: see [`escaped`].
fn without_colours(text: &str) -> Cow<'_, str> {
    let mut pieces = text.split("\x1b[");
    let first = pieces.next().unwrap_or_default();
    if first.len() == text.len() {
        return text.into();
    }
    let rest = pieces.map(|piece| piece.split_once('m').map_or(piece, |(_, after)| after));
    std::iter::once(first).chain(rest).collect::<String>().into()
}

/// The style of a status, a state, an outcome or an event, by its first word.
pub(super) fn style_of(words: &str) -> Style {
    match words.split(' ').next().unwrap_or_default() {
        "sent" | "delivered" | "delivery" | "verified" | "active" => GOOD,
        "suppressed" | "delayed" | "delivery_delay" | "paused" | "pending" => WARNING,
        "failed" | "bounced" | "bounce" | "complained" | "complaint" | "rejected" | "reject" => BAD,
        _ => Style::new(),
    }
}

/// The columns of a table: the head of each, and its cell in the row of a `T`.
pub(super) type Columns<T, const N: usize> = [(&'static str, fn(&T) -> String); N];

/// A table with a head.
pub(super) struct Table<const N: usize> {
    rows: Vec<[String; N]>,
}

impl<const N: usize> Table<N> {
    pub(super) fn new(head: [&str; N]) -> Self {
        Self { rows: vec![head.map(str::to_owned)] }
    }

    /// A table with a row for each of these.
    pub(super) fn of<T>(rows: &[T], columns: Columns<T, N>) -> Self {
        let mut table = Self::new(columns.map(|(head, _)| head));
        table.rows.extend(rows.iter().map(|row| columns.map(|(_, cell)| escaped(&cell(row)))));
        table
    }

    pub(super) fn row(&mut self, cells: [&str; N]) {
        self.rows.push(cells.map(escaped));
    }

    /// The lines, or `none` if there is no row.
    pub(super) fn or(self, none: &str) -> String {
        if self.rows.len() == 1 {
            return format!("{none}\n");
        }
        let mut widths = [0; N];
        for row in &self.rows {
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = (*width).max(cell.chars().count());
            }
        }
        let mut text = String::new();
        let head = &self.rows[0];
        for (number, row) in self.rows.iter().enumerate() {
            let mut line = String::new();
            for ((cell, width), name) in row.iter().zip(widths).zip(head) {
                let is_coloured = number > 0 && COLOURED_COLUMNS.contains(&name.as_str());
                let style = if is_coloured { style_of(cell) } else { Style::new() };
                // The escapes have no width.
                let space = width - cell.chars().count();
                let _ = write!(line, "{}{:space$}{GAP}", painted(cell, style), "");
            }
            text.push_str(line.trim_end());
            text.push('\n');
        }
        text
    }
}

/// The text with control characters, and those that change the direction of writing, as escapes.
pub(super) fn escaped(text: &str) -> String {
    let steers = |c: char| {
        c.is_control()
            || matches!(c, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        if steers(c) {
            shown.extend(c.escape_default());
        } else {
            shown.push(c);
        }
    }
    shown
}

/// Progress of a command: a bar on standard error if that is a terminal, else nothing.
pub(super) struct Progress(ProgressBar);

impl Progress {
    /// Of a command that has `total` of something before it: `{pos}` and `{len}` of it are shown
    /// with the text `what`.
    pub(super) fn of(total: u64, what: &'static str) -> Self {
        let style = "{msg} {wide_bar} {percent}%, {elapsed} elapsed, {eta} left";
        Self::styled(ProgressBar::new(total), style, what)
    }

    /// Of a command that cannot know how much is before it.
    pub(super) fn counting(what: &'static str) -> Self {
        Self::styled(ProgressBar::no_length(), "{msg} {pos}, {elapsed} elapsed", what)
    }

    fn styled(bar: ProgressBar, style: &str, what: &'static str) -> Self {
        bar.set_style(ProgressStyle::with_template(style).expect("the template is well-formed"));
        bar.set_message(what);
        Self(bar)
    }

    pub(super) fn at(&self, done: u64) {
        self.0.set_position(done);
    }

    /// Prints a line to standard error without disturbing the bar.
    pub(super) fn line(&self, line: &str) {
        self.0.suspend(|| {
            // Standard error may be closed; `eprintln` would panic.
            let _ = writeln!(io::stderr(), "{line}");
        });
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned_and_lines_end_without_spaces() {
        let mut table = Table::new(["ID", "NAME"]);
        table.row(["1", "b\u{fc}cher"]);
        table.row(["22", ""]);
        assert_eq!(table.or("none"), "ID  NAME\n1   b\u{fc}cher\n22\n");
        assert_eq!(Table::new(["ID"]).or("none"), "none\n");
    }

    #[test]
    fn words_have_their_colours_and_columns_stay_aligned() {
        let mut table = Table::new(["STATUS", "TO"]);
        table.row(["failed (retries_exhausted)", "a"]);
        table.row(["sent", "b"]);
        table.row(["queued", "sent"]);
        let text = table.or("none");
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines[1], "\x1b[31mfailed (retries_exhausted)\x1b[0m  a");
        assert_eq!(lines[2], format!("\x1b[32msent\x1b[0m{:22}  b", ""));
        assert_eq!(lines[3], format!("queued{:20}  sent", ""));
    }

    #[test]
    fn colours_leave_nothing_behind() {
        let text = format!("a {} m {}", painted("sent", GOOD), painted("m", BAD));
        assert_eq!(without_colours(&text), "a sent m m");
        assert_eq!(without_colours("plain"), "plain");
    }

    #[test]
    fn what_steers_a_terminal_is_escaped() {
        assert_eq!(escaped("a\x1b[2J\r\nb\u{9b}c"), "a\\u{1b}[2J\\r\\nb\\u{9b}c");
        assert_eq!(escaped("abc\u{202e}txt"), "abc\\u{202e}txt");
        assert_eq!(escaped("Gr\u{fc}\u{df}e \u{1f44b}"), "Gr\u{fc}\u{df}e \u{1f44b}");
    }
}
