//! The chain of a simulated network: the real runtime over a map in memory.
//!
//! A block is built as on a node, through the functions that `impl_runtime_apis!` generates: initialise, timestamp
//! inherent, calls, finalise. It differs from a node in two points. Calls are dispatched with their signer as origin,
//! so they have no signature and no fee. A block's hash derives from the network's seed, the block's number and its
//! fork instead of its header, so every random number drawn from a block hash derives from the seed.
//!
//! Blocks are produced and finalised. While finality stalls, blocks only collect calls. The runtime executes them once
//! they are final, or earlier for a client to which the best block is shown.

use super::state::State;
use async_trait::async_trait;
use chain_client::{Amount, Balance, Call, Chain, ChainError, Draft, Head};
use codec::{Decode, Encode};
use ed25519_dalek::SigningKey;
use mettle_runtime::{
    AccountId, Header, Runtime, RuntimeCall, RuntimeOrigin, SLOT_DURATION, System, api,
    mettle_api::runtime_decl_for_mettle_api::MettleApi as _,
};
use pallet_windows::Attestations;
use protocol::{
    Block, Digest, GenesisHash, Role, RunId, Uid, Window, ensure,
    identity::Signer,
    view::{
        Account, AccountStatus, Outcome, Payslip, RunStatus, RunView, SeatStatus, SeatView, SeatWindow,
        Verdict, VoidReason, WindowSummary, WindowView,
    },
};
use sp_inherents::InherentData;
use sp_runtime::{
    ApplyExtrinsicResult, DigestItem, DispatchError, OpaqueExtrinsic,
    traits::{Dispatchable as _, Header as _},
};
use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};
use tokio::sync::{oneshot, watch};

/// The name of the error with which the runtime refused a call.
pub type Refusal = String;

/// The chain's finalised state, its head, and the calls of later blocks.
pub struct SimChain {
    finalised: Ledger,
    seed: Digest,
    /// The latest finalised block.
    head: Head,
    /// Blocks after it.
    unfinalised: VecDeque<BestBlock>,
    /// True if no block is finalised.
    is_stalled: bool,
    /// The number of reorganisations so far.
    forks: u32,
    /// Fork number of each block that is not of the first fork, by block number.
    fork_of: BTreeMap<u32, u32>,
    /// The state after the best block, if a client has requested it.
    best: Option<Ledger>,
    /// Accounts to which the best block is shown as final.
    on_best: BTreeSet<AccountId>,
    /// True if the best block is shown as final to every account.
    all_on_best: bool,
    /// Accounts that read old states, and those states.
    old: BTreeMap<AccountId, Ledger>,
    /// Accounts that do not receive the results of their calls.
    without_results: BTreeSet<AccountId>,
    /// True if the clients treat a call in the best block as final.
    trusts_inclusion: bool,
    /// One channel per subscriber, in the order of subscription: the receivers of a shared channel wake in random
    /// order.
    heads: Vec<Subscriber>,
    /// Accounts that see no new head.
    without_heads: BTreeSet<AccountId>,
    /// Accounts whose calls are dropped.
    without_calls: BTreeSet<AccountId>,
    /// Accounts whose requests the chain does not answer.
    silent: BTreeSet<AccountId>,
    /// Runtime upgrades in progress. Meanwhile all clients reconnect and the chain answers none of them.
    upgrades: u32,
    /// Calls of the next blocks, in the order of submission.
    pending: Vec<Pending>,
    /// Maximum delay of a call's inclusion, in blocks. Without a delay, calls keep the order of submission.
    waits_max: u32,
}

/// A state and its decoded views, which many nodes read.
#[derive(Clone, Default)]
struct Ledger {
    state: State,
    root: Digest,
    seats: BTreeMap<RunId, Arc<Vec<SeatView>>>,
    windows: BTreeMap<(RunId, Window), Option<Arc<WindowView>>>,
}

/// A block that is not final.
struct BestBlock {
    number: u32,
    fork: u32,
    calls: Vec<Pending>,
}

/// The channel of heads of one subscriber.
struct Subscriber {
    /// The account that signs the subscriber's calls.
    signer: Option<AccountId>,
    heads: watch::Sender<Head>,
    /// Number of blocks by which its heads trail the chain.
    lag: u32,
}

/// A call that a block included.
pub struct SealedCall {
    pub signer: AccountId,
    pub call: RuntimeCall,
    pub result: Result<(), Refusal>,
}

/// A submitted call, and the channel on which its signer awaits the result.
struct Pending {
    signer: AccountId,
    call: RuntimeCall,
    /// First block that may include the call.
    due: u32,
    /// `None` once the signer was notified.
    included: Option<oneshot::Sender<Result<Head, Refusal>>>,
}

/// Blocks after which a client resubmits a call that the chain lost, as [`chain_client`] does.
const SENT_AGAIN_BLOCKS: u32 = 3;

/// The key of `System::LastRuntimeUpgrade`.
const LAST_UPGRADE: [u8; 32] = [
    0x26, 0xaa, 0x39, 0x4e, 0xea, 0x56, 0x30, 0xe0, 0x7c, 0x48, 0xae, 0x0c, 0x95, 0x58, 0xce, 0xf7, 0xf9,
    0xcc, 0xe9, 0xc8, 0x88, 0x46, 0x9b, 0xb1, 0xa0, 0xdc, 0xea, 0xa1, 0x29, 0x67, 0x2e, 0xf8,
];

impl Ledger {
    fn read<R>(&mut self, read: impl FnOnce() -> R) -> R {
        self.state.execute_with(read)
    }

    fn seats(&mut self, run: RunId) -> Arc<Vec<SeatView>> {
        if let Some(seats) = self.seats.get(&run) {
            return seats.clone();
        }
        let seats = Arc::new(self.read(|| Runtime::seats(run)));
        self.seats.insert(run, seats.clone());
        seats
    }

    fn window(&mut self, run: RunId, window: Window) -> Option<Arc<WindowView>> {
        if let Some(view) = self.windows.get(&(run, window)) {
            return view.clone();
        }
        let view = self.read(|| Runtime::window(run, window)).map(Arc::new);
        self.windows.insert((run, window), view.clone());
        view
    }

    /// Executes a block. Returns the results of its calls.
    fn execute(
        &mut self,
        number: u32,
        parent: Digest,
        calls: Vec<(AccountId, RuntimeCall)>,
    ) -> Vec<Result<(), Refusal>> {
        (self.seats, self.windows) = (BTreeMap::new(), BTreeMap::new());
        let slot = u64::from(number);
        let digest = sp_runtime::Digest { logs: vec![DigestItem::PreRuntime(*b"aura", slot.encode())] };
        let header = Header::new(number, Default::default(), Default::default(), parent.0.into(), digest);
        let (results, state_root) = self.state.execute_with(|| {
            let _: sp_runtime::ExtrinsicInclusionMode = call("Core_initialize_block", &header.encode());
            let mut data = InherentData::new();
            let now = sp_timestamp::InherentType::from(slot * SLOT_DURATION);
            data.put_data(sp_timestamp::INHERENT_IDENTIFIER, &now).expect("the inherent data is empty");
            let inherents: Vec<OpaqueExtrinsic> = call("BlockBuilder_inherent_extrinsics", &data.encode());
            for inherent in inherents {
                let applied: ApplyExtrinsicResult = call("BlockBuilder_apply_extrinsic", &inherent.encode());
                applied.expect("the inherent is valid").expect("the inherent succeeds");
            }
            let results = calls
                .into_iter()
                .map(|(account, call)| match call.dispatch(RuntimeOrigin::signed(account)) {
                    Ok(_) => Ok(()),
                    Err(error) => Err(error_name(&error.error)),
                })
                .collect();
            let header: Header = call("BlockBuilder_finalize_block", &[]);
            (results, header.state_root)
        });
        self.root = Digest(state_root.0);
        results
    }
}

impl SimChain {
    /// The development chain at genesis. Its block hashes derive from `seed`.
    pub fn new(seed: Digest) -> SimChain {
        let head = Head { block: Block(0), hash: hash_of(&seed, 0, 0) };
        let mut chain = SimChain {
            finalised: Ledger::default(),
            seed,
            head,
            unfinalised: VecDeque::new(),
            is_stalled: false,
            forks: 0,
            fork_of: BTreeMap::new(),
            best: None,
            on_best: BTreeSet::new(),
            all_on_best: false,
            old: BTreeMap::new(),
            without_results: BTreeSet::new(),
            trusts_inclusion: false,
            heads: Vec::new(),
            without_heads: BTreeSet::new(),
            without_calls: BTreeSet::new(),
            silent: BTreeSet::new(),
            upgrades: 0,
            pending: Vec::new(),
            waits_max: 0,
        };
        chain.finalised.read(|| {
            let mut genesis = preset(None);
            overlay(&mut genesis, preset(Some("development")));
            let genesis = serde_json::to_vec(&genesis).expect("a JSON value can be written");
            let built: Result<(), String> = call("GenesisBuilder_build_state", &genesis.encode());
            built.expect("the runtime accepts its own preset");
        });
        chain
    }

    /// The latest finalised block.
    pub fn head(&self) -> Head {
        self.head
    }

    /// The number of the best block.
    pub fn best(&self) -> Block {
        Block(self.unfinalised.back().map_or(self.head.block.0, |block| block.number))
    }

    fn hash_of(&self, number: u32) -> Digest {
        hash_of(&self.seed, number, self.fork_of.get(&number).copied().unwrap_or_default())
    }

    pub fn genesis(&self) -> GenesisHash {
        GenesisHash(hash_of(&self.seed, 0, 0).0)
    }

    /// Returns the call that registers a seat of `coldkey`, at any price, with the hotkey's consent.
    ///
    /// # Panics
    /// If `endpoint` has more than 256 bytes.
    pub fn registration(
        &self,
        coldkey: AccountId,
        hotkey: &SigningKey,
        run: RunId,
        role: Role,
        endpoint: &str,
        stake: u128,
    ) -> (AccountId, RuntimeCall) {
        let signer = Signer::new(hotkey.clone(), self.genesis());
        let call = pallet_registry::Call::register {
            run,
            role,
            hotkey: AccountId::from(signer.hotkey().0),
            endpoint: endpoint.as_bytes().to_vec().try_into().expect("these URLs are short"),
            stake,
            price_max: u128::MAX,
            proof: signer.prove_possession(run, coldkey.as_ref()),
        };
        (coldkey, call.into())
    }

    /// The state root after the latest block.
    pub fn state_root(&self) -> Digest {
        self.finalised.root
    }

    /// Builds a final block of these calls, each signed by its account. Returns their results in the same order.
    pub fn block(&mut self, calls: Vec<(AccountId, RuntimeCall)>) -> Vec<Result<(), Refusal>> {
        let number = self.head.block.0 + 1;
        let results = self.finalised.execute(number, self.head.hash, calls);
        self.head = Head { block: Block(number), hash: self.hash_of(number) };
        self.tell_heads();
        results
    }

    /// Sends each subscriber the head that it sees.
    fn tell_heads(&mut self) {
        let (head, best) = (self.head, self.best());
        let mut subscribers = std::mem::take(&mut self.heads);
        subscribers.retain(|subscriber| {
            let is_in = |accounts: &BTreeSet<AccountId>| {
                subscriber.signer.as_ref().is_some_and(|signer| accounts.contains(signer))
            };
            let latest = if self.is_on_best(subscriber.signer.as_ref()) { best } else { head.block };
            let seen = latest.0.saturating_sub(subscriber.lag);
            let is_cut = 0 < self.upgrades || is_in(&self.without_heads) || is_in(&self.silent);
            if !is_cut && subscriber.heads.borrow().block.0 < seen {
                subscriber.heads.send_replace(Head { block: Block(seen), hash: self.hash_of(seen) });
            }
            !subscriber.heads.is_closed()
        });
        self.heads = subscribers;
    }

    /// Builds a block of the pending calls. It is final with [`SimChain::finalise`].
    pub fn produce(&mut self) {
        let next = self.best().0.saturating_add(1);
        let (mut due, later): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.pending).into_iter().partition(|pending| pending.due <= next);
        self.pending = later;
        if 0 < self.waits_max {
            self.shuffle(&mut due, next);
        }
        let fork = self.forks;
        if 0 < fork {
            self.fork_of.insert(next, fork);
        }
        if self.trusts_inclusion && self.is_stalled {
            let block = Head { block: Block(next), hash: self.hash_of(next) };
            for included in due.iter_mut().filter_map(|pending| pending.included.take()) {
                // The signer may have stopped.
                let _ = included.send(Ok(block));
            }
        }
        self.unfinalised.push_back(BestBlock { number: next, fork, calls: due });
        self.best = None;
        if self.is_stalled {
            self.tell_heads();
        }
    }

    /// Puts calls into an order drawn from the seed.
    fn shuffle(&self, calls: &mut [Pending], block: u32) {
        let mut place = 0u32;
        calls.sort_by_cached_key(|_| {
            place += 1;
            Digest::of_parts(&[&self.seed.0, b"place", &block.to_le_bytes(), &place.to_le_bytes()])
        });
    }

    /// Returns whether [`SimChain::finalise`] can finalise a block.
    pub fn can_finalise(&self) -> bool {
        !self.is_stalled && !self.unfinalised.is_empty()
    }

    /// Finalises the block after the head and sends the results of its calls to the signers. Returns the calls with
    /// their results; `None` if there is no such block, or finality stalls.
    pub fn finalise(&mut self) -> Option<Vec<SealedCall>> {
        let BestBlock { calls: due, .. } = self.unfinalised.pop_front_if(|_| !self.is_stalled)?;
        self.best = None;
        let calls = due.iter().map(|pending| (pending.signer.clone(), pending.call.clone())).collect();
        let results = self.block(calls);
        let block = self.head;
        let mut sealed = Vec::with_capacity(due.len());
        for (Pending { signer, call, included, .. }, result) in due.into_iter().zip(results) {
            if let Some(included) = included {
                // The signer may have stopped.
                let _ = included.send(result.clone().map(|()| block));
            }
            sealed.push(SealedCall { signer, call, result });
        }
        Some(sealed)
    }

    /// Builds a block of the pending calls, and finalises it unless finality stalls.
    pub fn seal(&mut self) {
        self.produce();
        while self.finalise().is_some() {}
    }

    /// Stalls finality, or lets it catch up with the best block.
    pub fn stall(&mut self, is_stalled: bool) {
        self.is_stalled = is_stalled;
    }

    /// Replaces all blocks that are not final by the same number of other blocks. A call of a replaced block moves to
    /// the new block of the same number or returns to the pool, as the seed draws. If calls `are_lost`, their clients
    /// submit them again some blocks later.
    pub fn reorganise(&mut self, are_lost: bool) {
        if self.unfinalised.is_empty() {
            return;
        }
        self.forks += 1;
        self.best = None;
        let (fork, best, seed) = (self.forks, self.best(), self.seed);
        for mut block in std::mem::take(&mut self.unfinalised) {
            block.fork = fork;
            self.fork_of.insert(block.number, fork);
            let mut calls = std::mem::take(&mut block.calls);
            self.shuffle(&mut calls, block.number);
            for mut pending in calls {
                let drawn = [&seed.0[..], b"fork", &fork.to_le_bytes(), pending.signer.as_ref()];
                let stays = Digest::of_parts(&drawn).0[0] < 128;
                if stays {
                    block.calls.push(pending);
                } else if !are_lost || pending.included.is_some() {
                    // A client that knows the result of its call does not resubmit it.
                    let later = if are_lost { SENT_AGAIN_BLOCKS } else { 1 };
                    pending.due = best.0.saturating_add(later);
                    self.pending.push(pending);
                }
            }
            self.unfinalised.push_back(block);
        }
    }

    /// Starts or stops showing the best block as final to `account`.
    pub fn show_best(&mut self, account: AccountId, is_shown: bool) {
        match is_shown {
            true => self.on_best.insert(account),
            false => self.on_best.remove(&account),
        };
    }

    /// For a planted error: every client follows the best block.
    pub(super) fn show_best_to_all(&mut self) {
        self.all_on_best = true;
    }

    /// For a planted error: clients treat a call in the best block as final.
    pub(super) fn trust_inclusion(&mut self) {
        self.trusts_inclusion = true;
    }

    fn is_on_best(&self, account: Option<&AccountId>) -> bool {
        account.is_some_and(|account| self.all_on_best || self.on_best.contains(account))
    }

    /// Pins the state that `account` reads to the current one, or to the latest again.
    pub fn hold_back(&mut self, account: AccountId, is_held: bool) {
        match is_held {
            true => self.old.insert(account, self.finalised.clone()),
            false => self.old.remove(&account),
        };
    }

    /// Withholds the results of its calls from `account`, or delivers them again.
    pub fn keep_results(&mut self, account: AccountId, are_kept: bool) {
        match are_kept {
            true => self.without_results.insert(account),
            false => self.without_results.remove(&account),
        };
    }

    /// Returns the state that `account` reads.
    fn ledger(&mut self, account: Option<&AccountId>) -> &mut Ledger {
        if self.is_on_best(account) && !self.unfinalised.is_empty() {
            if self.best.is_none() {
                let mut best = self.finalised.clone();
                let mut parent = self.head.hash;
                for block in &self.unfinalised {
                    let calls =
                        block.calls.iter().map(|pending| (pending.signer.clone(), pending.call.clone()));
                    best.execute(block.number, parent, calls.collect());
                    parent = hash_of(&self.seed, block.number, block.fork);
                }
                self.best = Some(best);
            }
            return self.best.as_mut().expect("it was just made");
        }
        match account {
            Some(account) if self.old.contains_key(account) => {
                self.old.get_mut(account).expect("it is there")
            }
            _ => &mut self.finalised,
        }
    }

    /// Delays the inclusion of each call by up to this many blocks, in an order drawn from the seed.
    pub fn delay_calls(&mut self, waits_max: u32) {
        self.waits_max = waits_max;
    }

    /// Shows heads to the clients that sign as `account` this many blocks late.
    pub fn lag(&mut self, account: &AccountId, blocks: u32) {
        let of = |subscriber: &&mut Subscriber| subscriber.signer.as_ref() == Some(account);
        self.heads.iter_mut().filter(of).for_each(|subscriber| subscriber.lag = blocks);
    }

    /// Adds a call to the next block, or to a later one if calls are delayed.
    pub(super) fn submit(
        &mut self,
        signer: AccountId,
        call: RuntimeCall,
    ) -> oneshot::Receiver<Result<Head, Refusal>> {
        let (included, sealed) = oneshot::channel();
        let next = self.best().0.saturating_add(1);
        let drawn = Digest::of_parts(&[&self.seed.0, b"wait", signer.as_ref(), &call.encode()]);
        let waits = u32::from(drawn.0[0]) % self.waits_max.saturating_add(1);
        self.pending.push(Pending {
            signer,
            call,
            due: next.saturating_add(waits),
            included: Some(included),
        });
        sealed
    }

    /// Disconnects accounts from heads, or their calls from the chain, and connects all others from the next block on.
    pub fn cut_off(&mut self, without_heads: BTreeSet<AccountId>, without_calls: BTreeSet<AccountId>) {
        (self.without_heads, self.without_calls) = (without_heads, without_calls);
    }

    /// Stops or resumes answering requests of `account` and notifying it of heads.
    pub fn silence(&mut self, account: AccountId, is_silent: bool) {
        match is_silent {
            true => self.silent.insert(account),
            false => self.silent.remove(&account),
        };
    }

    /// Upgrades the runtime: the next block that becomes final runs its migrations. A call in the pool was signed for
    /// the former runtime, so it is lost until its client resubmits it. The chain answers no client until
    /// [`SimChain::upgraded`].
    pub fn upgrade(&mut self) {
        let again = self.best().0.saturating_add(SENT_AGAIN_BLOCKS);
        self.pending.iter_mut().for_each(|pending| pending.due = pending.due.max(again));
        // Without a record of the last upgrade, the runtime runs its migrations.
        self.change(|| {
            sp_externalities::with_externalities(|state| state.place_storage(LAST_UPGRADE.to_vec(), None));
        });
        self.best = None;
        self.upgrades += 1;
    }

    /// Ends an upgrade: the clients have read the new runtime's metadata.
    pub fn upgraded(&mut self) {
        self.upgrades = self.upgrades.saturating_sub(1);
    }

    fn is_silent(&self, account: &AccountId) -> bool {
        0 < self.upgrades || self.silent.contains(account)
    }

    /// Subscribes to finalised heads as a client that signs as `signer`.
    pub fn subscribe(&mut self, signer: Option<AccountId>) -> watch::Receiver<Head> {
        let (heads, receiver) = watch::channel(self.head);
        self.heads.push(Subscriber { signer, heads, lag: 0 });
        receiver
    }

    /// Builds empty blocks up to `block`.
    pub fn advance_to(&mut self, block: Block) {
        while self.head.block < block {
            self.block(Vec::new());
        }
    }

    /// Returns the window as of the latest finalised block. A view of a thousand seats is large, so it is not copied.
    pub fn window(&mut self, run: RunId, window: Window) -> Option<Arc<WindowView>> {
        self.finalised.window(run, window)
    }

    /// Runs `read` on the state of the latest finalised block.
    pub fn read<R>(&mut self, read: impl FnOnce() -> R) -> R {
        self.finalised.read(read)
    }

    /// Changes the state of the latest finalised block.
    pub(super) fn change(&mut self, change: impl FnOnce()) {
        self.finalised.read(change);
        (self.finalised.seats, self.finalised.windows) = (BTreeMap::new(), BTreeMap::new());
    }
}

/// Returns the hash of block `number` of a fork.
fn hash_of(seed: &Digest, number: u32, fork: u32) -> Digest {
    match fork {
        0 => Digest::of_parts(&[&seed.0, b"block", &number.to_le_bytes()]),
        _ => Digest::of_parts(&[&seed.0, b"fork", &fork.to_le_bytes(), &number.to_le_bytes()]),
    }
}

fn error_name(error: &DispatchError) -> Refusal {
    match error {
        DispatchError::Module(error) => error.message.unwrap_or("unnamed error").to_owned(),
        other => format!("{other:?}"),
    }
}

/// Calls a function of the runtime on the current externalities.
fn call<T: Decode>(method: &str, args: &[u8]) -> T {
    let answer = api::dispatch(method, args).expect("the runtime has this function");
    T::decode(&mut answer.as_slice()).expect("the caller decodes the declared type")
}

fn preset(name: Option<&str>) -> serde_json::Value {
    let name = name.map(str::to_owned);
    let text: Option<Vec<u8>> = call("GenesisBuilder_get_preset", &name.encode());
    let text = text.expect("the runtime has a default genesis and a development preset");
    serde_json::from_slice(&text).expect("a preset is JSON")
}

/// Merges `patch` into `base`: objects recursively; any other value replaces the old one.
fn overlay(base: &mut serde_json::Value, patch: serde_json::Value) {
    match (base, patch) {
        (serde_json::Value::Object(base), serde_json::Value::Object(patch)) => {
            for (key, value) in patch {
                overlay(base.entry(key).or_insert(serde_json::Value::Null), value);
            }
        }
        (base, patch) => *base = patch,
    }
}

/// One node's handle on the chain of its network.
#[derive(Clone)]
pub struct SharedChain {
    chain: Arc<Mutex<SimChain>>,
    heads: watch::Receiver<Head>,
    signer: Option<AccountId>,
    sealing: Sealing,
    bytes_read: Arc<AtomicU64>,
    /// Requests so far whose answers were delayed.
    requests: Arc<AtomicU64>,
    /// Maximum latency of an answer.
    latency_max: Duration,
    /// First window that is shown as void, with the lineage that follows from that.
    lies_from: Option<Window>,
}

/// Timeout after which a client gives up, which ends its node. The programs' clients wait two minutes.
const PATIENCE: Duration = Duration::from_secs(30);

/// Time at which a submitted call is included in a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sealing {
    /// Immediately, in its own block.
    Instant,
    /// With the next [`SimChain::seal`].
    Manual,
}

impl SharedChain {
    pub fn new(mut chain: SimChain, sealing: Sealing) -> SharedChain {
        let heads = chain.subscribe(None);
        SharedChain {
            chain: Arc::new(Mutex::new(chain)),
            heads,
            signer: None,
            sealing,
            bytes_read: Arc::default(),
            requests: Arc::default(),
            latency_max: Duration::ZERO,
            lies_from: None,
        }
    }

    /// Returns the handle of a node that signs as `account`.
    pub fn signed_by(&self, account: AccountId) -> SharedChain {
        let heads = self.lock().subscribe(Some(account.clone()));
        SharedChain {
            heads,
            signer: Some(account),
            bytes_read: Arc::default(),
            requests: Arc::default(),
            ..self.clone()
        }
    }

    pub fn lock(&self) -> MutexGuard<'_, SimChain> {
        // A panic while the lock is held ends the whole simulation.
        self.chain.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Number of encoded bytes that this handle's owner has read.
    pub fn bytes_read(&self) -> u64 {
        self.bytes_read.load(Ordering::Relaxed)
    }

    /// Delays each answer by a random time of at most `latency_max`. By default no request waits.
    pub fn with_latency(self, latency_max: Duration) -> SharedChain {
        SharedChain { latency_max, ..self }
    }

    /// Shows windows from `from` on as void, for tests of the detection of a wrong chain.
    pub fn that_lies_about(self, from: Window) -> SharedChain {
        SharedChain { lies_from: Some(from), ..self }
    }

    /// Waits for the latency of this request.
    async fn answer_time(&self) -> Result<(), ChainError> {
        let mut waited = Duration::ZERO;
        while self.signer.as_ref().is_some_and(|signer| self.lock().is_silent(signer)) {
            ensure!(waited < PATIENCE, self.unreachable(waited));
            let pause = Duration::from_millis(SLOT_DURATION);
            tokio::time::sleep(pause).await;
            waited += pause;
        }
        if !self.latency_max.is_zero() {
            let number = self.requests.fetch_add(1, Ordering::Relaxed).to_le_bytes();
            let signer: &[u8] = self.signer.as_ref().map_or(&[], |signer| signer.as_ref());
            let drawn = Digest::of_parts(&[signer, &number]);
            tokio::time::sleep(self.latency_max.mul_f64(f64::from(drawn.0[0]) / 255.0)).await;
        }
        Ok(())
    }

    fn unreachable(&self, waited: Duration) -> ChainError {
        let (url, last) = ("the simulation".into(), "no answer".into());
        ChainError::Unreachable { doing: "asking the chain".into(), url, waited, last, sent: false }
    }

    /// Reads from the current externalities as the owner.
    async fn asked<T: Encode>(&self, read: impl FnOnce() -> T) -> Result<T, ChainError> {
        self.asked_of(|ledger| ledger.read(read)).await
    }

    /// Reads from the views of the owner's state.
    async fn asked_of<T: Encode>(&self, read: impl FnOnce(&mut Ledger) -> T) -> Result<T, ChainError> {
        self.answer_time().await?;
        let answer = read(self.lock().ledger(self.signer.as_ref()));
        self.bytes_read.fetch_add(answer.encoded_size() as u64, Ordering::Relaxed);
        Ok(answer)
    }

    pub fn window_now(&self, run: RunId, window: Window) -> Option<WindowView> {
        self.lock().window(run, window).map(|view| (*view).clone())
    }

    pub fn seats_now(&self, run: RunId) -> Vec<SeatView> {
        (*self.lock().finalised.seats(run)).clone()
    }

    pub fn run_now(&self, run: RunId) -> Option<RunView> {
        self.lock().read(|| Runtime::run(run))
    }

    pub fn payslips_now(&self, run: RunId, uid: Uid) -> Vec<Payslip> {
        self.lock().read(|| Runtime::payslips(run, uid))
    }
}

#[async_trait]
impl Chain for SharedChain {
    fn genesis(&self) -> GenesisHash {
        self.lock().genesis()
    }

    fn is_development(&self) -> bool {
        true
    }

    fn heads(&self) -> watch::Receiver<Head> {
        self.heads.clone()
    }

    async fn best_block(&self) -> Result<Block, ChainError> {
        Ok(self.lock().best())
    }

    fn account(&self) -> Option<Account> {
        None
    }

    async fn runs(&self) -> Result<Vec<RunId>, ChainError> {
        self.asked(Runtime::runs).await
    }

    async fn run(&self, run: RunId) -> Result<RunView, ChainError> {
        self.asked(|| Runtime::run(run)).await?.ok_or(ChainError::NoSuchRun(run))
    }

    async fn seats(&self, run: RunId) -> Result<Vec<SeatView>, ChainError> {
        self.asked_of(|ledger| (*ledger.seats(run)).clone()).await
    }

    async fn window(&self, run: RunId, window: Window) -> Result<Option<WindowView>, ChainError> {
        self.asked_of(|ledger| ledger.window(run, window).map(|view| (*view).clone())).await
    }

    async fn seat(&self, run: RunId, uid: Uid) -> Result<Option<SeatView>, ChainError> {
        self.asked_of(|ledger| {
            let seats = ledger.seats(run);
            let at = seats.binary_search_by_key(&uid, |seat| seat.id.uid).ok()?;
            Some(seats[at].clone())
        })
        .await
    }

    async fn window_summary(&self, run: RunId, window: Window) -> Result<Option<WindowSummary>, ChainError> {
        let summary =
            |window| self.asked_of(move |ledger| ledger.window(run, window).map(|view| view.summary()));
        let truth = summary(window).await?;
        let Some(from) = self.lies_from.filter(|from| *from <= window) else { return Ok(truth) };
        let first = summary(from).await?;
        let void = |truth: WindowSummary| WindowSummary {
            lineage: first.map_or(truth.lineage, |first| first.lineage),
            outcome: truth.outcome.map(|_| Outcome::Void(VoidReason::NoAgreement)),
            ..truth
        };
        Ok(truth.map(void))
    }

    async fn seat_window(
        &self,
        run: RunId,
        window: Window,
        uid: Uid,
    ) -> Result<Option<SeatWindow>, ChainError> {
        self.asked_of(|ledger| ledger.window(run, window).map(|view| view.of_seat(uid))).await
    }

    async fn update_mirrors(
        &self,
        run: RunId,
        window: Window,
        turn: u32,
        limit: u32,
    ) -> Result<Vec<String>, ChainError> {
        self.asked(|| Runtime::update_mirrors(run, window, turn, limit)).await
    }

    async fn attestation(
        &self,
        run: RunId,
        window: Window,
        validator: Uid,
    ) -> Result<Option<Vec<(Uid, Verdict)>>, ChainError> {
        let stored = || Attestations::<Runtime>::try_get((run, window), validator).ok();
        Ok(self.asked(stored).await?.map(Into::into))
    }

    async fn weights(&self, run: RunId) -> Result<Vec<(Uid, u16)>, ChainError> {
        self.asked(|| Runtime::weights(run)).await
    }

    async fn balance(&self, account: &Account) -> Result<Balance, ChainError> {
        let data = self.lock().read(|| System::account(AccountId::from(*account))).data;
        Ok(Balance { free: Amount(data.free), held: Amount(data.reserved) })
    }

    async fn status(&self, run: RunId) -> Result<RunStatus, ChainError> {
        self.asked(|| Runtime::run_status(run)).await?.ok_or(ChainError::NoSuchRun(run))
    }

    async fn seat_statuses(&self, run: RunId, from: Uid, limit: u32) -> Result<Vec<SeatStatus>, ChainError> {
        self.asked(|| Runtime::seat_statuses(run, from, limit)).await
    }

    async fn account_status(&self, run: RunId, account: &Account) -> Result<AccountStatus, ChainError> {
        self.asked(|| Runtime::account_status(run, *account)).await
    }

    async fn payslips(&self, run: RunId, uid: Uid) -> Result<Vec<Payslip>, ChainError> {
        self.asked(|| Runtime::payslips(run, uid)).await
    }

    async fn bonds(&self, run: RunId, validator: Uid) -> Result<Vec<(Uid, u32)>, ChainError> {
        self.asked(|| Runtime::consensus_bonds(run, validator)).await
    }

    async fn block_time(&self) -> Result<Duration, ChainError> {
        Ok(Duration::from_millis(SLOT_DURATION))
    }

    /// Always returns an error: calls of the simulation have no fee.
    async fn draft(&self, call: &Call, _from: &Account) -> Result<Draft, ChainError> {
        Err(ChainError::NoSigner { doing: format!("{call:?}") })
    }

    async fn submit(&self, call: Call) -> Result<Head, ChainError> {
        let doing = format!("{call:?}");
        let Some(signer) = self.signer.clone() else { return Err(ChainError::NoSigner { doing }) };
        let (pallet, call) = runtime_call(call).ok_or_else(|| ChainError::Invalid {
            doing: doing.clone(),
            reason: "the simulation supports only the calls of nodes and votes to go back".into(),
        })?;
        // A client submits its call once it is connected to the chain again.
        let mut heads = self.heads.clone();
        while self.lock().without_calls.contains(&signer) {
            heads.changed().await.map_err(|_| ChainError::Stopped { part: "block producer" })?;
        }
        self.answer_time().await?;
        let sealed = {
            let mut chain = self.lock();
            let sealed = chain.submit(signer, call);
            if self.sealing == Sealing::Instant {
                chain.seal();
            }
            sealed
        };
        let result = sealed.await.map_err(|_| ChainError::Stopped { part: "block producer" })?;
        let mut waited = Duration::ZERO;
        while self.signer.as_ref().is_some_and(|signer| self.lock().without_results.contains(signer)) {
            ensure!(waited < PATIENCE, ChainError::TimedOut { doing, waited, sent: true });
            let pause = Duration::from_millis(SLOT_DURATION);
            tokio::time::sleep(pause).await;
            waited += pause;
        }
        result.map_err(|error| ChainError::Refused {
            doing,
            pallet: pallet.into(),
            error,
            docs: String::new(),
        })
    }
}

/// Returns the runtime's form of a call and its pallet's name; `None` for a call that a node does not send in a
/// window.
fn runtime_call(call: Call) -> Option<(&'static str, RuntimeCall)> {
    let windows = |call: pallet_windows::Call<Runtime>| ("Windows", RuntimeCall::from(call));
    let weights = |call: pallet_weights::Call<Runtime>| ("Weights", RuntimeCall::from(call));
    Some(match call {
        Call::Commit { run, window, digest } => windows(pallet_windows::Call::commit { run, window, digest }),
        Call::Attest { run, window, verdicts, next_salt } => {
            let verdicts = verdicts.try_into().ok()?;
            windows(pallet_windows::Call::attest { run, window, verdicts, next_salt })
        }
        Call::AttestHidden { run, window, hash, next_salt } => {
            windows(pallet_windows::Call::attest_hidden { run, window, hash, next_salt })
        }
        Call::RevealAttestation { run, window, verdicts, salt } => {
            let verdicts = verdicts.try_into().ok()?;
            windows(pallet_windows::Call::reveal_attestation { run, window, verdicts, salt })
        }
        Call::VoteHidden { run, window, hash } => {
            windows(pallet_windows::Call::vote_hidden { run, window, hash })
        }
        Call::RevealVote { run, window, vote, salt } => {
            windows(pallet_windows::Call::reveal_vote { run, window, vote, salt })
        }
        Call::Vote { run, window, vote } => windows(pallet_windows::Call::vote { run, window, vote }),
        Call::VoteRewind { run, uid, to } => windows(pallet_windows::Call::vote_rewind { run, uid, to }),
        Call::AnchorReceipts { run, window, digest, probes } => {
            windows(pallet_windows::Call::anchor_receipts { run, window, digest, probes })
        }
        Call::CommitWeights { run, epoch, hash } => {
            weights(pallet_weights::Call::commit { run, epoch, hash })
        }
        Call::RevealWeights { run, epoch, weights: vote, salt } => {
            weights(pallet_weights::Call::reveal { run, epoch, weights: vote.try_into().ok()?, salt })
        }
        Call::AnswerProbes { run, epoch, answers } => {
            let answers =
                answers.into_iter().map(|answer| answer.map(pallet_weights::Answer::try_from).transpose());
            let answers = answers.collect::<Result<Vec<_>, _>>().ok()?.try_into().ok()?;
            weights(pallet_weights::Call::answer_probes { run, epoch, answers })
        }
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_upgrade_runs_the_migrations_and_loses_the_pool_for_three_blocks() {
        let mut chain = SimChain::new(Digest([1; 32]));
        let version = |chain: &mut SimChain| chain.read(System::last_runtime_upgrade_spec_version);
        chain.seal();
        let present = version(&mut chain);
        assert!(0 < present);
        let call = pallet_windows::Call::commit { run: RunId(0), window: Window(0), digest: Digest([2; 32]) };
        let mut result = chain.submit(AccountId::from([3; 32]), call.into());
        chain.upgrade();
        assert_eq!(version(&mut chain), 0);
        assert!(chain.is_silent(&AccountId::from([3; 32])));
        chain.seal();
        assert_eq!(version(&mut chain), present, "the runtime was not upgraded");
        chain.upgraded();
        assert!(!chain.is_silent(&AccountId::from([3; 32])));
        chain.seal();
        assert!(result.try_recv().is_err(), "signed for the former runtime");
        chain.seal();
        assert!(result.try_recv().is_ok());
    }
}
