//! Fits a formula to the measurements: a constant, a term per size, and a term for the product of two sizes.
//!
//! Uses the least squares of Substrate's own command, over the middle half of the measurements of each choice of
//! sizes, with two additions. The product is a size of its own, because a consensus costs validators times seats. A
//! formula is never below a measurement: it is scaled up to the largest sizes, and its constant is raised to the
//! others.

use crate::bench::Results;
use frame_benchmarking::{Analysis, BenchmarkParameter, BenchmarkResult, BenchmarkSelector};
use serde::{Deserialize, Serialize};
use std::fmt;

/// A product term is noise, and dropped, if it is below the largest cost divided by this number.
const PRODUCT_MATTERS: u128 = 20;

/// A constant plus a linear term per size and, if there is one part more than sizes, a term of their product.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Formula {
    pub base: u64,
    pub parts: Vec<u64>,
}

/// Cost of a benchmark.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cost {
    /// Formula of the time, in picoseconds.
    pub time: Formula,
    pub reads: Formula,
    pub writes: Formula,
    /// Largest measured sizes.
    pub largest: Vec<u32>,
    /// First and third quartile for the largest sizes, in nanoseconds.
    pub took: (u64, u64),
}

impl Formula {
    pub fn of(&self, sizes: &[u32]) -> u64 {
        let product: u64 = sizes.iter().map(|&size| u64::from(size)).product();
        let terms = sizes.iter().map(|&size| u64::from(size)).chain([product]);
        self.parts.iter().zip(terms).map(|(part, size)| part * size).sum::<u64>() + self.base
    }

    /// Scales the formula up to at least `least` for these sizes.
    fn raised(mut self, sizes: &[u32], least: u64) -> Formula {
        let now = self.of(sizes).max(1);
        if now < least {
            let raise = |part: u64| (u128::from(part) * u128::from(least)).div_ceil(now.into()) as u64;
            self.parts.iter_mut().for_each(|part| *part = raise(*part));
            self.base = raise(self.base) + least.saturating_sub(raise(now));
        }
        self
    }
}

impl fmt::Display for Cost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Cost { time, reads, writes, largest, took } = self;
        write!(f, "{:?}: {}..{} µs", largest, took.0 / 1000, took.1 / 1000)?;
        write!(f, ", by formula {} µs", time.of(largest) / 1_000_000)?;
        write!(f, " and {} reads, {} writes", reads.of(largest), writes.of(largest))
    }
}

/// Fits formulas to measurements.
///
/// # Errors
/// States why a fit is not possible.
pub fn fit(results: &Results) -> Result<Cost, String> {
    let largest: Vec<u32> = results.components.iter().map(|(_, _, high)| *high).collect();
    let took = middle(&results.times, &largest).ok_or("nothing was measured")?;
    let time = formula(&results.times, &largest, BenchmarkSelector::ExtrinsicTime)?;
    let mut time = time.raised(&largest, (took.0 + took.1) / 2 * 1000);
    let missing = choices(&results.times).into_iter().filter_map(|sizes| {
        let (from, to) = middle(&results.times, &sizes)?;
        Some(((from + to) / 2 * 1000).saturating_sub(time.of(&sizes)))
    });
    time.base += missing.max().unwrap_or(0);
    let most = |number: fn(&BenchmarkResult) -> u32| results.storage.iter().map(number).max().unwrap_or(0);
    let reads = formula(&results.storage, &largest, BenchmarkSelector::Reads)?;
    let writes = formula(&results.storage, &largest, BenchmarkSelector::Writes)?;
    let reads = at_least(reads, &largest, most(|result| result.reads).into());
    let writes = at_least(writes, &largest, most(|result| result.writes).into());
    Ok(Cost { time, reads, writes, largest, took })
}

/// Raises the constant to reach `least`. Counts are integers, so the formula is not scaled.
fn at_least(mut formula: Formula, sizes: &[u32], least: u64) -> Formula {
    formula.base += least.saturating_sub(formula.of(sizes));
    formula
}

fn sizes_of(result: &BenchmarkResult) -> Vec<u32> {
    result.components.iter().map(|(_, size)| *size).collect()
}

fn choices(results: &[BenchmarkResult]) -> Vec<Vec<u32>> {
    let mut choices: Vec<_> = results.iter().map(sizes_of).collect();
    choices.sort();
    choices.dedup();
    choices
}

/// Returns the first and third quartile of the times for these sizes, in nanoseconds.
fn middle(results: &[BenchmarkResult], sizes: &[u32]) -> Option<(u64, u64)> {
    let mut times: Vec<u64> = results
        .iter()
        .filter(|result| sizes_of(result) == sizes)
        .map(|result| u64::try_from(result.extrinsic_time).unwrap_or(u64::MAX))
        .collect();
    times.sort_unstable();
    let quarter = times.len() / 4;
    Some((*times.get(quarter)?, *times.get(times.len().checked_sub(quarter + 1)?)?))
}

fn formula(
    results: &[BenchmarkResult],
    largest: &[u32],
    selector: BenchmarkSelector,
) -> Result<Formula, String> {
    let mut results: Vec<_> =
        results.iter().map(|result| BenchmarkResult { keys: Vec::new(), ..result.clone() }).collect();
    let plain = least_squares(&results, selector)?;
    if largest.len() < 2 {
        return Ok(plain);
    }
    for result in &mut results {
        let product = result.components.iter().map(|(_, size)| size).product();
        result.components.push((BenchmarkParameter::z, product));
    }
    let with_product = least_squares(&results, selector)?;
    let without = Formula { base: with_product.base, parts: with_product.parts[..largest.len()].to_vec() };
    let (all, rest) = (u128::from(with_product.of(largest)), u128::from(without.of(largest)));
    Ok(if (all - rest) * PRODUCT_MATTERS < all { plain } else { with_product })
}

fn least_squares(results: &Vec<BenchmarkResult>, selector: BenchmarkSelector) -> Result<Formula, String> {
    let narrow = |number: u128| u64::try_from(number).unwrap_or(u64::MAX);
    let analysis = Analysis::min_squares_iqr(results, selector).map_err(|error| error.to_string())?;
    Ok(Formula { base: narrow(analysis.base), parts: analysis.slopes.into_iter().map(narrow).collect() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn results(points: &[(u32, u32)], time: impl Fn(u128, u128) -> u128) -> Results {
        let one = |&(first, second): &(u32, u32)| BenchmarkResult {
            components: vec![(BenchmarkParameter::v, first), (BenchmarkParameter::s, second)],
            extrinsic_time: time(first.into(), second.into()),
            reads: 3 + 2 * first,
            writes: 1,
            ..Default::default()
        };
        let all: Vec<_> = points.iter().map(one).collect();
        let high = |of: fn(&(u32, u32)) -> u32| points.iter().map(of).max().unwrap();
        let components = vec![
            (BenchmarkParameter::v, 0, high(|point| point.0)),
            (BenchmarkParameter::s, 0, high(|point| point.1)),
        ];
        Results { components, times: [all.clone(), all.clone(), all.clone()].concat(), storage: all }
    }

    fn grid() -> Vec<(u32, u32)> {
        (0..5).flat_map(|one| (0..5).map(move |other| (one * 10, other * 100))).collect()
    }

    #[test]
    fn a_sum_is_fitted_without_a_product() {
        let cost = fit(&results(&grid(), |v, s| 1000 + 20 * v + 3 * s)).unwrap();
        assert_eq!(cost.time.parts.len(), 2);
        for (found, made) in
            [(cost.time.base, 1_000_000), (cost.time.parts[0], 20_000), (cost.time.parts[1], 3_000)]
        {
            assert!(found.abs_diff(made) <= 1, "{cost:?}");
        }
        assert_eq!((cost.reads.base, cost.reads.parts.as_slice()), (3, [2, 0].as_slice()));
        assert_eq!(cost.writes.base, 1);
    }

    #[test]
    fn a_product_is_fitted() {
        let cost = fit(&results(&grid(), |v, s| 1000 + 20 * v + 3 * s + 7 * v * s)).unwrap();
        assert!(cost.time.parts[2].abs_diff(7_000) <= 1, "{cost:?}");
    }

    #[test]
    fn no_formula_is_below_a_measurement() {
        let steep = |v: u128, s: u128| 1000 + v * v * v * s;
        let flat = |v: u128, s: u128| 1000 + if v * s > 0 { 100_000 } else { 0 };
        for took in [&steep as &dyn Fn(u128, u128) -> u128, &flat] {
            let cost = fit(&results(&grid(), took)).unwrap();
            for (v, s) in grid() {
                let least = took(v.into(), s.into()) as u64 * 1000;
                assert!(cost.time.of(&[v, s]) >= least, "{v}, {s}: {cost:?}");
            }
        }
    }

    #[test]
    fn no_measurements_give_no_formula() {
        let nothing = Results { components: Vec::new(), times: Vec::new(), storage: Vec::new() };
        assert!(fit(&nothing).is_err());
    }

    #[test]
    fn a_raised_formula_reaches_its_target_up_to_rounding() {
        let formula = Formula { base: 7, parts: vec![3, 11] };
        let raised = formula.clone().raised(&[5, 9], 1000);
        assert!((1000..1020).contains(&raised.of(&[5, 9])), "{raised:?}");
        assert_eq!(formula.clone().raised(&[5, 9], 10), formula);
    }
}
