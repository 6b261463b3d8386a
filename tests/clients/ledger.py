#!/usr/bin/env python3
"""ledger.py ROW ...: on what the instructions of an operation go, by the part of the library that they belong to.

The rows are those of `ums bench operations` (counts.py explains them and how it counts). An instruction belongs to the innermost
function of this repository that it was inlined from, and the function's file says which part that is. Needs $UMS_BIN, with lines
(the release profile has them), and addr2line. For x86-64; fiber workers."""

import collections
import contextlib
import os
import subprocess
import sys

from counts import ROWS, repeated
from steps import RIP, time_reader, walk

# The first prefix of a path that fits says which part a file belongs to.
PARTS = {
    "the switch between stacks": ["fiber/", "context/", "ums/src/scheduler/kinds/", "ums/src/scheduler/way_out", "ums/src/scheduler/switch"],
    "records of the last events": ["ums/src/record/event_ring"],
    "counters and wait statistics": ["ums/src/record/", "ums/src/wait/record"],
    "readings of the clock": ["ums/src/os/clock"],
    "entry guard, and locks without locked instructions": ["ums/src/os/entry", "ums/src/os/bias", "ums/src/os/short_lock", "ums/src/os/linux/barrier", "ums/src/scheduler/here", "ums/src/os/threads"],
    "the wait: its ticket, outcome, limits and cancellation": ["ums/src/wait/", "ums/src/current", "ums/src/scheduler/park", "ums/src/scheduler/wake", "ums/src/os/atomic_ref", "ums/src/bounds"],
    "the queue from which other schedulers take": ["ums/src/scheduler/work_queue/", "ums/src/scheduler/enqueue", "ums/src/scheduler/peers/", "ums/src/os/asleep/"],
    "the task: memory, state, result, cancellation": ["ums/src/scheduler/request/", "ums/src/task/", "ums/src/os/panics"],
    "lists of workers, and the choice by the rule of fairness": ["ums/src/scheduler/"],
    "the channel or lock itself": ["ums/src/sync/"],
    "the bench's loop": ["ums-cli/"],
}
OTHER = "other"


def part_of(frames):
    """Returns the part to which an instruction belongs. `frames` are the places that it was inlined from, the innermost first."""
    for place in frames:
        if "/crates/" in place:
            path = place.rsplit("/crates/", 1)[1]
            return next((part for part, files in PARTS.items() if any(map(path.startswith, files))), OTHER)
    return OTHER


def histogram(name):
    """Returns how often each address of the program was executed in some operations, and how many operations these were."""
    program, found, ended = os.path.realpath(os.environ["UMS_BIN"]), collections.Counter(), 0
    with repeated("fiber", name) as (pid, thread, mark, (warm, counted)):
        with open(f"/proc/{pid}/maps") as maps:
            begin = int(next(line for line in maps if line.rstrip().endswith(program)).split("-")[0], 16)
        with contextlib.closing(walk(thread, reads_time=time_reader(pid))) as walked:
            for registers in walked:
                ended += registers[RIP] == mark
                if ended > warm + counted:
                    return found, counted * ROWS[name][0]
                if ended > warm:
                    found[registers[RIP] - begin] += 1


def places(addresses):
    """Returns for each address the places that it was inlined from, the innermost first."""
    asked = "\n".join(map(hex, addresses))
    said = subprocess.run(["addr2line", "-a", "-i", "-e", os.environ["UMS_BIN"]], input=asked, capture_output=True, text=True, check=True).stdout
    found, at = {}, None
    for line in said.splitlines():
        if line.startswith("0x"):
            at = int(line, 16)
            found[at] = []
        else:
            found[at].append(line)
    return found


def main():
    names = sys.argv[1:] or ["yield", "spawn-batch", "channel", "mutex-handed"]
    columns = []
    for name in names:
        executed, operations = histogram(name)
        frames, parts = places(executed), collections.Counter()
        for at, times in executed.items():
            parts[part_of(frames.get(at, []))] += times / operations
        columns.append(parts)
    print(f"{'instructions of':<58}", *(f"{name:>13}" for name in names))
    for part in [*PARTS, OTHER]:
        if any(column[part] >= 0.5 for column in columns):
            print(f"{part:<58}", *(f"{column[part]:>13.0f}" for column in columns))
    print(f"{'all':<58}", *(f"{sum(column.values()):>13.0f}" for column in columns))


if __name__ == "__main__":
    main()
