//! The model card of an exported model: its description, origin and contributors.

use model::RunSpec;
use protocol::{
    Digest, GenesisHash, RunId, Window,
    view::{RunView, SeatView},
};
use std::{cmp::Reverse, fmt::Write as _};
use watch::{text, units};

/// Maximum number of seats on the card, those with the most pay.
const SEATS_MAX: usize = 100;

/// Origin of the model on the card.
pub(super) struct Provenance<'a> {
    pub spec: &'a RunSpec,
    pub run: RunId,
    pub window: Window,
    pub lineage: Digest,
    pub root: Digest,
    /// `None` for a node's own model, which is exported without the chain.
    pub chain: Option<&'a ChainFacts>,
}

/// The chain's facts on the run.
pub(super) struct ChainFacts {
    pub genesis: GenesisHash,
    pub run: RunView,
    pub seats: Vec<SeatView>,
}

/// Writes Markdown with the front matter that model hubs read. Texts from other parties are printable and cannot add
/// markup.
pub(super) fn card(of: &Provenance<'_>) -> String {
    let Provenance { spec, run, window, lineage, root, chain } = of;
    let name = plain(&spec.name);
    let model = &spec.model;
    let mut card = format!(
        "---\nlibrary_name: transformers\npipeline_tag: text-generation\ntags:\n- mettle\n---\n\n\
         # `{name}`, window {}\n\n\
         A Llama of {} parameters for sequences of {} tokens, of run {run} of a Mettle network. It continues text; it was not trained to follow instructions.\n\n\
         ## Provenance\n\n| | |\n|---|---|\n| run | {run}, `{name}` |\n| window | {} |\n| lineage | `{lineage}` |\n\
         | weights root | `{root}` |\n| specification | `{}` |\n",
        window.0,
        units::thousands(model.parameters() as f64),
        model.seq_len,
        window.0,
        spec.digest(),
    );
    if let Some(ChainFacts { genesis, run, .. }) = chain {
        let _ = write!(card, "| chain, block 0 | `{genesis}` |\n| data, manifest | `{}` |\n", run.manifest);
    }
    card += "\nThe lineage is a hash chain over the run, its first model and every update since.\n";
    if let Some(ChainFacts { genesis, seats, .. }) = chain {
        let _ = write!(
            card,
            "While the chain keeps the checkpoint, anyone can export it from the validators' buckets and compare the \
             weights root:\n\n    mettle model export --published --chain URL --genesis {genesis} --run {run} \
             --window {} --out model --json\n\n",
            window.0
        );
        let mut paid: Vec<&SeatView> = seats.iter().filter(|seat| 0 < seat.earned).collect();
        paid.sort_by_key(|seat| Reverse(seat.earned));
        let _ = write!(card, "## Who was paid for it\n\n{} of today's seats", paid.len());
        let named = paid.len().min(SEATS_MAX);
        card += if named < paid.len() { ", those with the most pay:\n\n" } else { ":\n\n" };
        card += "| seat | role | hotkey | paid |\n|---|---|---|---|\n";
        for SeatView { id, role, hotkey, earned, .. } in &paid[..named] {
            let _ = writeln!(card, "| {} | {role} | `{hotkey}` | {} |", id.uid, units::amount(*earned));
        }
    }
    card += "\n## Licence\n\nThe run's specification names no licence, neither of the weights nor of the data: ask the run's owner \
             before you publish them.\n";
    card
}

/// Prepares a name for a code span: removes control characters and those that end a span.
fn plain(name: &str) -> String {
    let is_kept = |c: char| c.is_alphanumeric() || " -_.,+".contains(c);
    text::readable(name).chars().map(|c| if is_kept(c) { c } else { '?' }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;
    use model::{ModelConfig, Recipe};
    use watch::sample::network;

    fn spec(name: &str) -> RunSpec {
        let model = ModelConfig {
            vocab: 256,
            d_model: 32,
            layers: 2,
            heads: 2,
            kv_heads: 2,
            d_ff: 64,
            seq_len: 64,
            rope_theta: 10_000.0,
            norm_epsilon: 1e-5,
        };
        RunSpec { version: 1, name: name.into(), model, seed: 0, weights: None, recipe: Recipe::default() }
    }

    #[test]
    fn a_card_names_run_lineage_data_and_contributors() {
        let observer = network();
        let facts = ChainFacts {
            genesis: GenesisHash([7; 32]),
            run: observer.run.clone(),
            seats: observer.seats.clone(),
        };
        let spec = spec("code");
        let of = Provenance {
            spec: &spec,
            run: RunId(3),
            window: Window(12),
            lineage: Digest([1; 32]),
            root: Digest([2; 32]),
            chain: Some(&facts),
        };
        expect![[r#"
            ---
            library_name: transformers
            pipeline_tag: text-generation
            tags:
            - mettle
            ---

            # `code`, window 12

            A Llama of 28.8 k parameters for sequences of 64 tokens, of run 3 of a Mettle network. It continues text; it was not trained to follow instructions.

            ## Provenance

            | | |
            |---|---|
            | run | 3, `code` |
            | window | 12 |
            | lineage | `0101010101010101010101010101010101010101010101010101010101010101` |
            | weights root | `0202020202020202020202020202020202020202020202020202020202020202` |
            | specification | `abbe957999899b40b3b47ad9db0650f275931d77b749f95497a8a6e4539d08eb` |
            | chain, block 0 | `0707070707070707070707070707070707070707070707070707070707070707` |
            | data, manifest | `0000000000000000000000000000000000000000000000000000000000000000` |

            The lineage is a hash chain over the run, its first model and every update since.
            While the chain keeps the checkpoint, anyone can export it from the validators' buckets and compare the weights root:

                mettle model export --published --chain URL --genesis 0707070707070707070707070707070707070707070707070707070707070707 --run 3 --window 12 --out model --json

            ## Who was paid for it

            7 of today's seats:

            | seat | role | hotkey | paid |
            |---|---|---|---|
            | 4 | miner | `0000000000000000000000000000000000000000000000000000000000000000` | 1184.71 MTL |
            | 3 | miner | `0000000000000000000000000000000000000000000000000000000000000000` | 297.39 MTL |
            | 0 | validator | `0000000000000000000000000000000000000000000000000000000000000000` | 61.23 MTL |
            | 1 | validator | `0000000000000000000000000000000000000000000000000000000000000000` | 61.23 MTL |
            | 2 | validator | `0000000000000000000000000000000000000000000000000000000000000000` | 61.23 MTL |
            | 7 | miner | `0000000000000000000000000000000000000000000000000000000000000000` | 0.50 MTL |
            | 6 | miner | `0000000000000000000000000000000000000000000000000000000000000000` | <0.01 MTL |

            ## Licence

            The run's specification names no licence, neither of the weights nor of the data: ask the run's owner before you publish them.
        "#]].assert_eq(&card(&of));
        let own = card(&Provenance { chain: None, ..of });
        assert!(!own.contains("manifest") && !own.contains("paid"), "{own}");
    }

    #[test]
    fn a_hostile_name_makes_no_markup() {
        let spec = spec("x`|](http://e)<script>\n---\u{1b}[2J");
        let (lineage, root) = (Digest([1; 32]), Digest([2; 32]));
        let of = Provenance { spec: &spec, run: RunId(3), window: Window(0), lineage, root, chain: None };
        let card = card(&of);
        assert!(card.contains("# `x????http???e??script?"), "{card}");
        assert!(!card.contains("<script>") && !card.contains('\u{1b}') && !card.contains("](http"), "{card}");
    }
}
