//! Parts of a node that do not depend on other nodes: database, client, pool, block import.

use mettle_runtime::{OpaqueBlock as Block, RuntimeApi};
use sc_consensus_aura::ImportQueueParams;
use sc_consensus_grandpa::{GrandpaBlockImport, LinkHalf};
use sc_service::{Configuration, TaskManager, error::Error};
use sc_telemetry::{Telemetry, TelemetryWorker};
use sp_consensus_aura::sr25519::AuthorityPair as AuraPair;
use std::sync::Arc;

pub type Client =
    sc_service::TFullClient<Block, RuntimeApi, sc_executor::WasmExecutor<sp_io::SubstrateHostFunctions>>;
pub type Backend = sc_service::TFullBackend<Block>;
pub type TransactionPool = sc_transaction_pool::TransactionPoolHandle<Block, Client>;
type SelectChain = sc_consensus::LongestChain<Backend, Block>;
type BlockImport = GrandpaBlockImport<Backend, Block, Client, SelectChain>;

/// Every block at a multiple of this number keeps its finality proof, for nodes that catch up.
pub const JUSTIFICATION_PERIOD: u32 = 512;

/// A node without its network.
pub struct Parts {
    pub client: Arc<Client>,
    pub backend: Arc<Backend>,
    pub task_manager: TaskManager,
    pub import_queue: sc_consensus::DefaultImportQueue<Block>,
    pub keystore: sc_service::KeystoreContainer,
    pub select_chain: SelectChain,
    pub pool: Arc<TransactionPool>,
    pub block_import: BlockImport,
    pub grandpa: LinkHalf<Block, Client, SelectChain>,
    pub telemetry: Option<Telemetry>,
}

/// Opens the database and builds the parts.
///
/// # Errors
/// Fails if the database cannot be opened, or a part cannot be built.
pub fn parts(config: &Configuration) -> Result<Parts, Error> {
    let telemetry = config
        .telemetry_endpoints
        .clone()
        .filter(|endpoints| !endpoints.is_empty())
        .map(|endpoints| -> Result<_, sc_telemetry::Error> {
            let worker = TelemetryWorker::new(16)?;
            let telemetry = worker.handle().new_telemetry(endpoints);
            Ok((worker, telemetry))
        })
        .transpose()?;
    let executor = sc_service::new_wasm_executor(&config.executor);
    let (client, backend, keystore, task_manager) = sc_service::new_full_parts::<Block, RuntimeApi, _>(
        config,
        telemetry.as_ref().map(|(_, telemetry)| telemetry.handle()),
        executor,
        Vec::new(),
    )?;
    let client = Arc::new(client);
    let telemetry = telemetry.map(|(worker, telemetry)| {
        task_manager.spawn_handle().spawn("telemetry", None, worker.run());
        telemetry
    });
    let telemetry_handle = telemetry.as_ref().map(Telemetry::handle);

    let select_chain = SelectChain::new(backend.clone());
    let pool = sc_transaction_pool::Builder::new(
        task_manager.spawn_essential_handle(),
        client.clone(),
        config.role.is_authority().into(),
    )
    .with_options(config.transaction_pool.clone())
    .with_prometheus(config.prometheus_registry())
    .build();

    let (block_import, grandpa) = sc_consensus_grandpa::block_import(
        client.clone(),
        JUSTIFICATION_PERIOD,
        &client,
        select_chain.clone(),
        telemetry_handle.clone(),
    )?;
    let slots = client.clone();
    let import_queue = sc_consensus_aura::import_queue::<AuraPair, _, _, _, _, _>(ImportQueueParams {
        block_import: block_import.clone(),
        justification_import: Some(Box::new(block_import.clone())),
        client: client.clone(),
        create_inherent_data_providers: move |parent, ()| {
            let slots = slots.clone();
            async move { Ok(inherents(sc_consensus_aura::standalone::slot_duration_at(&*slots, parent)?)) }
        },
        spawner: &task_manager.spawn_essential_handle(),
        registry: config.prometheus_registry(),
        check_for_equivocation: Default::default(),
        telemetry: telemetry_handle,
        compatibility_mode: Default::default(),
    })?;

    Ok(Parts {
        client,
        backend,
        task_manager,
        import_queue,
        keystore,
        select_chain,
        pool: Arc::new(pool),
        block_import,
        grandpa,
        telemetry,
    })
}

/// Returns the inherents of a block: its slot and timestamp.
pub fn inherents(
    slot_duration: sp_consensus_aura::SlotDuration,
) -> (sp_consensus_aura::inherents::InherentDataProvider, sp_timestamp::InherentDataProvider) {
    let now = sp_timestamp::InherentDataProvider::from_system_time();
    let slot = sp_consensus_aura::inherents::InherentDataProvider::from_timestamp_and_slot_duration(
        *now,
        slot_duration,
    );
    (slot, now)
}
