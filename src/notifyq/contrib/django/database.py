"""The database of Django that has the messages, as NOTIFYQ in the settings names it."""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING, Any

from django.conf import settings
from django.db import connections

from notifyq import schema
from notifyq.config import DatabaseSettings
from notifyq.database.installs import require_default
from notifyq.database.pool import connect, explaining
from notifyq.dsn import url_of
from notifyq.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Sequence

_OF_PSYCOPG = {"autocommit", "client_encoding", "prepare_threshold"}
"""Parameters of a connection in Python, which libpq does not know."""


def alias() -> str:
    """Return the entry of DATABASES, by default "default"."""
    return str(getattr(settings, "NOTIFYQ", {}).get("DATABASE", "default"))


def connection() -> Any:
    """Return Django's connection of this thread, which is the one of its transactions."""
    require_default("notifyq in Django")
    found = connections[alias()]
    if found.vendor != "postgresql":
        raise ConfigurationError(
            f"the database {alias()!r} of Django is {found.vendor}, and messages live in "
            'PostgreSQL: name another entry of DATABASES, as in NOTIFYQ = {"DATABASE": "name"}'
        )
    return found


def dsn() -> str:
    """Return the DSN of this database; in a test, of the test database."""
    own = connection()
    options = {
        name: str(value)
        for name, value in own.get_connection_params().items()
        if isinstance(value, str | int) and name not in _OF_PSYCOPG
    }
    if role := own.settings_dict["OPTIONS"].get("assume_role"):
        options["options"] = f"{options.get('options', '')} -c role={role}".strip()
    return url_of(options)


def fetch(statement: str, *args: Any) -> list[Any]:
    """Run a statement on Django's connection, in its transaction; return rows by column."""
    order = [int(number) - 1 for number in re.findall(r"\$(\d+)", statement)]
    with connection().cursor() as cursor:
        cursor.execute(re.sub(r"\$\d+", "%s", statement), [args[index] for index in order])
        names = [column[0] for column in cursor.description]
        rows: Sequence[Sequence[Any]] = cursor.fetchall()
    return [dict(zip(names, row, strict=True)) for row in rows]


def install() -> None:
    """Install the schema, or upgrade it to the version of this package.

    It uses a connection and a transaction of its own, which give way to publishers and workers.
    """
    asyncio.run(_install())


async def _install() -> None:
    timeout = DatabaseSettings.load().connect_timeout.total_seconds()
    own = await connect(dsn(), name="notifyq schema", timeout=timeout)
    try:
        with explaining("the database of Django"):
            if await schema.installed_version(own) is None:
                await schema.install(own)
            else:
                await schema.upgrade(own)
    finally:
        await own.close(timeout=5)
