//! The rating of a seat among the others: a mean and an uncertainty (PROT-23).
//!
//! Each window is one rating round of the Plackett–Luce model of Weng and Lin, "A Bayesian approximation method for
//! online ranking" (JMLR 12, 2011), algorithm 4, with one seat per team. Only ranks count: one huge gain is worth no
//! more than one first rank.

use super::{exact, median::weighted_median};
use serde::{Deserialize, Serialize};

/// The spread of one round's performance around the skill (PROT-23).
const BETA: f64 = 7.0;
/// The growth of the uncertainty per window.
const TAU: f64 = 0.1;
/// An ordinal this far below the median costs nothing: chance explains it.
const LEEWAY: f64 = 7.0;
/// An ordinal this far below the median has a rating factor of 0.
const BEHIND_MAX: f64 = 25.0;
/// The least part of the variance that a round leaves.
const VARIANCE_KEPT_MIN: f64 = 0.0001;

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Rating {
    #[serde(with = "exact")]
    pub mu: f64,
    #[serde(with = "exact")]
    pub sigma: f64,
}

impl Rating {
    pub const START: Rating = Rating { mu: 25.0, sigma: 25.0 / 3.0 };

    /// Returns a lower bound of the skill: `μ − 3σ`, 0 at the start.
    pub fn ordinal(&self) -> f64 {
        self.mu - 3.0 * self.sigma
    }

    /// Returns the factor of the score, from 0 to 1, if the median ordinal is `median` (PROT-25). A seat that may be
    /// behind it by chance has a factor of 1: equal work is paid alike, and rank alone earns nothing.
    pub fn rating_factor(&self, median: f64) -> f64 {
        let behind = median - self.ordinal();
        ((BEHIND_MAX - behind) / (BEHIND_MAX - LEEWAY)).clamp(0.0, 1.0)
    }

    /// Returns the rating after `windows` windows without a round: `σ² ← σ² + windows·τ²`.
    pub fn aged(&self, windows: u32) -> Rating {
        let variance = self.sigma * self.sigma + f64::from(windows) * TAU * TAU;
        Rating { sigma: libm::sqrt(variance), ..*self }
    }
}

impl Default for Rating {
    fn default() -> Rating {
        Rating::START
    }
}

/// The weighted median of `(ordinal, weight)` pairs, or 0 without weights. Seats without work have no weight and do
/// not move it.
pub fn median_rating(ordinals: &[(f64, f64)]) -> f64 {
    weighted_median(ordinals.iter().copied()).unwrap_or(0.0)
}

/// The ratings after a round, in the order of the players. A player is its rating before and its rank; equal ranks
/// tie. A round of one player changes nothing.
pub fn update(players: &[(Rating, u32)]) -> Vec<Rating> {
    let c = libm::sqrt(players.iter().map(|(rating, _)| rating.sigma * rating.sigma + BETA * BETA).sum());

    // Strengths relative to the strongest, so that nothing overflows.
    let highest = players.iter().map(|(rating, _)| rating.mu).fold(f64::NEG_INFINITY, f64::max);
    let strengths: Vec<f64> =
        players.iter().map(|(rating, _)| libm::exp((rating.mu - highest) / c)).collect();

    // For each rank: the strength of all players at it or behind it, and how many share it.
    let behind = |place: u32| {
        players
            .iter()
            .zip(&strengths)
            .filter(move |((_, other), _)| *other >= place)
            .map(|(_, strength)| strength)
    };
    let rivals: Vec<(u32, f64, f64)> = players
        .iter()
        .map(|(_, place)| {
            let sharing = players.iter().filter(|(_, other)| other == place).count() as f64;
            (*place, behind(*place).sum::<f64>(), sharing)
        })
        .collect();

    let rated = |(index, (rating, place)): (usize, &(Rating, u32))| {
        let (mut omega, mut delta) = (0.0, 0.0);
        for (rival, (rival_place, strength_behind, sharing)) in rivals.iter().enumerate() {
            if rival_place > place || *strength_behind <= 0.0 {
                continue;
            }
            let chance = strengths[index] / strength_behind;
            let won = if rival == index { 1.0 } else { 0.0 };
            omega += (won - chance) / sharing;
            delta += chance * (1.0 - chance) / sharing;
        }
        let variance = rating.sigma * rating.sigma;
        let gamma = rating.sigma / c;
        let kept = (1.0 - delta * gamma * variance / (c * c)).max(VARIANCE_KEPT_MIN);
        Rating { mu: rating.mu + omega * variance / c, sigma: rating.sigma * libm::sqrt(kept) }
    };
    players.iter().enumerate().map(rated).collect()
}

/// [`update`] for players that share ranks: the mean over orders in which each of them is once first of those that
/// share its rank, once second, and so on. `turn` selects the first order.
///
/// The algorithm's own rule for ties divides a rank's worth by the number of players that share it. Seven that share
/// the first rank of ten would then gain a fourteenth of what the eighth gains. Most seats of a good window share a
/// rank, so ties are resolved before.
pub fn update_all_orders(players: &[(Rating, u32)], turn: u32) -> Vec<Rating> {
    let mut places: Vec<u32> = players.iter().map(|(_, place)| *place).collect();
    places.sort_unstable();
    let sharing = places.chunk_by(|a, b| a == b).map(<[u32]>::len).max().unwrap_or(0);
    let mut order: Vec<usize> = (0..players.len()).collect();
    order.sort_by_key(|index| players[*index].1);
    let mut sums = vec![(0.0, 0.0); players.len()];
    for round in 0..sharing {
        let mut strict: Vec<(Rating, u32)> = players.to_vec();
        let mut place = 0u32;
        for sharing in order.chunk_by(|a, b| players[*a].1 == players[*b].1) {
            let first = (round + turn as usize) % sharing.len();
            for index in sharing[first..].iter().chain(&sharing[..first]) {
                place += 1;
                strict[*index].1 = place;
            }
        }
        for ((mu, variance), rating) in sums.iter_mut().zip(update(&strict)) {
            *mu += rating.mu;
            *variance += rating.sigma * rating.sigma;
        }
    }
    let rounds = sharing as f64;
    sums.into_iter()
        .map(|(mu, variance)| Rating { mu: mu / rounds, sigma: libm::sqrt(variance / rounds) })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// `expected` was computed from the paper's formulas in 60-digit decimal arithmetic, independently of this code,
    /// and agrees with the published `openskill` package (6.2, PlackettLuce, beta 7, tau 0.1). Its `tau` ages by one
    /// window.
    #[track_caller]
    fn check(players: &[(f64, f64)], places: &[u32], expected: &[(f64, f64)]) {
        let aged: Vec<_> = players
            .iter()
            .zip(places)
            .map(|((mu, sigma), place)| (Rating { mu: *mu, sigma: *sigma }.aged(1), *place))
            .collect();
        for (rating, (mu, sigma)) in update(&aged).iter().zip(expected) {
            assert!(
                (rating.mu - mu).abs() < 1e-9 && (rating.sigma - sigma).abs() < 1e-9,
                "{rating:?} {mu} {sigma}"
            );
        }
    }

    const START: (f64, f64) = (25.0, 25.0 / 3.0);

    #[test]
    fn ratings_are_those_of_the_paper() {
        check(
            &[START, START],
            &[1, 2],
            &[(27.256209212553, 8.166896460214), (22.743790787447, 8.166896460214)],
        );
        check(
            &[START; 4],
            &[1, 2, 3, 4],
            &[
                (27.393071250957, 8.289968889112),
                (26.32948402831, 8.237559069741),
                (24.734103194338, 8.178196566367),
                (21.543341526395, 8.178196566367),
            ],
        );
        check(
            &[(31.2, 4.1), START, (18.7, 6.5), (27.9, 2.2), (22.0, 7.7)],
            &[3, 1, 5, 2, 4],
            &[
                (31.161846266111, 4.090969949954),
                (27.66890777478, 8.292308084374),
                (16.605374676607, 6.431329474276),
                (28.014661581539, 2.20178832949),
                (21.393079489768, 7.552617899867),
            ],
        );
    }

    #[test]
    fn ties_share_the_worth_of_their_rank() {
        check(
            &[(31.2, 4.1), START, (18.7, 6.5), (27.9, 2.2)],
            &[1, 2, 2, 2],
            &[
                (31.822572443625, 4.095998397419),
                (24.054201770537, 8.168684102126),
                (18.520940426932, 6.452364682265),
                (27.807077917067, 2.201405330624),
            ],
        );
        check(
            &[START, (30.0, 5.0)],
            &[1, 1],
            &[(25.44626601803, 8.112333381747), (29.839303111555, 4.972567038795)],
        );
    }

    /// Weng and Lin's algorithm 4 for teams, step by step as in the paper: teams of (μ, σ), their ranks. Equal ranks
    /// are ties; `A_q` counts the teams of a rank, `C_q` those not ahead of `q`; `γ = σ_i/c`, `κ = 0.0001`.
    fn published(teams: &[Vec<(f64, f64)>], ranks: &[u32], beta: f64) -> Vec<Vec<(f64, f64)>> {
        let mus: Vec<f64> = teams.iter().map(|team| team.iter().map(|(mu, _)| mu).sum()).collect();
        let variances: Vec<f64> =
            teams.iter().map(|team| team.iter().map(|(_, sigma)| sigma * sigma).sum()).collect();
        let c = variances.iter().map(|variance| variance + beta * beta).sum::<f64>().sqrt();
        let mut after = Vec::new();
        for i in 0..teams.len() {
            let (mut omega, mut delta) = (0.0, 0.0);
            for q in 0..teams.len() {
                if ranks[q] > ranks[i] {
                    continue;
                }
                let mut sum = 0.0;
                let mut tied = 0.0;
                for s in 0..teams.len() {
                    if ranks[s] >= ranks[q] {
                        sum += (mus[s] / c).exp();
                    }
                    if ranks[s] == ranks[q] {
                        tied += 1.0;
                    }
                }
                let p = (mus[i] / c).exp() / sum;
                let gamma = variances[i].sqrt() / c;
                omega += variances[i] / (c * tied) * if q == i { 1.0 - p } else { -p };
                delta += gamma * variances[i] / (c * c * tied) * p * (1.0 - p);
            }
            let update = |(mu, sigma): &(f64, f64)| {
                let part = sigma * sigma / variances[i];
                (mu + part * omega, sigma * (1.0 - part * delta).max(0.0001).sqrt())
            };
            after.push(teams[i].iter().map(update).collect());
        }
        after
    }

    /// The example of the `openskill` documentation: two teams of two, beta 25/6.
    #[test]
    fn the_transcription_gives_what_the_published_package_documents() {
        let teams = [vec![(25.0, 25.0 / 3.0), (32.444, 5.123)], vec![(43.381, 2.421), (25.188, 6.211)]];
        let documented = [
            [(28.669648436582808, 8.071520788025197), (33.83086971107981, 5.062772998705765)],
            [(43.071274808241974, 2.4166900452721256), (23.149503312339064, 6.1378606973362135)],
        ];
        for (team, expected) in published(&teams, &[1, 2], 25.0 / 6.0).iter().zip(documented) {
            for ((mu, sigma), expected) in team.iter().zip(expected) {
                assert!((mu - expected.0).abs() < 1e-12 && (sigma - expected.1).abs() < 1e-12);
            }
        }
    }

    #[test]
    fn seats_of_one_rank_change_alike_and_gain_more_than_those_behind() {
        let place = |index: usize| if index < 7 { 1 } else { 8 + index as u32 };
        let players: Vec<_> = (0..10).map(|index| (Rating::START, place(index))).collect();
        for turn in 0..5 {
            let rated = update_all_orders(&players, turn);
            assert!(rated[..7].iter().all(|rating| (rating.mu - rated[0].mu).abs() < 1e-9));
            assert!(rated[..7].iter().all(|rating| (rating.sigma - rated[0].sigma).abs() < 1e-9));
            assert!(rated[0].mu > 25.0 && rated[7].mu < 25.0 && rated[9].mu < rated[8].mu);
        }
        // The algorithm's own result for seven that tie.
        let tied = update(&players);
        assert!(tied[7].mu > tied[0].mu, "otherwise this function is not needed");
    }

    #[test]
    fn without_shared_ranks_there_is_one_order() {
        let players = [(Rating::START, 2), (Rating { mu: 30.0, sigma: 3.0 }, 1), (Rating::START, 3)];
        assert_eq!(update_all_orders(&players, 7), update(&players));
        assert_eq!(update_all_orders(&[], 7), []);
    }

    #[test]
    fn the_rating_factor_falls_from_one_to_zero_behind_the_median() {
        let worth = |behind: f64| Rating { mu: 30.0 - behind, sigma: 5.0 }.rating_factor(15.0);
        assert_eq!([worth(-9.0), worth(0.0), worth(7.0)], [1.0; 3]);
        assert!((worth(16.0) - 0.5).abs() < 1e-12);
        assert_eq!([worth(25.0), worth(80.0)], [0.0; 2]);
    }

    #[test]
    fn seats_without_work_do_not_move_the_median() {
        let field = [(10.0, 1.0), (12.0, 1.0), (11.0, 1.0)];
        assert_eq!(median_rating(&field), 11.0);
        let crowded: Vec<_> = field.into_iter().chain((0..50).map(|_| (40.0, 0.0))).collect();
        assert_eq!(median_rating(&crowded), 11.0);
        assert_eq!(median_rating(&[(f64::NAN, 1.0), (3.0, 0.5)]), 3.0);
        assert_eq!(median_rating(&[]), 0.0);
    }

    #[test]
    fn a_round_of_one_or_none_changes_nothing() {
        assert_eq!(update(&[(Rating::START, 1)]), [Rating::START]);
        assert_eq!(update(&[]), []);
    }

    #[test]
    fn uncertainty_grows_with_every_window_without_a_round() {
        assert_eq!(Rating::START.ordinal(), 0.0);
        let rating = Rating { mu: 30.0, sigma: 2.0 };
        assert!((rating.aged(500).sigma - 3.0).abs() < 1e-12);
        assert_eq!(rating.aged(500).mu, 30.0);
        assert_eq!(rating.aged(0), rating);
    }

    proptest! {
        #[test]
        fn a_round_is_rated_as_published(
            players in proptest::collection::vec((-50.0..100f64, 0.1..12f64, 1u32..8), 2..16),
        ) {
            let teams: Vec<_> = players.iter().map(|(mu, sigma, _)| vec![(*mu, *sigma)]).collect();
            let ranks: Vec<_> = players.iter().map(|(_, _, place)| *place).collect();
            let expected = published(&teams, &ranks, 7.0);
            let players: Vec<_> =
                players.into_iter().map(|(mu, sigma, place)| (Rating { mu, sigma }, place)).collect();
            for (rating, expected) in update(&players).iter().zip(expected) {
                prop_assert!((rating.mu - expected[0].0).abs() < 1e-9, "{} {}", rating.mu, expected[0].0);
                prop_assert!((rating.sigma - expected[0].1).abs() < 1e-9);
            }
        }

        #[test]
        fn a_round_stays_finite_and_never_adds_uncertainty(
            players in proptest::collection::vec((-1e4..1e4f64, 0.01..1e3f64, 1u32..6), 0..12),
        ) {
            let players: Vec<_> =
                players.into_iter().map(|(mu, sigma, place)| (Rating { mu, sigma }, place)).collect();
            let rated = update(&players);
            prop_assert_eq!(rated.len(), players.len());
            for (after, (before, _)) in rated.iter().zip(&players) {
                prop_assert!(after.mu.is_finite() && after.sigma.is_finite() && after.sigma > 0.0);
                prop_assert!(after.sigma <= before.sigma);
            }
        }

        #[test]
        fn the_first_never_falls_and_the_last_never_rises(
            mut players in proptest::collection::vec((0.0..50f64, 0.5..9f64), 2..8),
        ) {
            let seats = players.len();
            let players: Vec<_> = players
                .drain(..)
                .enumerate()
                .map(|(place, (mu, sigma))| (Rating { mu, sigma }, place as u32 + 1))
                .collect();
            let rated = update(&players);
            prop_assert!(rated[0].mu >= players[0].0.mu);
            prop_assert!(rated[seats - 1].mu <= players[seats - 1].0.mu);
        }
    }
}
