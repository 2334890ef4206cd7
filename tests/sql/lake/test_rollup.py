"""Roll-ups: counts are added by one transaction, percentiles are within one in a hundred."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import asyncpg
import pytest

from notifyq.errors import InvalidArgumentError, LakeNotFoundError

if TYPE_CHECKING:
    from support.database import Connection

# Not so long ago that it would be folded.
HOUR = datetime.now(UTC).replace(hour=7, minute=0, second=0, microsecond=0) - timedelta(days=3)

# Waits from a microsecond to some hours and runs of their own, in three queues, over three days;
# each tenth message is dead, and each tenth cancelled.
FILL = """
select setseed(0.5);
insert into messages.message_archive (
  id, created_at, available_at, locked_at, archived_at, lock_token, priority, attempts, status,
  queue, type, handled_by, message, headers, details, cancelled_by
)
select i, f.created_at, f.created_at + interval '1 s' * (i % 2), f.locked_at,
  f.locked_at + make_interval(secs => exp(random() * 12 - 8)), 1, 0, 1 + i % 3,
  (case i % 10 when 0 then 'failed' when 3 then 'rejected' else 'success' end)
    ::messages.message_status,
  'q' || i % 3, case when i % 4 = 0 then 't' end, 'w' || i % 7, '1', '{}',
  case i % 10 when 0 then 'order ' || i || ' is unknown' when 3 then 'cancelled' end,
  case when i % 10 = 3 then 'ann' end
from (
  select i, c.created_at,
    c.created_at + interval '1 s' * (i % 2) + make_interval(secs => exp(random() * 16 - 14))
      as locked_at
  from generate_series(1, 6000) as i
  cross join lateral (
    select date_trunc('day', now(), 'UTC') - interval '4 days' + interval '40 s' * i
      as created_at
  ) as c
) as f
"""

FINGERPRINTS = {
    None: "(no details)",
    " \n\n ": "(no details)",
    "KeyError: 'a b'\nTraceback: 1": "KeyError: '<text>'",
    "it's not Ann's 12 apples": "it's not Ann's <n> apples",
    'no "x" at http://h:80/a?b=1, sorry': 'no "<text>" at <url>, sorry',
    "cannot open /var/lib/x-1/y.json: no": "cannot open <path>: no",
    "C:\\Temp\\a.txt and ../up/x and and/or": "<path> and <path> and and/or",
    "id 123e4567-e89b-12d3-a456-426614174000 is gone": "id <uuid> is gone",
    "object at 0x7f3a, commit 9fceb02d0ae598e9": "object at <hex>, commit <hex>",
    "until 2026-01-02 03:04:05.678+00 or 2026-01-02T03:04:05Z": "until <time> or <time>",
    "10.1.2.3 took 1,234.5 ms for [1, 2,3]": "<n> took <n> ms for [<n>]",
    "Überlauf:  \uff15 von 5": "Überlauf: \uff15 von <n>",
    "x" * 400: "x" * 300,
    "lock of web-7f9c8b6d5-x2k9q:1:a1b2c3 expired": "lock of <worker> expired",
    "lock of laptop.local:4711:123456 expired": "lock of <worker> expired",
    "no answer from web-7f9c8b6d5-x2k9q": "no answer from web-<pod>",
    "no answer from web-5d4c77f9b8-zz1ab:8080": "no answer from web-<pod>:<n>",
    "session a1b2c3 and 9F8E7D6": "session <hex> and <hex>",
    "at 10:15:123 well-known-names": "at <n> well-known-names",
}


async def rows(connection: Connection, table: str, condition: str = "true") -> list[Any]:
    return await connection.fetch(f"select * from notifyq.{table} where {condition}")


async def roll(
    connection: Connection, lake: int, after: int, upto: int, *counted: list[dict[str, Any]]
) -> bool:
    async with connection.transaction():
        begun = await connection.fetchval("select notifyq.roll_up($1, $2, $3)", lake, after, upto)
        if begun:
            texts = [json.dumps(it, default=str) for it in counted]
            await connection.execute(
                "select notifyq.add_rollup($1, "
                + ", ".join(f"${number}::text::jsonb" for number in range(2, 2 + len(texts)))
                + ")",
                lake,
                *texts,
            )
    return bool(begun)


@pytest.fixture
async def lake(connection: Connection) -> int:
    return int(await connection.fetchval("select (notifyq.create_lake('/lake')).id"))


def counted(number: int, bins: dict[int, int], **changes: Any) -> dict[str, Any]:
    """Return a row of notifyq.rollup as a pipeline sends it."""
    return {
        "bucket_at": HOUR, "queue": "q", "type": "", "status": "success", "finished": number,
        "dead": 0, "retried": 0, "attempts": number, "waited": number,
        "wait_total_us": 1000 * number, "wait_max_us": 10**9, "wait_bins": list(bins),
        "wait_counts": list(bins.values()), "ran": 0, "run_total_us": 0, "run_max_us": 0,
        "run_bins": [], "run_counts": [], **changes,
    }  # fmt: skip


async def test_a_fingerprint_is_what_errors_have_in_common(connection: Connection) -> None:
    for details, expected in FINGERPRINTS.items():
        found = await connection.fetchval("select notifyq.error_fingerprint($1)", details)
        assert found == expected


@pytest.mark.parametrize("by", [[], ["queue"], ["queue", "type", "status"]])
async def test_percentiles_are_within_one_in_a_hundred(
    connection: Connection, by: list[str]
) -> None:
    await connection.execute(FILL)
    found = await connection.fetch("select * from notifyq.rollup_summary(dimensions => $1)", by)
    names = [f"coalesce({name}::text, '') as {name}" for name in by]
    exact = await connection.fetch(f"""
        select {"".join(f"{it}, " for it in names)} count(*) as finished,
          count(*) filter (where status <> 'success' and cancelled_by is null) as dead,
          count(*) filter (where attempts > 1) as retried, sum(attempts) as attempts,
          percentile_disc(array[0.5, 0.95, 0.99]) within group (
            order by locked_at - available_at) as waits,
          percentile_disc(array[0.5, 0.95, 0.99]) within group (
            order by archived_at - locked_at) as runs,
          max(locked_at - available_at) as wait_max, avg(archived_at - locked_at) as run_mean
        from messages.message_archive {"group by " + ", ".join(by) if by else ""}
    """)
    assert len(found) == len(exact) == {0: 1, 1: 3, 3: 15}[len(by)]
    by_key = {tuple(row[name] or "" for name in by): row for row in found}
    for row in exact:
        group = by_key[tuple(row[name] for name in by)]
        for name in ("finished", "dead", "retried", "attempts"):
            assert group[name] == row[name]
        for kind, times in (("wait", row["waits"]), ("run", row["runs"])):
            for name, time in zip(("p50", "p95", "p99"), times, strict=True):
                assert group[f"{kind}_{name}"] / time == pytest.approx(1, abs=0.0101)
        assert group["wait_max"] == row["wait_max"]
        assert abs(group["run_mean"] - row["run_mean"]) < timedelta(microseconds=2)


async def test_counts_are_added_and_percentiles_are_those_of_all(
    connection: Connection, lake: int
) -> None:
    assert await roll(connection, lake, 0, 3, [counted(10, {0: 6, 100: 4})])
    later = counted(5, {100: 5}, bucket_at=HOUR + timedelta(hours=1))
    assert await roll(connection, lake, 3, 4, [counted(10, {100: 9, -349: 1}), later])
    [row] = await rows(connection, "rollup", f"bucket_at = '{HOUR}'")
    assert (row["finished"], row["wait_total_us"]) == (20, 20_000)
    assert dict(zip(row["wait_bins"], row["wait_counts"], strict=True)) == {-349: 1, 0: 6, 100: 13}
    [whole] = await connection.fetch("select * from notifyq.rollup_summary(dimensions => '{}')")
    assert (whole["finished"], whole["run_p50"]) == (25, None)
    assert whole["wait_p50"] / timedelta(milliseconds=1.02**100) == pytest.approx(1, abs=0.01)
    by_hour = await connection.fetch("select * from notifyq.rollup_summary(step => '1 hour')")
    assert [row["finished"] for row in by_hour] == [20, 5]
    progress = await connection.fetchrow("select * from notifyq.rollup_range()")
    assert progress is not None
    assert (progress["source"], progress["finished"]) == (lake, 25)


async def test_the_same_batches_are_added_once(connection: Connection, lake: int) -> None:
    for expected in (True, False):
        assert await roll(connection, lake, 0, 3, [counted(1, {0: 1})]) is expected
    assert await connection.fetchval("select sum(finished) from notifyq.rollup") == 1
    assert await connection.fetchval("select notifyq.rolled_up($1)", lake) == 3
    with pytest.raises(InvalidArgumentError):
        await roll(connection, lake, 3, 3)
    with pytest.raises(LakeNotFoundError):
        await roll(connection, lake + 1, 0, 3)


async def test_a_roll_up_that_fails_leaves_nothing(connection: Connection, lake: int) -> None:
    with pytest.raises(asyncpg.NotNullViolationError):
        await roll(connection, lake, 0, 3, [counted(1, {0: 1}), {"queue": "half"}])
    assert await connection.fetchval("select notifyq.rolled_up($1)", lake) == 0
    assert await rows(connection, "rollup") == []


async def test_only_the_transaction_of_a_roll_up_adds_counts(
    connection: Connection, lake: int
) -> None:
    await roll(connection, lake, 0, 3, [counted(1, {0: 1})])
    with pytest.raises(InvalidArgumentError):
        await connection.execute("select notifyq.add_rollup($1, '[]')", lake)


async def test_rare_errors_and_idle_workers_are_counted_under_one_name(
    connection: Connection, lake: int
) -> None:
    def errors(first: int) -> list[dict[str, Any]]:
        return [
            {"bucket_at": HOUR, "queue": "q", "status": "failed", "fingerprint": f"e{number}",
             "errors": number, "first_at": HOUR, "last_at": HOUR, "sample": "s"}
            for number in range(first, first + 90)
        ]  # fmt: skip

    def workers(first: int) -> list[dict[str, Any]]:
        return [
            {"bucket_at": HOUR, "queue": "q", "worker": f"w{number}", "finished": number,
             "dead": 1, "run_total_us": 5}
            for number in range(first, first + 30)
        ]  # fmt: skip

    await roll(connection, lake, 0, 3, [], errors(1), workers(1))
    await roll(connection, lake, 3, 4, [], errors(61), workers(21))
    found = {row["fingerprint"]: row["errors"] for row in await rows(connection, "rollup_error")}
    assert len(found) == 101
    assert sum(found.values()) == sum(range(1, 91)) + sum(range(61, 151))
    assert "e1" not in found
    assert found["e90"] == 180
    busy = {row["worker"]: row["finished"] for row in await rows(connection, "rollup_worker")}
    assert len(busy) == 21
    assert sum(busy.values()) == sum(range(1, 31)) + sum(range(21, 51))
    [first, *_] = await connection.fetch("select * from notifyq.rollup_errors(quantity => 1)")
    assert (first["fingerprint"], first["errors"]) == ("e90", 180)
    last = await connection.fetch("select * from notifyq.rollup_workers(quantity => 100)")
    assert last[-1]["worker"] == "(others)"


async def test_what_is_added_to_an_emptied_table_is_not_read_again_for_each_row(
    connection: Connection, lake: int
) -> None:
    """Statistics are of the empty table then, while its pages are no more than the new rows."""
    counted = [
        {"bucket_at": HOUR - timedelta(hours=hour), "queue": f"q{queue}", "worker": f"w{number}",
         "finished": number, "dead": 0, "run_total_us": 5}
        for hour in range(10) for queue in range(3) for number in range(100)
    ]  # fmt: skip
    failed = [
        {"bucket_at": HOUR - timedelta(hours=hour), "queue": "q", "status": "failed",
         "fingerprint": f"e{number}", "errors": 1, "first_at": HOUR, "last_at": HOUR, "sample": "s"}
        for hour in range(10) for number in range(150)
    ]  # fmt: skip
    tables = {"rollup_worker": len(counted), "rollup_error": len(failed)}
    await roll(connection, lake, 0, 3, [], failed, counted)
    await connection.execute("analyze notifyq.rollup_worker, notifyq.rollup_error")
    await connection.fetchval("select notifyq.forget_rollup($1)", lake)
    for table in tables:
        await connection.execute(f"vacuum notifyq.{table}")
    read = """
        select coalesce(seq_tup_read, 0) + coalesce(idx_tup_fetch, 0)
        from pg_stat_xact_user_tables where relid = $1::text::regclass
    """
    async with connection.transaction():
        await roll(connection, lake, 0, 3, [], failed, counted)
        for table, quantity in tables.items():
            assert await connection.fetchval(read, f"notifyq.{table}") <= 3 * quantity


async def test_old_hours_become_days_and_nothing_is_lost(connection: Connection, lake: int) -> None:
    old = datetime(2026, 3, 1, 7, tzinfo=UTC)
    hours = [old - timedelta(hours=number) for number in range(10)]
    error = {"queue": "q", "status": "failed", "fingerprint": "e", "errors": 2, "sample": "s",
             "first_at": HOUR, "last_at": HOUR}  # fmt: skip
    worker = {"queue": "q", "worker": "w", "finished": 3, "dead": 1, "run_total_us": 5}
    now = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)
    rolled = [counted(4, {3: 1, 5: 3}, bucket_at=at) for at in (*hours, now)]
    errors = [{**error, "bucket_at": at} for at in hours]
    workers = [{**worker, "bucket_at": at} for at in hours]
    assert await roll(connection, lake, 0, 3, rolled, errors, workers)
    assert await roll(connection, lake, 3, 4, [])
    found = await connection.fetch(
        "select span, bucket_at, finished, wait_bins, wait_counts from notifyq.rollup order by 2"
    )
    day = old.replace(hour=0)
    assert [tuple(row) for row in found] == [
        ("day", day - timedelta(days=1), 8, [3, 5], [2, 6]),
        ("day", day, 32, [3, 5], [8, 24]),
        ("hour", now, 4, [3, 5], [1, 3]),
    ]
    [whole] = await connection.fetch("select * from notifyq.rollup_errors()")
    assert whole["errors"] == 20
    [busy] = await connection.fetch("select * from notifyq.rollup_workers()")
    assert busy["finished"] == 30
    for table in ("rollup_error", "rollup_worker"):
        assert len(await rows(connection, table, "span = 'day'")) == 2


async def test_long_types_and_workers_are_keys_of_their_own(
    connection: Connection, lake: int
) -> None:
    long = [await connection.fetchval(  # a text that an index does not compress
        "select $1 || string_agg(md5(n::text), '') from generate_series(1, 300) as n", end
    ) for end in "ab"]  # fmt: skip
    worker = {"bucket_at": HOUR, "queue": "q", "finished": 1, "dead": 0, "run_total_us": 1}
    for batch in (0, 1):
        await roll(
            connection, lake, batch, batch + 1, [counted(1, {1: 1}, type=it) for it in long], [],
            [worker | {"worker": it} for it in long],
        )  # fmt: skip
    types = {row["type"]: row["finished"] for row in await rows(connection, "rollup")}
    assert list(types.values()) == [2, 2]
    workers = {row["worker"]: row["finished"] for row in await rows(connection, "rollup_worker")}
    assert workers == types
    assert all(long[n].startswith(it[:50]) for n, it in enumerate(sorted(types)))


async def test_forgetting_a_lake_removes_its_roll_up(connection: Connection, lake: int) -> None:
    await roll(connection, lake, 0, 3, [counted(1, {0: 1})])
    await connection.execute("select messages.forget_lake($1)", lake)
    assert await rows(connection, "rollup") == await rows(connection, "rollup_progress") == []


async def test_with_two_lakes_one_must_be_named(connection: Connection, lake: int) -> None:
    other = await connection.fetchval("select (notifyq.create_lake('/other')).id")
    await roll(connection, lake, 0, 3, [counted(1, {0: 1})])
    await roll(connection, other, 0, 3, [counted(2, {0: 2})])
    with pytest.raises(InvalidArgumentError, match="lakes"):
        await connection.fetch("select * from notifyq.rollup_summary()")
    [row] = await connection.fetch("select * from notifyq.rollup_summary(lake => $1)", other)
    assert row["finished"] == 2
    assert await connection.fetchval("select notifyq.forget_rollup($1)", other)
    assert not await connection.fetchval("select notifyq.forget_rollup($1)", other)
    assert len(await connection.fetch("select * from notifyq.rollup_summary()")) == 1


async def test_a_wrong_grouping_is_refused(connection: Connection) -> None:
    for arguments in ("step => '90 min'", "step => '1 min'", "step => '1 month'",
                      "dimensions => '{queue,day}'", "dimensions => null"):  # fmt: skip
        with pytest.raises(InvalidArgumentError):
            await connection.fetch(f"select * from notifyq.rollup_summary({arguments})")
