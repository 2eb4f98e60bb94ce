//! Commands of a nominator, an account with stake behind another account's validator, and of the validator's
//! commission.

use crate::{
    help,
    output::Output,
    seat::session::{ColdkeyFlags, Seat},
    signing::{AccountSigner, RunSession, Signer, TransactionPlan, freed, unbonding_json, units},
};
use anyhow::{Context as _, bail, ensure};
use chain_client::{
    Amount, Call,
    keys::{address, parse_address},
    terms::{self, percent},
};
use clap::Subcommand;
use daemon::config::{AccountFlags, SeatFlags};
use protocol::{
    Role, Uid,
    params::Permille,
    view::{Account, NominationView},
};
use serde_json::{Value, json};
use watch::block_clock::BlockClock;

#[derive(Clone, Debug, Subcommand)]
pub enum DelegationCommand {
    #[command(after_help = help::signing(&["mettle nominate --key my-account.json --uid 3 --amount 100"]))]
    Nominate(Nominate),
    #[command(after_help = help::signing(&[
        "mettle unnominate --key my-account.json --uid 3 --amount 12.5",
        "mettle unnominate --key my-account.json --uid 3 --all",
    ]))]
    Unnominate(Unnominate),
    #[command(args_conflicts_with_subcommands = true, after_help = help::signing(&[
        "mettle nominations --key my-account.json",
        "mettle nominations claim --key my-account.json --uid 3",
        "mettle nominations withdraw --key my-account.json --uid 3",
    ]))]
    Nominations(Nominations),
    #[command(after_help = help::signing(&[
        "mettle set-commission --config validator.toml --coldkey coldkey.json --commission 12.5%",
    ]))]
    SetCommission(SetCommission),
}

/// Put stake behind a validator
///
/// The amount counts as the validator's stake, earns a part of its pay, and can be slashed with it.
#[derive(Clone, Debug, clap::Args)]
pub struct Nominate {
    #[command(flatten)]
    pub flags: NominatorFlags,
    /// The amount, such as 100 or "12.5 MTL".
    #[arg(long, value_name = "AMOUNT")]
    pub amount: Amount,
}

/// Withdraw stake from behind a validator
///
/// It is free after the run's unbonding time, and can be slashed until then.
#[derive(Clone, Debug, clap::Args)]
#[group(id = "how_much", required = true, multiple = false, args = ["amount", "all"])]
pub struct Unnominate {
    #[command(flatten)]
    pub flags: NominatorFlags,
    /// The amount, such as 100 or "12.5 MTL".
    #[arg(long, value_name = "AMOUNT")]
    pub amount: Option<Amount>,
    /// The whole nomination.
    #[arg(long)]
    pub all: bool,
}

/// Show nominations, claim their pay, or withdraw them
#[derive(Clone, Debug, clap::Args)]
pub struct Nominations {
    #[command(subcommand)]
    pub fetch: Option<Fetch>,
    #[command(flatten)]
    pub account: AccountFlags,
    /// The nominator's address, if it is not the key's own account.
    #[arg(long, value_name = "ADDRESS")]
    pub of: Option<String>,
}

#[derive(Clone, Debug, Subcommand)]
pub enum Fetch {
    /// Claim the pay of a nomination
    #[command(after_help = help::signing(&["mettle nominations claim --key my-account.json --uid 3"]))]
    Claim(NominatorFlags),
    /// Release nominated stake that has unbonded
    #[command(after_help = help::signing(&["mettle nominations withdraw --key my-account.json --uid 3"]))]
    Withdraw(NominatorFlags),
}

#[derive(Clone, Debug, clap::Args)]
pub struct NominatorFlags {
    #[command(flatten)]
    pub signer: AccountSigner,
    /// The validator's uid.
    #[arg(long, value_name = "UID")]
    pub uid: u16,
}

/// Set the share of its nominators' pay that a validator keeps
#[derive(Clone, Debug, clap::Args)]
pub struct SetCommission {
    #[command(flatten)]
    pub seat: SeatFlags,
    #[command(flatten)]
    pub coldkey: ColdkeyFlags,
    /// The share in percent, "12.5 %", or in thousandths, 125.
    #[arg(long, value_name = "SHARE", value_parser = parse_share)]
    pub commission: Permille,
}

fn parse_share(text: &str) -> Result<Permille, String> {
    terms::share(text)
        .ok_or_else(|| "not a share. Write percent, as in `12.5 %`, or thousandths, as in `125`".into())
}

/// Runs a command; prints and asks through `output`.
pub async fn run(command: DelegationCommand, output: &mut Output<'_>) -> anyhow::Result<()> {
    match command {
        DelegationCommand::Nominate(command) => nominate(command, output).await,
        DelegationCommand::Unnominate(command) => unnominate(command, output).await,
        DelegationCommand::Nominations(Nominations { fetch: Some(Fetch::Claim(flags)), .. }) => {
            claim(flags, output).await
        }
        DelegationCommand::Nominations(Nominations { fetch: Some(Fetch::Withdraw(flags)), .. }) => {
            withdraw(flags, output).await
        }
        DelegationCommand::Nominations(command) => nominations(command, output).await,
        DelegationCommand::SetCommission(command) => set_commission(command, output).await,
    }
}

/// A nominator and its validator.
struct Nominator {
    session: RunSession,
    signer: Signer,
    account: Account,
    uid: Uid,
}

impl Nominator {
    async fn open(flags: &NominatorFlags) -> anyhow::Result<Nominator> {
        let args = flags.signer.account.read()?;
        let signer = flags.signer.signer(&args, "the nominator")?;
        let account = signer.account()?;
        Ok(Nominator { session: RunSession::open(args).await?, signer, account, uid: Uid(flags.uid) })
    }

    /// Reads the nominator's nomination of the validator.
    async fn nomination(&self) -> anyhow::Result<Option<NominationView>> {
        let account = self.session.chain().account_status(self.session.run, &self.account).await?;
        Ok(account.nominations.into_iter().find(|nomination| nomination.validator == self.uid))
    }

    async fn amount(&self) -> anyhow::Result<Amount> {
        Ok(Amount(self.nomination().await?.map_or(0, |nomination| nomination.amount)))
    }

    /// Reads the nomination like [`Nominator::nomination`]; an error if there is none.
    async fn existing(&self) -> anyhow::Result<NominationView> {
        let nomination = self.nomination().await?;
        nomination.with_context(|| {
            let (nominator, run) = (address(&self.account), self.session.run);
            format!("{nominator} has nothing behind uid {} of run {run}", self.uid)
        })
    }

    /// Signs a call that moves `amount` to the nominator.
    async fn fetch(
        mut self,
        what: String,
        call: Call,
        amount: Amount,
        output: &mut Output<'_>,
    ) -> anyhow::Result<()> {
        let to = address(&self.account);
        let then = vec![format!("{amount} goes to {to}")];
        let plan = TransactionPlan { what, calls: vec![call], signer: self.signer, then };
        let value = json!({ "uid": self.uid, "amount": units(amount) });
        self.session.signing.sign_and_print(output, &plan, &format!("{amount} went to {to}"), value).await
    }
}

async fn nominate(command: Nominate, output: &mut Output<'_>) -> anyhow::Result<()> {
    let mut nominator = Nominator::open(&command.flags).await?;
    let (run, uid, amount) = (nominator.session.run, nominator.uid, command.amount);
    let validator = nominator.session.seat_at(uid).await?;
    let validator = validator.with_context(|| format!("there is no uid {uid} in run {run}"))?;
    ensure!(
        validator.seat.role == Role::Validator,
        "uid {uid} of run {run} is a miner: only validators can be nominated"
    );
    let account = address(&nominator.account);
    let plan = TransactionPlan {
        what: format!("nominate uid {uid} of run {run} with {amount}"),
        calls: vec![Call::Nominate { run, uid, amount }],
        signer: nominator.signer.clone(),
        then: vec![
            format!("{amount} leaves {account}; it counts as stake of uid {uid} from the next window"),
            format!(
                "it earns its part of the pay of uid {uid}, which first keeps a commission of {}",
                percent(validator.commission)
            ),
            format!(
                "if uid {uid} is proven to have signed two contradicting statements, {} of this amount is slashed",
                percent(nominator.session.status.run.terms.equivocation_slash)
            ),
            format!("taken back, it is free after {}", nominator.session.unbonding()),
        ],
    };
    if !nominator.session.signing.sign(output, &plan).await? {
        return Ok(());
    }
    let has = nominator.amount().await?;
    let value = json!({ "uid": uid, "amount": units(has) });
    Ok(output.result(&format!("{account} has {has} behind uid {uid}"), value)?)
}

async fn unnominate(command: Unnominate, output: &mut Output<'_>) -> anyhow::Result<()> {
    let mut nominator = Nominator::open(&command.flags).await?;
    let (run, uid) = (nominator.session.run, nominator.uid);
    let has = nominator.amount().await?;
    let amount = command.amount.unwrap_or(has);
    ensure!(
        Amount::ZERO < amount && amount <= has,
        "{} has {has} behind uid {uid} of run {run}: take back at most that",
        address(&nominator.account),
    );
    let unbonding = nominator.session.unbonding();
    let plan = TransactionPlan {
        what: format!("take {amount} back from behind uid {uid} of run {run}"),
        calls: vec![Call::Unnominate { run, uid, amount }],
        signer: nominator.signer.clone(),
        then: vec![
            format!("for {unbonding} it earns nothing, and can still be slashed with uid {uid}"),
            format!("then `mettle nominations withdraw --uid {uid}` releases what is left of it"),
            format!("{} stays behind uid {uid}", has.saturating_sub(amount)),
        ],
    };
    if !nominator.session.signing.sign(output, &plan).await? {
        return Ok(());
    }
    let leaving = nominator.nomination().await?.map(|nomination| nomination.unbonding);
    let until = leaving.unwrap_or_default().iter().map(|chunk| chunk.until).max();
    let text = match until {
        Some(until) => format!("{amount} is free in {}", nominator.session.clock.until(until)),
        None => format!("{amount} is unbonding"),
    };
    Ok(output.result(&text, json!({ "uid": uid, "amount": units(amount), "until": until }))?)
}

async fn claim(flags: NominatorFlags, output: &mut Output<'_>) -> anyhow::Result<()> {
    let nominator = Nominator::open(&flags).await?;
    let (run, uid) = (nominator.session.run, nominator.uid);
    let amount = Amount(nominator.existing().await?.claimable);
    if amount == Amount::ZERO {
        return Ok(output.result("nothing to claim", json!({ "uid": uid, "amount": units(amount) }))?);
    }
    let what = format!("claim the pay of a nomination of uid {uid} of run {run}");
    nominator.fetch(what, Call::ClaimNomination { run, uid }, amount, output).await
}

async fn withdraw(flags: NominatorFlags, output: &mut Output<'_>) -> anyhow::Result<()> {
    let nominator = Nominator::open(&flags).await?;
    let (run, uid) = (nominator.session.run, nominator.uid);
    let unbonding = nominator.existing().await?.unbonding;
    let (amount, _) = freed(&unbonding, nominator.session.status.window);
    if amount == Amount::ZERO {
        let text = match unbonding.iter().map(|chunk| chunk.until).min() {
            Some(next) => {
                let when = nominator.session.clock.until(next);
                format!("nothing to withdraw yet: the first part is free in {when}")
            }
            None => "nothing to withdraw: take it back first with `mettle unnominate`".into(),
        };
        return Ok(output.result(&text, json!({ "uid": uid, "amount": units(amount) }))?);
    }
    let what = format!("withdraw an unbonded nomination of uid {uid} of run {run}");
    nominator.fetch(what, Call::WithdrawNomination { run, uid }, amount, output).await
}

async fn nominations(command: Nominations, output: &mut Output<'_>) -> anyhow::Result<()> {
    let args = command.account.read()?;
    let account = match (&command.of, &args.key) {
        (Some(address), _) => parse_address(address)?,
        (None, Some(key)) => key.account().with_context(|| format!("could not read the key {key}"))?,
        (None, None) => bail!("no nominator: add --key KEY, or --of ADDRESS"),
    };
    let session = RunSession::open(args).await?;
    let nominations = session.chain().account_status(session.run, &account).await?.nominations;
    Ok(output.result(&text(&account, &nominations, &session.clock), as_json(&account, &nominations))?)
}

fn text(account: &Account, nominations: &[NominationView], clock: &BlockClock) -> String {
    if nominations.is_empty() {
        return format!("{} has nothing behind any validator", address(account));
    }
    let mut lines = Vec::new();
    for nomination in nominations {
        lines.push(format!(
            "uid {}: {:.2} nominated, {:.2} of pay to claim",
            nomination.validator,
            Amount(nomination.amount),
            Amount(nomination.claimable)
        ));
        for chunk in &nomination.unbonding {
            lines.push(format!(
                "  {:.2} taken back, free in {}",
                Amount(chunk.amount),
                clock.until(chunk.until)
            ));
        }
    }
    lines.join("\n")
}

fn as_json(account: &Account, nominations: &[NominationView]) -> Value {
    let nomination = |nomination: &NominationView| {
        json!({
            "uid": nomination.validator, "amount": units(Amount(nomination.amount)),
            "claimable": units(Amount(nomination.claimable)),
            "unbonding": nomination.unbonding.iter().map(unbonding_json).collect::<Vec<_>>(),
        })
    };
    let nominations: Vec<Value> = nominations.iter().map(nomination).collect();
    json!({ "account": address(account), "nominations": nominations })
}

async fn set_commission(command: SetCommission, output: &mut Output<'_>) -> anyhow::Result<()> {
    let (mut found, signer) = Seat::open(&command.seat, &command.coldkey).await?;
    let (run, uid) = (found.session.run, found.uid());
    ensure!(
        found.seat.seat.role == Role::Validator,
        "uid {uid} is a miner: only validators have a commission"
    );
    let (from, to) = (found.seat.commission, command.commission);
    let (when, becomes) = if to > from {
        let unbonding = found.session.unbonding();
        let when =
            format!("a higher commission takes effect after {unbonding}, so that nominators can leave first");
        (when, "will be")
    } else {
        ("a lower commission takes effect at once".into(), "is")
    };
    let (from, share) = (percent(from), percent(to));
    let plan = TransactionPlan {
        what: format!("set the commission of uid {uid} of run {run} from {from} to {share}"),
        calls: vec![Call::SetCommission { run, uid, commission: to }],
        signer,
        then: vec![format!("uid {uid} keeps {share} of its nominators' pay and shares the rest"), when],
    };
    let text = format!("the commission of uid {uid} {becomes} {share}");
    let value = json!({ "uid": uid, "commission": to.0 });
    found.session.signing.sign_and_print(output, &plan, &text, value).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use protocol::{Block, Schedule, Window, view::UnbondingView};
    use std::time::Duration;

    #[test]
    fn a_share_is_given_in_percent_or_in_thousandths() {
        assert_eq!(parse_share("12.5 %"), Ok(Permille(125)));
        assert_eq!(parse_share("125"), Ok(Permille(125)));
        assert!(parse_share("101 %").unwrap_err().contains("12.5 %"));
    }

    #[test]
    fn nominations_are_listed_with_amounts_and_windows() {
        let schedule = Schedule {
            start: Block(0),
            blocks_per_window: 20,
            commit_by: 10,
            reveal_by: 12,
            attest_by: 14,
            vote_by: 16,
        };
        let clock = BlockClock { block: Block(25), schedule, block_time: Duration::from_secs(6) };
        let account = [1; 32];
        let chunk = UnbondingView { uid: Uid(3), amount: Amount::mtl(2).0, until: Window(4) };
        let nomination = NominationView {
            validator: Uid(3),
            amount: Amount::mtl(5).0,
            unbonding: vec![chunk],
            claimable: Amount::mtl(1).0,
        };
        assert_eq!(
            text(&account, std::slice::from_ref(&nomination), &clock),
            "uid 3: 5.00 MTL nominated, 1.00 MTL of pay to claim\n  2.00 MTL taken back, free in window 4, in about 5 min 30 s"
        );
        assert!(text(&account, &[], &clock).contains("nothing behind any validator"));
        let value = as_json(&account, &[nomination]);
        assert_eq!(value["nominations"][0]["amount"], "5000000000000");
        assert_eq!(value["nominations"][0]["unbonding"][0]["until"], 4);
    }
}
