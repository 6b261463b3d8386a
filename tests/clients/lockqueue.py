#!/usr/bin/env python3
"""The owner of a lock whose next statement is queued behind its own waiters is no deadlock (G11, B12).

Server: --max-workers 16. First by construction, several times; then 200 writers at once.
"""

import os
import threading

from wire import ADMIN_PORT, PLAIN, Checks, Conn, umsstats, wait_for

WORKERS = int(os.environ.get("WORKERS", "16"))
WRITERS = int(os.environ.get("WRITERS", "200"))
ROUNDS = 3
TIMES = 3

checks = Checks()
admin = Conn(None if PLAIN else ADMIN_PORT)
owner = Conn()
owner.query("drop table if exists lockqueue")
owner.query("create table lockqueue (id integer primary key, n integer)")
owner.query("insert into lockqueue values (1, 0)")
ADD = "update lockqueue set n = n + 1 where id = 1"


def one_round():
    # Twice as many waiters as workers: the first half holds every worker, the rest is queued.
    waiters = [Conn() for _ in range(2 * WORKERS)]
    owner.query("begin")
    owner.query(ADD)
    for waiter in waiters:
        waiter.send(ADD)
    if not PLAIN:
        wait_for("every worker waits", lambda: umsstats(admin), lambda s: s["work queued"] >= WORKERS)
        waiting = lambda: admin.query("select * from ums_waiting_tasks where wait_type = 'LCK_M_X'")
        wait_for("every worker waits for the lock", waiting, lambda rows: len(rows) >= WORKERS)
    # With no worker free these two would wait for ever, were they to queue like any other.
    owner.query(ADD)
    owner.query("commit")
    for waiter in waiters:
        waiter.until_ready()
        waiter.close()


for number in range(ROUNDS):
    checks.case(f"round {number}", one_round)
expected = ROUNDS * (2 * WORKERS + 2)
checks.equal("every update counts", [(str(expected),)], owner.query("select n from lockqueue"))


def writer(failures):
    try:
        conn = Conn()
        for _ in range(TIMES):
            for statement in ("begin", ADD, "select n from lockqueue", ADD, "commit"):
                conn.query(statement)
        conn.close()
    except Exception as error:  # Told by the main thread.
        failures.append(error)


failures = []
threads = [threading.Thread(target=writer, args=(failures,)) for _ in range(WRITERS)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
checks.that(f"{WRITERS} writers end", not failures, f"{len(failures)} failed, first: {failures[:1]}")
expected += WRITERS * TIMES * 2
checks.equal("and every update counts", [(str(expected),)], owner.query("select n from lockqueue"))
owner.query("drop table lockqueue")
checks.finish()
