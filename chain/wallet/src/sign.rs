//! The one way in which anything is signed for a person: shown, agreed to, submitted, reported.
//!
//! A verb makes a [`TransactionPlan`]; everything after that is here, so that no verb can sign what it has not shown. The preview
//! is made from the very calls that are then submitted, and from what the chain says of them; the key is opened only once
//! somebody has agreed.

use anyhow::{Context as _, bail, ensure};
use chain_client::{
    Amount, Call, Chain, ChainError, Included,
    keys::{Key, KeyPassword, KeySource, Prompt, address, parse_address},
};
use node::open;
use node::output::Output;
use protocol::view::Account;
use serde::Serialize;
use serde_json::{Value, json};
use std::{
    fmt,
    path::{Path, PathBuf},
    sync::Arc,
};

/// How what is proposed is agreed to, and how what came of it is told.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct ConfirmArgs {
    /// Sign without asking. Without a terminal nothing is signed unless this is given.
    #[arg(long)]
    pub yes: bool,
    /// Print one JSON object: the preview, and what came of it. Signs only together with --yes.
    #[arg(long)]
    pub json: bool,
    /// Show what would be signed, and sign nothing.
    #[arg(long, conflicts_with = "yes")]
    pub dry_run: bool,
}

/// In whose name a call is made.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct OnBehalf {
    /// The account in whose name the call is made: the key that signs must be a proxy of it.
    #[arg(long, value_name = "ADDRESS")]
    pub proxy_of: Option<String>,
}

impl OnBehalf {
    pub fn account(&self) -> anyhow::Result<Option<Account>> {
        Ok(self.proxy_of.as_deref().map(parse_address).transpose()?)
    }
}

/// A key that signs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Signer {
    pub source: KeySource,
    pub password_file: Option<PathBuf>,
    /// Whose key it is, as in "the seat's coldkey".
    pub whose: &'static str,
}

impl Signer {
    /// The key's account, for which no password is needed.
    pub fn account(&self) -> anyhow::Result<Account> {
        let public = self.source.public();
        Ok(public.with_context(|| format!("could not read the key {} of {}", self.source, self.whose))?.0)
    }

    fn open(&self) -> anyhow::Result<Key> {
        let password = |path: &Path| {
            let named = path.display().to_string();
            KeyPassword::from_environment(&named, self.password_file.as_deref(), Prompt::Once)
        };
        let key = self.source.open(password);
        key.with_context(|| format!("could not open the key {} of {}", self.source, self.whose))
    }
}

/// What somebody is asked to sign.
#[derive(Clone, Debug)]
pub struct TransactionPlan {
    /// What it comes to, as an order: "take 5 MTL out of the stake of uid 3".
    pub what: String,
    /// Signed and submitted one after the other.
    pub calls: Vec<Call>,
    pub signer: Signer,
    /// In whose name, if not the signer's own.
    pub proxy_of: Option<Account>,
    /// What happens when, each a sentence.
    pub then: Vec<String>,
}

/// Exactly what would be signed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Preview {
    pub what: String,
    /// URL of the chain.
    pub chain: String,
    /// Address of the key that signs.
    pub signer: String,
    /// Whose key that is.
    pub whose: String,
    /// What the signer's account has free, in MTL.
    pub free: String,
    /// The account in whose name the calls are made, if it is not the signer's own.
    pub on_behalf_of: Option<String>,
    pub calls: Vec<PreviewedCall>,
    pub then: Vec<String>,
}

/// One call of a preview.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PreviewedCall {
    /// As the chain names it: `Registry.unstake`.
    pub call: String,
    /// Every argument by its name on the chain, in the chain's order.
    pub arguments: Vec<PreviewedArgument>,
    /// The call's bytes in hex, which any Substrate tool decodes.
    pub call_data: String,
    /// What the chain says it will cost, in MTL; `None` if it does not say.
    pub fee: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PreviewedArgument {
    pub name: String,
    pub value: String,
}

/// Call data longer than this is cut in text; JSON has all of it.
const CALL_DATA_SHOWN: usize = 64;

/// A list longer than this is shown line by line.
const LINE_LONG: usize = 120;

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
                // A run's terms: each on a line of its own.
                let parts: Vec<&str> = value.split(", ").collect();
                if value.len() <= LINE_LONG || parts.len() == 1 {
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
                None => writeln!(f, "    fee: the chain does not say")?,
            }
        }
        for line in &self.then {
            writeln!(f, "  - {line}")?;
        }
        Ok(())
    }
}

/// What came of the calls before one went wrong.
#[derive(Debug, thiserror::Error)]
#[error("call {number} of {of} came to nothing{}", done(*number))]
struct Halfway {
    number: usize,
    of: usize,
    source: ChainError,
}

fn done(number: usize) -> &'static str {
    if number > 1 { ", after those before it had been done" } else { "" }
}

/// A chain at hand, with nobody's key yet.
pub struct SigningSession {
    pub chain: Arc<dyn Chain>,
    pub url: String,
}

impl SigningSession {
    /// Connects to read.
    pub async fn open(url: &str) -> anyhow::Result<SigningSession> {
        Ok(SigningSession { chain: open::chain(url, None).await?, url: url.to_owned() })
    }

    /// What would be signed, from the chain's own mouth.
    pub async fn preview(&self, plan: &TransactionPlan) -> anyhow::Result<Preview> {
        let account = plan.signer.account()?;
        let mut calls = Vec::new();
        for call in &plan.calls {
            let call = in_the_name_of(plan.proxy_of, call.clone());
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
            chain: self.url.clone(),
            signer: address(&account),
            whose: plan.signer.whose.to_owned(),
            free: self.chain.balance(&account).await?.free.to_string(),
            on_behalf_of: plan.proxy_of.as_ref().map(address),
            calls,
            then: plan.then.clone(),
        })
    }

    /// Shows what is proposed and asks; with somebody's consent, connects with the key. `None` where only the preview was
    /// wanted.
    pub async fn agree(
        &mut self,
        output: &mut Output<'_>,
        plan: &TransactionPlan,
        confirm: &ConfirmArgs,
    ) -> anyhow::Result<Option<Confirmed>> {
        let preview = self.preview(plan).await?;
        output.preview(&preview, serde_json::to_value(&preview)?, confirm.dry_run)?;
        if confirm.dry_run {
            return Ok(None);
        }
        output.confirm(confirm.yes)?;
        let key = plan.signer.open()?;
        ensure!(
            key.account() == plan.signer.account()?,
            "the key {} is not the one that was shown: its file says otherwise",
            plan.signer.source
        );
        // From here on what is read has the effect of what was signed in it.
        self.chain = open::chain(&self.url, Some(key)).await?;
        Ok(Some(Confirmed { chain: self.chain.clone(), proxy_of: plan.proxy_of }))
    }

    /// [`SigningSession::agree`], then submits every call of the proposal. Returns where each was included, and puts that into the
    /// output's JSON.
    pub async fn sign(
        &mut self,
        output: &mut Output<'_>,
        plan: &TransactionPlan,
        confirm: &ConfirmArgs,
    ) -> anyhow::Result<Option<Vec<Included>>> {
        let Some(agreed) = self.agree(output, plan, confirm).await? else {
            return Ok(None);
        };
        let mut included = Vec::new();
        for (index, call) in plan.calls.iter().enumerate() {
            match agreed.submit(call.clone()).await {
                Ok(block) => included.push(block),
                Err(source) if plan.calls.len() == 1 => return Err(source.into()),
                Err(source) => {
                    bail!(Halfway { number: index.saturating_add(1), of: plan.calls.len(), source })
                }
            }
        }
        let blocks: Vec<Value> = included
            .iter()
            .map(|block| json!({ "block": block.block, "hash": format!("0x{}", block.hash) }))
            .collect();
        if output.is_json() {
            output.result("", json!({ "included": blocks }))?;
        }
        Ok(Some(included))
    }
}

/// A chain client with the key that somebody agreed to use.
pub struct Confirmed {
    pub chain: Arc<dyn Chain>,
    proxy_of: Option<Account>,
}

impl Confirmed {
    pub async fn submit(&self, call: Call) -> Result<Included, ChainError> {
        self.chain.submit(in_the_name_of(self.proxy_of, call)).await
    }
}

fn in_the_name_of(real: Option<Account>, call: Call) -> Call {
    match real {
        Some(real) => Call::Proxied { real, kind: None, call: Box::new(call) },
        None => call,
    }
}

/// An amount of a JSON object: its smallest units, as text, since numbers so large are not safe in JSON.
pub fn units(amount: Amount) -> Value {
    Value::String(amount.0.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use node::output;
    use protocol::{RunId, Uid};

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
            then: vec!["it is free in window 9".into()],
        }
    }

    #[test]
    fn a_preview_names_the_call_every_argument_who_signs_and_what_it_costs() {
        assert_eq!(
            preview().to_string(),
            "To take 5 MTL out of the stake of uid 3\n  \
               on the chain at ws://127.0.0.1:9944\n  \
               signed by 5FA9… (the seat's coldkey), which has 7 MTL free\n  \
               Registry.unstake\n    \
                 run: 1\n    \
                 uid: 3\n    \
                 amount: 5 MTL\n    \
                 call data: 0x0a04\n    \
                 fee: about 0.001 MTL\n  \
               - it is free in window 9\n"
        );
        let mut other = preview();
        let terms = Call::SetTerms { run: RunId(1), terms: Box::default() }.describe().remove(1).1;
        other.calls[0].arguments.push(PreviewedArgument { name: "terms".into(), value: terms });
        let text = other.to_string();
        assert!(
            text.contains("    terms:\n      electorate_max = 64\n      absence_windows = 20\n"),
            "{text}"
        );
        other.on_behalf_of = Some("5GoN…".into());
        other.calls[0].fee = None;
        other.calls[0].call_data = format!("0x{}", "ab".repeat(100));
        let text = other.to_string();
        assert!(text.contains("as a proxy, in the name of 5GoN…"), "{text}");
        assert!(text.contains("the chain does not say"), "{text}");
        assert!(text.contains("… (100 bytes; --json shows all)"), "{text}");
    }

    #[test]
    fn a_preview_as_json_has_the_same_and_all_of_the_call_data() {
        let value = serde_json::to_value(preview()).unwrap();
        assert_eq!(value["calls"][0]["call"], "Registry.unstake");
        assert_eq!(value["calls"][0]["arguments"][2], json!({ "name": "amount", "value": "5 MTL" }));
        assert_eq!(value["calls"][0]["call_data"], "0x0a04");
        assert_eq!(value["on_behalf_of"], Value::Null);
    }

    #[test]
    fn as_json_there_is_one_object_whatever_happens() {
        let mut out = Vec::new();
        let mut aside = Vec::new();
        let mut ask = || Ok(None);
        let mut output = Output::new(true, &mut out, &mut aside, &mut ask);
        output.preview(&preview(), serde_json::to_value(preview()).unwrap(), false).unwrap();
        output.result("text", json!({ "one": 1 })).unwrap();
        output.result("text", json!({ "two": 2 })).unwrap();
        let refused = ChainError::Refused {
            doing: "claiming".into(),
            pallet: "Rewards".into(),
            error: "NothingToClaim".into(),
            docs: "There is nothing to claim.".into(),
        };
        output.finish(&Err(anyhow::Error::from(refused).context("while testing"))).unwrap();
        assert!(aside.is_empty());
        let text = String::from_utf8(out).unwrap();
        assert_eq!(text.lines().count(), 1);
        let value: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(value["preview"]["what"], "take 5 MTL out of the stake of uid 3");
        assert_eq!(value["result"], json!({ "one": 1, "two": 2 }));
        assert_eq!(value["error"]["refused"]["error"], "NothingToClaim");
        assert_eq!(value["error"]["exit_code"], 5);
    }

    #[test]
    fn a_call_that_fails_after_others_keeps_the_exit_code_of_its_cause() {
        let source = ChainError::Uncertain { doing: "claiming".into(), reason: String::new() };
        let halfway = Halfway { number: 2, of: 2, source };
        assert!(halfway.to_string().contains("after those before it"));
        assert_eq!(output::exit_code(&anyhow::Error::from(halfway)), output::EXIT_UNCERTAIN);
    }
}
