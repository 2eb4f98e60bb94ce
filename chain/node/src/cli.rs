//! The command line: Substrate's commands, and one that builds a chain specification from a TOML file.

use crate::{parts, service, spec};
use clap::Parser;
use mettle_runtime::OpaqueBlock as Block;
use sc_cli::SubstrateCli;
use sc_network::config::NetworkBackendType;
use std::{fs, io::Write, path::PathBuf};

#[derive(Debug, Parser)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,

    #[clap(flatten)]
    run: sc_cli::RunCmd,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Generate, inspect and insert keys.
    #[command(subcommand)]
    Key(sc_cli::KeySubcommand),

    /// Build the specification of a new chain.
    #[command(subcommand)]
    ChainSpec(ChainSpecCommand),

    /// Export the specification of a chain that this program knows or that a file describes.
    ExportChainSpec(sc_cli::ExportChainSpecCmd),

    /// Validate a block again.
    CheckBlock(sc_cli::CheckBlockCmd),

    /// Export blocks to a file.
    ExportBlocks(sc_cli::ExportBlocksCmd),

    /// Import blocks from a file.
    ImportBlocks(sc_cli::ImportBlocksCmd),

    /// Export the state at a block as the specification of a chain that starts from it.
    ExportState(sc_cli::ExportStateCmd),

    /// Delete this node's copy of the chain.
    PurgeChain(sc_cli::PurgeChainCmd),

    /// Revert blocks that are not finalised.
    Revert(sc_cli::RevertCmd),

    /// Show which blocks this node has.
    ChainInfo(sc_cli::ChainInfoCmd),
}

#[derive(Debug, clap::Subcommand)]
enum ChainSpecCommand {
    /// Build it from a TOML file, with the Wasm runtime in this program.
    Build {
        /// Authorities, endowments and so on: see docs/node.md.
        file: PathBuf,
        /// Write the genesis state rather than its settings. The nodes of a network should share this: another
        /// release would build another state.
        #[arg(long)]
        raw: bool,
        /// Write to this file instead of standard output.
        #[arg(long, short)]
        output: Option<PathBuf>,
    },
}

impl SubstrateCli for Cli {
    fn impl_name() -> String {
        "Mettle Node".into()
    }

    fn impl_version() -> String {
        env!("CARGO_PKG_VERSION").into()
    }

    fn description() -> String {
        env!("CARGO_PKG_DESCRIPTION").into()
    }

    fn author() -> String {
        "The Mettle developers".into()
    }

    fn support_url() -> String {
        "docs/node.md".into()
    }

    fn copyright_start_year() -> i32 {
        2026
    }

    fn load_spec(&self, id: &str) -> Result<Box<dyn sc_service::ChainSpec>, String> {
        spec::load(id).map(|spec| Box::new(spec) as _).map_err(|error| error.to_string())
    }
}

pub fn run() -> sc_cli::Result<()> {
    let cli = Cli::from_args();
    match &cli.command {
        None => cli.create_runner(&cli.run)?.run_node_until_exit(|config| async move {
            if !matches!(config.network.network_backend, NetworkBackendType::Litep2p) {
                return Err(sc_cli::Error::Input("this node supports litep2p only".into()));
            }
            service::start(config).map_err(sc_cli::Error::Service)
        }),
        Some(Command::Key(command)) => command.run(&cli),
        Some(Command::ChainSpec(ChainSpecCommand::Build { file, raw, output })) => {
            build_chain_spec(file, *raw, output.as_ref())
        }
        Some(Command::ExportChainSpec(command)) => command.run(cli.load_spec(&command.chain)?),
        Some(Command::CheckBlock(command)) => cli.create_runner(command)?.async_run(|config| {
            let parts = parts::parts(&config)?;
            Ok((command.run(parts.client, parts.import_queue), parts.task_manager))
        }),
        Some(Command::ExportBlocks(command)) => cli.create_runner(command)?.async_run(|config| {
            let parts = parts::parts(&config)?;
            Ok((command.run(parts.client, config.database), parts.task_manager))
        }),
        Some(Command::ImportBlocks(command)) => cli.create_runner(command)?.async_run(|config| {
            let parts = parts::parts(&config)?;
            Ok((command.run(parts.client, parts.import_queue), parts.task_manager))
        }),
        Some(Command::ExportState(command)) => cli.create_runner(command)?.async_run(|config| {
            let parts = parts::parts(&config)?;
            Ok((command.run(parts.client, config.chain_spec), parts.task_manager))
        }),
        Some(Command::PurgeChain(command)) => {
            cli.create_runner(command)?.sync_run(|config| command.run(config.database))
        }
        Some(Command::Revert(command)) => cli.create_runner(command)?.async_run(|config| {
            let parts = parts::parts(&config)?;
            let votes = Box::new(|client, _, blocks| {
                sc_consensus_grandpa::revert(client, blocks)?;
                Ok(())
            });
            Ok((command.run(parts.client, parts.backend, Some(votes)), parts.task_manager))
        }),
        Some(Command::ChainInfo(command)) => {
            cli.create_runner(command)?.sync_run(|config| command.run::<Block>(&config))
        }
    }
}

fn build_chain_spec(file: &PathBuf, raw: bool, output: Option<&PathBuf>) -> sc_cli::Result<()> {
    let json = spec::build(file, raw).map_err(|error| sc_cli::Error::Application(Box::new(error)))?;
    match output {
        Some(path) => fs::write(path, json)?,
        None => std::io::stdout().write_all(json.as_bytes())?,
    }
    Ok(())
}
