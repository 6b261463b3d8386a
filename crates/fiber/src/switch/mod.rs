//! The switch: the processor's registers change from those of one stack to those of another.
//!
//! * `direct`: ours, on x86-64. A fiber passes to another in one switch.
//! * `linked`: that of crate corosensei, on other processors and for sanitizers, which have to be
//!   told of each switch. A fiber passes to another in two switches.
//!
//! Both have the same items: a `Switch` for each fiber, and the `WayOut` of the code that runs on
//! it. `--cfg linked_switch` chooses `linked` on every processor, for its tests.

#[cfg(not(any(linked_switch, not(target_arch = "x86_64"), asan, tsan)))]
mod direct;
#[cfg(any(linked_switch, not(target_arch = "x86_64"), asan, tsan))]
mod linked;
mod resume;

#[cfg(not(any(linked_switch, not(target_arch = "x86_64"), asan, tsan)))]
pub(crate) use direct::{KEPT_AT, Switch, WayOut};
#[cfg(any(linked_switch, not(target_arch = "x86_64"), asan, tsan))]
pub(crate) use linked::{KEPT_AT, Switch, WayOut};
pub use resume::Resume;
