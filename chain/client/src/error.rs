//! What can go wrong between us and the chain, for a person to act on and for callers to match.

use protocol::RunId;
use std::time::Duration;

/// Why a read or a submission did not come back with an answer.
///
/// `doing` says what was being done, as the end of "while …".
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChainError {
    #[error(
        "while {doing}: the chain at {url} has not answered for {} s ({last}). It is tried again all the time: \
         start it, or give the URL of one that runs",
        waited.as_secs()
    )]
    Unreachable { doing: String, url: String, waited: Duration, last: String },

    #[error(
        "the chain at {url} is not ours: wanted {wanted}, found {found}. Give the URL of a Mettle chain, and use a \
         client and a chain of the same release"
    )]
    NotOurs { url: String, wanted: String, found: String },

    /// A pallet refused the call, which changed nothing but the fee. Match on it with [`ChainError::is_refusal`].
    #[error("while {doing}: the chain refused: {pallet}.{error}. {docs}")]
    Refused { doing: String, pallet: String, error: String, docs: String },

    /// The call was included and failed outside of any pallet's own errors.
    #[error("while {doing}: the call failed on the chain: {reason}")]
    Failed { doing: String, reason: String },

    /// The call cannot be included as it is, and trying again would not help.
    #[error("while {doing}: {reason}")]
    Invalid { doing: String, reason: String },

    /// The call was offered several times and never included. It can no longer be: it may be submitted again.
    #[error(
        "while {doing}: offered {attempts} times and never included ({reason}). It may be submitted again"
    )]
    Dropped { doing: String, attempts: u32, reason: String },

    /// The chain answers but finalises no blocks.
    #[error(
        "while {doing}: no block was finalised for {} s. {} See to the chain's block production and finality",
        waited.as_secs(),
        if *sent { "The call was sent and may still be included." } else { "The call was not sent." }
    )]
    TimedOut { doing: String, waited: Duration, sent: bool },

    /// The call may have been included, but the chain no longer knows the block that would tell.
    #[error(
        "while {doing}: cannot tell whether the call took effect: {reason}. Look at the chain's state, then decide"
    )]
    Uncertain { doing: String, reason: String },

    /// The chain answered a request with an error of its own.
    #[error("while {doing}: the chain answered with error {code}: {message}")]
    Rpc { doing: String, code: i32, message: String },

    #[error(
        "while {doing}: cannot decode the chain's answer: {reason}. Use a client and a chain of the same release"
    )]
    Decode { doing: String, reason: String },

    #[error("there is no run {0} on this chain. List the runs and pick one of them")]
    NoSuchRun(RunId),

    #[error("while {doing}: this client was opened without a key and can only read. Open it with one")]
    NoSigner { doing: String },

    /// A background task has ended, which it does only by a fault of ours.
    #[error(
        "the chain client's {part} has stopped, which is a fault in this program. Restart it, and report the log"
    )]
    Stopped { part: &'static str },
}

impl ChainError {
    /// Whether the call was refused with this error of this pallet: `is_refusal("Windows", "TooLate")`.
    pub fn is_refusal(&self, pallet: &str, error: &str) -> bool {
        matches!(self, ChainError::Refused { pallet: p, error: e, .. } if p == pallet && e == error)
    }

    /// Whether the same thing may succeed later with nothing changed on our side.
    pub fn is_transient(&self) -> bool {
        matches!(
            self,
            ChainError::Unreachable { .. } | ChainError::TimedOut { .. } | ChainError::Dropped { .. }
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_matched_by_its_names() {
        let refused = ChainError::Refused {
            doing: "voting".into(),
            pallet: "Windows".into(),
            error: "TooLate".into(),
            docs: String::new(),
        };
        assert!(refused.is_refusal("Windows", "TooLate"));
        assert!(!refused.is_refusal("Windows", "TooEarly"));
        assert!(!refused.is_refusal("Registry", "TooLate"));
        assert!(!refused.is_transient());
        assert!(!ChainError::NoSuchRun(RunId(1)).is_refusal("Windows", "TooLate"));
    }

    #[test]
    fn a_timeout_says_whether_the_call_was_sent() {
        let timed_out = |sent| {
            ChainError::TimedOut { doing: "voting".into(), waited: Duration::from_secs(90), sent }.to_string()
        };
        assert!(timed_out(true).contains("may still be included"));
        assert!(timed_out(false).contains("was not sent"));
        assert!(timed_out(true).contains("90 s"));
    }
}
