//! The seats of a network by strategy: `--seats honest:4,copycat:1,validator:3`.

use adversaries::KINDS;
use protocol::Role;
use std::str::FromStr;

/// The honest strategy. In a list, the name means an honest miner.
pub use watch::observe::HONEST;
/// An honest validator.
const VALIDATOR: &str = "validator";
/// Maximum number of seats of a role.
pub const MINERS_MAX: u16 = 64;
pub const VALIDATORS_MAX: u16 = 16;

/// The number of seats of each strategy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seats {
    /// Role, strategy and number of seats, in the order of the list.
    wanted: Vec<(Role, &'static str, u16)>,
}

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum SeatsError {
    #[error("there is no strategy {name:?}. There are: {}", names())]
    Unknown { name: String },
    #[error("{part:?} has no number of seats: write `{HONEST}:4`")]
    Number { part: String },
    #[error("{name} is in the list twice")]
    Twice { name: &'static str },
    #[error("{name} needs pairs: an even number of seats")]
    Pairs { name: &'static str },
    #[error("a network has from 1 to {max} {role}s, not {count}")]
    Count { role: Role, max: u16, count: u32 },
}

impl Seats {
    pub fn honest(miners: u16, validators: u16) -> Seats {
        Seats { wanted: vec![(Role::Miner, HONEST, miners), (Role::Validator, HONEST, validators)] }
    }

    /// Returns the strategy of each seat of `role`: honest ones first, the others in the order of the list.
    pub fn strategies(&self, role: Role) -> Vec<&'static str> {
        let of = |honest: bool| {
            let wanted = self
                .wanted
                .iter()
                .filter(move |(of, strategy, _)| *of == role && (*strategy == HONEST) == honest);
            wanted.flat_map(|(_, strategy, count)| std::iter::repeat_n(*strategy, usize::from(*count)))
        };
        of(true).chain(of(false)).collect()
    }
}

impl FromStr for Seats {
    type Err = SeatsError;

    fn from_str(list: &str) -> Result<Seats, SeatsError> {
        let mut wanted: Vec<(Role, &'static str, u16)> = Vec::new();
        for part in list.split(',').map(str::trim) {
            let (name, count) = part.split_once(':').unwrap_or((part, "1"));
            let (role, strategy) = named(name)?;
            let count: u16 = count.parse().map_err(|_| SeatsError::Number { part: part.to_owned() })?;
            if wanted.iter().any(|(of, other, _)| (*of, *other) == (role, strategy)) {
                return Err(SeatsError::Twice { name: strategy });
            }
            let in_pairs = adversaries::kind(strategy).is_some_and(|kind| kind.in_pairs);
            if in_pairs && !count.is_multiple_of(2) {
                return Err(SeatsError::Pairs { name: strategy });
            }
            wanted.push((role, strategy, count));
        }
        if !wanted.iter().any(|(role, ..)| *role == Role::Validator) {
            wanted.push((Role::Validator, HONEST, crate::defaults::VALIDATORS));
        }
        for (role, max) in [(Role::Miner, MINERS_MAX), (Role::Validator, VALIDATORS_MAX)] {
            let count: u32 =
                wanted.iter().filter(|(of, ..)| *of == role).map(|(.., count)| u32::from(*count)).sum();
            if !(1..=u32::from(max)).contains(&count) {
                return Err(SeatsError::Count { role, max, count });
            }
        }
        Ok(Seats { wanted })
    }
}

/// Returns the role and strategy of a name in a list.
fn named(name: &str) -> Result<(Role, &'static str), SeatsError> {
    match name {
        HONEST => Ok((Role::Miner, HONEST)),
        VALIDATOR => Ok((Role::Validator, HONEST)),
        other => match adversaries::kind(other) {
            Some(kind) => Ok((kind.role, kind.name)),
            None => Err(SeatsError::Unknown { name: other.to_owned() }),
        },
    }
}

/// Returns the names of all strategies: miners, then validators.
fn names() -> String {
    let of = |role: Role| {
        let names = KINDS.iter().filter(move |kind| kind.role == role).map(|kind| kind.name);
        names.collect::<Vec<_>>().join(", ")
    };
    format!("for miners {HONEST}, {}; for validators {VALIDATOR}, {}", of(Role::Miner), of(Role::Validator))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(list: &str) -> String {
        list.parse::<Seats>().unwrap_err().to_string()
    }

    #[test]
    fn a_list_names_the_seats_and_without_a_validator_there_are_three_honest_ones() {
        let seats: Seats = "copycat:2,honest:1".parse().unwrap();
        assert_eq!(seats.strategies(Role::Miner), [HONEST, "copycat", "copycat"]);
        assert_eq!(seats.strategies(Role::Validator), [HONEST; 3]);
        let seats: Seats = "honest, validator:2, favourer".parse().unwrap();
        assert_eq!(seats.strategies(Role::Miner), [HONEST]);
        assert_eq!(seats.strategies(Role::Validator), [HONEST, HONEST, "favourer"]);
        assert_eq!(Seats::honest(2, 1).strategies(Role::Miner), [HONEST; 2]);
    }

    #[test]
    fn every_adversary_can_be_named() {
        for kind in KINDS {
            let count = if kind.in_pairs { 2 } else { 1 };
            let seats: Seats = format!("honest:1,{}:{count}", kind.name).parse().unwrap();
            assert_eq!(seats.strategies(kind.role).last(), Some(&kind.name));
        }
    }

    #[test]
    fn an_impossible_list_is_refused_with_what_is_possible() {
        let unknown = refused("honest:1,copykat:1");
        assert!(unknown.contains("copykat"), "{unknown}");
        assert!(KINDS.iter().all(|kind| unknown.contains(kind.name)), "{unknown}");
        assert!(refused("honest:many").contains("honest:many"));
        assert!(refused("honest:1,honest:2").contains("twice"));
        assert!(refused("honest:1,sybil:3").contains("pairs"));
        assert!(refused("honest:65").contains("from 1 to 64 miners"));
        assert!(refused("honest:60,noise:60").contains("120"));
        assert!(refused("validator:3").contains("miners"));
        assert!(refused("honest:1,validator:17").contains("from 1 to 16 validators"));
        assert!(refused("").contains("there is no strategy"));
    }
}
