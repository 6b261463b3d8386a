#!/usr/bin/env python3
"""Measures how a backup, which runs on a hidden scheduler, affects the users' response times.

The database has MIB MiB. CLIENTS connections of pgbench read rows while `BACKUP TO` copies it, and for the same time
without a backup. Both are measured ROUNDS times in turn, and the 99th percentiles are reported. Starts its own server
($UMS_BIN); the database is created in FOLDER.
"""

import json
import os
import shutil
import sqlite3
import statistics
import subprocess
import tempfile
import time

from coldcache import make, p99_us, pgbench, scripts, tps
from owned import Server

MIB = int(os.environ.get("MIB", "1024"))
CLIENTS = int(os.environ.get("CLIENTS", "4"))
ROUNDS = int(os.environ.get("ROUNDS", "3"))


def say(metric, value, unit):
    print(json.dumps({"bench": "backup", "peer": "ums-fiber", "metric": metric, "value": round(value, 3), "unit": unit}), flush=True)


def psql(server, statement):
    env = dict(os.environ, PGHOST="127.0.0.1", PGPORT=str(server.port), PGUSER="ums", PGDATABASE="ums")
    return subprocess.Popen(["psql", "-X", "-q", "-c", statement], env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def main():
    folder = tempfile.mkdtemp(dir=os.environ.get("FOLDER"))
    try:
        path = f"{folder}/backup.db"
        make(path, MIB * 2300)
        scripts(folder, MIB * 2300)
        alone, beside, spans = [], [], []
        with Server(path, "--workers", "fiber", "--file-dir", folder) as server:
            for _ in range(ROUNDS):
                tps(pgbench(server, folder, "hot", CLIENTS, f"{folder}/alone"))
                alone.append(p99_us(f"{folder}/alone"))
                began = time.monotonic()
                copying = psql(server, f"backup to '{folder}/copy.db'")
                users = pgbench(server, folder, "hot", CLIENTS, f"{folder}/beside")
                out = copying.communicate()[0]
                assert copying.returncode == 0, out
                spans.append(time.monotonic() - began)
                tps(users)
                beside.append(p99_us(f"{folder}/beside"))
                assert sqlite3.connect(f"{folder}/copy.db").execute("select count(*) from cold").fetchone()[0] == MIB * 2300
                os.remove(f"{folder}/copy.db")
        print(f"backup.py: {os.path.getsize(path) >> 20} MiB, copied in {statistics.median(spans):.1f} s")
        say("p99_alone", statistics.median(alone), "us")
        say("p99_beside_backup", statistics.median(beside), "us")
        say("p99_ratio", statistics.median(b / a for a, b in zip(alone, beside)), "ratio")
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
