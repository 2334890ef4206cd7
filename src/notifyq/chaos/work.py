"""The app of the workers: its workers and handlers record a history."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Awaitable, Iterator, Sequence
from functools import partial
from typing import Any

from notifyq.app import App
from notifyq.chaos.history import LOCK_FIELDS, History, digest
from notifyq.chaos.kinds import FOLDER, LOCK, PROCESS, SHORT_LOCK
from notifyq.config import WorkerSettings
from notifyq.database.pool import Database
from notifyq.durable.control import Parked
from notifyq.durable.steps import Steps
from notifyq.handlers.build import HandlerOptions
from notifyq.handlers.retries import Reject
from notifyq.handlers.signature import Transaction
from notifyq.models.message import Message
from notifyq.models.outcome import Committed, Failed, Outcome, Released, Suspended
from notifyq.telemetry import TelemetryEvent, TelemetryHandler, WorkerStarted, log_events
from notifyq.worker.fetch import Claims
from notifyq.worker.settle import Answer, Settler
from notifyq.worker.worker import Worker


class _RecordingClaims(Claims):
    """Claims and settlements that record their calls and the answers.

    A call begins before it is sent: a process that is paused or slow records its end too late.
    """

    _is_claiming = False

    def __init__(self, database: Database, worker: str, *, history: History) -> None:
        super().__init__(database, worker)
        self.history = history
        self.settler = _RecordingSettler(database, history)

    async def claim(self, queues: Sequence[str], quantity: int, **options: Any) -> list[Message]:
        if self._is_claiming:  # a claim claims again to replace what it could not decode
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
        call.ok(messages=[{it: getattr(m, it) for it in LOCK_FIELDS} for m in messages])
        return messages


class _RecordingSettler(Settler):
    def __init__(self, database: Database, history: History) -> None:
        super().__init__(database)
        self._history = history

    def add(
        self, message: Message, outcome: Outcome, log: str | None = None
    ) -> asyncio.Future[Answer]:
        if isinstance(outcome, Committed | Suspended):  # nothing is sent
            return super().add(message, outcome, log)
        op = "retry" if isinstance(outcome, Failed) else "finish"
        call = self._history.invoke(
            "release" if isinstance(outcome, Released) else op,
            id=message.id,
            lock_token=message.lock_token,
            status=str(outcome.status),
        )
        answered = super().add(message, outcome, log)

        def record(answered: asyncio.Future[Answer]) -> None:
            if answered.cancelled():
                call.unknown(error="cancelled")
            elif (error := answered.exception()) is not None:
                call.unknown(error=repr(error))
            else:
                # What has committed instead was not retried.
                answer = answered.result()
                call.ok(held=bool(answer) and not isinstance(answer, Committed))

        answered.add_done_callback(record)
        return answered


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
            claims=partial(_RecordingClaims, history=self.history),
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
    call = app.history.invoke(
        "release", id=message.id, lock_token=message.lock_token, status="released"
    )
    try:
        await waiting
    except Parked:
        call.ok(held=True)
        raise
    except BaseException as error:
        call.unknown(error=repr(error))
        raise
    call.fail(error="it goes on")
