//! One client: its connection of SQLite, its prepared statements and portals, and its answer.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use rusqlite::fallible_iterator::FallibleIterator;
use rusqlite::types::{Value, ValueRef};
use rusqlite::{Batch, Connection, Statement};

use crate::error::{Result, SqlError};
use crate::wire::message::{Bind, Body, format_of, frame_len, utf8};
use crate::wire::out::{Out, Status};
use crate::wire::types::{self, Column};

/// How many prepared statements the connection keeps, as in `ums serve`.
const STATEMENTS_KEPT: usize = 32;
/// The longest DataRow, in bytes.
const ROW_MAX: usize = 64 << 20;

/// A prepared statement of the protocol.
#[derive(Debug)]
struct Plan {
    text: String,
    /// The types of its parameters.
    types: Vec<u32>,
    /// The names and types of its columns, once they are known.
    columns: OnceLock<Vec<(String, u32)>>,
}

/// A plan with its parameters bound.
#[derive(Debug)]
struct Portal {
    plan: Arc<Plan>,
    parameters: Vec<Value>,
    columns: Vec<Column>,
}

/// The state of one client.
pub struct Client {
    db: Connection,
    prepared: HashMap<String, Arc<Plan>>,
    portals: HashMap<String, Portal>,
    /// Whether messages are ignored until the next Sync.
    failed: bool,
    pub out: Out,
}

impl Client {
    pub fn open(path: &Path) -> rusqlite::Result<Client> {
        let db = Connection::open(path)?;
        db.pragma_update(None, "journal_mode", "WAL")?;
        db.set_prepared_statement_cache_capacity(STATEMENTS_KEPT);
        let (prepared, portals) = (HashMap::new(), HashMap::new());
        Ok(Client { db, prepared, portals, failed: false, out: Out::default() })
    }

    /// Carries out the messages of a unit. An error that it returns ends the connection.
    pub fn unit(&mut self, mut rest: &[u8]) -> Result<()> {
        while let Some(len) = frame_len(rest, usize::MAX)? {
            let (tag, body) = (rest[0], &rest[5..len]);
            rest = &rest[len..];
            match tag {
                b'Q' => {
                    let done = self.query(body);
                    self.report(done);
                    self.ready();
                }
                b'S' => {
                    self.portals.clear();
                    self.ready();
                }
                b'H' => (),
                _ if self.failed => (),
                b'P' => self.run(|me| me.parse(body)),
                b'B' => self.run(|me| me.bind(body)),
                b'D' => self.run(|me| me.describe(body)),
                b'E' => self.run(|me| me.execute(body)),
                b'C' => self.run(|me| me.close(body)),
                tag => {
                    return Err(SqlError::protocol(format!("invalid message type {tag}")));
                }
            }
        }
        Ok(())
    }

    fn run(&mut self, message: impl FnOnce(&mut Client) -> Result<()>) {
        let done = message(self);
        self.failed = done.is_err();
        self.report(done);
    }

    fn report(&mut self, done: Result<()>) {
        if let Err(error) = done {
            self.out.error(&error, None);
        }
    }

    fn ready(&mut self) {
        self.failed = false;
        self.out.ready(if self.db.is_autocommit() { Status::Idle } else { Status::Block });
    }

    /// Carries out the statements of a Query message.
    fn query(&mut self, body: &[u8]) -> Result<()> {
        let text = utf8(body.strip_suffix(b"\0").unwrap_or(body))?;
        let mut batch = Batch::new(&self.db, text);
        while let Some(mut statement) = batch.next()? {
            let columns = in_formats(&columns_of(&statement), &[]);
            if !columns.is_empty() {
                self.out.row_description(&columns);
            }
            let rows = send_rows(&mut self.out, &mut statement, &columns, &[])?;
            complete(&mut self.out, &self.db, &columns, rows);
        }
        Ok(())
    }

    fn parse(&mut self, body: &[u8]) -> Result<()> {
        let mut body = Body::new(body);
        let (name, text) = (body.string()?, body.string()?);
        let mut declared = Vec::new();
        for _ in 0..body.u16()? {
            declared.push(body.u32()?);
        }
        let statement = self.db.prepare_cached(text)?;
        declared.resize(statement.parameter_count().max(declared.len()), 0);
        declared.iter_mut().filter(|oid| **oid == 0).for_each(|oid| *oid = types::TEXT);
        let plan = Plan { text: text.to_owned(), types: declared, columns: OnceLock::new() };
        self.prepared.insert(name.to_owned(), Arc::new(plan));
        self.out.bare(b'1');
        Ok(())
    }

    fn plan(&self, name: &str) -> Result<&Arc<Plan>> {
        self.prepared.get(name).ok_or_else(|| SqlError::new("26000", "no such statement"))
    }

    fn bind(&mut self, body: &[u8]) -> Result<()> {
        let bind = Bind::decode(body)?;
        let plan = Arc::clone(self.plan(bind.statement)?);
        if bind.parameters.len() != plan.types.len() {
            return Err(SqlError::protocol("wrong number of parameters"));
        }
        let mut parameters = Vec::with_capacity(plan.types.len());
        for (index, (bytes, oid)) in bind.parameters.into_iter().zip(&plan.types).enumerate() {
            let format = format_of(&bind.parameter_formats, index);
            parameters.push(types::decode(bytes, *oid, format)?);
        }
        let columns = in_formats(plan.columns(&self.db)?, &bind.result_formats);
        let portal = Portal { plan, parameters, columns };
        self.portals.insert(bind.portal.to_owned(), portal);
        self.out.bare(b'2');
        Ok(())
    }

    fn describe(&mut self, body: &[u8]) -> Result<()> {
        let mut body = Body::new(body);
        let (kind, name) = (body.u8()?, body.string()?);
        let of_plan;
        let columns = if kind == b'S' {
            let plan = Arc::clone(self.plan(name)?);
            of_plan = in_formats(plan.columns(&self.db)?, &[]);
            self.out.parameter_description(&plan.types);
            &of_plan
        } else {
            &portal_of(&self.portals, name)?.columns
        };
        if columns.is_empty() {
            self.out.bare(b'n');
        } else {
            self.out.row_description(columns);
        }
        Ok(())
    }

    fn execute(&mut self, body: &[u8]) -> Result<()> {
        let mut body = Body::new(body);
        let portal = portal_of(&self.portals, body.string()?)?;
        if body.u32()? != 0 {
            return Err(SqlError::unsupported("row limits are not supported"));
        }
        let Portal { plan, parameters, columns } = portal;
        let mut statement = self.db.prepare_cached(&plan.text)?;
        let rows = send_rows(&mut self.out, &mut statement, columns, parameters)?;
        complete(&mut self.out, &self.db, columns, rows);
        Ok(())
    }

    fn close(&mut self, body: &[u8]) -> Result<()> {
        let mut body = Body::new(body);
        match (body.u8()?, body.string()?) {
            (b'S', name) => drop(self.prepared.remove(name)),
            (_, name) => drop(self.portals.remove(name)),
        }
        self.out.bare(b'3');
        Ok(())
    }
}

impl Plan {
    /// Returns its columns.
    fn columns(&self, db: &Connection) -> Result<&[(String, u32)]> {
        if self.columns.get().is_none() {
            let _ = self.columns.set(columns_of(&*db.prepare_cached(&self.text)?));
        }
        Ok(self.columns.get().map_or(&[], |columns| columns))
    }
}

fn portal_of<'a>(portals: &'a HashMap<String, Portal>, name: &str) -> Result<&'a Portal> {
    portals.get(name).ok_or_else(|| SqlError::new("34000", "no such portal"))
}

/// Returns the names and types of a statement's columns.
fn columns_of(statement: &Statement<'_>) -> Vec<(String, u32)> {
    let columns = statement.columns();
    let typed = columns.into_iter().map(|column| {
        let oid = column.decl_type().map_or(types::TEXT, types::by_name);
        (column.name().to_owned(), oid)
    });
    typed.collect()
}

fn in_formats(columns: &[(String, u32)], formats: &[u16]) -> Vec<Column> {
    let column = |(index, (name, oid)): (usize, &(String, u32))| Column {
        format: format_of(formats, index),
        ..Column::new(name, *oid)
    };
    columns.iter().enumerate().map(column).collect()
}

/// Executes a statement, writes its rows, and returns their number.
fn send_rows(
    out: &mut Out,
    statement: &mut Statement<'_>,
    columns: &[Column],
    parameters: &[Value],
) -> Result<usize> {
    for (index, value) in parameters.iter().enumerate() {
        statement.raw_bind_parameter(index + 1, value)?;
    }
    let mut rows = statement.raw_query();
    let mut sent = 0;
    while let Some(row) = rows.next()? {
        let value = |index: usize| -> Result<ValueRef<'_>> { Ok(row.get_ref(index)?) };
        out.data_row(columns, ROW_MAX, value)?;
        sent += 1;
    }
    Ok(sent)
}

/// Writes the command tag of a statement: only the number of rows tells what it was.
fn complete(out: &mut Out, db: &Connection, columns: &[Column], rows: usize) {
    if columns.is_empty() {
        out.complete(&format!("UPDATE {}", db.changes()));
    } else {
        out.complete(&format!("SELECT {rows}"));
    }
}
