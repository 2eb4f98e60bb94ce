//! Errors: each displays its failure; its subject, cause and remedy are separate methods.

use crate::WINDOWS_KEPT;
use chain_client::ChainError;
use daemon::{
    FollowError, checkpoint::CheckpointError, data::DataError, pieces::PiecesError,
    receipts::ReceiptUnavailable,
};
use dataset::ManifestError;
use measure::audit::AuditError;
use nn::{ModelError, hugging_face::ExportError};
use protocol::{Digest, GenesisHash, RunId, Uid, Window, receipt::ReceiptError};
use std::{io, path::PathBuf};
use store::{error_chain, fetch::AllMirrorsFailed};
use tokenizer::TokenizerError;

/// Reason why something could not be read or verified.
///
/// ```
/// use mettle_sdk::{Error, Kind};
///
/// let error = Error::PlainUrl { url: "ws://rpc.example:9944".into() };
/// assert_eq!(error.kind(), Kind::Usage);
/// assert!(error.to_string().contains("ws://rpc.example:9944"));
/// assert!(error.to_do().contains("wss://"));
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    #[error("{url} is not encrypted, and its host is not in a private network")]
    PlainUrl { url: String },
    #[error("no genesis hash was given, and {url} is no local development chain: it has {found}")]
    UnnamedChain { url: String, found: GenesisHash },
    #[error("could not read the chain")]
    Chain(#[source] ChainError),
    #[error("there is no run {0} on this chain")]
    NoRun(RunId),
    #[error("the chain does not have window {} of run {run}", window.0)]
    NoWindow { run: RunId, window: Window },
    #[error("run {run} has no checkpoint that opens window {}", window.0)]
    NoCheckpoint { run: RunId, window: Window, latest: Option<Window> },
    #[error("could not make the client of the buckets")]
    Client(#[source] Box<dyn std::error::Error + Send + Sync>),
    #[error("could not fetch {what} from any bucket")]
    Fetch { what: &'static str, source: AllMirrorsFailed },
    #[error("the run's specification cannot be used")]
    Specification(#[source] Box<dyn std::error::Error + Send + Sync>),
    #[error("the run's data cannot be used")]
    Data(#[from] DataError),
    #[error("the run's manifest cannot be used")]
    Manifest(#[from] ManifestError),
    #[error("the tokenizer cannot be used")]
    Tokenizer(#[from] TokenizerError),
    #[error("could not fetch the checkpoint of window {}", window.0)]
    Checkpoint { window: Window, source: CheckpointError },
    #[error("could not follow the run to its newest model")]
    Follow(#[source] FollowError),
    #[error("the evaluator could not be made")]
    Evaluator(#[from] ModelError),
    #[error("could not write the model")]
    Export(#[from] ExportError),
    #[error("the downloaded checkpoint in {} has changed on this disk", path.display())]
    Changed { path: PathBuf },
    #[error("could not use {}", path.display())]
    File { path: PathBuf, source: io::Error },
    #[error("{} does not end with the name of a directory", path.display())]
    Unnamed { path: PathBuf },
    /// A file of another program, or of an interrupted download of another release.
    #[error("{} is in the way: a download needs a {needed} there", path.display())]
    InTheWay { path: PathBuf, needed: &'static str },
    #[error("the receipt has digest {found}, and the chain has {anchored}")]
    OtherReceipt { anchored: Digest, found: Digest },
    #[error("this is no receipt of this chain")]
    BadReceipt(#[from] ReceiptError),
    #[error("uid {uid} anchored the receipt of another window or seat for window {}", window.0)]
    WrongSubject { uid: Uid, window: Window },
    #[error("the receipt cannot be read")]
    Receipt(#[from] ReceiptUnavailable),
    #[error("the window cannot be audited")]
    Audit(#[source] AuditError),
    #[error("a task of this library has died")]
    Died(#[from] tokio::task::JoinError),
}

/// Kind of an error, for the caller's reaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// The call is wrong; repeating it does not help.
    Usage,
    /// The chain cannot be reached, or is another one.
    Chain,
    /// The run, window, seat or checkpoint does not exist.
    NotFound,
    /// It will exist later.
    NotYet,
    /// No bucket has it.
    Store,
    /// Bytes do not match the chain or a signature.
    Verification,
    /// The disk or memory of this machine.
    Local,
}

impl Error {
    pub fn kind(&self) -> Kind {
        match self {
            Error::PlainUrl { .. } | Error::UnnamedChain { .. } => Kind::Usage,
            Error::Chain(ChainError::Invalid { .. }) => Kind::Usage,
            Error::Chain(_) => Kind::Chain,
            Error::NoRun(_) | Error::NoWindow { .. } | Error::NoCheckpoint { .. } => Kind::NotFound,
            Error::Fetch { .. } => Kind::Store,
            Error::Checkpoint { source, .. } => of_checkpoint(source),
            Error::Follow(FollowError::Chain(_)) => Kind::Chain,
            Error::Follow(FollowError::Update { .. }) => Kind::Store,
            Error::Follow(FollowError::Checkpoint(source)) => of_checkpoint(source),
            Error::Follow(FollowError::File(_)) => Kind::Local,
            Error::Follow(_) => Kind::Verification,
            Error::Data(DataError::Fetch(_)) => Kind::Store,
            Error::Data(DataError::Manifest(_)) => Kind::Verification,
            Error::Data(_) | Error::Client(_) | Error::Evaluator(_) | Error::Died(_) => Kind::Local,
            Error::Export(ExportError::Exists { .. }) | Error::Unnamed { .. } => Kind::Usage,
            Error::Export(_) | Error::Changed { .. } | Error::File { .. } | Error::InTheWay { .. } => {
                Kind::Local
            }
            Error::Specification(_) | Error::Manifest(_) | Error::Tokenizer(_) => Kind::Verification,
            Error::OtherReceipt { .. } | Error::BadReceipt(_) | Error::WrongSubject { .. } => {
                Kind::Verification
            }
            Error::Receipt(error) | Error::Audit(AuditError::Receipt(error)) => match error {
                ReceiptUnavailable::NotAnchored { .. } => Kind::NotFound,
                ReceiptUnavailable::Sealed { .. } => Kind::NotYet,
                ReceiptUnavailable::NotPublished { .. } => Kind::Store,
                ReceiptUnavailable::NoReceipt { .. } => Kind::Verification,
            },
            Error::Audit(error) => match error {
                AuditError::Chain(_) => Kind::Chain,
                AuditError::NotFixed { .. } => Kind::NotYet,
                AuditError::Evaluate(_) | AuditError::Died(_) => Kind::Local,
                _ => Kind::NotFound,
            },
        }
    }

    /// Returns the causes, from the outermost to the innermost; empty if there are none.
    pub fn why(&self) -> String {
        std::error::Error::source(self).map(error_chain).unwrap_or_default()
    }

    /// Returns the caller's remedy.
    pub fn to_do(&self) -> String {
        match self {
            Error::PlainUrl { .. } => {
                "use wss://, or allow an unencrypted connection (`allow_plain_ws`)".into()
            }
            Error::UnnamedChain { found, .. } => format!(
                "compare {found} with what the network publishes, then open the run with it as `genesis`"
            ),
            Error::Chain(ChainError::WrongChain { .. }) => {
                "give the URL of a Mettle chain, of this release and with the expected genesis hash".into()
            }
            Error::NoRun(_) => "list the runs of the chain (`runs`)".into(),
            Error::NoWindow { .. } => format!(
                "ask for a window that is open or was among the last {WINDOWS_KEPT}, which the chain keeps"
            ),
            Error::NoCheckpoint { latest: Some(latest), .. } => {
                format!("the latest is that of window {}; old ones are forgotten", latest.0)
            }
            Error::NoCheckpoint { latest: None, .. } => "ask for window 0, the run's first model".into(),
            Error::Export(ExportError::Exists { .. }) | Error::Unnamed { .. } => "name a new directory".into(),
            Error::InTheWay { path, .. } => {
                format!("remove {}, or name another directory for the model", path.display())
            }
            Error::OtherReceipt { .. } | Error::BadReceipt(_) => {
                "do not use it: fetch the receipt again, and check whose chain and window it is of".into()
            }
            Error::WrongSubject { .. } => "replay the window: an audit reports this validator".into(),
            Error::Receipt(error) | Error::Audit(AuditError::Receipt(error)) => match error {
                ReceiptUnavailable::Sealed { from, .. } => format!("ask again from window {} on", from.0),
                ReceiptUnavailable::NotAnchored { .. } => "ask again a window or two later".into(),
                ReceiptUnavailable::NotPublished { .. } => {
                    "try again later; if its bucket stays away, ask the validator for it".into()
                }
                ReceiptUnavailable::NoReceipt { .. } => "read the cause".into(),
            },
            Error::Audit(AuditError::NotFixed { .. }) => "ask again a window or two later".into(),
            Error::Audit(_) => "read the cause".into(),
            Error::Specification(_)
            | Error::Manifest(_)
            | Error::Tokenizer(_)
            | Error::Data(DataError::Manifest(_)) => {
                "use a release of this library that is as new as the run's".into()
            }
            _ => match self.kind() {
                Kind::Chain => "start the chain, or give the URL of a node that runs, and try again".into(),
                Kind::Store => {
                    "try again: what was fetched is kept. If it goes on, look whether the validators' buckets and \
                     the run's origin can be reached from this machine"
                        .into()
                }
                Kind::Verification => {
                    "compare the chain with another node: this one, or the run's validators, do not agree".into()
                }
                Kind::Local => "look for a full disk, missing rights or too little memory, and try again".into(),
                Kind::Usage | Kind::NotFound | Kind::NotYet => "correct the call".into(),
            },
        }
    }
}

fn of_checkpoint(error: &CheckpointError) -> Kind {
    match error {
        CheckpointError::Pieces(PiecesError::Fetch(_)) | CheckpointError::NoManifest { .. } => Kind::Store,
        _ => Kind::Local,
    }
}

impl From<ChainError> for Error {
    fn from(error: ChainError) -> Error {
        match error {
            ChainError::NoSuchRun(run) => Error::NoRun(run),
            error => Error::Chain(error),
        }
    }
}

impl From<AuditError> for Error {
    fn from(error: AuditError) -> Error {
        match error {
            AuditError::Chain(error) => error.into(),
            AuditError::Receipt(error) => error.into(),
            error => Error::Audit(error),
        }
    }
}

impl From<FollowError> for Error {
    fn from(error: FollowError) -> Error {
        match error {
            FollowError::Chain(error) => error.into(),
            error => Error::Follow(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_error_says_what_why_and_what_to_do() {
        let unreachable = ChainError::Unreachable {
            doing: "reading run 0".into(),
            url: "ws://127.0.0.1:1".into(),
            waited: std::time::Duration::from_secs(3),
            last: "refused".into(),
            sent: false,
        };
        let unanswered = || AllMirrorsFailed { key: "specs/00".into(), asked: 2, failures: Vec::new() };
        let (uid, window) = (Uid(3), Window(7));
        let errors: [(Error, Kind); 14] = [
            (unreachable.into(), Kind::Chain),
            (ChainError::NoSuchRun(RunId(9)).into(), Kind::NotFound),
            (Error::NoWindow { run: RunId(0), window }, Kind::NotFound),
            (Error::Fetch { what: "the run's specification", source: unanswered() }, Kind::Store),
            (FollowError::Update { window, source: unanswered() }.into(), Kind::Store),
            (ReceiptUnavailable::Sealed { uid, window, from: Window(9) }.into(), Kind::NotYet),
            (ReceiptUnavailable::NotPublished { uid, window, source: unanswered() }.into(), Kind::Store),
            (ReceiptError::NotAReceipt.into(), Kind::Verification),
            (ExportError::Exists { path: "model".into() }.into(), Kind::Usage),
            (Error::Unnamed { path: "/".into() }, Kind::Usage),
            (Error::InTheWay { path: ".model.fetching".into(), needed: "directory" }, Kind::Local),
            // Voted bytes that cannot be read, from any source.
            (ManifestError::NotCanonical.into(), Kind::Verification),
            (DataError::Manifest(ManifestError::NotCanonical).into(), Kind::Verification),
            (DataError::Fetch(unanswered()).into(), Kind::Store),
        ];
        for (error, kind) in errors {
            assert_eq!(error.kind(), kind, "{error}");
            let (what, why, to_do) = (error.to_string(), error.why(), error.to_do());
            assert!(!what.is_empty() && !to_do.is_empty(), "{error:?}");
            assert!(!why.contains(&what), "the cause is not said twice: {why}");
        }
    }
}
