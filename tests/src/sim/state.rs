//! The storage of a simulated chain: a map with nested transactions.
//!
//! It has no trie. Its root is a hash of all changes so far, so the cost of a block depends on its changes and not on
//! the size of the state. Two chains with the same blocks have the same root.

use codec::{Encode, EncodeAppend as _, EncodeLike};
use imbl::OrdMap;
use protocol::Digest;
use sp_core::{
    Blake2Hasher, Hasher as _,
    storage::{ChildInfo, StateVersion, TrackedStorageKey},
};
use sp_externalities::{
    Error, Extension, ExtensionStore, Externalities, MultiRemovalResults, set_and_run_with_externalities,
};
use std::{
    any::{Any, TypeId},
    collections::BTreeSet,
    ops::Bound,
    sync::Arc,
};

/// All entries of the chain's storage. Copies share equal entries.
#[derive(Clone, Default)]
pub(super) struct State {
    entries: OrdMap<Arc<[u8]>, Arc<[u8]>>,
    /// Replaced entries of each open transaction, the outermost first.
    transactions: Vec<Vec<Replaced>>,
    /// Keys written since the last root.
    changed: BTreeSet<Arc<[u8]>>,
    root: Digest,
}

/// A key and its former value.
type Replaced = (Arc<[u8]>, Option<Arc<[u8]>>);

/// An encoded item of a list.
struct Encoded(Vec<u8>);

impl Encode for Encoded {
    fn using_encoded<R, F: FnOnce(&[u8]) -> R>(&self, read: F) -> R {
        read(&self.0)
    }
}

impl EncodeLike for Encoded {}

impl State {
    /// Runs `work` of the runtime on this state.
    pub fn execute_with<R>(&mut self, work: impl FnOnce() -> R) -> R {
        set_and_run_with_externalities(self, work)
    }

    /// Replaces an entry, and returns its former value.
    fn replace(&mut self, key: Arc<[u8]>, value: Option<Arc<[u8]>>) -> Option<Arc<[u8]>> {
        match value {
            Some(value) => self.entries.insert(key, value),
            None => self.entries.remove(&key),
        }
    }
}

/// The runtime of this project has no child tries.
const NO_CHILDREN: &str = "the runtime has no child tries";

impl Externalities for State {
    fn set_offchain_storage(&mut self, _key: &[u8], _value: Option<&[u8]>) {}

    fn storage(&mut self, key: &[u8]) -> Option<Vec<u8>> {
        self.entries.get(key).map(|value| value.to_vec())
    }

    fn storage_hash(&mut self, key: &[u8]) -> Option<Vec<u8>> {
        self.entries.get(key).map(|value| Blake2Hasher::hash(value).encode())
    }

    fn child_storage_hash(&mut self, _child_info: &ChildInfo, _key: &[u8]) -> Option<Vec<u8>> {
        unreachable!("{NO_CHILDREN}")
    }

    fn child_storage(&mut self, _child_info: &ChildInfo, _key: &[u8]) -> Option<Vec<u8>> {
        unreachable!("{NO_CHILDREN}")
    }

    fn exists_storage(&mut self, key: &[u8]) -> bool {
        self.entries.contains_key(key)
    }

    fn next_storage_key(&mut self, key: &[u8]) -> Option<Vec<u8>> {
        let after = (Bound::Excluded(key), Bound::Unbounded);
        self.entries.range::<_, [u8]>(after).next().map(|(key, _)| key.to_vec())
    }

    fn next_child_storage_key(&mut self, _child_info: &ChildInfo, _key: &[u8]) -> Option<Vec<u8>> {
        unreachable!("{NO_CHILDREN}")
    }

    fn kill_child_storage(
        &mut self,
        _child_info: &ChildInfo,
        _maybe_limit: Option<u32>,
        _maybe_cursor: Option<&[u8]>,
    ) -> MultiRemovalResults {
        unreachable!("{NO_CHILDREN}")
    }

    /// Removes all entries with the prefix, regardless of the limit.
    fn clear_prefix(
        &mut self,
        prefix: &[u8],
        _maybe_limit: Option<u32>,
        _maybe_cursor: Option<&[u8]>,
    ) -> MultiRemovalResults {
        let from = (Bound::Included(prefix), Bound::Unbounded);
        let keys = self.entries.range::<_, [u8]>(from).map(|(key, _)| key);
        let keys: Vec<Vec<u8>> =
            keys.take_while(|key| key.starts_with(prefix)).map(|key| key.to_vec()).collect();
        let count = u32::try_from(keys.len()).unwrap_or(u32::MAX);
        keys.into_iter().for_each(|key| self.place_storage(key, None));
        MultiRemovalResults { maybe_cursor: None, backend: count, unique: count, loops: count }
    }

    fn clear_child_prefix(
        &mut self,
        _child_info: &ChildInfo,
        _prefix: &[u8],
        _maybe_limit: Option<u32>,
        _maybe_cursor: Option<&[u8]>,
    ) -> MultiRemovalResults {
        unreachable!("{NO_CHILDREN}")
    }

    fn place_storage(&mut self, key: Vec<u8>, value: Option<Vec<u8>>) {
        let (key, value) = (Arc::<[u8]>::from(key), value.map(Arc::from));
        self.changed.insert(key.clone());
        if self.transactions.is_empty() {
            self.replace(key, value);
            return;
        }
        let before = self.replace(key.clone(), value);
        if let Some(transaction) = self.transactions.last_mut() {
            transaction.push((key, before));
        }
    }

    fn place_child_storage(&mut self, _child_info: &ChildInfo, _key: Vec<u8>, _value: Option<Vec<u8>>) {
        unreachable!("{NO_CHILDREN}")
    }

    /// Returns a hash of the last root and of the entries written since.
    fn storage_root(&mut self, _state_version: StateVersion) -> Vec<u8> {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&self.root.0);
        for key in std::mem::take(&mut self.changed) {
            let value = self.entries.get(&key);
            hasher.update(&(key.len() as u64).to_le_bytes()).update(&key);
            hasher.update(&value.map_or(u64::MAX, |value| value.len() as u64).to_le_bytes());
            hasher.update(value.map_or(&[], |value| &value[..]));
        }
        self.root = Digest(*hasher.finalize().as_bytes());
        self.root.0.to_vec()
    }

    fn child_storage_root(&mut self, _child_info: &ChildInfo, _state_version: StateVersion) -> Vec<u8> {
        unreachable!("{NO_CHILDREN}")
    }

    fn storage_append(&mut self, key: Vec<u8>, value: Vec<u8>) {
        let before = self.storage(&key).unwrap_or_default();
        // A value that is not a list is replaced by a new list, as on a node.
        let appended = Vec::<Encoded>::append_or_new(before, [Encoded(value.clone())])
            .or_else(|_| Vec::<Encoded>::append_or_new(Vec::new(), [Encoded(value)]));
        self.place_storage(key, Some(appended.expect("one item can be appended to an empty list")));
    }

    fn storage_start_transaction(&mut self) {
        self.transactions.push(Vec::new());
    }

    fn storage_rollback_transaction(&mut self) -> Result<(), ()> {
        for (key, before) in self.transactions.pop().ok_or(())?.into_iter().rev() {
            self.replace(key, before);
        }
        Ok(())
    }

    fn storage_commit_transaction(&mut self) -> Result<(), ()> {
        let committed = self.transactions.pop().ok_or(())?;
        if let Some(outer) = self.transactions.last_mut() {
            outer.extend(committed);
        }
        Ok(())
    }

    fn wipe(&mut self) {}

    fn commit(&mut self) {}

    fn read_write_count(&self) -> (u32, u32, u32, u32) {
        (0, 0, 0, 0)
    }

    fn reset_read_write_count(&mut self) {}

    fn get_whitelist(&self) -> Vec<TrackedStorageKey> {
        Vec::new()
    }

    fn set_whitelist(&mut self, _: Vec<TrackedStorageKey>) {}

    fn get_read_and_written_keys(&self) -> Vec<(Vec<u8>, u32, u32, bool)> {
        Vec::new()
    }
}

/// No function of the runtime needs an extension.
impl ExtensionStore for State {
    fn extension_by_type_id(&mut self, _type_id: TypeId) -> Option<&mut dyn Any> {
        None
    }

    fn register_extension_with_type_id(
        &mut self,
        _type_id: TypeId,
        _extension: Box<dyn Extension>,
    ) -> Result<(), Error> {
        Err(Error::ExtensionsAreNotSupported)
    }

    fn deregister_extension_by_type_id(&mut self, _type_id: TypeId) -> Result<(), Error> {
        Err(Error::ExtensionsAreNotSupported)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use codec::Decode as _;
    use sp_state_machine::BasicExternalities;

    /// Writes, appends and removes, then undoes half of it.
    fn play(on: &mut dyn Externalities) -> Vec<Option<Vec<u8>>> {
        let key = |number: u32| format!("{}/{number}", number % 3).into_bytes();
        for round in 0..60u32 {
            on.storage_start_transaction();
            on.set_storage(key(round), vec![round as u8; (round % 7) as usize]);
            on.storage_start_transaction();
            on.storage_append(b"list".to_vec(), round.encode());
            match round % 4 {
                0 => drop(on.clear_prefix(b"1/", None, None)),
                1 => on.clear_storage(&key(round / 2)),
                _ => on.set_storage(key(round / 2), Vec::new()),
            }
            match round % 5 {
                0 => on.storage_rollback_transaction().unwrap(),
                _ => on.storage_commit_transaction().unwrap(),
            }
            match round % 7 {
                0 => on.storage_rollback_transaction().unwrap(),
                _ => on.storage_commit_transaction().unwrap(),
            }
        }
        let mut read = vec![on.storage(b"list")];
        let mut key = Vec::new();
        while let Some(next) = on.next_storage_key(&key) {
            read.push(Some(next.clone()));
            read.push(on.storage(&next));
            key = next;
        }
        read
    }

    #[test]
    fn it_holds_what_a_node_s_storage_holds() {
        let mut state = State::default();
        let read = play(&mut state);
        assert_eq!(read, play(&mut BasicExternalities::new_empty()));
        let list = Vec::<u32>::decode(&mut &read[0].clone().unwrap()[..]).unwrap();
        assert!(list.len() > 30 && !list.contains(&5) && list.contains(&6));
    }

    #[test]
    fn a_root_depends_on_every_change_and_not_on_what_was_undone() {
        let root = |state: &mut State| state.storage_root(StateVersion::V1);
        let mut one = State::default();
        one.set_storage(vec![1], vec![2]);
        let mut other = one.clone();
        assert_eq!(root(&mut one), root(&mut other));
        other.storage_start_transaction();
        other.set_storage(vec![1], vec![3]);
        other.storage_rollback_transaction().unwrap();
        one.set_storage(vec![1], vec![2]);
        assert_eq!(root(&mut one), root(&mut other));
        other.clear_storage(&[1]);
        assert_ne!(root(&mut one), root(&mut other));
    }
}
