//! `mettle status`: a seat's state, pending changes and pay.

use crate::{
    output::Output,
    seat::session::seat_hotkey,
    signing::{RunSession, unbonding_json, units},
};
use anyhow::bail;
use chain_client::{Amount, Balance, account, keys::address, terms::percent};
use daemon::config::SeatFlags;
use protocol::{
    Role, Uid, Window,
    consensus::ONE,
    view::{
        AccountStatus, Payslip, PendingChange, PendingTerms, RewindTally, RunStatus, SeatConsensus,
        SeatStatus, UnbondingView,
    },
};
use serde_json::{Value, json};
use std::{
    cmp::Reverse,
    fmt::{self, Write as _},
};
use watch::{
    block_clock::BlockClock,
    text::{percent_of, share},
};

/// Maximum number of payslips in text; JSON has all that the chain keeps.
const PAYSLIPS_SHOWN: usize = 8;

/// Maximum number of bonds in text; JSON has all.
const BONDS_SHOWN: usize = 5;

/// Show the seat's stake, rating, pay and payslips
#[derive(Clone, Debug, clap::Args)]
pub struct Status {
    #[command(flatten)]
    seat: SeatFlags,
}

/// A seat's status.
pub(crate) struct StatusReport {
    pub run: RunStatus,
    pub clock: BlockClock,
    pub seat: SeatStatus,
    /// The latest is last.
    pub payslips: Vec<Payslip>,
    /// The coldkey's status in the run.
    pub account: AccountStatus,
    /// A validator's bonds, in parts of [`ONE`].
    pub bonds: Vec<(Uid, u32)>,
    pub hotkey_balance: Balance,
    pub coldkey_balance: Balance,
}

pub(crate) async fn status(command: Status, output: &mut Output<'_>) -> anyhow::Result<()> {
    let session = RunSession::open(command.seat.read()?).await?;
    let (chain, id) = (session.chain(), session.run);
    let (uid, hotkey) = match command.seat.uid {
        Some(uid) => (Some(Uid(uid)), None),
        None => {
            let hotkey = seat_hotkey(&session.args)?;
            let seat = account::seat_of(chain, id, &hotkey).await?;
            (seat.map(|seat| seat.id.uid), Some(hotkey))
        }
    };
    let seat = match uid {
        Some(uid) => session.seat_at(uid).await?,
        None => None,
    };
    let RunSession { status: run, clock, .. } = &session;
    let Some(seat) = seat else {
        let value =
            |funds: Value| json!({ "run": run_json(run, clock), "seat": null, "hotkey_funds": funds });
        let Some(hotkey) = hotkey else {
            output.result(&run_text(run, clock), value(Value::Null))?;
            bail!("there is no uid {} in run {id}", uid.unwrap_or_default());
        };
        let funds = chain.balance(&hotkey.0).await?.free;
        output.result(&without_a_seat(run, clock), value(units(funds)))?;
        bail!("{} has no seat in run {id}: register it with `mettle register`", address(&hotkey.0));
    };
    let bonds = match seat.seat.role {
        Role::Validator => chain.bonds(id, seat.seat.id.uid).await?,
        Role::Miner => Vec::new(),
    };
    let report = StatusReport {
        bonds,
        payslips: chain.payslips(id, seat.seat.id.uid).await?,
        account: chain.account_status(id, &seat.seat.coldkey).await?,
        hotkey_balance: chain.balance(&seat.seat.hotkey.0).await?,
        coldkey_balance: chain.balance(&seat.seat.coldkey).await?,
        run: run.clone(),
        clock: *clock,
        seat,
    };
    Ok(output.result(&report.text(), report.json())?)
}

/// Describes the run and the cost of a seat.
fn without_a_seat(run: &RunStatus, clock: &BlockClock) -> String {
    let mut text = run_text(run, clock);
    for (role, seats) in [(Role::Miner, &run.miners), (Role::Validator, &run.validators)] {
        let _ = writeln!(
            text,
            "{} of {} {role} seats are taken; the next costs {:.2} and a stake of {:.2}",
            seats.taken,
            seats.max,
            Amount(seats.price),
            Amount(run.run.terms.stake_min(role)),
        );
    }
    text
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
        let _ = writeln!(text, "the run's owner has paused it: its windows are void, and no pay is earned");
    } else if run.run.paused {
        let _ = writeln!(text, "the run is paused: too little of the validators' stake takes part");
    }
    for RewindTally { to, stake, of } in &run.rewind_votes {
        let _ = writeln!(
            text,
            "{} of the active set's stake votes to go back to the checkpoint of window {}; two thirds decide",
            percent_of(*stake, *of),
            to.0
        );
    }
    if let Some(rewound) = run.run.rewound {
        let _ = writeln!(text, "window {} went back to an earlier checkpoint", rewound.0);
    }
    if let Some(PendingTerms { from, .. }) = run.pending_terms {
        let _ = writeln!(text, "new terms take effect with {}: see `mettle run terms`", clock.until(from));
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
        "new_terms_from": run.pending_terms.map(|pending| pending.from),
        "rewound": run.run.rewound, "rewind_votes": run.rewind_votes.iter().map(|tally| json!({
            "to": tally.to, "stake": units(Amount(tally.stake)), "of": units(Amount(tally.of)),
        })).collect::<Vec<_>>(),
        "block_seconds": clock.block_time.as_secs_f64(),
    })
}

impl StatusReport {
    /// Returns the status as text.
    pub(crate) fn text(&self) -> String {
        let mut text = run_text(&self.run, &self.clock);
        self.write_seat(&mut text).expect("a string takes all text");
        text
    }

    fn write_seat(&self, text: &mut String) -> fmt::Result {
        let seat = &self.seat.seat;
        let (uid, role, since) = (seat.id.uid, seat.role, seat.id.registered_at.0);
        writeln!(text, "uid {uid}, {role}, since block {since}; {}", self.replacement())?;
        self.write_pending(text)?;
        self.write_stake(text)?;
        writeln!(text, "consensus {}", self.consensus_text())?;
        let to = if self.seat.pays_into_stake { "its stake" } else { "its coldkey" };
        let (earned, claimable) = (Amount(seat.earned), Amount(seat.claimable));
        writeln!(text, "pay       {earned:.2} earned, {claimable:.2} claimable, into {to}")?;
        if role == Role::Validator {
            match self.seat.last_attested {
                Some(window) => writeln!(text, "presence  last attested window {}", window.0)?,
                None => writeln!(text, "presence  no window attested yet")?,
            }
            if !self.bonds.is_empty() {
                writeln!(text, "bonds     {}", self.bonds_text())?;
            }
        }
        let (hotkey, coldkey) = (&self.hotkey_balance, &self.coldkey_balance);
        writeln!(text, "hotkey    {}, {:.2} free", address(&seat.hotkey.0), hotkey.free)?;
        writeln!(
            text,
            "coldkey   {}, {:.2} free, {:.2} held",
            address(&seat.coldkey),
            coldkey.free,
            coldkey.held
        )?;
        writeln!(text, "endpoint  {}", seat.endpoint)?;
        self.write_payslips(text)
    }

    fn write_pending(&self, text: &mut String) -> fmt::Result {
        let Some(pending) = &self.seat.pending else { return Ok(()) };
        let when = self.clock.until(self.clock.next_window());
        match pending {
            PendingChange::Rotates(hotkey) => {
                writeln!(text, "changes its hotkey to {} with {when}", address(&hotkey.0))
            }
            PendingChange::Leaves => writeln!(text, "is given up with {when}"),
            PendingChange::Replaced => {
                writeln!(text, "is replaced by a new seat with {when}")
            }
        }
    }

    fn write_stake(&self, text: &mut String) -> fmt::Result {
        write!(text, "stake     {:.2}", Amount(self.seat.seat.stake))?;
        match self.seat.seat.role {
            Role::Validator => writeln!(
                text,
                ", and {:.2} nominated behind it, at a commission of {}",
                Amount(self.seat.nominated),
                percent(self.seat.commission)
            )?,
            Role::Miner => writeln!(text)?,
        }
        if let Some((commission, from)) = self.seat.commission_raise {
            let (commission, when) = (percent(commission), self.clock.until(from));
            writeln!(text, "          the commission rises to {commission} in {when}")?;
        }
        for chunk in self.unbonding() {
            let (amount, when) = (Amount(chunk.amount), self.clock.until(chunk.until));
            writeln!(text, "          {amount:.2} unbonding, free in {when}")?;
        }
        Ok(())
    }

    /// Describes whether the seat can be replaced.
    fn replacement(&self) -> String {
        let role = self.seat.seat.role;
        let seats = match role {
            Role::Miner => self.run.miners,
            Role::Validator => self.run.validators,
        };
        let immune = self.run.window.is_none_or(|now| now < self.seat.immune_until);
        if immune {
            return format!("cannot be replaced before {}", self.clock.until(self.seat.immune_until));
        }
        let recent = Amount(self.seat.recent_pay);
        if seats.taken < seats.max {
            format!("{} of {} {role} seats are taken (recent pay {recent:.2})", seats.taken, seats.max)
        } else {
            match role {
                Role::Miner => format!(
                    "all miner seats are taken: a new seat replaces one without a consensus weight, or else the one with the least recent pay (this one: {recent:.2})"
                ),
                Role::Validator => format!(
                    "all validator seats are taken: a new seat replaces the one with the least recent pay (this one: {recent:.2}) of those that it outbids in stake by a tenth"
                ),
            }
        }
    }

    fn unbonding(&self) -> impl Iterator<Item = &UnbondingView> {
        self.account.unbonding.iter().filter(|chunk| chunk.uid == self.seat.seat.id.uid)
    }

    fn consensus_text(&self) -> String {
        let SeatConsensus { weight, incentive, trust, dividends } = self.seat.consensus;
        match self.seat.seat.role {
            Role::Miner => format!("weight {weight} of 65535; {} of the miners' pay", share(incentive)),
            Role::Validator => format!(
                "{} of its weights within consensus; {} of the validators' pay",
                share(trust),
                share(dividends)
            ),
        }
    }

    /// Describes a validator's largest bonds.
    fn bonds_text(&self) -> String {
        let mut bonds = self.bonds.clone();
        bonds.sort_by_key(|(uid, bond)| (Reverse(*bond), *uid));
        let mut shown: Vec<String> = bonds
            .iter()
            .take(BONDS_SHOWN)
            .map(|(uid, bond)| format!("{} with uid {uid}", share((*bond).into())))
            .collect();
        if bonds.len() > BONDS_SHOWN {
            shown.push(format!("and {} more", bonds.len() - BONDS_SHOWN));
        }
        shown.join(", ")
    }

    fn write_payslips(&self, text: &mut String) -> fmt::Result {
        if self.payslips.is_empty() {
            return writeln!(text, "no epoch has been paid yet");
        }
        writeln!(text, "payslips, the latest first:")?;
        for slip in self.payslips.iter().rev().take(PAYSLIPS_SHOWN) {
            let Payslip { epoch, pot, merged, consensus, amount, nominators } = slip;
            let (pot, amount) = (Amount(*pot), Amount(*amount));
            let windows = self.run.run.params.epoch_windows;
            match self.seat.seat.role {
                Role::Miner => {
                    let part = share(consensus.incentive);
                    writeln!(
                        text,
                        "  epoch {epoch}: {amount:.2}, {part} of the miners' part of {pot:.2} for {merged} of {windows} windows"
                    )?;
                }
                Role::Validator => writeln!(
                    text,
                    "  epoch {epoch}: {amount:.2}, and {:.2} to its nominators, {} of the validators' part of {pot:.2} for {merged} of {windows} windows",
                    Amount(*nominators),
                    share(consensus.dividends)
                )?,
            }
        }
        Ok(())
    }

    /// Returns the status as JSON, with exact amounts.
    pub(crate) fn json(&self) -> Value {
        let SeatStatus { seat, consensus, .. } = &self.seat;
        let consensus_json = |consensus: &SeatConsensus| {
            json!({
                "weight": consensus.weight, "incentive": share_json(consensus.incentive),
                "trust": share_json(consensus.trust), "dividends": share_json(consensus.dividends),
            })
        };
        let payslip = |slip: &Payslip| {
            json!({
                "epoch": slip.epoch, "pot": units(Amount(slip.pot)), "merged": slip.merged, "consensus": consensus_json(&slip.consensus),
                "amount": units(Amount(slip.amount)), "nominators": units(Amount(slip.nominators)),
            })
        };
        let bond = |(uid, bond): &(Uid, u32)| json!({ "uid": uid, "share": share_json((*bond).into()) });
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
                "pending": pending, "last_attested": self.seat.last_attested, "consensus": consensus_json(consensus),
                "unbonding": self.unbonding().map(unbonding_json).collect::<Vec<_>>(),
            },
            "payslips": self.payslips.iter().map(payslip).collect::<Vec<_>>(),
            "bonds": self.bonds.iter().map(bond).collect::<Vec<_>>(),
            "hotkey_funds": units(self.hotkey_balance.free),
            "coldkey_free": units(self.coldkey_balance.free),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;
    use protocol::{
        Block, Digest, Hotkey, RunId, RunParams, Schedule, SeatId, Terms,
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
            rewound: None,
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
            rewind_votes: Vec::new(),
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
            merged: 8,
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
        expect![[r#"
            run 1: window 3, commit, epoch 0, block 165
            uid 4, validator, since block 90; 1 of 4 validator seats are taken (recent pay 3.00 MTL)
            stake     10.00 MTL, and 6.00 MTL nominated behind it, at a commission of 12.5 %
                      the commission rises to 20 % in window 9, in about 11 min 30 s
                      5.00 MTL unbonding, free in window 9, in about 11 min 30 s
            consensus 100.00 % of its weights within consensus; 33.33 % of the validators' pay
            pay       340282366920938463463374607.43 MTL earned, 2.00 MTL claimable, into its coldkey
            presence  last attested window 2
            bonds     62.50 % with uid 5, 50.00 % with uid 4, 37.50 % with uid 3, 25.00 % with uid 2, 12.50 % with uid 1, and 1 more
            hotkey    5C7LYpP2ZH3tpKbvVvwiVe54AapxErdPBbvkYhe6y9ZBkqWt, 1.00 MTL free
            coldkey   5C8etthaGJi5SkQeEDSaK32ABBjkhwDeK9ksQCTLEGM3EH14, 50.00 MTL free, 10.00 MTL held
            endpoint  http://127.0.0.1/seat
            payslips, the latest first:
              epoch 1: 1.00 MTL, and 0.50 MTL to its nominators, 33.33 % of the validators' part of 8.00 MTL for 8 of 10 windows
              epoch 0: 1.00 MTL, and 0.50 MTL to its nominators, 33.33 % of the validators' part of 8.00 MTL for 8 of 10 windows
        "#]].assert_eq(&report(Role::Validator).text());
    }

    #[test]
    fn a_miner_in_a_full_run_reads_how_it_may_lose_its_seat() {
        expect![[r#"
            run 1: window 3, commit, epoch 0, block 165
            uid 4, miner, since block 90; all miner seats are taken: a new seat replaces one without a consensus weight, or else the one with the least recent pay (this one: 3.00 MTL)
            stake     10.00 MTL
                      5.00 MTL unbonding, free in window 9, in about 11 min 30 s
            consensus weight 65535 of 65535; 25.00 % of the miners' pay
            pay       340282366920938463463374607.43 MTL earned, 2.00 MTL claimable, into its coldkey
            hotkey    5C7LYpP2ZH3tpKbvVvwiVe54AapxErdPBbvkYhe6y9ZBkqWt, 1.00 MTL free
            coldkey   5C8etthaGJi5SkQeEDSaK32ABBjkhwDeK9ksQCTLEGM3EH14, 50.00 MTL free, 10.00 MTL held
            endpoint  http://127.0.0.1/seat
            payslips, the latest first:
              epoch 1: 1.00 MTL, 25.00 % of the miners' part of 8.00 MTL for 8 of 10 windows
              epoch 0: 1.00 MTL, 25.00 % of the miners' part of 8.00 MTL for 8 of 10 windows
        "#]].assert_eq(&report(Role::Miner).text());
        let mut young = report(Role::Miner);
        young.seat.immune_until = Window(5);
        young.payslips.clear();
        expect![[r#"
            run 1: window 3, commit, epoch 0, block 165
            uid 4, miner, since block 90; cannot be replaced before window 5, in about 3 min 30 s
            stake     10.00 MTL
                      5.00 MTL unbonding, free in window 9, in about 11 min 30 s
            consensus weight 65535 of 65535; 25.00 % of the miners' pay
            pay       340282366920938463463374607.43 MTL earned, 2.00 MTL claimable, into its coldkey
            hotkey    5C7LYpP2ZH3tpKbvVvwiVe54AapxErdPBbvkYhe6y9ZBkqWt, 1.00 MTL free
            coldkey   5C8etthaGJi5SkQeEDSaK32ABBjkhwDeK9ksQCTLEGM3EH14, 50.00 MTL free, 10.00 MTL held
            endpoint  http://127.0.0.1/seat
            no epoch has been paid yet
        "#]]
        .assert_eq(&young.text());
    }

    #[test]
    fn pending_changes_are_shown() {
        let mut report = report(Role::Miner);
        let mut text = String::new();
        for pending in
            [PendingChange::Leaves, PendingChange::Replaced, PendingChange::Rotates(Hotkey([7; 32]))]
        {
            report.seat.pending = Some(pending);
            report.write_pending(&mut text).unwrap();
        }
        report.run.stopped_by_owner = true;
        report.run.run.rewound = Some(Window(2));
        report.run.rewind_votes = vec![RewindTally { to: Window(1), stake: 2, of: 3 }];
        report.run.pending_terms = Some(PendingTerms { terms: Terms::default(), from: Window(9) });
        text += &run_text(&report.run, &report.clock);
        expect![[r#"
            is given up with window 4, in about 1 min 30 s
            is replaced by a new seat with window 4, in about 1 min 30 s
            changes its hotkey to 5CDvHBym6RLoxTdX9MS1acpaDbNxaFagqM5LpBiFGjWT6o1n with window 4, in about 1 min 30 s
            run 1: window 3, commit, epoch 0, block 165
            the run's owner has paused it: its windows are void, and no pay is earned
            66.6 % of the active set's stake votes to go back to the checkpoint of window 1; two thirds decide
            window 2 went back to an earlier checkpoint
            new terms take effect with window 9, in about 11 min 30 s: see `mettle run terms`
        "#]].assert_eq(&text);
    }

    #[test]
    fn amounts_in_json_are_exact_strings() {
        let value = report(Role::Validator).json();
        assert_eq!(value["seat"]["earned"], u128::MAX.to_string());
        assert_eq!(value["seat"]["stake"], "10000000000000");
        assert_eq!(value["seat"]["consensus"]["incentive"], 0.25);
        assert_eq!(value["seat"]["unbonding"], json!([{ "amount": "5000000000000", "until": 9 }]));
        assert_eq!(value["payslips"][1]["epoch"], 1);
        assert_eq!(value["bonds"][2], json!({ "uid": 2, "share": 0.25 }));
        assert_eq!(value["run"]["miners"]["price"], "5");
        assert_eq!(value["run"]["phase"], "commit");
    }

    #[test]
    fn a_key_without_a_seat_reads_what_a_seat_costs() {
        let report = report(Role::Miner);
        let text = without_a_seat(&report.run, &report.clock);
        expect![[r#"
            run 1: window 3, commit, epoch 0, block 165
            2 of 2 miner seats are taken; the next costs <0.01 MTL and a stake of 0.01 MTL
            1 of 4 validator seats are taken; the next costs <0.01 MTL and a stake of 1.00 MTL
        "#]]
        .assert_eq(&text);
    }
}
