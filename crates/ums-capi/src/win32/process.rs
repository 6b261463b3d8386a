//! The functions for the calling process. There are no handles of other processes.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use ums::windows::{self, ThreadKind};

use super::error::{
    BOOL, ERROR_INVALID_HANDLE, ERROR_INVALID_PARAMETER, ERROR_NOT_SUPPORTED, done,
};
use super::handle::{CURRENT_PROCESS, HANDLE};
use super::system;
use crate::caller::Out;

/// The mask of `SetProcessAffinityMask`; 0 if it has not been called.
static CHOSEN: AtomicUsize = AtomicUsize::new(0);

/// Returns a pseudo handle for this process.
#[unsafe(no_mangle)]
pub extern "C" fn GetCurrentProcess() -> HANDLE {
    CURRENT_PROCESS
}

/// Returns the number of this process.
#[unsafe(no_mangle)]
pub extern "C" fn GetCurrentProcessId() -> u32 {
    std::process::id()
}

/// Ends the process.
#[unsafe(no_mangle)]
pub extern "C" fn ExitProcess(code: u32) -> ! {
    std::process::exit(code as i32)
}

/// Stores the processors that the threads of this process may use, and those that the system
/// allowed it when this was first asked. The first 64 processors are known.
#[unsafe(no_mangle)]
pub extern "C" fn GetProcessAffinityMask(
    process: HANDLE,
    mut mask: Out<'_, usize>,
    mut system: Out<'_, usize>,
) -> BOOL {
    done(this(process).map(|()| {
        let allowed = allowed();
        let chosen = CHOSEN.load(Ordering::Acquire);
        mask.put(if chosen == 0 { allowed } else { chosen });
        system.put(allowed);
    }))
}

/// Sets the processors that the threads of this process may use: those that exist, except
/// schedulers and their workers, which are pinned; and those that are created later.
#[unsafe(no_mangle)]
pub extern "C" fn SetProcessAffinityMask(process: HANDLE, mask: usize) -> BOOL {
    let set = || {
        this(process)?;
        if mask == 0 || mask & !allowed() != 0 {
            return Err(ERROR_INVALID_PARAMETER);
        }
        let threads = std::fs::read_dir("/proc/self/task").map_err(|_| ERROR_NOT_SUPPORTED)?;
        let names = threads.flatten().map(|thread| thread.file_name());
        for id in names.filter_map(|name| name.to_str()?.parse::<u32>().ok()) {
            if windows::thread_kind(id) == ThreadKind::Plain {
                // A thread that has ended meanwhile is no error.
                let _ = system::set_affinity(id, mask);
            }
        }
        CHOSEN.store(mask, Ordering::Release);
        Ok(())
    };
    done(set())
}

fn this(process: HANDLE) -> Result<(), u32> {
    match process {
        CURRENT_PROCESS => Ok(()),
        other if other.is_null() => Err(ERROR_INVALID_HANDLE),
        _ => Err(ERROR_NOT_SUPPORTED),
    }
}

/// Returns the processors that the process's first thread could use when this was first called.
fn allowed() -> usize {
    static ALLOWED: OnceLock<usize> = OnceLock::new();
    *ALLOWED.get_or_init(|| system::affinity(std::process::id()).unwrap_or(1))
}
