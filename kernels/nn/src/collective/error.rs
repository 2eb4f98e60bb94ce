//! Reasons why an exchange between ranks fails, and the check that ends it.

/// Maximum length of an announcement in bytes.
pub const ANNOUNCEMENT_BYTES_MAX: usize = 64 << 20;

/// Reason why an exchange failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CollectiveError {
    #[error(
        "rank {rank} ended, or closed its connection, while {doing}: look at its log; if its machine ran out of memory, spread the ranks over more machines, or on CPUs lower micro_batch_sequences under [train]"
    )]
    Lost { rank: usize, doing: &'static str },
    #[error(
        "rank {rank} did not answer within {seconds} s while {doing}: look at its machine, or raise rank_step_seconds under [train]"
    )]
    Slow { rank: usize, doing: &'static str, seconds: u64 },
    #[error("rank {rank} gave up: {why}")]
    Failed { rank: usize, why: String },
    #[error("rank {rank} sent {got} bytes while {doing}, where {expected} were expected")]
    Length { rank: usize, doing: &'static str, expected: usize, got: usize },
    #[error(
        "an announcement of {bytes} bytes is too long, and {ANNOUNCEMENT_BYTES_MAX} are allowed: train fewer sequences per step (batch_sequences)"
    )]
    TooLong { bytes: usize },
    #[error(
        "the GPUs of the ranks did not exchange within {seconds} s while {doing}: look at their machines, or raise rank_step_seconds under [train]"
    )]
    Stuck { doing: &'static str, seconds: u64 },
    #[error("no thread for the exchange: {why}")]
    NoThread { why: String },
    #[error("the ranks are no longer connected")]
    Aborted,
}

/// Check that is called repeatedly during an exchange outside of these calls. It fails once the exchange must end.
pub type Watch<'a> = Box<dyn FnMut() -> Result<(), CollectiveError> + 'a>;
