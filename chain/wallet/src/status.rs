//! How a seat is doing, and why: what it has, what waits for it, what it was paid for what.

use crate::{
    commands::{hotkey_of, seat_at},
    sign::{SigningSession, units},
    time::BlockClock,
};
use chain_client::{Amount, Balance, account, keys::address, terms::percent};
use node::{config::SeatFlags, output::Output};
use protocol::{
    Hotkey, Role, Uid, Window,
    consensus::ONE,
    view::{AccountStatus, Payslip, PendingChange, RunStatus, SeatConsensus, SeatStatus, UnbondingView},
};
use serde_json::{Value, json};
use std::{cmp::Reverse, fmt::Write as _};

/// Payslips shown to a person; JSON has all that the chain keeps.
const PAYSLIPS_SHOWN: usize = 8;

/// Bonds shown to a person; JSON has all.
const BONDS_SHOWN: usize = 5;

#[derive(Clone, Debug, clap::Args)]
pub struct Status {
    #[command(flatten)]
    pub seat: SeatFlags,
    /// Print one JSON object. Amounts in it are texts, counted in the smallest unit, 10⁻¹² MTL.
    #[arg(long)]
    pub json: bool,
}

/// Everything that is said of a seat.
pub(crate) struct StatusReport {
    pub run: RunStatus,
    pub clock: BlockClock,
    pub seat: SeatStatus,
    /// The latest last.
    pub payslips: Vec<Payslip>,
    /// What the seat's coldkey has in the run.
    pub account: AccountStatus,
    /// A validator's, in parts of [`ONE`].
    pub bonds: Vec<(Uid, u32)>,
    pub hotkey_balance: Balance,
    pub coldkey_balance: Balance,
}

pub(crate) async fn status(command: Status, output: &mut Output<'_>) -> anyhow::Result<()> {
    let args = command.seat.read()?;
    let session = SigningSession::open(&args.chain).await?;
    let chain = &*session.chain;
    let run = chain.status(args.run).await?;
    let clock = BlockClock::read(chain, run.run.params.schedule).await?;
    let (uid, hotkey) = match command.seat.uid {
        Some(uid) => (Some(Uid(uid)), None),
        None => {
            let hotkey = hotkey_of(&args)?;
            let seat = account::seat_of(chain, args.run, &hotkey).await?;
            (seat.map(|seat| seat.id.uid), Some(hotkey))
        }
    };
    let seat = match uid {
        Some(uid) => seat_at(chain, args.run, uid).await?,
        None => None,
    };
    let Some(seat) = seat else {
        let text = without_a_seat(&run, &clock, uid, hotkey.as_ref());
        let funds = match &hotkey {
            Some(hotkey) => units(chain.balance(&hotkey.0).await?.free),
            None => Value::Null,
        };
        return Ok(output
            .result(&text, json!({ "run": run_json(&run, &clock), "seat": null, "hotkey_funds": funds }))?);
    };
    let bonds = match seat.seat.role {
        Role::Validator => chain.bonds(args.run, seat.seat.id.uid).await?,
        Role::Miner => Vec::new(),
    };
    let report = StatusReport {
        bonds,
        payslips: chain.payslips(args.run, seat.seat.id.uid).await?,
        account: chain.account_status(args.run, &seat.seat.coldkey).await?,
        hotkey_balance: chain.balance(&seat.seat.hotkey.0).await?,
        coldkey_balance: chain.balance(&seat.seat.coldkey).await?,
        run,
        clock,
        seat,
    };
    Ok(output.result(&report.text(), report.json())?)
}

fn without_a_seat(run: &RunStatus, clock: &BlockClock, uid: Option<Uid>, hotkey: Option<&Hotkey>) -> String {
    let mut text = run_text(run, clock);
    let _ = match (uid, hotkey) {
        (Some(uid), _) => writeln!(text, "uid {uid} is nobody's"),
        (None, Some(hotkey)) => {
            writeln!(text, "{} has no seat; register it with `mettle register`", address(&hotkey.0))
        }
        (None, None) => Ok(()),
    };
    for (role, seats) in [(Role::Miner, &run.miners), (Role::Validator, &run.validators)] {
        let _ = writeln!(
            text,
            "{} of {} {role}s' seats are taken; the next costs {} and a stake of {}",
            seats.taken,
            seats.max,
            Amount(seats.price),
            Amount(run.run.terms.stake_min(role)),
        );
    }
    text
}

/// A share in parts of [`ONE`], in percent with two digits.
fn share(parts: u64) -> String {
    let hundredths = u128::from(parts).saturating_mul(10_000) / u128::from(ONE);
    format!("{}.{:02} %", hundredths / 100, hundredths % 100)
}

fn share_json(parts: u64) -> Value {
    // Parts of 2³²: exact as a double.
    json!(parts as f64 / ONE as f64)
}

fn run_text(run: &RunStatus, clock: &BlockClock) -> String {
    let mut text = String::new();
    let schedule = &run.run.params.schedule;
    let _ = match schedule.phase_at(run.block) {
        Some((window, phase)) => writeln!(
            text,
            "run {}: window {}, {}, epoch {}, block {}",
            run.run.id,
            window.0,
            phase.label(),
            run.epoch.unwrap_or_default(),
            run.block.0
        ),
        None => writeln!(text, "run {} starts with {}", run.run.id, clock.until(Window(0))),
    };
    if run.stopped_by_owner {
        let _ = writeln!(text, "the run's owner has stopped it: its windows are void, and nobody is paid");
    } else if run.run.paused {
        let _ = writeln!(text, "the run is paused: too little of the validators' stake is taking part");
    }
    if run.pending_terms.is_some() {
        let _ = writeln!(text, "new terms take effect with the next epoch: see `mettle run terms`");
    }
    text
}

fn run_json(run: &RunStatus, clock: &BlockClock) -> Value {
    let phase = run.run.params.schedule.phase_at(run.block).map(|(_, phase)| phase.label());
    let seats = |seats: protocol::view::SeatOccupancy| json!({ "taken": seats.taken, "max": seats.max, "price": units(Amount(seats.price)) });
    json!({
        "id": run.run.id, "block": run.block, "window": run.window, "epoch": run.epoch, "phase": phase,
        "paused": run.run.paused, "stopped_by_owner": run.stopped_by_owner,
        "miners": seats(run.miners), "validators": seats(run.validators),
        "treasury": units(Amount(run.treasury.treasury)), "new_terms_pending": run.pending_terms.is_some(),
        "block_seconds": clock.block_time.as_secs_f64(),
    })
}

impl StatusReport {
    /// For a person.
    pub(crate) fn text(&self) -> String {
        // Writing to a text does not fail.
        let mut text = run_text(&self.run, &self.clock);
        let SeatStatus { seat, .. } = &self.seat;
        let _ = writeln!(
            text,
            "uid {}, {}, since block {}; {}",
            seat.id.uid,
            seat.role,
            seat.id.registered_at.0,
            self.place()
        );
        if let Some(pending) = &self.seat.pending {
            let when = self.clock.until(self.clock.next_window());
            let _ = match pending {
                PendingChange::Rotates(hotkey) => {
                    writeln!(text, "changes its hotkey to {} as {when}, opens", address(&hotkey.0))
                }
                PendingChange::Leaves => writeln!(text, "is given up as {when}, opens"),
                PendingChange::Replaced => {
                    writeln!(text, "is taken over by somebody else as {when}, opens: its pay was the least")
                }
            };
        }

        let _ = write!(text, "stake     {}", Amount(seat.stake));
        let _ = match seat.role {
            Role::Validator => writeln!(
                text,
                ", and {} nominated behind it, at a commission of {}",
                Amount(self.seat.nominated),
                percent(self.seat.commission)
            ),
            Role::Miner => writeln!(text),
        };
        if let Some((commission, from)) = self.seat.commission_raise {
            let when = self.clock.until(from);
            let _ = writeln!(text, "          the commission rises to {} in {when}", percent(commission));
        }
        for chunk in self.unbonding() {
            let when = self.clock.until(chunk.until);
            let _ = writeln!(text, "          {} taken out, free in {when}", Amount(chunk.amount));
        }
        let _ = writeln!(text, "standing  {}", self.consensus_text());
        let to = if self.seat.pays_into_stake { "its stake" } else { "its coldkey" };
        let _ = writeln!(
            text,
            "pay       {} earned, of which {} can be claimed, into {to}",
            Amount(seat.earned),
            Amount(seat.claimable)
        );
        if seat.role == Role::Validator {
            let attested = match self.seat.last_attested {
                Some(window) => format!("last attested window {}", window.0),
                None => "has not attested yet".into(),
            };
            let _ = writeln!(text, "presence  {attested}");
            if !self.bonds.is_empty() {
                let _ = writeln!(text, "bonds     {}", self.bonds_text());
            }
        }
        let _ = writeln!(text, "hotkey    {}, {} free", address(&seat.hotkey.0), self.hotkey_balance.free);
        let _ = writeln!(
            text,
            "coldkey   {}, {} free, {} held",
            address(&seat.coldkey),
            self.coldkey_balance.free,
            self.coldkey_balance.held
        );
        let _ = writeln!(text, "endpoint  {}", seat.endpoint);
        self.payslips_text(&mut text);
        text
    }

    /// Whether the seat can be lost to somebody else.
    fn place(&self) -> String {
        let seats = match self.seat.seat.role {
            Role::Miner => self.run.miners,
            Role::Validator => self.run.validators,
        };
        let role = self.seat.seat.role;
        let immune = self.run.window.is_none_or(|now| now < self.seat.immune_until);
        if immune {
            return format!("nobody can take its place before {}", self.clock.until(self.seat.immune_until));
        }
        let recent = Amount(self.seat.recent_pay);
        if seats.taken < seats.max {
            format!("{} of {} {role}s' seats are taken (recent pay {recent})", seats.taken, seats.max)
        } else {
            format!(
                "all {role}s' seats are taken: a newcomer takes that of the least recent pay; this one's is {recent}"
            )
        }
    }

    fn unbonding(&self) -> impl Iterator<Item = &UnbondingView> {
        self.account.unbonding.iter().filter(|chunk| chunk.uid == self.seat.seat.id.uid)
    }

    fn consensus_text(&self) -> String {
        let SeatConsensus { weight, incentive, trust, dividends } = self.seat.consensus;
        match self.seat.seat.role {
            Role::Miner => {
                format!("weight {weight} of 65535; {} of what miners are paid", share(incentive))
            }
            Role::Validator => format!(
                "the others let {} of its weights stand; {} of what validators are paid",
                share(trust),
                share(dividends)
            ),
        }
    }

    /// The seats that a validator earns most with.
    fn bonds_text(&self) -> String {
        let mut bonds = self.bonds.clone();
        bonds.sort_by_key(|(uid, bond)| (Reverse(*bond), *uid));
        let shown = bonds.iter().take(BONDS_SHOWN);
        let shown: Vec<String> =
            shown.map(|(uid, bond)| format!("{} with uid {uid}", share((*bond).into()))).collect();
        let others = bonds.len().saturating_sub(BONDS_SHOWN);
        match others {
            0 => shown.join(", "),
            others => format!("{}, and {others} more", shown.join(", ")),
        }
    }

    fn payslips_text(&self, text: &mut String) {
        if self.payslips.is_empty() {
            let _ = writeln!(text, "no epoch has been paid to it yet");
            return;
        }
        let role = self.seat.seat.role;
        let _ = writeln!(text, "why it was paid, epoch by epoch:");
        for slip in self.payslips.iter().rev().take(PAYSLIPS_SHOWN) {
            let Payslip { epoch, pot, consensus, amount, nominators } = slip;
            let (pot, amount) = (Amount(*pot), Amount(*amount));
            let _ = match role {
                Role::Miner => writeln!(
                    text,
                    "  epoch {epoch}: {amount}, being {} of the miners' part of {pot}",
                    share(consensus.incentive)
                ),
                Role::Validator => writeln!(
                    text,
                    "  epoch {epoch}: {amount}, and {} to its nominators, being {} of the validators' part of {pot}",
                    Amount(*nominators),
                    share(consensus.dividends)
                ),
            };
        }
    }

    /// For a program.
    pub(crate) fn json(&self) -> Value {
        let SeatStatus { seat, consensus, .. } = &self.seat;
        let consensus_json = |consensus: &SeatConsensus| {
            json!({
                "weight": consensus.weight, "incentive": share_json(consensus.incentive),
                "trust": share_json(consensus.trust), "dividends": share_json(consensus.dividends),
            })
        };
        let payslips: Vec<Value> = self
            .payslips
            .iter()
            .map(|slip| {
                json!({
                    "epoch": slip.epoch, "pot": units(Amount(slip.pot)), "standing": consensus_json(&slip.consensus),
                    "amount": units(Amount(slip.amount)), "nominators": units(Amount(slip.nominators)),
                })
            })
            .collect();
        let unbonding: Vec<Value> = self
            .unbonding()
            .map(|chunk| json!({ "amount": units(Amount(chunk.amount)), "until": chunk.until }))
            .collect();
        let bonds: Vec<Value> = self
            .bonds
            .iter()
            .map(|(uid, bond)| json!({ "uid": uid, "share": share_json((*bond).into()) }))
            .collect();
        let pending = self.seat.pending.map(|pending| match pending {
            PendingChange::Rotates(hotkey) => json!({ "rotates": address(&hotkey.0) }),
            PendingChange::Leaves => json!("leaves"),
            PendingChange::Replaced => json!("replaced"),
        });
        let raise = self
            .seat
            .commission_raise
            .map(|(commission, from)| json!({ "commission": commission.0, "from": from }));
        json!({
            "run": run_json(&self.run, &self.clock),
            "seat": {
                "uid": seat.id.uid, "registered_at": seat.id.registered_at, "role": seat.role.to_string(),
                "hotkey": address(&seat.hotkey.0), "coldkey": address(&seat.coldkey), "endpoint": seat.endpoint,
                "stake": units(Amount(seat.stake)), "nominated": units(Amount(self.seat.nominated)),
                "commission": self.seat.commission.0, "commission_raise": raise, "claimable": units(Amount(seat.claimable)),
                "earned": units(Amount(seat.earned)), "recent_pay": units(Amount(self.seat.recent_pay)),
                "pays_into_stake": self.seat.pays_into_stake, "immune_until": self.seat.immune_until,
                "pending": pending, "last_attested": self.seat.last_attested, "standing": consensus_json(consensus),
                "unbonding": unbonding,
            },
            "payslips": payslips, "bonds": bonds,
            "hotkey_funds": units(self.hotkey_balance.free),
            "coldkey_free": units(self.coldkey_balance.free),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use protocol::{
        Block, Digest, RunId, RunParams, Schedule, SeatId, Terms,
        params::Permille,
        view::{RunView, SeatOccupancy, SeatView, TreasuryView},
    };
    use std::time::Duration;

    fn report(role: Role) -> StatusReport {
        let schedule = Schedule {
            start: Block(100),
            blocks_per_window: 20,
            commit_by: 10,
            reveal_by: 12,
            attest_by: 14,
            vote_by: 16,
        };
        let params = RunParams { schedule, ..RunParams::default() };
        let run = RunView {
            id: RunId(1),
            owner: [1; 32],
            params,
            terms: Terms::default(),
            spec: Digest::of(b"spec"),
            manifest: Digest::of(b"manifest"),
            theta0: Digest::of(b"theta0"),
            origin: "http://127.0.0.1/origin".into(),
            treasury: Amount::mtl(100).0,
            checkpoint: None,
            paused: false,
        };
        let block = Block(165);
        let run = RunStatus {
            run,
            block,
            window: Some(Window(3)),
            epoch: Some(0),
            miners: SeatOccupancy { taken: 2, max: 2, price: 5 },
            validators: SeatOccupancy { taken: 1, max: 4, price: 7 },
            pending_terms: None,
            stopped_by_owner: false,
            treasury: TreasuryView::default(),
        };
        let consensus = SeatConsensus { weight: 65535, incentive: ONE / 4, trust: ONE, dividends: ONE / 3 };
        let seat = SeatStatus {
            seat: SeatView {
                id: SeatId { uid: Uid(4), registered_at: Block(90) },
                role,
                hotkey: Hotkey([2; 32]),
                coldkey: [3; 32],
                endpoint: "http://127.0.0.1/seat".into(),
                stake: Amount::mtl(10).0,
                claimable: Amount::mtl(2).0,
                earned: u128::MAX,
            },
            immune_until: Window(1),
            pending: None,
            pays_into_stake: false,
            nominated: Amount::mtl(6).0,
            commission: Permille(125),
            commission_raise: (role == Role::Validator).then_some((Permille(200), Window(9))),
            consensus,
            recent_pay: Amount::mtl(3).0,
            last_attested: Some(Window(2)),
        };
        let slip = |epoch| Payslip {
            epoch,
            pot: Amount::mtl(8).0,
            consensus,
            amount: Amount::mtl(1).0,
            nominators: Amount(500_000_000_000).0,
        };
        let unbonding = [(4, 9), (5, 8)].map(|(uid, until)| UnbondingView {
            uid: Uid(uid),
            amount: Amount::mtl(5).0,
            until: Window(until),
        });
        StatusReport {
            run,
            clock: BlockClock { block, schedule, block_time: Duration::from_secs(6) },
            seat,
            payslips: vec![slip(0), slip(1)],
            bonds: (0..6).map(|uid| (Uid(uid), u32::from(uid) << 29)).collect(),
            account: AccountStatus { unbonding: unbonding.to_vec(), ..AccountStatus::default() },
            hotkey_balance: Balance { free: Amount::mtl(1), held: Amount::ZERO },
            coldkey_balance: Balance { free: Amount::mtl(50), held: Amount::mtl(10) },
        }
    }

    #[test]
    fn a_validator_reads_what_it_has_and_why_it_was_paid() {
        let text = report(Role::Validator).text();
        for part in [
            "run 1: window 3, commit, epoch 0, block 165",
            "uid 4, validator, since block 90; 1 of 4 validators' seats are taken (recent pay 3 MTL)",
            "10 MTL, and 6 MTL nominated behind it, at a commission of 12.5 %",
            "the commission rises to 20 % in window 9, in about 11 min 30 s",
            "5 MTL taken out, free in window 9, in about 11 min 30 s",
            "100.00 % of its weights stand; 33.33 % of what validators are paid",
            "2 MTL can be claimed, into its coldkey",
            "last attested window 2",
            "bonds     62.50 % with uid 5, 50.00 % with uid 4",
            "and 1 more",
            "epoch 1: 1 MTL, and 0.5 MTL to its nominators, being 33.33 % of the validators' part of 8 MTL",
        ] {
            assert!(text.contains(part), "no `{part}` in:\n{text}");
        }
        assert!(!text.contains("window 8"), "that is another seat's:\n{text}");
        assert!(text.find("epoch 1:") < text.find("epoch 0:"), "the latest first:\n{text}");
    }

    #[test]
    fn a_miner_in_a_full_run_reads_what_it_may_lose_its_seat_by() {
        let text = report(Role::Miner).text();
        assert!(text.contains("all miners' seats are taken"), "{text}");
        assert!(text.contains("weight 65535 of 65535; 25.00 % of what miners are paid"), "{text}");
        assert!(text.contains("epoch 0: 1 MTL, being 25.00 % of the miners' part of 8 MTL"), "{text}");
        assert!(!text.contains("commission"), "{text}");
        let mut young = report(Role::Miner);
        young.seat.immune_until = Window(5);
        assert!(young.text().contains("nobody can take its place before window 5, in about 3 min 30 s"));
        young.payslips.clear();
        assert!(young.text().contains("no epoch has been paid to it yet"));
    }

    #[test]
    fn what_the_next_window_brings_is_said() {
        let mut report = report(Role::Miner);
        for (pending, said) in [
            (PendingChange::Leaves, "is given up as window 4, in about 1 min 30 s, opens"),
            (PendingChange::Replaced, "is taken over by somebody else"),
            (PendingChange::Rotates(Hotkey([7; 32])), "changes its hotkey to 5"),
        ] {
            report.seat.pending = Some(pending);
            assert!(report.text().contains(said), "{}", report.text());
        }
        report.run.stopped_by_owner = true;
        report.run.pending_terms = Some(Terms::default());
        let text = report.text();
        assert!(text.contains("owner has stopped it") && text.contains("new terms take effect"), "{text}");
    }

    #[test]
    fn as_json_every_amount_is_a_text_and_survives() {
        let value = report(Role::Validator).json();
        assert_eq!(value["seat"]["earned"], u128::MAX.to_string());
        assert_eq!(value["seat"]["stake"], "10000000000000");
        assert_eq!(value["seat"]["standing"]["incentive"], 0.25);
        assert_eq!(value["seat"]["unbonding"], json!([{ "amount": "5000000000000", "until": 9 }]));
        assert_eq!(value["payslips"][1]["epoch"], 1);
        assert_eq!(value["bonds"][2], json!({ "uid": 2, "share": 0.25 }));
        assert_eq!(value["run"]["miners"]["price"], "5");
        assert_eq!(value["run"]["phase"], "commit");
    }

    #[test]
    fn somebody_without_a_seat_reads_what_one_costs() {
        let report = report(Role::Miner);
        let text = without_a_seat(&report.run, &report.clock, None, Some(&Hotkey([2; 32])));
        assert!(text.contains("has no seat; register it with `mettle register`"), "{text}");
        assert!(text.contains("the next costs 0.000000000005 MTL and a stake of 0.01 MTL"), "{text}");
        let text = without_a_seat(&report.run, &report.clock, Some(Uid(9)), None);
        assert!(text.contains("uid 9 is nobody's"), "{text}");
    }

    #[test]
    fn a_share_is_said_in_percent() {
        assert_eq!(share(0), "0.00 %");
        assert_eq!(share(ONE / 3), "33.33 %");
        assert_eq!(share(ONE), "100.00 %");
        assert_eq!(share(u64::MAX), "429496729599.99 %");
    }
}
