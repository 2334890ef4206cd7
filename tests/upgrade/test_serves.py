"""Packages of a version work with a later schema that serves them: it knows all that they send."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from notifyq import schema
from notifyq.database import statements as sql
from notifyq.database.statements import SCHEMA_VERSION
from notifyq.errors import SchemaTooNewError, SchemaTooOldError
from notifyq.queues import admin as queues
from notifyq.queues.admin import check_versions
from notifyq.schema.files import Files, Migration
from notifyq.streams import admin as streams
from support.database import Connection, session

RELEASED = sorted(Path(__file__).parent.glob("released/[0-9]*"))
"""A folder for each released version that is not this one; see db/migrations/README.md."""
CHANNELS = {
    *("NEW_MESSAGE", "DEAD_MESSAGE", "FINISHED_MESSAGE", "CANCELLED_MESSAGE"),
    *("MESSAGE_OUTPUT", "NEW_EVENT"),
}


def statements_of(folder: Path | None) -> dict[str, str]:
    """Return the statements of a released version or of this one, by their names."""
    if folder is not None:
        found: dict[str, str] = json.loads((folder / "statements.json").read_text(encoding="ascii"))
        return found
    constants = {**vars(sql), **vars(queues), **vars(streams)}
    return {
        name: it
        for name, it in constants.items()
        if name.isupper() and isinstance(it, str) and name not in CHANNELS
    }


async def shapes(connection: Connection, statements: dict[str, str]) -> dict[str, Any]:
    """Return what each statement takes and gives, with the names of types."""
    found = {}
    for name, text in statements.items():
        prepared = await connection.prepare(text)
        found[name] = (
            [type_.name for type_ in prepared.get_parameters()],
            {(column.name, column.type.name) for column in prepared.get_attributes()},
        )
    return found


@pytest.mark.parametrize(
    "folder", [None, *RELEASED], ids=lambda folder: folder.name if folder else "this"
)
async def test_a_later_schema_knows_every_statement_of_a_package(
    empty_database: str, second: Path, folder: Path | None
) -> None:
    """Of this package the second schema, and of released ones this schema."""
    statements = statements_of(folder)
    async with session(empty_database) as connection:
        await schema.install(connection, folder)
        before = await shapes(connection, statements)
        await schema.upgrade(connection, None if folder else second)
        after = await shapes(connection, statements)
    assert len(before) > 50
    for name, (takes, gives) in before.items():
        assert after[name][0] == takes, name
        assert after[name][1] >= gives, name


async def test_the_files_and_statements_of_each_version_before_are_kept(
    connection: Connection,
) -> None:
    """Else the way from there to here, or what its packages send, would not be tried."""
    assert [int(folder.name) for folder in RELEASED] == list(range(1, SCHEMA_VERSION))
    broken = [step.version for step in Files.find().migrations if step.is_breaking]
    serves = await connection.fetchval("select notifyq.oldest_client()")
    assert max(broken, default=1) <= serves <= SCHEMA_VERSION


def test_a_breaking_migration_is_declared(root: Path) -> None:
    path = root / "migrations/0099_contract.sql"
    path.write_text("-- breaking: yes\n-- needs: owner\n")
    assert Migration.read(path).is_breaking


def test_versions_that_fit_and_those_that_do_not() -> None:
    check_versions(SCHEMA_VERSION, SCHEMA_VERSION)
    check_versions(SCHEMA_VERSION + 5, SCHEMA_VERSION)
    needed = f"^version 0 of the schema is installed, {SCHEMA_VERSION} is needed: run `notifyq mig"
    with pytest.raises(SchemaTooOldError, match=needed):
        check_versions(0, 0)
    later = (
        f"^version 99 of the schema is installed, which works with packages for schema 98 or "
        f"later; this one is for {SCHEMA_VERSION}: upgrade the package$"
    )
    with pytest.raises(SchemaTooNewError, match=later):
        check_versions(99, 98)
