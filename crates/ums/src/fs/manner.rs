//! The manner of a file: where its operations are done (through the page cache, past it, or when
//! the file is ready).

use std::io;
use std::os::unix::fs::FileTypeExt;

use rustix::fs::{AtFlags, OFlags, StatxFlags};

use crate::os::linux::owned::DescriptorKind;

/// Where the operations of a file are done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Manner {
    /// Through the page cache. With `slow_writes` (O_SYNC, O_DSYNC), a write waits for the disk.
    Cached { slow_writes: bool },
    /// Past the page cache. Addresses of buffers must be multiples of `memory`, positions and
    /// lengths multiples of `offset`.
    Direct { memory: usize, offset: usize },
    /// A pipe, a terminal or another device: operations wait until it is ready.
    Stream,
}

impl Manner {
    /// Determines the manner, with two or three system calls that touch no disk.
    pub fn of(file: &std::fs::File) -> io::Result<Manner> {
        let kind = file.metadata()?.file_type();
        let flags = rustix::fs::fcntl_getfl(file)?;
        if kind.is_fifo() || kind.is_socket() || kind.is_char_device() {
            rustix::fs::fcntl_setfl(file, flags | OFlags::NONBLOCK)?;
            return Ok(Manner::Stream);
        }
        if flags.contains(OFlags::DIRECT) {
            let (memory, offset) = direct_alignment(file);
            return Ok(Manner::Direct { memory, offset });
        }
        Ok(Manner::Cached { slow_writes: flags.intersects(OFlags::SYNC | OFlags::DSYNC) })
    }

    /// Returns what the drivers may assume about the descriptor.
    pub fn kind(self) -> DescriptorKind {
        if self == Manner::Stream { DescriptorKind::Other } else { DescriptorKind::File }
    }
}

/// Returns the alignment that direct I/O on this file needs (Linux 6.1). If the system does not
/// say, returns the least that any disk needs; the system then refuses requests that are not
/// aligned enough.
fn direct_alignment(file: &std::fs::File) -> (usize, usize) {
    let asked = rustix::fs::statx(file, "", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN);
    match asked {
        Ok(x) if x.stx_dio_mem_align > 0 && x.stx_dio_offset_align > 0 => {
            (x.stx_dio_mem_align as usize, x.stx_dio_offset_align as usize)
        }
        _ => (512, 512),
    }
}
