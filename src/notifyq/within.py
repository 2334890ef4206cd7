"""Publish in a transaction of the caller, on a connection of another library.

A blocking connection returns the id; a call on one of asyncio is awaited:

    number = within.publish(connection, "billing", payload)
    number = await within.publish(session, "billing", payload)
"""

from __future__ import annotations

from collections.abc import Coroutine, Iterable
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, Unpack, overload

from notifyq.database.encryption.envelopes import environment_keys
from notifyq.database.external import adapt
from notifyq.database.installs import schema_of
from notifyq.database.statements import ENCRYPTED_NAMES
from notifyq.queues.publish_options import ManyOptions, MessageOptions
from notifyq.queues.published import Published
from notifyq.queues.publisher import Publisher

if TYPE_CHECKING:
    from notifyq.database.encryption.envelopes import Keys
    from notifyq.database.external import Awaited, Blocking, External

__all__ = ["publish", "publish_many"]

T = TypeVar("T")


class _Within(Publisher):
    """Publishes on connections of the caller, and has none of its own."""

    def __init__(self, schema: str | None = None) -> None:
        """Need no database, which alone checks the payloads."""
        self._given = schema
        self._schemas = None
        self._tracing = None

    @cached_property
    def _keys(self) -> Keys | None:  # type: ignore[override]  # read when it is first needed
        return environment_keys()

    async def _encrypts(self, connection: Any, queue: str) -> bool:
        # Each time: connections may be of any database.
        rows = await self._adapt(connection).fetch(ENCRYPTED_NAMES)
        return any(row[0] == queue for row in rows)

    def _forget_encrypted(self) -> None:
        """Keep nothing that could be forgotten."""

    def _adapt(self, connection: Any) -> External:
        return adapt(connection, schema_of(self._given))


@cache
def _publisher(schema: str | None) -> _Within:
    return _Within(schema)


class _Named(Protocol):
    """A handler, for the name of its queue."""

    @property
    def queue(self) -> str: ...


@overload
def publish(
    connection: Blocking,
    queue: str | _Named,
    payload: Any = None,
    /,
    *,
    schema: str | None = None,
    **options: Unpack[MessageOptions],
) -> Published: ...
@overload
def publish(
    connection: Awaited,
    queue: str | _Named,
    payload: Any = None,
    /,
    *,
    schema: str | None = None,
    **options: Unpack[MessageOptions],
) -> Coroutine[Any, Any, Published]: ...
def publish(
    connection: Any,
    queue: Any,
    payload: Any = None,
    /,
    *,
    schema: str | None = None,
    **options: Any,
) -> Any:
    """Publish one message and return its id; the options are those of `Publisher.publish`.

    `connection` is one of asyncpg, psycopg or Django, or a connection or session of SQLAlchemy. The
    message exists when its transaction commits, and never if it rolls back. `queue` is a name or a
    handler, `schema` that of the install, by default NOTIFYQ_SCHEMA, else `messages`.
    """
    blocks = adapt(connection, schema_of(schema)).blocks
    call = _publisher(schema).publish(_name(queue), payload, connection=connection, **options)
    return _now(call) if blocks else call


@overload
def publish_many(
    connection: Blocking,
    queue: str | _Named,
    payloads: Iterable[Any],
    /,
    *,
    schema: str | None = None,
    **options: Unpack[ManyOptions],
) -> list[Published]: ...
@overload
def publish_many(
    connection: Awaited,
    queue: str | _Named,
    payloads: Iterable[Any],
    /,
    *,
    schema: str | None = None,
    **options: Unpack[ManyOptions],
) -> Coroutine[Any, Any, list[Published]]: ...
def publish_many(
    connection: Any,
    queue: Any,
    payloads: Iterable[Any],
    /,
    *,
    schema: str | None = None,
    **options: Any,
) -> Any:
    """Publish messages, all or none; return their ids in order.

    The options are those of `Publisher.publish_many`; the rest is as for `publish`.
    """
    blocks = adapt(connection, schema_of(schema)).blocks
    call = _publisher(schema).publish_many(_name(queue), payloads, connection=connection, **options)
    return _now(call) if blocks else call


def _name(queue: str | _Named) -> str:
    return queue if isinstance(queue, str) else queue.queue


def _now(call: Coroutine[Any, Any, T]) -> T:
    """Run a call that ends without waiting for an event loop."""
    try:
        call.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    raise AssertionError  # a blocking connection has awaited something
