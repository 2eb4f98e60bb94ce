//! From one layout of the storage to the next.

use crate::pallet::*;
use frame::{
    deps::frame_support::{migrations::VersionedMigration, traits::UncheckedOnRuntimeUpgrade},
    prelude::*,
};

/// From the first layout to version 1, in which earnings tell of recent pay and of free claims.
pub type ToVersion1<T> =
    VersionedMigration<0, 1, version_1::Migrate<T>, Pallet<T>, <T as frame_system::Config>::DbWeight>;

/// What version 1 changed.
pub mod version_1 {
    use super::*;
    use codec::{Decode, Encode};
    use pallet_registry::Balance;

    /// Earnings as version 0 had them.
    #[derive(Clone, Copy, Debug, Encode, Decode)]
    pub struct Earnings {
        pub claimable: Balance,
        pub earned: Balance,
    }

    /// Goes once over what seats were paid. Of when that was version 0 said nothing: nobody has recent pay.
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
