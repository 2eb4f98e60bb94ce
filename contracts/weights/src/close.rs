//! Closes an epoch: computes consensus, bonds and pay from the revealed weight votes and the bonds (PROT-31).

use crate::{pallet::*, *};
use alloc::collections::{BTreeMap, BTreeSet};
use frame::prelude::*;
use pallet_registry::{Ending, MinerWeights, OnSeats, Pallet as Registry, Seat};
use pallet_windows::{Epochs, Member, Members, Probes};
use protocol::{
    RunParams,
    consensus::{ValidatorWeights, yuma},
    probe::ProbeVerdict,
    view::SeatConsensus,
};

/// Seats at the end of an epoch: their roles and their holders' first windows.
type Seats = BTreeMap<Uid, (Role, Window)>;

/// Rows of bonds by validator.
type BondRows = BTreeMap<Uid, Vec<(Uid, u32)>>;

impl<T: Config> MinerWeights for Pallet<T> {
    fn weights(run: RunId) -> Vec<(Uid, u16)> {
        ConsensusWeights::<T>::get(run).into_inner()
    }
}

impl<T: Config> Epochs for Pallet<T> {
    fn close(run: RunId, epoch: u32, merged: u32, active_set: &[Member]) -> Weight {
        let Some(details) = Registry::<T>::run(run) else {
            defensive!("an epoch closes in a run that exists");
            return T::DbWeight::get().reads(1);
        };
        let departed = Self::take_departed(run, epoch);
        let seats = Self::seats_of(run, epoch, &details.params, &departed);
        let (validators, revealed) = Self::votes(run, epoch, &details.params, active_set, &departed, &seats);
        let miners = seats.values().filter(|(role, _)| *role == Role::Miner).count();
        Self::clear(run, epoch);
        let mut weight = weight_info::close::<T>(validators.len() as u32, miners as u32);
        let next = epoch.saturating_add(1);
        let Some(consensus) = yuma(&validators) else {
            let unchanged = validators.iter().map(|row| (row.validator, row.bonds.as_slice()));
            Self::put_bonds(run, next, &departed, unchanged);
            Self::deposit_event(Event::NoConsensus { run, epoch, weight_votes: revealed });
            return weight;
        };
        Self::put_consensus(run, &consensus, &departed);
        let moved = validators.iter().map(|row| {
            let bonds = consensus.bonds.binary_search_by_key(&row.validator, |(uid, _)| *uid);
            let bonds = bonds.ok().and_then(|place| consensus.bonds.get(place));
            (row.validator, bonds.map_or(&[][..], |(_, bonds)| bonds.as_slice()))
        });
        Self::put_bonds(run, next, &departed, moved);
        let seats = consensus.weights.len() as u32;
        Self::deposit_event(Event::ConsensusReached { run, epoch, weight_votes: revealed, seats });
        weight.saturating_accrue(T::Payroll::pay(run, epoch, merged, &consensus, &departed));
        weight
    }
}

impl<T: Config> Pallet<T> {
    /// Returns the last consensus on a seat; empty for a newer holder.
    pub fn consensus_of(run: RunId, uid: Uid) -> SeatConsensus {
        let mut standings = LastConsensus::<T>::get(run).into_iter();
        standings.find(|(seat, _)| *seat == uid).map(|(_, standing)| standing).unwrap_or_default()
    }

    /// Returns the weight votes and bonds of the active set, the bonds of validators outside it, and the number of
    /// members of the active set that revealed a vote.
    fn votes(
        run: RunId,
        epoch: u32,
        params: &RunParams,
        active_set: &[Member],
        departed: &[Departed<T::AccountId>],
        seats: &Seats,
    ) -> (Vec<ValidatorWeights>, u32) {
        let mut bonds = Self::bonds_before(run, epoch, params, seats);

        // A seat's new holder has no vote on an epoch before its time. A former holder has the vote that it revealed.
        let stayed = active_set.iter().filter(|member| departed_of(departed, member.uid).is_none()).copied();
        let left = departed
            .iter()
            .filter(|departed| WeightVotes::<T>::contains_key((run, epoch), departed.seat.uid))
            .filter_map(|departed| departed.member);
        let members: Vec<Member> = stayed.chain(left).collect();
        let verdicts = Self::judge_probes(run, epoch, params, &members, seats);
        let mut revealed = 0u32;
        let mut validators = Vec::with_capacity(active_set.len());
        for (member, verdict) in members.into_iter().zip(verdicts) {
            // A validator that was absent all epoch has no vote and earns nothing; its stake still counts (PROT-3).
            let vote = WeightVotes::<T>::get((run, epoch), member.uid).filter(|_| member.attested);
            revealed = revealed.saturating_add(u32::from(vote.is_some()));
            let mut weights = vote.map(BoundedVec::into_inner).unwrap_or_default();
            weights.retain(|(uid, _)| seats.get(uid).is_some_and(|(role, _)| *role == Role::Miner));
            validators.push(ValidatorWeights {
                validator: member.uid,
                stake: member.stake,
                weights,
                bonds: bonds.remove(&member.uid).unwrap_or_default(),
                earns: if member.minority_votes == 0 && !member.silent { verdict.earns() } else { 0 },
            });
        }
        // A validator outside the active set has no vote, and its bonds decay.
        validators.extend(bonds.into_iter().map(|(validator, bonds)| ValidatorWeights {
            validator,
            stake: 0,
            weights: Vec::new(),
            bonds,
            earns: 0,
        }));
        (validators, revealed)
    }

    /// Judges the answers of `members` on the contributions drawn for `epoch`, in the order of the draw. Reports each
    /// member that loses dividends by it (PROT-30).
    fn judge_probes(
        run: RunId,
        epoch: u32,
        params: &RunParams,
        members: &[Member],
        seats: &Seats,
    ) -> Vec<ProbeVerdict> {
        let drawn = T::Probes::drawn(run, after_epoch(params, epoch));
        let shown = |member: &Member| {
            let answers = ShownProbes::<T>::get((run, epoch), member.uid).unwrap_or_default().into_iter();
            let answers = answers.map(|answer| answer.map(BoundedVec::into_inner)).collect();
            let since = seats.get(&member.uid).map_or(Window(0), |(_, since)| *since);
            // The draw is in the order of the windows.
            let first = drawn.partition_point(|drawn| drawn.probe.window < since);
            probe::Shown { stake: member.stake, first, answers }
        };
        let shown: Vec<probe::Shown> = members.iter().map(shown).collect();
        let verdicts = probe::judge(drawn.len(), &shown, params.probe_tolerance);
        for (member, verdict) in members.iter().zip(&verdicts) {
            let ProbeVerdict { counted, right, wrong } = *verdict;
            if right < counted {
                let validator = member.uid;
                Self::deposit_event(Event::ProbesJudged { run, epoch, validator, counted, right, wrong });
            }
        }
        verdicts
    }

    /// Returns the seats at the end of `epoch`. A later holder did none of the epoch's work.
    fn seats_of(run: RunId, epoch: u32, params: &RunParams, departed: &[Departed<T::AccountId>]) -> Seats {
        let end = after_epoch(params, epoch);
        let present =
            Registry::<T>::roster(run).into_iter().map(|(uid, entry)| (uid, entry.role, entry.since));
        present
            .filter(|(_, _, since)| *since < end)
            .chain(departed.iter().map(|departed| (departed.seat.uid, departed.role, departed.since)))
            .map(|(uid, role, since)| (uid, (role, since)))
            .collect()
    }

    /// Returns the bonds after the epoch before, to seats that were held at its end.
    fn bonds_before(run: RunId, epoch: u32, params: &RunParams, seats: &Seats) -> BondRows {
        let before = epoch.checked_sub(1).map_or(Window(0), |before| after_epoch(params, before));
        let rows = BondsOf::<T>::iter_prefix(run);
        rows.map(|(validator, row)| {
            let mut row = row.into_inner();
            row.retain(|(uid, _)| {
                seats.get(uid).is_some_and(|(role, since)| *role == Role::Miner && *since < before)
            });
            (validator, row)
        })
        .collect()
    }

    /// Stores the consensus on the seats that still have their holders.
    fn put_consensus(run: RunId, consensus: &Consensus, departed: &[Departed<T::AccountId>]) {
        let is_present = |uid: &Uid| departed_of(departed, *uid).is_none();
        let weights = consensus.weights.iter().filter(|(uid, _)| is_present(uid)).copied().collect();
        // Neither list is longer than the number of seats.
        ConsensusWeights::<T>::insert(run, SeatWeights::<T>::truncate_from(weights));
        let mut seats = consensus.seats();
        seats.retain(|(uid, _)| is_present(uid));
        LastConsensus::<T>::insert(run, BoundedVec::truncate_from(seats));
    }

    /// Stores the validators' `rows` of bonds for the epoch `next`. Drops the bonds of and to departed seats, except
    /// seats that were also held to the end of `next`, which await the close of that epoch.
    fn put_bonds<'a>(
        run: RunId,
        next: u32,
        departed: &[Departed<T::AccountId>],
        rows: impl Iterator<Item = (Uid, &'a [(Uid, u32)])>,
    ) {
        let is_over = |uid: &Uid| {
            departed_of(departed, *uid).is_some_and(|departed| {
                DepartedOf::<T>::get((run, next), uid).is_none_or(|then| then.seat != departed.seat)
            })
        };
        let over: BTreeSet<Uid> = departed.iter().map(|departed| departed.seat.uid).filter(is_over).collect();
        for (validator, row) in rows {
            let row: Vec<(Uid, u32)> = row.iter().filter(|(uid, _)| !over.contains(uid)).copied().collect();
            if row.is_empty() || over.contains(&validator) {
                BondsOf::<T>::remove(run, validator);
            } else {
                BondsOf::<T>::insert(run, validator, SeatBonds::<T>::truncate_from(row));
            }
        }
    }

    /// Removes and returns the departed seats that were held to the end of `epoch`, in uid order.
    fn take_departed(run: RunId, epoch: u32) -> Vec<Departed<T::AccountId>> {
        let mut departed: Vec<_> =
            DepartedOf::<T>::drain_prefix((run, epoch)).map(|(_, departed)| departed).collect();
        departed.sort_unstable_by_key(|departed| departed.seat);
        departed
    }

    /// Removes the epoch's commitments and votes, and reports the commitments that were not revealed.
    fn clear(run: RunId, epoch: u32) {
        let mut not_revealed: Vec<Uid> =
            WeightCommitments::<T>::drain_prefix((run, epoch)).map(|(uid, _)| uid).collect();
        not_revealed.sort_unstable();
        for validator in not_revealed {
            Self::deposit_event(Event::NotRevealed { run, epoch, validator });
        }
        let _ = WeightVotes::<T>::clear_prefix((run, epoch), T::MaxSeats::get(), None);
        let _ = ShownProbes::<T>::clear_prefix((run, epoch), T::MaxSeats::get(), None);
    }
}

impl<T: Config> OnSeats<T::AccountId> for Pallet<T> {
    /// Records the seat for the epochs to whose end it was held and that are not closed, and clears the rest.
    fn vacated(run: RunId, uid: Uid, seat: &Seat<T::AccountId>, ending: Ending) -> Weight {
        let Some(details) = Registry::<T>::run(run) else {
            defensive!("a seat belongs to a run that exists");
            return T::DbWeight::get().reads(1);
        };
        let (params, window) = (details.params, ending.window);
        ConsensusWeights::<T>::mutate_extant(run, |weights| weights.retain(|(other, _)| *other != uid));
        LastConsensus::<T>::mutate_extant(run, |seats| seats.retain(|(other, _)| *other != uid));
        let current = window.epoch(params.epoch_windows);
        let mut awaits_pay = false;
        // When an epoch's first window opens, the epoch before the previous one may still be open.
        for epoch in current.saturating_sub(2)..=current {
            if seat.role == Role::Validator {
                WeightCommitments::<T>::remove((run, epoch), uid);
            }
            let end = after_epoch(&params, epoch);
            if seat.since < end && end <= window && window <= closes_at(&params, epoch) {
                let departed = Departed {
                    seat: seat.id(uid),
                    since: seat.since,
                    role: seat.role,
                    coldkey: seat.coldkey.clone(),
                    stake: seat.stake,
                    member: match seat.role {
                        Role::Miner => None,
                        Role::Validator => T::Members::member(run, uid, epoch),
                    },
                };
                DepartedOf::<T>::insert((run, epoch), uid, departed);
                awaits_pay = true;
            }
        }
        if seat.role == Role::Validator && !awaits_pay {
            BondsOf::<T>::remove(run, uid);
        }
        weight_info::vacated::<T>()
    }
}

/// Returns the departed seat of `uid`. `departed` is in uid order.
fn departed_of<AccountId>(departed: &[Departed<AccountId>], uid: Uid) -> Option<&Departed<AccountId>> {
    let place = departed.binary_search_by_key(&uid, |departed| departed.seat.uid).ok()?;
    departed.get(place)
}

/// Returns the first window after `epoch`.
pub(crate) fn after_epoch(params: &RunParams, epoch: u32) -> Window {
    Window(epoch.saturating_add(1).saturating_mul(params.epoch_windows))
}

/// Returns the window at whose opening `epoch` closes. Weight votes are revealed before it.
pub(crate) fn closes_at(params: &RunParams, epoch: u32) -> Window {
    Window(after_epoch(params, epoch).0.saturating_add(params.reveal_windows))
}
