"""Programs that kill themselves, each one step later than the one before.

The first one that comes to its end is the last; then it is printed how many steps there were, and
how many messages were published meanwhile.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from support.database import ROOT

_left = 0


def step() -> None:
    """Be a step: the process is killed here if this is the last one that it has."""
    global _left  # noqa: PLW0603  one count for a process
    _left -= 1
    if _left == 0:
        os.kill(os.getpid(), signal.SIGKILL)


def die_at_each_step(
    publish: Callable[[range], Coroutine[Any, Any, None]],
    run: Callable[[], Coroutine[Any, Any, None]],
) -> None:
    """Let one after the other die; before each, three more numbers are published."""
    global _left  # noqa: PLW0603
    for last in itertools.count(1):
        sent = 3 * last
        asyncio.run(publish(range(sent - 3, sent)))
        child = os.fork()
        if child == 0:
            _left = last
            asyncio.run(run())
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if status == 0:
            print(last, sent)
            return
        assert os.WTERMSIG(status) == signal.SIGKILL


async def dying(program: Path, *args: str) -> tuple[int, int]:
    """Run such a program and return what it prints: the steps, and the published messages."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        program,
        *args,
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (ROOT / "tests", ROOT / "src")))},
    )
    output, _ = await process.communicate()
    assert process.returncode == 0
    steps, sent = map(int, output.split())
    return steps, sent
