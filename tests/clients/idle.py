#!/usr/bin/env python3
"""Idle connections cost little memory and no worker, and an idle server does nothing (U31, U76).

CONNECTIONS connections each run a prepared statement and stay open; then the server is watched for 10 s. RSS_LIMIT is
the maximum memory of one connection, in bytes.
"""

import glob
import os
import re
import time

from wire import PID, PLAIN, Checks, Conn, many_files, umsstats

WANTED = int(os.environ.get("CONNECTIONS", "1000"))
RSS_LIMIT = int(os.environ.get("RSS_LIMIT", "4096"))
INT4 = 23


def rss():
    with open(f"/proc/{PID}/smaps_rollup") as file:
        return 1024 * int(re.search(r"^Rss: +(\d+)", file.read(), re.M)[1])


def effort():
    """Returns the processor time (in ns) and the number of voluntary switches of all threads together."""
    time_ns, switches = 0, 0
    for task in glob.glob(f"/proc/{PID}/task/*"):
        with open(f"{task}/schedstat") as file:
            time_ns += int(file.read().split()[0])
        with open(f"{task}/status") as file:
            switches += int(re.search(r"^voluntary_ctxt_switches:\s+(\d+)", file.read(), re.M)[1])
    return time_ns, switches


def user():
    conn = Conn()
    rows = conn.prepared("select $1 + 1", [41], name="mine", oids=[INT4])
    assert rows == [("42",)], rows
    return conn


checks = Checks()
count = min(WANTED, many_files() - 100)
if count < WANTED:
    print(f"idle.py: only {count} connections: this client may not open more files")

# Memory that the first users allocate (pools, caches) is not a cost of idle connections.
for conn in [user() for _ in range(50)]:
    conn.close()
time.sleep(1)
before = rss()
conns = []
for _ in range(count):
    conns.append(user())
time.sleep(1)
each = (rss() - before) / count
print(f"idle.py: {count} idle connections, {each:.0f} bytes of RSS each")
checks.that("memory of an idle connection", each <= RSS_LIMIT, f"{each:.0f} bytes, at most {RSS_LIMIT}")
if not PLAIN:
    stats = umsstats(conns[0])
    print(f"idle.py: {stats}")
    checks.equal("all are users", float(count), stats["num users"])
    # This query itself has a worker, and a few more may be idle.
    checks.that("a handful of workers", stats["num workers"] <= 16, f"{stats['num workers']:.0f}")

# Helper threads for files end when they have been idle for 10 s.
time.sleep(13)
time_before, switches_before = effort()
time.sleep(10)
time_after, switches_after = effort()
used_ms = (time_after - time_before) / 1e6
woken = switches_after - switches_before
print(f"idle.py: in 10 s the idle server used {used_ms:.3f} ms of processor time and woke {woken} times")
checks.that("an idle server uses no processor time", used_ms < 1.0, f"{used_ms:.3f} ms in 10 s")
checks.that("an idle server does not wake", woken == 0, f"{woken} wake-ups in 10 s")

rows = conns[-1].prepared("select $1 + 1", [1], oids=[INT4])
checks.equal("idle connections still work", [("2",)], rows)
for conn in conns:
    conn.close()
checks.finish()
