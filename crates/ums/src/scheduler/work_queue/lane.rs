//! A shared lane of a work queue: requests in the order in which they were queued, behind the
//! queue's lock.
//!
//! A lane is a row of *places*, numbered in the order in which they are filled. Each request stores
//! the number of its place, its *position*, so it is found without a search, however long the lane
//! is. If a request is taken from the middle of a lane, its place stays empty, and serving skips
//! it.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;

use crate::scheduler::lists::WorkerId;
use crate::scheduler::request::{RequestState, WorkRequest};

/// The value of `since` that says that the lane is empty.
pub(super) const EMPTY: u64 = u64::MAX;

/// Requests in the order in which they were queued. The first place is never empty.
pub(super) struct Lane {
    pub places: VecDeque<Option<WorkRequest>>,
    /// The number of the first place.
    first: u64,
    len: usize,
    /// The time at which the first request was queued; `EMPTY` if there is none.
    pub since: u64,
}

impl Default for Lane {
    fn default() -> Lane {
        Lane { places: VecDeque::new(), first: 0, len: 0, since: EMPTY }
    }
}

/// Which requests are alike: the upper half is the worker that has queued them, their *parent*, and
/// the lower half a part of the number that stands for their code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RequestMark(pub(super) u64);

impl RequestMark {
    #[inline]
    pub(super) fn of(parent: WorkerId, code: usize) -> RequestMark {
        // Bounded: it is the lower half of the number.
        RequestMark(u64::from(parent) << 32 | u64::from(code as u32))
    }

    /// Returns the worker that has queued it; no worker's number if none has.
    pub fn parent(self) -> WorkerId {
        (self.0 >> 32) as WorkerId
    }

    /// Returns whether this code may be that of the requests. Other code is mostly not.
    pub fn may_run(self, code: usize) -> bool {
        // Bounded: both are lower halves.
        self.0 as u32 == code as u32
    }
}

/// A request that was found in a lane.
#[derive(Clone, Copy)]
pub(super) struct Seen {
    pub position: u64,
    pub mark: RequestMark,
    /// When it was queued, in ticks.
    pub enqueued: u64,
}

/// How many requests in a row `next_unlike` passes over at most.
const ROW: usize = 64;

/// Returns the first of these requests, without those in a row at the beginning that have this
/// mark.
pub(super) fn next_unlike(
    mut requests: impl Iterator<Item = Seen>,
    last: Option<RequestMark>,
) -> Option<Seen> {
    let unlike = requests.by_ref().take(ROW).find(|seen| Some(seen.mark) != last);
    unlike.or_else(|| requests.next())
}

/// How many empty places a lane may keep, beyond one for each request in it.
pub(super) const PLACES_KEPT: usize = 64;

impl Lane {
    pub fn len(&self) -> usize {
        self.len
    }

    pub fn front(&self) -> Option<&WorkRequest> {
        self.places.front()?.as_ref()
    }

    pub fn iter(&self) -> impl Iterator<Item = &WorkRequest> {
        self.places.iter().flatten()
    }

    pub fn push_back(&mut self, request: WorkRequest) {
        let position = self.first + self.places.len() as u64;
        request.state().position.store(position, Ordering::Relaxed);
        if self.len == 0 {
            self.since = request.state().enqueued;
        }
        self.places.push_back(Some(request));
        self.len += 1;
    }

    pub fn pop_front(&mut self) -> Option<WorkRequest> {
        self.take(0)
    }

    /// Takes this request, if it is in this lane. It may be in another lane or queue, or in none.
    pub fn take_out(&mut self, request: &RequestState) -> Option<WorkRequest> {
        // Places are written under the lock of the queue that the request is in; the caller holds
        // the lock of this queue. If the request is in another queue, the number is a place there,
        // and the request found under it here, if any, has another id. A position in the own lane
        // is larger than any place.
        let position = request.position.load(Ordering::Relaxed);
        let place = position.checked_sub(self.first)? as usize;
        let found = self.places.get(place)?.as_ref()?;
        if found.state().id == request.id { self.take(place) } else { None }
    }

    /// Takes the first request for which `so` returns true.
    pub fn take_first(&mut self, so: impl Fn(&RequestState) -> bool) -> Option<WorkRequest> {
        let is = |r: &Option<WorkRequest>| r.as_ref().is_some_and(|r| so(r.state()));
        self.places.iter().position(is).and_then(|place| self.take(place))
    }

    fn take(&mut self, place: usize) -> Option<WorkRequest> {
        let request = self.places.get_mut(place)?.take()?;
        self.len -= 1;
        while let Some(None) = self.places.front() {
            self.places.pop_front();
            self.first += 1;
        }
        if self.places.len() > 2 * self.len + PLACES_KEPT {
            // A request stays at the front while others leave behind it: remove the empty places.
            let all: Vec<_> = self.drain().collect();
            all.into_iter().for_each(|request| self.push_back(request));
        }
        if place == 0 {
            self.since = self.front().map_or(EMPTY, |first| first.state().enqueued);
        }
        Some(request)
    }

    /// Returns the first request from this position on, without those in a row from there that have
    /// this mark.
    pub fn next_unlike(&self, from: u64, last: Option<RequestMark>) -> Option<Seen> {
        let from = from.max(self.first);
        let places = self.places.iter().skip(from.saturating_sub(self.first) as usize);
        let requests = (from..).zip(places).filter_map(|(at, place)| Some((at, place.as_ref()?)));
        let seen = requests.map(|(position, request)| {
            let RequestState { parent, enqueued, .. } = request.state();
            let mark = RequestMark::of(parent.load(Ordering::Relaxed), request.code());
            Seen { position, mark, enqueued: *enqueued }
        });
        next_unlike(seen, last)
    }

    /// Takes the request that has this position, if there is one.
    pub fn take_at(&mut self, position: u64) -> Option<WorkRequest> {
        self.take(position.checked_sub(self.first)? as usize)
    }

    pub fn drain(&mut self) -> impl Iterator<Item = WorkRequest> {
        self.first += self.places.len() as u64;
        (self.len, self.since) = (0, EMPTY);
        std::mem::take(&mut self.places).into_iter().flatten()
    }
}
