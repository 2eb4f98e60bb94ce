//! The ways in which a step of a window ends early: by skipping the window, or by ending the node.

use crate::{NodeError, SyncError, error_chain};
use chain_client::ChainError;
use std::{error::Error, fmt};

/// The reason for the early end of a step. One type, so that `?` works for both.
#[derive(Debug)]
pub enum Stop<E> {
    /// The window continues without this step. The reason is written to the journal.
    Skip(Skip),
    /// The node cannot continue.
    Fail(E),
}

/// The reason for a skipped step, as a text for the operator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Skip {
    pub reason: String,
}

impl Skip {
    pub fn new(reason: impl Into<String>) -> Skip {
        Skip { reason: reason.into() }
    }
}

impl<E> Stop<E> {
    pub fn skip(reason: impl Into<String>) -> Stop<E> {
        Stop::Skip(Skip::new(reason))
    }
}

impl<E: Error> fmt::Display for Stop<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Stop::Skip(skip) => f.write_str(&skip.reason),
            Stop::Fail(error) => f.write_str(&error_chain(error)),
        }
    }
}

impl<E> From<Skip> for Stop<E> {
    fn from(skip: Skip) -> Stop<E> {
        Stop::Skip(skip)
    }
}

impl<E: From<NodeError>> From<NodeError> for Stop<E> {
    fn from(error: NodeError) -> Stop<E> {
        Stop::Fail(error.into())
    }
}

impl<E: From<NodeError>> From<ChainError> for Stop<E> {
    fn from(error: ChainError) -> Stop<E> {
        Stop::Fail(NodeError::from(error).into())
    }
}

impl<E: From<NodeError>> From<SyncError> for Stop<E> {
    fn from(error: SyncError) -> Stop<E> {
        Stop::Fail(NodeError::from(error).into())
    }
}
