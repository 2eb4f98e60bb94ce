//! Work on many threads with results in the order of the items, and a bounded number of items in memory.

use std::{
    any::Any,
    collections::BTreeMap,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    sync::{Mutex, PoisonError, mpsc},
    thread,
};

/// Number of items per thread that are waiting or done, so that no thread waits for the next.
const AHEAD: usize = 4;

/// Reads `items` on one thread, runs `work` on `threads` threads, and passes the results to `sink` on the caller's
/// thread, in order. Stops at the first error in that order, of any of the three.
pub(crate) fn ordered<I: Send, O: Send, E: Send>(
    threads: usize,
    items: impl Iterator<Item = Result<I, E>> + Send,
    work: impl Fn(I) -> Result<O, E> + Sync,
    mut sink: impl FnMut(O) -> Result<(), E>,
) -> Result<(), E> {
    type Done<O, E> = (u64, Result<Result<O, E>, Box<dyn Any + Send>>);
    let threads = threads.max(1);
    // No send blocks: each item has a permit, and one error needs none.
    let ahead = threads * AHEAD;
    let (give, take) = mpsc::sync_channel::<(u64, I)>(ahead);
    let (done, results) = mpsc::sync_channel::<Done<O, E>>(ahead + 1);
    let (permit, permits) = mpsc::sync_channel::<()>(ahead);
    for _ in 0..ahead {
        permit.send(()).expect("its receiver stands one line above");
    }

    thread::scope(|scope| {
        let failed = done.clone();
        // Ends with the items, with an error, or when the sink has ended.
        scope.spawn(move || {
            for (number, item) in (0..).zip(items) {
                if permits.recv().is_err() {
                    break;
                }
                let sent = match item {
                    Ok(item) => give.send((number, item)).is_ok(),
                    Err(error) => {
                        let _ = failed.send((number, Ok(Err(error))));
                        false
                    }
                };
                if !sent {
                    break;
                }
            }
        });
        let take = std::sync::Arc::new(Mutex::new(take));
        for _ in 0..threads {
            let (take, done, work) = (take.clone(), done.clone(), &work);
            scope.spawn(move || {
                loop {
                    let next = take.lock().unwrap_or_else(PoisonError::into_inner).recv();
                    let Ok((number, item)) = next else { break };
                    let result = catch_unwind(AssertUnwindSafe(|| work(item)));
                    if done.send((number, result)).is_err() {
                        break;
                    }
                }
            });
        }
        drop((take, done));

        // Dropped at the end, so that no thread waits for them.
        let (permit, results) = (permit, results);
        let mut early = BTreeMap::new();
        let mut next = 0;
        while let Ok((number, result)) = results.recv() {
            early.insert(number, result);
            while let Some(result) = early.remove(&next) {
                sink(result.unwrap_or_else(|panic| resume_unwind(panic))?)?;
                next += 1;
                // The reading thread may have ended.
                let _ = permit.send(());
            }
        }
        Ok(())
    })
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
            // Even items take longer.
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
        assert!(most.into_inner() <= 3 * AHEAD + 1, "one more may have been taken and wait for its permit");
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
