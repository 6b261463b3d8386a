//! `Node::run` with a closure that borrows: it returns only after its task is gone.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use super::SHORT;
use super::common::{both_kinds, each_end, eventually, ms};

#[test]
fn a_run_may_borrow_what_it_changes_and_what_it_returns() {
    both_kinds(|node, _, _| {
        let words = [String::from("one"), String::from("two")];
        let mut count = 0;
        let last: &str = node.run(|| {
            count += words.len();
            ums::yield_now();
            words[1].as_str()
        });
        assert_eq!((last, count), ("two", 2));

        // A panic drops what the closure owns, and then what it has borrowed is free again.
        let owned = Arc::new(());
        let share = owned.clone();
        let run = || {
            node.run(|| {
                let _share = share;
                count += 1;
                resume_unwind(Box::new("on purpose"));
            });
        };
        let panic = catch_unwind(AssertUnwindSafe(run));
        assert_eq!(panic.unwrap_err().downcast_ref(), Some(&"on purpose"));
        assert_eq!((count, Arc::strong_count(&owned)), (3, 1));
    });
}

#[test]
fn a_run_whose_task_never_begins_ends_with_the_node() {
    const WORKERS: usize = 4;
    each_end(
        |b| b.max_workers(WORKERS),
        |node, _, n| {
            let (begun, go) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
            for s in 0..WORKERS {
                let (begun, go) = (begun.clone(), go.clone());
                let keeps = move || {
                    begun.fetch_add(1, SeqCst);
                    // The end of the node does not end these waits.
                    ums::shield(|| {
                        while !go.load(SeqCst) {
                            ums::sleep(SHORT).unwrap();
                        }
                    });
                };
                node.spawn_on(s % n, keeps).unwrap();
            }
            eventually("no worker is free", || begun.load(SeqCst) == WORKERS);
            let (outside, ran) = (node.clone(), Arc::new(AtomicUsize::new(0)));
            let counts = ran.clone();
            let waits = std::thread::spawn(move || {
                let (data, owned) = (vec![7_u8; 4096], Arc::new(()));
                let share = owned.clone();
                let run = || {
                    outside.run(|| {
                        let _share = share;
                        counts.fetch_add(data.len(), SeqCst);
                    });
                };
                let panicked = catch_unwind(AssertUnwindSafe(run)).is_err();
                assert_eq!(Arc::strong_count(&owned), 1, "nothing of the task is left");
                panicked
            });
            let queued = || node.snapshot().schedulers.iter().map(|s| s.queued).sum::<usize>();
            eventually("its task is queued", || queued() == 1);
            let ends = std::thread::spawn(move || {
                std::thread::sleep(ms(20));
                go.store(true, SeqCst);
            });
            node.shutdown(Duration::ZERO);
            assert!(waits.join().unwrap(), "the caller is told by a panic");
            assert_eq!(ran.load(SeqCst), 0, "the task never ran");
            ends.join().unwrap();
        },
    );
}
