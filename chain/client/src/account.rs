//! What people do with their accounts that takes more than one call: take a seat, start a run.
//!
//! Each function may be run twice: what is done already is found done, and said.

use crate::{Amount, Call, Chain, ChainError, keys};
use protocol::{
    Digest, Hotkey, Role, RunId, RunParams, Terms,
    view::{Account, RunView, SeatView},
};

/// More than the fees of any of these steps: it is left on the account that pays them.
pub const FEES_RESERVE: Amount = Amount(Amount::mtl(1).0 / 10);

/// What an account needs to exist, and so the least that a hotkey is given.
pub const HOTKEY_FUNDS_MIN: Amount = Amount(Amount::mtl(1).0 / 100);

/// The seat that somebody wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeatRequest {
    pub run: RunId,
    pub role: Role,
    pub hotkey: Hotkey,
    /// Base URL of the seat's public bucket.
    pub endpoint: String,
    pub stake: Amount,
    /// What the hotkey's account should have for fees. If it has less, the difference is transferred.
    pub hotkey_funds: Amount,
    /// The most that the seat may cost; twice its present price where nothing is said.
    pub price_max: Option<Amount>,
}

/// What it takes to get a seat: looked up, and not done yet.
#[derive(Clone, Debug, PartialEq)]
pub struct SeatPlan {
    /// The hotkey has its seat already.
    pub already: Option<SeatView>,
    /// What the seat costs now, burnt. It rises as others register.
    pub price: Amount,
    /// What the hotkey lacks for fees.
    pub funded: Amount,
    /// To be signed by the coldkey, one after the other.
    pub calls: Vec<Call>,
}

/// A seat that somebody has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegisteredSeat {
    pub seat: SeatView,
    /// The hotkey had the seat before.
    pub already: bool,
    /// What was transferred to the hotkey now.
    pub funded: Amount,
}

/// Finds out what it takes to give `coldkey` the seat it wishes for. What the chain would refuse is better said here than
/// paid for there.
pub async fn plan_seat(
    chain: &dyn Chain,
    coldkey: &Account,
    wish: &SeatRequest,
) -> Result<SeatPlan, ChainError> {
    let invalid = |reason: String| ChainError::Invalid { doing: registering(wish), reason };
    let status = chain.status(wish.run).await?;
    let already = seat_of(chain, wish.run, &wish.hotkey).await?;
    if let Some(seat) = &already {
        if seat.coldkey != *coldkey {
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
    let stake_min = Amount(status.run.terms.stake_min(wish.role));
    if already.is_none() && wish.stake < stake_min {
        return Err(invalid(format!("the stake is {}, and the run wants at least {stake_min}", wish.stake)));
    }
    let seats = match wish.role {
        Role::Miner => status.miners,
        Role::Validator => status.validators,
    };
    let price = Amount(seats.price);
    let price_max = wish.price_max.unwrap_or(Amount(price.0.saturating_mul(2)));
    if already.is_none() && price_max < price {
        return Err(invalid(format!(
            "the seat costs {price} now, more than the {price_max} it may cost. Wait until the price has fallen, or pay more"
        )));
    }
    let wanted = wish.hotkey_funds.max(HOTKEY_FUNDS_MIN);
    let funded = wanted.saturating_sub(chain.balance(&wish.hotkey.0).await?.free);
    let mut calls = Vec::new();
    // Funds first: a seat whose hotkey cannot pay a fee is worth nothing.
    if funded > Amount::ZERO {
        calls.push(Call::Transfer { to: wish.hotkey.0, amount: funded });
    }
    let mut needed = funded;
    if already.is_none() {
        needed = needed.saturating_add(wish.stake).saturating_add(price);
        calls.push(Call::Register {
            run: wish.run,
            role: wish.role,
            hotkey: wish.hotkey,
            endpoint: wish.endpoint.clone(),
            stake: wish.stake,
            price_max,
        });
    }
    if needed > Amount::ZERO {
        let needed = needed.saturating_add(FEES_RESERVE);
        let free = chain.balance(coldkey).await?.free;
        if free < needed {
            let address = keys::address(coldkey);
            return Err(invalid(format!(
                "the coldkey {address} has {free}, and {needed} is needed with fees. Transfer to it"
            )));
        }
    }
    Ok(SeatPlan { already, price, funded, calls })
}

/// Registers a hotkey and gives it what it needs for fees. `chain` signs with the coldkey.
///
/// A hotkey that has its seat already is reported as it stands: its stake and endpoint are not changed.
pub async fn register_seat(chain: &dyn Chain, wish: &SeatRequest) -> Result<RegisteredSeat, ChainError> {
    let coldkey = chain.account().ok_or_else(|| ChainError::NoSigner { doing: registering(wish) })?;
    let plan = plan_seat(chain, &coldkey, wish).await?;
    let mut already = plan.already.is_some();
    for call in plan.calls {
        match chain.submit(call).await {
            Ok(_) => {}
            // Somebody who holds the coldkey was faster, or an earlier attempt of ours was included after all.
            Err(error) if error.is_refusal("Registry", "HotkeyInUse") => already = true,
            Err(error) => return Err(error),
        }
    }
    let seat = seated(chain, &coldkey, wish).await?;
    Ok(RegisteredSeat { seat, already, funded: plan.funded })
}

/// The seat that was wished for, once the chain has it.
pub async fn seated(
    chain: &dyn Chain,
    coldkey: &Account,
    wish: &SeatRequest,
) -> Result<SeatView, ChainError> {
    let doing = || registering(wish);
    match seat_of(chain, wish.run, &wish.hotkey).await? {
        Some(seat) if seat.coldkey == *coldkey => Ok(seat),
        Some(_) => Err(ChainError::Invalid {
            doing: doing(),
            reason: "somebody else registered the hotkey meanwhile. Use another hotkey".into(),
        }),
        None => Err(ChainError::Uncertain {
            doing: doing(),
            reason: "no seat of the hotkey is on the chain".into(),
        }),
    }
}

fn registering(wish: &SeatRequest) -> String {
    format!("registering {} as {} of run {}", keys::address(&wish.hotkey.0), wish.role, wish.run)
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

/// What a run is made of.
#[derive(Clone, Debug, PartialEq)]
pub struct RunRequest {
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
pub async fn create_run(chain: &dyn Chain, wish: &RunRequest) -> Result<RunView, ChainError> {
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
async fn find_run(
    chain: &dyn Chain,
    owner: &Account,
    wish: &RunRequest,
) -> Result<Option<RunView>, ChainError> {
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
