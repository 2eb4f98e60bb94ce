//! Checks of URLs and parameters, shares of amounts, and limits of replacements: plain functions, without storage.

use crate::{Balance, Config, Error};
use protocol::{
    Role, Schedule, Terms,
    params::{Floors, ParamsError, Permille},
};

/// Maximum ratio of counted nominations to the validator's own stake (PROT-3).
pub const NOMINATIONS_PER_STAKE: Balance = 10;

/// Inverse of the maximum fraction of a role's seats that change hands per window (PROT-29).
const REPLACEMENT_PARTS: u16 = 16;

/// Returns whether `url` is a base URL: `http` or `https`, a host, printable ASCII, no credentials (PROT-12).
pub(crate) fn is_base_url(url: &[u8]) -> bool {
    let Some(rest) = url.strip_prefix(b"http://").or_else(|| url.strip_prefix(b"https://")) else {
        return false;
    };
    let host_is_empty = matches!(rest.first(), None | Some(b'/' | b':' | b'?' | b'#'));
    !host_is_empty && rest.iter().all(|byte| byte.is_ascii_graphic() && *byte != b'@')
}

/// Returns whether `url` is a seat's endpoint: a base URL, or `p2p://PEER` of a seat without a bucket, optionally with
/// the peer's address as a path (PROT-34). A peer's name is an ed25519 public key in base58.
pub(crate) fn is_endpoint(url: &[u8]) -> bool {
    let Some(rest) = url.strip_prefix(b"p2p://") else { return is_base_url(url) };
    let end = rest.iter().position(|byte| *byte == b'/').unwrap_or(rest.len());
    let (peer, path) = rest.split_at(end);
    let is_peer =
        peer.len() == 52 && peer.starts_with(b"12D3KooW") && peer.iter().all(u8::is_ascii_alphanumeric);
    is_peer && path.iter().all(|byte| byte.is_ascii_graphic() && *byte != b'@')
}

impl<T: Config> From<ParamsError> for Error<T> {
    fn from(error: ParamsError) -> Error<T> {
        match error {
            ParamsError::Schedule => Error::BadSchedule,
            ParamsError::Zero { .. } => Error::ZeroParameter,
            ParamsError::Density => Error::BadDensity,
            ParamsError::Rate { .. } => Error::BadRate,
            ParamsError::Places => Error::BadPlaces,
            ParamsError::Epoch => Error::EpochTooLong,
            ParamsError::ProbeTolerance => Error::BadProbeTolerance,
            ParamsError::MinContributions => Error::TooFewContributions,
            ParamsError::Quorum => Error::BadQuorum,
            ParamsError::Shares => Error::BadShares,
            ParamsError::Reveal => Error::BadReveal,
            ParamsError::Hidden => Error::BadHidden,
            ParamsError::Slash => Error::BadSlash,
            ParamsError::Unbonding => Error::BadUnbonding,
            ParamsError::OwnerShareLimit => Error::OwnerShareLimit,
            ParamsError::EmissionLimit => Error::EmissionLimit,
            ParamsError::SlashLimit => Error::SlashLimit,
            ParamsError::UnbondingLimit => Error::UnbondingLimit,
            ParamsError::StakeLimit => Error::StakeLimit,
            ParamsError::PriceLimit => Error::PriceLimit,
        }
    }
}

/// Checks that a run's windows are at least as long as the chain's floor (PROT-33).
pub(crate) fn check_schedule<T: Config>(schedule: &Schedule, floors: &Floors) -> Result<(), Error<T>> {
    match schedule.blocks_per_window < floors.blocks_per_window {
        true => Err(Error::WindowTooShort),
        false => Ok(()),
    }
}

/// Checks that stakes and price of a run's terms reach the chain's floors (PROT-33).
pub(crate) fn check_floors<T: Config>(terms: &Terms, floors: &Floors) -> Result<(), Error<T>> {
    let stakes = terms.validator_stake_min >= floors.validator_stake_min
        && terms.miner_stake_min >= floors.miner_stake_min;
    match stakes && terms.seat_price_min >= floors.seat_price_min {
        true => Ok(()),
        false => Err(Error::BelowFloor),
    }
}

/// Returns the deposit of a run: `base`, plus `per_rate` for each seat that its windows serve per block, rounded up
/// (PROT-33).
pub(crate) fn deposit(base: Balance, per_rate: Balance, schedule: &Schedule, terms: &Terms) -> Balance {
    let seats = Balance::from(terms.miner_seats_max).saturating_add(terms.validator_seats_max.into());
    let blocks = Balance::from(schedule.blocks_per_window).max(1);
    base.saturating_add(per_rate.saturating_mul(seats).div_ceil(blocks))
}

/// Returns `share` of `amount`, rounded down; at most all of it.
pub fn share_of(amount: Balance, share: Permille) -> Balance {
    let share = Balance::from(share.0.min(1000));
    // `amount · share / 1000` without overflow.
    (amount / 1000) * share + (amount % 1000) * share / 1000
}

/// Returns the part of `nominated` that counts as stake of a validator with `own` stake: at most ten times `own`.
pub(crate) fn counted_nominations(own: Balance, nominated: Balance) -> Balance {
    nominated.min(own.saturating_mul(NOMINATIONS_PER_STAKE))
}

/// Returns the maximum number of seats of `role` that newcomers replace at one opening.
pub(crate) fn replacements_max(terms: &Terms, role: Role) -> usize {
    usize::from((terms.seats_max(role) / REPLACEMENT_PARTS).max(1))
}

/// Returns whether a newcomer with `stake` may replace a validator with `held`, nominations included: `stake` must
/// exceed `held` by a tenth.
pub(crate) fn outstakes(stake: Balance, held: Balance) -> bool {
    stake > held.saturating_add(held / 10)
}
