#!/usr/bin/env python3
"""`kill -9` of the server under load: every acknowledged commit is found after the restart.

Repeated ROUNDS times: a server is started on the same database file, CLIENTS writers record the acknowledged commits,
the server is killed at a random moment, and the next server is asked for these commits. At the end plain SQLite checks
the file's integrity. Starts its own
servers ($UMS_BIN); further arguments are options for `ums serve`.
"""

import os
import random
import sys
import tempfile
import threading
import time

import wire
from owned import Server

ROUNDS = int(os.environ.get("ROUNDS", "50"))
CLIENTS = int(os.environ.get("CLIENTS", "8"))
SEED = int(os.environ.get("SEED", "0")) or random.randrange(1, 1 << 30)


def connect(server):
    wire.PORT = server.port
    return wire.Conn()


def write(server, writer, numbers, acknowledged):
    """Commits in every possible way, until the server is killed."""
    try:
        conn = connect(server)
        for number in numbers:
            note = "x" * (number * 37 % 2000)
            how = number // CLIENTS % 4
            if how == 0:
                conn.query(f"insert into done values ({number}, '{note}')")
            elif how == 1:
                conn.query(f"begin; insert into done values ({number}, '{note}'); update sums set n = n + 1; commit")
            elif how == 2:
                conn.prepared("insert into done values ($1, $2)", [number, note])
            else:
                conn.query("begin")
                conn.prepared("insert into done values ($1, $2)", [number, note])
                conn.query("commit")
            acknowledged.append(number)
    except (wire.Closed, OSError):
        pass
    except wire.Refused as error:
        assert error.code.startswith("57"), f"writer {writer}: {error}"


def main():
    dice = random.Random(SEED)
    first, acknowledged = 0, []
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/kill9.db"
        for round in range(ROUNDS + 1):
            server = Server(path, *sys.argv[1:])
            conn = connect(server)
            if round == 0:
                conn.query("create table done(id int primary key, note text)")
                conn.query("create table sums(n int)")
                conn.query("insert into sums values (0)")
            found = {int(row[0]) for row in conn.query("select id from done")}
            lost = [number for number in acknowledged if number not in found]
            assert not lost, f"seed {SEED}, round {round}: acknowledged and lost: {lost[:10]}"
            sums = int(conn.query("select n from sums")[0][0])
            pairs = sum(1 for number in found if number // CLIENTS % 4 == 1)
            assert sums == pairs, f"seed {SEED}, round {round}: {sums} of {pairs} transactions are whole"
            if round == ROUNDS:
                assert conn.query("pragma integrity_check") == [("ok",)]
                conn.close()
                server.stop()
                break
            threads = []
            for writer in range(CLIENTS):
                numbers = range(first + writer, 1 << 30, CLIENTS)
                threads.append(threading.Thread(target=write, args=(server, writer, numbers, acknowledged)))
                threads[-1].start()
            time.sleep(dice.uniform(0.05, 0.4))
            server.kill()
            for thread in threads:
                thread.join()
            first = (max([first, *acknowledged]) // CLIENTS + 2) * CLIENTS
        left = [name for name in os.listdir(folder) if name != "kill9.db"]
        assert not left, f"an orderly stop leaves {left}"
        import sqlite3

        whole = sqlite3.connect(path).execute("pragma integrity_check").fetchone()[0]
        assert whole == "ok", whole
    assert len(acknowledged) > ROUNDS, f"only {len(acknowledged)} commits were acknowledged"
    print(f"kill9.py: {ROUNDS} kills, {len(acknowledged)} acknowledged commits, none lost: 1 checks passed, 0 failed")


main()
