//! The Mettle runtime: the pallets with their order and bounds, fees, and the runtime API.
//!
//! The rules are in `contracts/`. Otherwise this is an ordinary Substrate solochain with Aura, GRANDPA,
//! MultiSignature accounts and the standard transaction extensions, so that any Substrate client can read, sign and
//! submit.
//!
//! No rule reads a wall clock. The genesis sets the length of a slot (`authorities.slotMillis`, by default
//! `SLOT_DURATION`): chain time advances by at least that with each block. A development chain may make blocks
//! faster.
#![cfg_attr(not(test), no_std)]

extern crate alloc;
#[cfg(feature = "std")]
#[macro_use] // For FRAME's macros.
extern crate std;

use alloc::{string::String, vec::Vec};
#[cfg(feature = "runtime-benchmarks")]
use frame::deps::{frame_benchmarking, frame_support};
use frame::{
    deps::{
        frame_support::traits::VariantCountOf,
        frame_system, sp_core, sp_genesis_builder,
        sp_runtime::{
            MultiAddress, generic, impl_opaque_keys,
            traits::{Block as BlockT, ConvertInto, OpaqueKeys},
        },
    },
    runtime::{apis, prelude::*, types_common::Signature},
};
use pallet_rewards::Former;
use pallet_transaction_payment::{FeeDetails, FungibleAdapter, RuntimeDispatchInfo};
use pallet_weights::Departed;
use protocol::{RunId, Uid, Window, consensus::Consensus, params::Floors, view};
use sp_consensus_aura::sr25519::AuthorityId as AuraId;
use sp_consensus_grandpa::AuthorityId as GrandpaId;

pub use frame::runtime::types_common::AccountId;

pub mod authorities;
#[cfg(feature = "runtime-benchmarks")]
mod benches;
pub mod fees;
pub mod free_calls;
pub mod mettle_api;
pub mod migrations;
pub mod presets;
pub mod priority;
pub mod proxies;
#[cfg(test)]
mod tests;
mod views;

pub type Balance = u128;
pub type Nonce = u32;
pub type BlockNumber = u32;
pub type Hash = sp_core::H256;

/// One MTL. It has twelve decimals.
pub const UNIT: Balance = 1_000_000_000_000;
/// Default length of a slot, in milliseconds.
pub const SLOT_DURATION: u64 = 2000;
/// SS58 prefix of addresses.
pub const SS58_PREFIX: u16 = 42;

/// Version for clients, and for nodes that read it from the Wasm runtime without running it.
#[cfg_attr(not(feature = "upgrade-test"), runtime_version)]
const RELEASE: RuntimeVersion = RuntimeVersion {
    spec_name: alloc::borrow::Cow::Borrowed("mettle"),
    impl_name: alloc::borrow::Cow::Borrowed("mettle"),
    authoring_version: 1,
    spec_version: 10,
    impl_version: 1,
    apis: RUNTIME_API_VERSIONS,
    transaction_version: 5,
    system_version: 1,
};

pub const VERSION: RuntimeVersion = {
    let mut version = RELEASE;
    if cfg!(feature = "upgrade-test") {
        version.spec_version += 1;
    }
    version
};

impl_opaque_keys! {
    pub struct SessionKeys {
        pub aura: Aura,
        pub grandpa: Grandpa,
    }
}

/// Transaction extensions. Signatures depend on their order: a change needs a new `transaction_version`.
pub type TxExtension = (
    frame_system::AuthorizeCall<Runtime>,
    frame_system::CheckNonZeroSender<Runtime>,
    frame_system::CheckSpecVersion<Runtime>,
    frame_system::CheckTxVersion<Runtime>,
    frame_system::CheckGenesis<Runtime>,
    frame_system::CheckEra<Runtime>,
    // Shown to clients as `CheckNonce`, `CheckWeight` and `ChargeTransactionPayment`.
    priority::ProtocolPriority,
    // A signer without a screen for metadata, such as a Ledger, uses it to prove what it displayed.
    frame_metadata_hash_extension::CheckMetadataHash<Runtime>,
    frame_system::WeightReclaim<Runtime>,
);

pub type Header = generic::Header<BlockNumber, BlakeTwo256>;
pub type UncheckedExtrinsic =
    generic::UncheckedExtrinsic<MultiAddress<AccountId, ()>, RuntimeCall, Signature, TxExtension>;
pub type Block = generic::Block<Header, UncheckedExtrinsic>;
pub type OpaqueBlock = frame::runtime::types_common::OpaqueBlock;
type RuntimeExecutive =
    Executive<Runtime, Block, frame_system::ChainContext<Runtime>, Runtime, AllPalletsWithSystem>;

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
        RuntimeSlashReason,
        RuntimeLockId,
        RuntimeTask,
        RuntimeViewFunction
    )]
    pub struct Runtime;

    #[runtime::pallet_index(0)]
    pub type System = frame_system::Pallet<Runtime>;
    #[runtime::pallet_index(1)]
    pub type Timestamp = pallet_timestamp::Pallet<Runtime>;
    #[runtime::pallet_index(2)]
    pub type Aura = pallet_aura::Pallet<Runtime>;
    #[runtime::pallet_index(3)]
    pub type Grandpa = pallet_grandpa::Pallet<Runtime>;
    #[runtime::pallet_index(4)]
    pub type Balances = pallet_balances::Pallet<Runtime>;
    #[runtime::pallet_index(5)]
    pub type TransactionPayment = pallet_transaction_payment::Pallet<Runtime>;
    #[runtime::pallet_index(6)]
    pub type Sudo = pallet_sudo::Pallet<Runtime>;
    // Before the session pallet, whose genesis reads the authorities.
    #[runtime::pallet_index(7)]
    pub type Authorities = authorities::Pallet<Runtime>;
    #[runtime::pallet_index(8)]
    pub type Session = pallet_session::Pallet<Runtime>;

    #[runtime::pallet_index(10)]
    pub type Registry = pallet_registry::Pallet<Runtime>;
    #[runtime::pallet_index(11)]
    pub type Windows = pallet_windows::Pallet<Runtime>;
    #[runtime::pallet_index(12)]
    pub type Weights = pallet_weights::Pallet<Runtime>;
    #[runtime::pallet_index(13)]
    pub type Rewards = pallet_rewards::Pallet<Runtime>;
    #[runtime::pallet_index(14)]
    pub type Nomination = pallet_nomination::Pallet<Runtime>;

    #[runtime::pallet_index(20)]
    pub type Proxy = pallet_proxy::Pallet<Runtime>;
    #[runtime::pallet_index(21)]
    pub type Utility = pallet_utility::Pallet<Runtime>;
    #[runtime::pallet_index(23)]
    pub type FreeCalls = free_calls::Pallet<Runtime>;
}

parameter_types! {
    pub const Version: RuntimeVersion = VERSION;
    pub const ExistentialDeposit: Balance = UNIT / 1000;
    pub const RunDeposit: Balance = 10 * UNIT;
    pub const RateDeposit: Balance = 10 * UNIT;
    pub DefaultFloors: Floors = Floors::default();
    pub const KeyDeposit: Balance = UNIT;
    pub const ProxyDepositBase: Balance = UNIT / 10;
    pub const ProxyDepositFactor: Balance = UNIT / 100;
    pub const TreasuryId: PalletId = PalletId(*b"mettle/t");
    pub const NominationsId: PalletId = PalletId(*b"mettle/n");
    pub const MinNomination: Balance = UNIT / 10;
    pub SharePayWeight: Weight =
        pallet_nomination::weight_info::share_pay::<Runtime>();
    /// Half of a block: one more task still leaves room for calls.
    pub MaxTaskWeight: Weight = block_weights().max_block.saturating_div(2);
}

fn block_weights() -> frame_system::limits::BlockWeights {
    <Runtime as frame_system::Config>::BlockWeights::get()
}

/// Maximum number of runs.
pub type MaxRuns = ConstU32<1024>;
/// Maximum number of seats per run.
pub type MaxSeats = ConstU32<1088>;
/// Maximum number of authorities.
pub type MaxAuthorities = ConstU32<32>;
/// Number of blocks per session. New authorities and keys take effect after one to two sessions.
pub type SessionBlocks = ConstU32<600>;

#[derive_impl(frame_system::config_preludes::SolochainDefaultConfig)]
impl frame_system::Config for Runtime {
    type Block = Block;
    type Version = Version;
    type Nonce = Nonce;
    type BlockHashCount = ConstU32<2400>;
    type AccountData = pallet_balances::AccountData<Balance>;
    type DbWeight = weights::constants::RocksDbWeight;
    type SS58Prefix = ConstU16<SS58_PREFIX>;
    type SingleBlockMigrations = migrations::All;
    type SystemWeightInfo = frame_system::weights::SubstrateWeight<Runtime>;
    type ExtensionsWeightInfo = frame_system::SubstrateExtensionsWeight<Runtime>;
}

impl pallet_balances::Config for Runtime {
    type RuntimeEvent = RuntimeEvent;
    type RuntimeHoldReason = RuntimeHoldReason;
    type RuntimeFreezeReason = RuntimeFreezeReason;
    type WeightInfo = pallet_balances::weights::SubstrateWeight<Runtime>;
    type Balance = Balance;
    type DustRemoval = ();
    type ExistentialDeposit = ExistentialDeposit;
    type AccountStore = System;
    type ReserveIdentifier = [u8; 8];
    type FreezeIdentifier = RuntimeFreezeReason;
    type MaxLocks = ConstU32<50>;
    type MaxReserves = ConstU32<50>;
    type MaxFreezes = VariantCountOf<RuntimeFreezeReason>;
    type DoneSlashHandler = ();
}

impl pallet_sudo::Config for Runtime {
    type RuntimeEvent = RuntimeEvent;
    type RuntimeCall = RuntimeCall;
    type WeightInfo = pallet_sudo::weights::SubstrateWeight<Runtime>;
}

impl free_calls::Config for Runtime {}

impl pallet_timestamp::Config for Runtime {
    type Moment = u64;
    type OnTimestampSet = Aura;
    type MinimumPeriod = authorities::HalfSlot;
    type WeightInfo = ();
}

impl pallet_aura::Config for Runtime {
    type AuthorityId = AuraId;
    type DisabledValidators = ();
    type MaxAuthorities = MaxAuthorities;
    type AllowMultipleBlocksPerSlot = ConstBool<false>;
    type SlotDuration = pallet_aura::MinimumPeriodTimesTwo<Runtime>;
}

impl pallet_grandpa::Config for Runtime {
    type RuntimeEvent = RuntimeEvent;
    type WeightInfo = ();
    type MaxAuthorities = MaxAuthorities;
    type MaxNominators = ConstU32<0>;
    type MaxSetIdSessionEntries = ConstU64<0>;
    type KeyOwnerProof = sp_core::Void;
    type EquivocationReportSystem = ();
}

impl authorities::Config for Runtime {
    type SessionBlocks = SessionBlocks;
    type MaxAuthorities = MaxAuthorities;
}

impl pallet_session::Config for Runtime {
    type RuntimeEvent = RuntimeEvent;
    type ValidatorId = AccountId;
    type ValidatorIdOf = ConvertInto;
    type ShouldEndSession = authorities::Never;
    type NextSessionRotation = pallet_session::PeriodicSessions<SessionBlocks, ConstU32<0>>;
    type SessionManager = Authorities;
    type SessionHandler = <SessionKeys as OpaqueKeys>::KeyTypeIdProviders;
    type Keys = SessionKeys;
    type DisablingStrategy = ();
    type WeightInfo = pallet_session::weights::SubstrateWeight<Runtime>;
    type Currency = Balances;
    type KeyDeposit = KeyDeposit;
}

impl pallet_proxy::Config for Runtime {
    type RuntimeEvent = RuntimeEvent;
    type RuntimeCall = RuntimeCall;
    type Currency = Balances;
    type ProxyType = proxies::ProxyType;
    type ProxyDepositBase = ProxyDepositBase;
    type ProxyDepositFactor = ProxyDepositFactor;
    type MaxProxies = ConstU32<32>;
    type WeightInfo = pallet_proxy::weights::SubstrateWeight<Runtime>;
    type MaxPending = ConstU32<32>;
    type CallHasher = BlakeTwo256;
    type AnnouncementDepositBase = ProxyDepositBase;
    type AnnouncementDepositFactor = ProxyDepositFactor;
    type BlockNumberProvider = System;
}

impl pallet_utility::Config for Runtime {
    type RuntimeEvent = RuntimeEvent;
    type RuntimeCall = RuntimeCall;
    type PalletsOrigin = OriginCaller;
    type WeightInfo = pallet_utility::weights::SubstrateWeight<Runtime>;
}

impl pallet_transaction_payment::Config for Runtime {
    type RuntimeEvent = RuntimeEvent;
    type OnChargeTransaction = FungibleAdapter<Balances, ()>;
    type WeightToFee = fees::WeightFee;
    type LengthToFee = fees::LengthFee;
    type FeeMultiplierUpdate = fees::FullBlocksCostMore;
    type OperationalFeeMultiplier = ConstU8<5>;
    type WeightInfo = pallet_transaction_payment::weights::SubstrateWeight<Runtime>;
}

impl pallet_registry::Config for Runtime {
    type Currency = Balances;
    type RuntimeHoldReason = RuntimeHoldReason;
    type Hotkey = pallet_registry::Ed25519;
    type OnRunCreated = Windows;
    // Pay first: it belongs to the coldkeys of seats, which the registry clears last.
    type OnRunClosed = ((Rewards, Nomination), (Weights, Windows));
    // Weights first: they read the validator's record before the windows clear it.
    type OnSeats = ((Weights, Windows), (Rewards, Nomination));
    type Nominations = Nomination;
    type Payslips = Rewards;
    type MinerWeights = Weights;
    type MaxChanges = ConstU32<64>;
    type MaxUnbonding = ConstU32<8>;
    type MaxRuns = MaxRuns;
    type MaxSeats = MaxSeats;
    type MaxCheckpointWindows = ConstU32<64>;
    type RunDeposit = RunDeposit;
    type RateDeposit = RateDeposit;
    type DefaultFloors = DefaultFloors;
}

impl pallet_windows::Config for Runtime {
    type Epochs = Weights;
    type KeptWindows = ConstU32<128>;
    type MaxTaskWeight = MaxTaskWeight;
}

impl pallet_weights::Config for Runtime {
    type Payroll = PayFromTreasury;
    type Members = Windows;
    type Probes = Windows;
}

impl pallet_rewards::Config for Runtime {
    type SharePayWeight = SharePayWeight;
    type PalletId = TreasuryId;
}

impl pallet_nomination::Config for Runtime {
    // Nothing iterates over nominators, and with a low limit a rival could fill a pool.
    type MaxNominators = ConstU32<16_384>;
    type MaxUnbonding = ConstU32<8>;
    type MinNomination = MinNomination;
    type PalletId = NominationsId;
}

/// Pays an epoch's consensus from the run's treasury.
pub struct PayFromTreasury;

impl pallet_weights::Payroll<AccountId> for PayFromTreasury {
    fn pay(
        run: RunId,
        epoch: u32,
        merged: u32,
        consensus: &Consensus,
        departed: &[Departed<AccountId>],
    ) -> Weight {
        let former = departed.iter().map(|departed| Former {
            seat: departed.seat,
            coldkey: departed.coldkey.clone(),
            stake: departed.stake,
        });
        Rewards::pay_epoch(run, epoch, merged, &consensus.seats(), &former.collect::<Vec<_>>())
    }
}

impl_runtime_apis! {
    impl apis::Core<Block> for Runtime {
        fn version() -> RuntimeVersion {
            VERSION
        }
        fn execute_block(block: <Block as BlockT>::LazyBlock) {
            RuntimeExecutive::execute_block(block)
        }
        fn initialize_block(header: &Header) -> ExtrinsicInclusionMode {
            RuntimeExecutive::initialize_block(header)
        }
    }

    impl apis::Metadata<Block> for Runtime {
        fn metadata() -> OpaqueMetadata {
            OpaqueMetadata::new(Runtime::metadata().into())
        }
        fn metadata_at_version(version: u32) -> Option<OpaqueMetadata> {
            Runtime::metadata_at_version(version)
        }
        fn metadata_versions() -> Vec<u32> {
            Runtime::metadata_versions()
        }
    }

    impl apis::BlockBuilder<Block> for Runtime {
        fn apply_extrinsic(extrinsic: <Block as BlockT>::Extrinsic) -> ApplyExtrinsicResult {
            RuntimeExecutive::apply_extrinsic(extrinsic)
        }
        fn finalize_block() -> Header {
            RuntimeExecutive::finalize_block()
        }
        fn inherent_extrinsics(data: InherentData) -> Vec<<Block as BlockT>::Extrinsic> {
            data.create_extrinsics()
        }
        fn check_inherents(block: <Block as BlockT>::LazyBlock, data: InherentData) -> CheckInherentsResult {
            data.check_extrinsics(&block)
        }
    }

    impl apis::TaggedTransactionQueue<Block> for Runtime {
        fn validate_transaction(
            source: TransactionSource,
            tx: <Block as BlockT>::Extrinsic,
            block_hash: Hash,
        ) -> TransactionValidity {
            RuntimeExecutive::validate_transaction(source, tx, block_hash)
        }
    }

    impl apis::OffchainWorkerApi<Block> for Runtime {
        fn offchain_worker(header: &Header) {
            RuntimeExecutive::offchain_worker(header)
        }
    }

    impl apis::AuraApi<Block, AuraId> for Runtime {
        fn slot_duration() -> apis::SlotDuration {
            apis::SlotDuration::from_millis(Aura::slot_duration())
        }
        fn authorities() -> Vec<AuraId> {
            pallet_aura::Authorities::<Runtime>::get().into_inner()
        }
    }

    impl apis::GrandpaApi<Block> for Runtime {
        fn grandpa_authorities() -> sp_consensus_grandpa::AuthorityList {
            Grandpa::grandpa_authorities()
        }
        fn current_set_id() -> sp_consensus_grandpa::SetId {
            pallet_grandpa::CurrentSetId::<Runtime>::get()
        }
        fn submit_report_equivocation_unsigned_extrinsic(
            _proof: sp_consensus_grandpa::EquivocationProof<<Block as BlockT>::Hash, BlockNumber>,
            _owner: sp_consensus_grandpa::OpaqueKeyOwnershipProof,
        ) -> Option<()> {
            None
        }
        fn generate_key_ownership_proof(
            _set: sp_consensus_grandpa::SetId,
            _authority: GrandpaId,
        ) -> Option<sp_consensus_grandpa::OpaqueKeyOwnershipProof> {
            None
        }
    }

    impl apis::SessionKeys<Block> for Runtime {
        fn generate_session_keys(owner: Vec<u8>, seed: Option<Vec<u8>>) -> apis::OpaqueGeneratedSessionKeys {
            SessionKeys::generate(&owner, seed).into()
        }
        fn decode_session_keys(encoded: Vec<u8>) -> Option<Vec<(Vec<u8>, apis::KeyTypeId)>> {
            SessionKeys::decode_into_raw_public_keys(&encoded)
        }
    }

    impl apis::AccountNonceApi<Block, AccountId, Nonce> for Runtime {
        fn account_nonce(account: AccountId) -> Nonce {
            System::account_nonce(account)
        }
    }

    impl pallet_transaction_payment_rpc_runtime_api::TransactionPaymentApi<Block, Balance> for Runtime {
        fn query_info(uxt: <Block as BlockT>::Extrinsic, len: u32) -> RuntimeDispatchInfo<Balance> {
            TransactionPayment::query_info(uxt, len)
        }
        fn query_fee_details(uxt: <Block as BlockT>::Extrinsic, len: u32) -> FeeDetails<Balance> {
            TransactionPayment::query_fee_details(uxt, len)
        }
        fn query_weight_to_fee(weight: Weight) -> Balance {
            TransactionPayment::weight_to_fee(weight)
        }
        fn query_length_to_fee(length: u32) -> Balance {
            TransactionPayment::length_to_fee(length)
        }
    }

    #[cfg(feature = "runtime-benchmarks")]
    impl frame_benchmarking::Benchmark<Block> for Runtime {
        fn benchmark_metadata(
            extra: bool,
        ) -> (Vec<frame_benchmarking::BenchmarkList>, Vec<frame_support::traits::StorageInfo>) {
            benches::list(extra)
        }
        fn dispatch_benchmark(
            config: frame_benchmarking::BenchmarkConfig,
        ) -> Result<Vec<frame_benchmarking::BenchmarkBatch>, String> {
            benches::run(config)
        }
    }

    impl apis::GenesisBuilder<Block> for Runtime {
        fn build_state(config: Vec<u8>) -> sp_genesis_builder::Result {
            build_state::<RuntimeGenesisConfig>(config)
        }
        fn get_preset(id: &Option<PresetId>) -> Option<Vec<u8>> {
            get_preset::<RuntimeGenesisConfig>(id, presets::get_preset)
        }
        fn preset_names() -> Vec<PresetId> {
            presets::names()
        }
    }

    impl mettle_api::MettleApi<Block> for Runtime {
        fn runs() -> Vec<RunId> {
            Registry::run_ids()
        }
        fn run(run: RunId) -> Option<view::RunView> {
            views::run(run)
        }
        fn seats(run: RunId) -> Vec<view::SeatView> {
            views::seats(run)
        }
        fn window(run: RunId, window: Window) -> Option<view::WindowView> {
            Windows::window_view(run, window)
        }
        fn seat(run: RunId, uid: Uid) -> Option<view::SeatView> {
            views::seat(run, uid)
        }
        fn window_summary(run: RunId, window: Window) -> Option<view::WindowSummary> {
            Windows::window_summary(run, window)
        }
        fn seat_window(run: RunId, window: Window, uid: Uid) -> Option<view::SeatWindow> {
            Windows::seat_window(run, window, uid)
        }
        fn update_mirrors(run: RunId, window: Window, turn: u32, limit: u32) -> Vec<String> {
            views::update_mirrors(run, window, turn, limit)
        }
        fn position(run: RunId) -> Option<view::Position> {
            Windows::position(run)
        }
        fn weights(run: RunId) -> Vec<(Uid, u16)> {
            <Weights as pallet_registry::MinerWeights>::weights(run)
        }
        fn run_status(run: RunId) -> Option<view::RunStatus> {
            views::run_status(run)
        }
        fn seat_statuses(run: RunId, from: Uid, limit: u32) -> Vec<view::SeatStatus> {
            views::seat_statuses(run, from, limit)
        }
        fn account_status(run: RunId, account: view::Account) -> view::AccountStatus {
            views::account_status(run, account)
        }
        fn payslips(run: RunId, uid: Uid) -> Vec<view::Payslip> {
            Rewards::payslips(run, uid)
        }
        fn consensus_bonds(run: RunId, validator: Uid) -> Vec<(Uid, u32)> {
            pallet_weights::BondsOf::<Runtime>::get(run, validator).into_inner()
        }
    }
}
