//! A frame: one function of a backtrace, as reports show it.
//!
//! The monitor's `unwind.rs` finds the frames of a backtrace and their names. This file has the
//! resulting type, and decides which frames belong to the application.

/// A function that a thread or worker is in, or was in when its backtrace was taken.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Frame {
    /// The function's name, or its address if the name is not known.
    pub name: String,
    /// The source file and line, if they are known.
    pub place: Option<String>,
    /// Whether the function is in the C library, the loader or the kernel's vDSO page.
    system: bool,
}

impl Frame {
    /// Makes a frame with this name.
    pub(crate) fn new(name: String, place: Option<String>) -> Frame {
        Frame { name, place, system: false }
    }

    /// Sets whether the function is in an object file of the system.
    pub(crate) fn in_system(self, system: bool) -> Frame {
        Frame { system, ..self }
    }

    /// Returns whether the function is part of the foundation: neither the application's code, nor
    /// that of a library which the application chose.
    pub(crate) fn is_foundation(&self) -> bool {
        const CRATES: [&str; 12] = [
            "core",
            "std",
            "alloc",
            "ums",
            "ums_capi",
            "fiber",
            "context",
            "corosensei",
            "rustix",
            "libc",
            "io_uring",
            "compiler_builtins",
        ];
        let of = |path: &str| {
            let path = path.trim_start_matches(['<', '&', '*', '(', '[']);
            let path = ["mut ", "const ", "dyn "]
                .iter()
                .fold(path, |path, word| path.strip_prefix(word).unwrap_or(path));
            path.split_once("::").map(|(first, _)| first.to_owned())
        };
        let name = self.name.as_str();
        // In `<T as Trait>::f`, where `T` is a type parameter, the crate of the trait counts.
        let (owner, of_trait) = name.split_once(" as ").unwrap_or((name, name));
        match of(owner).or_else(|| of(of_trait)) {
            Some(first) => CRATES.contains(&first.as_str()),
            // A name without `::` is that of a C function. Compilers insert calls of the ones
            // below.
            None => {
                let helps = ["0x", "__", "ums_", "rust_", "_Unwind", "_start", "mem", "bcmp"];
                self.system || helps.iter().any(|start| name.starts_with(start))
            }
        }
    }
}

impl std::fmt::Display for Frame {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.name)?;
        self.place.as_ref().map_or(Ok(()), |place| write!(f, " ({place})"))
    }
}

/// Returns the frames of the application's code: all without the inner ones, in which the library
/// parked the worker, and without the outer ones, in which the library called the request.
pub(crate) fn of_the_application(all: &[Frame]) -> &[Frame] {
    let path = |frame: &Frame| frame.name.trim_start_matches('<').to_owned();
    let is = |frame: &Frame, of: &[&str]| of.iter().any(|start| path(frame).starts_with(start));
    let is_machine = |frame: &Frame| {
        // A name without `::` is that of a C library function.
        is(frame, &["ums::", "fiber::", "context::", "corosensei::"])
            || is(frame, &["core::", "std::", "alloc::", "rustix::", "io_uring::", "0x"])
            || !frame.name.contains("::")
    };
    let parks =
        |frame: &Frame| is(frame, &["ums::scheduler::", "fiber::", "context::", "corosensei::"]);
    let is_main = |frame: &Frame| frame.name.contains("worker_main");
    let end = all.iter().position(is_main).unwrap_or(all.len());
    // The outer frames are counted from the outermost inward, because a function that the
    // application calls may be in one of the same modules.
    let called = ["ums::scheduler::", "ums::os::entry::", "ums::os::panics::", "ums::task::"];
    let ours = [&called[..], &["ums::node::serve::", "ums::node::user::"]].concat();
    let glue = [&ours[..], &["core::", "std::"]].concat();
    let is_glue = |frame: &Frame| is(frame, &glue) || frame.name.starts_with("__rust");
    let outer = all[..end].iter().rev().take_while(|frame| is_glue(frame)).count();
    let frames = &all[..end - outer];
    let inner = frames.iter().take_while(|frame| is_machine(frame));
    let first = inner.enumerate().filter(|(_, frame)| parks(frame)).last();
    &frames[first.map_or(0, |(at, _)| at + 1)..]
}

/// Returns the innermost function that is neither this library's, the standard library's nor the
/// system's.
pub(crate) fn guilty(all: &[Frame]) -> Option<&Frame> {
    all.iter().find(|frame| !frame.is_foundation())
}

/// Returns the return addresses of the callers of `noticing`, the innermost first. `noticing` must
/// be a function that is not inlined. If its frame cannot be identified, returns the addresses of
/// all active functions.
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

    #[test]
    fn the_guilty_function_is_the_applications_innermost() {
        let frame = |name: &str| Frame::new(name.into(), None);
        let foundation = [
            "core::hint::spin_loop",
            "<alloc::vec::Vec<app::Row> as core::ops::drop::Drop>::drop",
            "<&mut F as core::ops::function::FnOnce<A>>::call_once",
            "<T as alloc::string::ToString>::to_string",
            "ums::sync::mutex::Mutex<T>::lock",
            "__rust_begin_short_backtrace",
            "ums_sleep",
            "memcpy",
            "0x7f1234",
        ];
        for name in foundation {
            assert_eq!(guilty(&[frame(name)]), None, "{name}");
        }
        assert_eq!(guilty(&[frame("clock_nanosleep").in_system(true)]), None);
        let guilty_ones = [
            "app::parse",
            "<app::Row as core::fmt::Display>::fmt",
            "<&mut app::Row as core::fmt::Display>::fmt",
            "umsql::run",
            "parse_in_c",
        ];
        for name in guilty_ones {
            let all = [frame("std::thread::sleep"), frame(name), frame("app::main")];
            assert_eq!(guilty(&all), Some(&all[1]), "{name}");
        }
    }

    #[inline(never)]
    fn notices() -> Vec<usize> {
        std::hint::black_box(callers_of(notices as *const (), 3))
    }

    #[inline(never)]
    fn is_noticed() -> (Vec<usize>, usize) {
        (std::hint::black_box(notices()), is_noticed as *const () as usize)
    }

    #[test]
    fn the_function_that_looks_for_its_callers_is_not_among_them() {
        let (callers, first) = is_noticed();
        assert_eq!(callers.len(), 3);
        assert!((first..first + 4096).contains(&callers[0]), "{callers:x?}, {first:x}");
        let of_nothing = callers_of(std::ptr::null(), 3);
        assert_eq!(of_nothing.len(), 3);
    }
}
