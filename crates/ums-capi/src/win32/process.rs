//! The functions for the calling process. There are no handles of other processes.

use ums::windows::{self, ThreadKind};

use super::error::{
    BOOL, ERROR_INVALID_HANDLE, ERROR_INVALID_PARAMETER, ERROR_NOT_SUPPORTED, done,
};
use super::handle::{CURRENT_PROCESS, HANDLE};
use super::system;
use crate::caller::Out;

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
    std::process::exit(code.cast_signed())
}

/// Stores the processors that the threads of this process may use, and those that the system
/// allowed it when this was first asked. The first 64 processors are known.
#[unsafe(no_mangle)]
pub extern "C" fn GetProcessAffinityMask(
    process: HANDLE,
    mut out: Out<'_, usize>,
    mut all: Out<'_, usize>,
) -> BOOL {
    done(this(process).map(|()| {
        out.put(system::process_mask());
        all.put(system::allowed());
    }))
}

/// Sets the processors that the threads of this process may use: those that exist, except
/// schedulers and their workers, which are pinned; and those that are created later.
#[unsafe(no_mangle)]
pub extern "C" fn SetProcessAffinityMask(process: HANDLE, mask: usize) -> BOOL {
    let set = || {
        this(process)?;
        if mask == 0 || mask & !system::allowed() != 0 {
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
        system::set_process_mask(mask);
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
