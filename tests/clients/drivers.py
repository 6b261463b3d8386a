#!/usr/bin/env python3
"""Unchanged psycopg 3 and asyncpg: typed results, parameters, transactions, errors, pipelines, copy."""

import asyncio
import os
import tempfile
import threading
import time

import asyncpg
import psycopg
from psycopg import errors

from wire import DATABASE, HOST, PORT, USER, Checks

PASSWORD = os.environ.get("PGPASSWORD")
checks = Checks()
COLUMNS = "(i integer, big bigint, f double precision, t text, b bytea, ok boolean)"
ROW = (7, 1 << 40, 2.5, "Grüße, 'quoted' \\ and\ttabbed", b"\x00\xff\\x", True)


def with_psycopg():
    conn = psycopg.connect(host=HOST, port=PORT, user=USER, dbname=DATABASE, password=PASSWORD, autocommit=True)
    conn.execute("drop table if exists drivers")
    conn.execute(f"create table drivers {COLUMNS}")
    for name, step in list(globals().items()):
        if name.startswith("psycopg_"):
            conn.execute("delete from drivers")
            checks.case(name, step, conn)
            if conn.closed or conn.broken:
                conn = psycopg.connect(host=HOST, port=PORT, user=USER, dbname=DATABASE, password=PASSWORD,
                                       autocommit=True)
    conn.execute("drop table drivers")
    conn.close()


def same(expected, found):
    if isinstance(expected, (tuple, list)):
        assert len(expected) == len(found), f"expected {expected!r}, found {found!r}"
        for one, other in zip(expected, found):
            same(one, other)
        return
    assert expected == found and type(expected) is type(found), f"expected {expected!r}, found {found!r}"


def psycopg_expressions_have_types(conn):
    same((1, 2.5, "text", None), conn.execute("select 1, cast(2.5 as double precision), 'text', null").fetchone())
    same((3,), conn.execute("select 1 + %s", (2,)).fetchone())


def psycopg_columns_have_types(conn):
    conn.execute("insert into drivers values (%s, %s, %s, %s, %s, %s)", ROW)
    conn.execute("insert into drivers values (%s, %s, %s, %s, %s, %s)", (None,) * 6)
    rows = conn.execute("select * from drivers order by i is null, i").fetchall()
    same([ROW, (None,) * 6], rows)
    for binary in (False, True):
        same(ROW, conn.cursor(binary=binary).execute("select * from drivers where i = %s", (7,)).fetchone())


def psycopg_parameters_in_binary(conn):
    conn.execute("insert into drivers values (%b, %b, %b, %b, %b, %b)", ROW)
    same(ROW, conn.execute("select * from drivers where i = %b and t = %b and ok = %b", (7, ROW[3], True)).fetchone())
    for value in (0, -1, 127, 40000, 1 << 31, -(1 << 62)):
        conn.execute("update drivers set big = %b", (value,))
        same((value,), conn.execute("select big from drivers where big = %b", (value,)).fetchone())


def psycopg_columns_are_described(conn):
    cursor = conn.execute("select * from drivers")
    same(["i", "big", "f", "t", "b", "ok"], [column.name for column in cursor.description])
    same([23, 20, 701, 25, 17, 16], [column.type_code for column in cursor.description])
    same([], cursor.fetchall())


def psycopg_prepared(conn):
    for number in range(20):
        same((number + 1,), conn.execute("select 1 + %s", (number,), prepare=True).fetchone())


def psycopg_transactions(conn):
    try:
        with conn.transaction():
            conn.execute("insert into drivers (i) values (1)")
            raise KeyError
    except KeyError:
        pass
    same((0,), conn.execute("select count(*) from drivers").fetchone())
    with conn.transaction():
        conn.execute("insert into drivers (i) values (1)")
        try:
            with conn.transaction():
                conn.execute("insert into drivers (i) values (2)")
                conn.execute("select * from no_such_table")
        except errors.UndefinedTable:
            pass
    same([(1,)], conn.execute("select i from drivers").fetchall())


def expect(kind, function, *arguments):
    try:
        function(*arguments)
    except kind:
        return
    raise AssertionError(f"{kind.__name__} expected")


def psycopg_errors_have_classes(conn):
    conn.execute("drop table if exists drivers_key")
    conn.execute("create table drivers_key (id integer primary key, name text not null check (name <> 'bad'))")
    conn.execute("insert into drivers_key values (1, 'a')")
    expect(errors.UniqueViolation, conn.execute, "insert into drivers_key values (1, 'b')")
    expect(errors.NotNullViolation, conn.execute, "insert into drivers_key values (2, null)")
    expect(errors.CheckViolation, conn.execute, "insert into drivers_key values (2, 'bad')")
    expect(errors.SyntaxError, conn.execute, "selec 1")
    expect(errors.UndefinedTable, conn.execute, "select * from no_such_table")
    expect(errors.UndefinedColumn, conn.execute, "select no_such_column from drivers_key")
    conn.execute("begin")
    expect(errors.UndefinedTable, conn.execute, "select * from no_such_table")
    expect(errors.InFailedSqlTransaction, conn.execute, "select 1")
    conn.execute("rollback")
    conn.execute("drop table drivers_key")


def psycopg_executemany(conn):
    cursor = conn.cursor()
    cursor.executemany("insert into drivers (i, t) values (%s, %s)", [(n, f"row {n}") for n in range(500)])
    same((500, 124750), conn.execute("select count(*), cast(sum(i) as bigint) from drivers").fetchone())
    same(500, cursor.rowcount)


def psycopg_pipeline(conn):
    with conn.pipeline():
        cursors = [conn.execute("select %s + 0", (n,)) for n in range(100)]
    same([(n,) for n in range(100)], [cursor.fetchone() for cursor in cursors])

    def broken():
        with conn.pipeline():
            conn.execute("select 1")
            conn.execute("select * from no_such_table")
            conn.execute("insert into drivers (i) values (1)")

    expect(errors.UndefinedTable, broken)
    same((0,), conn.execute("select count(*) from drivers").fetchone())


def psycopg_copy(conn):
    rows = [(n, n * n, n / 4, f"tab\tand \\ {n}", None, n % 2 == 0) for n in range(1000)]
    with conn.cursor().copy("copy drivers (i, big, f, t, b, ok) from stdin") as copy:
        for row in rows:
            copy.write_row(row)
    same(rows, conn.execute("select * from drivers order by i").fetchall())


def psycopg_cancel(conn):
    threading.Thread(target=lambda: (time.sleep(1), conn.cancel())).start()
    expect(errors.QueryCanceled, conn.execute, "select pg_sleep(600)")
    same((1,), conn.execute("select 1").fetchone())


def psycopg_large_values(conn):
    text, data = "ü" * 500_000, os.urandom(1_000_000)
    conn.execute("insert into drivers (t, b) values (%s, %s)", (text, data))
    same((text, data), conn.execute("select t, b from drivers").fetchone())


async def with_asyncpg():
    conn = await asyncpg.connect(host=HOST, port=PORT, user=USER, database=DATABASE, password=PASSWORD)
    await conn.execute("drop table if exists drivers")
    await conn.execute(f"create table drivers {COLUMNS}")
    for name, step in list(globals().items()):
        if name.startswith("asyncpg_"):
            await conn.execute("delete from drivers")
            try:
                await step(conn)
                checks.passed += 1
            except Exception as error:  # Any of them is a finding with this name.
                checks.that(name, False, f"{type(error).__name__}: {error}")
    await conn.execute("drop table drivers")
    await conn.close()


INSERT = "insert into drivers values ($1::int, $2::bigint, $3::float8, $4::text, $5::bytea, $6::bool)"


async def asyncpg_expressions_have_types(conn):
    same(42, await conn.fetchval("select $1::int + 1", 41))
    same("ab", await conn.fetchval("select $1::text || 'b'", "a"))
    same((1, "x"), tuple(await conn.fetchrow("select 1, 'x'")))
    same(None, await conn.fetchval("select $1::int", None))


async def asyncpg_columns_have_types(conn):
    await conn.execute(INSERT, *ROW)
    await conn.execute(INSERT, *(None,) * 6)
    rows = await conn.fetch("select * from drivers order by i is null, i")
    same([ROW, (None,) * 6], [tuple(row) for row in rows])
    same(["i", "big", "f", "t", "b", "ok"], list(rows[0].keys()))


async def asyncpg_prepared(conn):
    statement = await conn.prepare("select i, t from drivers where i = $1::int")
    same(["int4", "text"], [column.type.name for column in statement.get_attributes()])
    await conn.executemany("insert into drivers (i, t) values ($1::int, $2::text)", [(n, f"row {n}") for n in range(300)])
    for number in (0, 150, 299):
        same((number, f"row {number}"), tuple(await statement.fetchrow(number)))


async def asyncpg_transactions(conn):
    try:
        async with conn.transaction():
            await conn.execute("insert into drivers (i) values (1)")
            raise KeyError
    except KeyError:
        pass
    same(0, await conn.fetchval("select count(*) from drivers"))
    async with conn.transaction():
        await conn.execute("insert into drivers (i) values (1)")
    same(1, await conn.fetchval("select count(*) from drivers"))


async def asyncpg_cursor(conn):
    await conn.executemany("insert into drivers (i) values ($1::int)", [(n,) for n in range(200)])
    async with conn.transaction():
        # Small steps: the server keeps the portal open between Execute messages.
        found = [row["i"] async for row in conn.cursor("select i from drivers order by i", prefetch=7)]
    same(list(range(200)), found)


async def asyncpg_errors_have_classes(conn):
    for kind, sql in ((asyncpg.UndefinedTableError, "select * from no_such_table"),
                      (asyncpg.PostgresSyntaxError, "selec 1"),
                      (asyncpg.UndefinedColumnError, "select no_such_column from drivers")):
        try:
            await conn.fetch(sql)
            raise AssertionError(f"{kind.__name__} expected")
        except kind:
            pass
    same(1, await conn.fetchval("select 1"))


async def asyncpg_timeout_cancels(conn):
    try:
        await conn.fetch("select pg_sleep(600)", timeout=1)
        raise AssertionError("a timeout was expected")
    except asyncio.TimeoutError:
        pass
    same(1, await conn.fetchval("select 1"))


async def asyncpg_copy(conn):
    with tempfile.NamedTemporaryFile() as file:
        file.write(b"".join(b"%d\trow %d\n" % (n, n) for n in range(1000)))
        file.flush()
        same("COPY 1000", await conn.copy_to_table("drivers", source=file.name, columns=["i", "t"]))
    same(1000, await conn.fetchval("select count(*) from drivers"))


async def asyncpg_many_at_once(conn):
    async def one(number):
        other = await asyncpg.connect(host=HOST, port=PORT, user=USER, database=DATABASE, password=PASSWORD)
        try:
            return [await other.fetchval("select $1::int * 2", n) for n in range(number, number + 20)]
        finally:
            await other.close()

    found = await asyncio.gather(*(one(n) for n in range(40)))
    same([[2 * n for n in range(number, number + 20)] for number in range(40)], found)


with_psycopg()
asyncio.run(with_asyncpg())
checks.finish()
