#!/usr/bin/env python3
"""Two busy connections that classic placement puts on one of two schedulers (U25), and the default placement for comparison.

Prints how many units of work the pair did in SECONDS; `skew.sh` runs it on two servers and compares. The unit is a
statement that only computes, so the client needs almost no processor time.
"""

import os
import sys
import threading
import time

from wire import Conn

SECONDS = float(os.environ.get("SECONDS_EACH", "4"))
WORK = "with recursive n(i) as (select 1 union all select i + 1 from n where i < 60000) select sum(i) from n"

# A user goes to the scheduler with the fewest users, so the first and the third of four users go to
# the same scheduler.
conns = [Conn() for _ in range(4)]
hot = [conns[0], conns[2]]
done = [0, 0]
start = threading.Barrier(2)


def run(which):
    start.wait()
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        hot[which].query(WORK)
        done[which] += 1


threads = [threading.Thread(target=run, args=(which,)) for which in range(2)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(sum(done))
sys.exit(0 if all(done) else 1)
