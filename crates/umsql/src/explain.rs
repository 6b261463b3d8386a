//! EXPLAIN shows how SQLite carries a statement out. EXPLAIN ANALYZE carries it out, discards its
//! rows, and shows what it waited for.
//!
//! ```text
//!   SCAN t
//!   Rows: 3
//!   Wait WRITELOG: 1 time, 2.345 ms in all, the longest 2.345 ms
//!   Execution Time: 2.711 ms
//! ```
//!
//! The waits are those of the request that carries the statement out (`ums_request_waits`): the
//! differences between the times before and after.

use std::collections::BTreeMap;
use std::time::Instant;

use rusqlite::types::Value;

use crate::dialect::Explain;
use crate::error::{Failure, Result, SqlError};
use crate::host::{self, Cell, Conn};
use crate::run::{Call, Ran};
use crate::session::{Session, settle};

/// What a request has waited for: by the reason, the number of waits, and their microseconds in
/// all.
type Waits = BTreeMap<String, [i64; 2]>;

impl Session {
    /// Carries out EXPLAIN.
    pub(crate) fn explain(
        &mut self,
        conn: &mut dyn Conn,
        explain: &Explain,
        call: Call<'_>,
    ) -> std::result::Result<Ran, Failure> {
        let mut lines = self.plan_lines(explain)?;
        if explain.analyzes {
            let inner = Call { parameters: call.parameters, discards: true, ..Call::default() };
            let (before, began) = (waits_of(self.config.pid), Instant::now());
            let ran = self.execute_sql(conn, &explain.sql, inner)?;
            // What it has committed is on the disk.
            let durable = self.config.waits_for_disk();
            if let Err(error) = settle(&mut self.unsettled, &self.server.engine, durable) {
                self.out.bytes.clear();
                return Err(SqlError { fatal: true, ..error }.into());
            }
            let took = began.elapsed();
            let waits = waits_of(self.config.pid);
            if let Ran::Complete(tag) = ran
                && let Some(rows) = tag.rsplit(' ').next()
            {
                lines.push(format!("Rows: {rows}"));
            }
            for (reason, [count, micros]) in &waits {
                let [had, spent] = before.get(reason).copied().unwrap_or_default();
                if *count > had {
                    let times = if count - had == 1 { "time" } else { "times" };
                    let (count, time) = (count - had, ms(micros - spent));
                    lines.push(format!("Wait {reason}: {count} {times}, {time} ms"));
                }
            }
            lines.push(format!("Execution Time: {} ms", ms(took.as_micros() as i64)));
        }
        let rows = lines.into_iter().map(|line| vec![Value::Text(line)]).collect();
        self.answer_rows(conn, rows, "EXPLAIN", call)
    }

    /// Returns SQLite's plan of the statement, a line for each step, with the steps within another
    /// one behind it.
    fn plan_lines(&mut self, explain: &Explain) -> Result<Vec<String>> {
        let lease = self.lease()?;
        if explain.sql.catalog {
            lease.ensure_catalog()?;
        }
        let mut lines = Vec::new();
        for text in &explain.sql.texts {
            let mut query = lease.prepare(&format!("EXPLAIN QUERY PLAN {text}"))?;
            let mut depths = BTreeMap::from([(0, 0)]);
            let mut rows = query.raw_query();
            while let Some(row) = rows.next()? {
                let (id, parent): (i64, i64) = (row.get(0)?, row.get(1)?);
                let depth = depths.get(&parent).copied().unwrap_or(0);
                depths.insert(id, depth + 1);
                let (indent, step): (_, String) = ("  ".repeat(depth), row.get(3)?);
                lines.push(format!("{indent}{step}"));
            }
        }
        if lines.is_empty() {
            lines.push("No table is read.".to_owned());
        }
        Ok(lines)
    }
}

/// Returns what the running request of this session has waited for so far.
fn waits_of(session: u32) -> Waits {
    let table = host::table_now("ums_request_waits");
    let rows = table.map(|table| table.rows).unwrap_or_default();
    let waits = rows.into_iter().filter_map(|row| match &row[..] {
        [_, Cell::Int(user), Cell::Text(reason), Cell::Int(count), Cell::Int(micros), ..]
            if *user == i64::from(session) =>
        {
            Some((reason.clone(), [*count, *micros]))
        }
        _ => None,
    });
    waits.collect()
}

fn ms(micros: i64) -> String {
    format!("{}.{:03}", micros / 1000, micros % 1000)
}
