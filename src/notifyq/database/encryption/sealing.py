"""Messages of encrypted queues: decrypted before their handler, and their ends encrypted after."""

from __future__ import annotations

import logging
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, TypeVar

from pydantic_core import to_json

from notifyq.database.encryption.envelopes import LOG, opened
from notifyq.models.outcome import ErrorReport, Failed, Outcome, Rejected, Released, Success

if TYPE_CHECKING:
    from notifyq.database.encryption.envelopes import Keys
    from notifyq.errors import MissingKeyError
    from notifyq.models.message import Message

log = logging.getLogger("notifyq.worker")

O = TypeVar("O", bound=Outcome)  # noqa: E741

_UNTIL_KEY = timedelta(minutes=1)
"""How long a message whose key is missing waits for it, or for a worker that has it."""
_missed: set[str] = set()
"""Missing keys that were logged."""


def open_message(message: Message, keys: Keys | None) -> Message:
    """The message with its decrypted payload; raises DecryptionError."""
    return message.opened(opened(keys, message.queue, "payload", message.message))


def until_key(message: Message, error: MissingKeyError) -> Released:
    """The outcome of a message with something whose key is missing; each key is logged once."""
    if error.key not in _missed:
        _missed.add(error.key)
        log.error(
            "queue %r: message %d is put back, as all are whose key is missing: %s",
            message.queue, message.id, error,
        )  # fmt: skip
    return Released(_UNTIL_KEY)


def encrypted(message: Message, outcome: O, keys: Keys | None) -> O:
    """The outcome as the database gets it: encrypted if the message was."""
    if not message.is_encrypted or keys is None:
        return outcome
    name = message.queue
    match outcome:
        case Success(result=str(result)):
            return replace(outcome, result=keys.encrypt(name, "result", result))
        case Rejected(reason):
            return replace(outcome, reason=keys.encrypt(name, "details", reason))
        case Failed(error=error):
            kind = None if error is None else error.type
            details = keys.encrypt(name, "details", outcome.details, kind)
            return replace(outcome, details=details, error=error and _report(name, error, keys))
    return outcome


def encrypted_log(message: Message, log: str | None, keys: Keys | None) -> str | None:
    """The log of a call as the database gets it: one record with all in it if it is encrypted."""
    if log is None or not message.is_encrypted or keys is None:
        return log
    text = keys.encrypt(message.queue, LOG, log)
    record = {"created_at": datetime.now(UTC), "level": "INFO", "logger": "notifyq", "text": text}
    return to_json([record]).decode()


def _report(queue: str, error: ErrorReport, keys: Keys) -> ErrorReport:
    return ErrorReport(
        type=error.type,
        text=keys.encrypt(queue, "details", error.text, error.type),
        traceback=error.traceback and keys.encrypt(queue, "traceback", error.traceback, error.type),
    )
