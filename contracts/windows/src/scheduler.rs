//! Runs the due scheduled tasks within a block's budget.
//!
//! Once the tasks of a block have cost more than [`Config::MaxTaskWeight`], the rest is late. Runs with due tasks are
//! served in turns (self-clocked fair queueing). The key of a run is the expected end of its next task in service
//! time. The task begins at the end of the run's last task, or at the service time of the run in service, whichever is
//! later. It takes as long as the run's recent tasks. The run with the earliest end is next.
//!
//! Each waiting run therefore receives the same share of the budget, a light run precedes heavy ones, and only a run
//! that requests more than its share is late. Every block runs at least one due task, however small the budget, so
//! that every task runs eventually.
//!
//! A delayed task has the same result as in time. It knows the block that it was scheduled at, reads that block's
//! hash, and counts the calls up to its deadline. One exception: it sees changes of stake made during the delay.

use crate::{Turn, pallet::*};
use alloc::collections::BTreeSet;
use frame::prelude::*;
use protocol::{Block, RunId};

impl Turn {
    /// Returns the turn of a run whose task is due while service has reached `served`.
    fn due(self, served: u64) -> Turn {
        Turn { served: self.served.max(served), ..self }
    }

    /// Returns the expected end of the task.
    fn end(self) -> u64 {
        self.served.saturating_add(self.load)
    }

    /// Returns the turn after a task that cost `cost`.
    fn after(self, cost: u64) -> Turn {
        Turn { served: self.served.saturating_add(cost), load: cost.max(self.load - self.load / 8) }
    }
}

impl<T: Config> Pallet<T> {
    /// Runs the tasks due at block `now`, as many as the budget allows. Called once per block.
    pub(crate) fn run_due_tasks(now: Block) -> Weight {
        let budget = T::MaxTaskWeight::get();
        let mut weight = T::DbWeight::get().reads(2);
        let TaskQueue { mut served, late } = LateTasks::<T>::get();
        let due = ScheduledTasks::<T>::get(now);
        if due.is_empty() && late.is_empty() {
            return weight;
        }
        weight.saturating_accrue(T::DbWeight::get().writes(2));
        ScheduledTasks::<T>::remove(now);
        let late = late.into_iter().map(|(run, at, turn)| (turn.end(), at, run, turn));
        let mut waiting: BTreeSet<(u64, Block, RunId, Turn)> = late.collect();
        waiting.extend(due.into_iter().map(|(run, turn)| {
            let turn = turn.due(served);
            (turn.end(), now, run, turn)
        }));

        let (mut ran_one, mut last) = (false, served);
        while let Some((end, at, run, turn)) = waiting.pop_first() {
            if ran_one && weight.any_gt(budget) {
                waiting.insert((end, at, run, turn));
                break;
            }
            ran_one = true;
            served = served.max(turn.served);
            let (cost, next) = Self::run_task(run, at);
            weight.saturating_accrue(cost);
            let turn = turn.after(cost.ref_time());
            last = last.max(turn.served);
            match next {
                Some(next) if next <= now => {
                    waiting.insert((turn.end(), next, run, turn));
                }
                Some(next) => Self::schedule(run, next, turn),
                None => {}
            }
        }
        // Nothing waits: service received until now does not count against any run.
        if waiting.is_empty() {
            served = last;
        }
        let late = waiting.into_iter().map(|(_, at, run, turn)| (run, at, turn)).collect();
        LateTasks::<T>::put(TaskQueue { served, late: BoundedVec::truncate_from(late) });
        weight
    }

    /// Schedules a run's task at a later block. A run has one scheduled task at a time.
    pub(crate) fn schedule(run: RunId, at: Block, turn: Turn) {
        if ScheduledTasks::<T>::try_append(at, (run, turn)).is_err() {
            defensive!("a run has one scheduled task, and a block has room for every run");
        }
    }
}
