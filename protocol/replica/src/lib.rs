//! One node's copy of the agreed model: joined from a checkpoint, kept by merged updates, checked against the chain.
