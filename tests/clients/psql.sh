#!/usr/bin/env bash
# Runs an unchanged psql: DDL, queries, errors, transactions, meta-commands, copy, Ctrl-C, and the
# server's own statements.
set -euo pipefail
. "$(dirname "$0")/common.sh"
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

# DDL and queries.
q -c 'drop table if exists psql_item' >/dev/null
out=$(psql -X -c 'create table psql_item (id integer primary key, name text not null, price double precision)' 2>&1)
check "create table has its tag" "CREATE TABLE" "$out"
check "insert has its tag" "INSERT 0 3" \
    "$(psql -X -c "insert into psql_item values (1, 'bolt', 0.5), (2, 'Schraube über', 1.25), (3, 'nut', null)" 2>&1)"
check "rows come back" "1|bolt|0.5
2|Schraube über|1.25
3|nut|" "$(q -c 'select id, name, price from psql_item order by id')"
check "null is shown as asked" "3|-" "$(q -P null=- -c 'select id, price from psql_item where id = 3')"
check "expressions have types" "3|1.75|boltnut" \
    "$(q -c "select 1 + 2, 0.5 + 1.25, 'bolt' || 'nut'")"
check "update and delete have tags" "UPDATE 2
DELETE 1" "$(psql -X 2>&1 <<<'update psql_item set price = 2 where id < 3; delete from psql_item where id = 3;')"
check "columns have names" "id|name
1|bolt
2|Schraube über
(2 rows)" "$(psql -X -A -c 'select id, name from psql_item order by id' 2>&1)"
check "several statements in one message" "1
2" "$(q -c 'select 1; select 2')"
check "no rows" "(0 rows)" "$(psql -X -c 'select id from psql_item where id = 99' 2>&1 | tail -n 2 | head -n 1)"

# After an error the session can be used, and the error has an SQLSTATE.
out=$(q <<'SQL'
\set VERBOSITY verbose
select 1;
selec 2;
select * from psql_no_such_table;
select no_such_column from psql_item;
insert into psql_item values (1, 'again', 0);
insert into psql_item values (7, null, 0);
select 3;
SQL
)
holds "before the error" '^1$' "$out"
holds "syntax error" 'ERROR:  42601:' "$out"
holds "unknown table" 'ERROR:  42P01:' "$out"
holds "unknown column" 'ERROR:  42703:' "$out"
holds "unique violation" 'ERROR:  23505:' "$out"
holds "not-null violation" 'ERROR:  23502:' "$out"
holds "after the errors" '^3$' "$out"

# Transactions.
check "rollback undoes" "2" \
    "$(q <<<"begin; insert into psql_item values (8, 'gone', 1); rollback; select count(*) from psql_item;")"
check "commit keeps" "3" \
    "$(q <<<"begin; insert into psql_item values (8, 'kept', 1); commit; select count(*) from psql_item;")"
out=$(q <<'SQL'
\set VERBOSITY verbose
begin;
select * from psql_no_such_table;
select 1;
rollback;
select 'alive';
SQL
)
holds "a failed transaction refuses more" 'ERROR:  25P02:' "$out"
holds "and ends with rollback" '^alive$' "$out"
check "a savepoint can be left" "1" "$(q <<'SQL'
begin;
savepoint a;
delete from psql_item;
rollback to savepoint a;
select count(*) > 0 and 1 = 1 from psql_item \g /dev/null
select 1;
commit;
SQL
)"

# Meta-commands.
holds '\timing prints a time' '^Time: [0-9.]+ ms' "$(psql -X 2>&1 <<<'\timing on
select 1;')"
holds '\dt lists the table' '\| psql_item +\| table' "$(psql -X -c '\dt' 2>&1)"
holds '\d lists the relation' '\| psql_item +\| table' "$(psql -X -c '\d' 2>&1)"
out=$(psql -X -c '\d psql_item' 2>&1)
holds '\d NAME lists a column' '^ name +\| text ' "$out"
holds '\d NAME lists its null-ness' '^ id +\| integer .*not null' "$out"
holds '\l lists a database' "^ +$PGDATABASE +\|" "$(psql -X -c '\l' 2>&1)"
holds '\conninfo says where' "port \"$PGPORT\"" "$(psql -X -c '\conninfo' 2>&1)"
holds '\x turns a row' '^name +\| bolt' "$(psql -X -c '\x on' -c 'select * from psql_item where id = 1' 2>&1)"

# Copy.
printf '20\ttabbed\\tname\t1.5\n21\tother\t\\N\n' >"$folder/rows"
check '\copy counts' "COPY 2" "$(psql -X -c "\\copy psql_item from '$folder/rows'" 2>&1)"
check '\copy brings rows' "20|tabbed	name|1.5
21|other|" "$(q -c 'select id, name, price from psql_item where id >= 20 order by id')"
holds '\copy with a bad row fails' 'ERROR' "$(psql -X -c '\copy psql_item from stdin' 2>&1 <<<'not a row' || true)"
check 'and brings nothing' "5" "$(q -c 'select count(*) from psql_item')"

# Ctrl-C ends a statement that computes without end, and one that waits.
endless='with recursive c(n) as (select 1 union all select n + 1 from c where n < 2000000000) select count(*) from c'
waiting='select pg_sleep(600)'
[ "$PLAIN" = 1 ] || waiting="WAITFOR DELAY '00:10:00'"
for statement in "$endless" "$waiting"; do
    out=$(timeout -k 120 -s INT 2 psql -X -c "$statement" 2>&1 || true)
    holds "Ctrl-C cancels: ${statement%% *}" 'canceling statement due to user request' "$out"
done
check "the server answers afterwards" "1" "$(q -c 'select 1')"

own_statements() {
    out=$(psql -X -A -P footer=off -c 'DBCC SQLPERF(umsstats)' 2>&1)
    check "umsstats has its header" "Statistic|Value" "$(head -n 1 <<<"$out")"
    check "umsstats has its rows, verbatim" "whole blocks" "$(tail -n +2 <<<"$out" | awk -F'|' '
        BEGIN { split("Scheduler ID,  num users,  num runnable,  num workers,  idle workers,  work queued,  cntxt switches,  cntxt switches(idle)", want, ",") }
        { name = $1; if (name != want[(NR - 1) % 8 + 1] || $2 !~ /^[0-9]+\.[0-9]$/) { print "bad row " NR ": " $0; bad = 1; exit } }
        NR % 8 == 1 && $2 != sprintf("%d.0", (NR - 1) / 8) { print "bad id: " $0; bad = 1; exit }
        END { if (!bad) print (NR > 0 && NR % 8 == 0) ? "whole blocks" : NR " rows" }')"
    holds "this very connection is counted" '^  num users\|[1-9]' "$out"
    q -c "WAITFOR DELAY '00:00:00.050'" >/dev/null
    holds "waitstats names the wait" 'WAITFOR' "$(psql -X -c 'DBCC SQLPERF(waitstats)' 2>&1)"
    for view in ums_schedulers ums_workers ums_requests ums_wait_stats; do
        holds "$view has rows" '^[1-9]' "$(q -c "select count(*) from $view")"
    done
    holds "ums_waiting_tasks can be read" '^[0-9]+$' "$(q -c 'select count(*) from ums_waiting_tasks')"
    time_ms=$(psql -X 2>&1 <<<"\\timing on
WAITFOR DELAY '00:00:01'" | sed -n 's/^Time: \([0-9]*\).*/\1/p')
    check "WAITFOR waits" yes "$([ "${time_ms:-0}" -ge 1000 ] && echo yes || echo "only $time_ms ms")"
    q -c 'select preemptive_sleep(50)' >/dev/null
    holds "going preemptive is a wait with a name" 'PREEMPTIVE' "$(psql -X -c 'DBCC SQLPERF(waitstats)' 2>&1)"
    q -c "BACKUP TO '${UMS_FILES:-$folder}/copy.db'" >/dev/null
    check "the backup is whole and has the rows" "ok 5" "$(python3 -c '
import sqlite3, sys
c = sqlite3.connect(sys.argv[1])
print(*c.execute("PRAGMA integrity_check").fetchone(), *c.execute("select count(*) from psql_item").fetchone())' "${UMS_FILES:-$folder}/copy.db" 2>&1 | tail -n 1)"
    if [ -n "${UMS_ADMIN_PORT:-}" ]; then
        check "the admin port answers" "1" "$(q -p "$UMS_ADMIN_PORT" -c 'select 1')"
    fi
}
[ "$PLAIN" = 1 ] || own_statements

q -c 'drop table psql_item' >/dev/null
finish
