"""Replays: archived messages again, each once for each name."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from notifyq.errors import ConfigurationError, LoadNotFoundError, ReplayClosedError
from notifyq.spark.lake.export import export
from notifyq.spark.publish.history import Choice, contains
from notifyq.spark.publish.replay import replay
from support.database import Connection


async def finish_some(connection: Connection, quantity: int = 30) -> None:
    """Archive messages of queue a, each third of them as failed."""
    await connection.execute("select messages.create_queue('a')")
    await connection.execute(
        "select messages.publish_many('a', array_agg(jsonb_build_object('n', i)), type => 't') "
        "from generate_series(1, $1) as i",
        quantity,
    )
    await connection.execute(
        "select messages.finish(m.id, m.lock_token, case when (m.message ->> 'n')::int % 3 = 0 "
        "then 'failed' else 'success' end::messages.message_status) "
        "from messages.claim('{a}', $1) as m",
        quantity,
    )


async def test_cancelled_messages_are_replayed_if_not_only_dead_ones_are_chosen(
    connection: Connection, database: str, tmp_path: Path
) -> None:
    await connection.execute("select messages.create_queue('to')")
    await connection.execute("select messages.cancel(messages.publish('default', '1'))")
    export(database, tmp_path)
    for lake in (None, tmp_path):
        for choice, found in ((Choice(dead=True), 0), (Choice(statuses=("rejected",)), 1)):
            counts = replay(database, "r", choice, lake=lake, dry_run=True).counts
            assert sum(one.messages for one in counts) == found
            name = f"{lake} {found}"
            assert replay(database, name, choice, lake=lake, to="to").published == found
        assert replay(database, "r", Choice(dead=True), lake=lake, redrive=True).published == 0


async def live(connection: Connection) -> list[int]:
    """Give the numbers of live messages."""
    return [
        row[0]
        for row in await connection.fetch(
            "select (message ->> 'n')::int from messages.message order by id"
        )
    ]


async def test_dead_messages_are_redriven_once(connection: Connection, database: str) -> None:
    await finish_some(connection)
    first = await connection.fetchval("select min(id) from messages.dead_message")
    await connection.execute("select messages.dead_retry($1)", first)
    choice = Choice(dead=True)
    counts = replay(database, "r", choice, redrive=True, dry_run=True).counts
    assert [(one.queue, one.type, one.status, one.messages, one.known) for one in counts] == [
        ("a", "t", "failed", 10, 1)
    ]
    assert await live(connection) == [3]
    done = replay(database, "r", choice, redrive=True)
    assert (done.published, done.known, done.total) == (9, 1, 9)
    assert await connection.fetchval("select messages.dead_count()") == 0
    for name in ("r", "another"):
        assert replay(database, name, choice, redrive=True).published == 0
    assert await live(connection) == list(range(3, 31, 3))
    mark = await connection.fetchrow(
        "select m.headers ->> 'replay', (m.headers ->> 'replay_of')::bigint = a.id "
        "from messages.message as m join messages.message_archive as a on a.message = m.message "
        "where a.message ->> 'n' = '30'"
    )
    assert mark
    assert tuple(mark) == ("r", True)


async def test_a_slice_goes_into_another_queue_or_stream_under_a_rate(
    connection: Connection, database: str
) -> None:
    await finish_some(connection)
    await connection.execute("select messages.create_queue('b'), messages.create_stream('s')")
    choice = Choice(queue="a", statuses=("success",), type="t")
    done = replay(database, "to b", choice, to="b", rate=10)
    assert done.published == 20
    assert done.due_at is not None
    spread = await connection.fetchval(
        "select max(available_at) - min(available_at) from messages.message where queue = 'b'"
    )
    assert spread == timedelta(seconds=1.9)
    assert replay(database, "to s", choice, to="s", rate=1000).published == 20
    assert replay(database, "to s", choice, to="s").published == 0
    assert await connection.fetchval("select count(*) from messages.event") == 20
    with pytest.raises(ReplayClosedError, match="replay 'to s' publishes into 's'"):
        replay(database, "to s", choice, to="b")


async def test_only_chosen_messages_are_published(connection: Connection, database: str) -> None:
    await finish_some(connection)
    await connection.execute("select messages.create_queue('b')")
    later = datetime.now(UTC) + timedelta(hours=1)
    for number, choice in enumerate(
        (Choice(match={"n": 7}), Choice(type="other"), Choice(since=later), Choice(queue="b"))
    ):
        replay(database, f"r{number}", choice, to="b")
    assert await live(connection) == [7]
    assert replay(database, "rest", Choice(until=later), to="b").published == 30


async def test_new_messages_are_published_by_the_next_run(
    connection: Connection, database: str
) -> None:
    await finish_some(connection, 3)
    assert replay(database, "r", Choice()).published == 3
    await connection.execute(
        "select messages.finish(m.id, m.lock_token) from messages.claim('{a}', 2) as m"
    )
    assert replay(database, "r", Choice()).published == 2


async def test_a_refused_message_stays_in_the_archive_and_stops_no_other(
    connection: Connection, database: str
) -> None:
    await finish_some(connection, 6)
    await connection.execute(
        "select messages.create_queue('b', payload_schema => "
        """'{"properties": {"n": {"minimum": 3}}}')"""
    )
    done = replay(database, "r", Choice(), to="b")
    assert (done.published, done.known, done.refused) == (4, 0, 2)
    assert done.reason is not None
    assert "'b' does not take this message" in done.reason
    assert await live(connection) == [3, 4, 5, 6]
    await connection.execute("select messages.alter_queue('b', payload_schema => 'null')")
    again = replay(database, "r", Choice(), to="b")
    assert (again.published, again.known, again.refused, again.reason) == (2, 4, 0, None)


async def test_messages_of_a_dropped_queue_stop_no_others(
    connection: Connection, database: str
) -> None:
    await finish_some(connection, 3)
    await connection.execute(
        """select messages.create_queue('b'), messages.publish('b', '{"n": 4}')"""
    )
    await connection.execute(
        "select messages.finish(m.id, m.lock_token) from messages.claim('{b}') as m"
    )
    await connection.execute("select messages.drop_queue('a', force => true)")
    done = replay(database, "r", Choice())
    assert (done.published, done.refused) == (1, 3)
    assert "there is no queue 'a'" in (done.reason or "")
    assert await live(connection) == [4]


async def test_a_finished_replay_publishes_nothing_again(
    connection: Connection, database: str
) -> None:
    await finish_some(connection, 3)
    replay(database, "r", Choice())
    await connection.execute(
        "update notifyq.replay set used_at = used_at - interval '31 days'; "
        "select notifyq.forget_loads(100)"
    )
    assert not await connection.fetchval("select exists (select from notifyq.replayed)")
    with pytest.raises(ReplayClosedError, match="is closed"):
        replay(database, "r", Choice())


async def test_contradictory_arguments_are_refused(connection: Connection, database: str) -> None:
    for choice, more in (
        (Choice(), {"redrive": True}),
        (Choice(dead=True), {"redrive": True, "to": "default"}),
        (Choice(), {"rate": 0}),
    ):
        options: dict[str, Any] = more
        with pytest.raises(ConfigurationError):
            replay(database, "r", choice, **options)
    with pytest.raises(LoadNotFoundError, match="was not begun"):
        await connection.execute("select notifyq.replay_rows('r', 1, 0)")


@pytest.mark.parametrize(
    ("value", "part"),
    [
        ('{"a": [1, {"b": 2}], "c": null}', '{"a": [{"b": 2}]}'),
        ('{"a": [1, 2]}', '{"a": 1}'),
        ("[1, [2]]", "1"),
        ("[1, [2]]", "2"),
        ("[1, 2, 3]", "[3, 1, 1]"),
        ('{"a": true}', '{"a": 1}'),
        ('{"a": 1.0}', '{"a": 1}'),
        ("{}", "[]"),
        ('{"a": {"b": 1, "c": 2}}', '{"a": {"c": 2}}'),
        ('[{"a": 1}]', '{"a": 1}'),
    ],
)
async def test_containment_is_that_of_postgresql(
    connection: Connection, value: str, part: str
) -> None:
    import json

    wanted = await connection.fetchval(f"select '{value}'::jsonb @> '{part}'::jsonb")
    assert contains(json.loads(value), json.loads(part)) == wanted
