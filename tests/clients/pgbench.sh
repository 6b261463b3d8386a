#!/usr/bin/env bash
# Runs an unchanged pgbench: it initialises its tables and runs each mode. No transaction may fail,
# and the balances must add up. The environment sets CLIENTS, THREADS, BENCH_TIME (seconds for each
# mode), SCALE and MODES.
set -euo pipefail
. "$(dirname "$0")/common.sh"
clients=${CLIENTS:-20} threads=${THREADS:-2} time=${BENCH_TIME:-5} scale=${SCALE:-1}
modes=${MODES:-simple extended prepared}

out=$(pgbench -i -s "$scale" 2>&1) || { echo "$out" >&2; exit 1; }
holds "pgbench -i is done" '^done in ' "$out"
check "accounts" "$((scale * 100000))" "$(q -c 'select count(*) from pgbench_accounts')"
check "tellers and branches" "$((scale * 10))|$scale" \
    "$(q -c 'select (select count(*) from pgbench_tellers), (select count(*) from pgbench_branches)')"

sum() { q -c "select coalesce(sum($1), 0) from $2"; }

for mode in $modes; do
    # pgbench empties its history when a run starts, so the growth of the balances is compared.
    before=$(sum abalance pgbench_accounts)
    status=0
    out=$(pgbench -c "$clients" -j "$threads" -T "$time" -M "$mode" 2>&1) || status=$?
    check "$mode: exit code" 0 "$status"
    [ "$status" = 0 ] || tail -n 20 <<<"$out" >&2
    holds "$mode: nothing failed" '^number of failed transactions: 0 ' "$out"
    done=$(sed -n 's/^number of transactions actually processed: \([0-9]*\).*/\1/p' <<<"$out")
    check "$mode: something was done" yes "$([ "${done:-0}" -gt 0 ] && echo yes || echo no)"
    check "$mode: every transaction left its history" "$done" "$(q -c 'select count(*) from pgbench_history')"
    accounts=$(sum abalance pgbench_accounts)
    check "$mode: accounts grew by what was done" "$(sum delta pgbench_history)" "$((accounts - before))"
    check "$mode: tellers agree" "$accounts" "$(sum tbalance pgbench_tellers)"
    check "$mode: branches agree" "$accounts" "$(sum bbalance pgbench_branches)"
    printf 'pgbench.sh: %s, %s clients, %s s: %s transactions, %s\n' "$mode" "$clients" "$time" "$done" \
        "$(grep -E '^(tps|latency average)' <<<"$out" | tr '\n' ' ')"
done
out=$(pgbench -S -n -c "$clients" -j "$threads" -T "$time" -M prepared 2>&1) || true
holds "read only: nothing failed" '^number of failed transactions: 0 ' "$out"
printf 'pgbench.sh: read only: %s\n' "$(grep '^tps' <<<"$out")"
finish
