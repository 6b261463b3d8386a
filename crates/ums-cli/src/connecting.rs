//! The options of `ums serve` that say how many connections clients may make.

use ums::serve::ServeOptions;

/// How many connections clients may make. A connection that is closed as soon as it is accepted
/// gets no error of the protocol: psql then says that the server closed it unexpectedly.
#[derive(Clone, Copy, clap::Args)]
pub struct ConnectionArgs {
    /// Maximum number of clients that have logged in; further ones get an error (53300). Counted
    /// separately for --listen and for the Unix-domain socket. 0: no limit.
    #[arg(long, value_name = "N", default_value_t = 0)]
    max_connections: usize,

    /// Maximum number of connections that have not logged in yet; the oldest of them is closed when
    /// a new one comes. 0: no limit.
    #[arg(long, value_name = "N", default_value_t = 2000)]
    max_new: usize,

    /// Maximum number of connections from one IPv4 address, or from one IPv6 network of 64 bits;
    /// further ones are closed at once. 0: no limit.
    #[arg(long, value_name = "N", default_value_t = 0)]
    max_per_address: usize,

    /// How many connections in a second one such address may make, on average, and as many at once
    /// after a pause; further ones are closed at once. 0: no limit.
    #[arg(long, value_name = "N", default_value_t = 0)]
    max_rate_per_address: u32,

    /// The same for all clients together. 0: no limit.
    #[arg(long, value_name = "N", default_value_t = 0)]
    max_rate: u32,
}

impl ConnectionArgs {
    /// Returns the options of a server for clients.
    pub fn options(&self) -> ServeOptions {
        let ConnectionArgs {
            max_connections,
            max_new,
            max_per_address,
            max_rate_per_address,
            max_rate,
        } = *self;
        ServeOptions {
            max_connections,
            max_new,
            max_per_address,
            max_rate_per_address,
            max_rate,
            ..ServeOptions::default()
        }
    }
}
