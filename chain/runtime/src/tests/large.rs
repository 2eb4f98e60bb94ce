//! The largest run, 1,024 miners and 64 validators, in windows of two minutes: every call fits into its blocks.

use super::*;
use frame::{
    deps::sp_core::{Pair, ed25519},
    prelude::DispatchClass,
};

const MINERS: u16 = 1024;
const VALIDATORS: u16 = 64;
/// Two minutes at six seconds per block.
const WINDOW_BLOCKS: u32 = 20;

/// The key of seat `uid`.
pub(super) struct Seat(ed25519::Pair);

impl Seat {
    pub(super) fn of(uid: u16) -> Seat {
        let mut seed = [7; 32];
        seed[..2].copy_from_slice(&uid.to_le_bytes());
        Seat(ed25519::Pair::from_seed(&seed))
    }

    pub(super) fn hotkey(&self) -> Hotkey {
        Hotkey(self.0.public().0)
    }
}

impl Signer for Seat {
    fn account(&self) -> AccountId {
        self.0.public().into()
    }
    fn signature(&self, message: &[u8]) -> Signature {
        self.0.sign(message).into()
    }
}

impl Hot for Seat {
    fn secret(&self) -> SigningKey {
        SigningKey::from_bytes(&self.0.seed())
    }
}

fn params() -> RunParams {
    RunParams {
        schedule: Schedule {
            start: Height(40),
            blocks_per_window: WINDOW_BLOCKS,
            commit_by: 10,
            reveal_by: 11,
            attest_by: 15,
            vote_by: 18,
        },
        epoch_windows: 1,
        reveal_windows: 1,
        places: 20,
        reserve_places: 1000,
        newcomer_windows: 100,
        ..RunParams::default()
    }
}

/// Fills blocks as an author does.
pub(super) struct Author {
    pub(super) chain: Chain,
    /// Largest share of a block's weight, in thousandths.
    heaviest: u64,
}

impl Author {
    pub(super) fn of(chain: Chain) -> Author {
        Author { chain, heaviest: 0 }
    }

    /// Makes a block with as many of `waiting` as fit.
    fn block(&mut self, waiting: &mut std::collections::VecDeque<UncheckedExtrinsic>) {
        let number = self.chain.height() + 1;
        let slot = u64::from(number);
        let digest = HeaderDigest { logs: vec![DigestItem::PreRuntime(*b"aura", slot.encode())] };
        let parent = self.chain.head.hash();
        let header = Header::new(number, Default::default(), Default::default(), parent, digest);
        let mut inherents = InherentData::new();
        inherents.put_data(TIMESTAMP, &(slot * SLOT_DURATION)).unwrap();
        let (head, used) = self.chain.state.execute_with(|| {
            RuntimeExecutive::initialize_block(&header);
            for inherent in inherents.create_extrinsics() {
                RuntimeExecutive::apply_extrinsic(inherent).unwrap().unwrap();
            }
            let limit = block_weights().max_block.ref_time() / 4 * 3;
            while let Some(transaction) = waiting.front() {
                let cost = transaction.get_dispatch_info().total_weight().ref_time();
                let base = block_weights().get(DispatchClass::Normal).base_extrinsic.ref_time();
                if System::block_weight().total().ref_time() + cost + base > limit {
                    break;
                }
                match RuntimeExecutive::apply_extrinsic(transaction.clone()) {
                    Ok(result) => result.expect("it succeeds"),
                    // The run has used its share of the block.
                    Err(TransactionValidityError::Invalid(InvalidTransaction::ExhaustsResources)) => break,
                    Err(refused) => panic!("{refused:?}"),
                }
                waiting.pop_front();
            }
            let used = System::block_weight().total().ref_time();
            (RuntimeExecutive::finalize_block(), used)
        });
        self.chain.head = head;
        self.heaviest = self.heaviest.max(used * 1000 / block_weights().max_block.ref_time());
    }

    pub(super) fn go_to(&mut self, number: u32) {
        while self.chain.height() < number {
            self.block(&mut Default::default());
        }
    }

    /// Includes one call of each seat by block `deadline`.
    pub(super) fn all_by(&mut self, deadline: u32, calls: Vec<(u16, RuntimeCall)>) {
        let mut waiting = calls
            .into_iter()
            .map(|(uid, call)| {
                let seat = Seat::of(uid);
                let nonce = self.chain.read(|| System::account_nonce(seat.account()));
                self.chain.sign(&seat, call, nonce)
            })
            .collect();
        while self.chain.height() < deadline {
            self.block(&mut waiting);
        }
        assert!(waiting.is_empty(), "{} calls had no room until block {deadline}", waiting.len());
    }
}

/// Checks that the data read by one seat is its part of the whole, and small.
fn check_narrow_reads(author: &mut Author, window: Window) {
    author.chain.read(|| {
        let whole = Runtime::window(RUN, window).unwrap();
        let summary = Runtime::window_summary(RUN, window);
        assert_eq!(summary, Some(whole.summary()));
        let mut largest = 0;
        for uid in [0, MINERS / 2, MINERS - 1, MINERS, u16::MAX].map(Uid) {
            let part = Runtime::seat_window(RUN, window, uid);
            assert_eq!(part, Some(whole.of_seat(uid)));
            largest = largest.max(part.encoded_size());
        }
        let seats = Runtime::seats(RUN);
        assert_eq!(Runtime::seat(RUN, seats[7].id.uid).as_ref(), Some(&seats[7]));
        assert_eq!(Runtime::seat(RUN, Uid(u16::MAX)), None);
        let mirrors = Runtime::update_mirrors(RUN, window, 3, u32::MAX);
        assert_eq!(mirrors.len(), 16);
        println!(
            "window {}: {} bytes, {} of them a seat's, {} without lists; {} bytes of all seats, {} of one",
            window.0,
            whole.encoded_size(),
            largest,
            summary.encoded_size(),
            seats.encoded_size(),
            seats[7].encoded_size()
        );
        assert!(largest <= 512 && summary.encoded_size() <= 256);
    });
}

#[test]
fn the_largest_run_fits_into_the_blocks_of_its_windows() {
    let mut chain = Chain::new();
    let terms = Terms {
        miner_seats_max: MINERS,
        validator_seats_max: VALIDATORS,
        miner_stake_min: UNIT,
        validator_stake_min: UNIT,
        seat_price_min: 0,
        ..super::terms()
    };
    let create = pallet_registry::Call::create_run {
        params: params(),
        terms,
        spec: digest(1),
        manifest: digest(2),
        theta0: digest(3),
        published_at: url(),
    };
    chain.all_accepted(vec![(&OWNER, create.into())]);
    let seats: Vec<_> = (0..MINERS + VALIDATORS).collect();
    for seats in seats.chunks(64) {
        let register = |uid: &u16| -> (&dyn Signer, RuntimeCall) {
            let role = if *uid < MINERS { Role::Miner } else { Role::Validator };
            (&COLDKEY, chain.registration(COLDKEY, role, &Seat::of(*uid), UNIT))
        };
        let calls = seats.iter().map(register).collect();
        chain.all_accepted(calls);
    }
    assert_eq!(
        chain.read(|| Registry::price(RUN, Role::Miner)),
        0,
        "seats of a run without a treasury are free"
    );
    let fund = pallet_rewards::Call::fund { run: RUN, amount: 50_000 * UNIT };
    chain.all_accepted(vec![(&OWNER, fund.into())]);

    let mut author = Author::of(chain);
    let validators = MINERS..MINERS + VALIDATORS;
    let weights: Vec<(Uid, u16)> = (0..MINERS).map(|uid| (Uid(uid), 60_000 + uid)).collect();
    let salt = [3; 32];
    for window in 0..2 {
        let opens = params().schedule.opens_at(Window(window)).0;
        author.go_to(opens);
        let window = Window(window);

        let mut calls: Vec<(u16, RuntimeCall)> = (0..MINERS)
            .map(|uid| {
                let call = pallet_windows::Call::commit { run: RUN, window, digest: digest(uid as u8) };
                (uid, call.into())
            })
            .collect();
        let epoch = window.0;
        calls.extend(validators.clone().map(|uid| {
            let hash = reveal::commitment(&weights, &salt, &Seat::of(uid).hotkey());
            (uid, pallet_weights::Call::commit { run: RUN, epoch, hash }.into())
        }));
        check_narrow_reads(&mut author, window);
        author.all_by(opens + 6, calls);
        check_narrow_reads(&mut author, window);
        if let Some(before) = epoch.checked_sub(1) {
            let reveal = |uid| {
                let weights = weights.clone().try_into().unwrap();
                (uid, pallet_weights::Call::reveal { run: RUN, epoch: before, weights, salt }.into())
            };
            author.all_by(opens + 10, validators.clone().map(reveal).collect());
        }
        author.go_to(opens + 10);

        let verdicts: Vec<_> = (0..MINERS).map(|uid| (Uid(uid), Verdict::Valid)).collect();
        let attest = |uid| {
            let verdicts = verdicts.clone().try_into().unwrap();
            (uid, pallet_windows::Call::attest { run: RUN, window, verdicts, next_salt: digest(9) }.into())
        };
        author.all_by(opens + 15, validators.clone().map(attest).collect());

        let selected = author.chain.read(|| Runtime::window(RUN, window).unwrap());
        assert_eq!(selected.selection, None, "it stands from the next block on");
        author.go_to(opens + 16);
        let selected = author.chain.read(|| Runtime::window(RUN, window).unwrap().selection.unwrap());
        assert_eq!(selected.valid.len(), usize::from(MINERS));
        let vote = Vote { update: digest(50), state_root: None };
        let votes =
            validators.clone().map(|uid| (uid, pallet_windows::Call::vote { run: RUN, window, vote }.into()));
        author.all_by(opens + 18, votes.collect());
        author.go_to(opens + 19);
        let outcome = author.chain.read(|| Runtime::window(RUN, window).unwrap().outcome);
        assert_eq!(outcome, Some(Outcome::Merged(vote)));
        check_narrow_reads(&mut author, window);
    }
    // The epoch of the first window is paid when the third window opens.
    author.go_to(params().schedule.opens_at(Window(2)).0);
    author.chain.read(|| {
        assert_eq!(Runtime::weights(RUN).len(), usize::from(MINERS));
        assert!(Runtime::seats(RUN).iter().all(|seat| seat.claimable > 0));
        check_invariants();
    });
    println!("the heaviest block took {} thousandths of its weight", author.heaviest);
    assert!(author.heaviest <= 750, "a block took {} thousandths of its weight", author.heaviest);
}
