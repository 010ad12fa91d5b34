//! `pacegate completions`: shell completion scripts.

use clap::{Args, CommandFactory};
use clap_complete::aot::{Shell, generate};

use crate::output::print;
use crate::{Arguments, Failure};

/// Prints a completion script for a shell.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  pacegate completions bash > ~/.local/share/bash-completion/completions/pacegate\n  pacegate completions zsh > \"${fpath[1]}/_pacegate\"\n  pacegate completions fish > ~/.config/fish/completions/pacegate.fish"
)]
pub(crate) struct Completions {
    /// The shell that runs the script.
    shell: Shell,
}

impl Completions {
    pub(crate) fn run(self) -> Result<(), Failure> {
        let mut script = Vec::new();
        generate(self.shell, &mut Arguments::command(), "pacegate", &mut script);
        Ok(print(&script)?)
    }
}
