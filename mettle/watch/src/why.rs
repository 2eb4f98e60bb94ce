//! The fate of a seat's work in one window, from its commitment to its pay. A pure function turns facts from chain
//! and receipts into sentences. A missing fact is named with the window from which it is available.

use crate::{
    block_clock::BlockClock,
    receipts::{WindowReceipts, receipts_of},
    text::{percent, percent_of, readable, share},
};
use chain_client::{Amount, Chain, ChainError};
use futures::{FutureExt as _, StreamExt as _, TryStreamExt as _, future::BoxFuture, stream};
use protocol::{
    Block, Role, RunId, Uid, Window,
    receipt::{self, Observed, Penalty, PenaltyReason, SeatJudgement},
    select::two_thirds,
    view::{Outcome, Payslip, RunStatus, RunView, SeatStatus, VoidReason, Vote, WindowView},
};
use serde::Serialize;
use store::Fetch;

/// Maximum number of concurrent reads of attestations.
const READS_AT_ONCE: usize = 8;

/// The known facts about a seat and a window.
pub struct Facts {
    pub run: RunView,
    pub window: Window,
    /// The open window; `None` before the run starts.
    pub now: Option<Window>,
    pub seat: SeatStatus,
    /// `None` before the window opens, and after the chain has removed it.
    pub view: Option<WindowView>,
    /// One per validator that decides the window. Empty for a validator's seat.
    pub attestations: Vec<AttestationOf>,
    /// Receipts about a miner's seat, if the chain has the window.
    pub receipts: Option<WindowReceipts>,
    /// The latest is last.
    pub payslips: Vec<Payslip>,
    pub clock: BlockClock,
}

/// A validator's statement about the seat's contribution.
#[derive(Clone, Debug, PartialEq)]
pub struct AttestationOf {
    pub validator: Uid,
    pub stake: u128,
    /// `None` if the chain has no attestation of the validator. `Some(None)` if its attestation does not name the
    /// seat.
    pub verdict: Option<Option<protocol::view::Verdict>>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Explanation {
    /// Steps in the order of the window.
    pub steps: Vec<Step>,
    /// Advice on how to earn more, the most useful first. Never empty.
    pub advice: Vec<String>,
}

/// Something that happened, or did not happen.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Step {
    pub name: &'static str,
    pub verdict: Verdict,
    pub text: String,
    /// The window from which more is known; `None` if nothing more is expected.
    pub known_from_window: Option<Window>,
}

/// Effect of a step on the pay.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    Good,
    Bad,
    /// No effect.
    Neutral,
    /// Not known yet, or no longer known.
    Open,
}

/// Number of windows that the chain keeps.
pub const KEPT_WINDOWS: u32 = 128;
/// Number of epochs whose payslips the chain keeps.
const KEPT_EPOCHS: usize = 64;
/// A rating factor or own-data outcome below this lowers the pay by more than the measurement error.
const NEARLY_FULL: f64 = 0.9;

/// Advice for a validator without dividends.
const NO_DIVIDENDS: &str = "No dividends: reveal weights, vote in two thirds of the merged windows, be present, and \
    cast no minority vote. A validator that joined in mid-epoch owes its first vote in the next one.";

/// Explains the fate of the seat's work, and how to earn more.
pub fn explain(facts: &Facts) -> Explanation {
    let mut explained = Explanation::default();
    match (&facts.view, facts.now) {
        (None, now) if now.is_none_or(|now| now < facts.window) => {
            let opens = facts.clock.until(facts.window);
            explained.step("window", Verdict::Open, format!("not open yet: it opens with {opens}"));
            explained.advise("Ask again when the window is over.");
            return explained;
        }
        (None, _) => explained.step(
            "window",
            Verdict::Open,
            format!("the chain has forgotten it: it keeps the last {KEPT_WINDOWS} windows"),
        ),
        (Some(view), _) => match facts.seat.seat.role {
            Role::Miner => facts.miner(view, &mut explained),
            Role::Validator => facts.validator(view, &mut explained),
        },
    }
    facts.pay(&mut explained);
    if explained.advice.is_empty() {
        explained.advise(match facts.seat.seat.role {
            Role::Miner => {
                "Nothing went wrong. Pay rises with the loss reduction beside that of other miners: train on all \
                 sequences, keep the recipe's batch and learning rate or better ones, and miss no window."
            }
            Role::Validator => {
                "Nothing went wrong. Dividends rise with your own stake, with nominations, and with supporting good \
                 seats early: measure as many contributions as the time allows (`evaluations_max`)."
            }
        });
    }
    explained
}

impl Explanation {
    fn step(&mut self, name: &'static str, verdict: Verdict, text: String) {
        self.steps.push(Step { name, verdict, text, known_from_window: None });
    }

    fn step_until(&mut self, name: &'static str, text: String, from: Window) {
        self.steps.push(Step { name, verdict: Verdict::Open, text, known_from_window: Some(from) });
    }

    /// Adds advice once.
    fn advise(&mut self, advice: &str) {
        if !self.advice.iter().any(|given| given == advice) {
            self.advice.push(advice.to_owned());
        }
    }
}

impl Facts {
    /// Reads the chain and the receipts of at most `receipts_max` validators, those with the most stake.
    ///
    /// # Errors
    /// If the chain does not answer. A missing receipt is part of the result.
    pub async fn read(
        chain: &dyn Chain,
        fetch: &dyn Fetch,
        status: &RunStatus,
        clock: BlockClock,
        seat: SeatStatus,
        window: Window,
        receipts_max: usize,
    ) -> Result<Facts, ChainError> {
        let RunStatus { run, window: now, .. } = status.clone();
        let uid = seat.seat.id.uid;
        let view = chain.window(run.id, window).await?;
        let payslips = chain.payslips(run.id, uid).await?;
        let (mut attested, mut receipts) = (Vec::new(), None);
        if let (Some(view), Role::Miner) = (&view, seat.seat.role) {
            attested = attestations(chain, run.id, view, uid).await?;
            let mut validators = chain.seats(run.id).await?;
            validators.retain(|seat| seat.role == Role::Validator);
            validators.sort_by_key(|seat| std::cmp::Reverse(seat.stake));
            validators.truncate(receipts_max);
            validators.sort_by_key(|seat| seat.id.uid);
            let at = now.unwrap_or(Window::FIRST);
            receipts =
                Some(receipts_of(fetch, chain.genesis(), &run, at, view, &validators, &payslips).await);
        }
        Ok(Facts { run, window, now, seat, view, attestations: attested, receipts, payslips, clock })
    }

    fn uid(&self) -> Uid {
        self.seat.seat.id.uid
    }

    fn block(&self) -> Block {
        self.clock.block
    }

    fn miner(&self, view: &WindowView, explained: &mut Explanation) {
        let schedule = self.run.params.schedule;
        let uid = self.uid();
        if !view.slots.contains(&uid) || schedule.opens_at(self.window) < self.seat.seat.id.registered_at {
            let since = self.seat.seat.id.registered_at.0;
            explained.step(
                "seat",
                Verdict::Bad,
                format!("no data of this window: the seat is this holder's since block {since}, after it was dealt"),
            );
            explained.advise(
                "Ask about a later window: a seat gets data from the window after its registration on.",
            );
            return;
        }
        let Some((_, digest)) = view.commitments.iter().find(|(of, _)| *of == uid) else {
            let deadline = schedule.commit_deadline(self.window);
            if self.block() <= deadline {
                let left = self.clock.blocks(deadline.0.saturating_sub(self.block().0).into());
                let text = format!("none yet: until block {}, in about {left}", deadline.0);
                explained.step_until("commitment", text, self.window.next());
                explained.advise("Ask again when the window is over.");
            } else {
                let text = format!("none by block {}: no pay for this window", deadline.0);
                explained.step("commitment", Verdict::Bad, text);
                explained.advise(
                    "Commit in every window: `missed` in journal.jsonl of the node's directory has the reason, and \
                     `mettle doctor` checks the machine. A slow machine commits what it has trained, if it stops in \
                     time (`commit_margin_blocks`).",
                );
            }
            self.outcome(view, explained);
            return;
        };
        let digest = digest.to_string();
        let short = digest.get(..8).unwrap_or(&digest);
        explained.step("commitment", Verdict::Good, format!("{short}…, in time"));
        self.attested(view, explained);
        self.outcome(view, explained);
        self.judged(explained);
    }

    /// Explains the attestations of the contribution and its selection.
    fn attested(&self, view: &WindowView, explained: &mut Explanation) {
        let (uid, schedule) = (self.uid(), self.run.params.schedule);
        let of = |wanted: Option<Option<protocol::view::Verdict>>| {
            let found = self.attestations.iter().filter(|found| found.verdict == wanted);
            found.map(|found| (found.validator, found.stake)).collect::<Vec<_>>()
        };
        use protocol::view::Verdict::{Faulty, Valid};
        let groups = [
            ("valid for", of(Some(Some(Valid)))),
            ("faulty for", of(Some(Some(Faulty)))),
            ("not named by", of(Some(None))),
            ("no attestation of", of(None)),
        ];
        let total: u128 = view.active_set.iter().map(|(_, stake)| stake).sum();
        let said: Vec<String> = groups
            .iter()
            .filter(|(_, who)| !who.is_empty())
            .map(|(how, who)| {
                let stake = who.iter().map(|(_, stake)| stake).sum();
                let uids: Vec<String> = who.iter().map(|(uid, _)| uid.to_string()).collect();
                format!("{how} uid {} with {} of the stake", uids.join(", "), percent_of(stake, total))
            })
            .collect();
        let said = if said.is_empty() { "no validator decides this window".into() } else { said.join("; ") };
        let Some(selection) = &view.selection else {
            let deadline =
                schedule.attest_deadline(self.window).0.saturating_add(self.run.params.hidden_blocks);
            let text = format!("{said}; decided after block {deadline}");
            explained.step_until("attestation", text, self.window.next());
            explained.advise("Ask again when the window is over.");
            return;
        };
        let valid_stake: u128 = groups[0].1.iter().map(|(_, stake)| stake).sum();
        if selection.faulty.contains(&uid) {
            explained.step("attestation", Verdict::Bad, format!("{said}: faulty, so last rank and no pay"));
            explained.advise(
                "A faulty contribution costs the window, and a quarter remains of the scores until ten more are \
                 measured: `mettle receipts` names the fault. Run the released program, and `mettle doctor` for bucket \
                 and uplink.",
            );
        } else if !selection.valid.contains(&uid) {
            let why = if two_thirds(valid_stake, total) { "" } else { ", less than two thirds" };
            explained.step(
                "attestation",
                Verdict::Bad,
                format!("{said}: not valid{why}, so no effect and no pay"),
            );
            explained.advise(
                "Validators could not fetch the contribution in time: the bucket must serve it to all of them from the \
                 commit deadline on. `mettle doctor` measures bucket and uplink.",
            );
        } else {
            explained.step("attestation", Verdict::Good, said);
            let (merged, valid) = (selection.selected.len(), selection.valid.len());
            if selection.selected.iter().any(|selected| selected.uid == uid) {
                let text = format!("merged, as one of {merged} of {valid} that were valid");
                explained.step("selection", Verdict::Good, text);
            } else {
                let text = format!(
                    "not merged: {merged} of {valid} valid ones were. Half of the places go to the highest weights, half \
                     by lot. It is scored all the same"
                );
                explained.step("selection", Verdict::Neutral, text);
            }
        }
    }

    fn outcome(&self, view: &WindowView, explained: &mut Explanation) {
        match view.outcome {
            Some(Outcome::Merged(_)) => {
                explained.step("outcome", Verdict::Good, "the window was merged: it is paid".into());
            }
            Some(Outcome::Void(reason)) => {
                let why = match reason {
                    VoidReason::TooFewContributions => "too few valid contributions",
                    VoidReason::NoAgreement => "no two thirds of the stake voted the same update",
                    VoidReason::Paused => "the run was paused",
                };
                explained.step("outcome", Verdict::Bad, format!("void, {why}: no seat is paid for it"));
                explained.advise("No seat is paid for a void window, and one seat alone does not decide it.");
            }
            None => {
                let fixed = self.run.params.schedule.vote_deadline(self.window).0.saturating_add(1);
                let text = format!("open: fixed in block {fixed}");
                explained.step_until("outcome", text, self.window.next());
            }
        }
    }

    /// Explains the judgements of the validators' receipts.
    fn judged(&self, explained: &mut Explanation) {
        let Some(receipts) = &self.receipts else { return };
        let from = receipt::public_from(self.window, &self.run.params);
        if self.now.is_none_or(|now| now < from) {
            let text = format!("the validators' receipts become public with {}", self.clock.until(from));
            explained.step_until("receipts", text, from);
            return;
        }
        let mut judged = Vec::new();
        for (validator, receipt) in &receipts.receipts {
            match receipt {
                Err(why) => {
                    let text = format!("of uid {validator}: {}", readable(why));
                    explained.step("receipt", Verdict::Open, text);
                }
                Ok(receipt) => {
                    let verdict = match receipt.of(self.uid()).map(|judged| &judged.observed) {
                        Some(Observed::Valid { .. }) => Verdict::Good,
                        Some(Observed::Faulty { .. } | Observed::Absent) => Verdict::Bad,
                        _ => Verdict::Neutral,
                    };
                    let mut text = format!("of uid {validator}: {}", receipts.verdict(self.uid(), receipt));
                    if let Some(seat) = receipt.of(self.uid()) {
                        text += &numbers(seat);
                        let penalties = receipt.after().of(self.uid()).map(|of| &*of.reputation.penalties);
                        judged.push((seat, penalties.unwrap_or_default()));
                    }
                    explained.step("receipt", verdict, text);
                }
            }
        }
        self.advise_from(&judged, explained);
    }

    /// Adds the receipts' advice, by cost.
    fn advise_from(&self, judged: &[(&SeatJudgement, &[Penalty])], explained: &mut Explanation) {
        let all = self.run.params.sequences_per_seat;
        for (_, penalties) in judged {
            for penalty in *penalties {
                let what = match penalty.reason {
                    PenaltyReason::Harm => "a contribution that made the model worse",
                    PenaltyReason::Duplicate => "a near-duplicate of another seat's work",
                    PenaltyReason::Fault => "a contribution that no unmodified program makes",
                };
                explained.advise(&format!(
                    "A penalty for {what}, since window {}, lowers the scores of {} more measurements: it wears off with \
                     own, valid work.",
                    penalty.since.0, penalty.remaining
                ));
            }
        }
        let trained = judged.iter().filter_map(|(seat, _)| match seat.observed {
            Observed::Valid { trained, .. } => Some(trained),
            _ => None,
        });
        if let Some(trained) = trained.min().filter(|trained| *trained < all) {
            explained.advise(&format!(
                "Train all sequences: it was {trained} of {all}, and the score is multiplied by that part. `miner profile` \
                 shows where the time goes; a faster device, a larger `micro_batch_sequences`, or `ahead` help."
            ));
        }
        let rated = judged.iter().filter(|(seat, _)| seat.result.common_gain.is_some());
        let factor = rated.map(|(seat, _)| seat.result.rating_factor.get()).fold(1.0, f64::min);
        if factor < NEARLY_FULL {
            explained.advise(&format!(
                "The rating factor is {factor:.3}: other miners' work reduced the common loss more. Compare batch, learning \
                 rate and optimiser with the run's recipe (`mettle run show`)."
            ));
        }
        let outcomes =
            judged.iter().filter_map(|(seat, _)| seat.result.own_data.map(|data| data.outcome.get()));
        if let Some(outcome) = outcomes.reduce(f64::min).filter(|outcome| *outcome < NEARLY_FULL) {
            explained.advise(&format!(
                "The own-data outcome is {outcome:.3} of 1: the work helped less on the seat's own sequences than others' \
                 did on theirs. Train on all assigned sequences, and on no others."
            ));
        }
        if judged.iter().any(|(seat, _)| seat.observed == Observed::Unfetched) {
            explained.advise(
                "A validator fetches seats without a consensus weight in turns: a new seat waits for its own. Nothing is \
                 to be done.",
            );
        }
    }

    fn validator(&self, view: &WindowView, explained: &mut Explanation) {
        let (uid, schedule) = (self.uid(), self.run.params.schedule);
        let total: u128 = view.active_set.iter().map(|(_, stake)| stake).sum();
        let Some((_, stake)) = view.active_set.iter().find(|(of, _)| *of == uid) else {
            let text = match self.seat.last_attested {
                Some(last) => format!("not in the active set; last present in window {}", last.0),
                None => "not in the active set; it has attested no window yet".into(),
            };
            explained.step("active set", Verdict::Bad, text);
            explained.advise(
                "Run `validator serve` without pause: a validator is in the active set again once it is present, that \
                 is, attests at least half of the valid contributions; and raise the stake if others have more.",
            );
            return;
        };
        let text = format!("{} of the stake that decides", percent_of(*stake, total));
        explained.step("active set", Verdict::Good, text);

        let attest_by = schedule.attest_deadline(self.window).0;
        if view.attested.contains(&uid) {
            explained.step("attestation", Verdict::Good, "in time".into());
        } else if self.block().0 <= attest_by {
            let text = format!("none yet: until block {attest_by}");
            explained.step_until("attestation", text, self.window.next());
        } else {
            explained.step("attestation", Verdict::Bad, format!("none by block {attest_by}"));
            explained.advise(
                "Attest every window: `abstained` in journal.jsonl has the reason. After `absence_windows` without an \
                 attestation a validator leaves the active set.",
            );
        }
        self.vote(view, explained);
        self.outcome(view, explained);
        let from = receipt::public_from(self.window, &self.run.params);
        if view.receipts.iter().any(|(of, _)| *of == uid) {
            let text = match self.now {
                Some(now) if from <= now => "anchored, and public".into(),
                _ => format!("anchored; it becomes public with {}", self.clock.until(from)),
            };
            explained.step("receipt", Verdict::Good, text);
        } else if self.now.is_some_and(|now| self.window.0.saturating_add(2) < now.0) {
            explained.step("receipt", Verdict::Bad, "none anchored".into());
            explained.advise(
                "Anchor a receipt for every window, and in time: what is drawn of it and cannot be shown lowers the \
                 dividends of the epoch. A validator that is too slow measures less: lower `evaluations_max`.",
            );
        } else {
            let later = Window(self.window.0.saturating_add(2));
            let text = "none yet: a validator anchors it one or two windows later".into();
            explained.step_until("receipt", text, later);
        }
    }

    fn vote(&self, view: &WindowView, explained: &mut Explanation) {
        let vote_by = self.run.params.schedule.vote_deadline(self.window).0;
        let own: Option<Vote> = view.votes.iter().find(|(of, _)| *of == self.uid()).map(|(_, vote)| *vote);
        match (own, view.outcome) {
            (Some(own), Some(Outcome::Merged(merged))) if own != merged => {
                explained.step(
                    "vote",
                    Verdict::Bad,
                    "for another update than two thirds of the stake".into(),
                );
                explained.advise(
                    "A minority vote costs the dividends of the epoch: `mettle audit` shows which merge is wrong. If it \
                     is yours, remove model.state and join again.",
                );
            }
            (Some(_), _) => explained.step("vote", Verdict::Good, "in time".into()),
            (None, _) if self.block().0 <= vote_by => {
                let text = format!("none yet: until block {vote_by}");
                explained.step_until("vote", text, self.window.next());
            }
            (None, _) => {
                explained.step("vote", Verdict::Bad, format!("none by block {vote_by}"));
                explained.advise(
                    "Vote in every window: with less than two thirds of an epoch's merged windows there are no dividends. \
                     `abstained` in journal.jsonl has the reason; often the uplink or the disk is too slow for the merge.",
                );
            }
        }
    }

    /// Explains the epoch's weight and pay.
    fn pay(&self, explained: &mut Explanation) {
        let params = &self.run.params;
        let epoch = self.window.epoch(params.epoch_windows);
        let closes = Window(
            epoch
                .saturating_add(1)
                .saturating_mul(params.epoch_windows)
                .saturating_add(params.reveal_windows),
        );
        let Some(slip) = self.payslips.iter().find(|slip| slip.epoch == epoch) else {
            if self.now.is_none_or(|now| now < closes) {
                let text = format!("epoch {epoch} is paid with {}", self.clock.until(closes));
                explained.step_until("pay", text, closes);
            } else {
                match self.payslips.first() {
                    Some(oldest) if epoch < oldest.epoch && KEPT_EPOCHS <= self.payslips.len() => {
                        let text =
                            format!("the chain has forgotten epoch {epoch}: it keeps the last {KEPT_EPOCHS}");
                        explained.step("pay", Verdict::Open, text);
                    }
                    _ => {
                        let text =
                            format!("none for epoch {epoch}: this holder of the seat had no weight in it");
                        explained.step("pay", Verdict::Bad, text);
                        explained.advise(match self.seat.seat.role {
                            Role::Miner => {
                                "No validator's vote of this epoch named the seat: a validator votes on what it has \
                                 measured, and one that joined in mid-epoch votes in the next. Go on, and ask about \
                                 a window of a later epoch."
                            }
                            Role::Validator => NO_DIVIDENDS,
                        });
                    }
                }
            }
            return;
        };
        let Payslip { pot, merged, consensus, amount, nominators, .. } = slip;
        let (pot, amount) = (Amount(*pot), Amount(*amount));
        let (name, text, has_part) = match self.seat.seat.role {
            Role::Miner => (
                "weight",
                format!(
                    "{} of 65535 by consensus, {} of the miners' pay",
                    consensus.weight,
                    share(consensus.incentive)
                ),
                0 < consensus.incentive,
            ),
            Role::Validator => (
                "weights",
                format!(
                    "{} of its weights within consensus, {} of the validators' pay",
                    share(consensus.trust),
                    share(consensus.dividends)
                ),
                0 < consensus.dividends,
            ),
        };
        let verdict = if has_part { Verdict::Good } else { Verdict::Bad };
        explained.step(name, verdict, text);
        let windows = params.epoch_windows;
        let mut text =
            format!("{amount:.2} for epoch {epoch}, of {pot:.2} for {merged} of {windows} windows merged");
        if 0 < *nominators {
            text += &format!("; {:.2} went to nominators", Amount(*nominators));
        }
        explained.step("pay", if Amount::ZERO < amount { Verdict::Good } else { Verdict::Bad }, text);
        if !has_part {
            explained.advise(match self.seat.seat.role {
                Role::Miner => {
                    "No weight yet: a new seat's own-data score starts at 0. Measured in every window it earns half of a \
                     seat's pay in the epoch that ends after 20 windows, and nine tenths after 30."
                }
                Role::Validator => NO_DIVIDENDS,
            });
        }
    }
}

/// Reads the attestations of the validators that decide the window.
async fn attestations(
    chain: &dyn Chain,
    run: RunId,
    view: &WindowView,
    uid: Uid,
) -> Result<Vec<AttestationOf>, ChainError> {
    let read = |(validator, stake): &(Uid, u128)| {
        attestation(chain, run, view.window, uid, *validator, *stake).boxed()
    };
    // A stream of a closure's futures is not `Send`, so each future gets its type first.
    let reads: Vec<BoxFuture<'_, _>> = view.active_set.iter().map(read).collect();
    stream::iter(reads).buffered(READS_AT_ONCE).try_collect().await
}

async fn attestation(
    chain: &dyn Chain,
    run: RunId,
    window: Window,
    uid: Uid,
    validator: Uid,
    stake: u128,
) -> Result<AttestationOf, ChainError> {
    let of_seat =
        |verdicts: Vec<(Uid, _)>| verdicts.into_iter().find(|(of, _)| *of == uid).map(|(_, verdict)| verdict);
    let verdict = chain.attestation(run, window, validator).await?.map(of_seat);
    Ok(AttestationOf { validator, stake, verdict })
}

/// Formats a judgement's numbers for the end of a sentence.
fn numbers(seat: &SeatJudgement) -> String {
    let result = &seat.result;
    let mut text = String::new();
    if let Some(gain) = result.common_gain {
        text += &format!("; loss reduction {}", percent(gain.get()));
    }
    if let Some(data) = result.own_data {
        text += &format!("; own-data outcome {:.3}", data.outcome.get());
    }
    format!(
        "{text}; rating factor {:.3}, score {:.4}, weight {} of 65535",
        result.rating_factor.get(),
        result.score.get(),
        result.weight
    )
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::receipts::WindowReceipts;
    use protocol::{
        Digest, Hotkey, RunId, RunParams, Schedule, SeatId, Terms,
        consensus::ONE,
        receipt::{
            Attestation, Baseline, ExactF64, FORMAT, Judgement, OwnData, Receipt, Reputation, Reputations,
            SeatReputation, Statements,
        },
        select::Selected,
        view::{self, SeatConsensus, SeatView, Selection},
    };
    use std::time::Duration;

    const UID: Uid = Uid(4);

    /// Creates facts on a miner in window 5 of epochs of ten windows, seen from the window `now`; three validators
    /// attest it as valid.
    pub(crate) fn facts(now: u32) -> Facts {
        let schedule = Schedule { start: Block(100), ..RunParams::default().schedule };
        let params = RunParams { schedule, epoch_windows: 10, reveal_windows: 2, ..RunParams::default() };
        let run = RunView {
            id: RunId(1),
            owner: [1; 32],
            params,
            terms: Terms::default(),
            spec: Digest::default(),
            manifest: Digest::default(),
            theta0: Digest::default(),
            origin: "https://store.example.org".into(),
            treasury: 0,
            checkpoint: None,
            rewound: None,
            paused: false,
        };
        let consensus = SeatConsensus { weight: 65535, incentive: ONE / 4, trust: ONE, dividends: 0 };
        let seat = SeatStatus {
            seat: SeatView {
                id: SeatId { uid: UID, registered_at: Block(90) },
                role: Role::Miner,
                hotkey: Hotkey([2; 32]),
                coldkey: [3; 32],
                endpoint: "https://store.example.org/seat".into(),
                stake: 0,
                claimable: 0,
                earned: 0,
            },
            immune_until: Window(0),
            pending: None,
            pays_into_stake: false,
            nominated: 0,
            commission: protocol::params::Permille(0),
            commission_raise: None,
            consensus,
            recent_pay: 0,
            last_attested: None,
        };
        let vote = Vote { update: Digest([9; 32]), state_root: None };
        let active_set: Vec<(Uid, u128)> =
            [(0, 50), (1, 30), (2, 20)].map(|(uid, stake)| (Uid(uid), stake)).into();
        let view = WindowView {
            window: Window(5),
            opening_hash: None,
            deal_seed: None,
            evaluation_hash: None,
            slots: vec![UID],
            cursor: 0,
            active_set: active_set.clone(),
            lineage: Digest::default(),
            weights: Vec::new(),
            commitments: vec![(UID, Digest([7; 32]))],
            salts: Vec::new(),
            attested: active_set.iter().map(|(uid, _)| *uid).collect(),
            selection: Some(Selection {
                selected: vec![Selected { uid: UID, digest: Digest([7; 32]) }],
                valid: vec![UID],
                faulty: Vec::new(),
            }),
            votes: active_set.iter().map(|(uid, _)| (*uid, vote)).collect(),
            outcome: Some(Outcome::Merged(vote)),
            receipts: Vec::new(),
            probe_roots: Vec::new(),
            probes: Vec::new(),
            next_deal: None,
        };
        let attested = |(validator, stake)| AttestationOf {
            validator,
            stake,
            verdict: Some(Some(view::Verdict::Valid)),
        };
        let slip = Payslip {
            epoch: 0,
            pot: Amount::mtl(8).0,
            merged: 9,
            consensus,
            amount: Amount::mtl(2).0,
            nominators: 0,
        };
        Facts {
            window: Window(5),
            now: Some(Window(now)),
            seat,
            attestations: active_set.into_iter().map(attested).collect(),
            receipts: None,
            payslips: vec![slip],
            clock: BlockClock {
                block: schedule.opens_at(Window(now)),
                schedule,
                block_time: Duration::from_secs(6),
            },
            run,
            view: Some(view),
        }
    }

    /// Creates a validator's receipt with this observation of the seat.
    fn receipt(observed: Observed, rating_factor: f64, outcome: f64, penalties: Vec<Penalty>) -> Receipt {
        let number = ExactF64::of;
        let result = receipt::Outcome {
            own_gain: Some(number(0.01)),
            common_gain: Some(number(0.005)),
            common_error: None,
            own_data: Some(OwnData {
                gap: number(0.005),
                error: number(0.0),
                scale: number(0.005),
                outcome: number(outcome),
            }),
            rank: Some(1),
            ordinal: number(1.0),
            median_rating: number(1.0),
            rating_factor: number(rating_factor),
            score: number(0.25),
            weight: 400,
        };
        let seat = SeatId { uid: UID, registered_at: Block(90) };
        let reputation = Reputation {
            mu: number(25.0),
            sigma: number(8.0),
            own_data_score: number(0.3),
            own_data_variance: number(0.0),
            unmeasured: 0,
            penalties,
            first_seen: Window(1),
            last_evaluated: None,
            evaluations: 4,
            faults: 0,
            share: number(1.0),
            recent: Vec::new(),
        };
        Receipt {
            format: FORMAT,
            run: RunId(1),
            window: Window(5),
            validator: SeatId { uid: Uid(0), registered_at: Block(1) },
            hotkey: Hotkey([8; 32]),
            base: Digest::default(),
            previous: None,
            salt: [0; 32],
            attestation: Attestation { valid: vec![UID], ..Attestation::default() },
            merged: None,
            statements: Statements::default(),
            before: Reputations::default(),
            judgement: Some(Judgement {
                held: vec![UID],
                budget: 64,
                order: vec![UID],
                common: vec![Baseline { sequence: 7, before: number(3.0) }],
                seats: vec![SeatJudgement { seat, observed, result }],
                after: Reputations {
                    judged: Some(Window(5)),
                    seats: vec![SeatReputation { seat, reputation }],
                },
                weights: vec![(UID, 400)],
            }),
        }
    }

    fn with_receipts(receipts: Vec<Result<Receipt, String>>) -> Facts {
        let receipts = receipts.into_iter().map(|receipt| (Uid(0), receipt.map(Box::new)));
        let receipts = Some(WindowReceipts {
            window: Window(5),
            epoch: 0,
            sequences_per_seat: RunParams::default().sequences_per_seat,
            receipts: receipts.collect(),
            pay: None,
        });
        Facts { receipts, ..facts(30) }
    }

    fn valid(trained: u32) -> Observed {
        Observed::Valid { trained, measured: None, near_duplicate: None }
    }

    #[track_caller]
    fn step<'a>(explained: &'a Explanation, name: &str) -> &'a Step {
        explained
            .steps
            .iter()
            .find(|step| step.name == name)
            .unwrap_or_else(|| panic!("no {name}: {explained:#?}"))
    }

    #[test]
    fn what_is_not_known_yet_names_the_window_from_which_it_is() {
        let not_open = explain(&Facts { view: None, payslips: Vec::new(), ..facts(3) });
        assert_eq!((not_open.steps.len(), step(&not_open, "window").verdict), (1, Verdict::Open));
        let forgotten = explain(&Facts { view: None, ..facts(300) });
        assert!(step(&forgotten, "window").text.contains("forgotten"));
        assert_eq!(step(&forgotten, "pay").verdict, Verdict::Good);

        // Epoch 0 is paid with window 12. Receipts of window 5 are public from window 10 on.
        let early =
            explain(&Facts { payslips: Vec::new(), now: Some(Window(6)), ..with_receipts(Vec::new()) });
        assert_eq!(step(&early, "receipts").known_from_window, Some(Window(10)));
        assert_eq!(step(&early, "pay").known_from_window, Some(Window(12)));
        let late = explain(&Facts { payslips: Vec::new(), ..facts(30) });
        assert_eq!(step(&late, "pay").verdict, Verdict::Bad);
        assert!(late.advice[0].contains("No validator's vote"), "{late:#?}");
    }

    #[test]
    fn a_full_window_ends_with_no_more_than_what_pay_rises_with() {
        let all = RunParams::default().sequences_per_seat;
        let explained = explain(&with_receipts(vec![Ok(receipt(valid(all), 1.0, 1.0, Vec::new()))]));
        assert!(explained.steps.iter().all(|step| step.verdict == Verdict::Good), "{explained:#?}");
        assert_eq!(step(&explained, "attestation").text, "valid for uid 0, 1, 2 with 100.0 % of the stake");
        assert!(explained.advice.len() == 1 && explained.advice[0].starts_with("Nothing went wrong"));
    }

    #[test]
    fn each_thing_that_lowers_the_pay_has_its_advice() {
        let advice = |facts: &Facts| explain(facts).advice.join("\n");
        let penalty = Penalty { reason: PenaltyReason::Harm, since: Window(3), remaining: 4 };
        let text = advice(&with_receipts(vec![
            Ok(receipt(valid(304), 0.5, 0.2, vec![penalty])),
            Ok(receipt(Observed::Unfetched, 1.0, 1.0, Vec::new())),
            Err("its bucket does not serve its receipt".into()),
        ]));
        for part in
            ["made the model worse", "304 of 512", "rating factor is 0.500", "outcome is 0.200", "in turns"]
        {
            assert!(text.contains(part), "{part} is not in {text}");
        }

        let mut absent = facts(30);
        absent.view.as_mut().unwrap().commitments.clear();
        assert!(advice(&absent).contains("journal.jsonl"));
        let mut unseen = facts(30);
        unseen.attestations[0].verdict = Some(None);
        unseen.attestations[1].verdict = None;
        unseen.view.as_mut().unwrap().selection =
            Some(Selection { selected: vec![], valid: vec![], faulty: vec![] });
        let explained = explain(&unseen);
        let text = &step(&explained, "attestation").text;
        for part in [
            "valid for uid 2 with 20.0 %",
            "not named by uid 0",
            "no attestation of uid 1",
            "less than two thirds",
        ] {
            assert!(text.contains(part), "{part} is not in {text}");
        }
        let mut faulty = facts(30);
        faulty.view.as_mut().unwrap().selection =
            Some(Selection { selected: vec![], valid: vec![], faulty: vec![UID] });
        assert!(advice(&faulty).contains("mettle receipts"));
        let mut without_weight = facts(30);
        without_weight.payslips[0].consensus.incentive = 0;
        assert!(advice(&without_weight).contains("No weight yet"));
        let mut newer = facts(30);
        newer.seat.seat.id.registered_at = Block(1_000_000);
        assert_eq!(step(&explain(&newer), "seat").verdict, Verdict::Bad);
    }

    #[test]
    fn a_validator_reads_which_duty_it_missed() {
        let mut of_validator = facts(30);
        of_validator.seat.seat.role = Role::Validator;
        of_validator.seat.seat.id.uid = Uid(1);
        let view = of_validator.view.as_mut().unwrap();
        view.receipts.push((Uid(1), Digest::default()));
        let explained = explain(&of_validator);
        assert_eq!(step(&explained, "active set").text, "30.0 % of the stake that decides");
        for name in ["attestation", "vote", "receipt"] {
            assert_eq!(step(&explained, name).verdict, Verdict::Good, "{name}");
        }
        let view = of_validator.view.as_mut().unwrap();
        view.votes[1].1.update = Digest([1; 32]);
        view.attested.retain(|uid| *uid != Uid(1));
        view.receipts.clear();
        let explained = explain(&of_validator);
        for name in ["attestation", "vote", "receipt"] {
            assert_eq!(step(&explained, name).verdict, Verdict::Bad, "{name}");
        }
        assert!(explained.advice.iter().any(|advice| advice.contains("minority vote")));
        of_validator.view.as_mut().unwrap().active_set.clear();
        assert!(explain(&of_validator).advice[0].contains("validator serve"));
    }
}
