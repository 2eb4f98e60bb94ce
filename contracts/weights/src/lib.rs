//! What validators say the seats are worth, and the consensus that becomes of it once an epoch (PROT-26, 30, 31).
//!
//! A validator commits to one ballot an epoch, as a hash, and reveals it in the first `reveal_windows` windows of the
//! next one: whoever reads the chain before its own ballot is bound learns nothing to copy.
//!
//! ```text
//! epoch e                        epoch e + 1
//! ├────────── commit ───────────┤├── reveal ──┤
//!                                             └ close: consensus, bonds and pay of e
//! ```
//!
//! As the window after the last one for reveals opens, the ballots of the electorate go through Yuma: the consensus weights are what
//! selection draws by from then on, the shares are what the epoch pays, and the bonds are kept for the next time. A
//! member of the electorate that revealed nothing is an empty ballot: its stake counts, for nobody, and it earns nothing. Nor does who was
//! absent all epoch (PROT-3), voted for another update than two thirds fixed (PROT-19), or never voted though windows were
//! merged. Without a consensus the last weights and bonds stay, and nothing is paid.
//!
//! A seat may change hands between an epoch's end and its close. Who held it as the epoch ended is who is weighed, and whose
//! ballot counts, if it was revealed by then: it is paid like everyone else (PROT-32). Selection never hears of it again, nor
//! does the next holder inherit a standing, a ballot or a bond.
#![cfg_attr(not(feature = "std"), no_std)]

extern crate alloc;

use alloc::vec::Vec;
use codec::{Decode, DecodeWithMemTracking, Encode, MaxEncodedLen};
use frame::prelude::Weight;
use pallet_registry::Balance;
use pallet_windows::Member;
use protocol::{Role, RunId, SeatId, Uid, Window, consensus::Consensus};
use scale_info::TypeInfo;

#[cfg(feature = "runtime-benchmarks")]
mod benchmarking;
#[cfg(any(test, feature = "runtime-benchmarks"))]
mod full;
pub mod migrations;
#[cfg(test)]
mod mock;
#[cfg(test)]
mod tests;
pub mod weights;

pub use pallet::*;
pub use weights::WeightInfo;

/// A seat that was held as an epoch ended, and whose holder left before the epoch was closed.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode, DecodeWithMemTracking, MaxEncodedLen, TypeInfo)]
pub struct Departed<AccountId> {
    pub seat: SeatId,
    /// The first window in which it counted.
    pub since: Window,
    pub role: Role,
    pub coldkey: AccountId,
    /// Its own stake as it left.
    pub stake: Balance,
    /// As what it decides the epoch; `None` unless it was in the electorate to the end.
    pub member: Option<Member>,
}

/// Pays what an epoch earned.
pub trait Payroll<AccountId> {
    /// Pays `epoch` by the consensus that it ended in, and returns what that cost. What the consensus says of a uid that is
    /// in `departed` is due to that seat, and not to whoever holds the uid now.
    fn pay(run: RunId, epoch: u32, consensus: &Consensus, departed: &[Departed<AccountId>]) -> Weight;
}

impl<AccountId> Payroll<AccountId> for () {
    fn pay(_: RunId, _: u32, _: &Consensus, _: &[Departed<AccountId>]) -> Weight {
        Weight::zero()
    }
}

#[frame::pallet]
pub mod pallet {
    use super::*;
    use alloc::collections::{BTreeMap, BTreeSet};
    use frame::prelude::*;
    use pallet_registry::{Ending, OnSeats, Seat, Seats};
    use pallet_windows::{Epochs, Member, Members};
    use protocol::{
        Block, Digest, Hotkey, RunParams,
        consensus::{ValidatorWeights, yuma},
        reveal::{Salt, commitment},
        view::SeatConsensus,
        weights::is_canonical,
    };

    /// 0 was the first layout, in which ballots were open from the start: what it stored reads the same in version 1, from
    /// which [`crate::migrations`] leads to this one.
    const STORAGE_VERSION: StorageVersion = StorageVersion::new(2);

    #[pallet::pallet]
    #[pallet::storage_version(STORAGE_VERSION)]
    pub struct Pallet<T>(_);

    #[pallet::config]
    pub trait Config: frame_system::Config {
        type Registry: Seats<Self::AccountId>;

        /// The public key that an account is: what a commitment binds.
        type HotkeyOf: Convert<Self::AccountId, Hotkey>;

        type Payroll: Payroll<Self::AccountId>;

        /// As what a validator that leaves decides the epochs that it held its seat to the end of.
        type Members: Members;

        type WeightInfo: WeightInfo;

        /// As many seats as the registry allows.
        #[pallet::constant]
        type MaxSeats: Get<u32>;
    }

    /// Weights of seats, in uid order, without zeros.
    pub type SeatWeights<T> = BoundedVec<(Uid, u16), <T as Config>::MaxSeats>;

    /// What a validator holds of each seat, in uid order, without zeros; see [`protocol::consensus::Bonds`].
    pub type SeatBonds<T> = BoundedVec<(Uid, u32), <T as Config>::MaxSeats>;

    /// A ballot that is not revealed yet: its hash, and the hotkey that is in the hash.
    #[derive(
        Clone, Copy, Debug, PartialEq, Eq, Encode, Decode, DecodeWithMemTracking, MaxEncodedLen, TypeInfo,
    )]
    pub struct Sealed {
        pub hash: Digest,
        pub hotkey: Hotkey,
    }

    /// The consensus weights that stand (PROT-16).
    #[pallet::storage]
    pub type ConsensusWeights<T: Config> = StorageMap<_, Twox64Concat, RunId, SeatWeights<T>, ValueQuery>;

    /// What the last consensus said of each seat, in uid order.
    #[pallet::storage]
    pub type Standings<T: Config> =
        StorageMap<_, Twox64Concat, RunId, BoundedVec<(Uid, SeatConsensus), T::MaxSeats>, ValueQuery>;

    /// Bonds by run and validator, as the last consensus left them.
    #[pallet::storage]
    pub type BondsOf<T: Config> =
        StorageDoubleMap<_, Twox64Concat, RunId, Twox64Concat, Uid, SeatBonds<T>, ValueQuery>;

    /// What was committed and is not revealed, by run and epoch: of the epoch that goes on, and of the one before until it closes.
    #[pallet::storage]
    pub type Commits<T: Config> = StorageDoubleMap<_, Twox64Concat, (RunId, u32), Twox64Concat, Uid, Sealed>;

    /// What was revealed, by run and epoch, until the epoch closes.
    #[pallet::storage]
    pub type Ballots<T: Config> =
        StorageDoubleMap<_, Twox64Concat, (RunId, u32), Twox64Concat, Uid, SeatWeights<T>>;

    /// Who held a uid as an epoch ended and is gone, by run and epoch, until the epoch closes.
    #[pallet::storage]
    pub type DepartedOf<T: Config> =
        StorageDoubleMap<_, Twox64Concat, (RunId, u32), Twox64Concat, Uid, Departed<T::AccountId>>;

    #[pallet::event]
    #[pallet::generate_deposit(pub(super) fn deposit_event)]
    pub enum Event<T: Config> {
        /// A validator bound itself to a ballot.
        Committed { run: RunId, epoch: u32, validator: Uid, hash: Digest },
        /// A validator showed what it says the seats are worth.
        Revealed { run: RunId, epoch: u32, validator: Uid, seats: u32 },
        /// A validator did not show what it had bound itself to: it counts as if it had said nothing.
        NotRevealed { run: RunId, epoch: u32, validator: Uid },
        /// An epoch ended in a consensus on so many seats; selection draws by it from now on.
        ConsensusReached { run: RunId, epoch: u32, ballots: u32, seats: u32 },
        /// An epoch ended without one: the weights stay as they were and nothing is paid.
        NoConsensus { run: RunId, epoch: u32, ballots: u32 },
    }

    #[pallet::error]
    pub enum Error<T> {
        /// There is no run with this id. List the runs and pick one of them.
        UnknownRun,
        /// The run has not started. Wait for its first block.
        NotStarted,
        /// The epoch is over. Commit for the one that goes on.
        EpochOver,
        /// The epoch has not begun. Wait for its first window.
        EpochNotBegun,
        /// The epoch still goes on. Reveal as soon as the next one has begun.
        RevealNotBegun,
        /// The windows for revealing this epoch's weights are over. Reveal the next ones in time.
        RevealOver,
        /// The signer holds no seat in this run. Register its hotkey first, and sign with the hotkey.
        NotASeat,
        /// Only validators give weights. Sign with a validator's hotkey.
        NotAValidator,
        /// This validator has committed in this epoch. One commitment is final.
        AlreadyCommitted,
        /// This validator committed to nothing in this epoch, or its seat has changed hands. Commit in the next one.
        NothingCommitted,
        /// This validator has revealed its ballot for this epoch.
        AlreadyRevealed,
        /// Weights and salt are not those that were committed to. Reveal exactly what was hashed.
        OtherThanCommitted,
        /// No seat has a weight. Commit to nothing in an epoch in which nobody earned any.
        NothingWeighted,
        /// The weights are not spelt the one way there is. Sort by uid, name each seat once, leave out zeros.
        NotCanonical,
    }

    #[pallet::hooks]
    impl<T: Config> Hooks<BlockNumberFor<T>> for Pallet<T> {
        #[cfg(feature = "try-runtime")]
        fn try_state(_: BlockNumberFor<T>) -> Result<(), frame::try_runtime::TryRuntimeError> {
            Self::check_invariants().map_err(Into::into)
        }
    }

    #[pallet::call]
    impl<T: Config> Pallet<T> {
        /// Binds the signer, a validator's hotkey, to a ballot for `epoch`, which must be the one that goes on:
        /// `blake2_256(SCALE(weights) ‖ salt ‖ hotkey)` (PROT-30).
        #[pallet::call_index(0)]
        #[pallet::weight(T::WeightInfo::commit())]
        #[pallet::feeless_if(|origin: &OriginFor<T>, run: &RunId, epoch: &u32, _hash: &Digest| -> bool {
            Pallet::<T>::signer(origin)
                .is_some_and(|hotkey| Pallet::<T>::may_commit(&hotkey, *run, *epoch).is_ok())
        })]
        pub fn commit(origin: OriginFor<T>, run: RunId, epoch: u32, hash: Digest) -> DispatchResult {
            let hotkey = ensure_signed(origin)?;
            let validator = Self::may_commit(&hotkey, run, epoch)?;
            let hotkey = T::HotkeyOf::convert(hotkey);
            Commits::<T>::insert((run, epoch), validator, Sealed { hash, hotkey });
            Self::deposit_event(Event::Committed { run, epoch, validator, hash });
            Ok(())
        }

        /// Shows what the signer, a validator's hotkey, committed to in `epoch`, which is over: what it finds the miners'
        /// seats worth. Only the proportions matter; weights of uids that are no miners' count for nothing, as seats may have
        /// changed hands since.
        #[pallet::call_index(1)]
        #[pallet::weight(T::WeightInfo::reveal(weights.len() as u32))]
        #[pallet::feeless_if(|
            origin: &OriginFor<T>, run: &RunId, epoch: &u32, weights: &SeatWeights<T>, salt: &Salt
        | -> bool {
            Pallet::<T>::signer(origin)
                .is_some_and(|hotkey| Pallet::<T>::may_reveal(&hotkey, *run, *epoch, weights, salt).is_ok())
        })]
        pub fn reveal(
            origin: OriginFor<T>,
            run: RunId,
            epoch: u32,
            weights: SeatWeights<T>,
            salt: Salt,
        ) -> DispatchResult {
            let hotkey = ensure_signed(origin)?;
            let validator = Self::may_reveal(&hotkey, run, epoch, &weights, &salt)?;
            let seats = weights.len() as u32;
            Commits::<T>::remove((run, epoch), validator);
            Ballots::<T>::insert((run, epoch), validator, weights);
            Self::deposit_event(Event::Revealed { run, epoch, validator, seats });
            Ok(())
        }
    }

    /// What is asked before a call does anything, and before it is let in without a fee.
    impl<T: Config> Pallet<T> {
        fn signer(origin: &OriginFor<T>) -> Option<T::AccountId> {
            ensure_signed(origin.clone()).ok()
        }

        fn may_commit(hotkey: &T::AccountId, run: RunId, epoch: u32) -> Result<Uid, Error<T>> {
            let (params, window) = Self::open_window(run)?;
            let current = window.epoch(params.epoch_windows);
            ensure!(epoch >= current, Error::<T>::EpochOver);
            ensure!(epoch <= current, Error::<T>::EpochNotBegun);
            let validator = Self::validator(run, hotkey)?;
            ensure!(!Commits::<T>::contains_key((run, epoch), validator), Error::<T>::AlreadyCommitted);
            Ok(validator)
        }

        fn may_reveal(
            hotkey: &T::AccountId,
            run: RunId,
            epoch: u32,
            weights: &SeatWeights<T>,
            salt: &Salt,
        ) -> Result<Uid, Error<T>> {
            let (params, window) = Self::open_window(run)?;
            let begins = after_epoch(&params, epoch);
            ensure!(window >= begins, Error::<T>::RevealNotBegun);
            ensure!(window < closes(&params, epoch), Error::<T>::RevealOver);
            let validator = Self::validator(run, hotkey)?;
            let sealed = Commits::<T>::get((run, epoch), validator);
            let shown = || match Ballots::<T>::contains_key((run, epoch), validator) {
                true => Error::<T>::AlreadyRevealed,
                false => Error::<T>::NothingCommitted,
            };
            let sealed = sealed.ok_or_else(shown)?;
            ensure!(!weights.is_empty(), Error::<T>::NothingWeighted);
            ensure!(is_canonical(weights), Error::<T>::NotCanonical);
            let opened = commitment(weights, salt, &sealed.hotkey);
            ensure!(opened == sealed.hash, Error::<T>::OtherThanCommitted);
            Ok(validator)
        }

        fn open_window(run: RunId) -> Result<(RunParams, Window), Error<T>> {
            let params = T::Registry::run(run).ok_or(Error::<T>::UnknownRun)?.params;
            let now = Block(frame_system::Pallet::<T>::block_number().saturated_into());
            let window = params.schedule.window_at(now).ok_or(Error::<T>::NotStarted)?;
            Ok((params, window))
        }

        fn validator(run: RunId, hotkey: &T::AccountId) -> Result<Uid, Error<T>> {
            let (uid, role) = T::Registry::seat_of(run, hotkey).ok_or(Error::<T>::NotASeat)?;
            ensure!(role == Role::Validator, Error::<T>::NotAValidator);
            Ok(uid)
        }
    }

    /// What the runtime API reads.
    impl<T: Config> Pallet<T> {
        /// What the last consensus said of a seat; nothing of one that has come since.
        pub fn consensus_of(run: RunId, uid: Uid) -> SeatConsensus {
            let standings = Standings::<T>::get(run);
            let place = standings.binary_search_by_key(&uid, |(seat, _)| *seat);
            place
                .ok()
                .and_then(|place| standings.get(place))
                .map_or(SeatConsensus::default(), |(_, standing)| *standing)
        }

        /// What the last consensus said of every seat that it said anything of, in uid order.
        pub fn consensus(run: RunId) -> Vec<(Uid, SeatConsensus)> {
            Standings::<T>::get(run).into_inner()
        }

        /// What a validator holds of each seat, in parts of [`protocol::consensus::ONE`], in uid order.
        pub fn bonds(run: RunId, validator: Uid) -> Vec<(Uid, u32)> {
            BondsOf::<T>::get(run, validator).into_inner()
        }
    }

    /// What an epoch closes with.
    struct Gathered {
        ballots: Vec<ValidatorWeights>,
        /// Of those that decide, so many.
        revealed: u32,
        miners: u32,
    }

    /// How an epoch closes.
    impl<T: Config> Pallet<T> {
        /// Everyone that decides, and everyone else that holds bonds, with what stands of their ballots and bonds.
        fn ballots(
            run: RunId,
            epoch: u32,
            params: &RunParams,
            electorate: &[Member],
            departed: &[Departed<T::AccountId>],
        ) -> Gathered {
            let end = after_epoch(params, epoch);
            let left = |uid: &Uid| place_of(departed, *uid).is_some();
            // The miners as the epoch ended, and since when: who came after it did none of its work.
            let roster = T::Registry::roster(run).into_iter();
            let present = roster.map(|(uid, entry)| (uid, entry.role, entry.since));
            let miners: BTreeMap<Uid, Window> = present
                .filter(|(_, _, since)| *since < end)
                .chain(departed.iter().map(|gone| (gone.seat.uid, gone.role, gone.since)))
                .filter(|(_, role, _)| *role == Role::Miner)
                .map(|(uid, _, since)| (uid, since))
                .collect();
            let mut bonds: BTreeMap<Uid, Vec<(Uid, u32)>> = BondsOf::<T>::iter_prefix(run)
                .map(|(validator, bonds)| (validator, bonds.into_inner()))
                .collect();
            // Bonds were left by the epoch before to seats that were there as it ended: to nobody who came later.
            let before = epoch.checked_sub(1).map_or(Window(0), |before| after_epoch(params, before));
            for row in bonds.values_mut() {
                row.retain(|(uid, _)| miners.get(uid).is_some_and(|since| *since < before));
            }

            // Who came in the place of somebody that left has no say in what was before its time. Who left has, by the ballot
            // that it showed.
            let stayed = electorate.iter().filter(|member| !left(&member.uid)).copied();
            let gone = departed
                .iter()
                .filter(|gone| Ballots::<T>::contains_key((run, epoch), gone.seat.uid))
                .filter_map(|gone| gone.member);
            let mut revealed = 0u32;
            let mut ballots = Vec::with_capacity(electorate.len());
            for member in stayed.chain(gone) {
                // Who was absent all epoch has no say and earns nothing (PROT-3); its stake still counts.
                let ballot = Ballots::<T>::get((run, epoch), member.uid).filter(|_| member.attested);
                revealed = revealed.saturating_add(u32::from(ballot.is_some()));
                let mut weights = ballot.map(BoundedVec::into_inner).unwrap_or_default();
                weights.retain(|(uid, _)| miners.contains_key(uid));
                ballots.push(ValidatorWeights {
                    validator: member.uid,
                    stake: member.stake,
                    weights,
                    bonds: bonds.remove(&member.uid).unwrap_or_default(),
                    earns: member.dissents == 0 && !member.silent,
                });
            }
            // Who is outside the electorate has no say, and its bonds fade.
            ballots.extend(bonds.into_iter().map(|(validator, bonds)| ValidatorWeights {
                validator,
                stake: 0,
                weights: Vec::new(),
                bonds,
                earns: false,
            }));
            Gathered { ballots, revealed, miners: miners.len() as u32 }
        }

        /// Remembers what the consensus said of the seats that are there.
        fn keep(run: RunId, consensus: &Consensus, departed: &[Departed<T::AccountId>]) {
            let is_there = |uid: &Uid| place_of(departed, *uid).is_none();
            let weights = consensus.weights.iter().filter(|(uid, _)| is_there(uid)).copied().collect();
            // No list names more uids than there are seats.
            ConsensusWeights::<T>::insert(run, SeatWeights::<T>::truncate_from(weights));
            let mut standings = consensus.seats();
            standings.retain(|(uid, _)| is_there(uid));
            Standings::<T>::insert(run, BoundedVec::truncate_from(standings));
        }

        /// Writes bonds down for the next epoch: of each of these validators the row that it has now, if it has one. Of seats
        /// that are gone nothing is kept, as validator's or as miner's, but where the next epoch has ended too and they held
        /// them to its end.
        fn keep_bonds<'a>(
            run: RunId,
            next: u32,
            departed: &[Departed<T::AccountId>],
            rows: impl Iterator<Item = (Uid, &'a [(Uid, u32)])>,
        ) {
            let is_over = |uid: &Uid| {
                place_of(departed, *uid).is_some_and(|gone| {
                    DepartedOf::<T>::get((run, next), uid).is_none_or(|then| then.seat != gone.seat)
                })
            };
            let over: BTreeSet<Uid> = departed.iter().map(|gone| gone.seat.uid).filter(is_over).collect();
            for (validator, row) in rows {
                let row: Vec<(Uid, u32)> =
                    row.iter().filter(|(uid, _)| !over.contains(uid)).copied().collect();
                if row.is_empty() || over.contains(&validator) {
                    BondsOf::<T>::remove(run, validator);
                } else {
                    BondsOf::<T>::insert(run, validator, SeatBonds::<T>::truncate_from(row));
                }
            }
        }

        /// Who held a seat as `epoch` ended and is gone, in uid order. Forgets them.
        fn take_departed(run: RunId, epoch: u32) -> Vec<Departed<T::AccountId>> {
            let mut departed: Vec<_> =
                DepartedOf::<T>::drain_prefix((run, epoch)).map(|(_, gone)| gone).collect();
            departed.sort_unstable_by_key(|gone| gone.seat);
            departed
        }

        /// Forgets what the epoch leaves behind, and says whose ballots stayed hidden.
        fn forget(run: RunId, epoch: u32) {
            let mut hidden: Vec<Uid> = Commits::<T>::drain_prefix((run, epoch)).map(|(uid, _)| uid).collect();
            hidden.sort_unstable();
            for validator in hidden {
                Self::deposit_event(Event::NotRevealed { run, epoch, validator });
            }
            let _ = Ballots::<T>::clear_prefix((run, epoch), T::MaxSeats::get(), None);
        }

        /// What must hold at every block; an error names what does not.
        pub fn check_invariants() -> Result<(), &'static str> {
            for (run, weights) in ConsensusWeights::<T>::iter() {
                let is_miner =
                    |uid: Uid| T::Registry::seat(run, uid).is_some_and(|seat| seat.role == Role::Miner);
                if !is_canonical(&weights) || !weights.iter().all(|(uid, _)| is_miner(*uid)) {
                    return Err("consensus weights are not canonical, or of a seat that is no miner's");
                }
            }
            for (run, standings) in Standings::<T>::iter() {
                let in_order = standings.windows(2).all(|pair| pair[0].0 < pair[1].0);
                if !in_order || standings.iter().any(|(uid, _)| T::Registry::seat(run, *uid).is_none()) {
                    return Err("a standing is out of order, or of a seat that is gone");
                }
                let sum = |part: fn(&SeatConsensus) -> u64| {
                    standings.iter().map(|(_, seat)| part(seat)).sum::<u64>()
                };
                // Seats that left since have taken theirs along.
                let one = protocol::consensus::ONE;
                if sum(|seat| seat.incentive) > one || sum(|seat| seat.dividends) > one {
                    return Err("shares add up to more than the whole");
                }
            }
            for (run, validator, bonds) in BondsOf::<T>::iter() {
                let in_order = bonds.windows(2).all(|pair| pair[0].0 < pair[1].0);
                if !in_order || bonds.is_empty() || bonds.iter().any(|(_, bond)| *bond == 0) {
                    return Err("bonds are not spelt the one way there is");
                }
                Self::check_validator(run, validator, |gone| gone)?;
            }
            for ((run, epoch), validator) in Commits::<T>::iter_keys() {
                Self::check_epoch(run, epoch)?;
                Self::check_validator(run, validator, |_| false)?;
                if Ballots::<T>::contains_key((run, epoch), validator) {
                    return Err("a ballot was revealed and is still sealed");
                }
            }
            for ((run, epoch), validator, weights) in Ballots::<T>::iter() {
                Self::check_epoch(run, epoch)?;
                let left = DepartedOf::<T>::contains_key((run, epoch), validator);
                Self::check_validator(run, validator, |_| left)?;
                if weights.is_empty() || !is_canonical(&weights) {
                    return Err("a ballot is not what a validator could have revealed");
                }
            }
            for ((run, epoch), uid, gone) in DepartedOf::<T>::iter() {
                Self::check_epoch(run, epoch)?;
                let (params, window) =
                    Self::open_window(run).map_err(|_| "a seat left a run that has not begun")?;
                let end = after_epoch(&params, epoch);
                if gone.seat.uid != uid || gone.since >= end || window < end {
                    return Err("a seat is remembered that did not end an epoch");
                }
                if T::Registry::seat(run, uid).is_some_and(|seat| seat.id(uid) == gone.seat) {
                    return Err("a seat is remembered as gone that is there");
                }
            }
            Ok(())
        }

        /// Whether `uid` is a validator's, or one that left to whom this may belong, by whether any did.
        fn check_validator(run: RunId, uid: Uid, former: impl Fn(bool) -> bool) -> Result<(), &'static str> {
            if T::Registry::seat(run, uid).is_some_and(|seat| seat.role == Role::Validator) {
                return Ok(());
            }
            let left = DepartedOf::<T>::iter()
                .any(|((id, _), gone, seat)| (id, gone) == (run, uid) && seat.role == Role::Validator);
            match former(left) {
                true => Ok(()),
                false => Err("a ballot or bonds of somebody who is no validator"),
            }
        }

        fn check_epoch(run: RunId, epoch: u32) -> Result<(), &'static str> {
            let (params, window) =
                Self::open_window(run).map_err(|_| "a ballot in a run that has not begun")?;
            // In the block in which an epoch closes late, it is a window late at most.
            let closed = window >= closes(&params, epoch).next();
            if epoch > window.epoch(params.epoch_windows) || closed {
                return Err("a ballot of an epoch that has not begun or is closed");
            }
            Ok(())
        }
    }

    impl<T: Config> Epochs for Pallet<T> {
        fn weights(run: RunId) -> Vec<(Uid, u16)> {
            ConsensusWeights::<T>::get(run).into_inner()
        }

        fn close(run: RunId, epoch: u32, electorate: &[Member]) -> Weight {
            let Some(details) = T::Registry::run(run) else {
                defensive!("an epoch closes in a run that exists");
                return T::DbWeight::get().reads(1);
            };
            let departed = Self::take_departed(run, epoch);
            let Gathered { ballots, revealed, miners } =
                Self::ballots(run, epoch, &details.params, electorate, &departed);
            Self::forget(run, epoch);
            let mut weight = T::WeightInfo::close(ballots.len() as u32, miners);
            let next = epoch.saturating_add(1);
            let Some(consensus) = yuma(&ballots) else {
                let as_they_were = ballots.iter().map(|ballot| (ballot.validator, ballot.bonds.as_slice()));
                Self::keep_bonds(run, next, &departed, as_they_were);
                Self::deposit_event(Event::NoConsensus { run, epoch, ballots: revealed });
                return weight;
            };
            Self::keep(run, &consensus, &departed);
            let moved = ballots.iter().map(|ballot| {
                let row = consensus.bonds.binary_search_by_key(&ballot.validator, |(uid, _)| *uid);
                let row = row.ok().and_then(|place| consensus.bonds.get(place));
                (ballot.validator, row.map_or(&[][..], |(_, bonds)| bonds.as_slice()))
            });
            Self::keep_bonds(run, next, &departed, moved);
            let seats = consensus.weights.len() as u32;
            Self::deposit_event(Event::ConsensusReached { run, epoch, ballots: revealed, seats });
            weight.saturating_accrue(T::Payroll::pay(run, epoch, &consensus, &departed));
            weight
        }
    }

    impl<T: Config> OnSeats<T::AccountId> for Pallet<T> {
        fn vacated(run: RunId, uid: Uid, seat: &Seat<T::AccountId>, ending: Ending) -> Weight {
            let Some(details) = T::Registry::run(run) else {
                defensive!("a seat is of a run that exists");
                return T::DbWeight::get().reads(1);
            };
            let (params, window) = (details.params, ending.window);
            ConsensusWeights::<T>::mutate_extant(run, |weights| weights.retain(|(other, _)| *other != uid));
            Standings::<T>::mutate_extant(run, |standings| standings.retain(|(other, _)| *other != uid));
            let current = window.epoch(params.epoch_windows);
            let mut awaits_pay = false;
            // As an epoch's first window opens, that of two epochs before may still have to be closed.
            for epoch in current.saturating_sub(2)..=current {
                if seat.role == Role::Validator {
                    Commits::<T>::remove((run, epoch), uid);
                }
                let end = after_epoch(&params, epoch);
                if seat.since < end && end <= window && window <= closes(&params, epoch) {
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
            T::WeightInfo::vacated()
        }
    }

    /// The seat of `uid` among those that left, which are in uid order.
    fn place_of<AccountId>(departed: &[Departed<AccountId>], uid: Uid) -> Option<&Departed<AccountId>> {
        let place = departed.binary_search_by_key(&uid, |gone| gone.seat.uid).ok()?;
        departed.get(place)
    }

    /// The first window after `epoch`.
    fn after_epoch(params: &RunParams, epoch: u32) -> Window {
        Window(epoch.saturating_add(1).saturating_mul(params.epoch_windows))
    }

    /// The window that opens as `epoch` closes: until it, the epoch's ballots are revealed.
    fn closes(params: &RunParams, epoch: u32) -> Window {
        Window(after_epoch(params, epoch).0.saturating_add(params.reveal_windows))
    }
}
