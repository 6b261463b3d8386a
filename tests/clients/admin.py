#!/usr/bin/env python3
"""The administrator is served while a worker of every other scheduler spins without yielding (B18), and can cancel.

Server: --schedulers 2. SELECT busy_loop(ms) is the worker that does not yield (U8, U9).
"""

from wire import ADMIN_PORT, Checks, Conn, Refused, wait_for

checks = Checks()

admin = Conn(ADMIN_PORT)
# How long a scheduler spins, in milliseconds. On an overloaded computer the first loop may end
# before the administrator's statements have run; then the second is tried.
SPINS = (6000, 40000)
# The administrator has a scheduler of its own.
RUNNING = "select user_id, scheduler_id from ums_requests where worker_id is not null and user_id <> 0 and scheduler_id < 2"


def all_schedulers_spin(spin):
    """Starts the loops one after the other, so that each new connection is placed on a scheduler that is not spinning yet."""
    spinners, rows = [], []
    for number in range(2):
        spinners.append(Conn())
        spinners[-1].send(f"select busy_loop({spin}), busy_loop(1)")
        spinning = lambda rows: len({row[1] for row in rows}) > number
        rows = wait_for(f"{number + 1} schedulers spin", lambda: admin.query(RUNNING), spinning, spin / 1000)
    return spinners, [row[0] for row in rows]


def answers_and_cancels(spin):
    spinners, users = all_schedulers_spin(spin)
    assert admin.query("select 1") == [("1",)]
    for user in users:
        admin.query(f"kill {user}")
    # The statement is cancelled only when the loop has ended, because a worker is never stopped by
    # force.
    for spinner in spinners:
        try:
            spinner.until_ready()
            raise AssertionError("the cancelled statement came to its end")
        except Refused as refused:
            assert refused.code == "57014", refused
        spinner.close()


def answers_and_cancels_in_time():
    try:
        answers_and_cancels(SPINS[0])
    except AssertionError as late:
        print(f"admin.py: repeated, with a longer loop: {late}", flush=True)
        wait_for("no request spins any more", lambda: admin.query(RUNNING), [])
        answers_and_cancels(SPINS[1])


checks.case("the administrator is answered and cancels", answers_and_cancels_in_time)
checks.equal("the others are served again", [("2",)], Conn().query("select 2"))
checks.finish()
