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

    fn styled(bar: ProgressBar, style: &str, what: &'static str) -> Self {
        bar.set_style(ProgressStyle::with_template(style).expect("the template is well-formed"));
        bar.set_message(what);
        Self(bar)
    }

    /// Tells how much is done.
    pub(super) fn at(&self, done: u64) {
        self.0.set_position(done);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
