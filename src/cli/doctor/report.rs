//! The findings, line by line as they come, and what they come to.

use std::fmt::Write as _;
use std::io::{self, Write as _};

use serde::Serialize;

use crate::admin::wire::{Finding, Verdict};
use crate::cli::error::CliError;
use crate::cli::table::escaped;

/// Collects findings; prints them for people as they come, for programs at the end.
pub(super) struct Report {
    json: bool,
    findings: Vec<Finding>,
}

#[derive(Serialize)]
struct Document<'a> {
    ok: bool,
    checks: &'a [Finding],
}

impl Report {
    pub(super) fn new(json: bool) -> Self {
        Self { json, findings: Vec::new() }
    }

    pub(super) fn add_all(&mut self, findings: impl IntoIterator<Item = Finding>) {
        for finding in findings {
            self.add(finding);
        }
    }

    pub(super) fn add(&mut self, finding: Finding) {
        if !self.json {
            print(&lines(&finding));
        }
        self.findings.push(finding);
    }

    /// Tells a person who waits how it goes.
    pub(super) fn progress(&self, text: &str) {
        if !self.json {
            // Standard error may be closed; `eprintln` would panic.
            let _ = writeln!(io::stderr(), "         {}", escaped(text));
        }
    }

    /// What is left to print, or that there are faults.
    pub(super) fn finish(self) -> Result<String, CliError> {
        let count = |verdict| self.findings.iter().filter(|f| f.verdict == verdict).count();
        let (faults, warnings) = (count(Verdict::NotOk), count(Verdict::Warning));
        let document = Document { ok: faults == 0, checks: &self.findings };
        let mut text = String::new();
        if self.json {
            text = serde_json::to_string(&document).expect("findings are texts");
            text.push('\n');
        }
        if faults > 0 {
            print(&text);
            return Err(CliError::Unwell { faults });
        }
        if !self.json {
            let warned = match warnings {
                0 => String::new(),
                1 => "; one thing deserves a look".to_owned(),
                more => format!("; {more} things deserve a look"),
            };
            writeln!(text, "\nNothing is wrong{warned}.").expect("text takes everything");
        }
        Ok(text)
    }
}

fn lines(finding: &Finding) -> String {
    let verdict = match finding.verdict {
        Verdict::Ok => "ok",
        Verdict::Warning => "warning",
        Verdict::NotOk => "NOT OK",
    };
    let (about, message) = (escaped(&finding.about), escaped(&finding.message));
    let mut text = format!("{verdict:7}  {about}: {message}\n");
    if let Some(advice) = &finding.advice {
        writeln!(text, "         -> {}", escaped(advice)).expect("text takes everything");
    }
    text
}

fn print(text: &str) {
    let mut out = io::stdout().lock();
    // Whoever closed it wants no more; the exit code still says how it went.
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}
