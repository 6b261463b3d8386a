//! The settings of a session: what SET, RESET, SHOW, `current_setting` and `set_config` read and
//! change.
//!
//! A setting is one of three: the server obeys it; or only such values are accepted as say what the
//! server does; or it has no effect that a client could see, such as one of PostgreSQL's planner. A
//! name with a dot is the client's own. Any other name is refused.
//!
//! ```text
//!             BEGIN   SET a   SET LOCAL b   COMMIT: `commit`   ROLLBACK: `rollback`
//!   values     ──────▶ a' ────▶ a' b' ─────▶ a'                 as before BEGIN
//! ```
//!
//! The list of settings with their defaults is `known_settings`. Time limits are in `timeouts`.

use std::sync::Arc;

use crate::dialect::{Characteristics, Isolation};
use crate::error::{Result, SqlError};
use crate::known_settings::{KNOWN, Known, REPORTED, Rule};
use crate::sequences::Sequences;
use crate::timeouts::Timeouts;
use crate::tx_mode::TxMode;
use crate::wire::{datetime, types};

/// The most settings that a session keeps.
const KEPT_MAX: usize = 10_000;

/// The values of all settings at one time.
#[derive(Debug, Clone, Default, PartialEq)]
struct Values {
    /// Those that are not the defaults.
    own: Vec<(Box<str>, Box<str>)>,
    timeouts: Timeouts,
}

impl Values {
    fn get(&self, name: &str) -> Option<&str> {
        self.own.iter().find(|(known, _)| **known == *name).map(|(_, value)| &**value)
    }

    fn put(&mut self, name: &str, value: Option<&str>) {
        self.own.retain(|(known, _)| **known != *name);
        self.own.extend(value.map(|value| (name.into(), value.into())));
    }

    /// Sets every setting to its value in `base`. The client's own settings stay, and are empty.
    fn reset(&mut self, base: &Values) {
        let own = std::mem::replace(self, base.clone()).own;
        let empty = own.into_iter().filter(|(name, _)| name.contains('.'));
        for (name, _) in empty {
            if self.get(&name).is_none() {
                self.put(&name, Some(""));
            }
        }
    }
}

/// What the values will be at the end of the transaction.
#[derive(Debug, Clone)]
struct Ends {
    commit: Values,
    rollback: Arc<Values>,
}

/// How long a new value stays.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scope {
    /// Until another one is set. In a transaction, until that is rolled back.
    Session,
    /// Until the transaction ends.
    Transaction,
}

/// The settings of a session.
#[derive(Debug, Clone)]
pub(crate) struct Config {
    values: Arc<Values>,
    /// The values with which the session began.
    base: Arc<Values>,
    /// The values that the client was told of.
    reported: Arc<Values>,
    /// If something was set in this transaction.
    ends: Option<Box<Ends>>,
    /// What the settings named after transactions show.
    pub(crate) mode: TxMode,
    pub(crate) in_transaction: bool,
    /// When the transaction and the statement began, in microseconds since 2000, as far as
    /// something has asked.
    transaction: Option<i64>,
    statement: Option<i64>,
    /// The number of the session, which clients know.
    pub(crate) pid: u32,
    /// The most bytes of names and values together.
    room: usize,
    /// What the session knows of sequences, once it has used one.
    pub(crate) sequences: Option<Box<Sequences>>,
    /// The error of a function that has changed a setting, or read one.
    pub(crate) failed: Option<SqlError>,
}

impl Config {
    pub(crate) fn new(timeouts: Timeouts, room: usize) -> Config {
        let values = Arc::new(Values { timeouts, own: Vec::new() });
        Config {
            base: Arc::clone(&values),
            reported: Arc::clone(&values),
            values,
            ends: None,
            mode: TxMode::default(),
            in_transaction: false,
            transaction: None,
            statement: None,
            room,
            pid: 0,
            sequences: None,
            failed: None,
        }
    }

    /// Notices that a transaction begins.
    pub(crate) fn begin_transaction(&mut self) {
        self.in_transaction = true;
        self.transaction = Some(self.statement_began());
    }

    /// Notices that a statement begins, which outside a transaction is one itself.
    pub(crate) fn begin_statement(&mut self) {
        self.statement = None;
        if !self.in_transaction {
            self.transaction = None;
        }
    }

    /// Returns when the statement began. It is the same time for all that ask.
    pub(crate) fn statement_began(&mut self) -> i64 {
        *self.statement.get_or_insert_with(datetime::now)
    }

    /// Returns when the transaction began.
    pub(crate) fn transaction_began(&mut self) -> i64 {
        let statement = self.statement_began();
        *self.transaction.get_or_insert(statement)
    }

    /// Returns the present time, which is not before those of the statement and the transaction.
    pub(crate) fn present(&mut self) -> i64 {
        self.transaction_began();
        datetime::now()
    }

    pub(crate) fn timeouts(&self) -> &Timeouts {
        &self.values.timeouts
    }

    /// Returns whether commits wait until they are on the disk.
    pub(crate) fn waits_for_disk(&self) -> bool {
        let set = self.values.own.is_empty().then_some("on");
        let value = set.or_else(|| self.values.get("synchronous_commit")).unwrap_or("on");
        types::truth(value) != Some(false)
    }

    /// Returns what holds for a transaction that begins.
    pub(crate) fn default_mode(&self) -> TxMode {
        let mut mode = TxMode::default();
        if !self.values.own.is_empty() {
            let isolation = self.values.get("default_transaction_isolation");
            mode.isolation = isolation.and_then(Isolation::named).unwrap_or(mode.isolation);
            let read_only = self.values.get("default_transaction_read_only");
            mode.read_only = read_only.and_then(types::truth).unwrap_or(false);
        }
        mode
    }

    /// Returns the value of a setting as SHOW prints it.
    pub(crate) fn show(&self, name: &str) -> Result<String> {
        if let Some(limit) = self.values.timeouts.show(name) {
            return Ok(limit);
        }
        let mode = || if self.in_transaction { self.mode } else { self.default_mode() };
        match name {
            "transaction_isolation" => return Ok(mode().isolation.name().to_owned()),
            "transaction_read_only" => {
                return Ok(if mode().read_only { "on" } else { "off" }.to_owned());
            }
            _ => (),
        }
        let known = || KNOWN.iter().find(|known| known.name == name).map(|known| known.default);
        let value = self.values.get(name).or_else(known);
        value.map(str::to_owned).ok_or_else(|| unknown(name))
    }

    /// Sets a setting; `None` and DEFAULT set the value with which the session began.
    pub(crate) fn set(&mut self, name: &str, value: Option<&str>, scope: Scope) -> Result<()> {
        let value = value.filter(|value| !value.eq_ignore_ascii_case("default"));
        if self.set_mode(name, value)? {
            return Ok(());
        }
        let mut next = (*self.values).clone();
        self.put(&mut next, name, value)?;
        if !self.in_transaction {
            if scope == Scope::Session {
                self.values = Arc::new(next);
            }
            return Ok(());
        }
        let mut ends = self.ends.clone().unwrap_or_else(|| self.ends_now());
        if scope == Scope::Session {
            self.put(&mut ends.commit, name, value)?;
        }
        if name.contains('.') {
            // As in PostgreSQL, a name of the client's own stays known, with an empty value.
            for values in [&mut ends.commit, Arc::make_mut(&mut ends.rollback)] {
                if values.get(name).is_none() {
                    values.put(name, Some(""));
                }
            }
        }
        (self.values, self.ends) = (Arc::new(next), Some(ends));
        Ok(())
    }

    fn ends_now(&self) -> Box<Ends> {
        let (commit, rollback) = ((*self.values).clone(), Arc::clone(&self.values));
        Box::new(Ends { commit, rollback })
    }

    /// Sets a characteristic of the present transaction. Returns false if the name is no such one.
    fn set_mode(&mut self, name: &str, value: Option<&str>) -> Result<bool> {
        let (default, mut to) = (self.default_mode(), Characteristics::default());
        let wrong = || invalid(name, value.unwrap_or_default());
        match name {
            "transaction_isolation" => {
                let set = value.map_or(Some(default.isolation), Isolation::named);
                to.isolation = Some(set.ok_or_else(wrong)?);
            }
            "transaction_read_only" => {
                let set = value.map_or(Some(default.read_only), types::truth);
                to.read_only = Some(set.ok_or_else(wrong)?);
            }
            _ => return Ok(false),
        }
        if self.in_transaction {
            self.mode.change(to)?;
        }
        Ok(true)
    }

    /// Checks a value, and puts it among `values`.
    fn put(&self, values: &mut Values, name: &str, value: Option<&str>) -> Result<()> {
        if values.timeouts.set(name, value, self.base.timeouts)? {
            return Ok(());
        }
        let is_own = is_own(name);
        let known = KNOWN.iter().find(|known| known.name == name);
        let value = match (known, value) {
            (Some(known), Some(value)) => Some(checked(known, value)?),
            (None, Some(value)) if is_own => Some(value.to_owned()),
            (Some(_), None) => self.base.get(name).map(str::to_owned),
            (None, None) if is_own => Some(self.base.get(name).unwrap_or("").to_owned()),
            _ => return Err(unknown(name)),
        };
        values.put(name, value.as_deref());
        let bytes: usize = values.own.iter().map(|(name, value)| name.len() + value.len()).sum();
        if values.own.len() > KEPT_MAX || bytes > self.room {
            let message = format!(
                "this session keeps at most {KEPT_MAX} settings (RESET ends one), of {} bytes in \
                 all",
                self.room
            );
            return Err(SqlError::new("53400", message));
        }
        Ok(())
    }

    /// Sets all settings to the values with which the session began.
    pub(crate) fn reset_all(&mut self) {
        if self.in_transaction && self.ends.is_none() {
            self.ends = Some(self.ends_now());
        }
        Arc::make_mut(&mut self.values).reset(&self.base);
        if let Some(ends) = &mut self.ends {
            ends.commit.reset(&self.base);
        }
    }

    /// Records that the session begins with the values set so far.
    pub(crate) fn begin_session(&mut self) {
        self.base = Arc::clone(&self.values);
        self.reported = Arc::clone(&self.values);
    }

    /// Ends what was set for the transaction, or in one that is rolled back.
    pub(crate) fn end_transaction(&mut self, commits: bool) {
        self.in_transaction = false;
        if let Some(ends) = self.ends.take() {
            self.values = if commits { Arc::new(ends.commit) } else { ends.rollback };
        }
    }

    /// Returns the settings that a client is told of: names and values.
    pub(crate) fn reported(&self) -> impl Iterator<Item = (&'static str, String)> {
        let value = |name: &str| self.show(&name.to_ascii_lowercase()).unwrap_or_default();
        REPORTED.iter().map(move |name| (*name, value(name)))
    }

    /// Returns the settings that have changed since this was called before, of those that a client
    /// is told of: names and values.
    pub(crate) fn changes(&mut self) -> Vec<(&'static str, String)> {
        if Arc::ptr_eq(&self.values, &self.reported) {
            return Vec::new();
        }
        let before = Config { values: Arc::clone(&self.reported), ..self.clone() };
        self.reported = Arc::clone(&self.values);
        let pairs = self.reported().zip(before.reported());
        pairs.filter(|(now, before)| now != before).map(|(now, _)| now).collect()
    }
}

/// Returns whether this is a name of the client's own: words with a dot between them.
fn is_own(name: &str) -> bool {
    let mut words = name.split('.');
    let starts = |word: &str| word.starts_with(|c: char| c.is_alphabetic() || c == '_');
    let rest = |c: char| c.is_alphanumeric() || c == '_' || c == '$';
    name.contains('.') && words.all(|word| starts(word) && word.chars().all(rest))
}

fn unknown(name: &str) -> SqlError {
    SqlError::new("42704", format!("unrecognized configuration parameter \"{name}\""))
}

fn invalid(name: &str, value: &str) -> SqlError {
    let value: String = value.chars().take(40).collect();
    SqlError::new("22023", format!("invalid value for parameter \"{name}\": \"{value}\""))
}

/// Returns the value in the form that SHOW prints.
fn checked(known: &Known, value: &str) -> Result<String> {
    let name = known.name;
    match known.rule {
        Rule::Free => Ok(value.to_owned()),
        Rule::Fixed if value == known.default => Ok(value.to_owned()),
        Rule::Fixed => {
            Err(SqlError::new("55P02", format!("parameter \"{name}\" cannot be changed")))
        }
        Rule::Switch => match types::truth(value) {
            Some(on) => Ok(if on { "on" } else { "off" }.to_owned()),
            None => Err(invalid(name, value)),
        },
        Rule::Isolation => match Isolation::named(value) {
            Some(isolation) => Ok(isolation.name().to_owned()),
            None => Err(invalid(name, value)),
        },
        Rule::OneOf(values) => {
            let found = values.iter().find(|known| known.eq_ignore_ascii_case(value));
            found.map(|found| (*found).to_owned()).ok_or_else(|| invalid(name, value))
        }
        Rule::Only(accepts, _) if accepts(value) => Ok(value.to_owned()),
        Rule::Only(_, hint) => {
            let value: String = value.chars().take(40).collect();
            let message = format!("parameter \"{name}\" cannot be \"{value}\" on this server");
            Err(SqlError::unsupported(message).hint(hint))
        }
    }
}
