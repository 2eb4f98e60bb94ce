//! One file an adversary: what it tries, what it can see, and the rule at which it ends. All of them are strategies of
//! the `validator` program; the lazy one is asked by a loop of its own, which computes nothing ([`crate::idle`]).

pub mod absentee;
pub mod false_merge;
pub mod favourer;
pub mod inventor;
pub mod lazy_voter;
pub mod two_faced;
pub mod weight_copier;
pub mod whitewasher;

#[cfg(test)]
mod tests;
