#!/usr/bin/env python3
"""Django with psycopg: `migrate` of its own applications, its models, and `inspectdb`.

Usage: with-server.sh [options of `ums serve`] -- python3 migrations.py. Needs django and psycopg.
"""

import io
import os

import django
from django.conf import settings
from wire import Checks

APPLICATIONS = ["contenttypes", "auth", "sessions", "admin", "messages"]

settings.configure(
    DATABASES={
        "default": {"ENGINE": "django.db.backends.postgresql", "NAME": "ums", "USER": "ums", "HOST": "127.0.0.1", "PORT": os.environ["UMS_PORT"]}
    },
    INSTALLED_APPS=[f"django.contrib.{name}" for name in APPLICATIONS],
    DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
    PASSWORD_HASHERS=["django.contrib.auth.hashers.MD5PasswordHasher"],
    SECRET_KEY="of a test",
    USE_TZ=True,
)
django.setup()

from django.contrib.auth.models import Group, Permission, User  # noqa: E402
from django.core.management import call_command  # noqa: E402
from django.db import IntegrityError, connection, transaction  # noqa: E402
from django.db.models import Count, F, Q  # noqa: E402

checks = Checks()


def check(what, found, expected=True):
    checks.that(what, found == expected, f"{found!r}, not {expected!r}")


def migrates():
    said = io.StringIO()
    call_command("migrate", stdout=said)
    check("all migrations are applied", said.getvalue().count("... OK") > 15)
    call_command("migrate", stdout=(again := io.StringIO()))
    check("they are known", "No migrations to apply" in again.getvalue())
    tables = connection.introspection.table_names()
    check("the tables are seen", {"auth_user", "django_migrations", "django_session"} <= set(tables))


def stores_and_reads():
    ann = User.objects.create_user("ann", "a@x", "secret")
    check("a user", (ann.pk, ann.check_password("secret"), ann.date_joined.tzinfo is not None), (1, True, True))
    User.objects.bulk_create([User(username=f"u{i}") for i in range(50)])
    check("LIKE", User.objects.filter(username__startswith="u1").count(), 11)
    check("the last", User.objects.order_by("-username").first().username, "u9")
    group = Group.objects.create(name="staff")
    ann.groups.add(group)
    group.permissions.set(Permission.objects.all()[:3])
    check("permissions of a group", group.permissions.count(), 3)
    counted = User.objects.annotate(n=Count("groups")).filter(n__gt=0)
    check("a count in groups", list(counted.values_list("username", "n")), [("ann", 1)])
    User.objects.filter(username="u1").update(first_name="X", last_name=F("username"))
    changed = User.objects.get(username="u1")
    check("an update", (changed.first_name, changed.last_name), ("X", "u1"))
    either = User.objects.prefetch_related("groups").filter(Q(username="ann") | Q(email__icontains="z"))
    check("OR and ILIKE", [user.username for user in either], ["ann"])
    check("a part of a time", User.objects.filter(date_joined__year__gte=2000).count(), 51)
    check("get_or_create", [Group.objects.get_or_create(name="more")[1] for _ in range(2)], [True, False])
    try:
        with transaction.atomic():
            User.objects.create(username="ann")
        check("a unique name", False)
    except IntegrityError:
        check("a unique name", True)
    check("raw SQL", User.objects.raw("select * from auth_user where id = %s", [1])[0].username, "ann")


def inspects():
    call_command("inspectdb", "auth_user", stdout=(said := io.StringIO()))
    check("inspectdb", "username = models.CharField(unique=True, max_length=150)" in said.getvalue())
    keys = connection.introspection.get_constraints(connection.cursor(), "auth_user_groups")
    check("foreign keys", sorted(one["foreign_key"] for one in keys.values() if one["foreign_key"]), [("auth_group", "id"), ("auth_user", "id")])


def main():
    for step in (migrates, stores_and_reads, inspects):
        step()
    User.objects.all().delete()
    check("a deletion that cascades", (User.objects.count(), User.groups.through.objects.count()), (0, 0))
    call_command("flush", interactive=False)
    checks.finish()


main()
