#!/usr/bin/env python3
"""Memory that large statements took goes back to the system when they are cancelled.

Clients build long values and keep them, until the server is large; then all are cancelled. That is done some times, because it is then
that an allocator mixes what is large with what is small and stays. Starts its own server ($UMS_BIN); further arguments are options for
`ums serve`.
"""

import os
import re
import sys
import tempfile

os.environ.setdefault("PATIENCE", "60")
import wire
from owned import Server
from wire import Checks, Conn, Refused, wait_for

CLIENTS, ROUNDS = 40, 4
# MiB: what the server has at least while the clients keep their values, and at most afterwards, beside what it had before.
LARGE, SMALL = 300, 64
# A value of 14 MB, and then a statement without an end.
LONG = """select length(a), (select count(*) from generate_series(1, 1000000000))
    from (select group_concat(hex(randomblob(500))) a from generate_series(1, 14000))"""
checks = Checks()


def rss(server):
    with open(f"/proc/{server.pid}/smaps_rollup") as file:
        return int(re.search(r"^Rss: +(\d+)", file.read(), re.M)[1]) // 1024


def end(conn):
    conn.cancel()
    try:
        conn.until_ready()
        raise AssertionError("it was not cancelled")
    except Refused as error:
        assert error.code == "57014", error


with tempfile.TemporaryDirectory() as folder, Server(f"{folder}/m.db", "--schedulers", "2", *sys.argv[1:]) as server:
    wire.PORT = server.port
    conns = [Conn() for _ in range(CLIENTS)]
    for conn in conns:
        conn.query("select 1")
    before = rss(server)
    for _ in range(ROUNDS):
        for conn in conns:
            conn.send(LONG)
        wait_for("the values are there", lambda: rss(server) >= before + LARGE, True)
        for conn in conns:
            end(conn)
    after = wait_for("the memory goes back", lambda: rss(server), lambda found: found <= before + SMALL)
    print(f"memory.py: {before} MiB before, {after} MiB afterwards")
    checks.equal("the clients go on", [("1",)] * CLIENTS, [row for conn in conns for row in conn.query("select 1")])
    for conn in conns:
        conn.close()
checks.finish()
