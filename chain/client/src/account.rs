//! What people do with their accounts, step by step: take a seat, start a run, see how it stands, fetch the pay.
//!
//! Each function may be run twice: what is done already is found done, and said.

use crate::{Amount, Balance, Call, Chain, ChainError, Head, keys};
use protocol::{
    Digest, Hotkey, Phase, Role, RunId, RunParams, Terms, Uid, Window,
    view::{Account, RunView, SeatView, WindowView},
};

/// More than the fees of any of these steps: it is left on the account that pays them.
pub const FEES_RESERVE: Amount = Amount(Amount::mtl(1).0 / 10);

/// What an account needs to exist, and so the least that a hotkey is given.
pub const HOTKEY_FUNDS_MIN: Amount = Amount(Amount::mtl(1).0 / 100);

/// The seat that somebody wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeatWish {
    pub run: RunId,
    pub role: Role,
    pub hotkey: Hotkey,
    /// Base URL of the seat's public bucket.
    pub endpoint: String,
    pub stake: Amount,
    /// What the hotkey's account should have for fees. If it has less, the difference is transferred.
    pub hotkey_funds: Amount,
}

/// A seat that somebody has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seated {
    pub seat: SeatView,
    /// The hotkey had the seat before.
    pub already: bool,
    /// What was transferred to the hotkey now.
    pub funded: Amount,
}

/// Registers a hotkey and gives it what it needs for fees. `chain` signs with the coldkey.
///
/// A hotkey that has its seat already is reported as it stands: its stake and endpoint are not changed.
pub async fn register_seat(chain: &dyn Chain, wish: &SeatWish) -> Result<Seated, ChainError> {
    let doing =
        || format!("registering {} as {} of run {}", keys::address(&wish.hotkey.0), wish.role, wish.run);
    let invalid = |reason: String| ChainError::Invalid { doing: doing(), reason };
    let coldkey = chain.account().ok_or_else(|| ChainError::NoSigner { doing: doing() })?;

    // Look first: a mistake is better said here than paid for there.
    let run = chain.run(wish.run).await?;
    let before = seat_of(chain, wish.run, &wish.hotkey).await?;
    if let Some(seat) = &before {
        if seat.coldkey != coldkey {
            let owner = keys::address(&seat.coldkey);
            return Err(invalid(format!(
                "the hotkey has a seat there that belongs to {owner}. Use another hotkey"
            )));
        }
        if seat.role != wish.role {
            let (role, uid) = (seat.role, seat.id.uid);
            return Err(invalid(format!(
                "the hotkey has a seat there as {role}, uid {uid}. Use another hotkey"
            )));
        }
    }
    let stake_min = Amount(run.terms.stake_min(wish.role));
    if before.is_none() && wish.stake < stake_min {
        return Err(invalid(format!("the stake is {}, and the run wants at least {stake_min}", wish.stake)));
    }
    let wanted = wish.hotkey_funds.max(HOTKEY_FUNDS_MIN);
    let lacking = wanted.saturating_sub(chain.balance(&wish.hotkey.0).await?.free);
    let stake = if before.is_some() { Amount::ZERO } else { wish.stake };
    let needed = stake.saturating_add(lacking);
    if needed > Amount::ZERO {
        let needed = needed.saturating_add(FEES_RESERVE);
        let free = chain.balance(&coldkey).await?.free;
        if free < needed {
            let address = keys::address(&coldkey);
            return Err(invalid(format!(
                "the coldkey {address} has {free}, and {needed} is needed with fees. Transfer to it"
            )));
        }
    }

    // Funds first: a seat whose hotkey cannot pay a fee is worth nothing.
    if lacking > Amount::ZERO {
        chain.submit(Call::Transfer { to: wish.hotkey.0, amount: lacking }).await?;
    }
    if let Some(seat) = before {
        return Ok(Seated { seat, already: true, funded: lacking });
    }
    let call = Call::Register {
        run: wish.run,
        role: wish.role,
        hotkey: wish.hotkey,
        endpoint: wish.endpoint.clone(),
        stake: wish.stake,
    };
    let already = match chain.submit(call).await {
        Ok(_) => false,
        // Somebody who holds the coldkey was faster, or an earlier attempt of ours was included after all.
        Err(error) if error.is_refusal("Registry", "HotkeyInUse") => true,
        Err(error) => return Err(error),
    };
    let seat = seat_of(chain, wish.run, &wish.hotkey).await?;
    match seat {
        Some(seat) if seat.coldkey == coldkey => Ok(Seated { seat, already, funded: lacking }),
        Some(_) => Err(invalid("somebody else registered the hotkey meanwhile. Use another hotkey".into())),
        None => Err(ChainError::Uncertain {
            doing: doing(),
            reason: "no seat of the hotkey is on the chain".into(),
        }),
    }
}

/// The seat that `hotkey` holds in `run`.
pub async fn seat_of(chain: &dyn Chain, run: RunId, hotkey: &Hotkey) -> Result<Option<SeatView>, ChainError> {
    Ok(chain.seats(run).await?.into_iter().find(|seat| seat.hotkey == *hotkey))
}

/// Says on the chain where a seat publishes, if it says otherwise now. `chain` signs with the hotkey.
pub async fn announce_endpoint(chain: &dyn Chain, run: RunId, endpoint: &str) -> Result<(), ChainError> {
    let doing = || format!("setting the endpoint to {endpoint} in run {run}");
    let hotkey = Hotkey(chain.account().ok_or_else(|| ChainError::NoSigner { doing: doing() })?);
    let seat = seat_of(chain, run, &hotkey).await?;
    let seat = seat.ok_or_else(|| ChainError::Invalid { doing: doing(), reason: NOT_REGISTERED.into() })?;
    if seat.endpoint != endpoint {
        chain.submit(Call::SetEndpoint { run, endpoint: endpoint.to_owned() }).await?;
    }
    Ok(())
}

const NOT_REGISTERED: &str = "the hotkey has no seat in this run. Register it first";

/// Fetches the pay of a seat to its coldkey, and returns how much it was; nothing is sent if there is none. `chain`
/// signs with the seat's coldkey or hotkey.
pub async fn claim(chain: &dyn Chain, run: RunId, uid: Uid) -> Result<Amount, ChainError> {
    let doing = || format!("claiming the pay of uid {uid} of run {run}");
    let seat = chain.seats(run).await?.into_iter().find(|seat| seat.id.uid == uid);
    let seat = seat.ok_or_else(|| ChainError::Invalid {
        doing: doing(),
        reason: "there is no such seat. List the run's seats".into(),
    })?;
    if seat.claimable == 0 {
        return Ok(Amount::ZERO);
    }
    match chain.submit(Call::Claim { run, uid }).await {
        Ok(_) => Ok(Amount(seat.claimable)),
        // Claimed from elsewhere meanwhile.
        Err(error) if error.is_refusal("Rewards", "NothingToClaim") => Ok(Amount::ZERO),
        Err(error) => Err(error),
    }
}

/// What a run is made of.
#[derive(Clone, Debug, PartialEq)]
pub struct RunWish {
    pub params: RunParams,
    /// As the run is created; its owner may change them later.
    pub terms: Terms,
    /// Digest of the run's specification.
    pub spec: Digest,
    /// Digest of the dataset's manifest.
    pub manifest: Digest,
    /// Weights root of `θ_0`.
    pub theta0: Digest,
    /// Base URL where all of that is published.
    pub origin: String,
}

/// Creates a run that the signer owns. If the signer has one that is the same to the last digit, whatever its terms are by
/// now, it is returned instead.
pub async fn create_run(chain: &dyn Chain, wish: &RunWish) -> Result<RunView, ChainError> {
    let doing = || "creating a run".to_owned();
    let owner = chain.account().ok_or_else(|| ChainError::NoSigner { doing: doing() })?;
    if let Err(error) = wish.params.validate().and_then(|()| wish.terms.validate()) {
        return Err(ChainError::Invalid { doing: doing(), reason: error.to_string() });
    }
    if let Some(run) = find_run(chain, &owner, wish).await? {
        return Ok(run);
    }
    let call = Call::CreateRun {
        params: Box::new(wish.params),
        terms: Box::new(wish.terms),
        spec: wish.spec,
        manifest: wish.manifest,
        theta0: wish.theta0,
        origin: wish.origin.clone(),
    };
    chain.submit(call).await?;
    let run = find_run(chain, &owner, wish).await?;
    run.ok_or_else(|| ChainError::Uncertain { doing: doing(), reason: "no such run is on the chain".into() })
}

/// The latest of the owner's runs that is as wished.
async fn find_run(chain: &dyn Chain, owner: &Account, wish: &RunWish) -> Result<Option<RunView>, ChainError> {
    for id in chain.runs().await?.into_iter().rev() {
        let run = chain.run(id).await?;
        let same = run.owner == *owner
            && run.params == wish.params
            && (run.spec, run.manifest, run.theta0) == (wish.spec, wish.manifest, wish.theta0)
            && run.origin == wish.origin;
        if same {
            return Ok(Some(run));
        }
    }
    Ok(None)
}

/// How a hotkey stands in a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Status {
    /// As of this block, or the next few.
    pub head: Head,
    pub run: RunView,
    /// `None` before the run's first block.
    pub phase: Option<(Window, Phase)>,
    /// The window that goes on.
    pub window: Option<WindowView>,
    /// The hotkey's seat, if it has one.
    pub seat: Option<SeatView>,
    /// The seat's consensus weight, if it has one.
    pub weight: Option<u16>,
    pub hotkey_balance: Balance,
    /// What the seat's coldkey owns.
    pub coldkey_balance: Option<Balance>,
}

/// Reads how `hotkey` stands in `run`.
pub async fn status(chain: &dyn Chain, run: RunId, hotkey: &Hotkey) -> Result<Status, ChainError> {
    let head = *chain.heads().borrow();
    let run = chain.run(run).await?;
    let phase = run.params.schedule.phase_at(head.block);
    let window = match phase {
        Some((window, _)) => chain.window(run.id, window).await?,
        None => None,
    };
    let seat = seat_of(chain, run.id, hotkey).await?;
    let (mut weight, mut coldkey_balance) = (None, None);
    if let Some(seat) = &seat {
        let weights = chain.weights(run.id).await?;
        weight = weights.into_iter().find(|(uid, _)| *uid == seat.id.uid).map(|(_, weight)| weight);
        coldkey_balance = Some(chain.balance(&seat.coldkey).await?);
    }
    let hotkey_balance = chain.balance(&hotkey.0).await?;
    Ok(Status { head, run, phase, window, seat, weight, hotkey_balance, coldkey_balance })
}
