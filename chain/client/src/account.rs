//! Actions of an account that consist of several calls: registering a seat, creating a run.
//!
//! Each function is idempotent: a second run detects the completed steps.

use crate::{
    Amount, Call, Chain, ChainError, Refusal,
    keys::{self, Key, KeyError},
};
use protocol::{
    Block, Digest, Hotkey, Role, RunId, RunParams, Terms,
    identity::{Signature, Signer},
    view::{Account, RunView, SeatView},
};

/// Amount reserved for fees on the paying account; exceeds the fees of any of these steps.
pub const FEES_RESERVE: Amount = Amount(Amount::mtl(1).0 / 10);

/// Minimum balance for a hotkey: enough for its account to exist.
pub const HOTKEY_FUNDS_MIN: Amount = Amount(Amount::mtl(1).0 / 100);

/// A seat to register.
#[derive(Clone, Debug)]
pub struct SeatRequest {
    pub run: RunId,
    pub role: Role,
    /// Key that signs the consent to the seat.
    pub hotkey: Key,
    /// Base URL of the seat's public bucket.
    pub endpoint: String,
    pub stake: Amount,
    /// Balance for fees that the hotkey should have. The difference is transferred to it.
    pub hotkey_funds: Amount,
    /// Maximum price of the seat; `None` allows twice its current price.
    pub price_max: Option<Amount>,
}

/// Steps and costs of a seat's registration.
#[derive(Clone, Debug, PartialEq)]
pub struct SeatPlan {
    /// The seat, if the hotkey already holds it.
    pub already: Option<SeatView>,
    /// Current price of the seat, which is burnt. It rises with each registration.
    pub price: Amount,
    /// Amount transferred to the hotkey.
    pub funded: Amount,
    /// Calls for the coldkey to sign, in this order.
    pub calls: Vec<Call>,
}

/// Plans the registration of a seat for `coldkey`.
///
/// # Errors
/// [`ChainError::Invalid`] if the chain would refuse the registration; no fee is paid in this case.
pub async fn plan_seat(
    chain: &dyn Chain,
    coldkey: &Account,
    request: &SeatRequest,
) -> Result<SeatPlan, ChainError> {
    let invalid = |reason: String| ChainError::Invalid { doing: registering(request), reason };
    let status = chain.status(request.run).await?;
    let hotkey = request.hotkey.hotkey();
    let already = seat_of(chain, request.run, &hotkey).await?;
    if let Some(seat) = &already {
        if seat.coldkey != *coldkey {
            let owner = keys::address(&seat.coldkey);
            return Err(invalid(format!(
                "the hotkey has a seat in the run that belongs to {owner}. Use another hotkey"
            )));
        }
        if seat.role != request.role {
            let (role, uid) = (seat.role, seat.id.uid);
            return Err(invalid(format!(
                "the hotkey has a seat in the run as {role}, uid {uid}. Use another hotkey"
            )));
        }
    }
    let stake_min = Amount(status.run.terms.stake_min(request.role));
    if already.is_none() && request.stake < stake_min {
        return Err(invalid(format!(
            "the stake is {}, and the run requires at least {stake_min}",
            request.stake
        )));
    }
    let seats = match request.role {
        Role::Miner => status.miners,
        Role::Validator => status.validators,
    };
    let price = Amount(seats.price);
    let price_max = request.price_max.unwrap_or(Amount(price.0.saturating_mul(2)));
    if already.is_none() && price_max < price {
        return Err(invalid(format!(
            "the seat costs {price} now, more than the {price_max} allowed. Wait until the price falls, or raise the limit"
        )));
    }
    let wanted = request.hotkey_funds.max(HOTKEY_FUNDS_MIN);
    let funded = wanted.saturating_sub(chain.balance(&hotkey.0).await?.free);
    let mut calls = Vec::new();
    // Funds first: a seat whose hotkey cannot pay a fee is useless.
    if funded > Amount::ZERO {
        calls.push(Call::Transfer { to: hotkey.0, amount: funded });
    }
    let mut needed = funded;
    if already.is_none() {
        needed = needed.saturating_add(request.stake).saturating_add(price);
        calls.push(Call::Register {
            run: request.run,
            role: request.role,
            hotkey,
            endpoint: request.endpoint.clone(),
            stake: request.stake,
            price_max,
            proof: possession(chain, &request.hotkey, request.run, coldkey)
                .map_err(|error| invalid(error.to_string()))?,
        });
    }
    if needed > Amount::ZERO {
        let needed = needed.saturating_add(FEES_RESERVE);
        let free = chain.balance(coldkey).await?.free;
        if free < needed {
            let address = keys::address(coldkey);
            return Err(invalid(format!(
                "the coldkey {address} has {free}, and needs {needed} with fees. {}",
                how_to_fund(chain, &address, needed.saturating_sub(free))
            )));
        }
    }
    Ok(SeatPlan { already, price, funded, calls })
}

/// Returns the advice, with a command, to transfer at least `amount` to an account. On a development chain the sender
/// is `//Alice`.
pub fn how_to_fund(chain: &dyn Chain, address: &str, amount: Amount) -> String {
    let whole = amount.0.div_ceil(Amount::mtl(1).0).max(1);
    let transfer = |from: &str| format!("`mettle transfer --key {from} --to {address} --amount {whole}`");
    match chain.is_development() {
        true => format!("Transfer to it from a development account: {}", transfer("//Alice")),
        false => format!("Transfer to it from another account: {}", transfer("FILE")),
    }
}

/// Registers a hotkey and funds it for fees. `chain` signs with the coldkey.
///
/// The stake and the endpoint of an existing seat are not changed.
///
/// # Errors
/// The errors of [`plan_seat`] and of the submissions; also if another account registered the hotkey meanwhile, or the
/// chain has no such seat afterwards.
///
/// # Cancel safety
/// Dropping the future does not recall a call that was sent. A second call of the function completes the registration.
pub async fn register_seat(chain: &dyn Chain, request: &SeatRequest) -> Result<SeatView, ChainError> {
    let doing = || registering(request);
    let coldkey = chain.account().ok_or_else(|| ChainError::NoSigner { doing: doing() })?;
    for call in plan_seat(chain, &coldkey, request).await?.calls {
        match chain.submit(call).await {
            Ok(_) => {}
            // Another holder of the coldkey was faster, or an earlier attempt of this client was included.
            Err(error) if error.refusal() == Some(Refusal::HotkeyInUse) => {}
            Err(error) => return Err(error),
        }
    }
    match seat_of(chain, request.run, &request.hotkey.hotkey()).await? {
        Some(seat) if seat.coldkey == coldkey => Ok(seat),
        Some(_) => Err(ChainError::Invalid {
            doing: doing(),
            reason: "another account registered the hotkey meanwhile. Use another hotkey".into(),
        }),
        None => Err(ChainError::Uncertain {
            doing: doing(),
            reason: "the chain has no seat of the hotkey".into(),
        }),
    }
}

fn registering(request: &SeatRequest) -> String {
    format!("registering {} as {} of run {}", request.hotkey.address(), request.role, request.run)
}

/// Signs the consent of `hotkey` to hold a seat of `run` for `coldkey` on this chain (PROT-29).
///
/// # Errors
/// [`KeyError::NotAHotkey`] if the key is not ed25519.
pub fn possession(
    chain: &dyn Chain,
    hotkey: &Key,
    run: RunId,
    coldkey: &Account,
) -> Result<Signature, KeyError> {
    Ok(Signer::new(hotkey.signing_key()?.clone(), chain.genesis()).prove_possession(run, coldkey))
}

/// Returns the seat that `hotkey` holds in `run`.
///
/// # Errors
/// The errors of a read of [`Chain`].
pub async fn seat_of(chain: &dyn Chain, run: RunId, hotkey: &Hotkey) -> Result<Option<SeatView>, ChainError> {
    Ok(chain.seats(run).await?.into_iter().find(|seat| seat.hotkey == *hotkey))
}

/// A run to create.
#[derive(Clone, Debug, PartialEq)]
pub struct RunRequest {
    pub params: RunParams,
    /// Terms at creation; the run's owner may change them later.
    pub terms: Terms,
    /// Digest of the run's specification.
    pub spec: Digest,
    /// Digest of the dataset's manifest.
    pub manifest: Digest,
    /// Weights root of `θ_0`.
    pub theta0: Digest,
    /// Base URL under which specification, dataset and `θ_0` are published.
    pub origin: String,
}

/// Creates a run owned by the signer. If the signer already owns a run with the same parameters and digests, returns
/// that run, whatever its terms.
///
/// # Errors
/// [`ChainError::NoSigner`] without a key, [`ChainError::Invalid`] for invalid parameters or terms, the errors of the
/// submission, and [`ChainError::Uncertain`] if the chain has no such run afterwards.
///
/// # Cancel safety
/// Dropping the future does not recall a call that was sent. A second call of the function finds the run.
pub async fn create_run(chain: &dyn Chain, request: &RunRequest) -> Result<RunView, ChainError> {
    let doing = || "creating a run".to_owned();
    let owner = chain.account().ok_or_else(|| ChainError::NoSigner { doing: doing() })?;
    let terms = || request.terms.validate().and_then(|()| request.terms.check_limits(&request.params.limits));
    if let Err(error) = request.params.validate().and_then(|()| terms()) {
        return Err(ChainError::Invalid { doing: doing(), reason: error.to_string() });
    }
    if let Some(run) = find_run(chain, &owner, request).await? {
        return Ok(run);
    }
    let call = Call::CreateRun {
        params: Box::new(request.params),
        terms: Box::new(request.terms),
        spec: request.spec,
        manifest: request.manifest,
        theta0: request.theta0,
        origin: request.origin.clone(),
    };
    chain.submit(call).await?;
    let run = find_run(chain, &owner, request).await?;
    run.ok_or_else(|| ChainError::Uncertain { doing: doing(), reason: "the chain has no such run".into() })
}

/// Returns the owner's latest run that matches the request, except for its terms. Without a start block in the
/// request, any start block matches.
///
/// # Errors
/// The errors of a read of [`Chain`].
pub async fn find_run(
    chain: &dyn Chain,
    owner: &Account,
    request: &RunRequest,
) -> Result<Option<RunView>, ChainError> {
    for id in chain.runs().await?.into_iter().rev() {
        let run = chain.run(id).await?;
        let mut params = request.params;
        if params.schedule.start == Block(0) {
            params.schedule.start = run.params.schedule.start;
        }
        let same = run.owner == *owner
            && run.params == params
            && (run.spec, run.manifest, run.theta0) == (request.spec, request.manifest, request.theta0)
            && run.origin == request.origin;
        if same {
            return Ok(Some(run));
        }
    }
    Ok(None)
}
