//! Storage migrations of a runtime upgrade.

use crate::{Nomination, Runtime, Weights};
use frame::{
    deps::frame_support::{migrations::VersionedMigration, traits::UncheckedOnRuntimeUpgrade},
    runtime::prelude::Weight,
};

/// In order of application. Each checks its pallet's storage version.
#[cfg(not(feature = "upgrade-test"))]
pub type All = (ToVersion1, ToVersion2);

#[cfg(feature = "upgrade-test")]
pub type All = (ToVersion1, ToVersion2, upgrade_test::Migration);

/// To version 1, with terms of runs and histories of seats. Chains of version 0 were made from a checkout only; these
/// migrations and their tests are the pattern for later ones.
type ToVersion1 = (
    pallet_registry::migrations::ToVersion1<Runtime>,
    pallet_windows::migrations::ToVersion1<Runtime>,
    pallet_rewards::migrations::ToVersion1<Runtime>,
    VersionedMigration<0, 1, Nothing, Weights, DbWeight>,
    VersionedMigration<0, 1, Nothing, Nomination, DbWeight>,
);

/// To version 2 of the weights: departed seats record whether they were inactive.
type ToVersion2 = pallet_weights::migrations::ToVersion2<Runtime>;

type DbWeight = <Runtime as crate::frame_system::Config>::DbWeight;

/// Changes no storage but the version.
pub struct Nothing;

impl UncheckedOnRuntimeUpgrade for Nothing {
    fn on_runtime_upgrade() -> Weight {
        Weight::zero()
    }
}

/// A migration as a later release may have one, for the test of a live upgrade.
#[cfg(feature = "upgrade-test")]
mod upgrade_test {
    use super::*;
    use crate::{Authorities, authorities};

    pub type Migration = VersionedMigration<1, 2, Reversed, Authorities, DbWeight>;

    /// Reverses the list of authorities.
    pub struct Reversed;

    impl UncheckedOnRuntimeUpgrade for Reversed {
        fn on_runtime_upgrade() -> Weight {
            authorities::Authorities::<Runtime>::mutate(|accounts| accounts.as_mut().reverse());
            DbWeight::get().reads_writes(1, 1)
        }
    }
}
