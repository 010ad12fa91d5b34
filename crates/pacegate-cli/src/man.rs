//! `pacegate man`: manual pages.

use std::path::PathBuf;

use anyhow::Context;
use clap::{Args, CommandFactory};

use crate::output::{print, say};
use crate::{Arguments, Failure};

/// Prints the manual page, or writes one page for each command to a directory.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  pacegate man | man -l -\n  pacegate man --dir /usr/local/share/man/man1"
)]
pub(crate) struct Man {
    /// The directory to write all pages to. It is created if it does not exist.
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

impl Man {
    pub(crate) fn run(self) -> Result<(), Failure> {
        let command = Arguments::command();
        let Some(dir) = self.dir else {
            let mut page = Vec::new();
            clap_mangen::Man::new(command).render(&mut page).context("could not render the page")?;
            return Ok(print(&page)?);
        };
        let failed = || format!("could not write manual pages to {}", dir.display());
        std::fs::create_dir_all(&dir).with_context(failed)?;
        clap_mangen::generate_to(command, &dir).with_context(failed)?;
        say(&format!("manual pages written to {}", dir.display()));
        Ok(())
    }
}
