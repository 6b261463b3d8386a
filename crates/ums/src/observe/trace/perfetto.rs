//! Writes a trace as Perfetto's protocol buffers: a track for each scheduler, and below it one for
//! each of its workers.
//!
//! The messages and fields used here, by their numbers in perfetto_trace.proto:
//!
//! ```text
//! Trace.packet 1 -> TracePacket { timestamp 8, trusted_packet_sequence_id 10,
//!     track_event 11 { type 9 (1 begin, 2 end, 3 instant), track_uuid 11, name 23,
//!                      flow_ids 47 (fixed64), terminating_flow_ids 48 (fixed64) },
//!     track_descriptor 60 { uuid 1, name 2, parent_uuid 5 } }
//! ```

use super::Trace;
use super::timeline::{Timeline, Track};

const BEGIN: u64 = 1;
const END: u64 = 2;
const INSTANT: u64 = 3;

impl Trace {
    /// Returns the trace as protocol buffers for ui.perfetto.dev and Perfetto's tools.
    pub fn to_perfetto(&self) -> Vec<u8> {
        let timeline = Timeline::of(self);
        let mut out = Message::default();
        for track in timeline.tracks() {
            out.message(1, &self.descriptor(track));
        }
        for slice in &timeline.slices {
            let mut begin = event(BEGIN, slice.track, &slice.name);
            slice.because.iter().for_each(|wake| begin.fixed(48, *wake));
            out.message(1, &packet(slice.from_ns, &begin));
            out.message(1, &packet(slice.to_ns, &event(END, slice.track, "")));
        }
        for mark in &timeline.marks {
            let mut instant = event(INSTANT, mark.track, &mark.name);
            mark.wakes.iter().for_each(|wake| instant.fixed(47, *wake));
            out.message(1, &packet(mark.at_ns, &instant));
        }
        out.0
    }

    fn descriptor(&self, track: Track) -> Message {
        let scheduler = self.names.get(track.scheduler).map_or("?", String::as_str);
        let mut descriptor = Message::default();
        descriptor.number(1, uuid(track));
        match track.worker {
            None => descriptor.text(2, &format!("scheduler {scheduler}")),
            Some(worker) => {
                descriptor.text(2, &format!("worker {worker} of scheduler {scheduler}"));
                descriptor.number(5, uuid(Track { worker: None, ..track }));
            }
        }
        let mut packet = Message::default();
        packet.number(10, 1);
        packet.message(60, &descriptor);
        packet
    }
}

/// Returns a number that no other track has.
fn uuid(track: Track) -> u64 {
    (track.scheduler as u64 + 1) << 32 | track.worker.map_or(0, |worker| u64::from(worker) + 1)
}

fn event(kind: u64, track: Track, name: &str) -> Message {
    let mut event = Message::default();
    event.number(9, kind);
    event.number(11, uuid(track));
    if !name.is_empty() {
        event.text(23, name);
    }
    event
}

fn packet(at_ns: u64, event: &Message) -> Message {
    let mut packet = Message::default();
    packet.number(8, at_ns);
    packet.number(10, 1);
    packet.message(11, event);
    packet
}

/// A protocol buffer under construction.
#[derive(Default)]
struct Message(Vec<u8>);

impl Message {
    fn varint(&mut self, mut n: u64) {
        while n >= 0x80 {
            self.0.push(n as u8 | 0x80);
            n >>= 7;
        }
        self.0.push(n as u8);
    }

    fn number(&mut self, field: u64, n: u64) {
        self.varint(field << 3);
        self.varint(n);
    }

    fn fixed(&mut self, field: u64, n: u64) {
        self.varint(field << 3 | 1);
        self.0.extend(n.to_le_bytes());
    }

    fn bytes(&mut self, field: u64, bytes: &[u8]) {
        self.varint(field << 3 | 2);
        self.varint(bytes.len() as u64);
        self.0.extend(bytes);
    }

    fn text(&mut self, field: u64, text: &str) {
        self.bytes(field, text.as_bytes());
    }

    fn message(&mut self, field: u64, message: &Message) {
        self.bytes(field, &message.0);
    }
}

#[cfg(test)]
mod tests {
    use super::super::timeline::tests::hand_over;
    use super::*;

    #[test]
    fn messages_are_written_as_the_format_says_b43() {
        let mut message = Message::default();
        message.number(8, 300);
        message.text(23, "ab");
        message.fixed(47, 1);
        let expected =
            [0x40, 0xac, 0x02, 0xba, 0x01, 2, b'a', b'b', 0xf9, 0x02, 1, 0, 0, 0, 0, 0, 0, 0];
        assert_eq!(message.0, expected);
    }

    #[test]
    fn a_trace_is_a_row_of_packets_b43() {
        let bytes = hand_over().to_perfetto();
        let (mut at, mut packets) = (0, 0);
        while at < bytes.len() {
            assert_eq!(bytes[at], 1 << 3 | 2, "a packet");
            let len = usize::from(bytes[at + 1]);
            assert!(len < 0x80, "short enough for one byte here");
            at += 2 + len;
            packets += 1;
        }
        // Five tracks, twelve slices with two ends each, and one wake.
        assert_eq!((at, packets), (bytes.len(), 5 + 2 * 12 + 1));
    }
}
