"""Alembic: autogenerate leaves our schemas alone, and revisions run our scripts."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from alembic import command
from alembic.autogenerate import produce_migrations
from alembic.config import Config
from alembic.migration import MigrationContext
from sqlalchemy.ext.asyncio import create_async_engine

from integrations.connections import url
from notifyq import schema
from notifyq.contrib.alembic import include_name, include_object

_ENV = """
from alembic import context

from notifyq.contrib.alembic import include_name, include_object

options = context.config.attributes
context.configure(
    connection=options.get("connection"),
    url=context.config.get_main_option("sqlalchemy.url"),
    dialect_name="postgresql",
    include_schemas=True,
    include_name=include_name,
    include_object=include_object,
)
with context.begin_transaction():
    context.run_migrations()
"""
_REVISION = """
from pathlib import Path

from alembic import op
from notifyq.contrib.alembic import run_script

revision, down_revision = "{revision}", {before}


def upgrade():
    {do}
"""


@pytest.fixture
def config(tmp_path: Path) -> Config:
    """Give a folder of revisions: a table of the user's around our script."""
    versions = tmp_path / "versions"
    versions.mkdir()
    (tmp_path / "env.py").write_text(_ENV)
    script = f"run_script(op, Path({str(tmp_path / 'notifyq.sql')!r}).read_text())"
    steps = ['op.execute("create table before ()")', script, 'op.execute("create table after ()")']
    for number, do in enumerate(steps):
        before = repr(str(number - 1)) if number else None
        text = _REVISION.format(revision=number, before=before, do=do)
        (versions / f"{number}.py").write_text(text)
    config = Config()
    config.set_main_option("script_location", str(tmp_path))
    config.set_main_option("path_separator", "os")
    return config


def installed(dsn: str) -> Any:
    """Return the version, and the tables of the user's."""
    with psycopg.connect(dsn) as connection:
        version = connection.execute("select messages.version()").fetchone()
        tables = connection.execute(
            "select array_agg(relname order by relname) from pg_class "
            "where relnamespace = 'public'::regnamespace and relkind = 'r'"
        ).fetchone()
    assert version is not None
    assert tables is not None
    return version[0], tables[0]


INSTALLED = (schema.files.Files.find().version, ["after", "alembic_version", "before"])


def test_a_revision_installs_the_schema(
    config: Config, tmp_path: Path, empty_database: str
) -> None:
    (tmp_path / "notifyq.sql").write_text(schema.script(None))
    engine = sa.create_engine(url(empty_database, "psycopg"))
    with engine.begin() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, "head")
    engine.dispose()
    assert installed(empty_database) == INSTALLED


def test_a_revision_upgrades_the_schema(config: Config, tmp_path: Path, database: str) -> None:
    """Here from the newest version: functions are replaced, and what is lost comes back."""
    (tmp_path / "notifyq.sql").write_text(schema.script(INSTALLED[0]))
    engine = sa.create_engine(url(database, "psycopg"))
    with engine.begin() as connection:
        connection.execute(sa.text("drop function messages.version()"))
        config.attributes["connection"] = connection
        command.upgrade(config, "head")
    engine.dispose()
    assert installed(database) == INSTALLED


async def test_a_revision_runs_on_an_async_engine(
    config: Config, tmp_path: Path, empty_database: str
) -> None:
    (tmp_path / "notifyq.sql").write_text(schema.script(None))
    engine = create_async_engine(url(empty_database, "asyncpg"))

    def run(connection: sa.Connection) -> None:
        config.attributes["connection"] = connection
        command.upgrade(config, "head")

    async with engine.begin() as connection:
        await connection.run_sync(run)
    await engine.dispose()
    assert installed(empty_database) == INSTALLED


def test_a_failed_upgrade_leaves_nothing(
    config: Config, tmp_path: Path, empty_database: str
) -> None:
    (tmp_path / "notifyq.sql").write_text(schema.script(None) + "select 1 / 0;\n")
    engine = sa.create_engine(url(empty_database, "psycopg"))
    with engine.connect() as connection:
        config.attributes["connection"] = connection
        with pytest.raises(sa.exc.DataError):
            command.upgrade(config, "head")
    with engine.connect() as connection:
        assert not sa.inspect(connection).has_table("before")
        assert "messages" not in sa.inspect(connection).get_schema_names()
    engine.dispose()


def test_the_script_is_a_part_of_the_output(
    config: Config, tmp_path: Path, empty_database: str
) -> None:
    (tmp_path / "notifyq.sql").write_text(schema.script(None))
    config.output_buffer = output = io.StringIO()
    config.set_main_option("sqlalchemy.url", "postgresql://")
    command.upgrade(config, "head", sql=True)
    text = output.getvalue()
    assert text.count("BEGIN;") == text.count("COMMIT;") == 1
    with psycopg.connect(empty_database, autocommit=True) as connection:
        connection.execute(text.encode())
    assert installed(empty_database) == INSTALLED


@pytest.mark.filterwarnings("ignore:Did not recognize type")
@pytest.mark.parametrize("spared", [True, False], ids=["with", "without"])
def test_autogenerate_leaves_our_schemas_alone(database: str, spared: bool) -> None:
    """Without it, our tables would be dropped."""
    own = sa.MetaData()
    sa.Table("invoice", own, sa.Column("number", sa.Integer))
    # A mapped table of ours, for reading.
    sa.Table("queue", own, sa.Column("name", sa.Text), schema="messages")
    with psycopg.connect(database) as setup:
        setup.execute("create schema billing create table billing.paid (number int)")
    engine = sa.create_engine(url(database, "psycopg"))
    options: dict[str, Any] = {"include_schemas": True}
    if spared:
        options |= {"include_name": include_name, "include_object": include_object}
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts=options)
        found = produce_migrations(context, own).upgrade_ops
    engine.dispose()
    assert found is not None
    operations = {(type(it).__name__, getattr(it, "schema", None)) for it in found.ops}
    wanted = {("CreateTableOp", None), ("DropTableOp", "billing")}
    assert operations == wanted if spared else operations > wanted
