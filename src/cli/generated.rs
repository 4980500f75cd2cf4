//! `completions` and `man`: what is generated from the command line's own definition.

use std::path::PathBuf;

use clap::{Args, CommandFactory, ValueEnum};
use clap_complete::generate;

use crate::cli::error::CliError;
use crate::cli::{Cli, NAME, manual};

#[derive(Debug, Args)]
pub(super) struct Completions {
    /// Shell.
    shell: Shell,
}

/// A shell that there are completions for.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum Shell {
    Bash,
    Zsh,
    Fish,
}

impl From<Shell> for clap_complete::Shell {
    fn from(shell: Shell) -> Self {
        match shell {
            Shell::Bash => Self::Bash,
            Shell::Zsh => Self::Zsh,
            Shell::Fish => Self::Fish,
        }
    }
}

impl Completions {
    pub(super) fn run(&self) -> String {
        let mut script = Vec::new();
        generate(clap_complete::Shell::from(self.shell), &mut Cli::command(), NAME, &mut script);
        String::from_utf8(script).expect("names and help are UTF-8")
    }
}

#[derive(Debug, Args)]
pub(super) struct Man {
    /// Directory to write the pages into.
    #[arg(long, value_name = "DIR")]
    dir: PathBuf,
}

impl Man {
    pub(super) fn run(self) -> Result<String, CliError> {
        let written = manual::write(Cli::command(), &self.dir);
        written.map_err(|source| CliError::Write { path: self.dir, source })?;
        Ok(String::new())
    }
}
