#!/usr/bin/env python3
"""The echo program answers 10,000 connections that stay open, with each kind of workers. It is started with a soft limit
of 1,024 open files.

$ECHO is the program (`cargo build --example echo`). It uses a worker for each connection, so it needs more workers than its soft limit,
and more descriptors than it was started with. If the hard limit of descriptors allows fewer connections, fewer are tried,
and the output says so.

If the computer has memory for fewer workers, the program reports that on stderr. Then connections end once they are answered,
and the others must be answered, too. The last check forces that: it limits the program's address space.

CONNECTIONS sets another number, KINDS the kinds to try. The kinds run in parallel, because beyond the soft limit a program
creates only few workers in a millisecond."""

import os
import re
import resource
import selectors
import socket
import subprocess
import sys
import tempfile
import time

WANTED = int(os.environ.get("CONNECTIONS", "10000"))
KINDS = os.environ.get("KINDS", "thread fiber context cramped").split()
PATIENCE = 60
LIMIT = re.compile(r"has the (\d+) workers that (.*) leaves room for, and further requests wait")
# Address space for some 1,500 workers of 2 MiB, and more connections than that.
CRAMPED_SPACE = 4 << 30
CRAMPED_CONNECTIONS = 2500


class Failed(Exception):
    """A check has failed; the text says which."""


def start(kind, stderr):
    """Starts the program with the system's hard limit of descriptors and a low soft limit."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)

    def limits():
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(1024, hard), hard))
        if kind == "cramped":
            resource.setrlimit(resource.RLIMIT_AS, (CRAMPED_SPACE, CRAMPED_SPACE))

    command = [os.environ["ECHO"], "127.0.0.1:0", "thread" if kind == "cramped" else kind]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True, preexec_fn=limits)


def connect(port, number):
    client = socket.create_connection(("127.0.0.1", port), PATIENCE)
    client.sendall(b"%08d" % number)
    client.setblocking(False)
    return client


def answers(clients, said):
    """Waits until all clients are answered, in any order. If some connections had to end before others were answered,
    returns the program's message about its limit, and how many had been answered by then."""
    waiting = selectors.DefaultSelector()
    for number, client in enumerate(clients):
        waiting.register(client, selectors.EVENT_READ, number)
    stayed, answered, parts, last = None, [], {}, time.monotonic()
    while waiting.get_map():
        events = waiting.select(0.5)
        for key, _ in events:
            text = parts.pop(key.data, b"") + (key.fileobj.recv(8) or b"nothing.")
            if len(text) < 8:
                parts[key.data] = text
                continue
            if text != b"%08d" % key.data:
                raise Failed(f"connection {key.data} got {text}")
            waiting.unregister(key.fileobj)
            answered.append(key.fileobj)
        if events:
            last = time.monotonic()
        elif time.monotonic() - last > PATIENCE:
            raise Failed(f"{len(waiting.get_map())} of {len(clients)} connections have no answer")
        elif LIMIT.search(said()):
            # Answered connections are closed, so that their workers serve the others.
            stayed = len(answered) if stayed is None else stayed
            for client in answered:
                client.close()
            answered.clear()
    return stayed and LIMIT.search(said())[0], stayed


def check(kind):
    """Checks one kind, and prints its line."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    wanted = min(WANTED, CRAMPED_CONNECTIONS) if kind == "cramped" else WANTED
    count, began = min(wanted, max(100, hard - 100)), time.monotonic()
    with tempfile.TemporaryFile("w+") as stderr:

        def said():
            stderr.seek(0)
            return stderr.read()

        echo = start(kind, stderr)
        try:
            line = echo.stdout.readline()
            if not line and "cannot have their own context here" in said():
                print(f"connections.py: {kind}: {said().strip()}")
                return
            clients = [connect(int(line.rsplit(":", 1)[1]), number) for number in range(count)]
            limit, stayed = answers(clients, said)
        except (Failed, OSError, IndexError) as error:
            sys.exit(f"connections.py: {kind}: {error}; the program said: {said()[-1000:]}")
        finally:
            echo.kill()
            echo.wait()
    less = "" if count == wanted else f" (of {wanted}: the hard limit of descriptors is {hard})"
    took = f"in {time.monotonic() - began:.1f} s"
    if limit:
        print(f"connections.py: {kind}: {count} connections answered{less}, {stayed} of them at once: it {limit}; {took}")
    else:
        print(f"connections.py: {kind}: {count} connections answered at once{less}, {took}")
    if kind == "cramped" and WANTED >= CRAMPED_CONNECTIONS and not limit:
        sys.exit("connections.py: cramped: the program should have reached its limit")


def main():
    if len(sys.argv) > 1:
        return check(sys.argv[1])
    all_of_them = [subprocess.Popen([sys.executable, __file__, kind]) for kind in KINDS]
    failed = [kind for kind, process in zip(KINDS, all_of_them) if process.wait() != 0]
    if failed:
        sys.exit(f"connections.py: failed: {' '.join(failed)}")
    print(f"connections.py: {len(KINDS)} checks passed")


main()
