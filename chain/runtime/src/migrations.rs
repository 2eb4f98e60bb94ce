//! What a new runtime does, once, to the state that the one before it left.

use crate::{Nomination, Runtime, Weights};
use frame::{
    deps::frame_support::{migrations::VersionedMigration, traits::UncheckedOnRuntimeUpgrade},
    runtime::prelude::Weight,
};

/// In the order in which they are applied. Each knows from its pallet's storage version whether it still has to.
#[cfg(not(feature = "rehearsal"))]
pub type All = (ToVersion1, ToVersion2);

#[cfg(feature = "rehearsal")]
pub type All = (ToVersion1, ToVersion2, rehearsal::Migration);

/// From before runs had terms, and seats a history. Nothing was released with that layout, nor with this one yet: chains of
/// version 0 were made from a checkout, and these migrations, each with its test, are what the next ones are made after.
type ToVersion1 = (
    pallet_registry::migrations::ToVersion1<Runtime>,
    pallet_windows::migrations::ToVersion1<Runtime>,
    pallet_rewards::migrations::ToVersion1<Runtime>,
    VersionedMigration<0, 1, Nothing, Weights, DbWeight>,
    VersionedMigration<0, 1, Nothing, Nomination, DbWeight>,
);

/// From before a validator that never votes earned nothing: what is remembered of who left says of it since.
type ToVersion2 = pallet_weights::migrations::ToVersion2<Runtime>;

type DbWeight = <Runtime as crate::frame_system::Config>::DbWeight;

/// What version 0 stored, if anything, reads the same in version 1: only the version is written.
pub struct Nothing;

impl UncheckedOnRuntimeUpgrade for Nothing {
    fn on_runtime_upgrade() -> Weight {
        Weight::zero()
    }
}

/// A migration as the next release might have one: so that upgrading a live chain can be tried from end to end.
#[cfg(feature = "rehearsal")]
mod rehearsal {
    use super::*;
    use crate::{Authorities, authorities};

    pub type Migration = VersionedMigration<1, 2, Reversed, Authorities, DbWeight>;

    /// Turns the list of authorities round.
    pub struct Reversed;

    impl UncheckedOnRuntimeUpgrade for Reversed {
        fn on_runtime_upgrade() -> Weight {
            authorities::Authorities::<Runtime>::mutate(|accounts| accounts.as_mut().reverse());
            DbWeight::get().reads_writes(1, 1)
        }
    }
}
