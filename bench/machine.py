"""The machine: its facts, and the CPU time and memory of processes."""

from __future__ import annotations

import os
import platform
import re
from pathlib import Path
from typing import TYPE_CHECKING

from notifyq import __version__

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
_MOST_READS = 20
"""Most times that all processes are read for one sum."""


def describe() -> dict[str, str]:
    """Return facts of this machine, by name."""
    return {
        "cpu": _cpu(),
        "cores": str(os.cpu_count()),
        "ram": f"{os.sysconf('SC_PHYS_PAGES') * _PAGE / 2**30:.0f} GiB",
        "kernel": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "notifyq": __version__,
    }


def _cpu() -> str:
    facts = Path("/proc/cpuinfo")
    text = facts.read_text(encoding="utf-8") if facts.exists() else ""
    found = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return found[1] if found else platform.processor() or platform.machine()


def cpu_seconds(roots: Sequence[int]) -> float | None:
    """Return the CPU time used so far by these processes and their descendants.

    It includes descendants that ended, once their parents have waited for them. None where there is
    no /proc.
    """
    if not Path("/proc/self/stat").exists():
        return None
    # A child that ends between two reads is in neither sum: read until no parent waited for one.
    waited, total = None, 0
    for _ in range(_MOST_READS):
        if (now := sum(_ticks(_stat(pid)[13:15]) for pid in roots)) == waited:
            break
        total = sum(_ticks(fields[11:15]) for fields in _family(roots))
        waited = now
    return total / _TICKS


def memory(root: int) -> int:
    """Return the resident bytes of a process and its descendants; shared pages count for each."""
    return sum(int(fields[21]) for fields in _family([root])) * _PAGE


def on_cpu(pids: Sequence[int]) -> float | None:
    """Return the seconds of these server processes on a processor so far, to the microsecond.

    None where there is no schedstat, or where a process runs on another machine.
    """
    if any(parent(pid) is None for pid in pids):
        return None
    try:
        texts = [Path(f"/proc/{pid}/schedstat").read_text(encoding="utf-8") for pid in pids]
    except OSError:
        return None
    return sum(int(text.split()[0]) for text in texts) / 1e9


def parent(pid: int) -> int | None:
    """Return the parent of a server process of this machine; None for another machine's."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except OSError:
        return None
    name, _, rest = text.partition("(")[2].rpartition(")")
    return int(rest.split()[1]) if name == "postgres" else None


def _stat(pid: int | str) -> list[str]:
    """Return the fields of /proc/PID/stat behind the name; zeros if the process ended."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ["0"] * 22
    return text.rpartition(")")[2].split()  # the name may contain blanks


def _ticks(fields: Sequence[str]) -> int:
    return sum(map(int, fields))


def _family(roots: Sequence[int]) -> Iterator[list[str]]:
    """Yield the fields of these processes and all their descendants."""
    found = {int(path.name): _stat(path.name) for path in Path("/proc").glob("[0-9]*")}
    children: dict[int, list[int]] = {}
    for pid, fields in found.items():
        children.setdefault(int(fields[1]), []).append(pid)
    left = list(roots)
    while left:
        pid = left.pop()
        if pid in found:
            yield found[pid]
        left.extend(children.get(pid, ()))
