//! `mettle balance` and `mettle transfer`: an account's money.

use crate::{
    help,
    network_flags::NetworkFlags,
    output::Output,
    plan::table::wrapped,
    signing::{AccountSigner, SigningSession, TransactionPlan, unbonding_json, units},
    submit::{self, Submit},
};
use anyhow::{Context as _, bail, ensure};
use chain_client::{
    Amount, Balance, Call, account,
    keys::{KeySource, address, parse_address},
};
use clap::Subcommand;
use protocol::{
    RunId,
    view::{Account, AccountStatus},
};
use serde_json::{Value, json};
use std::path::Path;

#[derive(Clone, Debug, Subcommand)]
pub enum AccountCommand {
    #[command(after_help = help::reading(&[
        "mettle balance coldkey.json",
        "mettle balance 5FA9nQDV… --json",
    ]))]
    Balance(ShowBalance),
    #[command(after_help = help::signing(&[
        "mettle transfer --key //Alice --to coldkey.json --amount 200",
        "mettle transfer --key coldkey.json --to 5FA9nQDV… --amount 12.5 --dry-run",
        "mettle transfer --key 5Dhao73q… --to 5FA9nQDV… --amount 12.5 \\",
        "    --sign-elsewhere transfer.json",
    ]))]
    Transfer(Transfer),
    #[command(after_help = help::signing(&[
        "mettle submit transfer.json --signature 0x01…",
    ]))]
    Submit(Submit),
}

/// Show an account's balance
///
/// Shows the free balance, the amounts held as stakes and deposits, and the account's part in each run.
#[derive(Clone, Debug, clap::Args)]
pub struct ShowBalance {
    #[command(flatten)]
    network: NetworkFlags,
    /// The account: an address, a key file, or a development key such as //Alice [default: `key` of the settings
    /// file].
    #[arg(value_name = "ACCOUNT", env = "METTLE_KEY")]
    account: Option<String>,
}

/// Transfer money to another account
///
/// The sender keeps at least the existential deposit. A transfer cannot be revoked. Of all proxies, only one with
/// full control can transfer.
#[derive(Clone, Debug, clap::Args)]
pub struct Transfer {
    #[command(flatten)]
    signer: AccountSigner,
    /// The receiving account: an address, a key file, or a development key such as //Bob.
    #[arg(long, value_name = "ACCOUNT")]
    to: String,
    /// The amount, such as 100 or "12.5 MTL".
    #[arg(long, value_name = "AMOUNT")]
    amount: Amount,
}

/// Runs a command; prints and asks through `output`.
pub async fn run(command: AccountCommand, output: &mut Output<'_>) -> anyhow::Result<()> {
    match command {
        AccountCommand::Balance(command) => balance(command, output).await,
        AccountCommand::Transfer(command) => transfer(command, output).await,
        AccountCommand::Submit(command) => submit::submit(command, output).await,
    }
}

/// The account that a flag names.
#[derive(Clone, Debug, PartialEq, Eq)]
struct NamedAccount {
    account: Account,
    /// A development key, whose secret is public.
    is_development: bool,
}

impl NamedAccount {
    /// Reads an address, a development key, or the path of a key file.
    fn parse(text: &str) -> anyhow::Result<NamedAccount> {
        let not_an_address = match parse_address(text) {
            Ok(account) => return Ok(NamedAccount { account, is_development: false }),
            Err(error) => error,
        };
        if !text.starts_with("//") && !Path::new(text).exists() {
            return Err(not_an_address).context("there is no key file of this name either");
        }
        let source: KeySource = text.parse()?;
        let is_development = matches!(source, KeySource::Dev(_));
        Ok(NamedAccount { account: source.account()?, is_development })
    }
}

async fn balance(command: ShowBalance, output: &mut Output<'_>) -> anyhow::Result<()> {
    output.bare_json();
    let args = command.network.read()?;
    let named = match (&command.account, &args.key) {
        (Some(text), _) => text.clone(),
        (None, Some(key)) => key.to_string(),
        (None, None) => {
            bail!("no account: name an address or a key file, as in `mettle balance coldkey.json`")
        }
    };
    let account = NamedAccount::parse(&named)?.account;
    let session = SigningSession::open(&args.chain).await?;
    let chain = &*session.chain;
    let balance = chain.balance(&account).await?;
    let mut runs = Vec::new();
    for run in chain.runs().await? {
        let status = chain.account_status(run, &account).await?;
        if status != AccountStatus::default() {
            runs.push((run, status));
        }
    }
    let shown = address(&account);
    output.result(&balance_text(&shown, &balance, &runs), balance_json(&shown, &balance, &runs))?;
    if balance.free == Amount::ZERO {
        output.note(&account::how_to_fund(chain, &shown, Amount::mtl(200)))?;
    }
    Ok(())
}

fn balance_text(account: &str, balance: &Balance, runs: &[(RunId, AccountStatus)]) -> String {
    let mut text = format!("{account}\n");
    let mut line = |name: &str, value: &str| text += &wrapped(&format!("{name:10}"), &" ".repeat(10), value);
    line("free", &balance.free.to_string());
    line("held", &format!("{}, as stakes and deposits", balance.held));
    for (run, status) in runs {
        line(&format!("run {run}"), &in_run(status));
    }
    text
}

/// Describes an account's part in a run in a sentence.
fn in_run(status: &AccountStatus) -> String {
    let AccountStatus { seats, staked, claimable, unbonding, nominations } = status;
    let mut parts = Vec::new();
    if !seats.is_empty() {
        let uids: Vec<String> = seats.iter().map(ToString::to_string).collect();
        parts.push(format!("{} staked with uid {}", Amount(*staked), uids.join(", ")));
    }
    for chunk in unbonding {
        let amount = Amount(chunk.amount);
        parts.push(format!("{amount} of uid {} unbonding until window {}", chunk.uid, chunk.until.0));
    }
    for nomination in nominations {
        parts.push(format!(
            "{} nominated behind uid {}, with {} of pay to claim by `mettle nominations claim`",
            Amount(nomination.amount),
            nomination.validator,
            Amount(nomination.claimable)
        ));
    }
    if 0 < *claimable {
        parts.push(format!("{} of pay to claim by `mettle claim`", Amount(*claimable)));
    }
    parts.join("; ")
}

fn balance_json(account: &str, balance: &Balance, runs: &[(RunId, AccountStatus)]) -> Value {
    let in_run = |(run, status): &(RunId, AccountStatus)| {
        let nominations = status.nominations.iter().map(|nomination| {
            json!({
                "uid": nomination.validator, "amount": units(Amount(nomination.amount)),
                "claimable": units(Amount(nomination.claimable)),
                "unbonding": nomination.unbonding.iter().map(unbonding_json).collect::<Vec<_>>(),
            })
        });
        json!({
            "run": run, "seats": status.seats, "staked": units(Amount(status.staked)),
            "claimable": units(Amount(status.claimable)),
            "unbonding": status.unbonding.iter().map(unbonding_json).collect::<Vec<_>>(),
            "nominations": nominations.collect::<Vec<_>>(),
        })
    };
    json!({
        "account": account, "free": units(balance.free), "held": units(balance.held),
        "runs": runs.iter().map(in_run).collect::<Vec<_>>(),
    })
}

async fn transfer(command: Transfer, output: &mut Output<'_>) -> anyhow::Result<()> {
    let args = command.signer.account.read()?;
    let NamedAccount { account: to, is_development } = NamedAccount::parse(&command.to)
        .with_context(|| format!("`--to {}` names no account", command.to))?;
    let signer = command.signer.signer(&args, "the sender")?;
    let (from, amount) = (signer.account()?, command.amount);
    ensure!(Amount::ZERO < amount, "an amount of 0 MTL: name how much to transfer");
    ensure!(from != to, "sender and recipient are the same account, {}", address(&to));
    let mut session = SigningSession::open(&args.chain).await?;
    if is_development && !session.chain.is_development() {
        bail!("the secret of {} is public: whoever is faster would have the money", command.to);
    }
    let (sender, recipient) = (session.chain.balance(&from).await?, session.chain.balance(&to).await?);
    if sender.free < amount {
        let (from, free, missing) = (address(&from), sender.free, amount.saturating_sub(sender.free));
        let to_do = account::how_to_fund(&*session.chain, &from, missing);
        bail!("{from} has {free} free, less than {amount}. {to_do}");
    }

    let name = address(&to);
    let mut then = vec![format!("{name} then has {} free", recipient.free.saturating_add(amount))];
    if recipient == Balance::default() {
        then.push("this account has nothing yet: compare its address once more".into());
    }
    then.push("a transfer cannot be taken back".into());
    let what = format!("transfer {amount} to {name}");
    let plan = TransactionPlan { what, calls: vec![Call::Transfer { to, amount }], signer, then };
    if !session.sign(output, &plan).await? {
        return Ok(());
    }
    let free = session.chain.balance(&to).await?.free;
    let value =
        json!({ "from": address(&from), "to": name, "amount": units(amount), "to_free": units(free) });
    Ok(output.result(&format!("{amount} went to {name}, which has {free} free"), value)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use chain_client::keys::Key;
    use expect_test::expect;
    use protocol::{
        Uid, Window,
        view::{NominationView, UnbondingView},
    };

    #[test]
    fn an_account_is_an_address_a_development_key_or_a_key_file() {
        let bob = Key::dev("//Bob").unwrap();
        let named = |text: &str| NamedAccount::parse(text);
        let expected = NamedAccount { account: bob.account(), is_development: true };
        assert_eq!(named("//Bob").unwrap(), expected);
        assert_eq!(named(&bob.address()).unwrap(), NamedAccount { is_development: false, ..expected });
        let wrong = format!("{:#}", named("coldkey.jsn").unwrap_err());
        assert!(wrong.contains("no key file") && wrong.contains("not an address"), "{wrong}");
        assert!(named("///Bob").is_err() && named("").is_err());
    }

    #[test]
    fn a_balance_reads_well_at_eighty_columns() {
        let unbonding = vec![UnbondingView { uid: Uid(3), amount: Amount::mtl(5).0, until: Window(212) }];
        let nomination = NominationView {
            validator: Uid(1),
            amount: Amount::mtl(40).0,
            unbonding: Vec::new(),
            claimable: Amount::mtl(2).0,
        };
        let status = AccountStatus {
            seats: vec![Uid(3), Uid(4)],
            staked: Amount::mtl(200).0,
            claimable: 12_345_678_901_234,
            unbonding,
            nominations: vec![nomination],
        };
        let balance = Balance { free: Amount::mtl(7), held: Amount::mtl(245) };
        let runs = [(RunId(12), status)];
        let text = balance_text(&address(&[3; 32]), &balance, &runs);
        expect![[r#"
            5C8etthaGJi5SkQeEDSaK32ABBjkhwDeK9ksQCTLEGM3EH14
            free      7 MTL
            held      245 MTL, as stakes and deposits
            run 12    200 MTL staked with uid 3, 4; 5 MTL of uid 3 unbonding until window
                      212; 40 MTL nominated behind uid 1, with 2 MTL of pay to claim by
                      `mettle nominations claim`; 12.345678901234 MTL of pay to claim by
                      `mettle claim`
        "#]]
        .assert_eq(&text);
        let json = balance_json("5C8e", &balance, &runs);
        assert_eq!(json["runs"][0]["claimable"], "12345678901234");
        assert_eq!(json["runs"][0]["nominations"][0]["uid"], 1);
    }
}
