//! The steps that are due: in which order they are taken, and how many fit into a block.
//!
//! Steps are taken in the order of the block that they belong to, and among those of one block by run. Once they have
//! cost more than [`Config::MaxStepWeight`] the rest waits for the next block, where it comes first. Each block takes at
//! least one step that is due, however small the budget, so what is due is always done in the end.
//!
//! A step that is late has the result that it would have had in time: it is told the block that it belongs to, reads that
//! block's hash, and what it adds up was closed by its deadline. Only what a call changed in between of a seat's stake
//! is seen a few blocks early.

use crate::pallet::*;
use alloc::vec::Vec;
use frame::prelude::*;
use protocol::{Block, RunId};

impl<T: Config> Pallet<T> {
    /// Takes the steps that are due at block `now`, as many as there is room for.
    pub(crate) fn take_steps(now: Block) -> Weight {
        let budget = T::MaxStepWeight::get();
        let late = Backlog::<T>::get();
        let mut weight = T::DbWeight::get().reads(1);
        let mut at = late.unwrap_or(now);
        let mut stepped = false;
        while at <= now {
            if stepped && weight.any_gt(budget) {
                return Self::put_off(at, weight);
            }
            weight.saturating_accrue(T::DbWeight::get().reads(1));
            let mut due: Vec<RunId> = Agenda::<T>::get(at).into_inner();
            due.sort_unstable();
            let mut taken = 0;
            for run in &due {
                if stepped && weight.any_gt(budget) {
                    break;
                }
                weight.saturating_accrue(Self::step(*run, at));
                stepped = true;
                taken = taken.saturating_add(1);
            }
            let rest = due.split_off(taken);
            if !due.is_empty() {
                weight.saturating_accrue(T::DbWeight::get().writes(1));
            }
            if !rest.is_empty() {
                Agenda::<T>::insert(at, BoundedVec::truncate_from(rest));
                return Self::put_off(at, weight);
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

    /// Goes on at block `at` of the agenda when the next block is made.
    fn put_off(at: Block, weight: Weight) -> Weight {
        Backlog::<T>::put(at);
        weight.saturating_add(T::DbWeight::get().writes(1))
    }

    /// Enters the run's next step. A run has one at a time.
    pub(crate) fn note_next_step(run: RunId, at: Block) {
        if Agenda::<T>::try_append(at, run).is_err() {
            defensive!("a run has one entry in the agenda, which has room for every run");
        }
        ProgressOf::<T>::mutate_extant(run, |progress| progress.next_step = at);
    }
}
