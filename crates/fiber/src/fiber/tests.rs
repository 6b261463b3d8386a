//! Tests of fibers: what a switch keeps, passes, ends and leaks, and what backtraces show.
//!
//! This file has unsafe code, because it suspends fibers (named invariants **Contract** and **Own
//! Memory**, at the root of the crate).
#![allow(unsafe_code)]

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use super::*;
use crate::child;
use crate::pool::{StackConfig, StackPool};
use crate::stack::leaked;

fn pool(size: usize) -> StackPool {
    StackPool::new(StackConfig { size, precommit: false, keep_warm: 64 })
}

/// Suspends the fiber, in a frame other than the root's.
#[inline(never)]
fn pause(me: Suspender) {
    // SAFETY: Contract: every caller below runs in the fiber that `me` was made for.
    unsafe { me.suspend() };
}

#[test]
fn thousands_of_fibers_interleave_and_each_keeps_its_own_frames() {
    const FIBERS: usize = 5000;
    const ROUNDS: usize = 10;
    let mut pool = pool(16 * 1024);
    let log = Rc::new(RefCell::new(Vec::new()));
    let mut fibers: Vec<Fiber> = (0..FIBERS)
        .map(|number| {
            let log = Rc::clone(&log);
            Fiber::new(pool.take().expect("a stack"), "one of many", move |me| {
                let mine = std::hint::black_box([number; 32]);
                for (round, number) in mine.iter().enumerate().take(ROUNDS) {
                    log.borrow_mut().push((round, *number));
                    pause(me);
                }
                assert!(mine.iter().all(|word| *word == number));
            })
        })
        .collect();
    for _ in 0..ROUNDS {
        assert!(fibers.iter_mut().all(|fiber| fiber.resume() == Resume::Suspended));
    }
    assert!(fibers.iter_mut().all(|fiber| fiber.resume() == Resume::Finished));
    let expected: Vec<(usize, usize)> =
        (0..ROUNDS).flat_map(|round| (0..FIBERS).map(move |number| (round, number))).collect();
    assert_eq!(*log.borrow(), expected);
    fibers.into_iter().for_each(|fiber| pool.give(fiber.into_stack()));
    assert_eq!((pool.stats().taken, pool.stats().pooled), (0, FIBERS));
}

/// Takes a finished fiber out of its stack's header, and gives the stack back.
fn give_back(pool: &mut StackPool, fiber: NonNull<Fiber>) {
    // SAFETY: Own Memory: every caller below has made the fiber, and gives it back once.
    let fiber = unsafe { Fiber::take_from_stack(fiber) };
    assert!(fiber.is_finished());
    pool.give(fiber.into_stack());
}

#[test]
fn fibers_pass_in_a_ring_and_each_keeps_its_own_frames() {
    const FIBERS: usize = 100;
    const ROUNDS: usize = 50;
    let mut pool = pool(16 * 1024);
    let all = Rc::new(RefCell::new(Vec::<NonNull<Fiber>>::new()));
    let passes = Rc::new(Cell::new(0));
    for number in 0..FIBERS {
        let (ring, passes) = (Rc::clone(&all), Rc::clone(&passes));
        let fiber = Fiber::on_its_stack(pool.take().expect("a stack"), "ring", move |me| {
            let mine = std::hint::black_box([number; 32]);
            for _ in 0..ROUNDS {
                let next = ring.borrow()[(number + 1) % FIBERS];
                passes.set(passes.get() + 1);
                // SAFETY: Contract: this is the fiber of `me`; the next is suspended, or not
                // started in the first round.
                unsafe { me.pass(next) };
            }
            assert!(mine.iter().all(|word| *word == number));
        });
        all.borrow_mut().push(fiber);
    }
    // The first one ends first, because the last one has passed to it for the last time. Then
    // each of the others is suspended, and is run to its end.
    let fibers = all.borrow().clone();
    for fiber in &fibers {
        // SAFETY: Contract: the fiber is suspended, or not started.
        assert_eq!(unsafe { Fiber::run(*fiber) }, Resume::Finished);
    }
    assert_eq!(passes.get(), FIBERS * ROUNDS);
    fibers.into_iter().for_each(|fiber| give_back(&mut pool, fiber));
    assert_eq!(pool.stats().taken, 0);
}

#[test]
fn a_fiber_that_was_passed_to_suspends_to_the_resumer_and_is_resumed_from_elsewhere() {
    let mut pool = pool(64 * 1024);
    let order = Rc::new(RefCell::new(Vec::new()));
    let (first_says, second_says) = (Rc::clone(&order), Rc::clone(&order));
    let second = Fiber::on_its_stack(pool.take().expect("a stack"), "second", move |me| {
        second_says.borrow_mut().push("second begins");
        pause(me);
        second_says.borrow_mut().push("second ends");
    });
    let itself = Rc::new(Cell::new(second));
    let mine = Rc::clone(&itself);
    let first = Fiber::on_its_stack(pool.take().expect("a stack"), "first", move |me| {
        first_says.borrow_mut().push("first");
        // SAFETY: Contract: this is the fiber of `me`, and the second one is not started.
        unsafe { me.pass(second) };
        first_says.borrow_mut().push("first again");
        // SAFETY: Contract: a fiber may pass to itself.
        unsafe { me.pass(mine.get()) };
        first_says.borrow_mut().push("first ends");
    });
    itself.set(first);
    #[inline(never)]
    fn deeper(fiber: NonNull<Fiber>) -> Resume {
        let frame = std::hint::black_box([7u8; 512]);
        // SAFETY: Contract: the caller's fiber is suspended.
        let how = unsafe { Fiber::run(fiber) };
        assert!(frame.iter().all(|byte| *byte == 7));
        how
    }
    // SAFETY: Contract: the fiber is not started.
    assert_eq!(unsafe { Fiber::run(first) }, Resume::Suspended);
    order.borrow_mut().push("host");
    // The second one was resumed from a frame that is no more.
    assert_eq!(deeper(second), Resume::Finished);
    assert_eq!(deeper(first), Resume::Finished);
    let expected = ["first", "second begins", "host", "second ends", "first again", "first ends"];
    assert_eq!(*order.borrow(), expected);
    give_back(&mut pool, first);
    give_back(&mut pool, second);
}

#[test]
fn a_fiber_may_resume_another() {
    let mut pool = pool(64 * 1024);
    let (outer, inner) = (pool.take().expect("a stack"), pool.take().expect("a stack"));
    let order = Rc::new(RefCell::new(Vec::new()));
    let (seen_out, seen_in) = (Rc::clone(&order), Rc::clone(&order));
    let mut fiber = Fiber::new(outer, "outer", move |me| {
        let mut other = Fiber::new(inner, "inner", move |me| {
            seen_in.borrow_mut().push("inner begins");
            pause(me);
            seen_in.borrow_mut().push("inner ends");
        });
        assert_eq!(other.resume(), Resume::Suspended);
        seen_out.borrow_mut().push("outer");
        pause(me);
        assert_eq!(other.resume(), Resume::Finished);
    });
    assert_eq!(fiber.resume(), Resume::Suspended);
    order.borrow_mut().push("host");
    assert_eq!(fiber.resume(), Resume::Finished);
    assert_eq!(*order.borrow(), ["inner begins", "outer", "host", "inner ends"]);
    pool.give(fiber.into_stack());
}

#[test]
fn a_panic_caught_inside_a_fiber_leaves_fiber_and_thread_whole() {
    let mut pool = pool(256 * 1024);
    let mut fiber = Fiber::new(pool.take().expect("a stack"), "careful", |me| {
        let caught = catch_unwind(|| {
            pause(me);
            std::panic::resume_unwind(Box::new(7));
        });
        assert_eq!(caught.expect_err("it panics").downcast_ref(), Some(&7));
        pause(me);
    });
    assert_eq!(fiber.resume(), Resume::Suspended);
    assert_eq!(fiber.resume(), Resume::Suspended);
    assert!(!std::thread::panicking());
    assert_eq!(fiber.resume(), Resume::Finished);
    pool.give(fiber.into_stack());
}

#[test]
fn a_panic_at_the_root_names_the_worker_and_aborts() {
    let death =
        child::dies("fiber::tests::a_panic_at_the_root_names_the_worker_and_aborts", || {
            let mut pool = pool(256 * 1024);
            let stack = pool.take().expect("a stack");
            let name = Name::numbered("careless", 3);
            let mut fiber = Fiber::new(stack, name, |_| panic!("the last straw"));
            let _ = catch_unwind(AssertUnwindSafe(|| fiber.resume()));
        });
    assert_eq!(death.signal, Some(libc::SIGABRT), "{}", death.words);
    assert!(death.words.contains("the last straw"), "{}", death.words);
    let said = "a panic reached the root of worker 'careless/3'";
    assert!(death.words.contains(said), "{}", death.words);
}

/// Sets its flag when it is dropped.
struct Flag(Rc<Cell<bool>>);

impl Drop for Flag {
    fn drop(&mut self) {
        self.0.set(true);
    }
}

#[test]
fn a_suspended_fiber_that_is_dropped_is_leaked_and_counted_and_not_unwound() {
    let name =
        "fiber::tests::a_suspended_fiber_that_is_dropped_is_leaked_and_counted_and_not_unwound";
    child::succeeds(name, || {
        let mut pool = pool(64 * 1024);
        let dropped = Rc::new(Cell::new(false));
        let flag = Flag(Rc::clone(&dropped));
        let mut fiber = Fiber::new(pool.take().expect("a stack"), "parked", move |me| {
            let _held = flag;
            pause(me);
        });
        assert_eq!(fiber.resume(), Resume::Suspended);
        assert_eq!(leaked(), 0);
        drop(fiber);
        assert_eq!(leaked(), 1);
        assert!(!dropped.get(), "the frames were unwound");
        assert_eq!((pool.stats().taken, pool.stats().pooled), (1, 0));
    });
}

#[test]
fn a_fiber_that_never_started_gives_back_its_closure_and_its_stack() {
    let mut pool = pool(64 * 1024);
    let dropped = Rc::new(Cell::new(false));
    let flag = Flag(Rc::clone(&dropped));
    let fiber = Fiber::new(pool.take().expect("a stack"), "late", move |_| drop(flag));
    assert!(!fiber.is_started() && !fiber.is_finished());
    pool.give(fiber.into_stack());
    assert!(dropped.get());
    assert_eq!(pool.stats().taken, 0);
}

#[test]
#[should_panic(expected = "a suspended fiber keeps its stack")]
fn a_suspended_fiber_keeps_its_stack() {
    let mut pool = pool(64 * 1024);
    let mut fiber = Fiber::new(pool.take().expect("a stack"), "parked", pause);
    assert_eq!(fiber.resume(), Resume::Suspended);
    pool.give(fiber.into_stack());
}

#[test]
fn a_fiber_on_its_own_stack_runs_as_another_does_and_takes_no_other_memory() {
    let mut pool = pool(16 * 1024);
    let stack = pool.take().expect("a stack");
    let (range, seen) = (stack.range(), Rc::new(Cell::new(0)));
    let told = Rc::clone(&seen);
    let mut fiber = Fiber::on_its_stack(stack, Name::numbered("kept", 3), move |me| {
        let frame = std::hint::black_box([1u8; 2048]);
        pause(me);
        told.set(frame.iter().map(|byte| usize::from(*byte)).sum());
    });
    assert!(range.contains(fiber.addr().get()));
    // SAFETY: Own Memory: the fiber was made just above, and is taken out once.
    let fiber = unsafe {
        assert_eq!(fiber.as_mut().resume(), Resume::Suspended);
        assert_eq!(fiber.as_mut().resume(), Resume::Finished);
        Fiber::take_from_stack(fiber)
    };
    assert_eq!(seen.get(), 2048);
    pool.give(fiber.into_stack());
}

#[test]
#[should_panic(expected = "a fiber that has finished is not resumed")]
fn a_finished_fiber_is_not_resumed() {
    let mut pool = pool(64 * 1024);
    let mut fiber = Fiber::new(pool.take().expect("a stack"), "done", |_| ());
    assert_eq!(fiber.resume(), Resume::Finished);
    let _ = fiber.resume();
}

#[test]
#[should_panic(expected = "box this large closure")]
fn a_closure_too_large_for_its_stack_is_refused() {
    let mut pool = pool(16 * 1024);
    let large = [0u8; 8 * 1024];
    let stack = pool.take().expect("a stack");
    let _ = Fiber::new(stack, "large", move |_| assert_eq!(large[0], 0));
}

#[test]
fn a_backtrace_in_a_fiber_that_was_passed_to_reaches_the_resumer() {
    let mut pool = pool(1024 * 1024);
    let seen = Rc::new(RefCell::new(String::new()));
    let trace = Rc::clone(&seen);
    let second = Fiber::on_its_stack(pool.take().expect("a stack"), "second", move |_| {
        *trace.borrow_mut() = std::backtrace::Backtrace::force_capture().to_string();
    });
    let mut first = Fiber::new(pool.take().expect("a stack"), "first", move |me| {
        // SAFETY: Contract: this is the fiber of `me`, and the second one is not started.
        unsafe { me.pass(second) };
    });
    assert_eq!(host_frame(&mut first), Resume::Finished);
    let root = seen.borrow().find("fiber_root").expect("the fiber's root");
    let host = seen.borrow().find("host_frame").expect("the resumer");
    assert!(root < host, "{}", seen.borrow());
    assert_eq!(first.resume(), Resume::Finished);
    pool.give(first.into_stack());
    give_back(&mut pool, second);
}

#[inline(never)]
fn host_frame(fiber: &mut Fiber) -> Resume {
    std::hint::black_box(fiber.resume())
}

#[test]
fn a_backtrace_in_a_fiber_reaches_its_root_then_its_resumer_and_ends() {
    let mut pool = pool(1024 * 1024);
    let seen = Rc::new(RefCell::new(String::new()));
    let trace = Rc::clone(&seen);
    let mut fiber = Fiber::new(pool.take().expect("a stack"), "traced", move |me| {
        pause(me);
        *trace.borrow_mut() = std::backtrace::Backtrace::force_capture().to_string();
    });
    // The second resumption is in another function. The backtrace must show that one.
    assert_eq!(fiber.resume(), Resume::Suspended);
    assert_eq!(host_frame(&mut fiber), Resume::Finished);
    let trace = seen.borrow();
    let root = trace.find("fiber_root").expect("the fiber's root");
    let host = trace.find("host_frame").expect("the resumer");
    let last = trace.rfind("clone").or(trace.rfind("start")).expect("the thread's first frame");
    assert!(root < host && host < last, "{trace}");
    assert!(trace.lines().count() < 200, "{trace}");
    pool.give(fiber.into_stack());
}
