//! Keeps the threads of a world on one processor.

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::os::linux::affinity;

/// Pins the thread, and by inheritance the threads that it creates, to one processor. The threads
/// of a world run one at a time, and on one processor passing the token wakes no other processor.
/// Worlds that run at the same time use different processors.
pub(super) fn stay_on_one_processor() {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let allowed = affinity::affinity(Path::new("/"));
    let cpu = allowed.get(NEXT.fetch_add(1, Ordering::Relaxed) % allowed.len().max(1));
    // If pinning is forbidden, the world only runs slower.
    cpu.into_iter().for_each(|cpu| drop(affinity::pin_to(*cpu)));
}
