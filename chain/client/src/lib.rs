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
    /// Hash of the block.
    pub hash: Digest,
}

/// An account's balance.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Balance {
    /// Spendable amount.
    pub free: Amount,
    /// Held stakes and deposits.
    pub held: Amount,
}

/// An unsigned call and its estimated fee.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Draft {
    /// Bytes of the call, which every Substrate tool can decode.
    pub call_data: Vec<u8>,
    /// Fee estimated by the chain; `None` without an estimate.
    pub fee: Option<Amount>,
}

/// The chain's interface for miners, validators and the wallet.
///
/// Reads refer to the latest finalised block.
///
/// # Errors
/// While the chain is unreachable, reads and submissions wait up to the patience of the implementation, then fail with
/// [`ChainError::Unreachable`] or [`ChainError::TimedOut`]. Any read may fail with [`ChainError::Rpc`] or
/// [`ChainError::Decode`].
#[async_trait]
pub trait Chain: Send + Sync {
    /// Returns the hash of the chain's block 0, which every signature names. Every connection leads to this chain.
    fn genesis(&self) -> GenesisHash;

    /// Returns whether the chain reports itself as a development or local chain, at an address of this machine or a
    /// private network. Only such chains accept well-known keys and private endpoints. The report of a remote server
    /// is ignored.
    fn is_development(&self) -> bool;

    /// Returns the latest finalised block; its number never decreases. Blocks may be skipped. The channel closes only
    /// when the client has stopped.
    fn heads(&self) -> watch::Receiver<Head>;

    /// Returns the tip of the best fork, final or not: it shows the lag of finality.
    async fn best_block(&self) -> Result<Block, ChainError>;

    /// Returns the account that signs submissions; `None` for a client that only reads.
    fn account(&self) -> Option<Account>;

    /// Returns the ids of all runs, ascending.
    async fn runs(&self) -> Result<Vec<RunId>, ChainError>;

    /// Returns one run.
    ///
    /// # Errors
    /// [`ChainError::NoSuchRun`] if there is none with this id.
    async fn run(&self, run: RunId) -> Result<RunView, ChainError>;

    /// Returns the seats of a run, in uid order; empty for a run that does not exist.
    async fn seats(&self, run: RunId) -> Result<Vec<SeatView>, ChainError>;

    /// Returns the state of a window; `None` before it opens, and after the chain has pruned it.
    async fn window(&self, run: RunId, window: Window) -> Result<Option<WindowView>, ChainError>;

    /// Returns one seat; `None` if no account holds it. A few hundred bytes, whereas [`Chain::seats`] grows with the
    /// run.
    async fn seat(&self, run: RunId, uid: Uid) -> Result<Option<SeatView>, ChainError>;

    /// Returns a window without its lists; `None` as for [`Chain::window`].
    async fn window_summary(&self, run: RunId, window: Window) -> Result<Option<WindowSummary>, ChainError>;

    /// Returns a seat's part of a window; `None` as for [`Chain::window`].
    async fn seat_window(
        &self,
        run: RunId,
        window: Window,
        uid: Uid,
    ) -> Result<Option<SeatWindow>, ChainError>;

    /// Returns up to `limit` base URLs of validators that have the merged update of `window`: first those that voted
    /// for it, from the position `turn`, then the others.
    async fn update_mirrors(
        &self,
        run: RunId,
        window: Window,
        turn: u32,
        limit: u32,
    ) -> Result<Vec<String>, ChainError>;

    /// Returns the run's consensus weights, in uid order.
    async fn weights(&self, run: RunId) -> Result<Vec<(Uid, u16)>, ChainError>;

    /// Returns the balance of `account`; zero if the chain does not know it.
    async fn balance(&self, account: &Account) -> Result<Balance, ChainError>;

    /// Returns a run with its progress, terms and treasury.
    ///
    /// # Errors
    /// [`ChainError::NoSuchRun`] if there is none with this id.
    async fn status(&self, run: RunId) -> Result<RunStatus, ChainError>;

    /// Returns up to `limit` seats of a run from uid `from`, in uid order, with everything that the chain stores about
    /// them.
    async fn seat_statuses(&self, run: RunId, from: Uid, limit: u32) -> Result<Vec<SeatStatus>, ChainError>;

    /// Returns the seats, stake and pay of `account` in a run.
    async fn account_status(&self, run: RunId, account: &Account) -> Result<AccountStatus, ChainError>;

    /// Returns a seat's payslips, the latest epoch last.
    async fn payslips(&self, run: RunId, uid: Uid) -> Result<Vec<Payslip>, ChainError>;

    /// Returns a validator's bonds by seat, in parts of `protocol::consensus::ONE`, in uid order (PROT-31).
    async fn bonds(&self, run: RunId, validator: Uid) -> Result<Vec<(Uid, u32)>, ChainError>;

    /// Returns the weights that the validator with this hotkey committed to and revealed for an epoch (PROT-30), read
    /// from blocks.
    ///
    /// `None` if it revealed none, or the blocks are pruned. A client that does not read blocks returns `None`.
    async fn weight_vote(
        &self,
        _run: RunId,
        _epoch: u32,
        _hotkey: &Hotkey,
    ) -> Result<Option<Vec<(Uid, u16)>>, ChainError> {
        Ok(None)
    }

    /// Returns a validator's revealed attestation of a window (PROT-14), in uid order. `None` if there is none, or the
    /// chain has pruned the window. A client that does not read the chain's storage returns `None`.
    async fn attestation(
        &self,
        _run: RunId,
        _window: Window,
        _validator: Uid,
    ) -> Result<Option<Vec<(Uid, Verdict)>>, ChainError> {
        Ok(None)
    }

    /// Returns the time of the latest finalised block, since 1970, as set by its author. The time of a development
    /// chain may be ahead of the clock. A client that does not read the chain's storage returns `None`.
    async fn head_time(&self) -> Result<Option<Duration>, ChainError> {
        Ok(None)
    }

    /// Returns the block time: measured over the latest blocks, or the intended one while there are too few.
    async fn block_time(&self) -> Result<Duration, ChainError>;

    /// Returns the deposit held from the owner of a run with these parameters and terms until the run is closed. A
    /// client that does not read the chain's constants returns `None`.
    async fn run_deposit(&self, _params: &RunParams, _terms: &Terms) -> Result<Option<Amount>, ChainError> {
        Ok(None)
    }

    /// Returns `call` in the form that `from` would sign, and its fee. Signs nothing.
    async fn draft(&self, call: &Call, from: &Account) -> Result<Draft, ChainError>;

    /// Returns consecutive `calls` for a signer elsewhere, with `tip` on top of each fee. A client that does not read
    /// the chain's metadata returns `None`.
    async fn unsigned(
        &self,
        _calls: &[Call],
        _from: &Account,
        _tip: Amount,
    ) -> Result<Option<Vec<UnsignedCall>>, ChainError> {
        Ok(None)
    }

    /// Submits a call that was signed elsewhere. Returns the finalised block that includes it and in which it
    /// succeeded. May be repeated: the chain includes it once.
    ///
    /// # Errors
    /// [`ChainError::NoSigner`] if the implementation does not support it; otherwise as for [`Chain::submit`].
    async fn submit_signed(&self, call: &SignedCall) -> Result<Head, ChainError> {
        Err(ChainError::NoSigner { doing: call.what.clone() })
    }

    /// Signs `call` with the client's key. Returns the finalised block that includes it and in which it succeeded.
    ///
    /// May be called from several tasks at once. A call is included at most once per `submit`; later reads by this
    /// client see its effect.
    ///
    /// # Errors
    /// [`ChainError::NoSigner`] without a key, [`ChainError::Refused`] with the pallet's error. Check the chain's
    /// state if [`ChainError::is_uncertain`]: the call may have been, or may still be, included.
    ///
    /// # Cancel safety
    /// Dropping the future does not recall a call that was sent.
    async fn submit(&self, call: Call) -> Result<Head, ChainError>;
}
