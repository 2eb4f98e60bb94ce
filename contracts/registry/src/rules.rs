//! Checks of URLs and parameters, shares of amounts, and bounds of replacements: plain functions, without storage.

use crate::{Balance, Config, Error};
use protocol::{
    Role, Terms,
    params::{ParamsError, Permille},
};

/// Nominations count up to this many times the validator's own stake (PROT-3).
pub const NOMINATIONS_PER_STAKE: Balance = 10;

/// Of a role's seats, one part in this many changes hands per window (PROT-29).
const REPLACEMENT_PARTS: u16 = 16;

/// Whether `url` is a base URL: `http` or `https`, a host, printable ASCII, no credential (PROT-12).
pub(crate) fn is_base_url(url: &[u8]) -> bool {
    let Some(rest) = url.strip_prefix(b"http://").or_else(|| url.strip_prefix(b"https://")) else {
        return false;
    };
    let host_is_empty = matches!(rest.first(), None | Some(b'/' | b':' | b'?' | b'#'));
    !host_is_empty && rest.iter().all(|byte| byte.is_ascii_graphic() && *byte != b'@')
}

impl<T: Config> From<ParamsError> for Error<T> {
    fn from(error: ParamsError) -> Error<T> {
        match error {
            ParamsError::Schedule => Error::BadSchedule,
            ParamsError::Zero { .. } => Error::ZeroParameter,
            ParamsError::Density => Error::BadDensity,
            ParamsError::Rate { .. } => Error::BadRate,
            ParamsError::Places => Error::BadPlaces,
            ParamsError::Quorum => Error::BadQuorum,
            ParamsError::Shares => Error::BadShares,
            ParamsError::Reveal => Error::BadReveal,
            ParamsError::Hidden => Error::BadHidden,
            ParamsError::Slash => Error::BadSlash,
            ParamsError::Unbonding => Error::BadUnbonding,
        }
    }
}

/// `share` of `amount`, rounded down; at most all of it.
pub fn share_of(amount: Balance, share: Permille) -> Balance {
    let share = Balance::from(share.0.min(1000));
    // `amount · share / 1000` without overflow.
    (amount / 1000) * share + (amount % 1000) * share / 1000
}

/// The part of `nominated` that counts as the stake of a validator with `own` stake: at most ten times that.
pub(crate) fn counted_nominations(own: Balance, nominated: Balance) -> Balance {
    nominated.min(own.saturating_mul(NOMINATIONS_PER_STAKE))
}

/// The most seats of `role` that newcomers replace at one opening.
pub(crate) fn replacements_max(terms: &Terms, role: Role) -> usize {
    usize::from((terms.seats_max(role) / REPLACEMENT_PARTS).max(1))
}

/// Whether a newcomer with `stake` may replace a validator with `held`, nominations included: it must have more by a
/// tenth.
pub(crate) fn outstakes(stake: Balance, held: Balance) -> bool {
    stake > held.saturating_add(held / 10)
}
