//! What a person does with money that is put behind somebody else's validator.

use crate::{
    commands::{ColdkeyFlags, Seat, seat_at},
    sign::{ConfirmArgs, OnBehalf, Signer, SigningSession, TransactionPlan, units},
    time::BlockClock,
};
use anyhow::{Context as _, bail, ensure};
use chain_client::{
    Amount, Call,
    keys::{address, parse_address},
    terms::{self, percent},
};
use clap::Subcommand;
use node::config::{AccountFlags, EndpointArgs, SeatFlags};
use node::output::{EXIT_CODES, Output};
use protocol::{
    Role, Uid,
    params::Permille,
    view::{Account, NominationView, RunStatus, SeatStatus},
};
use serde_json::{Value, json};

#[derive(Clone, Debug, Subcommand)]
pub enum NominateCommand {
    /// Put money behind a validator: it counts as its stake, earns a part of its pay, and can be slashed with it.
    #[command(after_help = EXIT_CODES)]
    Nominate(Nominate),
    /// Take money back from behind a validator. It is free after the run's unbonding time, and can be slashed until then.
    #[command(after_help = EXIT_CODES)]
    Unnominate(Unnominate),
    /// Show what an account has behind validators; fetch its pay, or what has unbonded.
    #[command(args_conflicts_with_subcommands = true, after_help = EXIT_CODES)]
    Nominations(Nominations),
    /// Say what the validator keeps of its nominators' pay.
    #[command(after_help = EXIT_CODES)]
    SetCommission(SetCommission),
}

#[derive(Clone, Debug, clap::Args)]
pub struct Nominate {
    #[command(flatten)]
    pub account: AccountFlags,
    /// The validator.
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

#[derive(Clone, Debug, clap::Args)]
#[group(id = "how_much", required = true, multiple = false, args = ["amount", "all"])]
pub struct Unnominate {
    #[command(flatten)]
    pub account: AccountFlags,
    /// The validator.
    #[arg(long, value_name = "UID")]
    pub uid: u16,
    /// How much, such as 100 or "12.5 MTL".
    #[arg(long, value_name = "AMOUNT")]
    pub amount: Option<Amount>,
    /// Everything that is behind it now.
    #[arg(long)]
    pub all: bool,
    #[command(flatten)]
    pub behalf: OnBehalf,
    #[command(flatten)]
    pub confirm: ConfirmArgs,
}

#[derive(Clone, Debug, clap::Args)]
pub struct Nominations {
    #[command(subcommand)]
    pub fetch: Option<Fetch>,
    #[command(flatten)]
    pub account: AccountFlags,
    /// Whose, if not the key's own: an address.
    #[arg(long, value_name = "ADDRESS")]
    pub of: Option<String>,
    /// Print one JSON object. Amounts in it are texts, counted in the smallest unit, 10⁻¹² MTL.
    #[arg(long)]
    pub json: bool,
}

#[derive(Clone, Debug, Subcommand)]
pub enum Fetch {
    /// Fetch the pay that a nomination has earned.
    #[command(after_help = EXIT_CODES)]
    Claim(FetchFlags),
    /// Release what was taken back and has unbonded.
    #[command(after_help = EXIT_CODES)]
    Withdraw(FetchFlags),
}

#[derive(Clone, Debug, clap::Args)]
pub struct FetchFlags {
    #[command(flatten)]
    pub account: AccountFlags,
    /// The validator.
    #[arg(long, value_name = "UID")]
    pub uid: u16,
    #[command(flatten)]
    pub behalf: OnBehalf,
    #[command(flatten)]
    pub confirm: ConfirmArgs,
}

#[derive(Clone, Debug, clap::Args)]
pub struct SetCommission {
    #[command(flatten)]
    pub seat: SeatFlags,
    #[command(flatten)]
    pub coldkey: ColdkeyFlags,
    /// In percent, "12.5 %", or in thousandths, 125.
    #[arg(long, value_name = "SHARE", value_parser = parse_share)]
    pub commission: Permille,
    #[command(flatten)]
    pub confirm: ConfirmArgs,
}

fn parse_share(text: &str) -> Result<Permille, String> {
    terms::share(text)
        .ok_or_else(|| "not a share. Write percent, as in `12.5 %`, or thousandths, as in `125`".into())
}

impl NominateCommand {
    /// Whether one JSON object is wanted.
    pub fn json(&self) -> bool {
        match self {
            NominateCommand::Nominate(command) => command.confirm.json,
            NominateCommand::Unnominate(command) => command.confirm.json,
            NominateCommand::Nominations(Nominations {
                fetch: Some(Fetch::Claim(command) | Fetch::Withdraw(command)),
                ..
            }) => command.confirm.json,
            NominateCommand::Nominations(command) => command.json,
            NominateCommand::SetCommission(command) => command.confirm.json,
        }
    }
}

/// Does what was asked.
pub async fn act(command: NominateCommand, output: &mut Output<'_>) -> anyhow::Result<()> {
    match command {
        NominateCommand::Nominate(command) => nominate(command, output).await,
        NominateCommand::Unnominate(command) => unnominate(command, output).await,
        NominateCommand::Nominations(Nominations { fetch: Some(fetch), .. }) => {
            self::fetch(fetch, output).await
        }
        NominateCommand::Nominations(command) => nominations(command, output).await,
        NominateCommand::SetCommission(command) => set_commission(command, output).await,
    }
}

/// Who signs, and whose money it is.
pub(crate) fn signer(
    args: &EndpointArgs,
    behalf: &OnBehalf,
    whose: &'static str,
) -> anyhow::Result<(Signer, Account)> {
    let Some(source) = args.key.clone() else {
        bail!("nobody signs: add --key KEY, or `key = \"FILE\"` to the settings file");
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

/// Where a run stands, and how fast it goes.
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
        "uid {uid} of run {} is a miner: only validators are nominated",
        args.run
    );
    Ok(seat)
}

/// What `account` has behind `uid`.
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
                "it earns its part of what uid {uid} is paid, which keeps a commission of {} first",
                percent(validator.commission)
            ),
            format!(
                "if uid {uid} is proven to have signed two different things, it loses {} of it, and you lose as large a part",
                percent(status.run.terms.equivocation_slash)
            ),
            format!("once taken back it is free after {}", clock.windows(status.run.terms.unbonding_windows)),
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
            format!("it earns nothing any more, and can be slashed with uid {uid}, for {unbonding}"),
            format!(
                "then `mettle nominations withdraw --uid {uid}` releases it, at what it is worth by then"
            ),
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
        None => format!("{amount} is on its way out"),
    };
    output.result(&text, json!({ "uid": uid, "amount": units(amount), "until": until }))?;
    Ok(())
}

async fn fetch(fetch: Fetch, output: &mut Output<'_>) -> anyhow::Result<()> {
    let (command, claims) = match fetch {
        Fetch::Claim(command) => (command, true),
        Fetch::Withdraw(command) => (command, false),
    };
    let args = command.account.read()?;
    let (signer, account) = signer(&args, &command.behalf, "the nominator")?;
    let mut session = SigningSession::open(&args.chain).await?;
    let (status, clock) = run_of(&session, &args).await?;
    let uid = Uid(command.uid);
    let Some(nomination) = behind(&session, &args, &account, uid).await? else {
        bail!("{} has nothing behind uid {uid} of run {}", address(&account), args.run);
    };
    let is_free = |until| status.window.is_some_and(|now| until <= now);
    let free = nomination.unbonding.iter().filter(|chunk| is_free(chunk.until));
    let free = free.fold(Amount::ZERO, |sum, chunk| sum.saturating_add(Amount(chunk.amount)));
    let (what, call, amount) = if claims {
        let what = format!("claim what a nomination of uid {uid} of run {} has earned", args.run);
        (what, Call::ClaimNomination { run: args.run, uid }, Amount(nomination.claimable))
    } else {
        let what = format!("withdraw what was behind uid {uid} of run {}", args.run);
        (what, Call::WithdrawNomination { run: args.run, uid }, free)
    };
    if amount == Amount::ZERO {
        let next = nomination.unbonding.iter().map(|chunk| chunk.until).min();
        let text = match next {
            _ if claims => "nothing to claim".to_owned(),
            Some(next) => format!("nothing to withdraw yet: the first is free in {}", clock.until(next)),
            None => "nothing to withdraw: take it back first with `mettle unnominate`".into(),
        };
        return Ok(output.result(&text, json!({ "uid": uid, "amount": units(amount) }))?);
    }
    let plan = TransactionPlan {
        what,
        calls: vec![call],
        signer,
        proxy_of: command.behalf.account()?,
        then: vec![format!("{amount} go to {}", address(&account))],
    };
    if session.sign(output, &plan, &command.confirm).await?.is_none() {
        return Ok(());
    }
    output.result(
        &format!("{amount} went to {}", address(&account)),
        json!({ "uid": uid, "amount": units(amount) }),
    )?;
    Ok(())
}

async fn nominations(command: Nominations, output: &mut Output<'_>) -> anyhow::Result<()> {
    let args = command.account.read()?;
    let account = match (&command.of, &args.key) {
        (Some(address), _) => parse_address(address)?,
        (None, Some(key)) => key.public().with_context(|| format!("could not read the key {key}"))?.0,
        (None, None) => bail!("whose? Add --key KEY, or --of ADDRESS"),
    };
    let session = SigningSession::open(&args.chain).await?;
    let (_, clock) = run_of(&session, &args).await?;
    let nominations = session.chain.account_status(args.run, &account).await?.nominations;
    Ok(output.result(&said(&account, &nominations, &clock), as_json(&account, &nominations))?)
}

fn said(account: &Account, nominations: &[NominationView], clock: &BlockClock) -> String {
    if nominations.is_empty() {
        return format!("{} has nothing behind any validator", address(account));
    }
    let mut lines = Vec::new();
    for nomination in nominations {
        lines.push(format!(
            "uid {}: {} behind it, {} of pay to claim",
            nomination.validator,
            Amount(nomination.amount),
            Amount(nomination.claimable)
        ));
        for chunk in &nomination.unbonding {
            lines.push(format!(
                "  {} taken back, free in {}",
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
    let args = command.seat.read()?;
    let mut session = SigningSession::open(&args.chain).await?;
    let found = Seat::find(&session, &command.seat, &args).await?;
    found.owned_by(&command.coldkey)?;
    let uid = found.uid();
    ensure!(
        found.seat.seat.role == Role::Validator,
        "uid {uid} is a miner: only validators have a commission"
    );
    let (from, to) = (found.seat.commission, command.commission);
    let when = if to > from {
        let unbonding = found.clock.windows(found.status.run.terms.unbonding_windows);
        format!("a commission that rises takes effect after {unbonding}, so that nominators can leave first")
    } else {
        "a commission that falls takes effect at once".into()
    };
    let plan = TransactionPlan {
        what: format!(
            "set the commission of uid {uid} of run {} from {} to {}",
            args.run,
            percent(from),
            percent(to)
        ),
        calls: vec![Call::SetCommission { run: args.run, uid, commission: to }],
        signer: command.coldkey.signer()?,
        proxy_of: command.coldkey.behalf.account()?,
        then: vec![
            format!(
                "of what its nominators' stake earns, uid {uid} keeps {} before it is shared",
                percent(to)
            ),
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
    fn nominations_are_listed_with_what_is_free_when() {
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
            said(&account, std::slice::from_ref(&nomination), &clock),
            "uid 3: 5 MTL behind it, 1 MTL of pay to claim\n  2 MTL taken back, free in window 4, in about 5 min 30 s"
        );
        assert!(said(&account, &[], &clock).contains("nothing behind any validator"));
        let value = as_json(&account, &[nomination]);
        assert_eq!(value["nominations"][0]["amount"], "5000000000000");
        assert_eq!(value["nominations"][0]["unbonding"][0]["until"], 4);
    }
}
