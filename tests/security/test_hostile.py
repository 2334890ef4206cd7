"""A role without grants is refused each kind of statement, on each table and view."""

from __future__ import annotations

import os
from pathlib import Path

import asyncpg
import pytest

from support.database import Connection

_STATEMENTS = Path(__file__).with_name("hostile.sql")
_RELATIONS = """
select c.oid::regclass::text
from pg_class as c
where c.relnamespace in ('messages'::regnamespace, 'notifyq'::regnamespace)
  and c.relkind in ('r', 'p', 'v')
order by 1
"""


async def test_a_role_without_grants_is_refused_each_statement(connection: Connection) -> None:
    relations = [row[0] for row in await connection.fetch(_RELATIONS)]
    lines = _STATEMENTS.read_text(encoding="utf-8").splitlines()
    text = "\n".join(line for line in lines if not line.startswith("--"))
    tried = {it.format(relation=of) for it in text.split(";\n") for of in relations if it.strip()}
    assert len(tried) > 9 * len(relations) > 50
    name = f"notifyq_test_hostile_{os.getpid()}"
    await connection.execute(f"create role {name}")
    try:
        await connection.execute(f"set role {name}")
        for statement in tried:
            # These a superuser may do, under whatever role.
            if not statement.startswith(("set role", "grant notifyq_worker")):
                with pytest.raises(asyncpg.InsufficientPrivilegeError):
                    await connection.execute(statement)
    finally:
        await connection.execute("reset role")
        await connection.execute(f"drop role {name}")
