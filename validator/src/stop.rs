//! What ends a step of a window early.

use crate::run::RunError;

/// Why a step ended early.
#[derive(Debug)]
pub enum Stop {
    /// This window passes without the step, for this reason. The validator continues with the next step.
    Skip(String),
    /// The validator cannot continue.
    Fail(RunError),
}

impl<E: Into<RunError>> From<E> for Stop {
    fn from(error: E) -> Stop {
        Stop::Fail(error.into())
    }
}

impl Stop {
    /// For a caller that has handled [`Stop::Skip`].
    pub(crate) fn into_error(self) -> Result<(), RunError> {
        match self {
            Stop::Skip(_) => Ok(()),
            Stop::Fail(error) => Err(error),
        }
    }
}

/// Ends a step that this window passes without.
pub(crate) fn skip<T>(reason: impl Into<String>) -> Result<T, Stop> {
    Err(Stop::Skip(reason.into()))
}
