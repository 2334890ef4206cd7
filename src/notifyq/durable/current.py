"""The message of the running handler, for its progress and its output."""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from notifyq.database import statements as sql
from notifyq.database.encoding import storing
from notifyq.durable.control import LockLostError
from notifyq.errors import LockNotHeldError, StepError
from notifyq.models.payload import encode
from notifyq.telemetry.tracebacks import clean

if TYPE_CHECKING:
    from notifyq.database.pool import Database
    from notifyq.models.message import Message


CURRENT: ContextVar[tuple[Message, Database]] = ContextVar("notifyq_current")
"""The message and its database; set for each call of an async handler: a plain tuple is cheap."""


def _current(what: str) -> tuple[Message, Database]:
    try:
        return CURRENT.get()
    except LookupError:
        raise StepError(
            f"{what} needs a message: call it in an async handler of one message that a worker runs"
        ) from None


async def progress(fraction: float, note: str | None = None) -> bool:
    """Report how far the handler is, from 0 to 1, with a note of at most 1000 bytes.

    Readers of the message are notified. The database keeps at most one report in 100 ms. False:
    this one was not kept, or the lock of the message was lost.
    """
    message, database = _current("notifyq.progress()")
    note = None if note is None else database.storable(clean(note, len(note)))
    if note is not None and message.is_encrypted and database.keys is not None:
        note = database.keys.encrypt(message.queue, "note", note)
    kept = await database.value(sql.REPORT_PROGRESS, message.id, message.lock_token, fraction, note)
    return bool(kept)


async def emit(chunk: Any) -> int:
    """Add a chunk to the output of the message; return its number, from 1 on over all attempts.

    Readers (`handle.output()`) are notified. Raises LockLostError, and MessageLimitError for a
    chunk that is larger than the `max_bytes` of the queue.
    """
    message, database = _current("notifyq.emit()")
    text = encode(chunk)
    if message.is_encrypted and database.keys is not None:
        text = database.keys.encrypt_json(message.queue, "chunk", text)
    try:
        with storing("the chunk"):
            return int(await database.value(sql.EMIT, message.id, message.lock_token, text))
    except LockNotHeldError as error:
        raise LockLostError(str(error)) from error
