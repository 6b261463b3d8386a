//! A frame: one function of a backtrace, as reports show it.
//!
//! Who finds frames and names them is the monitor's `unwind.rs`; this is what is left of them, and
//! which of them are the application's.

/// A function that a thread or worker is in, or was in.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Frame {
    /// Its name, or its address where that has none.
    pub name: String,
    /// File and line, where they are known.
    pub place: Option<String>,
}

impl Frame {
    /// A frame with this name.
    pub(crate) fn new(name: String, place: Option<String>) -> Frame {
        Frame { name, place }
    }
}

impl std::fmt::Display for Frame {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.name)?;
        self.place.as_ref().map_or(Ok(()), |place| write!(f, " ({place})"))
    }
}

/// The frames of the application's code: without those by which the machine parked the worker, and
/// those by which it called the request.
pub(crate) fn of_the_application(all: &[Frame]) -> &[Frame] {
    let path = |frame: &Frame| frame.name.trim_start_matches('<').to_owned();
    let is = |frame: &Frame, of: &[&str]| of.iter().any(|start| path(frame).starts_with(start));
    let is_machine = |frame: &Frame| {
        // A name without a path is the C library's.
        is(frame, &["ums::", "fiber::", "context::", "corosensei::"])
            || is(frame, &["core::", "std::", "alloc::", "rustix::", "io_uring::", "0x"])
            || !frame.name.contains("::")
    };
    let parks =
        |frame: &Frame| is(frame, &["ums::scheduler::", "fiber::", "context::", "corosensei::"]);
    let is_main = |frame: &Frame| frame.name.contains("worker_main");
    let end = all.iter().position(is_main).unwrap_or(all.len());
    // From the outside first: what the application calls may be the machine's, too.
    let called = ["ums::scheduler::", "ums::os::entry::", "ums::task::", "ums::request::"];
    let ours = [&called[..], &["ums::serve::", "ums::user::"]].concat();
    let glue = [&ours[..], &["core::", "std::"]].concat();
    let is_glue = |frame: &Frame| is(frame, &glue) || frame.name.starts_with("__rust");
    let outer = all[..end].iter().rev().take_while(|frame| is_glue(frame)).count();
    let frames = &all[..end - outer];
    let inner = frames.iter().take_while(|frame| is_machine(frame));
    let first = inner.enumerate().filter(|(_, frame)| parks(frame)).last();
    &frames[first.map_or(0, |(at, _)| at + 1)..]
}

/// The return addresses of whoever has called `noticing`, a function that is not inlined, the innermost first. Where
/// its frame cannot be told from others, of all functions that are being called.
pub(crate) fn callers_of(noticing: *const (), most: usize) -> Vec<usize> {
    let (mut addresses, mut inner) = (Vec::new(), None);
    backtrace::trace(|frame| {
        addresses.push(frame.ip() as usize);
        if frame.symbol_address() == noticing.cast_mut().cast() {
            inner = Some(addresses.len());
        }
        addresses.len() < most + inner.unwrap_or(0)
    });
    addresses.split_off(inner.unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[inline(never)]
    fn notices() -> Vec<usize> {
        std::hint::black_box(callers_of(notices as *const (), 3))
    }

    #[inline(never)]
    fn is_noticed() -> (Vec<usize>, usize) {
        (std::hint::black_box(notices()), is_noticed as *const () as usize)
    }

    #[test]
    fn who_notices_is_not_among_its_callers() {
        let (callers, first) = is_noticed();
        assert_eq!(callers.len(), 3);
        assert!((first..first + 4096).contains(&callers[0]), "{callers:x?}, {first:x}");
        let nobody = callers_of(std::ptr::null(), 3);
        assert_eq!(nobody.len(), 3);
    }
}
