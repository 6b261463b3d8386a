//! See `umsql::fuzz::sql`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| umsql::fuzz::sql(bytes));
