//! Groups: results as the tasks end, limits, errors, panics.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};

use ums::sync::{Event, Semaphore};
use ums::{WaitError, WaitReason, task_group, with_timeout};

use super::common::{both_kinds, both_kinds_with, eventually, on, start};
use super::{CANCELLED, HOUR, SHORT, TIMED_OUT, sleeps, waiting};

#[test]
fn a_group_gives_results_as_its_tasks_end() {
    both_kinds(|node, _, _| {
        let order = on(node, 0, || {
            let (first, second) = (Event::manual(false), Event::manual(false));
            task_group(|group| {
                group.spawn(|| first.wait().map(|()| 1));
                group.spawn(|| second.wait().map(|()| 2));
                group.spawn(|| Ok(3));
                let mut order = Vec::new();
                while let Some(ended) = group.next()? {
                    order.push(ended);
                    [&second, &first].get(order.len() - 1).into_iter().for_each(|e| e.set());
                }
                assert_eq!(group.next(), Ok(None));
                Ok::<_, WaitError>(order)
            })
        });
        assert_eq!(order, Ok(vec![3, 2, 1]));
    });
}

#[test]
fn a_group_runs_no_more_tasks_at_a_time_than_its_limit() {
    both_kinds(|node, _, _| {
        let (most, sum) = on(node, 0, || {
            let (now, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
            let sum = task_group(|group| {
                group.max_running(3);
                for n in 0..20 {
                    let (now, most) = (&now, &most);
                    group.spawn(move || {
                        most.fetch_max(now.fetch_add(1, SeqCst) + 1, SeqCst);
                        ums::sleep(SHORT / 10)?;
                        now.fetch_sub(1, SeqCst);
                        Ok::<_, WaitError>(n)
                    });
                }
                let mut sum = 0;
                while let Some(n) = group.next()? {
                    sum += n;
                }
                Ok(sum)
            });
            (most.into_inner(), sum)
        });
        assert!((1..=3).contains(&most), "{most}");
        assert_eq!(sum, Ok(190));
    });
}

/// An error that a task may have.
#[derive(Debug, PartialEq)]
enum Fault {
    Own(u32),
    Wait(WaitError),
}

impl From<WaitError> for Fault {
    fn from(error: WaitError) -> Fault {
        Fault::Wait(error)
    }
}

#[test]
fn the_first_error_of_a_group_cancels_the_others_and_is_its_result() {
    both_kinds(|node, _, _| {
        let ended = on(node, 0, || {
            let ended = AtomicUsize::new(0);
            let asleep = Semaphore::new(0);
            let result = task_group(|group| {
                for _ in 0..4 {
                    group.spawn(|| {
                        asleep.add_permits(1);
                        Ok(sleeps(&ended)?)
                    });
                }
                asleep.acquire_many(4).unwrap().forget();
                group.spawn(|| Err(Fault::Own(7)));
                assert_eq!(group.next(), Err(Fault::Own(7)));
                let rest: Vec<_> = (0..4).map(|_| group.next()).collect();
                assert!(rest.iter().all(|r| *r == Err(Fault::Wait(CANCELLED))), "{rest:?}");
                assert!(group.is_cancelled());
                group.spawn(|| unreachable!("the group was cancelled"));
                assert_eq!(group.next(), Err(Fault::Wait(CANCELLED)), "one was left out");
                assert_eq!(group.next(), Ok(None));
                Ok(())
            });
            assert_eq!(result, Ok(()), "the closure has seen the errors");
            // The closure looks at no result.
            let result = task_group(|group| {
                group.spawn(|| Ok(sleeps(&ended)?));
                group.spawn(|| Err(Fault::Own(8)));
                Ok(())
            });
            assert_eq!(result, Err(Fault::Own(8)));
            // An error of the closure.
            let result = task_group(|group| {
                group.spawn(|| Ok::<_, Fault>(sleeps(&ended)?));
                Err::<(), _>(Fault::Own(9))
            });
            assert_eq!(result, Err(Fault::Own(9)));
            ums::sleep(SHORT)
        });
        assert_eq!(ended, Ok(()), "the caller itself is not cancelled");
    });
}

#[test]
fn a_panic_in_a_group_is_carried_to_its_caller() {
    both_kinds(|node, _, _| {
        on(node, 0, || {
            let ended = AtomicUsize::new(0);
            let told = |looks: bool, fails: bool| {
                let run = || {
                    task_group(|group| {
                        group.spawn(|| sleeps(&ended));
                        group.spawn(|| std::panic::panic_any(11));
                        if looks {
                            while group.next()?.is_some() {}
                        }
                        if fails { Err(TIMED_OUT) } else { Ok(()) }
                    })
                };
                *catch_unwind(AssertUnwindSafe(run)).unwrap_err().downcast::<i32>().unwrap()
            };
            assert_eq!(told(true, false), 11);
            assert_eq!(told(false, false), 11);
            let run = || {
                task_group(|group| {
                    group.spawn(|| sleeps(&ended));
                    if true {
                        std::panic::panic_any(12);
                    }
                    Ok::<_, WaitError>(())
                })
            };
            let panic = catch_unwind(AssertUnwindSafe(run)).unwrap_err();
            assert_eq!(*panic.downcast::<i32>().unwrap(), 12);
        });
    });
}

#[test]
fn a_panic_that_the_closure_does_not_meet_comes_after_its_error() {
    both_kinds(|node, _, _| {
        on(node, 0, || {
            let run = || {
                task_group(|group| {
                    let begun = AtomicBool::new(false);
                    let begun = Arc::new(begun);
                    let theirs = begun.clone();
                    group.spawn(move || -> Result<(), WaitError> {
                        theirs.store(true, SeqCst);
                        std::panic::panic_any(13)
                    });
                    while !begun.load(SeqCst) {
                        ums::yield_now();
                    }
                    Err::<(), _>(TIMED_OUT)
                })
            };
            let panic = catch_unwind(AssertUnwindSafe(run)).unwrap_err();
            assert_eq!(*panic.downcast::<i32>().unwrap(), 13);
        });
    });
}

#[test]
fn a_group_is_cancelled_with_its_caller_and_by_its_limit() {
    both_kinds(|node, _, n| {
        for in_spawn in [false, true] {
            let task = start(node, n - 1, move || {
                let ended = AtomicUsize::new(0);
                let result = task_group(|group| {
                    group.max_running(2);
                    (0..2).for_each(|_| group.spawn(|| sleeps(&ended)));
                    if in_spawn {
                        group.spawn(|| unreachable!("the group was cancelled"));
                    }
                    while group.next()?.is_some() {}
                    Ok(())
                });
                (result, ended.into_inner())
            });
            eventually("all wait", || waiting(node, WaitReason::SLEEP) == 2);
            eventually("it waits", || waiting(node, WaitReason::CHANNEL_RECEIVE) == 1);
            task.cancel();
            assert_eq!(task.join().unwrap(), (Err(CANCELLED), 2));
        }
        let late = on(node, 0, || {
            with_timeout(SHORT, || {
                task_group(|group| {
                    (0..8).for_each(|_| group.spawn(|| ums::sleep(HOUR)));
                    while group.next()?.is_some() {}
                    Ok(())
                })
            })
        });
        assert_eq!(late, Err(TIMED_OUT));
    });
}

#[test]
fn a_group_that_its_closure_cancels_has_the_closures_result() {
    both_kinds(|node, _, _| {
        let (result, ended) = on(node, 0, || {
            let (ended, asleep) = (AtomicUsize::new(0), Semaphore::new(0));
            let result = task_group(|group| {
                (0..3).for_each(|_| {
                    group.spawn(|| {
                        asleep.add_permits(1);
                        sleeps(&ended)
                    })
                });
                asleep.acquire_many(3)?.forget();
                group.cancel();
                Ok::<_, WaitError>(5)
            });
            (result, ended.into_inner())
        });
        assert_eq!((result, ended), (Ok(5), 3), "all tasks have ended");
    });
}

#[test]
fn a_full_queue_refuses_a_groups_task_and_the_group_goes_on() {
    both_kinds_with(
        |b| b.queue_limit(4).max_workers(4),
        |node, _, _| {
            let result = on(node, 0, || {
                task_group(|group| {
                    let (mut accepted, mut ended) = (0, 0);
                    // The second time after the group has waited for tasks.
                    for _ in 0..2 {
                        while group.try_spawn(|| ums::sleep(SHORT)).is_ok() {
                            accepted += 1;
                            assert!(accepted < 100_000, "a group's tasks are never refused");
                        }
                        group.next()?.expect("a task has ended");
                        ended += 1;
                    }
                    while group.next()?.is_some() {
                        ended += 1;
                    }
                    Ok((accepted, ended))
                })
            });
            let (accepted, ended) = result.expect("a refused task is no failure of the group");
            assert_eq!(accepted, ended);
        },
    );
}

#[test]
fn groups_that_wait_for_their_tasks_do_not_use_up_the_workers() {
    both_kinds_with(
        |b| b.max_workers(4),
        |node, _, _| {
            let groups: Vec<_> = (0..16)
                .map(|_| {
                    let group = || {
                        task_group(|group| {
                            (0..3).for_each(|_| group.spawn(|| ums::sleep(SHORT).map(|()| 1)));
                            let mut sum = 0;
                            while let Some(one) = group.next()? {
                                sum += one;
                            }
                            Ok::<_, WaitError>(sum)
                        })
                    };
                    node.spawn(group).unwrap()
                })
                .collect();
            assert!(groups.into_iter().all(|group| group.join().unwrap() == Ok(3)));
        },
    );
}
