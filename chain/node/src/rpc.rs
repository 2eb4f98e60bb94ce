//! RPC methods in addition to those of every Substrate node: nonces, fees, and the state of GRANDPA.

use crate::parts::{Backend, Client, TransactionPool};
use jsonrpsee::RpcModule;
use mettle_runtime::{Hash, OpaqueBlock as Block};
use pallet_transaction_payment_rpc::{TransactionPayment, TransactionPaymentApiServer};
use sc_consensus_grandpa::{
    FinalityProofProvider, GrandpaJustificationStream, SharedAuthoritySet, SharedVoterState,
};
use sc_consensus_grandpa_rpc::{Grandpa, GrandpaApiServer};
use sc_rpc::SubscriptionTaskExecutor;
use std::sync::Arc;
use substrate_frame_rpc_system::{System, SystemApiServer};

/// State of GRANDPA, for clients.
#[derive(Clone)]
pub struct Finality {
    pub authorities: SharedAuthoritySet<Hash, u32>,
    pub voter_state: SharedVoterState,
    pub justifications: GrandpaJustificationStream<Block>,
    pub proofs: Arc<FinalityProofProvider<Backend, Block>>,
}

/// Builds the RPC module.
///
/// # Errors
/// Fails if two methods have the same name.
pub fn module(
    client: Arc<Client>,
    pool: Arc<TransactionPool>,
    finality: Finality,
    executor: SubscriptionTaskExecutor,
) -> Result<RpcModule<()>, jsonrpsee::core::RegisterMethodError> {
    let Finality { authorities, voter_state, justifications, proofs } = finality;
    let mut module = RpcModule::new(());
    module.merge(System::new(client.clone(), pool).into_rpc())?;
    module.merge(TransactionPayment::new(client).into_rpc())?;
    module.merge(Grandpa::new(executor, authorities, voter_state, justifications, proofs).into_rpc())?;
    Ok(module)
}
