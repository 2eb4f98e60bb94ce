//! The exit codes of our programs.

use chain_client::ChainError;

/// Any other error, such as a setting, a file, a key or an impossible request.
pub const EXIT_FAILED: u8 = 1;
/// The user did not confirm: nothing was signed.
pub const EXIT_NOT_SIGNED: u8 = 4;
/// The chain refused a call, which cost the fee and changed nothing else.
pub const EXIT_REFUSED: u8 = 5;
/// The chain was unreachable or did not include the call; a retry is safe.
pub const EXIT_UNREACHABLE: u8 = 6;
/// A call was sent, and its inclusion is unknown.
pub const EXIT_UNCERTAIN: u8 = 7;

/// Description of the exit codes, for the end of a command's help.
pub const EXIT_CODES: &str = "\
Exit codes: 0 done, or nothing to do; 1 failed; 2 wrong flags; 4 not confirmed, \
nothing was signed; 5 the chain refused the call, which cost only the fee; 6 the \
chain is unreachable, try again; 7 the call was sent, and its outcome is unknown: \
look before you try again.";

/// An error with an exit code of its own.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct ExitStatus {
    pub code: u8,
    pub text: String,
}

/// Returns the exit code for an error.
pub fn code(error: &anyhow::Error) -> u8 {
    if let Some(status) = error.chain().find_map(|cause| cause.downcast_ref::<ExitStatus>()) {
        return status.code;
    }
    match chain_error(error) {
        Some(ChainError::Refused { .. } | ChainError::Failed { .. }) => EXIT_REFUSED,
        Some(error) if error.is_uncertain() => EXIT_UNCERTAIN,
        Some(error) if error.is_transient() => EXIT_UNREACHABLE,
        _ => EXIT_FAILED,
    }
}

/// Returns the chain's error among an error's causes.
pub fn chain_error(error: &anyhow::Error) -> Option<&ChainError> {
    error.chain().find_map(|cause| cause.downcast_ref::<ChainError>())
}

#[cfg(test)]
mod tests {
    use super::*;
    use protocol::RunId;
    use std::time::Duration;

    #[test]
    fn an_exit_code_tells_whether_a_command_may_be_repeated() {
        let doing = || "claiming".to_owned();
        let waited = Duration::from_secs(1);
        let check = |error: ChainError, expected: u8| {
            let error = anyhow::Error::from(error).context("more");
            assert_eq!(code(&error), expected, "{error:#}");
        };
        let unreachable = |sent| {
            let (url, last) = ("ws://gone".to_owned(), "it closed the connection".to_owned());
            ChainError::Unreachable { doing: doing(), url, waited, last, sent }
        };
        check(ChainError::Failed { doing: doing(), reason: String::new() }, EXIT_REFUSED);
        check(ChainError::TimedOut { doing: doing(), waited, sent: true }, EXIT_UNCERTAIN);
        check(ChainError::TimedOut { doing: doing(), waited, sent: false }, EXIT_UNREACHABLE);
        check(unreachable(true), EXIT_UNCERTAIN);
        check(unreachable(false), EXIT_UNREACHABLE);
        check(ChainError::Uncertain { doing: doing(), reason: String::new() }, EXIT_UNCERTAIN);
        let dropped = ChainError::Dropped { doing: doing(), attempts: 3, reason: String::new() };
        check(dropped, EXIT_UNREACHABLE);
        check(ChainError::NoSuchRun(RunId(1)), EXIT_FAILED);
        assert_eq!(code(&anyhow::anyhow!("a file")), EXIT_FAILED);
        let status = ExitStatus { code: EXIT_NOT_SIGNED, text: "no".into() };
        assert_eq!(code(&anyhow::Error::from(status).context("x")), EXIT_NOT_SIGNED);
    }
}
