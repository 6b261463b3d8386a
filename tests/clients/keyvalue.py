"""keyvalue.py: the example `redis`, with redis-benchmark and the client library redis-py.

Needs REDIS, the program. redis-benchmark is skipped if it is not installed.
"""

import os
import shutil
import signal
import socket
import subprocess
import threading
import time

import redis

from owned import free_ports
from wire import Checks

checks = Checks()


def start():
    port = free_ports(1)[0]
    server = subprocess.Popen([os.environ["REDIS"], f"127.0.0.1:{port}"], stdout=subprocess.PIPE, text=True)
    checks.equal("it says where it listens", f"listening on 127.0.0.1:{port}\n", server.stdout.readline())
    return server, port


def library(port):
    client = redis.Redis(port=port)
    checks.that("ping", client.ping())
    checks.that("set", client.set("key", "value"))
    checks.equal("get", b"value", client.get("key"))
    checks.equal("nothing", None, client.get("other"))
    checks.equal("incr", [1, 2, 1], [client.incr("n"), client.incr("n"), client.decr("n")])
    checks.that("set with a time", client.set("short", "x", px=30))
    time.sleep(0.05)
    checks.equal("its time is over", None, client.get("short"))
    checks.that("expire", client.expire("key", 100) and not client.expire("other", 100))
    client.rpush("list", *range(5))
    client.lpush("list", "first")
    checks.equal("range", [b"first", b"0"], client.lrange("list", 0, 1))
    checks.equal("range from the end", [b"3", b"4"], client.lrange("list", -2, -1))
    checks.equal("an empty range", [], client.lrange("list", 3, -100))
    checks.equal("pops", [b"first", b"4"], [client.lpop("list"), client.rpop("list")])
    checks.equal("sadd", 2, client.sadd("set", "a", "b", "a"))
    checks.that("spop", client.spop("set") in (b"a", b"b"))
    checks.equal("hset", 2, client.hset("hash", mapping={"a": 1, "b": 2}))
    checks.equal("hget", b"2", client.hget("hash", "b"))
    checks.equal("delete", 2, client.delete("list", "set", "none"))
    try:
        client.incr("hash")
        checks.that("the wrong type", False, "it was accepted")
    except redis.ResponseError as error:
        checks.that("the wrong type", "WRONGTYPE" in str(error), str(error))
    with client.pipeline(transaction=False) as pipe:
        for n in range(1000):
            pipe.set(f"k{n}", n).get(f"k{n}")
        answers = pipe.execute()
    checks.equal("a pipeline", [str(n).encode() for n in range(1000)], answers[1::2])


def bad_input(port):
    for what, bytes_sent, expected in [
        ("no length", b"*1\r\n$x\r\n", b"-ERR Protocol error: invalid length\r\n"),
        ("a huge length", b"*1\r\n$99999999999\r\n", b"-ERR Protocol error: invalid length\r\n"),
        ("no string", b"*1\r\nPING\r\n", b"-ERR Protocol error: expected '$'\r\n"),
        ("an unknown command", b"NONSENSE\r\n", b"-ERR unknown command 'NONSENSE', or wrong number of arguments\r\n"),
        ("a line", b"PING\r\n", b"+PONG\r\n"),
    ]:
        with socket.create_connection(("127.0.0.1", port), timeout=10) as client:
            client.sendall(bytes_sent)
            checks.equal(what, expected, client.recv(1000))


def many(port):
    """Clients at once: no increment is lost."""
    def work():
        client = redis.Redis(port=port)
        for _ in range(200):
            client.incr("shared")

    threads = [threading.Thread(target=work) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    checks.equal("no increment is lost", b"4000", redis.Redis(port=port).get("shared"))


def benchmark(port):
    program = shutil.which("redis-benchmark")
    if not program:
        print("redis-benchmark is not installed")
        return
    tests = "ping_inline,ping_mbulk,set,get,incr,lpush,rpush,lpop,rpop,sadd,hset,spop,lrange_100,mset"
    done = subprocess.run([program, "-p", str(port), "-n", "5000", "-c", "50", "-P", "8", "--csv", "-t", tests],
                          capture_output=True, text=True, timeout=120)
    lines = [line for line in done.stdout.splitlines() if line.startswith('"') and not line.startswith('"test"')]
    checks.that("redis-benchmark: every test", done.returncode == 0 and len(lines) >= 14, done.stdout + done.stderr)
    for line in lines:
        print(line)


def main():
    server, port = start()
    try:
        for part in (library, bad_input, many, benchmark):
            checks.case(part.__name__, part, port)
        server.send_signal(signal.SIGTERM)
        checks.equal("it ends by SIGTERM", 0, server.wait(timeout=20))
    finally:
        server.kill()
    checks.finish()


if __name__ == "__main__":
    main()
