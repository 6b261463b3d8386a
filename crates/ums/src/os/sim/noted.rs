//! Tells the calling thread's world of accesses to shared memory, which `lines.rs` counts.
//! Counting begins at the first call of [`counts`] in a world.

use std::ptr::from_ref;
use std::sync::atomic::Ordering;

pub use super::lines::Access;
use super::lines::{COUNTING, LineCounts, Lines};
use super::place;

/// Notes that the calling thread has used the first byte of this.
#[inline]
pub fn note<T: ?Sized>(at: &T, access: Access) {
    if COUNTING.load(Ordering::Relaxed) > 0 {
        note_in_world(from_ref(at).cast::<u8>() as usize, access);
    }
}

#[cold]
fn note_in_world(at: usize, access: Access) {
    if let Some((world, me)) = place()
        && let Some(lines) = &mut *world.lines.lock()
    {
        lines.note(me, at, access);
    }
}

/// Returns the counts of the caller's world since the first call.
pub fn counts() -> LineCounts {
    place().map_or(LineCounts::default(), |(world, _)| {
        world.lines.lock().get_or_insert_with(Lines::begin).counts
    })
}
