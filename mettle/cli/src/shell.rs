//! `mettle completions` and `mettle man`: descriptions of this command line for shells and for `man`.

use crate::{help, output::Output};
use anyhow::Context as _;
use clap::Subcommand;
use clap_complete::Shell;
use serde_json::json;
use std::path::PathBuf;

#[derive(Clone, Debug, Subcommand)]
pub enum ShellCommand {
    /// Print the completions of a shell
    #[command(after_help = help::reading(&[
        "mettle completions bash > mettle.bash && source mettle.bash",
        "mettle completions fish > ~/.config/fish/completions/mettle.fish",
    ]))]
    Completions {
        /// The shell.
        shell: Shell,
    },
    /// Write the man pages, one per command
    #[command(after_help = help::reading(&["mettle man --out man1 && man man1/mettle-register.1"]))]
    Man {
        /// The directory for the pages.
        #[arg(long, value_name = "DIR")]
        out: PathBuf,
    },
}

/// Runs a command for the command line `cli`; prints through `output`.
pub fn run(command: ShellCommand, mut cli: clap::Command, output: &mut Output<'_>) -> anyhow::Result<()> {
    output.bare_json();
    match command {
        ShellCommand::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut cli, "mettle", &mut script);
            let script = String::from_utf8(script).context("the script is no text")?;
            Ok(output.result(&script, json!({ "shell": shell.to_string(), "script": script }))?)
        }
        ShellCommand::Man { out } => {
            let cannot = || format!("could not write the man pages into {}", out.display());
            std::fs::create_dir_all(&out).with_context(cannot)?;
            clap_mangen::generate_to(cli, &out).with_context(cannot)?;
            let text = format!("the man pages are in {}", out.display());
            Ok(output.result(&text, json!({ "directory": out }))?)
        }
    }
}
