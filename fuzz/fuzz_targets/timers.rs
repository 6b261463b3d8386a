//! See `ums::fuzz::timers`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| ums::fuzz::timers(bytes));
