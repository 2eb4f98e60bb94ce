//! What was signed and sent and is not final yet, and what to do about each of it. Pure: the clerk in `submit` asks.
//!
//! A call must not be lost and must not happen twice. So the same bytes are offered again and again, which does no harm,
//! and new bytes are signed only once the old ones can never be included: another call used their nonce in a finalised
//! block, the finalised chain has come to the last block for which they are valid, or its runtime is no longer the one
//! they were signed for. A runtime's version only rises: a chain whose root forces an old runtime back on it would take
//! old bytes again.

use crate::link::Version;
use protocol::Block;
use std::{collections::BTreeMap, ops::RangeInclusive};

/// A signed call on its way. `T` is what the caller wants back in the end.
#[derive(Debug)]
pub(crate) struct Flight<T> {
    pub(crate) task: T,
    bytes: Vec<u8>,
    /// The runtime that takes it.
    runtime: Version,
    /// The finalised block it was signed at: no earlier block includes it, nor does this one.
    born: Block,
    /// The last block that may include it.
    dies: Block,
    /// It is in no finalised block up to this one.
    searched: Block,
    /// The finalised block at which it was last offered; none over this connection.
    offered: Option<Block>,
}

/// Flights by their nonce.
#[derive(Debug)]
pub(crate) struct Outbox<T> {
    flights: BTreeMap<u64, Flight<T>>,
}

impl<T> Default for Outbox<T> {
    fn default() -> Outbox<T> {
        Outbox { flights: BTreeMap::new() }
    }
}

impl<T> Outbox<T> {
    pub(crate) fn is_empty(&self) -> bool {
        self.flights.is_empty()
    }

    /// The nonce for another call, `on_chain` being the next one as of the best block.
    pub(crate) fn next_nonce(&self, on_chain: u64) -> u64 {
        let after_ours = self.flights.last_key_value().map_or(0, |(nonce, _)| nonce.saturating_add(1));
        on_chain.max(after_ours)
    }

    /// Notes a call signed for `runtime` at the finalised block `born`, valid for `blocks` blocks, as offered.
    pub(crate) fn insert(
        &mut self,
        nonce: u64,
        task: T,
        bytes: Vec<u8>,
        runtime: Version,
        born: Block,
        blocks: u32,
    ) {
        // An era's first block is the one it was born in.
        let dies = Block(born.0.saturating_add(blocks.saturating_sub(1)));
        let flight = Flight { task, bytes, runtime, born, dies, searched: born, offered: Some(born) };
        self.flights.insert(nonce, flight);
    }

    /// Takes back a call that the chain would not take.
    pub(crate) fn withdraw(&mut self, nonce: u64) -> Option<T> {
        self.flights.remove(&nonce).map(|flight| flight.task)
    }

    /// What the chain held may be gone, and what it told may be void: everything is looked for and offered anew.
    pub(crate) fn reconnected(&mut self) {
        for flight in self.flights.values_mut() {
            flight.searched = flight.born;
            flight.offered = None;
        }
    }

    /// The finalised blocks to look through, with `next` the account's nonce as of the finalised `head`.
    ///
    /// Only a nonce that was used is worth looking for.
    pub(crate) fn search(&mut self, head: Block, next: u64) -> Option<RangeInclusive<u32>> {
        let mut range: Option<RangeInclusive<u32>> = None;
        for (nonce, flight) in &mut self.flights {
            if *nonce >= next {
                flight.searched = flight.searched.max(head);
                continue;
            }
            let (from, to) = (flight.searched.0.saturating_add(1), flight.dies.min(head).0);
            if from <= to {
                let (first, last) =
                    range.map_or((from, to), |range| (from.min(*range.start()), to.max(*range.end())));
                range = Some(first..=last);
            }
        }
        range
    }

    /// Which of ours are among a block's calls: their nonce, and their index in the block.
    pub(crate) fn find(&self, calls: &[Vec<u8>]) -> Vec<(u64, usize)> {
        let index_of = |flight: &Flight<T>| calls.iter().position(|call| *call == flight.bytes);
        self.flights.iter().filter_map(|(nonce, flight)| Some((*nonce, index_of(flight)?))).collect()
    }

    /// `block` was looked through, after all before it.
    pub(crate) fn searched(&mut self, block: Block) {
        for flight in self.flights.values_mut() {
            flight.searched = flight.searched.max(block);
        }
    }

    /// Those whose nonce was used by a block that cannot be looked at any more: nobody can tell whether it was they.
    pub(crate) fn undecidable(&mut self, next: u64) -> Vec<T> {
        let kept = self.flights.split_off(&next);
        std::mem::replace(&mut self.flights, kept).into_values().map(|flight| flight.task).collect()
    }

    /// Takes out those that can never be included, each with the reason. The blocks of [`Outbox::search`] must have been
    /// looked through, and what was found withdrawn. `runtime` is what takes the calls of the block after the finalised
    /// `head`: what the best chain has may yet be dropped.
    pub(crate) fn lost(&mut self, head: Block, next: u64, runtime: Version) -> Vec<(T, &'static str)> {
        let reason = |nonce: u64, flight: &Flight<T>| {
            if nonce < next {
                Some("another call of the same account took its nonce")
            } else if flight.dies <= head {
                Some("no block took it while it was valid")
            } else if flight.runtime != runtime {
                Some("the chain's runtime was upgraded")
            } else {
                None
            }
        };
        let lost: Vec<(u64, &str)> = self
            .flights
            .iter()
            .filter_map(|(nonce, flight)| Some((*nonce, reason(*nonce, flight)?)))
            .collect();
        lost.into_iter().filter_map(|(nonce, why)| Some((self.withdraw(nonce)?, why))).collect()
    }

    /// The bytes to offer again at the finalised `head`, in the order of their nonces: what was not offered over this
    /// connection, or not for `every` blocks. They count as offered.
    pub(crate) fn offer_again(&mut self, head: Block, every: u32) -> Vec<(u64, Vec<u8>)> {
        let due =
            |flight: &Flight<T>| flight.offered.is_none_or(|block| head.0.saturating_sub(block.0) >= every);
        let due = self.flights.iter_mut().filter(|(_, flight)| due(flight));
        due.map(|(nonce, flight)| {
            flight.offered = Some(head);
            (*nonce, flight.bytes.clone())
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

    /// Three calls with nonces 5, 6 and 7, signed at block 10 for 64 blocks: valid up to block 73.
    fn outbox() -> Outbox<&'static str> {
        let mut outbox = Outbox::default();
        for (nonce, name) in [(5, "five"), (6, "six"), (7, "seven")] {
            outbox.insert(nonce, name, name.as_bytes().to_vec(), OLD, Block(10), 64);
        }
        outbox
    }

    fn calls(names: &[&str]) -> Vec<Vec<u8>> {
        names.iter().map(|name| name.as_bytes().to_vec()).collect()
    }

    #[test]
    fn a_nonce_follows_the_chain_s_and_our_own() {
        assert_eq!(Outbox::<()>::default().next_nonce(0), 0);
        assert_eq!(Outbox::<()>::default().next_nonce(9), 9);
        // The chain has not seen ours yet, or has lost them with an unfinalised block.
        assert_eq!(outbox().next_nonce(5), 8);
        assert_eq!(outbox().next_nonce(2), 8);
        // Another process with the same key is ahead.
        assert_eq!(outbox().next_nonce(20), 20);
    }

    #[test]
    fn blocks_are_searched_only_for_a_nonce_that_was_used() {
        let mut outbox = outbox();
        assert_eq!(outbox.search(Block(12), 5), None);
        // Blocks 11 and 12 cannot hold what was still unused at block 12.
        assert_eq!(outbox.search(Block(14), 7), Some(13..=14));
        assert_eq!(outbox.find(&calls(&["inherent", "six", "other"])), [(6, 1)]);
        assert_eq!(outbox.withdraw(6), Some("six"));
        outbox.searched(Block(14));
        assert_eq!(outbox.search(Block(14), 7), None);
    }

    #[test]
    fn a_search_goes_on_where_it_was_broken_off() {
        let mut outbox = outbox();
        assert_eq!(outbox.search(Block(20), 8), Some(11..=20));
        outbox.searched(Block(13));
        assert_eq!(outbox.search(Block(20), 8), Some(14..=20));
    }

    #[test]
    fn a_search_ends_where_the_call_dies() {
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
    fn a_call_is_lost_when_its_last_block_is_final_and_not_before() {
        let mut outbox = outbox();
        assert_eq!(outbox.lost(Block(72), 5, OLD), []);
        let lost = outbox.lost(Block(73), 5, OLD);
        assert_eq!(lost.iter().map(|(name, _)| *name).collect::<Vec<_>>(), ["five", "six", "seven"]);
        assert!(outbox.is_empty());
    }

    #[test]
    fn a_call_is_lost_when_an_upgrade_is_final_and_not_while_it_is_only_in_the_best_chain() {
        let mut outbox = outbox();
        // The best chain has the new runtime at block 13, and the finalised block 12 the old one.
        assert_eq!(outbox.lost(Block(12), 5, OLD), []);
        // Another fork wins, without the upgrade, and takes a call.
        assert_eq!(outbox.search(Block(13), 6), Some(11..=13));
        assert_eq!(outbox.find(&calls(&["five"])), [(5, 0)]);
        assert_eq!(outbox.withdraw(5), Some("five"));
        outbox.searched(Block(13));
        assert_eq!(outbox.lost(Block(13), 6, OLD), []);

        let lost = outbox.lost(Block(14), 6, NEW);
        assert_eq!(lost.iter().map(|(name, _)| *name).collect::<Vec<_>>(), ["six", "seven"]);
        assert!(lost.iter().all(|(_, why)| why.contains("upgraded")));
        assert!(outbox.is_empty());
    }

    #[test]
    fn a_new_version_of_transactions_alone_voids_a_call_too() {
        let mut outbox = outbox();
        assert_eq!(outbox.lost(Block(12), 5, Version { transaction: 2, ..OLD }).len(), 3);
    }

    #[test]
    fn a_call_that_was_included_before_an_upgrade_is_found_and_not_signed_anew() {
        let mut outbox = outbox();
        // Block 12 holds it and the upgrade.
        assert_eq!(outbox.search(Block(12), 6), Some(11..=12));
        assert_eq!(outbox.find(&calls(&["five", "set_code"])), [(5, 0)]);
        assert_eq!(outbox.withdraw(5), Some("five"));
        outbox.searched(Block(12));
        let lost = outbox.lost(Block(12), 6, NEW);
        assert_eq!(lost.iter().map(|(name, _)| *name).collect::<Vec<_>>(), ["six", "seven"]);
    }

    #[test]
    fn what_was_signed_for_the_new_runtime_is_lost_with_no_upgrade_that_is_past() {
        let mut outbox = outbox();
        outbox.lost(Block(14), 5, NEW);
        assert_eq!(outbox.next_nonce(5), 5);
        outbox.insert(5, "again", b"again".to_vec(), NEW, Block(14), 64);
        assert_eq!(outbox.lost(Block(15), 5, NEW), []);
        assert_eq!(outbox.offer_again(Block(17), 3), [(5, b"again".to_vec())]);
    }

    #[test]
    fn what_is_on_its_way_is_offered_again_after_some_blocks_and_over_a_new_connection() {
        let mut outbox = outbox();
        assert_eq!(outbox.offer_again(Block(12), 3), []);
        let again = outbox.offer_again(Block(13), 3);
        assert_eq!(again.iter().map(|(nonce, _)| *nonce).collect::<Vec<_>>(), [5, 6, 7]);
        assert_eq!(outbox.offer_again(Block(14), 3), []);
        outbox.reconnected();
        assert_eq!(outbox.offer_again(Block(14), 3).len(), 3);
        // What the old connection told of blocks is void as well.
        assert_eq!(outbox.search(Block(14), 8), Some(11..=14));
    }

    #[test]
    fn what_a_pruned_block_may_hold_is_undecidable_and_the_rest_goes_on() {
        let mut outbox = outbox();
        assert_eq!(outbox.undecidable(6), ["five"]);
        assert_eq!(outbox.next_nonce(6), 8);
        assert_eq!(outbox.undecidable(6), Vec::<&str>::new());
    }

    proptest! {
        /// A chain that takes, skips, forgets and is upgraded at random: every call ends in exactly one way.
        #[test]
        fn a_call_is_included_once_or_lost_and_never_both(
            steps in proptest::collection::vec((0u8..5, 1u32..4), 1..200),
        ) {
            let mut outbox = Outbox::default();
            let (mut head, mut next, mut runtime) = (0u32, 0u64, OLD);
            let mut chain: BTreeMap<u32, Vec<Vec<u8>>> = BTreeMap::new();
            // By their bytes: which are signed, and which still could be included.
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
                        // A block takes ours, if it is the next and still valid.
                        head += 1;
                        if let Some((bytes, dies, version)) = alive.get(&next)
                            && head <= *dies
                            && *version == runtime
                        {
                            chain.entry(head).or_default().push(bytes.clone());
                            next += 1;
                        }
                    }
                    2 => {
                        // A block takes somebody else's.
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
            prop_assert_eq!(signed, included + lost + outbox.flights.len() as u64);
        }
    }
}
