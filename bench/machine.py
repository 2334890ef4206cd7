"""The machine: what it is, and how much CPU time processes have used on it."""

from __future__ import annotations

import os
import platform
import re
from pathlib import Path
from typing import TYPE_CHECKING

from notifyq import __version__

if TYPE_CHECKING:
    from collections.abc import Sequence

_TICKS = os.sysconf("SC_CLK_TCK")
_LOOKS = 20
"""Most times that all processes are looked at for one sum."""


def describe() -> dict[str, str]:
    """Return facts of this machine, by name."""
    pages, size = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    return {
        "cpu": _cpu(),
        "cores": str(os.cpu_count()),
        "ram": f"{pages * size / 2**30:.0f} GiB",
        "kernel": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "notifyq": __version__,
    }


def _cpu() -> str:
    facts = Path("/proc/cpuinfo")
    text = facts.read_text(encoding="utf-8") if facts.exists() else ""
    found = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return found[1] if found else platform.processor() or platform.machine()


def cpu_seconds(roots: list[int]) -> float | None:
    """Return the CPU time used so far by these processes and all that they started.

    None where the kernel does not tell. It counts those that have ended, too, once their parents
    have waited for them: the difference of two calls is what was used in between.
    """
    if not Path("/proc/self/stat").exists():
        return None
    # A child that is waited for while we look is seen neither alive nor in its parent's account.
    waited, total = None, 0
    for _ in range(_LOOKS):
        if (now := sum(map(_waited, roots))) == waited:
            break
        total = _walk(roots)
        waited = now
    return total / _TICKS


def on_cpu(pids: Sequence[int]) -> float | None:
    """Return the seconds that these processes have been on a processor so far, to the microsecond.

    None where the kernel does not tell, or where one of them is not of this machine.
    """
    if any(parent(pid) is None for pid in pids):
        return None
    try:
        told = [Path(f"/proc/{pid}/schedstat").read_text(encoding="utf-8") for pid in pids]
    except OSError:
        return None
    return sum(int(text.split()[0]) for text in told) / 1e9


def _stat(pid: int | str) -> list[str]:
    """Return the fields of a process behind its name; zeros if it has gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ["0"] * 20
    return text.rpartition(")")[2].split()  # the name may have blanks


def _waited(pid: int) -> int:
    return sum(map(int, _stat(pid)[13:15]))


def _walk(roots: list[int]) -> int:
    children: dict[int, list[int]] = {}
    used: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*"):
        fields, pid = _stat(path.name), int(path.name)
        children.setdefault(int(fields[1]), []).append(pid)
        used[pid] = sum(map(int, fields[11:15]))  # user and system, own and of ended children
    left, total = list(roots), 0
    while left:
        pid = left.pop()
        total += used.get(pid, 0)
        left.extend(children.get(pid, ()))
    return total


def parent(pid: int) -> int | None:
    """Return the parent of a server process of this machine; None for another machine's."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except OSError:
        return None
    name, _, rest = text.partition("(")[2].rpartition(")")
    return int(rest.split()[1]) if name == "postgres" else None
