//! How far a long command is: a bar on standard error where that is a terminal, else nothing.

use indicatif::{ProgressBar, ProgressStyle};

/// How far a command is.
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
