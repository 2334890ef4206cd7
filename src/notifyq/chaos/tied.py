"""Starting programs that must not outlive this one."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from notifyq.server.launch import Account, Tie, launcher

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


def tied(command: Sequence[str | Path], account: Account | None = None) -> list[str]:
    """Return the command line under which a program is ended by the kernel when we are killed.

    Only Linux does that; and there must be no process in between, as signals are for the program.
    """
    is_linux = sys.platform == "linux"
    return launcher(Tie.thread, account, command) if is_linux else [str(it) for it in command]
