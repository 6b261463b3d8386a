//! The parts that all benches share: arguments, JSON lines, and measuring a section.
//!
//! A bench is called as `ums bench NAME key=value ...` and prints one JSON line for each metric:
//!
//! ```text
//! {"bench":"switch/2","peer":"ums-fiber","metric":"ns_per_op","value":6.1,"unit":"ns"}
//! ```
//!
//! The fixed workloads (delays, stack depths) are also used to measure other schedulers, so that
//! one harness can run all of them in turn and compare.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

/// The reason why a bench printed no result.
#[derive(Debug)]
pub enum Stop {
    /// This computer, or this kind of worker, does not support the bench: it prints a skip line and
    /// exits with status 3.
    Skip(String),
    /// The arguments are wrong: prints a message on stderr and exits with status 2.
    Usage(String),
}

/// What a bench returns.
pub type Ran = Result<(), Stop>;

/// The arguments after the bench's name.
pub struct BenchArgs {
    given: HashMap<String, String>,
    known: std::cell::RefCell<Vec<&'static str>>,
}

impl BenchArgs {
    /// Reads `key=value` arguments.
    pub fn parse(args: &[String]) -> Result<BenchArgs, Stop> {
        let mut given = HashMap::new();
        for arg in args {
            let Some((key, value)) = arg.split_once('=') else {
                return Err(Stop::Usage(format!("'{arg}' is not of the form key=value")));
            };
            given.insert(key.to_owned(), value.to_owned());
        }
        Ok(BenchArgs { given, known: Default::default() })
    }

    /// Returns the text given for this key.
    pub fn text<'a>(&'a self, key: &'static str, default: &'a str) -> &'a str {
        self.known.borrow_mut().push(key);
        self.given.get(key).map_or(default, String::as_str)
    }

    /// Returns the number given for this key.
    pub fn number(&self, key: &'static str, default: u64) -> Result<u64, Stop> {
        let default = default.to_string();
        let text = self.text(key, &default);
        text.parse().map_err(|_| Stop::Usage(format!("{key}={text}: not a number")))
    }

    /// Returns an error if a given key has not been read.
    pub fn all_known(&self) -> Ran {
        let known = self.known.borrow();
        match self.given.keys().find(|key| !known.contains(&key.as_str())) {
            Some(key) => {
                let list = known.join(", ");
                Err(Stop::Usage(format!("this bench knows no '{key}'; it knows {list}")))
            }
            None => Ok(()),
        }
    }
}

/// Prints the JSON lines of one bench with one kind of worker.
#[derive(Clone)]
pub struct Lines {
    pub bench: String,
    pub peer: &'static str,
}

impl Lines {
    /// Prints one metric.
    pub fn metric(&self, metric: &str, value: f64, unit: &str) {
        let Lines { bench, peer } = self;
        println!(
            "{{\"bench\":\"{bench}\",\"peer\":\"{peer}\",\"metric\":\"{metric}\",\
             \"value\":{value},\"unit\":\"{unit}\"}}"
        );
    }

    /// Prints why there is no metric.
    pub fn skip(&self, reason: &str) {
        let Lines { bench, peer } = self;
        let reason = reason.replace(['"', '\\', '\n'], " ");
        println!("{{\"bench\":\"{bench}\",\"peer\":\"{peer}\",\"skip\":\"{reason}\"}}");
    }

    /// Prints the time and the processor time of each of `ops` operations since the meter was
    /// started.
    pub fn per_op(&self, meter: &Meter, ops: u64) {
        let (wall, cpu) = meter.read();
        self.metric("ns_per_op", wall / ops as f64, "ns");
        self.metric("cpu_ns_per_op", cpu / ops as f64, "ns");
    }

    /// Prints the time and the processor time since the meter was started.
    pub fn ms(&self, meter: &Meter) {
        let (wall, cpu) = meter.read();
        self.metric("ms", wall / 1e6, "ms");
        self.metric("cpu_ms", cpu / 1e6, "ms");
    }
}

/// Measures wall time and the process's processor time since it was created.
pub struct Meter {
    began: Instant,
    cpu: f64,
}

impl Meter {
    /// Starts measuring.
    pub fn start() -> Meter {
        Meter { cpu: cpu_ns(), began: Instant::now() }
    }

    /// Returns wall time and processor time, in nanoseconds.
    pub fn read(&self) -> (f64, f64) {
        let wall = self.began.elapsed().as_nanos() as f64;
        (wall, cpu_ns() - self.cpu)
    }
}

fn cpu_ns() -> f64 {
    let now = clock_gettime(ClockId::ProcessCPUTime);
    now.tv_sec as f64 * 1e9 + now.tv_nsec as f64
}

/// Returns the fixed pseudo-random delay of task `i` in the timer bench: 1 to 1000 ms, computed by
/// the last steps of splitmix64.
pub fn delay_ms(i: u64) -> u64 {
    let mut x = i.wrapping_add(0x9E37_79B9_7F4A_7C15);
    x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    (x ^ (x >> 31)) % 1000 + 1
}

/// Touches about 1 KiB of the caller's stack.
#[inline(never)]
pub fn deep_1k(x: u64) -> u64 {
    let mut bytes = [0u8; 1024];
    for (i, byte) in bytes.iter_mut().enumerate() {
        *byte = (x as usize + i) as u8;
    }
    let bytes = std::hint::black_box(&mut bytes);
    u64::from(bytes[(x % 1024) as usize])
}

/// Makes the blocking call of the echo bench: the kernel thread sleeps.
pub fn block_10ms() {
    std::thread::sleep(Duration::from_millis(10));
}

/// The process's use of memory.
#[derive(Clone, Copy)]
pub struct Memory {
    resident: u64,
    tables: u64,
    reserved: u64,
    maps: u64,
}

impl Memory {
    /// Reads the current use of memory.
    pub fn now() -> Memory {
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let kib = |key: &str| {
            let line = status.lines().find_map(|l| l.strip_prefix(key)?.strip_prefix(':'));
            let number = line.and_then(|l| l.split_whitespace().next()?.parse::<u64>().ok());
            number.unwrap_or(0) * 1024
        };
        let maps = std::fs::read_to_string("/proc/self/maps").map_or(0, |m| m.lines().count());
        Memory {
            resident: kib("VmRSS"),
            tables: kib("VmPTE"),
            reserved: kib("VmSize"),
            maps: maps as u64,
        }
    }

    /// Prints how much memory `tasks` parked tasks have added since.
    pub fn growth(self, lines: &Lines, tasks: u64) {
        let now = Memory::now();
        let per_task = |then: u64, now: u64| (now as f64 - then as f64) / tasks as f64;
        lines.metric("tasks", tasks as f64, "count");
        lines.metric("rss_per_task", per_task(self.resident, now.resident), "bytes");
        lines.metric("pagetable_per_task", per_task(self.tables, now.tables), "bytes");
        lines.metric("virtual_per_task", per_task(self.reserved, now.reserved), "bytes");
        lines.metric("maps_per_task", per_task(self.maps, now.maps), "count");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_are_the_fixed_workload() {
        let sum: u64 = (0..100_000).map(delay_ms).sum();
        assert_eq!((delay_ms(0), delay_ms(1), delay_ms(99_999)), (536, 466, 455));
        assert!((49_000_000..51_000_000).contains(&sum), "{sum}");
    }

    #[test]
    fn an_unknown_key_is_named() {
        let args = BenchArgs::parse(&["tasks=3".into(), "taks=4".into()]).unwrap();
        assert_eq!(args.number("tasks", 2).unwrap(), 3);
        let Err(Stop::Usage(text)) = args.all_known() else { panic!("it was accepted") };
        assert!(text.contains("taks") && text.contains("tasks"), "{text}");
    }

    #[test]
    fn what_is_no_number_is_refused() {
        let args = BenchArgs::parse(&["n=many".into()]).unwrap();
        assert!(matches!(args.number("n", 1), Err(Stop::Usage(_))));
        assert!(BenchArgs::parse(&["n".into()]).is_err());
    }
}
