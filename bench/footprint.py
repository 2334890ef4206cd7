"""What a process and all that it started hold and use: memory, and seconds of processors."""

from __future__ import annotations

import os
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


def below(pid: int) -> list[int]:
    """Give a process, and those that it started, and so on."""
    found = [pid]
    for folder in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            found += [it for child in folder.read_text().split() for it in below(int(child))]
        except OSError:
            continue
    return found


def memory(pid: int) -> int:
    """Give the bytes that a process and all below it hold; what they share counts for each."""
    return sum(_resident(it) for it in below(pid))


def _resident(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE
    except (OSError, ValueError):
        return 0


def processors(pid: int) -> float:
    """Give the seconds that a process, all below it, and those that have ended, have used."""
    return sum(_used(it) for it in below(pid))


def _used(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return sum(map(int, fields[11:15])) / _TICKS
