//! The whole network on one machine.
