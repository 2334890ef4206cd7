"""Turns a new Python process into a server process: drops root, ends with its starter.

It runs as a program (`python -I -S launch.py …`), because `preexec_fn` is not safe in a starter
that has threads. It imports nothing of notifyq, and nothing after it drops root: it may not have
access to its own interpreter then.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple, NoReturn

_PR_SET_PDEATHSIG = 1


class Account(NamedTuple):
    """The user that a server runs as."""

    name: str
    uid: int
    gid: int


class Tie(StrEnum):
    """What ends the launched program.

    `thread`: the end of the thread that launched it, on Linux. `pipe`: the launcher stays as its
    parent, and ends it when its standard input closes; for systems without PR_SET_PDEATHSIG
    (macOS), and for starters in a thread that may end early.
    """

    none = "none"
    thread = "thread"
    pipe = "pipe"


def launcher(tie: Tie, account: Account | None, command: Sequence[str | Path]) -> list[str]:
    """Return the command line that launches `command` as `account`, tied to the caller."""
    uid, gid = (account.uid, account.gid) if account else (-1, -1)
    own = [sys.executable, "-I", "-S", __file__, tie, str(os.getpid()), str(uid), str(gid)]
    return [*own, *map(str, command)]


def _main(tie: str, starter: int, uid: int, gid: int, *command: str) -> NoReturn:
    if tie == Tie.pipe:
        sys.exit(_stay_as_parent(uid, gid, command))
    if tie == Tie.none and os.fork():
        sys.exit()  # init reaps an orphan: a detached server does not become a zombie
    if uid >= 0:
        os.setgroups([])
        os.setgid(gid)
        os.setuid(uid)
    if tie == Tie.thread:
        _end_with(starter)
    os.execv(command[0], command)  # noqa: S606  no shell is wanted


def _end_with(starter: int) -> None:
    if sys.platform == "linux":
        # After setuid, which clears it. SIGINT is PostgreSQL's fast shutdown.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGINT)
    if os.getppid() != starter:
        sys.exit("the starter has ended")  # before the line above


def _stay_as_parent(uid: int, gid: int, command: Sequence[str]) -> int:
    account = Account("", uid, gid) if uid >= 0 else None
    child = subprocess.Popen(  # noqa: S603  the command is our own
        launcher(Tie.thread, account, command),
        stdin=subprocess.DEVNULL,
        close_fds=False,  # it inherits the alive lock
    )

    def end_with_input() -> None:
        sys.stdin.buffer.read()
        child.send_signal(signal.SIGINT)

    threading.Thread(target=end_with_input, daemon=True).start()
    return child.wait()


if __name__ == "__main__":
    _tie, _starter, _uid, _gid, *_command = sys.argv[1:]
    _main(_tie, int(_starter), int(_uid), int(_gid), *_command)
