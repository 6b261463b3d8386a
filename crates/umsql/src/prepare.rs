//! PREPARE and EXECUTE. A statement that a client prepares in SQL and one that it prepares by the
//! extended protocol have their names in one list, as in PostgreSQL.

use std::sync::Arc;

use rusqlite::types::{Value, ValueRef};

use crate::dialect::tokens::tokens;
use crate::dialect::translate;
use crate::dialect::{Edits, Execute, Prepare, Statement};
use crate::error::{Failure, Result, SqlError};
use crate::host::Conn;
use crate::plan::{self, Plan};
use crate::run::{Call, Ran};
use crate::session::Session;
use crate::wire::types;

impl Session {
    /// Carries out PREPARE.
    pub(crate) fn prepare(&mut self, prepare: &Prepare) -> Result<()> {
        let declared: Vec<u32> = prepare.types.iter().map(|name| type_named(name)).collect();
        let plan = self.plan_within(&prepare.text, &declared, prepare.at)?;
        self.keep_prepared(&prepare.name, plan)
    }

    /// Returns the plan of a statement that is at this place of the client's query.
    pub(crate) fn plan_within(
        &mut self,
        text: &str,
        declared: &[u32],
        at: usize,
    ) -> Result<Arc<Plan>> {
        if let Some(plan) = self.server.plan(text, declared) {
            return Ok(plan);
        }
        self.make_plan(text, declared).map_err(|error| {
            let offset = error.offset.map(|offset| at + offset);
            SqlError { offset, ..error }
        })
    }

    /// Returns the prepared statement that EXECUTE names. It must not be an EXECUTE, which could
    /// name itself.
    pub(crate) fn prepared_for(&mut self, execute: &Execute) -> Result<Arc<Plan>> {
        let plan = self.fresh_plan(&execute.name)?;
        match plan.statement {
            Some(Statement::Execute(_)) => {
                Err(SqlError::unsupported("EXECUTE of a prepared EXECUTE is not supported"))
            }
            _ => Ok(plan),
        }
    }

    /// Carries out EXECUTE. `call` says how the client wants the rows.
    pub(crate) fn execute_prepared(
        &mut self,
        conn: &mut dyn Conn,
        execute: &Execute,
        call: Call<'_>,
    ) -> std::result::Result<Ran, Failure> {
        let plan = self.prepared_for(execute)?;
        let values = self.values_of(execute, &plan.types)?;
        let Some(statement) = &plan.statement else { return Ok(Ran::Complete(String::new())) };
        self.execute(conn, statement, Call { parameters: &values, ..call })
    }

    /// Returns the values of the arguments, each as its parameter's type.
    fn values_of(
        &mut self,
        execute: &Execute,
        types: &[u32],
    ) -> std::result::Result<Vec<Value>, Failure> {
        let mut given: Vec<Value> = Vec::new();
        if let Some(arguments) = &execute.arguments {
            let source = format!("SELECT {arguments}");
            let mut sql = translate::sql(&tokens(&source)?, &source, &Edits::default())?;
            plan::rewrite_operators(&mut sql, &[], self.lease()?)?;
            given = self.with_lease(|me, lease| {
                let mut query = lease.prepare_cached(&sql.texts[0]).map_err(SqlError::from)?;
                let count = query.column_count();
                lease.lend(&mut me.config);
                let row = query.query_row([], |row| (0..count).map(|at| row.get(at)).collect());
                lease.lend(&mut me.config);
                Ok(row?)
            })?;
        }
        if given.len() != types.len() {
            let name = &execute.name;
            let (expected, found) = (types.len(), given.len());
            return Err(SqlError::syntax(format!(
                "wrong number of parameters for prepared statement \"{name}\": expected \
                 {expected}, but got {found}"
            ))
            .into());
        }
        let typed = given.iter().zip(types).map(|(value, oid)| match ValueRef::from(value) {
            ValueRef::Null => Ok(Value::Null),
            value => types::decode(Some(types::to_text(value).as_bytes()), *oid, 0),
        });
        Ok(typed.collect::<Result<_>>()?)
    }
}

/// Returns the type that PREPARE declares by this name; 0 if it leaves it open.
fn type_named(name: &str) -> u32 {
    let lower = name.to_ascii_lowercase();
    match lower.as_str() {
        "unknown" => 0,
        "timestamp with time zone" => types::TIMESTAMPTZ,
        _ => types::by_name(lower.trim_end_matches(" without time zone")),
    }
}
