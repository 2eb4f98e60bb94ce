//! The bounds of the gauntlet table: each cheat's pay, the penalties of honest seats, the increase of the loss.
//!
//! The bounds are the gauntlet's targets plus a margin for the noise of few seeds and few windows. A cheat's pay
//! counts from its first cheating window: some cheats work honestly before that and are paid for it.

use super::{
    experiment::{BOMBED, COLLUDERS, JUNK, MOST_OF_THE_STAKE, MUTED, ONE_SHOT},
    table::{PAID_FOR_WORK, Table},
};
use protocol::Role;

/// Maximum pay of a cheat as a share of an honest seat's, mean over seeds.
const CHEAT_MAX: f64 = 0.05;
/// The same in the worst seed, where one extra honest window or one lucky rating has more effect.
const CHEAT_MAX_IN_A_SEED: f64 = 0.1;
/// Maximum pay of a seat that adds a step on eight of its sequences, about a tenth of them, to another's work. Four
/// seeds have 13, 19, 15 and 2 %.
const DISTILLED_MAX: f64 = 0.25;
/// Maximum dividends of a validator that measures and favours a friend, as a share of an honest validator's for the
/// same stake. Consensus clips the excess.
const FAVOURED_MAX: f64 = 0.7;
/// Margin for the first epoch where cheating validators have most of the stake.
const FIRST_EPOCH: f64 = 0.05;
/// Margin above the worth of a seat's work.
const CHANCE: f64 = 0.05;
/// Maximum loss of pay of a seat to which more than a third of the stake gives no weight. All other validators have to
/// agree on a weight, so their lowest one counts.
const EXCLUDED_MAX: f64 = 0.15;
/// Maximum relative increase of the final loss. Any difference between two networks changes the loss of each by about
/// 0.5 %.
const HARM_MAX: f64 = 0.02;
/// The same in a network with more new seats without work than honest ones: until the first consensus these take
/// places in the merge, and windows are void.
const CROWDED_MAX: f64 = 0.05;
/// Maximum pay of a seat after it stops working: the pay of about three windows out of 24.
const QUITTER_MAX: f64 = 0.2;
/// Windows from the poisoned one until the seat's pay falls below half: three, and one for the reveal.
const BELOW_HALF_WINDOWS: f64 = 4.0;
/// Largest over smallest pay of equal seats: each may differ from their mean by a tenth.
const EQUALS_MAX: f64 = 1.25;

/// Maximum difference between the pay of a slower machine and its share of the work.
const UNEQUAL_MAX: f64 = 0.1;

/// A number of the table and its upper bound.
#[derive(Clone, Debug, PartialEq)]
pub struct Bound {
    pub name: String,
    pub number: f64,
    pub max: f64,
}

impl Bound {
    pub fn holds(&self) -> bool {
        self.number <= self.max
    }
}

/// The bounds of all numbers that the table has.
pub fn bounds(table: &Table) -> Vec<Bound> {
    let mut bounds = Vec::new();
    let mut bound = |name: String, number: f64, max: f64| bounds.push(Bound { name, number, max });
    for (name, numbers) in &table.adversaries {
        let number = |key: &str| numbers.get(key).copied();
        let is_miner = adversaries::kind(name).is_some_and(|kind| kind.role == Role::Miner);
        for (key, cheat_max, title) in [
            ("pay_share_since_cheating", CHEAT_MAX, "pay since it cheats"),
            ("pay_share_since_cheating_max", CHEAT_MAX_IN_A_SEED, "pay since it cheats, worst seed"),
        ] {
            let Some(since) = number(key).filter(|_| is_miner) else { continue };
            let worth = number("worth").unwrap_or(0.0);
            let max = match name.as_str() {
                // It works honestly afterwards and recovers; a bound below covers how fast it loses its pay.
                "poison-one-shot" => continue,
                "partial-data" => 0.1,
                "distilled" => DISTILLED_MAX,
                "quitter" => QUITTER_MAX,
                "half-data" | "noise" | "noise-loud" | "last-layers" | "big-rate" | "truncated"
                | "half-tokens" => worth + CHANCE,
                _ => cheat_max,
            };
            bound(format!("{name}: {title}"), since, max);
        }
        // Its victim's pay has a bound below. The validator itself measures, and is paid for that.
        let measures = name == "third-excluder";
        if let Some(share) = number("pay_share_30_max").filter(|_| !is_miner && !measures) {
            bound(format!("{name}: dividends"), share, dividends_max(name));
        }
        if let Some(windows) = number("one_shot_windows_until_paid_below_half") {
            bound(format!("{name}: windows until it is paid below half"), windows, BELOW_HALF_WINDOWS);
        }
        let counts = number("one_shot_seats").zip(number("one_shot_seats_paid_below_half"));
        if let Some((seats, below)) = counts {
            bound(format!("{name}: seats that are never paid below half"), seats - below, 0.0);
        }
    }
    for (network, validators) in &table.validators {
        for (name, numbers) in validators {
            let Some(share) = numbers.get("pay_share_30_max") else { continue };
            // Cheats earn more in the first epoch, which has no probes, if they hold most of the stake.
            let chance = if network == MOST_OF_THE_STAKE { FIRST_EPOCH } else { 0.0 };
            bound(format!("{name} in {network}: dividends"), *share, dividends_max(name) + chance);
        }
    }
    for (name, numbers) in &table.networks {
        let compared = [COLLUDERS, ONE_SHOT, "poison", "copiers", "idlers", "delivery", "other-work"];
        let crowded = [BOMBED, MUTED, JUNK].contains(&name.as_str());
        let compared = crowded || compared.contains(&name.as_str());
        if let Some(harm) = numbers.get("harm").filter(|_| compared) {
            let max = if crowded { CROWDED_MAX } else { HARM_MAX };
            bound(format!("{name}: held-out loss above that of a network of honest seats"), *harm, max);
        }
    }
    for numbers in table.networks.values() {
        for (key, max) in [("pay_lost_by_the_first_seat", EXCLUDED_MAX), ("paid_without_a_merge", 0.0)] {
            if let Some(number) = numbers.get(key) {
                bound(key.replace('_', " "), *number, max);
            }
        }
    }
    for (key, paid) in table.networks.values().flatten() {
        if let Some(name) = key.strip_prefix(PAID_FOR_WORK) {
            bound(format!("{name}: pay away from its share of the work"), (paid - 1.0).abs(), UNEQUAL_MAX);
        }
    }
    for (name, number) in &table.honest {
        let max = match name.trim_start_matches("failing_storage_").trim_start_matches("outages_") {
            "seat_windows_under_a_penalty" | "seat_windows_at_fault" | "attested_as_faulty" => 0.0,
            "pay_largest_over_smallest_30" | "pay_largest_over_smallest_100" => EQUALS_MAX,
            _ => continue,
        };
        bound(format!("honest seats: {}", name.replace('_', " ")), *number, max);
    }
    bounds
}

/// Maximum dividends of a cheating validator, as a share of an honest validator's for the same stake.
fn dividends_max(name: &str) -> f64 {
    if name == "favourer" { FAVOURED_MAX } else { CHEAT_MAX }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    fn table(name: &str, key: &str, number: f64) -> Table {
        let mut table = Table::default();
        table.adversaries.entry(name.to_owned()).or_default().insert(key.to_owned(), number);
        table
    }

    #[test]
    fn a_cheat_breaks_its_bound_and_a_cheat_that_does_part_of_the_work_has_a_higher_one() {
        let broken = |name: &str, key: &str, number: f64| {
            let bounds = bounds(&table(name, key, number));
            assert_eq!(bounds.len(), 1, "{name}");
            !bounds[0].holds()
        };
        let (mean, worst) = ("pay_share_since_cheating", "pay_share_since_cheating_max");
        assert!(broken("sybil", mean, 0.06) && !broken("sybil", mean, 0.04));
        assert!(broken("sybil", worst, 0.11) && !broken("sybil", worst, 0.06));
        assert!(broken("partial-data", worst, 0.11) && !broken("partial-data", worst, 0.09));
        assert!(broken("noise", mean, 0.2), "its work has no worth");
        assert!(bounds(&table("favourer", "pay_share_since_cheating_max", 1.0)).is_empty());
    }

    #[test]
    fn a_validator_that_copies_or_invents_earns_nothing_in_any_network() {
        let holds = |name: &str, share: f64| {
            let bounds = bounds(&table(name, "pay_share_30_max", share));
            assert_eq!(bounds.len(), 1, "{name}");
            bounds[0].holds()
        };
        for name in ["absentee", "false-merge", "lazy-voter", "weight-copier", "receipt-copier", "inventor"] {
            assert!(holds(name, 0.04) && !holds(name, 0.06), "{name}");
        }
        assert!(holds("favourer", 0.6) && !holds("favourer", 0.8));
        let mut table = Table::default();
        let copier = BTreeMap::from([("pay_share_30_max".to_owned(), 0.06)]);
        let of_network = BTreeMap::from([("weight-copier".to_owned(), copier)]);
        table.validators.insert("copied-weights".to_owned(), of_network);
        assert!(!bounds(&table)[0].holds());
    }

    #[test]
    fn a_slow_machine_is_paid_its_share_within_a_bound() {
        let holds = |paid: f64| {
            let mut table = Table::default();
            let numbers = BTreeMap::from([(format!("{PAID_FOR_WORK}quarter"), paid)]);
            table.networks.insert("unequal-machines".to_owned(), numbers);
            let bounds = bounds(&table);
            assert_eq!(bounds.len(), 1);
            bounds[0].holds()
        };
        assert!(holds(0.91) && holds(1.09) && !holds(0.89) && !holds(1.11));
    }

    #[test]
    fn a_single_fault_of_an_honest_seat_breaks_a_bound() {
        let mut table = Table::default();
        table.honest.insert("failing_storage_seat_windows_at_fault".to_owned(), 1.0);
        table.honest.insert("seat_windows".to_owned(), 100.0);
        let bounds = bounds(&table);
        assert_eq!((bounds.len(), bounds[0].holds()), (1, false));
    }
}
