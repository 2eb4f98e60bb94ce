//! One window of a validator, top to bottom: gather, attest, merge, vote; evaluate, judge, post. What waits is here; what decides is in
//! [`gauntlet`], in `protocol`, and on the chain.

use crate::{
    aggregator,
    commit_reveal::{CommitRevealError, CommitRevealStore},
    evaluate::{self, EvaluateError, Job, Measurements},
    gather::{self, Gathered, Until},
    gauntlet::{self, Reputations, Sketches},
    receipts::{self, Confirmed, Published, Receipts, ReceiptsError, WindowReport, form, form::Plan},
    salt::Salts,
    strategy::Strategy,
    weight_vote::{WeightVote, WeightVoteError, WeightVotes},
};
use chain_client::{Call, ChainError, Head, Refusal};
use futures::future::LocalBoxFuture;
use nn::Evaluator;
use node::{
    Contribution, Entry, Follower, Node, NodeError, SyncError,
    durable::{self, DiskFullRetry, FileError},
    error_chain,
    follow::OwnMerge,
    journal::{SeatFault, SeatJudged},
    wait_past,
};
use protocol::{
    Block, Digest, Schedule, Uid, Window,
    assign::{self, Assignment},
    receipt::{self, Attestation, Judgement, MergeRecord, NotObserved, Receipt, ReportedFault, Statements},
    submission::Fault,
    view::{Outcome, SeatView, Verdict, Vote, WindowView},
};
use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};
use tokio::{sync::watch, task::JoinHandle};

/// Blocks before the end of a window at which an evaluation is no longer waited for.
const LAST_CALL_BLOCKS: u32 = 2;

/// Blocks before a deadline at which room on the disk is no longer waited for: as many as finality may be behind, and two in which the chain is
/// told.
const TOLD_BLOCKS: u32 = 5;

/// Everything a validator is made of. Time comes from the chain's heads; store, chain and data are given.
pub struct Validator {
    pub node: Node,
    /// The device and model on which contributions are judged; away while an evaluation runs.
    pub evaluator: Option<Evaluator>,
    pub salts: Salts,
    pub weight_votes: WeightVotes,
    pub commit_reveal: CommitRevealStore,
    pub receipts: Receipts,
    /// Receipts on their way into the bucket and onto the chain.
    pub publishing: Option<JoinHandle<Vec<Published>>>,
    pub reputations: Reputations,
    /// What the last windows' contributions looked like. A restart forgets it: near-duplicates of older work are found again after as many windows.
    pub sketches: Sketches,
    /// What it says of what it found.
    pub strategy: Box<dyn Strategy>,
    /// Contributions evaluated in one window, at most (PROT-28).
    pub evaluations_max: usize,
    /// Held-out sequences on which the model is reported.
    pub held_out_sequences: u64,
    /// What is waited for while the disk is full.
    pub disk_full_retry: DiskFullRetry,
}

#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    #[error("lost the chain")]
    Chain(#[from] ChainError),
    #[error(transparent)]
    Sync(#[from] SyncError),
    #[error("could not keep the standings")]
    Reputations(#[from] FileError),
    #[error(
        "the saved standings are not in the form this release writes; remove them to rate everyone afresh"
    )]
    ReputationsFormat(#[from] serde_json::Error),
    #[error("could not keep the weights that are to be revealed")]
    WeightVotes(#[from] WeightVoteError),
    #[error("could not keep what is to be revealed in this window")]
    CommitRevealStore(#[from] CommitRevealError),
    #[error("could not keep what receipts are made of")]
    Receipts(#[from] ReceiptsError),
    #[error("the evaluation failed")]
    Evaluate(#[from] EvaluateError),
    #[error("the thread that evaluates died")]
    EvaluatorDied(#[source] tokio::task::JoinError),
    #[error("the task that publishes receipts died")]
    PublisherDied(#[source] tokio::task::JoinError),
    #[error(transparent)]
    Node(#[from] NodeError),
}

impl ServeError {
    /// Whether there was no room on the disk for what is to be there before it is said.
    pub fn is_full(&self) -> bool {
        match self {
            ServeError::WeightVotes(error) => error.is_full(),
            ServeError::CommitRevealStore(error) => error.is_full(),
            ServeError::Receipts(error) => error.is_full(),
            _ => false,
        }
    }
}

/// An evaluation on its way.
struct Evaluation {
    view: WindowView,
    seats: Vec<SeatView>,
    /// `t` of every valid contribution that we hold.
    trained: BTreeMap<Uid, u32>,
    /// Faults that we saw ourselves.
    faults: BTreeMap<Uid, Fault>,
    /// Set when there is no time for a further contribution.
    time_is_up: Arc<AtomicBool>,
    plan: Plan,
    handle: JoinHandle<(Evaluator, Result<Measurements, EvaluateError>)>,
    /// What came of it, where there was no room yet for the receipt.
    measured: Option<Measurements>,
}

impl Validator {
    /// Serves window after window until the process is stopped or something is lost that it cannot go on without. Every step may be run
    /// twice: after a crash the window is simply served again.
    pub fn serve(self) -> LocalBoxFuture<'static, Result<(), ServeError>> {
        Box::pin(self.serve_windows())
    }

    async fn serve_windows(mut self) -> Result<(), ServeError> {
        let mut heads = self.node.heads.clone();
        let mut own: Option<OwnMerge> = None;
        let mut evaluation: Option<Evaluation> = None;
        let mut served = 0;
        let mut done = None;
        loop {
            // Follow.
            if self.node.sync.sync_to_open_window(&mut heads, done, &mut own, &mut self.node.journal).await? {
                self.publish_if_checkpoint().await?;
            }
            let window = self.node.sync.window();
            self.node.record_traffic();
            if self.node.windows_max.is_some_and(|max| max <= served) {
                return Ok(());
            }
            served += 1;
            self.node.keep_seat().await?;
            self.reveal_weights(window, &mut heads).await?;
            self.publish_receipts().await?;

            // While miners train, judge what the last window left to judge.
            let schedule = self.schedule();
            let commit_by = schedule.commit_deadline(window);
            if let Some(running) = evaluation.take() {
                evaluation = self.judge_by(running, &mut heads, commit_by).await?;
            }
            // Whom it has not reached by now has waited longer in the next window (PROT-28).
            if let Some(running) = &evaluation {
                running.time_is_up.store(true, Ordering::Relaxed);
            }

            // Gather.
            wait_past(&mut heads, commit_by).await?;
            done = Some(window);
            let Some(view) = self.view(window).await? else { continue };
            let seats = self.follower().chain.seats(self.follower().run.id).await?;
            let gathered = self.gather(&view, &seats, &heads).await;

            // Attest.
            self.attest(&view, &gathered, &mut heads).await?;

            // Merge and vote.
            wait_past(&mut heads, schedule.attest_deadline(window)).await?;
            self.reveal_attestation(window, &gathered.valid).await?;
            let Some(view) = self.selection(window, &mut heads).await? else { continue };
            let voted = self.merge_and_vote(&view, &seats, &gathered.valid, &mut own, &mut heads).await?;
            if let Err(reason) = voted {
                tracing::warn!(window = window.0, reason, "no vote");
                self.node.journal.write(&Entry::Abstained { window, reason });
            }

            // Commit to what everyone's work was worth up to here: once the window is fixed, its epoch may be over.
            self.commit_weights_if_due(&view, &mut heads).await?;

            // Evaluate and judge, off everybody's critical path: an evaluation that needs longer than its window is judged in the next.
            if evaluation.is_none() {
                evaluation = self.start_evaluation(&view, &seats, gathered).await?;
            }
            wait_past(&mut heads, schedule.vote_deadline(window)).await?;
            self.reveal_vote(window).await?;
            let last_call = Block(schedule.opens_at(window.next()).0.saturating_sub(LAST_CALL_BLOCKS));
            if let Some(running) = evaluation.take() {
                evaluation = self.judge_by(running, &mut heads, last_call).await?;
            }
            self.publish_receipts().await?;

            node::prune(&*self.node.store, self.follower().run.id, window).await;
        }
    }

    async fn gather(&self, view: &WindowView, seats: &[SeatView], heads: &watch::Receiver<Head>) -> Gathered {
        let until = Until::of(&self.schedule(), view.window);
        gather::gather(self.follower(), view, seats, heads, until).await
    }

    /// Says on the chain what was seen, after making sure that others can see it too (PROT-14, PROT-15): in a run that hides attestations,
    /// that is made sure of only before it is shown. The salt of the next window is committed with it (PROT-2).
    async fn attest(
        &mut self,
        view: &WindowView,
        gathered: &Gathered,
        heads: &mut watch::Receiver<Head>,
    ) -> Result<(), ServeError> {
        let window = view.window;
        if view.attested.contains(&self.node.seat.id.uid) {
            return Ok(());
        }
        let mut not_observed = gathered.not_observed.clone();
        // Whoever looked into our bucket would know a hidden attestation before its deadline: the names there are public (PROT-30).
        let mirrored = if self.hides() {
            Ok(())
        } else {
            aggregator::mirror(&*self.node.store, self.follower(), window, &gathered.valid).await
        };
        let mut verdicts: Vec<(Uid, Verdict)> = Vec::new();
        match mirrored {
            Ok(()) => verdicts.extend(gathered.valid.keys().map(|uid| (*uid, Verdict::Valid))),
            // What we could not put where others find it, we cannot vouch for. Our trouble, no fault of theirs.
            Err(error) => {
                let reason = format!("our bucket did not take its bytes: {}", error_chain(&error));
                not_observed.extend(gathered.valid.keys().map(|uid| (*uid, reason.clone())));
            }
        }
        verdicts.extend(gathered.faulty.keys().map(|uid| (*uid, Verdict::Faulty)));
        verdicts.sort_by_key(|(uid, _)| *uid);
        let Some(verdicts) = self.strategy.verdicts(view, verdicts) else { return Ok(()) };
        let attested = attested(&verdicts, gathered, &not_observed);
        let (run, hides) = (self.follower().run.id, self.hides());
        let until = to_be_told_by(self.schedule().attest_deadline(window));
        let kept = self.with_room(until, heads, |own| {
            let verdicts = own.receipts.attest(window, view.lineage, attested.clone())?.verdicts();
            Ok(if hides { own.commit_reveal.store_verdicts(run, window, verdicts)? } else { verdicts })
        });
        let verdicts = match kept.await? {
            Ok(verdicts) => verdicts,
            Err(full) => {
                let reason = format!("nothing attested: {}", no_room(&full));
                tracing::warn!(window = window.0, reason);
                self.node.journal.write(&Entry::Abstained { window, reason });
                return Ok(());
            }
        };

        let next_salt = self.salts.commitment(run, window.next());
        let call = if hides {
            let hash = self.commit_reveal.hash(run, window, &verdicts, &self.node.seat.hotkey);
            Call::AttestHidden { run, window, hash, next_salt }
        } else {
            Call::Attest { run, window, verdicts: verdicts.clone(), next_salt }
        };
        if let Err(reason) = self.submit_once(call, Refusal::AlreadyAttested).await? {
            self.node
                .journal
                .write(&Entry::Abstained { window, reason: format!("attestation refused: {reason}") });
            return Ok(());
        }
        let faulty = gathered.faulty.iter().map(|(uid, fault)| SeatFault {
            uid: *uid,
            label: fault.label().to_owned(),
            reason: fault.to_string(),
        });
        let not_observed = not_observed.into_iter().map(|(uid, reason)| SeatFault {
            uid,
            label: "not-observed".to_owned(),
            reason,
        });
        let valid = verdicts.iter().filter(|(_, verdict)| *verdict == Verdict::Valid).map(|(uid, _)| *uid);
        self.node.journal.write(&Entry::Attested {
            window,
            valid: valid.collect(),
            faulty: faulty.collect(),
            not_observed: not_observed.collect(),
        });
        Ok(())
    }

    /// In a run that hides attestations, shows the one that was bound by its hash, now that nobody can copy it (PROT-30). What it says is
    /// valid is put where others find it first (PROT-15); an attestation that could not keep that promise is not shown.
    async fn reveal_attestation(
        &mut self,
        window: Window,
        at_hand: &BTreeMap<Uid, Contribution>,
    ) -> Result<(), ServeError> {
        let run = self.follower().run.id;
        let Some(verdicts) = self.commit_reveal.verdicts(run, window).filter(|_| self.hides()) else {
            return Ok(());
        };
        if let Err(reason) = self.mirror_bound(window, &verdicts, at_hand).await {
            let reason = format!("attestation not revealed: {reason}");
            tracing::warn!(window = window.0, reason);
            self.node.journal.write(&Entry::Abstained { window, reason });
            return Ok(());
        }
        let salt = self.commit_reveal.salt(run, window, &verdicts);
        let call = Call::RevealAttestation { run, window, verdicts, salt };
        if let Err(reason) = self.submit_once(call, Refusal::AlreadyAttested).await? {
            let reason = format!("attestation not revealed: {reason}");
            self.node.journal.write(&Entry::Abstained { window, reason });
        }
        Ok(())
    }

    /// Puts all that `verdicts` call valid into our bucket (PROT-15).
    async fn mirror_bound(
        &self,
        window: Window,
        verdicts: &[(Uid, Verdict)],
        at_hand: &BTreeMap<Uid, Contribution>,
    ) -> Result<(), String> {
        let mut bound = BTreeMap::new();
        for (uid, _) in verdicts.iter().filter(|(_, verdict)| *verdict == Verdict::Valid) {
            let held =
                at_hand.get(uid).ok_or_else(|| format!("the bytes of uid {uid} are not at hand any more"))?;
            bound.insert(*uid, held.clone());
        }
        let mirrored = aggregator::mirror(&*self.node.store, self.follower(), window, &bound).await;
        mirrored
            .map_err(|error| format!("our bucket did not take what it vouches for: {}", error_chain(&error)))
    }

    /// The window once its selection stands: after the attestations, and those that are revealed. A chain with more to do than fits into
    /// a block makes it some blocks late.
    async fn selection(
        &self,
        window: Window,
        heads: &mut watch::Receiver<Head>,
    ) -> Result<Option<WindowView>, ServeError> {
        let schedule = self.schedule();
        let hidden_blocks = self.follower().run.params.hidden_blocks;
        wait_past(heads, Block(schedule.attest_deadline(window).0.saturating_add(hidden_blocks))).await?;
        loop {
            let head = heads.borrow_and_update().block;
            let view = self.view(window).await?;
            let stands = view.as_ref().is_none_or(|view| view.selection.is_some());
            if stands || schedule.vote_deadline(window) <= head {
                return Ok(view);
            }
            wait_past(heads, head).await?;
        }
    }

    /// Merges what the chain selected, puts it where everyone finds it, and votes its digest (PROT-16 to PROT-20). An `Err` inside says
    /// why there is no vote; the window may still be merged by the others.
    async fn merge_and_vote(
        &mut self,
        view: &WindowView,
        seats: &[SeatView],
        at_hand: &BTreeMap<Uid, Contribution>,
        own: &mut Option<OwnMerge>,
        heads: &mut watch::Receiver<Head>,
    ) -> Result<Result<(), String>, ServeError> {
        let window = view.window;
        if view.selection.as_ref().is_none_or(|selection| selection.selected.is_empty()) {
            return Ok(Err("nothing was selected".into()));
        }
        if self.node.sync.state.buffer.is_none() {
            return Ok(Err("without the merge-side buffer until the next checkpoint".into()));
        }
        let contributions = match aggregator::selected(self.follower(), view, seats, at_hand).await {
            Ok(contributions) => contributions,
            Err(error) => return Ok(Err(error_chain(&error))),
        };
        let state = self.node.sync.state.clone();
        let merged =
            aggregator::merge(self.node.sync.follower.clone(), state, view.clone(), contributions).await;
        let merged = match merged {
            Ok(merged) => merged,
            Err(error) => return Ok(Err(error_chain(&error))),
        };
        let vote = match aggregator::publish(&*self.node.store, self.follower(), &merged).await {
            Ok(vote) => vote,
            Err(error) => {
                return Ok(Err(format!("our bucket did not take the update: {}", error_chain(&error))));
            }
        };
        let (digest, bytes, inputs) = (merged.digest, merged.bytes.len(), merged.inputs.clone());
        *own = Some(merged);

        // A predecessor of ours may have voted before it was killed: one vote a window, whatever happens in between.
        if view.votes.iter().any(|(uid, _)| *uid == self.node.seat.id.uid) {
            return Ok(Ok(()));
        }
        let Some(vote) = self.strategy.vote(view, Some(vote)) else { return Ok(Ok(())) };
        let selected =
            view.selection.as_ref().map(|selection| selection.selected.clone()).unwrap_or_default();
        let merged = MergeRecord { inputs: selected, update: vote.update, state_root: vote.state_root };
        let (run, hides) = (self.follower().run.id, self.hides());
        let until = to_be_told_by(self.schedule().vote_deadline(window));
        let kept = self.with_room(until, heads, |own| {
            let MergeRecord { update, state_root, .. } =
                own.receipts.vote(window, view.lineage, merged.clone())?;
            let vote = Vote { update, state_root };
            Ok(if hides { own.commit_reveal.store_vote(run, window, vote)? } else { vote })
        });
        let vote = match kept.await? {
            Ok(vote) => vote,
            Err(full) => return Ok(Err(no_room(&full))),
        };
        let call = if hides {
            let hash = self.commit_reveal.hash(run, window, &vote, &self.node.seat.hotkey);
            Call::VoteHidden { run, window, hash }
        } else {
            Call::Vote { run, window, vote }
        };
        if let Err(reason) = self.submit_once(call, Refusal::AlreadyVoted).await? {
            return Ok(Err(format!("vote refused: {reason}")));
        }
        let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
        tracing::info!(window = window.0, update = %digest, bytes, contributions = inputs.len(), "voted");
        self.node.journal.write(&Entry::Voted { window, update: digest, bytes, inputs });
        Ok(Ok(()))
    }

    /// In a run that hides votes, shows the one that was bound by its hash, now that nobody can copy it (PROT-30).
    async fn reveal_vote(&mut self, window: Window) -> Result<(), ServeError> {
        let run = self.follower().run.id;
        let Some(vote) = self.commit_reveal.vote(run, window).filter(|_| self.hides()) else {
            return Ok(());
        };
        let salt = self.commit_reveal.salt(run, window, &vote);
        let call = Call::RevealVote { run, window, vote, salt };
        if let Err(reason) = self.submit_once(call, Refusal::AlreadyVoted).await? {
            let reason = format!("vote not revealed: {reason}");
            self.node.journal.write(&Entry::Abstained { window, reason });
        }
        Ok(())
    }

    /// Whether the run hides attestations and votes until their deadline (PROT-30).
    fn hides(&self) -> bool {
        self.follower().run.params.hidden_blocks > 0
    }

    /// Starts measuring on a thread of its own.
    async fn start_evaluation(
        &mut self,
        view: &WindowView,
        seats: &[SeatView],
        gathered: Gathered,
    ) -> Result<Option<Evaluation>, ServeError> {
        let (Some(opening_hash), Some(evaluation_hash)) = (view.opening_hash, view.evaluation_hash) else {
            return Ok(None);
        };
        let Some(mut evaluator) = self.evaluator.take() else { return Ok(None) };
        let Gathered { valid: contributions, faulty: faults, .. } = gathered;
        let run = &self.follower().run;
        let salt = self.salts.salt(run.id, view.window);
        let seed = assign::evaluation_seed(run.id, view.window, &evaluation_hash, &salt);
        let assignment = Assignment {
            run: run.id,
            window: view.window,
            opening_hash,
            slots: &view.slots,
            cursor: view.cursor,
            sequences_per_seat: run.params.sequences_per_seat,
            training_sequences: self.node.dataset.training_sequences(),
        };
        let candidates: Vec<_> = seats
            .iter()
            .filter(|seat| contributions.contains_key(&seat.id.uid))
            .map(|seat| seat.id)
            .collect();
        let order = gauntlet::whom_to_evaluate(
            &seed,
            view.window,
            &candidates,
            &self.reputations,
            self.evaluations_max,
            run.params.evaluation_wait_max,
        );
        let order: Vec<Uid> = order.into_iter().map(|seat| seat.uid).collect();
        let plan = Plan {
            held: contributions.keys().copied().collect(),
            budget: u32::try_from(self.evaluations_max).unwrap_or(u32::MAX),
            order: order.clone(),
        };
        let trained = contributions.iter().map(|(uid, held)| (*uid, held.header.trained)).collect();
        let theta = self.node.sync.state.theta.clone();
        let job = Job {
            held_out: self.held_out_sequences,
            earlier: self.sketches.clone(),
            ..Job::new(theta, self.follower(), contributions, order, &assignment, seed)
        };
        let dataset = self.node.dataset.clone();
        let time_is_up = Arc::new(AtomicBool::new(false));
        let stop = time_is_up.clone();
        let handle = tokio::task::spawn_blocking(move || {
            let measured =
                evaluate::measure(&mut evaluator, &dataset, &job, || !stop.load(Ordering::Relaxed));
            (evaluator, measured)
        });
        Ok(Some(Evaluation {
            view: view.clone(),
            seats: seats.to_vec(),
            trained,
            faults,
            plan,
            time_is_up,
            handle,
            measured: None,
        }))
    }

    /// Judges the evaluation if it is done before `last_call`, and there is room for the receipt by then; otherwise gives it back.
    async fn judge_by(
        &mut self,
        mut evaluation: Evaluation,
        heads: &mut watch::Receiver<Head>,
        last_call: Block,
    ) -> Result<Option<Evaluation>, ServeError> {
        let window = evaluation.view.window;
        let measured = match evaluation.measured.take() {
            Some(measured) => measured,
            None => {
                let done = tokio::select! {
                    done = &mut evaluation.handle => done,
                    waited = wait_past(heads, last_call) => {
                        waited?;
                        tracing::debug!(window = window.0, "the evaluation goes on into the next window");
                        return Ok(Some(evaluation));
                    }
                };
                let (evaluator, measured) = done.map_err(ServeError::EvaluatorDied)?;
                self.evaluator = Some(evaluator);
                match measured {
                    Err(EvaluateError::Data(error)) => {
                        let error = error_chain(&error);
                        tracing::error!(
                            window = window.0,
                            error,
                            "the window is not judged: its data is not to be had"
                        );
                        return Ok(None);
                    }
                    measured => {
                        let measured = self.strategy.measured(window, measured?);
                        self.sketches = measured.sketches.clone();
                        measured
                    }
                }
            }
        };
        if let Some(fixed) = self.fixed(window, heads).await? {
            evaluation.view = fixed;
        }
        if let Err(full) = self.conclude(&evaluation, &measured, heads, last_call).await? {
            tracing::warn!(window = window.0, reason = no_room(&full), "not judged yet");
            evaluation.measured = Some(measured);
            return Ok(Some(evaluation));
        }
        Ok(None)
    }

    /// The window once it is fixed. Where votes are hidden, or the chain has more to do than fits into a block, that is some blocks after
    /// the deadline; what is not fixed as the next window opens is waited for no longer.
    async fn fixed(
        &self,
        window: Window,
        heads: &mut watch::Receiver<Head>,
    ) -> Result<Option<WindowView>, ServeError> {
        let over = self.schedule().opens_at(window.next());
        loop {
            let head = heads.borrow_and_update().block;
            let view = self.view(window).await?;
            if over <= head || view.as_ref().is_none_or(|view| view.outcome.is_some()) {
                return Ok(view);
            }
            wait_past(heads, head).await?;
        }
    }

    /// Judges what was measured, unless the window was void: nobody is to lose by that (PROT-19). The `Err` inside says that there was no room
    /// for it by `last_call`; nothing has changed then, and it is to be done again.
    async fn conclude(
        &mut self,
        evaluation: &Evaluation,
        measured: &Measurements,
        heads: &mut watch::Receiver<Head>,
        last_call: Block,
    ) -> Result<Result<(), ServeError>, ServeError> {
        let view = &evaluation.view;
        let window = view.window;
        // Windows whose turn to be measured did not come have their receipts first: each names the one before.
        for earlier in self.receipts.unsigned_before(window) {
            let base = self.receipts.report(earlier).map(|said| said.base).unwrap_or_default();
            let taken = self.confirmed(earlier).await?;
            let sealed = self.with_room(last_call, heads, |own| own.seal(earlier, base, taken, None));
            if let Err(full) = sealed.await? {
                return Ok(Err(full));
            }
        }
        let taken = self.confirmed(window).await?;
        // Once is enough: a predecessor of ours may have judged it before it was killed.
        let judged = Some(window) <= self.reputations.judged.max(self.receipts.signed_until());
        let verdict = (matches!(view.outcome, Some(Outcome::Merged(_))) && !judged && self.sat_in(window))
            .then(|| self.verdict(evaluation, measured));
        let judgement = verdict.as_ref().map(|(judgement, _)| judgement);
        let sealed =
            self.with_room(last_call, heads, |own| own.seal(window, view.lineage, taken, judgement.cloned()));
        if let Err(full) = sealed.await? {
            return Ok(Err(full));
        }
        let seats = match verdict {
            Some((_, verdict)) => self.remember(window, measured, verdict)?,
            None => Vec::new(),
        };
        self.node.journal.write(&Entry::Judged {
            window,
            held_out_loss: measured.held_out_loss,
            seats,
            evaluate_seconds: measured.seconds,
        });
        Ok(Ok(()))
    }

    /// Evidence in, standings and weights out.
    fn verdict(&self, evaluation: &Evaluation, measured: &Measurements) -> (Judgement, gauntlet::Verdict) {
        let Evaluation { view, seats, trained, faults, plan, .. } = evaluation;
        let evidence = evaluate::evidence(view, seats, trained, faults, measured);
        let verdict = gauntlet::judge(&self.follower().run.params, &self.reputations, view.window, &evidence);
        (form::judgement(plan.clone(), &evidence, &verdict), verdict)
    }

    /// Takes over the standings of a verdict whose receipt is sealed, and writes them before anything is said about them.
    fn remember(
        &mut self,
        window: Window,
        measured: &Measurements,
        verdict: gauntlet::Verdict,
    ) -> Result<Vec<SeatJudged>, ServeError> {
        self.reputations = verdict.reputations;
        let path = self.node.directory.join("standings.json");
        match durable::write_atomic(&path, &serde_json::to_vec(&self.reputations)?) {
            // The receipt has them too, and a successor takes the later of both.
            Err(error) if error.is_full() => {
                let error = error_chain(&error);
                tracing::warn!(
                    window = window.0,
                    error,
                    "the standings are not written; the receipt has them too"
                );
            }
            written => written?,
        }
        tracing::info!(
            window = window.0,
            held_out_loss = measured.held_out_loss,
            evaluated = measured.seats.len(),
            seconds = measured.seconds,
            "judged"
        );
        Ok(verdict.reports.iter().map(judged).collect())
    }

    /// Does what is to be on disk before it is said, and changes nothing where it is not. Where there is no room for it, it is done again, as
    /// soon as there is, until the chain reaches `until`; then the `Err` inside is what was said last.
    async fn with_room<T>(
        &mut self,
        until: Block,
        heads: &mut watch::Receiver<Head>,
        mut act: impl FnMut(&mut Validator) -> Result<T, ServeError>,
    ) -> Result<Result<T, ServeError>, ServeError> {
        let mut disk_full_retry = std::mem::take(&mut self.disk_full_retry);
        let done = disk_full_retry.wait_until(until, heads, ServeError::is_full, async || act(self)).await;
        self.disk_full_retry = disk_full_retry;
        match done {
            Err(full) if full.is_full() => Ok(Err(full)),
            done => done.map(Ok),
        }
    }

    /// What the chain has taken of what we said in a window, as we said it: that alone is stated again (PROT-21).
    async fn confirmed(&self, window: Window) -> Result<Confirmed, ServeError> {
        let (chain, run, uid) = (&*self.follower().chain, self.follower().run.id, self.node.seat.id.uid);
        let Some(said) = self.receipts.report(window) else { return Ok(Confirmed::default()) };
        let Some(view) = chain.window(run, window).await? else { return Ok(Confirmed::default()) };
        let attestation = chain.attestation(run, window, uid).await?;
        let vote = view.votes.iter().find(|(of, _)| *of == uid).map(|(_, vote)| *vote);
        Ok(said.confirmed(attestation.as_deref(), vote))
    }

    /// Signs the window's receipt, once (PROT-27).
    fn seal(
        &mut self,
        window: Window,
        base: Digest,
        taken: Confirmed,
        judgement: Option<Judgement>,
    ) -> Result<(), ServeError> {
        // For a window that had opened before it had its seat, the chain takes no receipt, and the next one could not name it.
        if !self.sat_in(window) {
            return Ok(());
        }
        let run = self.follower().run.id;
        let (salt, validator, hotkey) =
            (self.salts.salt(run, window), self.node.seat.id, self.node.seat.hotkey);
        let before = form::reputations(&self.reputations);
        let strategy = &mut self.strategy;
        let write = |previous, said: WindowReport| {
            let said = strategy.reported(window, said);
            Receipt {
                format: receipt::FORMAT,
                run,
                window,
                validator,
                hotkey,
                base,
                previous,
                salt,
                attestation: said.attestation.unwrap_or_default(),
                merged: said.merged,
                statements: Statements::default(),
                before,
                judgement,
            }
        };
        if let Some(digest) = self.receipts.sign_and_store(window, taken, write)? {
            tracing::debug!(window = window.0, receipt = %digest, "sealed the receipt");
        }
        Ok(())
    }

    /// Whether our seat was there as the window opened.
    fn sat_in(&self, window: Window) -> bool {
        self.schedule().window_at(self.node.seat.id.registered_at) < Some(window)
    }

    /// Sends on its way what is not published yet, and takes note of what became of what was. What fails is said, and tried again in
    /// the next window.
    async fn publish_receipts(&mut self) -> Result<(), ServeError> {
        if self.publishing.as_ref().is_some_and(|running| !running.is_finished()) {
            return Ok(());
        }
        if let Some(ended) = self.publishing.take() {
            for published in ended.await.map_err(ServeError::PublisherDied)? {
                let Published { window, digest, bytes, anchored } = &published;
                let entry = match anchored {
                    Ok(()) => Entry::Published { window: *window, receipt: *digest, bytes: *bytes },
                    Err(not) => {
                        tracing::warn!(window = window.0, reason = not.reason, "no receipt on the chain");
                        Entry::Unpublished { window: *window, reason: not.reason.clone() }
                    }
                };
                self.node.journal.write(&entry);
                match self.receipts.note(&published) {
                    Err(error) if error.is_full() => {
                        let error = error_chain(&error);
                        tracing::warn!(
                            window = window.0,
                            error,
                            "after a restart the chain is asked for this receipt again"
                        );
                    }
                    noted => noted?,
                }
            }
        }
        let pending = self.receipts.pending();
        if !pending.is_empty() {
            let (store, chain) = (self.node.store.clone(), self.follower().chain.clone());
            let (run, uid) = (self.follower().run.id, self.node.seat.id.uid);
            self.publishing = Some(tokio::spawn(receipts::publish(store, chain, run, uid, pending)));
        }
        Ok(())
    }

    /// In the last window of an epoch, commits to what everyone's work was worth (PROT-26, PROT-30). It is on disk first: only who
    /// can show it in the next epoch is paid.
    async fn commit_weights_if_due(
        &mut self,
        view: &WindowView,
        heads: &mut watch::Receiver<Head>,
    ) -> Result<(), ServeError> {
        let window = view.window;
        let run = &self.follower().run;
        let (run, epoch_windows) = (run.id, run.params.epoch_windows);
        let epoch = window.epoch(epoch_windows);
        if window.next().epoch(epoch_windows) == epoch {
            return Ok(());
        }
        let weights = self.strategy.weights(view, gauntlet::weights(&self.reputations));
        if weights.is_empty() {
            return Ok(());
        }
        // One that a predecessor of ours kept was perhaps committed to before it was killed.
        let again = self.weight_votes.of(run, epoch).is_some();
        let until = to_be_told_by(self.schedule().vote_deadline(window));
        let kept =
            self.with_room(until, heads, |own| Ok(own.weight_votes.store(run, epoch, weights.clone())?));
        let kept = match kept.await? {
            Ok(kept) => kept,
            Err(full) => {
                self.no_weights(window, epoch, &no_room(&full));
                return Ok(());
            }
        };
        let hash = kept.hash(&self.node.seat.hotkey);
        match self.follower().chain.submit(Call::CommitWeights { run, epoch, hash }).await {
            Ok(_) => tracing::info!(epoch, seats = kept.weights.len(), "committed to weights"),
            Err(error) if again && error.refusal() == Some(Refusal::AlreadyCommitted) => {}
            Err(error) if error.is_transient() => return Err(error.into()),
            Err(error) => {
                self.forget_ballot(epoch)?;
                self.no_weights(window, epoch, &error_chain(&error));
            }
        }
        Ok(())
    }

    /// Forgets a ballot that the chain has, or will never take; on disk when there is room for that.
    fn forget_ballot(&mut self, epoch: u32) -> Result<(), ServeError> {
        let run = self.follower().run.id;
        match self.weight_votes.forget(run, epoch) {
            Err(error) if error.is_full() => {
                tracing::warn!(
                    epoch,
                    error = error_chain(&error),
                    "weights that are done with are still on disk"
                );
                Ok(())
            }
            done => Ok(done?),
        }
    }

    /// As an epoch begins, shows what was committed to in the one before (PROT-30).
    async fn reveal_weights(
        &mut self,
        window: Window,
        heads: &mut watch::Receiver<Head>,
    ) -> Result<(), ServeError> {
        let run = &self.follower().run;
        let (run, params) = (run.id, run.params);
        let current = window.epoch(params.epoch_windows);
        let due = self.weight_votes.before(run, current);
        if due.is_empty() {
            return Ok(());
        }
        // The model of a window is held before the window opens, and until then the chain takes no reveal.
        let opens = self.schedule().opens_at(window);
        wait_past(heads, Block(opens.0.saturating_sub(1))).await?;
        for kept in due {
            let WeightVote { epoch, weights, .. } = &kept;
            let call =
                Call::RevealWeights { run, epoch: *epoch, weights: weights.clone(), salt: kept.salt() };
            let revealed = match self.follower().chain.submit(call).await {
                Ok(_) => Ok(()),
                // Our predecessor revealed them and was killed before it could say so.
                Err(error) if error.refusal() == Some(Refusal::AlreadyRevealed) => Ok(()),
                // It is not lost: the next window is in time too, or says that it is not.
                Err(error) if error.refusal() == Some(Refusal::RevealNotBegun) => continue,
                Err(error) if error.is_transient() => return Err(error.into()),
                Err(error) => Err(error_chain(&error)),
            };
            self.forget_ballot(*epoch)?;
            match revealed {
                Ok(()) => self.node.journal.write(&Entry::Posted { epoch: *epoch, weights: weights.clone() }),
                Err(reason) => self.no_weights(window, *epoch, &reason),
            }
        }
        Ok(())
    }

    /// Says that an epoch's weights are not on the chain, and why.
    fn no_weights(&mut self, window: Window, epoch: u32, reason: &str) {
        tracing::warn!(epoch, reason, "no weights, and no dividends for the epoch");
        let reason = format!("no weights for epoch {epoch}: {reason}");
        self.node.journal.write(&Entry::Abstained { window, reason });
    }

    async fn publish_if_checkpoint(&mut self) -> Result<(), ServeError> {
        let run = self.follower().chain.run(self.follower().run.id).await?;
        let state = &self.node.sync.state;
        if let Some(checkpoint) = run.checkpoint
            && checkpoint.window == state.window
            && state.state_root() == Some(checkpoint.state_root)
        {
            aggregator::publish_checkpoint(&self.node.store, &mut self.node.sync).await;
        }
        Ok(())
    }

    /// Sends a call of which the chain takes one. What it refuses for good is a reason to be told, but for `done`: that is how it says
    /// that it has ours already, from a predecessor that was killed. What may pass has been tried long enough.
    async fn submit_once(&self, call: Call, done: Refusal) -> Result<Result<(), String>, ServeError> {
        match self.follower().chain.submit(call).await {
            Ok(_) => Ok(Ok(())),
            Err(error) if error.refusal() == Some(done) => Ok(Ok(())),
            Err(error) if !error.is_transient() => Ok(Err(error_chain(&error))),
            Err(error) => Err(error.into()),
        }
    }

    async fn view(&self, window: Window) -> Result<Option<WindowView>, ChainError> {
        self.follower().chain.window(self.follower().run.id, window).await
    }

    fn follower(&self) -> &Follower {
        &self.node.sync.follower
    }

    fn schedule(&self) -> Schedule {
        self.node.sync.follower.run.params.schedule
    }
}

/// When it must be on disk at the latest, if the chain is to be told by `deadline`. Where that is over already, it is tried once all the same.
fn to_be_told_by(deadline: Block) -> Block {
    Block(deadline.0.saturating_sub(TOLD_BLOCKS))
}

/// Why something was not said in time.
fn no_room(full: &ServeError) -> String {
    format!("the disk was full: {}", error_chain(full))
}

/// What is attested, with the reasons that a receipt gives for it.
fn attested(
    verdicts: &[(Uid, Verdict)],
    gathered: &Gathered,
    not_observed: &BTreeMap<Uid, String>,
) -> Attestation {
    let mut attested = Attestation::default();
    for (uid, verdict) in verdicts {
        match verdict {
            Verdict::Valid => attested.valid.push(*uid),
            Verdict::Faulty => attested.faulty.push(match gathered.faulty.get(uid) {
                Some(fault) => ReportedFault {
                    uid: *uid,
                    label: fault.label().to_owned(),
                    detail: receipt::text(&fault.to_string()),
                },
                None => ReportedFault { uid: *uid, label: "unsaid".to_owned(), detail: String::new() },
            }),
        }
    }
    let unseen = not_observed.iter().filter(|(uid, _)| verdicts.iter().all(|(said, _)| said != *uid));
    let unseen = unseen.map(|(uid, reason)| NotObserved { uid: *uid, reason: receipt::text(reason) });
    attested.not_observed = unseen.collect();
    attested
}

/// A report of the gauntlet's, as the journal keeps it.
fn judged(report: &gauntlet::SeatReport) -> SeatJudged {
    SeatJudged {
        uid: report.seat.uid,
        common_gain: report.common_gain,
        own_gain: report.own_gain,
        rating: report.rating_after.mu,
        uncertainty: report.rating_after.sigma,
        own_data_score: report.own_data_score_after,
        score: report.score,
        weight: report.weight,
        reasons: reasons(report),
    }
}

/// What counted against a seat, in words.
fn reasons(report: &gauntlet::SeatReport) -> Vec<String> {
    let penalties = report.penalties.iter().map(|penalty| {
        let (reason, since, left) = (penalty.reason, penalty.since.0, penalty.evaluations_remaining);
        format!("{reason:?} since window {since}: times {:.2}, {left} evaluations to go", penalty.factor)
    });
    let fault = match &report.observed {
        gauntlet::report::Seen::Faulty { label, detail } => Some(format!("{label}: {detail}")),
        _ => None,
    };
    fault.into_iter().chain(penalties).collect()
}

/// The later of what a predecessor left: its standings, or what its last receipt says of them. It may have been killed in between, and
/// what is signed stands.
pub fn later(reputations: Reputations, signed: Option<&receipt::Reputations>) -> Reputations {
    match signed {
        Some(signed) if reputations.judged < signed.judged => form::remembered(signed),
        _ => reputations,
    }
}

/// The standings that a predecessor left, or none.
pub fn load_reputations(directory: &std::path::Path) -> Result<Reputations, ServeError> {
    let path = directory.join("standings.json");
    match std::fs::read(&path) {
        Ok(bytes) => Ok(serde_json::from_slice(&bytes)?),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Reputations::default()),
        Err(source) => Err(FileError::Read { path, source }.into()),
    }
}
