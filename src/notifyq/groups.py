"""Groups: messages that are published together, and a callback that runs when all have ended."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from notifyq.borrowed import borrow

if TYPE_CHECKING:
    from collections.abc import Iterable

    from notifyq.app import App
    from notifyq.borrowed import Awaited
    from notifyq.publisher import OnFailure
    from notifyq.results import Handle


@dataclass(frozen=True, slots=True)
class Group:
    """What was published: the messages, in order, and their callback."""

    messages: list[Handle[Any]]
    callback: Handle[Any]


async def publish_group(
    app: App,
    queue: str,
    payloads: Iterable[Any],
    *,
    callback: tuple[str, Any],
    on_failure: OnFailure = "run",
    connection: Awaited | None = None,
    **options: Any,
) -> Group:
    """Publish messages, and one more that runs when all of them have ended; all or none.

    `callback` is the queue and the payload of the latter; `on_failure` what becomes of it if one of
    the others dies. The options are those of `App.publish_many`, for the messages of the group. The
    handler of the callback reads the results with `app.archive.dependencies(message.id)`.
    """
    if connection is None:
        async with app.database.connection() as own:
            return await publish_group(
                app,
                queue,
                payloads,
                callback=callback,
                on_failure=on_failure,
                connection=own,
                **options,
            )
    async with borrow(connection).transaction():
        messages = await app.publish_many(queue, payloads, connection=connection, **options)
        last = await app.publish(
            *callback, connection=connection, after=messages, on_failure=on_failure
        )
    return Group(messages, last)
