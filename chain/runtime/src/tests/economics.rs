//! Cost of taking over a run, against the pay of the run, for runs of three sizes.
//!
//! Prints the figures of the table in `docs/trust.md`:
//!
//!     cargo test -p mettle-runtime -- cost_of_a_takeover --nocapture

use super::{
    large::{Author, Seat},
    *,
};
use frame::deps::frame_support::traits::fungible::Inspect as _;

const ATTACKER: Sr25519Keyring = Sr25519Keyring::Charlie;
/// First key of the attacker's seats.
const ATTACKERS_KEYS: u16 = 10_000;
/// Number of honest working miners. The attacker's is the eighth.
const MINERS: u16 = 7;
const EPOCH_WINDOWS: u32 = 10;
const SALT: [u8; 32] = [3; 32];
/// Window in which the attacker registers: the honest seats' immunity is over.
const ATTACK_FROM: u32 = 10;

/// A run under attack: every honest validator has the minimum stake.
struct Takeover {
    author: Author,
    /// Number of honest validators' seats, which precede the attacker's two.
    validators: u16,
}

/// Stake locked, price burnt and pay won by the attacker.
struct Price {
    locked: Balance,
    burnt: Balance,
    /// Number of windows from the registration to the first one with that part of the active set.
    windows: u32,
}

fn params() -> RunParams {
    RunParams {
        schedule: Schedule {
            start: Height(100),
            blocks_per_window: 20,
            commit_by: 10,
            reveal_by: 11,
            attest_by: 15,
            vote_by: 18,
        },
        epoch_windows: EPOCH_WINDOWS,
        reveal_windows: 1,
        ..RunParams::default()
    }
}

fn terms(miner_seats_max: u16) -> Terms {
    Terms { miner_seats_max, immunity_windows: ATTACK_FROM, absence_windows: 1_000, ..Terms::default() }
}

impl Takeover {
    fn new(miner_seats_max: u16, validators: u16) -> Takeover {
        let mut chain = Chain::new();
        let create = pallet_registry::Call::create_run {
            params: params(),
            terms: terms(miner_seats_max),
            spec: digest(1),
            manifest: digest(2),
            theta0: digest(3),
            published_at: url(),
        };
        let fund = pallet_rewards::Call::fund { run: RUN, amount: 1_000 * UNIT };
        chain.all_accepted(vec![(&OWNER, create.into()), (&OWNER, fund.into())]);
        let mut takeover = Takeover { author: Author::of(chain), validators };
        for key in 0..MINERS {
            takeover.register(COLDKEY, Role::Miner, key, terms(0).miner_stake_min);
        }
        for key in MINERS..MINERS + validators {
            takeover.register(COLDKEY, Role::Validator, key, terms(0).validator_stake_min);
        }
        takeover
    }

    fn register(&mut self, coldkey: Sr25519Keyring, role: Role, key: u16, stake: Balance) {
        let call = self.author.chain.registration(coldkey, role, &Seat::of(key), stake);
        self.author.chain.all_accepted(vec![(&coldkey, call)]);
    }

    fn open(&mut self, window: u32) {
        self.author.go_to(params().schedule.opens_at(Window(window)).0);
    }

    /// Registers a miner, and a validator with `locked`, and waits for more than `part` of the active set.
    fn attack(&mut self, locked: Balance, part: f64) -> Price {
        self.open(ATTACK_FROM);
        self.register(ATTACKER, Role::Miner, ATTACKERS_KEYS, terms(0).miner_stake_min);
        self.register(ATTACKER, Role::Validator, ATTACKERS_KEYS + 1, locked);
        let mut window = ATTACK_FROM;
        while self.attackers_part(window) <= part {
            window += 1;
            assert!(window < 100, "the part stays at {}", self.attackers_part(window - 1));
            self.open(window);
        }
        let balance = self.author.chain.read(|| Balances::total_balance(&ATTACKER.to_account_id()));
        Price { locked, burnt: presets::ENDOWMENT - balance, windows: window - ATTACK_FROM }
    }

    fn attackers_part(&mut self, window: u32) -> f64 {
        self.author.chain.read(|| {
            let active_set = Runtime::window(RUN, Window(window)).unwrap().active_set;
            let is_attackers =
                |uid: Uid| Registry::seat(RUN, uid).unwrap().coldkey == ATTACKER.to_account_id();
            let all: Balance = active_set.iter().map(|(_, stake)| *stake).sum();
            let own: Balance =
                active_set.iter().filter(|(uid, _)| is_attackers(*uid)).map(|(_, stake)| *stake).sum();
            own as f64 / all as f64
        })
    }

    /// Returns the seats of `role` with their keys.
    fn seated(&mut self, role: Role) -> Vec<(Uid, u16)> {
        let keys = match role {
            Role::Miner => (0..MINERS).chain(ATTACKERS_KEYS..ATTACKERS_KEYS + 1),
            Role::Validator => {
                (MINERS..MINERS + self.validators).chain(ATTACKERS_KEYS + 1..ATTACKERS_KEYS + 2)
            }
        };
        let seats = self.author.chain.read(|| Runtime::seats(RUN));
        let uid_of = |key: u16| {
            let hotkey = Seat::of(key).hotkey();
            let seat = seats.iter().find(|seat| seat.hotkey == hotkey)?;
            Some((seat.id.uid, key))
        };
        keys.filter_map(uid_of).collect()
    }

    /// Plays the next whole epoch, in which the attacker's validator gives all weight to its miner, and the others
    /// give it none. Returns the earnings of the attacker's seats and of all others.
    fn steal_an_epoch(&mut self) -> (Balance, Balance) {
        let now = self.author.chain.read(|| Runtime::position(RUN).unwrap().window.unwrap());
        let epoch = now.0 / EPOCH_WINDOWS + 1;
        self.open(epoch * EPOCH_WINDOWS);
        let before = self.earned();
        let (miners, validators) = (self.seated(Role::Miner), self.seated(Role::Validator));
        let weights_of = |key: u16| -> Vec<(Uid, u16)> {
            let is_attackers = key >= ATTACKERS_KEYS;
            let chosen = miners.iter().filter(|(_, miner)| (*miner >= ATTACKERS_KEYS) == is_attackers);
            chosen.map(|(uid, _)| (*uid, u16::MAX)).collect()
        };
        for window in (epoch * EPOCH_WINDOWS..(epoch + 1) * EPOCH_WINDOWS).map(Window) {
            let opens = params().schedule.opens_at(window).0;
            self.author.go_to(opens);
            let mut calls: Vec<(u16, RuntimeCall)> = Vec::new();
            if window.0 % EPOCH_WINDOWS == 0 {
                calls.extend(validators.iter().map(|(_, key)| {
                    let hash = reveal::commitment(&weights_of(*key), &SALT, &Seat::of(*key).hotkey());
                    (*key, pallet_weights::Call::commit { run: RUN, epoch, hash }.into())
                }));
            }
            calls.extend(miners.iter().map(|(_, key)| {
                let digest = Digest::of(&key.to_le_bytes());
                (*key, pallet_windows::Call::commit { run: RUN, window, digest }.into())
            }));
            self.author.all_by(opens + 10, calls);
            let verdicts: Vec<_> = miners.iter().map(|(uid, _)| (*uid, Verdict::Valid)).collect();
            let attest = |(_, key): &(Uid, u16)| {
                let verdicts = verdicts.clone().try_into().unwrap();
                (
                    *key,
                    pallet_windows::Call::attest { run: RUN, window, verdicts, next_salt: digest(9) }.into(),
                )
            };
            self.author.all_by(opens + 15, validators.iter().map(attest).collect());
            self.author.go_to(opens + 16);
            let state_root = params().is_checkpoint(window).then_some(digest(8));
            let vote = Vote { update: digest(50), state_root };
            let vote =
                |(_, key): &(Uid, u16)| (*key, pallet_windows::Call::vote { run: RUN, window, vote }.into());
            self.author.all_by(opens + 18, validators.iter().map(vote).collect());
        }
        let after = Window((epoch + 1) * EPOCH_WINDOWS);
        self.open(after.0);
        let reveals = validators.iter().map(|(_, key)| {
            let weights = weights_of(*key).try_into().unwrap();
            (*key, pallet_weights::Call::reveal { run: RUN, epoch, weights, salt: SALT }.into())
        });
        let reveals = reveals.collect();
        self.author.all_by(params().schedule.opens_at(after).0 + 10, reveals);
        self.open(after.next().0);
        let earned = self.earned();
        (earned.0 - before.0, earned.1 - before.1)
    }

    /// Returns the total earnings of the attacker's seats and of all others.
    fn earned(&mut self) -> (Balance, Balance) {
        let attackers = [0, 1].map(|seat| Seat::of(ATTACKERS_KEYS + seat).hotkey());
        let seats = self.author.chain.read(|| Runtime::seats(RUN));
        let (own, others): (Vec<_>, Vec<_>) = seats.iter().partition(|seat| attackers.contains(&seat.hotkey));
        let sum =
            |seats: Vec<&protocol::view::SeatView>| -> Balance { seats.iter().map(|seat| seat.earned).sum() };
        (sum(own), sum(others))
    }
}

fn mtl(amount: Balance) -> f64 {
    amount as f64 / UNIT as f64
}

#[test]
fn the_cost_of_a_takeover_grows_with_the_stake_and_its_gain_does_not() {
    println!(
        "| seats | validators | part | locked | burnt | windows | earned per epoch | others earn | epochs |"
    );
    let mut epochs_until_paid = Vec::new();
    for (miner_seats, validators) in [(8, 3), (64, 16), (1024, 64)] {
        let honest = u128::from(validators) * terms(0).validator_stake_min;
        for (part, thousandths) in [(1.0 / 3.0, 550), (0.5, 1_050), (2.0 / 3.0, 2_100)] {
            let mut takeover = Takeover::new(miner_seats, validators);
            let price = takeover.attack(honest * thousandths / 1_000, part);
            let (stolen, left) = takeover.steal_an_epoch();
            let epochs = mtl(price.locked + price.burnt) / mtl(stolen);
            println!(
                "| {miner_seats} | {validators} | {:.0} % | {:.2} | {:.3} | {} | {:.3} | {:.3} | {epochs:.1} |",
                part * 100.0,
                mtl(price.locked),
                mtl(price.burnt),
                price.windows,
                mtl(stolen),
                mtl(left),
            );
            assert!(price.windows > 10, "a third within an epoch: {} windows", price.windows);
            if part < 0.4 {
                assert_eq!(stolen, 0, "a third sets no pay");
            } else if part < 0.6 {
                epochs_until_paid.push(epochs);
            }
        }
    }
    assert!(epochs_until_paid.is_sorted(), "{epochs_until_paid:?}");
}
