//! What validators say the seats are worth, and the consensus that becomes of it once an epoch (PROT-26, 30, 31).
//!
//! A validator posts one ballot an epoch. As the next epoch's first window opens, the ballots of the electorate go
//! through Yuma: the consensus weights are what selection draws by from then on, the shares are what the epoch pays.
//! A member of the electorate that posted nothing is an empty ballot: its stake counts, for nobody. Without a consensus
//! the last weights stay, and nothing is paid.
//!
//! Not here yet: commit-reveal (PROT-30), so that until then a validator can read the ballots before its own; and bonds.
#![cfg_attr(not(feature = "std"), no_std)]

extern crate alloc;

use alloc::vec::Vec;
use frame::prelude::Weight;
use protocol::{RunId, Uid, consensus::Consensus};

#[cfg(test)]
mod tests;
pub mod weights;

pub use pallet::*;
pub use weights::WeightInfo;

/// Pays what an epoch earned.
pub trait Payroll {
    /// Pays `epoch` by the consensus that it ended in, and returns what that cost.
    fn pay(run: RunId, epoch: u32, consensus: &Consensus) -> Weight;
}

impl Payroll for () {
    fn pay(_: RunId, _: u32, _: &Consensus) -> Weight {
        Weight::zero()
    }
}

#[frame::pallet]
pub mod pallet {
    use super::*;
    use frame::prelude::*;
    use pallet_registry::Seats;
    use pallet_windows::{Epochs, Member};
    use protocol::{
        Block, Role,
        consensus::{Ballot, yuma},
        weights::is_canonical,
    };

    #[pallet::pallet]
    pub struct Pallet<T>(_);

    #[pallet::config]
    pub trait Config: frame_system::Config {
        type Registry: Seats<Self::AccountId>;

        type Payroll: Payroll;

        type WeightInfo: WeightInfo;

        /// As many seats as the registry allows.
        #[pallet::constant]
        type MaxSeats: Get<u32>;
    }

    /// Weights of seats, in uid order, without zeros.
    pub type SeatWeights<T> = BoundedVec<(Uid, u16), <T as Config>::MaxSeats>;

    /// The consensus weights that stand (PROT-16).
    #[pallet::storage]
    pub type ConsensusWeights<T: Config> = StorageMap<_, Twox64Concat, RunId, SeatWeights<T>, ValueQuery>;

    /// Ballots by run and epoch: those of the epoch that goes on, and of the one before.
    #[pallet::storage]
    pub type Ballots<T: Config> =
        StorageDoubleMap<_, Twox64Concat, (RunId, u32), Twox64Concat, Uid, SeatWeights<T>>;

    #[pallet::event]
    #[pallet::generate_deposit(pub(super) fn deposit_event)]
    pub enum Event<T: Config> {
        /// A validator said what the seats are worth.
        Posted { run: RunId, epoch: u32, validator: Uid, seats: u32 },
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
        /// The epoch is over. Post for the one that goes on.
        EpochOver,
        /// The epoch has not begun. Wait for its first window.
        EpochNotBegun,
        /// The signer holds no seat in this run. Register its hotkey first, and sign with the hotkey.
        NotASeat,
        /// Only validators post weights. Sign with a validator's hotkey.
        NotAValidator,
        /// This validator has posted in this epoch. One ballot is final.
        AlreadyPosted,
        /// No seat has a weight. Post nothing in an epoch in which nobody earned any.
        NothingWeighted,
        /// The weights are not spelt the one way there is. Sort by uid, name each seat once, leave out zeros.
        NotCanonical,
        /// A weight is given to a seat that does not exist or is a validator's. Weigh miners' seats only.
        NotAMiner,
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
        /// Posts what the signer, a validator's hotkey, finds the miners' seats worth in `epoch`, which must be the one
        /// that goes on. Only the proportions matter.
        #[pallet::call_index(0)]
        #[pallet::weight(T::WeightInfo::post(weights.len() as u32))]
        pub fn post(origin: OriginFor<T>, run: RunId, epoch: u32, weights: SeatWeights<T>) -> DispatchResult {
            let hotkey = ensure_signed(origin)?;
            let params = T::Registry::run(run).ok_or(Error::<T>::UnknownRun)?.params;
            let now = Block(frame_system::Pallet::<T>::block_number().saturated_into());
            let window = params.schedule.window_at(now).ok_or(Error::<T>::NotStarted)?;
            let current = window.epoch(params.epoch_windows);
            ensure!(epoch >= current, Error::<T>::EpochOver);
            ensure!(epoch <= current, Error::<T>::EpochNotBegun);
            let (validator, role) = T::Registry::seat_of(run, &hotkey).ok_or(Error::<T>::NotASeat)?;
            ensure!(role == Role::Validator, Error::<T>::NotAValidator);
            ensure!(!Ballots::<T>::contains_key((run, epoch), validator), Error::<T>::AlreadyPosted);
            ensure!(!weights.is_empty(), Error::<T>::NothingWeighted);
            ensure!(is_canonical(&weights), Error::<T>::NotCanonical);
            let is_miner =
                |uid: Uid| T::Registry::seat(run, uid).is_some_and(|seat| seat.role == Role::Miner);
            ensure!(weights.iter().all(|(uid, _)| is_miner(*uid)), Error::<T>::NotAMiner);

            let seats = weights.len() as u32;
            Ballots::<T>::insert((run, epoch), validator, weights);
            Self::deposit_event(Event::Posted { run, epoch, validator, seats });
            Ok(())
        }
    }

    impl<T: Config> Pallet<T> {
        /// What must hold at every block; an error names what does not.
        pub fn check_invariants() -> Result<(), &'static str> {
            if ConsensusWeights::<T>::iter_values().any(|weights| !is_canonical(&weights)) {
                return Err("consensus weights are not canonical");
            }
            for (run, epoch) in Ballots::<T>::iter_keys().map(|(key, _)| key) {
                let params = T::Registry::run(run).ok_or("a ballot in a run that does not exist")?.params;
                let now = Block(frame_system::Pallet::<T>::block_number().saturated_into());
                let window = params.schedule.window_at(now).ok_or("a ballot before the run's start")?;
                let current = window.epoch(params.epoch_windows);
                if epoch > current || epoch.saturating_add(1) < current {
                    return Err("a ballot is neither of this epoch nor of the one before");
                }
            }
            for (key, validator, weights) in Ballots::<T>::iter() {
                let role = T::Registry::seat(key.0, validator).map(|seat| seat.role);
                if role != Some(Role::Validator) || weights.is_empty() || !is_canonical(&weights) {
                    return Err("a ballot is not what a validator could have posted");
                }
            }
            Ok(())
        }
    }

    impl<T: Config> Epochs for Pallet<T> {
        fn weights(run: RunId) -> Vec<(Uid, u16)> {
            ConsensusWeights::<T>::get(run).into_inner()
        }

        fn close(run: RunId, epoch: u32, electorate: &[Member]) -> Weight {
            let mut posted = 0u32;
            let ballots: Vec<Ballot> = electorate
                .iter()
                .map(|member| {
                    // Who was absent all epoch has no say and earns nothing (PROT-3); its stake still counts.
                    let ballot =
                        member.attested.then(|| Ballots::<T>::get((run, epoch), member.uid)).flatten();
                    posted = posted.saturating_add(u32::from(ballot.is_some()));
                    Ballot {
                        validator: member.uid,
                        stake: member.stake,
                        weights: ballot.map(BoundedVec::into_inner).unwrap_or_default(),
                    }
                })
                .collect();

            let mut weight = T::WeightInfo::close(ballots.len() as u32);
            match yuma(&ballots) {
                Some(consensus) => {
                    let weights = SeatWeights::<T>::truncate_from(consensus.weights.clone());
                    let seats = weights.len() as u32;
                    ConsensusWeights::<T>::insert(run, weights);
                    Self::deposit_event(Event::ConsensusReached { run, epoch, ballots: posted, seats });
                    weight.saturating_accrue(T::Payroll::pay(run, epoch, &consensus));
                }
                None => Self::deposit_event(Event::NoConsensus { run, epoch, ballots: posted }),
            }
            if let Some(forgotten) = epoch.checked_sub(1) {
                let _ = Ballots::<T>::clear_prefix((run, forgotten), T::MaxSeats::get(), None);
            }
            weight
        }
    }
}
