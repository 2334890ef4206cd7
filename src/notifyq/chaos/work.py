"""The app of the workers: handlers of several kinds, which write down what happens to a message."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from typing import TYPE_CHECKING, Any

from notifyq.app import App
from notifyq.chaos.history import History, Invoked, digest
from notifyq.chaos.kinds import BRIEF, FOLDER, LOCK, PROCESS, SHORT_LOCK
from notifyq.config import WorkerSettings
from notifyq.handlers.retries import Reject
from notifyq.models.message import Message
from notifyq.models.outcome import Failed, Outcome, Rejected, Released, Success
from notifyq.queues.claim_client import ClaimClient
from notifyq.telemetry import Event, Sink, WorkerStarted, log_sink
from notifyq.worker.worker import Worker

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from notifyq.handlers.build import HandlerOptions
    from notifyq.queues.batch_completer import Answer, Settled


class _Inbox(ClaimClient):
    """An inbox that writes down what it asks for and what it is told.

    A call begins before it is sent: a process that is paused or slow writes its end too late.
    """

    history: History
    _is_claiming = False

    async def claim(self, queues: Sequence[str], quantity: int, **options: Any) -> list[Message]:
        """Claim messages."""
        if self._is_claiming:  # it claims again, in place of what could not be decoded
            return await super().claim(queues, quantity, **options)
        call = self.history.invoke("claim")
        self._is_claiming = True
        try:
            messages = await super().claim(queues, quantity, **options)
        except BaseException as error:
            call.unknown(error=repr(error))
            raise
        finally:
            self._is_claiming = False
        call.ok(messages=[_locked(message) for message in messages])
        return messages

    def finish(
        self,
        message: Message,
        outcome: Success | Rejected | Failed | Released,
        settled: Settled,
    ) -> None:
        """Settle a message."""
        ops = {Failed: "retry", Released: "release"}
        call = self._begin(ops.get(type(outcome), "finish"), message, outcome.status)

        def told(answer: Answer | BaseException) -> None:
            if isinstance(answer, BaseException):
                call.unknown(error=repr(answer))
            else:
                call.ok(held=bool(answer))
            settled(answer)

        super().finish(message, outcome, told)

    async def settle(self, message: Message, outcome: Outcome) -> Answer:
        """Write down how a handling ended."""
        if not isinstance(outcome, Failed):
            return await super().settle(message, outcome)
        call = self._begin("retry", message, outcome.status)
        try:
            answer = await super().settle(message, outcome)
        except BaseException as error:
            call.unknown(error=repr(error))
            raise
        call.ok(held=bool(answer))
        return answer

    async def release(self, messages: Iterable[Message]) -> set[int]:
        """Give up locks."""
        held = list(messages)
        calls = [self._begin("release", message, "released") for message in held]
        try:
            kept = await super().release(held)
        except BaseException as error:
            for call in calls:
                call.unknown(error=repr(error))
            raise
        for call, message in zip(calls, held, strict=True):
            call.ok(held=message.id in kept)
        return kept

    def _begin(self, op: str, message: Message, status: str) -> Invoked:
        return self.history.invoke(
            op, id=message.id, lock_token=message.lock_token, status=str(status)
        )


def _locked(message: Message) -> dict[str, Any]:
    names = ("id", "lock_token", "attempts", "locked_at", "lock_expires_at")
    return {name: getattr(message, name) for name in names}


class _Worker(Worker):
    """A worker with an inbox that writes down what it does."""

    _inbox_type = _Inbox
    _inbox: _Inbox

    def __init__(self, *args: Any, history: History, **options: Any) -> None:
        super().__init__(*args, **options)
        self._inbox.history = history


class _App(App):
    """An app whose workers keep a history, where the environment says."""

    history: History

    def worker(
        self,
        *,
        queues: Sequence[str] = (),
        streams: Sequence[str] = (),
        sink: Sink | None = None,
        **settings: Any,
    ) -> Worker:
        """A worker with a history."""
        self.history = History(
            os.environ[FOLDER], os.environ[PROCESS], is_brief=BRIEF in os.environ
        )

        def note(event: Event) -> None:
            if isinstance(event, WorkerStarted):
                self.history.note("started", worker=event.worker, pid=os.getpid())
            (sink or log_sink)(event)

        return _Worker(
            self.database,
            self.registry,
            settings=WorkerSettings.load(**settings),
            queues=queues,
            streams=streams,
            sink=note,
            history=self.history,
        )

    @contextlib.contextmanager
    def executing(self, payload: dict[str, Any], message: Message) -> Iterator[None]:
        """Write down that a handler runs, and how it ended."""
        call = self.history.invoke(
            "execute",
            id=message.id,
            lock_token=message.lock_token,
            attempts=message.attempts,
            key=payload["key"],
            digest=digest(payload),
            lock_expires_at=message.lock_expires_at,
        )
        try:
            yield
        except BaseException as error:
            call.fail(error=repr(error))
            raise
        call.ok()


class FlakyError(Exception):
    """What a flaky handler raises."""


app = _App()
_policy: HandlerOptions = {
    "lock_timeout": LOCK,
    "max_attempts": 25,
    "backoff": 0.1,
    "backoff_max": 0.5,
}
_short: HandlerOptions = {**_policy, "lock_timeout": SHORT_LOCK, "max_attempts": 2}
_outlived: HandlerOptions = {**_short, "heartbeat": False}


@app.handler("quick", **_policy)
async def quick(payload: dict[str, Any], message: Message) -> dict[str, Any]:
    """Take some milliseconds."""
    with app.executing(payload, message):
        await asyncio.sleep(payload["milliseconds"] / 1000)
    return {"token": message.lock_token}


@app.handler("slow", **_policy)
async def slow(payload: dict[str, Any], message: Message) -> None:
    """Take tenths of a second."""
    with app.executing(payload, message):
        await asyncio.sleep(payload["milliseconds"] / 1000)


@app.handler("flaky", **_policy)
async def flaky(payload: dict[str, Any], message: Message) -> None:
    """Fail the first attempts."""
    with app.executing(payload, message):
        await asyncio.sleep(payload["milliseconds"] / 1000)
        if message.attempts <= payload["fails"]:
            raise FlakyError(f"attempt {message.attempts}")


@app.handler("reject", **_policy)
async def reject(payload: dict[str, Any], message: Message) -> None:
    """Reject everything."""
    with app.executing(payload, message):
        raise Reject("nobody wants this")


@app.handler("storm", **_policy)
async def storm(payload: dict[str, Any], message: Message) -> None:
    """Take what the sessions of a fault have left."""
    with app.executing(payload, message):
        await asyncio.sleep(0)


@app.handler("outlive", **_outlived)
async def outlive(payload: dict[str, Any], message: Message) -> None:
    """Take longer than the lock, which nobody extends."""
    with app.executing(payload, message):
        await asyncio.sleep(payload["milliseconds"] / 1000)


@app.handler("blocking", **_short)
async def blocking(payload: dict[str, Any], message: Message) -> None:
    """Block the loop for longer than the lock."""
    with app.executing(payload, message):
        time.sleep(payload["milliseconds"] / 1000)  # noqa: ASYNC251  that is what it is for


@app.handler("thread", **_short)
def thread(payload: dict[str, Any], message: Message) -> None:
    """Block a thread for longer than the lock."""
    with app.executing(payload, message):
        time.sleep(payload["milliseconds"] / 1000)
