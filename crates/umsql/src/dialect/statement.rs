//! Recognises a client's statement: the session executes some statements itself, and SQLite
//! executes the others.

use std::time::Duration;

use super::alter::{self, AlterTable, Owner};
use super::characteristics::{Begin, Characteristics, TableLock};
use super::copy::{self, Copy, CopyOut};
use super::cursor::Cursor;
use super::edits::Edits;
use super::explain::Explain;
use super::prepare::{Execute, Prepare};
use super::reader::{Reader, near};
use super::sequence::SequenceStatement;
use super::tokens::{Token, TokenKind};
use super::translate::{self, Sql};
use crate::error::{Result, SqlError};

/// A statement, recognised and translated.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Statement {
    Begin(Begin),
    /// `SET TRANSACTION ..`.
    SetTransaction(Characteristics),
    /// `SET SESSION CHARACTERISTICS AS TRANSACTION ..`.
    SetCharacteristics(Characteristics),
    Lock(TableLock),
    Commit {
        /// Whether another transaction of the same kind begins.
        chains: bool,
    },
    Rollback {
        chains: bool,
    },
    Savepoint(String),
    RollbackTo(String),
    Release(String),
    Set {
        name: String,
        value: String,
        /// Only until the end of the transaction.
        local: bool,
    },
    Show(String),
    /// `RESET x`; `None` is `RESET ALL`.
    Reset(Option<String>),
    /// `DISCARD ALL` and similar statements. The text is its command tag.
    Discard(&'static str),
    /// `DEALLOCATE x`; `None` is `DEALLOCATE ALL`.
    Deallocate(Option<String>),
    Prepare(Prepare),
    Execute(Execute),
    Cursor(Cursor),
    Copy(Copy),
    CopyOut(CopyOut),
    UmsStats,
    WaitStats,
    ClearWaitStats,
    WaitFor(Duration),
    Backup(String),
    Kill(u64),
    /// The query with which pgbench asks how its tables are partitioned. They are not partitioned.
    PartitionProbe(String),
    /// A query about something that this server never has; the answer has no rows.
    Nothing,
    /// A statement that is accepted and has no effect. The text is its command tag.
    Accepted(&'static str),
    Alter(AlterTable),
    Owner(Owner),
    Sequence(SequenceStatement),
    /// `SET CONSTRAINTS .. IMMEDIATE`.
    CheckConstraints,
    Explain(Box<Explain>),
    Sql(Sql),
}

/// Recognises the statement in `tokens`, which must not be empty. `source` is the whole query, and
/// the edits are written into a statement that SQLite executes.
pub(crate) fn recognise(tokens: &[Token<'_>], source: &str, edits: &Edits) -> Result<Statement> {
    let after = Reader::new(&tokens[1..]);
    match &tokens[0] {
        first if first.is("prepare") => {
            return Prepare::read(after, source).map(Statement::Prepare);
        }
        first if first.is("execute") => {
            return Execute::read(after, source).map(Statement::Execute);
        }
        first => {
            if first.is("copy") {
                let (form, query) = copy::read(after, source)?;
                return Ok(match query {
                    None => Statement::Copy(form),
                    Some(query) => Statement::CopyOut(CopyOut { form, query }),
                });
            }
            if let Some(cursor) = Cursor::read(first, after, source)? {
                return Ok(Statement::Cursor(cursor));
            }
        }
    }
    if let Some(statement) = session_statement(Reader::new(tokens))? {
        return Ok(statement);
    }
    if let Some(owner) = Owner::read(Reader::new(tokens))? {
        return Ok(Statement::Owner(owner));
    }
    if let Some(sequence) = SequenceStatement::read(Reader::new(tokens))? {
        return Ok(Statement::Sequence(sequence));
    }
    if let Some(alter) = alter::read(tokens, source)? {
        return Ok(Statement::Alter(alter));
    }
    if let Some(statement) = shape(tokens) {
        return Ok(statement);
    }
    translate::sql(tokens, source, edits).map(Statement::Sql)
}

/// Returns an error if no statement begins with this token. PostgreSQL reads all statements of a
/// query before it executes the first one.
///
/// # Errors
/// 42601.
pub(crate) fn check_verb(first: &Token<'_>) -> Result<()> {
    const VERBS: &str = "( abort alter analyze attach backup begin call checkpoint close cluster \
        comment commit copy create dbcc deallocate declare delete detach discard do drop end \
        execute explain fetch grant import insert kill listen load lock merge move notify pragma \
        prepare reassign refresh reindex release replace reset revoke rollback savepoint security \
        select set show start table truncate unlisten update vacuum values waitfor with";
    let is = |verb: &str| first.is(verb) || first.sign(verb);
    if VERBS.split_ascii_whitespace().any(is) { Ok(()) } else { Err(near(first)) }
}

/// Recognises the statements that the session executes itself.
fn session_statement(mut r: Reader<'_, '_>) -> Result<Option<Statement>> {
    let first = r.rest[0].text.to_ascii_lowercase();
    r.rest = &r.rest[1..];
    let statement = match first.as_str() {
        "begin" | "start" | "commit" | "end" | "abort" | "rollback" | "savepoint" | "release" => {
            transaction_control(&first, r)?
        }
        "set" => set(r)?,
        "show" if r.take(&["all"]) => {
            return Err(SqlError::unsupported("SHOW ALL is not supported").hint("Write SHOW name."));
        }
        "show" => Statement::Show(setting(&mut r)?.0),
        "reset" => Statement::Reset(match r.take(&["all"]) {
            true => None,
            false => Some(setting(&mut r)?.0),
        }),
        "discard" => Statement::Discard(discarded(r)?),
        "deallocate" => {
            r.take(&["prepare"]);
            Statement::Deallocate(if r.take(&["all"]) { None } else { Some(r.folded_name()?) })
        }
        "dbcc" => dbcc(r)?,
        "waitfor" => waitfor(r)?,
        "backup" => {
            r.take(&["database"]);
            if !r.take(&["to"]) {
                return Err(SqlError::syntax("syntax error: write BACKUP TO 'file'"));
            }
            Statement::Backup(r.next()?.value())
        }
        "kill" => {
            let user = r.next()?;
            Statement::Kill(user.text.parse().map_err(|_| near(user))?)
        }
        "vacuum" => match vacuum_target(r)? {
            Some(statement) => statement,
            None => return Ok(None),
        },
        "listen" => Statement::Accepted("LISTEN"),
        "unlisten" => Statement::Accepted("UNLISTEN"),
        "lock" => Statement::Lock(TableLock::read(&mut r)?),
        "checkpoint" => Statement::Accepted("CHECKPOINT"),
        _ => return Ok(None),
    };
    Ok(Some(statement))
}

/// Reads the rest of a statement of transaction control that begins with the word `first`.
fn transaction_control(first: &str, mut r: Reader<'_, '_>) -> Result<Statement> {
    Ok(match first {
        "begin" => Statement::Begin(Begin::read(&mut r)?),
        "start" => Statement::Begin(Begin { starts: true, ..Begin::read(&mut r)? }),
        "rollback" | "abort" | "commit" | "end" => {
            let _ = r.take(&["work"]) || r.take(&["transaction"]);
            if first == "rollback" && r.take(&["to"]) {
                r.take(&["savepoint"]);
                return Ok(Statement::RollbackTo(r.name()?));
            }
            let chains = r.take(&["and", "chain"]);
            r.take(&["and", "no", "chain"]);
            r.end()?;
            let commits = matches!(first, "commit" | "end");
            if commits { Statement::Commit { chains } } else { Statement::Rollback { chains } }
        }
        "savepoint" => Statement::Savepoint(r.name()?),
        _ => {
            r.take(&["savepoint"]);
            Statement::Release(r.name()?)
        }
    })
}

fn set(mut r: Reader<'_, '_>) -> Result<Statement> {
    let local = r.take(&["local"]);
    let _ = local || r.take(&["session"]);
    if r.take(&["characteristics", "as", "transaction"]) {
        return Ok(Statement::SetCharacteristics(Characteristics::read(&mut r)?));
    }
    if r.take(&["transaction"]) {
        if r.take(&["snapshot"]) {
            return Err(SqlError::unsupported("SET TRANSACTION SNAPSHOT is not supported"));
        }
        return Ok(Statement::SetTransaction(Characteristics::read(&mut r)?));
    }
    if r.take(&["constraints"]) {
        if r.rest.last().is_some_and(|last| last.is("immediate")) {
            return Ok(Statement::CheckConstraints);
        }
        return Err(SqlError::unsupported("SET CONSTRAINTS .. DEFERRED is not supported")
            .hint("PRAGMA defer_foreign_keys = on defers all until the transaction ends."));
    }
    let (name, spoken) = setting(&mut r)?;
    let assigned = r.take(&["="]) || r.take(&["to"]);
    let Some(first) = r.rest.first() else { return Err(r.next().unwrap_err()) };
    if !assigned && !spoken && name != "role" {
        return Err(near(first));
    }
    let mut value = String::new();
    for token in r.rest {
        value.push_str(&if token.sign(",") { ", ".into() } else { token.value() });
    }
    Ok(Statement::Set { name, value, local })
}

/// Reads the name of a setting, in lower case. Returns also whether it was one that is written
/// without a sign before its value, as in `SET TIME ZONE 'UTC'`.
fn setting(r: &mut Reader<'_, '_>) -> Result<(String, bool)> {
    const SPOKEN: [(&[&str], &str); 6] = [
        (&["time", "zone"], "timezone"),
        (&["transaction", "isolation", "level"], "transaction_isolation"),
        (&["session", "authorization"], "session_authorization"),
        (&["authorization"], "session_authorization"),
        (&["names"], "client_encoding"),
        (&["schema"], "search_path"),
    ];
    if let Some((_, name)) = SPOKEN.iter().find(|(words, _)| r.take(words)) {
        return Ok(((*name).to_owned(), true));
    }
    let mut name = r.name()?;
    while r.take(&["."]) {
        name = format!("{name}.{}", r.name()?);
    }
    Ok((name.to_lowercase(), false))
}

/// Reads what follows DISCARD.
fn discarded(mut r: Reader<'_, '_>) -> Result<&'static str> {
    let what = r.next()?;
    r.end()?;
    Ok(match what.text.to_ascii_lowercase().as_str() {
        "all" => "DISCARD ALL",
        "plans" => "DISCARD PLANS",
        "sequences" => "DISCARD SEQUENCES",
        "temp" | "temporary" => "DISCARD TEMP",
        _ => return Err(near(what)),
    })
}

fn dbcc(mut r: Reader<'_, '_>) -> Result<Statement> {
    let wrong = || {
        SqlError::syntax("unknown DBCC command").hint(
            "Write DBCC SQLPERF(umsstats), DBCC SQLPERF(waitstats) or DBCC SQLPERF(waitstats, \
             CLEAR).",
        )
    };
    if !r.take(&["sqlperf", "("]) {
        return Err(wrong());
    }
    let what = r.next()?.value().to_ascii_lowercase();
    match what.as_str() {
        "umsstats" => Ok(Statement::UmsStats),
        "waitstats" if r.take(&[",", "clear"]) => Ok(Statement::ClearWaitStats),
        "waitstats" => Ok(Statement::WaitStats),
        _ => Err(wrong()),
    }
}

fn waitfor(mut r: Reader<'_, '_>) -> Result<Statement> {
    if !r.take(&["delay"]) {
        return Err(SqlError::syntax("syntax error: write WAITFOR DELAY 'hh:mm:ss'"));
    }
    let text = r.next()?.value();
    let wrong = || {
        SqlError::new("22007", format!("invalid delay: \"{text}\"")).hint("Write hh:mm:ss[.fff].")
    };
    let mut parts = text.split(':');
    let mut seconds = 0.0;
    for (limit, unit) in [(24.0, 3600.0), (60.0, 60.0), (60.0, 1.0)] {
        let part: f64 = parts.next().unwrap_or("0").trim().parse().map_err(|_| wrong())?;
        if !(0.0..limit).contains(&part) {
            return Err(wrong());
        }
        seconds += part * unit;
    }
    if parts.next().is_some() {
        return Err(wrong());
    }
    Ok(Statement::WaitFor(Duration::from_secs_f64(seconds)))
}

/// Recognises `VACUUM table`, which has no effect here. `VACUUM ANALYZE` and plain `VACUUM` are
/// executed by SQLite.
fn vacuum_target(mut r: Reader<'_, '_>) -> Result<Option<Statement>> {
    let analyze = r.rest.iter().any(|token| token.is("analyze") || token.is("into"));
    while ["full", "freeze", "verbose"].iter().any(|word| r.take(&[word])) {}
    let bare = r.rest.is_empty();
    Ok((!analyze && !bare && r.rest[0].is_name()).then_some(Statement::Accepted("VACUUM")))
}

/// Recognises, by a few of their words, queries that SQLite could not parse.
fn shape(tokens: &[Token<'_>]) -> Option<Statement> {
    if !tokens[0].is("select") {
        return None;
    }
    let mentions = |word: &str| tokens.iter().any(|token| token.is(word));
    if mentions("pg_partitioned_table") && mentions("array_position") {
        let table = tokens.iter().find(|token| token.kind == TokenKind::Text)?;
        return Some(Statement::PartitionProbe(table.value()));
    }
    const NEVER: [&str; 9] = [
        "pg_proc",
        "pg_policy",
        "pg_statistic_ext",
        "pg_publication",
        "pg_publication_rel",
        "pg_trigger",
        "pg_db_role_setting",
        "pg_shdescription",
        "pg_partitioned_table",
    ];
    NEVER.iter().any(|table| mentions(table)).then_some(Statement::Nothing)
}

#[cfg(test)]
mod tests {
    use super::super::tokens::tokens;
    use super::*;

    fn of(sql: &str) -> Statement {
        recognise(&tokens(sql).unwrap(), sql, &Edits::default()).unwrap()
    }

    fn refused(sql: &str) -> &'static str {
        recognise(&tokens(sql).unwrap(), sql, &Edits::default()).unwrap_err().code
    }

    #[test]
    fn transaction_control_is_recognised_in_all_spellings() {
        assert_eq!(of("BEGIN"), Statement::Begin(Begin::default()));
        let read_only = Characteristics { read_only: Some(true), ..Characteristics::default() };
        let begin = Begin { characteristics: read_only, immediate: false, starts: true };
        assert_eq!(of("start transaction read only"), Statement::Begin(begin));
        assert_eq!(of("set transaction read only"), Statement::SetTransaction(read_only));
        let session = "set session characteristics as transaction read only";
        assert_eq!(of(session), Statement::SetCharacteristics(read_only));
        assert_eq!(refused("set transaction snapshot '1'"), "0A000");
        assert_eq!(of("END"), Statement::Commit { chains: false });
        assert_eq!(of("commit and no chain"), Statement::Commit { chains: false });
        assert_eq!(of("abort and chain"), Statement::Rollback { chains: true });
        assert_eq!(refused("commit prepared 'x'"), "42601");
        assert_eq!(of("abort transaction"), Statement::Rollback { chains: false });
        assert_eq!(of("rollback work"), Statement::Rollback { chains: false });
        assert_eq!(of("rollback to savepoint \"A b\""), Statement::RollbackTo("A b".into()));
        assert_eq!(of("release x"), Statement::Release("x".into()));
    }

    #[test]
    fn our_own_statements_are_recognised() {
        assert_eq!(of("DBCC SQLPERF(umsstats)"), Statement::UmsStats);
        assert_eq!(of("dbcc sqlperf ( 'WAITSTATS' )"), Statement::WaitStats);
        assert_eq!(of("DBCC SQLPERF('waitstats', CLEAR)"), Statement::ClearWaitStats);
        assert_eq!(refused("dbcc checkdb"), "42601");
        assert_eq!(
            of("WAITFOR DELAY '00:01:02.5'"),
            Statement::WaitFor(Duration::from_millis(62_500))
        );
        assert_eq!(refused("WAITFOR DELAY '00:61:00'"), "22007");
        assert_eq!(of("backup to 'a.db'"), Statement::Backup("a.db".into()));
        assert_eq!(of("kill 7"), Statement::Kill(7));
    }

    #[test]
    fn settings_are_read_without_their_quotes() {
        let set = |name: &str, value: &str| {
            let (name, value) = (name.into(), value.into());
            Statement::Set { name, value, local: false }
        };
        assert_eq!(of("set client_encoding to 'UTF8'"), set("client_encoding", "UTF8"));
        assert_eq!(of("SET search_path = public, x"), set("search_path", "public, x"));
        assert_eq!(of("set time zone 'UTC'"), set("timezone", "UTC"));
        assert_eq!(
            of("show transaction isolation level"),
            Statement::Show("transaction_isolation".into())
        );
    }
}
