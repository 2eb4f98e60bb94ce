//! Executes the runtime over a state: single calls, and whole blocks.
//!
//! `impl_runtime_apis!` also generates `api::dispatch(method, bytes)` for native code. A block is therefore made as on
//! a node: `Core_initialize_block`, the inherents, each extrinsic in its own storage transaction, then
//! `BlockBuilder_finalize_block`, which computes the state root.
//!
//! A native runtime panics where Wasm would trap. Every call catches panics. An extrinsic that panics is rejected,
//! and the block is made again without it, because its changes are not reliable.

use crate::state::{Changes, STATE_VERSION, State};
use codec::{Decode, DecodeLimit, Encode};
use sp_core::H256;
use sp_externalities::{set_and_run_with_externalities, with_externalities};
use sp_runtime::{
    ApplyExtrinsicResult, Digest, DigestItem, OpaqueExtrinsic, generic,
    traits::{BlakeTwo256, Hash as _, Header as _},
    transaction_validity::{
        InvalidTransaction, TransactionSource, TransactionValidity, TransactionValidityError,
    },
};
use sp_state_machine::{Ext, OverlayedChanges};
use sp_version::RuntimeVersion;
use std::{
    any::Any,
    collections::BTreeMap,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

pub(crate) type Header = generic::Header<u32, BlakeTwo256>;

/// The bytes of an extrinsic in a block.
pub(crate) type Extrinsic = Arc<[u8]>;

/// Maximum nesting of calls: a native runtime decodes and dispatches them on the thread's stack.
const CALL_DEPTH_MAX: u32 = 64;
/// Number of transactions that did not fit after which a block is closed. Free calls beyond their share precede
/// paying calls and are skipped, so it is above the number of transactions in a pool.
const SKIPPED_MAX: usize = 16_384;
/// Number of transactions that panicked after which a block is closed.
const PANICKING_MAX: usize = 8;
/// Placeholder in the state for the Wasm runtime: this chain runs native code, and `set_code` has no effect.
const CODE: &[u8] = b"mettle: native code of a development chain";

/// The native runtime: a function from method and arguments to a result.
#[derive(Clone)]
pub(crate) struct Runtime {
    pub(crate) dispatch: fn(&str, &[u8]) -> Option<Vec<u8>>,
    pub(crate) version: RuntimeVersion,
    /// Oldest version whose state this runtime can continue.
    pub(crate) oldest_state: u32,
    /// Length of a slot, in milliseconds.
    pub(crate) slot_millis: u64,
}

/// Error of a runtime call.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    #[error("the runtime has no function `{0}`")]
    Unknown(String),
    #[error("the runtime panicked in `{method}`: {message}")]
    Panicked { method: String, message: String },
    #[error("cannot decode the result of `{method}`: {source}")]
    Undecodable { method: &'static str, source: codec::Error },
    #[error("`{0}` makes blocks and is not available to clients")]
    NotOffered(String),
    #[error("cannot decode an extrinsic: {0}")]
    BadExtrinsic(codec::Error),
}

/// Error of making a block. The chain is unchanged.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BuildError {
    #[error(transparent)]
    Call(#[from] CallError),
    #[error("the inherent extrinsic {index} was refused: {reason}")]
    Inherent { index: usize, reason: &'static str },
    #[error("the runtime uses child tries, which this chain does not support")]
    ChildTries,
    #[error("the state root in the block's header differs from its state")]
    StateRoot,
}

/// A new block that is not part of the chain yet.
pub(crate) struct Built {
    pub(crate) header: Header,
    pub(crate) hash: H256,
    pub(crate) extrinsics: Vec<Extrinsic>,
    /// Number of inherents, which are the first extrinsics.
    pub(crate) inherents: usize,
    /// Included transactions, in order.
    pub(crate) included: Vec<H256>,
    /// Other candidates, with the reasons for their exclusion.
    pub(crate) left_out: Vec<(H256, LeftOut)>,
    pub(crate) state: State,
    pub(crate) changes: Changes,
}

/// Reason why a candidate is not in the block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum LeftOut {
    /// The block is full; a later one may have room. `alone` if the block was empty.
    Full { alone: bool },
    /// A transaction that it requires is missing.
    TooEarly,
    /// It will never be valid.
    Refused(TransactionValidityError),
    /// It made the runtime panic.
    Panicked(String),
}

#[derive(Clone)]
pub(crate) struct Candidate {
    pub(crate) hash: H256,
    pub(crate) bytes: Extrinsic,
}

impl Runtime {
    /// Returns the runtime that this crate was compiled with.
    pub(crate) fn native() -> Runtime {
        Runtime {
            dispatch: mettle_runtime::api::dispatch,
            version: mettle_runtime::VERSION,
            oldest_state: mettle_runtime::migrations::OLDEST_STATE,
            slot_millis: mettle_runtime::SLOT_DURATION,
        }
    }

    /// Returns this runtime for a chain with the slots in `state`.
    pub(crate) fn with_slots_of(self, state: &State) -> Result<Runtime, CallError> {
        const METHOD: &str = "AuraApi_slot_duration";
        let slot_millis = decode(METHOD, &self.call(state, METHOD, &[])?)?;
        Ok(Runtime { slot_millis, ..self })
    }

    /// Calls a function and discards its changes.
    pub(crate) fn call(&self, state: &State, method: &str, args: &[u8]) -> Result<Vec<u8>, CallError> {
        over(state, || self.one(method, args)).0
    }

    /// Calls a function as [`Runtime::call`] does, for clients: refuses block production, and calls that could
    /// overflow the stack.
    pub(crate) fn call_for_client(
        &self,
        state: &State,
        method: &str,
        args: &[u8],
    ) -> Result<Vec<u8>, CallError> {
        match method {
            "TaggedTransactionQueue_validate_transaction" => check_depth(args.get(1..).unwrap_or_default())?,
            "TransactionPaymentApi_query_info" | "TransactionPaymentApi_query_fee_details" => {
                check_depth(args)?
            }
            "Core_version" => {}
            making_blocks
                if making_blocks.starts_with("Core_") || making_blocks.starts_with("BlockBuilder_") =>
            {
                return Err(CallError::NotOffered(method.into()));
            }
            _ => {}
        }
        self.call(state, method, args)
    }

    /// Validates a transaction for a block on top of `at`.
    pub(crate) fn validate(
        &self,
        state: &State,
        at: H256,
        extrinsic: &[u8],
    ) -> Result<TransactionValidity, CallError> {
        const METHOD: &str = "TaggedTransactionQueue_validate_transaction";
        check_depth(extrinsic)?;
        let args = [TransactionSource::External.encode().as_slice(), extrinsic, at.as_bytes()].concat();
        decode(METHOD, &self.call(state, METHOD, &args)?)
    }

    /// Builds the genesis state.
    ///
    /// # Errors
    /// States why the runtime refuses the configuration.
    pub(crate) fn genesis(&self, config: &[u8]) -> Result<Genesis, String> {
        const METHOD: &str = "GenesisBuilder_build_state";
        let empty = State::empty();
        let (result, overlay) = over(&empty, || {
            let result = self.one(METHOD, &config.to_vec().encode())?;
            with_externalities(|ext| ext.set_storage(b":code".to_vec(), CODE.to_vec()))
                .expect("externalities are set");
            decode::<Result<(), String>>(METHOD, &result)
        });
        result.map_err(|error: CallError| error.to_string())??;
        let (state, changes) = apply_overlay(&empty, overlay).map_err(|error| error.to_string())?;
        Ok(Genesis { header: genesis_header(&state), state, changes })
    }

    /// Makes the block after `parent` from as many candidates as fit, in order.
    pub(crate) fn build(
        &self,
        parent: &Header,
        state: &State,
        slot: u64,
        candidates: &[Candidate],
    ) -> Result<Built, BuildError> {
        let mut panicking = BTreeMap::<H256, String>::new();
        // If finalising the block panics, the culprit is unknown: try with half the transactions.
        let mut room = usize::MAX;
        loop {
            match self.attempt(parent, state, slot, candidates, &panicking, room) {
                Ok(mut built) => {
                    let panicked =
                        panicking.into_iter().map(|(hash, message)| (hash, LeftOut::Panicked(message)));
                    built.left_out.extend(panicked);
                    return Ok(built);
                }
                Err(Stop::Block(error)) => return Err(error),
                Err(Stop::Extrinsic { hash, message }) => {
                    panicking.insert(hash, message);
                }
                Err(Stop::Finish { included, error }) => match included.as_slice() {
                    [] => return Err(error.into()),
                    [only] => {
                        panicking.insert(*only, error.to_string());
                        room = usize::MAX;
                    }
                    many => room = many.len() / 2,
                },
            }
            if panicking.len() >= PANICKING_MAX {
                room = 0;
            }
        }
    }

    fn attempt(
        &self,
        parent: &Header,
        state: &State,
        slot: u64,
        candidates: &[Candidate],
        panicking: &BTreeMap<H256, String>,
        room: usize,
    ) -> Result<Built, Stop> {
        let mut extrinsics = Vec::<Extrinsic>::new();
        let mut inherents = 0;
        let mut included = Vec::new();
        let mut left_out = Vec::new();
        let (header, overlay) = over(state, || -> Result<Header, Stop> {
            let header = self.header(parent, slot);
            self.one("Core_initialize_block", &header.encode())?;

            for (index, bytes) in self.inherents(slot)?.into_iter().enumerate() {
                let applied = self.one("BlockBuilder_apply_extrinsic", &bytes)?;
                if let Err(refusal) =
                    decode::<ApplyExtrinsicResult>("BlockBuilder_apply_extrinsic", &applied)?
                {
                    return Err(Stop::Block(BuildError::Inherent { index, reason: refusal.into() }));
                }
                extrinsics.push(bytes.into());
            }
            inherents = extrinsics.len();

            let mut skipped = 0;
            for Candidate { hash, bytes } in candidates {
                if included.len() >= room || skipped >= SKIPPED_MAX {
                    break;
                }
                if panicking.contains_key(hash) {
                    continue;
                }
                let applied = self.apply(bytes);
                match applied.map_err(|error| Stop::Extrinsic { hash: *hash, message: error.to_string() })? {
                    Ok(_) => {
                        extrinsics.push(bytes.clone());
                        included.push(*hash);
                    }
                    Err(TransactionValidityError::Invalid(InvalidTransaction::ExhaustsResources)) => {
                        skipped += 1;
                        left_out.push((*hash, LeftOut::Full { alone: included.is_empty() }));
                    }
                    Err(TransactionValidityError::Invalid(InvalidTransaction::Future)) => {
                        left_out.push((*hash, LeftOut::TooEarly));
                    }
                    Err(refusal) => left_out.push((*hash, LeftOut::Refused(refusal))),
                }
            }

            let header = self
                .one("BlockBuilder_finalize_block", &[])
                .map_err(|error| Stop::Finish { included: included.clone(), error })?;
            Ok(decode("BlockBuilder_finalize_block", &header)?)
        });
        let header = header?;
        let (state, changes) = apply_overlay(state, overlay).map_err(Stop::Block)?;
        if state.root() != *header.state_root() {
            return Err(Stop::Block(BuildError::StateRoot));
        }
        let hash = header.hash();
        Ok(Built { header, hash, extrinsics, inherents, included, left_out, state, changes })
    }

    /// Applies one extrinsic, and rolls back its changes if it does not belong in the block.
    fn apply(&self, bytes: &[u8]) -> Result<ApplyExtrinsicResult, CallError> {
        const METHOD: &str = "BlockBuilder_apply_extrinsic";
        with_externalities(|ext| ext.storage_start_transaction()).expect("externalities are set");
        let result: ApplyExtrinsicResult = decode(METHOD, &self.one(METHOD, bytes)?)?;
        with_externalities(|ext| match &result {
            Ok(_) => ext.storage_commit_transaction(),
            Err(_) => ext.storage_rollback_transaction(),
        })
        .expect("externalities are set")
        .expect("the storage transaction was started above");
        Ok(result)
    }

    fn header(&self, parent: &Header, slot: u64) -> Header {
        let digest = Digest { logs: vec![DigestItem::PreRuntime(*b"aura", slot.encode())] };
        Header::new(parent.number + 1, H256::zero(), H256::zero(), parent.hash(), digest)
    }

    fn inherents(&self, slot: u64) -> Result<Vec<Vec<u8>>, CallError> {
        const METHOD: &str = "BlockBuilder_inherent_extrinsics";
        let mut data = sp_inherents::InherentData::new();
        let now = sp_timestamp::InherentType::from(slot.saturating_mul(self.slot_millis));
        data.put_data(sp_timestamp::INHERENT_IDENTIFIER, &now).expect("it was empty");
        let extrinsics: Vec<OpaqueExtrinsic> = decode(METHOD, &self.one(METHOD, &data.encode())?)?;
        Ok(extrinsics.into_iter().map(|extrinsic| extrinsic.encode()).collect())
    }

    /// Calls a function with the externalities set. A panic becomes an error.
    fn one(&self, method: &str, args: &[u8]) -> Result<Vec<u8>, CallError> {
        // The caller discards the changes of a call that panicked.
        let result = catch_unwind(AssertUnwindSafe(|| (self.dispatch)(method, args)));
        result
            .map_err(|panic| CallError::Panicked { method: method.into(), message: message_of(&*panic) })?
            .ok_or_else(|| CallError::Unknown(method.into()))
    }
}

/// The genesis block and its state.
pub(crate) struct Genesis {
    pub(crate) header: Header,
    pub(crate) state: State,
    pub(crate) changes: Changes,
}

/// Returns the slot in a header.
pub(crate) fn slot_of(header: &Header) -> Option<u64> {
    header.digest.logs.iter().find_map(|item| match item {
        DigestItem::PreRuntime([b'a', b'u', b'r', b'a'], slot) => u64::decode(&mut slot.as_slice()).ok(),
        _ => None,
    })
}

/// Reason why an attempt at a block ended.
enum Stop {
    Extrinsic { hash: H256, message: String },
    Finish { included: Vec<H256>, error: CallError },
    Block(BuildError),
}

impl From<CallError> for Stop {
    fn from(error: CallError) -> Stop {
        Stop::Block(error.into())
    }
}

/// Runs `f` over a state, and returns its changes as an overlay.
fn over<R>(state: &State, f: impl FnOnce() -> R) -> (R, OverlayedChanges<BlakeTwo256>) {
    let backend = state.backend();
    let mut overlay = OverlayedChanges::default();
    let result = set_and_run_with_externalities(&mut Ext::new(&mut overlay, &backend, None), f);
    (result, overlay)
}

/// Returns the state with an overlay applied.
fn apply_overlay(
    state: &State,
    mut overlay: OverlayedChanges<BlakeTwo256>,
) -> Result<(State, Changes), BuildError> {
    let applied = overlay
        .drain_storage_changes(&state.backend(), STATE_VERSION)
        .expect("the map has every node of its trie");
    if !applied.child_storage_changes.is_empty() {
        return Err(BuildError::ChildTries);
    }
    Ok((
        state.with_nodes(applied.transaction_storage_root, applied.transaction),
        applied.main_storage_changes,
    ))
}

fn genesis_header(state: &State) -> Header {
    let no_extrinsics = BlakeTwo256::ordered_trie_root(vec![], STATE_VERSION);
    Header::new(0, no_extrinsics, state.root(), H256::zero(), Digest::default())
}

fn decode<T: Decode>(method: &'static str, mut bytes: &[u8]) -> Result<T, CallError> {
    T::decode(&mut bytes).map_err(|source| CallError::Undecodable { method, source })
}

/// Refuses an extrinsic with calls nested too deeply for the stack.
fn check_depth(extrinsic: &[u8]) -> Result<(), CallError> {
    let mut input = extrinsic;
    mettle_runtime::UncheckedExtrinsic::decode_with_depth_limit(CALL_DEPTH_MAX, &mut input)
        .map_err(CallError::BadExtrinsic)?;
    Ok(())
}

fn message_of(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "without a message".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The real runtime, with extrinsics that panic, fail or write on request.
    fn strange(method: &str, args: &[u8]) -> Option<Vec<u8>> {
        let write = |key: &[u8]| {
            with_externalities(|ext| ext.set_storage(key.to_vec(), vec![1])).expect("externalities are set");
        };
        let applied = |result: ApplyExtrinsicResult| Some(result.encode());
        let refused = |reason: InvalidTransaction| applied(Err(reason.into()));
        match (method, args) {
            ("BlockBuilder_apply_extrinsic", b"panics") => {
                write(b"by-panics");
                panic!("as asked")
            }
            ("BlockBuilder_apply_extrinsic", b"refused") => {
                write(b"by-refused");
                refused(InvalidTransaction::Stale)
            }
            ("BlockBuilder_apply_extrinsic", b"early") => refused(InvalidTransaction::Future),
            ("BlockBuilder_apply_extrinsic", b"large") => refused(InvalidTransaction::ExhaustsResources),
            ("BlockBuilder_apply_extrinsic", word) if word.starts_with(b"fine") || word == b"bomb" => {
                write(word);
                applied(Ok(Ok(())))
            }
            ("BlockBuilder_finalize_block", _) => {
                let bomb = with_externalities(|ext| ext.storage(b"bomb")).expect("externalities are set");
                assert!(bomb.is_none(), "a bomb went off");
                mettle_runtime::api::dispatch(method, args)
            }
            _ => mettle_runtime::api::dispatch(method, args),
        }
    }

    fn build(words: &[&str]) -> (State, Result<Built, BuildError>) {
        let runtime = Runtime { dispatch: strange, ..Runtime::native() };
        let preset =
            runtime.call(&State::empty(), "GenesisBuilder_get_preset", &None::<String>.encode()).unwrap();
        let config = Option::<Vec<u8>>::decode(&mut preset.as_slice()).unwrap().unwrap();
        let genesis = runtime.genesis(&config).unwrap();
        let candidates: Vec<Candidate> = words
            .iter()
            .map(|word| Candidate { hash: BlakeTwo256::hash(word.as_bytes()), bytes: word.as_bytes().into() })
            .collect();
        let built = runtime.build(&genesis.header, &genesis.state, 1, &candidates);
        (genesis.state, built)
    }

    fn check(words: &[&str], included: &[&str], left_out: &[(&str, LeftOut)]) {
        let (genesis, built) = build(words);
        let built = built.unwrap();
        let hash = |word: &str| BlakeTwo256::hash(word.as_bytes());
        let expected: Vec<H256> = included.iter().map(|word| hash(word)).collect();
        assert_eq!(built.included, expected);
        assert_eq!(built.inherents, 1);
        assert_eq!(built.extrinsics.len(), 1 + included.len());
        for word in words {
            let written = built.state.get(word.as_bytes()).is_some();
            assert_eq!(written, included.contains(word), "what `{word}` wrote");
        }
        assert_eq!(built.state.get(b"by-refused"), None);
        assert_eq!(built.state.get(b"by-panics"), None);
        let sorted = |mut list: Vec<(H256, LeftOut)>| {
            list.sort_by_key(|(hash, _)| *hash);
            list
        };
        let expected = left_out.iter().map(|(word, why)| (hash(word), why.clone())).collect();
        assert_eq!(sorted(built.left_out), sorted(expected));
        assert_eq!(genesis.with_changes(&built.changes).root(), built.header.state_root);
    }

    fn panicked(method: &str, message: &str) -> LeftOut {
        LeftOut::Panicked(format!("the runtime panicked in `BlockBuilder_{method}`: {message}"))
    }

    #[test]
    fn a_block_includes_what_fits_and_reports_the_rest() {
        let stale = LeftOut::Refused(InvalidTransaction::Stale.into());
        check(
            &["fine1", "refused", "early", "large", "fine2"],
            &["fine1", "fine2"],
            &[("refused", stale), ("early", LeftOut::TooEarly), ("large", LeftOut::Full { alone: false })],
        );
        check(&["large"], &[], &[("large", LeftOut::Full { alone: true })]);
    }

    #[test]
    fn a_panicking_extrinsic_is_rejected_and_leaves_no_change() {
        let reason = panicked("apply_extrinsic", "as asked");
        check(&["fine1", "panics", "fine2"], &["fine1", "fine2"], &[("panics", reason)]);
    }

    #[test]
    fn an_extrinsic_that_makes_finalising_panic_is_found() {
        // The block is halved until the culprit is alone; then the others are included.
        let (_, built) = build(&["bomb", "fine1", "fine2", "fine3"]);
        let built = built.unwrap();
        assert_eq!(built.included.len(), 3);
        assert_eq!(
            built.left_out,
            [(BlakeTwo256::hash(b"bomb"), panicked("finalize_block", "a bomb went off"))]
        );
        // A culprit at the end waits for a later block.
        let (_, built) = build(&["fine1", "fine2", "fine3", "bomb"]);
        assert_eq!(built.unwrap().included.len(), 2);
    }

    #[test]
    fn a_runtime_that_can_make_no_block_is_an_error() {
        fn broken(method: &str, args: &[u8]) -> Option<Vec<u8>> {
            assert!(method != "Core_initialize_block", "broken");
            mettle_runtime::api::dispatch(method, args)
        }
        let (state, _) = build(&[]);
        let runtime = Runtime { dispatch: broken, ..Runtime::native() };
        let parent = genesis_header(&state);
        let panicked =
            CallError::Panicked { method: "Core_initialize_block".into(), message: "broken".into() };
        assert_eq!(runtime.build(&parent, &state, 1, &[]).err(), Some(BuildError::Call(panicked)));
    }

    #[test]
    fn a_call_discards_its_changes_and_a_panic_is_an_error() {
        let (state, _) = build(&[]);
        let runtime = Runtime { dispatch: strange, ..Runtime::native() };
        assert_eq!(runtime.call(&state, "No_such", &[]), Err(CallError::Unknown("No_such".into())));
        runtime.call(&state, "BlockBuilder_apply_extrinsic", b"fine").unwrap();
        assert_eq!(state.get(b"fine"), None);
        assert!(matches!(
            runtime.call(&state, "BlockBuilder_apply_extrinsic", b"panics"),
            Err(CallError::Panicked { .. })
        ));
        assert_eq!(
            runtime.call_for_client(&state, "BlockBuilder_apply_extrinsic", b"fine"),
            Err(CallError::NotOffered("BlockBuilder_apply_extrinsic".into()))
        );
    }

    #[test]
    fn the_slot_is_read_from_its_header() {
        let (_, built) = build(&[]);
        assert_eq!(slot_of(&built.unwrap().header), Some(1));
        assert_eq!(slot_of(&genesis_header(&State::empty())), None);
    }
}
