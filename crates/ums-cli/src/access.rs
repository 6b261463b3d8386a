//! Access to `ums serve`: the options that grant it, the files with passwords, and the psql
//! commands that the server prints at its start.
//!
//! By default clients on the Unix-domain socket are known by their user id, and clients on the port
//! prove a password that the server made when it first started. It is in a file beside the database
//! that only its own user can read, in the format that PostgreSQL's clients read (`PGPASSFILE`).
//!
//! Invariants: no password is printed, and none is in an error. A file with a password is used only
//! if other users can neither read nor have written it.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use umsql::{Accounts, Role};

/// The result of something that can fail with a sentence for the user.
pub type Fallible<T> = Result<T, Box<dyn std::error::Error>>;

/// The name of the account if only a password is known.
const OWNER: &str = "ums";

/// The options that say who may connect.
#[derive(clap::Args)]
pub struct AccessArgs {
    /// Ask for no password: every user of this computer can read and write the whole database. For
    /// tests and demonstrations, on loopback addresses only.
    #[arg(long)]
    trust: bool,

    /// The password of the owner, whose name is `ums`, on the first line of this file: as it is, or
    /// as PostgreSQL stores it (SCRAM-SHA-256$...). Default: DB.pgpass beside the database, with a
    /// password that is made at the first start.
    #[arg(long, value_name = "FILE", conflicts_with = "trust")]
    password_file: Option<PathBuf>,

    /// The accounts that may log in, one on each line: NAME, owner or reader, PASSWORD. A password
    /// is as it is, or as PostgreSQL stores it. Readers may read the database and nothing else.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["trust", "password_file"])]
    accounts: Option<PathBuf>,

    /// Permit an address that other computers can reach.
    #[arg(long)]
    allow_remote: bool,
}

/// The clients that the server admits.
pub struct Access {
    /// `None` if no password is asked for.
    pub accounts: Option<Accounts>,
    /// The file with the password that this program has made.
    passfile: Option<PathBuf>,
    /// A name with which a client can log in.
    name: String,
}

impl AccessArgs {
    /// Returns an error if the options do not allow to listen on this address.
    pub fn check(&self, listen: SocketAddr) -> Fallible<()> {
        if !listen.ip().is_loopback() && !self.allow_remote {
            return Err(format!(
                "{listen} can be reached from other computers: add --allow-remote to allow that"
            )
            .into());
        }
        if self.trust && !listen.ip().is_loopback() {
            return Err("--trust is for loopback addresses only".into());
        }
        Ok(())
    }

    /// Reads the files with passwords, or makes the one of this database.
    pub fn access(&self, database: &Path) -> Fallible<Access> {
        let (accounts, passfile) = if self.trust {
            (None, None)
        } else if let Some(path) = &self.accounts {
            let accounts = Accounts::parse(&read_secret(path)?);
            (Some(accounts.map_err(|error| format!("{}: {error}", path.display()))?), None)
        } else if let Some(path) = &self.password_file {
            let text = read_secret(path)?;
            (Some(owner(OWNER, text.lines().next().unwrap_or_default(), path)?), None)
        } else {
            let path = passfile_of(database)?;
            (Some(made_password(&path)?), Some(path))
        };
        let name = accounts.as_ref().and_then(|accounts| accounts.names().next());
        let name = name.unwrap_or(OWNER).to_owned();
        Ok(Access { accounts, passfile, name })
    }
}

impl Access {
    /// Prints where the server listens, and the commands with which psql logs in.
    /// `tls` is what the line about the port says of TLS, and what psql needs for it.
    pub fn greet(&self, address: SocketAddr, socket: Option<&Path>, tls: (&str, &str)) {
        let (port, name) = (address.port(), quoted(&self.name));
        if let Some(socket) = socket {
            let dir = socket.parent().unwrap_or(Path::new("/"));
            let psql = format!("psql -h {} -p {port} -U {name}", quoted(&dir.to_string_lossy()));
            eprintln!("ums: listening on {} for this user and root: {psql}", socket.display());
        }
        let (with, env) = tls;
        let psql = format!("{env}psql -h {} -p {port} -U {name}", address.ip());
        match (&self.accounts, &self.passfile) {
            (None, _) => eprintln!(
                "ums: listening on {address}{with} WITHOUT A PASSWORD, for every user of this \
                 computer (--trust): {psql}"
            ),
            (_, None) => eprintln!("ums: listening on {address}{with}: {psql}"),
            (_, Some(file)) => {
                let file = quoted(&file.to_string_lossy());
                eprintln!("ums: listening on {address}{with}: PGPASSFILE={file} {psql}");
            }
        }
    }
}

/// Returns `text` as one word of a shell's command.
pub fn quoted(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+,:@%".contains(c);
    match text.chars().all(plain) && !text.is_empty() {
        true => text.to_owned(),
        false => format!("'{}'", text.replace('\'', r"'\''")),
    }
}

fn owner(name: &str, password: &str, path: &Path) -> Fallible<Accounts> {
    let mut accounts = Accounts::new();
    let added = accounts.add(name, Role::Owner, password);
    added.map_err(|error| format!("the first line of {}: {error}", path.display()))?;
    Ok(accounts)
}

/// Returns the text of a file with passwords.
fn read_secret(path: &Path) -> Fallible<String> {
    let cannot = |error: io::Error| format!("cannot read {}: {error}", path.display());
    let file = File::open(path).map_err(cannot)?;
    check_secret(path, &file)?;
    let mut text = String::new();
    (&file).read_to_string(&mut text).map_err(cannot)?;
    Ok(text)
}

/// Returns an error if other users can read or write the open file, or have written it.
pub fn check_secret(path: &Path, file: &File) -> Fallible<()> {
    let seen = file.metadata()?;
    let path = path.display();
    if seen.uid() != own_user() && seen.uid() != 0 {
        return Err(format!("{path} belongs to another user, who may know what is in it").into());
    }
    if seen.mode() & 0o077 != 0 {
        let path = quoted(&path.to_string());
        return Err(
            format!("{path} is open to other users of this computer: chmod 600 {path}").into()
        );
    }
    Ok(())
}

/// Returns the user id of this process.
pub fn own_user() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// Returns the path of the file with the password of this database, `DB.pgpass`.
fn passfile_of(database: &Path) -> Fallible<PathBuf> {
    let mut name = std::path::absolute(database)?.into_os_string();
    name.push(".pgpass");
    Ok(name.into())
}

/// Returns the account of the file at `path`. If there is no such file, makes one with a new
/// password.
fn made_password(path: &Path) -> Fallible<Accounts> {
    if std::fs::symlink_metadata(path).is_err_and(|error| error.kind() == io::ErrorKind::NotFound) {
        make_passfile(path).map_err(|error| {
            format!(
                "cannot make the file with the password, {} ({error}): name one with \
                 --password-file",
                path.display()
            )
        })?;
    }
    let text = read_secret(path)?;
    let line = text.lines().find(|line| !line.is_empty() && !line.starts_with('#'));
    match line.map(fields).as_deref() {
        Some([_, _, _, name, password]) => owner(name, password, path),
        _ => Err(format!(
            "{} has no line HOST:PORT:DATABASE:NAME:PASSWORD; without that file a new one is made",
            path.display()
        )
        .into()),
    }
}

fn make_passfile(path: &Path) -> io::Result<()> {
    let mut new = path.to_owned().into_os_string();
    new.push(format!(".{}", std::process::id()));
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new)?;
    let written = writeln!(
        file,
        "# The owner's password of the database beside this file, for PostgreSQL's clients:\n\
         # PGPASSFILE names this file.\n\
         *:*:*:{OWNER}:{}",
        umsql::new_password()
    );
    // The file appears under its name when it is complete. Another server may have made one
    // meanwhile; then both use that one.
    let named = written.and_then(|()| file.sync_all()).and_then(|()| {
        match std::fs::hard_link(&new, path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            named => named,
        }
    });
    std::fs::remove_file(&new)?;
    named
}

/// Returns the fields of a line of a PGPASSFILE: a colon ends a field, and a backslash takes the
/// next character as it is.
fn fields(line: &str) -> Vec<String> {
    let mut fields = vec![String::new()];
    let mut chars = line.chars();
    while let Some(c) = chars.next() {
        let last = fields.last_mut().expect("there is always one");
        match c {
            ':' => fields.push(String::new()),
            '\\' => last.extend(chars.next()),
            c => last.push(c),
        }
    }
    fields
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn folder(name: &str) -> PathBuf {
        let dir = std::env::temp_dir().join(format!("ums-access-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        dir
    }

    #[test]
    fn a_password_is_made_once_in_a_private_file() {
        let dir = folder("made");
        let path = passfile_of(&dir.join("my.db")).unwrap();
        let accounts = made_password(&path).unwrap();
        assert_eq!(accounts.names().collect::<Vec<_>>(), [OWNER]);
        let text = std::fs::read_to_string(&path).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        made_password(&path).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
        assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 1, "nothing else is left");

        let password = fields(text.lines().last().unwrap()).pop().unwrap();
        assert!(password.len() >= 24, "{} characters", password.len());
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o640)).unwrap();
        let error = made_password(&path).unwrap_err().to_string();
        assert!(error.contains("chmod 600") && !error.contains(&password), "{error}");
        std::fs::remove_file(&path).unwrap();
        made_password(&path).unwrap();
        assert_ne!(std::fs::read_to_string(&path).unwrap(), text, "another password");
        std::fs::write(&path, "secret").unwrap();
        let error = made_password(&path).unwrap_err().to_string();
        assert!(error.contains("has no line") && !error.contains("secret"), "{error}");
        std::fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn fields_and_words_are_quoted_as_the_clients_read_them() {
        assert_eq!(fields(r"*:*:*:ums:a\:b\\c"), ["*", "*", "*", "ums", r"a:b\c"]);
        assert_eq!(quoted("/run/user/1000/ums"), "/run/user/1000/ums");
        assert_eq!(quoted("/it's here"), r"'/it'\''s here'");
    }
}
