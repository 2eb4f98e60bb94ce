//! Computes the consensus of the validators' weights: Yuma consensus with bonds, in whole numbers (PROT-31).
//!
//! A seat's consensus weight is the highest weight that validators with more than half of the stake give it. It alone
//! decides the seat's pay. The part of a validator's weight above it is clipped: it reduces the validator's dividends.
//! So validators with less than half of the stake can neither raise a seat's pay above the others' weight
//! for it nor lower it below. The unclipped part becomes a bond to the seat. Bonds are averages over
//! epochs: a validator that weighted a good seat early has a larger bond than one that did so late, or that
//! copied.
//!
//! The formulas are those of Bittensor (`docs/consensus.md` and `pallets/subtensor/src/epoch/run_epoch.rs` in
//! `opentensor/subtensor`), for validators `i` with stake `S_i`, seats `j`, and rows of weights that add up to 1:
//!
//! | | | |
//! |---|---|---|
//! | consensus       | `C_j`  | `max { w : Σ_{i: W_ij ≥ w} S_i > κ·Σ_i S_i }`, `κ = 1/2`; 0 if there is none |
//! | clipped         | `W̄_ij` | `min(W_ij, C_j)` |
//! | incentive       | `I_j`  | the part of `C_j` in `Σ_j C_j` |
//! | trust of a seat | `T_j`  | `Σ_i S_i·W̄_ij / Σ_i S_i·W_ij` |
//! | of a validator  | `V_i`  | `Σ_j W̄_ij` |
//! | bonds           | `B_ij` | `(1−α)·B_ij + α·S_i·W̄_ij / Σ_i S_i`, `α = 1/10` |
//! | dividends       | `D_i`  | `Σ_j I_j·B_ij / Σ_k B_kj`, and its part of the sum over those that may earn |
//!
//! Differences from Bittensor, with reasons:
//!
//! - `Σ_i S_i` is the stake of the whole active set, also of validators without a weight vote: otherwise a
//!   validator that keeps others from posting could become the majority. In Bittensor only active stake
//!   counts, and exactly `κ` is enough.
//! - Incentives are computed from consensus weights. In Bittensor they come from the ranks `Σ_i S_i·W̄_ij`,
//!   so that a validator that gives a seat no weight lowers the seat's pay by the validator's share of the
//!   stake.
//! - Bonds are computed from clipped weights (as in Bittensor with a bonds penalty of 1): a weight above
//!   the consensus gives no bond.
//! - Bonds are averages of the weights themselves. Bittensor first scales each epoch's bonds to add up to 1
//!   per seat, so an early weight for a seat counts equally whether the seat was worth little or a lot. A
//!   validator that always posts the last consensus then loses a quarter in the test below; here it loses
//!   seven eighths. For the same reason bonds to a seat outside the consensus decay here; a seat that
//!   returns after a long time starts with new bonds.
//! - A validator without a weight vote earns nothing, whatever bonds it holds. Its part goes to the others,
//!   as does the part that a validator loses if it does not show its measurements ([`crate::probe`]).
//! - Whole numbers only, and `α` is the same for every seat (Bittensor's "liquid alpha" needs
//!   exponentials).
//!
//! Rounding: down, to parts of [`ONE`]; for `I` and `D` the rest up to [`ONE`] goes to the largest
//! remainders (ties: lower uid), so that they add up exactly. Stakes above 46 bits all lose the same low
//! bits.

use crate::Uid;
use alloc::{collections::BTreeMap, vec::Vec};
use codec::{Decode, DecodeWithMemTracking, Encode, MaxEncodedLen};
use scale_info::TypeInfo;
use serde::{Deserialize, Serialize};

#[cfg(test)]
mod tests;

/// The unit of shares: a share of [`ONE`] is the whole.
pub const ONE: u64 = 1 << 32;

/// Result of the last consensus for a seat, in parts of [`ONE`] (PROT-31).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[derive(Encode, Decode, DecodeWithMemTracking, MaxEncodedLen, TypeInfo, Serialize, Deserialize)]
pub struct SeatConsensus {
    /// Consensus weight, the highest seat's being 65535.
    pub weight: u16,
    /// Share of the miners' pay.
    pub incentive: u64,
    /// Unclipped part of a validator's own weights, or of the weight that a miner was given.
    pub trust: u64,
    /// Share of the validators' pay.
    pub dividends: u64,
}

/// `1/α`.
const BOND_EPOCHS: u128 = 10;

/// One validator at the close of an epoch. Without a weight vote its `weights` are empty, and its stake
/// still counts in the total.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ValidatorWeights {
    pub validator: Uid,
    pub stake: u128,
    /// Only proportions within one vote matter. If a seat occurs twice, the lower weight counts.
    pub weights: Vec<(Uid, u16)>,
    /// From the last consensus. If a seat occurs twice, the lower bond counts.
    pub bonds: Bonds,
    /// The part of its dividends that it may earn in this epoch, in parts of [`ONE`].
    pub earns: u64,
}

/// `B_ij` of one validator: the average over epochs of its clipped weight for each seat times its share of
/// the stake, in parts of [`ONE`], in uid order, without zeros.
pub type Bonds = Vec<(Uid, u32)>;

/// Result of an epoch's consensus. All lists are in uid order and leave out zeros.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Consensus {
    /// Consensus weight of each seat, the highest being 65535: the selection uses them (PROT-16).
    pub weights: Vec<(Uid, u16)>,
    /// Seats' shares of the miners' pay. They add up to [`ONE`].
    pub incentive: Vec<(Uid, u64)>,
    /// Per seat, the unclipped part of the weight that validators gave it, in parts of [`ONE`].
    pub trust: Vec<(Uid, u64)>,
    /// Validators' shares of the validators' pay. They add up to [`ONE`], or the list is empty if no validator may
    /// earn.
    pub dividends: Vec<(Uid, u64)>,
    /// Per validator, the unclipped part of its weights, in parts of [`ONE`].
    pub validator_trust: Vec<(Uid, u64)>,
    /// The bonds of each validator that has any, for the next epoch.
    pub bonds: Vec<(Uid, Bonds)>,
}

/// Computes the consensus of `ballots`; `None` if no seat has more than half of the stake behind it. Then
/// the last weights and bonds stay, and nothing is paid.
///
/// The order of the ballots does not matter; only one ballot per validator counts.
pub fn yuma(ballots: &[ValidatorWeights]) -> Option<Consensus> {
    let voters = voters(ballots);
    let total: u128 = voters.iter().map(|voter| voter.stake).sum();

    let mut weights = BTreeMap::<Uid, u64>::new();
    let mut trust = Vec::new();
    let mut stood: Vec<u64> = voters.iter().map(|_| 0).collect();
    let mut bonds: Vec<Bonds> = voters.iter().map(|_| Bonds::new()).collect();
    let mut bonded = BTreeMap::<Uid, u128>::new();
    for (seat, column) in columns(&voters) {
        let consensus = majority_weight(&column, &voters, total);
        let (mut stood_for, mut given, mut held) = (0, 0, 0);
        for Entry { voter, weight, bond } in column {
            let (stake, stands) = (voters[voter].stake, weight.min(consensus));
            stood_for += stake * u128::from(stands);
            given += stake * u128::from(weight);
            stood[voter] += stands;
            let share = stake * u128::from(stands) / total.max(1);
            // Nine tenths of the old bond plus one tenth of the clipped weight times the share of stake:
            // stays below 2^32.
            let bond = ((u128::from(bond) * (BOND_EPOCHS - 1) + share) / BOND_EPOCHS) as u32;
            if bond > 0 {
                bonds[voter].push((seat, bond));
                held += u128::from(bond);
            }
        }
        if consensus > 0 {
            weights.insert(seat, consensus);
            // Not above `ONE`, as the clipped weights are part of `given`; `given` is not 0, as a majority
            // gave the seat weight.
            trust.push((seat, (stood_for * u128::from(ONE) / given) as u64));
            bonded.insert(seat, held);
        }
    }
    trust.retain(|(_, trust)| *trust > 0);

    let incentive =
        shares_of_one(weights.iter().map(|(seat, weight)| (*seat, u128::from(*weight))).collect());
    if incentive.is_empty() {
        return None;
    }
    let earned = voters
        .iter()
        .zip(&bonds)
        .filter(|(voter, _)| !voter.weights.is_empty())
        // Earnings add up to at most `ONE²`, and the part is at most `ONE`.
        .map(|(voter, bonds)| {
            let earned = earnings(bonds, &incentive, &bonded) * u128::from(voter.earns) / u128::from(ONE);
            (voter.uid, earned)
        })
        .collect();
    let of_voters = || voters.iter().map(|voter| voter.uid);
    Some(Consensus {
        weights: as_weights(&weights),
        dividends: shares_of_one(earned),
        validator_trust: of_voters().zip(stood).filter(|(_, stood)| *stood > 0).collect(),
        bonds: of_voters().zip(bonds).filter(|(_, bonds)| !bonds.is_empty()).collect(),
        incentive,
        trust,
    })
}

impl Consensus {
    /// Returns the results of each seat that has any, in uid order.
    pub fn seats(&self) -> Vec<(Uid, SeatConsensus)> {
        let mut standings = BTreeMap::<Uid, SeatConsensus>::new();
        for (uid, weight) in &self.weights {
            standings.entry(*uid).or_default().weight = *weight;
        }
        for (uid, share) in &self.incentive {
            standings.entry(*uid).or_default().incentive = *share;
        }
        for (uid, share) in &self.dividends {
            standings.entry(*uid).or_default().dividends = *share;
        }
        // A uid belongs to a miner or a validator, so only one of the two lists has it.
        for (uid, share) in self.trust.iter().chain(&self.validator_trust) {
            standings.entry(*uid).or_default().trust = *share;
        }
        standings.into_iter().collect()
    }
}

struct Voter {
    uid: Uid,
    /// Below `2^STAKE_BITS`.
    stake: u128,
    /// In parts of [`ONE`], adding up to at most [`ONE`]; no zeros.
    weights: BTreeMap<Uid, u64>,
    bonds: BTreeMap<Uid, u32>,
    earns: u64,
}

/// With 2^16 validators and weights of at most 2^32, sums stay below 2^94, and a sum times [`ONE`] below 2^126.
const STAKE_BITS: u32 = 46;

/// Returns ballots as fractions, one per validator, in uid order. All stakes lose the same low bits if the
/// largest has too many.
fn voters(ballots: &[ValidatorWeights]) -> Vec<Voter> {
    let mut ballots: Vec<&ValidatorWeights> = ballots.iter().collect();
    ballots.sort_unstable();
    ballots.dedup_by_key(|ballot| ballot.validator);

    let largest = ballots.iter().map(|ballot| ballot.stake).max().unwrap_or(0);
    let excess_bits = (u128::BITS - largest.leading_zeros()).saturating_sub(STAKE_BITS);
    ballots
        .into_iter()
        .map(|ballot| Voter {
            uid: ballot.validator,
            stake: ballot.stake >> excess_bits,
            weights: fractions(&ballot.weights),
            bonds: lowest(ballot.bonds.iter().map(|(seat, bond)| (*seat, *bond))),
            earns: ballot.earns.min(ONE),
        })
        .collect()
}

fn fractions(weights: &[(Uid, u16)]) -> BTreeMap<Uid, u64> {
    let mut by_seat = lowest(weights.iter().map(|(seat, weight)| (*seat, u64::from(*weight))));
    // At most 2^16 seats of less than 2^16 each.
    let sum: u64 = by_seat.values().sum();
    for weight in by_seat.values_mut() {
        *weight = *weight * ONE / sum;
    }
    by_seat
}

/// Returns the lower of two entries for one seat; no zeros.
fn lowest<V: Copy + Ord + Default>(entries: impl Iterator<Item = (Uid, V)>) -> BTreeMap<Uid, V> {
    let mut by_seat = BTreeMap::<Uid, V>::new();
    for (seat, value) in entries {
        by_seat.entry(seat).and_modify(|known| *known = value.min(*known)).or_insert(value);
    }
    by_seat.retain(|_, value| *value > V::default());
    by_seat
}

/// One voter's weight for a seat and its bond to it; the voter is an index into the list.
struct Entry {
    voter: usize,
    weight: u64,
    bond: u32,
}

/// Returns, seat by seat, every voter with a weight or a bond, in uid order.
fn columns(voters: &[Voter]) -> BTreeMap<Uid, Vec<Entry>> {
    let mut columns = BTreeMap::<Uid, Vec<Entry>>::new();
    for (voter, row) in voters.iter().enumerate() {
        for (seat, weight) in &row.weights {
            let bond = row.bonds.get(seat).copied().unwrap_or(0);
            columns.entry(*seat).or_default().push(Entry { voter, weight: *weight, bond });
        }
        for (seat, bond) in row.bonds.iter().filter(|(seat, _)| !row.weights.contains_key(seat)) {
            columns.entry(*seat).or_default().push(Entry { voter, weight: 0, bond: *bond });
        }
    }
    columns
}

/// Returns the highest weight that more than half of `total` gave at least; 0 if there is none.
fn majority_weight(column: &[Entry], voters: &[Voter], total: u128) -> u64 {
    let mut given: Vec<(u64, u128)> =
        column.iter().map(|entry| (entry.weight, voters[entry.voter].stake)).collect();
    given.sort_unstable_by_key(|(weight, _)| core::cmp::Reverse(*weight));
    let mut behind = 0;
    for (weight, stake) in given {
        behind += stake;
        if behind > total / 2 {
            return weight;
        }
    }
    0
}

/// Returns the earnings of a validator's bonds: of each seat's incentive, its part of all bonds to the
/// seat.
fn earnings(bonds: &Bonds, incentive: &[(Uid, u64)], bonded: &BTreeMap<Uid, u128>) -> u128 {
    let incentive_of = |seat: &Uid| {
        let place = incentive.binary_search_by_key(seat, |(uid, _)| *uid).ok()?;
        Some(u128::from(incentive[place].1))
    };
    let earned = |(seat, bond): &(Uid, u32)| {
        let (incentive, bonded) = (incentive_of(seat)?, bonded.get(seat)?);
        Some(u128::from(*bond) * u128::from(ONE) * incentive / *bonded)
    };
    bonds.iter().filter_map(earned).sum()
}

/// Returns amounts as parts of [`ONE`] that add up to it exactly: rounded down, and the rest to the largest
/// remainders (ties: lower uid). In uid order; empty if all amounts are 0.
fn shares_of_one(amounts: Vec<(Uid, u128)>) -> Vec<(Uid, u64)> {
    let total: u128 = amounts.iter().map(|(_, amount)| *amount).sum();
    if total == 0 {
        return Vec::new();
    }
    let mut parts: Vec<(Uid, u64, u128)> = amounts
        .into_iter()
        .map(|(uid, amount)| {
            let scaled = amount * u128::from(ONE);
            // At most `ONE`, as no amount is above the total.
            (uid, (scaled / total) as u64, scaled % total)
        })
        .collect();

    // Fewer units are missing than there are amounts: each lost less than one.
    let missing = ONE - parts.iter().map(|(_, share, _)| *share).sum::<u64>();
    parts.sort_unstable_by_key(|(uid, _, remainder)| (core::cmp::Reverse(*remainder), *uid));
    for (_, share, _) in parts.iter_mut().take(missing as usize) {
        *share += 1;
    }
    let mut shares: Vec<(Uid, u64)> =
        parts.into_iter().filter(|(_, share, _)| *share > 0).map(|(uid, share, _)| (uid, share)).collect();
    shares.sort_unstable();
    shares
}

/// Scales the highest weight to 65535; every positive weight becomes at least 1.
fn as_weights(consensus: &BTreeMap<Uid, u64>) -> Vec<(Uid, u16)> {
    let highest = consensus.values().copied().max().unwrap_or(0).max(1);
    let scaled = |weight: u64| {
        u16::try_from((weight * u64::from(u16::MAX) + highest / 2) / highest).unwrap_or(u16::MAX).max(1)
    };
    consensus.iter().map(|(seat, weight)| (*seat, scaled(*weight))).collect()
}
