//! See `ums::fuzz::workers`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| ums::fuzz::workers(bytes));
