"""What the commands print, and scripts that do the same without Python."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

import pytest
import typer
import yaml

from notifyq import schema as migrate
from notifyq.cli import schema
from notifyq.database.statements import SCHEMA_VERSION
from notifyq.errors import SchemaMissingError
from notifyq.server import debian_binaries
from support.database import ROOT, Connection, catalog_lines, session
from upgrade.second import NEXT

T = TypeVar("T")
NOTE = "notifyq: pg_cron does not serve this database: the workers do maintenance\n"


def within(dsn: str, action: Callable[[Connection], Awaitable[T]]) -> T:
    async def run() -> T:
        async with session(dsn) as connection:
            return await action(connection)

    return asyncio.run(run())


def catalog(dsn: str) -> list[str]:
    return within(dsn, catalog_lines)


def noted(dsn: str) -> list[tuple[str, dict[str, int | None]]]:
    rows = within(dsn, lambda it: it.fetch("select * from messages.audit order by id"))
    return [(row["action"], row["details"]) for row in rows]


def where(dsn: str) -> str:
    return dsn.rpartition("/")[2].partition("?")[0] + " on "


def psql(dsn: str, text: str, path: Path) -> subprocess.CompletedProcess[str]:
    binaries = debian_binaries()
    program = shutil.which("psql") or (binaries and shutil.which("psql", path=str(binaries)))
    if not program:
        pytest.skip("there is no psql")
    script = path / "script.sql"
    script.write_text(text, encoding="utf-8")
    return subprocess.run(
        [program, "-X", "-q", "-v", "ON_ERROR_STOP=1", "-f", str(script), dsn],
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
        # A terminal of long ago: the script must not depend on it.
        env={"PGCLIENTENCODING": "LATIN1", "PATH": "/usr/bin:/bin"},
    )


def test_init_reports_its_result(empty_database: str, capsys: pytest.CaptureFixture[str]) -> None:
    schema.init(dsn=empty_database)
    out, err = capsys.readouterr()
    assert out.startswith(
        f"schema messages version {SCHEMA_VERSION} installed in {where(empty_database)}"
    )
    assert err == NOTE
    schema.init(dsn=empty_database)
    out = capsys.readouterr().out
    assert out.startswith(f"version {SCHEMA_VERSION} already installed in {where(empty_database)}")
    assert out.endswith(", nothing changed\n")
    assert noted(empty_database) == [("schema.init", {"before": None, "version": SCHEMA_VERSION})]


def test_migrate_reports_its_result(
    filled: str, second_package: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    schema.migrate(dsn=filled)
    out, err = capsys.readouterr()
    upgraded = (
        f"schema messages upgraded from version {SCHEMA_VERSION} to {NEXT} in {where(filled)}"
    )
    assert out.startswith(upgraded)
    assert err == NOTE
    schema.migrate(dsn=filled, as_json=True)
    report = json.loads(capsys.readouterr().out)
    assert (report["before"], report["version"]) == (NEXT, NEXT)
    assert report["is_changed"] is False
    assert report["notices"] == [NOTE.removeprefix("notifyq: ").strip()]
    assert report["files"] == [str(path) for path in migrate.plan(NEXT)]
    assert noted(filled) == [("schema.migrate", {"before": SCHEMA_VERSION, "version": NEXT})]


def test_a_dry_run_lists_files_and_changes_nothing(
    filled: str, second_package: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = catalog(filled)
    files = [str(path) for path in migrate.plan(SCHEMA_VERSION)]
    schema.migrate(dsn=filled, dry_run=True)
    assert capsys.readouterr().out.splitlines() == files
    schema.migrate(dsn=filled, dry_run=True, as_json=True)
    assert json.loads(capsys.readouterr().out) == {"before": SCHEMA_VERSION, "files": files}
    assert catalog(filled) == before


def test_a_script_upgrades_once(
    filled: str,
    empty_database: str,
    second_package: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    # Through any driver, too.
    within(empty_database, lambda it: it.execute(migrate.script(None)))
    before = catalog(filled)
    schema.migrate(dsn=filled, sql=True)
    text = capsys.readouterr().out
    failed = psql(filled, text.replace("alter table", "select 1 / 0; alter table", 1), tmp_path)
    assert "division by zero" in failed.stderr
    assert catalog(filled) == before
    done = psql(filled, text, tmp_path)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert catalog(filled) == catalog(empty_database)
    again = psql(filled, text, tmp_path)
    assert again.returncode == 3
    refused = f"this script starts from version {SCHEMA_VERSION}, but version {NEXT} is installed"
    assert refused in again.stderr
    # The next script renews the code of the same version.
    assert psql(filled, migrate.script(NEXT), tmp_path).returncode == 0
    assert catalog(filled) == catalog(empty_database)


def test_a_script_installs(
    empty_database: str, database: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    schema.init(sql=True)
    text = capsys.readouterr().out
    done = psql(empty_database, text, tmp_path)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert catalog(empty_database) == catalog(database)
    again = psql(empty_database, text, tmp_path)
    refused = f"this script starts from nothing, but version {SCHEMA_VERSION} is installed"
    assert refused in again.stderr


def test_a_preview_needs_a_schema(empty_database: str) -> None:
    for options in ({"sql": True}, {"dry_run": True}):
        with pytest.raises(SchemaMissingError, match="run `notifyq init`"):
            schema.migrate(dsn=empty_database, **options)


def test_a_script_is_not_json() -> None:
    for command in (
        partial(schema.migrate, as_json=True),
        partial(schema.migrate, dry_run=True),
        partial(schema.init, as_json=True),
    ):
        with pytest.raises(typer.BadParameter):
            command(sql=True)


def test_the_files_for_kubernetes_install_and_upgrade(
    empty_database: str, filled: str, second: Path, tmp_path: Path
) -> None:
    program = tmp_path / "notifyq"
    program.write_text(
        f"#!{sys.executable}\n"
        "from pathlib import Path\n"
        "from notifyq.cli.main import main\n"
        "from notifyq.schema import files\n"
        f"files.sql_root = lambda: Path({str(second)!r})\n"
        "main()\n"
    )
    program.chmod(0o755)
    migration = yaml.safe_load((ROOT / "deploy/kubernetes/migrate.yaml").read_text())
    spec = migration["spec"]["template"]["spec"]
    for dsn in (empty_database, filled):
        for container in (*spec.get("initContainers", ()), *spec["containers"]):
            command = [*container.get("command", ["notifyq"]), *container.get("args", ())]
            path = f"{tmp_path}:{os.environ['PATH']}"
            done = subprocess.run(
                command, check=False, capture_output=True, text=True,
                env={**os.environ, "PATH": path, "NOTIFYQ_DSN": dsn},
            )  # fmt: skip
            assert done.returncode == 0, done.stderr
        assert within(dsn, lambda it: it.fetchval("select messages.version()")) == NEXT
