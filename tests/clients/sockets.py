#!/usr/bin/env python3
"""Unix-domain sockets: psql finds the server by the socket's folder. The server removes the socket's file when it stops,
and replaces a file that a crashed server left behind.

It starts its own servers ($UMS_BIN).
"""

import os
import subprocess
import tempfile

from owned import Server, free_ports


def psql(folder, port, sql):
    env = dict(os.environ, PGHOST=folder, PGPORT=str(port), PGUSER="ums", PGDATABASE="ums")
    done = subprocess.run(["psql", "-X", "-At", "-c", sql], env=env, text=True, capture_output=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def serve(folder, host, port, db):
    """Runs a server that should fail to start. Returns its exit code and output."""
    command = [os.environ["UMS_BIN"], "serve", "--listen", f"{host}:{port}", "--socket-dir", folder, "--db", db, "--trust"]
    done = subprocess.run(command, text=True, capture_output=True, timeout=60)
    return done.returncode, done.stderr


def main():
    with tempfile.TemporaryDirectory() as folder:
        with Server(f"{folder}/a.db") as server:
            name = f"{server.sockets}/.s.PGSQL.{server.port}"
            assert psql(server.sockets, server.port, "select 6 * 7") == "42"
            psql(server.sockets, server.port, "create table t(x int); insert into t values (1)")
            # A server on another address tries to use the same socket file.
            code, said = serve(server.sockets, "127.0.0.2", server.port, f"{folder}/b.db")
            assert code == 1 and "cannot listen on" in said and name in said, (code, said)
            assert psql(server.sockets, server.port, "select x from t") == "1"
        assert not os.path.exists(name), "the name is removed when the server stops"

        with Server(f"{folder}/a.db") as crashed:
            crashed.kill()
            left = f"{crashed.sockets}/.s.PGSQL.{crashed.port}"
            assert os.path.exists(left)
            again = Server(f"{folder}/a.db", at=crashed)
            assert psql(crashed.sockets, crashed.port, "select x from t") == "1"
            again.stop()
            crashed.process = again.process
        code, said = serve(f"{folder}/none", "127.0.0.1", free_ports(1)[0], f"{folder}/c.db")
        assert code == 1 and "cannot listen on" in said, (code, said)
    print("sockets.py: ok")


if __name__ == "__main__":
    main()
