//! What people see: aligned columns, in which nothing can steer the terminal, and how far a long
//! command is.

use std::fmt::Write;

use indicatif::{ProgressBar, ProgressStyle};

/// Between two columns.
const GAP: &str = "  ";

/// A table with a head.
pub(super) struct Table<const N: usize> {
    rows: Vec<[String; N]>,
}

impl<const N: usize> Table<N> {
    /// An empty table.
    pub(super) fn new(head: [&str; N]) -> Self {
        Self { rows: vec![head.map(str::to_owned)] }
    }

    /// Adds a row.
    pub(super) fn row(&mut self, cells: [&str; N]) {
        self.rows.push(cells.map(escaped));
    }

    /// The lines, or `none` where there is no row.
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
        for row in &self.rows {
            let mut line = String::new();
            for (cell, width) in row.iter().zip(widths) {
                write!(line, "{cell:width$}{GAP}").expect("text takes everything");
            }
            text.push_str(line.trim_end());
            text.push('\n');
        }
        text
    }
}

/// The text with control characters, and those that turn the direction of writing, as escapes.
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

/// How far a command is: a bar on standard error where that is a terminal, else nothing.
pub(super) struct Progress(ProgressBar);

impl Progress {
    /// Of a command that has `total` of something before it: `{pos}` and `{len}` of it are shown
    /// with the text `what`.
    pub(super) fn of(total: u64, what: &'static str) -> Self {
        let style = "{msg} {wide_bar} {percent}%, {elapsed} gone, {eta} to go";
        Self::styled(ProgressBar::new(total), style, what)
    }

    /// Of a command that cannot know how much is before it.
    pub(super) fn counting(what: &'static str) -> Self {
        Self::styled(ProgressBar::no_length(), "{msg} {pos}, {elapsed} gone", what)
    }

    fn styled(bar: ProgressBar, style: &str, what: &'static str) -> Self {
        bar.set_style(ProgressStyle::with_template(style).expect("the template is well-formed"));
        bar.set_message(what);
        Self(bar)
    }

    /// Tells how much is done.
    pub(super) fn at(&self, done: u64) {
        self.0.set_position(done);
    }

    /// Prints a line to standard error without disturbing the bar.
    pub(super) fn line(&self, line: &str) {
        self.0.suspend(|| {
            // Standard error may be closed; `eprintln` would panic.
            let _ =
                std::io::Write::write_all(&mut std::io::stderr(), format!("{line}\n").as_bytes());
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
    fn what_steers_a_terminal_is_escaped() {
        assert_eq!(escaped("a\x1b[2J\r\nb\u{9b}c"), "a\\u{1b}[2J\\r\\nb\\u{9b}c");
        assert_eq!(escaped("abc\u{202e}txt"), "abc\\u{202e}txt");
        assert_eq!(escaped("Gr\u{fc}\u{df}e \u{1f44b}"), "Gr\u{fc}\u{df}e \u{1f44b}");
    }
}
