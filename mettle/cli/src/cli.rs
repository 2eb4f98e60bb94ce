//! The command line of `mettle`.

use crate::{
    account::{self, AccountCommand},
    audit::{self, Audit},
    dataset::{self, DatasetCommand},
    delegation::{self, DelegationCommand},
    doctor::{self, Doctor},
    init::{self, InitCommand},
    keys::{self, KeysCommand},
    model::{self, ModelCommand},
    output::{self, Output},
    plan::{self, PlanRun},
    receipts::{self, Receipts},
    report::{self, Report},
    run::{self, RunCommand},
    seat::{self, SeatCommand},
    shell::{self, ShellCommand},
    top::{self, Top},
    web::{self, Web},
    why::{self, Why},
};
use clap::{CommandFactory as _, FromArgMatches as _, Parser, Subcommand};
use daemon::program;
use std::process::ExitCode;

/// The client of a Mettle network: everything but the daemons.
#[derive(Debug, Parser)]
#[command(name = "mettle", version)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
    /// Print one JSON object instead of text. Amounts are strings in the smallest unit, 10⁻¹² MTL.
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Create a key file, or show a key's address
    #[command(subcommand)]
    Keys(KeysCommand),
    /// Create a seat or a run in one command: keys, settings, checks
    #[command(subcommand)]
    Init(InitCommand),
    #[command(flatten)]
    Account(AccountCommand),
    #[command(flatten)]
    Seat(SeatCommand),
    #[command(flatten)]
    Delegation(DelegationCommand),
    /// List, show, create and fund runs, or manage one as its owner
    #[command(subcommand)]
    Run(RunCommand),
    Plan(PlanRun),
    Doctor(Box<Doctor>),
    Why(Why),
    Receipts(Receipts),
    Audit(Audit),
    Report(Report),
    Top(Top),
    Web(Web),
    /// Export, import, evaluate, sample or serve a model
    #[command(subcommand)]
    Model(ModelCommand),
    /// Prepare training data
    #[command(subcommand)]
    Dataset(DatasetCommand),
    #[command(flatten)]
    Shell(ShellCommand),
}

/// The commands by subject, as `mettle --help` lists them.
const GROUPS: &[(&str, &str)] = &[
    ("Keys and money", "keys balance transfer submit"),
    (
        "Seats",
        "init doctor register status why claim set-payout stake unstake withdraw rotate-key rewind proxy",
    ),
    ("Delegation", "nominate unnominate nominations set-commission"),
    ("Runs", "run plan top web"),
    ("Evidence", "receipts audit report"),
    ("Models and data", "model dataset"),
    ("Shell", "completions man"),
];

/// Runs the program named by this process's arguments.
pub fn main() -> ExitCode {
    let cli = Cli::from_arg_matches(&command().get_matches()).unwrap_or_else(|error| error.exit());
    let json = cli.json();
    let work = output::with_output(json, async |output| cli.execute(output).await);
    program::run_client_to_exit(env!("CARGO_CRATE_NAME"), Box::pin(work))
}

/// Returns the command line with its commands listed by subject.
pub fn command() -> clap::Command {
    let command = Cli::command();
    let mut list = String::new();
    for (title, names) in GROUPS {
        list.push_str(&format!("\n{title}:\n"));
        for name in names.split(' ') {
            let about = command.find_subcommand(name).and_then(clap::Command::get_about);
            list.push_str(&format!("  {name:16}{}\n", about.map(ToString::to_string).unwrap_or_default()));
        }
    }
    let template = format!(
        "{{about}}\n\n{{usage-heading}} {{usage}}\n{list}\n\
         `mettle COMMAND --help` explains a command, with examples.\n\nOptions:\n{{options}}"
    );
    command.help_template(template)
}

impl Cli {
    /// Returns whether `--json` was given.
    pub fn json(&self) -> bool {
        self.json
    }

    /// Runs the command; prints and asks through `output`.
    pub async fn execute(self, output: &mut Output<'_>) -> anyhow::Result<()> {
        match self.command {
            Command::Keys(command) => keys::run(command, output),
            Command::Init(command) => init::init(command, output).await,
            Command::Account(command) => account::run(command, output).await,
            Command::Seat(command) => seat::run(command, output).await,
            Command::Delegation(command) => delegation::run(command, output).await,
            Command::Run(command) => run::run(command, output).await,
            Command::Plan(command) => plan::plan(command, output),
            Command::Doctor(command) => doctor::doctor(*command, output).await,
            Command::Why(command) => why::why(command, output).await,
            Command::Receipts(command) => receipts::receipts(command, output).await,
            Command::Audit(command) => audit::audit(command, output).await,
            Command::Report(command) => report::report(command, output).await,
            Command::Top(command) => top::top(command, output).await,
            Command::Web(command) => web::web(command, output).await,
            Command::Model(command) => model::run(command, output).await,
            Command::Dataset(command) => dataset::run(command, output).await,
            Command::Shell(command) => shell::run(command, self::command(), output),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        command().debug_assert();
    }

    #[test]
    fn every_command_is_in_exactly_one_group() {
        let command = command();
        let mut listed: Vec<&str> = GROUPS.iter().flat_map(|(_, names)| names.split(' ')).collect();
        let mut commands: Vec<&str> = command.get_subcommands().map(clap::Command::get_name).collect();
        listed.sort_unstable();
        commands.sort_unstable();
        assert_eq!(listed, commands);
    }

    #[test]
    fn every_command_and_flag_has_help() {
        fn check(command: &clap::Command) {
            let name = command.get_name();
            assert!(command.get_about().is_some(), "{name} has no help");
            assert!(
                command.has_subcommands() || command.get_after_help().is_some(),
                "{name} has no examples"
            );
            for flag in command.get_arguments() {
                assert!(flag.get_help().is_some(), "{} of {name} has no help", flag.get_id());
            }
            command.get_subcommands().filter(|command| command.get_name() != "help").for_each(check);
        }
        command().get_subcommands().for_each(check);
    }

    #[test]
    fn help_is_readable_at_eighty_columns() {
        fn hide_environment(command: clap::Command) -> clap::Command {
            command.mut_args(|arg| arg.hide_env_values(true)).mut_subcommands(hide_environment)
        }
        fn collect(command: &mut clap::Command, text: &mut String) {
            let help = command.render_long_help().to_string();
            text.extend(help.lines().map(|line| format!("{}\n", line.trim_end())));
            for command in command.get_subcommands_mut().filter(|command| command.get_name() != "help") {
                text.push_str(&format!("\n{}\n", "=".repeat(80)));
                collect(command, text);
            }
        }
        let mut command = hide_environment(command().term_width(80));
        command.build();
        let mut text = String::new();
        collect(&mut command, &mut text);
        let long: Vec<&str> =
            text.lines().filter(|line| line.chars().count() > 80 && !line.starts_with("Usage: ")).collect();
        assert!(long.is_empty(), "too long: {long:#?}");
        expect_test::expect_file!["../tests/help.txt"].assert_eq(&text);
    }
}
