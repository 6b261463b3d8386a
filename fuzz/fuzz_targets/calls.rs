//! See `ums_capi::fuzz::calls`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| ums_capi::fuzz::calls(bytes));
