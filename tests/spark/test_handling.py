"""Messages handled on executors: each outcome_of, tokens, locks that are kept and that are lost."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from notifyq import Reject, Retry
from notifyq.errors import ConfigurationError, QueueNotFoundError
from notifyq.spark.handling import Handled, _Claimed, handle, handle_batch, handle_queue

if TYPE_CHECKING:
    # Executors import this module for outcome_of(), and have no folder of tests on their path.
    from support.database import Connection


def outcome_of(payload: Any) -> Any:
    match payload % 10:
        case 0:
            raise Reject("a multiple of ten")
        case 1:
            raise ValueError(f"no {payload}")
        case 2:
            raise Retry("later", after=3600)
        case _:
            return {"half": payload / 2}


async def publish(connection: Connection, number: int) -> None:
    await connection.execute(
        "select messages.create_queue('work', max_attempts => 2, backoff => '10 minutes')"
    )
    await connection.execute(
        "select messages.publish_many('work', array_agg(to_jsonb(n))) "
        f"from generate_series(1, {number}) as n"
    )


async def claimed(connection: Connection, number: int = 100) -> list[_Claimed]:
    rows = await connection.fetch(
        "select id, lock_token, message from messages.claim(array['work'], $1)", number
    )
    return [_Claimed(row["id"], row["lock_token"], json.dumps(row["message"])) for row in rows]


async def test_messages_are_handled_on_executors(
    spark: Any, database: str, connection: Connection
) -> None:
    await publish(connection, 100)
    batches: list[Handled] = []
    first = handle_batch(spark, database, "work", outcome_of, quantity=30)
    assert first == Handled(claimed=30, succeeded=21, rejected=3, failed=6)
    done = handle_queue(spark, database, "work", outcome_of, quantity=40, on_batch=batches.append)
    assert done == Handled(claimed=70, succeeded=49, rejected=7, failed=14)
    assert [one.claimed for one in batches] == [40, 30]
    rows = await connection.fetch(
        "select status::text, count(*), min(details) as details, "
        "min((result ->> 'half')::float8) as half "
        "from messages.message_archive group by 1 order by 1"
    )
    assert [tuple(row) for row in rows] == [
        ("rejected", 10, "a multiple of ten", None),
        ("success", 70, None, 1.5),
    ]
    waiting = await connection.fetch(
        "select (available_at > now() + interval '50 minutes') as is_late, count(*) "
        "from messages.message group by 1 order by 1"
    )
    assert [tuple(row) for row in waiting] == [(False, 10), (True, 10)]
    assert handle_batch(spark, database, "work", outcome_of) == Handled()


async def test_the_last_attempt_is_the_last(database: str, connection: Connection) -> None:
    await publish(connection, 1)
    await connection.execute("update messages.message set attempts = 1")
    assert handle(database, await claimed(connection), outcome_of) == Handled(failed=1)
    row = await connection.fetchrow("select status::text, details from messages.message_archive")
    assert row is not None
    assert tuple(row) == ("failed", "ValueError: no 1")


async def test_a_message_with_a_lost_lock_is_not_handled(
    database: str, connection: Connection
) -> None:
    await publish(connection, 5)
    found = await claimed(connection)
    await connection.execute("update messages.message set lock_token = 99 where id = 3")
    ran: list[int] = []
    done = handle(database, found, ran.append)
    assert done == Handled(succeeded=4, lost=1)
    assert ran == [1, 2, 4, 5]
    # The same task once more, as Spark runs it when its answer was lost.
    assert handle(database, found, ran.append) == Handled(lost=5)
    assert ran == [1, 2, 4, 5]


async def test_a_lock_that_is_lost_during_handling_is_reported(
    database: str, connection: Connection
) -> None:
    await publish(connection, 2)
    found = await claimed(connection)
    import psycopg

    def steal(payload: int) -> None:
        if payload == 2:
            with psycopg.connect(database, autocommit=True) as thief:
                thief.execute("update messages.message set lock_token = 99")

    assert handle(database, found, steal) == Handled(lost=2)


async def test_a_wrong_call_raises_one_error(spark: Any, database: str) -> None:
    with pytest.raises(QueueNotFoundError, match="nowhere"):
        handle_batch(spark, database, "nowhere", outcome_of)
    with pytest.raises(ConfigurationError, match="at least 1"):
        handle_batch(spark, database, "work", outcome_of, quantity=0)


async def test_locks_are_extended_while_a_message_is_handled(
    spark: Any, database: str, connection: Connection
) -> None:
    await connection.execute("select messages.create_queue('slow', lock_duration => '3 seconds')")
    await connection.execute("select messages.publish('slow', '1')")

    def wait(_: Any) -> None:
        import psycopg

        query = "select lock_expires_at from messages.message where queue = 'slow'"
        with psycopg.connect(database, autocommit=True) as session:
            first = session.execute(query).fetchone()
            # What the task itself extends is done before this begins.
            while session.execute(query).fetchone() == first:
                session.execute("select pg_sleep(0.05)")

    assert handle_batch(spark, database, "slow", wait) == Handled(claimed=1, succeeded=1)
