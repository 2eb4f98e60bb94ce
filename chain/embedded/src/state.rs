//! The state after a block: a Patricia trie over a map that shares its nodes with earlier states.
//!
//! A block changes a few dozen of thousands of entries. The trie's nodes are in a persistent map. The state of each
//! recent block therefore costs only its changed nodes, and a new root only their hashes. Nothing is copied per block,
//! and the root equals that of a node's database.

use sp_core::{H256, storage::StateVersion};
use sp_runtime::traits::{BlakeTwo256, Hash};
use sp_state_machine::{
    Backend, BackendTransaction, IterArgs, TrieBackend, TrieBackendBuilder, TrieBackendStorage,
};
use std::{cmp::Ordering, sync::Arc};

/// State version of the runtime's `system_version` 1: values above 32 bytes are separate nodes.
pub(crate) const STATE_VERSION: StateVersion = StateVersion::V1;

/// Changed entries: the new value, or `None` if removed.
pub(crate) type Changes = Vec<(Vec<u8>, Option<Vec<u8>>)>;

/// Node whose hash is the root of an empty state.
const EMPTY_NODE: [u8; 1] = [0];

/// A state. Cloning it copies no entries.
#[derive(Clone)]
pub(crate) struct State {
    root: H256,
    nodes: Nodes,
}

/// Nodes of the trie by position and hash.
#[derive(Clone, Default)]
pub(crate) struct Nodes(imbl::OrdMap<Arc<[u8]>, Arc<[u8]>>);

impl State {
    pub(crate) fn empty() -> State {
        State { root: BlakeTwo256::hash(&EMPTY_NODE), nodes: Nodes::default() }
    }

    /// Returns the state root in the header.
    pub(crate) fn root(&self) -> H256 {
        self.root
    }

    pub(crate) fn get(&self, key: &[u8]) -> Option<Vec<u8>> {
        self.backend().storage(key).expect("the map has every node of its trie")
    }

    /// Returns keys with this prefix in order, optionally only those after `after`.
    pub(crate) fn keys(&self, prefix: &[u8], after: Option<&[u8]>, count: usize) -> Vec<Vec<u8>> {
        let backend = self.backend();
        let mut args = IterArgs::default();
        args.prefix = Some(prefix);
        args.start_at = after;
        args.start_at_exclusive = after.is_some();
        let keys = backend.keys(args).expect("the map has every node of its trie");
        keys.take(count).map(|key| key.expect("the map has every node of its trie")).collect()
    }

    /// Returns the state after these changes, which may be in any order.
    pub(crate) fn with_changes(&self, changes: &Changes) -> State {
        let delta = changes.iter().map(|(key, value)| (key.as_slice(), value.as_deref()));
        let (root, nodes) = self.backend().storage_root(delta, STATE_VERSION);
        self.with_nodes(root, nodes)
    }

    /// Returns the changes that undo `changes`.
    pub(crate) fn undo(&self, changes: &Changes) -> Changes {
        let backend = self.backend();
        let before = |key: &[u8]| backend.storage(key).expect("the map has every node of its trie");
        changes.iter().map(|(key, _)| (key.clone(), before(key))).collect()
    }

    /// Returns the state with these changes of nodes.
    pub(crate) fn with_nodes(&self, root: H256, mut nodes: BackendTransaction<BlakeTwo256>) -> State {
        let mut changed = self.nodes.clone();
        for (key, (node, references)) in nodes.drain() {
            match references.cmp(&0) {
                Ordering::Greater => {
                    changed.0.insert(key.into(), node.into());
                }
                Ordering::Less => {
                    changed.0.remove(key.as_slice());
                }
                Ordering::Equal => {}
            }
        }
        State { root, nodes: changed }
    }

    /// Returns the backend for the runtime's host functions.
    pub(crate) fn backend(&self) -> TrieBackend<Nodes, BlakeTwo256> {
        TrieBackendBuilder::new(self.nodes.clone(), self.root).build()
    }
}

impl TrieBackendStorage<BlakeTwo256> for Nodes {
    fn get(&self, hash: &H256, prefix: (&[u8], Option<u8>)) -> Result<Option<Vec<u8>>, String> {
        let mut key = Vec::with_capacity(prefix.0.len() + 1 + hash.0.len());
        key.extend_from_slice(prefix.0);
        key.extend(prefix.1);
        key.extend_from_slice(&hash.0);
        Ok(self.0.get(key.as_slice()).map(|node| node.to_vec()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    fn changes(entries: &[(&str, Option<&str>)]) -> Changes {
        entries
            .iter()
            .map(|(key, value)| (key.as_bytes().to_vec(), value.map(|v| v.as_bytes().to_vec())))
            .collect()
    }

    #[test]
    fn the_root_equals_that_of_a_trie_built_at_once() {
        let mut state = State::empty();
        let mut model = BTreeMap::<Vec<u8>, Vec<u8>>::new();
        assert_eq!(state.root(), BlakeTwo256::trie_root(vec![], STATE_VERSION));
        // Keys share prefixes, values are short and long, entries are added and removed.
        for round in 0_u32..60 {
            let step: Changes = (0..7)
                .map(|i| {
                    let key = format!("key-{}", (round * 7 + i * 13) % 50).into_bytes();
                    let value =
                        (!(round + i).is_multiple_of(3)).then(|| vec![i as u8; ((round * i) % 70) as usize]);
                    (key, value)
                })
                .collect::<BTreeMap<_, _>>()
                .into_iter()
                .collect();
            for (key, value) in step.clone() {
                match value {
                    Some(value) => model.insert(key, value),
                    None => model.remove(&key),
                };
            }
            state = state.with_changes(&step);
            let at_once = BlakeTwo256::trie_root(model.clone().into_iter().collect(), STATE_VERSION);
            assert_eq!(state.root(), at_once, "after round {round}");
        }
        for (key, value) in &model {
            assert_eq!(state.get(key).as_ref(), Some(value));
        }
        assert_eq!(state.keys(b"key-", None, usize::MAX), model.keys().cloned().collect::<Vec<_>>());
    }

    #[test]
    fn changes_can_be_undone_and_earlier_states_stay_unchanged() {
        let one =
            State::empty().with_changes(&changes(&[("a", Some("1")), ("b", Some("2")), ("abc", Some("3"))]));
        let step = changes(&[("a", None), ("b", Some("other")), ("c", Some("new"))]);
        let two = one.with_changes(&step);
        assert_eq!(one.get(b"a"), Some(b"1".to_vec()));
        assert_eq!(two.get(b"a"), None);
        let back = two.with_changes(&one.undo(&step));
        assert_eq!(back.root(), one.root());
        assert_eq!(back.get(b"b"), Some(b"2".to_vec()));
        assert_eq!(back.get(b"c"), None);
    }

    #[test]
    fn keys_are_read_in_pages() {
        let state = State::empty().with_changes(&changes(&[
            ("a1", Some("")),
            ("a2", Some("")),
            ("a3", Some("")),
            ("b1", Some("")),
        ]));
        assert_eq!(state.keys(b"a", None, 2), vec![b"a1".to_vec(), b"a2".to_vec()]);
        assert_eq!(state.keys(b"a", Some(b"a2"), 2), vec![b"a3".to_vec()]);
        assert!(state.keys(b"z", None, 2).is_empty());
        assert!(State::empty().keys(b"", None, 2).is_empty());
    }
}
