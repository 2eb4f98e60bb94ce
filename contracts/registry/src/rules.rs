//! Checks of URLs and parameters, and shares of amounts: plain functions, without storage.

use crate::{Balance, Config, Error};
use protocol::params::{ParamsError, Permille};

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
            ParamsError::OwnerShareLimit => Error::OwnerShareLimit,
            ParamsError::EmissionLimit => Error::EmissionLimit,
            ParamsError::SlashLimit => Error::SlashLimit,
            ParamsError::UnbondingLimit => Error::UnbondingLimit,
            ParamsError::StakeLimit => Error::StakeLimit,
            ParamsError::PriceLimit => Error::PriceLimit,
        }
    }
}

/// `share` of `amount`, rounded down; at most all of it.
pub fn share_of(amount: Balance, share: Permille) -> Balance {
    let share = Balance::from(share.0.min(1000));
    // `amount · share / 1000` without overflow.
    (amount / 1000) * share + (amount % 1000) * share / 1000
}
