//! What a contribution does to the loss, and what that says about where it comes from (PROT-22, PROT-24, PROT-25).
//!
//! Own work shows most on one's own sequences: the contribution has seen them. A copied gradient helps everywhere alike.
//! The difference of the two gains, the *gap*, is therefore the sign of own work, and its size says how much of it.

use super::evidence::{LossPair, Measured};

/// `m` moves by this part of each outcome: about twenty evaluations of memory (PROT-24).
const MARK_RATE: f64 = 0.05;
/// And by this part where the window shows nothing of the seat's own data.
const FALL_RATE: f64 = 0.3;
/// Harm is what lies below zero by so many standard errors (PROT-25).
const HARM_ERRORS: f64 = 3.0;
/// A window whose usual gap is smaller than so many standard errors is graded on its noise instead: there, nobody's gap
/// says much.
const SCALE_ERRORS: f64 = 3.0;

/// What a contribution does on both kinds of sequences.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Gains {
    /// `None` where no sequence of its own could be measured.
    pub own: Option<Gain>,
    pub common: Gain,
}

/// A seat stands behind another in the match where it gained less than this part of what the other did … (PROT-23)
pub const PLACE_SHARE: f64 = 0.5;
/// … by so many standard errors.
pub const PLACE_ERRORS: f64 = 2.0;

/// A relative gain, or a difference of two: the part of the loss taken away, so that a late window with a low loss counts
/// like an early one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Gain {
    pub mean: f64,
    /// Its standard error, each sequence being paired with itself before and after; `None` for a single sequence.
    pub error: Option<f64>,
}

/// How much more a contribution does on its own data.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Gap {
    pub mean: f64,
    pub error: f64,
}

/// `None` where there are no common sequences to compare anyone on.
pub fn gains(measured: &Measured) -> Option<Gains> {
    Some(Gains { own: gain(&measured.own), common: gain(&measured.common)? })
}

impl Gains {
    /// `None` where one of the two kinds has less than two sequences: then no error is known, and nothing is concluded.
    pub fn gap(&self) -> Option<Gap> {
        let own = self.own?;
        let (own_error, common_error) = (own.error?, self.common.error?);
        Some(Gap {
            mean: own.mean - self.common.mean,
            error: libm::sqrt(own_error * own_error + common_error * common_error),
        })
    }

    /// The gap in standard errors; `None` where there was too little to test. Own work lies several above zero, somebody else's around it.
    pub fn gap_in_errors(&self) -> Option<f64> {
        self.gap().map(|gap| if gap.mean == 0.0 { 0.0 } else { gap.mean / gap.error })
    }

    /// Whether it makes the model worse beyond doubt.
    pub fn harms(&self) -> bool {
        self.common.error.is_some_and(|error| self.common.mean < -HARM_ERRORS * error)
    }
}

/// A contribution in the window's match: what it did on the common sequences, and `t/n`, for how much work it says it stands.
#[derive(Clone, Copy, Debug)]
pub struct Player<'a> {
    pub common: &'a [LossPair],
    pub share: f64,
}

/// Whether `better` is better work than `worse` beyond luck: it took more than twice as much of the loss away, and also more than twice as
/// much for what its seat says it trained, by more than chance explains. Honest seats' gains differ by up to that within a window, from the
/// luck of their data; and a slow machine that declares less is not behind a fast one.
pub fn better_work(better: Player<'_>, worse: Player<'_>) -> bool {
    let for_work = worse.share.max(f64::MIN_POSITIVE) / better.share.max(f64::MIN_POSITIVE);
    beyond_doubt((better.common, PLACE_SHARE), worse.common)
        && (1.0 <= for_work || beyond_doubt((better.common, PLACE_SHARE * for_work), worse.common))
}

/// Whether a part of what one contribution took of the loss is still more than what another did, by more than chance explains: the difference
/// of the two, sequence by sequence, lies [`PLACE_ERRORS`] standard errors above zero. Both were measured on the same sequences, so what is
/// hard about a sequence falls out. With fewer than two common sequences nothing is beyond doubt.
fn beyond_doubt((better, part): (&[LossPair], f64), worse: &[LossPair]) -> bool {
    // Half of a harm is not less harm: there, as it is.
    let part = if 0.0 < better.iter().map(LossPair::difference).sum::<f64>() { part } else { 1.0 };
    let differences: Vec<f64> = better
        .iter()
        .zip(worse)
        .map(|(better, worse)| part * better.difference() - worse.difference())
        .collect();
    if differences.len() < 2 {
        return false;
    }
    let count = differences.len() as f64;
    let mean = differences.iter().sum::<f64>() / count;
    let scatter: f64 = differences.iter().map(|difference| (difference - mean) * (difference - mean)).sum();
    let error = libm::sqrt(scatter / (count - 1.0) / count);
    0.0 < mean && PLACE_ERRORS * error <= mean
}

/// Mean difference over mean baseline, and the error of that quotient: the scatter of `d_i − gain·baseline_i`.
fn gain(pairs: &[LossPair]) -> Option<Gain> {
    if pairs.is_empty() {
        return None;
    }
    let count = pairs.len() as f64;
    let baseline = pairs.iter().map(LossPair::baseline).sum::<f64>() / count;
    let mean = pairs.iter().map(LossPair::difference).sum::<f64>() / count / baseline;
    let scatter: f64 = pairs
        .iter()
        .map(|pair| {
            let residual = pair.difference() - mean * pair.baseline();
            residual * residual
        })
        .sum();
    let error = (pairs.len() > 1).then(|| libm::sqrt(scatter / (count * (count - 1.0))) / baseline);
    Some(Gain { mean, error })
}

/// What counts as one whole gap in this window: the median of all that were measured, but never less than the noise.
/// So a window of copies alone is not graded by the largest accident in it. 0 where nothing was measured.
pub fn gap_scale<'a>(gains: impl Iterator<Item = &'a Gains>) -> f64 {
    let (mut means, mut errors): (Vec<f64>, Vec<f64>) =
        gains.filter_map(Gains::gap).map(|gap| (gap.mean, gap.error)).unzip();
    let noise = SCALE_ERRORS * median(&mut errors);
    median(&mut means).max(noise)
}

/// From −1 to 1: the gap on the window's scale. Odd in the gap: what is noise averages out, and a mark that nothing earned stays at 0.
///
/// Whoever declares a part `share` of its sequences is measured by a somewhat smaller gap, the fourth root of it: a shorter training has been
/// seen to leave from 0.87 to 1.4 times the gap on each of its sequences that a whole one does, for half of them.
pub fn outcome(gap: &Gap, scale: f64, share: f64) -> Outcome {
    let expected = scale * libm::sqrt(libm::sqrt(share.clamp(0.0, 1.0)));
    if expected <= 0.0 {
        return Outcome { value: 0.0, error: 0.0 };
    }
    Outcome { value: (gap.mean / expected).clamp(-1.0, 1.0), error: gap.error / expected }
}

/// What a window's own-data test came to, and its standard error.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Outcome {
    pub value: f64,
    pub error: f64,
}

/// `m ← 0.95·m + 0.05·outcome`, once for each of `windows`: the outcome stands for all that the seat worked since it was last measured. So
/// the mark of a seat whose turn comes seldom moves as fast as everybody's. With it goes its variance, which knows that the windows share one
/// measurement.
///
/// A measurement that shows nothing at all of the seat's own data, no gap or one that points away from them, takes the mark down much faster
/// than work raises it: otherwise who worked once could send anything for twenty windows more. To own work that happens next to never,
/// to anything else in half of all windows.
pub fn updated_own_data_score(
    own_data_score: f64,
    variance: f64,
    outcome: Outcome,
    windows: u32,
) -> (f64, f64) {
    let shows_nothing = outcome.value <= 0.0 && outcome.value < own_data_score;
    let first = if shows_nothing { FALL_RATE } else { MARK_RATE };
    let kept =
        (0..windows).fold(1.0, |kept, window| kept * (1.0 - if window == 0 { first } else { MARK_RATE }));
    let moved = 1.0 - kept;
    let error = (moved * outcome.error).min(1.0);
    (kept * own_data_score + moved * outcome.value, kept * kept * variance + error * error)
}

/// What of a mark noise does not explain: `m·(1 − v/m²)`, at least 0. A mark of no more than its own standard error is nothing, one of three
/// loses a ninth, one of ten a hundredth.
pub fn proven(own_data_score: f64, variance: f64) -> f64 {
    if own_data_score <= 0.0 { 0.0 } else { (own_data_score - variance / own_data_score).max(0.0) }
}

/// The mean of the two in the middle where there are an even number; 0 of none.
fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match (values.get(middle.wrapping_sub(1)), values.get(middle)) {
        (Some(below), Some(above)) if values.len().is_multiple_of(2) => (below + above) / 2.0,
        (_, Some(above)) => *above,
        (_, None) => 0.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(differences: &[f64]) -> Vec<LossPair> {
        differences.iter().enumerate().map(|(i, d)| LossPair::new(i as u64, 4.0, 4.0 - d)).collect()
    }

    #[track_caller]
    fn close(one: f64, other: f64) {
        assert!((one - other).abs() < 1e-12, "{one} is not {other}");
    }

    #[test]
    fn one_seat_is_better_than_another_only_beyond_doubt() {
        let pairs = |afters: &[f64]| -> Vec<LossPair> {
            afters.iter().enumerate().map(|(i, after)| LossPair::new(i as u64, 2.0, *after)).collect()
        };
        let beyond_doubt = |better, worse| super::beyond_doubt((better, 1.0), worse);
        let good = pairs(&[1.0, 1.2, 1.1, 1.3]);
        let surely_worse = pairs(&[1.1, 1.31, 1.2, 1.4]);
        let perhaps_worse = pairs(&[1.4, 0.9, 1.5, 1.1]);
        assert!(beyond_doubt(&good, &surely_worse));
        assert!(!beyond_doubt(&surely_worse, &good));
        assert!(!beyond_doubt(&good, &perhaps_worse), "chance explains it");
        assert!(!beyond_doubt(&good, &good));
        assert!(!beyond_doubt(&good[..1], &surely_worse[..1]), "one sequence tells nothing");
        // The same difference everywhere leaves no doubt at all.
        assert!(beyond_doubt(&pairs(&[1.0, 1.0]), &pairs(&[1.5, 1.5])));
    }

    #[test]
    fn a_gain_is_relative_and_knows_its_error() {
        let gain = gain(&pairs(&[0.2, 0.4, 0.6])).unwrap();
        close(gain.mean, 0.1);
        // Standard deviation 0.2, of three: 0.2/√3, over a baseline of 4.
        close(gain.error.unwrap(), 0.2 / 3f64.sqrt() / 4.0);
    }

    #[test]
    fn a_contribution_that_takes_the_same_part_of_every_loss_has_no_error() {
        let pairs: Vec<_> = [2.0, 3.0, 7.0].iter().map(|loss| LossPair::new(0, *loss, loss * 0.9)).collect();
        let gain = gain(&pairs).unwrap();
        close(gain.mean, 0.1);
        close(gain.error.unwrap(), 0.0);
    }

    #[test]
    fn without_sequences_nothing_is_concluded() {
        assert_eq!(gain(&[]), None);
        assert_eq!(gain(&pairs(&[0.4])).unwrap().error, None);
        assert_eq!(gains(&Measured { own: pairs(&[0.1, 0.2]), common: vec![] }), None);
        let lone = gains(&Measured { own: pairs(&[0.1]), common: pairs(&[0.1, 0.2]) }).unwrap();
        assert_eq!(lone.gap(), None);
        let none = gains(&Measured { own: vec![], common: pairs(&[0.1, 0.2]) }).unwrap();
        assert_eq!(none.gap(), None);
        assert_eq!(gap_scale([].iter()), 0.0);
    }

    #[test]
    fn harm_is_what_lies_three_errors_below_zero() {
        let harms = |common: &[f64]| gains(&Measured { own: vec![], common: pairs(common) }).unwrap().harms();
        assert!(harms(&[-0.5, -0.6, -0.55, -0.52]));
        assert!(!harms(&[-0.5, 0.4, -0.1, -0.2]));
        assert!(!harms(&[0.5, 0.6]));
        assert!(harms(&[-0.1, -0.1]));
        assert!(!harms(&[-0.1]));
        assert!(!harms(&[0.0, 0.0]));
    }

    #[test]
    fn an_outcome_is_graded_bounded_and_odd() {
        let at = |mean: f64, error: f64| outcome(&Gap { mean, error }, 0.02, 1.0);
        close(at(0.02, 0.0).value, 1.0);
        close(at(0.002, 0.0).value, 0.1);
        close(at(0.5, 0.0).value, 1.0);
        close(at(-0.5, 0.0).value, -1.0);
        close(at(0.01, 0.004).error, 0.2);
        close(at(-0.013, 0.004).value, -at(0.013, 0.004).value);
        close(outcome(&Gap { mean: 0.005, error: 0.0 }, 0.02, 0.0625).value, 0.5);
        assert_eq!(outcome(&Gap { mean: 1.0, error: 0.5 }, 0.0, 1.0), Outcome { value: 0.0, error: 0.0 });
    }

    #[test]
    fn a_mark_moves_once_for_each_window_that_a_measurement_stands_for() {
        let outcome = Outcome { value: 1.0, error: 0.3 };
        let (mut own_data_score, mut variance) = (0.2, 0.0);
        close(updated_own_data_score(own_data_score, variance, outcome, 0).0, 0.2);
        for _ in 0..3 {
            (own_data_score, variance) = updated_own_data_score(own_data_score, variance, outcome, 1);
        }
        let (at_once, with_one_error) = updated_own_data_score(0.2, 0.0, outcome, 3);
        close(at_once, own_data_score);
        assert!(variance < with_one_error, "three measurements say more than one");
    }

    #[test]
    fn a_mark_falls_fast_where_nothing_of_ones_own_shows() {
        let at = |value: f64| updated_own_data_score(0.8, 0.0, Outcome { value, error: 0.2 }, 1).0;
        close(at(-0.1), 0.7 * 0.8 + 0.3 * -0.1);
        close(at(0.0), 0.7 * 0.8);
        close(at(0.1), 0.95 * 0.8 + 0.05 * 0.1);
        // Once for a measurement, however many windows it stands for, and never upwards.
        close(
            updated_own_data_score(0.8, 0.0, Outcome { value: 0.0, error: 0.2 }, 3).0,
            0.7 * 0.95 * 0.95 * 0.8,
        );
        close(
            updated_own_data_score(-0.5, 0.0, Outcome { value: -0.1, error: 0.2 }, 1).0,
            0.95 * -0.5 + 0.05 * -0.1,
        );
    }

    #[test]
    fn a_mark_that_noise_explains_proves_nothing() {
        close(proven(0.1, 0.01), 0.0);
        close(proven(0.1, 0.04), 0.0);
        close(proven(0.3, 0.01), 0.3 * 8.0 / 9.0);
        close(proven(0.5, 0.0), 0.5);
        close(proven(-0.5, 0.0), 0.0);
        close(proven(0.0, 0.0), 0.0);
    }

    #[test]
    fn the_scale_is_the_usual_gap_but_never_below_the_noise() {
        let seat = |own: f64, error: f64| Gains {
            own: Some(Gain { mean: own, error: Some(error) }),
            common: Gain { mean: 0.0, error: Some(0.0) },
        };
        close(gap_scale([seat(0.1, 0.01), seat(0.2, 0.01), seat(0.4, 0.01)].iter()), 0.2);
        close(gap_scale([seat(0.1, 0.01), seat(0.2, 0.01)].iter()), 0.15);
        close(gap_scale([seat(0.001, 0.01), seat(-0.2, 0.01), seat(0.4, 0.01)].iter()), 0.03);
        close(gap_scale([seat(-0.1, 0.01)].iter()), 0.03);
    }

    #[test]
    fn a_median_is_the_middle() {
        assert_eq!(median(&mut [3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&mut [4.0, 1.0, 2.0, 3.0]), 2.5);
        assert_eq!(median(&mut [7.0]), 7.0);
        assert_eq!(median(&mut []), 0.0);
    }
}
