//! Cost of calls and steps in the largest run (PROT-33).

use super::*;
use crate::full::{self, RUN, uid};
use frame::benchmarking::prelude::*;
use pallet_registry::{Ending, OnSeats as _};
use pallet_windows::Epochs as _;
use protocol::{Digest, Hotkey, Window, reveal::commitment};

#[benchmarks]
mod benchmarks {
    use super::*;

    #[benchmark]
    fn commit() {
        full::run_with::<T>(1, 1, 3);
        let signer = full::hotkey::<T>(uid(1));

        #[extrinsic_call]
        _(RawOrigin::Signed(signer), RUN, 3, Digest([1; 32]));

        assert!(WeightCommitments::<T>::contains_key((RUN, 3), uid(1)));
    }

    #[benchmark]
    fn reveal(s: Linear<1, 1024>) {
        full::run_with::<T>(s, 1, 4);
        let signer = full::hotkey::<T>(uid(s));
        let hotkey = Hotkey(signer.clone().into());
        let weights = full::vote::<T>(s, uid(s));
        let sealed = WeightCommitment { hash: commitment(&weights, &[3; 32], &hotkey), hotkey };
        WeightCommitments::<T>::insert((RUN, 3), uid(s), sealed);

        #[extrinsic_call]
        _(RawOrigin::Signed(signer), RUN, 3, weights, [3; 32]);

        assert!(WeightVotes::<T>::contains_key((RUN, 3), uid(s)));
    }

    #[benchmark]
    fn answer_probes() {
        full::run_with::<T>(1023, 1, 4);
        let (answers, validator) = full::drawn::<T>(1023);
        let signer = full::hotkey::<T>(validator);

        #[extrinsic_call]
        _(RawOrigin::Signed(signer), RUN, 3, answers);

        assert!(ShownProbes::<T>::contains_key((RUN, 3), validator));
    }

    #[benchmark]
    fn close(v: Linear<1, 64>, s: Linear<1, 1024>) {
        full::run_with::<T>(s, v, 4);
        full::revealed::<T>(s, v, 3);
        let (answers, _) = full::drawn::<T>(s);
        let losses = answers.into_iter().map(|answer| answer?.losses);
        let shown = ProbeAnswers::truncate_from(losses.collect());
        for member in full::members(s, v) {
            ShownProbes::<T>::insert((RUN, 3), member.uid, shown.clone());
        }
        let active_set = full::members(s, v);

        #[block]
        {
            Pallet::<T>::close(RUN, 3, 2, &active_set);
        }

        assert!(WeightVotes::<T>::iter_prefix((RUN, 3)).next().is_none());
        assert_eq!(ConsensusWeights::<T>::get(RUN).len(), s as usize);
    }

    #[benchmark]
    fn vacated() {
        full::run_with::<T>(1024, 1, 4);
        full::revealed::<T>(1024, 1, 3);
        let validator = uid(1024);
        let seat = pallet_registry::SeatsOf::<T>::get(RUN, validator).expect("the seat is there");
        let epoch_windows = protocol::RunParams::default().epoch_windows;
        let ending = Ending { window: Window(4 * epoch_windows), until: Window(9 * epoch_windows) };

        #[block]
        {
            Pallet::<T>::vacated(RUN, validator, &seat, ending);
        }

        assert!(DepartedOf::<T>::contains_key((RUN, 3), validator));
    }

    impl_benchmark_test_suite!(Pallet, crate::mock::empty_chain(), crate::mock::Test);
}
