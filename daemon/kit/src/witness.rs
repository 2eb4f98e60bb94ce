//! A second node of the chain, which must have the same finalised blocks.
//!
//! A node sees only what its endpoint shows, which may be a fork or windows that never opened. With a witness, two
//! endpoints of different operators would have to lie alike. The hash of a window's first block decides its data
//! (PROT-2) and fixes all blocks before it. So it is compared for every window before anything is signed.

use crate::{config::ChainConfig, open, sync::wait_past};
use chain_client::{Chain, ChainError, Head};
use protocol::{Block, Digest, RunId, Schedule, Window};
use std::{sync::Arc, time::Duration};
use tokio::sync::watch;

pub struct ChainWitness {
    chain: Arc<dyn Chain>,
    /// URLs of the first and the second node.
    urls: [String; 2],
}

/// Error for a window that could not be confirmed. Nothing may be signed for it.
#[derive(Debug, thiserror::Error)]
pub enum WitnessError {
    #[error("the second node of the chain, {url}, did not answer")]
    Chain { url: String, source: ChainError },
    #[error(
        "{url} has {ours} as the hash of block {block}, and {witness} has {}. One of them shows another chain than the \
         network's: nothing more is signed. Find out which, and give the URLs of two honest nodes",
        theirs.map_or("none".to_owned(), |hash| hash.to_string())
    )]
    Disagree { url: String, witness: String, block: Block, ours: Digest, theirs: Option<Digest> },
}

impl ChainWitness {
    /// Connects to the second node, at `url`, which must have the same chain as `first`.
    ///
    /// # Errors
    /// If the node cannot be reached or has another chain.
    pub async fn open(config: &ChainConfig, url: String, first: &dyn Chain) -> anyhow::Result<ChainWitness> {
        let genesis = Some(first.genesis());
        let second = ChainConfig { url: url.clone(), witness: None, genesis, ..config.clone() };
        let chain = open::chain(&second, None).await?;
        Ok(ChainWitness::new(chain, [config.url.clone(), url]))
    }

    /// Creates a witness. `chain` is the second node; `urls` are those of the first node and the second.
    pub fn new(chain: Arc<dyn Chain>, urls: [String; 2]) -> ChainWitness {
        ChainWitness { chain, urls }
    }

    /// Waits until the second node has finalised the window's first block, and compares its hash with `ours`, the
    /// first node's. `seen_at` is the first node's finalised block before `ours` was read. Without a hash there is
    /// nothing to compare yet.
    ///
    /// # Errors
    /// [`WitnessError::Disagree`] with both hashes and both URLs; [`WitnessError::Chain`] if the second node fails.
    pub async fn confirm(
        &self,
        run: RunId,
        schedule: Schedule,
        window: Window,
        ours: Option<Digest>,
        seen_at: Block,
    ) -> Result<(), WitnessError> {
        let Some(ours) = ours else { return Ok(()) };
        let [url, witness] = self.urls.clone();
        let failed = |source| WitnessError::Chain { url: witness.clone(), source };
        let block = schedule.opens_at(window);
        // The hash of a block is in the state of the next block, or of a later one under load.
        let mut heads = self.chain.heads();
        loop {
            self.wait_past(&mut heads, block).await.map_err(failed)?;
            let head = heads.borrow_and_update().block;
            let theirs = self.chain.window_summary(run, window).await.map_err(failed)?;
            let theirs = theirs.and_then(|theirs| theirs.opening_hash);
            if theirs == Some(ours) {
                return Ok(());
            }
            if theirs.is_some() || seen_at.0.saturating_add(PATIENCE_BLOCKS) < head.0 {
                return Err(WitnessError::Disagree { url, witness, block, ours, theirs });
            }
            self.wait_past(&mut heads, head).await.map_err(failed)?;
        }
    }

    /// Returns whether the first node, at `seen_at`, shows no hash of the window's first block although it is due. The
    /// window then cannot be confirmed.
    pub fn is_overdue(schedule: Schedule, window: Window, ours: Option<Digest>, seen_at: Block) -> bool {
        let due = schedule.opens_at(window).0.saturating_add(PATIENCE_BLOCKS);
        ours.is_none() && due < seen_at.0
    }

    /// Waits for the second node's finality, and warns while it does not advance.
    async fn wait_past(&self, heads: &mut watch::Receiver<Head>, block: Block) -> Result<(), ChainError> {
        loop {
            match tokio::time::timeout(WARN_AFTER, wait_past(heads, block)).await {
                Ok(passed) => return passed,
                Err(_) => {
                    let [_, witness] = &self.urls;
                    tracing::warn!(witness, block = block.0, "the second node of the chain is behind");
                }
            }
        }
    }
}

/// Number of blocks within which a node records the hash of a window's opening: a chain under load runs the task late.
const PATIENCE_BLOCKS: u32 = 8;
const WARN_AFTER: Duration = Duration::from_secs(60);
