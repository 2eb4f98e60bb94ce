#![doc = include_str!("../README.md")]

mod amount;
mod call;
mod clock;
mod error;
mod follow;
mod link;
mod online;
mod outbox;
mod submit;
mod weight_vote;

pub mod account;
pub mod keys;
pub mod terms;

pub use amount::{Amount, AmountError, DECIMALS, SYMBOL};
pub use call::{Call, Payout, ProxyKind, percent};
pub use clock::WindowClock;
pub use error::ChainError;
pub use online::{ExpectedChain, SubxtChain, Timing};

use async_trait::async_trait;
use protocol::{
    Block, Digest, Hotkey, RunId, Uid, Window,
    view::{Account, AccountStatus, Payslip, RunStatus, RunView, SeatStatus, SeatView, Verdict, WindowView},
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

/// Where a call was included: a finalised block, in which it succeeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Included {
    pub block: Block,
    /// The block's hash.
    pub hash: Digest,
}

/// What an account owns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Balance {
    /// What it may spend.
    pub free: Amount,
    /// What is held from it: stakes and deposits.
    pub held: Amount,
}

/// A call before anybody signs it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Draft {
    /// The call as it will be signed, as every Substrate tool decodes it.
    pub call_data: Vec<u8>,
    /// What the chain says it will cost; `None` if it does not say.
    pub fee: Option<Amount>,
}

/// The chain, as a miner or validator knows it.
///
/// Reads are of the latest finalised block. Reads and submissions wait for a chain that is away, up to a patience of
/// the implementation's, and then say so ([`ChainError::Unreachable`], [`ChainError::TimedOut`]).
#[async_trait]
pub trait Chain: Send + Sync {
    /// The latest finalised block; never goes back. Blocks may be skipped, the latest is what counts. The channel
    /// closes only when whatever feeds it has ended for good.
    fn heads(&self) -> watch::Receiver<Head>;

    /// The newest block of the chain's best fork, final or not: how far finality trails can be seen by it.
    async fn best_block(&self) -> Result<Block, ChainError>;

    /// Whose key signs what is submitted; `None` for a client that only reads.
    fn account(&self) -> Option<Account>;

    /// The runs there are, in the order of their ids.
    async fn runs(&self) -> Result<Vec<RunId>, ChainError>;

    /// One run. [`ChainError::NoSuchRun`] if there is none with this id.
    async fn run(&self, run: RunId) -> Result<RunView, ChainError>;

    /// The seats of a run, in uid order; none for a run that does not exist.
    async fn seats(&self, run: RunId) -> Result<Vec<SeatView>, ChainError>;

    /// A window as far as it has come; `None` before it opens, and after the chain has forgotten it.
    async fn window(&self, run: RunId, window: Window) -> Result<Option<WindowView>, ChainError>;

    /// The run's consensus weights, in uid order.
    async fn weights(&self, run: RunId) -> Result<Vec<(Uid, u16)>, ChainError>;

    /// What `account` owns; nothing, if the chain does not know it.
    async fn balance(&self, account: &Account) -> Result<Balance, ChainError>;

    /// Where a run stands, and what its terms and its money come to. [`ChainError::NoSuchRun`] if there is none.
    async fn status(&self, run: RunId) -> Result<RunStatus, ChainError>;

    /// Up to `limit` seats of a run from uid `from` on, in uid order, with everything the chain knows of them.
    async fn seat_statuses(&self, run: RunId, from: Uid, limit: u32) -> Result<Vec<SeatStatus>, ChainError>;

    /// What `account` has in a run.
    async fn account_status(&self, run: RunId, account: &Account) -> Result<AccountStatus, ChainError>;

    /// Why a seat was paid what it was paid, the latest epoch last.
    async fn payslips(&self, run: RunId, uid: Uid) -> Result<Vec<Payslip>, ChainError>;

    /// A validator's bonds: by seat, in parts of `protocol::consensus::ONE`, in uid order (PROT-31).
    async fn bonds(&self, run: RunId, validator: Uid) -> Result<Vec<(Uid, u32)>, ChainError>;

    /// The weights that the validator with this hotkey committed to and revealed for an epoch (PROT-30), from the blocks that hold
    /// them; `None` where it did not, or the blocks are gone. A client that reads no blocks knows of none.
    async fn weight_vote(
        &self,
        _run: RunId,
        _epoch: u32,
        _hotkey: &Hotkey,
    ) -> Result<Option<Vec<(Uid, u16)>>, ChainError> {
        Ok(None)
    }

    /// What a validator attested in a window, as it was taken and revealed (PROT-14): in uid order. `None` where it did not, and once the
    /// window is forgotten. A client that does not read the chain's storage knows of none.
    async fn attestation(
        &self,
        _run: RunId,
        _window: Window,
        _validator: Uid,
    ) -> Result<Option<Vec<(Uid, Verdict)>>, ChainError> {
        Ok(None)
    }

    /// How long a block takes, as the chain means it to. A development chain may be faster.
    async fn block_time(&self) -> Result<Duration, ChainError>;

    /// `call` as `from` would sign it, and what it would cost. Nothing is signed.
    async fn draft(&self, call: &Call, from: &Account) -> Result<Draft, ChainError>;

    /// Signs `call` with the client's key and returns when a finalised block includes it and it succeeded there.
    ///
    /// May be called from several tasks at once. A call is included at most once per `submit`, and what this client reads
    /// afterwards has its effect in it. Dropping the future does not recall a call that was sent.
    async fn submit(&self, call: Call) -> Result<Included, ChainError>;

    /// A clock that ticks with [`Chain::heads`].
    fn clock(&self) -> WindowClock {
        WindowClock::new(self.heads())
    }
}
