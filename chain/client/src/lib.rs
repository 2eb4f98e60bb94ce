#![doc = include_str!("../README.md")]

mod amount;
mod call;
mod connection;
mod endpoint;
mod error;
mod follow;
mod link;
mod offline;
mod online;
mod outbox;
mod refusal;
mod submit;
mod weight_vote;

pub mod account;
pub mod keys;
pub mod terms;

pub use amount::{Amount, AmountError, DECIMALS, SYMBOL};
pub use call::{Call, Payout, ProxyKind};
pub use connection::Timing;
pub use endpoint::is_private;
pub use error::ChainError;
pub use offline::{Hex, SignatureError, SignedCall, UnsignedCall};
pub use online::SubxtChain;
pub use refusal::Refusal;

use async_trait::async_trait;
use protocol::{
    Block, Digest, GenesisHash, Hotkey, RunId, RunParams, Terms, Uid, Window,
    view::{
        Account, AccountStatus, Payslip, RunStatus, RunView, SeatStatus, SeatView, SeatWindow, Verdict,
        WindowSummary, WindowView,
    },
};
use std::time::Duration;
use tokio::sync::watch;

/// A finalised block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    pub block: Block,
    /// The block's hash.
    pub hash: Digest,
}

/// An account's balance.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Balance {
    /// What the account may spend.
    pub free: Amount,
    /// Held stakes and deposits.
    pub held: Amount,
}

/// A call that is not signed yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Draft {
    /// The call's bytes, which every Substrate tool decodes.
    pub call_data: Vec<u8>,
    /// The fee that the chain estimates; `None` if it does not estimate.
    pub fee: Option<Amount>,
}

/// The chain, as miners, validators and the wallet use it.
///
/// Reads are of the latest finalised block. If the chain is unreachable, reads and submissions wait up to a patience
/// of the implementation's, then fail with [`ChainError::Unreachable`] or [`ChainError::TimedOut`].
#[async_trait]
pub trait Chain: Send + Sync {
    /// The hash of the chain's block 0, which all that is signed names. Every connection leads to this chain.
    fn genesis(&self) -> GenesisHash;

    /// Whether this is a development or a local chain, as it says itself at an address of this machine or a private
    /// network. Well-known keys and private endpoints are for such chains only. A remote server's word does not count.
    fn is_development(&self) -> bool;

    /// The latest finalised block; its number never falls. Blocks may be skipped. The channel closes only when the
    /// client has stopped.
    fn heads(&self) -> watch::Receiver<Head>;

    /// The tip of the best fork, final or not: it shows how far finality trails.
    async fn best_block(&self) -> Result<Block, ChainError>;

    /// The account that signs what is submitted; `None` for a client that only reads.
    fn account(&self) -> Option<Account>;

    /// All runs, by id.
    async fn runs(&self) -> Result<Vec<RunId>, ChainError>;

    /// One run. [`ChainError::NoSuchRun`] if there is none with this id.
    async fn run(&self, run: RunId) -> Result<RunView, ChainError>;

    /// The seats of a run, in uid order; none for a run that does not exist.
    async fn seats(&self, run: RunId) -> Result<Vec<SeatView>, ChainError>;

    /// The state of a window; `None` before it opens, and after the chain has forgotten it.
    async fn window(&self, run: RunId, window: Window) -> Result<Option<WindowView>, ChainError>;

    /// One seat; `None` if no account holds it. A few hundred bytes, where [`Chain::seats`] grows with the run.
    async fn seat(&self, run: RunId, uid: Uid) -> Result<Option<SeatView>, ChainError>;

    /// A window without its lists; `None` as for [`Chain::window`].
    async fn window_summary(&self, run: RunId, window: Window) -> Result<Option<WindowSummary>, ChainError>;

    /// A seat's part of a window; `None` as for [`Chain::window`].
    async fn seat_window(
        &self,
        run: RunId,
        window: Window,
        uid: Uid,
    ) -> Result<Option<SeatWindow>, ChainError>;

    /// Up to `limit` base URLs of validators that have the update which `window` was merged with: those that voted
    /// for it, from the one whose `turn` it is, then the others.
    async fn update_mirrors(
        &self,
        run: RunId,
        window: Window,
        turn: u32,
        limit: u32,
    ) -> Result<Vec<String>, ChainError>;

    /// The run's consensus weights, in uid order.
    async fn weights(&self, run: RunId) -> Result<Vec<(Uid, u16)>, ChainError>;

    /// The balance of `account`; zero if the chain does not know it.
    async fn balance(&self, account: &Account) -> Result<Balance, ChainError>;

    /// A run with its progress, terms and treasury. [`ChainError::NoSuchRun`] if there is none.
    async fn status(&self, run: RunId) -> Result<RunStatus, ChainError>;

    /// Up to `limit` seats of a run from uid `from` on, in uid order, with all that the chain stores about them.
    async fn seat_statuses(&self, run: RunId, from: Uid, limit: u32) -> Result<Vec<SeatStatus>, ChainError>;

    /// What `account` has in a run.
    async fn account_status(&self, run: RunId, account: &Account) -> Result<AccountStatus, ChainError>;

    /// A seat's payslips, the latest epoch last.
    async fn payslips(&self, run: RunId, uid: Uid) -> Result<Vec<Payslip>, ChainError>;

    /// A validator's bonds: by seat, in parts of `protocol::consensus::ONE`, in uid order (PROT-31).
    async fn bonds(&self, run: RunId, validator: Uid) -> Result<Vec<(Uid, u32)>, ChainError>;

    /// The weights that the validator with this hotkey committed to and revealed for an epoch (PROT-30), read from
    /// blocks.
    /// `None` if it did not, or the blocks are pruned. A client that reads no blocks returns `None`.
    async fn weight_vote(
        &self,
        _run: RunId,
        _epoch: u32,
        _hotkey: &Hotkey,
    ) -> Result<Option<Vec<(Uid, u16)>>, ChainError> {
        Ok(None)
    }

    /// A validator's revealed attestation of a window (PROT-14), in uid order. `None` if there is none, and after the
    /// chain has forgotten the window. A client that does not read the chain's storage returns `None`.
    async fn attestation(
        &self,
        _run: RunId,
        _window: Window,
        _validator: Uid,
    ) -> Result<Option<Vec<(Uid, Verdict)>>, ChainError> {
        Ok(None)
    }

    /// The time of the latest finalised block, since 1970, as its author set it. That of a development chain may be
    /// ahead of the clock. A client that does not read the chain's storage returns `None`.
    async fn head_time(&self) -> Result<Option<Duration>, ChainError> {
        Ok(None)
    }

    /// The block time: as the latest blocks show it, or as the chain intends it while there are too few.
    async fn block_time(&self) -> Result<Duration, ChainError>;

    /// What is held from the owner of a run with these parameters and terms, until it is closed. A client that does not
    /// read the chain's constants returns `None`.
    async fn run_deposit(&self, _params: &RunParams, _terms: &Terms) -> Result<Option<Amount>, ChainError> {
        Ok(None)
    }

    /// `call` as `from` would sign it, and its fee. Nothing is signed.
    async fn draft(&self, call: &Call, from: &Account) -> Result<Draft, ChainError>;

    /// `calls` for a signer elsewhere, one after the other, with `tip` on top of each fee. A client that does not read
    /// the chain's metadata returns `None`.
    async fn unsigned(
        &self,
        _calls: &[Call],
        _from: &Account,
        _tip: Amount,
    ) -> Result<Option<Vec<UnsignedCall>>, ChainError> {
        Ok(None)
    }

    /// Submits a call that was signed elsewhere, and returns the finalised block that includes it and in which it
    /// succeeded. May be repeated: the chain includes it once.
    async fn submit_signed(&self, call: &SignedCall) -> Result<Head, ChainError> {
        Err(ChainError::NoSigner { doing: call.what.clone() })
    }

    /// Signs `call` with the client's key, and returns the finalised block that includes it and in which it succeeded.
    ///
    /// May be called from several tasks at once. A call is included at most once per `submit`; later reads by this
    /// client see its effect.
    ///
    /// # Cancel safety
    /// Dropping the future does not recall a call that was sent.
    async fn submit(&self, call: Call) -> Result<Head, ChainError>;
}
