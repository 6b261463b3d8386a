//! SET, RESET and the parameters of the first packet: changes of a session's settings, of which its
//! client is told.
//!
//! `settings` has the values, and says which are accepted.

use crate::dialect::Characteristics;
use crate::error::{Result, SqlError};
use crate::session::{Session, Tx};
use crate::settings::Scope;

impl Session {
    /// Carries out SET; `local` is SET LOCAL. A value of `None` is the default.
    pub(crate) fn set(&mut self, name: &str, value: Option<&str>, local: bool) -> Result<()> {
        let outside = matches!(self.tx, Tx::Idle | Tx::Implicit);
        let of_transaction = matches!(name, "transaction_isolation" | "transaction_read_only");
        if outside && (local || of_transaction) {
            // It has no effect, apart from the check of its value.
            self.config.clone().set(name, value, Scope::Transaction)?;
            let what = if local { "SET LOCAL" } else { "SET TRANSACTION" };
            self.warn_outside(what);
            return Ok(());
        }
        let scope = if local { Scope::Transaction } else { Scope::Session };
        self.config.set(name, value, scope)?;
        self.report_settings();
        Ok(())
    }

    /// Carries out RESET; `None` is RESET ALL.
    pub(crate) fn reset(&mut self, name: Option<&str>) -> Result<()> {
        match name {
            Some(name) => self.config.set(name, None, Scope::Session)?,
            None => self.config.reset_all(),
        }
        self.report_settings();
        Ok(())
    }

    /// Carries out SET SESSION CHARACTERISTICS.
    pub(crate) fn set_characteristics(&mut self, to: Characteristics) -> Result<()> {
        if let Some(isolation) = to.isolation {
            self.set("default_transaction_isolation", Some(isolation.name()), false)?;
        }
        if let Some(read_only) = to.read_only {
            let value = if read_only { "on" } else { "off" };
            self.set("default_transaction_read_only", Some(value), false)?;
        }
        Ok(())
    }

    pub(crate) fn warn_outside(&mut self, what: &'static str) {
        let message = match what {
            "SET LOCAL" => "SET LOCAL can only be used in transaction blocks",
            _ => "SET TRANSACTION can only be used in transaction blocks",
        };
        self.out.warning("25P01", message);
    }

    /// Ends what was set for the transaction.
    pub(crate) fn end_settings(&mut self, commits: bool) {
        self.config.end_transaction(commits);
        self.report_settings();
    }

    /// Looks, after a statement that may have called `set_config`, what it has done. Returns the
    /// error of a function that failed.
    pub(crate) fn after_settings(&mut self) -> Result<()> {
        self.report_settings();
        self.config.failed.take().map_or(Ok(()), Err)
    }

    fn report_settings(&mut self) {
        for (name, value) in self.config.changes() {
            self.out.parameter_status(name, &value);
        }
    }

    /// Takes the settings of the first packet. Those of `options` must be right. Of the others,
    /// drivers send what they prefer; the server reports what holds.
    pub(crate) fn take_parameters(&mut self, parameters: &[(String, String)]) -> Result<()> {
        for (name, value) in parameters {
            let name = name.to_ascii_lowercase();
            let is_setting = !matches!(&*name, "user" | "database" | "options" | "replication");
            let taken = self.config.set(&name, Some(value), Scope::Session);
            let optional = !name.ends_with("_timeout");
            if is_setting && !optional {
                taken.map_err(|error| SqlError { fatal: true, ..error })?;
            }
        }
        let options = parameters.iter().filter(|(name, _)| name == "options");
        let words = options.flat_map(|(_, options)| options.split_whitespace());
        // `-c name=value`, `-cname=value` and `--name=value`.
        let words = words.map(|word| {
            word.strip_prefix("-c").or_else(|| word.strip_prefix("--")).unwrap_or(word)
        });
        for (name, value) in words.filter_map(|word| word.split_once('=')) {
            let name = name.to_ascii_lowercase().replace('-', "_");
            self.config
                .set(&name, Some(value), Scope::Session)
                .map_err(|error| SqlError { fatal: true, ..error })?;
        }
        self.config.begin_session();
        Ok(())
    }
}
