//! What can be asked of the chain, and how it is spelled.
//!
//! Arguments are the protocol's own types, encoded by themselves. Pallet, call and argument are looked up by name in the
//! chain's metadata each time a call is made, and each argument's bytes are read back by the type that the metadata
//! gives it: a chain whose call has other arguments is noticed before anything is signed, not after it is paid for.

use crate::{Amount, keys};
use codec::{Compact, Encode};
use protocol::{
    Digest, Hotkey, Role, RunId, RunParams, Terms, Uid, Window,
    view::{Account, Verdict, Vote},
};
use std::fmt;
use subxt::{
    Metadata,
    ext::{
        scale_decode::visitor::{IgnoreVisitor, decode_with_visitor},
        scale_encode::{EncodeAsFields, Error as EncodeError, FieldIter},
        scale_type_resolver::TypeResolver,
    },
};

/// A call of the chain, with its arguments. Who signs it is said at each.
#[derive(Clone, Debug, PartialEq)]
pub enum Call {
    /// By the owner-to-be, from whom a deposit is held. Runs are numbered from 0.
    CreateRun {
        params: Box<RunParams>,
        terms: Box<Terms>,
        /// Digest of the run's specification.
        spec: Digest,
        /// Digest of the dataset's manifest.
        manifest: Digest,
        /// Weights root of `θ_0`.
        theta0: Digest,
        /// Base URL where all of that is published, at most 256 bytes.
        origin: String,
    },
    /// By the coldkey, from whom the stake is held. The seat gets the next free uid.
    Register {
        run: RunId,
        role: Role,
        hotkey: Hotkey,
        /// Base URL of the seat's public bucket, at most 256 bytes.
        endpoint: String,
        stake: Amount,
    },
    /// By the hotkey.
    SetEndpoint { run: RunId, endpoint: String },
    /// By the coldkey.
    AddStake { run: RunId, uid: Uid, amount: Amount },
    /// By a miner's hotkey; a later one replaces an earlier one until the deadline (PROT-11).
    Commit { run: RunId, window: Window, digest: Digest },
    /// By a validator's hotkey (PROT-14). `next_salt` is the digest of its salt for the next window (PROT-2).
    Attest { run: RunId, window: Window, verdicts: Vec<(Uid, Verdict)>, next_salt: Digest },
    /// By a validator's hotkey (PROT-19).
    Vote { run: RunId, window: Window, vote: Vote },
    /// By a validator's hotkey, once an epoch (PROT-30).
    PostWeights { run: RunId, epoch: u32, weights: Vec<(Uid, u16)> },
    /// By anybody, into the run's treasury.
    Fund { run: RunId, amount: Amount },
    /// By the seat's coldkey or hotkey; what is claimable goes to the coldkey.
    Claim { run: RunId, uid: Uid },
    /// By the run's owner, to whom the owner's share of the pay goes.
    ClaimOwner { run: RunId },
    /// By anybody who has it.
    Transfer { to: Account, amount: Amount },
}

/// How a kind of call is spelled on the chain.
struct Spelling {
    pallet: &'static str,
    call: &'static str,
    arguments: &'static [&'static str],
}

macro_rules! spellings {
    ($($name:ident = $pallet:literal . $call:literal ($($argument:literal),*);)*) => {
        $(const $name: Spelling = Spelling { pallet: $pallet, call: $call, arguments: &[$($argument),*] };)*
        const SPELLINGS: &[&Spelling] = &[$(&$name),*];
    };
}

spellings! {
    CREATE_RUN = "Registry"."create_run"("params", "terms", "spec", "manifest", "theta0", "published_at");
    REGISTER = "Registry"."register"("run", "role", "hotkey", "endpoint", "stake");
    SET_ENDPOINT = "Registry"."set_endpoint"("run", "endpoint");
    ADD_STAKE = "Registry"."add_stake"("run", "uid", "amount");
    COMMIT = "Windows"."commit"("run", "window", "digest");
    ATTEST = "Windows"."attest"("run", "window", "verdicts", "next_salt");
    VOTE = "Windows"."vote"("run", "window", "vote");
    POST_WEIGHTS = "Weights"."post"("run", "epoch", "weights");
    FUND = "Rewards"."fund"("run", "amount");
    CLAIM = "Rewards"."claim"("run", "uid");
    CLAIM_OWNER = "Rewards"."claim_owner"("run");
    TRANSFER = "Balances"."transfer_keep_alive"("dest", "value");
}

/// What the runtime API must offer: its methods, and how many arguments each takes.
const API: &str = "MettleApi";
const API_METHODS: &[(&str, usize)] = &[("runs", 0), ("run", 1), ("seats", 1), ("window", 2), ("weights", 1)];

impl Call {
    fn spelling(&self) -> &'static Spelling {
        match self {
            Call::CreateRun { .. } => &CREATE_RUN,
            Call::Register { .. } => &REGISTER,
            Call::SetEndpoint { .. } => &SET_ENDPOINT,
            Call::AddStake { .. } => &ADD_STAKE,
            Call::Commit { .. } => &COMMIT,
            Call::Attest { .. } => &ATTEST,
            Call::Vote { .. } => &VOTE,
            Call::PostWeights { .. } => &POST_WEIGHTS,
            Call::Fund { .. } => &FUND,
            Call::Claim { .. } => &CLAIM,
            Call::ClaimOwner { .. } => &CLAIM_OWNER,
            Call::Transfer { .. } => &TRANSFER,
        }
    }

    /// The arguments in the order of the spelling, each encoded.
    fn arguments(&self) -> Vec<Vec<u8>> {
        match self {
            Call::CreateRun { params, terms, spec, manifest, theta0, origin } => {
                vec![params.encode(), terms.encode(), spec.encode(), manifest.encode(), theta0.encode(), origin.encode()]
            }
            Call::Register { run, role, hotkey, endpoint, stake } => {
                vec![run.encode(), role.encode(), hotkey.encode(), endpoint.encode(), stake.0.encode()]
            }
            Call::SetEndpoint { run, endpoint } => vec![run.encode(), endpoint.encode()],
            Call::AddStake { run, uid, amount } => vec![run.encode(), uid.encode(), amount.0.encode()],
            Call::Commit { run, window, digest } => vec![run.encode(), window.encode(), digest.encode()],
            Call::Attest { run, window, verdicts, next_salt } => {
                vec![run.encode(), window.encode(), verdicts.encode(), next_salt.encode()]
            }
            Call::Vote { run, window, vote } => vec![run.encode(), window.encode(), vote.encode()],
            Call::PostWeights { run, epoch, weights } => vec![run.encode(), epoch.encode(), weights.encode()],
            Call::Fund { run, amount } => vec![run.encode(), amount.0.encode()],
            Call::Claim { run, uid } => vec![run.encode(), uid.encode()],
            Call::ClaimOwner { run } => vec![run.encode()],
            Call::Transfer { to, amount } => {
                // A `MultiAddress::Id`, as every chain with the usual address type takes it.
                vec![(0u8, to).encode(), Compact(amount.0).encode()]
            }
        }
    }

    /// The call as subxt signs it.
    pub(crate) fn payload(&self) -> CallPayload {
        CallPayload {
            spelling: self.spelling(),
            arguments: Arguments { spelling: self.spelling(), encoded: self.arguments() },
        }
    }
}

/// What is being done, as the end of "while …".
impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Call::CreateRun { .. } => write!(f, "creating a run"),
            Call::Register { run, role, hotkey, .. } => {
                write!(f, "registering {} as {role} of run {run}", keys::address(&hotkey.0))
            }
            Call::SetEndpoint { run, endpoint } => {
                write!(f, "setting the endpoint to {endpoint} in run {run}")
            }
            Call::AddStake { run, uid, amount } => {
                write!(f, "adding {amount} to the stake of uid {uid} of run {run}")
            }
            Call::Commit { run, window, .. } => write!(f, "committing for window {} of run {run}", window.0),
            Call::Attest { run, window, .. } => write!(f, "attesting window {} of run {run}", window.0),
            Call::Vote { run, window, .. } => write!(f, "voting on window {} of run {run}", window.0),
            Call::PostWeights { run, epoch, .. } => {
                write!(f, "posting weights for epoch {epoch} of run {run}")
            }
            Call::Fund { run, amount } => write!(f, "funding run {run} with {amount}"),
            Call::Claim { run, uid } => write!(f, "claiming the pay of uid {uid} of run {run}"),
            Call::ClaimOwner { run } => write!(f, "claiming the owner's share of run {run}"),
            Call::Transfer { to, amount } => write!(f, "transferring {amount} to {}", keys::address(to)),
        }
    }
}

pub(crate) struct CallPayload {
    spelling: &'static Spelling,
    arguments: Arguments,
}

impl subxt::tx::Payload for CallPayload {
    type CallData = Arguments;

    fn pallet_name(&self) -> &str {
        self.spelling.pallet
    }

    fn call_name(&self) -> &str {
        self.spelling.call
    }

    fn call_data(&self) -> &Arguments {
        &self.arguments
    }
}

/// Arguments that are encoded already, and only have to fit.
pub(crate) struct Arguments {
    spelling: &'static Spelling,
    encoded: Vec<Vec<u8>>,
}

impl EncodeAsFields for Arguments {
    fn encode_as_fields_to<R: TypeResolver>(
        &self,
        fields: &mut dyn FieldIter<'_, R::TypeId>,
        types: &R,
        out: &mut Vec<u8>,
    ) -> Result<(), EncodeError> {
        let Spelling { pallet, call, arguments } = self.spelling;
        if fields.len() != arguments.len() {
            return Err(EncodeError::custom_string(format!(
                "{pallet}.{call} takes {} arguments on this chain, and {} are known",
                fields.len(),
                arguments.len()
            )));
        }
        for ((field, name), encoded) in fields.zip(*arguments).zip(&self.encoded) {
            if field.name.is_some_and(|found| found != *name) {
                return Err(EncodeError::custom_string(format!(
                    "{pallet}.{call} takes `{}` on this chain where `{name}` is known",
                    field.name.unwrap_or_default()
                )));
            }
            let mut rest = encoded.as_slice();
            let read = decode_with_visitor(&mut rest, field.id, types, IgnoreVisitor::<R>::new());
            if read.is_err() || !rest.is_empty() {
                return Err(EncodeError::custom_string(format!(
                    "the argument `{name}` of {pallet}.{call} has another type on this chain"
                )));
            }
            out.extend_from_slice(encoded);
        }
        Ok(())
    }
}

/// Whether a chain with this metadata has all the calls that we make and the reads that we ask for; otherwise what it
/// lacks.
pub(crate) fn lacks(metadata: &Metadata) -> Result<(), String> {
    for Spelling { pallet, call, arguments } in SPELLINGS {
        let found = metadata.pallet_by_name(pallet).ok_or_else(|| format!("no pallet {pallet}"))?;
        let found = found.call_variant_by_name(call).ok_or_else(|| format!("no call {pallet}.{call}"))?;
        let names: Vec<&str> =
            found.fields.iter().map(|field| field.name.as_deref().unwrap_or("?")).collect();
        if names != **arguments {
            return Err(format!(
                "a call {pallet}.{call}({}) in place of ({})",
                names.join(", "),
                arguments.join(", ")
            ));
        }
    }
    let api = metadata.runtime_api_trait_by_name(API).ok_or_else(|| format!("no runtime API {API}"))?;
    for (name, arguments) in API_METHODS {
        let method = api.method_by_name(name).ok_or_else(|| format!("no runtime API method {API}.{name}"))?;
        if method.inputs().count() != *arguments {
            return Err(format!(
                "{API}.{name} with {} arguments in place of {arguments}",
                method.inputs().count()
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use codec::Decode as _;
    use subxt::ext::scale_type_resolver::Field;

    /// One call of each kind.
    fn calls() -> Vec<Call> {
        let (run, window, digest) = (RunId(7), Window(9), Digest::of(b"bytes"));
        vec![
            Call::CreateRun {
                params: Box::default(),
                terms: Box::default(),
                spec: digest,
                manifest: digest,
                theta0: digest,
                origin: "http://example.org".into(),
            },
            Call::Register {
                run,
                role: Role::Validator,
                hotkey: Hotkey([3; 32]),
                endpoint: "http://example.org/v".into(),
                stake: Amount::mtl(5),
            },
            Call::SetEndpoint { run, endpoint: "http://example.org/v".into() },
            Call::AddStake { run, uid: Uid(2), amount: Amount(1) },
            Call::Commit { run, window, digest },
            Call::Attest {
                run,
                window,
                verdicts: vec![(Uid(1), Verdict::Valid), (Uid(2), Verdict::Faulty)],
                next_salt: digest,
            },
            Call::Vote { run, window, vote: Vote { update: digest, state_root: None } },
            Call::PostWeights { run, epoch: 4, weights: vec![(Uid(1), 65535)] },
            Call::Fund { run, amount: Amount(300) },
            Call::Claim { run, uid: Uid(2) },
            Call::ClaimOwner { run },
            Call::Transfer { to: [9; 32], amount: Amount(300) },
        ]
    }

    #[test]
    fn every_call_has_as_many_arguments_as_its_spelling() {
        let calls = calls();
        assert_eq!(calls.len(), SPELLINGS.len());
        for (call, spelling) in calls.iter().zip(SPELLINGS) {
            assert_eq!(call.spelling().call, spelling.call);
            assert_eq!(call.arguments().len(), spelling.arguments.len(), "{call}");
        }
    }

    #[test]
    fn arguments_are_encoded_as_the_chain_reads_them() {
        let text = |call: &Call| call.arguments().iter().map(hex::encode).collect::<Vec<_>>();
        let calls = calls();
        let digest = Digest::of(b"bytes").to_string();
        assert_eq!(
            text(&calls[1]),
            [
                "07000000",
                "01",
                &"03".repeat(32),
                // A compact length, then the bytes.
                &format!("50{}", hex::encode("http://example.org/v")),
                // 5 · 10¹², little-endian, in 16 bytes.
                "005039278c0400000000000000000000"
            ]
        );
        assert_eq!(text(&calls[4]), ["07000000", "09000000", &digest]);
        assert_eq!(text(&calls[5]), ["07000000", "09000000", "08010000020001", &digest]);
        assert_eq!(text(&calls[6]), ["07000000", "09000000", &format!("{digest}00")]);
        assert_eq!(text(&calls[7]), ["07000000", "04000000", "040100ffff"]);
        assert_eq!(text(&calls[11]), [format!("00{}", "09".repeat(32)), "b104".into()]);
    }

    /// The metadata of a running chain, with one name changed for another of the same length.
    fn renamed(bytes: &[u8], from: &str, to: &str) -> Metadata {
        assert_eq!(from.len(), to.len());
        let mut bytes = bytes.to_vec();
        let mut at = 0;
        while let Some(found) = bytes[at..].windows(from.len()).position(|window| window == from.as_bytes()) {
            at += found;
            bytes[at..at + to.len()].copy_from_slice(to.as_bytes());
        }
        Metadata::decode_from(&bytes).unwrap()
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn every_call_fits_the_chain_and_a_chain_that_lacks_one_is_noticed() {
        use subxt::rpcs::{RpcClient, client::rpc_params};
        let manual = embedded_chain::Sealing::Manual;
        let config = embedded_chain::Config { sealing: manual, ..Default::default() };
        let chain = embedded_chain::EmbeddedChain::start(config).await.unwrap();
        let rpc = RpcClient::from_insecure_url(chain.url()).await.unwrap();
        // Version 14, which `state_getMetadata` gives, tells nothing of runtime APIs.
        let arguments = ("Metadata_metadata_at_version", format!("0x{}", hex::encode(16u32.encode())));
        let answer: String = rpc.request("state_call", rpc_params![arguments.0, arguments.1]).await.unwrap();
        let answer = hex::decode(answer.trim_start_matches("0x")).unwrap();
        let bytes = Option::<Vec<u8>>::decode(&mut answer.as_slice()).unwrap().unwrap();
        chain.shutdown().await;

        let ours = Metadata::decode_from(&bytes).unwrap();
        assert_eq!(lacks(&ours), Ok(()));
        let encode = |metadata: &Metadata, call: &Call| {
            let spelling = call.spelling();
            let pallet = metadata.pallet_by_name(spelling.pallet).unwrap();
            let fields = &pallet.call_variant_by_name(spelling.call).unwrap().fields;
            let mut fields =
                fields.iter().map(|field| Field { name: field.name.as_deref(), id: field.ty.id });
            call.payload()
                .arguments
                .encode_as_fields(&mut fields, metadata.types())
                .map_err(|error| error.to_string())
        };
        for call in calls() {
            assert_eq!(encode(&ours, &call).unwrap(), call.arguments().concat(), "{call}");
        }

        // An argument whose type has changed, and one too few: nothing is signed.
        let mut changed = Call::Claim { run: RunId(1), uid: Uid(1) }.payload();
        changed.arguments.encoded[1] = 1u32.encode();
        let pallet = ours.pallet_by_name("Rewards").unwrap();
        let fields = &pallet.call_variant_by_name("claim").unwrap().fields;
        let field = |index: usize| Field { name: fields[index].name.as_deref(), id: fields[index].ty.id };
        let fit = |fields: Vec<Field<'_, u32>>| {
            let error =
                changed.arguments.encode_as_fields(&mut fields.into_iter(), ours.types()).unwrap_err();
            error.to_string()
        };
        assert!(fit(vec![field(0), field(1)]).contains("`uid` of Rewards.claim has another type"));
        assert!(fit(vec![field(1), field(0)]).contains("takes `uid`"));
        assert!(fit(vec![field(0)]).contains("takes 1 arguments"));

        for (from, to, missing) in [
            ("Registry", "Register", "no pallet Registry"),
            ("claim_owner", "claim_other", "no call Rewards.claim_owner"),
            ("next_salt", "last_salt", "last_salt"),
            ("MettleApi", "KettleApi", "no runtime API MettleApi"),
        ] {
            let found = lacks(&renamed(&bytes, from, to)).unwrap_err();
            assert!(found.contains(missing), "{found}");
        }
    }

    #[test]
    fn a_call_says_what_is_being_done() {
        for call in calls() {
            let said = call.to_string();
            assert!(said.split(' ').next().is_some_and(|verb| verb.ends_with("ing")), "{said}");
        }
    }
}
