"""The systems that are measured, each with the fastest settings that its documentation names."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import asyncpg

from notifyq import __version__
from notifyq.schema import install

from .processes import Command
from .results import OURS
from .system import NodePeer, NotRunError, Peer, PythonPeer, Statements, System

LIMIT = "limit"
"""The name of the server's own speed, without a queue's code."""
CONCURRENCY = 500
"""Handlers at the same time in a worker of notifyq, so messages in a claim."""

_QUEUE = "select messages.create_queue('bench')"
# The same table with the same indexes; the columns that a publisher fills, and no trigger.
_BARE = """
create schema bench;
create table bench.message (like messages.message including all);
"""
_TABLES = "messages.message, messages.message_archive"


class NotifyQ:
    """notifyq, as `notifyq worker` runs it."""

    name = OURS
    about = (
        f"notifyq worker --concurrency {CONCURRENCY}: a claim takes as many messages as there are "
        "free handlers, and finishes are gathered; publishers insert into messages.message"
    )
    processes = 64

    async def install(self, _cache: Path) -> str:
        """It is this program."""
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
            "array_fill('{}'::jsonb, array[@n@]))",
            waiting="messages.message",
            tables=_TABLES,
        )

    def workers(self, dsn: str, processes: int) -> list[Command]:
        """Return the commands of the workers: the one place that knows their options."""
        target = f"{__package__}.notifyq_app:app"
        command = [sys.executable, "-m", "notifyq", "worker", target]
        options = ["--concurrency", str(CONCURRENCY), "--grace", "1s", "--log-level", "warning"]
        if processes > 1:
            options += ["--processes", str(processes)]
        # The package is found from the folder above it, in a checkout as in an installation.
        variables = {"NOTIFYQ_DSN": dsn, "PYTHONPATH": _search_path()}
        return [Command([*command, *options], _root(), variables)]


class Limit:
    """The server alone: what no queue in this table could do better than."""

    name = LIMIT
    about = (
        "bare INSERT: a copy of messages.message with its indexes and without triggers, by "
        "pgbench; claim and finish: notifyq's two functions, called by pgbench, without a worker"
    )
    processes = 0

    async def install(self, _cache: Path) -> str:
        """It is notifyq's SQL."""
        return __version__

    async def prepare(self, dsn: str) -> Statements:
        """Install notifyq, and the copy of its table."""
        await NotifyQ().prepare(dsn)
        connection = await asyncpg.connect(dsn)
        try:
            await connection.execute(_BARE)
        finally:
            await connection.close()
        columns = "insert into bench.message (queue, message)"
        return Statements(
            publish={"bare INSERT": f"{columns} values ('bench', (@payload@)::jsonb)"},
            bulk=f"{columns} select 'bench', '{{}}' from generate_series(1, @n@)",
            waiting="messages.message",
            tables=f"{_TABLES}, bench.message",
        )

    def workers(self, dsn: str, processes: int) -> list[Command]:
        """It has none."""
        raise NotImplementedError


class PgQ(Peer):
    """PgQ of the server's packages; a stream, without a lock for each message."""

    processes = 1  # a subscriber is one reader; its cooperative readers are another extension

    async def install(self, _cache: Path) -> str:
        """Nothing to do: whether the server has it is seen when the schema is installed."""
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
    return Path(__file__).parents[(__package__ or "").count(".") + 1]


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
            "batch_size 500, so its buffer of finished ones has that size, too (the default of 10 "
            "drains at a quarter of the rate), asyncpg pool, uvloop",
        ),
        PythonPeer(
            "procrastinate",
            "procrastinate_peer.py",
            "concurrency 20 over a pool of 22, delete_jobs=successful so that its table stays "
            "small, psycopg's C parts, uvloop; it fetches and finishes one at a time",
        ),
        PythonPeer(
            "chancy",
            "chancy_peer.py",
            "async executor, concurrency 1000 (its default of 100 drains at a third of the rate), "
            "eager_polling, notifications, uvloop; it writes what has ended once a second",
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
            "plain SQL batches, ticks every 10 ms in place of pgqd's second: a stream, it has no "
            "lock, retry or result for a single message, so it is no like-for-like peer",
        ),
    ]
