//! Storage migrations of a runtime upgrade.

/// Oldest `spec_version` from whose state these migrations lead to the present layouts. Raised by a release that
/// changes a layout without a migration; a development chain with an older state is refused.
pub const OLDEST_STATE: u32 = 5;

/// Migrations in order of application. Each checks its pallet's storage version. No state since [`OLDEST_STATE`] needs
/// one.
#[cfg(not(feature = "upgrade-test"))]
pub type All = ();

#[cfg(feature = "upgrade-test")]
pub type All = upgrade_test::Migration;

/// An example migration, for the test of a live upgrade. The pattern for future ones.
#[cfg(feature = "upgrade-test")]
mod upgrade_test {
    use crate::{Authorities, Runtime, authorities, frame_system};
    use frame::{
        deps::frame_support::{migrations::VersionedMigration, traits::UncheckedOnRuntimeUpgrade},
        runtime::prelude::*,
    };

    type DbWeight = <Runtime as frame_system::Config>::DbWeight;

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
