//! The content of a trace, independent of a file format: its slices, marks and wakes.

use std::collections::BTreeMap;

use super::{Trace, TraceEvent};
use crate::record::event_ring::RingEvent;
use crate::record::reason::WaitReason;
use crate::scheduler::lists::worker_list::STANDBY;

/// A line of the trace: a scheduler's own, or that of one of its workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Track {
    pub scheduler: usize,
    /// `None` for the scheduler's own line.
    pub worker: Option<u32>,
}

/// A state that lasted for some time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Slice {
    pub track: Track,
    pub name: String,
    pub from_ns: u64,
    pub to_ns: u64,
    /// The number of the wake because of which the slice begins.
    pub because: Option<u64>,
}

/// An event without duration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Mark {
    pub track: Track,
    pub name: String,
    pub at_ns: u64,
    /// The number of the wake, if the event is one.
    pub wakes: Option<u64>,
}

/// A whole trace. Slices of one track do not overlap and are in order of time.
#[derive(Debug, Default)]
pub(super) struct Timeline {
    schedulers: usize,
    pub slices: Vec<Slice>,
    pub marks: Vec<Mark>,
    open: BTreeMap<Track, (String, u64, Option<u64>)>,
    running: BTreeMap<usize, u32>,
    /// Wakes whose worker has not run yet.
    pending: BTreeMap<(usize, u32), u64>,
    wakes: u64,
}

impl Timeline {
    pub fn of(trace: &Trace) -> Timeline {
        let mut timeline = Timeline { schedulers: trace.names.len(), ..Timeline::default() };
        trace.events.iter().for_each(|event| timeline.tell(event));
        let end = trace.events.last().map_or(0, |event| event.at_ns);
        let open: Vec<_> = timeline.open.keys().copied().collect();
        open.into_iter().for_each(|track| timeline.close(track, end));
        timeline.slices.sort_by_key(|slice| (slice.track, slice.from_ns));
        timeline
    }

    /// Returns the track of every scheduler and of every worker that has events. So a trace in
    /// which nothing happened still shows the schedulers.
    pub fn tracks(&self) -> Vec<Track> {
        let slices = self.slices.iter().map(|slice| slice.track);
        let own = (0..self.schedulers).map(|scheduler| Track { scheduler, worker: None });
        let marks = self.marks.iter().map(|mark| mark.track);
        let mut tracks: Vec<_> = own.chain(slices).chain(marks).collect();
        tracks.sort_unstable();
        tracks.dedup();
        tracks
    }

    fn tell(&mut self, event: &TraceEvent) {
        let (s, at) = (event.scheduler, event.at_ns);
        let own = Track { scheduler: s, worker: None };
        let worker = Track { scheduler: s, worker: Some(event.worker) };
        let reason = || WaitReason::from_index(event.detail as usize).name();
        match event.event {
            RingEvent::Switch => self.switch(event),
            RingEvent::Wait => self.open(worker, format!("waits {}", reason()), at, None),
            RingEvent::Leave => self.open(worker, format!("preemptive {}", reason()), at, None),
            RingEvent::Home | RingEvent::Arrive => self.open(worker, "runnable".into(), at, None),
            RingEvent::Wake => self.wake(event),
            RingEvent::Finish => self.close(worker, at),
            RingEvent::Sleep => self.open(own, "sleeps".into(), at, None),
            RingEvent::Awake => self.close(own, at),
            RingEvent::Submit => self.mark(own, format!("submits I/O on {}", event.detail), at),
            RingEvent::Complete => self.mark(own, "I/O completed".into(), at),
            RingEvent::Start => self.mark(worker, format!("request {}", event.detail), at),
            RingEvent::Steal => self.mark(own, format!("takes request {}", event.detail), at),
        }
    }

    fn switch(&mut self, event: &TraceEvent) {
        let (s, at) = (event.scheduler, event.at_ns);
        let own = Track { scheduler: s, worker: None };
        if let Some(before) = self.running.insert(s, event.worker) {
            let track = Track { scheduler: s, worker: Some(before) };
            // The worker has yielded, unless another event has changed its state already.
            if self.open.get(&track).is_some_and(|(name, ..)| name == "runs") {
                self.open(track, "runnable".into(), at, None);
            }
        }
        if event.worker == STANDBY {
            return self.close(own, at);
        }
        let because = self.pending.remove(&(s, event.worker));
        let worker = Track { scheduler: s, worker: Some(event.worker) };
        self.open(worker, "runs".into(), at, because);
        self.open(own, format!("worker {}", event.worker), at, None);
    }

    fn wake(&mut self, event: &TraceEvent) {
        let (s, at, whose) = (event.scheduler, event.at_ns, event.detail as usize);
        self.wakes += 1;
        self.pending.insert((whose, event.worker), self.wakes);
        // The wake is shown on the track of the running worker, even if it happened in the middle
        // of a turn.
        let track = Track { scheduler: s, worker: self.running.get(&s).copied() };
        let name = format!("wakes worker {} of scheduler {whose}", event.worker);
        self.marks.push(Mark { track, name, at_ns: at, wakes: Some(self.wakes) });
        if whose == s {
            let worker = Track { scheduler: s, worker: Some(event.worker) };
            self.open(worker, "runnable".into(), at, None);
        }
    }

    fn mark(&mut self, track: Track, name: String, at_ns: u64) {
        self.marks.push(Mark { track, name, at_ns, wakes: None });
    }

    fn open(&mut self, track: Track, name: String, at: u64, because: Option<u64>) {
        self.close(track, at);
        self.open.insert(track, (name, at, because));
    }

    fn close(&mut self, track: Track, at: u64) {
        if let Some((name, from_ns, because)) = self.open.remove(&track) {
            self.slices.push(Slice { track, name, from_ns, to_ns: at.max(from_ns), because });
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A trace in which worker 1 of scheduler 0 passes a lock to worker 2 of scheduler 1.
    pub fn hand_over() -> Trace {
        let mutex = WaitReason::MUTEX.index() as u32;
        let script = [
            (0, 100, RingEvent::Switch, 1, 0),
            (1, 110, RingEvent::Switch, 2, 0),
            (1, 120, RingEvent::Wait, 2, mutex),
            (1, 125, RingEvent::Sleep, 2, 0),
            (0, 130, RingEvent::Wake, 2, 1),
            (1, 140, RingEvent::Awake, 2, 0),
            (1, 141, RingEvent::Arrive, 2, 0),
            (1, 142, RingEvent::Switch, 2, 0),
            (0, 150, RingEvent::Switch, 3, 0),
            (0, 160, RingEvent::Finish, 3, 0),
        ];
        let event = |(n, (scheduler, at_ns, event, worker, detail))| TraceEvent {
            scheduler,
            number: n as u64,
            at_ns,
            event,
            worker,
            detail,
        };
        let events = script.into_iter().enumerate().map(event).collect();
        Trace { events, lost: 0, names: vec!["0".into(), "1".into()] }
    }

    #[test]
    fn a_hand_over_between_schedulers_is_told_with_its_wake_b43() {
        let timeline = Timeline::of(&hand_over());
        let line = |scheduler, worker| {
            let track = Track { scheduler, worker };
            let slices = timeline.slices.iter().filter(move |slice| slice.track == track);
            slices.map(|s| (s.name.as_str(), s.from_ns, s.to_ns)).collect::<Vec<_>>()
        };
        assert_eq!(line(0, Some(1)), [("runs", 100, 150), ("runnable", 150, 160)]);
        assert_eq!(
            line(1, Some(2)),
            [
                ("runs", 110, 120),
                ("waits MUTEX", 120, 141),
                ("runnable", 141, 142),
                ("runs", 142, 160)
            ]
        );
        assert_eq!(line(0, Some(3)), [("runs", 150, 160)]);
        assert_eq!(line(0, None), [("worker 1", 100, 150), ("worker 3", 150, 160)]);
        assert_eq!(
            line(1, None),
            [("worker 2", 110, 125), ("sleeps", 125, 140), ("worker 2", 142, 160)]
        );
        let wake = timeline.marks.iter().find(|mark| mark.wakes.is_some()).unwrap();
        assert_eq!(wake.track, Track { scheduler: 0, worker: Some(1) });
        let woken = timeline.slices.iter().find(|slice| slice.because == wake.wakes).unwrap();
        assert_eq!((woken.track.scheduler, woken.track.worker, woken.from_ns), (1, Some(2), 142));
    }
}
