//! A memory barrier on all threads of the process at once (`membarrier`). With it, the frequent
//! side of a protocol needs no barrier, because the rare side executes one for both.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering, compiler_fence};

use rustix::thread::{MembarrierCommand, membarrier};

use crate::os::atomic::fence;
use crate::os::stderr::write_now;

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

/// Makes every thread of the process, including the caller, execute a barrier. On systems that
/// refuse that, only the caller executes one, and so does the frequent side.
///
/// Aborts the process if the system refuses the barrier now and has not done so before, because a
/// filter of system calls was installed since: the frequent side relies on it.
pub fn on_all_threads() {
    fence(Ordering::SeqCst);
    if cfg!(not(loom)) && is_refused().is_none() && !everywhere() {
        // The kernel may have been short of memory. A forked child may have to register again.
        let _ = membarrier(MembarrierCommand::RegisterPrivateExpedited);
        if !everywhere() {
            let text = "ums: the system call membarrier fails, and did not when the first \
                        scheduler was made. Allow it in filters of system calls, or install them \
                        before that. Aborting\n";
            write_now(text.as_bytes());
            std::process::abort();
        }
    }
    fence(Ordering::SeqCst);
}

fn everywhere() -> bool {
    membarrier(MembarrierCommand::PrivateExpedited).is_ok()
}
