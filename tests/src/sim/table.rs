//! What came of the networks, in numbers: for people and as JSON.

use super::{
    experiment::{
        BASELINE, CHEATING_VALIDATORS, COLLUDERS, ELEVEN, FAILING, FULL, HONEST, Histories, ONE_SHOT,
        OTHER_BATCH, SLOW, tried,
    },
    network::{History, WindowRecord},
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
    /// By name: `pay_share_10` and so on (`_max`: the worst seed), `published_10` and so on, and what concerns only some.
    pub adversaries: BTreeMap<String, BTreeMap<String, f64>>,
    /// Networks: final loss, and how much higher it is than the baseline's, as a share of it.
    pub networks: BTreeMap<String, BTreeMap<String, f64>>,
    /// False positives, and how evenly equal work is paid.
    pub honest: BTreeMap<String, f64>,
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
            if let Some(numbers) = adversary(histories, name, role, windows) {
                table.adversaries.insert(name.to_owned(), numbers);
            }
        }
        for (name, histories) in histories {
            let mut numbers = BTreeMap::new();
            numbers.insert("held_out_loss".to_owned(), mean(histories.iter().map(final_loss)));
            // The one-shot's network has a miner more, and is compared with one that has as well.
            let compared = of(if *name == ONE_SHOT { ELEVEN } else { BASELINE });
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
            one_shot(of(ONE_SHOT), of(ELEVEN), numbers);
        }
        table.honest = honest(histories, of(BASELINE));
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
        let heads: Vec<String> = after.iter().map(|after| format!("after {after}")).collect();
        let published: Vec<String> =
            after.iter().map(|after| format!("published rules, after {after}")).collect();
        let _ =
            writeln!(text, "| adversary | honest work | {} | {} |", heads.join(" | "), published.join(" | "));
        let _ = writeln!(text, "|---|---|{}", "---|".repeat(2 * after.len()));
        for (name, numbers) in &self.adversaries {
            let share = |key: String| numbers.get(&key).map_or("".to_owned(), |share| percent(*share));
            let ours = after.iter().map(|after| {
                format!(
                    "{} ({})",
                    share(format!("pay_share_{after}")),
                    share(format!("pay_share_{after}_max"))
                )
            });
            let theirs = after.iter().map(|after| share(format!("published_{after}")));
            let cells: Vec<String> = ours.chain(theirs).collect();
            let _ = writeln!(text, "| {name} | {} | {} |", share("honest_work".into()), cells.join(" | "));
        }
        let _ = writeln!(
            text,
            "\n| network | held-out loss | against ten honest alone | void windows |\n|---|---|---|---|"
        );
        for (name, numbers) in &self.networks {
            let number = |key: &str| numbers.get(key).copied().unwrap_or(f64::NAN);
            let _ = writeln!(
                text,
                "| {name} | {:.4} | {:+.2} % | {} |",
                number("held_out_loss"),
                100.0 * number("harm"),
                number("void_windows")
            );
        }
        let _ = writeln!(text, "\n| honest seats | |\n|---|---|");
        for (name, number) in &self.honest {
            let _ = writeln!(text, "| {} | {} |", name.replace('_', " "), rounded(*number));
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
fn adversary(histories: &Histories, name: &str, role: Role, windows: usize) -> Option<BTreeMap<String, f64>> {
    // Its own network tells; the colluders' one is about the loss.
    let network = histories.iter().filter(|(network, _)| **network != COLLUDERS);
    let found: Vec<&History> = network
        .flat_map(|(_, histories)| histories)
        .filter(|history| history.seats.iter().any(|seat| seat == name))
        .collect();
    if found.is_empty() {
        return None;
    }
    let mut numbers = BTreeMap::new();
    for after in AFTER.into_iter().filter(|after| *after <= windows) {
        let share = |history: &&History, pay: fn(&WindowRecord, usize) -> f64| {
            let record = &history.windows[after - 1];
            let of = |name: &str| mean(seats(history, name, role).map(|uid| pay(record, uid)));
            ratio(of(name), of(HONEST))
        };
        let shares: Vec<f64> =
            found.iter().map(|history| share(history, |record, uid| record.seats[uid].earned)).collect();
        numbers.insert(format!("pay_share_{after}"), mean(shares.iter().copied()));
        numbers.insert(format!("pay_share_{after}_max"), shares.into_iter().fold(0.0, f64::max));
        if role == Role::Miner {
            let published =
                found.iter().map(|history| share(history, |record, uid| record.seats[uid].earned_published));
            numbers.insert(format!("published_{after}"), mean(published));
        }
    }
    if let Some(work) = honest_work(name, windows) {
        numbers.insert("honest_work".to_owned(), work);
    }
    Some(numbers)
}

/// How much of the window's honest work a cheat does, where it is neither all nor nothing.
fn honest_work(name: &str, windows: usize) -> Option<f64> {
    let windows = windows.max(1) as f64;
    match name {
        "partial-data" => Some(0.1),
        "freeloader-tiny" => Some(8.0 / 96.0),
        "freeloader-replay" => Some(2.0 / windows),
        "withholder" => Some(GOOD_WINDOWS as f64 / windows),
        "poison-one-shot" => Some(1.0 - 1.0 / windows),
        _ => None,
    }
}

/// What the one poisoned window did: to the loss, against a network in which that seat stayed honest, and to the seat's pay.
fn one_shot(with: &[History], without: &[History], numbers: &mut BTreeMap<String, f64>) {
    for later in 1..=4 {
        // The record of a window holds the loss that it opened with.
        let harm = |(with, without): (&History, &History)| {
            let loss = |history: &History| {
                history
                    .windows
                    .get(GOOD_WINDOWS + later)
                    .map_or(history.held_out_loss, |record| record.held_out_loss)
            };
            loss(with) / loss(without) - 1.0
        };
        let harms: Vec<f64> = with.iter().zip(without).map(harm).collect();
        numbers.insert(format!("one_shot_harm_{later}_windows_later"), mean(harms.iter().copied()));
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
    let special = [FAILING, CHEATING_VALIDATORS];
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

fn percent(share: f64) -> String {
    format!("{:.1} %", 100.0 * share)
}

fn rounded(number: f64) -> String {
    if number.fract() == 0.0 { format!("{number}") } else { format!("{number:.4}") }
}
