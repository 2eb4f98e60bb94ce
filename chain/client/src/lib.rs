//! Typed reads and writes of the chain, its window clock, and the keys that sign.
