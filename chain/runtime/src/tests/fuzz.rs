//! Random calls of honest and hostile accounts, in real blocks of the real runtime. No call panics or creates money,
//! and every pallet's invariants hold after every block.
//!
//! Seven in eight arguments are sensible: the seat, window or amount that an honest program would name now. The others
//! are random. `METTLE_FUZZ_CALLS` sets the number of calls, `METTLE_FUZZ_SEED` the sequence.

use super::*;
use frame::{
    deps::{frame_support::traits::GetCallMetadata, sp_runtime::traits::Dispatchable},
    prelude::frame_system::Account,
};
use pallet_rewards::Payout;
use protocol::{
    probe::{self, Leaves},
    statement::{Equivocation, SignedStatement, Statement, StatementKind},
};
use proxies::ProxyType;
use std::collections::BTreeMap;

const CALLS: u64 = 20_000;
const SEED: u64 = 20_261_122;
const PEOPLE: [Sr25519Keyring; 6] = [
    Sr25519Keyring::Alice,
    Sr25519Keyring::Bob,
    Sr25519Keyring::Charlie,
    Sr25519Keyring::Dave,
    Sr25519Keyring::Eve,
    Sr25519Keyring::Ferdie,
];
const SALT: [u8; 32] = [3; 32];

fn for_this_chain(key: &SigningKey) -> identity::Signer {
    identity::Signer::new(key.clone(), Registry::genesis())
}

/// SplitMix64.
struct Dice(u64);

impl Dice {
    fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, end: u64) -> u64 {
        self.roll() % end.max(1)
    }

    fn one_in(&mut self, count: u64) -> bool {
        self.below(count) == 0
    }

    fn pick<T: Clone>(&mut self, from: &[T]) -> Option<T> {
        let place = self.below(from.len() as u64);
        from.get(place as usize).cloned()
    }
}

/// Returns terms under which seats are replaced, stake unbonds and terms change within some windows.
fn quick_terms() -> Terms {
    Terms { immunity_windows: 2, unbonding_windows: 2, ..terms() }
}

/// Returns the key of a hotkey. There are many more keys than seats, as none is used twice in a run.
fn key(number: u64) -> SigningKey {
    let mut seed = [5; 32];
    seed[..8].copy_from_slice(&number.to_le_bytes());
    SigningKey::from_bytes(&seed)
}

fn public(key: &SigningKey) -> [u8; 32] {
    key.verifying_key().to_bytes()
}

/// Records of the honest programs on their own calls.
struct World {
    dice: Dice,
    /// Hotkeys by account.
    keys: BTreeMap<AccountId, SigningKey>,
    ballots: BTreeMap<(RunId, u32, AccountId), Vec<(Uid, u16)>>,
    attestations: BTreeMap<(RunId, Window, AccountId), Vec<(Uid, Verdict)>>,
    /// Accepted calls, and all calls, by name.
    tally: BTreeMap<String, (u32, u32)>,
}

/// State of a run in the view of the actors.
struct Scene {
    run: RunId,
    window: Window,
    epoch: u32,
    params: RunParams,
}

impl Scene {
    /// Returns the present block's offset in its window.
    fn offset(&self) -> u32 {
        self.params.schedule.locate(Height(System::block_number())).map_or(0, |(_, offset)| offset)
    }
}

impl World {
    fn new(seed: u64) -> World {
        World {
            dice: Dice(seed),
            keys: BTreeMap::new(),
            ballots: BTreeMap::new(),
            attestations: BTreeMap::new(),
            tally: BTreeMap::new(),
        }
    }

    fn person(&mut self) -> AccountId {
        self.dice.pick(&PEOPLE).unwrap().to_account_id()
    }

    fn hotkey(&mut self) -> AccountId {
        let key = key(self.dice.below(1 << 32));
        let account = AccountId::from(public(&key));
        self.keys.insert(account.clone(), key);
        account
    }

    /// Returns the consent of `hotkey` to a seat of `coldkey`; sometimes its consent to another's.
    fn consent(&mut self, hotkey: &AccountId, run: RunId, coldkey: &AccountId) -> identity::Signature {
        let coldkey = if self.dice.one_in(16) { self.person() } else { coldkey.clone() };
        for_this_chain(&self.keys[hotkey]).prove_possession(run, coldkey.as_ref())
    }

    fn anybody(&mut self) -> AccountId {
        match self.dice.below(3) {
            0 => self.hotkey(),
            _ => self.person(),
        }
    }

    fn amount(&mut self) -> Balance {
        let dice = &mut self.dice;
        match dice.below(8) {
            0 => Balance::MAX,
            1 => 0,
            2 => Balance::from(dice.below(100)),
            3 => Balance::from(dice.below(2000)) * UNIT,
            _ => Balance::from(dice.below(3 * UNIT as u64)),
        }
    }

    fn scene(&mut self) -> Scene {
        let runs = Registry::run_ids();
        let mut run = self.dice.pick(&runs).unwrap_or(RUN);
        if self.dice.one_in(16) {
            run = RunId(self.dice.below(12) as u32);
        }
        let details = Registry::run(run);
        let params = details.as_ref().map_or(params(), |details| details.params);
        let mut window = details.and_then(|details| Registry::window_now(&details)).unwrap_or_default();
        if self.dice.one_in(16) {
            window = Window(self.dice.below(40) as u32);
        }
        Scene { run, window, epoch: window.epoch(params.epoch_windows), params }
    }

    fn seat(&mut self, run: RunId, role: Option<Role>) -> (Uid, pallet_registry::Seat<AccountId>) {
        let seats: Vec<_> = Registry::seats(run)
            .into_iter()
            .filter(|(_, seat)| role.is_none_or(|role| seat.role == role))
            .collect();
        if let Some(found) = self.dice.pick(&seats)
            && !self.dice.one_in(12)
        {
            return found;
        }
        let seat = pallet_registry::Seat {
            registered_at: Height(0),
            since: Window(0),
            role: Role::Miner,
            hotkey: self.anybody(),
            coldkey: self.anybody(),
            endpoint: url(),
            endpoint_set_at: None,
            stake: 0,
        };
        (Uid(self.dice.below(9) as u16), seat)
    }

    fn terms(&mut self) -> Terms {
        let dice = &mut self.dice;
        Terms {
            immunity_windows: dice.below(4) as u32,
            unbonding_windows: dice.below(4) as u32,
            absence_windows: 1 + dice.below(6) as u32,
            miner_seats_max: 1 + dice.below(5) as u16,
            validator_seats_max: 1 + dice.below(5) as u16,
            equivocation_slash: Permille(dice.below(1001) as u16),
            emission_per_epoch: Balance::from(dice.below(200)) * UNIT,
            ..super::terms()
        }
    }

    /// Returns the verdicts of nearly all validators: the seats with a commitment are valid.
    fn verdicts(&mut self, run: RunId, window: Window) -> Vec<(Uid, Verdict)> {
        let committed = Runtime::window(run, window).map(|view| view.commitments).unwrap_or_default();
        let faulty = self.dice.one_in(10);
        let verdict = if faulty { Verdict::Faulty } else { Verdict::Valid };
        committed.into_iter().map(|(uid, _)| (uid, verdict)).collect()
    }

    fn ballot(&mut self, scene: &Scene) -> Vote {
        let root = scene.params.is_checkpoint(scene.window) != self.dice.one_in(20);
        let other = u8::from(self.dice.one_in(12));
        Vote { update: digest(scene.window.0 as u8 ^ other), state_root: root.then_some(digest(8)) }
    }

    fn statement(&mut self, scene: &Scene, hotkey: &AccountId, uid: Uid) -> SignedStatement {
        let kinds = [StatementKind::Attestation, StatementKind::Vote, StatementKind::Receipts];
        let kind = self.dice.pick(&kinds).unwrap();
        let digest = digest(self.dice.below(4) as u8 + 100);
        let back = self.dice.below(3) as u32;
        let window = Window(scene.window.0.saturating_sub(back));
        let strange = key(1);
        let signer = self.keys.get(hotkey).unwrap_or(&strange);
        Statement { run: scene.run, window, uid, kind, digest }.sign(&for_this_chain(signer))
    }

    /// Returns a call of the registry, by an owner or a coldkey.
    fn of_registry(&mut self) -> (AccountId, RuntimeCall) {
        use pallet_registry::Call;
        let Scene { run, .. } = self.scene();
        let (uid, seat) = self.seat(run, None);
        let owner = Registry::run(run).map_or(self.person(), |details| details.owner);
        let (hotkey, amount) = (self.hotkey(), self.amount());
        let (coldkey, person) = (seat.coldkey, self.person());
        let (signer, call) = match self.dice.below(26) {
            0..=6 => {
                let role = if self.dice.one_in(2) { Role::Miner } else { Role::Validator };
                let stake = if self.dice.one_in(4) { amount } else { 2 * UNIT };
                let (endpoint, price_max) = (url(), 100 * UNIT);
                let proof = self.consent(&hotkey, run, &person);
                (person, Call::register { run, role, hotkey, endpoint, stake, price_max, proof })
            }
            7 => (seat.hotkey, Call::set_endpoint { run, endpoint: url() }),
            8 | 9 => (coldkey, Call::add_stake { run, uid, amount }),
            10 => (coldkey, Call::unstake { run, uid, amount: amount % (UNIT + 1) }),
            11 | 12 => (coldkey, Call::leave { run, uid }),
            13 => (coldkey, Call::withdraw { run }),
            14 | 15 => {
                let proof = self.consent(&hotkey, run, &coldkey);
                (coldkey, Call::rotate_hotkey { run, uid, hotkey, proof })
            }
            16 => (owner, Call::set_terms { run, terms: self.terms() }),
            17 => (owner, Call::cancel_terms { run }),
            18 => (owner, Call::set_stopped { run, stopped: self.dice.one_in(5) }),
            19 => (owner, Call::offer_run { run, to: person }),
            20 => {
                let offered = pallet_registry::Offers::<Runtime>::get(run);
                (offered.unwrap_or(person), Call::accept_run { run })
            }
            // Most are refused: the run continues, or was not stopped long enough.
            21..=23 => (owner, Call::close_run { run }),
            _ if pallet_registry::LiveRuns::<Runtime>::get() < 4 => {
                let start = Height(System::block_number() + 1 + self.dice.below(20) as u32);
                let schedule = Schedule { start, ..params().schedule };
                // Alternating, because all calls of one kind of run may be refused.
                let hidden_blocks = self.tally.get("Registry.create_run").map_or(0, |(_, made)| made % 2);
                let params = RunParams { schedule, hidden_blocks, ..params() };
                return (person, create_run_with(params, quick_terms()));
            }
            _ => (coldkey, Call::withdraw { run }),
        };
        (signer, call.into())
    }

    /// Returns a call of a seat: one required by the phase, a receipt, or a report.
    fn of_phase(&mut self) -> (AccountId, RuntimeCall) {
        use pallet_windows::Call;
        let scene = self.scene();
        let role =
            if scene.offset() <= scene.params.schedule.commit_by { Role::Miner } else { Role::Validator };
        let (uid, seat) = self.seat(scene.run, Some(role));
        let (run, window, hotkey) = (scene.run, scene.window, seat.hotkey);
        let call = match self.dice.below(10) {
            0 => self.anchoring(run, Window(window.0.saturating_sub(1)), uid),
            1 => {
                let signed = self.statement(&scene, &hotkey, uid);
                Call::report_contradiction { hotkey: Hotkey(*hotkey.as_ref()), statement: signed }
            }
            2 if self.dice.one_in(4) => {
                let (one, mut other) =
                    (self.statement(&scene, &hotkey, uid), self.statement(&scene, &hotkey, uid));
                if !self.dice.one_in(4)
                    && let Some(key) = self.keys.get(&hotkey)
                {
                    other = Statement { digest: digest(99), ..one.statement }.sign(&for_this_chain(key));
                }
                let proof = Equivocation { hotkey: Hotkey(*hotkey.as_ref()), one, other };
                Call::report_equivocation { proof }
            }
            _ => self.in_phase(&scene, &hotkey),
        };
        (hotkey, call.into())
    }

    /// Returns the call that the open window's phase requires from a hotkey.
    fn in_phase(&mut self, scene: &Scene, hotkey: &AccountId) -> pallet_windows::Call<Runtime> {
        use pallet_windows::Call;
        let (run, window, params, offset) = (scene.run, scene.window, scene.params, scene.offset());
        let (schedule, hidden) = (params.schedule, params.hidden_blocks > 0);
        let place = (run, window, hotkey.clone());
        let key = Hotkey(*hotkey.as_ref());
        if offset <= schedule.commit_by {
            return Call::commit { run, window, digest: digest(self.dice.below(200) as u8) };
        }
        if offset <= schedule.attest_by {
            let verdicts = self.verdicts(run, window);
            if !hidden {
                let verdicts = verdicts.try_into().unwrap();
                return Call::attest { run, window, verdicts, next_salt: digest(9) };
            }
            let hash = reveal::commitment(&verdicts, &SALT, &key);
            self.attestations.insert(place, verdicts);
            return Call::attest_hidden { run, window, hash, next_salt: digest(9) };
        }
        if offset <= schedule.attest_by + params.hidden_blocks {
            let verdicts = self.attestations.get(&place).cloned().unwrap_or_default().try_into().unwrap();
            return Call::reveal_attestation { run, window, verdicts, salt: SALT };
        }
        if !hidden {
            return Call::vote { run, window, vote: self.ballot(scene) };
        }
        let root = params.is_checkpoint(window).then_some(digest(8));
        let vote = Vote { update: digest(window.0 as u8), state_root: root };
        if offset <= schedule.vote_by {
            let hash = reveal::commitment(&vote, &SALT, &key);
            return Call::vote_hidden { run, window, hash };
        }
        Call::reveal_vote { run, window, vote, salt: SALT }
    }

    /// Makes the calls that the protocol now requires from most seats of a run, as honest programs do.
    fn round(&mut self, run: RunId) -> u64 {
        let Some(details) = Registry::run(run) else { return 0 };
        let window = Registry::window_now(&details).unwrap_or_default();
        let scene =
            Scene { run, window, epoch: window.epoch(details.params.epoch_windows), params: details.params };
        let mut made = 0;
        for (uid, seat) in Registry::seats(run) {
            let miner = seat.role == Role::Miner;
            if miner != (scene.offset() <= scene.params.schedule.commit_by) || self.dice.one_in(10) {
                continue;
            }
            let call = self.in_phase(&scene, &seat.hotkey);
            self.make(seat.hotkey.clone(), call.into());
            if !miner && window.0 % 8 == 7 {
                let to = Runtime::run(run).and_then(|view| view.checkpoint).map(|held| held.window);
                let to = to.filter(|_| !self.dice.one_in(8));
                self.make(seat.coldkey, pallet_windows::Call::vote_rewind { run, uid, to }.into());
            }
            if !miner && self.dice.one_in(4) {
                let call = self.weighing(&scene, &seat.hotkey);
                self.make(seat.hotkey.clone(), call.into());
            }
            if !miner && self.dice.one_in(2) {
                let call = match self.dice.one_in(2) {
                    true => self.anchoring(run, Window(window.0.saturating_sub(1)), uid).into(),
                    false => self.showing(&scene, uid).into(),
                };
                self.make(seat.hotkey, call);
            }
            made += 1;
        }
        made
    }

    /// Anchors a receipt for `window`, and a root over losses of every selected seat.
    fn anchoring(&mut self, run: RunId, window: Window, uid: Uid) -> pallet_windows::Call<Runtime> {
        let probes = probe::root(&leaves(run, window, uid));
        pallet_windows::Call::anchor_receipts { run, window, digest: digest(1), probes }
    }

    /// Shows the measurements drawn for the last epoch.
    fn showing(&mut self, scene: &Scene, uid: Uid) -> pallet_weights::Call<Runtime> {
        let (run, first) = (scene.run, Window(scene.epoch * scene.params.epoch_windows));
        let drawn = pallet_windows::DrawnProbes::<Runtime>::get(run, first).into_iter();
        let answers = drawn.map(|drawn| {
            let window = drawn.probe.window;
            let proof = probe::proof(&leaves(run, window, uid), usize::from(drawn.place))?;
            let anchor = pallet_windows::Receipts::<Runtime>::get((run, window), uid)?;
            let loss = if self.dice.one_in(50) { 8 } else { 7 };
            let answer = probe::Answer { losses: Some(vec![loss]), proof };
            (anchor.at < first).then(|| answer.try_into().unwrap())
        });
        let answers = answers.collect::<Vec<_>>().try_into().unwrap();
        pallet_weights::Call::answer_probes { run, epoch: scene.epoch.saturating_sub(1), answers }
    }

    fn of_weights(&mut self) -> (AccountId, RuntimeCall) {
        let scene = self.scene();
        let (_, seat) = self.seat(scene.run, Some(Role::Validator));
        let call = self.weighing(&scene, &seat.hotkey);
        (seat.hotkey, call.into())
    }

    /// Reveals the weights of the last epoch if the hotkey has committed to any, or else commits for this one.
    fn weighing(&mut self, scene: &Scene, hotkey: &AccountId) -> pallet_weights::Call<Runtime> {
        use pallet_weights::Call;
        let (run, epoch) = (scene.run, scene.epoch);
        let before = epoch.saturating_sub(1);
        if epoch > 0
            && let Some(weights) = self.ballots.remove(&(run, before, hotkey.clone()))
        {
            return Call::reveal { run, epoch: before, weights: weights.try_into().unwrap(), salt: SALT };
        }
        let miners = Registry::seats(run).into_iter().filter(|(_, seat)| seat.role == Role::Miner);
        let weights: Vec<_> = miners.map(|(uid, _)| (uid, 1 + self.dice.below(60_000) as u16)).collect();
        let hash = reveal::commitment(&weights, &SALT, &Hotkey(*hotkey.as_ref()));
        self.ballots.entry((run, epoch, hotkey.clone())).or_insert(weights);
        Call::commit { run, epoch, hash }
    }

    fn of_money(&mut self) -> (AccountId, RuntimeCall) {
        let Scene { run, .. } = self.scene();
        let (uid, seat) = self.seat(run, None);
        let (amount, person) = (self.amount(), self.person());
        let owner = Registry::run(run).map_or(person.clone(), |details| details.owner);
        let nominated: Vec<_> = pallet_nomination::Nominations::<Runtime>::iter_key_prefix((run,)).collect();
        let (nominator, at) = self.dice.pick(&nominated).unwrap_or((person.clone(), uid));
        let former: Vec<_> = pallet_rewards::FormerPay::<Runtime>::iter_key_prefix(run).collect();
        use pallet_nomination::Call as Nomination;
        use pallet_rewards::Call as Rewards;
        let payout = if self.dice.one_in(2) { Payout::Account } else { Payout::Stake };
        match self.dice.below(12) {
            0 => (person, Rewards::fund { run, amount }.into()),
            1 if self.dice.one_in(2) => (seat.coldkey, Rewards::claim { run, uid }.into()),
            1 => (seat.hotkey, Rewards::claim { run, uid }.into()),
            2 => (owner, Rewards::claim_owner { run }.into()),
            3 => (self.dice.pick(&former).unwrap_or(person), Rewards::claim_former { run }.into()),
            4 => (seat.coldkey, Rewards::set_payout { run, uid, payout }.into()),
            5 | 6 => {
                let (uid, _) = self.seat(run, Some(Role::Validator));
                (person, Nomination::nominate { run, uid, amount }.into())
            }
            7 => (nominator, Nomination::unnominate { run, uid: at, amount: amount % UNIT }.into()),
            8 => (nominator, Nomination::withdraw { run, uid: at }.into()),
            9 => (nominator, Nomination::claim { run, uid: at }.into()),
            10 => {
                let commission = Permille(self.dice.below(1100) as u16);
                let (uid, seat) = self.seat(run, Some(Role::Validator));
                (seat.coldkey, Nomination::set_commission { run, uid, commission }.into())
            }
            _ => {
                // Hotkeys and hostile accounts appear and disappear.
                let (dest, from) = (MultiAddress::Id(self.anybody()), self.anybody());
                (
                    from,
                    pallet_balances::Call::transfer_allow_death { dest, value: amount % (10 * UNIT) }.into(),
                )
            }
        }
    }

    fn plain(&mut self) -> (AccountId, RuntimeCall) {
        match self.dice.below(16) {
            0..=2 => self.of_registry(),
            3..=10 => self.of_phase(),
            11 | 12 => self.of_weights(),
            _ => self.of_money(),
        }
    }

    /// Returns a call, by itself, in a batch, or in the name of another account.
    fn call(&mut self) -> (AccountId, RuntimeCall) {
        let (signer, call) = self.plain();
        match self.dice.below(40) {
            0 => {
                let second = self.plain().1;
                let which = self.dice.below(3);
                // One refused call refuses all of `batch_all`.
                let calls = if which == 1 { vec![call] } else { vec![call, second] };
                let batch = match which {
                    0 => pallet_utility::Call::batch { calls },
                    1 => pallet_utility::Call::batch_all { calls },
                    _ => pallet_utility::Call::force_batch { calls },
                };
                (signer, batch.into())
            }
            1 => {
                let kinds = [ProxyType::Any, ProxyType::NonTransfer, ProxyType::Staking, ProxyType::Claims];
                let proxy_type = self.dice.pick(&kinds).unwrap();
                let delegate = MultiAddress::Id(self.person());
                (self.person(), pallet_proxy::Call::add_proxy { delegate, proxy_type, delay: 0 }.into())
            }
            2..=4 => {
                let force_proxy_type = None;
                let real = MultiAddress::Id(signer);
                (
                    self.person(),
                    pallet_proxy::Call::proxy { real, force_proxy_type, call: Box::new(call) }.into(),
                )
            }
            5 if self.dice.one_in(4) => (self.person(), pallet_proxy::Call::remove_proxies {}.into()),
            _ => (signer, call),
        }
    }

    /// Makes one call. It may be refused, and creates no money.
    fn make(&mut self, signer: AccountId, call: RuntimeCall) {
        let name = call.get_call_metadata();
        let name = format!("{}.{}", name.pallet_name, name.function_name);
        let before = Balances::total_issuance();
        let text = format!("{call:?}");
        let result = call.dispatch(RuntimeOrigin::signed(signer));
        assert!(Balances::total_issuance() <= before, "{text} created money: {result:?}");
        let (accepted, all) = self.tally.entry(name).or_default();
        *accepted += u32::from(result.is_ok());
        *all += 1;
    }

    /// Makes the calls of a block; returns their number.
    fn act(&mut self) -> u64 {
        let mut made = 0;
        for run in Registry::run_ids() {
            if !self.dice.one_in(4) {
                made += self.round(run);
            }
        }
        let strangers = 4 + self.dice.below(24);
        for _ in 0..strangers {
            let (signer, call) = self.call();
            self.make(signer, call);
        }
        made + strangers
    }
}

/// Returns a validator's leaves for the selected seats of a window: the same loss for each.
fn leaves(run: RunId, window: Window, uid: Uid) -> Vec<Digest> {
    let selection = pallet_windows::Records::<Runtime>::get(run, window).and_then(|record| record.selection);
    let seat = pallet_registry::SeatsOf::<Runtime>::get(run, uid);
    let (Some(selection), Some(seat)) = (selection, seat) else { return Vec::new() };
    let of = Leaves { run, window, validator: seat.id(uid) };
    selection.selected.iter().map(|one| of.leaf(one.uid, Some(&[7]))).collect()
}

/// Checks that the accounts hold exactly the issuance.
fn check_money() {
    let held = Account::<Runtime>::iter_values().map(|account| account.data.free + account.data.reserved);
    assert_eq!(
        held.sum::<Balance>(),
        Balances::total_issuance(),
        "the balances do not add up to the issuance"
    );
}

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name)
        .map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{name}={text}: no number")))
}

#[test]
fn no_sequence_of_calls_breaks_an_invariant_or_creates_money() {
    let calls = setting("METTLE_FUZZ_CALLS", CALLS);
    let seed = setting("METTLE_FUZZ_SEED", SEED);
    println!("METTLE_FUZZ_SEED={seed} METTLE_FUZZ_CALLS={calls}");
    let mut world = World::new(seed);
    let mut chain = Chain::new();
    chain.all_accepted(vec![
        (&OWNER, create_run_with(params(), quick_terms())),
        (&OWNER, create_run_with(RunParams { hidden_blocks: 1, ..params() }, quick_terms())),
    ]);
    let fund = |run| pallet_rewards::Call::fund { run: RunId(run), amount: 100_000 * UNIT }.into();
    chain.all_accepted(vec![(&OWNER, fund(0)), (&OWNER, fund(1))]);
    let mut made = 0;
    while made < calls {
        made += chain.read(|| world.act());
        // Checks every invariant after each block.
        let blocks = if world.dice.one_in(12) { world.dice.below(12) } else { 1 };
        for _ in 0..blocks {
            chain.block(Vec::new());
        }
        chain.read(check_money);
    }
    let merged = chain.read(|| {
        let windows = Registry::run_ids().into_iter().flat_map(|run| {
            pallet_windows::Records::<Runtime>::iter_prefix(run).map(|(_, record)| record.outcome)
        });
        windows.filter(|outcome| matches!(outcome, Some(Outcome::Merged(_)))).count()
    });
    let rewound = chain.read(|| {
        let views = Registry::run_ids().into_iter().filter_map(Runtime::run);
        views.filter(|run| run.rewound.is_some()).count()
    });
    let mut all = (0, 0);
    for (name, (accepted, made)) in &world.tally {
        println!("{name:36} {accepted:6} of {made:6}");
        all = (all.0 + accepted, all.1 + made);
    }
    println!("{merged} kept windows merged, {rewound} runs went back, block {}", chain.height());
    // A fuzz whose calls are all refused tests nothing.
    assert!(merged > 0 && all.0 * 4 > all.1, "{all:?} calls were accepted, and {merged} windows merged");
    if calls >= CALLS {
        assert!(rewound > 0, "no run went back to a checkpoint");
        let never: Vec<_> = world.tally.iter().filter(|(_, (accepted, _))| *accepted == 0).collect();
        assert!(never.is_empty(), "never accepted: {never:?}");
    }
}
