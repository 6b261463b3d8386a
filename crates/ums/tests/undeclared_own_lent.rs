//! Workers with their own context that return from an undeclared block while they hold a lock that
//! the scheduler itself waits for. They are allowed to run without the baton
//! (`scheduler/kinds/contexts/lent.rs`). Here a completion routine, which runs inside another
//! worker's turn, wants the lock. For the scheduler that is the same as the allocator's lock.

ums::interpose!();

mod common;
#[path = "common/signals.rs"]
mod signals;
#[path = "common/slow.rs"]
mod slow;

use std::collections::HashSet;
use std::io::{PipeReader, PipeWriter, Write};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::{bare_read, can_be_had, end, eventually, kernel_thread, turn};
use signals::blocked_signals;
use slow::{Slow, child, file_page, user_page};
use ums::node::Placement;
use ums::{JoinHandle, Node, WaitReason, WorkerKind};

/// A `read` that is not interposed. A signal interrupts it.
struct Read(PipeReader, PipeWriter);

impl Slow for Read {
    fn touch(&self) -> u8 {
        bare_read(&self.0)
    }

    fn holds(&self) -> u8 {
        b'x'
    }

    fn resolve(&self) {
        (&self.1).write_all(b"x").unwrap();
    }
}

fn call() -> Option<Arc<dyn Slow>> {
    let (reads, writes) = std::io::pipe().unwrap();
    Some(Arc::new(Read(reads, writes)))
}

/// A node with one scheduler, where a worker blocks while it holds a lock that a completion routine
/// wants.
struct Story {
    node: Node,
    lock: Arc<Mutex<u32>>,
    holder: JoinHandle<()>,
    slow: Arc<dyn Slow>,
    feed: PipeWriter,
}

impl Story {
    /// Starts the story. `after` is what the worker does when it has released the lock.
    fn begin(make: Make, after: impl FnOnce(Own) + Send + 'static) -> Option<Story> {
        let slow = make()?;
        if !can_be_had(WorkerKind::OwnContext) {
            return None;
        }
        let builder = Node::builder().schedulers(1).placement(Placement::AlwaysPreferred);
        let node = builder.own_context_workers().detect_blocking(true).build().unwrap();
        let lock = Arc::new(Mutex::new(0));
        let (reads, feed) = std::io::pipe().unwrap();
        let (mine, routines, blocks) = (lock.clone(), lock.clone(), slow.clone());
        let held = Arc::new(AtomicBool::new(false));
        let tell = held.clone();
        let holder = node.spawn_on(0, move || {
            let own = Own::of_this_worker();
            let fd = reads.as_raw_fd();
            ums::testing::when_readable(fd, move |_| {
                *routines.lock().unwrap() += 1;
                drop(reads);
            });
            let mut count = mine.lock().unwrap();
            tell.store(true, SeqCst);
            assert_eq!(blocks.touch(), blocks.holds());
            *count += 10;
            drop(count);
            after(own);
        });
        let story = Story { holder: holder.unwrap(), node, lock, slow, feed };
        let is_away = || held.load(SeqCst) && story.counters().preemptive == 1;
        eventually("it is away with the lock held", is_away);
        Some(story)
    }

    fn counters(&self) -> ums::stats::SchedulerCounters {
        self.node.snapshot().schedulers[0].counters
    }

    /// Ends the block while another worker runs. The other worker then yields, and its turn runs
    /// the completion routine.
    fn go_on(&mut self) -> JoinHandle<()> {
        let (computes, go) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let (tell, told) = (computes.clone(), go.clone());
        let other = self.node.spawn_on(0, move || {
            tell.store(true, SeqCst);
            while !told.load(SeqCst) {
                std::hint::spin_loop();
            }
            ums::yield_now();
        });
        eventually("the other computes", || computes.load(SeqCst));
        self.slow.resolve();
        // Until the other worker yields, no worker runs completion routines, and the first one gets
        // to its gate.
        std::thread::sleep(Duration::from_millis(50));
        self.feed.write_all(b"x").unwrap();
        std::thread::sleep(Duration::from_millis(20));
        go.store(true, SeqCst);
        other.unwrap()
    }

    fn end(self, other: JoinHandle<()>) {
        other.join().unwrap();
        self.holder.join().unwrap();
        eventually("the routine has run", || *self.lock.lock().unwrap() == 11);
        end(self.node);
    }
}

/// The state of a kernel thread that shows on which one a worker runs: its number and its blocked
/// signals.
#[derive(Debug, PartialEq)]
struct Own(i32, HashSet<i32>);

impl Own {
    fn here() -> Own {
        Own(kernel_thread(), blocked_signals())
    }

    fn of_this_worker() -> Own {
        let _away = ums::worker::couple(WaitReason::PREEMPTIVE_EXTERNAL).unwrap();
        Own::here()
    }
}

type Make = fn() -> Option<Arc<dyn Slow>>;

const ALL: [Make; 4] = [call, child, user_page, file_page];

#[test]
fn a_lock_that_a_rejoining_worker_holds_delays_a_routine_and_no_more() {
    let _turn = turn();
    for make in ALL {
        let after = |own| {
            assert_eq!(Own::here(), own, "it was lent, and has not entered the library");
            assert!(ums::worker::is_worker());
            ums::yield_now();
            assert_ne!(kernel_thread(), own.0, "it has entered the library, and rejoined");
            assert_eq!(ums::worker::scheduler_id(), Some(0));
            ums::sleep(Duration::from_millis(1)).unwrap();
        };
        let Some(mut story) = Story::begin(make, after) else { continue };
        let other = story.go_on();
        other.join().unwrap();
        eventually("it is back", || story.counters().preemptive == 0);
        let seen = story.counters();
        assert!(seen.workers_lent >= 1, "{seen:?}");
        let empty = story.node.spawn_on(0, || ()).unwrap();
        story.end(empty);
    }
}

/// Runs a story in which the lock's holder does `after` when it has released the lock, and another
/// task of its scheduler does `other_does`. Checks that the holder is allowed to run without the
/// baton.
fn is_lent_and_ends<O: FnOnce() + Send + 'static>(
    make: Make,
    after: impl FnOnce(Own) + Send + 'static,
    other_does: O,
) {
    let Some(mut story) = Story::begin(make, after) else { return };
    let other = story.go_on();
    eventually("it is lent", || story.counters().workers_lent >= 1);
    let another = story.node.spawn_on(0, other_does).unwrap();
    another.join().unwrap();
    story.end(other);
}

#[test]
fn a_lent_worker_that_ends_its_request_rejoins_then() {
    let _turn = turn();
    ALL.into_iter().for_each(|make| is_lent_and_ends(make, |_| (), || ()));
}

#[test]
fn a_lent_worker_that_computes_until_another_has_run_holds_up_no_worker() {
    let _turn = turn();
    for make in ALL {
        let ran = Arc::new(AtomicBool::new(false));
        let seen = ran.clone();
        let computes = move |own| {
            while !seen.load(SeqCst) {
                std::hint::spin_loop();
            }
            assert_eq!(Own::here(), own);
            assert_eq!(ums::worker::scheduler_id(), Some(0));
        };
        is_lent_and_ends(make, computes, move || ran.store(true, SeqCst));
    }
}

#[test]
fn a_lent_worker_that_blocks_until_another_has_run_blocks_in_place() {
    let _turn = turn();
    for make in ALL {
        let (tell, told) = std::sync::mpsc::channel();
        let blocks = move |own| {
            std::thread::sleep(Duration::from_millis(5));
            assert_eq!(told.recv(), Ok(()));
            assert_eq!(
                Own::here(),
                own,
                "calls that block do not ask, whether they are seen or not"
            );
            ums::yield_now();
        };
        is_lent_and_ends(make, blocks, move || tell.send(()).unwrap());
    }
}
