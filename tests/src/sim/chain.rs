//! The chain of a simulated network: the real runtime over a map in memory.
//!
//! A block is what it is on a node: initialised, the timestamp's inherent, calls, finalised, by the functions that `impl_runtime_apis!` makes
//! for native code. Two things are simpler. Calls are dispatched in their signer's name, so they have no signature and no fee. And a block
//! is named by the network's seed and its number instead of by its header, so that all that is drawn by hashes of blocks follows from the seed.

use async_trait::async_trait;
use chain_client::{Amount, Balance, Call, Chain, ChainError, Draft, Head};
use codec::{Decode, Encode};
use mettle_runtime::{
    AccountId, Header, Runtime, RuntimeCall, RuntimeOrigin, SLOT_DURATION, System, api,
    mettle_api::runtime_decl_for_mettle_api::MettleApi as _,
};
use protocol::{
    Block, Digest, RunId, Uid, Window,
    view::{Account, AccountStatus, Payslip, RunStatus, RunView, SeatStatus, SeatView, WindowView},
};
use sp_inherents::InherentData;
use sp_runtime::{
    ApplyExtrinsicResult, DigestItem, DispatchError, OpaqueExtrinsic,
    traits::{Dispatchable as _, Header as _},
};
use sp_state_machine::BasicExternalities;
use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::sync::{oneshot, watch};

/// Why the runtime refused a call: the name of its error.
pub type Refusal = String;

/// The chain, and how its blocks are made.
pub struct SimChain {
    state: BasicExternalities,
    seed: Digest,
    head: Head,
    /// After the latest block.
    state_root: Digest,
    /// One channel per subscriber, in the order of their subscriptions: the waiters of one channel wake in random order.
    heads: Vec<watch::Sender<Head>>,
    /// Calls for the next block, in the order they were submitted.
    pending: Vec<Pending>,
}

/// A submitted call, and the channel on which its signer waits.
struct Pending {
    signer: AccountId,
    call: RuntimeCall,
    included: oneshot::Sender<Result<Head, Refusal>>,
}

impl SimChain {
    /// The development chain before its first block. `seed` names its blocks.
    pub fn new(seed: Digest) -> SimChain {
        let head = Head { block: Block(0), hash: hash_of(&seed, 0) };
        let mut chain = SimChain {
            state: BasicExternalities::new_empty(),
            seed,
            head,
            state_root: Digest::default(),
            heads: Vec::new(),
            pending: Vec::new(),
        };
        chain.state.execute_with(|| {
            let mut genesis = preset(None);
            overlay(&mut genesis, preset(Some("development")));
            let genesis = serde_json::to_vec(&genesis).expect("a JSON value has a text");
            let built: Result<(), String> = call("GenesisBuilder_build_state", &genesis.encode());
            built.expect("the runtime's own preset is a genesis");
        });
        chain
    }

    pub fn head(&self) -> Head {
        self.head
    }

    /// The root of everything that the chain stores.
    pub fn state_root(&self) -> Digest {
        self.state_root
    }

    /// Makes a block of these calls, each in the name of its account. What became of each, in their order.
    pub fn block(&mut self, calls: Vec<(AccountId, RuntimeCall)>) -> Vec<Result<(), Refusal>> {
        let number = self.head.block.0 + 1;
        let slot = u64::from(number);
        let digest = sp_runtime::Digest { logs: vec![DigestItem::PreRuntime(*b"aura", slot.encode())] };
        let parent = self.head.hash.0.into();
        let header = Header::new(number, Default::default(), Default::default(), parent, digest);
        let (results, state_root) = self.state.execute_with(|| {
            let _: sp_runtime::ExtrinsicInclusionMode = call("Core_initialize_block", &header.encode());
            let mut data = InherentData::new();
            let now = sp_timestamp::InherentType::from(slot * SLOT_DURATION);
            data.put_data(sp_timestamp::INHERENT_IDENTIFIER, &now).expect("there is nothing else in it");
            let inherents: Vec<OpaqueExtrinsic> = call("BlockBuilder_inherent_extrinsics", &data.encode());
            for inherent in inherents {
                let applied: ApplyExtrinsicResult = call("BlockBuilder_apply_extrinsic", &inherent.encode());
                applied.expect("inherents are valid").expect("and do not fail");
            }
            let results = calls
                .into_iter()
                .map(|(account, call)| match call.dispatch(RuntimeOrigin::signed(account)) {
                    Ok(_) => Ok(()),
                    Err(error) => Err(name_of(&error.error)),
                })
                .collect();
            let header: Header = call("BlockBuilder_finalize_block", &[]);
            (results, header.state_root)
        });
        self.state_root = Digest(state_root.0);
        self.head = Head { block: Block(number), hash: hash_of(&self.seed, number) };
        self.heads.retain(|heads| heads.send(self.head).is_ok());
        results
    }

    /// Makes a block of the calls that were submitted since the last one, and tells their signers.
    pub fn seal(&mut self) {
        let (calls, signers): (Vec<_>, Vec<_>) = std::mem::take(&mut self.pending)
            .into_iter()
            .map(|Pending { signer, call, included }| ((signer, call), included))
            .unzip();
        let results = self.block(calls);
        let block = self.head;
        for (included, result) in signers.into_iter().zip(results) {
            // A signer that has stopped hears nothing.
            let _ = included.send(result.map(|()| block));
        }
    }

    /// The finalised heads from now on.
    pub fn subscribe(&mut self) -> watch::Receiver<Head> {
        let (sender, receiver) = watch::channel(self.head);
        self.heads.push(sender);
        receiver
    }

    /// Makes empty blocks up to `block`.
    pub fn go_to(&mut self, block: Block) {
        while self.head.block < block {
            self.block(Vec::new());
        }
    }

    /// Asks the runtime something.
    pub fn read<R>(&mut self, read: impl FnOnce() -> R) -> R {
        self.state.execute_with(read)
    }
}

/// The name of block `number`. Any hash would do: nothing else is in it.
fn hash_of(seed: &Digest, number: u32) -> Digest {
    Digest::of_parts(&[&seed.0, b"block", &number.to_le_bytes()])
}

fn name_of(error: &DispatchError) -> Refusal {
    match error {
        DispatchError::Module(error) => error.message.unwrap_or("without a name").to_owned(),
        other => format!("{other:?}"),
    }
}

/// A function of the runtime, over the state that is set.
fn call<T: Decode>(method: &str, args: &[u8]) -> T {
    let answer = api::dispatch(method, args).expect("the runtime has these functions");
    T::decode(&mut answer.as_slice()).expect("the runtime answers in the types it declares")
}

fn preset(name: Option<&str>) -> serde_json::Value {
    let name = name.map(str::to_owned);
    let text: Option<Vec<u8>> = call("GenesisBuilder_get_preset", &name.encode());
    let text = text.expect("the runtime has a default genesis and a development preset");
    serde_json::from_slice(&text).expect("a preset is JSON")
}

/// Lays one JSON value over another: objects are merged, everything else is replaced.
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

/// The chain as the roles of one network share it.
#[derive(Clone)]
pub struct SharedChain {
    chain: Arc<Mutex<SimChain>>,
    heads: watch::Receiver<Head>,
    signer: Option<AccountId>,
    sealing: Sealing,
}

/// When a submitted call gets into a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sealing {
    /// At once, in a block of its own.
    AtOnce,
    /// With the next [`SimChain::seal`].
    Later,
}

impl SharedChain {
    pub fn new(mut chain: SimChain, sealing: Sealing) -> SharedChain {
        let heads = chain.subscribe();
        SharedChain { chain: Arc::new(Mutex::new(chain)), heads, signer: None, sealing }
    }

    /// The same chain for a node that signs as `account`.
    pub fn signed_by(&self, account: AccountId) -> SharedChain {
        SharedChain { heads: self.lock().subscribe(), signer: Some(account), ..self.clone() }
    }

    pub fn lock(&self) -> MutexGuard<'_, SimChain> {
        // A holder that panicked has ended the whole simulation.
        self.chain.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn window_now(&self, run: RunId, window: Window) -> Option<WindowView> {
        self.lock().read(|| Runtime::window(run, window))
    }

    pub fn seats_now(&self, run: RunId) -> Vec<SeatView> {
        self.lock().read(|| Runtime::seats(run))
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
    fn heads(&self) -> watch::Receiver<Head> {
        self.heads.clone()
    }

    async fn best_block(&self) -> Result<Block, ChainError> {
        Ok(self.lock().head.block)
    }

    fn account(&self) -> Option<Account> {
        None
    }

    async fn runs(&self) -> Result<Vec<RunId>, ChainError> {
        Ok(self.lock().read(Runtime::runs))
    }

    async fn run(&self, run: RunId) -> Result<RunView, ChainError> {
        self.run_now(run).ok_or(ChainError::NoSuchRun(run))
    }

    async fn seats(&self, run: RunId) -> Result<Vec<SeatView>, ChainError> {
        Ok(self.seats_now(run))
    }

    async fn window(&self, run: RunId, window: Window) -> Result<Option<WindowView>, ChainError> {
        Ok(self.window_now(run, window))
    }

    async fn weights(&self, run: RunId) -> Result<Vec<(Uid, u16)>, ChainError> {
        Ok(self.lock().read(|| Runtime::weights(run)))
    }

    async fn balance(&self, account: &Account) -> Result<Balance, ChainError> {
        let data = self.lock().read(|| System::account(AccountId::from(*account))).data;
        Ok(Balance { free: Amount(data.free), held: Amount(data.reserved) })
    }

    async fn status(&self, run: RunId) -> Result<RunStatus, ChainError> {
        self.lock().read(|| Runtime::run_status(run)).ok_or(ChainError::NoSuchRun(run))
    }

    async fn seat_statuses(&self, run: RunId, from: Uid, limit: u32) -> Result<Vec<SeatStatus>, ChainError> {
        Ok(self.lock().read(|| Runtime::seat_statuses(run, from, limit)))
    }

    async fn account_status(&self, run: RunId, account: &Account) -> Result<AccountStatus, ChainError> {
        Ok(self.lock().read(|| Runtime::account_status(run, *account)))
    }

    async fn payslips(&self, run: RunId, uid: Uid) -> Result<Vec<Payslip>, ChainError> {
        Ok(self.payslips_now(run, uid))
    }

    async fn bonds(&self, run: RunId, validator: Uid) -> Result<Vec<(Uid, u32)>, ChainError> {
        Ok(self.lock().read(|| Runtime::consensus_bonds(run, validator)))
    }

    async fn block_time(&self) -> Result<Duration, ChainError> {
        Ok(Duration::from_millis(SLOT_DURATION))
    }

    /// The network makes the calls itself, block by block.
    async fn draft(&self, call: &Call, _from: &Account) -> Result<Draft, ChainError> {
        Err(ChainError::NoSigner { doing: format!("{call:?}") })
    }

    async fn submit(&self, call: Call) -> Result<Head, ChainError> {
        let doing = format!("{call:?}");
        let Some(signer) = self.signer.clone() else { return Err(ChainError::NoSigner { doing }) };
        let (pallet, call) = of_a_seat(call).ok_or_else(|| ChainError::Invalid {
            doing: doing.clone(),
            reason: "a seat does not send this call in every window".into(),
        })?;
        let (included, sealed) = oneshot::channel();
        {
            let mut chain = self.lock();
            chain.pending.push(Pending { signer, call, included });
            if self.sealing == Sealing::AtOnce {
                chain.seal();
            }
        }
        let result = sealed.await.map_err(|_| ChainError::Stopped { part: "block producer" })?;
        result.map_err(|error| ChainError::Refused {
            doing,
            pallet: pallet.into(),
            error,
            docs: String::new(),
        })
    }
}

/// The runtime's own form of a call, and the pallet that it is for.
fn of_a_seat(call: Call) -> Option<(&'static str, RuntimeCall)> {
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
        Call::AnchorReceipts { run, window, digest } => {
            windows(pallet_windows::Call::anchor_receipts { run, window, digest })
        }
        Call::CommitWeights { run, epoch, hash } => {
            weights(pallet_weights::Call::commit { run, epoch, hash })
        }
        Call::RevealWeights { run, epoch, weights: of, salt } => {
            weights(pallet_weights::Call::reveal { run, epoch, weights: of.try_into().ok()?, salt })
        }
        _ => return None,
    })
}
