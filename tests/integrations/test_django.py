"""The Django app: migrations, commands and the sample, whose own tests are Django's TestCases."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from sqlalchemy.engine import make_url

from docs.pages import DOCS, blocks
from notifyq.schema.files import Files
from support.database import ROOT, session, until_equal

SHOP = ROOT / "workers/django_shop"
Manage = Callable[..., str]


@pytest.fixture
def environment(empty_database: str) -> dict[str, str]:
    """Give what the settings of the sample read."""
    where = make_url(empty_database)
    given = {
        "PGHOST": where.host or where.query["host"],
        "PGPORT": where.port or where.query.get("port"),
        "PGUSER": where.username,
        "PGPASSWORD": where.password,
        "PGDATABASE": where.database,
        "PYTHONWARNINGS": "error",
    }
    kept = {name: value for name, value in os.environ.items() if not name.startswith("NOTIFYQ_")}
    return kept | {name: str(value) for name, value in given.items() if value is not None}


@pytest.fixture
def manage(environment: dict[str, str]) -> Manage:
    """Give a function that runs manage.py and returns what it prints."""

    def manage(*args: str, code: int = 0) -> str:
        done = subprocess.run(
            [sys.executable, "manage.py", *args],
            cwd=SHOP, env=environment, capture_output=True, text=True, check=False, timeout=50,
        )  # fmt: skip
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr

    return manage


@pytest.fixture
def migrated(manage: Manage, empty_database: str) -> str:
    manage("migrate")
    return empty_database


def fetch(dsn: str, query: str) -> list[Any]:
    with psycopg.connect(dsn) as connection:
        return connection.execute(query.encode()).fetchall()


def test_migrate_installs_the_schema_and_running_it_again_is_harmless(
    manage: Manage, migrated: str
) -> None:
    queues = "select name, max_attempts from messages.queue order by name"
    created = [("cleanup", 1), ("default", 1), ("mail", 3)]
    assert fetch(migrated, "select messages.version()") == [(Files.find().version,)]
    assert fetch(migrated, queues) == created
    [(published,)] = fetch(migrated, "select messages.publish('mail', '1')")
    assert "No migrations to apply" in manage("migrate")
    # Its reverse leaves the schema, and the next run upgrades it.
    manage("migrate", "notifyq", "zero")
    manage("migrate")
    assert fetch(migrated, "select id from messages.message") == [(published,)]
    assert fetch(migrated, queues) == created
    manage("makemigrations", "--check", "--dry-run")


def test_each_version_of_the_schema_has_a_migration() -> None:
    folder = ROOT / "src/notifyq/contrib/django/migrations"
    names = sorted(path.stem for path in folder.glob("[0-9]*.py"))
    assert names == [f"{it:04}_schema_{it}" for it in range(1, Files.find().version + 1)]


@pytest.mark.timeout(120)
def test_the_tests_of_the_sample_pass(manage: Manage) -> None:
    """They run in the test database that Django makes, each in a transaction."""
    assert "Ran 5 tests" in manage("test", "--noinput")


def test_every_command_runs_on_the_database_of_django(manage: Manage, migrated: str) -> None:
    assert "cleanup" in manage("notifyq", "queues")
    assert manage("notifyq", "publish", "cleanup", '"bob"') == "1\n"
    assert "no such command" in manage("notifyq", "absent", code=2).lower()
    assert fetch(migrated, "select message from messages.message") == [("bob",)]
    code = "from django.core.management import call_command; print([call_command('notifyq', 'ls')])"
    assert "cleanup" in manage("shell", "-v", "0", "-c", code)


@pytest.fixture
def worker(environment: dict[str, str], migrated: str) -> Iterator[subprocess.Popen[str]]:
    """Run a worker of the sample; it must stop cleanly."""
    assert migrated
    with subprocess.Popen(
        [sys.executable, "manage.py", "notifyq", "worker", "--grace", "5s"],
        cwd=SHOP, env=environment, stderr=subprocess.PIPE, text=True,
    ) as worker:  # fmt: skip
        try:
            yield worker
        finally:
            worker.send_signal(signal.SIGTERM)
            _, errors = worker.communicate(timeout=40)
            assert worker.returncode == 0, errors


@pytest.mark.timeout(120)
async def test_a_worker_runs_tasks_and_handlers(
    worker: subprocess.Popen[str], manage: Manage, migrated: str
) -> None:
    assert worker.poll() is None
    code = (
        "from shop.models import Order; from shop.tasks import confirm; "
        "[confirm.enqueue(Order.objects.create(customer=it).pk) for it in ('a@b.test', 'c')]"
    )
    manage("shell", "-v", "0", "-c", code)
    async with session(migrated) as connection:

        async def ended() -> list[Any]:
            rows = await connection.fetch(
                "select queue, status::text, result from messages.message_archive order by id"
            )
            return [tuple(row) for row in rows]

        confirmed = ("mail", "success", "mail to a@b.test")
        await until_equal(ended, [confirmed], "the order is confirmed", 30)
        await connection.execute("select messages.publish('cleanup', '\"c\"')")
        forgotten = ("cleanup", "success", 1)
        await until_equal(ended, [confirmed, forgotten], "the other one is deleted", 30)
        assert await connection.fetchval("select customer from shop_order") == "a@b.test"
        assert "c is no address" in await connection.fetchval(
            "select details from messages.message where queue = 'mail'"
        )


def test_the_page_shows_parts_of_the_sample() -> None:
    sources = [path.read_text(encoding="utf-8") for path in SHOP.rglob("*.py")]
    shown = blocks(DOCS / "integrations/django.md", "python")
    assert shown
    for block in shown:
        for part in block.text.strip().split("\n\n\n"):
            assert any(part in text for text in sources), f"line {block.line}: {part}"
