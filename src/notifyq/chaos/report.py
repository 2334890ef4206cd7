"""The report of a run: a row for each fault, as text, JSON and Markdown."""

from __future__ import annotations

import json
import os
import platform
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from notifyq.chaos.recovery import percentile

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from notifyq.chaos.checker import CheckResult

COLUMNS = (
    *("fault", "messages", "lost", "doubled archive", "doubled execution", "unexpected"),
    *("false acks", "failed publishes", "p50 s", "p99 s", "max s", "figures", "result"),
)
"""Columns of the table; the times are recovery times."""
_FACTS = ("seed", "workers", "seconds", "machine", "ok")
_COUNTS = (
    *("attempts", "lost", "doubled_archive", "doubled_execution"),
    *("unexpected", "false_acknowledgement"),
)


@dataclass(slots=True, kw_only=True)
class Row:
    """The result of one fault."""

    fault: str
    title: str
    seconds: float = 0
    """From the start of its workers to the result."""
    result: CheckResult | None = None
    failed_publishes: int = 0
    """Publications without an acknowledgement; some may have succeeded."""
    recoveries: list[float] = field(default_factory=list)
    injections: list[dict[str, Any]] = field(default_factory=list)
    """Each with its name and the choices made by the seed."""
    figures: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    findings: list[str] = field(default_factory=list)
    """Violations, and expectations of the fault that were not met."""
    skipped: str | None = None
    """Why this machine cannot do it."""
    history: str | None = None
    """Where the history of a failed fault is."""

    @property
    def ok(self) -> bool:
        """Whether there are no findings."""
        return not self.findings

    def cells(self) -> list[str]:
        """The cells of the table."""
        if self.skipped is not None:
            return [self.fault, *[""] * (len(COLUMNS) - 2), f"skipped: {self.skipped}"]
        counts = [getattr(self.result, name, "") for name in _COUNTS]
        times = [percentile(self.recoveries, share) for share in (0.5, 0.99, 1)]
        figures = ", ".join(f"{name} {value:.4g}" for name, value in self.figures.items())
        return [
            self.fault,
            *map(str, counts),
            str(self.failed_publishes),
            *("" if value is None else f"{value:.2f}" for value in times),
            figures,
            "ok" if self.ok else f"{len(self.findings)} broken",
        ]

    def facts(self) -> dict[str, Any]:
        """The row for JSON."""
        facts = asdict(self)
        facts["recovery"] = {
            name: percentile(self.recoveries, share)
            for name, share in (("p50", 0.5), ("p99", 0.99), ("max", 1))
        }
        facts["ok"] = self.ok
        return facts


@dataclass(slots=True, kw_only=True)
class Report:
    """The results of all faults of a run."""

    seed: int
    workers: int
    seconds: float
    """How long each fault lasted."""
    machine: str
    rows: list[Row] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether no fault has findings."""
        return all(row.ok for row in self.rows)

    def again(self, row: Row) -> str:
        """The command that repeats this fault."""
        return (
            f"notifyq chaos --seed {self.seed} --faults {row.fault} "
            f"--workers {self.workers} --minutes {self.seconds / 60:.3g}"
        )

    def write(self, folder: Path) -> None:
        """Write report.txt, report.json and report.md."""
        folder.mkdir(parents=True, exist_ok=True)
        cells = [row.cells() for row in self.rows]
        head = f"seed {self.seed}; {self.machine}"
        facts = {name: getattr(self, name) for name in _FACTS}
        rows = [row.facts() for row in self.rows]
        texts = {
            "report.txt": "\n".join([head, "", *_aligned([COLUMNS, *cells]), *self._remarks()]),
            "report.json": json.dumps({**facts, "faults": rows}, indent=2),
            "report.md": "\n".join([head, "", *_markdown(cells), *self._remarks("- ")]),
        }
        for name, text in texts.items():
            (folder / name).write_text(f"{text}\n", encoding="utf-8")

    def _remarks(self, bullet: str = "") -> list[str]:
        remarks = [
            f"{bullet}{row.fault}: {text}" for row in self.rows for text in row.findings + row.notes
        ]
        return ["", *remarks] if remarks else []


def machine(server: str) -> str:
    """Describe the machine in one line; `server` is the version of PostgreSQL."""
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    return (
        f"PostgreSQL {server}, Python {platform.python_version()}, {os.cpu_count()} cores, "
        f"{platform.system()} {platform.machine()}, load {load}"
    )


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]


def _markdown(rows: Iterable[Sequence[str]]) -> list[str]:
    lines = [COLUMNS, ["---"] * len(COLUMNS), *rows]
    return [f"| {' | '.join(cell.replace('|', '/') for cell in line)} |" for line in lines]
