//! Bugs in the use of atomic variables, in one order of memory accesses.

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use ums::sim::sync::{AtomicBool, AtomicU64, AtomicUsize};

use super::{Form, Story, each, together};

pub const PROGRAMS: &[(&str, Story)] = &[
    ("ABA: a stack of reused nodes without a tag", aba),
    ("double close: look at the flag, then set it (Docker issue 24007)", double_close),
    ("check, then act: the last ticket is sold twice", oversold),
    ("flag before data: published before it is written", published_early),
    ("torn read: a pair that is written in two steps", torn_read),
    ("mutual exclusion: look at the other's flag, then set one's own", exclusion),
    ("reference count: subtract, then look again", count),
    ("deque: the owner and a thief take the same last item", deque),
];

const NONE: usize = usize::MAX;

/// A stack of nodes that are numbers; `next` has the number below each. A pop that was interrupted
/// finds the same top again, above another node.
fn aba(form: Form) {
    struct Stack {
        /// The top's number in the lower half, a tag in the upper half.
        top: AtomicU64,
        next: [AtomicUsize; 2],
        owned: [AtomicBool; 2],
        tagged: bool,
    }
    impl Stack {
        fn swing(&self, seen: u64, to: usize) -> bool {
            let tag = if self.tagged { (seen >> 32) + 1 } else { 0 };
            let to = tag << 32 | (to as u32 as u64);
            self.top.compare_exchange(seen, to, SeqCst, SeqCst).is_ok()
        }
        fn number(word: u64) -> usize {
            if word as u32 == u32::MAX { NONE } else { word as u32 as usize }
        }
        fn pop(&self) -> Option<usize> {
            loop {
                let seen = self.top.load(SeqCst);
                let top = Stack::number(seen);
                if top == NONE {
                    return None;
                }
                let below = self.next[top].load(SeqCst);
                if self.swing(seen, below) {
                    assert!(!self.owned[top].swap(true, SeqCst), "node {top} has two owners");
                    return Some(top);
                }
            }
        }
        fn push(&self, node: usize) {
            self.owned[node].store(false, SeqCst);
            loop {
                let seen = self.top.load(SeqCst);
                self.next[node].store(Stack::number(seen), SeqCst);
                if self.swing(seen, node) {
                    return;
                }
            }
        }
    }
    // Node 0 is above node 1.
    let stack = Arc::new(Stack {
        top: AtomicU64::new(0),
        next: [AtomicUsize::new(1), AtomicUsize::new(NONE)],
        owned: [AtomicBool::new(false), AtomicBool::new(false)],
        tagged: !form.is_broken(),
    });
    each(2, move |at| {
        if at == 0 {
            let _ = stack.pop();
            return;
        }
        // Pops both, and gives back the first one only.
        let (first, second) = (stack.pop(), stack.pop());
        first.into_iter().for_each(|node| stack.push(node));
        let _ = (second, stack.pop());
    });
}

fn double_close(form: Form) {
    let closes = Arc::new(AtomicUsize::new(0));
    let (count, closed) = (Arc::clone(&closes), AtomicBool::new(false));
    each(2, move |_| {
        let first = if form.is_broken() {
            let first = !closed.load(SeqCst);
            closed.store(true, SeqCst);
            first
        } else {
            !closed.swap(true, SeqCst)
        };
        count.fetch_add(usize::from(first), SeqCst);
    });
    assert_eq!(closes.load(SeqCst), 1, "closed once");
}

fn oversold(form: Form) {
    let tickets = Arc::new(AtomicUsize::new(1));
    each(2, move |_| {
        if form.is_broken() {
            if tickets.load(SeqCst) > 0 {
                assert!(tickets.fetch_sub(1, SeqCst) > 0, "the last ticket is sold twice");
            }
        } else {
            let _ = tickets.fetch_update(SeqCst, SeqCst, |left| left.checked_sub(1));
        }
    });
}

fn published_early(form: Form) {
    let shared = Arc::new((AtomicBool::new(false), AtomicUsize::new(0)));
    let (writes, reads) = (Arc::clone(&shared), shared);
    together(vec![
        Box::new(move || {
            let (ready, data) = &*writes;
            if form.is_broken() {
                ready.store(true, SeqCst);
                data.store(7, SeqCst);
            } else {
                data.store(7, SeqCst);
                ready.store(true, SeqCst);
            }
        }),
        Box::new(move || {
            let (ready, data) = &*reads;
            if ready.load(SeqCst) {
                assert_eq!(data.load(SeqCst), 7, "read before it was written");
            }
        }),
    ]);
}

/// A sequence lock; the broken reader does not look at the sequence a second time.
fn torn_read(form: Form) {
    struct Pair {
        sequence: AtomicUsize,
        halves: [AtomicUsize; 2],
    }
    let zero = AtomicUsize::new;
    let pair = Arc::new(Pair { sequence: zero(0), halves: [zero(0), zero(0)] });
    each(2, move |at| {
        let Pair { sequence, halves } = &*pair;
        if at == 0 {
            sequence.fetch_add(1, SeqCst);
            halves.iter().for_each(|half| half.store(1, SeqCst));
            sequence.fetch_add(1, SeqCst);
            return;
        }
        loop {
            let before = sequence.load(SeqCst);
            if before % 2 == 1 {
                ums::yield_now();
                continue;
            }
            let [one, two] = [halves[0].load(SeqCst), halves[1].load(SeqCst)];
            if form.is_broken() || sequence.load(SeqCst) == before {
                assert_eq!(one, two, "half of the old value, half of the new one");
                return;
            }
        }
    });
}

/// Each sets a flag and enters if the other's is not set. The broken form looks first.
fn exclusion(form: Form) {
    let wants = Arc::new([AtomicBool::new(false), AtomicBool::new(false)]);
    let inside = AtomicUsize::new(0);
    each(2, move |me| {
        let enters = if form.is_broken() {
            let free = !wants[1 - me].load(SeqCst);
            wants[me].store(true, SeqCst);
            free
        } else {
            wants[me].store(true, SeqCst);
            !wants[1 - me].load(SeqCst)
        };
        if enters {
            assert_eq!(inside.fetch_add(1, SeqCst), 0, "both are inside");
            inside.fetch_sub(1, SeqCst);
        }
        wants[me].store(false, SeqCst);
    });
}

fn count(form: Form) {
    let freed = Arc::new(AtomicUsize::new(0));
    let (frees, uses) = (Arc::clone(&freed), AtomicUsize::new(2));
    each(2, move |_| {
        let last = if form.is_broken() {
            uses.fetch_sub(1, SeqCst);
            uses.load(SeqCst) == 0
        } else {
            uses.fetch_sub(1, SeqCst) == 1
        };
        frees.fetch_add(usize::from(last), SeqCst);
    });
    assert_eq!(freed.load(SeqCst), 1, "freed once");
}

/// A deque with one item. The owner takes from the bottom, a thief from the top.
fn deque(form: Form) {
    let taken = Arc::new(AtomicUsize::new(0));
    let (takes, top, bottom) = (Arc::clone(&taken), AtomicUsize::new(0), AtomicUsize::new(1));
    each(2, move |at| {
        let got = if at == 0 {
            bottom.store(0, SeqCst);
            let seen = top.load(SeqCst);
            // The last item belongs to the one that moves the top.
            match form {
                Form::Broken => seen == 0,
                Form::Repaired => seen == 0 && top.compare_exchange(0, 1, SeqCst, SeqCst).is_ok(),
            }
        } else {
            let seen = top.load(SeqCst);
            seen < bottom.load(SeqCst)
                && top.compare_exchange(seen, seen + 1, SeqCst, SeqCst).is_ok()
        };
        takes.fetch_add(usize::from(got), SeqCst);
    });
    assert!(taken.load(SeqCst) <= 1, "the item is taken twice");
}
