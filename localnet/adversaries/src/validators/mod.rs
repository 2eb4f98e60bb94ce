//! One file per adversary: the attack, the data it sees, and the rule that ends it. All are strategies of the
//! `validator` program.

pub mod absentee;
pub mod false_merge;
pub mod favourer;
pub mod inventor;
pub mod lazy_voter;
pub mod paid_stall;
pub mod prober;
pub mod receipt_copier;
pub mod third_excluder;
pub mod two_faced;
pub mod weight_copier;
pub mod whitewasher;

#[cfg(test)]
mod tests;
