//! What can be asked of the chain, and how it is spelled.
//!
//! Arguments are the protocol's own types, encoded by themselves. Pallet, call and argument are looked up by name in the
//! chain's metadata each time a call is made, and each argument's bytes are read back by the type that the metadata
//! gives it: a chain whose call has other arguments is noticed before anything is signed, not after it is paid for.

use crate::{Amount, keys, terms};
use codec::{Compact, Encode};
use protocol::{
    Digest, Hotkey, Role, RunId, RunParams, Terms, Uid, Window,
    params::Permille,
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
        /// The most that the seat may cost, burnt: its price rises as others register (PROT-29).
        price_max: Amount,
    },
    /// By the hotkey.
    SetEndpoint { run: RunId, endpoint: String },
    /// By the coldkey.
    AddStake { run: RunId, uid: Uid, amount: Amount },
    /// By the coldkey: the stake shrinks at once, and the amount stays held until it has unbonded (PROT-29).
    Unstake { run: RunId, uid: Uid, amount: Amount },
    /// By the coldkey: the seat is given up as the next window opens, and its stake unbonds (PROT-29).
    Leave { run: RunId, uid: Uid },
    /// By whoever's stake it was: releases what has unbonded.
    Withdraw { run: RunId },
    /// By the coldkey: the seat changes its hotkey as the next window opens (PROT-29).
    RotateHotkey { run: RunId, uid: Uid, hotkey: Hotkey },
    /// By the run's owner: new terms wait for an epoch to begin.
    SetTerms { run: RunId, terms: Box<Terms> },
    /// By the run's owner: takes back terms that wait for an epoch to begin.
    DropTerms { run: RunId },
    /// By the run's owner: the run pauses, or goes on, as the next window opens (PROT-3).
    SetStopped { run: RunId, stopped: bool },
    /// By the run's owner: `to` may take it over.
    OfferRun { run: RunId, to: Account },
    /// By whom a run was offered to, who owns it then and has its deposit held.
    AcceptRun { run: RunId },
    /// By a miner's hotkey; a later one replaces an earlier one until the deadline (PROT-11).
    Commit { run: RunId, window: Window, digest: Digest },
    /// By a validator's hotkey (PROT-14). `next_salt` is the digest of its salt for the next window (PROT-2).
    Attest { run: RunId, window: Window, verdicts: Vec<(Uid, Verdict)>, next_salt: Digest },
    /// By a validator's hotkey (PROT-19).
    Vote { run: RunId, window: Window, vote: Vote },
    /// By a validator's hotkey, in a run that hides attestations: the hash of the verdicts that it will reveal (PROT-30).
    AttestHidden { run: RunId, window: Window, hash: Digest, next_salt: Digest },
    /// By a validator's hotkey, after the deadline (PROT-30).
    RevealAttestation { run: RunId, window: Window, verdicts: Vec<(Uid, Verdict)>, salt: Salt },
    /// By a validator's hotkey, in a run that hides votes: the hash of the vote that it will reveal (PROT-30).
    VoteHidden { run: RunId, window: Window, hash: Digest },
    /// By a validator's hotkey, after the deadline (PROT-30).
    RevealVote { run: RunId, window: Window, vote: Vote, salt: Salt },
    /// By a validator's hotkey, once the window is fixed: the digest of its receipts (PROT-27).
    AnchorReceipts { run: RunId, window: Window, digest: Digest },
    /// By anybody: a validator signed two different things of one matter (PROT-21).
    ReportEquivocation { proof: Equivocation },
    /// By anybody: a validator signed something else than it put on the chain (PROT-21).
    ReportContradiction { hotkey: Hotkey, statement: SignedStatement },
    /// By a validator's hotkey, once an epoch: the hash of the weights that it will reveal (PROT-30).
    CommitWeights { run: RunId, epoch: u32, hash: Digest },
    /// By a validator's hotkey, in the first windows of the epoch after (PROT-30).
    RevealWeights { run: RunId, epoch: u32, weights: Vec<(Uid, u16)>, salt: Salt },
    /// By anybody, into the run's treasury.
    Fund { run: RunId, amount: Amount },
    /// By the seat's coldkey or hotkey; what is claimable goes to the coldkey.
    Claim { run: RunId, uid: Uid },
    /// By who was the coldkey of seats that are not its any more: what they earned.
    ClaimFormer { run: RunId },
    /// By the coldkey: where the seat's pay goes when it is claimed (PROT-32).
    SetPayout { run: RunId, uid: Uid, payout: Payout },
    /// By the run's owner, to whom the owner's share of the pay goes.
    ClaimOwner { run: RunId },
    /// By anybody, behind a validator: it counts as the validator's stake, and earns a part of its pay (PROT-29).
    Nominate { run: RunId, uid: Uid, amount: Amount },
    /// By a nominator: the amount leaves once it has unbonded.
    Unnominate { run: RunId, uid: Uid, amount: Amount },
    /// By a nominator: releases what has unbonded.
    WithdrawNomination { run: RunId, uid: Uid },
    /// By a nominator.
    ClaimNomination { run: RunId, uid: Uid },
    /// By a validator's coldkey: what it keeps of its nominators' pay before that is shared (PROT-29).
    SetCommission { run: RunId, uid: Uid, commission: Permille },
    /// By anybody who has it.
    Transfer { to: Account, amount: Amount },
    /// By an account that lets `proxy` act in its name from now on.
    AddProxy { proxy: Account, may: ProxyKind },
    /// By an account that takes that back.
    RemoveProxy { proxy: Account, may: ProxyKind },
    /// By a proxy of `real`, in whose name the call is made: a key that may act for a coldkey which stays offline.
    Proxied { real: Account, call: Box<Call> },
}

/// Where a seat's pay goes when it is claimed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Payout {
    /// To the coldkey's account.
    Account,
    /// Into the seat's stake.
    Stake,
}

/// What a proxy may do in an account's name, in the order of the chain's own numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ProxyKind {
    /// Everything.
    Any,
    /// Everything that cannot send money away.
    NonTransfer,
    /// What concerns seats and the stake behind them.
    Staking,
    /// Claim pay, into the account itself.
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

impl fmt::Display for Payout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Payout::Account => "account",
            Payout::Stake => "stake",
        })
    }
}

/// How a kind of call is spelled on the chain.
struct Spelling {
    pallet: &'static str,
    call: &'static str,
    arguments: &'static [&'static str],
}

macro_rules! spellings {
    ($(#[$doc:meta])* $list:ident: $($name:ident = $pallet:literal . $call:literal ($($argument:literal),*);)*) => {
        $(const $name: Spelling = Spelling { pallet: $pallet, call: $call, arguments: &[$($argument),*] };)*
        $(#[$doc])*
        const $list: &[&Spelling] = &[$(&$name),*];
    };
}

spellings! {
    /// What programs do by themselves: a chain without one of these is none to work on, and is refused at once.
    DAILY:
    CREATE_RUN = "Registry"."create_run"("params", "terms", "spec", "manifest", "theta0", "published_at");
    REGISTER = "Registry"."register"("run", "role", "hotkey", "endpoint", "stake", "price_max");
    SET_ENDPOINT = "Registry"."set_endpoint"("run", "endpoint");
    ADD_STAKE = "Registry"."add_stake"("run", "uid", "amount");
    COMMIT = "Windows"."commit"("run", "window", "digest");
    ATTEST = "Windows"."attest"("run", "window", "verdicts", "next_salt");
    VOTE = "Windows"."vote"("run", "window", "vote");
    COMMIT_WEIGHTS = "Weights"."commit"("run", "epoch", "hash");
    REVEAL_WEIGHTS = "Weights"."reveal"("run", "epoch", "weights", "salt");
    FUND = "Rewards"."fund"("run", "amount");
    CLAIM = "Rewards"."claim"("run", "uid");
    CLAIM_OWNER = "Rewards"."claim_owner"("run");
    TRANSFER = "Balances"."transfer_keep_alive"("dest", "value");
}

spellings! {
    /// What people do now and then, and what some runs ask for: a chain that lacks one of these is told of when somebody wants it.
    #[cfg(test)]
    NOW_AND_THEN:
    ATTEST_HIDDEN = "Windows"."attest_hidden"("run", "window", "hash", "next_salt");
    REVEAL_ATTESTATION = "Windows"."reveal_attestation"("run", "window", "verdicts", "salt");
    VOTE_HIDDEN = "Windows"."vote_hidden"("run", "window", "hash");
    REVEAL_VOTE = "Windows"."reveal_vote"("run", "window", "vote", "salt");
    ANCHOR_RECEIPTS = "Windows"."anchor_receipts"("run", "window", "digest");
    REPORT_EQUIVOCATION = "Windows"."report_equivocation"("proof");
    REPORT_CONTRADICTION = "Windows"."report_contradiction"("hotkey", "statement");
    UNSTAKE = "Registry"."unstake"("run", "uid", "amount");
    LEAVE = "Registry"."leave"("run", "uid");
    WITHDRAW = "Registry"."withdraw"("run");
    ROTATE_HOTKEY = "Registry"."rotate_hotkey"("run", "uid", "hotkey");
    SET_TERMS = "Registry"."set_terms"("run", "terms");
    DROP_TERMS = "Registry"."drop_terms"("run");
    SET_STOPPED = "Registry"."set_stopped"("run", "stopped");
    OFFER_RUN = "Registry"."offer_run"("run", "to");
    ACCEPT_RUN = "Registry"."accept_run"("run");
    CLAIM_FORMER = "Rewards"."claim_former"("run");
    SET_PAYOUT = "Rewards"."set_payout"("run", "uid", "payout");
    NOMINATE = "Nomination"."nominate"("run", "uid", "amount");
    UNNOMINATE = "Nomination"."unnominate"("run", "uid", "amount");
    WITHDRAW_NOMINATION = "Nomination"."withdraw"("run", "uid");
    CLAIM_NOMINATION = "Nomination"."claim"("run", "uid");
    SET_COMMISSION = "Nomination"."set_commission"("run", "uid", "commission");
    ADD_PROXY = "Proxy"."add_proxy"("delegate", "proxy_type", "delay");
    REMOVE_PROXY = "Proxy"."remove_proxy"("delegate", "proxy_type", "delay");
    PROXIED = "Proxy"."proxy"("real", "force_proxy_type", "call");
}

/// What the runtime API must offer: its methods, and how many arguments each takes.
const API: &str = "MettleApi";
const API_METHODS: &[(&str, usize)] = &[
    ("runs", 0),
    ("run", 1),
    ("seats", 1),
    ("window", 2),
    ("weights", 1),
    ("run_status", 1),
    ("seat_statuses", 3),
    ("account_status", 2),
    ("payslips", 2),
    ("consensus_bonds", 2),
];

impl Call {
    fn spelling(&self) -> &'static Spelling {
        match self {
            Call::CreateRun { .. } => &CREATE_RUN,
            Call::Register { .. } => &REGISTER,
            Call::SetEndpoint { .. } => &SET_ENDPOINT,
            Call::AddStake { .. } => &ADD_STAKE,
            Call::Unstake { .. } => &UNSTAKE,
            Call::Leave { .. } => &LEAVE,
            Call::Withdraw { .. } => &WITHDRAW,
            Call::RotateHotkey { .. } => &ROTATE_HOTKEY,
            Call::SetTerms { .. } => &SET_TERMS,
            Call::DropTerms { .. } => &DROP_TERMS,
            Call::SetStopped { .. } => &SET_STOPPED,
            Call::OfferRun { .. } => &OFFER_RUN,
            Call::AcceptRun { .. } => &ACCEPT_RUN,
            Call::Commit { .. } => &COMMIT,
            Call::Attest { .. } => &ATTEST,
            Call::Vote { .. } => &VOTE,
            Call::AttestHidden { .. } => &ATTEST_HIDDEN,
            Call::RevealAttestation { .. } => &REVEAL_ATTESTATION,
            Call::VoteHidden { .. } => &VOTE_HIDDEN,
            Call::RevealVote { .. } => &REVEAL_VOTE,
            Call::AnchorReceipts { .. } => &ANCHOR_RECEIPTS,
            Call::ReportEquivocation { .. } => &REPORT_EQUIVOCATION,
            Call::ReportContradiction { .. } => &REPORT_CONTRADICTION,
            Call::CommitWeights { .. } => &COMMIT_WEIGHTS,
            Call::RevealWeights { .. } => &REVEAL_WEIGHTS,
            Call::Fund { .. } => &FUND,
            Call::Claim { .. } => &CLAIM,
            Call::ClaimFormer { .. } => &CLAIM_FORMER,
            Call::SetPayout { .. } => &SET_PAYOUT,
            Call::ClaimOwner { .. } => &CLAIM_OWNER,
            Call::Nominate { .. } => &NOMINATE,
            Call::Unnominate { .. } => &UNNOMINATE,
            Call::WithdrawNomination { .. } => &WITHDRAW_NOMINATION,
            Call::ClaimNomination { .. } => &CLAIM_NOMINATION,
            Call::SetCommission { .. } => &SET_COMMISSION,
            Call::Transfer { .. } => &TRANSFER,
            Call::AddProxy { .. } => &ADD_PROXY,
            Call::RemoveProxy { .. } => &REMOVE_PROXY,
            Call::Proxied { .. } => &PROXIED,
        }
    }

    /// The arguments in the order of the spelling, each encoded. A call within a call is encoded by `encode`: its bytes
    /// depend on the chain's numbering of pallets and calls.
    fn arguments<E>(&self, encode: impl Fn(&Call) -> Result<Vec<u8>, E>) -> Result<Vec<Vec<u8>>, E> {
        Ok(match self {
            Call::CreateRun { params, terms, spec, manifest, theta0, origin } => {
                vec![
                    params.encode(),
                    terms.encode(),
                    spec.encode(),
                    manifest.encode(),
                    theta0.encode(),
                    origin.encode(),
                ]
            }
            Call::Register { run, role, hotkey, endpoint, stake, price_max } => vec![
                run.encode(),
                role.encode(),
                hotkey.encode(),
                endpoint.encode(),
                stake.0.encode(),
                price_max.0.encode(),
            ],
            Call::SetEndpoint { run, endpoint } => vec![run.encode(), endpoint.encode()],
            Call::AddStake { run, uid, amount }
            | Call::Unstake { run, uid, amount }
            | Call::Nominate { run, uid, amount }
            | Call::Unnominate { run, uid, amount } => {
                vec![run.encode(), uid.encode(), amount.0.encode()]
            }
            Call::Leave { run, uid }
            | Call::WithdrawNomination { run, uid }
            | Call::ClaimNomination { run, uid } => vec![run.encode(), uid.encode()],
            Call::Withdraw { run }
            | Call::DropTerms { run }
            | Call::AcceptRun { run }
            | Call::ClaimFormer { run } => vec![run.encode()],
            Call::OfferRun { run, to } => vec![run.encode(), to.encode()],
            Call::RotateHotkey { run, uid, hotkey } => vec![run.encode(), uid.encode(), hotkey.encode()],
            Call::SetTerms { run, terms } => vec![run.encode(), terms.encode()],
            Call::SetStopped { run, stopped } => vec![run.encode(), stopped.encode()],
            Call::SetPayout { run, uid, payout } => vec![run.encode(), uid.encode(), payout.encode()],
            Call::SetCommission { run, uid, commission } => {
                vec![run.encode(), uid.encode(), commission.encode()]
            }
            Call::Commit { run, window, digest } | Call::AnchorReceipts { run, window, digest } => {
                vec![run.encode(), window.encode(), digest.encode()]
            }
            Call::Attest { run, window, verdicts, next_salt } => {
                vec![run.encode(), window.encode(), verdicts.encode(), next_salt.encode()]
            }
            Call::Vote { run, window, vote } => vec![run.encode(), window.encode(), vote.encode()],
            Call::AttestHidden { run, window, hash, next_salt } => {
                vec![run.encode(), window.encode(), hash.encode(), next_salt.encode()]
            }
            Call::RevealAttestation { run, window, verdicts, salt } => {
                vec![run.encode(), window.encode(), verdicts.encode(), salt.encode()]
            }
            Call::VoteHidden { run, window, hash } => vec![run.encode(), window.encode(), hash.encode()],
            Call::RevealVote { run, window, vote, salt } => {
                vec![run.encode(), window.encode(), vote.encode(), salt.encode()]
            }
            Call::ReportEquivocation { proof } => vec![proof.encode()],
            Call::ReportContradiction { hotkey, statement } => vec![hotkey.encode(), statement.encode()],
            Call::CommitWeights { run, epoch, hash } => vec![run.encode(), epoch.encode(), hash.encode()],
            Call::RevealWeights { run, epoch, weights, salt } => {
                vec![run.encode(), epoch.encode(), weights.encode(), salt.encode()]
            }
            Call::Fund { run, amount } => vec![run.encode(), amount.0.encode()],
            Call::Claim { run, uid } => vec![run.encode(), uid.encode()],
            Call::ClaimOwner { run } => vec![run.encode()],
            Call::Transfer { to, amount } => {
                // A `MultiAddress::Id`, as every chain with the usual address type takes it.
                vec![(0u8, to).encode(), Compact(amount.0).encode()]
            }
            Call::AddProxy { proxy, may } | Call::RemoveProxy { proxy, may } => {
                // Without a delay: it acts as soon as it signs.
                vec![(0u8, proxy).encode(), may.encode(), 0u32.encode()]
            }
            Call::Proxied { real, call } => {
                // Any proxy of `real` that may make this call: none of its kinds is asked for in particular.
                vec![(0u8, real).encode(), vec![0], encode(call)?]
            }
        })
    }

    /// The call as subxt signs it; `encode` is as in [`Call::arguments`].
    pub(crate) fn payload<E>(&self, encode: impl Fn(&Call) -> Result<Vec<u8>, E>) -> Result<CallPayload, E> {
        let spelling = self.spelling();
        Ok(CallPayload { spelling, arguments: Arguments { spelling, encoded: self.arguments(encode)? } })
    }

    /// Pallet and call, as the chain names them: `Registry.add_stake`.
    pub fn name(&self) -> String {
        let Spelling { pallet, call, .. } = self.spelling();
        format!("{pallet}.{call}")
    }

    /// Every argument: its name on the chain, and its value as a person reads it. Amounts are in MTL, accounts are
    /// addresses; what has no better form is shown in hex as it is encoded.
    pub fn describe(&self) -> Vec<(&'static str, String)> {
        let account = |account: &Account| keys::address(account);
        let words: Vec<String> = match self {
            Call::CreateRun { params, terms, spec, manifest, theta0, origin } => vec![
                as_json(params),
                terms_said(terms),
                spec.to_string(),
                manifest.to_string(),
                theta0.to_string(),
                origin.clone(),
            ],
            Call::Register { run, role, hotkey, endpoint, stake, price_max } => vec![
                run.to_string(),
                role.to_string(),
                account(&hotkey.0),
                endpoint.clone(),
                stake.to_string(),
                price_max.to_string(),
            ],
            Call::SetEndpoint { run, endpoint } => vec![run.to_string(), endpoint.clone()],
            Call::AddStake { run, uid, amount }
            | Call::Unstake { run, uid, amount }
            | Call::Nominate { run, uid, amount }
            | Call::Unnominate { run, uid, amount } => {
                vec![run.to_string(), uid.to_string(), amount.to_string()]
            }
            Call::Leave { run, uid }
            | Call::Claim { run, uid }
            | Call::WithdrawNomination { run, uid }
            | Call::ClaimNomination { run, uid } => vec![run.to_string(), uid.to_string()],
            Call::Withdraw { run }
            | Call::DropTerms { run }
            | Call::AcceptRun { run }
            | Call::ClaimFormer { run }
            | Call::ClaimOwner { run } => vec![run.to_string()],
            Call::OfferRun { run, to } => vec![run.to_string(), account(to)],
            Call::RotateHotkey { run, uid, hotkey } => {
                vec![run.to_string(), uid.to_string(), account(&hotkey.0)]
            }
            Call::SetTerms { run, terms } => vec![run.to_string(), terms_said(terms)],
            Call::SetStopped { run, stopped } => vec![run.to_string(), stopped.to_string()],
            Call::Fund { run, amount } => vec![run.to_string(), amount.to_string()],
            Call::SetPayout { run, uid, payout } => {
                vec![run.to_string(), uid.to_string(), payout.to_string()]
            }
            Call::SetCommission { run, uid, commission } => {
                vec![run.to_string(), uid.to_string(), percent(*commission)]
            }
            Call::Transfer { to, amount } => vec![account(to), amount.to_string()],
            Call::AddProxy { proxy, may } | Call::RemoveProxy { proxy, may } => {
                vec![account(proxy), may.to_string(), "0".into()]
            }
            Call::Proxied { real, call } => {
                let inner = call.describe().into_iter().map(|(name, value)| format!("{name} = {value}"));
                let inner = inner.collect::<Vec<_>>().join(", ");
                vec![account(real), "none".into(), format!("{}({inner})", call.name())]
            }
            other => {
                // Signed by programs, not by people.
                let encoded = other.arguments(|_| Ok::<_, std::convert::Infallible>(Vec::new()));
                let Ok(encoded) = encoded;
                encoded.iter().map(|bytes| format!("0x{}", hex::encode(bytes))).collect()
            }
        };
        self.spelling().arguments.iter().copied().zip(words).collect()
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
            Call::Unstake { run, uid, amount } => {
                write!(f, "taking {amount} out of the stake of uid {uid} of run {run}")
            }
            Call::Leave { run, uid } => write!(f, "giving up uid {uid} of run {run}"),
            Call::Withdraw { run } => write!(f, "withdrawing what has unbonded in run {run}"),
            Call::RotateHotkey { run, uid, hotkey } => {
                write!(f, "changing the hotkey of uid {uid} of run {run} to {}", keys::address(&hotkey.0))
            }
            Call::SetTerms { run, .. } => write!(f, "setting the terms of run {run}"),
            Call::DropTerms { run } => write!(f, "taking back the new terms of run {run}"),
            Call::OfferRun { run, to } => write!(f, "offering run {run} to {}", keys::address(to)),
            Call::AcceptRun { run } => write!(f, "taking run {run} over"),
            Call::SetStopped { run, stopped: true } => write!(f, "pausing run {run}"),
            Call::SetStopped { run, stopped: false } => write!(f, "resuming run {run}"),
            Call::Commit { run, window, .. } => write!(f, "committing for window {} of run {run}", window.0),
            Call::Attest { run, window, .. } => write!(f, "attesting window {} of run {run}", window.0),
            Call::Vote { run, window, .. } => write!(f, "voting on window {} of run {run}", window.0),
            Call::AttestHidden { run, window, .. } => {
                write!(f, "committing to an attestation of window {} of run {run}", window.0)
            }
            Call::RevealAttestation { run, window, .. } => {
                write!(f, "revealing the attestation of window {} of run {run}", window.0)
            }
            Call::VoteHidden { run, window, .. } => {
                write!(f, "committing to a vote on window {} of run {run}", window.0)
            }
            Call::RevealVote { run, window, .. } => {
                write!(f, "revealing the vote on window {} of run {run}", window.0)
            }
            Call::AnchorReceipts { run, window, .. } => {
                write!(f, "anchoring the receipts for window {} of run {run}", window.0)
            }
            Call::ReportEquivocation {
                proof: Equivocation { one: SignedStatement { statement, .. }, .. },
            }
            | Call::ReportContradiction { statement: SignedStatement { statement, .. }, .. } => {
                write!(f, "reporting what uid {} of run {} signed twice", statement.uid, statement.run)
            }
            Call::CommitWeights { run, epoch, .. } => {
                write!(f, "committing to weights for epoch {epoch} of run {run}")
            }
            Call::RevealWeights { run, epoch, .. } => {
                write!(f, "revealing weights for epoch {epoch} of run {run}")
            }
            Call::Fund { run, amount } => write!(f, "funding run {run} with {amount}"),
            Call::Claim { run, uid } => write!(f, "claiming the pay of uid {uid} of run {run}"),
            Call::ClaimOwner { run } => write!(f, "claiming the owner's share of run {run}"),
            Call::ClaimFormer { run } => {
                write!(f, "claiming what seats of run {run} earned that were given up or taken")
            }
            Call::SetPayout { run, uid, payout } => {
                write!(f, "setting the payout of uid {uid} of run {run} to {payout}")
            }
            Call::Nominate { run, uid, amount } => {
                write!(f, "nominating uid {uid} of run {run} with {amount}")
            }
            Call::Unnominate { run, uid, amount } => {
                write!(f, "taking {amount} back from behind uid {uid} of run {run}")
            }
            Call::WithdrawNomination { run, uid } => {
                write!(f, "withdrawing what has unbonded from behind uid {uid} of run {run}")
            }
            Call::ClaimNomination { run, uid } => {
                write!(f, "claiming a nominator's pay from uid {uid} of run {run}")
            }
            Call::SetCommission { run, uid, commission } => {
                write!(f, "setting the commission of uid {uid} of run {run} to {}", percent(*commission))
            }
            Call::Transfer { to, amount } => write!(f, "transferring {amount} to {}", keys::address(to)),
            Call::AddProxy { proxy, may } => {
                write!(f, "letting {} act in the signer's name ({may})", keys::address(proxy))
            }
            Call::RemoveProxy { proxy, may } => {
                write!(f, "no longer letting {} act in the signer's name ({may})", keys::address(proxy))
            }
            Call::Proxied { real, call } => write!(f, "{call} for {}", keys::address(real)),
        }
    }
}

/// Thousandths as people say them: `12.5 %`.
pub fn percent(share: Permille) -> String {
    match (share.0 / 10, share.0 % 10) {
        (whole, 0) => format!("{whole} %"),
        (whole, tenth) => format!("{whole}.{tenth} %"),
    }
}

fn as_json(value: &impl Serialize) -> String {
    serde_json::to_string(value).unwrap_or_else(|error| format!("(cannot be shown: {error})"))
}

fn terms_said(terms: &Terms) -> String {
    let lines = terms::lines(terms).into_iter().map(|(name, value)| format!("{name} = {value}"));
    lines.collect::<Vec<_>>().join(", ")
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
pub(crate) fn check_compatible(metadata: &Metadata) -> Result<(), String> {
    for Spelling { pallet, call, arguments } in DAILY {
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
    use protocol::{
        identity::Signature,
        statement::{Statement, StatementKind},
    };
    use subxt::ext::scale_type_resolver::Field;

    /// Something that a validator says of window 9.
    fn said(of: u8) -> SignedStatement {
        let (run, window, uid) = (RunId(7), Window(9), Uid(2));
        let statement = Statement { run, window, uid, kind: StatementKind::Vote, digest: Digest([of; 32]) };
        SignedStatement { statement, signature: Signature([of; 64]) }
    }

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
                price_max: Amount(2),
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
            Call::AnchorReceipts { run, window, digest },
            Call::ReportEquivocation {
                proof: Equivocation { hotkey: Hotkey([3; 32]), one: said(1), other: said(2) },
            },
            Call::ReportContradiction { hotkey: Hotkey([3; 32]), statement: said(1) },
            Call::Unstake { run, uid: Uid(2), amount: Amount(1) },
            Call::Leave { run, uid: Uid(2) },
            Call::Withdraw { run },
            Call::RotateHotkey { run, uid: Uid(2), hotkey: Hotkey([4; 32]) },
            Call::SetTerms { run, terms: Box::default() },
            Call::DropTerms { run },
            Call::SetStopped { run, stopped: true },
            Call::OfferRun { run, to: [5; 32] },
            Call::AcceptRun { run },
            Call::ClaimFormer { run },
            Call::SetPayout { run, uid: Uid(2), payout: Payout::Stake },
            Call::Nominate { run, uid: Uid(2), amount: Amount(3) },
            Call::Unnominate { run, uid: Uid(2), amount: Amount(3) },
            Call::WithdrawNomination { run, uid: Uid(2) },
            Call::ClaimNomination { run, uid: Uid(2) },
            Call::SetCommission { run, uid: Uid(2), commission: Permille(125) },
            Call::AddProxy { proxy: [6; 32], may: ProxyKind::Claims },
            Call::RemoveProxy { proxy: [6; 32], may: ProxyKind::Any },
            Call::Proxied { real: [8; 32], call: Box::new(Call::Claim { run, uid: Uid(2) }) },
        ]
    }

    /// Arguments, a call within a call being none of them.
    fn arguments(call: &Call) -> Vec<Vec<u8>> {
        call.arguments(|_| Ok::<_, ()>(Vec::new())).unwrap()
    }

    fn spellings() -> impl Iterator<Item = &'static &'static Spelling> {
        DAILY.iter().chain(NOW_AND_THEN)
    }

    #[test]
    fn every_call_has_as_many_arguments_as_its_spelling() {
        let calls = calls();
        assert_eq!(calls.len(), spellings().count());
        for (call, spelling) in calls.iter().zip(spellings()) {
            assert_eq!(call.spelling().call, spelling.call);
            assert_eq!(arguments(call).len(), spelling.arguments.len(), "{call}");
            assert_eq!(call.describe().len(), spelling.arguments.len(), "{call}");
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
            ],
        );
        check("Windows.commit", &["07000000", "09000000", &digest]);
        check("Windows.attest", &["07000000", "09000000", "08010000020001", &digest]);
        check("Windows.vote", &["07000000", "09000000", &format!("{digest}00")]);
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
        check("Balances.transfer_keep_alive", &[&format!("00{}", "09".repeat(32)), "b104"]);
    }

    #[test]
    fn a_call_is_said_with_every_argument_as_a_person_reads_it() {
        let said = |name: &str| {
            let call = calls().into_iter().find(|call| call.name() == name).unwrap();
            call.describe().into_iter().map(|(name, value)| format!("{name} = {value}")).collect::<Vec<_>>()
        };
        assert_eq!(said("Registry.unstake"), ["run = 7", "uid = 2", "amount = 0.000000000001 MTL"]);
        assert_eq!(said("Nomination.set_commission"), ["run = 7", "uid = 2", "commission = 12.5 %"]);
        assert_eq!(said("Rewards.set_payout"), ["run = 7", "uid = 2", "payout = stake"]);
        let terms = &said("Registry.set_terms")[1];
        assert!(
            terms.contains("miner_stake_min = 0.01 MTL") && terms.contains("shares.burn = 0 %"),
            "{terms}"
        );
        let proxied = said("Proxy.proxy");
        assert_eq!(proxied[0], format!("real = {}", keys::address(&[8; 32])));
        assert_eq!(proxied[2], "call = Rewards.claim(run = 7, uid = 2)");
        assert_eq!(said("Windows.commit")[0], "run = 0x07000000");
    }

    #[test]
    fn shares_are_said_in_percent() {
        for (thousandths, said) in [(0, "0 %"), (5, "0.5 %"), (125, "12.5 %"), (1000, "100 %")] {
            assert_eq!(percent(Permille(thousandths)), said);
        }
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
        let version = format!("0x{}", hex::encode(16u32.encode()));
        let call = rpc_params!["Metadata_metadata_at_version", version];
        let answer: String = rpc.request("state_call", call).await.unwrap();
        let answer = hex::decode(answer.trim_start_matches("0x")).unwrap();
        let bytes = Option::<Vec<u8>>::decode(&mut answer.as_slice()).unwrap().unwrap();
        chain.shutdown().await;

        let ours = Metadata::decode_from(&bytes).unwrap();
        assert_eq!(check_compatible(&ours), Ok(()));
        let encode = |metadata: &Metadata, call: &Call| {
            let spelling = call.spelling();
            let pallet = metadata.pallet_by_name(spelling.pallet).unwrap();
            let fields = &pallet.call_variant_by_name(spelling.call).unwrap().fields;
            let mut fields =
                fields.iter().map(|field| Field { name: field.name.as_deref(), id: field.ty.id });
            // The call within the call, as the metadata numbers it.
            let inner = |call: &Call| {
                let pallet = metadata.pallet_by_name(call.spelling().pallet).unwrap();
                let index = pallet.call_variant_by_name(call.spelling().call).unwrap().index;
                Ok::<_, String>([vec![pallet.call_index(), index], arguments(call).concat()].concat())
            };
            let payload = call.payload(inner)?;
            payload
                .arguments
                .encode_as_fields(&mut fields, metadata.types())
                .map(|bytes| (bytes, payload.arguments.encoded.concat()))
                .map_err(|error| error.to_string())
        };
        for call in calls() {
            let (encoded, expected) = encode(&ours, &call).unwrap();
            assert_eq!(encoded, expected, "{call}");
        }

        // An argument whose type has changed, and one too few: nothing is signed.
        let claim = Call::Claim { run: RunId(1), uid: Uid(1) };
        let mut changed = claim.payload(|_| Ok::<_, ()>(Vec::new())).unwrap();
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
            let found = check_compatible(&renamed(&bytes, from, to)).unwrap_err();
            assert!(found.contains(missing), "{found}");
        }
    }

    #[test]
    fn a_call_says_what_is_being_done() {
        for call in calls() {
            let said = call.to_string();
            let mut words = said.trim_start_matches("no longer ").split(' ');
            assert!(words.next().is_some_and(|verb| verb.ends_with("ing")), "{said}");
        }
    }
}
