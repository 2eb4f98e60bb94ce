//! Signing by a person: plan, preview, confirmation, submission, report.
//!
//! A command creates a [`TransactionPlan`]; all later steps are here, so that no command can sign calls that it has
//! not shown. The preview is made from the calls that are then submitted. The key is opened only after confirmation.

use crate::{output::Output, unsigned};
use anyhow::{Context as _, bail, ensure};
use chain_client::{
    Amount, Call, Chain, ChainError,
    keys::{Key, KeyPassword, KeySource, Prompt, address, parse_address},
};
use daemon::{
    config::{AccountFlags, ChainConfig, EndpointArgs},
    open,
};
use protocol::{
    RunId, RunParams, Uid, Window,
    view::{Account, RunStatus, SeatStatus, UnbondingView},
};
use serde::Serialize;
use serde_json::{Value, json};
use std::{
    fmt,
    path::{Path, PathBuf},
    sync::Arc,
};
use store::Store;
use watch::{block_clock::BlockClock, text::readable};

/// Confirmation and submission of a transaction.
#[derive(Clone, Debug, Default, PartialEq, Eq, clap::Args)]
pub struct ConfirmArgs {
    /// Sign without asking. Required without a terminal, and with --json.
    #[arg(long)]
    pub yes: bool,
    /// Show the transaction without signing it.
    #[arg(long, conflicts_with = "yes")]
    pub dry_run: bool,
    /// Sign nothing, and write the transactions to this new file: a wallet or another machine signs them, and `mettle
    /// submit` submits them, up to the block that this command prints. The key may then be given as its address.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["yes", "dry_run"])]
    pub sign_elsewhere: Option<PathBuf>,
    /// Added to the fee of each call: full blocks include it first.
    #[arg(long, value_name = "AMOUNT", default_value = "0")]
    pub tip: Amount,
}

/// The account in whose name a call is made.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct OnBehalf {
    /// Make the call in the name of this account, of which the signing key is a proxy.
    #[arg(long, value_name = "ADDRESS")]
    proxy_of: Option<String>,
}

impl OnBehalf {
    pub fn account(&self) -> anyhow::Result<Option<Account>> {
        Ok(self.proxy_of.as_deref().map(parse_address).transpose()?)
    }
}

/// The flags of a command that an account signs.
#[derive(Clone, Debug, clap::Args)]
pub struct AccountSigner {
    #[command(flatten)]
    pub account: AccountFlags,
    #[command(flatten)]
    behalf: OnBehalf,
    #[command(flatten)]
    confirm: ConfirmArgs,
}

impl AccountSigner {
    /// Returns the signer, as `whose`, of a command with these settings.
    pub fn signer(&self, args: &EndpointArgs, whose: &'static str) -> anyhow::Result<Signer> {
        let Some(source) = args.key.clone() else {
            bail!("no key to sign with: add --key KEY, or `key = \"FILE\"` to the settings file");
        };
        let proxy_of = self.behalf.account()?;
        let whose = if proxy_of.is_some() { "a proxy" } else { whose };
        Ok(Signer {
            source,
            password_file: args.password_file.clone(),
            whose,
            proxy_of,
            confirm: self.confirm.clone(),
        })
    }
}

/// A key that signs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Signer {
    pub source: KeySource,
    pub password_file: Option<PathBuf>,
    /// The key's role, as in "the seat's coldkey".
    pub whose: &'static str,
    /// The account in whose name the calls are made, if not the key's own.
    pub proxy_of: Option<Account>,
    pub confirm: ConfirmArgs,
}

impl Signer {
    /// Returns the key's account; needs no password.
    fn key_account(&self) -> anyhow::Result<Account> {
        let account = self.source.account();
        account.with_context(|| format!("could not read the key {} of {}", self.source, self.whose))
    }

    /// Returns the account in whose name the calls are made; needs no password.
    pub fn account(&self) -> anyhow::Result<Account> {
        self.proxy_of.map_or_else(|| self.key_account(), Ok)
    }

    fn open(&self) -> anyhow::Result<Key> {
        ensure!(
            !matches!(self.source, KeySource::Elsewhere(_)),
            "{}, {}, is an address, and no key: name the key file. With --sign-elsewhere FILE, where a command has it, a \
             wallet or another machine signs",
            self.source,
            self.whose
        );
        let key = open_key(&self.source, self.password_file.as_deref(), self.whose)?;
        ensure!(
            key.account() == self.key_account()?,
            "the key file {} holds another key than it claims, and than the preview showed",
            self.source
        );
        Ok(key)
    }

    /// Returns the submitted call for `call`.
    fn wrap(&self, call: Call) -> Call {
        match self.proxy_of {
            Some(real) => Call::Proxied { real, kind: None, call: Box::new(call) },
            None => call,
        }
    }
}

/// Opens the key of `whose`. Its password comes from the file, the environment or a prompt.
pub fn open_key(source: &KeySource, password_file: Option<&Path>, whose: &str) -> anyhow::Result<Key> {
    let password =
        |path: &Path| KeyPassword::from_environment(&path.display().to_string(), password_file, Prompt::Once);
    source.open(password).with_context(|| format!("could not open the key {source} of {whose}"))
}

/// The calls to sign.
#[derive(Clone, Debug)]
pub struct TransactionPlan {
    /// The purpose, as in "take 5 MTL out of the stake of uid 3".
    pub what: String,
    /// The calls in submission order.
    pub calls: Vec<Call>,
    pub signer: Signer,
    /// The consequences, one sentence each.
    pub then: Vec<String>,
}

/// Preview of a plan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Preview {
    pub what: String,
    /// URL of the chain.
    pub chain: String,
    /// Address of the key that signs.
    pub signer: String,
    /// The key's role.
    pub whose: String,
    /// The free balance of the signer, in MTL.
    pub free: String,
    /// The account in whose name the calls are made, if it is not the signer's own.
    pub on_behalf_of: Option<String>,
    pub calls: Vec<PreviewedCall>,
    /// Added to the fee of each call, in MTL; `None` without a tip.
    pub tip: Option<String>,
    pub then: Vec<String>,
}

/// One call of a preview.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PreviewedCall {
    /// The call's name on the chain: `Registry.unstake`.
    pub call: String,
    /// All arguments by their names on the chain, in the chain's order.
    pub arguments: Vec<PreviewedArgument>,
    /// The call's bytes in hex, which any Substrate tool decodes.
    pub call_data: String,
    /// The chain's estimate of the fee, in MTL; `None` if it has none.
    pub fee: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PreviewedArgument {
    pub name: String,
    pub value: String,
}

/// Maximum length of call data in text; JSON has all of it.
const CALL_DATA_SHOWN: usize = 64;

/// Maximum length of a list on one line.
const LIST_LONG: usize = 120;

impl fmt::Display for Preview {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "To {}", self.what)?;
        writeln!(f, "  on the chain at {}", self.chain)?;
        writeln!(f, "  signed by {} ({}), which has {} free", self.signer, self.whose, self.free)?;
        if let Some(account) = &self.on_behalf_of {
            writeln!(f, "  as a proxy, in the name of {account}")?;
        }
        for call in &self.calls {
            writeln!(f, "  {}", call.call)?;
            for PreviewedArgument { name, value } in &call.arguments {
                // A run's terms: one per line.
                let parts: Vec<&str> = value.split(", ").collect();
                if value.len() <= LIST_LONG || parts.len() == 1 {
                    writeln!(f, "    {name}: {value}")?;
                    continue;
                }
                writeln!(f, "    {name}:")?;
                for part in parts {
                    writeln!(f, "      {part}")?;
                }
            }
            match call.call_data.get(..CALL_DATA_SHOWN) {
                Some(begin) if begin.len() < call.call_data.len() => {
                    let bytes = call.call_data.len().saturating_sub(2) / 2;
                    writeln!(f, "    call data: {begin}… ({bytes} bytes; --json shows all)")?;
                }
                _ => writeln!(f, "    call data: {}", call.call_data)?,
            }
            match &call.fee {
                Some(fee) => writeln!(f, "    fee: about {fee}")?,
                None => writeln!(f, "    fee: unknown")?,
            }
        }
        if let Some(tip) = &self.tip {
            writeln!(f, "  with a tip of {tip} for each call")?;
        }
        for line in &self.then {
            writeln!(f, "  - {line}")?;
        }
        Ok(())
    }
}

/// Some of a plan's calls were included, and one failed.
#[derive(Debug, thiserror::Error)]
#[error("call {number} of {of} failed{}", if *number > 1 { "; the calls before it were included" } else { "" })]
struct CallFailed {
    number: usize,
    of: usize,
    source: ChainError,
}

/// A connection to the chain, at first without a key.
pub struct SigningSession {
    pub chain: Arc<dyn Chain>,
    config: ChainConfig,
}

impl SigningSession {
    /// Connects without a key.
    pub async fn open(config: &ChainConfig) -> anyhow::Result<SigningSession> {
        Ok(SigningSession { chain: open::chain(config, None).await?, config: config.clone() })
    }

    /// Creates the preview, with the chain's estimates.
    pub async fn preview(&self, plan: &TransactionPlan) -> anyhow::Result<Preview> {
        let account = plan.signer.key_account()?;
        let mut calls = Vec::new();
        for call in &plan.calls {
            let call = plan.signer.wrap(call.clone());
            let draft = self.chain.draft(&call, &account).await?;
            let argument = |(name, value): (&str, String)| PreviewedArgument { name: name.into(), value };
            calls.push(PreviewedCall {
                call: call.name(),
                arguments: call.describe().into_iter().map(argument).collect(),
                call_data: format!("0x{}", hex::encode(&draft.call_data)),
                fee: draft.fee.map(|fee| fee.to_string()),
            });
        }
        Ok(Preview {
            what: plan.what.clone(),
            chain: self.config.url.clone(),
            signer: address(&account),
            whose: plan.signer.whose.to_owned(),
            free: self.chain.balance(&account).await?.free.to_string(),
            on_behalf_of: plan.signer.proxy_of.as_ref().map(address),
            calls,
            tip: Some(plan.signer.confirm.tip).filter(|tip| *tip > Amount::ZERO).map(|tip| tip.to_string()),
            then: plan.then.clone(),
        })
    }

    /// Shows the plan and asks for confirmation; then connects with the key. Returns false if nothing is to be signed
    /// here.
    pub async fn confirm(&mut self, output: &mut Output<'_>, plan: &TransactionPlan) -> anyhow::Result<bool> {
        let signer = &plan.signer;
        output.preview(&self.preview(plan).await?, signer.confirm.dry_run)?;
        if signer.confirm.dry_run {
            return Ok(false);
        }
        if let Some(file) = &signer.confirm.sign_elsewhere {
            self.write_unsigned(output, plan, file).await?;
            return Ok(false);
        }
        output.confirm(signer.confirm.yes)?;
        open::check_key(&signer.source, self.chain.is_development())?;
        let key = signer.open()?;
        // Later reads see the effect of this client's submissions.
        self.chain = open::chain_with_tip(&self.config, Some(key), signer.confirm.tip).await?;
        Ok(true)
    }

    async fn write_unsigned(
        &self,
        output: &mut Output<'_>,
        plan: &TransactionPlan,
        file: &Path,
    ) -> anyhow::Result<()> {
        let calls: Vec<Call> = plan.calls.iter().map(|call| plan.signer.wrap(call.clone())).collect();
        let unsigned =
            self.chain.unsigned(&calls, &plan.signer.key_account()?, plan.signer.confirm.tip).await?;
        let unsigned = unsigned.context("this client cannot prepare transactions for another signer")?;
        unsigned::write(file, &unsigned)?;
        let mut text = String::new();
        for call in &unsigned {
            let payload = String::from(call.payload.clone());
            text.push_str(&format!("{}\n  payload {payload}\n", readable(&call.what)));
        }
        let until = unsigned.first().map_or(0, |call| call.valid_until);
        let flags = " --signature HEX".repeat(unsigned.len());
        text.push_str(&format!(
            "Sign {} as {}, up to block {until}; then enter `mettle submit {}{flags}`",
            file.display(),
            address(&plan.signer.key_account()?),
            file.display()
        ));
        Ok(output.result(&text, json!({ "file": file, "transactions": unsigned }))?)
    }

    /// Calls [`SigningSession::confirm`], then submits every call of the plan, and adds the block of each to the
    /// output's JSON. Returns false if nothing was signed here.
    pub async fn sign(&mut self, output: &mut Output<'_>, plan: &TransactionPlan) -> anyhow::Result<bool> {
        if !self.confirm(output, plan).await? {
            return Ok(false);
        }
        let mut included = Vec::new();
        for (index, call) in plan.calls.iter().enumerate() {
            match self.chain.submit(plan.signer.wrap(call.clone())).await {
                Ok(block) => {
                    included.push(json!({ "block": block.block, "hash": format!("0x{}", block.hash) }));
                }
                Err(source) if plan.calls.len() == 1 => return Err(source.into()),
                Err(source) => {
                    bail!(CallFailed { number: index.saturating_add(1), of: plan.calls.len(), source })
                }
            }
        }
        if output.is_json() {
            output.result("", json!({ "included": included }))?;
        }
        Ok(true)
    }

    /// Calls [`SigningSession::sign`], then prints the result, unless nothing was signed here.
    pub async fn sign_and_print(
        &mut self,
        output: &mut Output<'_>,
        plan: &TransactionPlan,
        text: &str,
        value: Value,
    ) -> anyhow::Result<()> {
        if self.sign(output, plan).await? {
            output.result(text, value)?;
        }
        Ok(())
    }
}

/// Writes an object with the bucket's key, reads it at `base_url` without the key, and deletes it. Unlike at a node's
/// start, an unavailable bucket is an error too: the next signature cannot be revoked.
pub async fn check_bucket(
    output: &mut Output<'_>,
    bucket: &dyn Store,
    chain: &dyn Chain,
    params: &RunParams,
    base_url: &str,
) -> anyhow::Result<()> {
    output.note("Checking the bucket.")?;
    store::check_bucket(bucket, &open::fetcher(chain, params)?, base_url).await.context(
        "the bucket cannot be used, so nothing was signed: correct [store] in the settings file, the access rules of \
         the bucket, or its public URL",
    )
}

/// A run, and the session in which calls to it are signed.
pub struct RunSession {
    pub args: EndpointArgs,
    pub run: RunId,
    pub signing: SigningSession,
    pub status: RunStatus,
    pub clock: BlockClock,
}

impl RunSession {
    pub async fn open(args: EndpointArgs) -> anyhow::Result<RunSession> {
        let signing = SigningSession::open(&args.chain).await?;
        let status = signing.chain.status(args.run).await?;
        let clock = BlockClock::read(&*signing.chain, status.run.params.schedule).await?;
        Ok(RunSession { run: args.run, args, signing, status, clock })
    }

    pub fn chain(&self) -> &dyn Chain {
        &*self.signing.chain
    }

    /// Returns the seat with this uid.
    pub async fn seat_at(&self, uid: Uid) -> anyhow::Result<Option<SeatStatus>> {
        let found = self.chain().seat_statuses(self.run, uid, 1).await?.into_iter().next();
        Ok(found.filter(|found| found.seat.id.uid == uid))
    }

    /// Returns the run's unbonding time as text.
    pub fn unbonding(&self) -> String {
        self.clock.windows(self.status.run.terms.unbonding_windows)
    }
}

pub fn unbonding_json(chunk: &UnbondingView) -> Value {
    json!({ "amount": units(Amount(chunk.amount)), "until": chunk.until })
}

/// Splits `unbonding` into the amount that is free at the open window, and the rest.
pub fn freed(unbonding: &[UnbondingView], open: Option<Window>) -> (Amount, Amount) {
    let (free, waiting): (Vec<_>, Vec<_>) =
        unbonding.iter().partition(|chunk| open.is_some_and(|now| chunk.until <= now));
    let sum = |chunks: Vec<&UnbondingView>| {
        chunks.iter().fold(Amount::ZERO, |sum, chunk| sum.saturating_add(Amount(chunk.amount)))
    };
    (sum(free), sum(waiting))
}

/// Returns an amount in JSON: in the smallest unit, as a string, because JSON numbers are not exact above 2⁵³.
pub fn units(amount: Amount) -> Value {
    Value::String(amount.0.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use daemon::exit;
    use expect_test::expect;

    fn preview() -> Preview {
        let call = Call::Unstake { run: RunId(1), uid: Uid(3), amount: Amount::mtl(5) };
        let arguments = call.describe().into_iter();
        let arguments = arguments.map(|(name, value)| PreviewedArgument { name: name.into(), value });
        Preview {
            what: "take 5 MTL out of the stake of uid 3".into(),
            chain: "ws://127.0.0.1:9944".into(),
            signer: "5FA9…".into(),
            whose: "the seat's coldkey".into(),
            free: "7 MTL".into(),
            on_behalf_of: None,
            calls: vec![PreviewedCall {
                call: call.name(),
                arguments: arguments.collect(),
                call_data: "0x0a04".into(),
                fee: Some("0.001 MTL".into()),
            }],
            tip: None,
            then: vec!["it is free in window 9".into()],
        }
    }

    #[test]
    fn a_preview_names_the_signer_every_argument_and_the_fee() {
        expect![[r#"
            To take 5 MTL out of the stake of uid 3
              on the chain at ws://127.0.0.1:9944
              signed by 5FA9… (the seat's coldkey), which has 7 MTL free
              Registry.unstake
                run: 1
                uid: 3
                amount: 5 MTL
                call data: 0x0a04
                fee: about 0.001 MTL
              - it is free in window 9
        "#]]
        .assert_eq(&preview().to_string());
    }

    #[test]
    fn long_lists_long_call_data_proxies_and_unknown_fees_are_shown() {
        let mut other = preview();
        let terms = Call::SetTerms { run: RunId(1), terms: Box::default() }.describe().remove(1).1;
        other.calls[0].arguments.push(PreviewedArgument { name: "terms".into(), value: terms });
        other.on_behalf_of = Some("5GoN…".into());
        other.calls[0].fee = None;
        other.tip = Some("0.5 MTL".into());
        other.calls[0].call_data = format!("0x{}", "ab".repeat(100));
        expect![[r#"
            To take 5 MTL out of the stake of uid 3
              on the chain at ws://127.0.0.1:9944
              signed by 5FA9… (the seat's coldkey), which has 7 MTL free
              as a proxy, in the name of 5GoN…
              Registry.unstake
                run: 1
                uid: 3
                amount: 5 MTL
                terms:
                  active_set_max = 64
                  absence_windows = 20
                  quorum = 50 %
                  validator_stake_min = 1 MTL
                  miner_stake_min = 0.01 MTL
                  miner_seats_max = 192
                  validator_seats_max = 64
                  immunity_windows = 40
                  unbonding_windows = 200
                  seat_price_min = 0.001 MTL
                  equivocation_slash = 10 %
                  emission_per_epoch = 1 MTL
                  emission_halving_epochs = 0
                  shares.miners = 50 %
                  shares.validators = 40 %
                  shares.owner = 10 %
                  shares.burn = 0 %
                call data: 0xababababababababababababababababababababababababababababababab… (100 bytes; --json shows all)
                fee: unknown
              with a tip of 0.5 MTL for each call
              - it is free in window 9
        "#]].assert_eq(&other.to_string());
    }

    #[test]
    fn a_preview_in_json_has_the_whole_call_data() {
        let value = serde_json::to_value(preview()).unwrap();
        assert_eq!(value["calls"][0]["call"], "Registry.unstake");
        assert_eq!(value["calls"][0]["arguments"][2], json!({ "name": "amount", "value": "5 MTL" }));
        assert_eq!(value["calls"][0]["call_data"], "0x0a04");
        assert_eq!(value["on_behalf_of"], Value::Null);
    }

    #[test]
    fn json_output_is_one_object_also_after_an_error() {
        let mut out = Vec::new();
        let mut err = Vec::new();
        let mut ask = || Ok(None);
        let mut output = Output::new(true, &mut out, &mut err, &mut ask);
        output.preview(&preview(), false).unwrap();
        output.result("text", json!({ "one": 1 })).unwrap();
        output.result("text", json!({ "two": 2 })).unwrap();
        let refused = ChainError::Refused {
            doing: "claiming".into(),
            pallet: "Rewards".into(),
            error: "NothingToClaim".into(),
            docs: "There is nothing to claim.".into(),
        };
        output.finish(&Err(anyhow::Error::from(refused).context("while testing"))).unwrap();
        assert!(err.is_empty());
        let text = String::from_utf8(out).unwrap();
        assert_eq!(text.lines().count(), 1);
        let value: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(value["preview"]["what"], "take 5 MTL out of the stake of uid 3");
        assert_eq!(value["result"], json!({ "one": 1, "two": 2 }));
        assert_eq!(value["error"]["refused"]["error"], "NothingToClaim");
        assert_eq!(value["error"]["exit_code"], 5);
    }

    #[test]
    fn a_failed_call_keeps_the_exit_code_of_its_cause() {
        let source = ChainError::Uncertain { doing: "claiming".into(), reason: String::new() };
        let failed = CallFailed { number: 2, of: 2, source };
        assert_eq!(failed.to_string(), "call 2 of 2 failed; the calls before it were included");
        assert_eq!(exit::code(&anyhow::Error::from(failed)), exit::EXIT_UNCERTAIN);
    }
}
