#!/usr/bin/env bash
# with-server.sh [serve options] -- command [arguments]
#
# Starts `$UMS_BIN serve` on free ports with a temporary database. Runs the command with UMS_HOST,
# UMS_PORT, UMS_ADMIN_PORT, UMS_PID, UMS_DB and
# UMS_FILES (the folder for clients' files) set, and then stops the server with SIGTERM. Fails if
# the command fails, if the server does not exit with 0, or if the database is damaged. GRACE is the
# time that the server has to stop, in seconds (60).
set -euo pipefail

: "${UMS_BIN:?set UMS_BIN to the ums binary}"
options=()
while [ $# -gt 0 ] && [ "$1" != -- ]; do options+=("$1"); shift; done
[ "${1:-}" = -- ] && shift
[ $# -gt 0 ] || { echo "usage: with-server.sh [serve options] -- command" >&2; exit 2; }

folder=$(mktemp -d)
server=
cleanup() {
    if [ -n "$server" ]; then kill -KILL "$server" 2>/dev/null || true; fi
    rm -rf "$folder"
}
trap cleanup EXIT

# The ports are below the range that the system uses for outgoing connections, so that no outgoing
# connection takes one of them meanwhile.
read -r UMS_PORT UMS_ADMIN_PORT < <(python3 -c '
import random, socket
free = []
while len(free) < 2:
    s = socket.socket()
    try:
        s.bind(("127.0.0.1", random.randrange(15000, 30000)))
        free.append(s)
    except OSError:
        pass
ports = [s.getsockname()[1] for s in free]
# This Python process is not waited for, so the ports must be free before it prints them.
for s in free:
    s.close()
print(*ports)')
export UMS_HOST=127.0.0.1 UMS_PORT UMS_ADMIN_PORT UMS_DB=$folder/test.db UMS_FILES=$folder/files
mkdir "$UMS_FILES"

"$UMS_BIN" serve --trust --socket-dir "$folder" --listen "127.0.0.1:$UMS_PORT" --admin "127.0.0.1:$UMS_ADMIN_PORT" --db "$UMS_DB" --file-dir "$UMS_FILES" "${options[@]}" \
    >"$folder/log" 2>&1 </dev/null &
server=$!
export UMS_PID=$server

fail() { echo "with-server: $*" >&2; sed 's/^/  server: /' "$folder/log" | tail -n 40 >&2; exit 1; }

for _ in $(seq 300); do
    kill -0 "$server" 2>/dev/null || { server=; fail "the server ended before it listened"; }
    (exec 3<>"/dev/tcp/127.0.0.1/$UMS_PORT") 2>/dev/null && break
    sleep 0.1
done

status=0
"$@" </dev/null || status=$?

# The command may have stopped the server itself. Then there is no process to signal.
kill -TERM "$server" 2>/dev/null || true
for _ in $(seq "$((10 * ${GRACE:-60}))"); do
    kill -0 "$server" 2>/dev/null || break
    sleep 0.1
done
# A server that still runs is killed, and its exit code is then 137, which counts as a failure.
kill -KILL "$server" 2>/dev/null || true
code=0
wait "$server" || code=$?
stopped=$server
server=

[ "$status" = 0 ] || fail "the command failed with $status: $*"
[ "$code" = 0 ] || fail "the server (process $stopped) ended with $code, expected 0"
whole=$(python3 -c '
import os, sqlite3, sys
path = sys.argv[1]
print(sqlite3.connect(path).execute("PRAGMA integrity_check").fetchone()[0] if os.path.exists(path) else "no file")' "$UMS_DB")
[ "$whole" = ok ] || fail "PRAGMA integrity_check says: $whole"
echo "with-server: exit code 0, database whole"
