"""The relay from a message broker: it publishes each message once, and then acknowledges it."""

from __future__ import annotations

import asyncio
import hashlib
import random
import re
import time
import uuid
from base64 import b64encode
from contextlib import AsyncExitStack, suppress
from typing import TYPE_CHECKING, Any, Unpack

from notifyq.database import statements as sql
from notifyq.database.pool import Database
from notifyq.database.refusals import PAUSE, concerns_all, is_limited
from notifyq.errors import BrokerRefusedError, BrokerUnavailableError, DatabaseUnavailableError
from notifyq.models.message import decode
from notifyq.models.payload import check_json, encode
from notifyq.relay.base import BaseRelay
from notifyq.relay.brokers import reader_of
from notifyq.relay.brokers.broker import ENCODING
from notifyq.relay.message import RelayBatch, RelayMessage, transform
from notifyq.relay.target import WAITS, Target, reason_of

if TYPE_CHECKING:
    from notifyq.relay.base import RelayOptions
    from notifyq.relay.brokers.broker import Incoming
    from notifyq.relay.target import Sent

_WAIT = 1.0
"""Seconds that a broker is asked to wait for a message."""


class _IncomingBatch(RelayBatch):
    """Messages that a broker has delivered."""

    def __init__(self, taken: list[Incoming], source: str, queue: str) -> None:
        # A message without an id has a receipt that is never looked up.
        super().__init__([it.id or str(uuid.uuid4()) for it in taken])
        self._taken = taken
        self._source = source
        self._queue = queue

    @property
    def age(self) -> float:
        """Seconds since the oldest message was stored or sent, where a broker has that."""
        oldest = min((it.created for it in self._taken if it.created), default=time.time())
        return max(time.time() - oldest, 0.0)

    def message(self, index: int) -> RelayMessage:
        """Return a message as it is published."""
        it = self._taken[index]
        text, headers = _json_of(it.body), it.headers
        if text is None:
            text = encode(b64encode(it.body).decode())
            headers = headers | {ENCODING: "base64"}
        return RelayMessage(
            id=it.number,
            source=self._source,
            queue=self._queue,
            message=text,
            headers=_storable(headers),
            type=_storable(it.type),
            key=_storable(it.key),
        )

    def keep(self) -> None:
        """Have the target receive the messages as they are."""
        for index, position in enumerate(self.positions):
            self.made[index] = [self.message(index).item(position)]

    def drop_repeated(self) -> int:
        """Leave out messages that are in the batch a second time; return how many."""
        seen: set[str] = set()
        repeated = 0
        for index, position in enumerate(self.positions):
            if position in seen:
                self.made[index] = []
                self.failed.pop(index, None)
                repeated += 1
            seen.add(position)
        return repeated

    def refused(self, sent: Sent) -> dict[int, str]:
        """Return why messages cannot be published, by index."""
        found = {
            index: f"the transformation of the relay failed: {reason_of(error)}"
            for index, error in self.failed.items()
        }
        for index, items in self.made.items():
            if reasons := [sent.refused[item[0]] for item in items if item[0] in sent.refused]:
                found[index] = f"refused when it came from a broker: {reasons[0]}"
        return found

    def received(self, sent: Sent) -> list[int]:
        """Return the indexes of messages of which all is published or left out."""
        return [
            index
            for index, items in self.made.items()
            if index not in self.failed and all(item[0] in sent.ids for item in items)
        ]


class BrokerRelay(BaseRelay):
    """Publishes the messages of a message broker into a queue or a stream of `target`.

    `source` is the URL of a broker, and `name` a stream of JetStream, a queue of AMQP or a topic
    of Kafka there. Each message arrives once: its receipt is stored with it, and it is acknowledged
    to the broker behind the commit. One of AMQP without a message_id may arrive twice after a
    failure. What the queue refuses becomes a dead message of it.
    """

    def __init__(
        self,
        source: str,
        target: Database,
        name: str,
        queue: str,
        **options: Unpack[RelayOptions],
    ) -> None:
        super().__init__([f"{name}:{queue}"], target.settings.retry_for, **options)
        self._database = target
        self._address = source
        self._name = name
        self._queue = queue
        self.label = f"{name}:{queue}"
        """The source in logs and telemetry events."""
        self._is_moving = False
        self._moving: asyncio.Task[None] | None = None

    async def _open(self, stack: AsyncExitStack) -> None:
        async with AsyncExitStack() as opened:
            await self._open_database(opened, self._database)
            target = await self._database.value(sql.RELAY_TARGET)
            group = _group(target, self._name, self._queue)
            self._reader = reader_of(self._address, self._name, group, self._settings.batch)
            opened.push_async_callback(self._reader.close)
            self._receipts = f"{self._reader.system} {self._name}"
            self._target = Target(self._database, self._receipts, self._settings.remember)
            await self._target.check()
            with suppress(BrokerRefusedError):  # it is tried again
                await self._reader.connect()
            stack.push_async_exit(opened.pop_all())

    def _on_stop(self) -> None:
        if self._moving is not None and (self._stops > 1 or not self._is_moving):
            self._moving.cancel()

    async def _serve(self) -> None:
        self._moving = asyncio.create_task(self._move_until_stopped())
        try:
            await asyncio.wait({self._moving})
            with suppress(asyncio.CancelledError):  # by _on_stop()
                await self._moving
        finally:
            self._moving.cancel()
            await asyncio.wait({self._moving})

    async def _move_until_stopped(self) -> None:
        while not self._stops:
            has_more = True
            # What is not acknowledged comes again.
            async with self._refusals.repeated(
                self.label, "it is tried again each second", self._is_final
            ):
                has_more = await self._move_next()
            if self._once and not has_more:
                return

    def _is_final(self, error: Exception) -> bool:
        return concerns_all(error) or (self._once and not isinstance(error, WAITS))

    async def _move_next(self) -> bool:
        """Move a batch; return whether there may be more."""
        since = time.monotonic()
        try:
            await self._reader.connect()
            taken = await self._reader.receive(self._settings.batch, _WAIT)
            if not taken:
                self._note_works()
                return self._reader.has_more
            self._is_moving = True
            away = await self._move(taken, since)
            self._note_works()
        except BrokerUnavailableError as error:
            await self._reader.close()
            self._refusals.refused("the broker", error, "it is tried again")
            await asyncio.sleep(PAUSE * random.uniform(0.5, 1))  # noqa: S311
            return True
        except BaseException:
            await self._reader.close()
            raise
        finally:
            self._is_moving = False
        if away is not None and not self._stops:
            self._stall(None, away)
            await self._wait_for_target()
        return True

    def _note_works(self) -> None:
        self._refusals.works("the broker")
        self.works.set()

    async def _move(self, taken: list[Incoming], since: float) -> Exception | None:
        """Move a batch; return the error if the target cannot receive it now."""
        batch = _IncomingBatch(taken, self.label, self._queue)
        if self._transform is None:
            batch.keep()
        else:
            await transform(self._transform, batch)
        repeated = batch.drop_repeated()
        sent = await self._target.send(batch.items(), self._settings.hold.total_seconds())
        dropped = sum(not made for made in batch.made.values()) - len(batch.failed) - repeated
        sent.known += repeated
        received = batch.received(sent)
        dead = await self._keep_refused(batch, sent)
        await self._reader.acknowledge([*received, *dead])
        released = len(batch) - len(received) - len(dead)
        if released:
            self.counts["released"] += released
            await self._reader.close()
        took = time.monotonic() - since
        self._note_moved(
            self.label,
            len(received) - dropped,
            sent,
            lag=max(batch.age, took),
            took=took,
            dropped=dropped,
            failed=sum(index in batch.failed for index in dead),
            refused=sum(index not in batch.failed for index in dead),
            lost=0,
        )
        if sent.error is not None and not isinstance(sent.error, DatabaseUnavailableError):
            raise sent.error
        for error in sent.stopped.values():
            self._stall(self.label, error)
            raise error
        if sent.error is None:
            self._resume(self.label)
        return sent.error

    async def _keep_refused(self, batch: _IncomingBatch, sent: Sent) -> list[int]:
        """Keep messages that cannot be published as dead ones; return their indexes."""
        dead: list[int] = []
        for index, reason in batch.refused(sent).items():
            if sent.error is not None or self._queue in sent.stopped:
                break
            it = batch.message(index)
            try:
                message_id = await self._database.value(
                    sql.RECEIVE_DEAD, self._receipts, batch.positions[index], it.queue,
                    it.message, it.type, encode(it.headers), it.key,
                    self._database.storable(reason), self._settings.remember,
                )  # fmt: skip
            except Exception as error:
                if is_limited(error):
                    sent.stopped[self._queue] = error
                elif isinstance(error, DatabaseUnavailableError):
                    sent.error = error
                else:
                    raise
            else:
                dead.append(index)
                self._note_refused(self.label, message_id, reason)
        return dead


def _group(target: str, name: str, queue: str) -> str:
    """The name at the broker of the readers that bring this into a queue of a database."""
    digest = hashlib.sha256(f"{target}\n{name}\n{queue}".encode()).hexdigest()
    return f"notifyq-{re.sub('[^A-Za-z0-9_-]', '_', queue[:100])}-{digest[:12]}"


def _json_of(body: bytes) -> str | None:
    """The text of a body that PostgreSQL can store as JSON."""
    try:
        text = body.decode()
        check_json(text)
    except ValueError:
        return None
    return text


def _storable(value: Any) -> Any:
    """A value without what a text of PostgreSQL cannot hold."""
    text = encode(value)
    return decode(text.replace("\\u0000", "\\ufffd")) if "\\u0000" in text else value
