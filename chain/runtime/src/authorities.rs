//! Authorities, which make and finalise blocks, and the length of a slot.
//!
//! An authority is an account. Its session keys, which sign blocks and votes, are in the session pallet: the account
//! sets them (`Session::set_keys`) and may replace them at any time. Only root adds and removes accounts. This is
//! administration of a chain, not an election.
//!
//! A session has a fixed number of blocks. A change is planned at the next session's start and takes effect one
//! session later, so that every authority knows the new set first.
//!
//! This pallet ends sessions instead of the session pallet's hook, for two reasons. That hook claims the weight of a
//! whole block, in which no transaction would fit, although a deadline may fall on it. Furthermore, a chain whose
//! authorities have no keys could never obtain any. Here, a session ends only while some authority has keys.

use crate::SLOT_DURATION;
use alloc::vec::Vec;
use frame::{deps::frame_support::traits::ConstU64, prelude::*};
use pallet_session::{NextKeys, SessionManager};

pub use pallet::*;

#[frame::pallet]
pub mod pallet {
    use super::*;

    const STORAGE_VERSION: StorageVersion =
        StorageVersion::new(if cfg!(feature = "upgrade-test") { 2 } else { 1 });

    #[pallet::pallet]
    #[pallet::storage_version(STORAGE_VERSION)]
    pub struct Pallet<T>(_);

    #[pallet::config]
    pub trait Config:
        frame_system::Config + pallet_session::Config<ValidatorId = <Self as frame_system::Config>::AccountId>
    {
        /// Number of blocks per session.
        #[pallet::constant]
        type SessionBlocks: Get<BlockNumberFor<Self>>;

        /// Maximum number of authorities.
        #[pallet::constant]
        type MaxAuthorities: Get<u32>;
    }

    /// Authorities, in the order in which they were added.
    #[pallet::storage]
    pub type Authorities<T: Config> =
        StorageValue<_, BoundedVec<T::AccountId, T::MaxAuthorities>, ValueQuery>;

    /// Length of a slot in milliseconds. Set permanently at genesis, as slots are counted from the Unix epoch.
    #[pallet::storage]
    pub type SlotMillis<T: Config> = StorageValue<_, u64, ValueQuery, ConstU64<SLOT_DURATION>>;

    #[pallet::genesis_config]
    pub struct GenesisConfig<T: Config> {
        /// Accounts of the authorities. Each needs keys in the genesis of the session pallet.
        pub accounts: Vec<T::AccountId>,
        pub slot_millis: u64,
    }

    impl<T: Config> Default for GenesisConfig<T> {
        fn default() -> GenesisConfig<T> {
            GenesisConfig { accounts: Vec::new(), slot_millis: SLOT_DURATION }
        }
    }

    #[pallet::genesis_build]
    impl<T: Config> BuildGenesisConfig for GenesisConfig<T> {
        fn build(&self) {
            assert!(self.slot_millis >= 2, "a slot must last at least 2 ms");
            let accounts = self.accounts.clone();
            Authorities::<T>::put(
                BoundedVec::try_from(accounts)
                    .expect("genesis has at most the maximal number of authorities"),
            );
            SlotMillis::<T>::put(self.slot_millis);
        }
    }

    #[pallet::event]
    #[pallet::generate_deposit(pub(super) fn deposit_event)]
    pub enum Event<T: Config> {
        /// The account is an authority from the session after the next.
        Added { account: T::AccountId },
        /// The account is not an authority from the session after the next.
        Removed { account: T::AccountId },
        /// None of the authorities has keys: the previous ones stay.
        NobodyHasKeys,
    }

    #[pallet::error]
    pub enum Error<T> {
        /// The account is already an authority. Nothing needs to be added.
        IsAuthority,
        /// The account is not an authority. List the authorities.
        NoAuthority,
        /// The account is the last authority, and a chain needs one. Add another one first.
        LastAuthority,
        /// The set of authorities is full. Remove one first.
        TooMany,
        /// The account has no session keys, so it could not make blocks. Set them first.
        NoKeys,
    }

    #[pallet::hooks]
    impl<T: Config> Hooks<BlockNumberFor<T>> for Pallet<T> {
        fn on_initialize(number: BlockNumberFor<T>) -> Weight {
            if !(number % T::SessionBlocks::get()).is_zero() {
                return Weight::zero();
            }
            if with_keys::<T>().is_empty() {
                Self::deposit_event(Event::NobodyHasKeys);
            } else {
                pallet_session::Pallet::<T>::rotate_session();
            }
            session_end_weight::<T>()
        }

        fn integrity_test() {
            assert!(!T::SessionBlocks::get().is_zero(), "a session must have blocks");
        }
    }

    #[pallet::call]
    impl<T: Config> Pallet<T> {
        /// Adds an authority that has set its session keys. Root only.
        #[pallet::call_index(0)]
        #[pallet::weight(T::DbWeight::get().reads_writes(2, 1))]
        pub fn add(origin: OriginFor<T>, account: T::AccountId) -> DispatchResult {
            ensure_root(origin)?;
            ensure!(NextKeys::<T>::contains_key(&account), Error::<T>::NoKeys);
            Authorities::<T>::try_mutate(|accounts| {
                ensure!(!accounts.contains(&account), Error::<T>::IsAuthority);
                accounts.try_push(account.clone()).map_err(|_| Error::<T>::TooMany)
            })?;
            Self::deposit_event(Event::Added { account });
            Ok(())
        }

        /// Removes an authority, but not the last one. Root only.
        #[pallet::call_index(1)]
        #[pallet::weight(T::DbWeight::get().reads_writes(1, 1))]
        pub fn remove(origin: OriginFor<T>, account: T::AccountId) -> DispatchResult {
            ensure_root(origin)?;
            Authorities::<T>::try_mutate(|accounts| {
                let position = accounts.iter().position(|authority| *authority == account);
                let position = position.ok_or(Error::<T>::NoAuthority)?;
                ensure!(accounts.len() > 1, Error::<T>::LastAuthority);
                accounts.remove(position);
                Ok::<_, Error<T>>(())
            })?;
            Self::deposit_event(Event::Removed { account });
            Ok(())
        }
    }
}

impl<T: Config> SessionManager<T::AccountId> for Pallet<T> {
    /// Returns the next authorities; `None` without a change: for GRANDPA, every announced set is a new set.
    fn new_session(_: u32) -> Option<Vec<T::AccountId>> {
        let next = with_keys::<T>();
        (next != pallet_session::Validators::<T>::get()).then_some(next)
    }

    fn start_session(_: u32) {}

    fn end_session(_: u32) {}
}

/// Returns the authorities with session keys.
fn with_keys<T: Config>() -> Vec<T::AccountId> {
    Authorities::<T>::get().into_iter().filter(|account| NextKeys::<T>::contains_key(account)).collect()
}

/// Weight of a session's end: the values of the session pallet, Aura and GRANDPA are read and written once, the
/// keys of each authority are read twice.
fn session_end_weight<T: Config>() -> Weight {
    let authorities = u64::from(T::MaxAuthorities::get());
    let reading = T::DbWeight::get().reads_writes(12 + 2 * authorities, 14);
    reading.saturating_add(Weight::from_parts(50_000_000 + 2_000_000 * authorities, 0))
}

/// A session end that never occurs: this pallet ends sessions.
pub struct Never;

impl<BlockNumber> pallet_session::ShouldEndSession<BlockNumber> for Never {
    fn should_end_session(_: BlockNumber) -> bool {
        false
    }
}

/// Half a slot in milliseconds: the minimum advance of chain time per block.
pub struct HalfSlot;

impl Get<u64> for HalfSlot {
    fn get() -> u64 {
        // Native code is also called without a chain, for instance for metadata.
        #[cfg(feature = "std")]
        if sp_externalities::with_externalities(|_| ()).is_none() {
            return SLOT_DURATION / 2;
        }
        SlotMillis::<crate::Runtime>::get() / 2
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        AccountId, Aura, Grandpa, Runtime, RuntimeEvent, RuntimeGenesisConfig, RuntimeOrigin, Session,
        SessionBlocks, SessionKeys, System, presets,
    };
    use codec::Encode;
    use frame::{
        deps::sp_runtime::DispatchError,
        testing_prelude::{BuildStorage, TestState, assert_noop, assert_ok},
    };
    use sp_keyring::{Ed25519Keyring, Sr25519Keyring};

    type Set = Pallet<Runtime>;

    /// Builds the genesis of the local network: Alice, Bob, Charlie and Dave.
    fn local() -> TestState {
        let patch = presets::get_preset(&"local_testnet".into()).unwrap();
        let patch: serde_json::Value = serde_json::from_slice(&patch).unwrap();
        let mut config = serde_json::to_value(RuntimeGenesisConfig::default()).unwrap();
        for (pallet, values) in patch.as_object().unwrap() {
            for (name, value) in values.as_object().unwrap() {
                config[pallet][name] = value.clone();
            }
        }
        let config: RuntimeGenesisConfig = serde_json::from_value(config).unwrap();
        config.build_storage().unwrap().into()
    }

    /// Runs the first block of each of the next `count` sessions.
    fn sessions(count: u32) {
        for _ in 0..count {
            let length: u32 = <SessionBlocks as Get<u32>>::get();
            let next = (System::block_number() / length + 1) * length;
            System::set_block_number(next);
            Set::on_initialize(next);
            Grandpa::on_finalize(next);
        }
    }

    fn account(key: Sr25519Keyring) -> AccountId {
        key.to_account_id()
    }

    fn set_keys(who: Sr25519Keyring, aura: Sr25519Keyring, grandpa: Ed25519Keyring) {
        let keys = SessionKeys { aura: aura.public().into(), grandpa: grandpa.public().into() };
        let statement = [b"POP_".as_slice(), &account(who).encode()].concat();
        let proof = (aura.sign(&statement), grandpa.sign(&statement)).encode();
        assert_ok!(Session::set_keys(RuntimeOrigin::signed(account(who)), keys, proof));
    }

    fn making_blocks() -> Vec<Sr25519Keyring> {
        let keys = pallet_aura::Authorities::<Runtime>::get();
        let grandpa = Grandpa::grandpa_authorities();
        assert_eq!(keys.len(), grandpa.len());
        keys.iter()
            .map(|key| Sr25519Keyring::iter().find(|known| known.public() == *key.as_ref()).unwrap())
            .collect()
    }

    #[test]
    fn the_genesis_authorities_make_blocks_from_the_first_one() {
        use Sr25519Keyring::{Alice, Bob, Charlie, Dave};
        local().execute_with(|| {
            assert_eq!(making_blocks(), [Alice, Bob, Charlie, Dave]);
            assert_eq!(Aura::slot_duration(), SLOT_DURATION);
            sessions(2);
            assert_eq!(making_blocks(), [Alice, Bob, Charlie, Dave]);
            // Without a change, GRANDPA keeps the first set.
            assert_eq!(pallet_grandpa::CurrentSetId::<Runtime>::get(), 0);
        });
    }

    #[test]
    fn a_change_takes_effect_in_the_session_after_the_next() {
        use Sr25519Keyring::{Alice, Bob, Charlie, Dave, Eve};
        local().execute_with(|| {
            set_keys(Eve, Eve, Ed25519Keyring::Eve);
            assert_ok!(Set::add(RuntimeOrigin::root(), account(Eve)));
            assert_ok!(Set::remove(RuntimeOrigin::root(), account(Bob)));
            sessions(1);
            assert_eq!(making_blocks(), [Alice, Bob, Charlie, Dave]);
            sessions(1);
            assert_eq!(making_blocks(), [Alice, Charlie, Dave, Eve]);
            assert_eq!(pallet_grandpa::CurrentSetId::<Runtime>::get(), 1);
            sessions(2);
            assert_eq!(pallet_grandpa::CurrentSetId::<Runtime>::get(), 1);
        });
    }

    #[test]
    fn an_authority_replaces_its_own_keys() {
        use Sr25519Keyring::{Alice, Bob, Charlie, Dave, Ferdie};
        local().execute_with(|| {
            set_keys(Bob, Ferdie, Ed25519Keyring::Ferdie);
            sessions(2);
            assert_eq!(making_blocks(), [Alice, Ferdie, Charlie, Dave]);
        });
    }

    #[test]
    fn an_authority_without_keys_makes_no_blocks_and_the_last_one_with_keys_continues() {
        use Sr25519Keyring::{Alice, Bob, Charlie, Dave};
        local().execute_with(|| {
            for key in [Alice, Bob, Charlie] {
                assert_ok!(Session::purge_keys(RuntimeOrigin::signed(account(key))));
            }
            sessions(2);
            assert_eq!(making_blocks(), [Dave]);
            assert_ok!(Session::purge_keys(RuntimeOrigin::signed(account(Dave))));
            sessions(3);
            assert_eq!(making_blocks(), [Dave]);
            System::assert_last_event(RuntimeEvent::Authorities(Event::NobodyHasKeys));
            set_keys(Alice, Alice, Ed25519Keyring::Alice);
            sessions(2);
            assert_eq!(making_blocks(), [Alice]);
        });
    }

    #[test]
    fn only_root_changes_the_authorities_and_each_refusal_has_its_own_error() {
        use Sr25519Keyring::{Alice, Bob, Charlie, Dave, Eve};
        local().execute_with(|| {
            let root = RuntimeOrigin::root;
            for origin in [RuntimeOrigin::signed(account(Alice)), RuntimeOrigin::none()] {
                assert_noop!(Set::add(origin.clone(), account(Eve)), DispatchError::BadOrigin);
                assert_noop!(Set::remove(origin, account(Bob)), DispatchError::BadOrigin);
            }
            assert_noop!(Set::add(root(), account(Eve)), Error::<Runtime>::NoKeys);
            assert_noop!(Set::add(root(), account(Bob)), Error::<Runtime>::IsAuthority);
            assert_noop!(Set::remove(root(), account(Eve)), Error::<Runtime>::NoAuthority);
            for key in [Alice, Bob, Charlie] {
                assert_ok!(Set::remove(root(), account(key)));
            }
            assert_noop!(Set::remove(root(), account(Dave)), Error::<Runtime>::LastAuthority);

            let many: Vec<_> = (0..32).map(|number| AccountId::new([number; 32])).collect();
            Authorities::<Runtime>::put(BoundedVec::try_from(many).unwrap());
            assert_noop!(Set::add(root(), account(Alice)), Error::<Runtime>::TooMany);
        });
    }

    #[test]
    fn the_genesis_sets_the_length_of_a_slot() {
        local().execute_with(|| {
            GenesisConfig::<Runtime> { accounts: vec![], slot_millis: 6000 }.build();
            assert_eq!(Aura::slot_duration(), 6000);
        });
    }

    #[test]
    fn the_end_of_a_session_leaves_room_in_its_block() {
        let limits: frame_system::limits::BlockWeights =
            <Runtime as frame_system::Config>::BlockWeights::get();
        assert!(session_end_weight::<Runtime>().ref_time() * 20 < limits.max_block.ref_time());
    }
}
