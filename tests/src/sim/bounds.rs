//! What the table must show: no cheat paid above its bound, no honest seat punished, no loss harmed beyond what chance does.
//!
//! The bounds are those that were set for the gauntlet, with room for what few seeds and few windows leave to chance. Cheats are bounded from when they begin
//! to cheat: some work honestly before, and are paid for that.

use super::{
    experiment::{COLLUDERS, ONE_SHOT},
    table::Table,
};
use protocol::Role;

/// What a cheat may have of an honest seat's pay, in the mean of all seeds.
const CHEAT_MAX: f64 = 0.05;
/// The same in the worst seed: what one honest window more, or one lucky rating, may leave of a few windows.
const CHEAT_MAX_IN_A_SEED: f64 = 0.1;
/// Dividends of who says what others said, of an honest validator's for the same stake.
const COPIED_MAX: f64 = 0.9;
/// Who works in part may have its part, and what chance makes of it.
const CHANCE: f64 = 0.1;
/// Networks that differ in anything drift apart by about half a percent.
const HARM_MAX: f64 = 0.015;
/// Windows in which one that poisoned must have lost half of its pay: three, and a reveal.
const BELOW_HALF_WINDOWS: f64 = 4.0;
/// Equal seats may be apart by a tenth of their mean, on both sides.
const EQUALS_MAX: f64 = 1.25;

/// One number that must not be above its bound.
#[derive(Clone, Debug, PartialEq)]
pub struct Bound {
    pub of: String,
    pub number: f64,
    pub most: f64,
}

impl Bound {
    pub fn holds(&self) -> bool {
        self.number <= self.most
    }
}

/// All bounds that the table has numbers for.
pub fn bounds(table: &Table) -> Vec<Bound> {
    let mut bounds = Vec::new();
    let mut bound = |of: String, number: f64, most: f64| bounds.push(Bound { of, number, most });
    for (name, numbers) in &table.adversaries {
        let number = |key: &str| numbers.get(key).copied();
        let is_miner = adversaries::kind(name).is_some_and(|kind| kind.role == Role::Miner);
        for (key, cheat_max, of) in [
            ("pay_share_since_cheating", CHEAT_MAX, "pay since it cheats"),
            ("pay_share_since_cheating_max", CHEAT_MAX_IN_A_SEED, "pay since it cheats, worst seed"),
        ] {
            let Some(since) = number(key).filter(|_| is_miner) else { continue };
            let worth = number("worth").unwrap_or(0.0);
            let most = match name.as_str() {
                // It works on, and recovers: how fast it loses its pay is asked below.
                "poison-one-shot" => continue,
                "partial-data" => 0.1,
                "half-data" => 0.5 + CHANCE,
                "noise" | "noise-loud" => worth + CHANCE,
                _ => cheat_max,
            };
            bound(format!("{name}: {of}"), since, most);
        }
        if let Some(share) = number("pay_share_30_max").filter(|_| !is_miner) {
            // What is copied is an epoch old; only the audit of receipts takes all from who copies (docs/gauntlet.md). The lazy voter
            // is tried where votes are hidden: there is none to copy, and who never votes is paid nothing.
            let named_by_the_chain = ["absentee", "false-merge", "lazy-voter"].contains(&name.as_str());
            let most = if named_by_the_chain { CHEAT_MAX } else { COPIED_MAX };
            bound(format!("{name}: dividends"), share, most);
        }
        if let Some(windows) = number("one_shot_windows_until_paid_below_half") {
            bound(format!("{name}: windows until it is paid below half"), windows, BELOW_HALF_WINDOWS);
        }
        let never = number("one_shot_seats").zip(number("one_shot_seats_paid_below_half"));
        if let Some((seats, below)) = never {
            bound(format!("{name}: seats that are never paid below half"), seats - below, 0.0);
        }
    }
    for (name, numbers) in &table.networks {
        let compared = [COLLUDERS, ONE_SHOT, "poison", "copiers", "idlers", "delivery", "other-work"];
        if let Some(harm) = numbers.get("harm").filter(|_| compared.contains(&name.as_str())) {
            bound(format!("{name}: held-out loss above that of honest ones alone"), *harm, HARM_MAX);
        }
    }
    for (name, number) in &table.honest {
        let most = match name.trim_start_matches("failing_storage_") {
            "seat_windows_under_a_penalty" | "seat_windows_at_fault" | "attested_as_faulty" => 0.0,
            "pay_largest_over_smallest_30" | "pay_largest_over_smallest_100" => EQUALS_MAX,
            _ => continue,
        };
        bound(format!("honest seats: {}", name.replace('_', " ")), *number, most);
    }
    bounds
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(name: &str, key: &str, number: f64) -> Table {
        let mut table = Table::default();
        table.adversaries.entry(name.to_owned()).or_default().insert(key.to_owned(), number);
        table
    }

    #[test]
    fn a_cheat_paid_above_its_bound_is_named_and_who_works_in_part_has_another() {
        let broken = |name: &str, key: &str, number: f64| {
            let bounds = bounds(&table(name, key, number));
            assert_eq!(bounds.len(), 1, "{name}");
            !bounds[0].holds()
        };
        let (mean, worst) = ("pay_share_since_cheating", "pay_share_since_cheating_max");
        assert!(broken("sybil", mean, 0.06) && !broken("sybil", mean, 0.04));
        assert!(broken("sybil", worst, 0.11) && !broken("sybil", worst, 0.06));
        assert!(broken("partial-data", worst, 0.11) && !broken("partial-data", worst, 0.09));
        assert!(broken("noise", mean, 0.2), "without worth");
        assert!(bounds(&table("favourer", "pay_share_since_cheating_max", 1.0)).is_empty());
    }

    #[test]
    fn a_validator_that_the_chain_sees_do_nothing_may_have_next_to_no_dividends_and_who_copies_some() {
        let holds = |name: &str, share: f64| {
            let bounds = bounds(&table(name, "pay_share_30_max", share));
            assert_eq!(bounds.len(), 1, "{name}");
            bounds[0].holds()
        };
        for name in ["absentee", "false-merge", "lazy-voter"] {
            assert!(holds(name, 0.04) && !holds(name, 0.06), "{name}");
        }
        assert!(holds("weight-copier", 0.85) && !holds("weight-copier", 0.95));
    }

    #[test]
    fn an_honest_seat_under_a_penalty_is_one_too_many() {
        let mut table = Table::default();
        table.honest.insert("failing_storage_seat_windows_at_fault".to_owned(), 1.0);
        table.honest.insert("seat_windows".to_owned(), 100.0);
        let bounds = bounds(&table);
        assert_eq!((bounds.len(), bounds[0].holds()), (1, false));
    }
}
