//! What a person does with a seat, the same in both programs: keys, taking and giving up a seat, its stake, its keys, its pay.
//!
//! Every verb that changes something makes a [`TransactionPlan`] and hands it to `sign`.

use crate::{
    sign::{ConfirmArgs, OnBehalf, Signer, SigningSession, TransactionPlan, units},
    status::{self, Status},
    time::BlockClock,
};
use anyhow::{Context as _, bail, ensure};
use chain_client::{
    Amount, Call, Chain, Payout, ProxyKind,
    account::{self, HOTKEY_FUNDS_MIN, SeatRequest},
    keys::{Key, KeyFile, KeyPassword, KeySource, Prompt, address, parse_address},
};
use clap::Subcommand;
use node::config::{ChainFlags, EndpointArgs, SeatFlags};
use node::output::{EXIT_CODES, Output};
use protocol::{
    Hotkey, Role, RunId, Uid,
    view::{Account, RunStatus, SeatStatus, UnbondingView},
};
use serde_json::json;
use std::path::{Path, PathBuf};

#[derive(Clone, Debug, Subcommand)]
pub enum WalletCommand {
    /// Make a key, or look at one.
    #[command(subcommand)]
    Keys(Keys),
    /// Take a seat: the coldkey pays the price and holds the stake, the hotkey works.
    #[command(after_help = EXIT_CODES)]
    Register(Register),
    /// Say how the seat is doing: what it has, what it is paid, and why.
    #[command(after_help = EXIT_CODES)]
    Status(Status),
    /// Fetch the seat's pay: to its coldkey, or into its stake, as `set-payout` says.
    #[command(after_help = EXIT_CODES)]
    Claim(Claim),
    /// Put more at stake.
    #[command(after_help = EXIT_CODES)]
    Stake(Stake),
    /// Take stake out, or give the seat up. It stays held, and can be slashed, for as long as the run says.
    #[command(after_help = EXIT_CODES)]
    Unstake(Unstake),
    /// Release the stake that has been out for long enough.
    #[command(after_help = EXIT_CODES)]
    Withdraw(Withdraw),
    /// Change the seat's hotkey, from the next window on.
    #[command(after_help = EXIT_CODES)]
    RotateKey(RotateKey),
    /// Say where the seat's pay goes when it is claimed.
    #[command(after_help = EXIT_CODES)]
    SetPayout(SetPayout),
    /// Let another key act for the coldkey, which then can stay offline; or take that back.
    #[command(subcommand)]
    Proxy(ProxyCommand),
}

#[derive(Clone, Debug, Subcommand)]
pub enum ProxyCommand {
    /// Let another account act in the coldkey's name: it signs with --proxy-of. A small deposit is held for it.
    #[command(after_help = EXIT_CODES)]
    Add(Proxy),
    /// No longer let it. Its deposit comes back.
    #[command(after_help = EXIT_CODES)]
    Remove(Proxy),
}

#[derive(Clone, Debug, clap::Args)]
pub struct Proxy {
    #[command(flatten)]
    pub chain_flags: ChainFlags,
    #[command(flatten)]
    pub coldkey: ColdkeyFlags,
    /// The account that acts: an address.
    #[arg(long, value_name = "ADDRESS")]
    pub proxy: String,
    /// What it may do.
    #[arg(long, value_enum)]
    pub may: ProxyScope,
    #[command(flatten)]
    pub confirm: ConfirmArgs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum ProxyScope {
    /// Everything, even send all the money away
    Any,
    /// Everything that cannot send money away
    NonTransfer,
    /// What concerns seats and the stake behind them
    Staking,
    /// Claim pay, into the coldkey's own account
    Claims,
}

impl From<ProxyScope> for ProxyKind {
    fn from(may: ProxyScope) -> ProxyKind {
        match may {
            ProxyScope::Any => ProxyKind::Any,
            ProxyScope::NonTransfer => ProxyKind::NonTransfer,
            ProxyScope::Staking => ProxyKind::Staking,
            ProxyScope::Claims => ProxyKind::Claims,
        }
    }
}

#[derive(Clone, Debug, Subcommand)]
pub enum Keys {
    /// Make a new key and write it, encrypted, to a file that does not exist yet.
    New {
        #[arg(long, value_name = "FILE")]
        key: PathBuf,
        #[arg(long, value_name = "FILE")]
        password_file: Option<PathBuf>,
        /// Read the key's secret seed, 64 hex digits, from this file instead of making one.
        #[arg(long, value_name = "FILE")]
        seed_file: Option<PathBuf>,
    },
    /// Show a key's address. Needs no password.
    Show {
        #[arg(long, value_name = "KEY")]
        key: String,
        #[arg(long)]
        json: bool,
    },
}

/// The key that owns a seat.
#[derive(Clone, Debug, clap::Args)]
pub struct ColdkeyFlags {
    /// The account that owns the seat and its stake, or a proxy of it: a key file, or a development key such as //Alice.
    #[arg(long, value_name = "KEY", env = "METTLE_COLDKEY")]
    pub coldkey: String,
    /// A file whose first line is the coldkey's password. Otherwise METTLE_KEY_PASSWORD, or a prompt.
    #[arg(long, value_name = "FILE")]
    pub coldkey_password_file: Option<PathBuf>,
    #[command(flatten)]
    pub behalf: OnBehalf,
}

/// The two kinds of seat.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum SeatRole {
    Miner,
    Validator,
}

impl From<SeatRole> for Role {
    fn from(role: SeatRole) -> Role {
        match role {
            SeatRole::Miner => Role::Miner,
            SeatRole::Validator => Role::Validator,
        }
    }
}

#[derive(Clone, Debug, clap::Args)]
pub struct Register {
    /// What the seat is for.
    #[arg(value_enum)]
    pub role: SeatRole,
    #[command(flatten)]
    pub chain_flags: ChainFlags,
    /// The hotkey: a key file, or a development key such as //Alice. Only its address is read.
    #[arg(long, value_name = "KEY", env = "METTLE_KEY")]
    pub key: Option<String>,
    #[command(flatten)]
    pub coldkey: ColdkeyFlags,
    /// What to hold from the coldkey, such as 100 or "12.5 MTL".
    #[arg(long, value_name = "AMOUNT")]
    pub stake: Amount,
    /// Base URL under which everyone can read the seat's bucket.
    #[arg(long, value_name = "URL")]
    pub endpoint: String,
    /// The most that the seat may cost, burnt; twice its present price where nothing is said.
    #[arg(long, value_name = "AMOUNT")]
    pub price_max: Option<Amount>,
    /// What the hotkey should have for fees, such as that of a new endpoint. Its daily work costs none.
    #[arg(long, value_name = "AMOUNT", default_value = "0.1")]
    pub hotkey_funds: Amount,
    #[command(flatten)]
    pub confirm: ConfirmArgs,
}

#[derive(Clone, Debug, clap::Args)]
pub struct Claim {
    #[command(flatten)]
    pub seat: SeatFlags,
    /// Sign with the coldkey instead of the hotkey: a key file, or a development key such as //Alice.
    #[arg(long, value_name = "KEY")]
    pub coldkey: Option<String>,
    /// Fetch what seats earned that the coldkey has no more.
    #[arg(long, requires = "coldkey", conflicts_with = "uid")]
    pub former: bool,
    /// A file whose first line is the password of the key that signs. Otherwise METTLE_KEY_PASSWORD, or a prompt.
    #[arg(long, value_name = "FILE")]
    pub password_file: Option<PathBuf>,
    #[command(flatten)]
    pub behalf: OnBehalf,
    #[command(flatten)]
    pub confirm: ConfirmArgs,
}

#[derive(Clone, Debug, clap::Args)]
pub struct Stake {
    #[command(flatten)]
    pub seat: SeatFlags,
    #[command(flatten)]
    pub coldkey: ColdkeyFlags,
    /// How much more, such as 100 or "12.5 MTL".
    #[arg(long, value_name = "AMOUNT")]
    pub amount: Amount,
    #[command(flatten)]
    pub confirm: ConfirmArgs,
}

#[derive(Clone, Debug, clap::Args)]
#[group(id = "how_much", required = true, multiple = false, args = ["amount", "all"])]
pub struct Unstake {
    #[command(flatten)]
    pub seat: SeatFlags,
    #[command(flatten)]
    pub coldkey: ColdkeyFlags,
    /// How much, such as 100 or "12.5 MTL". At least the run's minimum must stay.
    #[arg(long, value_name = "AMOUNT")]
    pub amount: Option<Amount>,
    /// Everything: the seat is given up as the next window opens.
    #[arg(long)]
    pub all: bool,
    #[command(flatten)]
    pub confirm: ConfirmArgs,
}

#[derive(Clone, Debug, clap::Args)]
pub struct Withdraw {
    #[command(flatten)]
    pub chain_flags: ChainFlags,
    #[command(flatten)]
    pub coldkey: ColdkeyFlags,
    #[command(flatten)]
    pub confirm: ConfirmArgs,
}

#[derive(Clone, Debug, clap::Args)]
pub struct RotateKey {
    #[command(flatten)]
    pub seat: SeatFlags,
    #[command(flatten)]
    pub coldkey: ColdkeyFlags,
    /// The new hotkey: a key file, which is made if there is none yet, or a development key such as //Alice.
    #[arg(long, value_name = "KEY")]
    pub new_key: String,
    /// A file whose first line is the password of a new key file.
    #[arg(long, value_name = "FILE")]
    pub new_password_file: Option<PathBuf>,
    #[command(flatten)]
    pub confirm: ConfirmArgs,
}

#[derive(Clone, Debug, clap::Args)]
pub struct SetPayout {
    #[command(flatten)]
    pub seat: SeatFlags,
    #[command(flatten)]
    pub coldkey: ColdkeyFlags,
    /// To the coldkey's account, or into the seat's stake.
    #[arg(long, value_enum)]
    pub to: PayoutTo,
    #[command(flatten)]
    pub confirm: ConfirmArgs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum PayoutTo {
    Account,
    Stake,
}

impl WalletCommand {
    /// Whether one JSON object is wanted.
    pub fn json(&self) -> bool {
        match self {
            WalletCommand::Keys(Keys::New { .. }) => false,
            // It prints its own, which is not of the form of the others.
            WalletCommand::Keys(Keys::Show { .. }) => false,
            WalletCommand::Register(command) => command.confirm.json,
            WalletCommand::Status(command) => command.json,
            WalletCommand::Claim(command) => command.confirm.json,
            WalletCommand::Stake(command) => command.confirm.json,
            WalletCommand::Unstake(command) => command.confirm.json,
            WalletCommand::Withdraw(command) => command.confirm.json,
            WalletCommand::RotateKey(command) => command.confirm.json,
            WalletCommand::SetPayout(command) => command.confirm.json,
            WalletCommand::Proxy(ProxyCommand::Add(command) | ProxyCommand::Remove(command)) => {
                command.confirm.json
            }
        }
    }
}

/// Runs the command; prints its result and asks for consent through `output`.
pub async fn act(command: WalletCommand, output: &mut Output<'_>) -> anyhow::Result<()> {
    match command {
        WalletCommand::Keys(Keys::New { key, password_file, seed_file }) => {
            let made = new_key(&key, password_file.as_deref(), seed_file.as_deref())?;
            output.result(&made.address(), json!({ "address": made.address() }))?;
            output.aside(&format!(
                "Wrote {}. Without the file and its password the key is lost: keep a copy of both.",
                key.display()
            ))?;
            Ok(())
        }
        WalletCommand::Keys(Keys::Show { key, json }) => {
            let source: KeySource = key.parse()?;
            let public = source.public()?;
            let address = address(&public.0);
            let text = if json {
                json!({ "address": address, "public": public }).to_string()
            } else {
                address.clone()
            };
            Ok(output.result(&text, json!({ "address": address, "public": public }))?)
        }
        WalletCommand::Register(command) => register(command, output).await,
        WalletCommand::Status(command) => status::status(command, output).await,
        WalletCommand::Claim(command) => claim(command, output).await,
        WalletCommand::Stake(command) => stake(command, output).await,
        WalletCommand::Unstake(command) => unstake(command, output).await,
        WalletCommand::Withdraw(command) => withdraw(command, output).await,
        WalletCommand::RotateKey(command) => rotate_key(command, output).await,
        WalletCommand::SetPayout(command) => set_payout(command, output).await,
        WalletCommand::Proxy(command) => proxy(command, output).await,
    }
}

fn new_key(path: &Path, password_file: Option<&Path>, seed_file: Option<&Path>) -> anyhow::Result<Key> {
    let key = match seed_file {
        Some(seed) => {
            let text = std::fs::read_to_string(seed)
                .with_context(|| format!("could not read the seed from {}", seed.display()))?;
            Key::from_hex_seed(text.trim())?
        }
        None => Key::generate()?,
    };
    let password = KeyPassword::from_environment(&path.display().to_string(), password_file, Prompt::Twice)?;
    KeyFile::create(path, &key, &password)?;
    Ok(key)
}

impl ColdkeyFlags {
    pub(crate) fn signer(&self) -> anyhow::Result<Signer> {
        Ok(Signer {
            source: self.coldkey.parse()?,
            password_file: self.coldkey_password_file.clone(),
            whose: if self.behalf.proxy_of.is_some() { "a proxy of the coldkey" } else { "the coldkey" },
        })
    }

    /// Whose seat it must be: the coldkey's, or that of whom it is a proxy.
    pub(crate) fn owner(&self) -> anyhow::Result<Account> {
        match self.behalf.account()? {
            Some(real) => Ok(real),
            None => self.signer()?.account(),
        }
    }
}

/// A seat that is there, with everything known of it.
pub(crate) struct Seat {
    pub run: RunId,
    pub status: RunStatus,
    pub seat: SeatStatus,
    pub clock: BlockClock,
}

impl Seat {
    pub(crate) fn uid(&self) -> Uid {
        self.seat.seat.id.uid
    }

    /// Finds the seat by its number, or by its hotkey.
    pub(crate) async fn find(
        session: &SigningSession,
        flags: &SeatFlags,
        args: &EndpointArgs,
    ) -> anyhow::Result<Seat> {
        let chain = &*session.chain;
        let status = chain.status(args.run).await?;
        let found = match flags.uid {
            Some(uid) => seat_at(chain, args.run, Uid(uid)).await?,
            None => {
                let hotkey = hotkey_of(args)?;
                match account::seat_of(chain, args.run, &hotkey).await? {
                    Some(seat) => seat_at(chain, args.run, seat.id.uid).await?,
                    None => bail!("{} has no seat in run {}", address(&hotkey.0), args.run),
                }
            }
        };
        let Some(seat) = found else {
            bail!("there is no such seat in run {}", args.run);
        };
        let clock = BlockClock::read(chain, status.run.params.schedule).await?;
        Ok(Seat { run: args.run, status, seat, clock })
    }

    /// Refuses a key that does not own the seat: better said here than paid for there.
    pub(crate) fn owned_by(&self, coldkey: &ColdkeyFlags) -> anyhow::Result<()> {
        let (owner, signer) = (self.seat.seat.coldkey, coldkey.owner()?);
        ensure!(
            owner == signer,
            "uid {} of run {} belongs to {}, not to {}: sign with the coldkey that registered it, or with a proxy of it and \
             --proxy-of {0}",
            self.uid(),
            self.run,
            address(&owner),
            address(&signer),
        );
        Ok(())
    }
}

/// The hotkey that the settings name.
pub(crate) fn hotkey_of(args: &EndpointArgs) -> anyhow::Result<Hotkey> {
    let Some(key) = &args.key else {
        bail!("no hotkey was given: add --key FILE, or `key = \"FILE\"` to the settings file, or --uid UID");
    };
    key.public().with_context(|| format!("could not read the key {key}"))
}

/// The seat with this uid.
pub(crate) async fn seat_at(chain: &dyn Chain, run: RunId, uid: Uid) -> anyhow::Result<Option<SeatStatus>> {
    let found = chain.seat_statuses(run, uid, 1).await?.into_iter().next();
    Ok(found.filter(|found| found.seat.id.uid == uid))
}

async fn register(command: Register, output: &mut Output<'_>) -> anyhow::Result<()> {
    let role = command.role.into();
    let args = command.chain_flags.read(command.key.as_deref())?;
    let Some(hotkey) = &args.key else {
        bail!("no hotkey was given: add --key FILE, or `key = \"FILE\"` to the settings file");
    };
    let hotkey = hotkey.public().with_context(|| format!("could not read the key {hotkey}"))?;
    let (signer, owner) = (command.coldkey.signer()?, command.coldkey.owner()?);
    let mut session = SigningSession::open(&args.chain).await?;
    let wish = SeatRequest {
        run: args.run,
        role,
        hotkey,
        endpoint: command.endpoint,
        stake: command.stake,
        hotkey_funds: command.hotkey_funds,
        price_max: command.price_max,
    };
    let plan = account::plan_seat(&*session.chain, &owner, &wish).await?;
    if let Some(seat) = plan.already.as_ref().filter(|_| plan.calls.is_empty()) {
        output.aside("The hotkey has its seat already; stake and endpoint were left as they are.")?;
        let uid = seat.id.uid;
        return Ok(output.result(&format!("uid {uid}"), json!({ "uid": uid, "already": true }))?);
    }
    let status = session.chain.status(args.run).await?;
    let terms = status.run.terms;
    let clock = BlockClock::read(&*session.chain, status.run.params.schedule).await?;
    let seats = if role == Role::Miner { status.miners } else { status.validators };
    let mut then = Vec::new();
    if plan.already.is_none() {
        then.push(format!(
            "the seat costs {} now, which is burnt; its price rises with each registration",
            plan.price
        ));
        then.push(format!(
            "{} stays held as stake; once taken out it is free after {}",
            wish.stake,
            clock.windows(terms.unbonding_windows)
        ));
        let when = clock.until(clock.next_window());
        then.push(if seats.taken < seats.max {
            format!("the seat takes part from {when}, on")
        } else {
            format!(
                "all {} {role}s' seats are taken: the one with the least pay that can be replaced gives way as {when}, opens",
                seats.max
            )
        });
        then.push(format!("for {} nobody can take its place", clock.windows(terms.immunity_windows)));
    }
    if plan.funded > Amount::ZERO {
        then.push(format!("{} go to the hotkey for its fees", plan.funded));
    }
    let transaction = TransactionPlan {
        what: format!("register {} as a {role} of run {}", address(&hotkey.0), args.run),
        calls: plan.calls,
        signer,
        proxy_of: command.coldkey.behalf.account()?,
        then,
    };
    if session.sign(output, &transaction, &command.confirm).await?.is_none() {
        return Ok(());
    }
    match account::seat_of(&*session.chain, args.run, &hotkey).await? {
        Some(seat) => {
            let uid = seat.id.uid;
            output.result(&format!("uid {uid}"), json!({ "uid": uid, "already": plan.already.is_some() }))?;
        }
        None => {
            let when = clock.until(clock.next_window());
            output.result(
                &format!("registered; the seat changes hands as {when}, opens"),
                json!({ "uid": null, "already": false }),
            )?;
        }
    }
    Ok(())
}

async fn claim(command: Claim, output: &mut Output<'_>) -> anyhow::Result<()> {
    let args = command.seat.read()?;
    let proxy_of = command.behalf.account()?;
    let (source, whose) = match (&command.coldkey, &args.key) {
        (Some(coldkey), _) if proxy_of.is_some() => (coldkey.parse()?, "a proxy of the coldkey"),
        (Some(coldkey), _) => (coldkey.parse()?, "the coldkey"),
        (None, Some(hotkey)) => (hotkey.clone(), "the seat's hotkey"),
        (None, None) => bail!("nobody signs: add --key HOTKEY, or --coldkey KEY with --uid UID"),
    };
    // The settings file has the hotkey's password, if any.
    let of_hotkey = args.password_file.clone().filter(|_| command.coldkey.is_none());
    let signer = Signer { source, password_file: command.password_file.or(of_hotkey), whose };
    let mut session = SigningSession::open(&args.chain).await?;
    if command.former {
        return claim_former(&mut session, &args, signer, proxy_of, &command.confirm, output).await;
    }
    let found = Seat::find(&session, &command.seat, &args).await?;
    let (uid, seat) = (found.uid(), &found.seat);
    let claimable = Amount(seat.seat.claimable);
    if claimable == Amount::ZERO {
        return Ok(output.result("nothing to claim", json!({ "uid": uid, "claimed": units(Amount::ZERO) }))?);
    }
    let coldkey = address(&seat.seat.coldkey);
    let to =
        if seat.pays_into_stake { format!("into the stake of uid {uid}") } else { format!("to {coldkey}") };
    let plan = TransactionPlan {
        what: format!("claim the pay of uid {uid} of run {}", args.run),
        calls: vec![Call::Claim { run: args.run, uid }],
        signer,
        proxy_of,
        then: vec![
            format!("{claimable} go {to}, whoever signs"),
            "once an epoch the hotkey claims without a fee".into(),
        ],
    };
    let before = seat.seat.claimable;
    if session.sign(output, &plan, &command.confirm).await?.is_none() {
        return Ok(());
    }
    // An epoch may have been paid meanwhile; what is there now was not claimed.
    let left = seat_at(&*session.chain, args.run, uid).await?.map_or(0, |seat| seat.seat.claimable);
    let claimed = Amount(before.saturating_sub(left));
    let claimed = if claimed == Amount::ZERO { claimable } else { claimed };
    output.result(
        &format!("{claimed} went {to}"),
        json!({ "uid": uid, "claimed": units(claimed), "into_stake": found.seat.pays_into_stake, "coldkey": coldkey }),
    )?;
    Ok(())
}

/// Fetches what seats earned that are somebody else's by now, or nobody's.
async fn claim_former(
    session: &mut SigningSession,
    args: &EndpointArgs,
    signer: Signer,
    proxy_of: Option<Account>,
    confirm: &ConfirmArgs,
    output: &mut Output<'_>,
) -> anyhow::Result<()> {
    let coldkey = proxy_of.map_or_else(|| signer.account(), Ok)?;
    let account = session.chain.account_status(args.run, &coldkey).await?;
    let seats = session.chain.seats(args.run).await?;
    let of_seats = seats
        .iter()
        .filter(|seat| seat.coldkey == coldkey)
        .fold(0u128, |sum, seat| sum.saturating_add(seat.claimable));
    let amount = Amount(account.claimable.saturating_sub(of_seats));
    if amount == Amount::ZERO {
        return Ok(output.result("nothing to claim", json!({ "claimed": units(amount) }))?);
    }
    let to = address(&coldkey);
    let plan = TransactionPlan {
        what: format!("claim what former seats of {to} earned in run {}", args.run),
        calls: vec![Call::ClaimFormer { run: args.run }],
        signer,
        proxy_of,
        then: vec![format!("{amount} go to {to}")],
    };
    if session.sign(output, &plan, confirm).await?.is_none() {
        return Ok(());
    }
    Ok(output
        .result(&format!("{amount} went to {to}"), json!({ "claimed": units(amount), "coldkey": to }))?)
}

async fn stake(command: Stake, output: &mut Output<'_>) -> anyhow::Result<()> {
    let args = command.seat.read()?;
    let mut session = SigningSession::open(&args.chain).await?;
    let found = Seat::find(&session, &command.seat, &args).await?;
    found.owned_by(&command.coldkey)?;
    let uid = found.uid();
    let (has, more) = (Amount(found.seat.seat.stake), command.amount);
    let plan = TransactionPlan {
        what: format!("add {more} to the stake of uid {uid} of run {}", args.run),
        calls: vec![Call::AddStake { run: args.run, uid, amount: more }],
        signer: command.coldkey.signer()?,
        proxy_of: command.coldkey.behalf.account()?,
        then: vec![
            format!(
                "its stake rises from {has} to {}; it counts from the next window",
                has.saturating_add(more)
            ),
            format!(
                "once taken out it is free after {}",
                found.clock.windows(found.status.run.terms.unbonding_windows)
            ),
        ],
    };
    if session.sign(output, &plan, &command.confirm).await?.is_none() {
        return Ok(());
    }
    let seat = seat_at(&*session.chain, args.run, uid).await?;
    let stake = Amount(seat.map_or(0, |seat| seat.seat.stake));
    Ok(output
        .result(&format!("uid {uid} has {stake} at stake"), json!({ "uid": uid, "stake": units(stake) }))?)
}

async fn unstake(command: Unstake, output: &mut Output<'_>) -> anyhow::Result<()> {
    let args = command.seat.read()?;
    let mut session = SigningSession::open(&args.chain).await?;
    let found = Seat::find(&session, &command.seat, &args).await?;
    found.owned_by(&command.coldkey)?;
    let (uid, clock) = (found.uid(), &found.clock);
    let has = Amount(found.seat.seat.stake);
    let unbonding = clock.windows(found.status.run.terms.unbonding_windows);
    let release = "`mettle withdraw` releases it";
    let (what, call, then) = match command.amount {
        Some(amount) => {
            let left = has.saturating_sub(amount);
            let least = Amount(found.status.run.terms.stake_min(found.seat.seat.role));
            ensure!(
                amount <= has && least <= left,
                "uid {uid} has {has} at stake, and {least} must stay: take out at most {}, or give the seat up with --all",
                has.saturating_sub(least)
            );
            let then = vec![
                format!("its stake falls from {has} to {left} at once"),
                format!("{amount} stays held, and can be slashed, for {unbonding}; then {release}"),
            ];
            (
                format!("take {amount} out of the stake of uid {uid} of run {}", args.run),
                Call::Unstake { run: args.run, uid, amount },
                then,
            )
        }
        None => {
            let next = clock.until(clock.next_window());
            let mut then = vec![
                format!("the seat is given up as {next}, opens; let its node run until then"),
                format!(
                    "its {has} stays held, and can be slashed, for {unbonding} after that; then {release}"
                ),
                "pay that was not claimed yet stays claimable: `mettle claim --former`".into(),
                "its hotkey can never have a seat in this run again".into(),
            ];
            if found.seat.nominated > 0 {
                let behind = Amount(found.seat.nominated);
                then.push(format!("those who nominated it may withdraw their {behind} at once"));
            }
            (
                format!("give up uid {uid} of run {} and take its whole stake out", args.run),
                Call::Leave { run: args.run, uid },
                then,
            )
        }
    };
    let plan = TransactionPlan {
        what,
        calls: vec![call],
        signer: command.coldkey.signer()?,
        proxy_of: command.coldkey.behalf.account()?,
        then,
    };
    if session.sign(output, &plan, &command.confirm).await?.is_none() {
        return Ok(());
    }
    let owner = command.coldkey.owner()?;
    let unbonding = session.chain.account_status(args.run, &owner).await?.unbonding;
    let latest = unbonding.iter().filter(|chunk| chunk.uid == uid).map(|chunk| chunk.until).max();
    match (command.amount, latest) {
        (Some(amount), Some(until)) => output.result(
            &format!("{amount} is free in {}; fetch it then with `mettle withdraw`", clock.until(until)),
            json!({ "uid": uid, "unbonding": units(amount), "until": until }),
        )?,
        _ => output.result(
            &format!("uid {uid} is given up as {}, opens", clock.until(clock.next_window())),
            json!({ "uid": uid, "leaves_at": clock.next_window() }),
        )?,
    }
    Ok(())
}

/// What of it is free at the open window, and what is not, in MTL.
fn freed(unbonding: &[UnbondingView], status: &RunStatus) -> (Amount, Amount) {
    let is_free = |chunk: &&UnbondingView| status.window.is_some_and(|now| chunk.until <= now);
    let sum = |amounts: &mut dyn Iterator<Item = &UnbondingView>| {
        amounts.fold(Amount::ZERO, |sum, chunk| sum.saturating_add(Amount(chunk.amount)))
    };
    (sum(&mut unbonding.iter().filter(is_free)), sum(&mut unbonding.iter().filter(|chunk| !is_free(chunk))))
}

async fn withdraw(command: Withdraw, output: &mut Output<'_>) -> anyhow::Result<()> {
    let args = command.chain_flags.read(None)?;
    let mut session = SigningSession::open(&args.chain).await?;
    let owner = command.coldkey.owner()?;
    let status = session.chain.status(args.run).await?;
    let clock = BlockClock::read(&*session.chain, status.run.params.schedule).await?;
    let unbonding = session.chain.account_status(args.run, &owner).await?.unbonding;
    let (free, waiting) = freed(&unbonding, &status);
    if free == Amount::ZERO {
        let text = match unbonding.iter().map(|chunk| chunk.until).min() {
            Some(first) => {
                format!("nothing to withdraw yet: of {waiting} the first is free in {}", clock.until(first))
            }
            None => format!("{} has taken nothing out of run {}", address(&owner), args.run),
        };
        return Ok(
            output.result(&text, json!({ "withdrawn": units(Amount::ZERO), "waiting": units(waiting) }))?
        );
    }
    let mut then = vec![format!("{free} is no longer held, and {} may spend it", address(&owner))];
    if waiting > Amount::ZERO {
        then.push(format!("{waiting} stays held for now"));
    }
    let plan = TransactionPlan {
        what: format!("withdraw what has unbonded in run {}", args.run),
        calls: vec![Call::Withdraw { run: args.run }],
        signer: command.coldkey.signer()?,
        proxy_of: command.coldkey.behalf.account()?,
        then,
    };
    if session.sign(output, &plan, &command.confirm).await?.is_none() {
        return Ok(());
    }
    Ok(output
        .result(&format!("{free} is free"), json!({ "withdrawn": units(free), "waiting": units(waiting) }))?)
}

async fn rotate_key(command: RotateKey, output: &mut Output<'_>) -> anyhow::Result<()> {
    let args = command.seat.read()?;
    let mut session = SigningSession::open(&args.chain).await?;
    let found = Seat::find(&session, &command.seat, &args).await?;
    found.owned_by(&command.coldkey)?;
    let new_key: KeySource = command.new_key.parse()?;
    if let KeySource::File(path) = &new_key
        && !path.exists()
    {
        ensure!(
            !command.confirm.dry_run,
            "there is no key file {} yet, and a dry run makes none: make it with `mettle keys new`",
            path.display()
        );
        new_key_file(path, command.new_password_file.as_deref(), output)?;
    }
    let hotkey = new_key.public().with_context(|| format!("could not read the key {new_key}"))?;
    let uid = found.uid();
    ensure!(hotkey != found.seat.seat.hotkey, "uid {uid} has this hotkey already");
    let when = found.clock.until(found.clock.next_window());
    let plan = TransactionPlan {
        what: format!("change the hotkey of uid {uid} of run {}", args.run),
        calls: vec![Call::RotateHotkey { run: args.run, uid, hotkey }],
        signer: command.coldkey.signer()?,
        proxy_of: command.coldkey.behalf.account()?,
        then: vec![
            format!("the new hotkey takes over as {when}, opens"),
            "until then the node must run with the old one; then start it with the new one".into(),
            format!(
                "the old hotkey {} can never be used in this run again",
                address(&found.seat.seat.hotkey.0)
            ),
            format!(
                "the new hotkey needs about {HOTKEY_FUNDS_MIN} only for calls that cost a fee, such as a new endpoint"
            ),
        ],
    };
    if session.sign(output, &plan, &command.confirm).await?.is_none() {
        return Ok(());
    }
    let start = match found.seat.seat.role {
        Role::Miner => "miner start",
        Role::Validator => "validator serve",
    };
    output.result(
        &format!(
            "uid {uid} has the hotkey {} from {when}, on. Keep the node running as it is until then; then stop it, and start \
             it with `{start} --key {new_key}`",
            address(&hotkey.0)
        ),
        json!({ "uid": uid, "hotkey": address(&hotkey.0), "from_window": found.clock.next_window() }),
    )?;
    Ok(())
}

fn new_key_file(path: &Path, password_file: Option<&Path>, output: &mut Output<'_>) -> anyhow::Result<()> {
    let key = new_key(path, password_file, None)?;
    output.aside(&format!(
        "Made the key {} in {}. Without the file and its password it is lost: keep a copy of both.",
        key.address(),
        path.display()
    ))?;
    Ok(())
}

async fn set_payout(command: SetPayout, output: &mut Output<'_>) -> anyhow::Result<()> {
    let args = command.seat.read()?;
    let mut session = SigningSession::open(&args.chain).await?;
    let found = Seat::find(&session, &command.seat, &args).await?;
    found.owned_by(&command.coldkey)?;
    let uid = found.uid();
    let (payout, then) = match command.to {
        PayoutTo::Account => {
            (Payout::Account, format!("what is claimed goes to {}", address(&found.seat.seat.coldkey)))
        }
        PayoutTo::Stake => (
            Payout::Stake,
            format!(
                "what is claimed becomes stake of uid {uid}: it can be slashed, and takes its time to be taken out"
            ),
        ),
    };
    let plan = TransactionPlan {
        what: format!("set where the pay of uid {uid} of run {} goes", args.run),
        calls: vec![Call::SetPayout { run: args.run, uid, payout }],
        signer: command.coldkey.signer()?,
        proxy_of: command.coldkey.behalf.account()?,
        then: vec![then],
    };
    if session.sign(output, &plan, &command.confirm).await?.is_none() {
        return Ok(());
    }
    Ok(output
        .result(&format!("uid {uid} is paid into its {payout}"), json!({ "uid": uid, "payout": payout }))?)
}

async fn proxy(command: ProxyCommand, output: &mut Output<'_>) -> anyhow::Result<()> {
    let (command, adds) = match command {
        ProxyCommand::Add(command) => (command, true),
        ProxyCommand::Remove(command) => (command, false),
    };
    let args = command.chain_flags.read(None)?;
    let proxy = parse_address(&command.proxy)?;
    let may = ProxyKind::from(command.may);
    let (real, name) = (address(&command.coldkey.owner()?), address(&proxy));
    let allowed = match may {
        ProxyKind::Any => "everything, even send all of its money away",
        ProxyKind::NonTransfer => "everything that cannot send its money away",
        ProxyKind::Staking => "what concerns seats and the stake behind them",
        ProxyKind::Claims => "claim pay, into that account itself",
    };
    let (what, call, then) = if adds {
        let then = vec![
            format!("from then on {name} may do in the name of {real}: {allowed}"),
            "a deposit is held for as long as this stands".into(),
        ];
        (format!("let {name} act for {real}"), Call::AddProxy { proxy, may, delay: 0 }, then)
    } else {
        let then = vec!["its deposit comes back".into()];
        (
            format!("no longer let {name} act for {real} ({may})"),
            Call::RemoveProxy { proxy, may, delay: 0 },
            then,
        )
    };
    let mut session = SigningSession::open(&args.chain).await?;
    let plan = TransactionPlan {
        what,
        calls: vec![call],
        signer: command.coldkey.signer()?,
        proxy_of: command.coldkey.behalf.account()?,
        then,
    };
    if session.sign(output, &plan, &command.confirm).await?.is_none() {
        return Ok(());
    }
    let text = if adds { "may act for" } else { "may no longer act for" };
    output.result(
        &format!("{name} {text} {real}"),
        json!({ "proxy": name, "account": real, "may": may, "stands": adds }),
    )?;
    Ok(())
}
