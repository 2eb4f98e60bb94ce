//! Errors of the client, with advice for users and variants for callers.

use crate::Refusal;
use protocol::RunId;
use std::time::Duration;

/// An error of a read or a submission.
///
/// `doing` describes the interrupted action, as the end of "while …".
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChainError {
    /// The client continues its attempts to reach the chain.
    #[error(
        "while {doing}: the chain at {url} has not answered for {} s ({last}).{} Start it, or give the URL of one \
         that runs",
        waited.as_secs(),
        if *sent { " The call was sent and may still be included." } else { "" }
    )]
    Unreachable { doing: String, url: String, waited: Duration, last: String, sent: bool },

    #[error(
        "the chain at {url} is another one: expected {expected}, found {found}. Give the URL of a Mettle chain, and use a \
         client and a chain of the same release"
    )]
    WrongChain { url: String, expected: String, found: String },

    /// A pallet refused the call, which cost the fee and changed nothing else. Match on [`ChainError::refusal`].
    #[error("while {doing}: the chain refused: {pallet}.{error}. {docs}")]
    Refused { doing: String, pallet: String, error: String, docs: String },

    /// The call was included and failed, not with an error of a pallet.
    #[error("while {doing}: the call failed on the chain: {reason}")]
    Failed { doing: String, reason: String },

    /// The call cannot be included in its present form; repeating it does not help.
    #[error("while {doing}: {reason}")]
    Invalid { doing: String, reason: String },

    /// The call was sent several times and not included, and can no longer be. It may be submitted again.
    #[error("while {doing}: sent {attempts} times and never included ({reason}). It may be submitted again")]
    Dropped { doing: String, attempts: u32, reason: String },

    /// The chain answers but finalises no blocks.
    #[error(
        "while {doing}: no block was finalised for {} s. {} Check the chain's block production and finality",
        waited.as_secs(),
        if *sent { "The call was sent and may still be included." } else { "The call was not sent." }
    )]
    TimedOut { doing: String, waited: Duration, sent: bool },

    /// The call may have been included, but the block that would show this is no longer available.
    #[error(
        "while {doing}: it is unknown whether the call took effect: {reason}. Look at the chain's state, then decide"
    )]
    Uncertain { doing: String, reason: String },

    /// The chain answered a request with an error.
    #[error("while {doing}: the chain answered with error {code}: {message}")]
    Rpc { doing: String, code: i32, message: String },

    #[error(
        "while {doing}: cannot decode the chain's answer: {reason}. Use a client and a chain of the same release"
    )]
    Decode { doing: String, reason: String },

    #[error("there is no run {0} on this chain. List the runs with `mettle run list`")]
    NoSuchRun(RunId),

    #[error("while {doing}: the client was opened without a key and can only read. Give a key")]
    NoSigner { doing: String },

    /// A background task has ended, which is a bug.
    #[error("the chain client's {part} has stopped: this is a bug. Restart the program, and report the log")]
    Stopped { part: &'static str },
}

impl ChainError {
    /// Returns the pallet's error, if the call was refused with one that a program acts on.
    pub fn refusal(&self) -> Option<Refusal> {
        match self {
            ChainError::Refused { pallet, error, .. } => Refusal::named(pallet, error),
            _ => None,
        }
    }

    /// Returns whether a call was sent and may be, or may have been, included.
    pub fn is_uncertain(&self) -> bool {
        matches!(
            self,
            ChainError::TimedOut { sent: true, .. }
                | ChainError::Unreachable { sent: true, .. }
                | ChainError::Uncertain { .. }
        )
    }

    /// Returns whether the same request may succeed later.
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
    use expect_test::expect;

    #[test]
    fn an_error_says_what_was_done_what_happened_and_what_to_do() {
        let (doing, reason) = (|| "voting on window 3 of run 0".to_owned(), || "the reason".to_owned());
        let (url, waited) = (|| "ws://127.0.0.1:9944".to_owned(), Duration::from_secs(90));
        let unreachable =
            |sent| ChainError::Unreachable { doing: doing(), url: url(), waited, last: reason(), sent };
        let refused = ChainError::Refused {
            doing: doing(),
            pallet: "Windows".into(),
            error: "TooLate".into(),
            docs: "The deadline has passed.".into(),
        };
        let errors = [
            unreachable(false),
            unreachable(true),
            ChainError::WrongChain { url: url(), expected: "genesis 01".into(), found: "genesis 02".into() },
            refused,
            ChainError::Failed { doing: doing(), reason: reason() },
            ChainError::Invalid { doing: doing(), reason: reason() },
            ChainError::Dropped { doing: doing(), attempts: 16, reason: reason() },
            ChainError::TimedOut { doing: doing(), waited, sent: false },
            ChainError::TimedOut { doing: doing(), waited, sent: true },
            ChainError::Uncertain { doing: doing(), reason: reason() },
            ChainError::Rpc { doing: doing(), code: -32603, message: "internal error".into() },
            ChainError::Decode { doing: doing(), reason: reason() },
            ChainError::NoSuchRun(RunId(7)),
            ChainError::NoSigner { doing: doing() },
            ChainError::Stopped { part: "submitter" },
        ];
        let text: String = errors.iter().map(|error| format!("{error}\n")).collect();
        expect![[r#"
            while voting on window 3 of run 0: the chain at ws://127.0.0.1:9944 has not answered for 90 s (the reason). Start it, or give the URL of one that runs
            while voting on window 3 of run 0: the chain at ws://127.0.0.1:9944 has not answered for 90 s (the reason). The call was sent and may still be included. Start it, or give the URL of one that runs
            the chain at ws://127.0.0.1:9944 is another one: expected genesis 01, found genesis 02. Give the URL of a Mettle chain, and use a client and a chain of the same release
            while voting on window 3 of run 0: the chain refused: Windows.TooLate. The deadline has passed.
            while voting on window 3 of run 0: the call failed on the chain: the reason
            while voting on window 3 of run 0: the reason
            while voting on window 3 of run 0: sent 16 times and never included (the reason). It may be submitted again
            while voting on window 3 of run 0: no block was finalised for 90 s. The call was not sent. Check the chain's block production and finality
            while voting on window 3 of run 0: no block was finalised for 90 s. The call was sent and may still be included. Check the chain's block production and finality
            while voting on window 3 of run 0: it is unknown whether the call took effect: the reason. Look at the chain's state, then decide
            while voting on window 3 of run 0: the chain answered with error -32603: internal error
            while voting on window 3 of run 0: cannot decode the chain's answer: the reason. Use a client and a chain of the same release
            there is no run 7 on this chain. List the runs with `mettle run list`
            while voting on window 3 of run 0: the client was opened without a key and can only read. Give a key
            the chain client's submitter has stopped: this is a bug. Restart the program, and report the log
        "#]].assert_eq(&text);
    }

    #[test]
    fn a_refusal_is_matched_by_type() {
        let refused = |pallet: &str, error: &str| ChainError::Refused {
            doing: "voting".into(),
            pallet: pallet.into(),
            error: error.into(),
            docs: String::new(),
        };
        assert_eq!(refused("Windows", "AlreadyVoted").refusal(), Some(Refusal::AlreadyVoted));
        assert_eq!(refused("Registry", "AlreadyVoted").refusal(), None);
        assert_eq!(refused("Windows", "TooLate").refusal(), None);
        assert!(!refused("Windows", "AlreadyVoted").is_transient());
        assert_eq!(ChainError::NoSuchRun(RunId(1)).refusal(), None);
    }

    #[test]
    fn a_timeout_states_whether_the_call_was_sent() {
        let waited = Duration::from_secs(90);
        for sent in [true, false] {
            let timed_out = ChainError::TimedOut { doing: "voting".into(), waited, sent };
            let (doing, url, last) = ("voting".into(), "ws://a".into(), "it closed the connection".into());
            let unreachable = ChainError::Unreachable { doing, url, waited, last, sent };
            for error in [timed_out, unreachable] {
                assert_eq!(error.is_uncertain(), sent);
                assert_eq!(error.to_string().contains("may still be included"), sent, "{error}");
                assert!(error.to_string().contains("90 s"), "{error}");
            }
        }
    }
}
