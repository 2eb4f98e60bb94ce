//! The transaction pool.
//!
//! The runtime returns the tags that a transaction requires and provides. For a signed one, these are its account with
//! the previous nonce and with its own. A transaction is ready if the chain or ready transactions provide the tags
//! that it requires; otherwise it waits. A block takes the ready ones by priority and age, providers first.
//!
//! The pool is bounded. A full pool drops waiting transactions first, then those of the lowest priority, then the
//! newest; it refuses a newcomer that it would drop.

use crate::execute::{Candidate, Extrinsic, LeftOut};
use serde::Serialize;
use sp_core::H256;
use sp_runtime::transaction_validity::{TransactionTag as Tag, ValidTransaction};
use std::{
    cmp::Reverse,
    collections::{BTreeSet, BinaryHeap, HashMap, HashSet, VecDeque},
};
use tokio::sync::mpsc;

/// Number of empty blocks after which a transaction that fits none of them is too large.
const TIMES_TOO_LARGE_MAX: u8 = 8;
/// Maximum number of banned transactions, which made the runtime panic.
const BANNED_MAX: usize = 256;

/// Limits of the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolLimits {
    /// Maximum number of transactions, ready or waiting.
    pub transactions: usize,
    /// Maximum of their total size, in bytes.
    pub bytes: usize,
    /// Maximum number of waiting transactions.
    pub waiting: usize,
}

impl Default for PoolLimits {
    fn default() -> PoolLimits {
        PoolLimits { transactions: 8192, bytes: 16 << 20, waiting: 1024 }
    }
}

/// Status of a watched transaction, as in `author_submitAndWatchExtrinsic`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Status {
    Future,
    Ready,
    InBlock(H256),
    /// Its block was dropped. It is in the pool again.
    Retracted(H256),
    Finalized(H256),
    /// Replaced by a transaction with the same tags and a higher priority.
    Usurped(H256),
    Dropped,
    Invalid,
}

pub(crate) type Watcher = mpsc::Sender<Status>;

/// Reason why a valid transaction is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Rejection {
    #[error("already imported")]
    AlreadyThere,
    #[error("the transaction made the runtime panic before")]
    Banned,
    #[error("the transaction provides no tag")]
    NothingProvided,
    #[error("the priority {offered} is not above {taken}, that of a transaction with the same tags")]
    PriorityTooLow { taken: u64, offered: u64 },
    #[error("the pool is full")]
    Full,
}

#[derive(Default)]
pub(crate) struct Pool {
    limits: PoolLimits,
    entries: HashMap<H256, Entry>,
    providers: HashMap<Tag, H256>,
    /// Waiting transactions by tag.
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
    /// Required tags that the chain does not provide yet.
    waits_for: BTreeSet<Tag>,
    arrived: u64,
    ready: bool,
    /// Last block that can include it.
    valid_till: u64,
    /// Block on which it was last validated.
    checked_at: u32,
    times_too_large: u8,
}

impl Status {
    /// Returns whether this status is the last one.
    fn is_last(&self) -> bool {
        matches!(self, Status::Finalized(_) | Status::Usurped(_) | Status::Dropped | Status::Invalid)
    }
}

impl Pool {
    pub(crate) fn new(limits: PoolLimits) -> Pool {
        Pool { limits, ..Pool::default() }
    }

    /// Adds a transaction that was validated on block `at`.
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
            self.notify(other, Status::Usurped(hash));
        }
        for other in &crowded_out {
            self.remove(other);
            self.notify(other, Status::Dropped);
        }
        let ready = entry.ready;
        self.insert(hash, entry);
        self.notify(&hash, if ready { Status::Ready } else { Status::Future });
        if !usurped.is_empty() || !crowded_out.is_empty() {
            self.update_ready();
        } else if ready {
            self.promote_after(hash);
        }
        Ok(())
    }

    /// Refuses known and banned transactions before validation.
    pub(crate) fn may_submit(&self, hash: H256) -> Result<(), Rejection> {
        if self.entries.contains_key(&hash) {
            return Err(Rejection::AlreadyThere);
        }
        if self.banned.contains(&hash) {
            return Err(Rejection::Banned);
        }
        Ok(())
    }

    /// Returns the ready transactions, in the order for a block.
    pub(crate) fn candidates(&self) -> Vec<Candidate> {
        let of = |hash: H256| Candidate { hash, bytes: self.entries[&hash].bytes.clone() };
        self.order().into_iter().map(of).collect()
    }

    /// Returns whether a ready transaction provides this tag.
    pub(crate) fn is_provided(&self, tag: &Tag) -> bool {
        self.providers.get(tag).is_some_and(|provider| self.entries[provider].ready)
    }

    /// Updates the pool for a new block, and for the candidates that it left out.
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
            self.notify(hash, Status::InBlock(block));
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
                // Revalidation finds its requirements.
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
        self.update_ready();
    }

    /// Notifies the watchers of these transactions.
    pub(crate) fn notify_all(&mut self, transactions: &[H256], status: &Status) {
        for hash in transactions {
            self.notify(hash, status.clone());
        }
    }

    /// Returns the first `count` transactions not validated since block `number`, the longest ago first.
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

    /// Stores the results of a revalidation on block `at`; `None` is invalid.
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
        self.update_ready();
    }

    /// Removes all transactions, in order of arrival. Watchers stay.
    pub(crate) fn drain(&mut self) -> Vec<Candidate> {
        self.providers.clear();
        self.waiting.clear();
        self.bytes = 0;
        let mut entries: Vec<_> = self.entries.drain().collect();
        entries.sort_unstable_by_key(|(_, entry)| entry.arrived);
        entries.into_iter().map(|(hash, entry)| Candidate { hash, bytes: entry.bytes }).collect()
    }

    /// Removes a transaction, and notifies its watcher of the reason.
    pub(crate) fn discard(&mut self, hash: &H256, why: Status) {
        self.remove(hash);
        self.notify(hash, why);
    }

    /// Bans this transaction until some hundreds of others are banned.
    pub(crate) fn ban(&mut self, hash: H256) {
        if self.banned.len() >= BANNED_MAX {
            self.banned.pop_front();
        }
        self.banned.push_back(hash);
    }

    /// Orders the ready transactions: providers first, then by priority, then by age.
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
                let left = missing.get_mut(waiter).expect("a waiting transaction misses its tag");
                *left -= 1;
                if *left == 0 {
                    let entry = &self.entries[waiter];
                    next.push((entry.priority, Reverse(entry.arrived), *waiter));
                }
            }
        }
        order
    }

    /// Updates which transactions are ready, and notifies their watchers.
    fn update_ready(&mut self) {
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
            self.notify(&hash, status);
        }
    }

    /// Marks as ready, recursively, the transactions that waited for this one.
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
                    self.notify(&waiter, Status::Ready);
                    promoted.push(waiter);
                }
            }
        }
    }

    /// Returns the transactions that a newcomer replaces.
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

    /// Returns the transactions dropped to make room for a newcomer.
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

    /// Removes a tag that the chain now provides from all requirements.
    fn provided_by_the_chain(&mut self, tag: &Tag) {
        for waiter in self.waiting.remove(tag).unwrap_or_default() {
            if let Some(entry) = self.entries.get_mut(&waiter) {
                entry.waits_for.remove(tag);
            }
        }
    }

    /// Notifies a watcher. Removes it after its last status, or if it does not read.
    fn notify(&mut self, hash: &H256, status: Status) {
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

    /// Returns a transaction of an account: it provides its nonce, and requires the previous one unless it is on the
    /// chain.
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

    fn received(statuses: &mut mpsc::Receiver<Status>) -> Vec<Status> {
        std::iter::from_fn(|| statuses.try_recv().ok()).collect()
    }

    #[test]
    fn nonces_are_ordered_regardless_of_priority() {
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
        assert_eq!(received(&mut late), [Status::Future, Status::Ready]);
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
    fn a_watcher_gets_every_status() {
        let mut pool = Pool::new(LIMITS);
        let mut statuses = watched(&mut pool, 1, signed(7, 0, 0, 1));
        pool.block(2, hash(100), &[hash(1)], vec![]);
        pool.notify_all(&[hash(1)], &Status::Retracted(hash(100)));
        pool.submit(hash(1), bytes(10), signed(7, 0, 0, 1), 1, None).unwrap();
        pool.block(2, hash(101), &[hash(1)], vec![]);
        pool.notify_all(&[hash(1)], &Status::Finalized(hash(101)));
        let expected = [
            Status::Ready,
            Status::InBlock(hash(100)),
            Status::Retracted(hash(100)),
            Status::Ready,
            Status::InBlock(hash(101)),
            Status::Finalized(hash(101)),
        ];
        assert_eq!(received(&mut statuses), expected);
        assert!(pool.watchers.is_empty());
    }

    #[test]
    fn a_watcher_that_does_not_read_is_removed() {
        let mut pool = Pool::new(LIMITS);
        let (watcher, _statuses) = mpsc::channel(1);
        pool.submit(hash(1), bytes(10), signed(7, 0, 0, 1), 1, Some(watcher)).unwrap();
        pool.block(2, hash(100), &[hash(1)], vec![]);
        assert!(pool.watchers.is_empty());
    }

    #[test]
    fn a_higher_priority_replaces_and_an_equal_one_does_not() {
        let mut pool = Pool::new(LIMITS);
        let mut first = watched(&mut pool, 1, signed(7, 0, 0, 5));
        put(&mut pool, 2, signed(7, 1, 0, 5)).unwrap();
        assert_eq!(
            put(&mut pool, 3, signed(7, 0, 0, 5)),
            Err(Rejection::PriorityTooLow { taken: 5, offered: 5 })
        );
        put(&mut pool, 4, signed(7, 0, 0, 6)).unwrap();
        assert_eq!(received(&mut first), [Status::Ready, Status::Usurped(hash(4))]);
        assert_eq!(order(&pool), [hash(4), hash(2)]);
    }

    #[test]
    fn a_transaction_is_accepted_once() {
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
    fn a_full_pool_drops_its_worst_or_refuses_the_newcomer() {
        let mut pool = Pool::new(LIMITS);
        put(&mut pool, 1, signed(1, 0, 0, 5)).unwrap();
        put(&mut pool, 2, signed(2, 0, 0, 5)).unwrap();
        let mut waiting = watched(&mut pool, 3, signed(3, 9, 0, 50));
        let mut latest = watched(&mut pool, 4, signed(4, 0, 0, 5));

        // First a waiting one, then the newest of the lowest priority.
        put(&mut pool, 5, signed(5, 0, 0, 6)).unwrap();
        assert_eq!(received(&mut waiting), [Status::Future, Status::Dropped]);
        put(&mut pool, 6, signed(6, 0, 0, 6)).unwrap();
        assert_eq!(received(&mut latest), [Status::Ready, Status::Dropped]);
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
    fn the_number_of_waiting_transactions_is_bounded() {
        let mut pool = Pool::new(LIMITS);
        put(&mut pool, 1, signed(1, 5, 0, 5)).unwrap();
        put(&mut pool, 2, signed(2, 5, 0, 5)).unwrap();
        assert_eq!(put(&mut pool, 3, signed(3, 5, 0, 5)), Err(Rejection::Full));
        put(&mut pool, 4, signed(4, 0, 0, 5)).unwrap();
    }

    #[test]
    fn an_invalid_transaction_leaves_its_dependants_waiting() {
        let mut pool = Pool::new(LIMITS);
        let mut first = watched(&mut pool, 1, signed(7, 0, 0, 1));
        let mut second = watched(&mut pool, 2, signed(7, 1, 0, 1));
        pool.revalidated(vec![(hash(1), None)], 2);
        assert_eq!(received(&mut first), [Status::Ready, Status::Invalid]);
        assert_eq!(received(&mut second), [Status::Ready, Status::Future]);
        // Revalidation finds the required tag on the chain.
        pool.revalidated(vec![(hash(2), Some(signed(7, 1, 1, 1)))], 2);
        assert_eq!(order(&pool), [hash(2)]);
    }

    #[test]
    fn a_transaction_that_did_not_fit_stays_and_one_that_never_fits_is_removed() {
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
    fn a_transaction_expires_after_its_longevity() {
        let mut pool = Pool::new(LIMITS);
        let mut statuses = watched(&mut pool, 1, signed(7, 0, 0, 1));
        pool.block(11, hash(100), &[], vec![]);
        assert_eq!(order(&pool), [hash(1)]);
        pool.block(12, hash(101), &[], vec![]);
        assert_eq!(received(&mut statuses), [Status::Ready, Status::Invalid]);
        assert!(order(&pool).is_empty());
    }

    #[test]
    fn a_transaction_that_made_the_runtime_panic_is_banned() {
        let mut pool = Pool::new(LIMITS);
        put(&mut pool, 1, signed(7, 0, 0, 1)).unwrap();
        pool.block(2, hash(100), &[], vec![(hash(1), LeftOut::Panicked("overflow".into()))]);
        assert_eq!(put(&mut pool, 1, signed(7, 0, 0, 1)), Err(Rejection::Banned));
    }

    #[test]
    fn the_longest_unvalidated_are_revalidated_first() {
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
