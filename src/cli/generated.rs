//! `completions` and `man`: what is generated from the command line's own definition.

use std::path::PathBuf;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, CommandFactory};
use clap_complete::{Shell, generate};

use crate::error::CliError;
use crate::{Cli, NAME, manual};

/// Shells that there are completions for.
const SHELLS: [&str; 3] = ["bash", "zsh", "fish"];

#[derive(Debug, Args)]
pub(super) struct Completions {
    /// Shell.
    #[arg(value_parser = PossibleValuesParser::new(SHELLS).try_map(|name| name.parse::<Shell>()))]
    shell: Shell,
}

impl Completions {
    pub(super) fn run(&self) -> String {
        let mut script = Vec::new();
        generate(self.shell, &mut Cli::command(), NAME, &mut script);
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
