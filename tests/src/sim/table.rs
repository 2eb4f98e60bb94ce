//! What came of the networks, in numbers: for people and as JSON.

use super::{
    experiment::{
        BASELINE, CHEATING_VALIDATORS, COLLUDERS, ELEVEN, FAILING, FULL, HONEST, Histories, IN_THE_OPEN,
        MOST_OF_THE_STAKE, ONE_AWAY, ONE_SHOT, OTHER_BATCH, SLOW, tried,
    },
    record::{History, WindowRecord},
};
use protocol::Role;
use serde::Serialize;
use std::{collections::BTreeMap, fmt::Write as _};

/// Windows after which pay is told.
const AFTER: [usize; 3] = [10, 30, 100];
/// Windows whose mean is a network's final loss: one window's loss has noise of its own.
const LAST_WINDOWS: usize = 3;
/// The seat that poisons once does so after so many windows.
const GOOD_WINDOWS: usize = adversaries::GOOD_WINDOWS as usize;

/// All numbers. Shares are of an honest seat's; a mean is over seeds.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Table {
    pub seeds: Vec<u64>,
    pub windows: usize,
    pub parameters: usize,
    /// By name: `pay_share_10` and so on (`_max`: the worst seed), `pay_share_since_cheating`, `worth`, `published_10` and so on, and what
    /// concerns only some. Validators': for the same stake.
    pub adversaries: BTreeMap<String, BTreeMap<String, f64>>,
    /// Cheating validators in other networks than [`CHEATING_VALIDATORS`], by network and name.
    pub validators: BTreeMap<String, BTreeMap<String, BTreeMap<String, f64>>>,
    /// Networks: final loss, and how much higher it is than the baseline's, as a share of it.
    pub networks: BTreeMap<String, BTreeMap<String, f64>>,
    /// False positives, and how evenly equal work is paid.
    pub honest: BTreeMap<String, f64>,
    /// How evenly ten honest miners alone were paid, for each seed.
    pub evenness: Vec<Evenness>,
}

/// What a seed's equal seats were paid, from the first window to the last.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Evenness {
    pub seed: u64,
    /// Pay of the best paid over that of the worst.
    pub largest_over_smallest: f64,
    /// How far from the mean of all the seat is paid that is furthest from it, as a share of that mean.
    pub furthest_from_mean: f64,
    /// Of that mean: the slow one's pay, and that of the one whose steps are smaller.
    pub slow: f64,
    pub other_batch: f64,
}

impl Table {
    pub fn new(histories: &Histories, parameters: usize) -> Table {
        let of = |name: &str| histories.get(name).map(Vec::as_slice).unwrap_or_default();
        let windows = of(BASELINE).first().map_or(0, |history| history.windows.len());
        let mut table = Table {
            seeds: of(BASELINE).iter().map(|history| history.seed).collect(),
            windows,
            parameters,
            ..Table::default()
        };
        for (name, role) in tried() {
            let network = |network: &&str| match role {
                // Its own network tells; the colluders' one is about the loss.
                Role::Miner => *network != COLLUDERS,
                Role::Validator => *network == CHEATING_VALIDATORS,
            };
            let among = histories.iter().filter(|(name, _)| network(name)).flat_map(|(_, all)| all);
            if let Some(numbers) = adversary(among, name, role, windows) {
                table.adversaries.insert(name.to_owned(), numbers);
            }
            for network in [IN_THE_OPEN, MOST_OF_THE_STAKE] {
                if let Some(numbers) = adversary(of(network).iter(), name, role, windows)
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
            // These have an honest miner more, and are compared with one that has as well, where it was played.
            let more = [ONE_SHOT, ONE_AWAY].contains(name) && !of(ELEVEN).is_empty();
            let compared = of(if more { ELEVEN } else { BASELINE });
            let harms = histories
                .iter()
                .zip(compared)
                .map(|(with, without)| final_loss(with) / final_loss(without) - 1.0);
            numbers.insert("harm".to_owned(), mean(harms));
            let void = histories.iter().flat_map(|history| &history.windows).filter(|window| !window.merged);
            numbers.insert("void_windows".to_owned(), void.count() as f64);
            table.networks.insert((*name).to_owned(), numbers);
        }
        if let Some(numbers) = table.adversaries.get_mut("poison-one-shot") {
            one_shot(of(ONE_SHOT), of(ELEVEN), of(ONE_AWAY), numbers);
        }
        table.honest = honest(histories, of(BASELINE));
        table.evenness = of(BASELINE).iter().filter_map(evenness).collect();
        table
    }

    /// As Markdown.
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

/// Pay of the seats of that name over the mean of honest ones of the same role in the same network.
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
    // For the same stake: it is what a validator's part is by.
    let stake = |history: &History, uid: usize| match role {
        Role::Miner => 1.0,
        Role::Validator => history.stakes[uid],
    };
    let shares_of = |of: &dyn Fn(&History, usize) -> f64| -> Vec<f64> {
        let share = |history: &&History| {
            let of = |name: &str| {
                mean(seats(history, name, role).map(|uid| of(history, uid) / stake(history, uid)))
            };
            ratio(of(name), of(HONEST))
        };
        found.iter().map(share).collect()
    };
    let mut numbers = BTreeMap::new();
    let mut tell = |name: String, shares: Vec<f64>| {
        numbers.insert(name.clone(), mean(shares.iter().copied()));
        numbers.insert(format!("{name}_max"), shares.into_iter().fold(f64::NEG_INFINITY, f64::max));
    };
    for after in AFTER.into_iter().filter(|after| *after <= windows) {
        let record = |history: &'_ History| after.min(history.windows.len()) - 1;
        tell(
            format!("pay_share_{after}"),
            shares_of(&|history, uid| history.windows[record(history)].seats[uid].earned),
        );
        if role == Role::Miner {
            let published =
                shares_of(&|history, uid| history.windows[record(history)].seats[uid].earned_published);
            tell(format!("published_{after}"), published);
        }
    }
    if role == Role::Miner {
        let before = last_paid_before(cheats_from(name));
        let since = shares_of(&|history, uid| {
            let earned = |window: usize| history.windows.get(window).map_or(0.0, |w| w.seats[uid].earned);
            let whole = earned(history.windows.len() - 1);
            if cheats_from(name) == 0 { whole } else { whole - earned(before) }
        });
        tell("pay_share_since_cheating".to_owned(), since);
        // What came of no window was worth nothing.
        let worth = shares_of(&|history, uid| {
            history.windows.iter().filter_map(|window| window.seats[uid].common_gain).sum()
        });
        tell("worth".to_owned(), worth);
    }
    if let Some(work) = honest_work(name, windows) {
        numbers.insert("honest_work".to_owned(), work);
    }
    Some(numbers)
}

/// The first window in which it does anything but what an honest seat does.
fn cheats_from(name: &str) -> usize {
    match name {
        "poison-one-shot" => GOOD_WINDOWS,
        "freeloader-replay" => adversaries::miners::freeloader::BEGINNING as usize,
        _ => 0,
    }
}

/// The last window in which nothing is credited that `window` has a part in. An epoch's weights are committed to before its last window is
/// judged, and paid when they were shown.
fn last_paid_before(window: usize) -> usize {
    let params = localnet::defaults::params(0);
    let (epoch, shown) = (params.epoch_windows as usize, params.reveal_windows as usize);
    let first = (window + 2).saturating_sub(epoch).div_ceil(epoch);
    (first + 1) * epoch + shown - 1
}

/// How much of the window's honest work a cheat does, where it is neither all nor nothing.
fn honest_work(name: &str, windows: usize) -> Option<f64> {
    let windows = windows.max(1) as f64;
    match name {
        "partial-data" => Some(0.1),
        "freeloader-tiny" | "withholder" => Some(8.0 / 96.0),
        "half-data" => Some(0.5),
        "freeloader-replay" | "poison-one-shot" if windows <= cheats_from(name) as f64 => Some(1.0),
        "freeloader-replay" => Some(cheats_from(name) as f64 / windows),
        "poison-one-shot" => Some(1.0 - 1.0 / windows),
        _ => None,
    }
}

/// What the one poisoned window did: to the loss, against a network in which that seat stayed honest, and to the seat's pay. Beside it what
/// it does to the loss, either way, that the seat stays away for that window.
fn one_shot(with: &[History], without: &[History], away: &[History], numbers: &mut BTreeMap<String, f64>) {
    for later in 1..=4 {
        // The record of a window holds the loss that it opened with.
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
        let chances: Vec<f64> = away.iter().zip(without).map(change).map(f64::abs).collect();
        if !chances.is_empty() {
            numbers.insert(format!("one_shot_chance_{later}_windows_later"), mean(chances.into_iter()));
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

/// Over all networks but the one with failing storage and those of cheating validators: penalties and faults of honest seats. In the
/// baseline: how equal work is paid.
fn honest(histories: &Histories, baseline: &[History]) -> BTreeMap<String, f64> {
    let mut numbers = BTreeMap::new();
    let mut count = |prefix: &str, among: &mut dyn Iterator<Item = &History>| {
        let (mut seat_windows, mut penalties, mut faults, mut attested) = (0usize, 0usize, 0usize, 0usize);
        for history in among {
            for record in &history.windows {
                for seat in &record.seats[..FULL + 2] {
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
    let special = [FAILING, CHEATING_VALIDATORS, IN_THE_OPEN, MOST_OF_THE_STAKE];
    count("", &mut histories.iter().filter(|(name, _)| !special.contains(name)).flat_map(|(_, all)| all));
    count("failing_storage_", &mut histories.get(FAILING).into_iter().flatten());

    for after in AFTER {
        let reached: Vec<(&History, &WindowRecord)> =
            baseline.iter().filter_map(|history| Some((history, history.windows.get(after - 1)?))).collect();
        if reached.is_empty() {
            continue;
        }
        let spread = |pay: fn(&WindowRecord, usize) -> f64| {
            let of_one = |(history, record): &(&History, &WindowRecord)| {
                let pay: Vec<f64> = seats(history, HONEST, Role::Miner).map(|uid| pay(record, uid)).collect();
                ratio(
                    pay.iter().copied().fold(0.0, f64::max),
                    pay.iter().copied().fold(f64::INFINITY, f64::min),
                )
            };
            reached.iter().map(of_one).fold(0.0, f64::max)
        };
        let share = |name: &str, pay: fn(&WindowRecord, usize) -> f64| {
            mean(reached.iter().map(|(history, record)| {
                let of = |name: &str| mean(seats(history, name, Role::Miner).map(|uid| pay(record, uid)));
                ratio(of(name), of(HONEST))
            }))
        };
        let ours: fn(&WindowRecord, usize) -> f64 = |record, uid| record.seats[uid].earned;
        let published: fn(&WindowRecord, usize) -> f64 = |record, uid| record.seats[uid].earned_published;
        for (by, pay) in [("", ours), ("published_", published)] {
            numbers.insert(format!("{by}pay_largest_over_smallest_{after}"), spread(pay));
            numbers.insert(format!("{by}pay_share_of_slow_{after}"), share(SLOW, pay));
            numbers.insert(format!("{by}pay_share_of_other_batch_{after}"), share(OTHER_BATCH, pay));
        }
    }
    numbers
}

/// None where no window was played, or nobody paid.
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

/// The seats of a name and role.
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

/// Of nothing there is no share.
fn ratio(of: f64, over: f64) -> f64 {
    if 0.0 < over { of / over } else { 0.0 }
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
    use crate::sim::record::SeatRecord;

    /// Eight equals, a slow one, one of another batch, and somebody else.
    fn history(earned: [f64; 11]) -> History {
        let names = [[HONEST; FULL].as_slice(), &[SLOW, OTHER_BATCH, "copycat"]].concat();
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
            resumed: 0,
        }
    }

    #[test]
    fn how_evenly_a_seed_was_paid_is_told_of_its_equals_alone() {
        let found = evenness(&history([9.0, 10.0, 10.0, 10.0, 10.0, 10.0, 9.0, 12.0, 5.0, 11.0, 0.1]));
        let Evenness { seed, largest_over_smallest, furthest_from_mean, slow, other_batch } =
            found.expect("they were paid");
        assert_eq!(seed, 3);
        let of_mean = [furthest_from_mean, slow, other_batch];
        for (number, expected) in of_mean.into_iter().zip([0.2, 0.5, 1.1]) {
            assert!((number - expected).abs() < 1e-12, "{of_mean:?}");
        }
        assert!((largest_over_smallest - 12.0 / 9.0).abs() < 1e-12);

        assert_eq!(evenness(&history([0.0; 11])), None);
    }
}
