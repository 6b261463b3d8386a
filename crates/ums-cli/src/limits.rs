//! The options of `ums serve` that say how much clients may take.

use std::time::Duration;

use umsql::Limits;

/// A mebibyte.
const MIB: usize = 1 << 20;

/// How much clients may take. Sizes are in MiB.
#[derive(clap::Args)]
pub struct LimitArgs {
    /// Memory that the statements, messages and results of all clients may take. Default: half of
    /// the computer's, or of the control group's. A client beyond it gets an error (53200), unless
    /// it has less than 4 MiB.
    #[arg(long, value_name = "MIB")]
    memory: Option<usize>,

    /// The same for one client. Default: a sixteenth of the computer's, from 128 to 1024.
    #[arg(long, value_name = "MIB")]
    client_memory: Option<usize>,

    /// Disk space that one client's temporary files may take: large sorts, temporary tables,
    /// VACUUM. They are in the database's folder.
    #[arg(long, value_name = "MIB", default_value_t = 10_240)]
    temp_files: usize,

    /// The longest text or blob, and the longest row of a table.
    #[arg(long, value_name = "MIB", default_value_t = 16, value_parser = size())]
    max_value: u16,

    /// The longest message of a client. Before its login the limit is 10 KiB.
    #[arg(long, value_name = "MIB", default_value_t = 64, value_parser = size())]
    max_message: u16,

    /// The length of the log at which readers lose an old snapshot that keeps it from beginning
    /// again: their transactions end with an error (72000). Also the most that one transaction may
    /// write (54000).
    #[arg(long, value_name = "MIB", default_value_t = 1024,
          value_parser = clap::value_parser!(u32).range(1..))]
    max_log: u32,

    /// Close the connection of a client that takes longer than this to receive one part of an
    /// answer: 32 KiB, or one long row (0: never).
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    answer_timeout: u64,
}

/// Returns the parser of a size that the protocol and SQLite can have.
fn size() -> clap::builder::RangedI64ValueParser<u16> {
    clap::value_parser!(u16).range(1..=1024)
}

impl LimitArgs {
    pub fn apply(&self, settings: &mut umsql::Settings) {
        let mut limits = Limits::of_memory(computer_memory());
        if let Some(memory) = self.memory {
            limits.server = memory.saturating_mul(MIB);
            limits.client = limits.client.min(limits.server);
        }
        if let Some(memory) = self.client_memory {
            limits.client = memory.saturating_mul(MIB);
        }
        limits.temporary = (self.temp_files as u64).saturating_mul(MIB as u64);
        limits.log = u64::from(self.max_log) * MIB as u64;
        limits.value = usize::from(self.max_value) * MIB;
        settings.limits = limits;
        settings.max_message = usize::from(self.max_message) * MIB;
    }

    /// Returns the longest time for one part of an answer.
    pub fn answer(&self) -> Option<Duration> {
        (self.answer_timeout > 0).then(|| Duration::from_secs(self.answer_timeout))
    }
}

/// Returns the memory of the computer, or of this process's control group if that is less, in
/// bytes.
fn computer_memory() -> usize {
    let info = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let total = info.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    let kib = total.and_then(|rest| rest.trim().strip_suffix(" kB")?.parse::<usize>().ok());
    let group = ["/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"];
    let group = group
        .iter()
        .find_map(|path| std::fs::read_to_string(path).ok()?.trim().parse::<usize>().ok());
    let computer = kib.map_or(4 << 30, |kib| kib.saturating_mul(1024));
    group.map_or(computer, |group| group.min(computer))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(clap::Parser)]
    struct Command {
        #[command(flatten)]
        limits: LimitArgs,
    }

    fn settings(args: &[&str]) -> umsql::Settings {
        let all = std::iter::once("ums").chain(args.iter().copied());
        let mut settings = umsql::Settings::new("db");
        <Command as clap::Parser>::parse_from(all).limits.apply(&mut settings);
        settings
    }

    #[test]
    fn options_say_how_much_clients_may_take() {
        let defaults = settings(&[]);
        assert!(defaults.limits.client <= defaults.limits.server);
        assert_eq!((defaults.limits.value, defaults.max_message), (16 * MIB, 64 * MIB));
        let small = settings(&["--memory", "100", "--max-value", "1", "--max-message", "2"]);
        assert_eq!((small.limits.server, small.limits.client), (100 * MIB, 100 * MIB));
        assert_eq!((small.limits.value, small.max_message), (MIB, 2 * MIB));
        assert!(computer_memory() > 64 * MIB);
    }
}
