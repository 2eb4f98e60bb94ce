//! Commands about runs: list, show; and those of a run's owner and its sponsors: create, fund, terms, pause, resume,
//! claim, offer, accept, close.

pub(crate) mod create;
mod show;

use crate::{
    help,
    output::Output,
    signing::{AccountSigner, RunSession, Signer, TransactionPlan, units},
};
use anyhow::{Context as _, ensure};
use chain_client::{
    Amount, Call,
    keys::{address, parse_address},
    terms,
};
use clap::Subcommand;
use create::{CreateRun, read_json};
use protocol::{
    Terms,
    params::TermsLimits,
    view::{PendingTerms, RunStatus, TreasuryView},
};
use serde_json::{Map, Value, json};
use std::{fmt::Write as _, path::PathBuf};
use watch::block_clock::BlockClock;

#[derive(Clone, Debug, Subcommand)]
pub enum RunCommand {
    #[command(after_help = help::reading(&["mettle run list", "mettle run list --json"]))]
    List(show::ListRuns),
    #[command(after_help = help::reading(&["mettle run show --run 0"]))]
    Show(show::ShowRun),
    #[command(after_help = help::signing(&[
        "mettle run create --config owner.toml --dataset data --model 125m \\",
        "    --origin https://bucket.example.org --fund 1000",
    ]))]
    Create(Box<CreateRun>),
    /// Pay into the run's treasury
    ///
    /// Any account may pay. The amount leaves the treasury only as pay for work.
    #[command(after_help = help::signing(&["mettle run fund --key my-account.json --amount 100"]))]
    Fund(Fund),
    /// Show or change the run's economic terms: seats, stakes, pay
    ///
    /// New terms take effect at the start of an epoch, so that work is paid by the terms under which it was done:
    /// with the next epoch, or, if they are worse for seats or nominators, after `unbonding_windows` and an epoch, so
    /// that any stake can leave before. Only terms can change, up to the limits fixed at the run's creation. The
    /// run's parameters, with which every participant computes the model, never change.
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
    Pause(AccountSigner),
    /// Resume a paused run when the next window opens
    #[command(after_help = help::signing(&["mettle run resume --key owner.json"]))]
    Resume(AccountSigner),
    /// Claim the owner's share of the pay
    #[command(after_help = help::signing(&["mettle run claim --key owner.json"]))]
    Claim(AccountSigner),
    /// Offer the run to another account, which accepts with `run accept`
    #[command(after_help = help::signing(&["mettle run offer --key owner.json --to 5FA9nQDV…"]))]
    Offer(Offer),
    /// Become the owner of a run that was offered to you
    ///
    /// The run's deposit is then held from you.
    #[command(after_help = help::signing(&["mettle run accept --key new-owner.json"]))]
    Accept(AccountSigner),
    /// Close a run permanently, and release its deposit
    ///
    /// The run must not have started, or must have been paused for its unbonding time and two epochs. If new terms
    /// shortened the unbonding time, stake that unbonds by the former one must be free too. Stakes, nominations and
    /// claimable pay return to their accounts. The rest of the treasury is burnt.
    #[command(after_help = help::signing(&["mettle run close --key owner.json"]))]
    Close(AccountSigner),
}

#[derive(Clone, Debug, clap::Args)]
pub struct Fund {
    #[command(flatten)]
    pub flags: AccountSigner,
    /// The amount, such as 100 or "12.5 MTL".
    #[arg(long, value_name = "AMOUNT")]
    pub amount: Amount,
}

#[derive(Clone, Debug, clap::Args)]
pub struct TermsCommand {
    #[command(flatten)]
    pub flags: AccountSigner,
    /// Change one term, such as miner_seats_max=128, "validator_stake_min=12.5 MTL" or "quorum=60 %". Can be repeated.
    #[arg(long, value_name = "NAME=VALUE")]
    pub set: Vec<String>,
    /// Change the terms that this JSON file names.
    #[arg(long, value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// Cancel pending terms.
    #[arg(long, conflicts_with_all = ["set", "file"])]
    pub cancel: bool,
}

#[derive(Clone, Debug, clap::Args)]
pub struct Offer {
    #[command(flatten)]
    pub flags: AccountSigner,
    /// The address of the new owner.
    #[arg(long, value_name = "ADDRESS")]
    pub to: String,
}

/// Runs a command; prints and asks through `output`.
pub async fn run(command: RunCommand, output: &mut Output<'_>) -> anyhow::Result<()> {
    match command {
        RunCommand::List(command) => show::list(command, output).await,
        RunCommand::Show(command) => show::show(command, output).await,
        RunCommand::Create(command) => create::create(*command, output).await,
        RunCommand::Fund(command) => fund(command, output).await,
        RunCommand::Terms(command) => terms(command, output).await,
        RunCommand::Pause(flags) => set_paused(flags, true, output).await,
        RunCommand::Resume(flags) => set_paused(flags, false, output).await,
        RunCommand::Claim(flags) => claim(flags, output).await,
        RunCommand::Offer(command) => offer(command, output).await,
        RunCommand::Accept(flags) => accept(flags, output).await,
        RunCommand::Close(flags) => close(flags, output).await,
    }
}

/// Returns the signer of a call that only the run's owner may make.
///
/// # Errors
/// If the signer is not the owner: the chain would refuse the call, for a fee.
fn owner_signer(flags: &AccountSigner, session: &RunSession) -> anyhow::Result<Signer> {
    let signer = flags.signer(&session.args, "the run's owner")?;
    let (owner, account) = (session.status.run.owner, signer.account()?);
    ensure!(
        owner == account,
        "run {} belongs to {}, not to {}: sign with its owner's key, or with a proxy of it and --proxy-of",
        session.run,
        address(&owner),
        address(&account)
    );
    Ok(signer)
}

async fn fund(command: Fund, output: &mut Output<'_>) -> anyhow::Result<()> {
    let mut session = RunSession::open(command.flags.account.read()?).await?;
    let (run, amount, status) = (session.run, command.amount, &session.status);
    let signer = command.flags.signer(&session.args, "the sponsor")?;
    let before = Amount(status.treasury.treasury);
    let emission = Amount(status.run.terms.emission(status.epoch.unwrap_or(0)));
    let mut then = vec![
        format!("the treasury rises from {before} to {}", before.saturating_add(amount)),
        format!("an epoch pays at most {emission}, while the treasury lasts"),
        "the amount leaves the treasury only as pay".into(),
    ];
    if status.treasury == TreasuryView::default() {
        then.push("as the run's first sponsor you also pay the existential deposit of its account".into());
    }
    let what = format!("fund run {run} with {amount}");
    let plan = TransactionPlan { what, calls: vec![Call::Fund { run, amount }], signer, then };
    if !session.signing.sign(output, &plan).await? {
        return Ok(());
    }
    let treasury = Amount(session.chain().status(run).await?.treasury.treasury);
    let value = json!({ "run": run, "treasury": units(treasury) });
    Ok(output.result(&format!("the treasury of run {run} holds {treasury}"), value)?)
}

fn terms_json(terms: &Terms) -> Value {
    lines_json(terms::lines(terms))
}

fn lines_json(lines: impl IntoIterator<Item = (&'static str, String)>) -> Value {
    let lines = lines.into_iter().map(|(name, value)| (name.to_owned(), Value::String(value)));
    Value::Object(lines.collect::<Map<_, _>>())
}

fn terms_text(status: &RunStatus, clock: &BlockClock) -> String {
    let now = &status.run.terms;
    let mut text = format!("the terms of run {}\n", status.run.id);
    for (name, value) in terms::lines(now) {
        let _ = writeln!(text, "  {name:24} {value}");
    }
    let _ = writeln!(text, "its owner can raise these, up to");
    for (name, value) in terms::limit_lines(&status.run.params.limits) {
        let _ = writeln!(text, "  {name:24} {value}");
    }
    match &status.pending_terms {
        None => text.push_str("no new terms are pending"),
        Some(PendingTerms { terms, from }) => {
            let _ = write!(text, "with {}, these change:", clock.until(*from));
            for (name, old, new) in terms::changes(now, terms) {
                let _ = write!(text, "\n  {name:24} {old} -> {new}");
            }
        }
    }
    text
}

async fn terms(command: TermsCommand, output: &mut Output<'_>) -> anyhow::Result<()> {
    let mut session = RunSession::open(command.flags.account.read()?).await?;
    let (run, status) = (session.run, &session.status);
    if command.cancel && status.pending_terms.is_none() {
        return Ok(output.result("no new terms are pending", json!({ "changed": [] }))?);
    }
    let now = status.run.terms;
    // Based on the pending terms: a second change does not undo the first.
    let from = status.pending_terms.map_or(now, |pending| pending.terms);
    if command.cancel {
        let stays = |(name, old, new)| format!("{name} stays {old} and does not become {new}");
        let then = terms::changes(&now, &from).into_iter().map(stays).collect();
        let signer = owner_signer(&command.flags, &session)?;
        let what = format!("take back the new terms of run {run}");
        let plan = TransactionPlan { what, calls: vec![Call::CancelTerms { run }], signer, then };
        let (text, value) = ("the terms stay unchanged", json!({ "changed": [] }));
        return session.signing.sign_and_print(output, &plan, text, value).await;
    }
    if command.set.is_empty() && command.file.is_none() {
        let pending = status.pending_terms;
        let value = json!({
            "terms": terms_json(&now), "limits": lines_json(terms::limit_lines(&status.run.params.limits)),
            "pending": pending.map(|pending| terms_json(&pending.terms)),
            "pending_from": pending.map(|pending| pending.from),
        });
        return Ok(output.result(&terms_text(status, &session.clock), value)?);
    }

    let to = changed_terms(&command, from, &status.run.params.limits)?;
    let changes = terms::changes(&from, &to);
    if changes.is_empty() {
        return Ok(output.result("nothing changes: the terms are so already", json!({ "changed": [] }))?);
    }
    let mut then: Vec<String> =
        changes.iter().map(|(name, old, new)| format!("{name}: {old} -> {new}")).collect();
    let holds_from = status.run.params.terms_hold_from(status.window, &now, &to);
    let when = session.clock.until(holds_from);
    then.push(format!(
        "this takes effect with {when}; until then it can be changed, or taken back with --cancel"
    ));
    if now.worsened_by(&to) {
        let notice = session.clock.windows(now.unbonding_windows);
        then.push(format!(
            "worse terms for seats or nominators wait for the unbonding time, {notice}, and an epoch"
        ));
    }
    if status.pending_terms.is_some() {
        then.push("it replaces the pending terms, includes them, and has its own notice".into());
    }
    let signer = owner_signer(&command.flags, &session)?;
    let calls = vec![Call::SetTerms { run, terms: Box::new(to) }];
    let plan = TransactionPlan { what: format!("change the terms of run {run}"), calls, signer, then };
    let names: Vec<&str> = changes.iter().map(|(name, ..)| *name).collect();
    let text = format!("{} will change with {when}", names.join(", "));
    let value = json!({ "changed": names, "terms": terms_json(&to), "from_window": holds_from });
    session.signing.sign_and_print(output, &plan, &text, value).await
}

/// Applies the changes of the file and the flags to `from`.
fn changed_terms(command: &TermsCommand, from: Terms, limits: &TermsLimits) -> anyhow::Result<Terms> {
    let mut to = from;
    if let Some(path) = &command.file {
        terms::overwrite(&mut to, &read_json(path)?)
            .with_context(|| format!("{} does not hold terms", path.display()))?;
    }
    for assignment in &command.set {
        terms::set(&mut to, assignment)?;
    }
    to.validate().and_then(|()| to.check_limits(limits)).context("the run cannot have these terms")?;
    Ok(to)
}

async fn set_paused(flags: AccountSigner, stopped: bool, output: &mut Output<'_>) -> anyhow::Result<()> {
    let mut session = RunSession::open(flags.account.read()?).await?;
    let run = session.run;
    let next = session.clock.next_window();
    let when = session.clock.until(next);
    if session.status.stopped_by_owner == stopped {
        let text = if stopped { "the run is paused already" } else { "the run is not paused" };
        return Ok(output.result(text, json!({ "run": run, "stopped": stopped }))?);
    }
    let (verb, then) = if stopped {
        let then = vec![
            format!("from {when}, its windows are void: nothing is merged and no pay is earned"),
            "running validators go on attesting and do not become absent; stakes stay, and can be taken out"
                .into(),
            "`mettle run resume` ends the pause".into(),
        ];
        ("pause", then)
    } else {
        ("resume", vec![format!("its windows count again from {when}")])
    };
    let signer = owner_signer(&flags, &session)?;
    let calls = vec![Call::SetStopped { run, stopped }];
    let plan = TransactionPlan { what: format!("{verb} run {run}"), calls, signer, then };
    let value = json!({ "run": run, "stopped": stopped, "from_window": next });
    session.signing.sign_and_print(output, &plan, &format!("run {run} {verb}s with {when}"), value).await
}

async fn claim(flags: AccountSigner, output: &mut Output<'_>) -> anyhow::Result<()> {
    let mut session = RunSession::open(flags.account.read()?).await?;
    let run = session.run;
    let amount = Amount(session.status.treasury.owner_claimable);
    if amount == Amount::ZERO {
        return Ok(output.result("nothing to claim", json!({ "run": run, "claimed": units(amount) }))?);
    }
    let to = address(&session.status.run.owner);
    let plan = TransactionPlan {
        what: format!("claim the owner's share of run {run}"),
        calls: vec![Call::ClaimOwner { run }],
        signer: owner_signer(&flags, &session)?,
        then: vec![format!("{amount} goes to {to}")],
    };
    let value = json!({ "run": run, "claimed": units(amount), "owner": to });
    session.signing.sign_and_print(output, &plan, &format!("{amount} went to {to}"), value).await
}

async fn offer(command: Offer, output: &mut Output<'_>) -> anyhow::Result<()> {
    let to = parse_address(&command.to)?;
    let mut session = RunSession::open(command.flags.account.read()?).await?;
    let signer = owner_signer(&command.flags, &session)?;
    let (run, name) = (session.run, address(&to));
    let plan = TransactionPlan {
        what: format!("offer run {run} to {name}"),
        calls: vec![Call::OfferRun { run, to }],
        signer,
        then: vec![
            format!("{name} becomes the owner with `mettle run accept`; until then you remain the owner"),
            "the owner may change the terms within the run's limits and pause the run, and gets the owner's share of \
             the pay"
                .into(),
        ],
    };
    let (text, value) =
        (format!("run {run} is offered to {name}"), json!({ "run": run, "offered_to": name }));
    session.signing.sign_and_print(output, &plan, &text, value).await
}

async fn accept(flags: AccountSigner, output: &mut Output<'_>) -> anyhow::Result<()> {
    let mut session = RunSession::open(flags.account.read()?).await?;
    let signer = flags.signer(&session.args, "the new owner")?;
    let (run, owner) = (session.run, address(&signer.account()?));
    let plan = TransactionPlan {
        what: format!("become the owner of run {run}"),
        calls: vec![Call::AcceptRun { run }],
        signer,
        then: vec![format!(
            "the run's deposit is held from {owner}, and no longer from {}",
            address(&session.status.run.owner)
        )],
    };
    let (text, value) = (format!("run {run} belongs to {owner}"), json!({ "run": run, "owner": owner }));
    session.signing.sign_and_print(output, &plan, &text, value).await
}

async fn close(flags: AccountSigner, output: &mut Output<'_>) -> anyhow::Result<()> {
    let mut session = RunSession::open(flags.account.read()?).await?;
    let signer = owner_signer(&flags, &session)?;
    let (run, status) = (session.run, &session.status);
    let two_epochs = status.run.params.epoch_windows.saturating_mul(2);
    let wait = session.clock.windows(status.run.terms.unbonding_windows.max(two_epochs));
    ensure!(
        status.window.is_none() || status.stopped_by_owner,
        "run {run} is not paused: pause it with `mettle run pause`, and close it {wait} later"
    );
    let seats = |taken: u16| format!("{taken} {}", if taken == 1 { "seat" } else { "seats" });
    let plan = TransactionPlan {
        what: format!("close run {run}"),
        calls: vec![Call::CloseRun { run }],
        signer,
        then: vec![
            "the run ends for good: no call finds it any more".into(),
            format!(
                "stakes, nominations and claimable pay go back to their accounts within some blocks: \
                 {} of miners and {} of validators",
                seats(status.miners.taken),
                seats(status.validators.taken)
            ),
            format!("what the treasury has left is burnt: {} now", Amount(status.treasury.treasury)),
            "the run's deposit is released to you".into(),
        ],
    };
    let (text, value) = (format!("run {run} is closed"), json!({ "run": run }));
    session.signing.sign_and_print(output, &plan, &text, value).await
}
