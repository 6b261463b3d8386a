#!/usr/bin/env python3
"""The echo program of the README answers 10,000 connections that stay, started with a soft limit of 1,024 open files.

$ECHO is the program (`cargo build --example echo`). It makes a worker for each connection, so it needs more workers than its soft
limit, and more descriptors than it was started with. Where the hard limit of descriptors or the machine's room for threads allows
fewer connections, fewer are tried, and the line says so."""

import os
import resource
import socket
import subprocess
import sys

WANTED = int(os.environ.get("CONNECTIONS", "10000"))
PATIENCE = 60


def room():
    """How many connections this machine has room for: a descriptor here and there, and a thread."""
    _, descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)
    _, threads = resource.getrlimit(resource.RLIMIT_NPROC)
    mappings = int(open("/proc/sys/vm/max_map_count").read()) // 5
    limits = [descriptors - 100, mappings] + ([] if threads == resource.RLIM_INFINITY else [threads - 1000])
    return max(100, min(limits))


def connect(port):
    client = socket.create_connection(("127.0.0.1", port), PATIENCE)
    client.settimeout(PATIENCE)
    return client


def main():
    count = min(WANTED, room())
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # The child keeps the hard limit and begins with a low soft one.
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(1024, hard), hard))
    echo = subprocess.Popen([os.environ["ECHO"], "127.0.0.1:0"], stdout=subprocess.PIPE, text=True)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        port = int(echo.stdout.readline().rsplit(":", 1)[1])
        clients = [connect(port) for _ in range(count)]
        for number, client in enumerate(clients):
            client.sendall(b"%08d" % number)
        answered = 0
        for number, client in enumerate(clients):
            answered += client.recv(8, socket.MSG_WAITALL) == b"%08d" % number
    finally:
        echo.kill()
        echo.wait()
    if answered != count:
        sys.exit(f"connections.py: {answered} of {count} connections were answered")
    less = "" if count == WANTED else f" (of {WANTED}: this machine has no room for more)"
    print(f"connections.py: {count} connections answered{less}: 1 checks passed")


main()
