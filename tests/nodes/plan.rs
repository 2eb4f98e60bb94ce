//! `mettle plan` computes the chain's load with the runtime's weights, which its crate does not import.

use mettle::plan::weight;
use mettle_runtime::{MaxSeats, Runtime, free_calls};
use pallet_registry::weight_info as registry;
use pallet_rewards::weight_info as rewards;
use pallet_weights::weight_info as weights;
use pallet_windows::weight_info as windows;
use sp_runtime::traits::Get;

#[test]
fn a_plan_s_weights_are_the_runtime_s() {
    for (planned, of) in [
        (weight::commit(), windows::commit::<Runtime>()),
        (weight::attest(), windows::attest::<Runtime>(1024)),
        (weight::vote(), windows::vote::<Runtime>()),
        (weight::anchor_receipts(), windows::anchor_receipts::<Runtime>()),
        (weight::free_call_check(), windows::free_call_check::<Runtime>()),
        (weight::commit_weights(), weights::commit::<Runtime>()),
        (weight::answer_probes(), weights::answer_probes::<Runtime>()),
        (weight::task(), windows::task::<Runtime>()),
        (weight::record_hash(), windows::record_hash::<Runtime>()),
        (weight::draw_probes(10), windows::draw_probes::<Runtime>(10)),
    ] {
        assert_eq!(planned, of.ref_time(), "{of:?}");
    }
    for (miners, validators) in [(1, 1), (192, 8), (1024, 64)] {
        let (m, v) = (u64::from(miners), u64::from(validators));
        let opens =
            registry::window_opens::<Runtime>(0).saturating_add(windows::open::<Runtime>(miners, validators));
        for (planned, of) in [
            (weight::reveal_weights(m), weights::reveal::<Runtime>(miners)),
            (weight::open(m, v), opens),
            (weight::record_deal_seed(v), windows::record_deal_seed::<Runtime>(validators)),
            (weight::deal_next(m, v), windows::deal_next::<Runtime>(miners, validators)),
            (weight::select(m, v), windows::select::<Runtime>(miners, validators)),
            (weight::finalise(v), windows::finalise::<Runtime>(validators)),
            (weight::prune(m + v), windows::prune::<Runtime>(miners + validators)),
            (weight::close_epoch(v, m), weights::close::<Runtime>(validators, miners)),
            (weight::pay_epoch(m + v), rewards::pay_epoch::<Runtime>(miners + validators)),
        ] {
            assert_eq!(planned, of.ref_time(), "{miners} miners, {validators} validators: {of:?}");
        }
    }
}

#[test]
fn a_plan_s_limits_are_the_runtime_s() {
    assert_eq!(weight::SEATS_MAX, <MaxSeats as Get<u32>>::get());
    assert_eq!(weight::ROOM_OF_RUN, free_calls::room_of_one());
}
