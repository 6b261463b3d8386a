#!/usr/bin/env python3
"""300 clients wait on 255 workers: 255 are busy, 45 queued, and the admin port answers (U29, U37, U93, B18).

Server: --max-workers 255. DELAY is the time for which each client's statement waits, in seconds.
"""

import os

from wire import ADMIN_PORT, Checks, Conn, many_files, umsstats, wait_for

CLIENTS = int(os.environ.get("CLIENTS", "300"))
WORKERS = int(os.environ.get("WORKERS", "255"))
DELAY = int(os.environ.get("DELAY", "15"))

checks = Checks()
many_files()
admin = Conn(ADMIN_PORT)
users = [Conn() for _ in range(CLIENTS)]

# The worker that answers the last client becomes idle only a moment after the answer.
quiet = wait_for("connected users hold no worker", lambda: umsstats(admin), lambda stats: stats["num workers"] == stats["idle workers"])
checks.equal("all are users, the admin is not", float(CLIENTS), quiet["num users"])
checks.equal("nothing is queued", 0.0, quiet["work queued"])

for user in users:
    user.send(f"WAITFOR DELAY '00:00:{DELAY:02}'")
queued = float(CLIENTS - WORKERS)
# The queue may pass through this length while workers still start and requests still arrive.
busy = wait_for("all workers busy, and the rest queued", lambda: umsstats(admin),
                lambda stats: stats["work queued"] == queued and stats["num workers"] - stats["idle workers"] == WORKERS, DELAY)
checks.equal("users stay users", float(CLIENTS), busy["num users"])
checks.equal("waiters are not runnable", 0.0, busy["num runnable"])
# A worker that has just taken its request may not wait yet.
waits = wait_for("all wait", lambda: int(admin.query("select count(*) from ums_waiting_tasks")[0][0]), lambda waits: waits >= WORKERS, DELAY)
checks.that("the waits can be seen", waits >= WORKERS, f"{waits}")
checks.equal("the admin connection runs queries", [("2",)], admin.query("select 1 + 1"))
print(f"exhaustion.py: under load {busy}")

for number, user in enumerate(users):
    checks.case(f"client {number} is served in the end", user.until_ready)
after = wait_for("workers come back", lambda: umsstats(admin),
                 lambda stats: stats["num workers"] == stats["idle workers"])
checks.equal("nothing stays queued", 0.0, after["work queued"])
for user in users:
    user.close()
wait_for("users leave", lambda: umsstats(admin)["num users"], 0.0)
checks.finish()
