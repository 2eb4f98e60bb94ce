//! The chain's calls as one table, from which their encoding and descriptions are generated.
//!
//! A row contains the variant, its arguments and their types, the pallet and the call, and a description of the
//! action. Arguments are encoded by the protocol's own types. At each submission, pallet, call and arguments are
//! looked up by name in the chain's metadata, and each argument's bytes are decoded by the metadata's type. A mismatch
//! with the chain's arguments is therefore detected before anything is signed.

use crate::{
    Amount, keys,
    terms::{self, percent},
};
use codec::{Compact, Encode};
use protocol::{
    Digest, Hotkey, Role, RunId, RunParams, Terms, Uid, Window,
    identity::Signature,
    params::Permille,
    probe::Answer,
    reveal::Salt,
    statement::{Equivocation, SignedStatement},
    view::{Account, Verdict, Vote},
};
use serde::{Deserialize, Serialize};
use std::fmt;
use subxt::{
    Metadata,
    ext::{
        scale_decode::visitor::{IgnoreVisitor, decode_with_visitor},
        scale_encode::{EncodeAsFields, Error as EncodeError, FieldIter},
        scale_type_resolver::TypeResolver,
    },
};

/// Names of a kind of call in the chain's metadata.
struct CallMetadata {
    pallet: &'static str,
    call: &'static str,
    arguments: &'static [&'static str],
    /// True if the client refuses to connect to a chain without this call. The absence of another call is detected
    /// when it is made.
    required: bool,
}

/// Generates [`Call`], its metadata, encoding and descriptions from the table.
///
/// An argument has its field's name on the chain, or the one after `as`. `by` names a wrapper that encodes and
/// describes the field if its type alone does not determine this.
macro_rules! calls {
    ($(
        $(#[$doc:meta])*
        $need:ident $variant:ident {
            $($(#[$field_doc:meta])* $field:ident: $type:ty $(as $name:ident $(by $wrapper:ident)?)?),*
        } = $pallet:ident.$call:ident, $doing:literal $(, $value:expr)*;
    )*) => {
        /// A call of the chain, with its arguments. Each variant's doc names the signing key.
        #[derive(Clone, Debug, PartialEq)]
        pub enum Call {
            $($(#[$doc])* $variant { $($(#[$field_doc])* $field: $type),* },)*
        }

        /// Every kind of call, in the order of the table.
        const CALLS: &[CallMetadata] = &[$(CallMetadata {
            pallet: stringify!($pallet),
            call: stringify!($call),
            arguments: &[$(calls!(@name $field $($name)?)),*],
            required: calls!(@$need),
        }),*];

        /// Indices into [`CALLS`].
        enum Kind { $($variant),* }

        impl Call {
            fn kind(&self) -> Kind {
                match self { $(Call::$variant { .. } => Kind::$variant),* }
            }

            /// Returns the arguments in the chain's order, each encoded. `encode` encodes a call within a call, whose
            /// bytes depend on the chain's numbering of pallets and calls.
            fn arguments<E>(&self, encode: impl Fn(&Call) -> Result<Vec<u8>, E>) -> Result<Vec<Vec<u8>>, E> {
                match self {
                    $(Call::$variant { $($field),* } => {
                        Ok(vec![$(calls!(@wrap $field $($($wrapper)?)?).encode_with(&encode)?),*])
                    })*
                }
            }

            /// Returns the arguments in the chain's order, each as text.
            fn texts(&self) -> Vec<String> {
                match self {
                    $(Call::$variant { $($field),* } => vec![$(calls!(@wrap $field $($($wrapper)?)?).text()),*],)*
                }
            }
        }

        /// Describes the action, as the end of "while …".
        impl fmt::Display for Call {
            #[expect(unused_variables, reason = "a description leaves arguments out")]
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self {
                    $(Call::$variant { $($field),* } => write!(f, $doing $(, $value)*),)*
                }
            }
        }
    };
    (@required) => { true };
    (@optional) => { false };
    (@name $field:ident) => { stringify!($field) };
    (@name $field:ident $name:ident) => { stringify!($name) };
    (@wrap $field:ident) => { $field };
    (@wrap $field:ident $wrapper:ident) => { $wrapper($field) };
}

calls! {
    /// Signed by the future owner, from which a deposit is held. Runs are numbered from 0.
    required CreateRun {
        params: Box<RunParams>,
        terms: Box<Terms>,
        /// Digest of the run's specification.
        spec: Digest,
        /// Digest of the dataset's manifest.
        manifest: Digest,
        /// Weights root of `θ_0`.
        theta0: Digest,
        /// Base URL under which specification, dataset and `θ_0` are published, at most 256 bytes.
        origin: String as published_at
    } = Registry.create_run, "creating a run";

    /// Signed by the coldkey, from which the stake is held. The seat gets the next free uid.
    required Register {
        run: RunId,
        role: Role,
        hotkey: Hotkey,
        /// Base URL of the seat's public bucket, at most 256 bytes.
        endpoint: String,
        stake: Amount,
        /// Maximum price of the seat, which is burnt: it rises with each registration (PROT-29).
        price_max: Amount,
        /// The hotkey's [`prove_possession`](protocol::identity::Signer::prove_possession) for the coldkey.
        proof: Signature
    } = Registry.register, "registering {} as {role} of run {run}", keys::address(&hotkey.0);

    /// Signed by the hotkey.
    required SetEndpoint { run: RunId, endpoint: String }
        = Registry.set_endpoint, "setting the endpoint to {endpoint} in run {run}";

    /// Signed by the coldkey.
    required AddStake { run: RunId, uid: Uid, amount: Amount }
        = Registry.add_stake, "adding {amount} to the stake of uid {uid} of run {run}";

    /// Signed by the coldkey. The stake falls at once, and the amount stays held until it has unbonded (PROT-29).
    optional Unstake { run: RunId, uid: Uid, amount: Amount }
        = Registry.unstake, "taking {amount} out of the stake of uid {uid} of run {run}";

    /// Signed by the coldkey. Gives the seat up when the next window opens; its stake unbonds (PROT-29).
    optional Leave { run: RunId, uid: Uid } = Registry.leave, "giving up uid {uid} of run {run}";

    /// Signed by the coldkey. Releases the unbonded stake.
    optional Withdraw { run: RunId } = Registry.withdraw, "withdrawing what has unbonded in run {run}";

    /// Signed by the coldkey. Changes the seat's hotkey when the next window opens (PROT-29). `proof` is the new
    /// hotkey's.
    optional RotateHotkey { run: RunId, uid: Uid, hotkey: Hotkey, proof: Signature }
        = Registry.rotate_hotkey,
        "changing the hotkey of uid {uid} of run {run} to {}", keys::address(&hotkey.0);

    /// Signed by the run's owner. The new terms take effect when the next epoch begins.
    optional SetTerms { run: RunId, terms: Box<Terms> } = Registry.set_terms, "setting the terms of run {run}";

    /// Signed by the run's owner. Cancels terms that have not taken effect yet.
    optional CancelTerms { run: RunId } = Registry.cancel_terms, "taking back the new terms of run {run}";

    /// Signed by the run's owner. The run pauses, or resumes, when the next window opens (PROT-3).
    optional SetStopped { run: RunId, stopped: bool }
        = Registry.set_stopped, "{} run {run}", if *stopped { "pausing" } else { "resuming" };

    /// Signed by the run's owner. `to` may accept the run.
    optional OfferRun { run: RunId, to: Account }
        = Registry.offer_run, "offering run {run} to {}", keys::address(to);

    /// Signed by the account to which the run was offered. It becomes the owner, and the deposit is held from it.
    optional AcceptRun { run: RunId } = Registry.accept_run, "taking run {run} over";

    /// Signed by the owner of a run that has been stopped for its unbonding time. Everything is paid out.
    optional CloseRun { run: RunId } = Registry.close_run, "closing run {run}";

    /// Signed by a miner's hotkey. A later one replaces an earlier one until the deadline (PROT-11).
    required Commit { run: RunId, window: Window, digest: Digest }
        = Windows.commit, "committing for window {} of run {run}", window.0;

    /// Signed by a validator's hotkey (PROT-14). `next_salt` is the digest of its salt for the next window (PROT-2).
    required Attest { run: RunId, window: Window, verdicts: Vec<(Uid, Verdict)>, next_salt: Digest }
        = Windows.attest, "attesting window {} of run {run}", window.0;

    /// Signed by a validator's hotkey (PROT-19).
    required Vote { run: RunId, window: Window, vote: Vote }
        = Windows.vote, "voting on window {} of run {run}", window.0;

    /// Signed by a validator's hotkey, in a run that hides attestations. `hash` commits to the verdicts (PROT-30).
    optional AttestHidden { run: RunId, window: Window, hash: Digest, next_salt: Digest }
        = Windows.attest_hidden, "committing to an attestation of window {} of run {run}", window.0;

    /// Signed by a validator's hotkey, after the deadline (PROT-30).
    optional RevealAttestation { run: RunId, window: Window, verdicts: Vec<(Uid, Verdict)>, salt: Salt as salt by Hex }
        = Windows.reveal_attestation, "revealing the attestation of window {} of run {run}", window.0;

    /// Signed by a validator's hotkey, in a run that hides votes. `hash` commits to the vote (PROT-30).
    optional VoteHidden { run: RunId, window: Window, hash: Digest }
        = Windows.vote_hidden, "committing to a vote on window {} of run {run}", window.0;

    /// Signed by a validator's hotkey, after the deadline (PROT-30).
    optional RevealVote { run: RunId, window: Window, vote: Vote, salt: Salt as salt by Hex }
        = Windows.reveal_vote, "revealing the vote on window {} of run {run}", window.0;

    /// Signed by a validator's hotkey, after the window is finalised: the digest of its receipt, and the root over its
    /// measurements (PROT-27).
    optional AnchorReceipts { run: RunId, window: Window, digest: Digest, probes: Digest }
        = Windows.anchor_receipts, "anchoring the receipts for window {} of run {run}", window.0;

    /// Signed by a validator's coldkey. A standing vote to rewind to the checkpoint of window `to`, or none (PROT-20).
    optional VoteRewind { run: RunId, uid: Uid, to: Option<Window> }
        = Windows.vote_rewind, "voting in run {run} to {}", match to {
            Some(to) => format!("go back to the checkpoint of window {}", to.0),
            None => "go on".to_owned(),
        };

    /// Signed by any account. Proves that a validator signed two different statements on one subject (PROT-21).
    optional ReportEquivocation { proof: Equivocation }
        = Windows.report_equivocation,
        "reporting what uid {} of run {} signed twice", proof.one.statement.uid, proof.one.statement.run;

    /// Signed by any account. Proves that a validator signed a statement that differs from its record on the chain
    /// (PROT-21).
    optional ReportContradiction { hotkey: Hotkey, statement: SignedStatement }
        = Windows.report_contradiction,
        "reporting what uid {} of run {} signed twice", statement.statement.uid, statement.statement.run;

    /// Signed by a validator's hotkey, once per epoch. `hash` commits to the weights (PROT-30).
    required CommitWeights { run: RunId, epoch: u32, hash: Digest }
        = Weights.commit, "committing to weights for epoch {epoch} of run {run}";

    /// Signed by a validator's hotkey, in the first windows of the next epoch (PROT-30).
    required RevealWeights { run: RunId, epoch: u32, weights: Vec<(Uid, u16)>, salt: Salt as salt by Hex }
        = Weights.reveal, "revealing weights for epoch {epoch} of run {run}";

    /// Signed by a validator's hotkey, in the first windows of the next epoch. `answers` are its measurements of the
    /// drawn contributions, in the order of the draw; `None` for a window without its anchor (PROT-30).
    optional AnswerProbes { run: RunId, epoch: u32, answers: Vec<Option<Answer>> }
        = Weights.answer_probes, "showing measurements of epoch {epoch} of run {run}";

    /// Signed by any account. Pays into the run's treasury.
    required Fund { run: RunId, amount: Amount } = Rewards.fund, "funding run {run} with {amount}";

    /// Signed by the seat's coldkey or hotkey. The pay goes to the coldkey.
    required Claim { run: RunId, uid: Uid } = Rewards.claim, "claiming the pay of uid {uid} of run {run}";

    /// Signed by a coldkey. Pays out the pay of its former seats.
    optional ClaimFormer { run: RunId }
        = Rewards.claim_former, "claiming what seats of run {run} earned that were given up or taken";

    /// Signed by the coldkey. Sets the destination of the seat's pay (PROT-32).
    optional SetPayout { run: RunId, uid: Uid, payout: Payout }
        = Rewards.set_payout, "setting the payout of uid {uid} of run {run} to {payout}";

    /// Signed by the run's owner, which receives the owner's share of the pay.
    required ClaimOwner { run: RunId } = Rewards.claim_owner, "claiming the owner's share of run {run}";

    /// Signed by any account. The amount counts as the validator's stake and earns a part of its pay (PROT-29).
    optional Nominate { run: RunId, uid: Uid, amount: Amount }
        = Nomination.nominate, "nominating uid {uid} of run {run} with {amount}";

    /// Signed by a nominator. The amount can be withdrawn after it has unbonded.
    optional Unnominate { run: RunId, uid: Uid, amount: Amount }
        = Nomination.unnominate, "taking {amount} back from behind uid {uid} of run {run}";

    /// Signed by a nominator. Releases the unbonded amount.
    optional WithdrawNomination { run: RunId, uid: Uid }
        = Nomination.withdraw, "withdrawing what has unbonded from behind uid {uid} of run {run}";

    /// Signed by a nominator.
    optional ClaimNomination { run: RunId, uid: Uid }
        = Nomination.claim, "claiming a nominator's pay from uid {uid} of run {run}";

    /// Signed by a validator's coldkey. Sets the validator's share of its nominators' pay (PROT-29).
    optional SetCommission { run: RunId, uid: Uid, commission: Permille }
        = Nomination.set_commission,
        "setting the commission of uid {uid} of run {run} to {}", percent(*commission);

    /// Signed by the account that holds the amount.
    required Transfer { to: Account as dest by MultiAddress, amount: Amount as value by CompactAmount }
        = Balances.transfer_keep_alive, "transferring {amount} to {}", keys::address(to);

    /// Signed by the account in whose name `proxy` may act, after `delay` blocks.
    optional AddProxy {
        proxy: Account as delegate by MultiAddress,
        may: ProxyKind as proxy_type,
        delay: u32
    } = Proxy.add_proxy, "letting {} act in the signer's name ({may})", keys::address(proxy);

    /// Signed by the account that revokes the proxy.
    optional RemoveProxy {
        proxy: Account as delegate by MultiAddress,
        may: ProxyKind as proxy_type,
        delay: u32
    } = Proxy.remove_proxy, "no longer letting {} act in the signer's name ({may})", keys::address(proxy);

    /// Signed by a proxy of `real`, in whose name the call is made. `kind` requires one kind of proxy; `None` accepts
    /// any.
    optional Proxied {
        real: Account as real by MultiAddress,
        kind: Option<ProxyKind> as force_proxy_type,
        call: Box<Call>
    } = Proxy.proxy, "{call} for {}", keys::address(real);
}

/// Destination of a seat's pay.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Payout {
    /// The coldkey's account.
    Account,
    /// The seat's stake.
    Stake,
}

impl fmt::Display for Payout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Payout::Account => "account",
            Payout::Stake => "stake",
        })
    }
}

/// Calls that a proxy may make in an account's name, in the chain's order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ProxyKind {
    /// All calls.
    Any,
    /// All calls that cannot send money away.
    NonTransfer,
    /// Calls for registered seats and their stake.
    Staking,
    /// Claims of pay, which goes to the account itself.
    Claims,
}

impl fmt::Display for ProxyKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ProxyKind::Any => "any",
            ProxyKind::NonTransfer => "non-transfer",
            ProxyKind::Staking => "staking",
            ProxyKind::Claims => "claims",
        })
    }
}

/// A value that a call accepts as an argument.
trait Argument {
    /// Returns its SCALE bytes. `encode` encodes a call within a call.
    fn encode_with<E>(&self, encode: &impl Fn(&Call) -> Result<Vec<u8>, E>) -> Result<Vec<u8>, E>;

    /// Returns the value as displayed text: amounts in MTL, accounts as addresses, hex otherwise.
    fn text(&self) -> String;
}

macro_rules! arguments {
    ($($type:ty: $text:expr;)*) => {$(
        impl Argument for $type {
            fn encode_with<E>(&self, _: &impl Fn(&Call) -> Result<Vec<u8>, E>) -> Result<Vec<u8>, E> {
                Ok(self.encode())
            }

            fn text(&self) -> String {
                let text: fn(&$type) -> String = $text;
                text(self)
            }
        }
    )*};
}

arguments! {
    bool: |value| value.to_string();
    u32: |value| value.to_string();
    String: Clone::clone;
    RunId: |run| run.to_string();
    Uid: |uid| uid.to_string();
    Window: |window| window.0.to_string();
    Role: |role| role.to_string();
    Digest: |digest| digest.to_string();
    Amount: |amount| amount.to_string();
    Permille: |share| percent(*share);
    Payout: |payout| payout.to_string();
    ProxyKind: |kind| kind.to_string();
    Option<Window>: |window| window.map_or("none".into(), |window| window.0.to_string());
    Option<ProxyKind>: |kind| kind.map_or("none".into(), |kind| kind.to_string());
    Account: keys::address;
    Hotkey: |hotkey| keys::address(&hotkey.0);
    Signature: hex_text;
    Box<RunParams>: |params| {
        serde_json::to_string(params).unwrap_or_else(|error| format!("(cannot be shown: {error})"))
    };
    Box<Terms>: |terms| {
        let lines = terms::lines(terms).into_iter().map(|(name, value)| format!("{name} = {value}"));
        lines.collect::<Vec<_>>().join(", ")
    };
    Vec<(Uid, Verdict)>: hex_text;
    Vec<(Uid, u16)>: hex_text;
    Vec<Option<Answer>>: hex_text;
    Vote: hex_text;
    Equivocation: hex_text;
    SignedStatement: hex_text;
    Hex<'_>: |salt| hex_text(salt.0);
    MultiAddress<'_>: |address| keys::address(address.0);
    CompactAmount<'_>: |amount| amount.0.to_string();
}

fn hex_text(value: &impl Encode) -> String {
    format!("0x{}", hex::encode(value.encode()))
}

impl Argument for Box<Call> {
    fn encode_with<E>(&self, encode: &impl Fn(&Call) -> Result<Vec<u8>, E>) -> Result<Vec<u8>, E> {
        encode(self)
    }

    fn text(&self) -> String {
        let arguments = self.describe().into_iter().map(|(name, value)| format!("{name} = {value}"));
        format!("{}({})", self.name(), arguments.collect::<Vec<_>>().join(", "))
    }
}

/// 32 bytes that are not an account.
#[derive(Encode)]
struct Hex<'a>(&'a Salt);

/// An account in the form of FRAME's own calls: a `MultiAddress::Id`.
struct MultiAddress<'a>(&'a Account);

impl Encode for MultiAddress<'_> {
    fn encode(&self) -> Vec<u8> {
        (0u8, self.0).encode()
    }
}

/// An amount in its shortest encoding.
struct CompactAmount<'a>(&'a Amount);

impl Encode for CompactAmount<'_> {
    fn encode(&self) -> Vec<u8> {
        Compact(self.0.0).encode()
    }
}

/// Required methods of the runtime API, with their number of arguments.
const API: &str = "MettleApi";
const API_METHODS: &[(&str, usize)] = &[
    ("runs", 0),
    ("run", 1),
    ("seats", 1),
    ("window", 2),
    ("seat", 2),
    ("window_summary", 2),
    ("seat_window", 3),
    ("update_mirrors", 4),
    ("weights", 1),
    ("run_status", 1),
    ("seat_statuses", 3),
    ("account_status", 2),
    ("payslips", 2),
    ("consensus_bonds", 2),
];

impl Call {
    fn metadata(&self) -> &'static CallMetadata {
        &CALLS[self.kind() as usize]
    }

    /// Returns the call in the form that subxt signs; `encode` is as in [`Call::arguments`].
    pub(crate) fn payload<E>(&self, encode: impl Fn(&Call) -> Result<Vec<u8>, E>) -> Result<CallPayload, E> {
        Ok(CallPayload { metadata: self.metadata(), arguments: self.arguments(encode)? })
    }

    /// Returns the names of pallet and call on the chain: `Registry.add_stake`.
    pub fn name(&self) -> String {
        let CallMetadata { pallet, call, .. } = self.metadata();
        format!("{pallet}.{call}")
    }

    /// Returns every argument: its name on the chain and its displayed value. Amounts are in MTL and accounts are
    /// addresses; other values without a readable form are the hex of their encoding.
    pub fn describe(&self) -> Vec<(&'static str, String)> {
        self.metadata().arguments.iter().copied().zip(self.texts()).collect()
    }
}

/// A call with encoded arguments, which only have to match the chain's metadata.
pub(crate) struct CallPayload {
    metadata: &'static CallMetadata,
    arguments: Vec<Vec<u8>>,
}

impl subxt::tx::Payload for CallPayload {
    type CallData = CallPayload;

    fn pallet_name(&self) -> &str {
        self.metadata.pallet
    }

    fn call_name(&self) -> &str {
        self.metadata.call
    }

    fn call_data(&self) -> &CallPayload {
        self
    }
}

impl EncodeAsFields for CallPayload {
    fn encode_as_fields_to<R: TypeResolver>(
        &self,
        fields: &mut dyn FieldIter<'_, R::TypeId>,
        types: &R,
        out: &mut Vec<u8>,
    ) -> Result<(), EncodeError> {
        let CallMetadata { pallet, call, arguments, .. } = self.metadata;
        if fields.len() != arguments.len() {
            return Err(EncodeError::custom_string(format!(
                "{pallet}.{call} takes {} arguments on this chain, and {} are known",
                fields.len(),
                arguments.len()
            )));
        }
        for ((field, name), encoded) in fields.zip(*arguments).zip(&self.arguments) {
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

/// Checks that a chain with this metadata has every required call and every method of the runtime API.
///
/// # Errors
/// Names the missing part.
pub(crate) fn check_compatible(metadata: &Metadata) -> Result<(), String> {
    for CallMetadata { pallet, call, arguments, .. } in CALLS.iter().filter(|call| call.required) {
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
pub(crate) mod tests {
    use super::*;
    use codec::Decode as _;
    use protocol::statement::{Statement, StatementKind};
    use subxt::ext::scale_type_resolver::Field;

    /// Builds a validator's statement about window 9.
    fn signed_vote(of: u8) -> SignedStatement {
        let (run, window, uid) = (RunId(7), Window(9), Uid(2));
        let statement = Statement { run, window, uid, kind: StatementKind::Vote, digest: Digest([of; 32]) };
        SignedStatement { statement, signature: Signature([of; 64]) }
    }

    /// Returns one call of each kind.
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
                price_max: Amount(2),
                proof: Signature([5; 64]),
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
            Call::CommitWeights { run, epoch: 4, hash: digest },
            Call::RevealWeights { run, epoch: 4, weights: vec![(Uid(1), 65535)], salt: [7; 32] },
            Call::Fund { run, amount: Amount(300) },
            Call::Claim { run, uid: Uid(2) },
            Call::ClaimOwner { run },
            Call::Transfer { to: [9; 32], amount: Amount(300) },
            Call::AttestHidden { run, window, hash: digest, next_salt: digest },
            Call::RevealAttestation { run, window, verdicts: vec![(Uid(1), Verdict::Valid)], salt: [7; 32] },
            Call::VoteHidden { run, window, hash: digest },
            Call::RevealVote { run, window, vote: Vote { update: digest, state_root: None }, salt: [7; 32] },
            Call::AnchorReceipts { run, window, digest, probes: digest },
            Call::AnswerProbes {
                run,
                epoch: 4,
                answers: vec![None, Some(Answer { losses: Some(vec![3_141_593]), proof: vec![digest] })],
            },
            Call::ReportEquivocation {
                proof: Equivocation { hotkey: Hotkey([3; 32]), one: signed_vote(1), other: signed_vote(2) },
            },
            Call::ReportContradiction { hotkey: Hotkey([3; 32]), statement: signed_vote(1) },
            Call::Unstake { run, uid: Uid(2), amount: Amount(1) },
            Call::Leave { run, uid: Uid(2) },
            Call::Withdraw { run },
            Call::RotateHotkey { run, uid: Uid(2), hotkey: Hotkey([4; 32]), proof: Signature([5; 64]) },
            Call::SetTerms { run, terms: Box::default() },
            Call::CancelTerms { run },
            Call::SetStopped { run, stopped: true },
            Call::VoteRewind { run, uid: Uid(2), to: Some(Window(9)) },
            Call::OfferRun { run, to: [5; 32] },
            Call::AcceptRun { run },
            Call::CloseRun { run },
            Call::ClaimFormer { run },
            Call::SetPayout { run, uid: Uid(2), payout: Payout::Stake },
            Call::Nominate { run, uid: Uid(2), amount: Amount(3) },
            Call::Unnominate { run, uid: Uid(2), amount: Amount(3) },
            Call::WithdrawNomination { run, uid: Uid(2) },
            Call::ClaimNomination { run, uid: Uid(2) },
            Call::SetCommission { run, uid: Uid(2), commission: Permille(125) },
            Call::AddProxy { proxy: [6; 32], may: ProxyKind::Claims, delay: 0 },
            Call::RemoveProxy { proxy: [6; 32], may: ProxyKind::Any, delay: 0 },
            Call::Proxied { real: [8; 32], kind: None, call: Box::new(Call::Claim { run, uid: Uid(2) }) },
        ]
    }

    /// Returns the encoded arguments, except for a call within a call.
    fn arguments(call: &Call) -> Vec<Vec<u8>> {
        call.arguments(|_| Ok::<_, ()>(Vec::new())).unwrap()
    }

    #[test]
    fn the_list_of_calls_has_one_of_each_kind_with_all_its_arguments() {
        let mut kinds: Vec<usize> = calls().iter().map(|call| call.kind() as usize).collect();
        kinds.sort_unstable();
        assert_eq!(kinds, Vec::from_iter(0..CALLS.len()));
        for call in calls() {
            let names = call.metadata().arguments;
            assert_eq!((arguments(&call).len(), call.describe().len()), (names.len(), names.len()), "{call}");
        }
    }

    #[test]
    fn arguments_are_encoded_as_the_chain_reads_them() {
        let calls = calls();
        let digest = Digest::of(b"bytes").to_string();
        let check = |name: &str, expected: &[&str]| {
            let call = calls.iter().find(|call| call.name() == name).unwrap();
            let found: Vec<String> = arguments(call).iter().map(hex::encode).collect();
            assert_eq!(found, expected, "{name}");
        };
        check(
            "Registry.register",
            &[
                "07000000",
                "01",
                &"03".repeat(32),
                // A compact length, then the bytes.
                &format!("50{}", hex::encode("http://example.org/v")),
                // 5 · 10¹², little-endian, in 16 bytes.
                "005039278c0400000000000000000000",
                "02000000000000000000000000000000",
                &"05".repeat(64),
            ],
        );
        check("Windows.commit", &["07000000", "09000000", &digest]);
        check("Windows.attest", &["07000000", "09000000", "08010000020001", &digest]);
        check("Windows.vote", &["07000000", "09000000", &format!("{digest}00")]);
        check("Windows.vote_rewind", &["07000000", "0200", "0109000000"]);
        check("Windows.attest_hidden", &["07000000", "09000000", &digest, &digest]);
        check("Windows.reveal_attestation", &["07000000", "09000000", "04010000", &"07".repeat(32)]);
        check("Windows.reveal_vote", &["07000000", "09000000", &format!("{digest}00"), &"07".repeat(32)]);
        let statement = |of: &str| format!("07000000090000000200{}{}{}", "01", of.repeat(32), of.repeat(64));
        check("Windows.report_contradiction", &[&"03".repeat(32), &statement("01")]);
        let proof = format!("{}{}{}", "03".repeat(32), statement("01"), statement("02"));
        check("Windows.report_equivocation", &[&proof]);
        check("Weights.commit", &["07000000", "04000000", &digest]);
        check("Weights.reveal", &["07000000", "04000000", "040100ffff", &"07".repeat(32)]);
        check("Registry.set_stopped", &["07000000", "01"]);
        check("Rewards.set_payout", &["07000000", "0200", "01"]);
        check("Nomination.set_commission", &["07000000", "0200", "7d00"]);
        check("Proxy.add_proxy", &[&format!("00{}", "06".repeat(32)), "03", "00000000"]);
        check("Proxy.proxy", &[&format!("00{}", "08".repeat(32)), "00", ""]);
        check("Balances.transfer_keep_alive", &[&format!("00{}", "09".repeat(32)), "b104"]);
    }

    #[test]
    fn a_call_is_described_with_every_argument_as_a_person_reads_it() {
        let described = |name: &str| {
            let call = calls().into_iter().find(|call| call.name() == name).unwrap();
            call.describe().into_iter().map(|(name, value)| format!("{name} = {value}")).collect::<Vec<_>>()
        };
        assert_eq!(described("Registry.unstake"), ["run = 7", "uid = 2", "amount = 0.000000000001 MTL"]);
        assert_eq!(described("Nomination.set_commission"), ["run = 7", "uid = 2", "commission = 12.5 %"]);
        assert_eq!(described("Rewards.set_payout"), ["run = 7", "uid = 2", "payout = stake"]);
        let terms = &described("Registry.set_terms")[1];
        assert!(
            terms.contains("miner_stake_min = 0.01 MTL") && terms.contains("shares.burn = 0 %"),
            "{terms}"
        );
        let proxied = described("Proxy.proxy");
        assert_eq!(proxied[0], format!("real = {}", keys::address(&[8; 32])));
        assert_eq!(proxied[1], "force_proxy_type = none");
        assert_eq!(proxied[2], "call = Rewards.claim(run = 7, uid = 2)");
        assert_eq!(described("Proxy.add_proxy")[1..], ["proxy_type = claims", "delay = 0"]);
        assert_eq!(described("Weights.reveal")[2], "weights = 0x040100ffff");
        assert_eq!(described("Weights.reveal")[3], format!("salt = 0x{}", "07".repeat(32)));
    }

    /// Returns the metadata of a running chain, with one name changed to another of the same length.
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

    /// Returns the metadata of a development chain.
    pub(crate) async fn metadata_of_a_chain() -> Vec<u8> {
        use subxt::rpcs::{RpcClient, client::rpc_params};
        let manual = embedded_chain::Sealing::Manual;
        let config = embedded_chain::Config { sealing: manual, ..Default::default() };
        let chain = embedded_chain::EmbeddedChain::start(config).await.unwrap();
        let rpc = RpcClient::from_insecure_url(chain.url()).await.unwrap();
        // Version 14, which `state_getMetadata` returns, has no runtime APIs.
        let version = format!("0x{}", hex::encode(16u32.encode()));
        let call = rpc_params!["Metadata_metadata_at_version", version];
        let answer: String = rpc.request("state_call", call).await.unwrap();
        let answer = hex::decode(answer.trim_start_matches("0x")).unwrap();
        chain.shutdown().await;
        Option::<Vec<u8>>::decode(&mut answer.as_slice()).unwrap().unwrap()
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn every_call_fits_the_chain_and_a_missing_call_is_noticed() {
        let bytes = metadata_of_a_chain().await;
        let ours = Metadata::decode_from(&bytes).unwrap();
        assert_eq!(check_compatible(&ours), Ok(()));
        let encode = |metadata: &Metadata, call: &Call| {
            let known = call.metadata();
            let pallet = metadata.pallet_by_name(known.pallet).unwrap();
            let fields = &pallet.call_variant_by_name(known.call).unwrap().fields;
            let mut fields =
                fields.iter().map(|field| Field { name: field.name.as_deref(), id: field.ty.id });
            // The call within the call, as the metadata numbers it.
            let inner = |call: &Call| {
                let pallet = metadata.pallet_by_name(call.metadata().pallet).unwrap();
                let index = pallet.call_variant_by_name(call.metadata().call).unwrap().index;
                Ok::<_, String>([vec![pallet.call_index(), index], arguments(call).concat()].concat())
            };
            let payload = call.payload(inner)?;
            payload
                .encode_as_fields(&mut fields, metadata.types())
                .map(|bytes| (bytes, payload.arguments.concat()))
                .map_err(|error| error.to_string())
        };
        for call in calls() {
            let (encoded, expected) = encode(&ours, &call).unwrap();
            assert_eq!(encoded, expected, "{call}");
        }

        // An argument whose type has changed, and one too few: nothing is signed.
        let claim = Call::Claim { run: RunId(1), uid: Uid(1) };
        let mut changed = claim.payload(|_| Ok::<_, ()>(Vec::new())).unwrap();
        changed.arguments[1] = 1u32.encode();
        let pallet = ours.pallet_by_name("Rewards").unwrap();
        let fields = &pallet.call_variant_by_name("claim").unwrap().fields;
        let field = |index: usize| Field { name: fields[index].name.as_deref(), id: fields[index].ty.id };
        let fit = |fields: Vec<Field<'_, u32>>| {
            let error = changed.encode_as_fields(&mut fields.into_iter(), ours.types()).unwrap_err();
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
            let found = check_compatible(&renamed(&bytes, from, to)).unwrap_err();
            assert!(found.contains(missing), "{found}");
        }
    }

    #[test]
    fn a_call_displays_what_is_being_done() {
        for call in calls() {
            let text = call.to_string();
            let mut words = text.trim_start_matches("no longer ").split(' ');
            assert!(words.next().is_some_and(|verb| verb.ends_with("ing")), "{text}");
        }
    }
}
