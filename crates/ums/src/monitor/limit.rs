//! The limit on reports: only a few are sent in any minute; the rest are counted.

use std::collections::VecDeque;

const MINUTE_NS: u64 = 60_000_000_000;

/// Allows a number of reports in any minute.
#[derive(Debug, Default)]
pub(super) struct ReportLimit {
    let_through: VecDeque<u64>,
    suppressed: u64,
}

impl ReportLimit {
    /// Returns true if no report may be sent at this time. Then the caller can save the work of
    /// making one.
    pub fn is_reached(&mut self, now: u64, per_minute: usize) -> bool {
        while self.let_through.front().is_some_and(|then| now.saturating_sub(*then) >= MINUTE_NS) {
            self.let_through.pop_front();
        }
        self.let_through.len() >= per_minute
    }

    /// Counts reports that were left out without a call of `ask`.
    pub fn left_out(&mut self, reports: u64) {
        self.suppressed = self.suppressed.saturating_add(reports);
    }

    /// Asks whether one report may be sent at this time. Returns how many reports were suppressed
    /// before it, or `None` if it must not be sent.
    pub fn ask(&mut self, now: u64, per_minute: usize) -> Option<u64> {
        if self.is_reached(now, per_minute) {
            self.suppressed += 1;
            return None;
        }
        self.let_through.push_back(now);
        Some(std::mem::take(&mut self.suppressed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn five_go_in_a_minute_and_the_next_one_counts_the_suppressed_ones_b38() {
        let mut limit = ReportLimit::default();
        let second = MINUTE_NS / 60;
        for n in 0..5 {
            assert_eq!(limit.ask(n * second, 5), Some(0));
        }
        for n in 5..12 {
            assert!(limit.is_reached(n * second, 5));
            assert_eq!(limit.ask(n * second, 5), None);
        }
        assert_eq!(limit.ask(60 * second, 5), Some(7), "the first has left the minute");
        assert_eq!(limit.ask(60 * second, 5), None);
        limit.left_out(3);
        assert!(!limit.is_reached(61 * second, 5), "to be asked whether costs nothing");
        assert_eq!(limit.ask(61 * second, 5), Some(4));
    }
}
