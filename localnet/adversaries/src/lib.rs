#![doc = include_str!("../README.md")]

pub mod act;
pub mod adversary;
pub mod miners;
mod seeded_rng;
mod shared_mailbox;
pub mod validators;

pub use adversary::{
    Adversary, Commit, Content, MinerContext, OwnContribution, Presentation, Timing, TrainedWindow, Upload,
};
pub use seeded_rng::SeededRng;
pub use shared_mailbox::SharedMailbox;

use miners::*;
use protocol::{Role, Uid};
use validator::strategy::Strategy;
use validators::*;

/// The parameters of an adversary.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Index among the seats of the same name, from 0.
    pub index: u16,
    /// Number of validators in the run.
    pub validators: u16,
    /// Windows of honest work before an attack that needs a good reputation.
    pub good_windows: u32,
    /// Channel through which colluding miners exchange data.
    pub mailbox: SharedMailbox,
    /// The seat that a validator favours; `None`: the last seat.
    pub friend: Option<Uid>,
}

impl Default for Setup {
    fn default() -> Setup {
        Setup {
            index: 0,
            validators: 3,
            good_windows: GOOD_WINDOWS,
            mailbox: SharedMailbox::default(),
            friend: None,
        }
    }
}

/// Windows of honest work that build a reputation, in a run of a few dozen.
pub const GOOD_WINDOWS: u32 = 6;

/// An adversary by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kind {
    pub name: &'static str,
    pub role: Role,
    pub tries: &'static str,
    /// Numbers of the rules that stop it.
    pub ends_at: &'static [u32],
    /// True if seats of this kind come in pairs.
    pub in_pairs: bool,
}

const fn miner_kind(name: &'static str, tries: &'static str, ends_at: &'static [u32]) -> Kind {
    Kind { name, role: Role::Miner, tries, ends_at, in_pairs: false }
}

const fn validator_kind(name: &'static str, tries: &'static str, ends_at: &'static [u32]) -> Kind {
    Kind { name, role: Role::Validator, tries, ends_at, in_pairs: false }
}

/// All adversaries, miners first.
pub const KINDS: &[Kind] = &[
    miner_kind(
        "copycat",
        "commits to another's digest of this window, and shows the other's bytes",
        &[9, 11],
    ),
    miner_kind("copycat-last", "sends another's work of the last window under its own header", &[24]),
    miner_kind("copycat-mixture", "sends the mean of three others' work of the last window", &[24]),
    miner_kind("freeloader-zeros", "does not train, and sends nothing but zeros", &[14]),
    miner_kind("freeloader-random", "does not train, and sends noise of the usual size", &[22, 24]),
    miner_kind("freeloader-tiny", "trains for one step, and enlarges it to the usual size", &[22, 24]),
    miner_kind("freeloader-replay", "trains for one window, and sends that work ever after", &[22, 24]),
    miner_kind("wrong-data", "trains on sequences of its own choice", &[24]),
    miner_kind("partial-data", "trains on a tenth of its sequences, and declares all", &[24]),
    miner_kind("half-data", "trains on half of its sequences, and declares all", &[24]),
    miner_kind("last-layers", "trains the last block and the output only, and declares all", &[22, 23, 24]),
    miner_kind("big-rate", "trains the last block only, at a big rate", &[22, 23, 24]),
    miner_kind("truncated", "trains on the first quarter of each sequence", &[22, 23, 24]),
    miner_kind("half-tokens", "trains on the first half of each sequence", &[22, 23, 24]),
    miner_kind("distilled", "adds one step on own data to another seat's work of the window", &[22, 24]),
    miner_kind("noise", "adds as much noise to its work as there is work", &[22, 23, 24]),
    miner_kind("noise-loud", "adds four times as much noise to its work as there is work", &[22, 23, 24]),
    miner_kind("poison-sign", "sends its work backwards", &[22, 25]),
    miner_kind("poison-norm", "sends its work backwards, and a thousand times as large", &[14, 17, 25]),
    miner_kind("poison-one-shot", "works honestly for a while, and then poisons once", &[17, 25]),
    miner_kind("newcomer-bomb", "sends the largest values that are no fault, as a newcomer", &[16, 17, 19]),
    miner_kind("mute", "does not train, and sends levels too small to change a weight", &[14]),
    miner_kind("junk", "does not train, and sends levels that hardly change a weight", &[17, 24]),
    miner_kind("quitter", "works honestly for a while, and then sends junk", &[22, 24]),
    miner_kind("late", "commits late in even windows, and uploads late in odd ones", &[11, 14]),
    miner_kind(
        "withholder",
        "trains for one step, and shows its bytes to some validators only",
        &[14, 15, 23],
    ),
    miner_kind("equivocator", "commits twice, and shows what it committed to first", &[11, 14]),
    miner_kind("malformed", "provokes every fault, one a window, in turn", &[8, 9, 14]),
    Kind { in_pairs: true, ..miner_kind("sybil", "sends the work of one training from two seats", &[24]) },
    miner_kind("clock-liar", "uploads late, and has its bucket say otherwise", &[1, 14]),
    miner_kind("slow-loris", "answers its readers a few bytes at a time", &[13]),
    validator_kind("weight-copier", "scores no seat, and posts the last consensus", &[30, 31]),
    validator_kind(
        "receipt-copier",
        "scores no seat, and posts what the latest public receipts add up to",
        &[27, 30],
    ),
    validator_kind(
        "prober",
        "measures no contribution, and answers probes with the losses before",
        &[27, 30],
    ),
    validator_kind("inventor", "makes its measurements up", &[27, 31]),
    validator_kind("favourer", "posts ten times a friend's weight", &[27, 31]),
    validator_kind("absentee", "attests and votes never, and posts weights", &[3]),
    validator_kind(
        "lazy-voter",
        "computes nothing, and copies attestations, votes and weights",
        &[14, 30, 31],
    ),
    validator_kind("false-merge", "votes another model than the selection gives", &[17, 19]),
    validator_kind("third-excluder", "leaves a rival out of its attestations and weights", &[14, 31]),
    validator_kind("paid-stall", "never votes, and posts weights", &[32]),
    validator_kind("whitewasher", "attests every faulty contribution as valid", &[14, 27]),
    validator_kind("two-faced", "attests faults as valid, and tells of them in its receipts", &[21]),
];

/// Returns the kind of this name.
pub fn kind(name: &str) -> Option<&'static Kind> {
    KINDS.iter().find(|kind| kind.name == name)
}

/// Returns a miner's strategy by name; `None` if no miner has this name.
pub fn miner(name: &str, setup: &Setup) -> Option<Box<dyn Adversary>> {
    Some(match name {
        "copycat" => Box::new(copycat::Copycat),
        "copycat-last" => Box::new(copycat_last::CopycatLast { mixed: 1 }),
        "copycat-mixture" => Box::new(copycat_last::CopycatLast { mixed: copycat_last::MIXTURE }),
        "freeloader-zeros" => Box::new(freeloader::Freeloader::Zeros),
        "freeloader-random" => Box::new(freeloader::Freeloader::Random),
        "freeloader-tiny" => Box::new(freeloader::Freeloader::TinySteps),
        "freeloader-replay" => Box::new(freeloader::Freeloader::replay()),
        "wrong-data" => Box::new(wrong_data::WrongData),
        "partial-data" => Box::new(partial_data::PartialData { parts: 10 }),
        "half-data" => Box::new(partial_data::PartialData { parts: 2 }),
        "last-layers" => Box::new(part_of_model::PartOfModel::LastLayers),
        "big-rate" => Box::new(part_of_model::PartOfModel::BigRate),
        "truncated" => Box::new(truncated::Truncated { parts: 4 }),
        "half-tokens" => Box::new(truncated::Truncated { parts: 2 }),
        "distilled" => Box::new(distilled::Distilled::new(setup.index, setup.mailbox.clone())),
        "noise" => Box::new(noise::Noise { times: 1.0 }),
        "noise-loud" => Box::new(noise::Noise { times: noise::LOUD }),
        "poison-sign" => Box::new(poison::Poison::SignFlip),
        "poison-norm" => Box::new(poison::Poison::HugeNorm),
        "poison-one-shot" => Box::new(poison::Poison::one_shot(setup.good_windows)),
        "newcomer-bomb" => Box::new(newcomer_bomb::NewcomerBomb),
        "mute" => Box::new(useless::Useless::mute()),
        "junk" => Box::new(useless::Useless::junk()),
        "quitter" => Box::new(useless::Useless::quitter(setup.good_windows)),
        "late" => Box::new(late::Late),
        "withholder" => Box::new(withholder::Withholder { validators: setup.validators }),
        "equivocator" => Box::new(equivocator::Equivocator),
        "malformed" => Box::new(malformed::Malformed::default()),
        "sybil" => Box::new(sybil::Sybil::new(setup.index, setup.mailbox.clone())),
        "clock-liar" => Box::new(clock_liar::ClockLiar),
        "slow-loris" => Box::new(slow_loris::SlowLoris),
        _ => return None,
    })
}

/// Returns a validator's strategy by name; `None` if no validator has this name.
pub fn validator(name: &str, setup: &Setup) -> Option<Box<dyn Strategy>> {
    Some(match name {
        "weight-copier" => Box::new(weight_copier::WeightCopier),
        "receipt-copier" => Box::new(receipt_copier::ReceiptCopier::default()),
        "prober" => Box::new(prober::Prober),
        "inventor" => Box::new(inventor::Inventor { seed: u64::from(setup.index) }),
        "favourer" => Box::new(favourer::Favourer { friend: setup.friend }),
        "absentee" => Box::new(absentee::Absentee),
        "lazy-voter" => Box::new(lazy_voter::LazyVoter::default()),
        "false-merge" => Box::new(false_merge::FalseMerge),
        "third-excluder" => Box::new(third_excluder::ThirdExcluder),
        "paid-stall" => Box::new(paid_stall::PaidStall),
        "whitewasher" => Box::new(whitewasher::Whitewasher),
        "two-faced" => Box::new(two_faced::TwoFaced::default()),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_somebody_in_the_role_that_it_says() {
        for kind in KINDS {
            let setup = Setup::default();
            assert_eq!(miner(kind.name, &setup).is_some(), kind.role == Role::Miner, "{}", kind.name);
            assert_eq!(validator(kind.name, &setup).is_some(), kind.role == Role::Validator, "{}", kind.name);
            assert_eq!(KINDS.iter().filter(|other| other.name == kind.name).count(), 1);
            assert!(!kind.ends_at.is_empty() && kind.ends_at.iter().all(|rule| (1..=33).contains(rule)));
        }
        assert!(kind("honest").is_none());
    }

    #[test]
    fn the_buckets_of_three_adversaries_have_faults() {
        let has_faults = |kind: &&Kind| {
            let adversary = miner(kind.name, &Setup::default());
            adversary.is_some_and(|adversary| adversary.faults() != store::faults::Faults::default())
        };
        let names: Vec<_> = KINDS.iter().filter(has_faults).map(|kind| kind.name).collect();
        assert_eq!(names, ["withholder", "clock-liar", "slow-loris"]);
    }
}
