//! See `umsql::fuzz::wire`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| umsql::fuzz::wire(bytes));
