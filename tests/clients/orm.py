#!/usr/bin/env python3
"""SQLAlchemy 2 with psycopg and asyncpg: creates tables, stores objects, reads them, changes them, and reads the tables back.

Usage: with-server.sh [options of `ums serve`] -- python3 orm.py. Needs sqlalchemy[asyncio], psycopg and asyncpg.
"""

import asyncio
import os
import uuid
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Optional

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, joinedload, mapped_column, relationship, selectinload
from wire import Checks

SERVER = f"ums@127.0.0.1:{os.environ['UMS_PORT']}/ums"
checks = Checks()


class Base(DeclarativeBase):
    pass


class User(Base):
    __tablename__ = "users"
    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(sa.String(30))
    full: Mapped[Optional[str]]
    born: Mapped[Optional[date]]
    score: Mapped[Optional[Decimal]] = mapped_column(sa.Numeric(8, 2))
    ok: Mapped[bool] = mapped_column(default=True)
    at: Mapped[Optional[datetime]] = mapped_column(sa.DateTime(timezone=True), server_default=sa.func.now())
    addresses: Mapped[list["Address"]] = relationship(back_populates="user", cascade="all, delete-orphan")


class Address(Base):
    __tablename__ = "addresses"
    id: Mapped[int] = mapped_column(primary_key=True)
    email: Mapped[str] = mapped_column(unique=True)
    user_id: Mapped[int] = mapped_column(sa.ForeignKey("users.id"))
    user: Mapped["User"] = relationship(back_populates="addresses")
    __table_args__ = (sa.Index("ix_user", "user_id"), sa.CheckConstraint("email <> ''", name="email_not_empty"))


class Value(Base):
    __tablename__ = "kinds"
    id: Mapped[int] = mapped_column(primary_key=True)
    data: Mapped[Optional[dict]] = mapped_column(sa.JSON)
    raw: Mapped[Optional[bytes]]
    real: Mapped[Optional[float]]
    big: Mapped[Optional[int]] = mapped_column(sa.BigInteger)
    clock: Mapped[Optional[time]]
    span: Mapped[Optional[timedelta]]
    key: Mapped[Optional[uuid.UUID]]


def check(what, found, expected=True):
    checks.that(what, found == expected, f"{found!r}, not {expected!r}")


def ann():
    return User(name="ann", born=date(2000, 1, 2), score=Decimal("12.50"), addresses=[Address(email="a@x"), Address(email="b@x")])


def stores(engine):
    with Session(engine) as s:
        one = ann()
        s.add_all([one, User(name="bob")])
        s.commit()
        check("serial numbers and values", (one.id, one.score, one.at.tzinfo is not None), (1, Decimal("12.50"), True))
        s.add_all([User(name=f"u{i}", score=i) for i in range(1000)])
        s.commit()
        check("a bulk insert", s.scalar(sa.select(sa.func.count()).select_from(User)), 1002)
    with engine.begin() as c:
        rows = c.execute(sa.insert(User).returning(User.id), [{"name": f"w{i}"} for i in range(5)]).all()
        check("RETURNING of a bulk insert", len(rows), 5)
        c.execute(insert(User).values(id=2, name="x").on_conflict_do_update(index_elements=["id"], set_={"name": "bobby"}))
        check("ON CONFLICT", c.execute(sa.select(User.name).where(User.id == 2)).scalar(), "bobby")


def reads(engine):
    with Session(engine) as s:
        found = s.scalars(sa.select(User).where(User.name.in_(["ann", "bobby"])).order_by(User.id)).all()
        check("IN and ORDER BY", [user.name for user in found], ["ann", "bobby"])
        check("a relationship", [address.email for address in found[0].addresses], ["a@x", "b@x"])
        for option in (selectinload, joinedload):
            eager = sa.select(User).options(option(User.addresses)).where(User.id == 1)
            check(option.__name__, len(s.scalars(eager).unique().one().addresses), 2)
        joined = sa.select(User.name, sa.func.count(Address.id)).join(Address, isouter=True).group_by(User.name)
        check("a join in groups", s.execute(joined.having(sa.func.count(Address.id) > 0)).all(), [("ann", 2)])
        check("a sum", s.scalar(sa.select(sa.func.sum(User.score)).where(User.id < 3)), Decimal("12.50"))
        check("ILIKE", s.scalars(sa.select(User.name).where(User.name.ilike("AN%"))).all(), ["ann"])
        check("extract", s.scalar(sa.select(sa.extract("year", User.born)).where(User.id == 1)), 2000)
        check("LIMIT and OFFSET", len(s.scalars(sa.select(User).order_by(User.name.desc()).limit(3).offset(1)).all()), 3)
    with engine.connect() as c:
        streamed = c.execution_options(stream_results=True, yield_per=100).execute(sa.select(User.id))
        check("rows in portions", sum(1 for _ in streamed), 1007)


def changes(engine):
    with Session(engine) as s:
        one = s.get(User, 1)
        one.full = "Ann A"
        s.commit()
        s.refresh(one)
        check("an update", one.full, "Ann A")
        s.execute(sa.update(User).where(User.name.like("u%")).values(ok=False))
        s.commit()
        check("an update of many", s.scalar(sa.select(sa.func.count()).where(User.ok.is_(False))), 1000)
        with s.begin_nested():
            s.add(User(name="within a savepoint"))
        s.delete(one)
        s.commit()
        check("a deletion that cascades", s.scalar(sa.select(sa.func.count()).select_from(Address)), 0)
        s.add(Address(email="q", user_id=99999))
        try:
            s.commit()
            check("a foreign key", False)
        except sa.exc.IntegrityError as error:
            check("a foreign key", type(error.orig).__name__, "ForeignKeyViolation")


def keeps_types(engine):
    given = dict(data={"a": [1, 2]}, raw=b"\x00\xff", real=1.5, big=2**40, clock=time(1, 2, 3), span=timedelta(hours=3), key=uuid.UUID(int=5))
    with Session(engine) as s:
        s.add(Value(**given))
        s.commit()
        s.expire_all()
        one = s.scalars(sa.select(Value)).one()
        check("values of all types", {name: getattr(one, name) for name in given}, given)


def reflects(engine):
    tables = sa.MetaData()
    tables.reflect(engine)
    check("the tables", sorted(tables.tables), ["addresses", "kinds", "users"])
    columns = [(column.name, str(column.type), column.nullable) for column in tables.tables["users"].columns]
    check("columns", columns[1:5], [("name", "VARCHAR(30)", False), ("full", "VARCHAR", True), ("born", "DATE", True), ("score", "NUMERIC(8, 2)", True)])
    seen = sa.inspect(engine)
    check("a primary key", seen.get_pk_constraint("addresses")["constrained_columns"], ["id"])
    keys = [(key["constrained_columns"], key["referred_table"], key["referred_columns"]) for key in seen.get_foreign_keys("addresses")]
    check("a foreign key", keys, [(["user_id"], "users", ["id"])])
    indexes = {index["name"]: (index["column_names"], index["unique"]) for index in seen.get_indexes("addresses")}
    check("indexes", indexes, {"ix_user": (["user_id"], False), "addresses_email_key": (["email"], True)})
    check("unique constraints", [key["column_names"] for key in seen.get_unique_constraints("addresses")], [["email"]])
    check("checks", [one["name"] for one in seen.get_check_constraints("addresses")], ["email_not_empty"])
    check("has_table", (seen.has_table("users"), seen.has_table("nowhere")), (True, False))


async def asynchronous():
    engine = create_async_engine(f"postgresql+asyncpg://{SERVER}")
    async with engine.begin() as c:
        await c.run_sync(Base.metadata.create_all)
    async with AsyncSession(engine, expire_on_commit=False) as s:
        s.add(ann())
        s.add_all([User(name=f"u{i}") for i in range(300)])
        await s.commit()
        found = (await s.scalars(sa.select(User).where(User.id.in_([1, 2])).order_by(User.id))).all()
        check("asyncpg: rows", [(user.name, user.score) for user in found], [("ann", Decimal("12.50")), ("u0", None)])
        any_of = sa.text("select count(*) from users where id = any(:ids)").bindparams(ids=[1, 2, 3])
        check("asyncpg: = ANY of a list", await s.scalar(any_of), 3)
        check("asyncpg: a count", await s.scalar(sa.select(sa.func.count()).select_from(User)), 301)
    async with engine.begin() as c:
        tables = sa.MetaData()
        await c.run_sync(tables.reflect)
        check("asyncpg: the tables", sorted(tables.tables), ["addresses", "kinds", "users"])
        await c.run_sync(Base.metadata.drop_all)
    await engine.dispose()


def main():
    engine = sa.create_engine(f"postgresql+psycopg://{SERVER}")
    Base.metadata.create_all(engine)
    Base.metadata.create_all(engine)
    for step in (stores, reads, changes, keeps_types, reflects):
        step(engine)
    Base.metadata.drop_all(engine)
    check("drop_all", sa.inspect(engine).get_table_names(), [])
    engine.dispose()
    asyncio.run(asynchronous())
    checks.finish()


main()
