//! Puts the parts of a node together and starts them.

use crate::rpc::{self, Finality};
use futures::FutureExt;
use mettle_runtime::{Hash, OpaqueBlock as Block, RuntimeApi};
use sc_client_api::{Backend as _, BlockBackend};
use sc_consensus_aura::{ImportQueueParams, SlotProportion, StartAuraParams};
use sc_consensus_grandpa::{
    FinalityProofProvider, GrandpaBlockImport, GrandpaParams, LinkHalf, SharedVoterState,
    ThreeQuartersOfTheUnfinalizedChain, VotingRulesBuilder, warp_proof,
};
use sc_network::{Litep2pNetworkBackend, NetworkBackend};
use sc_service::{Configuration, TaskManager, WarpSyncConfig, error::Error};
use sc_telemetry::{Telemetry, TelemetryWorker};
use sc_transaction_pool_api::OffchainTransactionPoolFactory;
use sp_consensus_aura::sr25519::AuthorityPair as AuraPair;
use std::{sync::Arc, time::Duration};

pub type Client =
    sc_service::TFullClient<Block, RuntimeApi, sc_executor::WasmExecutor<sp_io::SubstrateHostFunctions>>;
pub type Backend = sc_service::TFullBackend<Block>;
pub type TransactionPool = sc_transaction_pool::TransactionPoolHandle<Block, Client>;
type SelectChain = sc_consensus::LongestChain<Backend, Block>;
type BlockImport = GrandpaBlockImport<Backend, Block, Client, SelectChain>;
type Network = Litep2pNetworkBackend;

/// Blocks after which a proof that one is final is kept for whoever catches up; others are thrown away.
const JUSTIFICATION_PERIOD: u32 = 512;
/// How often GRANDPA's voters tell each other where they are.
const GOSSIP: Duration = Duration::from_millis(333);

/// The parts that have nothing to do with other nodes.
pub struct Parts {
    pub client: Arc<Client>,
    pub backend: Arc<Backend>,
    pub task_manager: TaskManager,
    pub import_queue: sc_consensus::DefaultImportQueue<Block>,
    keystore: sc_service::KeystoreContainer,
    select_chain: SelectChain,
    pool: Arc<TransactionPool>,
    block_import: BlockImport,
    grandpa: LinkHalf<Block, Client, SelectChain>,
    telemetry: Option<Telemetry>,
}

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

/// What every block says about when it was made.
fn inherents(
    slot_duration: sp_consensus_aura::SlotDuration,
) -> (sp_consensus_aura::inherents::InherentDataProvider, sp_timestamp::InherentDataProvider) {
    let now = sp_timestamp::InherentDataProvider::from_system_time();
    let slot = sp_consensus_aura::inherents::InherentDataProvider::from_timestamp_and_slot_duration(
        *now,
        slot_duration,
    );
    (slot, now)
}

/// Starts a node, which runs for as long as the task manager does.
pub fn start(config: Configuration) -> Result<TaskManager, Error> {
    let Parts {
        client,
        backend,
        mut task_manager,
        import_queue,
        keystore,
        select_chain,
        pool,
        block_import,
        grandpa,
        mut telemetry,
    } = parts(&config)?;
    let registry = config.prometheus_registry().cloned();
    let genesis = client.block_hash(0)?.ok_or_else(|| Error::Other("the chain has no first block".into()))?;

    let mut net_config = sc_network::config::FullNetworkConfiguration::<Block, Hash, Network>::new(
        &config.network,
        registry.clone(),
    );
    let metrics = <Network as NetworkBackend<Block, Hash>>::register_notification_metrics(registry.as_ref());
    let grandpa_protocol = sc_consensus_grandpa::protocol_standard_name(&genesis, &config.chain_spec);
    let (grandpa_config, grandpa_notifications) =
        sc_consensus_grandpa::grandpa_peers_set_config::<Block, Network>(
            grandpa_protocol.clone(),
            metrics.clone(),
            net_config.peer_store_handle(),
        );
    net_config.add_notification_protocol(grandpa_config);
    let warp_sync = Arc::new(warp_proof::NetworkProvider::new(
        backend.clone(),
        grandpa.shared_authority_set().clone(),
        Default::default(),
    ));
    let (network, system_rpc_tx, tx_handler_controller, sync_service, _bitswap) =
        sc_service::build_network(sc_service::BuildNetworkParams {
            config: &config,
            net_config,
            client: client.clone(),
            transaction_pool: pool.clone(),
            spawn_handle: task_manager.spawn_handle(),
            spawn_essential_handle: task_manager.spawn_essential_handle(),
            import_queue,
            block_announce_validator_builder: None,
            warp_sync_config: Some(WarpSyncConfig::WithProvider(warp_sync)),
            block_relay: None,
            metrics,
            gap_sync_body_policy: None,
        })?;

    if config.offchain_worker.enabled {
        let workers = sc_offchain::OffchainWorkers::new(sc_offchain::OffchainWorkerOptions {
            runtime_api_provider: client.clone(),
            is_validator: config.role.is_authority(),
            keystore: Some(keystore.keystore()),
            offchain_db: backend.offchain_storage(),
            transaction_pool: Some(OffchainTransactionPoolFactory::new(pool.clone())),
            network_provider: Arc::new(network.clone()),
            enable_http_requests: false,
            custom_extensions: |_| Vec::new(),
        })?;
        let running = workers.run(client.clone(), task_manager.spawn_handle()).boxed();
        task_manager.spawn_handle().spawn("offchain-workers", "offchain-worker", running);
    }

    let role = config.role;
    let force_authoring = config.force_authoring;
    let name = config.network.node_name.clone();
    let votes = !config.disable_grandpa;
    let voter_state = SharedVoterState::empty();
    let finality = Finality {
        authorities: grandpa.shared_authority_set().clone(),
        voter_state: voter_state.clone(),
        justifications: grandpa.justification_stream(),
        proofs: FinalityProofProvider::new_for_service(
            backend.clone(),
            Some(grandpa.shared_authority_set().clone()),
        ),
    };
    let rpc_client = client.clone();
    let rpc_pool = pool.clone();
    sc_service::spawn_tasks(sc_service::SpawnTasksParams {
        config,
        client: client.clone(),
        backend,
        task_manager: &mut task_manager,
        keystore: keystore.keystore(),
        transaction_pool: pool.clone(),
        rpc_builder: Box::new(move |executor| {
            rpc::module(rpc_client.clone(), rpc_pool.clone(), finality.clone(), executor)
                .map_err(|error| Error::Application(Box::new(error)))
        }),
        network: network.clone(),
        system_rpc_tx,
        tx_handler_controller,
        sync_service: sync_service.clone(),
        telemetry: telemetry.as_mut(),
        tracing_execute_block: None,
    })?;

    let telemetry = telemetry.as_ref().map(Telemetry::handle);
    if role.is_authority() {
        let slot_duration = sc_consensus_aura::slot_duration(&*client)?;
        let proposer_factory = sc_basic_authorship::ProposerFactory::new(
            task_manager.spawn_handle(),
            client.clone(),
            pool.clone(),
            registry.as_ref(),
            telemetry.clone(),
        );
        let aura =
            sc_consensus_aura::start_aura::<AuraPair, _, _, _, _, _, _, _, _, _, _>(StartAuraParams {
                slot_duration,
                client,
                select_chain,
                block_import,
                proposer_factory,
                create_inherent_data_providers: move |_, ()| async move { Ok(inherents(slot_duration)) },
                force_authoring,
                // While nothing becomes final, windows would pass in which nobody can take part: blocks come more rarely.
                backoff_authoring_blocks: Some(
                    sc_consensus_slots::BackoffAuthoringOnFinalizedHeadLagging::default(),
                ),
                keystore: keystore.keystore(),
                sync_oracle: sync_service.clone(),
                justification_sync_link: sync_service.clone(),
                block_proposal_slot_portion: SlotProportion::new(2.0 / 3.0),
                max_block_proposal_slot_portion: None,
                telemetry: telemetry.clone(),
                compatibility_mode: Default::default(),
            })?;
        // Essential: a node that can no longer make blocks stops, so that somebody sees it.
        task_manager.spawn_essential_handle().spawn_blocking("aura", Some("block-authoring"), aura);
    }

    if votes {
        let voter = sc_consensus_grandpa::run_grandpa_voter(GrandpaParams {
            config: sc_consensus_grandpa::Config {
                gossip_duration: GOSSIP,
                justification_generation_period: JUSTIFICATION_PERIOD,
                name: Some(name),
                observer_enabled: false,
                keystore: role.is_authority().then(|| keystore.keystore()),
                local_role: role,
                telemetry: telemetry.clone(),
                protocol_name: grandpa_protocol,
            },
            link: grandpa,
            network,
            sync: sync_service,
            notification_service: grandpa_notifications,
            // Votes are for the best block itself, where the default stays two blocks behind it: what voters do not see
            // alike, GRANDPA leaves open anyway, and whoever waits for a final block waits two slots less.
            voting_rule: VotingRulesBuilder::new().add(ThreeQuartersOfTheUnfinalizedChain).build(),
            prometheus_registry: registry,
            shared_voter_state: voter_state,
            telemetry,
            offchain_tx_pool_factory: OffchainTransactionPoolFactory::new(pool),
        })?;
        task_manager.spawn_essential_handle().spawn_blocking("grandpa-voter", None, voter);
    }
    Ok(task_manager)
}
