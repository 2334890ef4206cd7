"""The measured systems, each with the fastest settings of its documentation."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import asyncpg

from notifyq import __version__
from notifyq.schema import install

from .processes import Command
from .results import NOTIFYQ
from .system import NodePeer, NotRunError, Peer, PythonPeer, Statements, System

LIMIT = "limit"
"""The name of the system that measures the server without a queue."""
BARE = "bare INSERT"
"""The name of its insert in the tables."""
CONCURRENCY = 500
"""Concurrent handlers of a notifyq worker, which is also the most messages of a claim."""

_QUEUE = "select messages.create_queue('bench')"
# The same table with the same indexes and no trigger.
_COPY = """
create schema bench;
create table bench.message (like messages.message including all);
"""
_TABLES = "messages.message, messages.message_archive"


class NotifyQ:
    """notifyq, as `notifyq worker` runs it."""

    name = NOTIFYQ
    about = (
        f"notifyq worker --concurrency {CONCURRENCY}: a claim takes as many messages as there are "
        "free handlers, and finishes are batched; publishers insert into messages.message"
    )
    processes = 64

    def __init__(self, queues: tuple[str, ...] = (), *, is_tuned: bool = True) -> None:
        self._queues = queues
        """What its workers serve beside the queue `bench`."""
        self._options = ["--concurrency", str(CONCURRENCY)] if is_tuned else []

    @property
    def by_default(self) -> System | None:
        """`notifyq worker` without options that change its speed."""
        return NotifyQ(self._queues, is_tuned=False)

    async def install(self, _cache: Path) -> str:
        """Nothing to do: it is this program."""
        return __version__

    async def prepare(self, dsn: str) -> Statements:
        """Install the schema and create the queue."""
        connection = await asyncpg.connect(dsn)
        try:
            await install(connection)
            await connection.execute(_QUEUE)
        finally:
            await connection.close()
        return Statements(
            publish={
                self.name: "insert into messages.message (queue, message) "
                "values ('bench', (@payload@)::jsonb)",
                "notifyq publish()": "select messages.publish('bench', (@payload@)::jsonb)",
            },
            bulk="select count(*) from messages.publish_many('bench', "
            "array_fill((@payload@)::jsonb, array[@n@]))",
            waiting="messages.message",
            tables=_TABLES,
            archive="messages.message_archive",
        )

    def commands(self, dsn: str, processes: int) -> list[Command]:
        """Return the command of the workers."""
        command = [sys.executable, "-m", "notifyq", "worker", "bench.notifyq_app:app"]
        options = [*self._options, "--grace", "1s", "--log-level", "warning"]
        if processes > 1:
            options += ["--processes", str(processes)]
        variables = {
            "NOTIFYQ_DSN": dsn,
            "PYTHONPATH": _search_path(),
            "BENCH_QUEUES": " ".join(self._queues),
        }
        return [Command([*command, *options], _root(), variables)]


class Limit:
    """The server without a queue: an upper bound for all systems."""

    name = LIMIT
    about = (
        "bare INSERT: a copy of messages.message with its indexes and without triggers, by "
        "pgbench; claim and finish: notifyq's two functions, called by pgbench, without a worker"
    )
    processes = 0
    by_default = None

    async def install(self, _cache: Path) -> str:
        """Nothing to do: it is notifyq's SQL."""
        return __version__

    async def prepare(self, dsn: str) -> Statements:
        """Install notifyq, and the copy of its table."""
        await NotifyQ().prepare(dsn)
        connection = await asyncpg.connect(dsn)
        try:
            await connection.execute(_COPY)
        finally:
            await connection.close()
        columns = "insert into bench.message (queue, message)"
        return Statements(
            publish={BARE: f"{columns} values ('bench', (@payload@)::jsonb)"},
            bulk=f"{columns} select 'bench', (@payload@)::jsonb from generate_series(1, @n@)",
            waiting="messages.message",
            tables=f"{_TABLES}, bench.message",
        )

    def commands(self, dsn: str, processes: int) -> list[Command]:
        """There is no worker."""
        raise NotImplementedError


class PgQ(Peer):
    """PgQ, an extension of the server: a stream without a lock for each message."""

    processes = 1  # a subscriber has one reader; cooperative readers need another extension
    by_default = None  # the reader is ours

    async def install(self, _cache: Path) -> str:
        """Nothing to do: `prepare` finds out whether the server has the extension."""
        return "of the server"

    async def prepare(self, dsn: str) -> Statements:
        """Create the extension, if the server has it."""
        connection = await asyncpg.connect(dsn)
        try:
            offered = await connection.fetchval(
                "select default_version from pg_available_extensions where name = 'pgq'"
            )
        finally:
            await connection.close()
        if offered is None:
            raise NotRunError("the server lacks extension pgq (Debian: postgresql-15-pgq3)")
        return await super().prepare(dsn)


def _root() -> Path:
    return Path(__file__).parents[1]


def _search_path() -> str:
    return os.pathsep.join(filter(None, (str(_root()), os.environ.get("PYTHONPATH"))))


def every() -> list[System]:
    """Return all systems, in the order of the tables."""
    return [
        Limit(),
        NotifyQ(),
        PythonPeer(
            "pgqueuer",
            "pgqueuer_peer.py",
            "batch_size 500, also the size of its buffer of finished jobs (the default of 10 "
            "drains at a quarter of the rate), asyncpg pool, uvloop",
        ),
        PythonPeer(
            "procrastinate",
            "procrastinate_peer.py",
            "concurrency 20 over a pool of 22, delete_jobs=successful so that its table stays "
            "small, psycopg's C parts, uvloop; it fetches and finishes one message at a time",
        ),
        PythonPeer(
            "chancy",
            "chancy_peer.py",
            "async executor, concurrency 1000 (its default of 100 drains at a third of the rate), "
            "eager_polling, notifications, uvloop; it writes finished jobs once a second",
        ),
        NodePeer(
            "graphile",
            "graphile-worker",
            "graphile_peer.mjs",
            "concurrentJobs 24 over a pool of 26: one at a time, its default",
        ),
        NodePeer(
            "graphile-batched",
            "graphile-worker",
            "graphile_peer.mjs",
            "as graphile, with localQueue.size 500 and completions and failures in batches "
            "(delay 0): its documented high-throughput mode",
            "batched",
        ),
        NodePeer(
            "pgboss",
            "pg-boss",
            "pgboss_peer.mjs",
            "batchSize 2000 (100 drains at a quarter of the rate) with burstWhenBatchFull, queue "
            "with notify and useListenNotify",
        ),
        PgQ(
            "pgq",
            "pgq_peer.py",
            "plain SQL batches, ticks every 10 ms instead of pgqd's second: a stream, it has no "
            "lock, retry or result for a single message, so it is not comparable one to one",
        ),
    ]
