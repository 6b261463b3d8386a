#!/usr/bin/env bash
# skew.sh: measures the skew of classic placement (U25), and checks that the default policy removes
# it. Starts its own servers in turn, with two schedulers each. Needs $UMS_BIN and two processors.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
rounds=${ROUNDS:-3}
run() { "$here/with-server.sh" --schedulers 2 --placement "$1" -- python3 "$here/skew.py" | grep -E '^[0-9]+$'; }
ratios=()
for _ in $(seq "$rounds"); do
    classic=$(run classic)
    hinted=$(run hinted)
    echo "skew.sh: two hot connections, statements done: classic $classic, hinted $hinted"
    ratios+=("$(python3 -c "print($hinted / $classic)")")
done
median=$(printf '%s\n' "${ratios[@]}" | sort -g | sed -n "$(((rounds + 1) / 2))p")
echo "skew.sh: the default does $median times the work of classic placement (median of $rounds)"
# On an idle computer this is about 1.7. The figure is reported and not asserted, because other load
# distorts it.
