"""The sample: the same rows for the same seed, skewed and with all that real archives have."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from urllib.parse import urlsplit

import pytest

pytest.importorskip("psycopg", reason="the extra `spark` is not installed")

from notifyq.errors import AccessDeniedError, ConfigurationError, SchemaMissingError
from notifyq.spark.analysis.sample import Sample, sample
from support.database import Connection

pytestmark = pytest.mark.timeout(120)

# Not the last midnight: the days of a fresh install lie behind it, and those of the past do not.
END = datetime(2026, 3, 1, tzinfo=UTC)


def made(dsn: str, **changed: object) -> Sample:
    options: dict[str, object] = {"messages": 3000, "days": 3, "until": END, "planted": 2}
    return sample(dsn, **{**options, **changed})  # type: ignore[arg-type]


async def test_a_seed_gives_the_same_sample_on_any_day(
    database: str, connection: Connection
) -> None:
    first = made(database)
    assert (first.messages, first.queues) == (3000, 10)
    await connection.execute(
        "truncate messages.message_archive; delete from messages.queue where name <> 'default'"
    )
    shifted = made(database, until=END - timedelta(days=3))
    assert shifted.digest == first.digest
    await connection.execute(
        "truncate messages.message_archive; delete from messages.queue where name <> 'default'"
    )
    assert made(database, seed=2).digest != first.digest


async def test_a_sample_has_what_real_archives_have(database: str, connection: Connection) -> None:
    progress: list[int] = []
    found = made(database, share=0.7, on_progress=progress.append)
    assert max(progress) == 3000
    row = await connection.fetchrow(
        """
      select
        count(*), count(distinct id) as ids, min(id), max(id), min(created_at) >= $1 as starts,
        max(archived_at) <= $2 as ends,
        bool_and(created_at <= available_at and available_at <= locked_at
          and locked_at <= archived_at) as is_ordered,
        count(*) filter (where queue = 'page_view') as largest,
        count(*) filter (where status <> 'success') as dead,
        count(*) filter (where (details is null) <> (status = 'success')) as unexplained,
        count(distinct status) as statuses, count(*) filter (where attempts > 1) as retried,
        count(*) filter (where attempts > max_attempts) as impossible,
        count(distinct xid) as transactions,
        count(*) filter (where message ? 'channel') as newer,
        avg(pg_column_size(message))::int as bytes
      from messages.message_archive
    """,
        found.since,
        found.until,
    )
    assert row is not None
    assert (row["count"], row["ids"]) == (3000, 3000)
    assert (row["min"], row["max"]) == (1, 3000)
    assert row["starts"]
    assert row["ends"]
    assert row["is_ordered"]
    assert 0.65 < row["largest"] / 3000 < 0.75
    assert row["dead"] == found.dead > 50
    assert (row["unexplained"], row["impossible"]) == (0, 0)
    assert row["statuses"] >= 3
    assert row["retried"] > 50
    assert row["transactions"] > 70
    assert 1000 < row["newer"] < 2300
    assert 150 < row["bytes"] < 250
    # A late commit: a row whose transaction began earlier than that of a row with a smaller id.
    late = await connection.fetchval("""
      select count(*) from messages.message_archive as a
      where xid < (select max(b.xid::text::bigint)::text::xid8 from messages.message_archive as b
                   where b.id < a.id and b.id >= a.id - 300)
    """)
    assert late > 10


async def test_a_database_with_a_sample_works_as_any_other(
    database: str, connection: Connection
) -> None:
    today = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    yesterday = (today - timedelta(days=1)).date()
    await connection.execute(
        "select notifyq.make_partition('message_archive', 'archived_at', $1::date)", yesterday
    )
    made(database, until=today)
    days = await connection.fetch("select day, rows from messages.archive_info() where rows > 0")
    assert sum(row["rows"] for row in days) == 3000
    assert await connection.fetchval("select messages.publish('mail', '1')") == 3001
    await connection.execute(
        "select messages.finish(id, lock_token) from messages.claim(array['mail'])"
    )
    await connection.execute("select messages.maintain()")
    assert await connection.fetchval("select count(*) from messages.message_archive") == 3001
    names = await connection.fetch("""
      select i.inhrelid::regclass::text, c.relowner::regrole::text, r.relowner::regrole::text
      from pg_inherits as i join pg_class as c on c.oid = i.inhrelid
      join pg_class as r on r.oid = i.inhparent
      where i.inhparent = 'messages.message_archive'::regclass
    """)
    assert len(names) == 3 + 4 + 1
    assert all(owner == parent for _, owner, parent in names)
    assert await connection.fetchval("select to_regclass('notifyq.sample')") is None


async def test_a_sample_does_not_mix_with_messages(database: str, connection: Connection) -> None:
    await connection.execute("select messages.publish('default', '1')")
    with pytest.raises(ConfigurationError, match="use a new database"):
        made(database)


def test_a_sample_needs_a_schema_and_valid_arguments(database: str, empty_database: str) -> None:
    with pytest.raises(SchemaMissingError, match="notifyq init"):
        made(empty_database)
    with pytest.raises(ConfigurationError, match="midnight"):
        made(database, until=END + timedelta(hours=1))
    with pytest.raises(ConfigurationError, match="share"):
        made(database, share=1.5)


async def test_only_the_owner_makes_a_sample(database: str, connection: Connection) -> None:
    name = f"sampler_{os.getpid()}"
    await connection.execute(f"create role {name} login password 'sampler'")
    try:
        parts = urlsplit(database)
        position = f"{name}:sampler@{parts.hostname}:{parts.port}"
        with pytest.raises(AccessDeniedError, match="owner"):
            made(parts._replace(netloc=position).geturl())
    finally:
        await connection.execute(f"drop role {name}")
