//! Measurements that validators show after an epoch, and their effect on dividends (PROT-30).

use super::*;
use pallet_windows::Anchor;
use protocol::probe::{self, Leaves};

/// First windows of the run, whose contributions are all drawn after epoch 1: two windows of three seats.
const PROBED: [Window; 2] = [Window(0), Window(1)];
const SEATS: [u16; 3] = [0, 1, 2];
/// Block after the opening of the first window of epoch 2.
const DRAWN: u64 = 31;

/// A validator's measurements of a contribution.
type Measured = fn(Window, u16) -> Option<Vec<u32>>;

/// Losses measured by a validator, and its decision to show them.
#[derive(Clone, Copy)]
struct Validator {
    measured: Measured,
    shows: bool,
}

const HONEST: Validator = Validator { measured: truth, shows: true };
/// Posts the weights of others, anchors nothing and shows nothing.
const COPIER: Validator = Validator { measured: |_, _| None, shows: false };

/// Returns the losses after a contribution, in millionths of a nat.
fn truth(window: Window, seat: u16) -> Option<Vec<u32>> {
    let gain = 900 * (u32::from(seat) + 1) + 400 * window.0;
    Some(vec![3_000_000 - gain, 2_500_000 - 2 * gain])
}

fn leaves(uid: u16, window: Window, measured: Measured) -> Vec<Digest> {
    let validator = pallet_registry::SeatsOf::<Test>::get(RUN, Uid(uid)).unwrap().id(Uid(uid));
    let of = Leaves { run: RUN, window, validator };
    SEATS.map(|seat| of.leaf(Uid(seat), measured(window, seat).as_deref())).to_vec()
}

fn anchor(uid: u16, window: Window, probes: Digest) -> DispatchResult {
    Windows::anchor_receipts(signed(uid), RUN, window, Digest([4; 32]), probes)
}

/// Returns the validator's answers in the order of the draw.
fn answers(uid: u16, measured: Measured) -> ProbeAnswers<Answer> {
    let drawn = Windows::window_view(RUN, Window(4)).unwrap().probes;
    let answers = drawn.iter().map(|of| {
        let proof = probe::proof(&leaves(uid, of.window, measured), usize::from(of.uid.0)).unwrap();
        let losses = measured(of.window, of.uid.0);
        Some(probe::Answer { losses, proof }.try_into().unwrap())
    });
    answers.collect::<Vec<_>>().try_into().unwrap()
}

fn show(uid: u16, answers: ProbeAnswers<Answer>) -> DispatchResult {
    Weights::answer_probes(signed(uid), RUN, 1, answers)
}

/// Runs epochs 0 and 1 with all windows merged, up to the draw of epoch 1. All validators attest, vote and post
/// the same weights, and anchor what they `measured`.
fn until_the_draw(measured: [Measured; 3], story: impl FnOnce()) {
    with_merged(&[0, 1, 2, 3], measured, story);
}

/// Runs the same, with votes in the `merged` windows only.
fn with_merged(merged: &[u32], measured: [Measured; 3], story: impl FnOnce()) {
    let params = RunParams { min_contributions: 1, localnet: true, ..params() };
    with_params(params, || {
        let update = Vote { update: Digest([7; 32]), state_root: None };
        let weights: &[(u16, u16)] = &[(0, 3), (1, 2), (2, 1)];
        for window in (0..4).map(Window) {
            let opens = u64::from(SCHEDULE.opens_at(window).0);
            go_to_block(opens);
            for seat in SEATS {
                assert_ok!(Windows::commit(signed(seat), RUN, window, Digest([1; 32])));
            }
            let over = window.0.checked_sub(1).map(Window).filter(|over| PROBED.contains(over));
            for (uid, measured) in VALIDATORS.into_iter().zip(measured) {
                if let Some(over) = over {
                    assert_ok!(anchor(uid, over, probe::root(&leaves(uid, over, measured))));
                }
            }
            go_to_block(opens + 2);
            for uid in VALIDATORS {
                let seen = SEATS.map(|seat| (Uid(seat), Verdict::Valid)).to_vec().try_into().unwrap();
                assert_ok!(Windows::attest(signed(uid), RUN, window, seen, Digest([0; 32])));
                if window == Window(2) {
                    assert_ok!(commit(uid, 1, weights));
                }
            }
            go_to_block(opens + 4);
            for uid in VALIDATORS.into_iter().filter(|_| merged.contains(&window.0)) {
                assert_ok!(Windows::vote(signed(uid), RUN, window, update));
            }
        }
        go_to_block(DRAWN);
        for uid in VALIDATORS {
            assert_ok!(reveal(uid, 1, weights));
        }
        story();
    });
}

/// Returns the dividends of epoch 1, by validator, in parts of a thousand.
fn dividends(validators: [Validator; 3]) -> [u64; 3] {
    dividends_and(validators, || {})
}

/// Returns the same, and runs `at_the_close`.
fn dividends_and(validators: [Validator; 3], at_the_close: impl FnOnce()) -> [u64; 3] {
    until_the_draw(validators.map(|validator| validator.measured), || {
        for (uid, Validator { measured, shows }) in VALIDATORS.into_iter().zip(validators) {
            if shows {
                assert_ok!(show(uid, answers(uid, measured)));
            }
        }
        go_to_block(35);
        at_the_close();
    });
    paid()
}

fn paid() -> [u64; 3] {
    let consensus = Paid::get().pop().unwrap().2;
    assert_eq!(consensus.dividends.iter().map(|(_, share)| share).sum::<u64>(), ONE, "pay is conserved");
    let of = |uid| consensus.dividends.iter().find(|(of, _)| *of == Uid(uid)).map_or(0, |(_, share)| *share);
    VALIDATORS.map(|uid| (of(uid) * 1000 + ONE / 2) / ONE)
}

#[test]
fn honest_validators_that_show_everything_earn_alike() {
    assert_eq!(dividends([HONEST; 3]), [333; 3]);
}

#[test]
fn a_copier_of_weights_that_measures_nothing_earns_no_dividends() {
    assert_eq!(dividends([HONEST, HONEST, COPIER]), [500, 500, 0]);
}

#[test]
fn a_copier_that_guesses_the_losses_earns_no_dividends() {
    // The losses of the model without the contribution, which one evaluation gives for all seats.
    let guesses = Validator { measured: |_, _| Some(vec![3_000_000, 2_500_000]), shows: true };
    assert_eq!(dividends([HONEST, HONEST, guesses]), [500, 500, 0]);
}

/// Measures the first window, and guesses the second.
fn half_guessed(window: Window, seat: u16) -> Option<Vec<u32>> {
    if window == Window(0) { truth(window, seat) } else { Some(vec![3_000_000, 2_500_000]) }
}

#[test]
fn a_guesser_cannot_leave_its_wrong_guesses_out() {
    until_the_draw([truth, truth, half_guessed], || {
        assert_ok!(show(3, answers(3, truth)));
        assert_ok!(show(4, answers(4, truth)));
        // The guesser reads the answers of the others, and shows those of its own that are right.
        let drawn = Windows::window_view(RUN, Window(4)).unwrap().probes;
        let right = drawn.iter().zip(answers(5, half_guessed));
        let right = right.map(|(of, answer)| answer.filter(|_| of.window == Window(0)));
        assert_noop!(show(5, ProbeAnswers::truncate_from(right.collect())), Error::<Test>::AnswerMissing);
        // A leaf with a guess is not a leaf without losses.
        let mut denied = answers(5, half_guessed);
        let last = denied.iter_mut().flatten().last().unwrap();
        last.losses = None;
        assert_noop!(show(5, denied), Error::<Test>::OtherThanAnchored);
        go_to_block(35);
    });
    assert_eq!(paid(), [500, 500, 0]);
}

#[test]
fn a_validator_owes_no_answer_for_the_former_holder_of_its_seat() {
    until_the_draw([truth; 3], || {
        let of_window_1 = |answers: ProbeAnswers<Answer>| {
            let drawn = Windows::window_view(RUN, Window(4)).unwrap().probes;
            let kept =
                drawn.iter().zip(answers).map(|(of, answer)| answer.filter(|_| of.window == Window(1)));
            ProbeAnswers::truncate_from(kept.collect())
        };
        let since = |window| {
            pallet_registry::SeatsOf::<Test>::mutate(RUN, Uid(5), |seat| {
                seat.as_mut().unwrap().since = window
            })
        };
        let all = answers(5, truth);
        assert_noop!(show(5, of_window_1(all.clone())), Error::<Test>::AnswerMissing);
        // The root of window 0 then belongs to the previous holder.
        since(Window(1));
        assert_noop!(show(5, all.clone()), Error::<Test>::NotAnchored);
        assert_ok!(show(5, of_window_1(all)));
        since(Window(0));
    });
}

/// Sets the first window of the holder of `uid` to `window`.
fn seat_since(uid: u16, window: Window) {
    pallet_registry::SeatsOf::<Test>::mutate(RUN, Uid(uid), |seat| seat.as_mut().unwrap().since = window);
    pallet_registry::Rosters::<Test>::mutate(RUN, |roster| {
        roster[usize::from(uid)].as_mut().unwrap().since = window;
    });
}

#[test]
fn probes_of_windows_before_a_validator_s_first_one_do_not_count_against_it() {
    // The last one has no draw of its own time, so nothing shows that it measured.
    for (since, expected) in [(Window(0), [333; 3]), (Window(1), [333; 3]), (Window(2), [500, 500, 0])] {
        until_the_draw([truth; 3], || {
            seat_since(5, since);
            let drawn = Windows::window_view(RUN, Window(4)).unwrap().probes;
            for uid in VALIDATORS {
                let own = drawn.iter().zip(answers(uid, truth));
                let own = own.map(|(of, answer)| answer.filter(|_| uid != 5 || since <= of.window));
                let own: Vec<_> = own.collect();
                if own.iter().any(Option::is_some) {
                    assert_ok!(show(uid, ProbeAnswers::truncate_from(own)));
                }
            }
            go_to_block(35);
        });
        assert_eq!(paid(), expected, "{since:?}");
    }
}

#[test]
fn a_validator_cannot_show_what_another_measured() {
    until_the_draw([truth, truth, |_, _| None], || {
        // Even a copied root binds the seat of its author.
        Anchors::insert_copy(4, 5);
        let copied = answers(4, truth);
        assert_ok!(show(4, copied.clone()));
        assert_noop!(show(5, copied), Error::<Test>::OtherThanAnchored);
        assert_noop!(show(5, answers(5, truth)), Error::<Test>::OtherThanAnchored);
        assert_ok!(show(3, answers(3, truth)));
        go_to_block(35);
    });
    assert_eq!(paid(), [500, 500, 0]);
}

/// Copies of anchors.
struct Anchors;

impl Anchors {
    /// Gives `to` the roots of `from`, as if it had copied them from the chain.
    fn insert_copy(from: u16, to: u16) {
        for window in PROBED {
            let of: Anchor = pallet_windows::Receipts::<Test>::get((RUN, window), Uid(from)).unwrap();
            pallet_windows::Receipts::<Test>::insert((RUN, window), Uid(to), of);
        }
    }
}

#[test]
fn a_slow_validator_that_measured_half_earns_by_the_half() {
    let slow = Validator {
        measured: |window, seat| truth(window, seat).filter(|_| window == Window(0)),
        shows: true,
    };
    let paid = dividends_and([HONEST, HONEST, slow], || System::assert_has_event(judged(5, 6, 3, 0)));
    assert_eq!(paid, [400, 400, 200]);
}

#[test]
fn a_broken_machine_loses_its_own_dividends_only() {
    let broken = |error: u32| -> Measured {
        match error {
            100 => |window, seat| truth(window, seat).map(|losses| vec![losses[0] + 100, losses[1]]),
            _ => |window, seat| truth(window, seat).map(|losses| vec![losses[0], losses[1] + 101]),
        }
    };
    let of = |error| Validator { measured: broken(error), shows: true };
    assert_eq!(dividends([HONEST, of(100), HONEST]), [333; 3]);
    let paid = dividends_and([HONEST, of(101), HONEST], || {
        System::assert_has_event(judged(4, 6, 0, 6));
        let stake = pallet_registry::SeatsOf::<Test>::get(RUN, Uid(4)).map(|seat| seat.stake);
        assert_eq!(stake, Some(STAKE), "no stake is lost");
    });
    assert_eq!(paid, [500, 0, 500]);
}

#[test]
fn what_no_majority_shows_changes_no_dividends() {
    assert_eq!(dividends([HONEST, COPIER, COPIER]), [333; 3]);
}

fn judged(validator: u16, counted: u32, right: u32, wrong: u32) -> RuntimeEvent {
    let validator = Uid(validator);
    Event::<Test>::ProbesJudged { run: RUN, epoch: 1, validator, counted, right, wrong }.into()
}

#[test]
fn contributions_are_drawn_from_merged_windows_of_the_epoch_only() {
    with_merged(&[1, 2, 3], [truth; 3], || {
        let drawn = |window| Windows::window_view(RUN, Window(window)).unwrap().probes;
        let expected = SEATS.map(|seat| probe::Probe { window: Window(1), uid: Uid(seat) });
        assert_eq!(drawn(4), expected);
        System::assert_has_event(
            pallet_windows::Event::<Test>::ProbesDrawn {
                run: RUN,
                window: Window(4),
                probes: expected.to_vec(),
            }
            .into(),
        );
        // Nothing was drawn when other windows opened.
        assert!((0..4).all(|window| drawn(window).is_empty()));
        for uid in VALIDATORS {
            assert_ok!(show(uid, answers(uid, truth)));
        }
        go_to_block(35);
        assert_eq!(paid(), [333; 3]);
    });
}

#[test]
fn without_merged_windows_nothing_is_drawn_and_dividends_stay() {
    with_run(|| {
        epoch_of(0, &all(&[(0, 1)]));
        go_to_block(revealing(1) + 1);
        assert_eq!(Windows::window_view(RUN, Window(4)).unwrap().probes, []);
        assert_noop!(show(3, vec![None].try_into().unwrap()), Error::<Test>::NothingDrawn);
        assert_eq!(paid(), [333; 3]);
    });
}

#[test]
fn measurements_are_shown_once_after_the_draw_and_only_what_was_anchored_before() {
    until_the_draw([truth; 3], || {
        let good = answers(3, truth);
        let drawn = Windows::window_view(RUN, Window(4)).unwrap().probes;
        assert_eq!(drawn.len(), 6);
        let call = |uid: u16, answers: &ProbeAnswers<Answer>| {
            let call = Call::<Test>::answer_probes { run: RUN, epoch: 1, answers: answers.clone() };
            call.is_feeless(&signed(uid))
        };
        assert_noop!(Weights::answer_probes(signed(3), RUN, 2, good.clone()), Error::<Test>::RevealNotBegun);
        assert_noop!(Weights::answer_probes(signed(3), RUN, 0, good.clone()), Error::<Test>::RevealOver);
        assert_noop!(show(0, good.clone()), Error::<Test>::NotAValidator);
        assert_noop!(show(40, good.clone()), Error::<Test>::NotASeat);
        let shorter = ProbeAnswers::truncate_from(good.iter().skip(1).cloned().collect());
        assert_noop!(show(3, shorter), Error::<Test>::OtherThanDrawn);
        let nothing = ProbeAnswers::truncate_from(vec![None; 6]);
        assert_noop!(show(3, nothing.clone()), Error::<Test>::NothingMeasured);
        let mut left_out = good.clone();
        left_out[1] = None;
        assert_noop!(show(3, left_out.clone()), Error::<Test>::AnswerMissing);
        let mut other = good.clone();
        other[1].as_mut().unwrap().losses.as_mut().unwrap()[0] += 1;
        assert_noop!(show(3, other), Error::<Test>::OtherThanAnchored);
        // A root anchored after the draw could be fabricated for it.
        pallet_windows::Receipts::<Test>::mutate((RUN, Window(0)), Uid(4), |anchor| {
            anchor.as_mut().unwrap().at = Window(4);
        });
        let of_4 = answers(4, truth);
        assert_noop!(show(4, of_4.clone()), Error::<Test>::NotAnchored);
        let late = drawn.iter().zip(of_4).map(|(of, answer)| answer.filter(|_| of.window == Window(1)));
        assert_ok!(show(4, ProbeAnswers::truncate_from(late.collect())));

        assert!(call(3, &good) && !call(3, &nothing) && !call(3, &left_out));
        assert_ok!(show(3, good.clone()));
        assert!(!call(3, &good));
        assert_noop!(show(3, left_out), Error::<Test>::AlreadyAnswered);
        System::assert_has_event(
            Event::<Test>::ProbesAnswered { run: RUN, epoch: 1, validator: Uid(3), answered: 6 }.into(),
        );
        assert_ok!(show(5, answers(5, truth)));
        go_to_block(35);
        assert_eq!(ShownProbes::<Test>::iter().count(), 0);
        assert_noop!(show(3, good), Error::<Test>::RevealOver);
        assert_eq!(paid(), [400, 200, 400]);
    });
}
