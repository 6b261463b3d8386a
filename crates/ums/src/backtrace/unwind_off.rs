//! In the place of `unwind.rs` in a build without the feature `symbols`: no stack is unwound, and
//! no function has a name. A report shows the address of the instruction at which a thread was
//! seen, which a debugger or `addr2line` translates.

use crate::os::linux::sample::Sample;
use crate::record::frame::Frame;
use crate::watch::Waits;

/// Finds the frames in samples.
pub(crate) struct Walker;

impl Walker {
    pub(crate) fn new() -> Walker {
        Walker
    }

    /// Returns the innermost frame of a sample.
    pub(crate) fn frames(&mut self, sample: &Sample) -> Vec<Frame> {
        vec![unnamed(sample.instruction())]
    }
}

/// Returns the innermost frame of a sample.
pub(crate) fn frames(sample: &Sample) -> Vec<Frame> {
    Walker::new().frames(sample)
}

/// Returns the innermost frame of a thread that was seen to wait in the kernel.
pub(crate) fn frames_of_waiting(waits: &Waits) -> Vec<Frame> {
    vec![unnamed(waits.pc)]
}

/// Returns the frames with these return addresses.
pub(crate) fn frames_of(addresses: &[usize]) -> Vec<Frame> {
    addresses.iter().map(|address| unnamed(*address as u64)).collect()
}

fn unnamed(address: u64) -> Frame {
    Frame::new(format!("{address:#x}"), None)
}
