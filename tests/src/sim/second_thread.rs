//! A second thread for the blocking work of a simulated network, without an effect on the order of events.
//!
//! Work takes 3 ms of virtual time, whatever its real duration. The network continues until then and waits for the
//! work. While it waits, it runs work that the second thread has not begun. The assignment of work to threads changes
//! no event, because the work of a node reads and writes only the node's own values. Work started in
//! [`SecondThread::alone`] runs immediately.

use super::experiment::on_one_thread;
use daemon::Executor;
use futures::future::BoxFuture;
use std::{
    collections::VecDeque,
    fmt,
    sync::{Condvar, LazyLock, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::time::Instant;

/// Virtual duration of work.
const WORK_TIME: Duration = Duration::from_millis(3);

/// The second thread of this process.
pub static SECOND_THREAD: LazyLock<SecondThread> = LazyLock::new(SecondThread::default);

#[derive(Default)]
pub struct SecondThread {
    queue: Mutex<Queue>,
    changed: Condvar,
}

#[derive(Default)]
struct Queue {
    /// Work by number, in the order of its start.
    waiting: VecDeque<(u64, Job)>,
    /// Number of the work on the second thread.
    running: Option<u64>,
    started: u64,
    /// True if the second thread waits for work.
    is_idle: bool,
    /// True if the network's thread waits for the end of work.
    is_awaited: bool,
    /// True if the thread exists.
    has_thread: bool,
    /// True if work runs immediately, on the network's thread.
    is_alone: bool,
}

type Job = Box<dyn FnOnce() + Send>;

impl fmt::Debug for SecondThread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SecondThread").finish_non_exhaustive()
    }
}

impl SecondThread {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits on the network's thread until work has ended.
    fn wait<'a>(&self, mut queue: MutexGuard<'a, Queue>) -> MutexGuard<'a, Queue> {
        queue.is_awaited = true;
        queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
        queue.is_awaited = false;
        queue
    }

    /// Runs `work` while the second thread is idle. Work that it starts runs immediately.
    pub fn alone<T>(&self, work: impl FnOnce() -> T) -> T {
        self.finish();
        self.queue().is_alone = true;
        let done = work();
        self.queue().is_alone = false;
        done
    }

    /// Schedules work that nothing waits for before [`Executor::finish`].
    pub fn run_later(&'static self, work: Job) {
        self.take(work);
    }

    /// Schedules work. Returns its number, or `None` if it is done already.
    fn take(&'static self, work: Job) -> Option<u64> {
        let mut queue = self.queue();
        if queue.is_alone {
            drop(queue);
            work();
            return None;
        }
        if !queue.has_thread {
            queue.has_thread = true;
            // Without the thread, the network's thread does all work.
            drop(std::thread::Builder::new().spawn(move || on_one_thread(|| self.serve())));
        }
        queue.started += 1;
        let number = queue.started;
        queue.waiting.push_back((number, work));
        if queue.is_idle {
            self.changed.notify_all();
        }
        Some(number)
    }

    /// Runs work in the order of its start.
    fn serve(&self) {
        let mut queue = self.queue();
        loop {
            let Some((number, job)) = queue.waiting.pop_front() else {
                queue.is_idle = true;
                queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
                queue.is_idle = false;
                continue;
            };
            queue.running = Some(number);
            drop(queue);
            // The task that needs the result fails without it. The network's thread must not wait for ever.
            let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(job));
            queue = self.queue();
            queue.running = None;
            if queue.is_awaited {
                self.changed.notify_all();
            }
        }
    }

    /// Waits until the work of this number has ended.
    fn finish_one(&self, number: u64) {
        let mut queue = self.queue();
        loop {
            let at = queue.waiting.binary_search_by_key(&number, |(number, _)| *number);
            // While the second thread does this work, this thread does the work that was started last.
            let job = match at {
                Ok(at) => queue.waiting.remove(at),
                Err(_) if queue.running != Some(number) => return,
                Err(_) => queue.waiting.pop_back(),
            };
            queue = match job {
                Some((_, job)) => {
                    drop(queue);
                    job();
                    self.queue()
                }
                None => self.wait(queue),
            };
        }
    }
}

impl Executor for SecondThread {
    fn start(&'static self, work: Job) -> BoxFuture<'static, ()> {
        match self.take(work) {
            Some(number) => {
                let (started, until) = (Started { thread: self, number }, Instant::now() + WORK_TIME);
                Box::pin(async move {
                    tokio::time::sleep_until(until).await;
                    drop(started);
                })
            }
            None => Box::pin(futures::future::ready(())),
        }
    }

    fn finish(&self) {
        let mut queue = self.queue();
        loop {
            queue = match queue.waiting.pop_back() {
                Some((_, job)) => {
                    drop(queue);
                    job();
                    self.queue()
                }
                None if queue.running.is_none() => return,
                None => self.wait(queue),
            };
        }
    }
}

/// Work in progress. Dropping this value waits for its end.
struct Started {
    thread: &'static SecondThread,
    number: u64,
}

impl Drop for Started {
    fn drop(&mut self) {
        self.thread.finish_one(self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use daemon::Blocking;
    use std::sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    };
    use tokio::task::LocalSet;

    fn thread() -> &'static SecondThread {
        Box::leak(Box::default())
    }

    /// Sleeps for `micros` of real time.
    fn slow(micros: u64) -> u64 {
        std::thread::sleep(Duration::from_micros(micros));
        micros
    }

    #[test]
    fn nodes_go_on_in_the_order_in_which_they_waited_whatever_their_work_takes() {
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        let blocking = Blocking::By(thread());
        for round in 0..20u64 {
            let order: Arc<Mutex<Vec<u64>>> = Arc::default();
            let nodes = LocalSet::new();
            for node in 0..30 {
                let order = order.clone();
                nodes.spawn_local(async move {
                    let (micros, began) = ((node * 37 + round * 11) % 97, Instant::now());
                    assert_eq!(blocking.run(move || slow(micros)).await, micros);
                    order.lock().unwrap().push(node);
                    assert_eq!(began.elapsed(), WORK_TIME);
                    let work = blocking.start(move || slow(micros));
                    tokio::time::sleep(WORK_TIME).await;
                    work.await.unwrap();
                    assert_eq!(began.elapsed(), 2 * WORK_TIME);
                });
            }
            runtime.block_on(nodes);
            assert_eq!(*order.lock().unwrap(), (0..30).collect::<Vec<_>>());
        }
    }

    #[tokio::test]
    async fn work_ends_before_its_future_is_dropped_a_flag_is_set_or_a_node_is_alone() {
        let (second, done) = (thread(), Arc::new(AtomicU32::new(0)));
        let work = || {
            let done = done.clone();
            move || {
                slow(500);
                done.fetch_add(1, Ordering::Relaxed);
            }
        };
        let blocking = Blocking::By(second);
        drop([(); 3].map(|()| blocking.start(work())));
        assert_eq!(done.load(Ordering::Relaxed), 3);
        let [_one, _other] = [(); 2].map(|()| blocking.start(work()));
        let flag = std::sync::atomic::AtomicBool::new(false);
        blocking.stop(&flag);
        assert!(flag.into_inner());
        assert_eq!(done.load(Ordering::Relaxed), 5);
        second.run_later(Box::new(work()));
        let alone = second.alone(|| {
            let before = done.load(Ordering::Relaxed);
            let _ended = blocking.start(work());
            (before, done.load(Ordering::Relaxed))
        });
        assert_eq!(alone, (6, 7));
    }

    #[tokio::test(start_paused = true)]
    async fn the_network_goes_on_while_the_second_thread_works() {
        let (sender, receiver) = std::sync::mpsc::sync_channel(1);
        let work =
            Blocking::By(thread()).start(move || receiver.recv_timeout(Duration::from_secs(60)).is_ok());
        tokio::time::sleep(WORK_TIME / 2).await;
        sender.send(()).unwrap();
        assert!(work.await.unwrap());
    }

    #[tokio::test]
    #[should_panic(expected = "on purpose")]
    async fn a_panic_of_work_is_its_node_s() {
        Blocking::By(thread()).run(|| panic!("on purpose")).await
    }
}
