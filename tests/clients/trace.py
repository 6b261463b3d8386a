#!/usr/bin/env python3
"""A trace of a pgbench run: Perfetto's published definitions can read it, Chrome's JSON is valid, both formats have the same
content, and the trace has wake-ups from a worker of one scheduler to a worker of another.

Runs pgbench (UMS_BIN, UMS_PID, PGHOST as everywhere), and records with `ums trace` meanwhile, over the statistics socket. Needs the
package `perfetto` (its protobuf definitions only).
"""

import collections
import json
import os
import subprocess
import tempfile

from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace, TrackEvent
from wire import Checks

ums, pid = os.environ["UMS_BIN"], os.environ["UMS_PID"]
env = dict(os.environ, PGHOST=os.environ["UMS_HOST"], PGPORT=os.environ["UMS_PORT"], PGUSER="ums", PGDATABASE="ums")
checks = Checks()


def pgbench(*arguments):
    return subprocess.run(["pgbench", *arguments], env=env, check=True, capture_output=True, text=True)


def record(file, ms=1500):
    """Records while pgbench runs."""
    load = subprocess.Popen(
        ["pgbench", "-n", "-c", "16", "-j", "2", "-T", "4"], env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    try:
        subprocess.run([ums, "trace", pid, "--ms", str(ms), "--out", file], check=True, capture_output=True, text=True)
    finally:
        out, _ = load.communicate()
    checks.that("pgbench came through", load.returncode == 0, out[-500:])


def perfetto(file):
    trace = Trace()
    with open(file, "rb") as bytes_:
        trace.ParseFromString(bytes_.read())
    tracks, open_, flows = {}, collections.Counter(), collections.defaultdict(lambda: ([], []))
    slices = 0
    last = collections.Counter()
    backwards = 0
    for packet in trace.packet:
        if packet.HasField("track_descriptor"):
            tracks[packet.track_descriptor.uuid] = packet.track_descriptor
            continue
        event = packet.track_event
        if event.track_uuid not in tracks:
            checks.that("an event's track is described", False, event)
        if event.type == TrackEvent.TYPE_SLICE_BEGIN:
            open_[event.track_uuid] += 1
            slices += 1
            backwards += packet.timestamp < last[event.track_uuid]
            last[event.track_uuid] = packet.timestamp
        elif event.type == TrackEvent.TYPE_SLICE_END:
            open_[event.track_uuid] -= 1
        for flow in event.flow_ids:
            flows[flow][0].append((event.track_uuid, event.name))
        for flow in event.terminating_flow_ids:
            flows[flow][1].append((event.track_uuid, event.name))
    schedulers = {uuid for uuid, track in tracks.items() if track.name.startswith("scheduler ")}
    workers = {uuid: track.parent_uuid for uuid, track in tracks.items() if track.name.startswith("worker ")}
    checks.that("there are two schedulers and more", len(schedulers) >= 2, [t.name for t in tracks.values()])
    checks.that("every worker's track is below its scheduler's", set(workers.values()) <= schedulers, workers)
    checks.that("every slice that begins ends", not any(open_.values()), {k: v for k, v in open_.items() if v})
    checks.that("slices of a track are in order", backwards == 0, backwards)
    checks.that("there is something to see", slices > 1000, slices)
    whole = [(begin, end) for begin, end in flows.values() if begin and end]
    crossing = [(b, e) for b, e in whole if workers.get(b[0][0], b[0][0]) != workers.get(e[0][0], e[0][0])]
    checks.that("wakes lead from waker to woken", len(whole) > 50, len(whole))
    checks.that("something goes from one scheduler's worker to another's", crossing, len(whole))
    return slices, len(whole), len(crossing)


def handed_over(events, ends, crossing):
    """Returns the wake-ups across schedulers that ended a wait for the write gate."""
    slices = collections.defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            slices[event["pid"], event["tid"]].append((event["ts"], event["name"]))
    found = 0
    for end in (ends[i] for i in crossing):
        before = sorted(s for s in slices[end["pid"], end["tid"]] if s[0] < end["ts"])[-2:]
        found += any(name == "waits LCK_M_X" for _, name in before)
    return found


def chrome(file):
    with open(file) as text:
        trace = json.load(text)
    events = trace["traceEvents"]
    phases = collections.Counter(event["ph"] for event in events)
    checks.that("Chrome's trace has names, slices and marks", all(phases[p] for p in "MXi"), phases)
    begins = {event["id"]: event for event in events if event["ph"] == "s"}
    ends = {event["id"]: event for event in events if event["ph"] == "f"}
    both = begins.keys() & ends.keys()
    checks.that("wakes lead from waker to woken", len(both) > 50, len(both))
    crossing = [i for i in both if begins[i]["pid"] != ends[i]["pid"]]
    checks.that("something goes from one scheduler to another", crossing, len(both))
    checks.that("no wake ends before it begins", all(begins[i]["ts"] <= ends[i]["ts"] for i in both))
    checks.that("the write gate goes from a worker of one scheduler to one of another", handed_over(events, ends, crossing))
    waits = collections.Counter(e["name"] for e in events if e["ph"] == "X" and e["name"].startswith("waits "))
    checks.that("waits have reasons", len(waits) >= 2, waits)
    return phases["X"], waits


with tempfile.TemporaryDirectory() as folder:
    pgbench("-i", "-s", "1")
    file = os.path.join(folder, "a.pftrace")
    record(file)
    slices, wakes, crossing = perfetto(file)
    print(f"trace.py: Perfetto: {slices} slices, {wakes} wakes, {crossing} from scheduler to scheduler")
    file = os.path.join(folder, "a.json")
    record(file)
    slices, waits = chrome(file)
    print(f"trace.py: Chrome: {slices} slices; {dict(waits.most_common(5))}")
checks.finish()
