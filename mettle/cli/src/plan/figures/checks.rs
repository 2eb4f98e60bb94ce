//! Checks that a plan's needs fit into the window, and proposes changes otherwise.

use super::{Change, Check, Context, PlanInput, Severity, Sizes, Value, known, seconds, seconds_for, weight};
use gauntlet::gathering::GatherDeadlines;
use model::ModelConfig;
use protocol::{Schedule, Window};
use store::s3;

/// Minimum number of blocks of an attest phase that leaves one for a second request.
const ATTEST_BLOCKS: u32 = 4;
/// Memory limit of a validator that merges (docs/scaling.md).
const VALIDATOR_MEMORY: u64 = 1 << 30;

impl Context<'_> {
    pub(super) fn checks(&self) -> Vec<Check> {
        let mut checks = vec![self.model_size()];
        checks.extend(self.miner_checks());
        checks.extend(self.gather_checks());
        checks.extend(self.vote_checks());
        checks.extend([self.validator_memory(), self.joins()]);
        checks.extend(self.chain_checks());
        checks
    }

    fn model_size(&self) -> Check {
        let max = ModelConfig::VALUES_MAX;
        self.check(
            "model_size",
            "run",
            "values of the model".into(),
            [Value::Count(self.input.parameters), Value::Count(max)],
            (Severity::Breaks, "no run can be created"),
            vec![Change::Other(format!("at most 2^38 = {max} parameters, today's limit"))],
        )
    }

    fn miner_checks(&self) -> Vec<Check> {
        let Sizes { contribution_bytes, update_bytes, .. } = self.sizes;
        let link = self.input.miner_link;
        let Schedule { blocks_per_window, commit_by, vote_by, .. } = self.input.params.schedule;
        let upload = seconds_for(contribution_bytes, link.up);
        let limit = s3::upload_deadline(s3::DEADLINE, contribution_bytes).as_secs_f64();
        let fetch = seconds_for(update_bytes, link.down) + self.dense(known::APPLY);
        // The window is finalised one block after the votes' deadline.
        let until_commit =
            f64::from(blocks_per_window - vote_by + commit_by) - 1.0 - known::COMMIT_MARGIN.value;
        // From its commitment on, the miner trains ahead for a part of a window.
        let ahead = known::AHEAD.value * f64::from(blocks_per_window)
            - known::COMMIT_MARGIN.value
            - f64::from(vote_by - commit_by)
            - 1.0;
        let rate = |bytes: u64, time: f64| (bytes as f64 * 8.0 / time).ceil() as u64;
        let by_apply = |time: f64| time - self.dense(known::APPLY);
        vec![
            self.timed(
                "upload",
                "miner",
                "uploads its contribution in the reveal phase".into(),
                [upload, self.phases.reveal],
                (Severity::Breaks, "contributions are late, and unpaid"),
                |time| Change::Rate("--uplink", rate(contribution_bytes, time)),
            ),
            self.check(
                "upload_deadline",
                "miner",
                "one try of an upload: 2 min and 1 s per MiB".into(),
                [seconds(upload), seconds(limit)],
                (Severity::Breaks, "no upload ends"),
                vec![Change::Rate("--uplink", rate(contribution_bytes, limit))],
            ),
            self.timed(
                "update",
                "miner",
                "has the update before its next commitment".into(),
                [fetch, until_commit * self.block],
                (Severity::Breaks, "miners miss the next window"),
                |time| Change::Rate("--downlink", rate(update_bytes, by_apply(time).max(1e-3))),
            ),
            self.timed(
                "no_waiting",
                "miner",
                "has it while it still trains ahead".into(),
                [fetch, ahead * self.block],
                (Severity::Costs, "miners wait for the update"),
                |time| Change::Rate("--downlink", rate(update_bytes, by_apply(time).max(1e-3))),
            ),
        ]
    }

    /// Checks the gathering of a validator, which fetches from the commit deadline on, as the miners upload, until it
    /// [gives up](GatherDeadlines).
    fn gather_checks(&self) -> Vec<Check> {
        let schedule = self.input.params.schedule;
        let GatherDeadlines { give_up, .. } = GatherDeadlines::of(&schedule, Window::FIRST);
        let deadline = schedule.commit_deadline(Window::FIRST);
        let phase = f64::from(give_up.0.saturating_sub(deadline.0)) * self.block;
        let upload = seconds_for(self.sizes.contribution_bytes, self.input.miner_link.up);
        let has = (phase - upload).max(0.0);
        let gather = |contributions: u64| {
            let link =
                seconds_for(contributions * self.sizes.contribution_bytes, self.input.validator_link.down);
            link.max(contributions as f64 * self.dense(known::CHECK))
        };
        let changes = |contributions: u64| {
            let bytes = contributions as f64 * self.sizes.contribution_bytes as f64;
            let checks = contributions as f64 * self.dense(known::CHECK);
            let mut changes = Vec::new();
            if checks <= has && 0.0 < has {
                changes.push(Change::Rate("--validator-downlink", (bytes * 8.0 / has).ceil() as u64));
            }
            if has < phase / 2.0 {
                changes.push(Change::Other("a faster --uplink, so that uploads end sooner".into()));
            }
            changes.push(Change::Window(self.window_for(gather(contributions) + upload, phase, 5.0)));
            changes
        };
        let in_time = (has / gather(1)) as u64;
        let mut all = changes(self.fetched);
        if 0 < in_time {
            all.push(Change::Other(format!("--seats {in_time}")));
        }
        vec![
            self.check(
                "gather_merged",
                "validator",
                format!("fetches the {} that are merged, after their upload", self.selected),
                [seconds(gather(self.selected)), seconds(has)],
                (Severity::Breaks, "fewer are attested than the merge has places for"),
                changes(self.selected),
            ),
            self.check(
                "gather_all",
                "validator",
                format!("fetches all {}", self.fetched),
                [seconds(gather(self.fetched)), seconds(has)],
                (Severity::Costs, "the rest, of lower weight, is not observed in the window"),
                all,
            ),
            self.attest_check(),
            self.evaluation_check(),
        ]
    }

    /// Checks the length of the attest phase. With fewer blocks, [`GatherDeadlines`] leaves none after the reveal
    /// deadline for a second request (PROT-14).
    fn attest_check(&self) -> Check {
        let Schedule { reveal_by, attest_by, .. } = self.input.params.schedule;
        let has = attest_by.saturating_sub(reveal_by);
        let time = |blocks: u32| f64::from(blocks) * self.block;
        self.check(
            "attest_blocks",
            "validator",
            "blocks to attest, one of them to ask again".into(),
            [Value::Count(ATTEST_BLOCKS.into()), Value::Count(has.into())],
            (Severity::Costs, "validators have 0.25 s to ask again after the reveal deadline"),
            vec![Change::Window(self.window_for(time(ATTEST_BLOCKS), time(has), 1.0))],
        )
    }

    fn evaluation_check(&self) -> Check {
        let needed = self.evaluations();
        self.check(
            "evaluations",
            "validator",
            "measures contributions in a window, by its setting".into(),
            [Value::Count(needed), Value::Count(known::EVALUATIONS_MAX.value as u64)],
            (Severity::Costs, "seats wait longer for their scores than the run's rules want"),
            vec![Change::Other(format!("evaluations_max = {needed} in the validators' settings"))],
        )
    }

    fn vote_checks(&self) -> Vec<Check> {
        let PlanInput { params, validator_link: link, .. } = self.input;
        let Schedule { blocks_per_window, commit_by, attest_by, vote_by, .. } = params.schedule;
        let update = self.sizes.update_bytes;
        let merge = self.merge_seconds();
        // The selection is made in the block after the attestations and their reveals; the vote is sent a block
        // before its deadline.
        let blocks = |from: u32, to: u32| f64::from(to.saturating_sub(from)) * self.block;
        let vote = blocks(attest_by + params.hidden_blocks + 1, vote_by - 1);
        let copies = blocks(attest_by + params.hidden_blocks + 1, blocks_per_window);
        let (mirrored, checkpoint) = (self.mirrored_bytes(), self.checkpoint_bytes());
        let rate = |bytes: u64, time: f64| (bytes as f64 * 8.0 / time).ceil() as u64;
        let mut vote = self.timed(
            "vote",
            "validator",
            "merges and uploads the update in the vote phase".into(),
            [merge + seconds_for(update, link.up), vote],
            (Severity::Breaks, "windows are void"),
            |time| Change::Rate("--validator-uplink", rate(update, (time - merge).max(1e-3))),
        );
        if !vote.fits() && vote.has.number() <= merge {
            // No uplink is fast enough.
            vote.changes.retain(|change| !matches!(change, Change::Rate(..)));
            vote.changes
                .push(Change::Other("a faster --validator-uplink, and more than 2 threads to merge".into()));
        }
        vec![
            vote,
            self.timed(
                "copies",
                "validator",
                "copies those merged by the window's end".into(),
                [seconds_for(mirrored, link.up), copies],
                (Severity::Costs, "a miner that serves slowly can keep some validators from voting"),
                |time| Change::Rate("--validator-uplink", rate(mirrored, time)),
            ),
            self.timed(
                "checkpoint",
                "validator",
                "uploads a checkpoint before it gathers again".into(),
                [seconds_for(checkpoint, link.up), blocks(0, commit_by)],
                (Severity::Breaks, "the window after each checkpoint is void"),
                |time| Change::Rate("--validator-uplink", rate(checkpoint, time)),
            ),
        ]
    }

    fn validator_memory(&self) -> Check {
        self.check(
            "validator_memory",
            "validator",
            "merges in this much memory beside mapped files".into(),
            [Value::Bytes(self.validator_bytes()), Value::Bytes(VALIDATOR_MEMORY)],
            (Severity::Costs, "validators need larger machines"),
            vec![Change::Other("validators with that much free memory".into())],
        )
    }

    fn joins(&self) -> Check {
        let update = self.sizes.update_bytes as f64;
        let down = self.input.miner_link.down as f64 / 8.0;
        let mut check = self.timed(
            "join",
            "joiner",
            "fetches updates faster than they are made".into(),
            [update / down.min(known::JOIN.value), self.phases.window],
            (Severity::Breaks, "no node can join"),
            |time| Change::Rate("--downlink", (update * 8.0 / time).ceil() as u64),
        );
        if self.phases.window < update / known::JOIN.value {
            // No downlink is fast enough.
            check.changes.retain(|change| !matches!(change, Change::Rate(..)));
        }
        check
    }

    fn chain_checks(&self) -> Vec<Check> {
        let [tasks, calls] = self.chain_weights();
        let blocks = u64::from(self.input.params.schedule.blocks_per_window);
        let commit =
            u64::from(self.input.miners) * weight::included(weight::commit(), weight::free_call_check());
        let room = blocks * weight::ROOM_OF_RUN;
        vec![
            self.check(
                "chain_room",
                "chain",
                "calls, of the room that a run has in its blocks".into(),
                [Value::Share(calls as f64 / room as f64), Value::Share(1.0)],
                (Severity::Breaks, "calls are late"),
                vec![Change::Window(self.phases.window * calls as f64 / room as f64)],
            ),
            self.check(
                "chain_tasks",
                "chain",
                "tasks and calls, of all blocks".into(),
                [Value::Share((tasks + calls) as f64 / (blocks * weight::BLOCK) as f64), Value::Share(1.0)],
                (Severity::Breaks, "tasks are late"),
                vec![Change::Window(
                    self.phases.window * (tasks + calls) as f64 / (blocks * weight::BLOCK) as f64,
                )],
            ),
            self.check(
                "chain_commits",
                "chain",
                "blocks for the commitments, if all come at once".into(),
                [
                    Value::Count(commit.div_ceil(weight::ROOM_OF_RUN)),
                    Value::Count(known::COMMIT_MARGIN.value as u64),
                ],
                (Severity::Costs, "the last commitments are late"),
                vec![Change::Other(format!(
                    "commit_margin_blocks = {} in the miners' settings",
                    commit.div_ceil(weight::ROOM_OF_RUN)
                ))],
            ),
        ]
    }

    /// Returns the length of a window, in seconds, in which a phase of now `has` seconds has the `needs` seconds that
    /// it requires. A phase begins and ends at whole blocks; a margin of this many compensates for the rounding.
    fn window_for(&self, needs: f64, has: f64, margin_blocks: f64) -> f64 {
        self.phases.window * needs / has * (1.0 + margin_blocks * self.block / has)
    }

    /// Creates a check of seconds that a faster link or a longer window can fix.
    fn timed(
        &self,
        key: &'static str,
        role: &'static str,
        what: String,
        [needs, has]: [f64; 2],
        (severity, otherwise): (Severity, &'static str),
        link: impl FnOnce(f64) -> Change,
    ) -> Check {
        let mut changes = Vec::new();
        let has = has.max(0.0);
        if 0.0 < has {
            changes.push(link(has));
            changes.push(Change::Window(self.window_for(needs, has, 3.0)));
        }
        self.check(key, role, what, [seconds(needs), seconds(has)], (severity, otherwise), changes)
    }

    fn check(
        &self,
        key: &'static str,
        role: &'static str,
        what: String,
        [needs, has]: [Value; 2],
        (severity, otherwise): (Severity, &'static str),
        changes: Vec<Change>,
    ) -> Check {
        let mut check = Check { key, role, what, needs, has, severity, otherwise, changes };
        if check.fits() {
            check.changes.clear();
        }
        check
    }
}
