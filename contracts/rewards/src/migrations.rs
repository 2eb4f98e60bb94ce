//! Storage migrations.

use crate::pallet::*;
use frame::{
    deps::frame_support::{migrations::VersionedMigration, traits::UncheckedOnRuntimeUpgrade},
    prelude::*,
};

/// To version 1: earnings record recent pay and free claims.
pub type ToVersion1<T> =
    VersionedMigration<0, 1, version_1::Migrate<T>, Pallet<T>, <T as frame_system::Config>::DbWeight>;

/// The migration to version 1.
pub mod version_1 {
    use super::*;
    use codec::{Decode, Encode};
    use pallet_registry::Balance;

    /// Version 0 of earnings.
    #[derive(Clone, Copy, Debug, Encode, Decode)]
    pub struct Earnings {
        pub claimable: Balance,
        pub earned: Balance,
    }

    /// Visits each seat's earnings once. Version 0 had no recent pay, so it starts at zero.
    pub struct Migrate<T>(PhantomData<T>);

    impl<T: Config> UncheckedOnRuntimeUpgrade for Migrate<T> {
        fn on_runtime_upgrade() -> Weight {
            let mut touched = 0u64;
            EarningsOf::<T>::translate::<Earnings, _>(|_, _, Earnings { claimable, earned }| {
                touched = touched.saturating_add(1);
                Some(crate::Earnings { claimable, earned, ..Default::default() })
            });
            T::DbWeight::get().reads_writes(touched, touched)
        }
    }
}
