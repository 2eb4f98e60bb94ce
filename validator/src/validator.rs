//! The parts of a validator.

use crate::{
    evaluate::{Evaluate, Evaluation},
    gather::Gatherer,
    merge::Merger,
    probes::ProbeAnswers,
    report::delivery::Receipts,
    salt::Salts,
    signed_db::SignedDb,
    strategy::Strategy,
};
use daemon::Node;

/// A validator between two steps of its loop.
pub struct Validator {
    pub(crate) node: Node,
    pub(crate) signed: SignedDb,
    pub(crate) salts: Salts,
    pub(crate) strategy: Box<dyn Strategy>,
    pub(crate) gatherer: Gatherer,
    pub evaluation: Evaluation,
    pub(crate) merger: Merger,
    pub(crate) receipts: Receipts,
    pub(crate) probes: ProbeAnswers,
}

impl Validator {
    /// Creates a validator. A program derives `salts` from the hotkey. Validators of a simulation may share them, and
    /// so their evaluations.
    pub fn new(
        node: Node,
        evaluator: Box<dyn Evaluate>,
        signed: SignedDb,
        salts: Salts,
        strategy: Box<dyn Strategy>,
    ) -> Validator {
        Validator {
            gatherer: Gatherer::new(&node.directory),
            evaluation: Evaluation::new(evaluator),
            merger: Merger::default(),
            receipts: Receipts::default(),
            probes: ProbeAnswers::default(),
            node,
            signed,
            salts,
            strategy,
        }
    }
}
