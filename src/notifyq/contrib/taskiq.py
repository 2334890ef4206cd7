"""A broker for Taskiq: workers of Taskiq handle the messages of a queue."""

from __future__ import annotations

import asyncio
import base64
import logging
import time
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from datetime import timedelta
from functools import partial
from typing import Any, Unpack

from taskiq import AckableMessage, AsyncBroker, BrokerMessage

from notifyq.app import App
from notifyq.config import DatabaseOptions
from notifyq.database import statements as sql
from notifyq.database.retry import retrying
from notifyq.errors import ConfigurationError, DatabaseUnavailableError
from notifyq.models.message import Message, unsealed
from notifyq.models.outcome import Released, Success
from notifyq.models.payload import Json, check_json
from notifyq.notify.listener import Listener
from notifyq.notify.wake import Wake
from notifyq.queues.policy import Policy
from notifyq.telemetry import log_events
from notifyq.worker.fetch import Claims, process_name
from notifyq.worker.heartbeat import Heartbeat, Lock
from notifyq.worker.maintenance import Maintenance
from notifyq.worker.settle import Key

log = logging.getLogger("notifyq.taskiq")

_POLL = 1.0
"""Longest wait for a notification, in seconds."""


class NotifyqBroker(AsyncBroker):
    """Publishes into a queue, and passes its messages to the workers of Taskiq.

    A message is locked until it is acknowledged; a worker that stops releases the others. After a
    crash messages are claimed again, `max_attempts` times in all, if this broker creates the queue.
    Labels `delay` (seconds), `priority`, `key` and `dedup_key` are options of the publish.
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
        self._locks: dict[Key, Lock] = {}
        self._heartbeat = Heartbeat(
            self._locks, lambda key: log.warning("the lock of message %d is lost", key[0])
        )
        self._open = AsyncExitStack()
        self._claims: Claims | None = None

    async def kick(self, message: BrokerMessage) -> None:
        """Publish a message."""
        labels = message.labels
        headers = {"task_id": message.task_id}
        payload: Any
        try:
            payload = Json(message.message.decode())
            check_json(payload)
        except ValueError:  # another serializer wrote it
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
        """Yield messages, without end."""
        retries = retrying("the start", log, self._app.database.settings.retry_for)
        started: tuple[Claims, Listener] = await retries(self._start)
        claims, listener = started
        has_orphans = False
        while True:
            self._wake.clear()
            listener.check()
            since = time.monotonic()
            try:
                messages = await claims.claim([self._queue], self._prefetch)
                if has_orphans:
                    held = [lock.message for lock in self._locks.values()]
                    await claims.release_orphans([it.id for it in held + messages])
                has_orphans = False
            except DatabaseUnavailableError as error:
                # The listener decides when to give up. The claim may have locked messages.
                log.warning("the claim failed, another one follows: %s", error)
                has_orphans, messages = True, []
            for message in messages:
                lock = Lock(message, since)
                self._locks[lock.key] = lock
            for message in messages:
                yield AckableMessage(data=_data(message), ack=partial(self._ack, message))
            if len(messages) < self._prefetch:
                await self._wake.rest(_POLL)

    async def shutdown(self) -> None:
        """Release messages that were not acknowledged, and close the connections."""
        await super().shutdown()
        if (claims := self._claims) is not None:
            held = [lock.message for lock in self._locks.values()]
            await asyncio.gather(*(claims.settler.add(it, Released()) for it in held))
        self._locks.clear()
        await self._open.aclose()
        self._claims = None
        await self._app.close()

    async def _start(self) -> tuple[Claims, Listener]:
        database = self._app.database
        await self._app.admin.check_schema()
        if await database.encrypts(self._queue):
            raise ConfigurationError(f"queue {self._queue!r} is encrypted: Taskiq cannot serve it")
        if not await self._app.admin.queue_info(self._queue):
            await self._app.admin.create_queue(self._queue, self._policy)
        claims = self._claims = Claims(database, process_name())
        listener = await self._open.enter_async_context(
            Listener(
                database,
                [sql.NEW_MESSAGE],
                self._on_notification,
                name="notifyq taskiq",
                services=[self._heartbeat.serve],
                telemetry=log_events,
            )
        )
        maintenance = asyncio.create_task(Maintenance(database, 1, log_events).serve())
        self._open.push_async_callback(claims.close)
        self._open.push_async_callback(asyncio.wait, [maintenance])
        self._open.callback(maintenance.cancel)
        return claims, listener

    def _on_notification(self, _channel: str, payload: str) -> None:
        if payload.rpartition(":")[0] in {"", self._queue}:
            self._wake.set()

    async def _ack(self, message: Message) -> None:
        lock = self._locks.pop((message.id, message.lock_token), None)
        if (
            lock is not None
            and self._claims is not None
            and not await self._claims.settler.add(message, Success())
        ):
            log.warning("message %d was handled, but its lock was lost", message.id)


def _data(message: Message) -> bytes:
    if message.headers.get("encoding") == "base64":
        return base64.b64decode(message.payload())
    return unsealed(message.message).encode()
