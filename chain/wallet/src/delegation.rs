//! The commands of a nominator, who puts stake behind another account's validator, and the validator's commission.

use crate::{
    block_clock::BlockClock,
    help,
    output::Output,
    seat::{ColdkeyFlags, Seat, seat_at},
    signing::{ConfirmArgs, OnBehalf, Signer, SigningSession, TransactionPlan, units},
};
use anyhow::{Context as _, bail, ensure};
use chain_client::{
    Amount, Call,
    keys::{address, parse_address},
    terms::{self, percent},
};
use clap::Subcommand;
use node::config::{AccountFlags, EndpointArgs, SeatFlags};
use protocol::{
    Role, Uid,
    params::Permille,
    view::{Account, NominationView, RunStatus, SeatStatus},
};
use serde_json::{Value, json};

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
    pub account: AccountFlags,
    /// The validator's uid.
    #[arg(long, value_name = "UID")]
    pub uid: u16,
    /// How much, such as 100 or "12.5 MTL".
    #[arg(long, value_name = "AMOUNT")]
    pub amount: Amount,
    #[command(flatten)]
    pub behalf: OnBehalf,
    #[command(flatten)]
    pub confirm: ConfirmArgs,
}

/// Take stake back from behind a validator
///
/// It is free after the run's unbonding time, and can be slashed until then.
#[derive(Clone, Debug, clap::Args)]
#[group(id = "how_much", required = true, multiple = false, args = ["amount", "all"])]
pub struct Unnominate {
    #[command(flatten)]
    pub account: AccountFlags,
    /// The validator's uid.
    #[arg(long, value_name = "UID")]
    pub uid: u16,
    /// How much, such as 100 or "12.5 MTL".
    #[arg(long, value_name = "AMOUNT")]
    pub amount: Option<Amount>,
    /// Everything that is behind the validator.
    #[arg(long)]
    pub all: bool,
    #[command(flatten)]
    pub behalf: OnBehalf,
    #[command(flatten)]
    pub confirm: ConfirmArgs,
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
    Claim(FetchFlags),
    /// Release nominated stake that has unbonded
    #[command(after_help = help::signing(&["mettle nominations withdraw --key my-account.json --uid 3"]))]
    Withdraw(FetchFlags),
}

#[derive(Clone, Debug, clap::Args)]
pub struct FetchFlags {
    #[command(flatten)]
    pub account: AccountFlags,
    /// The validator's uid.
    #[arg(long, value_name = "UID")]
    pub uid: u16,
    #[command(flatten)]
    pub behalf: OnBehalf,
    #[command(flatten)]
    pub confirm: ConfirmArgs,
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
    #[command(flatten)]
    pub confirm: ConfirmArgs,
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

/// The signing key, and the account that it acts for.
pub(crate) fn signer(
    args: &EndpointArgs,
    behalf: &OnBehalf,
    whose: &'static str,
) -> anyhow::Result<(Signer, Account)> {
    let Some(source) = args.key.clone() else {
        bail!("no key to sign with: add --key KEY, or `key = \"FILE\"` to the settings file");
    };
    let proxy_of = behalf.account()?;
    let signer = Signer {
        source,
        password_file: args.password_file.clone(),
        whose: if proxy_of.is_some() { "a proxy" } else { whose },
    };
    let account = match proxy_of {
        Some(real) => real,
        None => signer.account()?,
    };
    Ok((signer, account))
}

/// A run's status and clock.
async fn run_of(session: &SigningSession, args: &EndpointArgs) -> anyhow::Result<(RunStatus, BlockClock)> {
    let status = session.chain.status(args.run).await?;
    let clock = BlockClock::read(&*session.chain, status.run.params.schedule).await?;
    Ok((status, clock))
}

async fn validator_at(session: &SigningSession, args: &EndpointArgs, uid: Uid) -> anyhow::Result<SeatStatus> {
    let seat = seat_at(&*session.chain, args.run, uid).await?;
    let seat = seat.with_context(|| format!("there is no uid {uid} in run {}", args.run))?;
    ensure!(
        seat.seat.role == Role::Validator,
        "uid {uid} of run {} is a miner: only validators can be nominated",
        args.run
    );
    Ok(seat)
}

/// The nomination of `uid` by `account`.
async fn behind(
    session: &SigningSession,
    args: &EndpointArgs,
    account: &Account,
    uid: Uid,
) -> anyhow::Result<Option<NominationView>> {
    let nominations = session.chain.account_status(args.run, account).await?.nominations;
    Ok(nominations.into_iter().find(|nomination| nomination.validator == uid))
}

async fn nominate(command: Nominate, output: &mut Output<'_>) -> anyhow::Result<()> {
    let args = command.account.read()?;
    let (signer, account) = signer(&args, &command.behalf, "the nominator")?;
    let mut session = SigningSession::open(&args.chain).await?;
    let (status, clock) = run_of(&session, &args).await?;
    let (uid, amount) = (Uid(command.uid), command.amount);
    let validator = validator_at(&session, &args, uid).await?;
    let plan = TransactionPlan {
        what: format!("nominate uid {uid} of run {} with {amount}", args.run),
        calls: vec![Call::Nominate { run: args.run, uid, amount }],
        signer,
        proxy_of: command.behalf.account()?,
        then: vec![
            format!(
                "{amount} leaves {}; it counts as stake of uid {uid} from the next window",
                address(&account)
            ),
            format!(
                "it earns its part of the pay of uid {uid}, which first keeps a commission of {}",
                percent(validator.commission)
            ),
            format!(
                "if uid {uid} is proven to have signed two contradicting statements, {} of this amount is slashed",
                percent(status.run.terms.equivocation_slash)
            ),
            format!("taken back, it is free after {}", clock.windows(status.run.terms.unbonding_windows)),
        ],
    };
    if session.sign(output, &plan, &command.confirm).await?.is_none() {
        return Ok(());
    }
    let has = behind(&session, &args, &account, uid).await?;
    let has = Amount(has.map_or(0, |nomination| nomination.amount));
    output.result(
        &format!("{} has {has} behind uid {uid}", address(&account)),
        json!({ "uid": uid, "amount": units(has) }),
    )?;
    Ok(())
}

async fn unnominate(command: Unnominate, output: &mut Output<'_>) -> anyhow::Result<()> {
    let args = command.account.read()?;
    let (signer, account) = signer(&args, &command.behalf, "the nominator")?;
    let mut session = SigningSession::open(&args.chain).await?;
    let (status, clock) = run_of(&session, &args).await?;
    let uid = Uid(command.uid);
    let has = behind(&session, &args, &account, uid).await?;
    let has = Amount(has.map_or(0, |nomination| nomination.amount));
    let amount = command.amount.unwrap_or(has);
    ensure!(
        Amount::ZERO < amount && amount <= has,
        "{} has {has} behind uid {uid} of run {}: take back at most that",
        address(&account),
        args.run
    );
    let unbonding = clock.windows(status.run.terms.unbonding_windows);
    let plan = TransactionPlan {
        what: format!("take {amount} back from behind uid {uid} of run {}", args.run),
        calls: vec![Call::Unnominate { run: args.run, uid, amount }],
        signer,
        proxy_of: command.behalf.account()?,
        then: vec![
            format!("for {unbonding} it earns nothing, and can still be slashed with uid {uid}"),
            format!("then `mettle nominations withdraw --uid {uid}` releases what is left of it"),
            format!("{} stays behind uid {uid}", has.saturating_sub(amount)),
        ],
    };
    if session.sign(output, &plan, &command.confirm).await?.is_none() {
        return Ok(());
    }
    let leaving = behind(&session, &args, &account, uid).await?.map(|nomination| nomination.unbonding);
    let until = leaving.unwrap_or_default().iter().map(|chunk| chunk.until).max();
    let text = match until {
        Some(until) => format!("{amount} is free in {}", clock.until(until)),
        None => format!("{amount} is unbonding"),
    };
    output.result(&text, json!({ "uid": uid, "amount": units(amount), "until": until }))?;
    Ok(())
}

/// A nomination, ready to be claimed or withdrawn.
struct Fetched {
    session: SigningSession,
    args: EndpointArgs,
    signer: Signer,
    account: Account,
    status: RunStatus,
    clock: BlockClock,
    nomination: NominationView,
}

impl Fetched {
    async fn open(flags: &FetchFlags) -> anyhow::Result<Fetched> {
        let args = flags.account.read()?;
        let (signer, account) = signer(&args, &flags.behalf, "the nominator")?;
        let session = SigningSession::open(&args.chain).await?;
        let (status, clock) = run_of(&session, &args).await?;
        let uid = Uid(flags.uid);
        let Some(nomination) = behind(&session, &args, &account, uid).await? else {
            bail!("{} has nothing behind uid {uid} of run {}", address(&account), args.run);
        };
        Ok(Fetched { session, args, signer, account, status, clock, nomination })
    }

    /// Signs a call that moves `amount` to the nominator.
    async fn sign(
        mut self,
        what: String,
        call: Call,
        amount: Amount,
        flags: &FetchFlags,
        output: &mut Output<'_>,
    ) -> anyhow::Result<()> {
        let (to, proxy_of) = (address(&self.account), flags.behalf.account()?);
        let then = vec![format!("{amount} goes to {to}")];
        let plan = TransactionPlan { what, calls: vec![call], signer: self.signer, proxy_of, then };
        if self.session.sign(output, &plan, &flags.confirm).await?.is_none() {
            return Ok(());
        }
        let value = json!({ "uid": flags.uid, "amount": units(amount) });
        Ok(output.result(&format!("{amount} went to {to}"), value)?)
    }
}

async fn claim(flags: FetchFlags, output: &mut Output<'_>) -> anyhow::Result<()> {
    let fetched = Fetched::open(&flags).await?;
    let (run, uid) = (fetched.args.run, Uid(flags.uid));
    let amount = Amount(fetched.nomination.claimable);
    if amount == Amount::ZERO {
        return Ok(output.result("nothing to claim", json!({ "uid": uid, "amount": units(amount) }))?);
    }
    let what = format!("claim the pay of a nomination of uid {uid} of run {run}");
    fetched.sign(what, Call::ClaimNomination { run, uid }, amount, &flags, output).await
}

async fn withdraw(flags: FetchFlags, output: &mut Output<'_>) -> anyhow::Result<()> {
    let fetched = Fetched::open(&flags).await?;
    let (run, uid, unbonding) = (fetched.args.run, Uid(flags.uid), &fetched.nomination.unbonding);
    let free = unbonding.iter().filter(|chunk| fetched.status.window.is_some_and(|now| chunk.until <= now));
    let amount = free.fold(Amount::ZERO, |sum, chunk| sum.saturating_add(Amount(chunk.amount)));
    if amount == Amount::ZERO {
        let text = match unbonding.iter().map(|chunk| chunk.until).min() {
            Some(next) => {
                format!("nothing to withdraw yet: the first part is free in {}", fetched.clock.until(next))
            }
            None => "nothing to withdraw: take it back first with `mettle unnominate`".into(),
        };
        return Ok(output.result(&text, json!({ "uid": uid, "amount": units(amount) }))?);
    }
    let what = format!("withdraw an unbonded nomination of uid {uid} of run {run}");
    fetched.sign(what, Call::WithdrawNomination { run, uid }, amount, &flags, output).await
}

async fn nominations(command: Nominations, output: &mut Output<'_>) -> anyhow::Result<()> {
    let args = command.account.read()?;
    let account = match (&command.of, &args.key) {
        (Some(address), _) => parse_address(address)?,
        (None, Some(key)) => key.public().with_context(|| format!("could not read the key {key}"))?.0,
        (None, None) => bail!("no nominator: add --key KEY, or --of ADDRESS"),
    };
    let session = SigningSession::open(&args.chain).await?;
    let (_, clock) = run_of(&session, &args).await?;
    let nominations = session.chain.account_status(args.run, &account).await?.nominations;
    Ok(output.result(&text(&account, &nominations, &clock), as_json(&account, &nominations))?)
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
        let unbonding = nomination.unbonding.iter();
        let unbonding: Vec<Value> = unbonding
            .map(|chunk| json!({ "amount": units(Amount(chunk.amount)), "until": chunk.until }))
            .collect();
        json!({
            "uid": nomination.validator, "amount": units(Amount(nomination.amount)),
            "claimable": units(Amount(nomination.claimable)), "unbonding": unbonding,
        })
    };
    let nominations: Vec<Value> = nominations.iter().map(nomination).collect();
    json!({ "account": address(account), "nominations": nominations })
}

async fn set_commission(command: SetCommission, output: &mut Output<'_>) -> anyhow::Result<()> {
    let (mut session, found) = Seat::open(&command.seat, &command.coldkey).await?;
    let (run, uid) = (found.run, found.uid());
    ensure!(
        found.seat.seat.role == Role::Validator,
        "uid {uid} is a miner: only validators have a commission"
    );
    let (from, to) = (found.seat.commission, command.commission);
    let when = if to > from {
        format!(
            "a higher commission takes effect after {}, so that nominators can leave first",
            found.unbonding()
        )
    } else {
        "a lower commission takes effect at once".into()
    };
    let plan = TransactionPlan {
        what: format!(
            "set the commission of uid {uid} of run {run} from {} to {}",
            percent(from),
            percent(to)
        ),
        calls: vec![Call::SetCommission { run, uid, commission: to }],
        signer: command.coldkey.signer()?,
        proxy_of: command.coldkey.behalf.account()?,
        then: vec![
            format!("uid {uid} keeps {} of its nominators' pay and shares the rest", percent(to)),
            when,
        ],
    };
    if session.sign(output, &plan, &command.confirm).await?.is_none() {
        return Ok(());
    }
    let text = if to > from {
        format!("the commission of uid {uid} will be {}", percent(to))
    } else {
        format!("the commission of uid {uid} is {}", percent(to))
    };
    Ok(output.result(&text, json!({ "uid": uid, "commission": to.0 }))?)
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
