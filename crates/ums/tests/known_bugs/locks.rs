//! Bugs in the use of locks and condition variables.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use ums::sync::{Condvar, Event, Mutex, RwLock};

use super::{Form, Story, each, together};

pub const PROGRAMS: &[(&str, Story)] = &[
    ("lost signal: look, unlock, lock, wait", lost_signal),
    ("lost update: read under the lock, write under it later", lost_update),
    ("lock order: two accounts, opposite transfers", lock_order),
    ("lock order: three philosophers", philosophers),
    ("one condition variable for two conditions (Birrell's bounded buffer)", bounded_buffer),
    ("`if` instead of `while` around a wait", woken_too_often),
    ("barrier used again before all have left it", barrier),
    ("reader-writer upgrade without a second look", upgrade),
    ("reset of an event after the work, instead of before it", late_reset),
    ("time-out of a permit that was granted at that moment", lost_permit),
];

fn lost_signal(form: Form) {
    let shared = Arc::new((Mutex::new(false), Condvar::new()));
    let (waits, tells) = (Arc::clone(&shared), shared);
    together(vec![
        Box::new(move || {
            let (ready, came) = &*waits;
            if form.is_broken() {
                if !*ready.lock() {
                    came.wait(&mut ready.lock()).expect("no cancellation");
                }
            } else {
                came.wait_while(&mut ready.lock(), |ready| !*ready).expect("no cancellation");
            }
        }),
        Box::new(move || {
            *tells.0.lock() = true;
            tells.1.notify_one();
        }),
    ]);
}

fn lost_update(form: Form) {
    let total = Arc::new(Mutex::new(0));
    let sum = Arc::clone(&total);
    each(2, move |_| {
        if form.is_broken() {
            let before = *sum.lock();
            *sum.lock() = before + 1;
        } else {
            *sum.lock() += 1;
        }
    });
    assert_eq!(*total.lock(), 2, "an update was lost");
}

fn lock_order(form: Form) {
    let accounts = Arc::new([Mutex::new(5), Mutex::new(5)]);
    each(2, move |at| {
        let (from, to) = if form.is_broken() { (at, 1 - at) } else { (0, 1) };
        let (mut one, mut two) = (accounts[from].lock(), accounts[to].lock());
        *one -= 1;
        *two += 1;
    });
}

fn philosophers(form: Form) {
    let forks: Arc<[_; 3]> = Arc::new([const { Mutex::new(()) }; 3]);
    each(3, move |at| {
        let (left, right) = (at, (at + 1) % 3);
        let (first, second) =
            if form.is_broken() { (left, right) } else { (left.min(right), left.max(right)) };
        let _first = forks[first].lock();
        let _second = forks[second].lock();
    });
}

/// Two producers and two consumers share a buffer with one place. With one condition variable,
/// `notify_one` may wake a producer where only a consumer can go on.
fn bounded_buffer(form: Form) {
    struct Buffer {
        full: Mutex<bool>,
        changed: Condvar,
    }
    let buffer = Arc::new(Buffer { full: Mutex::new(false), changed: Condvar::new() });
    each(6, move |at| {
        let produces = at % 2 == 0;
        for _ in 0..2 {
            let mut full = buffer.full.lock();
            buffer.changed.wait_while(&mut full, |full| *full == produces).expect("no end");
            *full = produces;
            drop(full);
            match form {
                Form::Broken => buffer.changed.notify_one(),
                Form::Repaired => buffer.changed.notify_all(),
            }
        }
    });
}

fn woken_too_often(form: Form) {
    let shared = Arc::new((Mutex::new(VecDeque::new()), Condvar::new()));
    each(4, move |at| {
        let (queue, came) = &*shared;
        let mut items = queue.lock();
        if at >= 2 {
            items.push_back(at);
            came.notify_all();
            return;
        }
        if form.is_broken() {
            if items.is_empty() {
                came.wait(&mut items).expect("no cancellation");
            }
        } else {
            came.wait_while(&mut items, |items| items.is_empty()).expect("no cancellation");
        }
        items.pop_front().expect("an item, because the wait has ended");
    });
}

/// A barrier without a generation: a worker that comes for the second time before another one has
/// left the first time changes the count for which that one waits.
fn barrier(form: Form) {
    struct Barrier {
        came: Mutex<(usize, usize)>,
        all: Condvar,
    }
    let barrier = Arc::new(Barrier { came: Mutex::new((0, 0)), all: Condvar::new() });
    each(2, move |_| {
        for _ in 0..2 {
            let mut state = barrier.came.lock();
            state.0 += 1;
            if state.0 == 2 {
                *state = (0, state.1 + 1);
                barrier.all.notify_all();
                continue;
            }
            let round = state.1;
            let waits = |state: &mut (usize, usize)| match form {
                Form::Broken => state.0 != 0,
                Form::Repaired => state.1 == round,
            };
            barrier.all.wait_while(&mut state, waits).expect("no cancellation");
        }
    });
}

fn upgrade(form: Form) {
    let made = Arc::new(Mutex::new(0));
    let (count, cache) = (Arc::clone(&made), Arc::new(RwLock::new(BTreeMap::new())));
    each(2, move |_| {
        let found = cache.read().contains_key("page");
        if !found {
            let mut cache = cache.write();
            if form.is_broken() || !cache.contains_key("page") {
                *count.lock() += 1;
                cache.insert("page", ());
            }
        }
    });
    assert_eq!(*made.lock(), 1, "the page is made once");
}

fn late_reset(form: Form) {
    let shared = Arc::new((Mutex::new(0), Event::manual(false)));
    let (works, asks) = (Arc::clone(&shared), shared);
    together(vec![
        Box::new(move || {
            let (jobs, came) = &*works;
            let mut done = 0;
            while done < 2 {
                came.wait().expect("no cancellation");
                if !form.is_broken() {
                    came.reset();
                }
                done += std::mem::take(&mut *jobs.lock());
                if form.is_broken() {
                    came.reset();
                }
            }
        }),
        Box::new(move || {
            for _ in 0..2 {
                *asks.0.lock() += 1;
                asks.1.set();
            }
        }),
    ]);
}

/// A permit is handed to a waiter that has just given up, and is lost.
fn lost_permit(form: Form) {
    struct Seats {
        /// Free permits, and whether the waiter was granted one.
        state: Mutex<(usize, bool)>,
        granted: Condvar,
    }
    let seats = Arc::new(Seats { state: Mutex::new((0, false)), granted: Condvar::new() });
    let (waits, gives) = (Arc::clone(&seats), Arc::clone(&seats));
    together(vec![
        Box::new(move || {
            let mut state = waits.state.lock();
            let time = std::time::Duration::from_micros(ums::sim::below(20));
            let timed_out = waits.granted.wait_for(&mut state, time).is_err();
            drop(state);
            let mut state = waits.state.lock();
            let granted = std::mem::take(&mut state.1);
            // A wait that timed out has its permit if it was granted one meanwhile.
            if !timed_out || granted && !form.is_broken() {
                state.0 += 1;
            }
        }),
        Box::new(move || {
            gives.state.lock().1 = true;
            gives.granted.notify_one();
        }),
    ]);
    let state = seats.state.lock();
    assert_eq!(state.0 + usize::from(state.1), 1, "the permit is lost");
}
