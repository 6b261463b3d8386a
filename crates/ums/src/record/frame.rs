//! A frame: one function of a backtrace, as reports show it.
//!
//! `backtrace/unwind.rs` finds the frames of a backtrace and their names. This file has the
//! resulting type, and decides which frames belong to the application.
//!
//! ```text
//!   innermost  syscall, io_uring_enter, ums::scheduler::idle::sleep, ums::current::park   left out
//!              app::reads, app::serves, app::main::{{closure}}                            shown
//!   outermost  std::panic::catch_unwind, ums::scheduler::host::worker_main, start_thread  left out
//! ```
//!
//! What a function is called depends on the build. With whole debug information each name has its
//! path. With lines only (`debug = "line-tables-only"`, as in release builds of this repository)
//! names have none: `park`, `{closure#0}`, `call_once<..>`. Then the path is taken from the source
//! file ([`full_name`]). Without debug information a name has its path, and functions that were
//! inlined have no frame.

use std::path::Path;

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
        const CRATES: [&str; 13] = [
            "core",
            "std",
            "alloc",
            "core_arch",
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

/// The folder of this library's sources, as the compiler was told of it: relative to where it ran,
/// or whole.
const OWN_SOURCES: &str = {
    let (file, inside) = (file!(), "record/frame.rs");
    match file.split_at_checked(file.len() - inside.len()) {
        Some((folder, _)) => folder,
        None => file,
    }
};

/// Returns a function's name with its path. A name that has none gets the path of the module in
/// `file`, and loses the types of its parameters, which fill lines and say little.
pub(crate) fn full_name(name: String, file: Option<&Path>) -> String {
    let bare = name.split('<').next().unwrap_or_default();
    if bare.is_empty() || bare.contains("::") {
        return name;
    }
    match file.and_then(module_of) {
        Some(module) => format!("{module}::{bare}"),
        None => name,
    }
}

/// Returns the path of the module in a source file: `ums::scheduler::idle` for
/// `/../crates/ums/src/scheduler/idle.rs`. The crate is called as the folder that `src` is in;
/// examples and tests are outside `src`, and are called as their file.
fn module_of(file: &Path) -> Option<String> {
    let file = file.to_str()?;
    let whole = file.strip_suffix(".rs")?;
    let name_of = |path: &str| path.rsplit('/').next().unwrap_or_default().replace('-', "_");
    let Some((root, inside)) = whole.rsplit_once("/src/") else { return Some(name_of(whole)) };
    // A registry's folder has the version after the name.
    let root = match root.rsplit_once('-') {
        Some((name, version)) if version.starts_with(|c: char| c.is_ascii_digit()) => name,
        _ => root,
    };
    let name = name_of(root);
    // An application may be in a folder of this name, too.
    if name == "ums" && !file.contains(OWN_SOURCES) {
        return None;
    }
    match inside.strip_suffix("/mod").unwrap_or(inside) {
        "lib" | "main" | "mod" => Some(name),
        inside => Some(format!("{name}::{}", inside.replace('/', "::"))),
    }
}

/// Returns the frames of the application's code: all without the inner ones, in which the library
/// parked the worker or called the system for it, and without the outer ones, in which the library
/// called the request.
pub(crate) fn of_the_application(all: &[Frame]) -> &[Frame] {
    let path = |frame: &Frame| frame.name.trim_start_matches('<').to_owned();
    let is = |frame: &Frame, of: &[&str]| of.iter().any(|start| path(frame).starts_with(start));
    let ours = |frame: &Frame| is(frame, &["ums::", "fiber::", "context::", "corosensei::"]);
    let is_machine = |frame: &Frame| {
        // A name without `::` is that of a C library function.
        ours(frame)
            || is(frame, &["core::", "std::", "alloc::", "rustix::", "io_uring::", "0x"])
            || !frame.name.contains("::")
    };
    let is_main = |frame: &Frame| frame.name.contains("worker_main");
    let end = all.iter().position(is_main).unwrap_or(all.len());
    // The outer frames are counted from the outermost inward, because a function that the
    // application calls may be in one of the same modules.
    let called = ["ums::scheduler::", "ums::os::entry::", "ums::os::panics::", "ums::task::"];
    let called = [&called[..], &["ums::node::serve::", "ums::node::user::"]].concat();
    // Where `worker_main` was inlined, what called it is outermost.
    let roots = ["fiber::", "context::", "corosensei::", "start_thread", "clone", "0x"];
    let glue = [&called[..], &roots, &["core::", "std::", "alloc::", "__rust"]].concat();
    let is_glue = |frame: &Frame| is(frame, &glue);
    let outer = all[..end].iter().rev().take_while(|frame| is_glue(frame)).count();
    let frames = &all[..end - outer];
    let inner = frames.iter().take_while(|frame| is_machine(frame));
    let first = inner.enumerate().filter(|(_, frame)| ours(frame)).last();
    let shown = &frames[first.map_or(0, |(at, _)| at + 1)..];
    // What called the system may have been inlined into this library's outer frames.
    if shown.iter().all(Frame::is_foundation) { &[] } else { shown }
}

/// Returns the frames of a backtrace that a reader sees: those of the application, and the
/// innermost ones that it called, but not those by which its functions call each other.
pub(crate) fn shown(all: &[Frame]) -> Vec<&Frame> {
    let frames = of_the_application(all);
    let called = frames.iter().take_while(|frame| frame.is_foundation()).count();
    let outer = frames[called..].iter().filter(|frame| !frame.is_foundation());
    frames[..called].iter().chain(outer).collect()
}

/// Removes what unwinding finds beyond the first function of a fiber, where nothing called it: a
/// word of memory that is no return address.
pub(crate) fn end_at_root(frames: &mut Vec<Frame>) {
    // On x86-64, and on other processors.
    const ROOTS: [&str; 2] = ["fiber::switch::direct::start", "stack_init_trampoline"];
    let is_root = |frame: &Frame| ROOTS.iter().any(|root| frame.name.starts_with(root));
    if let Some(root) = frames.iter().position(is_root) {
        frames.truncate(root + 1);
    }
}

/// Returns why no function of the application is among these frames.
pub(crate) fn none_of_the_application(all: &[Frame]) -> &'static str {
    match all.iter().all(|frame| frame.system || frame.name.starts_with("0x")) {
        _ if all.is_empty() => "(could not be seen)",
        _ if cfg!(not(feature = "symbols")) => {
            "(no names of functions: the program was built without the feature `symbols` of `ums`)"
        }
        true => "(the program has no names of functions: it was stripped)",
        false => {
            "(none of the application's functions is seen: it calls none, or they were inlined)"
        }
    }
}

/// Returns the innermost function that is neither this library's, the standard library's nor the
/// system's.
pub(crate) fn guilty(all: &[Frame]) -> Option<&Frame> {
    all.iter().find(|frame| !frame.is_foundation())
}

/// Returns the return addresses of the callers of `noticing`, the innermost first. `noticing` must
/// be a function that is not inlined. If its frame cannot be identified, returns the addresses of
/// all active functions.
#[cfg(feature = "symbols")]
pub(crate) fn callers_of(noticing: *const (), most: usize) -> Vec<usize> {
    let (mut addresses, mut inner) = (Vec::new(), None);
    crate::os::linux::plain::each_caller(|address, function| {
        addresses.push(address);
        if function == noticing.addr() {
            inner = Some(addresses.len());
        }
        addresses.len() < most + inner.unwrap_or(0)
    });
    addresses.split_off(inner.unwrap_or(0))
}

/// Returns nothing: without the feature `symbols` no stack is unwound.
#[cfg(not(feature = "symbols"))]
pub(crate) fn callers_of(_noticing: *const (), _most: usize) -> Vec<usize> {
    Vec::new()
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

    #[test]
    fn a_name_without_a_path_gets_that_of_its_file_b40() {
        let own = |file: &str| format!("/home/me/{OWN_SOURCES}{file}");
        let cases = [
            ("park", own("scheduler/park.rs"), "ums::scheduler::park::park"),
            ("with<(), ums::scheduler::idle::{impl#0}>", own("os/mod.rs"), "ums::os::with"),
            ("spawn", own("lib.rs"), "ums::spawn"),
            ("{closure#0}", "/me/my-app/src/main.rs".into(), "my_app::{closure#0}"),
            ("serves", "/me/my-app/src/net/mod.rs".into(), "my_app::net::serves"),
            ("sleeps", "/me/my-app/examples/parked.rs".into(), "parked::sleeps"),
            ("sleeps", "/me/ums/src/main.rs".into(), "sleeps"),
            (
                "call_once<(), app::F>",
                "/rustc/1f/library/core/src/ops/function.rs".into(),
                "core::ops::function::call_once",
            ),
            (
                "enter",
                "/r/src/index-1f/io-uring-0.7.11/src/submit.rs".into(),
                "io_uring::submit::enter",
            ),
            ("start_thread", "./nptl/pthread_create.c".into(), "start_thread"),
            (
                "<app::Row as core::fmt::Display>::fmt",
                "/a/src/b.rs".into(),
                "<app::Row as core::fmt::Display>::fmt",
            ),
            ("app::parse<u8>", "/a/src/b.rs".into(), "app::parse<u8>"),
        ];
        for (name, file, full) in cases {
            assert_eq!(full_name(name.into(), Some(Path::new(&file))), full, "{name} of {file}");
        }
        assert_eq!(full_name("park".into(), None), "park");
    }

    #[test]
    fn the_frames_of_the_application_are_shown_and_no_others_b40() {
        let frames = |names: &[&str]| -> Vec<Frame> {
            let of_system = |name: &str| ["syscall", "poll", "clone3"].contains(&name);
            let frame = |name: &&str| Frame::new((*name).into(), None).in_system(of_system(name));
            names.iter().map(frame).collect()
        };
        let shown = |names: &[&str]| -> Vec<String> {
            shown(&frames(names)).into_iter().map(|frame| frame.name.clone()).collect()
        };
        let inner = ["syscall", "io_uring::submit::enter", "ums::scheduler::idle::sleep"];
        let outer = ["std::panic::catch_unwind", "ums::scheduler::host::worker_main", "clone3"];
        let all = [&inner[..], &["ums::current::sleep", "app::naps", "app::main"], &outer].concat();
        assert_eq!(shown(&all), ["app::naps", "app::main"]);
        let computes = [&["core::hint::spin_loop", "app::counts"][..], &outer].concat();
        assert_eq!(shown(&computes), ["core::hint::spin_loop", "app::counts"]);
        let in_c = [&["parses", "reads"][..], &outer].concat();
        assert_eq!(shown(&in_c), ["parses", "reads"]);
        let away = ["poll", "app::calls", "ums::current::go_preemptive", "core::ops::call_once"];
        let away = [&away[..], &["app::main"], &outer].concat();
        assert_eq!(shown(&away), ["poll", "app::calls", "app::main"]);
        // As in a build that inlined `worker_main`, and the application's function into ours.
        let root = ["ums::scheduler::host::or_abort", "fiber::fiber::fiber_root"];
        let start = ["fiber::switch::direct::start", "anon.3d4584be.30.llvm.5448"];
        let all = [&inner[..], &["ums::scheduler::request::block::run"], &root, &start].concat();
        let mut all = frames(&all);
        end_at_root(&mut all);
        assert_eq!(of_the_application(&all), [], "no frame from beyond the fiber's stack");
        assert!(none_of_the_application(&all).contains("inlined"));
        let stripped = frames(&["0x5603bc7a56d6", "0x5603bc88e76b"]);
        assert_eq!(of_the_application(&stripped), []);
        assert!(none_of_the_application(&stripped).contains("stripped"));
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
