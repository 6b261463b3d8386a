//! The clients that have logged in, as the table `pg_stat_ssl`: whether their connections are
//! encrypted, and how. It has PostgreSQL's columns.

use std::collections::BTreeMap;

use ums::lock::Lock;

use crate::host::{Cell, HostTable};
use crate::tls::Encryption;

/// The clients of a server, by the numbers that they know.
#[derive(Debug, Default)]
pub(crate) struct Clients {
    encrypted: Lock<BTreeMap<u32, Option<Encryption>>>,
}

impl Clients {
    pub(crate) fn add(&self, pid: u32, encryption: Option<Encryption>) {
        self.encrypted.lock().insert(pid, encryption);
    }

    pub(crate) fn remove(&self, pid: u32) {
        self.encrypted.lock().remove(&pid);
    }

    pub(super) fn table(&self) -> HostTable {
        let columns = vec![
            ("pid", "bigint"),
            ("ssl", "boolean"),
            ("version", "text"),
            ("cipher", "text"),
            ("bits", "bigint"),
            ("client_dn", "text"),
            ("client_serial", "numeric"),
            ("issuer_dn", "text"),
        ];
        let text = |text: &str| Cell::Text(text.to_owned());
        let row = |(pid, encryption): (&u32, &Option<Encryption>)| {
            let start = [Cell::Int(i64::from(*pid)), Cell::Int(encryption.is_some().into())];
            let used = match encryption {
                Some(used) => [text(used.version), text(&used.cipher), Cell::Int(used.bits)],
                None => [Cell::Null, Cell::Null, Cell::Null],
            };
            // Clients have no certificates.
            let client = [Cell::Null, Cell::Null, Cell::Null];
            start.into_iter().chain(used).chain(client).collect()
        };
        let rows = self.encrypted.lock().iter().map(row).collect();
        HostTable { name: "pg_stat_ssl", columns, rows }
    }
}
