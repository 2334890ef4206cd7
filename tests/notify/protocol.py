"""A worker and publishers as single steps, for tests that run these in every order."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any, TypeAlias

from notifyq.database import statements as sql
from support.database import Connection, Notifications, rows, until

Step: TypeAlias = "Callable[[], Awaitable[None]]"


def orders(*lengths: int) -> Iterator[tuple[int, ...]]:
    """Give every order of the steps of several actors; each takes its own steps in order."""
    if not any(lengths):
        yield ()
    for actor, length in enumerate(lengths):
        if length:
            rest = (*lengths[:actor], length - 1, *lengths[actor + 1 :])
            for order in orders(*rest):
                yield (actor, *order)


async def run(order: Sequence[int], *actors: Sequence[Step]) -> None:
    """Take the steps of the actors in this order."""
    left = [iter(actor) for actor in actors]
    for actor in order:
        await next(left[actor])()


async def suppress(session: Connection, queue: str) -> bool | None:
    """Suppress notifications whether or not there are publishers at this moment."""
    answer: bool | None = await session.fetchval("select notifyq.suppress($1)", queue)
    return answer


async def unsuppress(session: Connection, *queues: str) -> str:
    """End the suppression for these queues; return the transaction id to wait for."""
    return str(await session.fetchval(sql.UNSUPPRESS, list(queues)))


async def is_over(session: Connection, xid: str) -> bool:
    return bool(await session.fetchval(sql.IS_TRANSACTION_OVER, xid))


class Sleeper:
    """A worker with slots for everything, in steps: suppress, poll, unsuppress, poll a last time.

    It is the protocol of common/notify.sql alone. In every order of steps it ends asleep and has
    claimed everything, or a notification arrives after its last poll began.
    """

    def __init__(self, session: Connection, notifications: Notifications, queue: str) -> None:
        self._session = session
        self._notifications = notifications
        self._queue = queue
        self._suppressing: asyncio.Task[bool | None] | None = None
        self._xid: str | None = None
        self.waits_for_publishers = True
        self.reads_before_release = False
        self.is_asleep = False
        self.claimed: list[int] = []

    @property
    def steps(self) -> list[Step]:
        """What it does, in its order."""
        read = [self._read] if self.reads_before_release else []
        return [self._suppress, self._poll, *read, self._unsuppress, self._poll_last]

    async def end(self) -> None:
        """Go to sleep, after the publishers have ended."""
        await until(self._falls_asleep, "all publishers are over")

    async def is_notified(self) -> bool:
        """Whether a notification has arrived since the last poll began."""
        return self._queue in {
            notification.queue for notification in await self._notifications.received()
        }

    async def _suppress(self) -> None:
        # An open publisher that notifies delays it.
        self._suppressing = asyncio.create_task(suppress(self._session, self._queue))
        await asyncio.wait({self._suppressing}, timeout=0.005)

    async def _poll(self) -> None:
        if self._suppressing is not None and not self._suppressing.done():
            return
        await self._notifications.received()
        claimed = await rows(self._session, "claim", queues=[self._queue], quantity=1000)
        self.claimed += [row["id"] for row in claimed]

    async def _read(self) -> None:
        assert self._suppressing is not None
        await self._suppressing
        self._xid = await unsuppress(self._session)

    async def _unsuppress(self) -> None:
        assert self._suppressing is not None
        answer = await self._suppressing
        if answer is False:
            return
        left = await unsuppress(self._session, *([self._queue] if answer else []))
        if not self.reads_before_release:
            self._xid = left

    async def _falls_asleep(self) -> bool:
        # Transactions of the server itself, such as autovacuum, delay it like publishers.
        if not self.is_asleep:
            await self._poll_last()
        return self.is_asleep

    async def _poll_last(self) -> None:
        xid = self._xid
        if xid and self.waits_for_publishers and not await is_over(self._session, xid):
            return
        await self._poll()
        self.is_asleep = True


class Writer:
    """A publisher's session: statements, with `{queue}` for the queue's name, each of them a step.

    COPY stands for a transaction that has published three messages by it.
    """

    def __init__(self, session: Connection, queue: str, *statements: str) -> None:
        self._session = session
        self._statements = [statement.format(queue=queue) for statement in statements]
        self._queue = queue

    @property
    def steps(self) -> list[Step]:
        """What it does, in its order."""
        return [self._step(statement) for statement in self._statements]

    def _step(self, statement: str) -> Step:
        async def step() -> None:
            if statement == COPY:
                await self._session.execute("begin")
                await self._session.copy_to_table(
                    "message",
                    schema_name="messages",
                    columns=("queue", "message"),
                    source=io.BytesIO(f"{self._queue}\t1\n".encode() * 3),
                )
            else:
                await self._session.execute(statement)

        return step


COPY = "copy"
INSERT = "insert into messages.message (queue, message) values ('{queue}', '1')"


async def waiting(session: Connection, queue: str) -> int:
    """How many messages of the queue no worker has claimed."""
    count: Any = await session.fetchval(
        "select count(*) from messages.message where queue = $1 and state = 'waiting'", queue
    )
    return int(count)
