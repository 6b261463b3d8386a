//! Writes a trace as Chrome's JSON: a process for each scheduler, a thread for each of its workers.

use std::fmt::Write;

use super::Trace;
use super::timeline::{Timeline, Track};

impl Trace {
    /// Returns the trace as JSON for chrome://tracing, which ui.perfetto.dev reads too.
    pub fn to_chrome_json(&self) -> String {
        let timeline = Timeline::of(self);
        let mut out = Out(String::from("{\"displayTimeUnit\":\"ns\",\"traceEvents\":[\n"));
        for track in timeline.tracks() {
            self.name_track(track, &mut out);
        }
        for slice in &timeline.slices {
            let duration = us(slice.to_ns - slice.from_ns);
            let rest = format!(",\"dur\":{duration}");
            out.event("X", slice.track, slice.from_ns, &slice.name, &rest);
            if let Some(wake) = slice.because {
                let rest = format!(",\"id\":{wake},\"cat\":\"wake\",\"bp\":\"e\"");
                out.event("f", slice.track, slice.from_ns, "wake", &rest);
            }
        }
        for mark in &timeline.marks {
            out.event("i", mark.track, mark.at_ns, &mark.name, ",\"s\":\"t\"");
            if let Some(wake) = mark.wakes {
                let rest = format!(",\"id\":{wake},\"cat\":\"wake\"");
                out.event("s", mark.track, mark.at_ns, "wake", &rest);
            }
        }
        // Removes the last comma and closes the array.
        let body = out.0.trim_end_matches(",\n");
        format!("{body}\n],\"otherData\":{{\"lost\":{}}}}}\n", self.lost)
    }

    fn name_track(&self, track: Track, out: &mut Out) {
        let name = self.names.get(track.scheduler).map_or("?", String::as_str);
        let (what, name) = match track.worker {
            None => ("process_name", format!("scheduler {name}")),
            Some(worker) => ("thread_name", format!("worker {worker}")),
        };
        let rest = format!(",\"args\":{{\"name\":\"{name}\"}}");
        out.event("M", track, 0, what, &rest);
    }
}

struct Out(String);

impl Out {
    fn event(&mut self, phase: &str, track: Track, at_ns: u64, name: &str, rest: &str) {
        let (pid, tid, at) = (track.scheduler + 1, track.worker.unwrap_or(0), us(at_ns));
        // A name consists of reasons, numbers and words, so escaping `\` and `"` is enough. Writing
        // to a string does not fail.
        let name = name.replace('\\', "\\\\").replace('"', "\\\"");
        let _ = writeln!(
            self.0,
            "{{\"ph\":\"{phase}\",\"pid\":{pid},\"tid\":{tid},\"ts\":{at},\
             \"name\":\"{name}\"{rest}}},"
        );
    }
}

/// Returns nanoseconds as microseconds with three decimal places, as the format needs.
fn us(ns: u64) -> String {
    format!("{}.{:03}", ns / 1000, ns % 1000)
}

#[cfg(test)]
mod tests {
    use super::super::timeline::tests::hand_over;

    #[test]
    fn the_json_has_slices_names_and_both_ends_of_a_wake_b43() {
        let json = hand_over().to_chrome_json();
        let has = |text: &str| assert!(json.contains(text), "{text} is not in {json}");
        has(concat!(
            r#""ph":"M","pid":2,"tid":2,"ts":0.000,"#,
            r#""name":"thread_name","args":{"name":"worker 2"}"#
        ));
        has(r#""ph":"X","pid":2,"tid":2,"ts":0.120,"name":"waits MUTEX","dur":0.021"#);
        has(r#""ph":"s","pid":1,"tid":1,"ts":0.130,"name":"wake","id":1,"cat":"wake""#);
        has(r#""ph":"f","pid":2,"tid":2,"ts":0.142,"name":"wake","id":1,"cat":"wake","bp":"e""#);
        assert!(json.ends_with("}\n],\"otherData\":{\"lost\":0}}\n"), "{json}");
    }
}
