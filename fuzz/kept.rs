//! The inputs in `kept/`: those found by fuzzers that reach the most code, one archive for each
//! target. The tests of the fuzzed crates include this file, so every test run tries all of them.

use std::io::Read;

/// Runs each input that is kept for this target.
pub fn each(name: &str, target: fn(&[u8])) {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/kept/");
    let file = std::fs::File::open(format!("{folder}{name}.tar")).expect("there is an archive");
    let mut archive = tar::Archive::new(file);
    let inputs = archive.entries().expect("it is an archive").map(|entry| {
        let mut input = Vec::new();
        entry.unwrap().read_to_end(&mut input).unwrap();
        input
    });
    let count = inputs.inspect(|input| target(input)).count();
    println!("{count} inputs are kept for {name}");
    assert!(count >= 10, "{count} inputs are kept");
}
