//! Invariants that hold at every block.

use crate::{
    close::{after_epoch, closes_at},
    pallet::*,
    *,
};
use frame::prelude::ensure;
use pallet_registry::Pallet as Registry;
use protocol::{consensus::ONE, view::SeatConsensus, weights::is_canonical};

impl<T: Config> Pallet<T> {
    /// Checks the invariants that hold at every block.
    ///
    /// # Errors
    /// Names the first violated invariant.
    pub fn check_invariants() -> Result<(), &'static str> {
        // A closed run is cleared in steps.
        let is_open = |run: RunId| Registry::<T>::closed_run(run).is_none();
        for (run, weights) in ConsensusWeights::<T>::iter().filter(|(run, _)| is_open(*run)) {
            let is_miner =
                |uid: Uid| Registry::<T>::seat(run, uid).is_some_and(|seat| seat.role == Role::Miner);
            if !is_canonical(&weights) || !weights.iter().all(|(uid, _)| is_miner(*uid)) {
                return Err("consensus weights are not canonical, or not of miners' seats");
            }
        }
        for (run, seats) in LastConsensus::<T>::iter().filter(|(run, _)| is_open(*run)) {
            Self::check_consensus(run, &seats)?;
        }
        for (run, validator, bonds) in BondsOf::<T>::iter().filter(|(run, ..)| is_open(*run)) {
            let in_order = bonds.windows(2).all(|pair| pair[0].0 < pair[1].0);
            if !in_order || bonds.is_empty() || bonds.iter().any(|(_, bond)| *bond == 0) {
                return Err("a row of bonds is empty, out of order, or has a zero");
            }
            Self::check_validator(run, validator, |departed| departed)?;
        }
        for ((run, epoch), validator) in
            WeightCommitments::<T>::iter_keys().filter(|((run, _), _)| is_open(*run))
        {
            Self::check_epoch(run, epoch)?;
            Self::check_validator(run, validator, |_| false)?;
            if WeightVotes::<T>::contains_key((run, epoch), validator) {
                return Err("a revealed weight vote still has its commitment");
            }
        }
        for ((run, epoch), validator, weights) in
            WeightVotes::<T>::iter().filter(|((run, _), ..)| is_open(*run))
        {
            Self::check_epoch(run, epoch)?;
            let departed = DepartedOf::<T>::contains_key((run, epoch), validator);
            Self::check_validator(run, validator, |_| departed)?;
            ensure!(!weights.is_empty() && is_canonical(&weights), "a weight vote is empty or not canonical");
        }
        for ((run, epoch), validator, shown) in
            ShownProbes::<T>::iter().filter(|((run, _), ..)| is_open(*run))
        {
            Self::check_epoch(run, epoch)?;
            let departed = DepartedOf::<T>::contains_key((run, epoch), validator);
            Self::check_validator(run, validator, |_| departed)?;
            ensure!(shown.iter().any(Option::is_some), "a validator showed no measurement");
        }
        for ((run, epoch), uid, departed) in DepartedOf::<T>::iter().filter(|((run, _), ..)| is_open(*run)) {
            Self::check_departed(run, epoch, uid, &departed)?;
        }
        Ok(())
    }

    fn check_consensus(run: RunId, seats: &[(Uid, SeatConsensus)]) -> Result<(), &'static str> {
        let in_order = seats.windows(2).all(|pair| pair[0].0 < pair[1].0);
        if !in_order || seats.iter().any(|(uid, _)| Registry::<T>::seat(run, *uid).is_none()) {
            return Err("the consensus is out of order, or names a seat that is gone");
        }
        let sum = |part: fn(&SeatConsensus) -> u64| seats.iter().map(|(_, seat)| part(seat)).sum::<u64>();
        // Upper bounds: seats that left since then are not counted.
        if sum(|seat| seat.incentive) > ONE || sum(|seat| seat.dividends) > ONE {
            return Err("shares add up to more than the whole");
        }
        Ok(())
    }

    fn check_departed(
        run: RunId,
        epoch: u32,
        uid: Uid,
        departed: &Departed<T::AccountId>,
    ) -> Result<(), &'static str> {
        Self::check_epoch(run, epoch)?;
        let (params, window) =
            Self::open_window(run).map_err(|_| "a seat departed from a run that has not started")?;
        let end = after_epoch(&params, epoch);
        if departed.seat.uid != uid || departed.since >= end || window < end {
            return Err("a departed seat did not hold out its epoch");
        }
        if Registry::<T>::seat(run, uid).is_some_and(|seat| seat.id(uid) == departed.seat) {
            return Err("a departed seat is still present");
        }
        Ok(())
    }

    /// Checks that `uid` is or was a validator's seat. `allowed` decides, given whether such a seat departed.
    fn check_validator(run: RunId, uid: Uid, allowed: impl Fn(bool) -> bool) -> Result<(), &'static str> {
        if Registry::<T>::seat(run, uid).is_some_and(|seat| seat.role == Role::Validator) {
            return Ok(());
        }
        let departed = DepartedOf::<T>::iter()
            .any(|((id, _), other, seat)| (id, other) == (run, uid) && seat.role == Role::Validator);
        match allowed(departed) {
            true => Ok(()),
            false => Err("a weight vote or bonds of a seat that is not a validator's"),
        }
    }

    fn check_epoch(run: RunId, epoch: u32) -> Result<(), &'static str> {
        let (params, window) =
            Self::open_window(run).map_err(|_| "a weight vote in a run that has not started")?;
        // A delayed task closes an epoch at most one window late.
        let closed = window >= closes_at(&params, epoch).next();
        if epoch > window.epoch(params.epoch_windows) || closed {
            return Err("a weight vote for an epoch that has not begun or is closed");
        }
        Ok(())
    }
}
