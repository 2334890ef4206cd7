"""Old workers and new ones beside each other while the schema is upgraded: nothing is lost."""

from __future__ import annotations

import asyncio
import re
import shutil
import signal
from pathlib import Path

import asyncpg
import pytest

from cli.programs import Running
from notifyq import schema
from notifyq.database.statements import SCHEMA_VERSION
from support.database import ROOT, Connection, session, until, until_equal
from upgrade.second import NEXT

APP = """
import notifyq
app = notifyq.App()
@app.handler("rolling")
async def handle(number: int) -> int:
    return number
"""


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

    def running(source: Path, *args: str) -> Running:
        return Running(empty_database, *args, cwd=tmp_path, env={"PYTHONPATH": str(source)})

    old, worker = ROOT / "src", ("worker", "shop:app")
    with running(old, "init") as init:
        assert init.end().code == 0, init.stderr
    async with session(empty_database) as connection, session(empty_database) as owner:
        load = Load(connection)
        assert await schema.installed_version(owner) == SCHEMA_VERSION
        with running(new, *worker) as early:
            refused = early.end()
            needed = f"version {SCHEMA_VERSION} of the schema is installed, {NEXT} is needed: "
            assert (refused.code, refused.err.count("\n")) == (1, 1)
            assert refused.err.startswith(f"notifyq: {needed}")
        with running(old, *worker) as before:
            before.logged(" has started")
            async with asyncio.TaskGroup() as group:
                group.create_task(load.go_on())
                report = await schema.upgrade(owner, new.with_name("db"))
            assert (report.before, report.version) == (SCHEMA_VERSION, NEXT)
            assert load.refused <= 1
            with running(new, *worker) as after:
                after.logged(" has started")
                counts = await load.handled()

                async def both_have_handled_more() -> bool:
                    await load.go_on(40)
                    now = await load.handled()
                    pids = (before.process.pid, after.process.pid)
                    return all(now.get(pid, 0) > counts.get(pid, 0) for pid in pids)

                await until(both_have_handled_more, "both kinds of workers handle messages", 20)
                await load.drain()
                for program in (before, after):
                    stopped = program.stop(signal.SIGTERM)
                    assert stopped.code == 0, stopped
                    assert "Traceback" not in stopped.err
        # The package is rolled back: its workers start, and it cannot put old code back.
        with running(old, *worker) as late:
            late.logged(" has started")
            await load.go_on(40)
            await load.drain()
        with running(old, "init") as init:
            refused = init.end()
        assert refused.code == 1
        assert f"version {NEXT} is installed, this notifyq knows {SCHEMA_VERSION}" in refused.err
