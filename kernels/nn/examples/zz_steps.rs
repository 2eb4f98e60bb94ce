use mettle_nn::{Device, Trainer};
use model::{ModelConfig, Optimiser, Recipe, init_flat};
fn main() -> Result<(), Box<dyn std::error::Error>> {
    for (preset, batch, micro) in [("117k", 8, 8), ("localnet", 16, 16), ("1m", 6, 4)] {
        for optimiser in [Optimiser::AdamW, Optimiser::Muon] {
            let config = ModelConfig::preset(preset)?;
            let recipe = Recipe { batch, micro_batch: micro, warmup_steps: 5, optimiser, ..Recipe::default() };
            let theta = init_flat(&config, 1)?;
            let mut state = 1u64;
            let mut token = || {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let uniform = (state >> 33) as f64 / f64::from(1u32 << 31);
                (uniform * uniform * config.vocab as f64) as u32
            };
            let data: Vec<Vec<Vec<u32>>> = (0..4)
                .map(|_| (0..batch).map(|_| (0..=config.seq_len).map(|_| token()).collect()).collect()).collect();
            let mut trainer = Trainer::new(&config, &recipe, Device::CPU, &theta)?;
            for step in 0..20 {
                let step = trainer.step(&data[step % 4])?;
                println!("{preset} {optimiser:?} {:?} {:?}", step.loss, step.gradient_norm);
            }
            let mut bytes = Vec::new();
            trainer.write_state(&mut bytes)?;
            trainer.write_weights(&mut bytes)?;
            println!("{preset} {optimiser:?} {}", blake3::hash(&bytes));
        }
    }
    Ok(())
}
