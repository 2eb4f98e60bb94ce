//! What a new runtime does, once, to the state that the one before it left.

/// In the order in which they are applied. Each knows from its pallet's storage version whether it still has to.
#[cfg(not(feature = "rehearsal"))]
pub type All = ToVersion1;

#[cfg(feature = "rehearsal")]
pub type All = (ToVersion1, rehearsal::Migration);

/// From before runs had terms, and seats a history.
type ToVersion1 = (
    pallet_registry::migrations::ToVersion1<crate::Runtime>,
    pallet_windows::migrations::ToVersion1<crate::Runtime>,
);

/// A migration as the next release might have one: so that upgrading a live chain can be tried from end to end.
#[cfg(feature = "rehearsal")]
mod rehearsal {
    use crate::{Authorities, Runtime, authorities};
    use frame::{
        deps::frame_support::{migrations::VersionedMigration, traits::UncheckedOnRuntimeUpgrade},
        runtime::prelude::Weight,
    };

    pub type Migration =
        VersionedMigration<1, 2, Reversed, Authorities, <Runtime as crate::frame_system::Config>::DbWeight>;

    /// Turns the list of authorities round.
    pub struct Reversed;

    impl UncheckedOnRuntimeUpgrade for Reversed {
        fn on_runtime_upgrade() -> Weight {
            authorities::Authorities::<Runtime>::mutate(|accounts| accounts.as_mut().reverse());
            <Runtime as crate::frame_system::Config>::DbWeight::get().reads_writes(1, 1)
        }
    }
}
