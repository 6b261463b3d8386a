#!/usr/bin/env bash
# What the monitor costs: instructions of the server for each pgbench transaction, with the monitor and without, several rounds in turn.
# Starts its own servers. Needs `perf` where the machine counts instructions, else `valgrind`, which counts them all.
# ROUNDS, TRANSACTIONS and CLIENTS come from the environment. At most 1 % more is wanted.
set -euo pipefail
: "${UMS_BIN:?set UMS_BIN to the ums binary}"
here=$(cd "$(dirname "$0")" && pwd)
rounds=${ROUNDS:-5} transactions=${TRANSACTIONS:-2000} clients=${CLIENTS:-8}
export PGUSER=ums PGDATABASE=ums PGSSLMODE=disable

# one STALL: starts a server with this --stall, and prints the instructions for each transaction.
one() {
    local folder port server count
    folder=$(mktemp -d)
    port=$(python3 -c 'import random; print(random.randrange(15000, 30000))')
    local command=("$UMS_BIN" serve --listen "127.0.0.1:$port" --db "$folder/db" --stall "$1" --no-stats-socket)
    if [ "$counter" = perf ]; then
        "${command[@]}" >"$folder/log" 2>&1 </dev/null &
    else
        valgrind --tool=callgrind --callgrind-out-file="$folder/out" --collect-atstart=no --instr-atstart=no "${command[@]}" \
            >"$folder/log" 2>&1 </dev/null &
    fi
    server=$!
    for _ in $(seq 600); do (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null && break; sleep 0.1; done
    export PGHOST=127.0.0.1 PGPORT=$port
    pgbench -i -q -s 1 >/dev/null 2>&1
    pgbench -n -M prepared -c "$clients" -t 50 >/dev/null 2>&1
    if [ "$counter" = perf ]; then
        perf stat -x, -e instructions:u -p "$server" -o "$folder/perf" -- \
            pgbench -n -M prepared -c "$clients" -t "$transactions" >/dev/null 2>&1
        count=$(sed -n 's/^\([0-9][0-9]*\),.*instructions.*/\1/p' "$folder/perf")
    else
        callgrind_control -i on "$server" >/dev/null
        pgbench -n -M prepared -c "$clients" -t "$transactions" >/dev/null 2>&1
        callgrind_control -i off "$server" >/dev/null
    fi
    kill -TERM "$server"
    wait "$server" || true
    [ "$counter" = perf ] || count=$(sed -n 's/^\(summary\|totals\): \([0-9]*\).*/\2/p' "$folder/out" | head -1)
    rm -rf "$folder"
    echo $((count / (clients * transactions)))
}

counter=valgrind
if perf stat -x, -e instructions:u true 2>&1 | grep -q '^[0-9][0-9]*,'; then counter=perf; fi
on=() off=()
for _ in $(seq "$rounds"); do
    off+=("$(one 0)")
    on+=("$(one 200)")
done
python3 - "${off[*]}" "${on[*]}" "$counter" <<'END'
import statistics, sys
off, on = ([int(n) for n in text.split()] for text in sys.argv[1:3])
a, b = statistics.median(off), statistics.median(on)
print(f"cost.sh: instructions for a transaction, by {sys.argv[3]}: without the monitor {a:.0f} {sorted(off)}, with it {b:.0f} {sorted(on)}")
print(f"cost.sh: the monitor costs {100 * (b - a) / a:+.2f} %")
END
