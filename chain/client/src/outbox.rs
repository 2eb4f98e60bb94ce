//! Signed calls that are not final yet, and the next action for each. Without I/O: the submitter calls it.
//!
//! A call must not be lost and must not be executed twice. The same bytes are broadcast repeatedly, which is harmless.
//! New bytes are signed only when the old ones can never be included, for one of three reasons:
//!
//! - another call used their nonce in a finalised block,
//! - the finalised chain has passed the last block for which they are valid, or
//! - its runtime differs from the one that they were signed for.
//!
//! This relies on increasing runtime versions: a chain whose root restores an old runtime would accept old bytes
//! again.

use crate::link::Version;
use protocol::Block;
use std::{collections::BTreeMap, ops::RangeInclusive};

/// A signed call that is not final. `T` is the caller's own data.
#[derive(Debug)]
pub(crate) struct InFlight<T> {
    pub(crate) task: T,
    bytes: Vec<u8>,
    /// Runtime that it was signed for.
    runtime: Version,
    /// Finalised block at which it was signed: only a later block can include it.
    signed_at: Block,
    /// Last block that may include it.
    valid_until: Block,
    /// Last searched block: no finalised block up to this one includes it.
    searched: Block,
    /// Finalised block of the last broadcast; `None` if it was never broadcast over this connection.
    broadcast: Option<Block>,
}

/// Calls in flight, by nonce.
#[derive(Debug)]
pub(crate) struct Outbox<T> {
    calls: BTreeMap<u64, InFlight<T>>,
}

impl<T> Default for Outbox<T> {
    fn default() -> Outbox<T> {
        Outbox { calls: BTreeMap::new() }
    }
}

impl<T> Outbox<T> {
    pub(crate) fn is_empty(&self) -> bool {
        self.calls.is_empty()
    }

    /// Returns the nonce for another call. `on_chain` is the next one as of the best block.
    pub(crate) fn next_nonce(&self, on_chain: u64) -> u64 {
        let after_ours = self.calls.last_key_value().map_or(0, |(nonce, _)| nonce.saturating_add(1));
        on_chain.max(after_ours)
    }

    /// Adds a call signed for `runtime` at the finalised block `signed_at`, valid for `blocks` blocks, as broadcast.
    pub(crate) fn insert(
        &mut self,
        nonce: u64,
        task: T,
        bytes: Vec<u8>,
        runtime: Version,
        signed_at: Block,
        blocks: u32,
    ) {
        // An era's first block is the one at which the call was signed.
        let valid_until = Block(signed_at.0.saturating_add(blocks.saturating_sub(1)));
        let (searched, broadcast) = (signed_at, Some(signed_at));
        self.calls
            .insert(nonce, InFlight { task, bytes, runtime, signed_at, valid_until, searched, broadcast });
    }

    pub(crate) fn get(&self, nonce: u64) -> Option<&T> {
        self.calls.get(&nonce).map(|call| &call.task)
    }

    /// Removes a call that was rejected or included.
    pub(crate) fn withdraw(&mut self, nonce: u64) -> Option<T> {
        self.calls.remove(&nonce).map(|call| call.task)
    }

    /// Resets search and broadcast of every call, because the node may have lost its state.
    pub(crate) fn reconnected(&mut self) {
        for call in self.calls.values_mut() {
            call.searched = call.signed_at;
            call.broadcast = None;
        }
    }

    /// Returns the finalised blocks to search. `next` is the account's nonce as of the finalised `head`. A search is
    /// needed only for a used nonce.
    pub(crate) fn search(&mut self, head: Block, next: u64) -> Option<RangeInclusive<u32>> {
        let mut range: Option<RangeInclusive<u32>> = None;
        for (nonce, call) in &mut self.calls {
            if *nonce >= next {
                call.searched = call.searched.max(head);
                continue;
            }
            let (from, to) = (call.searched.0.saturating_add(1), call.valid_until.min(head).0);
            if from <= to {
                let (first, last) =
                    range.map_or((from, to), |range| (from.min(*range.start()), to.max(*range.end())));
                range = Some(first..=last);
            }
        }
        range
    }

    /// Returns our calls among a block's extrinsics: their nonce, and their index in the block.
    pub(crate) fn find(&self, extrinsics: &[Vec<u8>]) -> Vec<(u64, usize)> {
        let index_of = |call: &InFlight<T>| extrinsics.iter().position(|bytes| *bytes == call.bytes);
        self.calls.iter().filter_map(|(nonce, call)| Some((*nonce, index_of(call)?))).collect()
    }

    /// Records that `block` was searched, after all blocks before it.
    pub(crate) fn searched(&mut self, block: Block) {
        for call in self.calls.values_mut() {
            call.searched = call.searched.max(block);
        }
    }

    /// Removes the calls whose nonce was used in a block that can no longer be read: their inclusion is unknown.
    pub(crate) fn undecidable(&mut self, next: u64) -> Vec<T> {
        let kept = self.calls.split_off(&next);
        std::mem::replace(&mut self.calls, kept).into_values().map(|call| call.task).collect()
    }

    /// Removes the calls that can never be included, each with the reason. The blocks of [`Outbox::search`] must have
    /// been searched, and the calls found there withdrawn. `runtime` must be that of the block after the finalised
    /// `head`:
    /// the best chain's upgrade may still be dropped.
    pub(crate) fn lost(&mut self, head: Block, next: u64, runtime: Version) -> Vec<(T, &'static str)> {
        let reason = |nonce: u64, call: &InFlight<T>| {
            if nonce < next {
                Some("another call of the same account took its nonce")
            } else if call.valid_until <= head {
                Some("no block included it while it was valid")
            } else if call.runtime != runtime {
                Some("the chain's runtime was upgraded")
            } else {
                None
            }
        };
        let lost: Vec<(u64, &str)> =
            self.calls.iter().filter_map(|(nonce, call)| Some((*nonce, reason(*nonce, call)?))).collect();
        lost.into_iter().filter_map(|(nonce, why)| Some((self.withdraw(nonce)?, why))).collect()
    }

    /// Returns the bytes to broadcast again at the finalised `head`, in the order of their nonces: those not broadcast
    /// over this connection, or not for `every` blocks. Marks them as broadcast.
    pub(crate) fn due_again(&mut self, head: Block, every: u32) -> Vec<(u64, Vec<u8>)> {
        let due =
            |call: &InFlight<T>| call.broadcast.is_none_or(|block| head.0.saturating_sub(block.0) >= every);
        let due = self.calls.iter_mut().filter(|(_, call)| due(call));
        due.map(|(nonce, call)| {
            call.broadcast = Some(head);
            (*nonce, call.bytes.clone())
        })
        .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const OLD: Version = Version { spec: 1, transaction: 1 };
    const NEW: Version = Version { spec: 2, transaction: 1 };

    /// Builds three calls with nonces 5, 6 and 7, signed at block 10 for 64 blocks: valid up to block 73.
    fn outbox() -> Outbox<&'static str> {
        let mut outbox = Outbox::default();
        for (nonce, name) in [(5, "five"), (6, "six"), (7, "seven")] {
            outbox.insert(nonce, name, name.as_bytes().to_vec(), OLD, Block(10), 64);
        }
        outbox
    }

    fn extrinsics(names: &[&str]) -> Vec<Vec<u8>> {
        names.iter().map(|name| name.as_bytes().to_vec()).collect()
    }

    #[test]
    fn a_nonce_follows_the_chain_s_and_our_own() {
        assert_eq!(Outbox::<()>::default().next_nonce(0), 0);
        assert_eq!(Outbox::<()>::default().next_nonce(9), 9);
        // The chain has not received our calls yet, or has lost them with an unfinalised block.
        assert_eq!(outbox().next_nonce(5), 8);
        assert_eq!(outbox().next_nonce(2), 8);
        // Another process with the same key is ahead.
        assert_eq!(outbox().next_nonce(20), 20);
    }

    #[test]
    fn blocks_are_searched_only_for_a_used_nonce() {
        let mut outbox = outbox();
        assert_eq!(outbox.search(Block(12), 5), None);
        // Blocks 11 and 12 cannot include a nonce that was unused at block 12.
        assert_eq!(outbox.search(Block(14), 7), Some(13..=14));
        assert_eq!(outbox.find(&extrinsics(&["inherent", "six", "other"])), [(6, 1)]);
        assert_eq!(outbox.withdraw(6), Some("six"));
        outbox.searched(Block(14));
        assert_eq!(outbox.search(Block(14), 7), None);
    }

    #[test]
    fn an_interrupted_search_resumes_at_the_next_block() {
        let mut outbox = outbox();
        assert_eq!(outbox.search(Block(20), 8), Some(11..=20));
        outbox.searched(Block(13));
        assert_eq!(outbox.search(Block(20), 8), Some(14..=20));
    }

    #[test]
    fn a_search_ends_where_the_call_expires() {
        let mut outbox = outbox();
        assert_eq!(outbox.search(Block(500), 8), Some(11..=73));
    }

    #[test]
    fn a_call_is_lost_when_another_took_its_nonce() {
        let mut outbox = outbox();
        outbox.search(Block(14), 6);
        outbox.searched(Block(14));
        let lost = outbox.lost(Block(14), 6, OLD);
        assert_eq!(lost.iter().map(|(name, _)| *name).collect::<Vec<_>>(), ["five"]);
        assert!(lost[0].1.contains("nonce"));
        assert_eq!(outbox.next_nonce(6), 8);
    }

    #[test]
    fn a_call_is_lost_once_its_last_valid_block_is_final() {
        let mut outbox = outbox();
        assert_eq!(outbox.lost(Block(72), 5, OLD), []);
        let lost = outbox.lost(Block(73), 5, OLD);
        assert_eq!(lost.iter().map(|(name, _)| *name).collect::<Vec<_>>(), ["five", "six", "seven"]);
        assert!(outbox.is_empty());
    }

    #[test]
    fn a_call_is_lost_once_a_runtime_upgrade_is_final_and_not_before() {
        let mut outbox = outbox();
        // The best chain has the new runtime at block 13, and the finalised block 12 the old one.
        assert_eq!(outbox.lost(Block(12), 5, OLD), []);
        // Another fork wins, without the upgrade, and includes a call.
        assert_eq!(outbox.search(Block(13), 6), Some(11..=13));
        assert_eq!(outbox.find(&extrinsics(&["five"])), [(5, 0)]);
        assert_eq!(outbox.withdraw(5), Some("five"));
        outbox.searched(Block(13));
        assert_eq!(outbox.lost(Block(13), 6, OLD), []);

        let lost = outbox.lost(Block(14), 6, NEW);
        assert_eq!(lost.iter().map(|(name, _)| *name).collect::<Vec<_>>(), ["six", "seven"]);
        assert!(lost.iter().all(|(_, why)| why.contains("upgraded")));
        assert!(outbox.is_empty());
    }

    #[test]
    fn a_new_transaction_version_alone_loses_a_call() {
        let mut outbox = outbox();
        assert_eq!(outbox.lost(Block(12), 5, Version { transaction: 2, ..OLD }).len(), 3);
    }

    #[test]
    fn a_call_included_before_an_upgrade_is_found_and_not_signed_again() {
        let mut outbox = outbox();
        // Block 12 contains it and the upgrade.
        assert_eq!(outbox.search(Block(12), 6), Some(11..=12));
        assert_eq!(outbox.find(&extrinsics(&["five", "set_code"])), [(5, 0)]);
        assert_eq!(outbox.withdraw(5), Some("five"));
        outbox.searched(Block(12));
        let lost = outbox.lost(Block(12), 6, NEW);
        assert_eq!(lost.iter().map(|(name, _)| *name).collect::<Vec<_>>(), ["six", "seven"]);
    }

    #[test]
    fn a_call_signed_for_the_new_runtime_survives_the_upgrade() {
        let mut outbox = outbox();
        outbox.lost(Block(14), 5, NEW);
        assert_eq!(outbox.next_nonce(5), 5);
        outbox.insert(5, "again", b"again".to_vec(), NEW, Block(14), 64);
        assert_eq!(outbox.lost(Block(15), 5, NEW), []);
        assert_eq!(outbox.due_again(Block(17), 3), [(5, b"again".to_vec())]);
    }

    #[test]
    fn a_call_in_flight_is_broadcast_again_after_some_blocks_and_after_a_reconnection() {
        let mut outbox = outbox();
        assert_eq!(outbox.due_again(Block(12), 3), []);
        let again = outbox.due_again(Block(13), 3);
        assert_eq!(again.iter().map(|(nonce, _)| *nonce).collect::<Vec<_>>(), [5, 6, 7]);
        assert_eq!(outbox.due_again(Block(14), 3), []);
        outbox.reconnected();
        assert_eq!(outbox.due_again(Block(14), 3).len(), 3);
        // The blocks are searched again too.
        assert_eq!(outbox.search(Block(14), 8), Some(11..=14));
    }

    #[test]
    fn a_pruned_block_makes_only_its_own_calls_undecidable() {
        let mut outbox = outbox();
        assert_eq!(outbox.undecidable(6), ["five"]);
        assert_eq!(outbox.next_nonce(6), 8);
        assert_eq!(outbox.undecidable(6), Vec::<&str>::new());
    }

    proptest! {
        /// A chain that includes, skips, forgets and is upgraded at random: every call ends in exactly one way.
        #[test]
        fn a_call_is_included_once_or_lost_and_never_both(
            steps in proptest::collection::vec((0u8..5, 1u32..4), 1..200),
        ) {
            let mut outbox = Outbox::default();
            let (mut head, mut next, mut runtime) = (0u32, 0u64, OLD);
            let mut chain: BTreeMap<u32, Vec<Vec<u8>>> = BTreeMap::new();
            // The signed calls that could still be included.
            let mut alive: BTreeMap<u64, (Vec<u8>, u32, Version)> = BTreeMap::new();
            let (mut signed, mut included, mut lost) = (0u64, 0u64, 0u64);
            for (what, blocks) in steps {
                match what {
                    0 => {
                        let nonce = outbox.next_nonce(next);
                        let bytes = signed.to_le_bytes().to_vec();
                        outbox.insert(nonce, signed, bytes.clone(), runtime, Block(head), 8);
                        alive.insert(nonce, (bytes, head + 7, runtime));
                        signed += 1;
                    }
                    1 => {
                        // A block includes our next call, if it is still valid.
                        head += 1;
                        if let Some((bytes, valid_until, version)) = alive.get(&next)
                            && head <= *valid_until
                            && *version == runtime
                        {
                            chain.entry(head).or_default().push(bytes.clone());
                            next += 1;
                        }
                    }
                    2 => {
                        // A block includes another process's call.
                        head += 1;
                        chain.entry(head).or_default().push(b"theirs".to_vec());
                        next += 1;
                    }
                    3 => {
                        head += 1;
                        runtime.spec += 1;
                    }
                    _ => head += blocks,
                }
                if let Some(range) = outbox.search(Block(head), next) {
                    for block in range {
                        for (nonce, _) in outbox.find(chain.get(&block).map_or(&[], Vec::as_slice)) {
                            let which = outbox.withdraw(nonce).unwrap();
                            prop_assert!(chain.values().flatten().any(|bytes| *bytes == which.to_le_bytes()));
                            included += 1;
                        }
                        outbox.searched(Block(block));
                    }
                }
                for (which, _) in outbox.lost(Block(head), next, runtime) {
                    prop_assert!(!chain.values().flatten().any(|bytes| *bytes == which.to_le_bytes()));
                    alive.retain(|_, (bytes, ..)| *bytes != which.to_le_bytes());
                    lost += 1;
                }
            }
            prop_assert_eq!(signed, included + lost + outbox.calls.len() as u64);
        }
    }
}
