"""The cost of durable work: handlers without `Steps`, with none recorded, and with one step.

Without `Steps` one thing is left of it: the worker notes the message of a call, for `progress`.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from unittest import mock

from notifyq import App, Steps
from notifyq.execution import call
from notifyq.telemetry import MessageFinished

from .results import NOTIFYQ
from .systems import CONCURRENCY
from .workspace import Measured, Sizes, Workspace

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from notifyq.telemetry import TelemetryEvent

_MOST = 10_000
"""Messages of a drain."""
_PATIENCE = 300.0
"""Seconds until a drain is given up."""
_QUEUE = "bench_steps"
_PUBLISH = "select count(*) from messages.publish_many($1, array_fill('{}'::jsonb, array[$2::int]))"


async def _nothing(_payload: dict[str, Any]) -> None: ...


async def _no_step(_payload: dict[str, Any], _steps: Steps) -> None: ...


async def _one_step(payload: dict[str, Any], steps: Steps) -> None:
    await steps.run("step", _nothing, payload)


class _Unnoted:
    """Takes the place of the context variable."""

    def set(self, _current: object) -> None: ...


@dataclass(frozen=True, slots=True)
class _Way:
    name: str
    handler: Any
    is_bare: bool = False
    """Whether the worker does not note the message of a call."""


_WAYS = (
    _Way(NOTIFYQ, _nothing),
    _Way(f"{NOTIFYQ}, message not noted", _nothing, is_bare=True),
    _Way(f"{NOTIFYQ}, no step", _no_step),
    _Way(f"{NOTIFYQ}, 1 step", _one_step),
)


async def measure_steps(workspace: Workspace, sizes: Sizes) -> AsyncIterator[Measured]:
    """A worker in this process drains a backlog: handlers without and with `Steps`, in turns."""
    for turn in range(sizes.turns):
        shift = turn % len(_WAYS)
        for way in (*_WAYS[shift:], *_WAYS[:shift]):
            await workspace.clear()
            yield await _drained(workspace, way, min(sizes.backlog, _MOST))


async def _drained(workspace: Workspace, way: _Way, number: int) -> Measured:
    app = App(workspace.dsn)
    app.handler(_QUEUE, max_attempts=2)(way.handler)
    done, drained = 0, asyncio.Event()

    def count(event: TelemetryEvent) -> None:
        nonlocal done
        done += isinstance(event, MessageFinished)
        if done == number:
            drained.set()

    noted = mock.patch.object(call, "CURRENT", _Unnoted()) if way.is_bare else nullcontext()
    async with app, workspace.connect() as connection:
        await app.create_queues([_QUEUE])
        await connection.fetchval(_PUBLISH, _QUEUE, number)
        await connection.execute(f"analyze {workspace.statements.tables}")
        worker = app.worker(queues=[_QUEUE], concurrency=CONCURRENCY, telemetry=count)
        before = await workspace.host.used()
        begun, cpu = time.monotonic(), time.process_time()
        with noted:
            async with asyncio.timeout(_PATIENCE), asyncio.TaskGroup() as group:
                group.create_task(worker.run())
                await drained.wait()
                seconds, cpu = time.monotonic() - begun, time.process_time() - cpu
                worker.stop()
        used = await workspace.host.per_message(before, number)
        await app.admin.drop_queue(_QUEUE, force=True)
    values = {"rate": number / seconds, "worker_cpu": cpu / number, **used}
    return Measured("1 worker", way.name, values)
