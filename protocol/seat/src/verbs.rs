//! What a person does with a seat: `keys`, `register`, `status`, `claim`. The same verbs in both programs.

use crate::{
    open,
    settings::{Flags, Settings},
};
use anyhow::{Context as _, bail};
use chain_client::{
    Amount,
    account::{self, SeatWish},
    keys::{Key, KeyFile, KeyPassword, KeySource, Prompt, address},
};
use clap::Subcommand;
use protocol::{Role, view::SeatView};
use serde_json::json;
use std::path::{Path, PathBuf};

#[derive(Clone, Debug, Subcommand)]
pub enum Verb {
    /// Make a key, or look at one.
    #[command(subcommand)]
    Keys(Keys),
    /// Take a seat: the coldkey holds the stake, the hotkey works.
    Register(Register),
    /// Say how the seat is doing.
    Status(Status),
    /// Move the seat's pay to its coldkey.
    Claim(Claim),
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

#[derive(Clone, Debug, clap::Args)]
pub struct Register {
    #[command(flatten)]
    pub flags: Flags,
    /// The account that owns and stakes: a key file, or a development key such as //Alice.
    #[arg(long, value_name = "KEY")]
    pub coldkey: String,
    /// A file whose first line is the coldkey's password.
    #[arg(long, value_name = "FILE")]
    pub coldkey_password_file: Option<PathBuf>,
    /// What to hold from the coldkey, such as 100 or "12.5 MTL".
    #[arg(long, value_name = "AMOUNT")]
    pub stake: Amount,
    /// Base URL under which everyone can read the seat's bucket.
    #[arg(long, value_name = "URL")]
    pub endpoint: String,
    /// What to move to the hotkey, for its transaction fees.
    #[arg(long, value_name = "AMOUNT", default_value = "1")]
    pub hotkey_funds: Amount,
    /// Do not ask.
    #[arg(long)]
    pub yes: bool,
}

#[derive(Clone, Debug, clap::Args)]
pub struct Status {
    #[command(flatten)]
    pub flags: Flags,
    #[arg(long)]
    pub json: bool,
}

#[derive(Clone, Debug, clap::Args)]
pub struct Claim {
    #[command(flatten)]
    pub flags: Flags,
}

/// Does what was asked, and prints the result to standard output.
pub async fn run(role: Role, verb: Verb) -> anyhow::Result<()> {
    match verb {
        Verb::Keys(Keys::New { key, password_file, seed_file }) => {
            new_key(&key, password_file.as_deref(), seed_file.as_deref())
        }
        Verb::Keys(Keys::Show { key, json }) => show_key(&key, json),
        Verb::Register(register) => self::register(role, register).await,
        Verb::Status(status) => self::status(role, status).await,
        Verb::Claim(claim) => self::claim(claim).await,
    }
}

fn new_key(path: &Path, password_file: Option<&Path>, seed_file: Option<&Path>) -> anyhow::Result<()> {
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
    println!("{}", key.address());
    eprintln!(
        "Wrote {}. Without the file and its password the key is lost: keep a copy of both.",
        path.display()
    );
    Ok(())
}

fn show_key(source: &str, as_json: bool) -> anyhow::Result<()> {
    let source: KeySource = source.parse()?;
    let public = source.public()?;
    if as_json {
        println!("{}", json!({ "address": address(&public.0), "public": public }));
    } else {
        println!("{}", address(&public.0));
    }
    Ok(())
}

async fn register(role: Role, register: Register) -> anyhow::Result<()> {
    let settings = Settings::read(&register.flags)?;
    let hotkey = settings.key.public().with_context(|| format!("could not read the key {}", settings.key))?;
    let coldkey: KeySource = register.coldkey.parse()?;
    let coldkey = coldkey.open(|path| {
        let password_file = register.coldkey_password_file.as_deref();
        KeyPassword::from_environment(&path.display().to_string(), password_file, Prompt::Once)
    })?;

    eprintln!(
        "{} registers hotkey {} as a {role} in run {}: holds {} as stake, moves {} to the hotkey for fees.",
        coldkey.address(),
        address(&hotkey.0),
        settings.run,
        register.stake,
        register.hotkey_funds,
    );
    if !register.yes && !agreed()? {
        bail!("nothing was signed");
    }
    let chain = open::chain(&settings.chain, Some(coldkey)).await?;
    let wish = SeatWish {
        run: settings.run,
        role,
        hotkey,
        endpoint: register.endpoint,
        stake: register.stake,
        hotkey_funds: register.hotkey_funds,
    };
    let seated = account::register_seat(&*chain, &wish).await?;
    if seated.already {
        eprintln!("The hotkey had its seat already; stake and endpoint were left as they are.");
    }
    println!("uid {}", seated.seat.id.uid);
    Ok(())
}

/// Asks on the terminal; without one, `--yes` is needed.
fn agreed() -> anyhow::Result<bool> {
    use std::io::{BufRead as _, IsTerminal as _, Write as _};
    if !std::io::stdin().is_terminal() {
        bail!("there is nobody to ask: add --yes to sign without asking");
    }
    eprint!("Sign? [y/N] ");
    std::io::stderr().flush()?;
    let mut answer = String::new();
    std::io::stdin().lock().read_line(&mut answer)?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}

async fn status(role: Role, status: Status) -> anyhow::Result<()> {
    let settings = Settings::read(&status.flags)?;
    let hotkey = settings.key.public()?;
    let chain = open::chain(&settings.chain, None).await?;
    let head = *chain.heads().borrow();
    let run = chain.run(settings.run).await?;
    let seats = chain.seats(run.id).await?;
    let seat = seats.into_iter().find(|seat| seat.hotkey == hotkey);
    let weights = chain.weights(run.id).await?;
    let funds = chain.balance(&hotkey.0).await?;
    let position = run.params.schedule.phase_at(head.block);

    if status.json {
        let position = position.map(|(window, phase)| json!({ "window": window, "phase": phase }));
        let value = json!({
            "block": head.block, "position": position, "paused": run.paused, "seat": seat,
            "weight": seat.as_ref().and_then(|seat| weight_of(seat, &weights)), "hotkey_funds": funds.free.0.to_string(),
        });
        println!("{value}");
        return Ok(());
    }
    match position {
        Some((window, phase)) => {
            println!("run {}, window {}, {phase:?}, block {}", run.id, window.0, head.block)
        }
        None => println!("run {} starts at block {}", run.id, run.params.schedule.start),
    }
    if run.paused {
        println!("the run is paused: too little of the validators' stake is taking part");
    }
    let Some(seat) = seat else {
        println!("{} has no seat; register it with `{role} register`", address(&hotkey.0));
        return Ok(());
    };
    println!("uid {}, {}, since block {}", seat.id.uid, seat.role, seat.id.registered_at);
    println!("stake {}, hotkey's funds for fees {}", Amount(seat.stake), funds.free);
    println!("earned {}, of which {} can be claimed", Amount(seat.earned), Amount(seat.claimable));
    if let Some(weight) = weight_of(&seat, &weights) {
        println!("weight {weight} of 65535");
    }
    println!("endpoint {}", seat.endpoint);
    Ok(())
}

fn weight_of(seat: &SeatView, weights: &[(protocol::Uid, u16)]) -> Option<u16> {
    weights.iter().find(|(uid, _)| *uid == seat.id.uid).map(|(_, weight)| *weight)
}

async fn claim(claim: Claim) -> anyhow::Result<()> {
    let settings = Settings::read(&claim.flags)?;
    let key = open::key(&settings)?;
    let hotkey = key.hotkey();
    let chain = open::chain(&settings.chain, Some(key)).await?;
    let Some(seat) = account::seat_of(&*chain, settings.run, &hotkey).await? else {
        bail!("{} has no seat in run {}", address(&hotkey.0), settings.run);
    };
    let claimed = account::claim(&*chain, settings.run, seat.id.uid).await?;
    match claimed {
        Amount::ZERO => println!("nothing to claim"),
        claimed => println!("{claimed} went to {}", address(&seat.coldkey)),
    }
    Ok(())
}
