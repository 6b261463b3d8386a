//! Models of a bias: the holder and another thread never have the lock at the same time.
//!
//! Bounds: a lock that is biased to one holder, which uses it twice; one other thread that uses it
//! once. In the model, the barrier on all threads is a fence in each of the two threads. What the
//! lock guards is a cell that loom watches. Exhaustive.

#![allow(unsafe_code)]

use std::sync::Arc;

use ::loom::cell::UnsafeCell;
use ::loom::sync::Mutex;
use ::loom::sync::atomic::fence;

use super::*;

const HOLDER: u32 = 7;

struct Lock {
    bias: Bias,
    base: Mutex<()>,
    data: UnsafeCell<u32>,
}

// SAFETY: Held: by the lock, which the models check.
unsafe impl Sync for Lock {}
// SAFETY: Held: as above.
unsafe impl Send for Lock {}

impl Lock {
    fn touch(&self) {
        // SAFETY: Held: by the lock; loom reports two accesses at the same time.
        self.data.with_mut(|data| unsafe { *data += 1 });
    }

    fn use_as(&self, me: u32, barrier: impl FnOnce()) {
        if self.bias.enter(me) {
            self.touch();
            return self.bias.leave();
        }
        let _base = self.base.lock().unwrap();
        self.bias.used_by(me, barrier);
        self.touch();
    }
}

fn two_threads(barrier: fn()) {
    ::loom::model(move || {
        let bias = Bias { owner: AtomicU32::new(HOLDER), held: AtomicBool::new(false) };
        let (base, data) = (Mutex::new(()), UnsafeCell::new(0));
        let lock = Arc::new(Lock { bias, base, data });
        let theirs = lock.clone();
        let other = ::loom::thread::spawn(move || theirs.use_as(NO_HOLDER, barrier));
        for _ in 0..2 {
            lock.use_as(HOLDER, || unreachable!("only another thread needs the barrier"));
        }
        other.join().unwrap();
        // SAFETY: Held: no other thread is left.
        assert_eq!(lock.data.with(|data| unsafe { *data }), 3);
    });
}

#[test]
fn loom_one_thread_at_a_time_has_a_biased_lock() {
    two_threads(|| fence(SeqCst));
}

#[test]
#[should_panic]
fn loom_without_the_barrier_both_may_have_it() {
    two_threads(|| {});
}
