#!/usr/bin/env python3
"""`pg_dump` of a database, which is restored into other servers of the same kind and into a PostgreSQL; and of a PostgreSQL's database.

Usage: with-server.sh [options of `ums serve`] -- python3 dump.py [options of `ums serve`]. The options are for the servers into which
the database is restored. Needs psql, pg_dump and pg_restore. Without the programs of a PostgreSQL 15 or later, that part is left out.
"""

import difflib
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from owned import Server
from statements import BINARIES, PostgreSql
from wire import Checks

SCHEMA = """
create table customers (id serial primary key, name varchar(40) not null, email text unique, born date, balance numeric(10,2) default 0,
    active boolean not null default true, created timestamptz default now(), constraint named check (name <> ''));
create table orders (id bigint generated always as identity primary key, customer int not null references customers(id) on delete cascade,
    placed timestamp, note text default 'none', total double precision check (total >= 0), big bigint, r real, j jsonb, u uuid, raw bytea,
    i interval, t time, s smallint, c char(5));
create table "Odd Names" ("Key" int, "order" int, "a""b" text default 'it''s', constraint "The Key" primary key ("Key", "order"));
create table refs (x int, y int, foreign key (x, y) references "Odd Names" ("Key", "order") on update cascade on delete set null);
create table unused (id serial primary key, a text);
create table plain (a int, b text, doubled int generated always as (a * 2) stored);
create index orders_placed on orders (placed desc, customer);
create unique index orders_big on orders (big) where big is not null;
create index on customers (lower(name));
create view rich as select c.id, c.name, count(o.id) as orders from customers c left join orders o on o.customer = c.id
    where c.balance > 100 group by c.id, c.name;
create view all_rich (key, title) as select id, upper(name) from rich;
insert into customers (name, email, born, balance) values ('Ada', 'a@x', '1990-01-02', 12.5), ('Bob', null, null, 1000),
    (E'tab\\there \\\\ and "quotes"', 'ü@€', '2020-02-29', -0.01);
insert into customers (id, name) values (10, 'later');
delete from customers where id = 10;
insert into orders (customer, placed, total, big, r, j, u, raw, i, t, s, c) values
    (1, '2020-01-01 10:00:00.5', 1.5, 12345678901, 0.5, '{"a": [1, null]}', 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11', '\\x00ff', '1 day 02:00', '12:00', 7, 'abc'),
    (2, null, null, null, null, null, null, null, null, null, null, null);
insert into "Odd Names" values (1, 2, default), (3, 4, null);
insert into refs values (1, 2), (null, null);
insert into plain (a, b) select i, 'row ' || i from generate_series(1, 5000) as i;
"""

TABLES = {
    "customers": "id, name, email, born, balance, active, created",
    "orders": "id, customer, placed, note, total, big, r, j, u, raw, i, t, s, c",
    '"Odd Names"': '"Key", "order", "a""b"',
    "refs": "x, y",
    "unused": "id, a",
    "plain": "a, b, doubled",
    "rich": "id, name, orders",
    "all_rich": "key, title",
}

checks = Checks()


def check(what, found, expected=True):
    checks.that(what, found == expected, f"{found!r}, not {expected!r}")


class Database:
    """A database of a server."""

    def __init__(self, port, name="ums"):
        self.of = {"PGHOST": "127.0.0.1", "PGPORT": str(port), "PGUSER": "ums", "PGDATABASE": name, "PGTZ": "UTC", "PATH": os.environ["PATH"]}

    def run(self, *command, given=None):
        """Returns what the command prints, and what it says is wrong."""
        done = subprocess.run(command, env=self.of, input=given, capture_output=True, text=True, timeout=120)
        return done.stdout, done.stderr + ("" if done.returncode == 0 else f"exit code {done.returncode}")

    def ask(self, text):
        said, wrong = self.run("psql", "-XAtq", "-v", "ON_ERROR_STOP=1", given=text)
        return wrong or said

    def restore(self, text):
        return self.run("psql", "-Xq", "-o", "/dev/null", "-v", "ON_ERROR_STOP=1", given=text)[1]

    def dump(self, *options):
        """Returns what pg_dump writes, without the lines that differ each time."""
        text, wrong = self.run("pg_dump", *options)
        check(f"pg_dump {' '.join(options)}", wrong, "")
        return "".join(line for line in text.splitlines(True) if "restrict " not in line)

    def rows(self):
        return {table: sorted(self.ask(f"copy (select {columns} from {table}) to stdout;").splitlines()) for table, columns in TABLES.items()}


def works(database, number=11):
    """The keys, checks and numbers of a restored database have effect; the next customer has this number. Changes the database."""

    def state(text):
        return database.run("psql", "-XAtq", "-v", "VERBOSITY=sqlstate", "-c", text)[1].split("\n")[0].removeprefix("ERROR:  ")

    check("the numbers go on", database.ask("insert into customers (name) values ('next') returning id, balance, active;"), f"{number}|0.00|t\n")
    check("and those of the other table", database.ask("insert into orders (customer) values (1) returning id, note;"), "3|none\n")
    check("and those of a table without rows", database.ask("insert into unused (a) values ('first') returning id;"), "1\n")
    check("a default with a quote", database.ask('insert into "Odd Names" values (9, 9) returning "a""b";'), "it's\n")
    check("a key", state("insert into customers (id, name) values (1, 'x')"), "23505")
    check("a key of two columns", state('insert into "Odd Names" values (1, 2)'), "23505")
    check("a unique column", state("insert into customers (name, email) values ('x', 'a@x')"), "23505")
    check("a partial index", state("insert into orders (customer, big) values (1, 12345678901)"), "23505")
    check("a check with a name", state("insert into customers (name) values ('')"), "23514")
    check("a check of a column", state("insert into orders (customer, total) values (1, -1)"), "23514")
    check("not null", state("insert into customers (name) values (null)"), "23502")
    check("a length", state("insert into customers (name) values (repeat('x', 41))"), "22001")
    check("a foreign key", state("insert into orders (customer) values (77)"), "23503")
    check("what it does", database.ask("delete from customers where id = 1; select count(*) from orders;"), "1\n")
    check("another's", database.ask('update "Odd Names" set "Key" = 5 where "Key" = 1; select x from refs where y = 2;'), "5\n")


def into_another(source, dump, *options):
    with tempfile.TemporaryDirectory() as folder:
        with Server(f"{folder}/plain.db", *options) as server:
            other = Database(server.port)
            check("restores", other.restore(dump), "")
            check("the rows", other.rows(), source.rows())
            check("the same dump", list(difflib.unified_diff(dump.splitlines(), other.dump().splitlines(), n=0, lineterm="")), [])
            check("a dump that drops first", other.restore(source.dump("--clean", "--if-exists")), "")
            check("the rows again", other.rows(), source.rows())
            works(other)
        with Server(f"{folder}/custom.db", *options) as server:
            other = Database(server.port)
            check("pg_dump -Fc", source.run("pg_dump", "-Fc", "-f", f"{folder}/file")[1], "")
            check("pg_restore", other.run("pg_restore", "-d", "ums", f"{folder}/file")[1], "")
            check("the rows of -Fc", other.rows(), source.rows())
        with Server(f"{folder}/inserts.db", *options) as server:
            other = Database(server.port)
            # An INSERT has no DEFAULT for a computed column here.
            check("restores inserts", other.restore(source.dump("--inserts", "-T", "plain")), "")
            check("the rows of inserts", other.rows() | {"plain": []}, source.rows() | {"plain": []})


def into_postgresql(source, dump):
    with PostgreSql() as server:
        other = Database(server.port, "postgres")
        check("restores into PostgreSQL", other.restore(dump), "")
        check("the rows in PostgreSQL", other.rows(), source.rows())
        works(other)


def from_postgresql(*options):
    """A dump of a PostgreSQL is restored into a server."""
    with PostgreSql() as server, tempfile.TemporaryDirectory() as folder, Server(f"{folder}/moved.db", *options) as target:
        source, other = Database(server.port, "postgres"), Database(target.port)
        check("the schema in PostgreSQL", source.restore(SCHEMA), "")
        check("restores from PostgreSQL", other.restore(source.dump()), "")
        check("the rows from PostgreSQL", other.rows(), source.rows())
        works(other, 4)  # There, a number that a statement gives does not count.


def main():
    source = Database(os.environ["UMS_PORT"])
    check("the schema", source.restore(SCHEMA), "")
    check("nothing is left out", [table for table, rows in source.rows().items() if not rows], ["unused"])
    dump = source.dump()
    check("one table", "CREATE TABLE public.plain" in (one := source.dump("-t", "plain")) and "customers" not in one)
    into_another(source, dump, *sys.argv[1:])
    if (BINARIES / "postgres").exists():
        into_postgresql(source, dump)
        from_postgresql(*sys.argv[1:])
    else:
        print("no PostgreSQL 15 here: nothing restored into one, nor from one")
    checks.finish()


if __name__ == "__main__":
    main()
