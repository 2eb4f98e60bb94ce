//! Stands in for the crate of this name, which `benchmark storage` needs and `benchmark pallet`, the only one that we
//! offer, does not. The real one is another runtime, built by way of an optimiser that is compiled from C++ first.

use codec::Encode;
use sp_runtime::traits::Block;
use sp_storage::ChildInfo;
use sp_trie::StorageProof;

/// There is no such runtime here.
pub const WASM_BINARY: Option<&[u8]> = None;

/// What would be handed to it.
#[derive(Encode)]
pub struct StorageAccessParams<B: Block> {
    state_root: B::Hash,
    storage_proof: StorageProof,
}

impl<B: Block> StorageAccessParams<B> {
    pub fn new_read(
        state_root: B::Hash,
        storage_proof: StorageProof,
        _keys: Vec<(Vec<u8>, Option<ChildInfo>)>,
    ) -> Self {
        StorageAccessParams { state_root, storage_proof }
    }

    pub fn new_write(
        state_root: B::Hash,
        storage_proof: StorageProof,
        _values: (Vec<(Vec<u8>, Vec<u8>)>, Option<ChildInfo>),
    ) -> Self {
        StorageAccessParams { state_root, storage_proof }
    }

    pub fn as_dry_run(&self) -> Self {
        StorageAccessParams { state_root: self.state_root, storage_proof: self.storage_proof.clone() }
    }
}
