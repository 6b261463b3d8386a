//! The operations that a ring has, by token.
//!
//! The lower half of a token is the number of a slot of the scheduler's I/O list, so it is small,
//! and no two pending operations have the same. It is the operation's place here. A slot that has
//! just become free is the next to be used. So short operations use the same few places again and
//! again, which are in the processor's cache, however many operations wait.

use crate::os::driver::LiveOp;

/// An operation that was submitted.
pub(super) struct Flight {
    pub op: LiveOp<'static>,
    /// Whether the kernel has a poll instead of the operation, because the operation returned
    /// `-EAGAIN`.
    pub polling: bool,
    /// Whether the operation was cancelled. Then it is not submitted again.
    pub cancelled: bool,
}

/// All operations of one ring.
#[derive(Default)]
pub(super) struct Flights {
    places: Vec<Option<(u64, Flight)>>,
    len: usize,
}

fn place_of(token: u64) -> usize {
    (token & 0xFFFF_FFFF) as usize
}

impl Flights {
    /// Returns how many operations are pending.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns the tokens of all pending operations.
    pub fn tokens(&self) -> Vec<u64> {
        self.places.iter().flatten().map(|(token, _)| *token).collect()
    }

    /// Returns the operation with this token.
    pub fn get(&mut self, token: u64) -> Option<&mut Flight> {
        match self.places.get_mut(place_of(token)) {
            Some(Some((at, flight))) if *at == token => Some(flight),
            _ => None,
        }
    }

    /// Adds an operation.
    ///
    /// # Panics
    /// Panics if the token's place is taken.
    pub fn insert(&mut self, token: u64, flight: Flight) {
        let at = place_of(token);
        if at >= self.places.len() {
            self.places.resize_with(at + 1, || None);
        }
        let before = self.places[at].replace((token, flight));
        assert!(before.is_none(), "token {token} is already pending");
        self.len += 1;
    }

    /// Removes the operation with this token.
    pub fn remove(&mut self, token: u64) {
        if let Some(place) = self.places.get_mut(place_of(token))
            && place.as_ref().is_some_and(|(at, _)| *at == token)
        {
            *place = None;
            self.len -= 1;
        }
    }
}
