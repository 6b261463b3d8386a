#!/usr/bin/env bash
# Measures the cost of the monitor: its instructions for each pgbench transaction, as a share of the
# server's instructions. The limit is 1 %.
#
#   instructions of a transaction   a server without the monitor, under valgrind, which counts them all
#   instructions of a look          a server with the monitor, whose thread is single-stepped for a while
#   looks and transactions a second the same server, left alone
#
# The monitor has a thread of its own and adds nothing to the path of a transaction, so its cost is
# the number of instructions that this thread executes. Needs valgrind and pgbench, on x86-64. The
# environment sets TRANSACTIONS, CLIENTS, SECONDS_ALONE and LOOKS.
set -euo pipefail
: "${UMS_BIN:?set UMS_BIN to the ums binary}"
here=$(cd "$(dirname "$0")" && pwd)
transactions=${TRANSACTIONS:-500} clients=${CLIENTS:-8} span=${SECONDS_ALONE:-5} looks=${LOOKS:-40}
PATH=$PATH:$(printf '%s:' /usr/lib/postgresql/*/bin)
export PGHOST=127.0.0.1 PGUSER=ums PGDATABASE=ums PGSSLMODE=disable
folder=$(mktemp -d)
server=
trap '[ -z "$server" ] || kill -KILL "$server"; rm -rf "$folder"' EXIT

# start COMMAND...: starts a server, and fills its tables.
start() {
    PGPORT=$(python3 -c 'import random; print(random.randrange(15000, 30000))')
    export PGPORT
    "$@" --trust --no-socket --listen "127.0.0.1:$PGPORT" --db "$folder/$RANDOM.db" --no-stats-socket >"$folder/log" 2>&1 </dev/null &
    server=$!
    for _ in $(seq 600); do (exec 3<>"/dev/tcp/127.0.0.1/$PGPORT") 2>/dev/null && break; sleep 0.1; done
    pgbench -i -q -s 1 >"$folder/pgbench" 2>&1 || { cat "$folder/log" "$folder/pgbench"; exit 1; }
    pgbench -n -M prepared -c "$clients" -t 50 >/dev/null 2>&1
}
stop() { kill -TERM "$server"; wait "$server" || true; server=; }

start valgrind --tool=callgrind --callgrind-out-file="$folder/out" "$UMS_BIN" serve --stall 0 --io epoll
callgrind_control -d "$server" >/dev/null
pgbench -n -M prepared -c "$clients" -t "$transactions" >/dev/null 2>&1
callgrind_control -d "$server" >/dev/null
stop
# The first dump covers the start, the second the transactions.
total=$(sed -n 's/^totals: \([0-9]*\)$/\1/p' "$folder/out.2")

start "$UMS_BIN" serve --io epoll
monitor=/proc/$server/task/$(cd "/proc/$server/task" && grep -lx ums-monitor ./*/comm | cut -d/ -f2)
times() { cut -d' ' -f3 "$monitor/schedstat"; }
before=$(times)
tps=$(pgbench -n -M prepared -c "$clients" -T "$span" 2>/dev/null | sed -n 's/^tps = \([0-9.]*\).*/\1/p')
after=$(times)
pgbench -n -M prepared -c "$clients" -T 60 >/dev/null 2>&1 &
load=$!
of_a_look=$(python3 "$here/steps.py" "$server" ums-monitor "$looks" | cut -d' ' -f1)
kill "$load" && wait "$load" || true
stop

python3 - "$((total / (clients * transactions)))" "$(((after - before) / span))" "$tps" "$of_a_look" <<'END'
import sys
transaction, looks, tps, look = (float(text) for text in sys.argv[1:])
mine = look * looks / tps
print(f"cost.sh: {transaction:.0f} instructions for a transaction, {tps:.0f} transactions and {looks:.0f} looks a second, {look:.0f} instructions for a look")
print(f"cost.sh: the monitor takes {mine:.1f} instructions for each transaction: {100 * mine / transaction:.3f} %")
if not 0 < mine <= transaction / 100:
    sys.exit("cost.sh: more than 1 %, or nothing was counted")
END
