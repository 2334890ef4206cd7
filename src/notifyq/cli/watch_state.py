"""What `notifyq dead watch` has handed out, in a file that outlives it."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from pydantic import BaseModel, Field

from notifyq.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class _Head(BaseModel):
    """The first line of the file; the ids handed out since that position follow it."""

    queue: str | None = None
    position: str = Field(pattern=r"^-?\d+(:\d+){3}/\d+:\d+:[\d,]*$")


class Bookmark:
    """A position up to which all is handed out, and the ids that were since; kept if in a file."""

    def __init__(self, path: Path | None, queue: str | None, *, anew: bool = False) -> None:
        """Read what is in the file; `anew` overwrites it at the first move instead."""
        self._path = path
        self._queue = queue
        self._done: set[int] = set()
        self.position: str | None = None
        """None: there was no file."""
        if path is not None and not anew:
            self._read(path)

    def has(self, message_id: int) -> bool:
        """Whether the message was handed out."""
        return message_id in self._done

    def add(self, message_id: int) -> None:
        """Note that a message was handed out."""
        self._done.add(message_id)
        if self._path is not None:
            with _writing(self._path), self._path.open("a") as file:
                file.write(f"{message_id}\n")

    def move(self, position: str) -> None:
        """Note that all up to a position is handed out."""
        self._done.clear()
        self.position = position
        if self._path is not None:
            head = _Head(queue=self._queue, position=position)
            # Beside it and renamed: a crash leaves the old state or the new one, never a half.
            fresh = self._path.with_name(self._path.name + ".new")
            with _writing(self._path):
                fresh.write_text(head.model_dump_json() + "\n")
                fresh.replace(self._path)

    def _read(self, path: Path) -> None:
        try:
            # What follows the last line end was not written to its own end.
            head, *ids = path.read_text().rpartition("\n")[0].split("\n")
            kept = _Head.model_validate_json(head)
            self._done = {int(line) for line in ids}
        except FileNotFoundError:
            return
        except OSError as error:
            raise ConfigurationError(f"{path} cannot be read: {error.strerror}") from error
        except ValueError as error:
            raise ConfigurationError(
                f"{path} is not a file that --state wrote: delete it to begin now"
            ) from error
        if kept.queue != self._queue:
            of = "all queues" if kept.queue is None else f"--queue {kept.queue}"
            raise ConfigurationError(f"{path} is of {of}: delete it to begin now")
        self.position = kept.position


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be written: {error.strerror}") from error
