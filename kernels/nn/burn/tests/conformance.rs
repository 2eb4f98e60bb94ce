//! Burn's engine on the CPU: the suite of all engines; and beside the fused engine, whose oracle it is.

use model::{Optimiser, Recipe};
use nn::{
    Device, EngineKind,
    conformance::{self, Suite, recipe},
    engine,
};

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
