//! Storage migrations.

use crate::pallet::*;
use frame::{
    deps::frame_support::{migrations::VersionedMigration, traits::UncheckedOnRuntimeUpgrade},
    prelude::*,
};

/// From version 1 to 2: a departed seat records whether it was inactive.
pub type ToVersion2<T> =
    VersionedMigration<1, 2, version_2::Migrate<T>, Pallet<T>, <T as frame_system::Config>::DbWeight>;

/// The migration to version 2.
pub mod version_2 {
    use super::*;
    use codec::{Decode, Encode};
    use pallet_registry::Balance;
    use protocol::{Role, SeatId, Uid, Window};

    /// Version 1 of a member.
    #[derive(Clone, Copy, Debug, Encode, Decode)]
    pub struct Member {
        pub uid: Uid,
        pub stake: u128,
        pub attested: bool,
        pub dissents: u32,
    }

    /// Version 1 of a departed seat.
    #[derive(Clone, Debug, Encode, Decode)]
    pub struct Departed<AccountId> {
        pub seat: SeatId,
        pub since: Window,
        pub role: Role,
        pub coldkey: AccountId,
        pub stake: Balance,
        pub member: Option<Member>,
    }

    /// Visits each departed seat once. Version 1 did not count votes, so none is inactive.
    pub struct Migrate<T>(PhantomData<T>);

    impl<T: Config> UncheckedOnRuntimeUpgrade for Migrate<T> {
        fn on_runtime_upgrade() -> Weight {
            let mut touched = 0u64;
            DepartedOf::<T>::translate::<Departed<T::AccountId>, _>(|_, _, old| {
                touched = touched.saturating_add(1);
                let Departed { seat, since, role, coldkey, stake, member } = old;
                let member = member.map(|Member { uid, stake, attested, dissents }| pallet_windows::Member {
                    uid,
                    stake,
                    attested,
                    dissents,
                    silent: false,
                });
                Some(crate::Departed { seat, since, role, coldkey, stake, member })
            });
            T::DbWeight::get().reads_writes(touched, touched)
        }
    }
}
