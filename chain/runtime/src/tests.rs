//! The pallets together in real blocks: digests, inherents, signed transactions with every extension, and fees.

use crate::*;
use codec::{Decode, Encode};
use ed25519_dalek::SigningKey;
use frame::{
    deps::{
        frame_support::{
            dispatch::GetDispatchInfo,
            inherent::{InherentData, InherentIdentifier},
            storage::with_transaction_unchecked,
        },
        sp_genesis_builder,
        sp_runtime::{
            Digest as HeaderDigest, DigestItem, DispatchError, ModuleError, TransactionOutcome,
            generic::{Era, SignedPayload},
            traits::Header as _,
            transaction_validity::{InvalidTransaction, TransactionValidityError},
        },
    },
    testing_prelude::{BuildStorage, TestState, assert_ok},
};
use frame_metadata_hash_extension::CheckMetadataHash;
use mettle_api::runtime_decl_for_mettle_api::MettleApi;
use protocol::{
    Block as Height, Digest, Hotkey, Role, RunParams, Schedule, Terms,
    consensus::ONE,
    identity,
    params::{PayShares, Permille},
    reveal,
    view::{Outcome, Verdict, Vote},
};
use sp_keyring::{Ed25519Keyring, Sr25519Keyring};

mod closing;
mod economics;
mod flood;
mod fuzz;
mod large;
mod metadata_hash;
mod pay;
mod serial_reporter;
mod squatter;

const TIMESTAMP: InherentIdentifier = *b"timstap0";
const RUN: RunId = RunId(0);
/// Coldkey of every seat.
const COLDKEY: Sr25519Keyring = Sr25519Keyring::Bob;
const OWNER: Sr25519Keyring = Sr25519Keyring::Alice;
/// Hotkeys of the seats: 0 and 1 mine, 2 to 4 validate.
const HOTKEYS: [Ed25519Keyring; 5] = [
    Ed25519Keyring::Alice,
    Ed25519Keyring::Bob,
    Ed25519Keyring::Charlie,
    Ed25519Keyring::Dave,
    Ed25519Keyring::Eve,
];

/// A chain of real blocks in memory.
struct Chain {
    state: TestState,
    head: Header,
}

/// A key that signs transactions.
trait Signer {
    fn account(&self) -> AccountId;
    fn signature(&self, message: &[u8]) -> Signature;
}

impl Signer for Sr25519Keyring {
    fn account(&self) -> AccountId {
        self.to_account_id()
    }
    fn signature(&self, message: &[u8]) -> Signature {
        self.sign(message).into()
    }
}

impl Signer for Ed25519Keyring {
    fn account(&self) -> AccountId {
        self.to_account_id()
    }
    fn signature(&self, message: &[u8]) -> Signature {
        self.sign(message).into()
    }
}

impl Chain {
    fn new() -> Chain {
        let preset = PresetId::from(sp_genesis_builder::DEV_RUNTIME_PRESET);
        let patch = presets::get_preset(&preset).unwrap();
        let mut config = serde_json::to_value(RuntimeGenesisConfig::default()).unwrap();
        merge(&mut config, serde_json::from_slice(&patch).unwrap());
        let config: RuntimeGenesisConfig = serde_json::from_value(config).unwrap();
        let head =
            Header::new(0, Default::default(), Default::default(), Default::default(), Default::default());
        let mut chain = Chain { state: config.build_storage().unwrap().into(), head };
        // The signed genesis hash is in the state from block 1.
        chain.go_to(1);
        chain
    }

    fn height(&self) -> u32 {
        *self.head.number()
    }

    /// Makes a block with these transactions, one slot later, and returns their results.
    fn block(&mut self, transactions: Vec<UncheckedExtrinsic>) -> Vec<Result<(), DispatchError>> {
        let number = self.height() + 1;
        let slot = u64::from(number);
        let digest = HeaderDigest { logs: vec![DigestItem::PreRuntime(*b"aura", slot.encode())] };
        let header = Header::new(number, Default::default(), Default::default(), self.head.hash(), digest);
        let mut inherents = InherentData::new();
        inherents.put_data(TIMESTAMP, &(slot * SLOT_DURATION)).unwrap();
        let (head, results) = self.state.execute_with(|| {
            RuntimeExecutive::initialize_block(&header);
            for inherent in inherents.create_extrinsics() {
                RuntimeExecutive::apply_extrinsic(inherent).unwrap().unwrap();
            }
            let apply = |transaction| RuntimeExecutive::apply_extrinsic(transaction).expect("valid");
            let results = transactions.into_iter().map(apply).collect();
            let head = RuntimeExecutive::finalize_block();
            check_invariants();
            (head, results)
        });
        self.head = head;
        results
    }

    fn go_to(&mut self, number: u32) {
        while self.height() < number {
            self.block(Vec::new());
        }
    }

    /// Signs a transaction as any Substrate client does: over call, extensions and implicit data.
    fn sign(&mut self, signer: &dyn Signer, call: impl Into<RuntimeCall>, nonce: u32) -> UncheckedExtrinsic {
        self.sign_with_tip(signer, call, nonce, 0)
    }

    fn sign_with_tip(
        &mut self,
        signer: &dyn Signer,
        call: impl Into<RuntimeCall>,
        nonce: u32,
        tip: Balance,
    ) -> UncheckedExtrinsic {
        let priority = priority::ProtocolPriority::new(nonce, tip);
        self.sign_over(signer, call, priority, CheckMetadataHash::new(false))
    }

    fn sign_over(
        &mut self,
        signer: &dyn Signer,
        call: impl Into<RuntimeCall>,
        priority: priority::ProtocolPriority,
        metadata: CheckMetadataHash<Runtime>,
    ) -> UncheckedExtrinsic {
        self.state.execute_with(|| {
            let extension: TxExtension = (
                frame_system::AuthorizeCall::new(),
                frame_system::CheckNonZeroSender::new(),
                frame_system::CheckSpecVersion::new(),
                frame_system::CheckTxVersion::new(),
                frame_system::CheckGenesis::new(),
                frame_system::CheckEra::from(Era::Immortal),
                priority,
                metadata,
                frame_system::WeightReclaim::new(),
            );
            let payload = SignedPayload::new(call.into(), extension).unwrap();
            let signature = payload.using_encoded(|message| signer.signature(message));
            let (call, extension, _) = payload.deconstruct();
            let address = MultiAddress::Id(signer.account());
            UncheckedExtrinsic::new_signed(call, address, signature, extension)
        })
    }

    /// Validates a transaction as a pool does.
    fn validate(&mut self, transaction: UncheckedExtrinsic) -> TransactionValidity {
        let at = self.head.hash();
        self.state.execute_with(|| {
            // A pool discards the resulting state.
            with_transaction_unchecked(|| {
                let source = TransactionSource::External;
                let valid = RuntimeExecutive::validate_transaction(source, transaction, at);
                TransactionOutcome::Rollback(valid)
            })
        })
    }

    /// Makes a block with these calls, signed with the right nonces.
    fn submit(&mut self, calls: Vec<(&dyn Signer, RuntimeCall)>) -> Vec<Result<(), DispatchError>> {
        let mut nonces = std::collections::BTreeMap::<AccountId, u32>::new();
        let transactions = calls
            .into_iter()
            .map(|(signer, call)| {
                let account = signer.account();
                let next = self.state.execute_with(|| System::account_nonce(&account));
                let nonce = nonces.entry(account).or_insert(next);
                let transaction = self.sign(signer, call, *nonce);
                *nonce += 1;
                transaction
            })
            .collect();
        self.block(transactions)
    }

    fn all_accepted(&mut self, calls: Vec<(&dyn Signer, RuntimeCall)>) {
        for result in self.submit(calls) {
            assert_ok!(result);
        }
    }

    fn read<R>(&mut self, read: impl FnOnce() -> R) -> R {
        self.state.execute_with(read)
    }
}

fn merge(into: &mut serde_json::Value, patch: serde_json::Value) {
    match (into, patch) {
        (serde_json::Value::Object(into), serde_json::Value::Object(patch)) => {
            for (key, value) in patch {
                merge(into.entry(key).or_insert(serde_json::Value::Null), value);
            }
        }
        (into, patch) => *into = patch,
    }
}

fn check_invariants() {
    Registry::check_invariants().unwrap();
    Windows::check_invariants().unwrap();
    Weights::check_invariants().unwrap();
    Rewards::check_invariants().unwrap();
    Nomination::check_invariants().unwrap();
}

fn digest(byte: u8) -> Digest {
    Digest([byte; 32])
}

fn url() -> pallet_registry::Url {
    b"http://127.0.0.1:9000/seat".to_vec().try_into().unwrap()
}

/// Returns parameters with windows of ten blocks from block 10, two per epoch.
fn params() -> RunParams {
    RunParams {
        schedule: Schedule {
            start: Height(10),
            blocks_per_window: 10,
            commit_by: 3,
            reveal_by: 4,
            attest_by: 6,
            vote_by: 8,
        },
        epoch_windows: 2,
        checkpoint_windows: 2,
        reveal_windows: 1,
        min_contributions: 1,
        localnet: true,
        ..RunParams::default()
    }
}

fn terms() -> Terms {
    Terms {
        emission_per_epoch: 1000 * UNIT,
        shares: PayShares {
            miners: Permille(500),
            validators: Permille(400),
            owner: Permille(90),
            burn: Permille(10),
        },
        ..Terms::default()
    }
}

/// The key of a seat's hotkey, from its holder's perspective.
trait Hot: Signer {
    fn secret(&self) -> SigningKey;

    /// Returns its signer for this chain.
    fn on_chain(&self) -> identity::Signer {
        identity::Signer::new(self.secret(), Registry::genesis())
    }

    /// Signs its consent to hold a seat of `run` for `coldkey`.
    fn consent(&self, run: RunId, coldkey: &AccountId) -> identity::Signature {
        self.on_chain().prove_possession(run, coldkey.as_ref())
    }
}

impl Hot for Ed25519Keyring {
    fn secret(&self) -> SigningKey {
        SigningKey::from_bytes(&self.pair().seed())
    }
}

impl Chain {
    /// Returns the call that registers `hotkey`, with its consent.
    fn registration(
        &mut self,
        coldkey: Sr25519Keyring,
        role: Role,
        hotkey: &dyn Hot,
        stake: Balance,
    ) -> RuntimeCall {
        let proof = self.read(|| hotkey.consent(RUN, &coldkey.account()));
        pallet_registry::Call::register {
            run: RUN,
            role,
            hotkey: hotkey.account(),
            endpoint: url(),
            stake,
            price_max: Balance::MAX,
            proof,
        }
        .into()
    }

    /// Returns the registration of a seat of [`HOTKEYS`].
    fn register(&mut self, uid: usize) -> RuntimeCall {
        let (role, stake) = if uid < 2 { (Role::Miner, UNIT) } else { (Role::Validator, 100 * UNIT) };
        self.registration(COLDKEY, role, &HOTKEYS[uid], stake)
    }
}

fn create_run(params: RunParams) -> RuntimeCall {
    create_run_with(params, terms())
}

fn create_run_with(params: RunParams, terms: Terms) -> RuntimeCall {
    pallet_registry::Call::create_run {
        params,
        terms,
        spec: digest(1),
        manifest: digest(2),
        theta0: digest(3),
        published_at: url(),
    }
    .into()
}

/// Builds a funded run with two miners and three validators, before its first window.
fn with_run() -> Chain {
    with_run_on(terms())
}

/// Builds the same run on these terms.
fn with_run_on(terms: Terms) -> Chain {
    let mut chain = Chain::new();
    chain.all_accepted(vec![(&OWNER, create_run_with(params(), terms))]);
    let fund = pallet_rewards::Call::fund { run: RUN, amount: 5000 * UNIT }.into();
    let mut calls: Vec<(&dyn Signer, RuntimeCall)> = vec![(&OWNER, fund)];
    calls.extend((0..HOTKEYS.len()).map(|uid| (&COLDKEY as &dyn Signer, chain.register(uid))));
    chain.all_accepted(calls);
    chain
}

fn by_validators(call: impl Fn() -> RuntimeCall) -> Vec<(&'static dyn Signer, RuntimeCall)> {
    HOTKEYS[2..].iter().map(|hotkey| (hotkey as &dyn Signer, call())).collect()
}

/// Plays a window in which every seat participates and agrees.
fn play(chain: &mut Chain, window: u32) {
    play_with_votes(chain, window, &HOTKEYS[2..]);
}

/// Plays a window in which every seat commits or attests, and `voters` vote the same.
fn play_with_votes(chain: &mut Chain, window: u32, voters: &[Ed25519Keyring]) {
    let (window, opens) = (Window(window), params().schedule.opens_at(Window(window)).0);
    chain.go_to(opens);
    let commits = HOTKEYS[..2]
        .iter()
        .map(|hotkey| {
            let digest = Digest::of(&hotkey.to_raw_public());
            let call = pallet_windows::Call::commit { run: RUN, window, digest };
            (hotkey as &dyn Signer, call.into())
        })
        .collect();
    chain.all_accepted(commits);
    chain.go_to(opens + 3);
    chain.all_accepted(by_validators(|| {
        let verdicts = vec![(Uid(0), Verdict::Valid), (Uid(1), Verdict::Valid)].try_into().unwrap();
        pallet_windows::Call::attest { run: RUN, window, verdicts, next_salt: digest(9) }.into()
    }));
    chain.go_to(opens + 6);
    let state_root = params().is_checkpoint(window).then_some(digest(8));
    let vote = Vote { update: digest(50 + window.0 as u8), state_root };
    let vote = || pallet_windows::Call::vote { run: RUN, window, vote }.into();
    chain.all_accepted(voters.iter().map(|hotkey| (hotkey as &dyn Signer, vote())).collect());
    chain.go_to(opens + 9);
}

#[test]
fn an_epoch_in_real_blocks_is_paid_and_shown_to_clients() {
    let mut chain = with_run();
    play(&mut chain, 0);
    let weights = vec![(Uid(0), 65535), (Uid(1), 65535)];
    let salt = [3; 32];
    let sealed = HOTKEYS[2..].iter().map(|hotkey| {
        let hash = reveal::commitment(&weights, &salt, &Hotkey(hotkey.to_raw_public()));
        (hotkey as &dyn Signer, pallet_weights::Call::commit { run: RUN, epoch: 0, hash }.into())
    });
    chain.all_accepted(sealed.collect());
    play(&mut chain, 1);
    chain.go_to(30);
    chain.all_accepted(by_validators(|| {
        let weights = weights.clone().try_into().unwrap();
        pallet_weights::Call::reveal { run: RUN, epoch: 0, weights, salt }.into()
    }));
    assert_eq!(chain.read(|| Runtime::weights(RUN)), []);
    // The epoch closes at the opening after its reveal window.
    play(&mut chain, 2);
    chain.go_to(40);

    chain.read(|| {
        let merged = |window| Runtime::window(RUN, Window(window)).unwrap().outcome;
        assert!(matches!(merged(0), Some(Outcome::Merged(_))));
        assert!(matches!(merged(1), Some(Outcome::Merged(_))));
        assert_eq!(Runtime::weights(RUN), weights);
        assert_eq!(Runtime::window(RUN, Window(3)).unwrap().weights, weights);
        let position = Runtime::position(RUN).unwrap();
        assert_eq!((position.block, position.window), (Height(40), Some(Window(3))));

        let run = Runtime::run(RUN).unwrap();
        assert_eq!(run.owner, *AsRef::<[u8; 32]>::as_ref(&OWNER.to_account_id()));
        assert_eq!(run.origin, "http://127.0.0.1:9000/seat");
        let checkpoint = run.checkpoint.unwrap();
        assert_eq!((checkpoint.window, checkpoint.state_root), (Window(2), digest(8)));
        assert_eq!(checkpoint.lineage, Runtime::window(RUN, Window(2)).unwrap().lineage);
        assert!(!run.paused);

        let seats = Runtime::seats(RUN);
        assert_eq!(seats.len(), 5);
        assert_eq!(seats[0].hotkey.0, HOTKEYS[0].to_raw_public());
        assert_eq!(seats[0].claimable, 250 * UNIT);
        assert_eq!(seats[1].earned, 250 * UNIT);
        let dividends: Balance = seats[2..].iter().map(|seat| seat.claimable).sum();
        assert!(400 * UNIT - dividends < 3);
        assert_eq!(run.treasury, 5000 * UNIT - 500 * UNIT - dividends - 90 * UNIT - 10 * UNIT);
    });
    chain.read(check_client_views);

    let claim = |uid| pallet_rewards::Call::claim { run: RUN, uid: Uid(uid) }.into();
    let before = chain.read(|| Balances::free_balance(COLDKEY.to_account_id()));
    chain.all_accepted(vec![(&HOTKEYS[0], claim(0)), (&HOTKEYS[1], claim(1))]);
    chain.all_accepted(vec![(&OWNER, pallet_rewards::Call::claim_owner { run: RUN }.into())]);
    let after = chain.read(|| Balances::free_balance(COLDKEY.to_account_id()));
    assert_eq!(after - before, 500 * UNIT);
}

/// Checks the views after that epoch.
fn check_client_views() {
    let status = Runtime::run_status(RUN).unwrap();
    assert_eq!(status.run, Runtime::run(RUN).unwrap());
    assert_eq!((status.block, status.window, status.epoch), (Height(40), Some(Window(3)), Some(1)));
    assert_eq!((status.miners.taken, status.validators.taken), (2, 3));
    assert_eq!(status.miners.max, terms().miner_seats_max);
    assert!(status.miners.price >= terms().seat_price_min);
    let books = status.treasury;
    assert_eq!(books.funded, 5000 * UNIT);
    assert_eq!(books.funded, books.treasury + books.claimable + books.paid + books.burnt);

    let seats = Runtime::seat_statuses(RUN, Uid(1), 2);
    assert_eq!(seats.iter().map(|status| status.seat.id.uid).collect::<Vec<_>>(), [Uid(1), Uid(2)]);
    assert_eq!(seats[0].seat, Runtime::seats(RUN)[1]);
    assert_eq!((seats[0].consensus.weight, seats[0].consensus.incentive), (65535, ONE / 2));
    assert_eq!(seats[0].recent_pay, 250 * UNIT);
    assert_eq!(seats[1].last_attested, Some(Window(2)));
    assert!(seats[1].consensus.dividends > ONE / 4 && seats[1].consensus.trust > ONE - 4);
    assert_eq!(Runtime::seat_statuses(RUN, Uid(9), 2), []);

    let account = Runtime::account_status(RUN, COLDKEY.to_account_id().into());
    assert_eq!(account.seats, [0, 1, 2, 3, 4].map(Uid));
    assert_eq!(account.staked, 302 * UNIT);
    assert_eq!(account.claimable, books.claimable - books.owner_claimable);
    assert_eq!(Runtime::account_status(RUN, [77; 32]), Default::default());

    let payslips = Runtime::payslips(RUN, Uid(0));
    assert_eq!(payslips.len(), 1);
    assert_eq!((payslips[0].epoch, payslips[0].pot, payslips[0].amount), (0, 1000 * UNIT, 250 * UNIT));
    assert_eq!(payslips[0].merged, 2);
    assert_eq!(payslips[0].consensus.incentive, ONE / 2);
    let bonds = Runtime::consensus_bonds(RUN, Uid(2));
    assert_eq!(bonds.iter().map(|(seat, _)| *seat).collect::<Vec<_>>(), [Uid(0), Uid(1)]);
}

#[test]
fn a_hotkey_without_balance_takes_part_and_its_other_calls_are_refused() {
    let stranger = large::Seat::of(60_000);
    let hotkey = stranger.account();
    let mut chain = with_run();
    chain.go_to(10);
    chain.read(|| assert_eq!(Balances::free_balance(&hotkey), 0));
    let register = chain.registration(COLDKEY, Role::Miner, &stranger, UNIT);
    chain.all_accepted(vec![(&COLDKEY, register)]);
    chain.go_to(20);

    let commit = |byte| -> RuntimeCall {
        pallet_windows::Call::commit { run: RUN, window: Window(1), digest: digest(byte) }.into()
    };
    // Four commitments in blocks 21 and 22; the last one counts.
    for bytes in [[0, 1], [2, 3]] {
        let commits = bytes.map(|byte| (&stranger as &dyn Signer, commit(byte)));
        chain.all_accepted(commits.to_vec());
    }
    // It has used its free calls, and cannot pay a fee.
    let fifth = chain.sign(&stranger, commit(9), 4);
    let refused = chain.validate(fifth);
    assert_eq!(refused.unwrap_err(), TransactionValidityError::Invalid(InvalidTransaction::Payment));
    // A call that would fail is not free.
    let late: RuntimeCall =
        pallet_windows::Call::commit { run: RUN, window: Window(0), digest: digest(1) }.into();
    let late = chain.sign(&stranger, late, 4);
    assert!(chain.validate(late).is_err());
    chain.read(|| assert_eq!(Balances::free_balance(&hotkey), 0));
}

/// A hotkey is public from its first transaction, and a proof as soon as it is in the pool.
#[test]
fn nobody_uses_up_the_hotkey_of_another() {
    let mut chain = with_run();
    let (victim, thief) = (large::Seat::of(60_000), Sr25519Keyring::Charlie);
    let genuine = chain.registration(COLDKEY, Role::Miner, &victim, UNIT);
    let RuntimeCall::Registry(pallet_registry::Call::register { proof: seen, .. }) = &genuine else {
        panic!("{genuine:?}")
    };
    let stolen = |proof| -> RuntimeCall {
        let (hotkey, endpoint, role) = (victim.account(), url(), Role::Miner);
        let (stake, price_max) = (UNIT, Balance::MAX);
        pallet_registry::Call::register { run: RUN, role, hotkey, endpoint, stake, price_max, proof }.into()
    };
    let elsewhere = identity::Signer::new(victim.secret(), protocol::GenesisHash([1; 32]));
    let proofs = [
        // The victim's own, for its coldkey.
        *seen,
        chain.read(|| victim.consent(RunId(1), &thief.account())),
        elsewhere.prove_possession(RUN, thief.account().as_ref()),
        // By another key.
        chain.read(|| large::Seat::of(1).consent(RUN, &thief.account())),
        identity::Signature([0; 64]),
    ];
    let refused: DispatchError = pallet_registry::Error::<Runtime>::HotkeyNotProven.into();
    let thefts = proofs.map(|proof| (&thief as &dyn Signer, stolen(proof)));
    for result in chain.submit(thefts.to_vec()) {
        assert_eq!(result, Err(refused));
    }
    // Nor onto a seat of the thief's own.
    let own = chain.registration(thief, Role::Miner, &large::Seat::of(2), UNIT);
    chain.all_accepted(vec![(&thief, own)]);
    let uid = Uid(HOTKEYS.len() as u16);
    let rotate = |proof| -> RuntimeCall {
        pallet_registry::Call::rotate_hotkey { run: RUN, uid, hotkey: victim.account(), proof }.into()
    };
    for result in chain.submit(proofs.map(|proof| (&thief as &dyn Signer, rotate(proof))).to_vec()) {
        assert_eq!(result, Err(refused));
    }
    chain.all_accepted(vec![(&COLDKEY, genuine)]);
}

#[test]
fn a_refusal_names_its_pallet_and_error() {
    let mut chain = with_run();
    let commit = pallet_windows::Call::commit { run: RUN, window: Window(0), digest: digest(1) };
    let refused = chain.submit(vec![(&HOTKEYS[0], commit.into())]);
    let Err(DispatchError::Module(ModuleError { index, message, .. })) = &refused[0] else {
        panic!("{refused:?}");
    };
    assert_eq!((*index, *message), (11, Some("NotStarted")));
}

/// Tips could fill every block of a window for less than a seat earns in it.
#[test]
fn no_tip_outbids_a_free_call_and_no_seat_floods_the_chain_with_free_calls() {
    let mut chain = with_run();
    chain.go_to(params().schedule.start.0);
    let commit = |byte| pallet_windows::Call::commit { run: RUN, window: Window(0), digest: digest(byte) };
    let miner = HOTKEYS[0];
    let first = chain.sign(&miner, commit(1), 0);
    // The maximum, less the seat's rank among the run's five seats.
    assert!(chain.validate(first).unwrap().priority > u64::MAX - 5);
    // Only an account's next transaction gets the priority.
    let second = chain.sign(&miner, commit(2), 1);
    assert_eq!(chain.validate(second).unwrap().priority, 0);

    let dest = MultiAddress::Id(OWNER.to_account_id());
    let transfer = pallet_balances::Call::transfer_keep_alive { dest, value: UNIT };
    let rich = chain.sign_with_tip(&COLDKEY, transfer, 5, 1000 * UNIT);
    let offered = chain.validate(rich).unwrap().priority;
    assert!(0 < offered && offered < u64::MAX, "{offered}");

    // Calls beyond the free ones, and calls that would fail, get no priority.
    let free = u32::from(pallet_windows::FREE_COMMITMENTS);
    let commits = (0..free).map(|nonce| chain.sign(&miner, commit(nonce as u8), nonce)).collect();
    for result in chain.block(commits) {
        assert_ok!(result);
    }
    let too_many = chain.sign(&miner, commit(9), free);
    assert!(chain.validate(too_many).unwrap().priority < offered);
    let stranger = chain.sign(&COLDKEY, commit(9), 5);
    assert!(chain.validate(stranger).unwrap().priority < offered);
}

#[test]
fn a_seat_that_leaves_after_an_epoch_is_paid_and_its_unbonding_nominations_can_be_slashed() {
    let mut chain = with_run();
    let nominate = pallet_nomination::Call::nominate { run: RUN, uid: Uid(4), amount: 100 * UNIT };
    chain.all_accepted(vec![(&OWNER, nominate.into())]);
    let weights = vec![(Uid(0), 65535), (Uid(1), 65535)];
    let salt = [3; 32];
    play(&mut chain, 0);
    let sealed = HOTKEYS[2..].iter().map(|hotkey| {
        let hash = reveal::commitment(&weights, &salt, &Hotkey(hotkey.to_raw_public()));
        (hotkey as &dyn Signer, pallet_weights::Call::commit { run: RUN, epoch: 0, hash }.into())
    });
    chain.all_accepted(sealed.collect());
    chain.go_to(params().schedule.opens_at(Window(1)).0);
    let leave = |uid| -> RuntimeCall { pallet_registry::Call::leave { run: RUN, uid: Uid(uid) }.into() };
    chain.all_accepted(vec![(&COLDKEY, leave(0))]);
    // The miner leaves when window 2 opens. The validator, which has revealed, leaves when window 3 opens and the
    // epoch closes.
    chain.go_to(params().schedule.opens_at(Window(2)).0);
    let old = chain.read(|| Registry::seat(RUN, Uid(4)).unwrap().id(Uid(4)));
    chain.all_accepted(by_validators(|| {
        let weights = weights.clone().try_into().unwrap();
        pallet_weights::Call::reveal { run: RUN, epoch: 0, weights, salt }.into()
    }));
    chain.all_accepted(vec![(&COLDKEY, leave(4))]);
    chain.go_to(params().schedule.opens_at(Window(3)).0);

    chain.read(|| {
        let seats: Vec<u16> = Runtime::seats(RUN).iter().map(|seat| seat.id.uid.0).collect();
        assert_eq!(seats, [1, 2, 3]);
        // One window of two is merged. Of that pay: half of the miners' part; and, by stake, half of the validators'
        // part, of which half goes to the nominator.
        let former = pallet_rewards::FormerPay::<Runtime>::get(RUN, COLDKEY.to_account_id());
        let expected = (250 * UNIT + 400 * UNIT / 2 / 2) / 2;
        assert!(former.abs_diff(expected) < UNIT / 1000, "{former} of {expected}");
        assert_eq!(Runtime::weights(RUN), [(Uid(1), 65535)]);

        let behind = Nomination::nominations_of(RUN, &OWNER.to_account_id());
        assert_eq!(behind[0].unbonding[0].amount, 100 * UNIT);
        let issuance = Balances::total_issuance();
        let slashed = Registry::slash(RUN, old, Permille(100), None);
        // A tenth of its own 100 and of the nominated 100.
        assert_eq!((slashed, issuance - Balances::total_issuance()), (20 * UNIT, 20 * UNIT));
        let behind = Nomination::nominations_of(RUN, &OWNER.to_account_id());
        assert_eq!(behind[0].unbonding[0].amount, 90 * UNIT);
        check_invariants();
    });
}

#[test]
fn every_pallet_s_storage_version_is_that_of_its_code() {
    use frame::deps::frame_support::traits::{GetStorageVersion, PalletInfoAccess, StorageVersion};
    fn versions<P: GetStorageVersion<InCodeStorageVersion = StorageVersion> + PalletInfoAccess>() {
        assert_eq!(P::on_chain_storage_version(), P::in_code_storage_version(), "{}", P::name());
    }
    fn all() {
        versions::<Registry>();
        versions::<Windows>();
        versions::<Weights>();
        versions::<Rewards>();
        versions::<Nomination>();
        versions::<Authorities>();
    }
    Chain::new().read(all);
}

#[test]
fn one_mtl_pays_for_thousands_of_calls() {
    let fee = |call: RuntimeCall| -> Balance {
        let mut chain = with_run();
        let transaction = chain.sign(&HOTKEYS[2], call, 0);
        chain.read(|| {
            let len = transaction.encoded_size() as u32;
            TransactionPayment::query_info(transaction, len).partial_fee
        })
    };
    let window = Window(0);
    let verdicts: Vec<_> = (0..256).map(|uid| (Uid(uid), Verdict::Valid)).collect();
    let weights: Vec<_> = (0..256).map(|uid| (Uid(uid), 1)).collect();
    let calls: Vec<RuntimeCall> = vec![
        pallet_windows::Call::commit { run: RUN, window, digest: digest(1) }.into(),
        pallet_windows::Call::vote { run: RUN, window, vote: Vote { update: digest(1), state_root: None } }
            .into(),
        pallet_windows::Call::attest {
            run: RUN,
            window,
            verdicts: verdicts.try_into().unwrap(),
            next_salt: digest(1),
        }
        .into(),
        pallet_weights::Call::reveal {
            run: RUN,
            epoch: 0,
            weights: weights.try_into().unwrap(),
            salt: [0; 32],
        }
        .into(),
    ];
    for call in &calls {
        let paid = fee(call.clone());
        assert!(0 < paid && paid < UNIT / 5000, "{paid} for {call:?}");
    }
    let dest = MultiAddress::Id(OWNER.to_account_id());
    let transfer = pallet_balances::Call::transfer_keep_alive { dest, value: UNIT };
    let bought = UNIT / fee(transfer.into());
    assert!((90_000..130_000).contains(&bought), "one MTL pays for {bought} transfers");
}

#[test]
fn every_call_fits_many_times_into_a_block() {
    let weights: Vec<_> = (0..256).map(|uid| (Uid(uid), 1)).collect();
    let weights = weights.try_into().unwrap();
    let call: RuntimeCall =
        pallet_weights::Call::reveal { run: RUN, epoch: 0, weights, salt: [0; 32] }.into();
    let block = block_weights().max_block;
    assert!(call.get_dispatch_info().call_weight.ref_time() * 64 < block.ref_time());
}

#[test]
fn the_presets_build_a_state_that_can_make_blocks() {
    for name in presets::names() {
        assert!(presets::get_preset(&name).is_some());
    }
    assert_eq!(presets::get_preset(&PresetId::from("mainnet")), None);
    let mut chain = Chain::new();
    chain.go_to(3);
    chain.read(|| {
        for account in [Sr25519Keyring::Alice.to_account_id(), Ed25519Keyring::Alice.to_account_id()] {
            assert_eq!(Balances::free_balance(account), presets::ENDOWMENT);
        }
        assert_eq!(pallet_sudo::Key::<Runtime>::get(), Some(Sr25519Keyring::Alice.to_account_id()));
        assert_eq!(Runtime::runs(), []);
        assert_eq!(Runtime::run(RUN), None);
        assert_eq!(Runtime::position(RUN), None);
        assert!(Runtime::seats(RUN).is_empty());
    });
}

#[test]
fn the_pallets_are_where_clients_expect_them() {
    let names: Vec<(usize, &str)> = {
        use frame::traits::PalletInfoAccess;
        vec![
            (System::index(), System::name()),
            (Balances::index(), Balances::name()),
            (Sudo::index(), Sudo::name()),
            (Registry::index(), Registry::name()),
            (Windows::index(), Windows::name()),
            (Weights::index(), Weights::name()),
            (Rewards::index(), Rewards::name()),
            (Nomination::index(), Nomination::name()),
        ]
    };
    let expected = [
        (0, "System"),
        (4, "Balances"),
        (6, "Sudo"),
        (10, "Registry"),
        (11, "Windows"),
        (12, "Weights"),
        (13, "Rewards"),
        (14, "Nomination"),
    ];
    assert_eq!(names, expected);
}

#[test]
fn the_api_answers_in_scale_by_name() {
    let mut chain = with_run();
    chain.go_to(10);
    chain.read(|| {
        let answer = api::dispatch("MettleApi_window", &(RUN, Window(0)).encode()).unwrap();
        let window = Option::<view::WindowView>::decode(&mut &answer[..]).unwrap().unwrap();
        assert_eq!(window.slots, [Uid(0), Uid(1)]);
        let answer = api::dispatch("MettleApi_runs", &[]).unwrap();
        assert_eq!(Vec::<RunId>::decode(&mut &answer[..]).unwrap(), [RUN]);
    });
}
