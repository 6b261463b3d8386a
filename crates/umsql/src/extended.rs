//! The extended protocol: Parse, Bind, Describe, Execute, Close, Sync.
//!
//! A **portal** is a statement with its parameters bound. Its rows are computed at its first
//! Execute. Rows beyond a row limit are kept encoded in the portal, so a suspended portal holds no
//! cursor of the engine.
//!
//! The type of an expression may be known only from its first row. If the message after Describe is
//! the Execute of the same portal, as with all drivers, the description is sent when the first row
//! is there. Otherwise the statement is run briefly with sample parameters.

use std::sync::Arc;

use rusqlite::types::Value;

use crate::accounts::Role;
use crate::dialect::tokens::tokens;
use crate::dialect::{Sql, Statement};
use crate::error::{Failure, Result, SqlError, position};
use crate::host::{self, Conn};
use crate::plan::{self, Plan};
use crate::portal::{Portal, State, row_end};
use crate::run::{Call, Ran};
use crate::session::{OUT_MAX, Session, Tx, drops};
use crate::statements;
use crate::wire::message::{Bind, Body, format_of};
use crate::wire::types::{self, Column};

/// Returns the columns of the statement's description, in the formats of this portal.
fn described(portal: &Portal) -> Columns {
    if portal.describe_on_execute {
        return None;
    }
    let mut columns = portal.plan.described.get()?.to_vec();
    for (index, column) in columns.iter_mut().enumerate() {
        column.format = format_of(&portal.formats, index);
    }
    Some(columns)
}

/// Returns the error of a statement in a transaction that has failed.
fn failed_transaction() -> SqlError {
    let message = "current transaction is aborted, commands ignored until end of transaction block";
    SqlError::new("25P02", message)
}

/// The columns of a result; None for a statement that returns no rows.
type Columns = Option<Vec<Column>>;

impl Session {
    /// Carries out one message of an extended cycle.
    pub(crate) fn extended(
        &mut self,
        conn: &mut dyn Conn,
        tag: u8,
        body: &[u8],
    ) -> std::result::Result<(), Failure> {
        if tag == b'S' {
            return self.sync(conn);
        }
        if self.skip_to_sync {
            return Ok(());
        }
        let mut text = None;
        let outcome = match tag {
            b'P' => self.parse(body, &mut text).map_err(Failure::from),
            b'B' => self.bind(body).map_err(Failure::from),
            b'D' => self.describe(body).map_err(Failure::from),
            b'E' => self.execute_portal(conn, body),
            b'C' => self.close(body).map_err(Failure::from),
            _ => Ok(()),
        };
        if let Err(failure) = outcome {
            if matches!(failure, Failure::Later) {
                return Err(failure);
            }
            self.skip_to_sync = true;
            self.fail(conn, failure, |error| position(text.as_deref(), error))?;
        }
        Ok(())
    }

    fn sync(&mut self, conn: &dyn Conn) -> std::result::Result<(), Failure> {
        if let Err(error) = self.end_implicit() {
            self.fail(conn, error.into(), |_| None)?;
        }
        self.skip_to_sync = false;
        self.several = false;
        if self.tx != Tx::Block {
            self.portals = Vec::new();
        }
        self.ready();
        self.let_go();
        Ok(())
    }

    fn parse(&mut self, body: &[u8], seen: &mut Option<String>) -> Result<()> {
        let mut body = Body::new(body);
        let name = body.string()?;
        let text = body.string()?;
        let mut declared = Vec::new();
        for _ in 0..body.u16()? {
            declared.push(body.u32()?);
        }
        body.end()?;
        self.check_new(name)?;
        *seen = Some(text.to_owned());
        let plan = match self.server.plan(text, &declared) {
            Some(plan) => plan,
            None => self.make_plan(text, &declared)?,
        };
        self.check_not_failed(&plan)?;
        self.keep_prepared(name, plan)?;
        self.out.bare(b'1');
        Ok(())
    }

    fn check_new(&self, name: &str) -> Result<()> {
        if !name.is_empty() && self.prepared.iter().any(|(known, _)| **known == *name) {
            let message = format!("prepared statement \"{name}\" already exists");
            return Err(SqlError::new("42P05", message));
        }
        Ok(())
    }

    /// Keeps a prepared statement under its name. The one without a name replaces the last one.
    pub(crate) fn keep_prepared(&mut self, name: &str, plan: Arc<Plan>) -> Result<()> {
        self.check_new(name)?;
        self.prepared.retain(|(known, _)| **known != *name);
        let kept = self.prepared.iter().map(|(name, plan)| name.len() + plan.size);
        self.check_room(kept, name.len() + plan.size, "prepared statements (DEALLOCATE ends one)")?;
        self.prepared.push((name.into(), plan));
        if self.prepared.len() == self.prepared.capacity() {
            self.prepared.shrink_to_fit();
        }
        Ok(())
    }

    pub(crate) fn make_plan(&mut self, text: &str, declared: &[u32]) -> Result<Arc<Plan>> {
        if self.role == Role::Reader {
            let list = tokens(text)?;
            if !list.is_empty() && drops(&list) {
                self.check_owner("write")?;
            }
        }
        let lease = self.lease()?;
        let plan = Arc::new(Plan::new(text, declared, lease.schema(), lease)?);
        if let Some(Statement::Sql(sql)) = &plan.statement
            && let [text] = &sql.texts[..]
        {
            if sql.catalog {
                lease.ensure_catalog()?;
            }
            // SQLite applies a PRAGMA's setting as soon as the statement is prepared.
            lease.pinned |= sql.pins;
            match lease.prepare_cached(text) {
                Ok(prepared) => {
                    let _ = plan.width.set((lease.schema(), prepared.column_count()));
                }
                Err(error) => {
                    let mut error = SqlError::from(error);
                    error.offset = error.offset.and_then(|offset| sql.place(offset));
                    return Err(error);
                }
            }
        }
        // What EXECUTE and FETCH mean depends on the session.
        let own = matches!(plan.statement, Some(Statement::Execute(_) | Statement::Cursor(_)));
        let private = lease.pinned || own;
        if !private && self.tx != Tx::Block {
            self.server.keep_plan(text, declared, &plan);
        }
        Ok(plan)
    }

    fn check_not_failed(&self, plan: &Plan) -> Result<()> {
        let ends = matches!(
            plan.statement,
            Some(Statement::Commit { .. } | Statement::Rollback { .. } | Statement::RollbackTo(_))
        );
        if self.tx == Tx::Failed && !ends {
            return Err(failed_transaction());
        }
        Ok(())
    }

    pub(crate) fn plan_named(&self, name: &str) -> Result<Arc<Plan>> {
        let found = self.prepared.iter().find(|(known, _)| **known == *name);
        found.map(|(_, plan)| Arc::clone(plan)).ok_or_else(|| {
            SqlError::new("26000", format!("prepared statement \"{name}\" does not exist"))
        })
    }

    /// Returns a prepared statement that is to be executed: as it is, or made anew.
    pub(crate) fn fresh_plan(&mut self, name: &str) -> Result<Arc<Plan>> {
        let plan = self.plan_named(name)?;
        if plan.has_star && self.tx != Tx::Failed {
            self.check_width(&plan)?;
        }
        let Some(source) = &plan.source else { return Ok(plan) };
        if source.schema == self.server.engine.schema() || self.tx == Tx::Failed {
            return Ok(plan);
        }
        let lease = self.lease()?;
        let fresh = Plan::new(&source.text, &source.declared, lease.schema(), lease)?;
        // What was described to the client stays so.
        if let Some(columns) = plan.described.get() {
            let _ = fresh.described.set(columns.clone());
        }
        let fresh = Arc::new(fresh);
        let own = self.prepared.iter_mut().find(|(known, _)| **known == *name);
        own.into_iter().for_each(|(_, plan)| *plan = Arc::clone(&fresh));
        Ok(fresh)
    }

    /// Checks that a statement with a star returns as many columns as when it was first executed.
    fn check_width(&mut self, plan: &Plan) -> Result<()> {
        let schema = self.server.engine.schema();
        let Some(Statement::Sql(sql)) = &plan.statement else { return Ok(()) };
        let Some((at, before)) = plan.width.get() else { return Ok(()) };
        if *at == schema {
            return Ok(());
        }
        let lease = self.lease()?;
        if sql.catalog {
            lease.ensure_catalog()?;
        }
        if *before == lease.prepare_cached(&sql.texts[0])?.column_count() {
            return Ok(());
        }
        Err(SqlError::unsupported("cached plan must not change result type")
            .hint("Prepare the statement again."))
    }

    fn portal_named(&mut self, name: &str) -> Result<&mut Portal> {
        let found = self.portals.iter_mut().find(|(known, _)| **known == *name);
        let is_failed = self.tx == Tx::Failed;
        found.map(|(_, portal)| portal).ok_or_else(|| match is_failed {
            true => failed_transaction(),
            false => SqlError::new("34000", format!("portal \"{name}\" does not exist")),
        })
    }

    fn bind(&mut self, body: &[u8]) -> Result<()> {
        let bind = Bind::decode(body)?;
        let plan = self.fresh_plan(bind.statement)?;
        let (given, wanted) = (bind.parameters.len(), plan.types.len());
        if given != wanted {
            let message = format!(
                "bind message supplies {given} parameters, but the statement requires {wanted}"
            );
            return Err(SqlError::protocol(message));
        }
        if bind.parameter_formats.len() > 1 && bind.parameter_formats.len() != given {
            return Err(SqlError::protocol("bind message has a wrong number of parameter formats"));
        }
        let named = !bind.portal.is_empty();
        if named && self.portals.iter().any(|(known, _)| **known == *bind.portal) {
            return Err(SqlError::new(
                "42P03",
                format!("portal \"{}\" already exists", bind.portal),
            ));
        }
        let parameters = bind.parameters.iter().enumerate().map(|(index, bytes)| {
            types::decode(*bytes, plan.types[index], format_of(&bind.parameter_formats, index))
        });
        let portal = Portal {
            parameters: parameters.collect::<Result<_>>()?,
            plan,
            formats: bind.result_formats,
            columns: None,
            describe_on_execute: false,
            savepoints: self.savepoints.len(),
            state: State::Fresh,
            size: body.len(),
        };
        self.portals.retain(|(known, _)| **known != *bind.portal);
        self.check_room(self.portals.iter().map(|p| p.1.size), body.len(), "open portals")?;
        self.portals.push((bind.portal.into(), portal));
        self.out.bare(b'2');
        Ok(())
    }

    fn close(&mut self, body: &[u8]) -> Result<()> {
        let mut body = Body::new(body);
        let (kind, name) = (body.u8()?, body.string()?);
        match kind {
            b'S' => self.prepared.retain(|(known, _)| **known != *name),
            b'P' => self.portals.retain(|(known, _)| **known != *name),
            _ => return Err(SqlError::protocol("invalid CLOSE message subtype")),
        }
        self.out.bare(b'3');
        Ok(())
    }

    fn describe(&mut self, body: &[u8]) -> Result<()> {
        let mut body = Body::new(body);
        let (kind, name) = (body.u8()?, body.string()?);
        match kind {
            b'S' => {
                let plan = self.fresh_plan(name)?;
                self.check_not_failed(&plan)?;
                self.out.parameter_description(&plan.types);
                let samples: Vec<Value> = plan.types.iter().map(|oid| plan::sample(*oid)).collect();
                let columns = self.columns_of(&plan, &samples, &[], false)?;
                // Once a description has been given, it stays the same for all sessions that share
                // the plan.
                let columns = columns.flatten().map(Vec::into_boxed_slice);
                let columns = columns.map(|columns| &**plan.described.get_or_init(|| columns));
                self.send_description(columns);
            }
            b'P' => self.describe_portal(name)?,
            _ => return Err(SqlError::protocol("invalid DESCRIBE message subtype")),
        }
        Ok(())
    }

    fn describe_portal(&mut self, name: &str) -> Result<()> {
        let executes = self.next_executes(name);
        let portal = self.portal_named(name)?;
        let plan = Arc::clone(&portal.plan);
        let (parameters, formats) = (portal.parameters.clone(), portal.formats.clone());
        self.check_not_failed(&plan)?;
        let columns = self.columns_of(&plan, &parameters, &formats, executes)?;
        match columns {
            Some(columns) => {
                self.send_description(columns.as_deref());
                self.portal_named(name)?.columns = columns;
            }
            None => self.portal_named(name)?.describe_on_execute = true,
        }
        Ok(())
    }

    fn send_description(&mut self, columns: Option<&[Column]>) {
        match columns {
            Some(columns) => self.out.row_description(columns),
            None => self.out.bare(b'n'),
        }
    }

    /// Returns whether the next message executes this portal.
    fn next_executes(&self, portal: &str) -> bool {
        let Some(b'E') = self.peek_tag() else { return false };
        let mut body = Body::new(self.peek_body());
        body.string().is_ok_and(|name| name == portal)
    }

    /// Returns the columns of a plan. The outer `None` means that the types are known only from a
    /// row, and that an Execute follows.
    pub(crate) fn columns_of(
        &mut self,
        plan: &Plan,
        parameters: &[Value],
        formats: &[u16],
        row_comes: bool,
    ) -> Result<Option<Columns>> {
        let sql = match &plan.statement {
            Some(Statement::Sql(sql)) => sql,
            Some(Statement::Execute(execute)) => {
                let plan = self.prepared_for(execute)?;
                let samples: Vec<Value> = plan.types.iter().map(|oid| plan::sample(*oid)).collect();
                return self.columns_of(&plan, &samples, formats, false);
            }
            Some(Statement::Cursor(cursor)) => return Ok(Some(self.cursor_columns(cursor)?)),
            other => {
                let mut columns = other.as_ref().and_then(statements::columns);
                for (index, column) in columns.iter_mut().flatten().enumerate() {
                    column.format = format_of(formats, index);
                }
                return Ok(Some(columns));
            }
        };
        self.sql_columns(sql, parameters, formats, row_comes)
    }

    fn sql_columns(
        &mut self,
        sql: &Sql,
        parameters: &[Value],
        formats: &[u16],
        row_comes: bool,
    ) -> Result<Option<Columns>> {
        let lease = self.lease()?;
        if sql.catalog {
            lease.ensure_catalog()?;
        }
        let [text] = &sql.texts[..] else { return Ok(Some(None)) };
        lease.pinned |= sql.pins;
        let mut prepared = lease.prepare_cached(text)?;
        if prepared.column_count() == 0 || sql.tag == "ALTER TABLE" {
            return Ok(Some(None));
        }
        let known = plan::columns(&prepared, sql);
        let mut values = Vec::new();
        if known.iter().any(|column| column.oid.is_none()) {
            if row_comes {
                return Ok(None);
            }
            if prepared.readonly() {
                let first = |_: &rusqlite::Connection| -> Result<Vec<Option<u32>>> {
                    crate::run::bind(&mut prepared, parameters)?;
                    let mut rows = prepared.raw_query();
                    let Some(row) = rows.next()? else { return Ok(Vec::new()) };
                    (0..known.len()).map(|index| Ok(types::of_value(row.get_ref(index)?))).collect()
                };
                // If the statement fails with sample values, there is no row, and the types stay
                // unknown.
                values = lease.probing(first).unwrap_or_default();
            }
        }
        let value = |index: usize| values.get(index).copied().flatten();
        Ok(Some(Some(plan::settle(known, formats, value))))
    }

    fn execute_portal(
        &mut self,
        conn: &mut dyn Conn,
        body: &[u8],
    ) -> std::result::Result<(), Failure> {
        let mut body = Body::new(body);
        let name = body.string()?.to_owned();
        let limit = (body.u32()? as i32).max(0) as usize;
        // While the portal runs, it is not in the list.
        self.portal_named(&name)?;
        let at = self.portals.iter().position(|(known, _)| **known == *name).unwrap_or(0);
        let (key, mut portal) = self.portals.swap_remove(at);
        let outcome = self.run_portal(conn, &mut portal, limit);
        self.portals.push((key, portal));
        outcome
    }

    fn run_portal(
        &mut self,
        conn: &mut dyn Conn,
        portal: &mut Portal,
        limit: usize,
    ) -> std::result::Result<(), Failure> {
        let plan = Arc::clone(&portal.plan);
        let Some(statement) = &plan.statement else {
            self.out.bare(b'I');
            return Ok(());
        };
        let complete = |sent: usize| match statement {
            Statement::Sql(sql) => format!("{} {sent}", sql.tag),
            Statement::Show(_) => "SHOW".to_owned(),
            _ => format!("SELECT {sent}"),
        };
        match std::mem::replace(&mut portal.state, State::Done) {
            State::Fresh => (),
            State::Suspended(rows, at) => {
                let (state, sent) = self.send_rows(conn, rows, at, limit)?;
                match state {
                    State::Suspended(..) => self.out.bare(b's'),
                    _ => self.out.complete(&complete(sent)),
                }
                portal.state = state;
                return Ok(());
            }
            State::Done => {
                self.out.complete(&complete(0));
                return Ok(());
            }
        }
        let call = Call {
            parameters: &portal.parameters,
            formats: &portal.formats,
            limit,
            keeps: false,
            discards: false,
            copies: None,
            describe: portal.describe_on_execute,
            columns: portal.columns.clone().or_else(|| described(portal)),
        };
        let outcome = self.within_limit(|me| me.execute(conn, statement, call));
        if matches!(outcome, Err(Failure::Later)) {
            portal.state = State::Fresh;
        }
        match outcome? {
            Ran::Complete(tag) => self.out.complete(&tag),
            Ran::Suspended(rest) => {
                portal.state = State::Suspended(rest, 0);
                self.out.bare(b's');
            }
        }
        Ok(())
    }

    /// Sends rows that a portal has kept, up to the limit. Returns the portal's state, and how many
    /// rows.
    pub(crate) fn send_rows(
        &mut self,
        conn: &mut dyn Conn,
        rows: Vec<u8>,
        start: usize,
        limit: usize,
    ) -> std::result::Result<(State, usize), Failure> {
        let (mut at, mut sent) = (start, 0);
        while at < rows.len() && (limit == 0 || sent < limit) {
            let end = row_end(&rows, at);
            self.out.bytes.extend(&rows[at..end]);
            if self.out.bytes.len() > OUT_MAX {
                self.flush(conn)?;
                if host::cancelled() {
                    return Err(host::Interrupted.into());
                }
            }
            at = end;
            sent += 1;
        }
        let is_suspended = limit > 0 && sent == limit;
        Ok((if is_suspended { State::Suspended(rows, at) } else { State::Done }, sent))
    }
}
