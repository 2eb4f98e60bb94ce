//! Storage migrations.

use crate::pallet::*;
use frame::{
    deps::frame_support::{migrations::VersionedMigration, traits::UncheckedOnRuntimeUpgrade},
    prelude::*,
};

/// To version 1: presence covers two epochs, and commitments are counted by slot.
pub type ToVersion1<T> =
    VersionedMigration<0, 1, version_1::Migrate<T>, Pallet<T>, <T as frame_system::Config>::DbWeight>;

/// The migration to version 1.
pub mod version_1 {
    use super::*;
    use codec::{Decode, Encode};
    use protocol::Window;

    /// Version 0 of presence.
    #[derive(Clone, Copy, Debug, Encode, Decode)]
    pub struct Presence {
        pub since: Window,
        pub last_attested: Option<Window>,
    }

    /// Visits each validator, and each commitment of the stored windows, once.
    pub struct Migrate<T>(PhantomData<T>);

    impl<T: Config> UncheckedOnRuntimeUpgrade for Migrate<T> {
        fn on_runtime_upgrade() -> Weight {
            let mut touched = 0u64;
            PresenceOf::<T>::translate::<Presence, _>(|_, _, Presence { since, last_attested }| {
                touched = touched.saturating_add(1);
                Some(crate::Presence { since, last_attested, epoch_before: None })
            });
            for (run, window, record) in Records::<T>::iter() {
                let mut times = BoundedVec::<u8, T::MaxSeats>::new();
                times.bounded_resize(record.slots.len(), 0);
                for (slot, uid) in record.slots.iter().enumerate() {
                    if Commitments::<T>::contains_key((run, window), uid)
                        && let Some(times) = times.get_mut(slot)
                    {
                        *times = 1;
                    }
                    touched = touched.saturating_add(1);
                }
                TimesCommitted::<T>::insert(run, window, times);
                touched = touched.saturating_add(1);
            }
            T::DbWeight::get().reads_writes(touched, touched)
        }
    }
}
