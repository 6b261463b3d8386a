//! The accounts that may log in: a name, a role, and the verifier of a password.
//!
//! An **owner** may do everything. A **reader** may read the database, and statistics that name no
//! other client. Everything else is refused with `42501`: writes by the write gate
//! (`Session::take_gate`), statements of the session by `Session::check_owner`, and files, PRAGMAs,
//! views and functions by the authorizer (`engine/allowed.rs`).
//!
//! Invariant: a client cannot find out by logging in whether a name has an account. A name without
//! one gets the same messages, with a salt that stays the same until the server ends.

use std::fmt;

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE;

use crate::auth::{ITERATIONS, Key, Verifier, random};

/// The longest name of an account, in bytes, as in PostgreSQL.
const NAME_MAX: usize = 63;

/// What an account may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Everything.
    Owner,
    /// Read the database.
    Reader,
}

#[derive(Debug, Clone)]
pub(crate) struct UserAccount {
    name: Box<str>,
    pub(crate) role: Role,
    pub(crate) verifier: Verifier,
}

/// The accounts of a server. It stores no password.
///
/// ```
/// use umsql::{Accounts, Role};
///
/// let mut accounts = Accounts::new();
/// accounts.add("ann", Role::Owner, "correct horse battery staple")?;
/// assert!(accounts.add("ann", Role::Reader, "another").is_err());
/// # Ok::<(), umsql::AccountError>(())
/// ```
#[derive(Clone)]
pub struct Accounts {
    all: Vec<UserAccount>,
    /// What the salts of names without an account are derived from.
    secret: Key,
}

/// Why an account, or a file of accounts, was refused. It never contains a password.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AccountError(String);

impl fmt::Display for AccountError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for AccountError {}

impl fmt::Debug for Accounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list()
            .entries(self.all.iter().map(|account| (&account.name, account.role)))
            .finish()
    }
}

/// Returns a password that cannot be guessed: 24 letters, digits, `-` and `_`.
pub fn new_password() -> String {
    BASE64_URL_SAFE.encode(random::<18>())
}

impl Default for Accounts {
    fn default() -> Accounts {
        Accounts::new()
    }
}

impl Accounts {
    /// Returns an empty list, with which no password is right.
    pub fn new() -> Accounts {
        Accounts { all: Vec::new(), secret: random() }
    }

    /// Adds an account. `password` is a password, or a verifier as PostgreSQL stores it
    /// (`SCRAM-SHA-256$4096:salt$StoredKey:ServerKey`).
    ///
    /// # Errors
    /// If the name is empty, too long or already there, or if the password is empty or begins like
    /// a verifier and is none.
    pub fn add(&mut self, name: &str, role: Role, password: &str) -> Result<(), AccountError> {
        let refuse = |why: &str| Err(AccountError(why.to_owned()));
        if name.is_empty() || name.len() > NAME_MAX {
            return refuse("the name of an account has 1 to 63 bytes");
        }
        if self.all.iter().any(|account| *account.name == *name) {
            return Err(AccountError(format!("there are two accounts with the name {name}")));
        }
        let verifier = match Verifier::parse(password) {
            Some(verifier) => verifier,
            None if password.is_empty() => return refuse("the password is empty"),
            None if password.starts_with("SCRAM-SHA-256$") => {
                return refuse("the verifier is not SCRAM-SHA-256$COUNT:SALT$STOREDKEY:SERVERKEY");
            }
            None => Verifier::new(password),
        };
        self.all.push(UserAccount { name: name.into(), role, verifier });
        Ok(())
    }

    /// Reads accounts, one in each line: name, role (`owner` or `reader`), and password or
    /// verifier, with spaces between them. Empty lines, and lines that begin with `#`, are skipped.
    ///
    /// # Errors
    /// If a line is no account; the message has its number and nothing of its text but the name.
    pub fn parse(text: &str) -> Result<Accounts, AccountError> {
        let mut accounts = Accounts::new();
        for (index, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let at = |why: &str| AccountError(format!("line {}: {why}", index + 1));
            let form = || at("write NAME owner|reader PASSWORD");
            let (name, rest) = line.split_once(char::is_whitespace).ok_or_else(form)?;
            let (role, password) =
                rest.trim_start().split_once(char::is_whitespace).ok_or_else(form)?;
            let role = match role {
                "owner" => Role::Owner,
                "reader" => Role::Reader,
                _ => return Err(form()),
            };
            accounts.add(name, role, password.trim_start()).map_err(|error| at(&error.0))?;
        }
        if accounts.all.is_empty() {
            return Err(AccountError("there is no account in it".into()));
        }
        Ok(accounts)
    }

    /// Returns the names of the accounts.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.all.iter().map(|account| &*account.name)
    }

    /// Returns the role of an account.
    pub(crate) fn role(&self, name: &str) -> Option<Role> {
        self.all.iter().find(|account| *account.name == *name).map(|account| account.role)
    }

    /// Returns the account with this name, or one that looks the same to a client and that no
    /// password opens.
    pub(crate) fn account(&self, name: &str) -> UserAccount {
        let known = self.all.iter().find(|account| *account.name == *name);
        known.cloned().unwrap_or_else(|| {
            let iterations =
                self.all.first().map_or(ITERATIONS, |first| first.verifier.iterations());
            let verifier = Verifier::mock(&self.secret, name, iterations);
            UserAccount { name: name.into(), role: Role::Reader, verifier }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::auth::tests::logs_in;
    use crate::auth::{Binding, Login};

    #[test]
    fn a_file_of_accounts_is_read_and_its_errors_name_the_line() {
        let text = "# name role password\n\n ann  owner  two words \nbob\treader\tx\n";
        let accounts = Accounts::parse(text).unwrap();
        assert_eq!(accounts.role("ann"), Some(Role::Owner));
        assert_eq!(accounts.role("bob"), Some(Role::Reader));
        assert_eq!(accounts.role("eve"), None);
        assert!(logs_in(&accounts.account("ann").verifier, "two words"));
        assert!(!logs_in(&accounts.account("bob").verifier, "two words"));
        for (text, why) in [
            ("", "no account"),
            ("ann owner\n", "line 1: write NAME"),
            ("\nann admin secret\n", "line 2: write NAME"),
            ("ann owner secret\nann reader secret", "line 2: there are two"),
            ("ann owner SCRAM-SHA-256$secret", "line 1: the verifier is not"),
        ] {
            let error = Accounts::parse(text).unwrap_err().to_string();
            assert!(error.contains(why) && !error.contains("secret"), "{error}");
        }
        assert!(!format!("{accounts:?}").contains("two words"));
    }

    #[test]
    fn a_name_without_an_account_looks_like_one_with_it() {
        let accounts = Accounts::parse("ann owner secret").unwrap();
        let salt = |name: &str| {
            let verifier = accounts.account(name).verifier;
            let (_, answer) = Login::begin(verifier, "n,,n=,r=abc", Binding::Impossible).unwrap();
            let (_, rest) = answer.split_once(",s=").unwrap();
            rest.to_owned()
        };
        for name in ["ann", "eve"] {
            assert_eq!(salt(name), salt(name), "{name}");
            assert_eq!(salt(name).len(), salt("ann").len());
        }
        assert_ne!(salt("eve"), salt("eva"));
        assert!(!logs_in(&accounts.account("eve").verifier, "secret"));
        assert!(!logs_in(&accounts.account("eve").verifier, ""));
    }
}
