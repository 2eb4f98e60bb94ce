//! The commands of a run's owner and its sponsors: create, fund, terms, pause, resume, claim, offer, accept.

mod create;

use crate::{
    block_clock::BlockClock,
    delegation::signer,
    help,
    output::Output,
    signing::{ConfirmArgs, OnBehalf, SigningSession, TransactionPlan, units},
};
use anyhow::{Context as _, ensure};
use chain_client::{
    Amount, Call,
    keys::{address, parse_address},
    terms,
};
use clap::Subcommand;
use create::CreateRun;
use node::config::{AccountFlags, EndpointArgs};
use protocol::{
    RunParams, Terms, Window,
    view::{Account, RunStatus, TreasuryView},
};
use serde_json::{Map, Value, json};
use std::{fmt::Write as _, path::PathBuf};

#[derive(Clone, Debug, Subcommand)]
pub enum RunCommand {
    #[command(after_help = help::signing(&[
        "mettle run create --config owner.toml --dataset data --model 125m \\",
        "    --origin https://bucket.example.org --fund 1000",
    ]))]
    Create(Box<CreateRun>),
    /// Pay into the run's treasury
    ///
    /// Any account may. The amount leaves the treasury only as pay for work.
    #[command(after_help = help::signing(&["mettle run fund --key my-account.json --amount 100"]))]
    Fund(Fund),
    /// Show or change the run's economic terms: seats, stakes, pay
    ///
    /// New terms take effect when the next epoch begins, so that work is paid by the terms under which it was done.
    /// Only terms can change. The run's parameters, with which every participant computes the model, are fixed at
    /// creation.
    #[command(alias = "params", after_help = help::signing(&[
        "mettle run terms",
        "mettle run terms --key owner.json --set miner_seats_max=128 --set \"quorum=60 %\"",
        "mettle run terms --key owner.json --cancel",
    ]))]
    Terms(TermsCommand),
    /// Pause the run when the next window opens
    ///
    /// Its windows are void and no pay is earned until the owner resumes it.
    #[command(after_help = help::signing(&["mettle run pause --key owner.json"]))]
    Pause(OwnerFlags),
    /// Resume a paused run when the next window opens
    #[command(after_help = help::signing(&["mettle run resume --key owner.json"]))]
    Resume(OwnerFlags),
    /// Claim the owner's share of the pay
    #[command(after_help = help::signing(&["mettle run claim --key owner.json"]))]
    Claim(OwnerFlags),
    /// Offer the run to another account, which accepts with `run accept`
    #[command(after_help = help::signing(&["mettle run offer --key owner.json --to 5FA9nQDV…"]))]
    Offer(Offer),
    /// Become the owner of a run that was offered to you
    ///
    /// The run's deposit is then held from you.
    #[command(after_help = help::signing(&["mettle run accept --key new-owner.json"]))]
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
    /// Change one term, such as miner_seats_max=128, "validator_stake_min=12.5 MTL" or "quorum=60 %". Can be repeated.
    #[arg(long, value_name = "NAME=VALUE")]
    pub set: Vec<String>,
    /// Change the terms that this JSON file names.
    #[arg(long, value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// Take back terms that have not taken effect yet.
    #[arg(long, conflicts_with_all = ["set", "file"])]
    pub cancel: bool,
}

#[derive(Clone, Debug, clap::Args)]
pub struct Offer {
    #[command(flatten)]
    pub flags: OwnerFlags,
    /// The address of the new owner.
    #[arg(long, value_name = "ADDRESS")]
    pub to: String,
}

/// Runs a command; prints and asks through `output`.
pub async fn run(command: RunCommand, output: &mut Output<'_>) -> anyhow::Result<()> {
    match command {
        RunCommand::Create(command) => create::create(*command, output).await,
        RunCommand::Fund(command) => fund(command, output).await,
        RunCommand::Terms(command) => terms(command, output).await,
        RunCommand::Pause(flags) => set_paused(flags, true, output).await,
        RunCommand::Resume(flags) => set_paused(flags, false, output).await,
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

    /// A plan signed by the owner.
    ///
    /// # Errors
    /// If the signer is not the owner: the chain would refuse the call, for a fee.
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
        format!("an epoch pays at most {emission}, while the treasury lasts"),
        "the amount leaves the treasury only as pay".into(),
    ];
    if owned.status.treasury == TreasuryView::default() {
        then.push("as the run's first sponsor you also pay the existential deposit of its account".into());
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
        None => text.push_str("no new terms are pending"),
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

    // On top of the pending terms: a second change does not undo the first.
    let from = owned.status.pending_terms.unwrap_or(owned.status.run.terms);
    let to = changed_terms(&command, from)?;
    let changes = terms::changes(&from, &to);
    if changes.is_empty() {
        return Ok(output.result("nothing changes: the terms are so already", json!({ "changed": [] }))?);
    }
    let mut then: Vec<String> =
        changes.iter().map(|(name, old, new)| format!("{name}: {old} -> {new}")).collect();
    then.push(format!(
        "this takes effect with {when}; until then it can be changed, or taken back with --cancel"
    ));
    if owned.status.pending_terms.is_some() {
        then.push("it replaces the pending terms, and includes them".into());
    }
    let call = Call::SetTerms { run, terms: Box::new(to) };
    let plan = owned.plan(&command.flags, format!("change the terms of run {run}"), call, then)?;
    if owned.session.sign(output, &plan, &command.flags.confirm).await?.is_none() {
        return Ok(());
    }
    let names: Vec<&str> = changes.iter().map(|(name, ..)| *name).collect();
    let value = json!({ "changed": names, "terms": terms_json(&to), "from_window": owned.next_epoch() });
    Ok(output.result(&format!("{} will change with {when}", names.join(", ")), value)?)
}

/// `from` with the changes that the file and the flags name.
fn changed_terms(command: &TermsCommand, from: Terms) -> anyhow::Result<Terms> {
    let mut to = from;
    if let Some(path) = &command.file {
        let bytes = std::fs::read(path).with_context(|| format!("could not read {}", path.display()))?;
        let json =
            serde_json::from_slice(&bytes).with_context(|| format!("{} is not JSON", path.display()))?;
        terms::overwrite(&mut to, &json)
            .with_context(|| format!("{} does not hold terms", path.display()))?;
    }
    for assignment in &command.set {
        terms::set(&mut to, assignment)?;
    }
    to.validate().context("the run cannot have these terms")?;
    Ok(to)
}

async fn cancel_terms(
    command: TermsCommand,
    mut owned: Owned,
    output: &mut Output<'_>,
) -> anyhow::Result<()> {
    let run = owned.args.run;
    let Some(pending) = &owned.status.pending_terms else {
        return Ok(output.result("no new terms are pending", json!({ "changed": [] }))?);
    };
    let then = terms::changes(&owned.status.run.terms, pending)
        .into_iter()
        .map(|(name, old, new)| format!("{name} stays {old} and does not become {new}"))
        .collect();
    let call = Call::DropTerms { run };
    let plan = owned.plan(&command.flags, format!("take back the new terms of run {run}"), call, then)?;
    if owned.session.sign(output, &plan, &command.flags.confirm).await?.is_none() {
        return Ok(());
    }
    Ok(output.result("the terms stay unchanged", json!({ "changed": [] }))?)
}

async fn set_paused(flags: OwnerFlags, stopped: bool, output: &mut Output<'_>) -> anyhow::Result<()> {
    let mut owned = Owned::open(&flags).await?;
    let run = owned.args.run;
    let next = owned.clock.next_window();
    let when = owned.clock.until(next);
    if owned.status.stopped_by_owner == stopped {
        let text = if stopped { "the run is paused already" } else { "the run is not paused" };
        return Ok(output.result(text, json!({ "run": run, "stopped": stopped }))?);
    }
    let (what, then) = if stopped {
        let then = vec![
            format!("from {when}, its windows are void: nothing is merged and no pay is earned"),
            "no validator counts as absent meanwhile; stakes stay, and can be taken out".into(),
            "`mettle run resume` ends the pause".into(),
        ];
        (format!("pause run {run}"), then)
    } else {
        (format!("resume run {run}"), vec![format!("its windows count again from {when}")])
    };
    let plan = owned.plan(&flags, what, Call::SetStopped { run, stopped }, then)?;
    if owned.session.sign(output, &plan, &flags.confirm).await?.is_none() {
        return Ok(());
    }
    let text = if stopped { "pauses" } else { "resumes" };
    output.result(
        &format!("run {run} {text} with {when}"),
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
        vec![format!("{amount} goes to {to}")],
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
            "{} becomes the owner with `mettle run accept`; until then you remain the owner",
            address(&to)
        ),
        "the owner may change the terms and pause the run, and gets the owner's share of the pay".into(),
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
