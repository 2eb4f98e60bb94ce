//! Storage migrations.

use crate::{pallet::*, *};
use frame::{
    deps::frame_support::{migrations::VersionedMigration, traits::UncheckedOnRuntimeUpgrade},
    prelude::*,
};

/// To version 1: a run has terms, a seat has a first window, and uids may have gaps.
pub type ToVersion1<T> =
    VersionedMigration<0, 1, version_1::Migrate<T>, Pallet<T>, <T as frame_system::Config>::DbWeight>;

/// The migration to version 1.
pub mod version_1 {
    use super::*;
    use frame::storage_alias;
    use protocol::{
        Schedule,
        params::{Density, F32Bits, MergeRule, PayShares},
    };

    /// Version 0 of the parameters, with those that are terms now.
    #[derive(Clone, Debug, Encode, Decode)]
    pub struct OldParams {
        pub schedule: Schedule,
        pub epoch_windows: u32,
        pub sequences_per_seat: u32,
        pub density: Density,
        pub merge_density: Density,
        pub merge_rule: MergeRule,
        pub error_feedback_decay: F32Bits,
        pub outer_rate: F32Bits,
        pub evaluation_fraction: F32Bits,
        pub evaluation_sequences: u32,
        pub evaluation_wait_max: u32,
        pub places: u16,
        pub reserve_places: u16,
        pub newcomer_windows: u32,
        pub min_contributions: u16,
        pub checkpoint_windows: u32,
        pub electorate_max: u16,
        pub absence_windows: u32,
        pub quorum: Permille,
        pub validator_stake_min: u128,
        pub miner_stake_min: u128,
        pub emission_per_epoch: u128,
        pub shares: PayShares,
        pub localnet: bool,
    }

    /// Version 0 of a run.
    #[derive(Clone, Debug, Encode, Decode)]
    pub struct OldRun<AccountId> {
        pub owner: AccountId,
        pub params: OldParams,
        pub spec: Digest,
        pub manifest: Digest,
        pub theta0: Digest,
        pub origin: Url,
        pub deposit: Balance,
    }

    /// Version 0 of a seat.
    #[derive(Clone, Debug, Encode, Decode)]
    pub struct OldSeat<AccountId> {
        pub registered_at: Block,
        pub role: Role,
        pub hotkey: AccountId,
        pub coldkey: AccountId,
        pub endpoint: Url,
        pub stake: Balance,
    }

    /// Number of seats of a run, whose uids had no gaps.
    #[storage_alias]
    pub type SeatCount<T: Config> = StorageMap<Pallet<T>, Twox64Concat, RunId, u32, ValueQuery>;

    /// Visits all runs and seats once. Missing values are those of [`Terms::default`].
    ///
    /// A run's first lineage hashes parameters of which some are terms now: nodes join such a run from a checkpoint
    /// only, not from `θ_0`.
    pub struct Migrate<T>(PhantomData<T>);

    impl<T: Config> UncheckedOnRuntimeUpgrade for Migrate<T> {
        fn on_runtime_upgrade() -> Weight {
            let mut touched = 0u64;
            Runs::<T>::translate::<OldRun<T::AccountId>, _>(|_, old| {
                touched = touched.saturating_add(1);
                Some(run::<T>(old))
            });
            SeatsOf::<T>::translate::<OldSeat<T::AccountId>, _>(|run, uid, old| {
                // The seat, its hotkey's account, and its roster entry.
                touched = touched.saturating_add(3);
                frame_system::Pallet::<T>::inc_sufficients(&old.hotkey);
                let schedule = Runs::<T>::get(run)?.params.schedule;
                let mut roster = Rosters::<T>::get(run);
                while roster.len() <= usize::from(uid.0) {
                    roster.try_push(None).ok()?;
                }
                let seat = seat(&schedule, old);
                *roster.get_mut(usize::from(uid.0))? = Some(Entry::from(&seat));
                Rosters::<T>::insert(run, roster);
                Some(seat)
            });
            for run in Pallet::<T>::run_ids() {
                SeatCount::<T>::remove(run);
                touched = touched.saturating_add(1);
            }
            T::DbWeight::get().reads_writes(touched, touched)
        }
    }

    fn run<T: Config>(old: OldRun<T::AccountId>) -> Run<T::AccountId> {
        let OldRun { owner, params: old, spec, manifest, theta0, origin, deposit } = old;
        let params = RunParams {
            schedule: old.schedule,
            epoch_windows: old.epoch_windows,
            reveal_windows: RunParams::default().reveal_windows.min(old.epoch_windows),
            hidden_blocks: 0,
            sequences_per_seat: old.sequences_per_seat,
            density: old.density,
            merge_density: old.merge_density,
            merge_rule: old.merge_rule,
            error_feedback_decay: old.error_feedback_decay,
            outer_rate: old.outer_rate,
            evaluation_fraction: old.evaluation_fraction,
            evaluation_sequences: old.evaluation_sequences,
            evaluation_wait_max: old.evaluation_wait_max,
            places: old.places,
            reserve_places: old.reserve_places,
            newcomer_windows: old.newcomer_windows,
            min_contributions: old.min_contributions,
            checkpoint_windows: old.checkpoint_windows,
            localnet: old.localnet,
        };
        // At least half of all seats for miners, and at most a quarter for validators.
        let seats_max = u16::try_from(T::MaxSeats::get()).unwrap_or(u16::MAX);
        let defaults = Terms::default();
        let validator_seats_max = defaults.validator_seats_max.min(seats_max / 4).max(1);
        let terms = Terms {
            electorate_max: old.electorate_max,
            absence_windows: old.absence_windows,
            quorum: old.quorum,
            validator_stake_min: old.validator_stake_min,
            miner_stake_min: old.miner_stake_min,
            miner_seats_max: defaults
                .miner_seats_max
                .min(seats_max.saturating_sub(validator_seats_max))
                .max(1),
            validator_seats_max,
            emission_per_epoch: old.emission_per_epoch,
            shares: old.shares,
            ..defaults
        };
        Run { owner, params, terms, spec, manifest, theta0, origin, deposit, stopped: false }
    }

    fn seat<AccountId>(schedule: &Schedule, old: OldSeat<AccountId>) -> Seat<AccountId> {
        let OldSeat { registered_at, role, hotkey, coldkey, endpoint, stake } = old;
        Seat {
            registered_at,
            since: schedule.window_at(registered_at).map_or(Window(0), Window::next),
            role,
            hotkey,
            coldkey,
            endpoint,
            endpoint_set_at: None,
            stake,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{
        version_1::{OldParams, OldRun, OldSeat, SeatCount},
        *,
    };
    use crate::mock::*;
    use frame::{deps::frame_support::storage::unhashed, testing_prelude::*};
    use protocol::params::PayShares;

    fn old_params() -> OldParams {
        let (params, terms) = (params(), terms());
        OldParams {
            schedule: params.schedule,
            epoch_windows: 1,
            sequences_per_seat: params.sequences_per_seat,
            density: params.density,
            merge_density: params.merge_density,
            merge_rule: params.merge_rule,
            error_feedback_decay: params.error_feedback_decay,
            outer_rate: params.outer_rate,
            evaluation_fraction: params.evaluation_fraction,
            evaluation_sequences: params.evaluation_sequences,
            evaluation_wait_max: params.evaluation_wait_max,
            places: params.places,
            reserve_places: params.reserve_places,
            newcomer_windows: params.newcomer_windows,
            min_contributions: params.min_contributions,
            checkpoint_windows: params.checkpoint_windows,
            electorate_max: 7,
            absence_windows: 8,
            quorum: Permille(9),
            validator_stake_min: VALIDATOR_STAKE,
            miner_stake_min: MINER_STAKE,
            emission_per_epoch: 11,
            shares: PayShares { owner: Permille(0), burn: Permille(100), ..terms.shares },
            localnet: true,
        }
    }

    #[test]
    fn runs_and_seats_of_version_0_are_migrated() {
        empty_chain().execute_with(|| {
            let (reason, stake) = (HoldReason::Stake.into(), 60);
            assert_ok!(<Balances as fungible::MutateHold<u64>>::hold(&reason, &COLDKEY, 2 * stake));
            let reason = HoldReason::RunDeposit.into();
            assert_ok!(<Balances as fungible::MutateHold<u64>>::hold(&reason, &OWNER, 100));
            let digest = Digest([1; 32]);
            let run = OldRun {
                owner: OWNER,
                params: old_params(),
                spec: digest,
                manifest: digest,
                theta0: digest,
                origin: url("http://a"),
                deposit: 100,
            };
            unhashed::put(&Runs::<Test>::hashed_key_for(RUN), &run);
            RunCount::<Test>::put(1);
            let seats = [(Block(2), Role::Miner), (Block(5), Role::Validator)];
            for (uid, (registered_at, role)) in (0u16..).zip(seats) {
                let hotkey = HOTKEY + u64::from(uid);
                let (coldkey, endpoint) = (COLDKEY, url("http://b"));
                let seat = OldSeat { registered_at, role, hotkey, coldkey, endpoint, stake };
                unhashed::put(&SeatsOf::<Test>::hashed_key_for(RUN, Uid(uid)), &seat);
                Hotkeys::<Test>::insert(RUN, hotkey, Uid(uid));
            }
            SeatCount::<Test>::insert(RUN, 2);
            StorageVersion::new(0).put::<Registry>();

            ToVersion1::<Test>::on_runtime_upgrade();

            Registry::check_invariants().unwrap();
            assert_eq!(Registry::on_chain_storage_version(), 1);
            assert!(!SeatCount::<Test>::contains_key(RUN));
            let run = <Registry as Seats<u64>>::run(RUN).unwrap();
            assert_eq!(
                run.params,
                RunParams { epoch_windows: 1, reveal_windows: 1, localnet: true, ..params() }
            );
            let expected = Terms {
                electorate_max: 7,
                absence_windows: 8,
                quorum: Permille(9),
                validator_stake_min: VALIDATOR_STAKE,
                miner_stake_min: MINER_STAKE,
                miner_seats_max: 6,
                validator_seats_max: 2,
                emission_per_epoch: 11,
                shares: old_params().shares,
                ..Terms::default()
            };
            assert_eq!((run.terms, run.stopped, run.deposit), (expected, false, 100));
            assert_eq!((seat(0).since, seat(1).since, seat(1).stake), (Window(0), Window(1), stake));
            assert_eq!((Registry::next_uid(RUN), System::sufficients(&HOTKEY)), (Some(Uid(2)), 1));

            // The second run does nothing.
            assert_storage_noop!({
                ToVersion1::<Test>::on_runtime_upgrade();
            });
            assert_ok!(Registry::leave(signed(COLDKEY), RUN, Uid(1)));
        });
    }
}
