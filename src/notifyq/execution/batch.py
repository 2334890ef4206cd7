"""One call of a handler for many messages: from locked rows to an outcome for each of them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from notifyq.execution.call import HandlerCall, RollBackError, is_closing
from notifyq.execution.transactions import Transactions
from notifyq.models.outcome import Committed, Failed, Outcome, Rejected, Released, Success

if TYPE_CHECKING:
    from collections.abc import Iterable

    from notifyq.database.pool import AnyConnection
    from notifyq.execution.call import Cause
    from notifyq.execution.runtime import Runtime
    from notifyq.handlers.handler import Handler


M = TypeVar("M", bound=HandlerCall)


class BatchCall(Generic[M]):
    """Messages on their way through their handler together.

    Each keeps its own lock: one that has lost it is left out or not finished, the others go on.
    """

    def __init__(self, handler: Handler[Any], *, opened: float) -> None:
        self.handler = handler
        self.members: list[M] = []
        self.opened = opened
        """When its first message came, in monotonic seconds."""
        self.unsettled = 0
        self.started: float | None = None
        self.run = 0.0  # seconds
        self.waits_since = 0.0
        self.lost: set[M] = set()
        """Members whose lock was lost before they were handled, or meanwhile."""
        self._call: HandlerCall | None = None
        self.task: asyncio.Task[Any] | None = None

    @property
    def is_full(self) -> bool:
        """Whether it takes no more messages."""
        return len(self.members) >= (self.handler.batch or 1)

    def stop(self, cause: Cause) -> bool:
        """Stop the handler if it runs; false where there is nothing to stop."""
        return self._call is not None and self._call.stop(cause)

    def lose(self, member: M) -> bool:
        """Leave a member out whose lock is over; true if no other one is left."""
        self.lost.add(member)
        return len(self.lost) == len(self.members)

    async def outcomes(
        self, tools: Runtime, transaction: AnyConnection | None = None
    ) -> dict[M, Outcome]:
        """Validate the payloads, call the handler, and tell for each message how that ended.

        In a transaction of the caller's it is for the caller to end it as the outcomes say.
        """
        ended: dict[M, Outcome] = {}
        payloads: dict[M, Any] = {}
        for member in self.members:
            if member in self.lost:
                ended[member] = Released()
                continue
            payload = member.payload()
            if isinstance(payload, Rejected | Failed):
                ended[member] = payload
            else:
                payloads[member] = payload
        if payloads:
            first = next(iter(payloads))
            self._call = HandlerCall(self.handler, first.message)
            self._call.task = self.task
            if self.handler.is_transactional and transaction is None:
                ended |= await self._in_transaction(payloads, tools)
            else:
                ended |= await self._ended(payloads, tools, transaction)
        return ended

    async def _ended(
        self, payloads: dict[M, Any], tools: Runtime, transaction: AnyConnection | None
    ) -> dict[M, Outcome]:
        call = self._execution
        try:
            returned = await call.call(
                list(payloads.values()),
                [member.message for member in payloads],
                tools,
                transaction,
            )
        except asyncio.CancelledError as cancelled:
            return self._stopped(payloads, cancelled)
        except BaseException as error:
            if is_closing(error, call.task):
                raise
            return {member: member.raised(error) for member in payloads}
        return self._each(list(payloads), returned)

    def _stopped(self, members: Iterable[M], cancelled: asyncio.CancelledError) -> dict[M, Outcome]:
        for member in members:
            member.cause = self._execution.cause
        return {member: member.stopped(cancelled) for member in members}

    def _each(self, members: list[M], returned: Any) -> dict[M, Outcome]:
        if returned is None:
            returned = [None] * len(members)
        if not isinstance(returned, Sequence) or len(returned) != len(members):
            count = f"{len(returned)} of them" if isinstance(returned, Sequence) else "no list"
            wrong = Failed(
                f"the handler must return None or a list with an outcome for each of its "
                f"{len(members)} messages, not {count}"
            )
            return dict.fromkeys(members, wrong)
        return {
            member: member.raised(value)
            if isinstance(value, BaseException)
            else member.success(value)
            for member, value in zip(members, returned, strict=True)
        }

    async def _in_transaction(self, payloads: dict[M, Any], tools: Runtime) -> dict[M, Outcome]:
        ended: dict[M, Outcome] = {}
        try:
            async with self._execution.transaction(tools) as connection:
                ended = await self._ended(payloads, tools, connection)
                await self._finish(connection, ended)
        except asyncio.CancelledError as cancelled:
            return self._stopped(payloads, cancelled)
        except RollBackError:
            return ended
        except Exception as error:  # noqa: BLE001  the server may answer anything
            return {member: member.rolled_back(ended.get(member), error) for member in payloads}
        return {
            member: Committed() if isinstance(outcome, Success) else outcome
            for member, outcome in ended.items()
        }

    async def _finish(self, connection: AnyConnection, ended: dict[M, Outcome]) -> None:
        """Finish in the transaction what has succeeded; what has not is settled behind it."""
        done = {member: it for member, it in ended.items() if isinstance(it, Success)}
        if not done:
            raise RollBackError(Released())
        finishes = [(member.message, outcome) for member, outcome in done.items()]
        held = await Transactions.finish(connection, finishes)
        if len(held) == len(done):
            return
        # What was written for the one that is another's now cannot be told from the rest. So
        # nothing is written, and the others are handled again.
        for member in done:
            is_held = member.message.id in held
            ended[member] = Released() if is_held else Committed(is_held=False)
        raise RollBackError(Released())

    @property
    def _execution(self) -> HandlerCall:
        if self._call is None:
            raise RuntimeError("the batch has not begun")
        return self._call
