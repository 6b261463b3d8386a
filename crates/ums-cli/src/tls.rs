//! TLS of `ums serve`: the options, the files with the certificate and the private key, and reading
//! them again after SIGHUP.
//!
//! Invariants: the key is used only if other users cannot have read it, and no error contains a
//! line of its file. A certificate that cannot be used never replaces one that is in use.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use umsql::{Tls, TlsError};

use crate::access::{Fallible, check_secret, own_user};

/// The longest file that is read, in bytes.
const FILE_MAX: u64 = 1 << 20;

/// The options of encrypted connections.
#[derive(clap::Args)]
pub struct TlsArgs {
    /// Offer TLS on the ports, with the certificate in this file, in PEM format: the server's own
    /// first, then those of the authorities between it and the root. SIGHUP reads it again.
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,

    /// The certificate's private key, in PEM format and without a passphrase. Other users must not
    /// be able to read it. SIGHUP reads it again.
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,

    /// Refuse clients on the ports that do not use TLS. Requests to cancel a statement are taken
    /// without it.
    #[arg(long, requires = "tls_cert")]
    tls_only: bool,
}

impl TlsArgs {
    /// Reads the files; `None` if no option names them.
    pub fn load(&self) -> Fallible<Option<Arc<Tls>>> {
        let (Some(certificate), Some(key)) = (&self.tls_cert, &self.tls_key) else {
            return Ok(None);
        };
        let texts = (read(certificate, |_, _| Ok(()))?, read(key, check_key)?);
        let tls = Tls::new(&texts.0, &texts.1).map_err(|error| match error {
            TlsError::Certificate(_) => format!("{}: {error}", certificate.display()),
            TlsError::Key(_) => format!("{}: {error}", key.display()),
            TlsError::Pair => format!("{}, {}: {error}", certificate.display(), key.display()),
        })?;
        Ok(Some(Arc::new(tls)))
    }

    /// Reads the files again, for connections from now on. After an error the server keeps the
    /// certificate that it has.
    pub fn load_again(&self, used: Option<&Tls>) {
        match (used, self.load()) {
            (Some(used), Ok(Some(new))) => {
                used.replace(&new);
                eprintln!("ums: SIGHUP: the certificate for TLS was read again");
            }
            (_, Err(error)) => eprintln!("ums: SIGHUP: the old certificate stays: {error}"),
            _ => eprintln!(
                "ums: SIGHUP: there is nothing to load again; restart the server to change options"
            ),
        }
    }

    /// Returns whether clients on the ports must use TLS.
    pub fn only(&self) -> bool {
        self.tls_only
    }

    /// Returns what the line about a port says of TLS, and what psql needs to insist on it.
    pub fn greeting(&self) -> (&'static str, &'static str) {
        match (&self.tls_cert, self.tls_only) {
            (None, _) => ("", ""),
            (Some(_), false) => (" with TLS", "PGSSLMODE=require "),
            (Some(_), true) => (" with TLS only", "PGSSLMODE=require "),
        }
    }
}

fn read(path: &Path, check: fn(&Path, &File) -> Fallible<()>) -> Fallible<Vec<u8>> {
    let cannot = |error: io::Error| format!("cannot read {}: {error}", path.display());
    let file = File::open(path).map_err(cannot)?;
    check(path, &file)?;
    let mut text = Vec::new();
    file.take(FILE_MAX).read_to_end(&mut text).map_err(cannot)?;
    Ok(text)
}

/// Returns an error if other users can read or write the key. As in PostgreSQL, the group may read
/// a key of root's, which the system keeps for several servers.
fn check_key(path: &Path, file: &File) -> Fallible<()> {
    let seen = file.metadata()?;
    if seen.uid() == 0 && own_user() != 0 && seen.mode() & 0o037 == 0 {
        return Ok(());
    }
    check_secret(path, file)
}
