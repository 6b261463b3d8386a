#!/usr/bin/env python3
"""Counts the instructions of a yield, of fibers and of workers with their own context, with the event ring and without it.

Two tasks yield in turn (`ums bench switch`, $UMS_BIN); the thread that runs them is then single-stepped. Tools that
translate programs cannot be used, because they support neither a change of stacks nor a change of the FS base. Every instruction of a
yield is executed once for each yield, so the count that most addresses share is the number of yields. Statistics are always on.
With the event ring at most 1.6 times as many instructions are allowed. For x86-64."""

import collections
import contextlib
import itertools
import json
import os
import subprocess
import sys
import time
from pathlib import Path

from steps import RIP, time_reader, walk

STEPS = int(os.environ.get("STEPS", "40000"))
KINDS = ["fiber", "context"]


def busiest(pid):
    """Returns the thread that has used the most processor time."""
    used = lambda task: int((task / "stat").read_text().rsplit(")", 1)[1].split()[11])
    return int(max(Path(f"/proc/{pid}/task").iterdir(), key=used).name)


def instructions(kind, events):
    command = [os.environ["UMS_BIN"], "bench", "switch", "tasks=2", f"total={10**12}", f"kind={kind}", f"events={events}"]
    bench = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        time.sleep(1)
        with contextlib.closing(walk(busiest(bench.pid), reads_time=time_reader(bench.pid))) as walked:
            met = collections.Counter(registers[RIP] for registers in itertools.islice(walked, STEPS))
    finally:
        bench.kill()
        bench.wait()
    yields, addresses = collections.Counter(met.values()).most_common(1)[0]
    assert addresses > 50, "no loop of yields was found"
    return STEPS / yields


def main():
    for kind in KINDS:
        off, on = (instructions(kind, events) for events in ("off", "on"))
        lines = [("instructions", off, ""), ("instructions_recorded", on, ""), ("recorded_ratio", on / off, "ratio")]
        for metric, value, unit in lines:
            line = {"bench": "yield", "peer": f"ums-{kind}", "metric": metric, "value": round(value, 3), "unit": unit}
            print(json.dumps(line), flush=True)
        if on > 1.6 * off:
            sys.exit("yields.py: more than 1.6 times")


main()
