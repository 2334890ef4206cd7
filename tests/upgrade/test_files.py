"""The SQL files by themselves: names, headers, and the order in which they run."""

from __future__ import annotations

from pathlib import Path

import pytest

from notifyq import schema
from notifyq.database.sql import SCHEMA_VERSION
from notifyq.errors import SchemaError, SchemaTooNewError
from notifyq.schema.files import Migration
from support.database import INIT_FILES, ROOT, session

MIGRATIONS = sorted((ROOT / "db/migrations").iterdir())


def names(paths: list[Path]) -> list[str]:
    return [f"{path.parent.name}/{path.name}" for path in paths]


def test_migrations_are_numbered_without_gaps_from_the_second_version() -> None:
    versions = [Migration.read(path).version for path in MIGRATIONS]
    assert versions == list(range(2, len(MIGRATIONS) + 2))


@pytest.mark.parametrize("path", MIGRATIONS, ids=lambda path: path.name)
def test_migration_says_what_it_does(path: Path) -> None:
    header = path.read_text(encoding="utf-8").split("\n\n")[0].splitlines()
    fields = [line[3:].partition(":")[0] for line in header]
    assert fields[1:] == ["breaking", "needs", "", "owns", "writes", "calls", "raises"]


async def test_the_last_migration_is_the_version_that_everybody_means(database: str) -> None:
    last = Migration.read(MIGRATIONS[-1]).version
    async with session(database) as connection:
        assert await connection.fetchval("select messages.version()") == last
        assert await schema.installed_version(connection) == last
    assert last == SCHEMA_VERSION


@pytest.mark.parametrize("path", [*INIT_FILES, *MIGRATIONS], ids=lambda path: path.name)
def test_files_fit_any_encoding_of_a_database(path: Path) -> None:
    assert path.read_text(encoding="utf-8").isascii()


def test_files_of_a_schema_are_in_the_package_or_in_the_repository() -> None:
    assert names(schema.plan(None)) == names(INIT_FILES)


def test_an_upgrade_runs_migrations_first_and_leaves_state_files_out() -> None:
    plan = names(schema.plan(1))
    assert plan[0] == "migrations/0002_redrive.sql"
    assert plan[len(MIGRATIONS) :] == names(schema.plan(SCHEMA_VERSION))
    assert not [name for name in plan if name.startswith("init/tables/")]
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
    with pytest.raises(SchemaError, match=f"{name} has not the name or not the header"):
        schema.plan(None, root)
