"""The app of the workers: its workers and handlers record a history."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
import uuid
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from typing import Any

from notifyq.app import App
from notifyq.chaos.history import LOCK_FIELDS, History, digest
from notifyq.chaos.kinds import FOLDER, LOCK, PROCESS, SHORT_LOCK
from notifyq.config import WorkerSettings
from notifyq.database.pool import Database
from notifyq.durable.control import Parked
from notifyq.durable.steps import Steps
from notifyq.errors import SignalTimeoutError
from notifyq.handlers.build import HandlerOptions
from notifyq.handlers.retries import Reject
from notifyq.handlers.signature import Transaction
from notifyq.models.message import Message
from notifyq.models.outcome import Committed, Failed, Outcome, Released, Suspended
from notifyq.queues.results import Handle
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
    """Write a row, publish a child, sleep, and wait for signals of the child and for its end."""
    key = payload["key"]
    waits: list[tuple[str, list[str], float | None]] = [
        ("first", [f"{key} go"], None),
        ("second", [f"{key} go"], None),
        ("all", [key], None),
        ("any", [f"{key} no", f"{key} yes"], 1),
    ]
    with app.executing(payload, message) as seconds:
        await _once(message, "write", steps.transaction, _write, key)
        child = await _published(payload, message, steps)
        await _parking(steps, "nap", steps.sleep("nap", seconds))
        for wait, signals, timeout in waits:
            with contextlib.suppress(SignalTimeoutError):
                waiting = steps.wait_for(wait, signal=signals, timeout=timeout)
                await _parking(steps, wait, waiting, signals)
        await _parking(steps, "end", steps.result("end", child))


@app.handler("child", **_policy)
async def signalling(payload: dict[str, Any], message: Message, steps: Steps) -> None:
    """Send two signals to the parent alone, and one to all; for every other parent one more."""
    key = payload["parent_key"]
    with app.executing(payload, message) as seconds:
        await asyncio.sleep(seconds)
        for step in ("send", "send again"):
            await _once(message, step, steps.run, _send, f"{key} go", payload["parent"])
        await _once(message, "send to all", steps.run, _send, key)
        if payload["milliseconds"] % 2:
            await _once(message, "send any", steps.run, _send, f"{key} yes")


async def _write(tx: Transaction, key: str) -> None:
    await tx.execute("insert into public.chaos_effect (key) values ($1)", key)


async def _send(name: str, to: int | None = None) -> None:
    """Send a signal with a payload of its own."""
    payload = uuid.uuid4().hex
    call = app.history.invoke("signal", name=name, to=to, payload=payload)
    call.ok(woken=await app.results.signal(name, payload, to))


async def _once(
    message: Message, step: str, do: Callable[..., Awaitable[Any]], function: Any, *args: Any
) -> None:
    """Do a step; record each execution, and once it is recorded, its end."""
    executions = []

    async def execute(*given: Any) -> None:
        executions.append(app.history.invoke("step", id=message.id, step=step))
        await function(*given)

    await do(step, execute, *args)
    for execution in executions:
        execution.ok()


async def _published(payload: dict[str, Any], message: Message, steps: Steps) -> Handle[Any]:
    """Publish the child; record it unless that was done before."""
    key = payload["key"]
    child = payload | {"key": f"{key} child", "parent": message.id, "parent_key": key}
    if steps.done("child"):
        return await steps.publish("child", "child", child)
    call = app.history.invoke(
        "publish", key=child["key"], queue="child", digest=digest(child), parent=message.id
    )
    published = await steps.publish("child", "child", child)
    call.ok(id=int(published))
    return published


async def _parking(
    steps: Steps, step: str, waiting: Awaitable[Any], signals: Sequence[str] = ()
) -> None:
    """Record that the lock is given back where the message is parked, else what has come."""
    is_new, message = not steps.done(step), steps.message
    call = app.history.invoke(
        "release", id=message.id, lock_token=message.lock_token, status="released",
        step=step, signals=signals,
    )  # fmt: skip
    try:
        received = await waiting
    except Parked:
        call.ok(held=True)
        raise
    except SignalTimeoutError:
        call.fail(error="no signal came in time", timed_out=is_new)
        raise
    except BaseException as error:
        call.unknown(error=repr(error))
        raise
    call.fail(error="it goes on", received=received)
