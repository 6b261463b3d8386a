//! The time limits of `ums serve`, as options. Their values are written as in PostgreSQL: a number
//! of milliseconds, or a number and a unit.

use std::time::Duration;

use umsql::listen::Patience;
use umsql::{Timeouts, parse_time};

/// The options.
#[derive(clap::Args)]
pub struct Times {
    /// Cancel statements that take longer than this: milliseconds, or a number and a unit (5s,
    /// 1min). 0: no limit. A client can change it with SET statement_timeout.
    #[arg(long, value_name = "TIME", default_value = "0", value_parser = parse_time)]
    statement_timeout: Duration,

    /// Cancel statements that wait longer than this for other writers. 0: no limit. A client can
    /// change it with SET lock_timeout.
    #[arg(long, value_name = "TIME", default_value = "0", value_parser = parse_time)]
    lock_timeout: Duration,

    /// Close connections that are idle in a transaction for this long. 0: no limit; default:
    /// --idle-timeout. A client can change it with SET idle_in_transaction_session_timeout.
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    idle_in_transaction_timeout: Option<Duration>,

    /// Close a connection that has written in a transaction and is then idle for this long in all,
    /// or that sends less than 64 KiB of a COPY in this time, if others wait to write. No client
    /// can change it. 0: never.
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = parse_time)]
    pub gate_idle: Duration,

    /// Look this often whether the clients of running statements are still connected, and cancel
    /// the statements of those that are not. 0: never.
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = parse_time)]
    client_check: Duration,

    /// The time from a connection to the end of its login.
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = parse_time)]
    login_timeout: Duration,
}

impl Times {
    /// Returns the limits of a session that sets no others. `idle` is that of idle sessions.
    pub fn timeouts(&self, idle: Option<Duration>) -> Timeouts {
        let idle_session = idle.unwrap_or_default();
        Timeouts {
            statement: self.statement_timeout,
            lock: self.lock_timeout,
            idle_in_transaction: self.idle_in_transaction_timeout.unwrap_or(idle_session),
            idle_session,
        }
    }

    /// Returns how long a client may take for each step.
    pub fn patience(&self) -> Patience {
        let client_check = Some(self.client_check).filter(|every| !every.is_zero());
        Patience { login: self.login_timeout, client_check, ..Patience::default() }
    }
}
