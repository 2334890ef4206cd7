"""The screens of one message and of one worker."""

import json
from typing import Any, ClassVar

from notifyq.archive.reader import Archive
from notifyq.models.message import ArchivedMessage, Attempt, Message
from notifyq.operations import monitor
from notifyq.operations.masks import Masks, documents_of, redacted
from notifyq.operations.monitor import WorkerInfo
from notifyq.operations.top import acts
from notifyq.operations.top.frame import Detail
from notifyq.operations.top.text import lasting
from notifyq.printable import first_line, printable_lines

_LONGEST = 20_000
"""Characters of a payload, a result or a traceback that are shown."""
_GONE = "it does not exist any more"


class MessageScreen(Detail):
    """A message with its payload and its attempts."""

    BINDINGS: ClassVar[list[Any]] = [("r", "retry", "Retry")]

    def __init__(self, message_id: int) -> None:
        super().__init__(f"message {message_id}")
        self._number = message_id
        self._message: Message | ArchivedMessage | None = None

    def hints(self) -> str:
        """The keys of this screen."""
        retry = "r retry  " if self._is_dead and not self.top.read_only else ""
        return f"arrows scroll  {retry}esc back  ? help  q quit"

    @property
    def _is_dead(self) -> bool:
        found = self._message
        return isinstance(found, ArchivedMessage) and found.status != "success"

    async def fetch(self) -> None:
        """Read the message and its attempts."""
        source = self.top.source
        archive = Archive(source.database)
        self._message = await source.call(archive.find(self._number))
        if self._message is None:
            self.text = _GONE
        else:
            attempts = await source.call(archive.attempts(self._number))
            self.text = message_text(self._message, attempts, source.masks)

    def action_retry(self) -> None:
        """Retry the message."""
        if self._is_dead:
            database = self.top.source.database
            self.top.act(
                f"Retry message {self._number}?", lambda: acts.retry(database, [self._number])
            )


def message_text(message: Message | ArchivedMessage, attempts: list[Attempt], masks: Masks) -> str:
    """All of a message that may be shown."""
    headers = json.dumps(message.headers, default=str) if message.headers else None
    documents = documents_of(message)
    fields: dict[str, Any] = {
        name: getattr(message, name)
        for name in message.__dataclass_fields__
        if name not in {"message", "result", "headers", "details"}
    }
    lines = [f"{name:<16} {_value(value)}" for name, value in fields.items() if value is not None]
    for name, text in (
        ("details", redacted(message.details, masks, *documents)),
        ("message", _pretty(message.message, masks)),
        ("headers", _pretty(headers, masks)),
        ("result", _pretty(getattr(message, "result", None), masks)),
    ):
        if text is not None:
            lines += ["", f"{name}:", _lines(text)]
    for attempt in attempts:
        span = lasting(attempt.ended_at - attempt.locked_at)
        lines += [
            "",
            f"attempt {attempt.number}: {attempt.status} after {span}, "
            f"{_value(attempt.locked_at)}, by {first_line(attempt.handled_by or '?')}",
        ]
        texts = (redacted(it, masks, *documents) for it in (attempt.details, attempt.traceback))
        lines += [_lines(text) for text in texts if text]
    return "\n".join(lines)


def _value(value: Any) -> str:
    if hasattr(value, "astimezone"):
        try:
            return f"{value.astimezone():%Y-%m-%d %H:%M:%S}"
        except (OverflowError, ValueError):  # infinity
            return "never"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return first_line(str(value))


def _pretty(text: str | None, masks: Masks) -> str | None:
    is_long = text is not None and len(text) > _LONGEST
    return text if is_long and masks.are_none else masks.text(text)


def _lines(text: str) -> str:
    """A text of several lines, up to the longest that is shown."""
    return printable_lines(text[:_LONGEST]) + ("\n…" if len(text) > _LONGEST else "")


class WorkerScreen(Detail):
    """A worker and the messages that it has locked."""

    def __init__(self, name: str) -> None:
        super().__init__(f"worker {first_line(name)}")
        self._worker = name

    async def fetch(self) -> None:
        """Read the worker."""
        source = self.top.source
        found = await source.call(monitor.workers(source.database, most=50))
        mine = next((it for it in found if it.name == self._worker), None)
        self.text = _GONE if mine is None else worker_text(mine)


def worker_text(worker: WorkerInfo) -> str:
    """All that is known of a worker."""
    fields = {
        "state": worker.state,
        "host": worker.host,
        "process": worker.pid,
        "session": worker.session_pid,
        "connected": worker.is_connected,
        "version": worker.version,
        "running": worker.running,
        "concurrency": worker.concurrency,
        "started": worker.started_at,
        "seen": worker.seen_at,
        "blocked": worker.blocked_at,
        "queues": ", ".join(worker.queues),
        "streams": ", ".join(worker.streams),
    }
    lines = [
        f"{name:<12} {_value(value)}" for name, value in fields.items() if value not in {None, ""}
    ]
    lines += ["", f"{worker.held} messages locked, {worker.expired} of them expired:"]
    lines += [
        f"  {it.id:>12}  {first_line(it.queue):<24} attempt {it.attempts}, "
        f"since {_value(it.locked_at)}"
        for it in worker.messages
    ]
    return "\n".join(lines)
