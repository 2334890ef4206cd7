"""A broker for Taskiq: its functions are called by its own workers, out of a queue of notifyq."""

from __future__ import annotations

import asyncio
import base64
import logging
import os
import secrets
import socket
import time
from contextlib import AsyncExitStack
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Unpack

from taskiq import AckableMessage, AsyncBroker

from notifyq.app import App
from notifyq.database import sql
from notifyq.database.retry import retrying
from notifyq.errors import DatabaseUnavailableError
from notifyq.models.outcome import Success
from notifyq.models.payload import Json, check_json
from notifyq.notify.shared import Listening
from notifyq.notify.wake import Wake
from notifyq.queues.admin import Policy
from notifyq.queues.claim_client import ClaimClient
from notifyq.telemetry import log_sink
from notifyq.worker.heartbeat import Heartbeat, Lock
from notifyq.worker.maintenance import Upkeep

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from taskiq import BrokerMessage

    from notifyq.config import DatabaseOptions
    from notifyq.models.message import Message

log = logging.getLogger("notifyq.taskiq")

_POLL = 1.0
"""Longest wait for a bell, in seconds."""


class NotifyqBroker(AsyncBroker):
    """Publishes into a queue, and hands its messages to the workers of Taskiq.

    A message is locked until it is acknowledged; what was not when the worker stops is released.
    One whose worker has died is handed out again, `max_attempts` times in all: that is policy of
    the queue if this creates it. Labels `delay` (seconds), `priority`, `key` and `dedup_key` are as
    for a publish.
    """

    def __init__(
        self,
        dsn: str | None = None,
        *,
        queue: str = "taskiq",
        prefetch: int = 10,
        max_attempts: int = 5,
        **settings: Unpack[DatabaseOptions],
    ) -> None:
        super().__init__()
        self._app = App(dsn, **settings)
        self._queue = queue
        self._prefetch = prefetch
        self._policy = Policy(max_attempts=max_attempts)
        self._wake = Wake()
        self._locks: dict[int, Lock] = {}
        self._heartbeat = Heartbeat(
            lambda key: log.warning("the lock of message %d is lost", key[0])
        )
        self._open = AsyncExitStack()
        self._inbox: ClaimClient | None = None

    async def kick(self, message: BrokerMessage) -> None:
        """Publish a message."""
        labels = message.labels
        headers = {"task_id": message.task_id}
        payload: Any
        try:
            payload = Json(message.message.decode())
            check_json(payload)
        except ValueError:  # of another serializer
            payload = base64.b64encode(message.message).decode()
            headers["encoding"] = "base64"
        delay = labels.get("delay")
        await self._app.publish(
            self._queue,
            payload,
            type=message.task_name,
            headers=headers,
            delay=None if delay is None else timedelta(seconds=float(delay)),
            priority=int(labels.get("priority", 0)),
            key=labels.get("key"),
            dedup_key=labels.get("dedup_key"),
        )

    async def listen(self) -> AsyncGenerator[bytes | AckableMessage, None]:
        """Give messages, for ever."""
        inbox, listener = await self._start_patiently()
        in_doubt = False
        while True:
            self._wake.clear()
            listener.check()
            since = time.monotonic()
            try:
                messages = await inbox.claim([self._queue], self._prefetch)
                if in_doubt:  # of a claim whose answer was lost
                    await inbox.release_orphans([*self._locks, *(m.id for m in messages)])
                in_doubt = False
            except DatabaseUnavailableError as error:
                # The listener knows how long to go on.
                log.warning("claiming failed, it is tried again: %s", error)
                in_doubt, messages = True, []
            for message in messages:
                self._locks[message.id] = lock = Lock(message, since, extends=True)
                self._heartbeat.add(lock)
            for message in messages:
                yield AckableMessage(data=_data(message), ack=partial(self._ack, message))
            if len(messages) < self._prefetch:
                await self._wake.rest(_POLL)

    async def shutdown(self) -> None:
        """Release what was not acknowledged, and close the connections."""
        await super().shutdown()
        if self._inbox is not None and self._locks:
            await self._inbox.release([lock.message for lock in self._locks.values()])
        self._locks.clear()
        await self._open.aclose()
        self._inbox = None
        await self._app.close()

    async def _start_patiently(self) -> tuple[ClaimClient, Listening]:
        lasting = self._app.database.settings.retry_for
        async for attempt in retrying("the start", log, lasting):
            with attempt:
                return await self._start()
        raise AssertionError  # tenacity returns or raises; this line tells the type checker

    async def _start(self) -> tuple[ClaimClient, Listening]:
        database = self._app.database
        await self._app.admin.check_schema()
        if not await self._app.admin.queue_info(self._queue):
            await self._app.admin.create_queue(self._queue, self._policy)
        worker = f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(3)}"
        inbox = self._inbox = ClaimClient(database, worker)
        listener = await self._open.enter_async_context(
            Listening(
                database,
                [sql.NEW_MESSAGE],
                self._hear,
                name="notifyq taskiq",
                services=[self._heartbeat.serve],
                sink=log_sink,
            )
        )
        upkeep = asyncio.create_task(Upkeep(database, 1, log_sink).serve())
        self._open.push_async_callback(inbox.close)
        self._open.push_async_callback(asyncio.wait, [upkeep])
        self._open.callback(upkeep.cancel)
        return inbox, listener

    def _hear(self, _channel: str, payload: str) -> None:
        if payload.rpartition(":")[0] in {"", self._queue}:
            self._wake.set()

    async def _ack(self, message: Message) -> None:
        if (lock := self._locks.pop(message.id, None)) is not None and self._inbox is not None:
            self._heartbeat.remove(lock)
            if not await self._inbox.settle(message, Success()):
                log.warning("message %d was handled, but its lock was lost", message.id)


def _data(message: Message) -> bytes:
    if message.headers.get("encoding") == "base64":
        return base64.b64decode(message.payload())
    return message.message.encode()
