//! Scores a contribution: its effect on the loss, and whether it is the seat's own work (PROT-22, PROT-24, PROT-25).
//!
//! Own work gains most on the seat's own sequences; a copied gradient gains the same on all. The difference of the
//! two gains, the *gap*, shows own work, and its size how much of it.

use super::{
    evidence::{LossPair, Measured},
    median,
};

/// The part of each outcome that enters the own-data score: a memory of about twenty evaluations (PROT-24).
const SCORE_RATE: f64 = 0.05;
/// [`SCORE_RATE`] in a seat's first evaluations, so that a newcomer's score reaches nine tenths in 22 of them.
const START_RATE: f64 = 0.1;
const START_EVALUATIONS: u32 = 30;
/// [`SCORE_RATE`] for a measurement that shows nothing of the seat's own data.
const FALL_RATE: f64 = 0.3;
/// A gain below zero by this many standard errors is harm (PROT-25).
const HARM_ERRORS: f64 = 3.0;
/// If the median gap of a window is below this many standard errors, gaps are graded on the noise instead.
const SCALE_ERRORS: f64 = 3.0;
/// The best tenth of the proven work sets the full gain (PROT-24).
const BEST_RANK: f64 = 0.9;
/// An own-data score is moved towards the field's by at most this many of its standard errors (PROT-25).
const SETTLED_ERRORS: f64 = 1.5;

/// Lower bound of a declared share of work; avoids division by zero.
const SHARE_MIN: f64 = 1e-12;

/// The gains of a contribution on both kinds of sequences.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Gains {
    /// `None` if no own sequence was measured.
    pub own: Option<Gain>,
    pub common: Gain,
}

/// Part of another's gain below which a seat may rank behind it, by [`RANK_ERRORS`] (PROT-23).
pub const RANK_SHARE: f64 = 0.5;
/// Standard errors by which a gain must be below that part.
pub const RANK_ERRORS: f64 = 2.0;

/// The relative reduction of the loss, so that a late window with a low loss counts like an early one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Gain {
    pub mean: f64,
    /// The standard error, with each sequence paired before and after; `None` for a single sequence.
    pub error: Option<f64>,
}

/// Excess of the gain on own data over the gain on common data.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Gap {
    pub mean: f64,
    pub error: f64,
}

/// The gains; `None` without common sequences.
pub fn gains(measured: &Measured) -> Option<Gains> {
    Some(Gains { own: gain(&measured.own), common: gain(&measured.common)? })
}

impl Gains {
    /// Returns the gap; `None` if one of the two kinds has fewer than two sequences, and so no error.
    pub fn gap(&self) -> Option<Gap> {
        let own = self.own?;
        let (own_error, common_error) = (own.error?, self.common.error?);
        Some(Gap {
            mean: own.mean - self.common.mean,
            error: libm::sqrt(own_error * own_error + common_error * common_error),
        })
    }

    /// Returns the gap in standard errors. Own work is several above zero, another seat's work around it.
    pub fn gap_in_errors(&self) -> Option<f64> {
        self.gap().map(|gap| if gap.mean == 0.0 { 0.0 } else { gap.mean / gap.error })
    }

    /// Returns whether the contribution makes the model significantly worse.
    pub fn harms(&self) -> bool {
        self.common.error.is_some_and(|error| self.common.mean < -HARM_ERRORS * error)
    }
}

/// A contribution in the window's rating round: its losses on the common sequences, and its declared share of work
/// `t/n`.
#[derive(Clone, Copy, Debug)]
pub struct Player<'a> {
    pub common: &'a [LossPair],
    pub share: f64,
}

/// Returns whether `better` is significantly better work than `worse`. It must have reduced the loss more than twice
/// as much, also relative to the least gain expected of the declared shares. Gains of honest seats differ by up to a
/// factor of two within a window, by chance. A slow machine that declares less does not rank behind a fast one.
pub fn better_work(better: Player<'_>, worse: Player<'_>) -> bool {
    let for_work = least_gain(worse.share) / least_gain(better.share);
    significantly_more((better.common, RANK_SHARE), worse.common)
        && (1.0 <= for_work || significantly_more((better.common, RANK_SHARE * for_work), worse.common))
}

/// Returns the least gain expected of a part `share` of the sequences, relative to all of them.
fn least_gain(share: f64) -> f64 {
    let share = share.clamp(SHARE_MIN, 1.0);
    share * libm::sqrt(share)
}

/// Returns whether `part` of one contribution's reduction is significantly more than another's: the paired difference
/// over the sequences is [`RANK_ERRORS`] standard errors above zero. With fewer than two common sequences it never
/// is.
fn significantly_more((better, part): (&[LossPair], f64), worse: &[LossPair]) -> bool {
    // Do not scale negative gains.
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
    0.0 < mean && RANK_ERRORS * error <= mean
}

/// Returns mean difference over mean baseline, with the error of that quotient from the scatter of `d_i −
/// gain·baseline_i`.
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

/// Values that count as full work in a window: the scale of every outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Scale {
    /// The median gap, but at least the noise, so that a window of copies is not graded by chance. 0 without
    /// measurements.
    pub gap: f64,
    /// `None` if gains are within the noise.
    pub gain: Option<GainScale>,
}

/// Gains on common sequences, each seat counted by its proven work.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GainScale {
    pub median: f64,
    /// The gain that a tenth of the work reaches.
    pub best: f64,
    /// The median standard error of a gain over all seats, which no seat can raise for itself.
    pub error: f64,
}

/// A measured seat as it counts in the window's [`Scale`].
#[derive(Clone, Copy, Debug)]
pub struct Sample<'a> {
    pub gains: &'a Gains,
    /// The work that the seat had proven before the window.
    pub claim: f64,
}

/// The scale of a window.
///
/// Each measurement counts by its seat's proven work. If no work is proven yet, significant gaps count alike;
/// if there are none, all count.
///
/// The noise is also that of the window's significant gains of all seats, each counted by its size. Otherwise seats
/// with most of the proven work could stop: a contribution of almost nothing has almost no error, so they would lower
/// the scale, and with it the proof of all others. Such a raised scale lowers outcomes and their errors alike.
pub fn scale<'a>(measured: impl Iterator<Item = Sample<'a>>) -> Scale {
    let samples: Vec<(Sample<'_>, Gap)> =
        measured.filter_map(|sample| Some((sample, sample.gains.gap()?))).collect();
    let error_of = |gain: Gain| gain.error.unwrap_or(0.0);
    let works = |(sample, _): &&(Sample<'_>, Gap)| {
        let common = sample.gains.common;
        0.0 < common.mean && SCALE_ERRORS * error_of(common) <= common.mean
    };
    let noise = |error: &dyn Fn(&(Sample<'_>, Gap)) -> f64| {
        let errors = samples.iter().filter(works).map(|sample| (error(sample), sample.0.gains.common.mean));
        median::weighted_median(errors).unwrap_or(0.0)
    };
    let gap_noise = noise(&|(_, gap)| gap.error);
    let gain_noise = noise(&|(sample, _)| error_of(sample.gains.common));

    let scale_by = |weight: &dyn Fn(&(Sample<'_>, Gap)) -> f64| -> Option<Scale> {
        let of = |rank: f64, number: &dyn Fn(&(Sample<'_>, Gap)) -> f64| {
            median::weighted_quantile(samples.iter().map(|sample| (number(sample), weight(sample))), rank)
        };
        let error = of(0.5, &|(_, gap)| gap.error)?.max(gap_noise);
        let gap = of(0.5, &|(_, gap)| gap.mean)?.max(SCALE_ERRORS * error);
        let [median, best] = [0.5, BEST_RANK].map(|rank| of(rank, &|(sample, _)| sample.gains.common.mean));
        let (median, best) = (median?, best?);
        let error = of(0.5, &|(sample, _)| error_of(sample.gains.common))?;
        let gain =
            (SCALE_ERRORS * error.max(gain_noise) < median).then_some(GainScale { median, best, error });
        Some(Scale { gap, gain })
    };
    let is_significant = |gap: &Gap| 0.0 < gap.mean && SCALE_ERRORS * gap.error <= gap.mean;
    scale_by(&|(sample, _)| sample.claim)
        .or_else(|| scale_by(&|(_, gap)| if is_significant(gap) { 1.0 } else { 0.0 }))
        .or_else(|| scale_by(&|_| 1.0))
        .unwrap_or_default()
}

/// The gap that a part `share` of the work is expected to leave, relative to the whole's: the fourth root. Training on
/// half of the sequences was measured to leave 0.87 to 1.4 times the gap on each.
fn gap_share(share: f64) -> f64 {
    libm::sqrt(libm::sqrt(share.clamp(0.0, 1.0)))
}

/// Returns the part of full pay for a gain, from 0 to 1, and its standard error. A part `p` of the sequences is
/// expected to gain between `p^(3/2)` and `p^(1/2)` of the whole: half of them were measured to gain 0.25 to 0.6. The
/// lower bound pays cheap work more than it gains: a part `x` of the gain, declared as `p = x^(2/3)`, is paid `p`, at
/// most 0.15 more than `x`.
///
/// The gain of a part that is expected within the noise may count as negative, so that a part without any gain averages
/// to nothing over windows, and its error is that of the part.
fn gain_factor(gain: Gain, scale: GainScale, share: f64) -> (f64, f64) {
    let GainScale { median, best, .. } = scale;
    let share = share.clamp(SHARE_MIN, 1.0);
    let error = gain.error.unwrap_or(0.0) / best;
    let [least, most] = [least_gain(share), libm::sqrt(share)].map(|part| gain.mean / part);
    // The gain of a whole window, as close to the median as the declared part allows.
    let whole = if least < median { least } else { most.max(median) } / best;
    if scale.is_noise(share) {
        return (whole.clamp(-1.0, 1.0), (error / share).min(1.0));
    }
    (whole.clamp(0.0, 1.0), error)
}

impl GainScale {
    /// Returns whether the gain that is expected of a part `share` of the work is within the noise. Never for the
    /// whole: the scale has gains above it.
    fn is_noise(&self, share: f64) -> bool {
        self.median * share < SCALE_ERRORS * self.error
    }
}

/// Returns the gap on the window's scale, from −1 to 1. A positive one is multiplied by the gain on its scale, from 0
/// to 1 (from −1 where it is noise), so that pay rises with both up to full work. The noise of a gap averages out to
/// 0 or less. A seat that declares a part `share` of its sequences is graded on smaller scales. Harm is −1, whatever
/// the gap. `None` if no gap was measured.
pub fn outcome(gains: &Gains, scale: Scale, share: f64) -> Option<Outcome> {
    let gap = gains.gap()?;
    let expected = scale.gap * gap_share(share);
    if expected <= 0.0 {
        return Some(Outcome { value: 0.0, error: 0.0, shows_nothing: true });
    }
    let (own, own_error) = ((gap.mean / expected).clamp(-1.0, 1.0), gap.error / expected);
    if gains.harms() {
        return Some(Outcome { value: -1.0, error: own_error, shows_nothing: true });
    }
    let (gain, gain_error) = match scale.gain {
        Some(scale) if 0.0 < own => gain_factor(gains.common, scale, share),
        _ => (1.0, 0.0),
    };
    let error = libm::sqrt((own_error * gain) * (own_error * gain) + (own * gain_error) * (own * gain_error));
    let is_noise = 0.0 < own && scale.gain.is_some_and(|scale| scale.is_noise(share));
    let value = own * gain;
    Some(Outcome { value, error, shows_nothing: value <= 0.0 && !is_noise })
}

/// The result of a window's own-data test, and its standard error.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Outcome {
    pub value: f64,
    pub error: f64,
    /// True if the outcome is at most 0, for another reason than the noise of a small part's gain.
    pub shows_nothing: bool,
}

/// The part of an outcome that enters the own-data score of a seat with this many evaluations before. A penalty ends
/// the faster start for as long as it lasts.
pub fn score_rate(evaluations: u32, is_penalised: bool) -> f64 {
    if evaluations < START_EVALUATIONS && !is_penalised { START_RATE } else { SCORE_RATE }
}

/// `m ← (1 − rate)·m + rate·outcome`, once for each of `windows`: the outcome stands for all work since the last
/// measurement, so that a rarely measured seat's score moves as fast as any. Returns the score and its variance, for
/// which the windows share one measurement.
///
/// An outcome of 0 or less lowers the score much faster than work raises it: otherwise a seat could stop working and
/// be paid for twenty windows more. It almost never happens to own work, and to other work in half of all windows.
pub fn updated_own_data_score(
    own_data_score: f64,
    variance: f64,
    outcome: Outcome,
    windows: u32,
    rate: f64,
) -> (f64, f64) {
    let falls = outcome.shows_nothing && outcome.value < own_data_score;
    let first = if falls { FALL_RATE } else { rate };
    let kept = (0..windows).fold(1.0, |kept, window| kept * (1.0 - if window == 0 { first } else { rate }));
    let moved = 1.0 - kept;
    let error = (moved * outcome.error).min(1.0);
    (kept * own_data_score + moved * outcome.value, kept * kept * variance + error * error)
}

/// The part of the own-data score that noise does not explain: `m·(1 − v/m²)`, at least 0. A score of one standard
/// error counts as 0, one of three loses a ninth, one of ten a hundredth.
pub fn proven(own_data_score: f64, variance: f64) -> f64 {
    if own_data_score <= 0.0 { 0.0 } else { (own_data_score - variance / own_data_score).max(0.0) }
}

/// The own-data score that is paid: moved towards the field's by at most `SETTLED_ERRORS` standard errors, so that
/// noise does not part equal seats. Both the score and that distance are lowered by the share that noise explains (see
/// [`proven`]).
pub fn settled(own_data_score: f64, variance: f64, field: f64) -> f64 {
    let proven = proven(own_data_score, variance);
    if proven <= 0.0 {
        return 0.0;
    }
    let certain = proven / own_data_score;
    let reach = certain * SETTLED_ERRORS * libm::sqrt(variance);
    let moved = own_data_score + (field - own_data_score).clamp(-reach, reach);
    certain * moved.clamp(0.0, 1.0)
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
    fn one_seat_is_better_than_another_only_if_significant() {
        let pairs = |afters: &[f64]| -> Vec<LossPair> {
            afters.iter().enumerate().map(|(i, after)| LossPair::new(i as u64, 2.0, *after)).collect()
        };
        let significantly_more = |better, worse| super::significantly_more((better, 1.0), worse);
        let good = pairs(&[1.0, 1.2, 1.1, 1.3]);
        let surely_worse = pairs(&[1.1, 1.31, 1.2, 1.4]);
        let perhaps_worse = pairs(&[1.4, 0.9, 1.5, 1.1]);
        assert!(significantly_more(&good, &surely_worse));
        assert!(!significantly_more(&surely_worse, &good));
        assert!(!significantly_more(&good, &perhaps_worse), "chance may explain it");
        assert!(!significantly_more(&good, &good));
        assert!(!significantly_more(&good[..1], &surely_worse[..1]), "one sequence has no error");
        // The same difference on every sequence has no error.
        assert!(significantly_more(&pairs(&[1.0, 1.0]), &pairs(&[1.5, 1.5])));
    }

    #[test]
    fn a_part_ranks_behind_the_whole_below_half_of_the_least_that_it_is_expected_to_gain() {
        let pairs = |gain: f64| -> Vec<LossPair> {
            (0..8)
                .map(|i| LossPair::new(i, 2.0, 2.0 - gain * (1.0 + 0.01 * f64::from(i as u32 % 2))))
                .collect()
        };
        let (whole, better) = (pairs(0.64), |part: &[LossPair]| {
            better_work(Player { common: &pairs(0.64), share: 1.0 }, Player { common: part, share: 0.0625 })
        });
        // A sixteenth is expected to gain a sixty-fourth.
        assert!(!better(&pairs(0.01)) && !better(&pairs(0.006)) && better(&pairs(0.004)));
        assert!(!better_work(
            Player { common: &pairs(0.01), share: 0.0625 },
            Player { common: &whole, share: 1.0 }
        ));
    }

    #[test]
    fn a_gain_is_relative_and_has_an_error() {
        let gain = gain(&pairs(&[0.2, 0.4, 0.6])).unwrap();
        close(gain.mean, 0.1);
        // Standard deviation 0.2, of three: 0.2/√3, over a baseline of 4.
        close(gain.error.unwrap(), 0.2 / 3f64.sqrt() / 4.0);
    }

    #[test]
    fn the_same_relative_reduction_of_every_loss_has_no_error() {
        let pairs: Vec<_> = [2.0, 3.0, 7.0].iter().map(|loss| LossPair::new(0, *loss, loss * 0.9)).collect();
        let gain = gain(&pairs).unwrap();
        close(gain.mean, 0.1);
        close(gain.error.unwrap(), 0.0);
    }

    #[test]
    fn without_sequences_there_is_no_gain() {
        assert_eq!(gain(&[]), None);
        assert_eq!(gain(&pairs(&[0.4])).unwrap().error, None);
        assert_eq!(gains(&Measured { own: pairs(&[0.1, 0.2]), common: vec![] }), None);
        let lone = gains(&Measured { own: pairs(&[0.1]), common: pairs(&[0.1, 0.2]) }).unwrap();
        assert_eq!(lone.gap(), None);
        let none = gains(&Measured { own: vec![], common: pairs(&[0.1, 0.2]) }).unwrap();
        assert_eq!(none.gap(), None);
    }

    #[test]
    fn harm_is_three_errors_below_zero() {
        let harms = |common: &[f64]| gains(&Measured { own: vec![], common: pairs(common) }).unwrap().harms();
        assert!(harms(&[-0.5, -0.6, -0.55, -0.52]));
        assert!(!harms(&[-0.5, 0.4, -0.1, -0.2]));
        assert!(!harms(&[0.5, 0.6]));
        assert!(harms(&[-0.1, -0.1]));
        assert!(!harms(&[-0.1]));
        assert!(!harms(&[0.0, 0.0]));
    }

    /// Gains with a gap of `gap ± error` and a common gain of `common`.
    fn seat(gap: f64, error: f64, common: f64) -> Gains {
        Gains {
            own: Some(Gain { mean: common + gap, error: Some(error) }),
            common: Gain { mean: common, error: Some(0.0) },
        }
    }

    #[test]
    fn an_outcome_is_graded_bounded_and_odd_where_gains_say_nothing() {
        let scale = Scale { gap: 0.02, gain: None };
        let at = |gap: f64, error: f64| outcome(&seat(gap, error, 0.0), scale, 1.0).unwrap();
        close(at(0.02, 0.0).value, 1.0);
        close(at(0.002, 0.0).value, 0.1);
        close(at(0.5, 0.0).value, 1.0);
        close(at(-0.5, 0.0).value, -1.0);
        close(at(0.01, 0.004).error, 0.2);
        close(at(-0.013, 0.004).value, -at(0.013, 0.004).value);
        close(outcome(&seat(0.005, 0.0, 0.0), scale, 0.0625).unwrap().value, 0.5);
        let none = Scale { gap: 0.0, gain: None };
        assert_eq!(
            outcome(&seat(1.0, 0.5, 0.0), none, 1.0),
            Some(Outcome { value: 0.0, error: 0.0, shows_nothing: true })
        );
    }

    #[test]
    fn an_outcome_rises_with_the_gain_up_to_the_best_tenth() {
        let scale = Scale { gap: 0.02, gain: Some(GainScale { median: 0.1, best: 0.125, error: 0.0 }) };
        let at = |gap: f64, common: f64| outcome(&seat(gap, 0.0, common), scale, 1.0).unwrap().value;
        close(at(0.02, 0.05), 0.4);
        close(at(0.02, 0.1), 0.8);
        close(at(0.02, 0.11), 0.88);
        close(at(0.02, 0.125), 1.0);
        close(at(0.02, 0.3), 1.0);
        close(at(0.01, 0.1), 0.4);
        // No gain and a gap: nothing. A negative gap stays what it is, and harm is −1 with any gap.
        close(at(0.02, 0.0), 0.0);
        close(at(-0.02, 0.05), -1.0);
        close(at(0.02, -0.1), -1.0);
    }

    #[test]
    fn a_declared_part_is_expected_to_gain_between_its_power_of_three_halves_and_its_root() {
        let scale = Scale { gap: 0.02, gain: Some(GainScale { median: 0.1, best: 0.125, error: 0.0 }) };
        let factor = |gain: f64| gain_factor(Gain { mean: gain, error: None }, scale.gain.unwrap(), 0.0625).0;
        close(factor(0.1 / 64.0), 0.8);
        close(factor(0.025), 0.8);
        close(factor(0.01), 0.8);
        close(factor(0.05 / 64.0), 0.4);
        close(factor(0.1), 1.0);
    }

    #[test]
    fn the_own_data_score_moves_once_for_each_window_of_a_measurement() {
        let outcome = Outcome { value: 1.0, error: 0.3, shows_nothing: false };
        let (mut own_data_score, mut variance) = (0.2, 0.0);
        close(updated_own_data_score(own_data_score, variance, outcome, 0, SCORE_RATE).0, 0.2);
        for _ in 0..3 {
            (own_data_score, variance) =
                updated_own_data_score(own_data_score, variance, outcome, 1, SCORE_RATE);
        }
        let (at_once, with_one_error) = updated_own_data_score(0.2, 0.0, outcome, 3, SCORE_RATE);
        close(at_once, own_data_score);
        assert!(variance < with_one_error, "three measurements have a smaller variance than one");
    }

    #[test]
    fn the_own_data_score_falls_fast_without_own_work() {
        let at = |value: f64| {
            updated_own_data_score(
                0.8,
                0.0,
                Outcome { value, error: 0.2, shows_nothing: value <= 0.0 },
                1,
                SCORE_RATE,
            )
            .0
        };
        close(at(-0.1), 0.7 * 0.8 + 0.3 * -0.1);
        close(at(0.0), 0.7 * 0.8);
        close(at(0.1), 0.95 * 0.8 + 0.05 * 0.1);
        // Once per measurement, for any number of windows, and never upwards.
        close(
            updated_own_data_score(
                0.8,
                0.0,
                Outcome { value: 0.0, error: 0.2, shows_nothing: true },
                3,
                SCORE_RATE,
            )
            .0,
            0.7 * 0.95 * 0.95 * 0.8,
        );
        close(
            updated_own_data_score(
                -0.5,
                0.0,
                Outcome { value: -0.1, error: 0.2, shows_nothing: true },
                1,
                SCORE_RATE,
            )
            .0,
            0.95 * -0.5 + 0.05 * -0.1,
        );
    }

    #[test]
    fn an_own_data_score_within_its_noise_proves_nothing() {
        close(proven(0.1, 0.01), 0.0);
        close(proven(0.1, 0.04), 0.0);
        close(proven(0.3, 0.01), 0.3 * 8.0 / 9.0);
        close(proven(0.5, 0.0), 0.5);
        close(proven(-0.5, 0.0), 0.0);
        close(proven(0.0, 0.0), 0.0);
    }

    #[test]
    fn a_new_seats_score_reaches_nine_tenths_in_its_first_evaluations() {
        let full = Outcome { value: 1.0, error: 0.1, shows_nothing: false };
        let score = (0..22).fold((0.0, 0.0), |(score, variance), evaluations| {
            updated_own_data_score(score, variance, full, 1, score_rate(evaluations, false))
        });
        assert!((0.9..0.91).contains(&score.0), "{score:?}");
        close(score_rate(START_EVALUATIONS, false), 0.05);
        close(score_rate(0, true), 0.05);
    }

    #[test]
    fn a_score_is_moved_towards_the_field_by_one_and_a_half_errors_at_most() {
        let at = |score: f64| settled(score, 0.0025, 0.8) * score / proven(score, 0.0025);
        close(at(0.76), 0.8);
        close(at(0.84), 0.8);
        // An error of 0.05, and noise explains less than a hundredth.
        close(at(0.7), 0.7 + 0.075 * (1.0 - 0.0025 / 0.49));
        close(at(0.9), 0.9 - 0.075 * (1.0 - 0.0025 / 0.81));
        assert_eq!(settled(0.049, 0.0025, 0.8), 0.0, "one error proves nothing, whatever the field has");
        assert!(settled(0.06, 0.0025, 0.8) < 0.05, "little more than one error proves little");
        assert_eq!(settled(-0.2, 0.0025, 0.8), 0.0);
    }

    /// The scale of seats with these gaps, errors and claims.
    fn gap_scale(gaps: &[(f64, f64, f64)]) -> f64 {
        scale_of(
            &gaps.iter().map(|(gap, error, claim)| (seat(*gap, *error, 0.0), *claim)).collect::<Vec<_>>(),
        )
        .gap
    }

    fn scale_of(seats: &[(Gains, f64)]) -> Scale {
        scale(seats.iter().map(|(gains, claim)| Sample { gains, claim: *claim }))
    }

    #[test]
    fn the_noise_of_a_small_parts_gain_averages_out() {
        let scale = Scale { gap: 0.02, gain: Some(GainScale { median: 0.08, best: 0.1, error: 0.005 }) };
        let of = |mean: f64, error: f64, share: f64| {
            let common = Gain { mean, error: Some(error) };
            let own = Some(Gain { mean: mean + 0.02, error: Some(error) });
            outcome(&Gains { own, common }, scale, share).unwrap()
        };
        // A sixteenth is expected to gain 0.005, one standard error; a quarter four of them.
        let (above, below) = (of(0.01, 0.005, 0.0625), of(-0.005, 0.005, 0.0625));
        close(above.value, 0.8);
        close(below.value, -1.0);
        assert!(!below.shows_nothing, "noise does not lower the score at once");
        assert!(0.7 < above.error, "{above:?}");
        let quarter = of(-0.001, 0.005, 0.25);
        assert!(quarter.value == 0.0 && quarter.shows_nothing, "{quarter:?}");
        // No seat makes its own gain noise: the error is the field's.
        let loud = of(0.0, 1.0, 1.0);
        assert!(loud.value == 0.0 && loud.shows_nothing, "{loud:?}");
        // Over all windows a part without gain earns nothing.
        let all = -30..=30;
        let mean = all.map(|at| of(f64::from(at) / 6000.0, 0.005, 0.0625).value).sum::<f64>() / 61.0;
        assert!(mean < 0.0, "{mean}");
    }

    #[test]
    fn full_gain_is_that_of_the_best_tenth_of_the_work() {
        let mut seats: Vec<(Gains, f64)> =
            (1..=20).map(|at| (seat(0.1, 0.01, f64::from(at) / 100.0), 1.0)).collect();
        assert_eq!(scale_of(&seats).gain, Some(GainScale { median: 0.1, best: 0.18, error: 0.0 }));
        // Seats without proven work do not raise it.
        seats.extend((0..50).map(|_| (seat(0.0, 0.01, 9.0), 0.0)));
        assert_eq!(scale_of(&seats).gain, Some(GainScale { median: 0.1, best: 0.18, error: 0.0 }));
        let noisy = |mean| Gains { common: Gain { mean, error: Some(0.04) }, ..seat(0.1, 0.01, mean) };
        assert_eq!(scale_of(&[(noisy(0.1), 1.0)]).gain, None);
        assert_eq!(scale_of(&[(noisy(-0.5), 1.0)]).gain, None);
        assert!(scale_of(&[(noisy(0.5), 1.0)]).gain.is_some());
    }

    #[test]
    fn the_scale_is_the_median_gap_and_at_least_the_noise() {
        close(gap_scale(&[(0.1, 0.01, 1.0), (0.2, 0.01, 1.0), (0.4, 0.01, 1.0)]), 0.2);
        close(gap_scale(&[(0.1, 0.01, 1.0), (0.2, 0.01, 1.0)]), 0.1);
        close(gap_scale(&[(0.001, 0.01, 1.0), (-0.2, 0.01, 1.0), (0.4, 0.01, 1.0)]), 0.03);
        close(gap_scale(&[(-0.1, 0.01, 1.0)]), 0.03);
        close(gap_scale(&[]), 0.0);
    }

    #[test]
    fn seats_with_most_of_the_proven_work_that_stop_take_no_scale_down() {
        let errors = |mean: f64, error: f64| Gain { mean, error: Some(error) };
        let gained = |gap: f64, error: f64, common: f64| Gains {
            own: Some(errors(common + gap, 0.8 * error)),
            common: errors(common, 0.6 * error),
        };
        let honest = gained(0.04, 0.01, 0.1);
        let stopped = [gained(3e-9, 1e-9, 1e-9), gained(-7e-9, 1e-9, 2e-9)];
        let seats = [(honest, 0.02), (honest, 0.03), (stopped[0], 0.08), (stopped[1], 0.09), (honest, 0.0)];
        let scale = scale_of(&seats);
        close(scale.gap, 0.03);
        assert_eq!(scale.gain, None, "the gain of most work is within the noise of the others");
        let worked = outcome(&honest, scale, 1.0).unwrap();
        let (score, variance) = updated_own_data_score(0.0, 0.0, worked, 1, START_RATE);
        assert!(0.8 * score < proven(score, variance), "{worked:?}");
        assert!(outcome(&stopped[0], scale, 1.0).unwrap().value < 1e-6);
        // Small parts, which are noisier, and any number of tiny ones, which are not, count by their gain.
        let mut more = seats.to_vec();
        more.extend([(gained(0.06, 0.02, 0.04), 0.0); 4]);
        more.extend([(gained(1e-6, 1e-7, 1e-6), 0.0); 1000]);
        close(scale_of(&more).gap, 0.03);
    }

    #[test]
    fn small_contributions_with_small_errors_do_not_make_the_first_scale() {
        let gained = |gap: f64, error: f64, common: f64| {
            let gains = |mean: f64| Gain { mean, error: Some(error / std::f64::consts::SQRT_2) };
            (Gains { own: Some(gains(common + gap)), common: gains(common) }, 0.0)
        };
        // Eight whole seats, 2.8 errors above zero, and three small ones, five errors above it.
        let mut seats = vec![gained(0.028, 0.01, 0.1); 8];
        seats.extend([gained(0.005, 0.001, 0.01); 3]);
        close(scale_of(&seats).gap, 0.03);
        let whole = outcome(&seat(0.028, 0.01, 0.0), Scale { gap: 0.03, gain: None }, 1.0).unwrap();
        let (score, variance) = updated_own_data_score(0.0, 0.0, whole, 1, START_RATE);
        assert!(0.8 * score < proven(score, variance), "the first window proves most of the whole work");
        // Twenty loud seats without a gain do not raise it.
        let mut loud = seats.clone();
        loud.extend([gained(0.0, 1.0, 0.0); 20]);
        close(scale_of(&loud).gap, 0.03);
        // The first small one with proven work does not raise it either.
        seats.push((gained(0.006, 0.001, 0.1).0, 0.5));
        close(scale_of(&seats).gap, 0.03);
    }

    #[test]
    fn seats_without_proven_work_do_not_move_the_scale() {
        let junk = [(0.0, 0.0, 0.0); 12];
        let field = [(0.1, 0.01, 0.5), (0.2, 0.01, 0.5), (0.3, 0.01, 0.5)];
        close(gap_scale(&[&field[..], &junk].concat()), 0.2);
        // Before any work is proven.
        let field = field.map(|(mean, error, _)| (mean, error, 0.0));
        close(gap_scale(&[&field[..], &junk].concat()), 0.2);
        // Copies only: no gap is significant.
        close(gap_scale(&[(0.01, 0.01, 0.0), (-0.02, 0.02, 0.0)]), 0.03);
    }
}
