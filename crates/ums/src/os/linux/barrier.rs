//! A memory barrier on all threads of the process at once (`membarrier`). With it, the frequent
//! side of a protocol needs no barrier, because the rare side executes one for both.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering, compiler_fence};

use rustix::thread::{MembarrierCommand, membarrier};

use crate::os::atomic::fence;

/// Whether the frequent side needs no barrier.
static IS_LIGHT: AtomicBool = AtomicBool::new(false);

/// Returns why the system has no such barrier, or `None` if it has. The kernel is asked once.
pub fn is_refused() -> Option<&'static str> {
    static REFUSED: OnceLock<Option<String>> = OnceLock::new();
    let register = || {
        let refused = membarrier(MembarrierCommand::RegisterPrivateExpedited).err();
        IS_LIGHT.store(refused.is_none(), Ordering::Relaxed);
        refused.map(|error| std::io::Error::from(error).to_string())
    };
    REFUSED.get_or_init(register).as_deref()
}

/// The frequent side's part, between its store and its load. Executes a barrier until the first
/// call of [`is_refused`], and on systems that refuse the barrier on all threads: there that one is
/// only a barrier of the calling thread.
#[inline(always)]
pub fn light() {
    if cfg!(loom) || !IS_LIGHT.load(Ordering::Relaxed) {
        fence(Ordering::SeqCst);
    } else {
        compiler_fence(Ordering::SeqCst);
    }
}

/// Makes every thread of the process, including the caller, execute a barrier. Only for systems
/// that do not refuse it.
pub fn on_all_threads() {
    fence(Ordering::SeqCst);
    if cfg!(not(loom)) && is_refused().is_none() {
        // After the registration this call cannot fail.
        let _ = membarrier(MembarrierCommand::PrivateExpedited);
    }
    fence(Ordering::SeqCst);
}
