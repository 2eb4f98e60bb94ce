//! What a run's owner does with it, and its sponsors: create, fund, change the terms, stop and let go on, hand over.

use crate::{
    create::{self, CreateRun},
    nominate::signer,
    sign::{ConfirmArgs, OnBehalf, SigningSession, TransactionPlan, units},
    time::BlockClock,
};
use anyhow::{Context as _, ensure};
use chain_client::{
    Amount, Call,
    keys::{address, parse_address},
    terms,
};
use clap::Subcommand;
use node::config::{AccountFlags, EndpointArgs};
use node::output::{EXIT_CODES, Output};
use protocol::{
    RunParams, Terms, Window,
    view::{Account, RunStatus, TreasuryView},
};
use serde_json::{Map, Value, json};
use std::{fmt::Write as _, path::PathBuf};

#[derive(Clone, Debug, Subcommand)]
pub enum RunCommand {
    /// Publish a model's shape, its data and its first weights, and open the run on the chain.
    #[command(after_help = EXIT_CODES)]
    Create(Box<CreateRun>),
    /// Pay into the run's treasury. Anybody may; nothing comes back but as pay for work.
    #[command(after_help = EXIT_CODES)]
    Fund(Fund),
    /// Show the run's terms, or change them: who may sit, what is at stake, what is paid.
    ///
    /// Only terms can change. The run's parameters, by which every party computes the same model, are fixed when it is created:
    /// the lineage begins with them, and two parties that differ in one would train two different models. New terms take
    /// effect as an epoch begins, so that nobody is paid by other terms than those that stood when the work was done.
    #[command(alias = "params", after_help = EXIT_CODES)]
    Terms(TermsCommand),
    /// Stop the run as the next window opens: windows are void, and nobody is paid, until it goes on.
    #[command(after_help = EXIT_CODES)]
    Pause(OwnerFlags),
    /// Let a stopped run go on as the next window opens.
    #[command(after_help = EXIT_CODES)]
    Resume(OwnerFlags),
    /// Fetch the owner's share of the pay.
    #[command(after_help = EXIT_CODES)]
    Claim(OwnerFlags),
    /// Offer the run to another account, which becomes its owner by `run accept`.
    #[command(after_help = EXIT_CODES)]
    Offer(Offer),
    /// Become the owner of a run that was offered to you. Its deposit is held from you instead.
    #[command(after_help = EXIT_CODES)]
    Accept(OwnerFlags),
}

#[derive(Clone, Debug, clap::Args)]
pub struct OwnerFlags {
    #[command(flatten)]
    pub account: AccountFlags,
    #[command(flatten)]
    pub behalf: OnBehalf,
    #[command(flatten)]
    pub confirm: ConfirmArgs,
}

#[derive(Clone, Debug, clap::Args)]
pub struct Fund {
    #[command(flatten)]
    pub flags: OwnerFlags,
    /// How much, such as 100 or "12.5 MTL".
    #[arg(long, value_name = "AMOUNT")]
    pub amount: Amount,
}

#[derive(Clone, Debug, clap::Args)]
pub struct TermsCommand {
    #[command(flatten)]
    pub flags: OwnerFlags,
    /// Change one term, such as miner_seats_max=128, "validator_stake_min=12.5 MTL" or "quorum=60 %". May be given several
    /// times.
    #[arg(long, value_name = "NAME=VALUE")]
    pub set: Vec<String>,
    /// Change the terms that this JSON file names.
    #[arg(long, value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// Take back terms that wait for the next epoch.
    #[arg(long, conflicts_with_all = ["set", "file"])]
    pub cancel: bool,
}

#[derive(Clone, Debug, clap::Args)]
pub struct Offer {
    #[command(flatten)]
    pub flags: OwnerFlags,
    /// To whom: an address.
    #[arg(long, value_name = "ADDRESS")]
    pub to: String,
}

impl RunCommand {
    /// Whether one JSON object is wanted.
    pub fn json(&self) -> bool {
        match self {
            RunCommand::Create(command) => command.confirm.json,
            RunCommand::Fund(command) => command.flags.confirm.json,
            RunCommand::Terms(command) => command.flags.confirm.json,
            RunCommand::Offer(command) => command.flags.confirm.json,
            RunCommand::Pause(flags)
            | RunCommand::Resume(flags)
            | RunCommand::Claim(flags)
            | RunCommand::Accept(flags) => flags.confirm.json,
        }
    }
}

/// Does what was asked.
pub async fn act(command: RunCommand, output: &mut Output<'_>) -> anyhow::Result<()> {
    match command {
        RunCommand::Create(command) => create::run(*command, output).await,
        RunCommand::Fund(command) => fund(command, output).await,
        RunCommand::Terms(command) => terms(command, output).await,
        RunCommand::Pause(flags) => stop(flags, true, output).await,
        RunCommand::Resume(flags) => stop(flags, false, output).await,
        RunCommand::Claim(flags) => claim(flags, output).await,
        RunCommand::Offer(command) => offer(command, output).await,
        RunCommand::Accept(flags) => accept(flags, output).await,
    }
}

/// A run as its owner sees it.
struct Owned {
    args: EndpointArgs,
    session: SigningSession,
    status: RunStatus,
    clock: BlockClock,
}

impl Owned {
    async fn open(flags: &OwnerFlags) -> anyhow::Result<Owned> {
        let args = flags.account.read()?;
        let session = SigningSession::open(&args.chain).await?;
        let status = session.chain.status(args.run).await?;
        let clock = BlockClock::read(&*session.chain, status.run.params.schedule).await?;
        Ok(Owned { args, session, status, clock })
    }

    /// A proposal of the owner's. Refuses everybody else: better said here than paid for there.
    fn plan(
        &self,
        flags: &OwnerFlags,
        what: String,
        call: Call,
        then: Vec<String>,
    ) -> anyhow::Result<TransactionPlan> {
        let (signer, account) = signer(&self.args, &flags.behalf, "the run's owner")?;
        let owner: Account = self.status.run.owner;
        ensure!(
            owner == account,
            "run {} belongs to {}, not to {}: sign with its owner's key, or with a proxy of it and --proxy-of",
            self.args.run,
            address(&owner),
            address(&account)
        );
        Ok(TransactionPlan { what, calls: vec![call], signer, proxy_of: flags.behalf.account()?, then })
    }

    /// The first window of the next epoch, when new terms take effect.
    fn next_epoch(&self) -> Window {
        next_epoch(&self.status.run.params, self.status.window)
    }
}

fn next_epoch(params: &RunParams, now: Option<Window>) -> Window {
    match now {
        None => Window(0),
        Some(now) => {
            let epoch = now.epoch(params.epoch_windows);
            Window(epoch.saturating_add(1).saturating_mul(params.epoch_windows))
        }
    }
}

async fn fund(command: Fund, output: &mut Output<'_>) -> anyhow::Result<()> {
    let mut owned = Owned::open(&command.flags).await?;
    let run = owned.args.run;
    let (signer, _) = signer(&owned.args, &command.flags.behalf, "the sponsor")?;
    let before = Amount(owned.status.treasury.treasury);
    let emission = Amount(owned.status.run.terms.emission(owned.status.epoch.unwrap_or(0)));
    let mut then = vec![
        format!("the treasury rises from {before} to {}", before.saturating_add(command.amount)),
        format!("an epoch pays {emission} at most, while the treasury lasts"),
        "nothing of it comes back but as pay".into(),
    ];
    if owned.status.treasury == TreasuryView::default() {
        then.push("as the first to fund the run you also pay the existential deposit of its account".into());
    }
    let plan = TransactionPlan {
        what: format!("fund run {run} with {}", command.amount),
        calls: vec![Call::Fund { run, amount: command.amount }],
        signer,
        proxy_of: command.flags.behalf.account()?,
        then,
    };
    if owned.session.sign(output, &plan, &command.flags.confirm).await?.is_none() {
        return Ok(());
    }
    let treasury = Amount(owned.session.chain.status(run).await?.treasury.treasury);
    output.result(
        &format!("the treasury of run {run} holds {treasury}"),
        json!({ "run": run, "treasury": units(treasury) }),
    )?;
    Ok(())
}

fn terms_json(terms: &Terms) -> Value {
    let lines = terms::lines(terms).into_iter().map(|(name, value)| (name.to_owned(), Value::String(value)));
    Value::Object(lines.collect::<Map<_, _>>())
}

fn terms_text(status: &RunStatus, when: &str) -> String {
    let now = &status.run.terms;
    let mut text = format!("the terms of run {}\n", status.run.id);
    for (name, value) in terms::lines(now) {
        let _ = writeln!(text, "  {name:24} {value}");
    }
    match &status.pending_terms {
        None => text.push_str("none are waiting to take their place"),
        Some(pending) => {
            let _ = write!(text, "with {when}, these change:");
            for (name, old, new) in terms::changes(now, pending) {
                let _ = write!(text, "\n  {name:24} {old} -> {new}");
            }
        }
    }
    text
}

async fn terms(command: TermsCommand, output: &mut Output<'_>) -> anyhow::Result<()> {
    let mut owned = Owned::open(&command.flags).await?;
    let run = owned.args.run;
    let when = owned.clock.until(owned.next_epoch());
    if command.cancel {
        return cancel_terms(command, owned, output).await;
    }
    if command.set.is_empty() && command.file.is_none() {
        let status = &owned.status;
        let pending = status.pending_terms.as_ref().map(terms_json);
        let value = json!({
            "terms": terms_json(&status.run.terms), "pending": pending, "pending_from": owned.next_epoch(),
        });
        return Ok(output.result(&terms_text(status, &when), value)?);
    }

    // On top of what waits already: a second change does not undo the first.
    let from = owned.status.pending_terms.unwrap_or(owned.status.run.terms);
    let mut to = from;
    if let Some(path) = &command.file {
        let bytes = std::fs::read(path).with_context(|| format!("could not read {}", path.display()))?;
        let json =
            serde_json::from_slice(&bytes).with_context(|| format!("{} is no JSON", path.display()))?;
        terms::overwrite(&mut to, &json).with_context(|| format!("{} holds no terms", path.display()))?;
    }
    for assignment in &command.set {
        terms::set(&mut to, assignment)?;
    }
    to.validate().context("the run could not have these terms")?;
    let changes = terms::changes(&from, &to);
    if changes.is_empty() {
        return Ok(output.result("nothing changes: the terms are so already", json!({ "changed": [] }))?);
    }
    let mut then: Vec<String> =
        changes.iter().map(|(name, old, new)| format!("{name}: {old} -> {new}")).collect();
    then.push(format!(
        "this takes effect with {when}; until then it can be changed again, or taken back with --cancel"
    ));
    if owned.status.pending_terms.is_some() {
        then.push("it takes the place of new terms that wait already, and includes them".into());
    }
    let call = Call::SetTerms { run, terms: Box::new(to) };
    let plan = owned.plan(&command.flags, format!("change the terms of run {run}"), call, then)?;
    if owned.session.sign(output, &plan, &command.flags.confirm).await?.is_none() {
        return Ok(());
    }
    let names: Vec<&str> = changes.iter().map(|(name, ..)| *name).collect();
    output.result(
        &format!("{} will change with {when}", names.join(", ")),
        json!({ "changed": names, "terms": terms_json(&to), "from_window": owned.next_epoch() }),
    )?;
    Ok(())
}

async fn cancel_terms(
    command: TermsCommand,
    mut owned: Owned,
    output: &mut Output<'_>,
) -> anyhow::Result<()> {
    let run = owned.args.run;
    let Some(pending) = &owned.status.pending_terms else {
        return Ok(output.result("no new terms are waiting", json!({ "changed": [] }))?);
    };
    let then = terms::changes(&owned.status.run.terms, pending)
        .into_iter()
        .map(|(name, old, new)| format!("{name} stays {old}, and does not become {new}"))
        .collect();
    let call = Call::DropTerms { run };
    let plan = owned.plan(&command.flags, format!("take back the new terms of run {run}"), call, then)?;
    if owned.session.sign(output, &plan, &command.flags.confirm).await?.is_none() {
        return Ok(());
    }
    Ok(output.result("the terms stay as they are", json!({ "changed": [] }))?)
}

async fn stop(flags: OwnerFlags, stopped: bool, output: &mut Output<'_>) -> anyhow::Result<()> {
    let mut owned = Owned::open(&flags).await?;
    let run = owned.args.run;
    let next = owned.clock.next_window();
    let when = owned.clock.until(next);
    if owned.status.stopped_by_owner == stopped {
        let text = if stopped { "the run is stopped already" } else { "the run is not stopped" };
        return Ok(output.result(text, json!({ "run": run, "stopped": stopped }))?);
    }
    let (what, then) = if stopped {
        let then = vec![
            format!("from {when}, on its windows are void: nothing is merged, and nobody is paid"),
            "nobody counts as absent meanwhile; stakes stay as they are, and can be taken out".into(),
            "`mettle run resume` lets it go on".into(),
        ];
        (format!("stop run {run}"), then)
    } else {
        (format!("let run {run} go on"), vec![format!("its windows count again from {when}, on")])
    };
    let plan = owned.plan(&flags, what, Call::SetStopped { run, stopped }, then)?;
    if owned.session.sign(output, &plan, &flags.confirm).await?.is_none() {
        return Ok(());
    }
    let text = if stopped { "stops" } else { "goes on" };
    output.result(
        &format!("run {run} {text} as {when}, opens"),
        json!({ "run": run, "stopped": stopped, "from_window": next }),
    )?;
    Ok(())
}

async fn claim(flags: OwnerFlags, output: &mut Output<'_>) -> anyhow::Result<()> {
    let mut owned = Owned::open(&flags).await?;
    let run = owned.args.run;
    let amount = Amount(owned.status.treasury.owner_claimable);
    if amount == Amount::ZERO {
        return Ok(output.result("nothing to claim", json!({ "run": run, "claimed": units(amount) }))?);
    }
    let to = address(&owned.status.run.owner);
    let plan = owned.plan(
        &flags,
        format!("claim the owner's share of run {run}"),
        Call::ClaimOwner { run },
        vec![format!("{amount} go to {to}")],
    )?;
    if owned.session.sign(output, &plan, &flags.confirm).await?.is_none() {
        return Ok(());
    }
    Ok(output.result(
        &format!("{amount} went to {to}"),
        json!({ "run": run, "claimed": units(amount), "owner": to }),
    )?)
}

async fn offer(command: Offer, output: &mut Output<'_>) -> anyhow::Result<()> {
    let to = parse_address(&command.to)?;
    let mut owned = Owned::open(&command.flags).await?;
    let run = owned.args.run;
    let then = vec![
        format!(
            "{} may then become the owner with `mettle run accept`; until it does, you are",
            address(&to)
        ),
        "an owner may change the terms, stop the run, and has the owner's share of the pay".into(),
    ];
    let what = format!("offer run {run} to {}", address(&to));
    let plan = owned.plan(&command.flags, what, Call::OfferRun { run, to }, then)?;
    if owned.session.sign(output, &plan, &command.flags.confirm).await?.is_none() {
        return Ok(());
    }
    let to = address(&to);
    Ok(output.result(&format!("run {run} is offered to {to}"), json!({ "run": run, "offered_to": to }))?)
}

async fn accept(flags: OwnerFlags, output: &mut Output<'_>) -> anyhow::Result<()> {
    let mut owned = Owned::open(&flags).await?;
    let run = owned.args.run;
    let (signer, account) = signer(&owned.args, &flags.behalf, "the new owner")?;
    let plan = TransactionPlan {
        what: format!("become the owner of run {run}"),
        calls: vec![Call::AcceptRun { run }],
        signer,
        proxy_of: flags.behalf.account()?,
        then: vec![format!(
            "the run's deposit is held from {}, and no longer from {}",
            address(&account),
            address(&owned.status.run.owner)
        )],
    };
    if owned.session.sign(output, &plan, &flags.confirm).await?.is_none() {
        return Ok(());
    }
    let owner = address(&account);
    Ok(output.result(&format!("run {run} belongs to {owner}"), json!({ "run": run, "owner": owner }))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn new_terms_wait_for_the_first_window_of_an_epoch() {
        let params = RunParams { epoch_windows: 10, ..RunParams::default() };
        assert_eq!(next_epoch(&params, None), Window(0));
        assert_eq!(next_epoch(&params, Some(Window(0))), Window(10));
        assert_eq!(next_epoch(&params, Some(Window(9))), Window(10));
        assert_eq!(next_epoch(&params, Some(Window(10))), Window(20));
    }
}
