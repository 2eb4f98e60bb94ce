//! Transactions that wait for a block.
//!
//! The runtime says of each what it requires and what it provides, as tags: for a signed transaction, its account with
//! the nonce before and its own. One whose requirements are met, by the chain or by others that are ready, is ready; the
//! rest waits. Blocks take the ready ones by priority and age, a provider always before what needs it.
//!
//! Everything has a bound. A full pool gives up what waits for others first, then the lowest priority, then the latest;
//! if that would be the newcomer, the newcomer is refused.

use crate::execute::{Candidate, Extrinsic, LeftOut};
use serde_json::{Value, json};
use sp_core::H256;
use sp_runtime::transaction_validity::{TransactionTag as Tag, ValidTransaction};
use std::{
    cmp::Reverse,
    collections::{BTreeSet, BinaryHeap, HashMap, HashSet, VecDeque},
};
use tokio::sync::mpsc;

/// Blocks of its own that a transaction may fail to fit into before it is taken for too large.
const TIMES_TOO_LARGE_MAX: u8 = 8;
/// Transactions remembered for having made the runtime panic.
const BANNED_MAX: usize = 256;

/// What the pool may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolLimits {
    /// Transactions, ready or not.
    pub transactions: usize,
    /// Their bytes together.
    pub bytes: usize,
    /// How many of them may be waiting for others that are not there.
    pub waiting: usize,
}

impl Default for PoolLimits {
    fn default() -> PoolLimits {
        PoolLimits { transactions: 8192, bytes: 16 << 20, waiting: 1024 }
    }
}

/// What is told to whoever watches a transaction, in the words of `author_submitAndWatchExtrinsic`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Status {
    Future,
    Ready,
    InBlock(H256),
    /// The block it was in is no longer part of the chain. It is back in the pool.
    Retracted(H256),
    Finalized(H256),
    /// Another with the same tags and a higher priority took its place.
    Usurped(H256),
    Dropped,
    Invalid,
}

pub(crate) type Watcher = mpsc::Sender<Status>;

/// Why a valid transaction is not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Rejection {
    #[error("already imported")]
    AlreadyThere,
    #[error("it made the runtime panic before")]
    Banned,
    #[error("it provides no tag")]
    NothingProvided,
    #[error("its priority {offered} is not above {taken}, which another with the same tags has")]
    PriorityTooLow { taken: u64, offered: u64 },
    #[error("the pool is full")]
    Full,
}

#[derive(Default)]
pub(crate) struct Pool {
    limits: PoolLimits,
    entries: HashMap<H256, Entry>,
    providers: HashMap<Tag, H256>,
    /// Who waits for a tag.
    waiting: HashMap<Tag, Vec<H256>>,
    bytes: usize,
    arrivals: u64,
    watchers: HashMap<H256, Watcher>,
    banned: VecDeque<H256>,
}

struct Entry {
    bytes: Extrinsic,
    priority: u64,
    provides: BTreeSet<Tag>,
    /// What it requires and the chain does not yet provide.
    waits_for: BTreeSet<Tag>,
    arrived: u64,
    ready: bool,
    /// The last block it can be in.
    valid_till: u64,
    /// The block on top of which it was last found valid.
    checked_at: u32,
    times_too_large: u8,
}

impl Status {
    /// Whether nothing can follow.
    fn is_last(&self) -> bool {
        matches!(self, Status::Finalized(_) | Status::Usurped(_) | Status::Dropped | Status::Invalid)
    }

    pub(crate) fn to_json(&self) -> Value {
        match self {
            Status::Future => json!("future"),
            Status::Ready => json!("ready"),
            Status::InBlock(block) => json!({ "inBlock": block }),
            Status::Retracted(block) => json!({ "retracted": block }),
            Status::Finalized(block) => json!({ "finalized": block }),
            Status::Usurped(by) => json!({ "usurped": by }),
            Status::Dropped => json!("dropped"),
            Status::Invalid => json!("invalid"),
        }
    }
}

impl Pool {
    pub(crate) fn new(limits: PoolLimits) -> Pool {
        Pool { limits, ..Pool::default() }
    }

    /// Takes a transaction that was found valid on top of block `at`.
    pub(crate) fn submit(
        &mut self,
        hash: H256,
        bytes: Extrinsic,
        valid: ValidTransaction,
        at: u32,
        watcher: Option<Watcher>,
    ) -> Result<(), Rejection> {
        self.may_submit(hash)?;
        if valid.provides.is_empty() {
            return Err(Rejection::NothingProvided);
        }
        let mut entry = Entry {
            bytes,
            priority: valid.priority,
            provides: valid.provides.into_iter().collect(),
            waits_for: valid.requires.into_iter().collect(),
            arrived: self.arrivals,
            ready: false,
            valid_till: u64::from(at).saturating_add(valid.longevity),
            checked_at: at,
            times_too_large: 0,
        };
        entry.ready = entry.waits_for.iter().all(|tag| self.is_provided(tag));

        let usurped = self.usurped_by(&entry)?;
        let crowded_out = self.crowded_out_by(&entry, &usurped)?;

        self.arrivals += 1;
        if let Some(watcher) = watcher {
            self.watchers.insert(hash, watcher);
        }
        for other in &usurped {
            self.remove(other);
            self.tell(other, Status::Usurped(hash));
        }
        for other in &crowded_out {
            self.remove(other);
            self.tell(other, Status::Dropped);
        }
        let ready = entry.ready;
        self.insert(hash, entry);
        self.tell(&hash, if ready { Status::Ready } else { Status::Future });
        if !usurped.is_empty() || !crowded_out.is_empty() {
            self.settle();
        } else if ready {
            self.promote_after(hash);
        }
        Ok(())
    }

    /// Whether it is worth validating at all.
    pub(crate) fn may_submit(&self, hash: H256) -> Result<(), Rejection> {
        if self.entries.contains_key(&hash) {
            return Err(Rejection::AlreadyThere);
        }
        if self.banned.contains(&hash) {
            return Err(Rejection::Banned);
        }
        Ok(())
    }

    /// The ready transactions in the order a block should take them.
    pub(crate) fn candidates(&self) -> Vec<Candidate> {
        let of = |hash: H256| Candidate { hash, bytes: self.entries[&hash].bytes.clone() };
        self.order().into_iter().map(of).collect()
    }

    /// Whether a transaction that is ready provides this.
    pub(crate) fn is_provided(&self, tag: &Tag) -> bool {
        self.providers.get(tag).is_some_and(|provider| self.entries[provider].ready)
    }

    /// A new block of the chain, and what became of the candidates.
    pub(crate) fn block(
        &mut self,
        number: u32,
        block: H256,
        included: &[H256],
        left_out: Vec<(H256, LeftOut)>,
    ) {
        for hash in included {
            if let Some(entry) = self.remove(hash) {
                for tag in &entry.provides {
                    self.provided_by_the_chain(tag);
                }
            }
            self.tell(hash, Status::InBlock(block));
        }
        for (hash, why) in left_out {
            match why {
                LeftOut::Full { alone: false } => {}
                LeftOut::Full { alone: true } => {
                    let entry = self.entries.get_mut(&hash);
                    let too_large = entry.is_some_and(|entry| {
                        entry.times_too_large += 1;
                        entry.times_too_large >= TIMES_TOO_LARGE_MAX
                    });
                    if too_large {
                        self.discard(&hash, Status::Invalid);
                    }
                }
                // The next revalidation tells what it waits for.
                LeftOut::TooEarly => {
                    if let Some(entry) = self.entries.get_mut(&hash) {
                        entry.checked_at = 0;
                    }
                }
                LeftOut::Refused(_) => self.discard(&hash, Status::Invalid),
                LeftOut::Panicked(_) => {
                    self.ban(hash);
                    self.discard(&hash, Status::Invalid);
                }
            }
        }
        let expired = |entry: &Entry| entry.valid_till < u64::from(number);
        let expired: Vec<H256> =
            self.entries.iter().filter(|(_, entry)| expired(entry)).map(|(hash, _)| *hash).collect();
        for hash in &expired {
            self.discard(hash, Status::Invalid);
        }
        self.settle();
    }

    pub(crate) fn finalised(&mut self, block: H256, included: &[H256]) {
        for hash in included {
            self.tell(hash, Status::Finalized(block));
        }
    }

    pub(crate) fn retracted(&mut self, block: H256, included: &[H256]) {
        for hash in included {
            self.tell(hash, Status::Retracted(block));
        }
    }

    /// Up to `count` transactions that were not looked at since a block before `number`, the longest unseen first.
    pub(crate) fn due(&self, number: u32, count: usize) -> Vec<Candidate> {
        let mut due: Vec<_> = self
            .entries
            .iter()
            .filter(|(_, entry)| entry.checked_at < number)
            .map(|(hash, entry)| (entry.checked_at, entry.arrived, *hash))
            .collect();
        due.sort_unstable();
        let of = |hash: H256| Candidate { hash, bytes: self.entries[&hash].bytes.clone() };
        due.into_iter().take(count).map(|(_, _, hash)| of(hash)).collect()
    }

    /// What validating again on top of block `at` gave: nothing if it is valid no more.
    pub(crate) fn revalidated(&mut self, results: Vec<(H256, Option<ValidTransaction>)>, at: u32) {
        for (hash, valid) in results {
            let Some(valid) = valid else {
                self.discard(&hash, Status::Invalid);
                continue;
            };
            let Some(mut entry) = self.remove(&hash) else { continue };
            entry.waits_for = valid.requires.into_iter().collect();
            entry.priority = valid.priority;
            entry.valid_till = u64::from(at).saturating_add(valid.longevity);
            entry.checked_at = at;
            self.insert(hash, entry);
        }
        self.settle();
    }

    /// Everything in the pool, in order of arrival. Whoever watches goes on watching.
    pub(crate) fn drain(&mut self) -> Vec<Candidate> {
        self.providers.clear();
        self.waiting.clear();
        self.bytes = 0;
        let mut entries: Vec<_> = self.entries.drain().collect();
        entries.sort_unstable_by_key(|(_, entry)| entry.arrived);
        entries.into_iter().map(|(hash, entry)| Candidate { hash, bytes: entry.bytes }).collect()
    }

    /// Takes a transaction out, if it is there, and says why to whoever watches.
    pub(crate) fn discard(&mut self, hash: &H256, why: Status) {
        self.remove(hash);
        self.tell(hash, why);
    }

    /// Never takes this one again (until some hundreds of others were banned).
    pub(crate) fn ban(&mut self, hash: H256) {
        if self.banned.len() >= BANNED_MAX {
            self.banned.pop_front();
        }
        self.banned.push_back(hash);
    }

    /// Everything that is ready before what needs it, otherwise by priority, then by age.
    fn order(&self) -> Vec<H256> {
        let mut missing = HashMap::<H256, usize>::new();
        let mut next = BinaryHeap::new();
        for (hash, entry) in &self.entries {
            if entry.waits_for.is_empty() {
                next.push((entry.priority, Reverse(entry.arrived), *hash));
            } else {
                missing.insert(*hash, entry.waits_for.len());
            }
        }
        let mut order = Vec::with_capacity(self.entries.len());
        while let Some((_, _, hash)) = next.pop() {
            order.push(hash);
            let provided = self.entries[&hash].provides.iter().filter_map(|tag| self.waiting.get(tag));
            for waiter in provided.flatten() {
                let left = missing.get_mut(waiter).expect("whoever waits for a tag misses it");
                *left -= 1;
                if *left == 0 {
                    let entry = &self.entries[waiter];
                    next.push((entry.priority, Reverse(entry.arrived), *waiter));
                }
            }
        }
        order
    }

    /// Finds out anew who is ready, and tells whoever it has changed for.
    fn settle(&mut self) {
        let ready: HashSet<H256> = self.order().into_iter().collect();
        let mut changed = Vec::new();
        for (hash, entry) in &mut self.entries {
            let now = ready.contains(hash);
            if entry.ready != now {
                entry.ready = now;
                changed.push((*hash, if now { Status::Ready } else { Status::Future }));
            }
        }
        for (hash, status) in changed {
            self.tell(&hash, status);
        }
    }

    /// Makes ready what waited for this one, and what waited for that.
    fn promote_after(&mut self, hash: H256) {
        let mut promoted = vec![hash];
        while let Some(hash) = promoted.pop() {
            let tags = self.entries[&hash].provides.iter();
            let waiters: BTreeSet<H256> =
                tags.filter_map(|tag| self.waiting.get(tag)).flatten().copied().collect();
            for waiter in waiters {
                let entry = &self.entries[&waiter];
                if !entry.ready && entry.waits_for.iter().all(|tag| self.is_provided(tag)) {
                    self.entries.get_mut(&waiter).expect("it was looked up above").ready = true;
                    self.tell(&waiter, Status::Ready);
                    promoted.push(waiter);
                }
            }
        }
    }

    /// Whose tags a newcomer would take over.
    fn usurped_by(&self, newcomer: &Entry) -> Result<BTreeSet<H256>, Rejection> {
        let usurped: BTreeSet<H256> =
            newcomer.provides.iter().filter_map(|tag| self.providers.get(tag)).copied().collect();
        match usurped.iter().map(|hash| self.entries[hash].priority).max() {
            Some(taken) if newcomer.priority <= taken => {
                Err(Rejection::PriorityTooLow { taken, offered: newcomer.priority })
            }
            _ => Ok(usurped),
        }
    }

    /// Who has to go so that a newcomer fits.
    fn crowded_out_by(&self, newcomer: &Entry, usurped: &BTreeSet<H256>) -> Result<Vec<H256>, Rejection> {
        if !newcomer.ready
            && self.entries.values().filter(|entry| !entry.ready).count() >= self.limits.waiting
        {
            return Err(Rejection::Full);
        }
        let usurped_bytes: usize = usurped.iter().map(|hash| self.entries[hash].bytes.len()).sum();
        let mut count = self.entries.len() - usurped.len() + 1;
        let mut bytes = self.bytes - usurped_bytes + newcomer.bytes.len();
        let fits =
            |count: usize, bytes: usize| count <= self.limits.transactions && bytes <= self.limits.bytes;
        if fits(count, bytes) {
            return Ok(Vec::new());
        }
        let worth = |entry: &Entry| (entry.ready, entry.priority, Reverse(entry.arrived));
        let mut others: Vec<_> = self.entries.iter().filter(|(hash, _)| !usurped.contains(hash)).collect();
        others.sort_unstable_by_key(|(_, entry)| worth(entry));
        let mut crowded_out = Vec::new();
        for (hash, entry) in others {
            if worth(entry) >= worth(newcomer) {
                break;
            }
            crowded_out.push(*hash);
            count -= 1;
            bytes -= entry.bytes.len();
            if fits(count, bytes) {
                return Ok(crowded_out);
            }
        }
        Err(Rejection::Full)
    }

    fn insert(&mut self, hash: H256, entry: Entry) {
        self.bytes += entry.bytes.len();
        for tag in &entry.provides {
            self.providers.insert(tag.clone(), hash);
        }
        for tag in &entry.waits_for {
            self.waiting.entry(tag.clone()).or_default().push(hash);
        }
        self.entries.insert(hash, entry);
    }

    fn remove(&mut self, hash: &H256) -> Option<Entry> {
        let entry = self.entries.remove(hash)?;
        self.bytes -= entry.bytes.len();
        for tag in &entry.provides {
            self.providers.remove(tag);
        }
        for tag in &entry.waits_for {
            if let Some(waiters) = self.waiting.get_mut(tag) {
                waiters.retain(|waiter| waiter != hash);
                if waiters.is_empty() {
                    self.waiting.remove(tag);
                }
            }
        }
        Some(entry)
    }

    /// Nobody waits any longer for what the chain now provides.
    fn provided_by_the_chain(&mut self, tag: &Tag) {
        for waiter in self.waiting.remove(tag).unwrap_or_default() {
            if let Some(entry) = self.entries.get_mut(&waiter) {
                entry.waits_for.remove(tag);
            }
        }
    }

    /// A watcher that does not listen, or has heard the last, is forgotten.
    fn tell(&mut self, hash: &H256, status: Status) {
        let last = status.is_last();
        if let Some(watcher) = self.watchers.get(hash)
            && (watcher.try_send(status).is_err() || last)
        {
            self.watchers.remove(hash);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: PoolLimits = PoolLimits { transactions: 4, bytes: 100, waiting: 2 };

    fn hash(n: u8) -> H256 {
        H256::repeat_byte(n)
    }

    /// A transaction of one account: it provides its nonce and requires the one before, unless that is on the chain.
    fn signed(account: u8, nonce: u8, on_chain: u8, priority: u64) -> ValidTransaction {
        ValidTransaction {
            priority,
            requires: if nonce > on_chain { vec![vec![account, nonce - 1]] } else { vec![] },
            provides: vec![vec![account, nonce]],
            longevity: 10,
            propagate: true,
        }
    }

    fn bytes(len: usize) -> Extrinsic {
        vec![0; len].into()
    }

    fn put(pool: &mut Pool, id: u8, valid: ValidTransaction) -> Result<(), Rejection> {
        pool.submit(hash(id), bytes(10), valid, 1, None)
    }

    fn order(pool: &Pool) -> Vec<H256> {
        pool.candidates().into_iter().map(|candidate| candidate.hash).collect()
    }

    fn watched(pool: &mut Pool, id: u8, valid: ValidTransaction) -> mpsc::Receiver<Status> {
        let (watcher, statuses) = mpsc::channel(8);
        pool.submit(hash(id), bytes(10), valid, 1, Some(watcher)).unwrap();
        statuses
    }

    fn heard(statuses: &mut mpsc::Receiver<Status>) -> Vec<Status> {
        std::iter::from_fn(|| statuses.try_recv().ok()).collect()
    }

    #[test]
    fn a_nonce_comes_after_the_one_before_whatever_its_priority() {
        let mut pool = Pool::new(LIMITS);
        put(&mut pool, 1, signed(7, 0, 0, 1)).unwrap();
        put(&mut pool, 2, signed(7, 1, 0, 100)).unwrap();
        put(&mut pool, 3, signed(8, 0, 0, 50)).unwrap();
        assert_eq!(order(&pool), [hash(3), hash(1), hash(2)]);
    }

    #[test]
    fn a_gap_in_the_nonces_waits_until_it_is_filled() {
        let mut pool = Pool::new(LIMITS);
        let mut late = watched(&mut pool, 2, signed(7, 1, 0, 1));
        assert!(order(&pool).is_empty());
        assert!(!pool.is_provided(&vec![7, 1]));
        put(&mut pool, 1, signed(7, 0, 0, 1)).unwrap();
        assert_eq!(order(&pool), [hash(1), hash(2)]);
        assert!(pool.is_provided(&vec![7, 1]));
        assert_eq!(heard(&mut late), [Status::Future, Status::Ready]);
    }

    #[test]
    fn what_a_block_included_is_provided_by_the_chain() {
        let mut pool = Pool::new(LIMITS);
        put(&mut pool, 1, signed(7, 0, 0, 1)).unwrap();
        put(&mut pool, 2, signed(7, 1, 0, 1)).unwrap();
        pool.block(2, hash(100), &[hash(1)], vec![]);
        assert_eq!(order(&pool), [hash(2)]);
        pool.block(3, hash(101), &[hash(2)], vec![]);
        assert!(order(&pool).is_empty());
        assert_eq!(pool.bytes, 0);
        assert!(pool.waiting.is_empty() && pool.providers.is_empty());
    }

    #[test]
    fn a_watcher_hears_of_every_step() {
        let mut pool = Pool::new(LIMITS);
        let mut statuses = watched(&mut pool, 1, signed(7, 0, 0, 1));
        pool.block(2, hash(100), &[hash(1)], vec![]);
        pool.retracted(hash(100), &[hash(1)]);
        pool.submit(hash(1), bytes(10), signed(7, 0, 0, 1), 1, None).unwrap();
        pool.block(2, hash(101), &[hash(1)], vec![]);
        pool.finalised(hash(101), &[hash(1)]);
        let expected = [
            Status::Ready,
            Status::InBlock(hash(100)),
            Status::Retracted(hash(100)),
            Status::Ready,
            Status::InBlock(hash(101)),
            Status::Finalized(hash(101)),
        ];
        assert_eq!(heard(&mut statuses), expected);
        assert!(pool.watchers.is_empty());
    }

    #[test]
    fn a_watcher_that_does_not_listen_is_forgotten() {
        let mut pool = Pool::new(LIMITS);
        let (watcher, _statuses) = mpsc::channel(1);
        pool.submit(hash(1), bytes(10), signed(7, 0, 0, 1), 1, Some(watcher)).unwrap();
        pool.block(2, hash(100), &[hash(1)], vec![]);
        assert!(pool.watchers.is_empty());
    }

    #[test]
    fn a_higher_priority_usurps_and_an_equal_one_does_not() {
        let mut pool = Pool::new(LIMITS);
        let mut first = watched(&mut pool, 1, signed(7, 0, 0, 5));
        put(&mut pool, 2, signed(7, 1, 0, 5)).unwrap();
        assert_eq!(
            put(&mut pool, 3, signed(7, 0, 0, 5)),
            Err(Rejection::PriorityTooLow { taken: 5, offered: 5 })
        );
        put(&mut pool, 4, signed(7, 0, 0, 6)).unwrap();
        assert_eq!(heard(&mut first), [Status::Ready, Status::Usurped(hash(4))]);
        assert_eq!(order(&pool), [hash(4), hash(2)]);
    }

    #[test]
    fn the_same_transaction_is_taken_once() {
        let mut pool = Pool::new(LIMITS);
        put(&mut pool, 1, signed(7, 0, 0, 5)).unwrap();
        assert_eq!(put(&mut pool, 1, signed(7, 0, 0, 5)), Err(Rejection::AlreadyThere));
    }

    #[test]
    fn a_transaction_that_provides_nothing_is_refused() {
        let mut pool = Pool::new(LIMITS);
        let nothing = ValidTransaction { provides: vec![], ..signed(7, 0, 0, 5) };
        assert_eq!(put(&mut pool, 1, nothing), Err(Rejection::NothingProvided));
    }

    #[test]
    fn a_full_pool_gives_up_its_worst_or_refuses_the_newcomer() {
        let mut pool = Pool::new(LIMITS);
        put(&mut pool, 1, signed(1, 0, 0, 5)).unwrap();
        put(&mut pool, 2, signed(2, 0, 0, 5)).unwrap();
        let mut waiting = watched(&mut pool, 3, signed(3, 9, 0, 50));
        let mut latest = watched(&mut pool, 4, signed(4, 0, 0, 5));

        // First who waits for others, then the latest of the lowest priority.
        put(&mut pool, 5, signed(5, 0, 0, 6)).unwrap();
        assert_eq!(heard(&mut waiting), [Status::Future, Status::Dropped]);
        put(&mut pool, 6, signed(6, 0, 0, 6)).unwrap();
        assert_eq!(heard(&mut latest), [Status::Ready, Status::Dropped]);
        assert_eq!(put(&mut pool, 7, signed(7, 0, 0, 5)), Err(Rejection::Full));
        assert_eq!(order(&pool), [hash(5), hash(6), hash(1), hash(2)]);
    }

    #[test]
    fn the_pool_is_bounded_in_bytes_too() {
        let mut pool = Pool::new(LIMITS);
        assert_eq!(pool.submit(hash(1), bytes(101), signed(1, 0, 0, 9), 1, None), Err(Rejection::Full));
        pool.submit(hash(2), bytes(60), signed(2, 0, 0, 5), 1, None).unwrap();
        pool.submit(hash(3), bytes(60), signed(3, 0, 0, 6), 1, None).unwrap();
        assert_eq!(order(&pool), [hash(3)]);
        assert_eq!(pool.bytes, 60);
    }

    #[test]
    fn few_may_wait_for_what_is_not_there() {
        let mut pool = Pool::new(LIMITS);
        put(&mut pool, 1, signed(1, 5, 0, 5)).unwrap();
        put(&mut pool, 2, signed(2, 5, 0, 5)).unwrap();
        assert_eq!(put(&mut pool, 3, signed(3, 5, 0, 5)), Err(Rejection::Full));
        put(&mut pool, 4, signed(4, 0, 0, 5)).unwrap();
    }

    #[test]
    fn what_becomes_invalid_leaves_its_dependants_waiting() {
        let mut pool = Pool::new(LIMITS);
        let mut first = watched(&mut pool, 1, signed(7, 0, 0, 1));
        let mut second = watched(&mut pool, 2, signed(7, 1, 0, 1));
        pool.revalidated(vec![(hash(1), None)], 2);
        assert_eq!(heard(&mut first), [Status::Ready, Status::Invalid]);
        assert_eq!(heard(&mut second), [Status::Ready, Status::Future]);
        // A second look at it may find that the chain provides what it waited for.
        pool.revalidated(vec![(hash(2), Some(signed(7, 1, 1, 1)))], 2);
        assert_eq!(order(&pool), [hash(2)]);
    }

    #[test]
    fn what_the_block_had_no_room_for_stays_and_what_never_fits_goes() {
        let mut pool = Pool::new(LIMITS);
        put(&mut pool, 1, signed(7, 0, 0, 1)).unwrap();
        for number in 2..20 {
            pool.block(number.min(9), hash(100), &[], vec![(hash(1), LeftOut::Full { alone: false })]);
        }
        assert_eq!(order(&pool), [hash(1)]);
        for _ in 0..TIMES_TOO_LARGE_MAX {
            pool.block(9, hash(100), &[], vec![(hash(1), LeftOut::Full { alone: true })]);
        }
        assert!(order(&pool).is_empty());
    }

    #[test]
    fn longevity_ends() {
        let mut pool = Pool::new(LIMITS);
        let mut statuses = watched(&mut pool, 1, signed(7, 0, 0, 1));
        pool.block(11, hash(100), &[], vec![]);
        assert_eq!(order(&pool), [hash(1)]);
        pool.block(12, hash(101), &[], vec![]);
        assert_eq!(heard(&mut statuses), [Status::Ready, Status::Invalid]);
        assert!(order(&pool).is_empty());
    }

    #[test]
    fn what_made_the_runtime_panic_does_not_come_back() {
        let mut pool = Pool::new(LIMITS);
        put(&mut pool, 1, signed(7, 0, 0, 1)).unwrap();
        pool.block(2, hash(100), &[], vec![(hash(1), LeftOut::Panicked("overflow".into()))]);
        assert_eq!(put(&mut pool, 1, signed(7, 0, 0, 1)), Err(Rejection::Banned));
    }

    #[test]
    fn the_longest_unseen_are_looked_at_first() {
        let mut pool = Pool::new(LIMITS);
        for id in 1..=3 {
            put(&mut pool, id, signed(id, 0, 0, 1)).unwrap();
        }
        let due = |pool: &Pool, number| -> Vec<H256> {
            pool.due(number, 2).into_iter().map(|candidate| candidate.hash).collect()
        };
        assert!(due(&pool, 1).is_empty());
        assert_eq!(due(&pool, 2), [hash(1), hash(2)]);
        pool.revalidated(vec![(hash(1), Some(signed(1, 0, 0, 1)))], 2);
        assert_eq!(due(&pool, 2), [hash(2), hash(3)]);
        assert_eq!(due(&pool, 3), [hash(2), hash(3)]);
    }
}
