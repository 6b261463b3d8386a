#!/usr/bin/env python3
"""No deadlock if a lock's owner sends its next statement while the lock's waiters use all workers (G11, B12).

Server: --max-workers 16. First the situation is constructed, several times; then 200 writers run at once.
"""

import os
import struct
import threading

from wire import ADMIN_PORT, PLAIN, SYNC, Checks, Conn, Refused, bind, execute, parse, umsstats, wait_for

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
    owner.query("begin")
    owner.query(ADD)
    # Some of these wait on a worker, the others without one, because waiters never use all workers of
    # a scheduler.
    waiters = [Conn() for _ in range(2 * WORKERS)]
    for waiter in waiters:
        waiter.send(ADD)
    sleepers = []
    if not PLAIN:
        blocked = lambda: admin.query("select * from ums_waiting_tasks where wait_type = 'LCK_M_X'")
        wait_for("workers wait for the lock", blocked, lambda rows: len(rows) >= WORKERS // 2 - 1)
        # These use the other workers, and the rest of them is queued.
        sleepers = [Conn() for _ in range(WORKERS)]
        for sleeper in sleepers:
            sleeper.send("waitfor delay '00:00:04'")
        busy = lambda s: s["num workers"] - s["idle workers"] >= WORKERS and s["work queued"] > 0
        wait_for("every worker is busy", lambda: umsstats(admin), busy)
    # No worker is free. The owner's two statements run only because a user that holds a lock gets a
    # reserve worker.
    owner.query(ADD)
    owner.query("commit")
    if not PLAIN:
        reserve = admin.query("select sum(reserve_workers) from ums_schedulers")
        assert int(reserve[0][0]) > 0, "the owner was served by a reserve worker"
    for conn in waiters + sleepers:
        conn.until_ready()
        conn.close()


for number in range(ROUNDS):
    checks.case(f"round {number}", one_round)


def cancelled_in_the_queue():
    """A cancelled request that is still queued gets 57014, and its session goes on: simple, extended, in a transaction."""
    victims = [Conn() for _ in range(3)]
    victims[2].query("begin")
    sleepers = [Conn() for _ in range(WORKERS)]
    for sleeper in sleepers:
        sleeper.send("waitfor delay '00:01:00'")
    sleeping = lambda: int(admin.query("select count(*) from ums_waiting_tasks where wait_type = 'WAITFOR'")[0][0])
    wait_for("every worker sleeps", sleeping, lambda count: count >= WORKERS)
    victims[0].send("select 1")
    victims[1].raw(parse("select 1") + bind() + execute() + SYNC)
    victims[2].send("select 1")
    wait_for("the victims are queued", lambda: umsstats(admin), lambda s: s["work queued"] >= 3)
    user = lambda conn: struct.unpack("!i", conn.key[:4])[0]
    for conn in victims + sleepers:
        admin.query(f"kill {user(conn)}")
    for conn, status in zip(victims, "IIE"):
        try:
            conn.until_ready()
            raise AssertionError("the cancelled statement was carried out")
        except Refused as error:
            assert error.code == "57014", error
        assert conn.status == status, conn.status
        if status == "E":
            conn.query("rollback")
        assert conn.query("select 2") == [("2",)]
        conn.close()
    for sleeper in sleepers:
        sleeper.close()


if not PLAIN:
    checks.case("cancelled in the queue", cancelled_in_the_queue)
expected = ROUNDS * (2 * WORKERS + 2)
checks.equal("every update counts", [(str(expected),)], owner.query("select n from lockqueue"))


def writer(failures):
    try:
        conn = Conn()
        for _ in range(TIMES):
            for statement in ("begin", ADD, "select n from lockqueue", ADD, "commit"):
                conn.query(statement)
        conn.close()
    except Exception as error:  # The main thread reports it.
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
