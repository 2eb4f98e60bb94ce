//! Runs the scheduled tasks that are due, within a block's budget.
//!
//! Tasks run in the order of their blocks, and within one block in the order of runs. Once they have cost more than
//! [`Config::MaxTaskWeight`], the rest is delayed to the next block, where it comes first. Every block runs at least
//! one due task, however small the budget, so that every task runs eventually.
//!
//! A delayed task has the result it would have had in time: it knows the block that it was scheduled at, reads that
//! block's hash, and counts what its deadline closed. One exception: it sees changes of stake made while it was
//! delayed.

use crate::pallet::*;
use alloc::vec::Vec;
use frame::prelude::*;
use protocol::{Block, RunId};

impl<T: Config> Pallet<T> {
    /// Runs the tasks that are due at block `now`, as many as the budget allows.
    pub(crate) fn run_due_tasks(now: Block) -> Weight {
        let budget = T::MaxTaskWeight::get();
        let late = Backlog::<T>::get();
        let mut weight = T::DbWeight::get().reads(1);
        let mut at = late.unwrap_or(now);
        let mut ran_one = false;
        while at <= now {
            if ran_one && weight.any_gt(budget) {
                return Self::delay(at, weight);
            }
            weight.saturating_accrue(T::DbWeight::get().reads(1));
            let mut due: Vec<RunId> = Agenda::<T>::get(at).into_inner();
            due.sort_unstable();
            let mut done = 0;
            for run in &due {
                if ran_one && weight.any_gt(budget) {
                    break;
                }
                weight.saturating_accrue(Self::run_task(*run, at));
                ran_one = true;
                done = done.saturating_add(1);
            }
            let rest = due.split_off(done);
            if !due.is_empty() {
                weight.saturating_accrue(T::DbWeight::get().writes(1));
            }
            if !rest.is_empty() {
                Agenda::<T>::insert(at, BoundedVec::truncate_from(rest));
                return Self::delay(at, weight);
            }
            if !due.is_empty() {
                Agenda::<T>::remove(at);
            }
            let Some(next) = at.0.checked_add(1) else { break };
            at = Block(next);
        }
        if late.is_some() {
            Backlog::<T>::kill();
            weight.saturating_accrue(T::DbWeight::get().writes(1));
        }
        weight
    }

    /// Continues with the tasks of block `at` in the next block.
    fn delay(at: Block, weight: Weight) -> Weight {
        Backlog::<T>::put(at);
        weight.saturating_add(T::DbWeight::get().writes(1))
    }

    /// Schedules the run's next task. A run has one scheduled task at a time.
    pub(crate) fn schedule_next_task(run: RunId, at: Block) {
        if Agenda::<T>::try_append(at, run).is_err() {
            defensive!("a run has one scheduled task, and a block has room for every run");
        }
        ProgressOf::<T>::mutate_extant(run, |progress| progress.next_step = at);
    }
}
