//! The record of a run in a simulated world: its last points as text, and a hash of all points.

use std::collections::VecDeque;
use std::fmt::Write as _;

/// How many of the last points are kept.
const KEPT: usize = 1 << 15;

#[derive(Clone, Copy)]
struct Line {
    now: u64,
    thread: usize,
    what: &'static str,
}

/// A record of points; see the top of this file.
pub struct PointLog {
    lines: VecDeque<Line>,
    /// How many points were passed.
    pub steps: u64,
    /// A hash of all points. It is equal for two runs only if they passed the same points.
    pub hash: u64,
}

impl PointLog {
    /// Returns an empty record.
    pub fn new() -> PointLog {
        PointLog { lines: VecDeque::new(), steps: 0, hash: 0xCBF2_9CE4_8422_2325 }
    }

    /// Records that a thread has passed a point.
    pub fn note(&mut self, now: u64, thread: usize, what: &'static str) {
        self.steps += 1;
        let mix = |hash: u64, word: u64| {
            (hash ^ word).wrapping_mul(0x0000_0100_0000_01B3).rotate_left(29)
        };
        self.hash = mix(mix(self.hash, now), thread as u64);
        // Hashes the text itself and not its address, which differs between processes.
        self.hash = what.as_bytes().chunks(8).fold(self.hash, |hash, bytes| {
            mix(hash, bytes.iter().fold(0, |word, byte| word << 8 | u64::from(*byte)))
        });
        if self.lines.len() == KEPT {
            self.lines.pop_front();
        }
        self.lines.push_back(Line { now, thread, what });
    }

    /// Returns the last points, with one line for each time that a thread had the token: when it
    /// got the token, which thread it is, and the points that it passed.
    pub fn text<'a>(&self, name: impl Fn(usize) -> &'a str) -> String {
        let (mut text, mut last) = (String::new(), None);
        for line in &self.lines {
            if last.replace(line.thread) == Some(line.thread) {
                let _ = write!(text, ", {}", line.what);
            } else {
                let _ = write!(
                    text,
                    "{}{:>14} {:>2} {}: {}",
                    if text.is_empty() { "" } else { "\n" },
                    line.now,
                    line.thread,
                    name(line.thread),
                    line.what
                );
            }
        }
        text
    }
}
