"""What the publisher makes of payloads that PostgreSQL does not take."""

from __future__ import annotations

import pickle
from datetime import timedelta
from typing import Any

import pytest

from notifyq import App, ConfigurationError, Json, Message, QueueNotFoundError, Reject
from notifyq.queues.published import Published
from support.database import Connection
from support.running import working


@pytest.mark.parametrize("payload", [float("nan"), "a\x00b", Json("{"), Json(r'"\ud800"')])
async def test_a_payload_that_cannot_be_stored_is_refused_in_one_line(
    app: App, connection: Connection, payload: Any
) -> None:
    with pytest.raises(ConfigurationError, match="cannot store the message"):
        await app.publish("default", payload)
    with pytest.raises(ConfigurationError, match="cannot store the message"):
        await app.publish_many("default", [1, payload])
    with pytest.raises(ConfigurationError, match="cannot store the message"):
        await app.publish("default", payload, connection=connection)
    assert not await app.archive.live()


async def test_a_codec_of_the_callers_connection_changes_no_payload(
    app: App, connection: Connection
) -> None:
    payload = {"text": "1", "list": [1, None]}
    first = await app.publish("default", payload, connection=connection, headers={"a": "b"})
    second = await app.publish_many("default", [payload], connection=connection)
    for message in await app.archive.live():
        assert message.id in {first, *second}
        assert message.payload() == payload


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"delay": "5s"}, r"delay must be a duration \(timedelta or seconds\), not '5s'"),
    ({"dedup_window": "1h"}, "dedup_window must be a duration"),
    ({"available_at": 5}, "available_at must be a datetime, not 5"),
    ({"priority": "high"}, "priority must be an integer, not 'high'"),
    ({"type": 1}, "type must be a text, not 1"),
    ({"headers": [1]}, r"headers must be a mapping, not \[1\]"),
    ({"max_attempts": "2"}, "max_attempts must be an integer, not '2'"),
    ({"cost": 1.5}, "cost must be an integer, not 1.5"),
    ({"after": 17}, r"after must be a sequence of ids, as in \[17\]"),
    ({"key": 5}, "key must be a text, not 5"),
    ({"dedup_key": 5}, "dedup_key must be a text, not 5"),
    ({"prioritty": 5}, "a message has no option 'prioritty': did you mean 'priority'?"),
]


@pytest.mark.parametrize(("options", "reason"), WRONG)
async def test_an_option_of_another_type_is_named(
    app: App, options: dict[str, Any], reason: str
) -> None:
    with pytest.raises(TypeError, match=reason):
        await app.publish("default", 1, **options)
    many: dict[str, Any] = {
        name: (lambda _, it=it: it) if "key" in name else it for name, it in options.items()
    }
    with pytest.raises(TypeError, match=reason):
        await app.publish_many("default", [1], **many)
    assert not await app.archive.live()


async def test_a_bare_number_counts_seconds(app: App) -> None:
    await app.publish("default", 1, delay=90.5)
    await app.publish("default", 1, dedup_key="k", dedup_window=3600)
    assert await app.publish("default", 2, dedup_key="k") == (await app.archive.live())[-1].id
    delayed, _ = sorted(await app.archive.live(), key=lambda it: it.id)
    assert delayed.available_at - delayed.created_at > timedelta(seconds=90)


async def test_a_handle_knows_that_nothing_was_published(app: App) -> None:
    @app.handler(queue="default")
    def count(number: int) -> int:
        return number

    for published in (
        [await app.publish("default", 1, dedup_key=key) for key in ("a", "a", "b", None)],
        [await count.publish(1, dedup_key=key) for key in ("c", "c", "d", None)],
    ):
        assert [id_.is_duplicate for id_ in published] == [False, True, False, False]
        assert published[0] == published[1]
    copied = pickle.loads(pickle.dumps(Published(5, is_duplicate=True)))
    assert (copied, copied.is_duplicate) == (5, True)


async def test_keys_and_attempts_reach_the_messages(app: App) -> None:
    await app.publish("default", 0, key="zero", max_attempts=4)
    await app.publish_many("default", [1, 2], key=lambda n: f"k{n}", max_attempts=2)
    async for _ in app.publish_stream("default", [3], key=lambda _: None):
        pass
    assert [
        (message.payload(), message.key, message.max_attempts)
        for message in sorted(await app.archive.live(), key=lambda it: it.id)
    ] == [(0, "zero", 4), (1, "k1", 2), (2, "k2", 2), (3, None, None)]


async def test_a_cost_is_published_with_the_message(app: App) -> None:
    await app.publish("default", 0, cost=5, headers={"a": 1})
    await app.publish_many("default", [1], cost=6)
    assert [
        message.headers for message in sorted(await app.archive.live(), key=lambda it: it.id)
    ] == [{"a": 1, "cost": 5}, {"cost": 6}]


async def test_a_group_calls_back_with_its_results(app: App) -> None:
    await app.admin.create_queue("parts")
    await app.admin.create_queue("whole")

    @app.handler("parts")
    async def part(number: int) -> int:
        if number == 2:
            raise Reject("two is odd")
        return 10 * number

    @app.handler("whole")
    async def whole(_: str, message: Message) -> list[tuple[str, int | None]]:
        parts = await app.archive.dependencies(message.id)
        return [(it.state, it.value()) for it in parts]

    group = await app.publish_group("parts", [1, 2, 3], callback=("whole", "done"))
    async with working(app):
        found = await group.callback.result(timeout=20)
    assert found == [["success", 10], ["rejected", None], ["success", 30]]
    empty = await app.publish_group("parts", [], callback=("whole", "done"), on_failure="hold")
    (message,) = await app.archive.live()
    assert (message.id, message.state, empty.messages) == (empty.callback, "waiting", [])
    held = await app.publish("parts", 4, after=[group.messages[1]], on_failure="hold")
    assert await app.archive.unblock(held)


async def test_a_misspelt_queue_gets_the_name_that_was_meant(app: App) -> None:
    app.handler("billing")(lambda: None)
    await app.create()
    with pytest.raises(QueueNotFoundError) as caught:
        await app.publish("biling", 1)
    assert "did you mean 'billing'? Or create a queue with await" in str(caught.value)


async def test_a_group_is_published_all_or_none(app: App) -> None:
    with pytest.raises(QueueNotFoundError):
        await app.publish_group("default", [1, 2], callback=("nope", None))
    assert not await app.archive.live()
