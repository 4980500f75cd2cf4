//! `completions`: what a shell needs to complete this command line.

use clap::{Args, CommandFactory, ValueEnum};
use clap_complete::generate;

use crate::cli::{Cli, NAME};

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
