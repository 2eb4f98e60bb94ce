//! `mettle receipts`: what a seat was paid for and why, in the validators' own signed words (PROT-27).
//!
//! The receipts come from the validators' buckets, each checked against the digest that the chain anchored; the pay comes from the
//! chain. Nothing is signed, and with `--uid` no key is needed.

use crate::sign::SigningSession;
use anyhow::{Context as _, bail, ensure};
use chain_client::{Amount, account};
use node::config::SeatFlags;
use node::output::{EXIT_CODES, Output};
use node::{error_chain, mirrors::Mirrors};
use protocol::{
    Role, Uid, Window,
    consensus::ONE,
    keys,
    receipt::{self, Attestation, Observed, Outcome, Receipt, Reputation, SeatJudgement, SeatReputation},
    view::{Payslip, RunView, SeatView, WindowView},
};
use serde_json::{Value, json};
use std::fmt::Write as _;
use store::{Fetch, HttpFetcher, Limits, fetch::FetchPolicy};

/// Say what the seat was paid for, window by window: every number in every validator's receipt, and the pay.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = EXIT_CODES)]
pub struct Receipts {
    #[command(flatten)]
    pub seat: SeatFlags,
    /// Only this window.
    #[arg(long, value_name = "W", conflicts_with = "last")]
    pub window: Option<u32>,
    /// The last so many windows that are over.
    #[arg(long, value_name = "N", default_value_t = 2)]
    pub last: u32,
    /// Print one JSON object. Amounts in it are texts, counted in the smallest unit, 10⁻¹² MTL.
    #[arg(long)]
    pub json: bool,
}

/// What one validator says of the seat.
struct Said {
    validator: Uid,
    /// `Err`: there is no receipt to be had, and why.
    receipt: Result<Box<Receipt>, String>,
}

/// One window of one seat.
struct Account {
    window: Window,
    epoch: u32,
    sequences_per_seat: u32,
    said: Vec<Said>,
    /// Once the epoch is paid.
    pay: Option<Payslip>,
}

/// Reads, and prints.
pub async fn act(command: Receipts, output: &mut Output<'_>) -> anyhow::Result<()> {
    let args = command.seat.read()?;
    let session = SigningSession::open(&args.chain).await?;
    let chain = &*session.chain;
    let status = chain.status(args.run).await?;
    let uid = match command.seat.uid {
        Some(uid) => Uid(uid),
        None => {
            let Some(key) = &args.key else {
                bail!(
                    "no seat was named: add --uid UID, or --key FILE, or `key = \"FILE\"` to the settings file"
                );
            };
            let hotkey = key.public().with_context(|| format!("could not read the key {key}"))?;
            let seat = account::seat_of(chain, args.run, &hotkey).await?;
            seat.with_context(|| format!("the key {key} has no seat in run {}", args.run))?.id.uid
        }
    };
    let windows = match command.window {
        Some(window) => vec![Window(window)],
        None => {
            let open = status.window.map_or(0, |window| window.0);
            (open.saturating_sub(command.last)..open).map(Window).collect()
        }
    };
    ensure!(!windows.is_empty(), "no window of run {} is over yet; try again after the first", args.run);

    let run = status.run;
    let policy = if run.params.localnet { FetchPolicy::localnet() } else { FetchPolicy::public() };
    let fetch = HttpFetcher::new(policy)?;
    let seats = chain.seats(run.id).await?;
    let payslips = chain.payslips(run.id, uid).await?;
    let mut accounts = Vec::new();
    for window in windows {
        let Some(view) = chain.window(run.id, window).await? else {
            bail!("the chain does not know window {}: it has not opened yet, or is forgotten", window.0);
        };
        accounts.push(account_of(&fetch, &run, &view, &seats, &payslips).await);
    }
    let text: String = accounts.iter().map(|account| account.text(uid)).collect();
    let windows: Vec<Value> = accounts.iter().map(|account| account.json(uid)).collect();
    Ok(output.result(&text, json!({ "uid": uid, "windows": windows }))?)
}

async fn account_of(
    fetch: &dyn Fetch,
    run: &RunView,
    view: &WindowView,
    seats: &[SeatView],
    payslips: &[Payslip],
) -> Account {
    let epoch = view.window.epoch(run.params.epoch_windows);
    let mut said = Vec::new();
    for seat in seats.iter().filter(|seat| seat.role == Role::Validator) {
        let receipt = receipt_of(fetch, run, view, seat).await.map(Box::new);
        said.push(Said { validator: seat.id.uid, receipt });
    }
    Account {
        window: view.window,
        epoch,
        sequences_per_seat: run.params.sequences_per_seat,
        said,
        pay: payslips.iter().find(|slip| slip.epoch == epoch).copied(),
    }
}

/// The receipt that a validator anchored for the window. A stranger's bucket says the rest: bounded, and checked against the chain.
async fn receipt_of(
    fetch: &dyn Fetch,
    run: &RunView,
    view: &WindowView,
    seat: &SeatView,
) -> Result<Receipt, String> {
    let uid = seat.id.uid;
    let Some((_, digest)) = view.receipts.iter().find(|(of, _)| *of == uid) else {
        return Err("it has put no receipt for this window on the chain".into());
    };
    let largest = u64::try_from(receipt::largest_bytes(&run.params)).unwrap_or(u64::MAX);
    let key = keys::receipt(run.id, view.window, uid, digest);
    let mirrors = Mirrors::one(&seat.endpoint);
    let bytes = mirrors.get(fetch, &key, digest, &Limits::for_bytes(largest)).await;
    let bytes =
        bytes.map_err(|error| format!("its bucket does not give its receipt: {}", error_chain(&error)))?;
    let receipt = Receipt::open(&bytes, &run.params)
        .map_err(|error| format!("what it anchored is no receipt: {error}"))?;
    if receipt.window != view.window || receipt.validator.uid != uid || receipt.run != run.id {
        return Err("what it anchored is the receipt of another window or seat".into());
    }
    Ok(receipt)
}

impl Account {
    fn text(&self, uid: Uid) -> String {
        // Writing to a text does not fail.
        let mut text = format!("window {}, uid {uid}\n", self.window.0);
        for Said { validator, receipt } in &self.said {
            let _ = match receipt {
                Err(why) => writeln!(text, "  validator {validator}: {why}"),
                Ok(receipt) => {
                    let _ = writeln!(text, "  validator {validator}: {}", self.verdict(uid, receipt));
                    self.numbers(&mut text, uid, receipt)
                }
            };
        }
        let _ = match &self.pay {
            Some(slip) => writeln!(
                text,
                "  epoch {}: the validators' consensus weight is {} of 65535; paid {}, being {} of the miners' part of {}",
                self.epoch,
                slip.consensus.weight,
                Amount(slip.amount),
                percent(slip.consensus.incentive as f64 / ONE as f64),
                Amount(slip.pot),
            ),
            None => writeln!(text, "  epoch {}: not paid, or not yet", self.epoch),
        };
        text
    }

    /// What became of the seat's work with one validator, in a sentence.
    fn verdict(&self, uid: Uid, receipt: &Receipt) -> String {
        let attested = attested(&receipt.attestation, uid);
        let Some(judgement) = &receipt.judgement else {
            return format!("{attested}; it judged nobody in this window: it was void, or there was no time");
        };
        let Some(judged) = receipt.of(uid) else {
            return "the seat was not in this window".into();
        };
        let seen = match &judged.observed {
            Observed::Absent => "committed nothing: unrated, and unpaid for the window".into(),
            Observed::Unobserved => {
                "was not observed by it or by two thirds of the stake: that changes nothing".into()
            }
            Observed::Faulty { label, detail } => {
                format!(
                    "is faulty for two thirds of the stake ({label}: {detail}): last place, unpaid for the window"
                )
            }
            Observed::Valid { measured: None, .. } => format!(
                "counts; its turn to be measured did not come, {} of {} were",
                judgement.order.len(),
                judgement.held.len()
            ),
            Observed::Valid { measured: Some(measured), .. } => format!(
                "was measured on {} sequences of its own and {} common ones",
                measured.own.len(),
                judgement.common.len()
            ),
        };
        format!("{attested}; the contribution {seen}")
    }

    fn numbers(&self, text: &mut String, uid: Uid, receipt: &Receipt) -> std::fmt::Result {
        let Some(SeatJudgement { observed, result, .. }) = receipt.of(uid) else { return Ok(()) };
        let Outcome {
            own_gain,
            common_gain,
            common_error,
            own_data,
            rank,
            ordinal,
            median_rating,
            rating_factor,
            score,
            weight,
        } = result;
        if let Some(gain) = common_gain {
            let error = common_error.map(|error| format!(" ± {}", percent(error.get()))).unwrap_or_default();
            let place = rank.map(|place| format!(": place {place} in the window")).unwrap_or_default();
            writeln!(
                text,
                "    it takes {}{error} of the loss away on the common sequences{place}",
                percent(gain.get())
            )?;
        }
        if let Some(gain) = own_gain {
            write!(text, "    it takes {} away on its own", percent(gain.get()))?;
            match own_data {
                Some(data) => writeln!(
                    text,
                    ": {} ± {} more than on the common ones, where {} counts as whole; own-data outcome {:.3}",
                    percent(data.gap.get()),
                    percent(data.error.get()),
                    percent(data.scale.get()),
                    data.outcome.get()
                )?,
                None => writeln!(text, ": too few to test")?,
            }
        }
        if let Observed::Valid { trained, near_duplicate, .. } = observed {
            let all = self.sequences_per_seat;
            writeln!(text, "    trained on {trained} of {all} sequences")?;
            if let Some(near_duplicate) = near_duplicate {
                writeln!(
                    text,
                    "    a near-duplicate of what uid {} sent in window {}: alike by {:.3}",
                    near_duplicate.uid,
                    near_duplicate.window.0,
                    near_duplicate.alike.get()
                )?;
            }
        }
        let (before, after) = (receipt.before.of(uid), receipt.after().of(uid));
        if let Some(SeatReputation { reputation: after, .. }) = after {
            let start = before.map(|before| &before.reputation);
            let rating = |of: &Reputation| format!("{:.3} ± {:.3}", of.mu.get(), of.sigma.get());
            let was = start.map_or("new".to_owned(), rating);
            writeln!(
                text,
                "    rating {was} before, {} after: surely {:.3}, where the field has {:.3}; merit {:.3}",
                rating(after),
                ordinal.get(),
                median_rating.get(),
                rating_factor.get()
            )?;
            let was = start.map_or(0.0, |start| start.own_data_score.get());
            writeln!(text, "    mark of own work {was:.4} before, {:.4} after", after.own_data_score.get())?;
            for penalty in &after.penalties {
                let (since, left) = (penalty.since.0, penalty.remaining);
                writeln!(
                    text,
                    "    penalty: {:?} since window {since}, {left} evaluations to go",
                    penalty.reason
                )?;
            }
        }
        writeln!(text, "    score {:.5}; weight {weight} of 65535", score.get())
    }

    fn json(&self, uid: Uid) -> Value {
        let said = |said: &Said| match &said.receipt {
            Err(why) => json!({ "validator": said.validator, "receipt": null, "why": why }),
            Ok(receipt) => json!({
                "validator": said.validator,
                "receipt": { "hotkey": receipt.hotkey, "base": receipt.base, "previous": receipt.previous },
                "attested": attested(&receipt.attestation, uid),
                "judged": receipt.of(uid),
                "common": receipt.judgement.as_ref().map(|judgement| &judgement.common),
                "before": receipt.before.of(uid),
                "after": receipt.after().of(uid),
            }),
        };
        let pay = self.pay.map(|slip| {
            json!({
                "weight": slip.consensus.weight, "incentive": slip.consensus.incentive as f64 / ONE as f64,
                "amount": slip.amount.to_string(), "pot": slip.pot.to_string(),
            })
        });
        json!({
            "window": self.window, "epoch": self.epoch, "pay": pay,
            "validators": self.said.iter().map(said).collect::<Vec<_>>(),
        })
    }
}

/// What a validator attested of the seat, in words.
fn attested(attested: &Attestation, uid: Uid) -> String {
    if attested.valid.contains(&uid) {
        return "it attested the contribution as valid".into();
    }
    if let Some(said) = attested.faulty.iter().find(|said| said.uid == uid) {
        return format!("it attested the contribution as faulty ({}: {})", said.label, said.detail);
    }
    match attested.not_observed.iter().find(|said| said.uid == uid) {
        Some(said) => format!("it could not look at the contribution: {}", said.reason),
        None => "it attested nothing of the seat".into(),
    }
}

fn percent(share: f64) -> String {
    format!("{:.3} %", share * 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use protocol::{
        Block, Digest, Hotkey, RunId, RunParams, SeatId,
        receipt::{
            Baseline, ExactF64, FORMAT, Judgement, LossPair, Measured, OwnData, Penalty, PenaltyReason,
            ReportedFault, Reputations, SignedReceipt, Statements, WindowScore,
        },
        view::SeatConsensus,
    };
    use std::sync::Arc;
    use store::{MemoryStore, Store as _, memory::MemoryFetcher};

    fn seat(uid: u16) -> SeatId {
        SeatId { uid: Uid(uid), registered_at: Block(1) }
    }

    fn key() -> ed25519_dalek::SigningKey {
        ed25519_dalek::SigningKey::from_bytes(&[7; 32])
    }

    fn reputation(mu: f64, own_data_score: f64) -> SeatReputation {
        let reputation = Reputation {
            mu: ExactF64::of(mu),
            sigma: ExactF64::of(8.0),
            own_data_score: ExactF64::of(own_data_score),
            own_data_variance: ExactF64::of(0.0),
            unmeasured: 0,
            penalties: vec![Penalty { reason: PenaltyReason::Harm, since: Window(3), remaining: 4 }],
            first_seen: Window(1),
            last_evaluated: Some(Window(4)),
            evaluations: 4,
            faults: 0,
            share: ExactF64::of(0.9),
            recent: vec![WindowScore { score: ExactF64::of(0.5), penalty: ExactF64::of(0.25) }],
        };
        SeatReputation { seat: seat(4), reputation }
    }

    fn receipt(observed: Observed) -> Receipt {
        let data = OwnData {
            gap: ExactF64::of(0.004),
            error: ExactF64::of(0.0005),
            scale: ExactF64::of(0.005),
            outcome: ExactF64::of(0.79),
        };
        let result = Outcome {
            own_gain: Some(ExactF64::of(0.0091)),
            common_gain: Some(ExactF64::of(0.0051)),
            common_error: Some(ExactF64::of(0.0003)),
            own_data: Some(data),
            rank: Some(2),
            ordinal: ExactF64::of(3.5),
            median_rating: ExactF64::of(3.0),
            rating_factor: ExactF64::of(0.875),
            score: ExactF64::of(0.125),
            weight: 51_000,
        };
        let common = vec![Baseline { sequence: 7, before: ExactF64::of(3.0) }];
        Receipt {
            format: FORMAT,
            run: RunId(0),
            window: Window(5),
            validator: seat(2),
            hotkey: Hotkey(key().verifying_key().to_bytes()),
            base: Digest([1; 32]),
            previous: None,
            salt: [0; 32],
            attestation: Attestation { valid: vec![Uid(4)], ..Attestation::default() },
            merged: None,
            statements: Statements::default(),
            before: Reputations { judged: Some(Window(4)), seats: vec![reputation(25.0, 0.1)] },
            judgement: Some(Judgement {
                held: vec![Uid(4)],
                budget: 64,
                order: vec![Uid(4)],
                common,
                seats: vec![SeatJudgement { seat: seat(4), observed, result }],
                after: Reputations { judged: Some(Window(5)), seats: vec![reputation(26.25, 0.14)] },
                weights: vec![(Uid(4), 51_000)],
            }),
        }
    }

    fn measured() -> Observed {
        let own = vec![LossPair { sequence: 1, before: ExactF64::of(3.0), after: ExactF64::of(2.9) }];
        let measured = Measured { own, common_after: vec![ExactF64::of(2.95)] };
        Observed::Valid { trained: 18, measured: Some(measured), near_duplicate: None }
    }

    fn account(receipt: Result<Receipt, String>) -> Account {
        let consensus = SeatConsensus { weight: 50_000, incentive: ONE / 4, trust: ONE, dividends: 0 };
        let (pot, amount) = (Amount::mtl(8).0, Amount::mtl(1).0);
        Account {
            window: Window(5),
            epoch: 2,
            sequences_per_seat: 20,
            said: vec![Said { validator: Uid(2), receipt: receipt.map(Box::new) }],
            pay: Some(Payslip { epoch: 2, pot, consensus, amount, nominators: 0 }),
        }
    }

    #[test]
    fn a_miner_reads_every_number_it_was_paid_by() {
        let text = account(Ok(receipt(measured()))).text(Uid(4));
        for part in [
            "window 5, uid 4",
            "validator 2: it attested the contribution as valid; the contribution was measured on 1 sequences of its own and 1 common",
            "it takes 0.510 % ± 0.030 % of the loss away on the common sequences: place 2",
            "it takes 0.910 % away on its own: 0.400 % ± 0.050 % more than on the common ones, where 0.500 % counts as whole",
            "own-data outcome 0.790",
            "trained on 18 of 20 sequences",
            "rating 25.000 ± 8.000 before, 26.250 ± 8.000 after: surely 3.500, where the field has 3.000; merit 0.875",
            "mark of own work 0.1000 before, 0.1400 after",
            "penalty: Harm since window 3, 4 evaluations to go",
            "score 0.12500; weight 51000 of 65535",
            "epoch 2: the validators' consensus weight is 50000 of 65535; paid 1 MTL, being 25.000 % of the miners' part of 8 MTL",
        ] {
            assert!(text.contains(part), "no `{part}` in:\n{text}");
        }
    }

    #[test]
    fn who_is_not_measured_reads_why() {
        let of = |observed| account(Ok(receipt(observed))).text(Uid(4));
        assert!(of(Observed::Absent).contains("committed nothing"));
        assert!(of(Observed::Unobserved).contains("that changes nothing"));
        let fault = Observed::Faulty { label: "late".into(), detail: "it came late".into() };
        assert!(of(fault).contains("faulty for two thirds of the stake (late: it came late)"));
        let waiting = Observed::Valid { trained: 18, measured: None, near_duplicate: None };
        assert!(of(waiting).contains("its turn to be measured did not come"));
        assert!(account(Ok(receipt(measured()))).text(Uid(9)).contains("was not in this window"));
        let mut void = receipt(measured());
        void.judgement = None;
        void.attestation = Attestation {
            faulty: vec![ReportedFault {
                uid: Uid(4),
                label: "missing".into(),
                detail: "nothing came".into(),
            }],
            ..Attestation::default()
        };
        let text = account(Ok(void)).text(Uid(4));
        assert!(text.contains("as faulty (missing: nothing came); it judged nobody"), "{text}");
    }

    #[test]
    fn a_validator_without_a_receipt_is_said_so() {
        let account = account(Err("it has put no receipt for this window on the chain".into()));
        assert!(
            account.text(Uid(4)).contains("validator 2: it has put no receipt for this window on the chain")
        );
        assert_eq!(account.json(Uid(4))["validators"][0]["receipt"], Value::Null);
    }

    #[test]
    fn as_json_there_is_every_number_and_the_pay() {
        let value = account(Ok(receipt(measured()))).json(Uid(4));
        assert_eq!(value["pay"]["amount"], Amount::mtl(1).0.to_string());
        let judged = &value["validators"][0]["judged"];
        assert_eq!(judged["result"]["score"], 0.125);
        assert_eq!(judged["result"]["weight"], 51_000);
        assert_eq!(judged["observed"]["valid"]["trained"], 18);
        assert_eq!(value["validators"][0]["after"]["standing"]["mu"], 26.25);
    }

    #[tokio::test]
    async fn only_what_the_chain_anchored_is_believed() {
        let params = RunParams { evaluation_sequences: 4, ..RunParams::default() };
        let run = RunView {
            id: RunId(0),
            owner: [0; 32],
            params,
            terms: Default::default(),
            spec: Digest::default(),
            manifest: Digest::default(),
            theta0: Digest::default(),
            origin: String::new(),
            treasury: 0,
            checkpoint: None,
            paused: false,
        };
        let validator = SeatView {
            id: seat(2),
            role: Role::Validator,
            hotkey: Hotkey([0; 32]),
            coldkey: [0; 32],
            endpoint: "http://bucket".into(),
            stake: 1,
            claimable: 0,
            earned: 0,
        };
        let SignedReceipt { digest, bytes } = receipt(measured()).sign(&key());
        let view = |window: u32, anchored: Option<Digest>| WindowView {
            window: Window(window),
            opening_hash: None,
            evaluation_hash: None,
            slots: vec![],
            cursor: 0,
            electorate: vec![],
            lineage: Digest::default(),
            weights: vec![],
            commitments: vec![],
            salts: vec![],
            attested: vec![],
            selection: None,
            votes: vec![],
            outcome: None,
            receipts: anchored.map(|digest| (Uid(2), digest)).into_iter().collect(),
        };
        let name = |window: u32| keys::receipt(RunId(0), Window(window), Uid(2), &digest);
        let bucket = Arc::new(MemoryStore::new());
        for window in [5, 6] {
            bucket.put(&name(window), bytes.clone().into()).await.unwrap();
        }
        let fetch = MemoryFetcher::new();
        fetch.serve("http://bucket", bucket);
        let of = async |view: &WindowView| receipt_of(&fetch, &run, view, &validator).await;
        assert_eq!(of(&view(5, Some(digest))).await, Ok(receipt(measured())));
        assert!(of(&view(5, None)).await.unwrap_err().contains("no receipt"));
        assert!(of(&view(5, Some(Digest([3; 32])))).await.unwrap_err().contains("does not give"));
        assert!(of(&view(6, Some(digest))).await.unwrap_err().contains("another window"));
    }
}
