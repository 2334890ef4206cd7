"""Old workers and new ones beside each other while the schema is upgraded: nothing is lost."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
from pathlib import Path

import asyncpg
import pytest

from notifyq import schema
from notifyq.database.statements import SCHEMA_VERSION
from support.database import ROOT, Connection, session, until, until_equal
from upgrade.programs import APP, running
from upgrade.second import NEXT


@pytest.fixture
def new(second: Path) -> Path:
    """Give the sources of a package of the second version; they find its SQL files beside them."""
    source = second.with_name("src")
    shutil.copytree(ROOT / "src", source, ignore=shutil.ignore_patterns("__pycache__"))
    statements = source / "notifyq/database/statements.py"
    text, count = re.subn(
        rf"^SCHEMA_VERSION = {SCHEMA_VERSION}$",
        f"SCHEMA_VERSION = {NEXT}",
        statements.read_text(encoding="utf-8"),
        flags=re.MULTILINE,
    )
    assert count == 1
    statements.write_text(text, encoding="utf-8")
    return source


class Load:
    """Publishes as fast as the workers handle, and counts the messages of each worker."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.published = 0
        self.refused = 0
        """Statements that were in the middle of the upgrade: nothing of them was published."""

    async def go_on(self, quantity: int = 200) -> None:
        for _ in range(quantity // 20):
            try:
                await self._connection.execute(
                    "select messages.publish('rolling', to_jsonb(n)) "
                    "from generate_series(1, 20) as n"
                )
            except asyncpg.InternalServerError as error:
                # Between two calls of one statement the function became another one.
                if not str(error).startswith("cache lookup failed for function"):
                    raise
                self.refused += 1
            else:
                self.published += 20
            await until(self._is_nearly_done, "the workers have caught up")

    async def _is_nearly_done(self) -> bool:
        return sum((await self.handled()).values()) >= self.published - 40

    async def handled(self) -> dict[int, int]:
        """Count what the archive has of each worker process."""
        rows = await self._connection.fetch(
            "select split_part(handled_by, ':', 2)::integer, count(*) "
            "from messages.message_archive group by 1"
        )
        return {row[0]: row[1] for row in rows}

    async def drain(self) -> None:
        await until_equal(
            lambda: self._connection.fetchval("select count(*) from messages.message"),
            0,
            "everything is handled",
            30,
        )
        rows = await self._connection.fetch(
            "select status::text, count(*), count(distinct id) from messages.message_archive "
            "group by status"
        )
        assert [tuple(row) for row in rows] == [("success", self.published, self.published)]


async def test_workers_of_the_version_before_go_on_while_it_is_upgraded(
    empty_database: str, new: Path, tmp_path: Path
) -> None:
    (tmp_path / "shop.py").write_text(APP)
    old = ROOT / "src"
    worker = (empty_database, "worker", "shop:app")
    with running(tmp_path, old, empty_database, "init") as init:
        assert await init.ended() == 0, init.output
    async with session(empty_database) as connection, session(empty_database) as owner:
        load = Load(connection)
        assert await schema.installed_version(owner) == SCHEMA_VERSION
        with running(tmp_path, new, *worker) as early:
            assert await early.ended() == 1
            [line] = early.output.splitlines()
            needed = f"version {SCHEMA_VERSION} of the schema is installed, {NEXT} is needed: "
            assert line.startswith(f"notifyq: {needed}")
        with running(tmp_path, old, *worker) as before:
            await before.expect(" has started")
            async with asyncio.TaskGroup() as group:
                group.create_task(load.go_on())
                report = await schema.upgrade(owner, new.with_name("db"))
            assert (report.before, report.version) == (SCHEMA_VERSION, NEXT)
            assert load.refused <= 1
            with running(tmp_path, new, *worker) as after:
                await after.expect(" has started")
                counts = await load.handled()

                async def both_have_handled_more() -> bool:
                    await load.go_on(40)
                    now = await load.handled()
                    pids = (before.process.pid, after.process.pid)
                    return all(now.get(pid, 0) > counts.get(pid, 0) for pid in pids)

                await until(both_have_handled_more, "both kinds of workers handle messages", 20)
                await load.drain()
                for program in (before, after):
                    os.kill(program.process.pid, signal.SIGTERM)
                    assert await program.ended() == 0, program.output
                    assert "Traceback" not in program.output
        # The package is rolled back: its workers start, and it cannot put old code back.
        with running(tmp_path, old, *worker) as late:
            await late.expect(" has started")
            await load.go_on(40)
            await load.drain()
        with running(tmp_path, old, empty_database, "init") as init:
            assert await init.ended() == 1
            assert (
                f"version {NEXT} is installed, this notifyq knows {SCHEMA_VERSION}" in init.output
            )
