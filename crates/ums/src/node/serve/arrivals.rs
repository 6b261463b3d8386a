//! Arrivals: how many connections one address may have, and how many may come in a second, from one
//! address and in all.
//!
//! A rate is a *token bucket*: a second's tokens fit in it, each connection takes one, and it fills
//! again at the rate. So as many as may come in a second may come at once after a pause. A bucket
//! is stored as the time at which it is full again.
//!
//! The table of addresses is bounded. A sweep leaves those with open connections, which
//! `max_connections` bounds, and at most [`IDLE_MAX`] others; the next one comes when the table has
//! doubled. So it has at most about twice as many addresses as there are open connections and
//! [`IDLE_MAX`]. If a sweep finds more others, all of them are forgotten; then only `max_rate`
//! bounds who come from ever new addresses.
//!
//! The last 64 bits of an IPv6 address are left out, because a host can have any of them.

use std::collections::HashMap;
use std::net::IpAddr;

use super::listener::Peer;
use crate::os::clock;
use crate::os::lock::Lock;

/// The most addresses without a connection that a sweep leaves.
const IDLE_MAX: usize = 1 << 16;
/// The table is swept when it has at least so many addresses.
const SWEEP_MIN: usize = 1 << 10;
const SECOND: u64 = 1_000_000_000;

/// Why a connection was turned away when it arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TurnedAway {
    /// Its address has as many connections as it may have.
    AddressIsFull,
    /// Too many have come from its address.
    AddressTooFast,
    /// Too many have come in all.
    TooFast,
}

/// The limits of one server, and who has come.
pub(super) struct Arrivals {
    max_per_address: usize,
    /// The rates, each as the time of one token.
    address_token: Option<u64>,
    token: Option<u64>,
    seen: Lock<Seen>,
}

#[derive(Default)]
struct Seen {
    all: Bucket,
    by_address: HashMap<Address, Caller>,
    sweep_at: usize,
}

/// An IPv4 address, or the network of an IPv6 address.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Address {
    V4([u8; 4]),
    V6([u8; 8]),
}

#[derive(Clone, Copy, Default)]
struct Caller {
    open: usize,
    bucket: Bucket,
}

#[derive(Clone, Copy, Default)]
struct Bucket {
    full_at: u64,
}

impl Bucket {
    /// Returns the bucket after one token more was taken; `None` if it is empty.
    fn without_one(self, now: u64, token: u64) -> Option<Bucket> {
        let full_at = self.full_at.max(now) + token;
        (full_at <= now + SECOND).then_some(Bucket { full_at })
    }
}

fn address(peer: Peer) -> Option<Address> {
    let Peer::Tcp(address) = peer else { return None };
    Some(match address.ip().to_canonical() {
        IpAddr::V4(ip) => Address::V4(ip.octets()),
        IpAddr::V6(ip) => {
            let [a, b, c, d, e, f, g, h, ..] = ip.octets();
            Address::V6([a, b, c, d, e, f, g, h])
        }
    })
}

impl Arrivals {
    /// Makes the limits of a server; 0 is no limit. Rates are in connections per second.
    pub fn new(max_per_address: usize, max_rate_per_address: u32, max_rate: u32) -> Arrivals {
        let token = |rate| (rate > 0).then(|| (SECOND / u64::from(rate)).max(1));
        Arrivals {
            max_per_address: if max_per_address == 0 { usize::MAX } else { max_per_address },
            address_token: token(max_rate_per_address),
            token: token(max_rate),
            seen: Lock::default(),
        }
    }

    fn limits_addresses(&self) -> bool {
        self.max_per_address < usize::MAX || self.address_token.is_some()
    }

    /// Admits a connection; it must [`leave`](Arrivals::leave). A refused one takes no token, and
    /// needs not leave.
    pub fn admit(&self, peer: Peer) -> Result<(), TurnedAway> {
        if !self.limits_addresses() && self.token.is_none() {
            return Ok(());
        }
        self.admit_at(peer, clock::now())
    }

    fn admit_at(&self, peer: Peer, now: u64) -> Result<(), TurnedAway> {
        let address = address(peer).filter(|_| self.limits_addresses());
        let mut seen = self.seen.lock();
        let caller = address.and_then(|address| seen.by_address.get(&address).copied());
        let Caller { open, mut bucket } = caller.unwrap_or_default();
        if open >= self.max_per_address {
            return Err(TurnedAway::AddressIsFull);
        }
        if let Some(token) = self.address_token.filter(|_| address.is_some()) {
            bucket = bucket.without_one(now, token).ok_or(TurnedAway::AddressTooFast)?;
        }
        if let Some(token) = self.token {
            seen.all = seen.all.without_one(now, token).ok_or(TurnedAway::TooFast)?;
        }
        if let Some(address) = address {
            seen.by_address.insert(address, Caller { open: open + 1, bucket });
            seen.sweep(now);
        }
        Ok(())
    }

    /// Records that a connection which was admitted has closed.
    pub fn leave(&self, peer: Peer) {
        if self.limits_addresses()
            && let Some(address) = address(peer)
            && let Some(caller) = self.seen.lock().by_address.get_mut(&address)
        {
            caller.open -= 1;
        }
    }
}

impl Seen {
    /// Forgets addresses about which nothing needs to be remembered, if the table has doubled since
    /// that was last done.
    fn sweep(&mut self, now: u64) {
        if self.by_address.len() < self.sweep_at.max(SWEEP_MIN) {
            return;
        }
        self.by_address.retain(|_, caller| caller.open > 0 || caller.bucket.full_at > now);
        let idle = self.by_address.values().filter(|caller| caller.open == 0).count();
        if idle > IDLE_MAX {
            self.by_address.retain(|_, caller| caller.open > 0);
        }
        self.sweep_at = 2 * self.by_address.len();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::SocketAddr;

    fn from(ip: &str) -> Peer {
        Peer::Tcp(SocketAddr::new(ip.parse().unwrap(), 1))
    }

    #[test]
    fn a_bucket_has_the_tokens_of_a_second_and_fills_at_its_rate() {
        let arrivals = Arrivals::new(0, 0, 4);
        let come = |now| arrivals.admit_at(Peer::Unix, now).is_ok();
        assert!((0..4).all(|_| come(SECOND)) && !come(SECOND));
        assert!(!come(SECOND + SECOND / 4 - 1), "a refusal takes no token");
        assert!(come(SECOND + SECOND / 4) && !come(SECOND + SECOND / 4));
        assert!((0..4).all(|_| come(9 * SECOND)) && !come(9 * SECOND));
        let one = Arrivals::new(0, 0, 1);
        let come = |now| one.admit_at(Peer::Unix, now).is_ok();
        assert!(come(5) && !come(5) && !come(SECOND + 4) && come(SECOND + 5));
        let fast = Arrivals::new(0, 0, u32::MAX);
        assert!((0..1000).all(|_| fast.admit_at(Peer::Unix, 0).is_ok()));
    }

    #[test]
    fn each_address_has_its_own_limits_and_the_unix_socket_has_none() {
        let arrivals = Arrivals::new(2, 3, 0);
        let come = |ip, now| arrivals.admit_at(from(ip), now);
        assert_eq!((come("10.0.0.1", 0), come("10.0.0.1", 0)), (Ok(()), Ok(())));
        assert_eq!(come("10.0.0.1", 0), Err(TurnedAway::AddressIsFull));
        arrivals.leave(from("10.0.0.1"));
        assert_eq!(come("::ffff:10.0.0.1", 0), Ok(()), "the same address, in IPv6");
        arrivals.leave(from("10.0.0.1"));
        assert_eq!(come("10.0.0.1", 0), Err(TurnedAway::AddressTooFast));
        assert_eq!(come("10.0.0.2", 0), Ok(()));
        assert_eq!(come("10.0.0.1", SECOND), Ok(()));
        assert_eq!((come("2001:db8::1", 0), come("2001:db8::2", 0)), (Ok(()), Ok(())));
        assert_eq!(come("2001:db8::3", 0), Err(TurnedAway::AddressIsFull), "one network");
        assert_eq!(come("2001:db8:0:1::3", 0), Ok(()));
        assert!((0..9).all(|_| arrivals.admit_at(Peer::Unix, 0).is_ok()));
        arrivals.leave(Peer::Unix);
    }

    #[test]
    fn what_an_address_is_refused_takes_nothing_from_others() {
        let arrivals = Arrivals::new(0, 1, 2);
        let come = |ip| arrivals.admit_at(from(ip), 0);
        assert_eq!(come("10.0.0.1"), Ok(()));
        assert!((0..9).all(|_| come("10.0.0.1") == Err(TurnedAway::AddressTooFast)));
        assert_eq!(come("10.0.0.2"), Ok(()));
        assert_eq!(come("10.0.0.3"), Err(TurnedAway::TooFast));
    }

    #[test]
    fn the_table_of_addresses_is_bounded_and_open_ones_stay() {
        let arrivals = Arrivals::new(1, 1, 0);
        let peer = |n: u32| Peer::Tcp(SocketAddr::new(IpAddr::V4(n.into()), 1));
        assert_eq!(arrivals.admit_at(peer(0), 0), Ok(()));
        let size = || arrivals.seen.lock().by_address.len();
        // Each comes and leaves at once. Their buckets are not full.
        for n in 1..5 * IDLE_MAX as u32 {
            assert_eq!(arrivals.admit_at(peer(n), 1), Ok(()));
            arrivals.leave(peer(n));
            assert!(size() <= 4 * IDLE_MAX, "{}", size());
        }
        assert_eq!(arrivals.admit_at(peer(0), 1), Err(TurnedAway::AddressIsFull));
        // A second later all are full again, and the next sweep forgets them.
        let swept_at = arrivals.seen.lock().sweep_at;
        let fresh = swept_at - size();
        for n in 0..fresh as u32 {
            assert_eq!(arrivals.admit_at(peer(1 << 24 | n), 2 * SECOND), Ok(()));
            arrivals.leave(peer(1 << 24 | n));
        }
        assert_eq!(size(), fresh + 1, "the fresh ones, and the open one");
        assert_eq!(arrivals.admit_at(peer(0), 3 * SECOND), Err(TurnedAway::AddressIsFull));
    }
}
