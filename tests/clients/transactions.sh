#!/usr/bin/env bash
# Runs pgbench with transactions that read and then write the same row. At the default isolation
# level none fails, with FOR UPDATE no update is lost, and with REPEATABLE READ each is tried again
# until it succeeds. The environment sets BENCH_TIME (seconds for each run) and CLIENTS.
set -euo pipefail
. "$(dirname "$0")/common.sh"
time=${BENCH_TIME:-2} clients=${CLIENTS:-8 64}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

q -c 'drop table if exists account' >/dev/null
q -c 'create table account (id integer primary key, money integer)' >/dev/null
q -c 'insert into account select i, 0 from generate_series(1, 10) as i' >/dev/null

# script NAME READ BEGIN: a transaction that reads a row, and adds one to what it has read or finds.
script() {
    cat >"$folder/$1" <<SQL
\set id random(1, 10)
$3;
select money from account where id = :id $2
update account set money = $4 + 1 where id = :id;
end;
SQL
}
script read-write ";" begin money
script locked "for update \gset" begin :money
script repeatable "\gset" "begin isolation level repeatable read" :money

# bench NAME CLIENTS MODE [options]: runs pgbench, and checks that nothing failed or was lost.
bench() {
    local name=$1 count=$2 mode=$3 status=0 out before done
    shift 3
    before=$(q -c 'select sum(money) from account')
    out=$(pgbench -n -f "$folder/$name" -c "$count" -j 2 -T "$time" -M "$mode" "$@" 2>&1) || status=$?
    check "$name, $count clients, $mode: exit code" 0 "$status"
    [ "$status" = 0 ] || tail -n 20 <<<"$out" >&2
    holds "$name, $count clients, $mode: nothing failed" '^number of failed transactions: 0 ' "$out"
    done=$(sed -n 's/^number of transactions actually processed: \([0-9]*\).*/\1/p' <<<"$out")
    check "$name, $count clients, $mode: something was done" yes "$([ "${done:-0}" -gt 0 ] && echo yes || echo no)"
    check "$name, $count clients, $mode: nothing is lost" "$done" "$(($(q -c 'select sum(money) from account') - before))"
    printf 'transactions.sh: %s, %s, %s clients: %s transactions, %s\n' "$name" "$mode" "$count" "$done" \
        "$(grep -E '^(tps|number of transactions retried)' <<<"$out" | tr '\n' ' ')"
}

for count in $clients; do
    for mode in simple prepared; do
        bench read-write "$count" "$mode"
        bench locked "$count" "$mode"
    done
done
bench repeatable 8 prepared --max-tries=0

# A client that must not wait is refused while another has the lock.
nowait=$(
    q <<SQL
begin;
select money from account where id = 1 for update \g /dev/null
\set VERBOSITY verbose
\! PGHOST=$PGHOST PGPORT=$PGPORT psql -X -v VERBOSITY=verbose -c 'select money from account where id = 1 for update nowait' 2>&1
end;
SQL
)
holds "NOWAIT does not wait" 'ERROR:  55P03:' "$nowait"
q -c 'drop table account' >/dev/null
finish
