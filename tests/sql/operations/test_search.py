"""Search: each condition finds its messages, page by page, and each call ends in time."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import pytest

from notifyq.errors import InvalidArgumentError
from support.database import (
    Connect,
    Connection,
    Notifications,
    expire,
    publish,
    rows,
    until_blocked,
    value,
)

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


async def archive(
    connection: Connection,
    quantity: int,
    *,
    queue: str = "q",
    status: str = "failed",
    details: str | None = "no luck",
    at: datetime | None = None,
    message: str = "jsonb_build_object('n', i)",
) -> list[int]:
    """Put rows into the archive, a second apart up to `at`; return their ids, the oldest first."""
    found = await connection.fetch(
        f"""
        insert into messages.message_archive (id, created_at, available_at, locked_at, archived_at,
          lock_token, priority, attempts, status, queue, type, handled_by, dedup_key, key, message,
          headers, details)
        select nextval('messages.message_id_seq'), t, t, t, t, 1, 0, 1,
          $2::messages.message_status, $3, 't' || i % 2, 'host-' || i % 2, 'd' || i, 'k' || i % 2,
          {message}, '{{}}', $4
        from (
          select i, $5::timestamptz - ($1 - i) * interval '1 second' as t
          from generate_series(1, $1::integer) as i
        ) as s
        order by i
        returning id
        """,
        quantity,
        status,
        queue,
        details,
        at or datetime.now(UTC),
    )
    return [row[0] for row in found]


async def search(
    connection: Connection, where: str = "archive", /, **conditions: Any
) -> list[int | None]:
    found = await rows(connection, f"notifyq.search_{where}", conditions=conditions, quantity=1000)
    return [row["id"] if row["state"] != "more" else None for row in found]


async def retry(connection: Connection, *ids: int) -> list[int]:
    found = await connection.fetch("select messages.dead_retry(variadic $1::bigint[])", ids)
    return [row[0] for row in found]


async def test_live_messages_are_found_by_each_condition(connection: Connection) -> None:
    await value(connection, "create_queue", name="q")
    plain = await value(connection, "publish", queue="q", message={"n": 1, "to": {"x": "é"}})
    keyed = await value(
        connection, "publish", queue="q", message=2, type="t", key="k", dedup_key="d"
    )
    later = await value(connection, "publish", queue="q", message=3, delay=timedelta(hours=1))
    blocked = await value(connection, "publish", queue="q", message=4, after=[later])
    (other,) = await publish(connection, 1)
    await rows(connection, "claim", queues=["default"], worker="host-7")
    everything = [other, blocked, later, keyed, plain]
    for conditions, expected in (
        ({}, everything),
        ({"queue": "q"}, everything[1:]),
        ({"queue": "nothing"}, []),
        ({"state": "waiting"}, [keyed, plain]),
        ({"state": "scheduled"}, [later]),
        ({"state": "blocked", "queue": "q"}, [blocked]),
        ({"state": "locked"}, [other]),
        ({"state": "locked", "queue": "q"}, []),
        ({"worker": "host-"}, [other]),
        ({"type": "t"}, [keyed]),
        ({"key": "k", "queue": "q"}, [keyed]),
        ({"dedup_key": "d"}, [keyed]),
        ({"dedup_key": "d", "queue": "q"}, [keyed]),
        ({"payload": '$.to.x == "é"'}, [plain]),
        ({"payload": "$ > 2"}, [blocked, later]),
        ({"until": "2026-01-01"}, []),
        ({"since": "2026-01-01", "type": "t"}, [keyed]),
    ):
        assert await search(connection, "live", **conditions) == expected, conditions
    found = {row["id"]: row for row in await rows(connection, "notifyq.search_live")}
    assert found[blocked]["state"] == "blocked"
    assert found[other]["worker"] == "host-7"
    assert found[plain]["message"] == {"n": 1, "to": {"x": "é"}}


async def test_a_message_that_failed_before_is_found_by_its_error(connection: Connection) -> None:
    await value(connection, "create_queue", name="q", max_attempts=3)
    (id_, _) = await publish(connection, 2, "q")
    (claimed,) = await rows(connection, "claim", queues=["q"])
    await value(
        connection, "retry", id=id_, lock_token=claimed["lock_token"], details="Timeout after 5 s"
    )
    assert await search(connection, "live", error="timeout AFTER") == [id_]
    assert await search(connection, "live", fingerprint="Timeout after <n> s") == [id_]


async def test_finished_messages_are_found_by_each_condition(connection: Connection) -> None:
    won = await archive(connection, 2, status="success", details=None)
    lost = await archive(connection, 4, details="Timeout: '10.0.0.1' after 5 s")
    other = await archive(connection, 1, queue="other", status="rejected", details=None)
    await value(connection, "create_queue", name="q")
    assert len(await retry(connection, lost[0])) == 1
    newest = [*other, *reversed(lost), *reversed(won)]
    at = datetime.now(UTC) - timedelta(seconds=1)
    for conditions, expected in (
        ({"queue": "q", "state": "success"}, [*reversed(won)]),
        ({"state": "success"}, [*reversed(won)]),
        ({"state": "failed"}, [*reversed(lost)]),
        ({"state": "dead"}, [*other, *reversed(lost[1:])]),
        ({"state": "rejected", "queue": "q"}, []),
        ({"type": "t1", "state": "failed"}, [lost[2], lost[0]]),
        ({"key": "k0", "queue": "q"}, [lost[3], won[1], lost[1]]),
        ({"dedup_key": "d3"}, [lost[2]]),
        ({"worker": "host-1", "queue": "other"}, other),
        ({"error": "TIMEOUT:"}, [*reversed(lost)]),
        ({"fingerprint": "Timeout: '<text>' after <n> s"}, [*reversed(lost)]),
        ({"fingerprint": "(no details)", "state": "rejected"}, other),
        ({"payload": "$.n == 2", "state": "success"}, [won[1]]),
        ({"payload": '$.n.datetime() > "2026-01-01".datetime()'}, []),
        ({"since": at.isoformat(), "state": "success"}, [won[1]]),
        ({"until": at.isoformat(), "state": "success"}, [won[0]]),
        ({"until": "9999-12-31", "state": "success"}, [*reversed(won)]),
        ({"until": "infinity", "state": "success"}, [*reversed(won)]),
    ):
        assert await search(connection, **conditions) == expected, conditions
    assert sorted(i or 0 for i in await search(connection)) == sorted(newest)
    found = {row["id"]: row for row in await rows(connection, "notifyq.search_archive")}
    assert found[lost[0]]["retried_as"] is not None
    assert found[lost[1]]["retried_as"] is None


@pytest.mark.parametrize("conditions", [{}, {"queue": "q"}, {"state": "dead"}])
async def test_pages_follow_each_other_without_a_gap_or_a_repetition(
    connection: Connection, conditions: dict[str, str]
) -> None:
    ids = await archive(connection, 20)
    await at_one_instant(connection, ids[5:15])
    await archive(connection, 5, at=NOON)
    assert await pages(connection, "archive", 3, **conditions) == await latest(connection)


async def test_pages_of_all_queues_follow_each_other_however_dense_they_are(
    connection: Connection,
) -> None:
    """They are read by windows of time, of up to 400 messages where payloads are compared."""
    ids = await archive(connection, 1500)
    await at_one_instant(connection, ids[300:800])
    await archive(connection, 450, queue="other", at=NOON)
    assert await pages(connection, "archive", 100, payload="$.n > 0") == await latest(connection)


async def at_one_instant(connection: Connection, ids: list[int]) -> None:
    """Have the archive decide the order by ids."""
    await connection.execute(
        "update messages.message_archive set archived_at = $2 where id = any ($1)",
        ids,
        datetime.now(UTC) - timedelta(seconds=10),
    )


async def latest(connection: Connection) -> list[int]:
    """All of the archive in the order of a search."""
    found = await connection.fetch(
        "select id from messages.message_archive order by archived_at desc, id desc"
    )
    return [row[0] for row in found]


async def pages(
    connection: Connection, where: str, quantity: int, /, **conditions: Any
) -> list[int]:
    """Search page by page."""
    found: list[int] = []
    position: dict[str, Any] = {}
    while True:
        page = await rows(
            connection,
            f"notifyq.search_{where}",
            conditions=conditions,
            quantity=quantity,
            **position,
        )
        found += [row["id"] for row in page if row["state"] != "more"]
        if not page or page[-1]["state"] != "more":
            return found
        position = {"before_id": page[-1]["id"]}
        if where == "archive":
            position["before_at"] = page[-1]["archived_at"]


async def test_pages_of_live_messages_follow_each_other(connection: Connection) -> None:
    ids = await publish(connection, 10)
    assert await pages(connection, "live", 4) == ids[::-1]


async def test_a_search_stops_in_time_and_returns_its_position(connection: Connection) -> None:
    ids = await archive(connection, 3000, details="x")
    needle = {"error": "needle"}
    (row,) = await rows(
        connection, "notifyq.search_archive", conditions=needle, budget=timedelta(0)
    )
    assert row["state"] == "more"
    assert row["id"] > ids[0]
    assert await search(connection, **needle) == []
    live = await publish(connection, 3000)
    (row,) = await rows(
        connection, "notifyq.search_live", conditions={"type": "t"}, budget=timedelta(0)
    )
    assert (row["state"], row["id"] > live[0]) == ("more", True)
    assert await search(connection, "live", type="t") == []


async def test_an_invalid_condition_is_refused(connection: Connection) -> None:
    for conditions, problem in [
        ({"colour": "red"}, "unknown condition 'colour'"),
        ({"state": "happy"}, "no state 'happy'"),
        ({"payload": "$.a =="}, "cannot be understood"),
        ({"payload": "$.a ? (@ > 1)"}, "gives values instead of true or false"),
        ({"payload": '$headers.a == "1"'}, "must not use variables"),
        ({"since": "yesterweek"}, "cannot be understood"),
        ([], "must be a JSON object"),
    ]:
        for function in ("notifyq.search_live", "notifyq.search_archive"):
            with pytest.raises(InvalidArgumentError, match=problem):
                await rows(connection, function, conditions=conditions)


async def test_a_long_payload_is_not_in_a_list(connection: Connection) -> None:
    long = "to_jsonb((select string_agg(md5((i * j)::text), '') from generate_series(1, 99) as j))"
    await archive(connection, 1, message=long)
    await archive(connection, 1, at=NOON)
    found = await rows(connection, "notifyq.search_archive")
    assert [row["message"] for row in found] == [None, {"n": 1}]


async def test_dead_messages_are_grouped_by_what_their_errors_have_in_common(
    connection: Connection,
) -> None:
    await archive(connection, 3, details="Timeout after 17 s\nTraceback", at=NOON)
    last = await archive(connection, 2, queue="other", details="Timeout after 5 s", at=NOON)
    unnamed = await archive(connection, 1, status="rejected", details=None)
    await archive(connection, 9, status="success", details=None)
    first, second, rest = await rows(connection, "notifyq.dead_groups")
    assert dict(first) == {
        "fingerprint": "Timeout after <n> s",
        "dead": 5,
        "first_at": NOON - timedelta(seconds=2),
        "last_at": NOON,
        "last_id": last[-1],
        "queues": ["other", "q"],
        "statuses": ["failed"],
        "sample": "Timeout after 5 s",
    }
    assert (second["fingerprint"], second["dead"]) == ("(no details)", 1)
    assert second["statuses"] == ["rejected"]
    assert (rest["fingerprint"], rest["dead"], rest["last_id"]) == (None, 6, None)
    await value(connection, "create_queue", name="q")
    await retry(connection, *unnamed)
    assert len(await rows(connection, "notifyq.dead_groups")) == 2
    of_q, _ = await rows(connection, "notifyq.dead_groups", conditions={"queue": "q"})
    assert of_q["dead"] == 3


async def test_groups_are_those_of_the_fingerprints(connection: Connection) -> None:
    """They are made of texts whose digits were made the same, which must not matter."""
    texts = [
        "at 0x1F2e and 0xBEEF", "1x5 0x5 9x0", "id 12345678-1234-1234-1234-123456789abc",
        "deadbeef1234 abc12 9f9f9f9f", "2026-02-03T04:05:06.7Z late", "10.0.0.1:5432, 10.0.0.2",
        "/var/log/app7/x.log:99", "  \t spaced   out 7", "'quoted 9' \"and 8\"", "https://a.b/9?x=8",
    ]  # fmt: skip
    for text in texts:
        await archive(connection, 1, details=text, at=NOON)
    *groups, _ = await rows(connection, "notifyq.dead_groups", quantity=100)
    assert sum(row["dead"] for row in groups) == len(texts)
    expected = await connection.fetch(
        "select distinct notifyq.error_fingerprint(t) from unnest($1::text[]) as t", texts
    )
    assert {row["fingerprint"] for row in groups} == {row[0] for row in expected}


async def test_groups_continue_from_a_position(connection: Connection) -> None:
    await archive(connection, 1500)
    *_, rest = await rows(connection, "notifyq.dead_groups", budget=timedelta(0))
    assert rest["dead"] == 1000
    group, end = await rows(
        connection, "notifyq.dead_groups", before_at=rest["first_at"], before_id=rest["last_id"]
    )
    assert (group["dead"], end["dead"], end["last_id"]) == (500, 500, None)


async def steps(connection: Connection, function: str, **conditions: Any) -> list[tuple[int, int]]:
    """Go through all steps; return what each found and did."""
    done: list[tuple[int, int]] = []
    position: dict[str, Any] = {}
    while True:
        (step,) = await rows(connection, function, conditions=conditions, quantity=4, **position)
        done.append((step["found"], step["done"]))
        if step["is_over"]:
            return done
        position = {"position_at": step["position_at"], "position_id": step["position_id"]}


async def test_all_that_match_are_published_again_once_in_their_order(
    connection: Connection,
) -> None:
    await value(connection, "create_queue", name="q")
    ids = await archive(connection, 10)
    gone = await archive(connection, 1, queue="gone")
    await archive(connection, 2, details="another")
    until = (datetime.now(UTC) + timedelta(seconds=5)).isoformat()
    same = {"fingerprint": "no luck", "until": until}
    (count,) = await rows(connection, "notifyq.count_dead_matching", conditions=same)
    assert (count["found"], count["is_over"]) == (11, True)
    (count,) = await rows(connection, "notifyq.count_dead_matching", conditions=same, quantity=4)
    assert (count["found"], count["is_over"]) == (4, False)
    assert sum(done for _, done in await steps(connection, "dead_retry_matching", **same)) == 10
    again = await connection.fetch(
        "select (m.message ->> 'n')::integer from messages.message as m order by m.id"
    )
    assert [row[0] for row in again] == list(range(1, 11))
    assert sum(done for _, done in await steps(connection, "dead_retry_matching", **same)) == 0
    assert await search(connection, state="dead", fingerprint="no luck") == gone
    # A deletion leaves what was published again.
    await steps(connection, "dead_delete_matching", until=until)
    assert await search(connection, state="dead") == []
    assert sorted(i or 0 for i in await search(connection)) == ids


async def test_steps_skip_messages_that_fail_again(connection: Connection) -> None:
    await value(connection, "create_queue", name="q")
    await archive(connection, 5)
    until = datetime.now(UTC)
    await archive(connection, 1, at=until + timedelta(seconds=1))
    done = await steps(connection, "dead_retry_matching", until=(until.isoformat()))
    assert sum(n for _, n in done) in {4, 5}
    with pytest.raises(InvalidArgumentError, match="until is missing"):
        await rows(connection, "dead_retry_matching", conditions={"queue": "q"})


async def test_two_steps_at_once_publish_each_message_once(connect: Connect) -> None:
    one, two, observer = [await connect() for _ in range(3)]
    await value(one, "create_queue", name="q")
    await archive(one, 20)
    conditions = {"until": (datetime.now(UTC) + timedelta(seconds=5)).isoformat()}
    transaction = one.transaction()
    await transaction.start()
    (first,) = await rows(one, "dead_retry_matching", conditions=conditions)
    second = asyncio.create_task(rows(two, "dead_retry_matching", conditions=conditions))
    await until_blocked(observer, two)
    await transaction.commit()
    (other,) = await second
    assert (first["done"], other["found"], other["done"]) == (20, 20, 0)
    assert await one.fetchval("select count(*) from messages.message") == 20


async def test_relatives_are_dependencies_dependents_and_redrives(connection: Connection) -> None:
    await value(connection, "create_queue", name="q")
    first, second = await publish(connection, 2, "q")
    held = await value(connection, "publish", queue="q", message=9, after=[first, second])
    assert [
        tuple(row)[:4] for row in await rows(connection, "notifyq.message_relatives", id=held)
    ] == [("after", first, "q", "waiting"), ("after", second, "q", "waiting")]
    assert [
        tuple(row)[:4] for row in await rows(connection, "notifyq.message_relatives", id=first)
    ] == [("before", held, "q", "blocked")]
    (dead,) = await archive(connection, 1)
    (again,) = await retry(connection, dead)
    ((kind, id_, queue, state, at),) = await rows(connection, "notifyq.message_relatives", id=dead)
    assert (kind, id_, queue, state) == ("retried_as", again, "q", "waiting")
    assert at is not None
    assert [
        tuple(row)[:4] for row in await rows(connection, "notifyq.message_relatives", id=again)
    ] == [("retry_of", dead, "q", "failed")]


async def test_a_scheduled_message_can_run_now(
    connection: Connection, notifications: Notifications
) -> None:
    later = await value(connection, "publish", queue="default", message=1, delay=timedelta(days=1))
    blocked = await value(connection, "publish", queue="default", message=2, after=[later])
    await notifications.received()
    assert await value(connection, "run_now", id=later) is True
    assert await notifications.ids() == [[later]]
    assert await value(connection, "run_now", id=later) is False
    assert await value(connection, "run_now", id=blocked) is False
    (claimed,) = await rows(connection, "claim", quantity=5)
    assert claimed["id"] == later
    await expire(connection, later)
    assert await value(connection, "run_now", id=later) is False


async def test_a_reader_may_search_but_not_act(connection: Connection) -> None:
    await connection.execute("set role notifyq_reader")
    await rows(connection, "notifyq.search_archive")
    with pytest.raises(asyncpg.InsufficientPrivilegeError):
        await rows(connection, "dead_retry_matching", conditions={"until": "2026-01-01"})
    await connection.execute("reset role")
