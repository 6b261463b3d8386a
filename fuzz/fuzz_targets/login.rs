//! See `umsql::fuzz::login`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| umsql::fuzz::login(bytes));
