//! Tests the whole gauntlet: the pay of each behaviour, over windows of synthetic losses.

use super::{report::Seen, *};
use expect_test::expect;
use proptest::prelude::*;
use protocol::{Block, Digest};

/// Sequences of each kind, as by default.
const K: u64 = 64;
/// Scatter of a sequence's relative gain. With the gains below, an honest gap is about eight standard errors.
const SCATTER: f64 = 0.02;

/// The behaviour of a seat in a simulated window.
#[derive(Clone, Copy)]
enum Miner {
    /// Gains more on its own data; `work` is the part of a full window's training.
    Honest {
        work: f64,
    },
    /// Uploads another seat's work, which gains the same on all data.
    Copycat,
    Harmful,
    /// Sends valid bytes that change no loss.
    Mute,
    Faulty,
    Away,
    Unlucky,
}

fn seat(uid: usize) -> SeatId {
    SeatId { uid: Uid(uid as u16), registered_at: Block(7) }
}

fn params() -> RunParams {
    RunParams { sequences_per_seat: 100, epoch_windows: 1, ..RunParams::default() }
}

/// A pseudo-random number from −√3 to √3 with a variance of 1.
fn noise(names: &[u64]) -> f64 {
    let bytes: Vec<u8> = names.iter().flat_map(|name| name.to_le_bytes()).collect();
    let digest = Digest::of(&bytes).0;
    let drawn = u64::from_le_bytes(digest[..8].try_into().unwrap()) as f64 / u64::MAX as f64;
    (drawn * 2.0 - 1.0) * 3f64.sqrt()
}

fn losses(names: [u64; 3], gain: f64) -> Vec<LossPair> {
    (0..K)
        .map(|sequence| {
            let [run, window, kind] = names;
            let before = 3.0 + 0.3 * noise(&[run, window, kind, sequence]);
            let scattered = gain + SCATTER * noise(&[run, window, kind, sequence, 1]);
            LossPair::new(sequence, before, before * (1.0 - scattered))
        })
        .collect()
}

fn evidence(run: u64, window: u32, uid: usize, miner: Miner) -> Evidence {
    let names = |kind: u64| [run, window.into(), kind * 1000 + uid as u64];
    let valid = |trained: u32, own: f64, common: f64| Observed::Valid {
        trained,
        measured: Some(Measured { own: losses(names(1), own), common: losses(names(2), common) }),
        near_duplicate: None,
    };
    let observed = match miner {
        Miner::Honest { work } => valid(100, 0.008 + 0.03 * work, 0.008),
        Miner::Copycat => valid(100, 0.008, 0.008),
        Miner::Harmful => valid(100, -0.05, -0.05),
        Miner::Mute => {
            let same =
                |names| losses(names, 0.0).into_iter().map(|pair| LossPair { after: pair.before, ..pair });
            let measured = Measured { own: same(names(1)).collect(), common: same(names(2)).collect() };
            Observed::Valid { trained: 100, measured: Some(measured), near_duplicate: None }
        }
        Miner::Faulty => {
            Observed::Faulty { label: "wrong-digest".into(), detail: "the digest is another".into() }
        }
        Miner::Away => Observed::Absent,
        Miner::Unlucky => Observed::Unobserved,
    };
    Evidence { seat: seat(uid), observed }
}

/// Judges `windows` windows of the same miners. Returns the last verdict and each seat's sum of normalised weights.
fn simulate(run: u64, windows: u32, miners: &[Miner]) -> (Verdict, Vec<f64>) {
    let mut paid = vec![0.0; miners.len()];
    let mut verdict = Verdict { reputations: Reputations::default(), reports: vec![], weights: vec![] };
    for window in 0..windows {
        verdict = next(run, &verdict.reputations, window, miners);
        let total: f64 = verdict.weights.iter().map(|(_, weight)| f64::from(*weight)).sum();
        for (uid, weight) in &verdict.weights {
            paid[usize::from(uid.0)] += f64::from(*weight) / total;
        }
    }
    (verdict, paid)
}

fn next(run: u64, reputations: &Reputations, window: u32, miners: &[Miner]) -> Verdict {
    let evidence: Vec<_> =
        miners.iter().enumerate().map(|(uid, miner)| evidence(run, window, uid, *miner)).collect();
    judge(&params(), reputations, Window(window), &evidence)
}

const HONEST: Miner = Miner::Honest { work: 1.0 };

#[test]
fn a_seat_that_stops_working_loses_its_share_among_more_seats_without_effect_than_workers() {
    let mut reputations = Reputations::default();
    for window in 0..20 {
        reputations = next(1, &reputations, window, &[HONEST; 10]).reputations;
    }
    let mut miners = vec![HONEST; 9];
    miners.extend([Miner::Mute; 12]);
    let mut weights = Vec::new();
    for window in 20..31 {
        let verdict = next(1, &reputations, window, &miners);
        (reputations, weights) = (verdict.reputations, verdict.weights);
    }
    let total: f64 = weights.iter().map(|(_, weight)| f64::from(*weight)).sum();
    let share = |uid: u16| {
        weights.iter().find(|(of, _)| of.0 == uid).map_or(0.0, |(_, weight)| f64::from(*weight) / total)
    };
    assert!(share(9) < 0.01, "the seat that stopped still has {:.1} % of the weight", 100.0 * share(9));
    assert!((0..9).all(|uid| 0.08 < share(uid)), "{weights:?}");
}

#[test]
fn workers_earn_a_score_among_more_seats_without_effect_from_the_start() {
    let mut miners = vec![HONEST; 5];
    miners.extend([Miner::Mute; 8]);
    let (verdict, _) = simulate(1, 8, &miners);
    let paid: Vec<u16> =
        verdict.weights.iter().filter(|(_, weight)| 0 < *weight).map(|(uid, _)| uid.0).collect();
    assert_eq!(paid, [0, 1, 2, 3, 4]);
}

/// A change of any rule of the gauntlet shows up here as a diff.
#[test]
fn the_report_of_one_window() {
    let miners = [
        HONEST,
        HONEST,
        Miner::Honest { work: 0.5 },
        Miner::Copycat,
        Miner::Harmful,
        Miner::Faulty,
        Miner::Away,
        Miner::Unlucky,
    ];
    let (verdict, _) = simulate(1, 12, &miners);
    let number = |number: Option<f64>| number.map_or("-".to_owned(), |number| format!("{number:.4}"));
    let mut table = format!(
        "{:<4} {:<12} {:>8} {:>8} {:>4} {:>8} {:>7} {:>7} {:>7} {:>9} {:>7} {:>6}\n",
        "uid",
        "observed",
        "own",
        "common",
        "rank",
        "rating",
        "sigma",
        "factor",
        "own-data",
        "penalties",
        "score",
        "weight",
    );
    for report in &verdict.reports {
        let observed = match &report.observed {
            Seen::Absent => "absent",
            Seen::Unobserved => "unobserved",
            Seen::Unfetched => "unfetched",
            Seen::Faulty { label, .. } => label,
            Seen::Waiting => "waiting",
            Seen::Evaluated => "evaluated",
        };
        let penalties: f64 = report.penalties.iter().map(reputation::factor).product();
        table += &format!(
            "{:<4} {:<12} {:>8} {:>8} {:>4} {:>8.4} {:>7.4} {:>7.4} {:>8.4} {:>9.4} {:>7.4} {:>6}\n",
            report.seat.uid.0,
            observed,
            number(report.own_gain),
            number(report.common_gain),
            report.rank.map_or("-".to_owned(), |rank| rank.to_string()),
            report.rating_after.mu,
            report.rating_after.sigma,
            report.rating_factor,
            report.own_data_score_after,
            penalties,
            report.score,
            report.weight,
        );
    }
    expect![[r#"
        uid  observed          own   common rank   rating   sigma  factor own-data penalties   score weight
        0    evaluated      0.0412   0.0053    1  35.3358  7.6786  1.0000   0.6425    1.0000  0.6372  65499
        1    evaluated      0.0414   0.0070    1  35.3358  7.6786  1.0000   0.6400    1.0000  0.6375  65535
        2    evaluated      0.0202   0.0106    1  35.3358  7.6786  1.0000   0.2800    1.0000  0.3198  32878
        3    evaluated      0.0062   0.0061    1  35.3358  7.6786  1.0000  -0.0114    1.0000  0.0000      0
        4    evaluated     -0.0518  -0.0510    5  13.9420  7.2448  0.2726  -0.9802    0.0023  0.0000      0
        5    wrong-digest        -        -    6  -3.2583  7.3978  0.0000   0.0000    1.0000  0.0000      0
        6    absent              -        -    -  25.0000  8.3405  0.7044   0.0000    1.0000  0.0000      0
        7    unobserved          -        -    -  25.0000  8.3405  0.7044   0.0000    1.0000  0.0000      0
    "#]]
    .assert_eq(&table);
}

#[test]
fn honest_seats_share_the_pay_evenly_in_the_long_run() {
    let (verdict, paid) = simulate(1, 200, &[HONEST; 4]);
    assert_eq!(verdict.weights.len(), 4);
    assert!(paid.iter().all(|paid| (25.0..=80.0).contains(paid)), "{paid:?}");
    assert!(
        verdict.reputations.seats.values().all(|seat| seat.own_data_score > 0.7),
        "{:?}",
        verdict.reputations
    );
}

#[test]
fn a_copied_gradient_earns_next_to_nothing() {
    for run in 0..10 {
        let (_, paid) = simulate(run, 60, &[HONEST, HONEST, HONEST, Miner::Copycat]);
        let honest = paid[..3].iter().sum::<f64>() / 3.0;
        assert!(paid[3] < honest / 20.0, "replay with run {run}: {paid:?}");
    }
}

/// After the ratings have settled: at first a copy may rank above the honest seat by chance.
#[test]
fn copies_do_not_pay_as_a_majority_either() {
    for run in 0..5 {
        let miners = [HONEST, Miner::Copycat, Miner::Copycat, Miner::Copycat];
        let (_, early) = simulate(run, 60, &miners);
        let (_, whole) = simulate(run, 260, &miners);
        let paid: Vec<f64> = whole.iter().zip(&early).map(|(whole, early)| whole - early).collect();
        assert!(paid[1..].iter().all(|copy| *copy < paid[0] / 20.0), "replay with run {run}: {paid:?}");
    }
}

#[test]
fn half_of_the_work_earns_half_of_the_own_data_score() {
    let (verdict, _) = simulate(3, 120, &[HONEST, HONEST, Miner::Honest { work: 0.5 }, HONEST, HONEST]);
    let half = verdict.reputations.seats[&seat(2)].own_data_score;
    let full = verdict.reputations.seats[&seat(0)].own_data_score;
    assert!((0.35..=0.6).contains(&(half / full)), "{half} of {full}");
}

#[test]
fn one_harmful_window_costs_three_quarters_for_ten_evaluations() {
    let (before, _) = simulate(4, 40, &[HONEST; 4]);
    let mut miners = [HONEST; 4];
    miners[1] = Miner::Harmful;
    let harmed = next(4, &before.reputations, 40, &miners);
    let report = &harmed.reports[1];
    assert_eq!(report.rank, Some(4));
    assert_eq!(report.penalties.len(), 1);
    assert_eq!(report.penalties[0].reason, PenaltyReason::Harm);
    assert_eq!(report.penalties[0].since, Window(40));
    assert_eq!(reputation::factor(&report.penalties[0]), 0.25);
    let remembered = &harmed.reputations.seats[&seat(1)];
    let field = harmed.reputations.median_own_data_score();
    let unpunished = remembered.score(report.median_rating, field);
    assert!((report.score - unpunished * 0.25).abs() < 1e-12);

    let mut verdict = harmed;
    for window in 41..51 {
        assert_eq!(verdict.reports[1].penalties.len(), 1);
        verdict = next(4, &verdict.reputations, window, &[HONEST; 4]);
    }
    assert!(verdict.reports[1].penalties.is_empty());
}

#[test]
fn a_fault_comes_last_and_is_unpaid_for_its_window() {
    let (before, _) = simulate(5, 20, &[HONEST; 4]);
    let faulty = next(5, &before.reputations, 20, &[HONEST, HONEST, Miner::Faulty, Miner::Faulty]);
    let report = &faulty.reports[2];
    assert_eq!(
        report.observed,
        Seen::Faulty { label: "wrong-digest".into(), detail: "the digest is another".into() }
    );
    // Two were measured; the two faults share the rank behind them.
    assert_eq!((report.rank, faulty.reports[3].rank), (Some(3), Some(3)));
    assert!(report.rating_after.mu < report.rating_before.mu);
    assert_eq!((report.score, report.weight), (0.0, 0));
    assert_eq!(report.own_data_score_after, report.own_data_score_before);
    assert_eq!(faulty.reputations.seats[&seat(2)].faults, 1);
    assert_eq!(faulty.weights.len(), 2);
}

#[test]
fn a_proven_fault_is_penalised_for_the_epoch() {
    let long = RunParams { epoch_windows: 5, ..params() };
    let (before, _) = simulate(5, 20, &[HONEST; 4]);
    let fault = |label: &str| {
        let observed = Observed::Faulty { label: label.into(), detail: String::new() };
        let evidence = [Evidence { seat: seat(2), observed }];
        judge(&long, &before.reputations, Window(20), &evidence)
    };
    let (accident, proved) = (fault("missing"), fault("undecodable"));
    assert!(accident.reports[0].penalties.is_empty());
    assert_eq!(proved.reports[0].penalties[0].reason, PenaltyReason::Fault);
    let earned = |verdict: &Verdict| weights::earned(&verdict.reputations.seats[&seat(2)]);
    assert!(0.0 < earned(&accident));
    assert!((earned(&proved) - earned(&accident) * 0.25).abs() < 1e-12);
}

#[test]
fn an_absent_seat_is_unrated_and_unpaid_and_keeps_its_reputation() {
    let (before, _) = simulate(6, 20, &[HONEST; 4]);
    let away = next(6, &before.reputations, 20, &[HONEST, HONEST, HONEST, Miner::Away]);
    let report = &away.reports[3];
    assert_eq!(report.rank, None);
    assert_eq!(report.rating_after, report.rating_before.aged(1));
    assert_eq!((report.own_data_score_after, report.weight), (report.own_data_score_before, 0));
    assert_eq!(away.reputations.seats[&seat(3)].faults, 0);
}

#[test]
fn an_unobserved_contribution_is_no_fault_and_costs_half_a_windows_pay() {
    let (before, _) = simulate(7, 20, &[HONEST; 4]);
    let unlucky = next(7, &before.reputations, 20, &[HONEST, HONEST, HONEST, Miner::Unlucky]);
    let report = &unlucky.reports[3];
    assert_eq!(report.observed, Seen::Unobserved);
    assert_eq!(report.trained_share, 0.5);
    assert_eq!((report.rank, report.own_data_score_after), (None, report.own_data_score_before));
    // Apart from a window's growth of uncertainty, and the field's median, in which the seat counts half.
    let expected = 0.5 * before.reports[3].score;
    assert!((report.score - expected).abs() < 0.05 * expected, "{} {expected}", report.score);
    assert!(report.weight > 0);
}

#[test]
fn a_seat_whose_turn_it_was_not_is_unpaid_for_the_window_and_loses_nothing_else() {
    let (before, _) = simulate(7, 20, &[HONEST; 4]);
    let evidence = |observed: Observed| {
        let waiting = |uid| Evidence {
            seat: seat(uid),
            observed: Observed::Valid { trained: 100, measured: None, near_duplicate: None },
        };
        vec![waiting(0), waiting(1), waiting(2), Evidence { seat: seat(3), observed }]
    };
    let mut scores = Vec::new();
    let mut after_four = |observed: Observed| {
        let mut reputations = before.reputations.clone();
        for window in 20..24 {
            let verdict = judge(&params(), &reputations, Window(window), &evidence(observed.clone()));
            scores.push(verdict.reports[3].score);
            reputations = verdict.reputations;
        }
        let worked = evidence(Observed::Absent)[0].observed.clone();
        let verdict = judge(&params(), &reputations, Window(24), &evidence(worked));
        (verdict.reports[3].score, verdict.reports[3].own_data_score_after)
    };
    let waited = after_four(Observed::Unfetched);
    let worked = after_four(evidence(Observed::Absent)[0].observed.clone());
    assert_eq!(waited, worked);
    assert_eq!(scores[..4], [0.0; 4]);
    assert!(scores[4..].iter().all(|score| 0.0 < *score));
}

#[test]
fn a_seat_is_paid_for_the_part_it_trained() {
    let (before, _) = simulate(8, 20, &[HONEST; 2]);
    let trained = |trained| Evidence {
        seat: seat(0),
        observed: Observed::Valid { trained, measured: None, near_duplicate: None },
    };
    let score = |count| judge(&params(), &before.reputations, Window(20), &[trained(count)]).reports[0].score;
    assert!((score(10) * 10.0 - score(100)).abs() < 1e-9);
    assert_eq!(score(0), 0.0);
}

#[test]
fn an_absent_window_costs_its_part_of_the_epochs_weight() {
    let params = RunParams { epoch_windows: 10, ..params() };
    let (mut verdict, _) = simulate(9, 30, &[HONEST; 2]);
    let mut alone = 0.0;
    for window in 30..40 {
        let miners = if window == 35 { [HONEST, Miner::Away] } else { [HONEST, HONEST] };
        let evidence: Vec<_> =
            miners.iter().enumerate().map(|(uid, miner)| evidence(9, window, uid, *miner)).collect();
        verdict = judge(&params, &verdict.reputations, Window(window), &evidence);
        alone += verdict.reports[1].score;
    }
    let recent = &verdict.reputations.seats[&seat(1)].recent;
    assert_eq!((recent.len(), recent[5].score), (10, 0.0));
    assert!((recent.iter().map(WindowScore::paid).sum::<f64>() - alone).abs() < 1e-9);
}

#[test]
fn a_broken_model_ranks_last_and_all_numbers_stay_finite() {
    let broken = Observed::Valid {
        trained: 100,
        measured: Some(Measured {
            own: vec![LossPair { sequence: 1, before: 3.0, after: f64::NAN }; 4],
            common: vec![LossPair { sequence: 2, before: 3.0, after: f64::INFINITY }; 4],
        }),
        near_duplicate: None,
    };
    let mut all: Vec<_> = (0..3).map(|uid| evidence(10, 0, uid, HONEST)).collect();
    all.push(Evidence { seat: seat(3), observed: broken });
    let verdict = judge(&params(), &Reputations::default(), Window(0), &all);
    assert_eq!(verdict.reports[3].rank, Some(4));
    assert_eq!(verdict.reports[3].penalties.len(), 1);
    assert!(verdict.weights.iter().all(|(uid, _)| *uid != Uid(3)));
    assert!(
        verdict
            .reputations
            .seats
            .values()
            .all(|seat| seat.rating.mu.is_finite() && seat.own_data_score.is_finite())
    );
}

#[test]
fn a_new_holder_of_a_seat_inherits_nothing() {
    let (before, _) = simulate(11, 20, &[HONEST; 2]);
    let newcomer = SeatId { registered_at: Block(900), ..seat(0) };
    let evidence = [
        Evidence { seat: newcomer, observed: Observed::Absent },
        // The old holder is in the evidence too, by mistake: the later registration counts.
        Evidence { seat: seat(0), observed: Observed::Absent },
        evidence(11, 20, 1, HONEST),
    ];
    let verdict = judge(&params(), &before.reputations, Window(20), &evidence);
    assert_eq!(verdict.reports.len(), 2);
    assert_eq!(verdict.reports[0].seat, newcomer);
    assert_eq!(verdict.reputations.seats[&newcomer].own_data_score, 0.0);
    assert!(!verdict.reputations.seats.contains_key(&seat(0)));
    assert!(verdict.reputations.seats.contains_key(&seat(1)));
}

#[test]
fn windows_that_were_not_judged_add_uncertainty() {
    let (before, _) = simulate(12, 5, &[HONEST; 2]);
    let verdict = next(12, &before.reputations, 24, &[Miner::Away, Miner::Away]);
    let expected = before.reputations.seats[&seat(0)].rating.aged(20);
    assert_eq!(verdict.reputations.seats[&seat(0)].rating, expected);
    // A seat that is not in the evidence ages too.
    let alone = next(12, &before.reputations, 24, &[Miner::Away]);
    assert_eq!(alone.reputations.seats[&seat(1)].rating, before.reputations.seats[&seat(1)].rating.aged(20));
    assert_eq!(alone.reports.len(), 1);
    assert_eq!(alone.weights, []);
    assert_eq!(alone.weights, weights(&alone.reputations));
}

#[test]
fn without_common_sequences_no_seat_is_rated() {
    let lone = Observed::Valid {
        trained: 100,
        measured: Some(Measured { own: losses([1, 1, 1], 0.02), common: vec![] }),
        near_duplicate: None,
    };
    let verdict =
        judge(&params(), &Reputations::default(), Window(0), &[Evidence { seat: seat(0), observed: lone }]);
    assert_eq!(verdict.reports[0].observed, Seen::Waiting);
    assert_eq!(verdict.reputations.seats[&seat(0)].last_evaluated, None);
    assert_eq!(verdict.weights, []);
}

#[test]
fn saved_evidence_is_judged_again_to_the_same_bit() {
    let (before, _) = simulate(13, 15, &[HONEST, Miner::Copycat, Miner::Harmful, Miner::Faulty]);
    let evidence: Vec<_> = [HONEST, Miner::Copycat, Miner::Away, Miner::Unlucky]
        .iter()
        .enumerate()
        .map(|(uid, miner)| evidence(13, 15, uid, *miner))
        .collect();
    let live = judge(&params(), &before.reputations, Window(15), &evidence);

    let saved = serde_json::to_string(&(&before.reputations, &evidence)).unwrap();
    let (reputations, evidence): (Reputations, Vec<Evidence>) = serde_json::from_str(&saved).unwrap();
    assert_eq!(reputations, before.reputations);
    assert_eq!(judge(&params(), &reputations, Window(15), &evidence), live);
    let harms = |report: &SeatReport| report.penalties.iter().any(|of| of.reason == PenaltyReason::Harm);
    assert!(live.reports.iter().any(harms));
}

#[test]
fn a_reputation_with_an_invalid_number_is_refused() {
    let (verdict, _) = simulate(14, 1, &[HONEST]);
    let saved = serde_json::to_string(&verdict.reputations).unwrap();
    assert!(serde_json::from_str::<Reputations>(&saved).is_ok());
    for broken in ["\"NaN\"", "\"inf\"", "\"much\""] {
        let text = saved.replace("\"mu\":\"25.0\"", &format!("\"mu\":{broken}"));
        assert_ne!(text, saved);
        assert!(serde_json::from_str::<Reputations>(&text).is_err());
    }
}

fn near_duplicate(uid: u16, window: u32) -> NearDuplicate {
    NearDuplicate { uid: Uid(uid), window: Window(window), digest: Digest::default(), alike: 0.97 }
}

fn with_near_duplicate(evidence: Evidence, found: NearDuplicate) -> Evidence {
    match evidence.observed {
        Observed::Valid { trained, measured, .. } => {
            let observed = Observed::Valid { trained, measured, near_duplicate: Some(found) };
            Evidence { observed, ..evidence }
        }
        observed => Evidence { observed, ..evidence },
    }
}

#[test]
fn a_replay_is_penalised_at_once_and_its_author_never() {
    let (before, _) = simulate(20, 40, &[HONEST; 4]);
    let mut verdict = before;
    let mut penalised = 0;
    for window in 40..60 {
        let mut all: Vec<_> = (0..3).map(|uid| evidence(20, window, uid, HONEST)).collect();
        all.push(with_near_duplicate(evidence(20, window, 3, Miner::Copycat), near_duplicate(0, window - 1)));
        verdict = judge(&params(), &verdict.reputations, Window(window), &all);
        assert!(verdict.reports[..3].iter().all(|report| report.penalties.is_empty()));
        let copy = &verdict.reports[3];
        assert_eq!(copy.near_duplicate, Some(near_duplicate(0, window - 1)));
        assert!(copy.penalties.iter().all(|penalty| penalty.reason == PenaltyReason::Duplicate));
        penalised += copy.penalties.iter().filter(|penalty| penalty.since == Window(window)).count();
    }
    // A copy's gap is above one error in a window out of six.
    assert!((12..=20).contains(&penalised), "{penalised}");
    assert!(verdict.reports[3].score < verdict.reports[0].score / 100.0);
}

#[test]
fn a_seat_that_was_copied_in_the_same_window_loses_nothing() {
    let (mut robbed, _) = simulate(21, 10, &[HONEST, HONEST, HONEST, Miner::Copycat]);
    let mut alone = robbed.clone();
    for window in 10..30 {
        let plain: Vec<_> = [HONEST, HONEST, HONEST, Miner::Copycat]
            .iter()
            .enumerate()
            .map(|(uid, miner)| evidence(21, window, uid, *miner))
            .collect();
        let found: Vec<_> = plain
            .iter()
            .cloned()
            .map(|evidence| match evidence.seat.uid.0 {
                0 => with_near_duplicate(evidence, near_duplicate(3, window)),
                3 => with_near_duplicate(evidence, near_duplicate(0, window)),
                _ => evidence,
            })
            .collect();
        robbed = judge(&params(), &robbed.reputations, Window(window), &found);
        alone = judge(&params(), &alone.reputations, Window(window), &plain);
        assert_eq!(robbed.reputations.seats[&seat(0)], alone.reputations.seats[&seat(0)]);
    }
    assert!(robbed.reports[0].weight > 60_000);
}

#[test]
fn penalties_survive_a_restart() {
    let (before, _) = simulate(22, 30, &[HONEST; 3]);
    let harmed = next(22, &before.reputations, 30, &[HONEST, HONEST, Miner::Harmful]);
    let saved = serde_json::to_vec(&harmed.reputations).unwrap();
    let restarted: Reputations = serde_json::from_slice(&saved).unwrap();
    assert_eq!(restarted, harmed.reputations);
    let (on, again) =
        (next(22, &harmed.reputations, 31, &[HONEST; 3]), next(22, &restarted, 31, &[HONEST; 3]));
    assert_eq!(on, again);
    assert_eq!(again.reports[2].penalties[0].since, Window(30));
}

#[test]
fn a_slow_seat_that_declares_its_share_is_paid_that_share() {
    let slow = |window| {
        let mut all: Vec<_> = (0..4).map(|uid| evidence(23, window, uid, HONEST)).collect();
        let names = |kind: u64| [23, window.into(), kind * 1000 + 4];
        // Half of the sequences, and three fifths of the gain.
        let measured = Some(Measured { own: losses(names(1), 0.035), common: losses(names(2), 0.005) });
        let observed = Observed::Valid { trained: 50, measured, near_duplicate: None };
        all.push(Evidence { seat: seat(4), observed });
        all
    };
    let mut verdict = judge(&params(), &Reputations::default(), Window(0), &slow(0));
    for window in 1..60 {
        verdict = judge(&params(), &verdict.reputations, Window(window), &slow(window));
    }
    let (full, half) = (&verdict.reports[0], &verdict.reports[4]);
    assert_eq!((full.rating_factor, half.rating_factor), (1.0, 1.0));
    assert!((half.score / full.score - 0.5).abs() < 0.05, "{} of {}", half.score, full.score);
}

fn any_observed() -> impl Strategy<Value = Observed> {
    let pairs = || {
        proptest::collection::vec((any::<u64>(), any::<f64>(), any::<f64>()), 0..5).prop_map(|pairs| {
            pairs
                .into_iter()
                .map(|(sequence, before, after)| LossPair { sequence, before, after })
                .collect::<Vec<_>>()
        })
    };
    let measured =
        proptest::option::of((pairs(), pairs()).prop_map(|(own, common)| Measured { own, common }));
    prop_oneof![
        Just(Observed::Absent),
        Just(Observed::Unobserved),
        Just(Observed::Unfetched),
        Just(Observed::Faulty { label: "late".into(), detail: "late".into() }),
        (any::<u32>(), measured, proptest::option::of((0u16..9, 0u32..9))).prop_map(
            |(trained, measured, found)| {
                Observed::Valid {
                    trained,
                    measured,
                    near_duplicate: found.map(|(uid, window)| near_duplicate(uid, window)),
                }
            }
        ),
    ]
}

proptest! {
    #[test]
    fn any_evidence_has_an_ordered_and_finite_verdict(
        windows in proptest::collection::vec(
            (any::<u32>(), proptest::collection::vec((0usize..6, 0u32..3, any_observed()), 0..8)), 1..5,
        ),
    ) {
        let mut reputations = Reputations::default();
        for (window, seats) in windows {
            let evidence: Vec<_> = seats
                .into_iter()
                .map(|(uid, age, observed)| Evidence {
                    seat: SeatId { registered_at: Block(age), ..seat(uid) },
                    observed,
                })
                .collect();
            let verdict = judge(&params(), &reputations, Window(window), &evidence);
            prop_assert!(protocol::weights::is_canonical(&verdict.weights));
            prop_assert!(verdict.reports.windows(2).all(|pair| pair[0].seat.uid < pair[1].seat.uid));
            let field = verdict.reputations.median_own_data_score();
            for seat in verdict.reputations.seats.values() {
                prop_assert!(seat.rating.mu.is_finite() && seat.rating.sigma.is_finite());
                prop_assert!((-1.0..=1.0).contains(&seat.own_data_score));
                prop_assert!(seat.penalties.len() <= 20);
                prop_assert!((0.0..=1.0).contains(&seat.score(verdict.reports.first().map_or(0.0, |report| report.median_rating), field)));
            }
            reputations = verdict.reputations;
        }
    }

    #[test]
    fn the_order_of_the_evidence_does_not_matter(seats in proptest::collection::vec(any_observed(), 0..7), turn in 0usize..7) {
        let mut evidence: Vec<_> = seats
            .into_iter()
            .enumerate()
            .map(|(uid, observed)| Evidence { seat: seat(uid), observed })
            .collect();
        let expected = judge(&params(), &Reputations::default(), Window(3), &evidence);
        if !evidence.is_empty() {
            let turn = turn % evidence.len();
            evidence.rotate_left(turn);
        }
        prop_assert_eq!(judge(&params(), &Reputations::default(), Window(3), &evidence), expected);
    }

    /// A seat whose measured gap is above noise gets no penalty from any contribution of others: not by similarity,
    /// gain, harm or fault.
    #[test]
    fn no_contribution_of_others_penalises_an_honest_seat(
        others in proptest::collection::vec(any_observed(), 0..7),
        windows in 1u32..6,
        found in 0u32..9,
        uid in 1u16..8,
    ) {
        let mut reputations = Reputations::default();
        for window in 10..10 + windows {
            let mine = evidence(30, window, 0, HONEST);
            let gap = score::gains(mine.observed.measured().unwrap()).unwrap().gap_in_errors().unwrap();
            prop_assume!(gap > 1.0);
            // Similar work of others can only be of the same window: the data were not assigned before.
            let mut all = vec![if found < 6 { with_near_duplicate(mine, near_duplicate(uid, window)) } else { mine }];
            all.extend(others.iter().enumerate().map(|(place, observed)| Evidence {
                seat: seat(place + 1),
                observed: observed.clone(),
            }));
            let verdict = judge(&params(), &reputations, Window(window), &all);
            prop_assert!(verdict.reports[0].penalties.is_empty());
            reputations = verdict.reputations;
        }
    }
}
