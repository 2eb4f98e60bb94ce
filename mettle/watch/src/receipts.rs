//! A seat's pay and its reasons, from the validators' signed receipts (PROT-27).
//!
//! The receipts come from the validators' buckets; each is checked against the digest that the chain anchored. The
//! pay comes from the chain.

use crate::text::percent;
use chain_client::Amount;
use daemon::{
    error_chain,
    receipts::{self, ReceiptUnavailable},
};
use futures::{FutureExt as _, StreamExt as _, future::BoxFuture, stream};
use protocol::{
    GenesisHash, Role, Uid, Window,
    consensus::ONE,
    receipt::{Attestation, Observed, Outcome, Receipt, Reputation, SeatJudgement, SeatReputation},
    view::{Payslip, RunView, SeatView, WindowView},
};
use serde_json::{Value, json};
use std::fmt::Write as _;
use store::Fetch;

/// Maximum number of receipts that are fetched at once.
const FETCHES_AT_ONCE: usize = 8;

/// The receipts and the pay of a seat for one window.
pub struct WindowReceipts {
    pub window: Window,
    pub epoch: u32,
    pub sequences_per_seat: u32,
    /// One per validator. `Err` is the reason why there is no usable receipt.
    pub receipts: Vec<(Uid, Result<Box<Receipt>, String>)>,
    /// `None` until the epoch is paid.
    pub pay: Option<Payslip>,
}

/// Fetches the receipts of all validators for the window.
pub async fn receipts_of(
    fetch: &dyn Fetch,
    genesis: GenesisHash,
    run: &RunView,
    now: Window,
    view: &WindowView,
    seats: &[SeatView],
    payslips: &[Payslip],
) -> WindowReceipts {
    let epoch = view.window.epoch(run.params.epoch_windows);
    let read = |seat| {
        let receipt = receipt_of(fetch, genesis, run, now, view, seat);
        receipt.map(|receipt| (seat.id.uid, receipt.map(Box::new))).boxed()
    };
    // A stream of a closure's futures is not `Send`, so each future gets its type first.
    let validators = seats.iter().filter(|seat| seat.role == Role::Validator);
    let reads: Vec<BoxFuture<'_, _>> = validators.map(read).collect();
    let receipts = stream::iter(reads).buffered(FETCHES_AT_ONCE).collect().await;
    WindowReceipts {
        window: view.window,
        epoch,
        sequences_per_seat: run.params.sequences_per_seat,
        receipts,
        pay: payslips.iter().find(|slip| slip.epoch == epoch).copied(),
    }
}

/// Fetches the receipt that a validator anchored for the window, and checks it against the chain.
async fn receipt_of(
    fetch: &dyn Fetch,
    genesis: GenesisHash,
    run: &RunView,
    now: Window,
    view: &WindowView,
    seat: &SeatView,
) -> Result<Receipt, String> {
    let receipt =
        receipts::receipt_of(fetch, genesis, run, now, view, seat).await.map_err(|error| match error {
            ReceiptUnavailable::NotAnchored { .. } => "no receipt anchored for this window".into(),
            ReceiptUnavailable::Sealed { from, .. } => {
                format!("its receipt is public from window {} on", from.0)
            }
            ReceiptUnavailable::NotPublished { source, .. } => {
                format!("its bucket does not serve its receipt: {}", error_chain(&source))
            }
            ReceiptUnavailable::NoReceipt { source, .. } => {
                format!("the anchored bytes are no receipt: {}", error_chain(&source))
            }
        })?;
    let (window, uid) = (receipt.window, receipt.validator.uid);
    if window != view.window || uid != seat.id.uid || receipt.run != run.id {
        return Err("it anchored the receipt of another window or seat".into());
    }
    Ok(receipt)
}

impl WindowReceipts {
    pub fn text(&self, uid: Uid) -> String {
        // Writing to a string does not fail.
        let mut text = format!("window {}, uid {uid}\n", self.window.0);
        for (validator, receipt) in &self.receipts {
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
                "  epoch {}: consensus weight {} of 65535; paid {:.2}, {} of the miners' part of {:.2} for {} windows",
                self.epoch,
                slip.consensus.weight,
                Amount(slip.amount),
                percent(slip.consensus.incentive as f64 / ONE as f64),
                Amount(slip.pot),
                slip.merged,
            ),
            None => writeln!(text, "  epoch {}: not paid yet, or not at all", self.epoch),
        };
        text
    }

    /// Describes one validator's judgement of the seat in a sentence.
    pub fn verdict(&self, uid: Uid, receipt: &Receipt) -> String {
        let attested = attested(&receipt.attestation, uid);
        let Some(judgement) = &receipt.judgement else {
            return format!("{attested}; it evaluated no seat in this window (void, or out of time)");
        };
        let Some(judged) = receipt.of(uid) else {
            return "the seat was not in this window".into();
        };
        let seen = match &judged.observed {
            Observed::Absent => "no commitment: unrated, and unpaid for the window".into(),
            Observed::Unobserved => "not observed by two thirds of the stake: no effect".into(),
            Observed::Unfetched => "not fetched: its turn comes later; unpaid for the window".into(),
            Observed::Faulty { label, detail } => {
                format!(
                    "faulty for two thirds of the stake ({label}: {detail}): last rank, unpaid for the window"
                )
            }
            Observed::Valid { measured: None, .. } => format!(
                "not measured in this window ({} of {} contributions were)",
                judgement.order.len(),
                judgement.held.len()
            ),
            Observed::Valid { measured: Some(measured), .. } => format!(
                "measured on {} sequences of its own and {} common ones",
                measured.own.len(),
                judgement.common.len()
            ),
        };
        format!("{attested}; {seen}")
    }

    /// Writes the numbers of one validator's receipt, one per line.
    fn numbers(&self, text: &mut String, uid: Uid, receipt: &Receipt) -> std::fmt::Result {
        let Some(SeatJudgement { observed, result, .. }) = receipt.of(uid) else { return Ok(()) };
        write_gains(text, result)?;
        if let Observed::Valid { trained, near_duplicate, .. } = observed {
            writeln!(text, "    trained on {trained} of {} sequences", self.sequences_per_seat)?;
            if let Some(near_duplicate) = near_duplicate {
                writeln!(
                    text,
                    "    near-duplicate of the contribution of uid {} in window {}: similarity {:.3}",
                    near_duplicate.uid,
                    near_duplicate.window.0,
                    near_duplicate.alike.get()
                )?;
            }
        }
        write_reputation(text, uid, receipt, result)?;
        writeln!(text, "    score {:.5}; weight {} of 65535", result.score.get(), result.weight)
    }

    pub fn json(&self, uid: Uid) -> Value {
        let receipt = |(validator, receipt): &(Uid, Result<Box<Receipt>, String>)| match receipt {
            Err(why) => json!({ "validator": validator, "receipt": null, "why": why }),
            Ok(receipt) => json!({
                "validator": validator,
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
                "merged": slip.merged,
            })
        });
        json!({
            "window": self.window, "epoch": self.epoch, "pay": pay,
            "validators": self.receipts.iter().map(receipt).collect::<Vec<_>>(),
        })
    }
}

fn write_gains(text: &mut String, result: &Outcome) -> std::fmt::Result {
    if let Some(gain) = result.common_gain {
        let error =
            result.common_error.map(|error| format!(" ± {}", percent(error.get()))).unwrap_or_default();
        let rank = result.rank.map(|rank| format!(", rank {rank} in the window")).unwrap_or_default();
        writeln!(text, "    loss reduction on common sequences {}{error}{rank}", percent(gain.get()))?;
    }
    let Some(gain) = result.own_gain else { return Ok(()) };
    write!(text, "    loss reduction on its own sequences {}", percent(gain.get()))?;
    match result.own_data {
        Some(data) => writeln!(
            text,
            ": {} ± {} more than on common ones ({} counts as full); own-data outcome {:.3}",
            percent(data.gap.get()),
            percent(data.error.get()),
            percent(data.scale.get()),
            data.outcome.get()
        ),
        None => {
            writeln!(text, ": not tested: too few of them, or the first window that the validator judges")
        }
    }
}

fn write_reputation(text: &mut String, uid: Uid, receipt: &Receipt, result: &Outcome) -> std::fmt::Result {
    let (before, after) = (receipt.before.of(uid), receipt.after().of(uid));
    let Some(SeatReputation { reputation: after, .. }) = after else { return Ok(()) };
    let before = before.map(|before| &before.reputation);
    let rating = |of: &Reputation| format!("{:.3} ± {:.3}", of.mu.get(), of.sigma.get());
    writeln!(
        text,
        "    rating {} before, {} after; lower bound {:.3}, median of all seats {:.3}; rating factor {:.3}",
        before.map_or("none".to_owned(), rating),
        rating(after),
        result.ordinal.get(),
        result.median_rating.get(),
        result.rating_factor.get()
    )?;
    let was = before.map_or(0.0, |before| before.own_data_score.get());
    writeln!(text, "    own-data score {was:.4} before, {:.4} after", after.own_data_score.get())?;
    for penalty in &after.penalties {
        let (since, left) = (penalty.since.0, penalty.remaining);
        writeln!(text, "    penalty: {:?} since window {since}, {left} evaluations remain", penalty.reason)?;
    }
    Ok(())
}

/// Describes the validator's attestation of the seat in a sentence.
fn attested(attested: &Attestation, uid: Uid) -> String {
    if attested.valid.contains(&uid) {
        return "attested valid".into();
    }
    if let Some(fault) = attested.faulty.iter().find(|fault| fault.uid == uid) {
        return format!("attested faulty ({}: {})", fault.label, fault.detail);
    }
    match attested.not_observed.iter().find(|entry| entry.uid == uid) {
        Some(entry) => format!("not observed: {}", entry.reason),
        None => "not attested".into(),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use expect_test::expect;
    use protocol::{
        Block, Digest, Hotkey, RunId, RunParams, SeatId,
        identity::Signer,
        keys,
        receipt::{
            Baseline, ExactF64, FORMAT, Judgement, LossPair, Measured, NearDuplicate, OwnData, Penalty,
            PenaltyReason, ReportedFault, Reputations, SignedReceipt, Statements, WindowScore,
        },
        view::SeatConsensus,
    };
    use std::sync::Arc;
    use store::{MemoryStore, Store as _, memory::MemoryFetcher};

    fn seat(uid: u16) -> SeatId {
        SeatId { uid: Uid(uid), registered_at: Block(1) }
    }

    const GENESIS: GenesisHash = GenesisHash([1; 32]);

    fn key() -> Signer {
        Signer::new(ed25519_dalek::SigningKey::from_bytes(&[7; 32]), GENESIS)
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

    pub(crate) fn receipt(observed: Observed) -> Receipt {
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
            hotkey: key().hotkey(),
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

    pub(crate) fn measured() -> Observed {
        let own = vec![LossPair { sequence: 1, before: ExactF64::of(3.0), after: ExactF64::of(2.9) }];
        let measured = Measured { own, common_after: vec![ExactF64::of(2.95)] };
        Observed::Valid { trained: 18, measured: Some(measured), near_duplicate: None }
    }

    pub(crate) fn window(receipt: Result<Receipt, String>) -> WindowReceipts {
        let consensus = SeatConsensus { weight: 50_000, incentive: ONE / 4, trust: ONE, dividends: 0 };
        let (pot, amount) = (Amount::mtl(8).0, Amount::mtl(1).0);
        WindowReceipts {
            window: Window(5),
            epoch: 2,
            sequences_per_seat: 20,
            receipts: vec![(Uid(2), receipt.map(Box::new))],
            pay: Some(Payslip { epoch: 2, pot, merged: 10, consensus, amount, nominators: 0 }),
        }
    }

    #[test]
    fn a_miner_reads_every_number_it_was_paid_by() {
        expect![[r#"
            window 5, uid 4
              validator 2: attested valid; measured on 1 sequences of its own and 1 common ones
                loss reduction on common sequences 0.510 % ± 0.030 %, rank 2 in the window
                loss reduction on its own sequences 0.910 %: 0.400 % ± 0.050 % more than on common ones (0.500 % counts as full); own-data outcome 0.790
                trained on 18 of 20 sequences
                rating 25.000 ± 8.000 before, 26.250 ± 8.000 after; lower bound 3.500, median of all seats 3.000; rating factor 0.875
                own-data score 0.1000 before, 0.1400 after
                penalty: Harm since window 3, 4 evaluations remain
                score 0.12500; weight 51000 of 65535
              epoch 2: consensus weight 50000 of 65535; paid 1.00 MTL, 25.000 % of the miners' part of 8.00 MTL for 10 windows
        "#]].assert_eq(&window(Ok(receipt(measured()))).text(Uid(4)));
    }

    #[test]
    fn a_seat_that_was_not_measured_reads_why() {
        let mut void = receipt(measured());
        void.judgement = None;
        let fault = ReportedFault { uid: Uid(4), label: "missing".into(), detail: "nothing came".into() };
        void.attestation = Attestation { faulty: vec![fault], ..Attestation::default() };
        let near_duplicate = NearDuplicate {
            uid: Uid(7),
            window: Window(4),
            digest: Digest::default(),
            alike: ExactF64::of(0.985),
        };
        let faulty = Observed::Faulty { label: "late".into(), detail: "it came late".into() };
        let waiting = Observed::Valid { trained: 18, measured: None, near_duplicate: Some(near_duplicate) };
        // A line without indentation: the snapshot drops what all lines have in common.
        let mut text = String::from("window 12\n");
        for receipt in [
            Ok(receipt(Observed::Absent)),
            Ok(receipt(Observed::Unobserved)),
            Ok(receipt(faulty)),
            Ok(receipt(waiting)),
            Ok(void),
            Err("no receipt anchored for this window".into()),
        ] {
            let first = window(receipt).text(Uid(4));
            text += first.lines().nth(1).unwrap();
            text.push('\n');
            text.extend(
                first.lines().filter(|line| line.contains("near-duplicate")).map(|line| format!("{line}\n")),
            );
        }
        text += window(Ok(receipt(measured()))).text(Uid(9)).lines().nth(1).unwrap();
        expect![[r#"
            window 12
              validator 2: attested valid; no commitment: unrated, and unpaid for the window
              validator 2: attested valid; not observed by two thirds of the stake: no effect
              validator 2: attested valid; faulty for two thirds of the stake (late: it came late): last rank, unpaid for the window
              validator 2: attested valid; not measured in this window (1 of 1 contributions were)
                near-duplicate of the contribution of uid 7 in window 4: similarity 0.985
              validator 2: attested faulty (missing: nothing came); it evaluated no seat in this window (void, or out of time)
              validator 2: no receipt anchored for this window
              validator 2: the seat was not in this window"#]].assert_eq(&text);
    }

    #[test]
    fn a_missing_receipt_is_null_in_json() {
        let window = window(Err("no receipt anchored for this window".into()));
        assert_eq!(window.json(Uid(4))["validators"][0]["receipt"], Value::Null);
    }

    #[test]
    fn json_has_every_number_and_the_pay() {
        let value = window(Ok(receipt(measured()))).json(Uid(4));
        assert_eq!(value["pay"]["amount"], Amount::mtl(1).0.to_string());
        let judged = &value["validators"][0]["judged"];
        assert_eq!(judged["result"]["score"], 0.125);
        assert_eq!(judged["result"]["weight"], 51_000);
        assert_eq!(judged["observed"]["valid"]["trained"], 18);
        assert_eq!(value["validators"][0]["after"]["reputation"]["mu"], 26.25);
    }

    #[tokio::test]
    async fn only_an_anchored_receipt_is_used() {
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
            rewound: None,
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
            deal_seed: None,
            evaluation_hash: None,
            slots: vec![],
            cursor: 0,
            active_set: vec![],
            lineage: Digest::default(),
            weights: vec![],
            commitments: vec![],
            salts: vec![],
            attested: vec![],
            selection: None,
            votes: vec![],
            outcome: None,
            receipts: anchored.map(|digest| (Uid(2), digest)).into_iter().collect(),
            probe_roots: Vec::new(),
            probes: Vec::new(),
            next_deal: None,
        };
        let name = |window: u32| keys::receipt(RunId(0), Window(window), Uid(2), &digest);
        let bucket = Arc::new(MemoryStore::new());
        for window in [5, 6] {
            bucket.put(&name(window), bytes.clone().into()).await.unwrap();
        }
        let fetch = MemoryFetcher::new();
        fetch.serve("http://bucket", bucket);
        let at = async |now, view: &WindowView| {
            receipt_of(&fetch, GENESIS, &run, Window(now), view, &validator).await
        };
        let of = async |view: &WindowView| at(10, view).await;
        assert_eq!(of(&view(5, Some(digest))).await, Ok(receipt(measured())));
        assert!(of(&view(5, None)).await.unwrap_err().contains("no receipt"));
        let sealed = at(9, &view(5, Some(digest))).await;
        assert_eq!(sealed, Err("its receipt is public from window 10 on".into()));
        assert!(
            of(&view(5, Some(Digest([3; 32]))))
                .await
                .unwrap_err()
                .contains("its bucket does not serve its receipt")
        );
        assert!(of(&view(6, Some(digest))).await.unwrap_err().contains("another window"));
    }
}
