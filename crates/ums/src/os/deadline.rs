//! A deadline: nanoseconds on the clock of [`clock`](super::clock), as a `u64`.

/// A deadline that never comes.
pub const NEVER: u64 = u64::MAX;
