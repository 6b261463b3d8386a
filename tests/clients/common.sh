# Sourced by the shell runs: connection settings and `check`.
export PGHOST=${UMS_HOST:-127.0.0.1} PGPORT=${UMS_PORT:-5433} PGUSER=${PGUSER:-ums} PGDATABASE=${PGDATABASE:-ums}
export PGCONNECT_TIMEOUT=20 PGSSLMODE=${PGSSLMODE:-prefer} LC_ALL=C PLAIN=${PLAIN:-0}

checks=0
failures=0
run=$(basename "$0")

# check NAME EXPECTED ACTUAL: checks that the two are equal.
check() {
    checks=$((checks + 1))
    if [ "$2" != "$3" ]; then
        failures=$((failures + 1))
        printf '%s: %s\n  expected: %s\n  found:    %s\n' "$run" "$1" "$2" "$3" >&2
    fi
}

# holds NAME PATTERN TEXT: checks that a line of the text matches the extended pattern.
holds() {
    checks=$((checks + 1))
    if ! grep -Eq -- "$2" <<<"$3"; then
        failures=$((failures + 1))
        printf '%s: %s\n  no line matches: %s\n  found: %s\n' "$run" "$1" "$2" "$3" >&2
    fi
}

# Prints the rows of a query: unaligned, without a header, with columns separated by |.
q() { psql -X -A -t -q "$@" 2>&1 || true; }

finish() {
    echo "$run: $((checks - failures)) checks passed, $failures failed"
    [ "$failures" = 0 ]
}
