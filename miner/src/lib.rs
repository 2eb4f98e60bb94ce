//! Trains on the data the chain assigns, and publishes what was learned.
