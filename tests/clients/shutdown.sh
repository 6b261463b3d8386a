#!/usr/bin/env bash
# Sends SIGTERM while clients write. The clients get an orderly error, and the server ends. Run it
# with with-server.sh, which then checks the exit code and the database.
set -euo pipefail
. "$(dirname "$0")/common.sh"
: "${UMS_PID:?run this under with-server.sh}"
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

pgbench -i -q -s 1 >/dev/null 2>&1
pgbench -n -c "${CLIENTS:-50}" -j 2 -T 120 >"$folder/load" 2>&1 &
load=$!
# One client runs a long statement, and one is idle in a transaction.
statement="select pg_sleep(600)"
psql -X -c "$statement" >"$folder/waiting" 2>&1 &
waiting=$!
(echo 'begin; update pgbench_branches set bbalance = bbalance;'; sleep 5) | psql -X >"$folder/open" 2>&1 &
sleep "${LOAD_TIME:-3}"

kill -TERM "$UMS_PID"
for _ in $(seq 600); do
    # A process that has ended counts as gone even if its parent has not waited for it.
    state=$(sed -n 's/^State:\s*\(.\).*/\1/p' "/proc/$UMS_PID/status" 2>/dev/null || true)
    if [ -z "$state" ] || [ "$state" = Z ]; then break; fi
    sleep 0.1
done
check "the server has ended" yes "$([ -z "$state" ] || [ "$state" = Z ] && echo yes || echo "state $state")"
wait "$load" || true
wait "$waiting" || true
holds "running clients get an orderly error" 'terminating connection|shutting down|canceling statement|57P0|server closed' \
    "$(cat "$folder/load" "$folder/waiting")"
holds "the waiting client is told why" 'FATAL|ERROR' "$(cat "$folder/waiting")"
finish
