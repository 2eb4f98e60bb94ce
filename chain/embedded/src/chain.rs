//! The chain: its blocks, its finalised head, and block production.
//!
//! One writer at a time seals a block or drops the unfinalised ones. It holds the readers' lock only to read and to
//! store the result, never while the runtime or the disk works. A block becomes final when `finality_lag` blocks
//! follow it, and is on disk before any client is notified.

use crate::{
    execute::{
        BuildError, Built, CallError, Candidate, Extrinsic, Genesis, Header, LeftOut, Runtime, slot_of,
    },
    pool::{Pool, PoolLimits, Rejection, Status, Watcher},
    state::{Changes, State},
    store::{Body as StoredBody, Keep, Resumed, Store, StoreError},
};
use sp_core::H256;
use sp_runtime::{
    traits::{BlakeTwo256, Hash as _},
    transaction_validity::TransactionValidityError,
};
use std::{
    collections::{BTreeMap, HashMap},
    sync::{Mutex, MutexGuard},
    time::{SystemTime, UNIX_EPOCH},
};
use tokio::sync::{Notify, watch};

/// Maximum number of transactions revalidated per block.
const REVALIDATED_MAX: usize = 64;
/// Maximum number of validations of a transaction that new blocks make outdated.
const VALIDATED_MAX: usize = 16;

/// Number and hash of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    pub number: u32,
    pub hash: H256,
}

/// The best and the finalised block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heads {
    pub best: Head,
    pub finalised: Head,
}

/// Error of making a block. The chain is unchanged.
#[derive(Debug, thiserror::Error)]
pub enum SealError {
    #[error("the runtime could not make block {number}")]
    Build { number: u32, source: BuildError },
    #[error("a block could not be stored")]
    Store(#[from] StoreError),
    #[error("the chain was stopped")]
    Stopped,
}

/// Error of a query.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum QueryError {
    #[error("UnknownBlock: Header was not found in the database: {0:?}")]
    UnknownBlock(H256),
    #[error(
        "UnknownBlock: State already discarded for {hash:?} (block {number}): this chain keeps the last {kept} finalised \
         blocks"
    )]
    Discarded { hash: H256, number: u32, kept: u32 },
}

/// Error of submitting a transaction.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum SubmitError {
    #[error(transparent)]
    Call(#[from] CallError),
    #[error("{0}")]
    Invalid(TransactionValidityError),
    #[error(transparent)]
    Rejected(#[from] Rejection),
    #[error("new blocks came faster than the transaction could be validated")]
    Busy,
}

pub(crate) struct Chain {
    pub(crate) runtime: Runtime,
    finality_lag: u32,
    keep: Keep,
    writer: Mutex<Writer>,
    inner: Mutex<Inner>,
    heads: watch::Sender<Heads>,
    /// Notified when there is a transaction for a block.
    pub(crate) work: Notify,
}

struct Writer {
    /// Slot of the last block made, dropped ones included: slots are unique.
    slot: u64,
    store: Option<Store>,
    stopped: bool,
}

struct Inner {
    /// Stored part of the canonical chain, with the genesis block.
    blocks: BTreeMap<u32, Block>,
    numbers: HashMap<H256, u32>,
    heads: Heads,
    pool: Pool,
}

struct Block {
    header: Header,
    hash: H256,
    /// Body of the block; `None` after it is pruned.
    body: Option<Body>,
}

struct Body {
    extrinsics: Vec<Extrinsic>,
    inherents: usize,
    included: Vec<H256>,
    state: State,
    /// Changes of the state that are not on disk yet.
    unsaved: Changes,
}

impl Chain {
    /// Starts a chain at `genesis`, or resumes a saved one.
    pub(crate) fn new(
        runtime: Runtime,
        genesis: Genesis,
        saved: Option<(Store, Resumed)>,
        keep: Keep,
        finality_lag: u32,
        pool: PoolLimits,
    ) -> Result<Chain, StoreError> {
        let (blocks, store) = match saved {
            None => {
                let hash = genesis.header.hash();
                let body = Body::resumed(None, genesis.state);
                (BTreeMap::from([(0, Block { header: genesis.header, hash, body: Some(body) })]), None)
            }
            Some((store, resumed)) => (resume(resumed, &store)?, Some(store)),
        };
        let (number, last) = blocks.last_key_value().expect("there is at least the genesis block");
        let state = &last.body.as_ref().expect("the last block has its state").state;
        let runtime = runtime.with_slots_of(state).expect("the runtime has slots, and a state is readable");
        let head = Head { number: *number, hash: last.hash };
        let slot = slot_of(&last.header).unwrap_or(0);
        let heads = Heads { best: head, finalised: head };
        let numbers = blocks.iter().map(|(number, block)| (block.hash, *number)).collect();
        let mut inner = Inner { blocks, numbers, heads, pool: Pool::new(pool) };
        inner.prune(keep);
        Ok(Chain {
            runtime,
            finality_lag,
            keep,
            writer: Mutex::new(Writer { slot, store, stopped: false }),
            inner: Mutex::new(inner),
            heads: watch::channel(heads).0,
            work: Notify::new(),
        })
    }

    // Reads.

    pub(crate) fn heads(&self) -> watch::Receiver<Heads> {
        self.heads.subscribe()
    }

    pub(crate) fn hash_of(&self, number: u32) -> Option<H256> {
        self.inner().blocks.get(&number).map(|block| block.hash)
    }

    pub(crate) fn header(&self, hash: H256) -> Option<Header> {
        self.inner().block(hash).map(|block| block.header.clone())
    }

    /// Returns the stored headers of the canonical chain from `first` to `last`.
    pub(crate) fn headers(&self, first: u32, last: u32) -> Vec<(H256, Header)> {
        self.inner().headers(first, last)
    }

    /// Returns the stored headers after `last` up to `best`. If `last` was dropped, returns those after `sure`, the
    /// last finalised block before it: later ones may have been replaced.
    pub(crate) fn headers_after(&self, last: Head, sure: u32, best: Head) -> Vec<(H256, Header)> {
        let inner = self.inner();
        let stands = inner.blocks.get(&last.number).is_some_and(|block| block.hash == last.hash);
        let first = if stands { last.number } else { sure.min(last.number) } + 1;
        inner.headers(first, best.number)
    }

    /// Returns a block with its extrinsics; `None` if it is unknown.
    pub(crate) fn block(&self, hash: H256) -> Result<Option<(Header, Vec<Extrinsic>)>, QueryError> {
        let inner = self.inner();
        let Some(block) = inner.block(hash) else { return Ok(None) };
        let body = block.body.as_ref().ok_or_else(|| self.discarded(block))?;
        Ok(Some((block.header.clone(), body.extrinsics.clone())))
    }

    /// Returns the state after a block, by default the best one.
    pub(crate) fn state(&self, at: Option<H256>) -> Result<(Head, State), QueryError> {
        let inner = self.inner();
        let hash = at.unwrap_or(inner.heads.best.hash);
        let block = inner.block(hash).ok_or(QueryError::UnknownBlock(hash))?;
        let body = block.body.as_ref().ok_or_else(|| self.discarded(block))?;
        Ok((Head { number: block.header.number, hash }, body.state.clone()))
    }

    /// Returns the ready transactions of the pool.
    pub(crate) fn pending(&self) -> Vec<Extrinsic> {
        self.inner().pool.candidates().into_iter().map(|candidate| candidate.bytes).collect()
    }

    /// Returns whether a transaction in the pool provides this tag.
    pub(crate) fn is_provided(&self, tag: &[u8]) -> bool {
        self.inner().pool.is_provided(&tag.to_vec())
    }

    // Writes.

    /// Validates a transaction and adds it to the pool.
    pub(crate) fn submit(&self, bytes: Vec<u8>, watcher: Option<Watcher>) -> Result<H256, SubmitError> {
        let hash = BlakeTwo256::hash(&bytes);
        let bytes: Extrinsic = bytes.into();
        self.inner().pool.may_submit(hash)?;
        for _ in 0..VALIDATED_MAX {
            let (at, state) = self.state(None).expect("the best block has its state");
            let valid = match self.runtime.validate(&state, at.hash, &bytes) {
                Ok(valid) => valid.map_err(SubmitError::Invalid)?,
                Err(error) => {
                    if matches!(error, CallError::Panicked { .. }) {
                        self.inner().pool.ban(hash);
                    }
                    return Err(error.into());
                }
            };
            let mut inner = self.inner();
            // The result is valid for the best block only.
            if inner.heads.best == at {
                inner.pool.submit(hash, bytes, valid, at.number, watcher)?;
                drop(inner);
                self.work.notify_one();
                return Ok(hash);
            }
        }
        Err(SubmitError::Busy)
    }

    /// Makes the next block from the pool's transactions, or an empty one.
    pub(crate) fn seal(&self) -> Result<Head, SealError> {
        let mut writer = self.writer();
        if writer.stopped {
            return Err(SealError::Stopped);
        }

        // Gather.
        let (parent, state, candidates, finalised) = {
            let inner = self.inner();
            let parent = inner.best();
            (parent.header.clone(), inner.state(parent), inner.pool.candidates(), inner.heads.finalised)
        };
        let slot = (now_millis() / self.runtime.slot_millis).max(writer.slot + 1);

        // Decide.
        let number = parent.number + 1;
        let built = self.runtime.build(&parent, &state, slot, &candidates);
        let built = built.map_err(|source| SealError::Build { number, source })?;
        for (hash, reason) in &built.left_out {
            tracing::debug!(?hash, ?reason, "a transaction is not in block {number}");
        }
        let head = Head { number, hash: built.hash };
        let (block, left_out) = Block::made(built);
        let becomes_final = number.checked_sub(self.finality_lag).filter(|number| *number > finalised.number);

        // Act. A block is on disk before it is announced as final.
        if let (Some(store), Some(number)) = (&writer.store, becomes_final) {
            self.store(store, number, &block)?;
        }
        writer.slot = slot;
        self.append(block, left_out, becomes_final);
        self.revalidate(head);
        Ok(head)
    }

    /// Returns to the finalised head, and the dropped transactions to the pool. Returns the number of dropped blocks.
    pub(crate) fn drop_unfinalised(&self) -> Result<u32, SealError> {
        let writer = self.writer();
        if writer.stopped {
            return Err(SealError::Stopped);
        }
        let (dropped, waiting, heads) = {
            let mut inner = self.inner();
            let finalised = inner.heads.finalised;
            let dropped = inner.blocks.split_off(&(finalised.number + 1));
            inner.heads.best = finalised;
            self.heads.send_replace(inner.heads);
            for block in dropped.values() {
                inner.numbers.remove(&block.hash);
                if let Some(body) = &block.body {
                    inner.pool.notify_all(&body.included, &Status::Retracted(block.hash));
                }
            }
            (dropped, inner.pool.drain(), inner.heads)
        };

        let returning = dropped.values().filter_map(|block| block.body.as_ref()).flat_map(|body| {
            let own = body.extrinsics.iter().skip(body.inherents);
            body.included.iter().zip(own).map(|(hash, bytes)| Candidate { hash: *hash, bytes: bytes.clone() })
        });
        for Candidate { hash, bytes } in returning.chain(waiting) {
            self.resubmit(heads.best, hash, bytes);
        }
        tracing::warn!(blocks = dropped.len(), back_to = heads.best.number, "dropped unfinalised blocks");
        Ok(u32::try_from(dropped.len()).expect("block numbers are u32"))
    }

    /// Ends block production and closes the store.
    pub(crate) fn stop(&self) {
        let mut writer = self.writer();
        writer.stopped = true;
        writer.store = None;
    }

    /// Stores block `number`, which becomes final with the new block `made`.
    fn store(&self, store: &Store, number: u32, made: &Block) -> Result<(), StoreError> {
        let inner = self.inner();
        let before = inner.blocks.get(&(number - 1)).expect("the parent of an unfinalised block is stored");
        let block = match number == made.header.number {
            true => made,
            false => inner.blocks.get(&number).expect("unfinalised blocks are stored"),
        };
        let body = block.body.as_ref().expect("unfinalised blocks have their body");
        let stored = StoredBody {
            inherents: body.inherents as u32,
            extrinsics: body.extrinsics.iter().map(|bytes| bytes.to_vec()).collect(),
            undo: inner.state(before).undo(&body.unsaved),
        };
        let (header, changes) = (block.header.clone(), body.unsaved.clone());
        // The disk must not block the readers.
        drop(inner);
        store.append(&header, &stored, &changes)
    }

    /// Appends a block and moves the finalised head to `becomes_final`. Announces the heads before the transactions'
    /// statuses: after a notification that its transaction is final, a client finds it in the finalised state.
    fn append(&self, block: Block, left_out: Vec<(H256, LeftOut)>, becomes_final: Option<u32>) {
        let mut inner = self.inner();
        let (number, hash) = (block.header.number, block.hash);
        let included = block.body.as_ref().map(|body| body.included.clone()).unwrap_or_default();
        inner.blocks.insert(number, block);
        inner.numbers.insert(hash, number);
        inner.heads.best = Head { number, hash };
        let finalised = becomes_final.map(|number| Head { number, hash: inner.blocks[&number].hash });
        inner.heads.finalised = finalised.unwrap_or(inner.heads.finalised);
        self.heads.send_replace(inner.heads);

        inner.pool.block(number, hash, &included, left_out);
        if let Some(head) = finalised {
            let Inner { blocks, pool, .. } = &mut *inner;
            let block = blocks.get_mut(&head.number).and_then(|block| block.body.as_mut());
            let body = block.expect("a block that becomes final has its body");
            body.unsaved = Changes::new();
            pool.notify_all(&body.included, &Status::Finalized(head.hash));
            inner.prune(self.keep);
        }
    }

    /// Validates some waiting transactions again.
    fn revalidate(&self, best: Head) {
        let due = self.inner().pool.due(best.number, REVALIDATED_MAX);
        if due.is_empty() {
            return;
        }
        let (_, state) = self.state(Some(best.hash)).expect("the best block has its state");
        let look = |Candidate { hash, bytes }| {
            (hash, self.runtime.validate(&state, best.hash, &bytes).ok().and_then(Result::ok))
        };
        let results: Vec<_> = due.into_iter().map(look).collect();
        self.inner().pool.revalidated(results, best.number);
    }

    /// Returns a transaction to the pool, if it is still valid.
    fn resubmit(&self, best: Head, hash: H256, bytes: Extrinsic) {
        let (_, state) = self.state(Some(best.hash)).expect("the best block has its state");
        let valid = self.runtime.validate(&state, best.hash, &bytes);
        let mut inner = self.inner();
        match valid {
            Ok(Ok(valid)) => {
                match inner.pool.submit(hash, bytes, valid, best.number, None) {
                    // The sender resubmitted it first.
                    Ok(()) | Err(Rejection::AlreadyThere) => {}
                    Err(_) => inner.pool.discard(&hash, Status::Dropped),
                }
            }
            _ => inner.pool.discard(&hash, Status::Invalid),
        }
        drop(inner);
        self.work.notify_one();
    }

    fn discarded(&self, block: &Block) -> QueryError {
        QueryError::Discarded { hash: block.hash, number: block.header.number, kept: self.keep.states }
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().expect("no thread panics while it holds the chain")
    }

    fn writer(&self) -> MutexGuard<'_, Writer> {
        self.writer.lock().expect("no thread panics while it writes the chain")
    }
}

impl Inner {
    fn block(&self, hash: H256) -> Option<&Block> {
        self.blocks.get(self.numbers.get(&hash)?)
    }

    fn headers(&self, first: u32, last: u32) -> Vec<(H256, Header)> {
        // The end of a range must not precede its start.
        if first > last {
            return Vec::new();
        }
        self.blocks.range(first..=last).map(|(_, block)| (block.hash, block.header.clone())).collect()
    }

    fn best(&self) -> &Block {
        self.blocks.get(&self.heads.best.number).expect("the best block is stored")
    }

    fn state(&self, block: &Block) -> State {
        let body = block.body.as_ref().expect("the finalised head and later blocks have their state");
        body.state.clone()
    }

    /// Prunes old bodies and headers.
    fn prune(&mut self, keep: Keep) {
        let finalised = self.heads.finalised.number;
        let bodies = self.blocks.range_mut(..keep.first_state(finalised)).rev();
        for (_, block) in bodies.take_while(|(_, block)| block.body.is_some()) {
            block.body = None;
        }
        let headers: Vec<u32> =
            self.blocks.range(1..keep.first_header(finalised).max(1)).map(|(number, _)| *number).collect();
        for number in headers {
            if let Some(block) = self.blocks.remove(&number) {
                self.numbers.remove(&block.hash);
            }
        }
    }
}

impl Block {
    /// Returns a new block, and the candidates that it left out.
    fn made(built: Built) -> (Block, Vec<(H256, LeftOut)>) {
        let Built { header, hash, extrinsics, inherents, included, left_out, state, changes } = built;
        let body = Body { extrinsics, inherents, included, state, unsaved: changes };
        (Block { header, hash, body: Some(body) }, left_out)
    }
}

impl Body {
    /// Returns a block loaded from disk.
    fn resumed(stored: Option<StoredBody>, state: State) -> Body {
        let (inherents, extrinsics) =
            stored.map(|body| (body.inherents, body.extrinsics)).unwrap_or_default();
        let extrinsics: Vec<Extrinsic> = extrinsics.into_iter().map(Extrinsic::from).collect();
        let inherents = inherents as usize;
        let included = extrinsics.iter().skip(inherents).map(|bytes| BlakeTwo256::hash(bytes)).collect();
        Body { extrinsics, inherents, included, state, unsaved: Changes::new() }
    }
}

/// Rebuilds the stored chain: the last state as saved, earlier ones by undoing block after block. Checks each against
/// its header.
fn resume(resumed: Resumed, store: &Store) -> Result<BTreeMap<u32, Block>, StoreError> {
    let mut blocks = BTreeMap::new();
    let mut state = Some(State::empty().with_changes(&resumed.state));
    for (header, stored) in resumed.blocks.into_iter().rev() {
        let hash = header.hash();
        let number = header.number;
        let body = match (state.take(), stored) {
            (Some(current), Some(stored)) => {
                if current.root() != header.state_root {
                    return Err(
                        store.damaged(&format!("the state after block {number} differs from its header"))
                    );
                }
                state = (number > 0).then(|| current.with_changes(&stored.undo));
                Some(Body::resumed(Some(stored), current))
            }
            _ => None,
        };
        blocks.insert(number, Block { header, hash, body });
    }
    Ok(blocks)
}

/// Returns the time of the chain's only clock, which determines the slot of a block.
fn now_millis() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Config;

    #[test]
    fn a_late_subscriber_gets_every_block_since_the_fork() {
        let chain = crate::open(&Config { finality_lag: 2, ..Config::default() }).unwrap();
        let seal = |blocks: u32| (0..blocks).map(|_| chain.seal().unwrap()).last().unwrap();
        let after = |last, sure, best| -> Vec<H256> {
            chain.headers_after(last, sure, best).into_iter().map(|(hash, _)| hash).collect()
        };
        let heads = || *chain.heads().borrow();
        let told = seal(4);
        let sure = heads().finalised.number;
        assert_eq!(sure, 2);
        assert!(after(told, sure, told).is_empty());
        let fifth = seal(1);
        assert_eq!(after(told, sure, fifth), [fifth.hash]);

        // Back to block 3, then to block 6 before the subscriber reads: by then the new block 4 is final.
        chain.drop_unfinalised().unwrap();
        assert!(after(told, sure, heads().best).contains(&heads().best.hash));
        let new: Vec<H256> = (0..3).map(|_| seal(1).hash).collect();
        assert_eq!(heads().finalised.hash, new[0]);
        let third = chain.hash_of(3).unwrap();
        assert_eq!(after(told, sure, heads().best), [&[third][..], &new].concat());
        assert_eq!(after(told, 3, heads().best), new);
    }
}
