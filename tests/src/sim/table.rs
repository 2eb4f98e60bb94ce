//! The gauntlet table: the results of all networks, as Markdown and as JSON.

use super::{
    experiment::{
        BASELINE, CAPACITIES, CHEATING_VALIDATORS, COLLUDERS, COPIED_WEIGHTS, ELEVEN, EXCLUDED, FAILING,
        HONEST, HONEST_MINERS, Histories, IN_THE_OPEN, MOST_OF_THE_STAKE, ONE_AWAY, ONE_SHOT, OTHER_BATCH,
        OUTAGES, SLOW, STALLED, UNEQUAL, tested_adversaries,
    },
    record::{History, WindowRecord},
};
use protocol::Role;
use serde::Serialize;
use std::{collections::BTreeMap, fmt::Write as _};

/// Windows after which the table shows pay.
const AFTER: [usize; 3] = [10, 30, 100];
/// Number of losses whose mean is a network's final loss: the loss of a single window is noisy.
const LAST_WINDOWS: usize = 3;
/// Honest windows of the seat that poisons once.
const GOOD_WINDOWS: usize = adversaries::GOOD_WINDOWS as usize;

/// Prefix of the keys of pay for the work of [`UNEQUAL`]'s seats.
pub const PAID_FOR_WORK: &str = "paid_for_the_work_of_";

/// All numbers. Pay is a share of an honest seat's; means are over seeds.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Table {
    pub seeds: Vec<u64>,
    pub windows: usize,
    pub parameters: usize,
    /// Numbers of each adversary, by name: `pay_share_10` and so on (`_max`: the worst seed),
    /// `pay_share_since_cheating`,
    /// `worth`, `published_10` and so on, and numbers of single adversaries. Validators' pay is per stake.
    pub adversaries: BTreeMap<String, BTreeMap<String, f64>>,
    /// Cheating validators in networks other than [`CHEATING_VALIDATORS`], by network and name.
    pub validators: BTreeMap<String, BTreeMap<String, BTreeMap<String, f64>>>,
    /// Final loss of each network, and its relative increase over the baseline's.
    pub networks: BTreeMap<String, BTreeMap<String, f64>>,
    /// Penalties of honest seats, and the spread of pay for equal work.
    pub honest: BTreeMap<String, f64>,
    /// The spread of pay in the baseline, by seed.
    pub evenness: Vec<Evenness>,
}

/// The spread of cumulative pay among honest miners, under one seed.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Evenness {
    pub seed: u64,
    /// Largest over smallest pay of equal seats.
    pub largest_over_smallest: f64,
    /// Largest relative deviation of an equal seat's pay from the mean of equal seats.
    pub furthest_from_mean: f64,
    /// Pay of the slow seat, as a share of that mean.
    pub slow: f64,
    /// Pay of the seat with the smaller batch, as a share of that mean.
    pub other_batch: f64,
}

impl Table {
    pub fn new(histories: &Histories, parameters: usize) -> Table {
        let runs = |name: &str| histories.get(name).map(Vec::as_slice).unwrap_or_default();
        let windows = runs(BASELINE).first().map_or(0, |history| history.windows.len());
        let mut table = Table {
            seeds: runs(BASELINE).iter().map(|history| history.seed).collect(),
            windows,
            parameters,
            ..Table::default()
        };
        for (name, role) in tested_adversaries() {
            let network = |network: &&str| match role {
                // The colluders' network measures the loss, not pay.
                Role::Miner => *network != COLLUDERS,
                Role::Validator => [CHEATING_VALIDATORS, EXCLUDED, STALLED].contains(network),
            };
            let among = histories.iter().filter(|(name, _)| network(name)).flat_map(|(_, all)| all);
            if let Some(numbers) = adversary(among, name, role, windows) {
                table.adversaries.insert(name.to_owned(), numbers);
            }
            for network in [IN_THE_OPEN, MOST_OF_THE_STAKE, COPIED_WEIGHTS] {
                if let Some(numbers) = adversary(runs(network).iter(), name, role, windows)
                    && role == Role::Validator
                {
                    let theirs = table.validators.entry(network.to_owned()).or_default();
                    theirs.insert(name.to_owned(), numbers);
                }
            }
        }
        for (name, histories) in histories {
            let mut numbers = BTreeMap::new();
            numbers.insert("held_out_loss".to_owned(), mean(histories.iter().map(final_loss)));
            // Compare networks of eleven miners with an honest network of eleven, if it was run.
            let eleven = [ONE_SHOT, ONE_AWAY].contains(name) && !runs(ELEVEN).is_empty();
            let compared = runs(if eleven { ELEVEN } else { BASELINE });
            let harms = histories
                .iter()
                .zip(compared)
                .map(|(with, without)| final_loss(with) / final_loss(without) - 1.0);
            numbers.insert("harm".to_owned(), mean(harms));
            let void = histories.iter().flat_map(|history| &history.windows).filter(|window| !window.merged);
            numbers.insert("void_windows".to_owned(), void.count() as f64);
            if *name == EXCLUDED {
                numbers.insert("pay_lost_by_the_first_seat".to_owned(), mean(histories.iter().map(pay_lost)));
            }
            if *name == STALLED {
                let paid = |history: &History| history.windows.last().map_or(0.0, paid_in_all);
                numbers.insert("paid_without_a_merge".to_owned(), mean(histories.iter().map(paid)));
            }
            if *name == UNEQUAL {
                numbers.extend(paid_for_work(histories));
            }
            table.networks.insert((*name).to_owned(), numbers);
        }
        if let Some(numbers) = table.adversaries.get_mut("poison-one-shot") {
            one_shot(runs(ONE_SHOT), runs(ELEVEN), runs(ONE_AWAY), numbers);
        }
        table.honest = honest(histories, runs(BASELINE));
        table.evenness = runs(BASELINE).iter().filter_map(evenness).collect();
        table
    }

    /// Renders the table as Markdown.
    pub fn text(&self) -> String {
        let mut text = String::new();
        let after: Vec<usize> = AFTER.into_iter().filter(|after| *after <= self.windows).collect();
        let _ = writeln!(
            text,
            "{} seeds, {} windows, {} parameters. Pay as a share of an honest seat's, cumulative; in brackets the worst seed.\n",
            self.seeds.len(),
            self.windows,
            self.parameters
        );
        let heads = |prefix: &str| -> String {
            after.iter().map(|after| format!(" {prefix}after {after} |")).collect()
        };
        let pay = |numbers: &BTreeMap<String, f64>, by: &str| -> String {
            let both = |key: String| {
                format!(" {} ({}) |", cell(numbers, &key), cell(numbers, &format!("{key}_max")))
            };
            after.iter().map(|after| both(format!("{by}_{after}"))).collect()
        };
        let role = |name: &str| adversaries::kind(name).map(|kind| kind.role);
        let _ = writeln!(
            text,
            "| miner | honest work | worth |{} since it cheats |{}\n|---|---|---|---|{}",
            heads(""),
            heads("published rules, "),
            "---|".repeat(2 * after.len())
        );
        for (name, numbers) in self.adversaries.iter().filter(|(name, _)| role(name) == Some(Role::Miner)) {
            let _ = writeln!(
                text,
                "| `{name}` | {} | {} |{} {} ({}) |{}",
                cell(numbers, "honest_work"),
                cell(numbers, "worth"),
                pay(numbers, "pay_share"),
                cell(numbers, "pay_share_since_cheating"),
                cell(numbers, "pay_share_since_cheating_max"),
                pay(numbers, "published"),
            );
        }
        let _ =
            writeln!(text, "\n| validator | network |{}\n|---|---|{}", heads(""), "---|".repeat(after.len()));
        let hidden = self
            .adversaries
            .iter()
            .filter(|(name, _)| role(name) == Some(Role::Validator))
            .map(|row| (CHEATING_VALIDATORS, row));
        let others =
            self.validators.iter().flat_map(|(network, rows)| rows.iter().map(|row| (&network[..], row)));
        for (network, (name, numbers)) in hidden.chain(others) {
            let _ = writeln!(text, "| `{name}` | {network} |{}", pay(numbers, "pay_share"));
        }
        let _ = writeln!(
            text,
            "\n| network | held-out loss | against ten honest alone | void windows |\n|---|---|---|---|"
        );
        for (name, numbers) in &self.networks {
            let number = |key: &str| numbers.get(key).copied().unwrap_or(f64::NAN);
            let _ = writeln!(
                text,
                "| `{name}` | {:.4} | {:+.2} % | {} |",
                number("held_out_loss"),
                100.0 * number("harm"),
                number("void_windows")
            );
        }
        for (network, key, unit) in
            [(EXCLUDED, "pay_lost_by_the_first_seat", ""), (STALLED, "paid_without_a_merge", " MTL")]
        {
            if let Some(number) = self.networks.get(network).and_then(|numbers| numbers.get(key)) {
                let _ =
                    writeln!(text, "\n`{network}`: {}: {}{unit}", key.replace('_', " "), rounded(*number));
            }
        }
        if let Some(numbers) = self.networks.get(UNEQUAL) {
            let _ = writeln!(
                text,
                "\n| `{UNEQUAL}` | pay for the same work, after the first windows |\n|---|---|"
            );
            for (name, share) in CAPACITIES {
                if let Some(pay) = numbers.get(&paid_key(name)) {
                    let _ =
                        writeln!(text, "| {} of a window's sequences | {} |", percent(share), percent(*pay));
                }
            }
        }
        let _ = writeln!(text, "\n| honest seats | |\n|---|---|");
        for (name, number) in &self.honest {
            let _ = writeln!(text, "| {} | {} |", name.replace('_', " "), rounded(*number));
        }
        let _ = writeln!(
            text,
            "\n| seed | best paid of eight equals over the worst | furthest from their mean | slow | other batch |\n|---|---|---|---|---|"
        );
        for Evenness { seed, largest_over_smallest, furthest_from_mean, slow, other_batch } in &self.evenness
        {
            let [furthest, slow, other] =
                [furthest_from_mean, slow, other_batch].map(|share| percent(*share));
            let _ = writeln!(text, "| {seed} | {largest_over_smallest:.4} | {furthest} | {slow} | {other} |");
        }
        if let Some(numbers) = self.adversaries.get("poison-one-shot") {
            let _ = writeln!(text, "\n| one-shot poison | |\n|---|---|");
            for (name, number) in numbers.iter().filter(|(name, _)| name.starts_with("one_shot")) {
                let _ = writeln!(text, "| {} | {} |", name.replace('_', " "), rounded(*number));
            }
        }
        text
    }
}

/// Returns the numbers of the adversary `name`: mean pay of its seats over mean pay of honest seats of the same role
/// in the same network, and more. `None` if no network has it.
fn adversary<'a>(
    among: impl Iterator<Item = &'a History>,
    name: &str,
    role: Role,
    windows: usize,
) -> Option<BTreeMap<String, f64>> {
    let found: Vec<&History> =
        among.filter(|history| history.seats.iter().any(|seat| seat == name)).collect();
    if found.is_empty() {
        return None;
    }
    // A validator's pay is proportional to its stake.
    let stake = |history: &History, uid: usize| match role {
        Role::Miner => 1.0,
        Role::Validator => history.stakes[uid],
    };
    let shares_of = |number: &dyn Fn(&History, usize) -> f64| -> Vec<f64> {
        let share = |history: &&History| {
            let mean_of = |name: &str| {
                mean(seats(history, name, role).map(|uid| number(history, uid) / stake(history, uid)))
            };
            ratio(mean_of(name), mean_of(HONEST))
        };
        found.iter().map(share).collect()
    };
    let mut numbers = BTreeMap::new();
    let mut insert = |name: String, shares: Vec<f64>| {
        numbers.insert(name.clone(), mean(shares.iter().copied()));
        numbers.insert(format!("{name}_max"), shares.into_iter().fold(f64::NEG_INFINITY, f64::max));
    };
    for after in AFTER.into_iter().filter(|after| *after <= windows) {
        let record = |history: &'_ History| after.min(history.windows.len()) - 1;
        insert(
            format!("pay_share_{after}"),
            shares_of(&|history, uid| history.windows[record(history)].seats[uid].earned),
        );
        if role == Role::Miner {
            let published =
                shares_of(&|history, uid| history.windows[record(history)].seats[uid].earned_published);
            insert(format!("published_{after}"), published);
        }
    }
    if role == Role::Miner {
        let before = last_paid_before(cheats_from(name));
        let since = shares_of(&|history, uid| {
            let earned = |window: usize| history.windows.get(window).map_or(0.0, |w| w.seats[uid].earned);
            let whole = earned(history.windows.len() - 1);
            if cheats_from(name) == 0 { whole } else { whole - earned(before) }
        });
        insert("pay_share_since_cheating".to_owned(), since);
        // A window without an evaluated contribution has no worth.
        let worth = shares_of(&|history, uid| {
            history.windows.iter().filter_map(|window| window.seats[uid].common_gain).sum()
        });
        insert("worth".to_owned(), worth);
    }
    if let Some(work) = honest_work(name, windows) {
        numbers.insert("honest_work".to_owned(), work);
    }
    Some(numbers)
}

/// Returns the first window in which the adversary does not behave like an honest seat.
fn cheats_from(name: &str) -> usize {
    match name {
        "poison-one-shot" | "quitter" => GOOD_WINDOWS,
        "freeloader-replay" => adversaries::miners::freeloader::BEGINNING as usize,
        _ => 0,
    }
}

/// Returns the last window whose cumulative pay does not depend on `window`. A validator commits to an epoch's weights
/// before it scores the epoch's last window; the chain pays them after the reveal.
fn last_paid_before(window: usize) -> usize {
    let params = localnet::defaults::params(0);
    let (epoch, reveal) = (params.epoch_windows as usize, params.reveal_windows as usize);
    let first = (window + 2).saturating_sub(epoch).div_ceil(epoch);
    (first + 1) * epoch + reveal - 1
}

/// Returns the share of an honest miner's work that a cheat does in `windows` windows; `None`: all or nothing.
fn honest_work(name: &str, windows: usize) -> Option<f64> {
    let windows = windows.max(1) as f64;
    match name {
        "partial-data" => Some(0.1),
        "freeloader-tiny" | "withholder" | "distilled" => Some(8.0 / 96.0),
        "half-data" => Some(0.5),
        "freeloader-replay" | "poison-one-shot" | "quitter" if windows <= cheats_from(name) as f64 => {
            Some(1.0)
        }
        "freeloader-replay" | "quitter" => Some(cheats_from(name) as f64 / windows),
        "poison-one-shot" => Some(1.0 - 1.0 / windows),
        _ => None,
    }
}

/// Computes the effect of one poisoned window on the loss and on the seat's pay, against a network in which that seat
/// is honest. For comparison, also the absolute effect on the loss if the seat skips that window.
fn one_shot(with: &[History], without: &[History], away: &[History], numbers: &mut BTreeMap<String, f64>) {
    for later in 1..=4 {
        // A window's record holds the loss at its start.
        let change = |(with, without): (&History, &History)| {
            let loss = |history: &History| {
                history
                    .windows
                    .get(GOOD_WINDOWS + later)
                    .map_or(history.held_out_loss, |record| record.held_out_loss)
            };
            loss(with) / loss(without) - 1.0
        };
        let harms: Vec<f64> = with.iter().zip(without).map(change).collect();
        if !harms.is_empty() {
            numbers.insert(format!("one_shot_harm_{later}_windows_later"), mean(harms.into_iter()));
        }
        let noise: Vec<f64> = away.iter().zip(without).map(change).map(f64::abs).collect();
        if !noise.is_empty() {
            numbers.insert(format!("one_shot_chance_{later}_windows_later"), mean(noise.into_iter()));
        }
    }
    let below_half = with.iter().filter_map(|history| {
        let seat = seats(history, "poison-one-shot", Role::Miner).next()?;
        (GOOD_WINDOWS + 1..history.windows.len()).find(|window| {
            let gained = |uid: usize| {
                let earned = |window: usize| history.windows[window].seats[uid].earned;
                earned(*window) - earned(window - 1)
            };
            let honest = mean(seats(history, HONEST, Role::Miner).map(gained));
            0.0 < honest && gained(seat) < honest / 2.0
        })
    });
    let merged = with.iter().filter(|history| {
        let poisoned = history.windows.get(GOOD_WINDOWS);
        let seat = seats(history, "poison-one-shot", Role::Miner).next();
        poisoned.zip(seat).is_some_and(|(window, seat)| window.seats[seat].selected)
    });
    numbers.insert("one_shot_seats_merged_in_that_window".to_owned(), merged.count() as f64);
    numbers.insert("one_shot_seats".to_owned(), with.len() as f64);
    let windows: Vec<f64> = below_half.map(|window| (window - GOOD_WINDOWS) as f64).collect();
    numbers.insert(
        "one_shot_windows_until_paid_below_half".to_owned(),
        windows.iter().copied().fold(0.0, f64::max),
    );
    numbers.insert("one_shot_seats_paid_below_half".to_owned(), windows.len() as f64);
}

/// Penalties and faults of honest miners over all networks except the one with failing storage and those of cheating
/// validators; in the baseline, the spread of pay for equal work.
fn honest(histories: &Histories, baseline: &[History]) -> BTreeMap<String, f64> {
    let mut numbers = BTreeMap::new();
    let mut count = |prefix: &str, among: &mut dyn Iterator<Item = &History>| {
        let (mut seat_windows, mut penalties, mut faults, mut attested) = (0usize, 0usize, 0usize, 0usize);
        for history in among {
            for record in &history.windows {
                for seat in &record.seats[..HONEST_MINERS] {
                    seat_windows += 1;
                    penalties += usize::from(!seat.penalties.is_empty());
                    faults += usize::from(seat.observed.starts_with("Faulty"));
                    attested += seat.faults_attested;
                }
            }
        }
        numbers.insert(format!("{prefix}seat_windows"), seat_windows as f64);
        numbers.insert(format!("{prefix}seat_windows_under_a_penalty"), penalties as f64);
        numbers.insert(format!("{prefix}seat_windows_at_fault"), faults as f64);
        numbers.insert(format!("{prefix}attested_as_faulty"), attested as f64);
    };
    let special = [
        EXCLUDED,
        STALLED,
        FAILING,
        OUTAGES,
        CHEATING_VALIDATORS,
        IN_THE_OPEN,
        MOST_OF_THE_STAKE,
        COPIED_WEIGHTS,
    ];
    count("", &mut histories.iter().filter(|(name, _)| !special.contains(name)).flat_map(|(_, all)| all));
    count("failing_storage_", &mut histories.get(FAILING).into_iter().flatten());
    count("outages_", &mut histories.get(OUTAGES).into_iter().flatten());

    for after in AFTER {
        let reached: Vec<(&History, &WindowRecord)> =
            baseline.iter().filter_map(|history| Some((history, history.windows.get(after - 1)?))).collect();
        if reached.is_empty() {
            continue;
        }
        let spread = |pay: fn(&WindowRecord, usize) -> f64| {
            let spread_of_one = |(history, record): &(&History, &WindowRecord)| {
                let pay: Vec<f64> = seats(history, HONEST, Role::Miner).map(|uid| pay(record, uid)).collect();
                ratio(
                    pay.iter().copied().fold(0.0, f64::max),
                    pay.iter().copied().fold(f64::INFINITY, f64::min),
                )
            };
            reached.iter().map(spread_of_one).fold(0.0, f64::max)
        };
        let share = |name: &str, pay: fn(&WindowRecord, usize) -> f64| {
            mean(reached.iter().map(|(history, record)| {
                let mean_of =
                    |name: &str| mean(seats(history, name, Role::Miner).map(|uid| pay(record, uid)));
                ratio(mean_of(name), mean_of(HONEST))
            }))
        };
        let ours: fn(&WindowRecord, usize) -> f64 = |record, uid| record.seats[uid].earned;
        let published: fn(&WindowRecord, usize) -> f64 = |record, uid| record.seats[uid].earned_published;
        for (prefix, pay) in [("", ours), ("published_", published)] {
            numbers.insert(format!("{prefix}pay_largest_over_smallest_{after}"), spread(pay));
            numbers.insert(format!("{prefix}pay_share_of_slow_{after}"), share(SLOW, pay));
            numbers.insert(format!("{prefix}pay_share_of_other_batch_{after}"), share(OTHER_BATCH, pay));
        }
    }
    numbers
}

/// Returns the key of the pay of a seat of this name in [`UNEQUAL`].
fn paid_key(name: &str) -> String {
    format!("{PAID_FOR_WORK}{name}")
}

/// Returns the pay for the same work as a share of a whole seat's, mean over seeds. It excludes the first windows, in
/// which noise decides most.
fn paid_for_work(histories: &[History]) -> BTreeMap<String, f64> {
    let of = |(name, share): (&str, f64)| {
        let paid = |history: &History| {
            let gained = |uid: usize| {
                let earned = |window: usize| history.windows.get(window).map_or(0.0, |w| w.seats[uid].earned);
                earned(history.windows.len().saturating_sub(1)) - earned(AFTER[0] - 1)
            };
            let mean_of = |name: &str| mean(seats(history, name, Role::Miner).map(gained));
            ratio(mean_of(name), mean_of(HONEST)) / share
        };
        (paid_key(name), mean(histories.iter().map(paid)))
    };
    CAPACITIES.into_iter().filter(|(name, _)| *name != HONEST).map(of).collect()
}

/// Returns the pay that the first seat lacks against its equals, as a share of their mean.
fn pay_lost(history: &History) -> f64 {
    let Some(last) = history.windows.last() else { return 0.0 };
    let equals = seats(history, HONEST, Role::Miner).filter(|uid| *uid != 0);
    1.0 - ratio(last.seats[0].earned, mean(equals.map(|uid| last.seats[uid].earned)))
}

/// Returns the pay of all seats until the end of the window, in MTL.
fn paid_in_all(record: &WindowRecord) -> f64 {
    record.seats.iter().map(|seat| seat.earned).sum()
}

/// Returns the spread of pay, or `None` if the network ran no window or paid no miner.
fn evenness(history: &History) -> Option<Evenness> {
    let last = history.windows.last()?;
    let pay = |name| seats(history, name, Role::Miner).map(|uid| last.seats[uid].earned);
    let average = mean(pay(HONEST));
    let most = |values: &mut dyn Iterator<Item = f64>| values.fold(0.0, f64::max);
    (0.0 < average).then(|| Evenness {
        seed: history.seed,
        largest_over_smallest: ratio(most(&mut pay(HONEST)), pay(HONEST).fold(f64::INFINITY, f64::min)),
        furthest_from_mean: most(&mut pay(HONEST).map(|pay| (pay / average - 1.0).abs())),
        slow: mean(pay(SLOW)) / average,
        other_batch: mean(pay(OTHER_BATCH)) / average,
    })
}

/// Returns the uids of the seats with this name and role.
fn seats<'a>(history: &'a History, name: &'a str, role: Role) -> impl Iterator<Item = usize> + 'a {
    let of_role = match role {
        Role::Miner => 0..history.miners,
        Role::Validator => history.miners..history.seats.len(),
    };
    of_role.filter(move |uid| history.seats[*uid] == name)
}

fn final_loss(history: &History) -> f64 {
    let last = history.windows.iter().rev().take(LAST_WINDOWS - 1).map(|record| record.held_out_loss);
    mean(last.chain([history.held_out_loss]))
}

fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let (sum, count) = values.fold((0.0, 0u32), |(sum, count), value| (sum + value, count + 1));
    if count == 0 { 0.0 } else { sum / f64::from(count) }
}

/// Returns the quotient, or 0 if the denominator is not positive.
fn ratio(numerator: f64, denominator: f64) -> f64 {
    if 0.0 < denominator { numerator / denominator } else { 0.0 }
}

fn cell(numbers: &BTreeMap<String, f64>, key: &str) -> String {
    numbers.get(key).map_or(String::new(), |share| percent(*share))
}

fn percent(share: f64) -> String {
    format!("{:.1} %", 100.0 * share)
}

fn rounded(number: f64) -> String {
    if number.fract() == 0.0 { format!("{number}") } else { format!("{number:.4}") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::{experiment::HONEST_SEATS, record::SeatRecord};

    /// Eight equal seats, a slow one, one with another batch, and an adversary.
    fn history(earned: [f64; 11]) -> History {
        let names = [[HONEST; HONEST_SEATS].as_slice(), &[SLOW, OTHER_BATCH, "copycat"]].concat();
        let seats = earned.map(|earned| SeatRecord { earned, ..SeatRecord::default() }).to_vec();
        History {
            seed: 3,
            seats: names.into_iter().map(str::to_owned).collect(),
            miners: 11,
            stakes: vec![1.0; 11],
            windows: vec![WindowRecord { window: 0, merged: true, held_out_loss: 3.0, seats }],
            held_out_loss: 3.0,
            lineage: String::new(),
            state_root: String::new(),
            bytes_read: Vec::new(),
            resumed: 0,
            joined: BTreeMap::new(),
            answers: BTreeMap::new(),
            abstained: Vec::new(),
        }
    }

    #[test]
    fn the_spread_of_pay_covers_equal_seats_only() {
        let found = evenness(&history([9.0, 10.0, 10.0, 10.0, 10.0, 10.0, 9.0, 12.0, 5.0, 11.0, 0.1]));
        let Evenness { seed, largest_over_smallest, furthest_from_mean, slow, other_batch } =
            found.expect("the seats were paid");
        assert_eq!(seed, 3);
        let of_mean = [furthest_from_mean, slow, other_batch];
        for (number, expected) in of_mean.into_iter().zip([0.2, 0.5, 1.1]) {
            assert!((number - expected).abs() < 1e-12, "{of_mean:?}");
        }
        assert!((largest_over_smallest - 12.0 / 9.0).abs() < 1e-12);

        assert_eq!(evenness(&history([0.0; 11])), None);
    }
}
