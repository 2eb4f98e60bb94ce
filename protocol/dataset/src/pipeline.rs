//! Work on many threads with results in the order of the items, and a bounded number of items in memory.

use rayon::prelude::*;

/// Items of a round for each thread, so that few threads wait for the last item of a round.
const AHEAD: usize = 2;

/// Does `work` on `threads` threads, round by round, and passes the results to `sink` in the order of `items`. The next
/// round is read meanwhile. Ends with the first error in that order, of any of the three.
pub(crate) fn ordered<I: Send, O: Send, E: Send>(
    threads: usize,
    mut items: impl Iterator<Item = Result<I, E>> + Send,
    work: impl Fn(I) -> Result<O, E> + Sync,
    mut sink: impl FnMut(O) -> Result<(), E>,
) -> Result<(), E> {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("threads can be started");
    let mut read = || items.by_ref().take(threads.max(1) * AHEAD).collect::<Vec<_>>();
    let mut round = read();
    while !round.is_empty() {
        let results = || round.into_par_iter().map(|item| work(item?)).collect::<Vec<_>>();
        let (results, next) = pool.install(|| rayon::join(results, &mut read));
        results.into_iter().try_for_each(|result| sink(result?))?;
        round = next;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn results_come_in_order_and_few_items_are_in_flight() {
        let (taken, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let items = (0..500u64).map(|item| {
            taken.fetch_add(1, Ordering::SeqCst);
            Ok::<_, ()>(item)
        });
        let mut seen = Vec::new();
        let work = |item| {
            // The even ones take longer.
            let rounds = if item % 2 == 0 { 20_000 } else { 1 };
            Ok((0..rounds).fold(item, |item, _| std::hint::black_box(item)))
        };
        ordered(3, items, work, |item| {
            seen.push(item);
            most.fetch_max(taken.load(Ordering::SeqCst) - seen.len(), Ordering::SeqCst);
            Ok(())
        })
        .expect("nothing fails");
        assert_eq!(seen, (0..500).collect::<Vec<_>>());
        assert!(most.into_inner() <= 2 * 3 * AHEAD, "one round is done, and the next one is read");
    }

    #[test]
    fn the_first_error_in_order_ends_the_work() {
        let run = |bad_item: u64, bad_work: u64, bad_sink: u64| {
            let items = (0..1000u64).map(|item| if item == bad_item { Err("item") } else { Ok(item) });
            let work = |item| if item == bad_work { Err("work") } else { Ok(item) };
            let mut last = 0;
            let ended = ordered(2, items, work, |item| {
                last = item;
                if item == bad_sink { Err("sink") } else { Ok(()) }
            });
            (ended, last)
        };
        assert_eq!(run(20, 30, 40), (Err("item"), 19));
        assert_eq!(run(40, 20, 30), (Err("work"), 19));
        assert_eq!(run(30, 40, 20), (Err("sink"), 20));
    }

    #[test]
    #[should_panic(expected = "a thread of ours")]
    fn a_panic_is_the_callers_panic() {
        let work = |item: u32| if item == 3 { panic!("a thread of ours") } else { Ok::<_, ()>(item) };
        let _ = ordered(2, (0..100).map(Ok), work, |_| Ok(()));
    }
}
