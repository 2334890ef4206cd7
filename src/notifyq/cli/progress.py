"""Progress of long work: a bar in a terminal, a line now and then elsewhere."""

import time
from typing import Self

from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    ProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TransferSpeedColumn,
)
from rich.progress import Progress as Bar

from notifyq.cli.output import err
from notifyq.operations.texts import size

_EVERY = 2.0
"""Seconds between two lines where there is no terminal."""


class Progress:
    """Shows progress on stderr; `total` is None where the end is unknown."""

    def __init__(self, what: str, *, total: int | None, unit: str) -> None:
        self._what = what
        self._total = total
        self._unit = unit
        self._done = 0
        self._since = self._printed = time.monotonic()
        columns: list[ProgressColumn] = (
            [DownloadColumn(), TransferSpeedColumn()] if unit == "B" else [MofNCompleteColumn()]
        )
        self._bar = Bar(
            TextColumn("{task.description}"),
            BarColumn(),
            *columns,
            TimeElapsedColumn(),
            console=err,
            disable=not err.is_terminal,
            transient=True,
        )

    def __enter__(self) -> Self:
        self._bar.start()
        self._task = self._bar.add_task(self._what, total=self._total)
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._bar.stop()
        if not err.is_terminal and self._printed > self._since and exc_info[0] is None:
            self._print()

    def advance(self, by: int = 1) -> None:
        """Count work that is done."""
        self.reach(self._done + by)

    def reach(self, done: int, total: int | None = None) -> None:
        """Set how much work is done in all, and of how much."""
        self._done = done
        if total is not None:
            self._total = total
        if err.is_terminal:
            self._bar.update(self._task, completed=done, total=self._total)
        elif time.monotonic() - self._printed >= _EVERY:
            self._print()

    def _print(self) -> None:
        self._printed = time.monotonic()
        amounts = [self._done, *([] if self._total is None else [self._total])]
        is_bytes = self._unit == "B"
        done = " of ".join(map(size if is_bytes else str, amounts))
        unit = "" if is_bytes else f" {self._unit}"
        err.print(f"{self._what}: {done}{unit}, {self._printed - self._since:.0f} s")
