"""Publishing on connections that block: psycopg, SQLAlchemy, Django."""

from __future__ import annotations

from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from typing import Any, assert_type

import psycopg
import pytest
from django.db.transaction import atomic, set_rollback
from django.db.utils import InternalError
from sqlalchemy.exc import DBAPIError

from integrations.connections import Watcher, django
from notifyq import (
    App,
    ConfigurationError,
    InvalidArgumentError,
    Json,
    MessageLimitError,
    Published,
    QueueDeniedError,
    QueueNotFoundError,
    within,
)


def test_a_message_is_published_if_the_transaction_commits(blocking: Any, watcher: Watcher) -> None:
    within.publish(blocking, "default", 1)
    within.publish_many(blocking, "default", [2, 3])
    blocking.rollback()
    assert not watcher.notifications()

    fourth = within.publish(blocking, "default", {"a": [1, None, "%s :p1 ☃"]})
    assert not watcher.messages()
    blocking.commit()
    [message] = watcher.messages()
    assert message["id"] == fourth
    assert message["message"] == {"a": [1, None, "%s :p1 ☃"]}
    assert watcher.notifications() == 1


def test_every_option_arrives(blocking: Any, watcher: Watcher) -> None:
    within.publish(
        blocking,
        "default",
        Json('{"n": 1}'),
        priority=-(2**31),
        type="t",
        headers={"h": "'"},
        dedup_key="d",
        key="k",
        max_attempts=3,
        available_at=datetime(2050, 1, 1, tzinfo=UTC),
    )
    within.publish(blocking, "default", 1, delay=timedelta(hours=1))
    again = within.publish(blocking, "default", 2, dedup_key="d")
    local = within.publish(blocking, "default", 3, available_at=datetime(2050, 6, 1))  # noqa: DTZ001
    blocking.commit()

    first, delayed, zoneless = watcher.messages()
    assert again == first["id"]
    assert first["message"] == {"n": 1}
    assert [first[name] for name in ("priority", "type", "headers", "dedup_key")] == [
        -(2**31),
        "t",
        {"h": "'"},
        "d",
    ]
    assert (first["key"], first["max_attempts"]) == ("k", 3)
    assert first["available_at"] == datetime(2050, 1, 1, tzinfo=UTC)
    assert delayed["available_at"] - delayed["created_at"] > timedelta(minutes=59)
    assert zoneless["id"] == local
    assert zoneless["available_at"] == datetime(2050, 6, 1).astimezone()


def test_many_are_published_with_keys_of_their_own(
    blocking: Any, watcher: Watcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("notifyq.queues.publisher._LARGEST", 3)
    ids = within.publish_many(
        blocking,
        "default",
        (n for n in range(8)),
        dedup_key=lambda n: f"d{n}" if n else None,
        key=str,
        type="t",
    )
    empty = within.publish_many(blocking, "default", [])
    with pytest.raises(ConfigurationError, match="at position 4"):
        within.publish_many(blocking, "default", [2, 3, 4, "\x00", 5])
    # Of that nothing is left, and the transaction goes on.
    blocking.commit()

    messages = watcher.messages()
    assert not empty
    assert ids == [message["id"] for message in messages]
    assert [message["message"] for message in messages] == list(range(8))
    assert [message["dedup_key"] for message in messages] == [None, *(f"d{n}" for n in range(1, 8))]
    assert [message["key"] for message in messages] == [str(n) for n in range(8)]


REFUSED: list[tuple[str, Any, dict[str, Any], type[Exception]]] = [
    ("absent", 1, {}, QueueNotFoundError),
    (
        "default",
        1,
        {"delay": timedelta(1), "available_at": datetime.now(UTC)},
        InvalidArgumentError,
    ),
    ("default", "x" * 2_000_000, {}, MessageLimitError),
    ("default", float("nan"), {}, ConfigurationError),
    ("default", "a\x00b", {}, ConfigurationError),
    ("default", Json(r'"\ud800"'), {}, ConfigurationError),
    ("default", Json('"\ud800"'), {}, ConfigurationError),
    ("default", 1, {"type": "a\x00"}, ConfigurationError),
    ("default", 1, {"priority": 2**31}, ConfigurationError),
    ("default", {1, object()}, {}, ConfigurationError),
]


def test_errors_are_those_of_notifyq(blocking: Any, watcher: Watcher) -> None:
    with pytest.raises(QueueNotFoundError) as raised:
        within.publish(blocking, "absent", 1)
    assert raised.value.args[0] == "there is no queue 'absent'"
    assert raised.value.hint
    assert raised.value.hint.startswith("create it with")
    # What is not about the call stays an error of the driver's.
    with pytest.raises((psycopg.errors.InFailedSqlTransaction, DBAPIError, InternalError)):
        within.publish(blocking, "default", 1)
    blocking.rollback()
    for queue, payload, options, error in REFUSED:
        with pytest.raises(error):
            within.publish(blocking, queue, payload, **options)
        blocking.rollback()
        with pytest.raises(error):
            within.publish_many(blocking, queue, [payload], **options)
        blocking.rollback()
        within.publish(blocking, "default", ascii(payload)[:9])
        blocking.commit()
    published = [message["message"] for message in watcher.messages()]
    assert published == [ascii(payload)[:9] for _, payload, _, _ in REFUSED]


def test_a_role_without_the_queue_is_denied(database: str, watcher: Watcher) -> None:
    with psycopg.connect(database) as connection:
        connection.execute("create role doors_stranger in role notifyq_publisher")
        connection.execute("select messages.grant_queue('default', 'notifyq_admin')")
        connection.execute("set local role doors_stranger")
        with pytest.raises(QueueDeniedError):
            within.publish(connection, "default", 1)
        connection.rollback()
    assert not watcher.messages()


def test_a_handler_stands_for_its_queue(database: str, watcher: Watcher) -> None:
    app = App(database)

    @app.handler("default")
    async def handle(number: int) -> None:
        raise AssertionError(number)

    with psycopg.connect(database) as connection:
        published = assert_type(within.publish(connection, handle, 5), Published)
    assert watcher.ids() == [published]


def test_atomic_blocks_of_django_publish(database: str, watcher: Watcher) -> None:
    with ExitStack() as stack:
        connection = django(database, stack)
        alone = within.publish(connection, "default", 1)
        assert watcher.ids() == [alone]
        with atomic(using="other"):
            first = within.publish(connection, "default", 2)
            with atomic(using="other"):
                within.publish(connection, "default", 3)
                set_rollback(True, using="other")
            assert watcher.ids() == [alone]
        assert watcher.ids() == [alone, first]


def test_a_pipeline_of_psycopg_publishes(database: str, watcher: Watcher) -> None:
    with psycopg.connect(database) as connection, connection.pipeline():
        ids = [within.publish(connection, "default", number) for number in range(3)]
        ids += assert_type(within.publish_many(connection, "default", [3]), list[Published])
    assert watcher.ids() == ids


def test_other_objects_are_refused_as_connections(database: str) -> None:
    with pytest.raises(ConfigurationError, match="'str' is not a connection that can publish"):
        within.publish("postgresql://", "default", 1)  # type: ignore[call-overload]
    with (
        ExitStack() as stack,
        pytest.raises(ConfigurationError, match="'other' of Django is sqlite"),
    ):
        within.publish(django(database, stack, engine="sqlite3"), "default", 1)
