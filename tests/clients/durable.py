#!/usr/bin/env python3
"""Durable commits: pgbench's TPC-B-like transactions, with group commit (`--vfs ums`) and with `--vfs host`, in turn.

Both sync every commit before it is acknowledged. With group commit, commits that wait at the same time share one sync.
The environment sets CLIENTS (connections), ROUNDS, TIME (seconds for each round) and SCALE. Starts its own servers ($UMS_BIN) on databases of their own in
FOLDER, a real disk. Prints JSON lines, and how many commits shared a sync.
"""

import json
import os
import re
import shutil
import statistics
import subprocess
import tempfile

from owned import Server

CLIENTS = os.environ.get("CLIENTS", "64")
SCALE = os.environ.get("SCALE", "5")
TIME = os.environ.get("TIME", "10")
ROUNDS = int(os.environ.get("ROUNDS", "3"))
VARIANTS = {
    "ums-fiber": ["--workers", "fiber"],
    "ums-thread": ["--workers", "thread"],
    "host-thread": ["--workers", "thread", "--vfs", "host"],
}


def client(server, *command):
    env = dict(os.environ, PGHOST=server.sockets, PGPORT=str(server.port), PGUSER="ums", PGDATABASE="ums")
    done = subprocess.run(command, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert done.returncode == 0, done.stdout
    return done.stdout


def run(folder, options):
    path = f"{folder}/durable.db"
    with Server(path, *options) as server:
        client(server, "pgbench", "-i", "-q", "-s", SCALE)
        out = client(server, "pgbench", "-n", "-M", "prepared", "-c", CLIENTS, "-j", "2", "-T", TIME)
        batches = None
        if "host" not in options:
            batches = client(server, "psql", "-X", "-x", "-c", "select * from ums_group_commit")
    for name in os.listdir(folder):
        os.remove(f"{folder}/{name}")
    assert "number of failed transactions: 0 " in out, out
    return float(re.search(r"^tps = ([0-9.]+)", out, re.M)[1]), batches


def say(metric, peer, value, unit):
    print(json.dumps({"bench": "durable", "peer": peer, "metric": metric, "value": round(value, 3), "unit": unit}), flush=True)


def main():
    folder = tempfile.mkdtemp(dir=os.environ.get("FOLDER"))
    try:
        done = {name: [] for name in VARIANTS}
        batches = {}
        for _ in range(ROUNDS):
            for name, options in VARIANTS.items():
                tps, batches[name] = run(folder, options)
                done[name].append(tps)
        middle = {name: statistics.median(values) for name, values in done.items()}
        for name, value in middle.items():
            say("tps", name, value, "1/s")
        for name in ("ums-fiber", "ums-thread"):
            say("over_host_thread", name, middle[name] / middle["host-thread"], "ratio")
            print(f"durable.py: {name}, commits that shared a sync:\n{batches[name]}")
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
