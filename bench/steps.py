"""What a worker in this process spends on durable work, and on encrypted payloads.

Without `Steps` one thing is left of them: the worker notes the message of a call, for `progress`.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from unittest import mock

from notifyq import App, Policy, Steps
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
_PAYLOAD = {"text": "x" * 90}
_CALL = 1000
"""Messages of a call that publishes."""


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
    keys: dict[str, bytes] | None = None
    """What encrypts; without it the queue is plain."""


_WITH_STEPS = (
    _Way(NOTIFYQ, _nothing),
    _Way(f"{NOTIFYQ}, message not noted", _nothing, is_bare=True),
    _Way(f"{NOTIFYQ}, no step", _no_step),
    _Way(f"{NOTIFYQ}, 1 step", _one_step),
)
_ENCRYPTED = (
    _Way(NOTIFYQ, _nothing),
    _Way(f"{NOTIFYQ}, encrypted", _nothing, keys={"k1": bytes(32)}),
)


async def measure_steps(workspace: Workspace, sizes: Sizes) -> AsyncIterator[Measured]:
    """Publish and drain a backlog, by handlers without and with `Steps`, in turns."""
    async for measured in _in_turns(workspace, sizes, _WITH_STEPS):
        if measured.variant != "publish":
            yield measured


async def measure_encryption(workspace: Workspace, sizes: Sizes) -> AsyncIterator[Measured]:
    """Publish and drain a backlog of 100 bytes a message, plain and encrypted, in turns."""
    async for measured in _in_turns(workspace, sizes, _ENCRYPTED):
        yield measured


async def _in_turns(
    workspace: Workspace, sizes: Sizes, ways: tuple[_Way, ...]
) -> AsyncIterator[Measured]:
    for turn in range(sizes.turns):
        shift = turn % len(ways)
        for way in (*ways[shift:], *ways[:shift]):
            await workspace.clear()
            for measured in await _drained(workspace, way, min(sizes.backlog, _MOST)):
                yield measured


async def _drained(workspace: Workspace, way: _Way, number: int) -> tuple[Measured, Measured]:
    app = App(workspace.dsn, encryption=way.keys)
    policy = Policy(max_attempts=2, encrypted=way.keys is not None)
    app.handler(_QUEUE, policy=policy)(way.handler)
    done, drained = 0, asyncio.Event()

    def count(event: TelemetryEvent) -> None:
        nonlocal done
        done += isinstance(event, MessageFinished)
        if done == number:
            drained.set()

    noted = mock.patch.object(call, "CURRENT", _Unnoted()) if way.is_bare else nullcontext()
    async with app, workspace.connect() as connection:
        await app.create()
        begun, cpu = time.monotonic(), time.process_time()
        for first in range(0, number, _CALL):
            await app.publish_many(_QUEUE, [_PAYLOAD] * min(_CALL, number - first))
        seconds, cpu = time.monotonic() - begun, time.process_time() - cpu
        published = {"rate": number / seconds, "publisher_cpu": cpu / number}
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
    return Measured("publish", way.name, published), Measured("1 worker", way.name, values)
