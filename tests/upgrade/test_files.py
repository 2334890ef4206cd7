"""The SQL files by themselves: names, headers, and the order in which they run."""

from __future__ import annotations

from pathlib import Path

import pytest

from notifyq import schema
from notifyq.database.statements import SCHEMA_VERSION
from notifyq.errors import SchemaError, SchemaTooNewError
from notifyq.schema.files import Migration
from support.database import INIT_FILES, ROOT, session
from upgrade.second import NEXT

MIGRATIONS = sorted((ROOT / "db/migrations").glob("*.sql"))


def names(paths: list[Path]) -> list[str]:
    return [f"{path.parent.name}/{path.name}" for path in paths]


async def test_migrations_lead_without_gaps_to_the_current_version(database: str) -> None:
    versions = [Migration.read(path).version for path in MIGRATIONS]
    assert versions == list(range(2, SCHEMA_VERSION + 1))
    async with session(database) as connection:
        assert await connection.fetchval("select messages.version()") == SCHEMA_VERSION
        assert await schema.installed_version(connection) == SCHEMA_VERSION


@pytest.mark.parametrize("path", [*INIT_FILES, *MIGRATIONS], ids=lambda path: path.name)
def test_files_fit_any_encoding_of_a_database(path: Path) -> None:
    assert path.read_text(encoding="utf-8").isascii()


def test_files_of_a_schema_are_in_the_package_or_in_the_repository() -> None:
    assert names(schema.plan(None)) == names(INIT_FILES)


def test_an_upgrade_runs_migrations_first_and_leaves_state_files_out(second: Path) -> None:
    plan = names(schema.plan(SCHEMA_VERSION, second))
    assert plan[0] == f"migrations/{NEXT:04}_labels.sql"
    assert plan[1:] == names(schema.plan(NEXT, second))
    assert not [name for name in plan if name.startswith(("init/tables/", "tables/"))]
    assert plan[-1] == "init/99_check.sql"


def test_there_is_no_way_back_from_a_later_version() -> None:
    known = f"version 99 is installed, this notifyq knows {SCHEMA_VERSION}"
    with pytest.raises(SchemaTooNewError, match=known):
        schema.plan(99)


def test_a_folder_without_files_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SchemaError, match="there are no SQL files"):
        schema.plan(None, tmp_path)


@pytest.mark.parametrize(
    ("name", "header"),
    [
        ("3_short.sql", "-- breaking: no\n-- needs: owner\n"),
        ("0003_no_needs.sql", "-- breaking: no\n"),
        ("0003_other.sql", "-- breaking: perhaps\n-- needs: owner\n"),
    ],
)
def test_a_migration_without_name_or_header_is_an_error(root: Path, name: str, header: str) -> None:
    (root / "migrations" / name).write_text(header)
    with pytest.raises(SchemaError, match=f"{name} lacks the name or the header"):
        schema.plan(None, root)
