//! Starts a node: network, RPC, block authoring and finality.

use crate::{
    parts::{self, JUSTIFICATION_PERIOD, Parts, inherents},
    rpc::{self, Finality},
};
use mettle_runtime::{Hash, OpaqueBlock as Block};
use sc_client_api::BlockBackend;
use sc_consensus_aura::{SlotProportion, StartAuraParams};
use sc_consensus_grandpa::{
    FinalityProofProvider, GrandpaParams, SharedVoterState, ThreeQuartersOfTheUnfinalizedChain,
    VotingRulesBuilder, warp_proof,
};
use sc_network::{Litep2pNetworkBackend, NetworkBackend};
use sc_service::{Configuration, TaskManager, WarpSyncConfig, error::Error};
use sc_telemetry::Telemetry;
use sc_transaction_pool_api::OffchainTransactionPoolFactory;
use sp_consensus_aura::sr25519::AuthorityPair as AuraPair;
use std::{sync::Arc, time::Duration};

type Network = Litep2pNetworkBackend;

/// Interval at which GRANDPA's voters gossip their state.
const GOSSIP: Duration = Duration::from_millis(333);

/// Starts a node. It runs until the returned task manager is dropped.
///
/// # Errors
/// Fails if a part cannot be built, or a listening address is not available.
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
    } = parts::parts(&config)?;
    let registry = config.prometheus_registry().cloned();
    let genesis =
        client.block_hash(0)?.ok_or_else(|| Error::Other("the chain has no genesis block".into()))?;

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
        let mut proposer_factory = sc_basic_authorship::ProposerFactory::new(
            task_manager.spawn_handle(),
            client.clone(),
            pool.clone(),
            registry.as_ref(),
            telemetry.clone(),
        );
        // Free calls beyond their share precede paying calls and are skipped, for as long as a block is built.
        proposer_factory.set_soft_deadline(sp_runtime::Percent::from_percent(100));
        let aura =
            sc_consensus_aura::start_aura::<AuraPair, _, _, _, _, _, _, _, _, _, _>(StartAuraParams {
                slot_duration,
                client,
                select_chain,
                block_import,
                proposer_factory,
                create_inherent_data_providers: move |_, ()| async move { Ok(inherents(slot_duration)) },
                force_authoring,
                // Without finality, windows would pass in which seats cannot participate: slow down block production.
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
        // Essential: a node that can no longer make blocks stops, so that its operator is notified.
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
            // Vote for the best block rather than two blocks behind it, which saves two slots. GRANDPA does not
            // finalise a block without the agreement of its voters.
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
