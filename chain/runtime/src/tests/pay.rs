//! Pay for work only: earnings of seats in epochs with void windows, and of validators without votes (PROT-30, 32).

use super::*;

const WEIGHTS: [(Uid, u16); 2] = [(Uid(0), 65535), (Uid(1), 65535)];
const SALT: [u8; 32] = [3; 32];

/// Commits every validator to the same weight vote for `epoch`, which must be open.
fn seal_weights(chain: &mut Chain, epoch: u32) {
    let sealed = HOTKEYS[2..].iter().map(|hotkey| {
        let hash = reveal::commitment(&WEIGHTS.to_vec(), &SALT, &Hotkey(hotkey.to_raw_public()));
        (hotkey as &dyn Signer, pallet_weights::Call::commit { run: RUN, epoch, hash }.into())
    });
    chain.all_accepted(sealed.collect());
}

/// Reveals the weight votes for `epoch`, which must be over, and moves to the opening that closes it.
fn reveal_weights(chain: &mut Chain, epoch: u32) {
    let after = Window((epoch + 1) * params().epoch_windows);
    chain.go_to(params().schedule.opens_at(after).0);
    chain.all_accepted(by_validators(|| {
        let weights = WEIGHTS.to_vec().try_into().unwrap();
        pallet_weights::Call::reveal { run: RUN, epoch, weights, salt: SALT }.into()
    }));
    chain.go_to(params().schedule.opens_at(after.next()).0);
}

/// Returns the total paid out of the treasury.
fn paid(chain: &mut Chain) -> Balance {
    chain.read(|| 5000 * UNIT - Runtime::run(RUN).unwrap().treasury)
}

#[test]
fn validators_that_withhold_their_votes_from_every_window_stall_the_pay_too() {
    let mut chain = with_run();
    // More than a third of the stake is behind the last validator.
    let more = pallet_registry::Call::add_stake { run: RUN, uid: Uid(4), amount: UNIT };
    chain.all_accepted(vec![(&COLDKEY, more.into())]);
    play_with_votes(&mut chain, 0, &HOTKEYS[2..4]);
    seal_weights(&mut chain, 0);
    play_with_votes(&mut chain, 1, &HOTKEYS[2..4]);
    reveal_weights(&mut chain, 0);
    assert_eq!(paid(&mut chain), 0);
}

#[test]
fn an_epoch_with_one_merged_window_of_two_pays_half() {
    let mut chain = with_run();
    play(&mut chain, 0);
    seal_weights(&mut chain, 0);
    play_with_votes(&mut chain, 1, &HOTKEYS[2..3]);
    reveal_weights(&mut chain, 0);
    assert!(paid(&mut chain).abs_diff(500 * UNIT) < 9);
}

#[test]
fn a_run_that_its_owner_stops_pays_for_no_window_of_the_stop() {
    let mut chain = with_run();
    play(&mut chain, 0);
    let stop = pallet_registry::Call::set_stopped { run: RUN, stopped: true };
    chain.all_accepted(vec![(&OWNER, stop.into())]);
    let window = Window(params().epoch_windows);
    chain.go_to(params().schedule.opens_at(window).0 + 4);
    chain.all_accepted(by_validators(|| {
        let verdicts = Vec::new().try_into().unwrap();
        pallet_windows::Call::attest { run: RUN, window, verdicts, next_salt: digest(9) }.into()
    }));
    seal_weights(&mut chain, 1);
    reveal_weights(&mut chain, 1);
    assert_eq!(paid(&mut chain), 0);
}

#[test]
fn a_validator_that_votes_in_less_than_two_thirds_of_the_merged_windows_earns_no_dividends() {
    let mut chain = with_run();
    play(&mut chain, 0);
    seal_weights(&mut chain, 0);
    // One vote of two.
    play_with_votes(&mut chain, 1, &HOTKEYS[2..4]);
    reveal_weights(&mut chain, 0);
    let dividends = chain.read(|| Runtime::seats(RUN)[4].earned);
    assert_eq!(dividends, 0);
}
