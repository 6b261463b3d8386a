//! A memory barrier on all threads of the process at once (`membarrier`). With it, the frequent
//! side of a protocol needs no barrier, because the rare side executes one for both.

use std::sync::OnceLock;
use std::sync::atomic::{Ordering, fence};

use rustix::thread::{MembarrierCommand, membarrier};

/// Returns why the system has no such barrier, or `None` if it has. The kernel is asked once.
pub fn is_refused() -> Option<&'static str> {
    static REFUSED: OnceLock<Option<String>> = OnceLock::new();
    let register = || {
        let refused = membarrier(MembarrierCommand::RegisterPrivateExpedited).err();
        refused.map(|error| std::io::Error::from(error).to_string())
    };
    REFUSED.get_or_init(register).as_deref()
}

/// Makes every thread of the process, including the caller, execute a barrier. Only for systems
/// that do not refuse it.
pub fn on_all_threads() {
    fence(Ordering::SeqCst);
    if is_refused().is_none() {
        // After the registration this call cannot fail.
        let _ = membarrier(MembarrierCommand::PrivateExpedited);
    }
    fence(Ordering::SeqCst);
}
