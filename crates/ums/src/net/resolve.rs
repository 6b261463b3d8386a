//! Addresses from names, without blocking the scheduler.
//!
//! A name is looked up by the C library, which may block for seconds: that call goes preemptive.
//! Literal addresses need no such call. This trait exists because a caller of std's trait of the
//! same name cannot tell the two apart before it blocks.

use std::io;
use std::net::{self, IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

use crate::current::go_preemptive;
use crate::record::reason::WaitReason;

/// A value that can be turned into socket addresses: an address, a `(host, port)` pair or
/// `"host:port"`.
///
/// Like [`std::net::ToSocketAddrs`], except that on a worker the lookup of a name goes preemptive
/// with the reason [`PREEMPTIVE_RESOLVE`](WaitReason::PREEMPTIVE_RESOLVE): the scheduler runs other
/// workers while the lookup blocks. A lookup takes as long as the C library's resolver takes, which
/// may be many seconds: no timeout bounds it, and a cancellation does not end it.
pub trait ToSocketAddrs {
    /// The iterator over the addresses found.
    type Iter: Iterator<Item = SocketAddr>;

    /// Finds the addresses.
    ///
    /// # Errors
    /// Fails if the text is not an address or the name is not known.
    fn to_socket_addrs(&self) -> io::Result<Self::Iter>;
}

macro_rules! addresses {
    ($($kind:ty),*) => { $(
        impl ToSocketAddrs for $kind {
            type Iter = <$kind as net::ToSocketAddrs>::Iter;

            fn to_socket_addrs(&self) -> io::Result<Self::Iter> {
                net::ToSocketAddrs::to_socket_addrs(self)
            }
        }
    )* };
}

addresses!(SocketAddr, SocketAddrV4, SocketAddrV6);
addresses!((IpAddr, u16), (Ipv4Addr, u16), (Ipv6Addr, u16));

impl<'a> ToSocketAddrs for &'a [SocketAddr] {
    type Iter = std::iter::Cloned<std::slice::Iter<'a, SocketAddr>>;

    fn to_socket_addrs(&self) -> io::Result<Self::Iter> {
        Ok(self.iter().cloned())
    }
}

impl<T: ToSocketAddrs + ?Sized> ToSocketAddrs for &T {
    type Iter = T::Iter;

    fn to_socket_addrs(&self) -> io::Result<T::Iter> {
        (**self).to_socket_addrs()
    }
}

impl ToSocketAddrs for str {
    type Iter = std::vec::IntoIter<SocketAddr>;

    fn to_socket_addrs(&self) -> io::Result<Self::Iter> {
        match self.parse() {
            Ok(address) => Ok(vec![address].into_iter()),
            Err(_) => look_up(self),
        }
    }
}

impl ToSocketAddrs for (&str, u16) {
    type Iter = std::vec::IntoIter<SocketAddr>;

    fn to_socket_addrs(&self) -> io::Result<Self::Iter> {
        match self.0.parse::<IpAddr>() {
            Ok(ip) => Ok(vec![SocketAddr::new(ip, self.1)].into_iter()),
            Err(_) => look_up(*self),
        }
    }
}

impl ToSocketAddrs for String {
    type Iter = std::vec::IntoIter<SocketAddr>;

    fn to_socket_addrs(&self) -> io::Result<Self::Iter> {
        self.as_str().to_socket_addrs()
    }
}

impl ToSocketAddrs for (String, u16) {
    type Iter = std::vec::IntoIter<SocketAddr>;

    fn to_socket_addrs(&self) -> io::Result<Self::Iter> {
        (self.0.as_str(), self.1).to_socket_addrs()
    }
}

fn look_up<N>(name: N) -> io::Result<N::Iter>
where
    N: net::ToSocketAddrs<Iter: Send> + Send,
{
    go_preemptive(WaitReason::PREEMPTIVE_RESOLVE, move || {
        net::ToSocketAddrs::to_socket_addrs(&name)
    })
}

/// Tries each address in order until one works; returns the last error.
pub(super) fn each_address<A: ToSocketAddrs, T>(
    addresses: A,
    mut attempt: impl FnMut(SocketAddr) -> io::Result<T>,
) -> io::Result<T> {
    let nothing =
        || io::Error::new(io::ErrorKind::InvalidInput, "could not resolve to any addresses");
    let mut result = Err(nothing());
    for address in addresses.to_socket_addrs()? {
        result = attempt(address);
        let gave_up = || result.as_ref().is_err_and(super::socket::is_wait_error);
        if result.is_ok() || gave_up() {
            break;
        }
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(a: impl ToSocketAddrs) -> Vec<String> {
        a.to_socket_addrs().unwrap().map(|a| a.to_string()).collect()
    }

    #[test]
    fn literal_addresses_of_every_form_are_taken_as_they_are() {
        assert_eq!(all("127.0.0.1:80"), ["127.0.0.1:80"]);
        assert_eq!(all("[::1]:80".to_owned()), ["[::1]:80"]);
        assert_eq!(all(("::1", 80)), ["[::1]:80"]);
        assert_eq!(all(("127.0.0.1".to_owned(), 1)), ["127.0.0.1:1"]);
        assert_eq!(all((Ipv4Addr::LOCALHOST, 1)), ["127.0.0.1:1"]);
        let two: [SocketAddr; 2] = [([1, 2, 3, 4], 5).into(), ([1, 2, 3, 4], 6).into()];
        assert_eq!(all(&two[..]), ["1.2.3.4:5", "1.2.3.4:6"]);
    }

    #[test]
    fn text_that_is_no_address_is_an_error() {
        assert!("no port here".to_socket_addrs().is_err());
        let none: &[SocketAddr] = &[];
        let error = each_address(none, |_| Ok(())).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
    }
}
