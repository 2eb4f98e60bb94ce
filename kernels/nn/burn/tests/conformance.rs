//! Tests of Burn's engine on the CPU: the suite of all engines, and a comparison with the fused engine.

use model::{ModelConfig, Optimiser, Recipe, init_flat};
use nn::{
    Device, EngineKind,
    conformance::{self, Recorded, Suite, gradient_error, loss_and_gradients, recipe},
    engine,
};
use proptest::prelude::*;

fn burn() -> Suite {
    Suite::new(|config, recipe, flat| {
        let device = Device { engine: Some(EngineKind::Burn), ..Device::CPU };
        mettle_nn_burn::open(device, config, recipe, flat)
    })
}

fn fused() -> Suite {
    Suite::new(|config, recipe, flat| engine::open(Device::CPU, config, recipe, flat))
}

macro_rules! tests {
    ($($name:ident)*) => {
        $(
            #[test]
            fn $name() {
                conformance::$name(&burn());
            }
        )*
    };
}
nn::for_each_check!(tests);

/// With `UPDATE_EXPECT=1` the test writes the file first.
#[test]
fn the_recorded_results_are_those_of_burn() {
    if std::env::var_os("UPDATE_EXPECT").is_some() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../src/conformance/recorded.json");
        std::fs::write(path, Recorded::of(&burn()).to_json()).unwrap();
        return;
    }
    Recorded::of_burn().check(&burn());
}

#[test]
fn the_fused_engine_has_its_losses_and_gradients() {
    conformance::losses_and_gradients_are_those_of(&fused(), &burn());
}

#[test]
fn the_fused_engine_takes_its_steps_by_adamw_and_by_muon() {
    for optimiser in [Optimiser::AdamW, Optimiser::Muon] {
        conformance::steps_are_those_of(&fused(), &burn(), &Recipe { optimiser, ..recipe() });
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn the_fused_engine_has_its_gradients_for_models_of_any_shape(
        vocab in 2usize..300, layers in 1usize..4, kv_heads in 1usize..3, group in 1usize..3, half in 1usize..9,
        d_ff in 2usize..70, seq_len in 1usize..80, count in 1usize..5, seed: u64,
    ) {
        let heads = kv_heads * group;
        let d_model = heads * 2 * half;
        let config = ModelConfig { vocab, d_model, layers, heads, kv_heads, d_ff, seq_len, ..conformance::tiny() };
        let flat: Vec<f32> = init_flat(&config, 1).unwrap().into_iter().map(|value| 2.0 * value).collect();
        let batch = conformance::skewed_sequences(&config, count, seed);
        let recipe = Recipe { batch: count, micro_batch: count, ..recipe() };
        let [(loss, gradients), (exact_loss, exact)] =
            [fused(), burn()].map(|suite| loss_and_gradients(&suite, &config, &recipe, &flat, &batch));
        prop_assert!((loss - exact_loss).abs() < 2e-4 * exact_loss.max(1.0), "{loss} and {exact_loss}");
        // A norm scales up a row near zero, including its rounding errors.
        let error = gradient_error(&gradients, &exact);
        prop_assert!(error < 5e-3, "gradients {error:.1e} apart");
    }
}

/// Two ranks, each a thread with Burn's engine; the optimiser is that of the ranks.
#[test]
fn ranks_with_burns_engine_take_its_steps_by_adamw_and_by_muon() {
    use nn::{
        collective::threads,
        engine::{Connect, DataParallel},
    };
    fn local(
        config: &ModelConfig,
        recipe: &Recipe,
        flat: &[f32],
    ) -> Result<Box<dyn nn::RankEngine>, nn::ModelError> {
        let device = Device { engine: Some(EngineKind::Burn), ..Device::CPU };
        mettle_nn_burn::open_rank(device, config, recipe, flat)
    }
    let ranks = Suite::new(|config, recipe, flat| {
        let Some(recipe) = recipe else { return (burn().open)(config, None, flat) };
        let connect: Connect = Box::new(|| {
            let mut meshes = threads(2, std::time::Duration::from_secs(60)).into_iter();
            let (first, second) = (meshes.next().unwrap(), meshes.next().unwrap());
            std::thread::spawn(move || engine::serve(Box::new(second), &local));
            Ok(Box::new(first))
        });
        Ok(Box::new(DataParallel::open(config, recipe, flat, &local, connect)?))
    });
    for optimiser in [Optimiser::AdamW, Optimiser::Muon] {
        conformance::steps_are_those_of(&ranks, &burn(), &Recipe { optimiser, ..recipe() });
    }
    conformance::two_runs_end_with_the_same_bits(&ranks);
}
