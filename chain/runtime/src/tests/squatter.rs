//! Squatters: accounts that take seats to displace the holders, without more stake or more work.

use super::{large::Seat, *};
use frame::deps::frame_support::traits::fungible::Inspect as _;
use pallet_registry::Error;

/// Coldkey of every squatter.
const SQUATTER: Sr25519Keyring = Sr25519Keyring::Charlie;
/// Number of windows of a seat's immunity in all these runs: windows 0 to 3.
const IMMUNITY: u32 = 4;

fn squatted_terms() -> Terms {
    Terms { immunity_windows: IMMUNITY, absence_windows: 1_000, ..terms() }
}

/// Builds a funded run without seats.
fn empty_run(terms: Terms) -> Chain {
    let mut chain = Chain::new();
    let create = pallet_registry::Call::create_run {
        params: params(),
        terms,
        spec: digest(1),
        manifest: digest(2),
        theta0: digest(3),
        published_at: url(),
    };
    let fund = pallet_rewards::Call::fund { run: RUN, amount: 5000 * UNIT };
    chain.all_accepted(vec![(&OWNER, create.into()), (&OWNER, fund.into())]);
    chain
}

/// Makes `count` registrations by `coldkey` in the present block. Returns the refusals.
fn register_all(
    chain: &mut Chain,
    coldkey: Sr25519Keyring,
    role: Role,
    first: u16,
    count: u16,
    stake: Balance,
) -> Vec<DispatchError> {
    let register = |key| {
        let call = chain.registration(coldkey, role, &Seat::of(key), stake);
        let signer = RuntimeOrigin::signed(coldkey.to_account_id());
        chain.read(|| call.dispatch(signer).err().map(|refused| refused.error))
    };
    (first..first + count).filter_map(register).collect()
}

fn open(chain: &mut Chain, window: u32) {
    chain.go_to(params().schedule.opens_at(Window(window)).0);
}

/// Returns the squatter's part of the active set's stake in the open window, in thousandths.
fn squatters_part(chain: &mut Chain, window: u32) -> u128 {
    chain.read(|| {
        let active_set = Runtime::window(RUN, Window(window)).unwrap().active_set;
        let is_squatter = |uid: Uid| Registry::seat(RUN, uid).unwrap().coldkey == SQUATTER.to_account_id();
        let all: u128 = active_set.iter().map(|(_, stake)| *stake).sum();
        let own: u128 = active_set.iter().filter(|(uid, _)| is_squatter(*uid)).map(|(_, stake)| *stake).sum();
        own * 1000 / all
    })
}

fn burnt_by(chain: &mut Chain, coldkey: Sr25519Keyring) -> Balance {
    chain.read(|| presets::ENDOWMENT - Balances::total_balance(&coldkey.to_account_id()))
}

#[test]
fn sixty_four_newcomers_in_one_window_evict_no_validator_with_more_stake() {
    let mut chain = empty_run(squatted_terms());
    assert_eq!(register_all(&mut chain, COLDKEY, Role::Validator, 0, 64, 10 * UNIT), []);
    open(&mut chain, IMMUNITY);
    let refused = register_all(&mut chain, SQUATTER, Role::Validator, 100, 64, UNIT);
    open(&mut chain, IMMUNITY + 1);
    let (part, burnt) = (squatters_part(&mut chain, IMMUNITY + 1), burnt_by(&mut chain, SQUATTER));
    println!("64 newcomers with a tenth of the stake: {part} ‰ of the active set for {burnt} burnt");
    assert_eq!(part, 0);
    assert_eq!(refused, [Error::<Runtime>::StakeTooLowToReplace.into(); 64]);
}

#[test]
fn sixty_four_richer_newcomers_replace_four_validators_per_window_and_stay_below_a_third() {
    let mut chain = empty_run(squatted_terms());
    assert_eq!(register_all(&mut chain, COLDKEY, Role::Validator, 0, 64, 10 * UNIT), []);
    open(&mut chain, IMMUNITY);
    let refused = register_all(&mut chain, SQUATTER, Role::Validator, 100, 64, 1_000 * UNIT);
    open(&mut chain, IMMUNITY + 1);
    let part = squatters_part(&mut chain, IMMUNITY + 1);
    println!("64 newcomers with a hundred times the stake: {part} ‰ of the active set");
    assert!(part < 333, "{part}");
    assert_eq!(refused, [Error::<Runtime>::TooManyReplacements.into(); 60]);
}

#[test]
fn free_seats_filled_in_one_window_stay_below_a_third_and_evict_no_validator() {
    let mut chain = empty_run(squatted_terms());
    assert_eq!(register_all(&mut chain, COLDKEY, Role::Validator, 0, 5, UNIT), []);
    open(&mut chain, IMMUNITY);
    assert_eq!(register_all(&mut chain, SQUATTER, Role::Validator, 100, 59, UNIT), []);
    open(&mut chain, IMMUNITY + 1);
    let filled = squatters_part(&mut chain, IMMUNITY + 1);
    let refused = register_all(&mut chain, SQUATTER, Role::Validator, 200, 5, UNIT);
    open(&mut chain, IMMUNITY + 2);
    let evicted = squatters_part(&mut chain, IMMUNITY + 2);
    println!("59 free seats: {filled} ‰ of the active set; then five evictions: {evicted} ‰");
    assert!(filled < 333 && evicted < 333, "{filled} {evicted}");
    assert_eq!(refused, [Error::<Runtime>::StakeTooLowToReplace.into(); 5]);
}

#[test]
fn a_large_nomination_stays_below_a_third_of_the_active_set() {
    let mut chain = empty_run(squatted_terms());
    assert_eq!(register_all(&mut chain, COLDKEY, Role::Validator, 0, 4, 10 * UNIT), []);
    assert_eq!(register_all(&mut chain, SQUATTER, Role::Validator, 100, 1, 10 * UNIT), []);
    open(&mut chain, IMMUNITY);
    let nominate = pallet_nomination::Call::nominate { run: RUN, uid: Uid(4), amount: 100_000 * UNIT };
    chain.all_accepted(vec![(&SQUATTER, nominate.into())]);
    open(&mut chain, IMMUNITY + 1);
    let part = squatters_part(&mut chain, IMMUNITY + 1);
    println!("100,000 MTL nominated in one window: {part} ‰ of the active set");
    // Its own fifth, which is not new, and less than a third.
    assert!(part < 200 + 333, "{part}");
}

#[test]
fn ten_working_miners_are_not_evicted_by_a_run_full_of_idle_ones() {
    let mut chain = empty_run(squatted_terms());
    assert_eq!(register_all(&mut chain, COLDKEY, Role::Miner, 0, 10, UNIT), []);
    open(&mut chain, IMMUNITY);
    chain.read(|| {
        let weights: Vec<_> = (0..10).map(|uid| (Uid(uid), 65_535)).collect();
        pallet_weights::ConsensusWeights::<Runtime>::insert(RUN, BoundedVec::truncate_from(weights));
    });
    for first in [100, 200] {
        assert_eq!(register_all(&mut chain, SQUATTER, Role::Miner, first, 91, UNIT / 100), []);
    }
    let refused = register_all(&mut chain, SQUATTER, Role::Miner, 300, 10, UNIT / 100);
    open(&mut chain, IMMUNITY + 1);
    let honest = chain.read(|| {
        let seats = Registry::seats(RUN);
        seats.iter().filter(|(_, seat)| seat.coldkey == COLDKEY.to_account_id()).count()
    });
    let burnt = burnt_by(&mut chain, SQUATTER);
    println!("182 idle miners and ten evictions leave {honest} of 10 working miners, for {burnt} burnt");
    assert_eq!(honest, 10);
    assert_eq!(refused, [Error::<Runtime>::RunFull.into(); 10]);
}

#[test]
fn a_seat_costs_half_of_what_an_average_seat_is_paid_over_its_immunity() {
    let mut chain = empty_run(squatted_terms());
    // 1000 MTL for two windows; half of it to at most 192 miners, 40 % to at most 64 validators.
    let price = |chain: &mut Chain, role| chain.read(|| Registry::price(RUN, role));
    assert_eq!(price(&mut chain, Role::Miner), 1000 * UNIT / 2 / 192 * 4 / 2 / 2);
    assert_eq!(price(&mut chain, Role::Validator), 1000 * UNIT * 4 / 10 / 64 * 4 / 2 / 2);
    // An empty treasury pays nothing.
    let mut chain = Chain::new();
    chain.all_accepted(vec![(&OWNER, create_run(params()))]);
    assert_eq!(price(&mut chain, Role::Miner), terms().seat_price_min);
}
