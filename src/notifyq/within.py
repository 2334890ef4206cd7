"""Publish within a transaction of the caller's, on a connection of whatever library opened it.

A connection that blocks gives the id at once; one of asyncio is awaited:

    number = within.publish(connection, "billing", payload)
    number = await within.publish(session, "billing", payload)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeVar, Unpack, overload

from notifyq.database.external import borrow
from notifyq.queues.publisher import Publisher

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterable

    from notifyq.database.external import Awaited, Blocking, Borrowed
    from notifyq.queues.publish_options import ManyOptions, MessageOptions

__all__ = ["publish", "publish_many"]

T = TypeVar("T")


class _Within(Publisher):
    """Publishes on connections that it is given, and has none of its own."""

    def __init__(self) -> None:
        """Need no database, and so leave payloads to it."""
        self._schemas = None
        self._tracing = None

    def _borrow(self, connection: Any) -> Borrowed:
        return borrow(connection)


_publisher = _Within()


class _Named(Protocol):
    """A handler: it publishes to its queue."""

    @property
    def queue(self) -> str: ...


@overload
def publish(
    connection: Blocking,
    queue: str | _Named,
    payload: Any = None,
    /,
    **options: Unpack[MessageOptions],
) -> int: ...
@overload
def publish(
    connection: Awaited,
    queue: str | _Named,
    payload: Any = None,
    /,
    **options: Unpack[MessageOptions],
) -> Coroutine[Any, Any, int]: ...
def publish(connection: Any, queue: Any, payload: Any = None, /, **options: Any) -> Any:
    """Publish one message and return its id; the options are those of `Publisher.publish`.

    `connection` is one of asyncpg, psycopg or Django, or a connection or session of SQLAlchemy; the
    message is there when its transaction commits, and never was if it does not. `queue` is a name
    or a handler.
    """
    blocks = borrow(connection).blocks
    call = _publisher.publish(_name(queue), payload, connection=connection, **options)
    return _now(call) if blocks else call


@overload
def publish_many(
    connection: Blocking,
    queue: str | _Named,
    payloads: Iterable[Any],
    /,
    **options: Unpack[ManyOptions],
) -> list[int]: ...
@overload
def publish_many(
    connection: Awaited,
    queue: str | _Named,
    payloads: Iterable[Any],
    /,
    **options: Unpack[ManyOptions],
) -> Coroutine[Any, Any, list[int]]: ...
def publish_many(connection: Any, queue: Any, payloads: Iterable[Any], /, **options: Any) -> Any:
    """Publish messages, all or none; return their ids in order.

    The options are those of `Publisher.publish_many`; the rest is as for `publish`.
    """
    blocks = borrow(connection).blocks
    call = _publisher.publish_many(_name(queue), payloads, connection=connection, **options)
    return _now(call) if blocks else call


def _name(queue: str | _Named) -> str:
    return queue if isinstance(queue, str) else queue.queue


def _now(call: Coroutine[Any, Any, T]) -> T:
    """Run a call to its end, which it reaches without ever waiting for an event loop."""
    try:
        call.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    raise AssertionError  # a connection that blocks has awaited something
