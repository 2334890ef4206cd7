"""The app of the workers: its workers and handlers record a history."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from functools import partial
from typing import TYPE_CHECKING, Any

from notifyq.app import App
from notifyq.chaos.history import LOCK_FIELDS, History, Invoked, digest
from notifyq.chaos.kinds import FOLDER, LOCK, PROCESS, SHORT_LOCK
from notifyq.config import WorkerSettings
from notifyq.durable.control import Parked
from notifyq.durable.steps import Steps
from notifyq.handlers.retries import Reject
from notifyq.handlers.signature import Transaction
from notifyq.models.message import Message
from notifyq.models.outcome import Failed, Rejected, Released, Success
from notifyq.queues.claim_client import ClaimClient
from notifyq.telemetry import TelemetryEvent, TelemetryHandler, WorkerStarted, log_events
from notifyq.worker.worker import Worker

if TYPE_CHECKING:
    from collections.abc import Awaitable, Iterable, Iterator, Sequence

    from notifyq.database.pool import Database
    from notifyq.handlers.build import HandlerOptions
    from notifyq.queues.batch_completer import Answer, OnSettled


class _RecordingClient(ClaimClient):
    """A client that records its calls and their answers.

    A call begins before it is sent: a process that is paused or slow records its end too late.
    """

    _is_claiming = False

    def __init__(self, database: Database, worker: str, *, history: History) -> None:
        super().__init__(database, worker)
        self._history = history

    async def claim(self, queues: Sequence[str], quantity: int, **options: Any) -> list[Message]:
        if self._is_claiming:  # the client claims again to replace what it could not decode
            return await super().claim(queues, quantity, **options)
        call = self._history.invoke("claim")
        self._is_claiming = True
        try:
            with _unknown_on_error(call):
                messages = await super().claim(queues, quantity, **options)
        finally:
            self._is_claiming = False
        call.ok(messages=[{it: getattr(m, it) for it in LOCK_FIELDS} for m in messages])
        return messages

    def finish(
        self,
        message: Message,
        outcome: Success | Rejected | Failed | Released,
        on_settled: OnSettled,
    ) -> None:
        op = {Failed: "retry", Released: "release"}.get(type(outcome), "finish")
        call = _invoke(self._history, op, message, str(outcome.status))

        def record(answer: Answer | BaseException) -> None:
            if isinstance(answer, BaseException):
                call.unknown(error=repr(answer))
            else:
                call.ok(held=bool(answer))
            on_settled(answer)

        super().finish(message, outcome, record)

    async def release(self, messages: Iterable[Message]) -> set[int]:
        held = list(messages)
        calls = [_invoke(self._history, "release", message) for message in held]
        with _unknown_on_error(*calls):
            released = await super().release(held)
        for call, message in zip(calls, held, strict=True):
            call.ok(held=message.id in released)
        return released


def _invoke(history: History, op: str, message: Message, status: str = "released") -> Invoked:
    return history.invoke(op, id=message.id, lock_token=message.lock_token, status=status)


@contextlib.contextmanager
def _unknown_on_error(*calls: Invoked) -> Iterator[None]:
    try:
        yield
    except BaseException as error:
        for call in calls:
            call.unknown(error=repr(error))
        raise


class _App(App):
    """An app whose workers record a history in the folder that the environment names."""

    history: History

    def worker(self, *, telemetry: TelemetryHandler = log_events, **options: Any) -> Worker:
        self.history = History(os.environ[FOLDER], os.environ[PROCESS])

        def note(event: TelemetryEvent) -> None:
            if isinstance(event, WorkerStarted):
                self.history.note("started", worker=event.worker, pid=os.getpid())
            telemetry(event)

        of_worker = {"queues", "strict", "streams", "metrics"}
        settings = {name: value for name, value in options.items() if name not in of_worker}
        return Worker(
            self.database,
            self.registry,
            settings=WorkerSettings.load(**settings),
            telemetry=note,
            claim_client=partial(_RecordingClient, history=self.history),
        )

    @contextlib.contextmanager
    def executing(self, payload: dict[str, Any], message: Message) -> Iterator[float]:
        """Record an execution and its end; gives the seconds that the handler should take."""
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
            yield payload["milliseconds"] / 1000
        except BaseException as error:
            call.fail(error=repr(error))
            raise
        call.ok()


app = _App()
_policy: HandlerOptions = {
    "lock_duration": LOCK,
    "max_attempts": 25,
    "backoff": 0.1,
    "backoff_max": 0.5,
}
_short: HandlerOptions = {**_policy, "lock_duration": SHORT_LOCK, "max_attempts": 2}
_outlived: HandlerOptions = {**_short, "heartbeat": False}


async def handle(payload: dict[str, Any], message: Message) -> dict[str, Any]:
    """Take a while; reject, or fail the first attempts of a flaky message."""
    with app.executing(payload, message) as seconds:
        if message.queue == "blocking":
            time.sleep(seconds)  # noqa: ASYNC251  this kind exists to block the loop
        else:
            await asyncio.sleep(seconds)
        if message.queue == "reject":
            raise Reject("this kind is always rejected")
        if message.attempts <= payload["fails"]:
            raise RuntimeError(f"attempt {message.attempts} fails")
    return {"token": message.lock_token}


for _kind in ("quick", "slow", "flaky", "storm", "reject"):
    app.handler(_kind, **_policy)(handle)
app.handler("blocking", **_short)(handle)
app.handler("outlive", **_outlived)(handle)


@app.handler("thread", **_short)
def block(payload: dict[str, Any], message: Message) -> None:
    """Block a thread for longer than the lock."""
    with app.executing(payload, message) as seconds:
        time.sleep(seconds)


@app.handler("steps", **_policy)
async def stepped(payload: dict[str, Any], message: Message, steps: Steps) -> None:
    """Write a row in a step, sleep, and wait for a signal that another step has sent."""
    with app.executing(payload, message) as seconds:
        await steps.transaction("write", _write, payload["key"])
        await _parking(message, steps.sleep("nap", seconds))
        await steps.run("send", app.signal, payload["key"])
        await _parking(message, steps.wait_for("answer", signal=payload["key"], timeout=60))


async def _write(tx: Transaction, key: str) -> None:
    await tx.execute("insert into public.chaos_effect (key) values ($1)", key)


async def _parking(message: Message, waiting: Awaitable[Any]) -> None:
    """Record that the lock is given back where the message is parked."""
    call = _invoke(app.history, "release", message)
    try:
        await waiting
    except Parked:
        call.ok(held=True)
        raise
    except BaseException as error:
        call.unknown(error=repr(error))
        raise
    call.fail(error="it goes on")
