"""A worker and publishers as their single steps, for tests that bring these into every order."""

from __future__ import annotations

import asyncio
import io
from typing import TYPE_CHECKING, Any, TypeAlias

from notifyq.database import sql
from support.database import rows, until

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Sequence

    from support.database import Bells, Connection

Step: TypeAlias = "Callable[[], Awaitable[None]]"


def orders(*lengths: int) -> Iterator[tuple[int, ...]]:
    """Give every order of the steps of several actors; each does its own one after the other."""
    if not any(lengths):
        yield ()
    for actor, length in enumerate(lengths):
        if length:
            rest = (*lengths[:actor], length - 1, *lengths[actor + 1 :])
            for order in orders(*rest):
                yield (actor, *order)


async def run(order: Sequence[int], *actors: Sequence[Step]) -> None:
    """Take the steps of the actors in this order."""
    ahead = [iter(actor) for actor in actors]
    for actor in order:
        await next(ahead[actor])()


async def attend(session: Connection, queue: str) -> bool | None:
    """Attend whether or not somebody publishes at this moment."""
    answer: bool | None = await session.fetchval("select notifyq.suppress($1)", queue)
    return answer


async def unattend(session: Connection, *queues: str) -> str:
    """Attend these queues no more; what `settled` asks about is returned."""
    return str(await session.fetchval(sql.UNATTEND, list(queues)))


async def settled(session: Connection, since: str) -> bool:
    return bool(await session.fetchval(sql.SETTLED, since))


class Sleeper:
    """A worker with slots for everything, taken apart: attend, look, leave, last look.

    It is the protocol of common/notify.sql with nothing around it. Whatever the order of steps, it
    ends asleep, having claimed everything, or a bell rings after its last look began.
    """

    def __init__(self, session: Connection, bells: Bells, queue: str) -> None:
        self._session = session
        self._bells = bells
        self._queue = queue
        self._attending: asyncio.Task[bool | None] | None = None
        self._silent_since: str | None = None
        self.waits_for_settling = True
        self.reads_before_release = False
        self.is_asleep = False
        self.claimed: list[int] = []

    @property
    def steps(self) -> list[Step]:
        """What it does, in its order."""
        read = [self._read] if self.reads_before_release else []
        return [self._attend, self._look, *read, self._leave, self._look_last]

    async def end(self) -> None:
        """Go to sleep, now that nobody publishes any more."""
        await until(self._falls_asleep, "all publishers are over, and it is settled")

    async def is_called(self) -> bool:
        """Whether a bell has rung since the last look began."""
        return self._queue in {bell.queue for bell in await self._bells.heard()}

    async def _attend(self) -> None:
        # A publisher that rings and is not over holds it up.
        self._attending = asyncio.create_task(attend(self._session, self._queue))
        await asyncio.wait({self._attending}, timeout=0.005)

    async def _look(self) -> None:
        if self._attending is not None and not self._attending.done():
            return
        await self._bells.heard()
        claimed = await rows(self._session, "claim", queues=[self._queue], quantity=1000)
        self.claimed += [row["id"] for row in claimed]

    async def _read(self) -> None:
        assert self._attending is not None
        await self._attending
        self._silent_since = await unattend(self._session)

    async def _leave(self) -> None:
        assert self._attending is not None
        answer = await self._attending
        if answer is False:
            return
        left = await unattend(self._session, *([self._queue] if answer else []))
        if not self.reads_before_release:
            self._silent_since = left

    async def _falls_asleep(self) -> bool:
        # Transactions of the server itself, as of autovacuum, are waited for like publishers.
        if not self.is_asleep:
            await self._look_last()
        return self.is_asleep

    async def _look_last(self) -> None:
        since = self._silent_since
        if since and self.waits_for_settling and not await settled(self._session, since):
            return
        await self._look()
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
    """How many messages of the queue nobody has claimed."""
    count: Any = await session.fetchval(
        "select count(*) from messages.message where queue = $1 and state = 'waiting'", queue
    )
    return int(count)
