"""The report of a run: a row for each fault, as a table and as JSON."""

from __future__ import annotations

import json
import os
import platform
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

    from notifyq.chaos.checker import CheckResult

_COUNTS = (
    *("attempts", "lost", "doubled_archive", "doubled_execution"),
    *("unexpected", "false_acknowledgement"),
)
COLUMNS = (
    *("fault", "messages", "lost", "doubled archive", "doubled execution", "unexpected"),
    *("false acks", "failed publishes", "figures", "result"),
)
"""Columns of the table."""


@dataclass(slots=True, kw_only=True)
class Row:
    """The result of one fault."""

    fault: str
    seconds: float = 0
    """From the start of its workers to the result."""
    result: CheckResult | None = None
    failed_publishes: int = 0
    """Publications without an acknowledgement; some may have succeeded."""
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
        return [
            self.fault,
            *(str(getattr(self.result, name, "")) for name in _COUNTS),
            str(self.failed_publishes),
            ", ".join(f"{name} {value:.4g}" for name, value in self.figures.items()),
            "ok" if self.ok else f"{len(self.findings)} broken",
        ]


@dataclass(slots=True, kw_only=True)
class Report:
    """The results of all faults of a run."""

    seed: int
    workers: int
    seconds: float
    """How long each fault lasted."""
    machine: str
    faults: list[Row] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether no fault has findings."""
        return all(row.ok for row in self.faults)

    def remarks(self) -> list[str]:
        """The findings and notes of all faults, and how to repeat those that failed."""
        lines = []
        for row in self.faults:
            texts = [*row.findings, *row.notes]
            if row.history is not None:
                texts.append(f"its history is in {row.history}")
            if not row.ok:
                texts.append(
                    f"again: notifyq chaos --seed {self.seed} --faults {row.fault} "
                    f"--workers {self.workers} --minutes {self.seconds / 60:.3g}"
                )
            lines += [f"{row.fault}: {text}" for text in texts]
        return lines

    def write(self, folder: Path) -> None:
        """Write report.json."""
        folder.mkdir(parents=True, exist_ok=True)
        facts = asdict(self) | {"ok": self.ok}
        (folder / "report.json").write_text(f"{json.dumps(facts, indent=2)}\n", encoding="utf-8")


def machine(server: str) -> str:
    """Describe the machine in one line; `server` is the version of PostgreSQL."""
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    return (
        f"PostgreSQL {server}, Python {platform.python_version()}, {os.cpu_count()} cores, "
        f"{platform.system()} {platform.machine()}, load {load}"
    )
