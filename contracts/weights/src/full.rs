//! A run with all seats taken, for benchmarks and measurements.

use crate::{
    BondsOf, Config, ConsensusWeights, LastConsensus, WeightCommitment, WeightCommitments, WeightVotes,
};
use alloc::vec::Vec;
use frame::prelude::*;
use pallet_registry::{Entry, Run, Seat, Url};
use pallet_windows::Member;
#[cfg(feature = "runtime-benchmarks")]
use pallet_windows::{Anchor, DrawnProbe, Probes as _};
use protocol::{
    Block, Digest, Hotkey, Role, RunId, RunParams, Terms, Uid, Window, consensus::ONE, view::SeatConsensus,
};

pub(crate) const RUN: RunId = RunId(0);

/// Returns the account of a seat's hotkey.
pub(crate) fn hotkey<T: Config>(uid: Uid) -> T::AccountId {
    let mut seed = [7u8; 32];
    seed[..2].copy_from_slice(&uid.0.to_le_bytes());
    T::AccountId::decode(&mut &seed[..]).expect("an account id is at most 32 bytes, and any will do")
}

/// Returns the validators as members; their uids follow those of the miners.
pub(crate) fn members(miners: u32, validators: u32) -> Vec<Member> {
    let stake = |place: u32| 1_000_000_000_000 + u128::from(place) * 7_777_777;
    (0..validators)
        .map(|place| Member {
            uid: uid(miners + place),
            stake: stake(place),
            attested: true,
            minority_votes: 0,
            silent: false,
        })
        .collect()
}

pub(crate) fn uid(number: u32) -> Uid {
    Uid(number as u16)
}

/// Creates the run with these seats, at the first block of `epoch`.
pub(crate) fn run_with<T: Config>(miners: u32, validators: u32, epoch: u32) {
    let params = RunParams::default();
    let account = hotkey::<T>(Uid(u16::MAX));
    let url = Url::truncate_from(b"http://example.org/".to_vec());
    let run = Run {
        owner: account.clone(),
        params,
        terms: Terms::default(),
        spec: Digest([0; 32]),
        manifest: Digest([0; 32]),
        theta0: Digest([0; 32]),
        origin: url.clone(),
        deposit: 0,
        stopped: false,
    };
    pallet_registry::Runs::<T>::insert(RUN, run);
    let role = |number: u32| if number < miners { Role::Miner } else { Role::Validator };
    let mut roster = Vec::new();
    for number in 0..miners + validators {
        let hotkey = hotkey::<T>(uid(number));
        pallet_registry::Hotkeys::<T>::insert(RUN, &hotkey, uid(number));
        let seat = Seat {
            registered_at: Block(0),
            since: Window(0),
            role: role(number),
            hotkey,
            coldkey: account.clone(),
            endpoint: url.clone(),
            endpoint_set_at: None,
            stake: 1_000_000_000_000,
        };
        roster.push(Some(Entry::from(&seat)));
        pallet_registry::SeatsOf::<T>::insert(RUN, uid(number), seat);
    }
    pallet_registry::Rosters::<T>::insert(RUN, BoundedVec::truncate_from(roster));
    let now = params.schedule.opens_at(Window(epoch * params.epoch_windows));
    frame_system::Pallet::<T>::set_block_number(now.0.into());
}

/// Returns a weight vote on `seats` miners, different for each validator.
pub(crate) fn vote<T: Config>(seats: u32, validator: Uid) -> crate::SeatWeights<T> {
    let weight = |seat: u32| 1 + ((seat * 61 + u32::from(validator.0) * 3) % 60_000) as u16;
    crate::SeatWeights::<T>::truncate_from((0..seats).map(|seat| (uid(seat), weight(seat))).collect())
}

/// Stores weight votes for `epoch` from every validator, with bonds and consensus of the epoch before. Every
/// commitment stays too, which exceeds the worst case.
pub(crate) fn revealed<T: Config>(miners: u32, validators: u32, epoch: u32) {
    for Member { uid: validator, .. } in members(miners, validators) {
        let weights = vote::<T>(miners, validator);
        let bonds = weights.iter().map(|(seat, weight)| (*seat, u32::from(*weight) * 100)).collect();
        WeightVotes::<T>::insert((RUN, epoch), validator, weights);
        BondsOf::<T>::insert(RUN, validator, BoundedVec::truncate_from(bonds));
        let sealed = WeightCommitment { hash: Digest([1; 32]), hotkey: Hotkey([1; 32]) };
        WeightCommitments::<T>::insert((RUN, epoch), validator, sealed);
    }
    let weights = vote::<T>(miners, Uid(0));
    let standing = |weight: u16| SeatConsensus { weight, incentive: ONE / 2048, trust: ONE, dividends: 0 };
    let standings = weights.iter().map(|(seat, weight)| (*seat, standing(*weight))).collect();
    LastConsensus::<T>::insert(RUN, BoundedVec::truncate_from(standings));
    ConsensusWeights::<T>::insert(RUN, weights);
}

/// Draws the maximum number of contributions of epoch 3, from windows with 2048 selected seats. Returns the answers
/// of the first validator, whose uid follows those of the `miners`, with proofs of maximum length.
#[cfg(feature = "runtime-benchmarks")]
pub(crate) fn drawn<T: Config>(miners: u32) -> (crate::ProbeAnswers<crate::Answer>, Uid) {
    use protocol::probe::{self, Leaves, PROBES, Probe, SEQUENCES_MAX};
    const LEAVES: u16 = 2048;
    let (window, validator, first) = (Window(30), uid(miners), Window(40));
    let of =
        Leaves { run: RUN, window, validator: protocol::SeatId { uid: validator, registered_at: Block(0) } };
    let losses: Vec<u32> = (0..SEQUENCES_MAX).collect();
    let leaves: Vec<Digest> = (0..LEAVES).map(|seat| of.leaf(Uid(seat), Some(&losses))).collect();
    let probes = (0..PROBES as u16).map(|place| Probe { window, uid: Uid(place) });
    let drawn = probes.map(|probe| DrawnProbe { probe, place: probe.uid.0, leaves: LEAVES }).collect();
    let anchor = Anchor { receipts: Digest([1; 32]), probes: probe::root(&leaves), at: Window(31) };
    T::Probes::set(RUN, first, drawn, validator, anchor);
    let answers = (0..PROBES as usize).map(|place| {
        let proof = probe::proof(&leaves, place)?;
        crate::Answer::try_from(probe::Answer { losses: Some(losses.clone()), proof }).ok()
    });
    (crate::ProbeAnswers::truncate_from(answers.collect()), validator)
}
