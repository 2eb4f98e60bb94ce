#![doc = include_str!("../README.md")]

use frame::{
    deps::{codec::Encode, frame_system, sp_runtime},
    testing_prelude::{BuildStorage as _, TestState},
};
use protocol::{Digest, RunId, identity::Signature};

pub use pallet_balances;

/// Balance type of every test runtime.
pub type Balance = u128;

/// Defines `Test`: a runtime of `System` (index 0), `Balances` (index 1) and the pallets given, with both configured.
///
/// ```ignore
/// mock::runtime! {
///     account: u128, deposit: 5;
///     2 Registry: pallet_registry,
///     3 Rewards: pallet_rewards,
/// }
/// ```
///
/// `account` is the account id, `deposit` the existential deposit; `db_weight` is free unless given. The caller has
/// `frame::testing_prelude` and this crate's `pallet_balances` in scope.
#[macro_export]
macro_rules! runtime {
    (
        account: $account:ty, deposit: $deposit:expr $(, db_weight: $db_weight:ty)?;
        $($index:tt $name:ident: $pallet:ident,)+
    ) => {
        #[frame_construct_runtime]
        mod runtime {
            #[runtime::runtime]
            #[runtime::derive(
                RuntimeCall,
                RuntimeEvent,
                RuntimeError,
                RuntimeOrigin,
                RuntimeFreezeReason,
                RuntimeHoldReason,
                RuntimeTask
            )]
            pub struct Test;
            #[runtime::pallet_index(0)]
            pub type System = frame_system::Pallet<Test>;
            #[runtime::pallet_index(1)]
            pub type Balances = pallet_balances::Pallet<Test>;
            $(
                #[runtime::pallet_index($index)]
                pub type $name = $pallet::Pallet<Test>;
            )+
        }

        #[derive_impl(frame_system::config_preludes::TestDefaultConfig)]
        impl frame_system::Config for Test {
            type Block = MockBlock<Test>;
            type AccountId = $account;
            type Lookup = frame::traits::IdentityLookup<$account>;
            type AccountData = pallet_balances::AccountData<$crate::Balance>;
            $(type DbWeight = $db_weight;)?
        }

        #[derive_impl(pallet_balances::config_preludes::TestDefaultConfig)]
        impl pallet_balances::Config for Test {
            type Balance = $crate::Balance;
            type AccountStore = System;
            type ExistentialDeposit = ConstU128<{ $deposit }>;
        }
    };
}

/// Configures the registry of a `Test` runtime for the tests of another pallet. No such test reaches its limits, and
/// a run needs neither floors nor a deposit. `hotkey` checks the proofs of hotkeys.
#[macro_export]
macro_rules! registry {
    (
        on_run_created: $on_run_created:ty,
        on_run_closed: $on_run_closed:ty,
        on_seats: $on_seats:ty,
        nominations: $nominations:ty,
        payslips: $payslips:ty,
        miner_weights: $miner_weights:ty,
        hotkey: $hotkey:ty $(,)?
    ) => {
        parameter_types! {
            pub const NoFloors: protocol::params::Floors = protocol::params::Floors::NONE;
        }

        impl pallet_registry::Config for Test {
            type Currency = Balances;
            type RuntimeHoldReason = RuntimeHoldReason;
            type Hotkey = $hotkey;
            type OnRunCreated = $on_run_created;
            type OnRunClosed = $on_run_closed;
            type OnSeats = $on_seats;
            type Nominations = $nominations;
            type Payslips = $payslips;
            type MinerWeights = $miner_weights;
            type MaxRuns = ConstU32<16>;
            type MaxSeats = ConstU32<1088>;
            type MaxChanges = ConstU32<64>;
            type MaxUnbonding = ConstU32<8>;
            type MaxCheckpointWindows = ConstU32<64>;
            type RunDeposit = ConstU128<0>;
            type RateDeposit = ConstU128<0>;
            type DefaultFloors = NoFloors;
        }
    };
}

/// Defines `Consents`, a test double for ed25519 in tests whose accounts are not keys: a hotkey's proof is
/// [`consent`].
#[macro_export]
macro_rules! consents {
    ($account:ty, $hotkey_proof:path) => {
        pub struct Consents;

        impl $hotkey_proof for Consents {
            fn is_valid(
                hotkey: &$account,
                _: &protocol::GenesisHash,
                run: protocol::RunId,
                coldkey: &$account,
                proof: &protocol::identity::Signature,
            ) -> bool {
                *proof == $crate::consent(hotkey, run, coldkey)
            }

            #[cfg(feature = "runtime-benchmarks")]
            fn prove(
                index: u32,
                _: &protocol::GenesisHash,
                run: protocol::RunId,
                coldkey: &$account,
            ) -> ($account, protocol::identity::Signature) {
                let hotkey = frame::benchmarking::prelude::account("proven", index, 0);
                let proof = $crate::consent(&hotkey, run, coldkey);
                (hotkey, proof)
            }
        }
    };
}

/// Returns the proof of `hotkey` that it consents to hold a seat of `run` for `coldkey`, without its key.
pub fn consent<AccountId: Encode>(hotkey: &AccountId, run: RunId, coldkey: &AccountId) -> Signature {
    let digest = Digest::of(&(hotkey, run, coldkey).encode());
    Signature([digest.0, digest.0].concat().try_into().expect("two digests have 64 bytes"))
}

/// Builds a chain at block 1 on which these accounts have these balances.
pub fn chain<T>(balances: Vec<(T::AccountId, Balance)>) -> TestState
where
    T: pallet_balances::Config<Balance = Balance>,
{
    let mut storage = frame_system::GenesisConfig::<T>::default().build_storage().expect("no pallet refuses");
    pallet_balances::GenesisConfig::<T> { balances, ..Default::default() }
        .assimilate_storage(&mut storage)
        .expect("each account is named once, with more than the existential deposit");
    let mut chain: TestState = storage.into();
    chain.execute_with(|| frame_system::Pallet::<T>::set_block_number(sp_runtime::traits::One::one()));
    chain
}
