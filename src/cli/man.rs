//! `man`: the manual's pages, from the command line's own definition.

use std::path::PathBuf;

use clap::{Args, CommandFactory};

use crate::cli::Cli;
use crate::cli::error::CliError;

#[derive(Debug, Args)]
pub(super) struct Man {
    /// Directory to write the pages into.
    #[arg(long, value_name = "DIR")]
    dir: PathBuf,
}

impl Man {
    pub(super) fn run(self) -> Result<String, CliError> {
        // Without `help` and its subcommands, each of which would have a page.
        let command = Cli::command().disable_help_subcommand(true);
        let written = std::fs::create_dir_all(&self.dir)
            .and_then(|()| clap_mangen::generate_to(command, &self.dir));
        written.map_err(|source| CliError::Write { path: self.dir, source })?;
        Ok(String::new())
    }
}
