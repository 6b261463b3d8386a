//! The bench of the disk: random reads of 4 KiB, past the page cache.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ums::fs::{DirectBuffer, File};

use super::meter::{BenchArgs, Meter, Ran, Stop};
use super::setup::Setup;

const BLOCK: u64 = 4096;
/// Workers beyond those that the readers need.
const SPARE: u64 = 8;

/// `disk path= secs= qd=`: `qd` tasks on one CPU read random blocks with `O_DIRECT` for `secs`
/// seconds.
pub fn disk(args: &BenchArgs) -> Ran {
    let setup = Setup::read(args)?;
    let path = args.text("path", "").to_owned();
    let span = Duration::from_secs(args.number("secs", 5)?);
    let depth = args.number("qd", 32)?.max(1);
    args.all_known()?;
    if path.is_empty() {
        return Err(Stop::Usage("path=FILE is needed: a file much larger than 4 KiB".into()));
    }
    let skip = |error: std::io::Error| Stop::Skip(format!("{path}: {error}"));
    let file = File::options().read(true).direct(true).open(&path).map_err(skip)?;
    let blocks = file.metadata().map_err(skip)?.len() / BLOCK;
    if blocks == 0 {
        return Err(Stop::Usage(format!("path={path}: smaller than a block")));
    }
    let lines = setup.lines("disk");
    let file = Arc::new(file);
    let done = setup.node(1, depth + SPARE)?.run(move || {
        let meter = Meter::start();
        let began = Instant::now();
        let readers = (0..depth).map(|at| {
            let file = file.clone();
            ums::spawn(move || read_until(&file, blocks, at, (began, span)))
        });
        let readers: Vec<_> = readers.collect();
        let counts = readers.into_iter().map(|r| r.join().expect("a reader does not panic"));
        (counts.sum::<std::io::Result<u64>>(), meter.read())
    });
    let (count, (wall, cpu)) = done;
    let count = count.map_err(|error| Stop::Skip(error.to_string()))?;
    lines.metric("iops", count as f64 / (wall / 1e9), "1/s");
    lines.metric("cpu_us_per_op", cpu / 1e3 / count as f64, "us");
    Ok(())
}

fn read_until(
    file: &File,
    blocks: u64,
    at: u64,
    (began, span): (Instant, Duration),
) -> std::io::Result<u64> {
    let mut random = at * 7919 + 12_345;
    let mut buffer = DirectBuffer::new(BLOCK as usize);
    let mut count = 0;
    while began.elapsed() < span {
        // The fixed workload: xorshift64, with a separate generator for each reader.
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        file.read_exact_at(&mut buffer, random % blocks * BLOCK)?;
        count += 1;
    }
    Ok(count)
}
