//! The questions about the format, and their variants.

use super::{
    codec::{Codec, Groups, Values},
    level::LevelFormat,
    training::{Scheme, Task},
};
use model::ModelConfig;
use protocol::params::Density;

/// `ρ` of the protocol's default: 1/64.
pub const DENSITY: Density = Density(64);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub enum Question {
    /// Chunks of consecutive values, or tiles of matrices?
    Chunking,
    /// How many values should be sent?
    Density,
    /// How many bits for a magnitude?
    Bits,
    /// How precise must a level be?
    Levels,
    /// Which code for the indices?
    IndexCode,
    /// What does the second compression, that of the merge, cost?
    SecondCompression,
    /// All questions.
    All,
}

impl Question {
    pub const EACH: [Question; 6] = [
        Question::Chunking,
        Question::Density,
        Question::Bits,
        Question::Levels,
        Question::IndexCode,
        Question::SecondCompression,
    ];

    pub fn title(self) -> &'static str {
        match self {
            Question::Chunking => "chunks of consecutive values, or tiles?",
            Question::Density => "density",
            Question::Bits => "bits of a magnitude",
            Question::Levels => "precision of levels",
            Question::IndexCode => "code of the indices",
            Question::SecondCompression => "the merge's second compression",
            Question::All => "all",
        }
    }

    /// The model of the question: the `117k` preset with one layer instead of two, to save time.
    ///
    /// Chunks and tiles are compared on a wider model: at width 64, a tile of 64×64 would equal a chunk of 4096. A
    /// chunk of 4096 covers half a row of a large model's matrices, as a chunk of 64 does at width 128; hence both
    /// sizes.
    pub fn shape(self, vocab: usize) -> ModelConfig {
        let preset = ModelConfig::preset("117k").expect("the preset is in the list");
        let narrow = ModelConfig { vocab, layers: 1, ..preset };
        match self {
            Question::Chunking => ModelConfig { d_model: 128, heads: 4, kv_heads: 4, d_ff: 128, ..narrow },
            _ => narrow,
        }
    }

    /// The variants to train, the protocol's codec first.
    pub fn variants(self) -> Vec<Variant> {
        let ours = Codec::ours(DENSITY);
        let ours_merged = Codec::ours(union(DENSITY));
        let sparse = |name: String, contribution, merge| Variant {
            name,
            scheme: Scheme::Sparse { contribution, merge },
            nudged: false,
        };
        let both = |name: String, values: Values| {
            sparse(name, Codec { values, ..ours }, Some(Codec { values, ..ours_merged }))
        };
        let sent = |name: String, values: Values| sparse(name, Codec { values, ..ours }, Some(ours_merged));
        let mut variants = vec![
            sparse("ours".into(), ours, Some(ours_merged)),
            Variant {
                name: "ours, weights nudged".into(),
                scheme: Scheme::Sparse { contribution: ours, merge: Some(ours_merged) },
                nudged: true,
            },
            Variant { name: "dense mean".into(), scheme: Scheme::Dense { rate: 1.0 }, nudged: false },
            Variant { name: "one worker alone".into(), scheme: Scheme::Alone, nudged: false },
        ];
        match self {
            Question::Chunking => {
                variants.retain(|variant| variant.scheme != Scheme::Alone);
                // A small chunk keeps few values; these are sent exactly, so that the precision of levels has no
                // effect.
                for (groups, values) in [
                    (Groups::Tiles(64), ours.values),
                    (Groups::Consecutive(64), Values::Exact),
                    (Groups::Tiles(8), Values::Exact),
                ] {
                    let change = |codec: Codec| Codec { groups, values, ..codec };
                    variants.push(sparse(
                        format!("{groups}, {values}"),
                        change(ours),
                        Some(change(ours_merged)),
                    ));
                }
            }
            Question::Density => {
                // The mean over hits is a longer step than the dense mean where not all miners sent a value. Longer
                // dense steps separate this effect from that of the density.
                for rate in [1.5, 2.0] {
                    let name = format!("dense mean, outer rate {rate}");
                    variants.push(Variant { name, scheme: Scheme::Dense { rate }, nudged: false });
                }
                for density in [32, 128, 256, 512].map(Density) {
                    let name = format!("ρ = 1/{}", 4096 / density.0);
                    variants.push(sparse(name, Codec::ours(density), Some(Codec::ours(union(density)))));
                }
            }
            Question::Bits => {
                let format = LevelFormat::OURS;
                for values in
                    [Values::Exact, Values::Mean(format), Values::TwoBest(format), Values::Four(format)]
                {
                    variants.push(sent(values.to_string(), values));
                }
            }
            Question::Levels => {
                for format in [LevelFormat::F32, LevelFormat::E5M2, LevelFormat::E4M3] {
                    variants.push(both(format!("levels {format}"), Values::Two(format)));
                }
            }
            Question::SecondCompression => {
                let merged = |name: &str, merge| sparse(name.into(), ours, merge);
                let at = |share: f64| Codec::ours(Density((f64::from(ours_merged.density.0) * share) as u16));
                let format = LevelFormat::OURS;
                variants.extend([
                    merged("merge not encoded again", None),
                    merged("half the union's density", Some(at(0.5))),
                    merged("twice the union's density", Some(at(2.0))),
                    merged("merge exact", Some(Codec { values: Values::Exact, ..ours_merged })),
                    merged("merge sign × mean", Some(Codec { values: Values::Mean(format), ..ours_merged })),
                    merged(
                        "merge sign + 2 bits",
                        Some(Codec { values: Values::Four(format), ..ours_merged }),
                    ),
                ]);
            }
            // An index code changes no value, so one run gives the residuals for all codes.
            Question::IndexCode => variants.truncate(1),
            Question::All => variants.clear(),
        }
        variants
    }

    /// Codecs to measure on the residuals of the protocol's run, without training.
    pub fn measured(self) -> Vec<(String, Codec)> {
        let ours = Codec::ours(DENSITY);
        let codecs: Vec<Codec> = match self {
            Question::Chunking => {
                let groups = [64, 16, 8].map(Groups::Tiles);
                let consecutive = [4096, 256, 64, 16384, 1024].map(Groups::Consecutive);
                groups.into_iter().chain(consecutive).map(|groups| Codec { groups, ..ours }).collect()
            }
            Question::Density => {
                [32, 64, 128, 256, 512].map(|density| Codec { density: Density(density), ..ours }).to_vec()
            }
            Question::Bits => [
                Values::Mean(LevelFormat::OURS),
                Values::Two(LevelFormat::OURS),
                Values::TwoBest(LevelFormat::OURS),
                Values::Four(LevelFormat::OURS),
                Values::Exact,
            ]
            .map(|values| Codec { values, ..ours })
            .to_vec(),
            Question::Levels => {
                [LevelFormat::F32, LevelFormat::Bf16, LevelFormat::OURS, LevelFormat::E5M2, LevelFormat::E4M3]
                    .map(|format| Codec { values: Values::Two(format), ..ours })
                    .to_vec()
            }
            Question::IndexCode => {
                [16, 64, 256, 512].map(|density| Codec { density: Density(density), ..ours }).to_vec()
            }
            Question::SecondCompression | Question::All => Vec::new(),
        };
        let name = |codec: &Codec| match self {
            Question::Chunking => codec.groups.to_string(),
            Question::Density | Question::IndexCode => format!("ρ = 1/{}", 4096 / codec.density.0),
            _ => codec.values.to_string(),
        };
        codecs.into_iter().map(|codec| (name(&codec), codec)).collect()
    }
}

/// A variant to train.
#[derive(Clone, Debug)]
pub struct Variant {
    pub name: String,
    pub scheme: Scheme,
    /// Whether the last bit of every weight of `θ_0` is changed, to measure noise. A single changed weight may belong
    /// to a token that does not occur for many windows.
    pub nudged: bool,
}

impl Variant {
    /// The initial weights.
    pub fn start(&self, task: &Task) -> Vec<f32> {
        let mut theta = task.theta.clone();
        if self.nudged {
            theta.iter_mut().for_each(|value| *value = value.next_up());
        }
        theta
    }
}

/// Miners in every run.
pub const MINERS: usize = 4;

/// The expected density of the union of the miners' coordinates, `1 − (1 − ρ)^R` (PROT-18).
pub fn union(density: Density) -> Density {
    let rho = f64::from(density.0) / 4096.0;
    Density((4096.0 * (1.0 - (1.0 - rho).powi(MINERS as i32))).round() as u16)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_question_starts_with_ours_and_has_distinct_names() {
        for question in Question::EACH {
            let variants = question.variants();
            assert_eq!(variants[0].name, "ours");
            let names: BTreeSet<&str> = variants.iter().map(|variant| variant.name.as_str()).collect();
            assert_eq!(names.len(), variants.len(), "{question:?}");
            question.shape(300).validate().unwrap();
            let measured: BTreeSet<String> = question.measured().into_iter().map(|(name, _)| name).collect();
            assert_eq!(measured.len(), question.measured().len(), "{question:?}");
        }
    }

    #[test]
    fn the_union_of_four_miners_equals_the_localnets_merge_density() {
        // (1 − (1 − 1/8)^4) · 4096.
        assert_eq!(union(Density(512)), Density(1695));
        assert_eq!(union(Density(64)), Density(250));
    }
}
