//! Flags that name a chain.

use daemon::config::{ChainFlags, EndpointArgs};
use protocol::GenesisHash;
use std::path::PathBuf;

/// Flags of commands that need a chain and no run.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct NetworkFlags {
    /// Settings file (TOML).
    #[arg(long, value_name = "FILE", env = "METTLE_CONFIG")]
    config: Option<PathBuf>,
    /// URL of the chain's JSON-RPC, such as ws://127.0.0.1:9944.
    #[arg(long, value_name = "URL", env = "METTLE_CHAIN")]
    chain: Option<String>,
    /// The hash of the chain's block 0; required except on a development chain.
    #[arg(long, value_name = "HASH", env = "METTLE_GENESIS")]
    genesis: Option<GenesisHash>,
}

impl NetworkFlags {
    /// As [`ChainFlags::read`].
    pub fn read(&self) -> anyhow::Result<EndpointArgs> {
        let NetworkFlags { config, chain, genesis } = self.clone();
        ChainFlags { config, chain, genesis, run: None }.read(None)
    }
}
