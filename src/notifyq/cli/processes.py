"""Workers as processes of their own: `worker --processes N` keeps N, `--reload` restarts one."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import shlex
import signal
import socket
import sys
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

from notifyq.cli.arguments import handing_down_dsn
from notifyq.cli.signals import SLOT, STARTED, STOP, TEMPORARY, received
from notifyq.errors import ConfigurationError

log = logging.getLogger("notifyq.processes")

# -P: a notifyq.py in the current folder is not this package.
_COMMAND = (sys.executable, "-P", "-m", "notifyq")
_REFUSED = {1, 2}
"""Exit codes of a command that has printed its error in one line."""
_SHORT = 60.0
"""Seconds after which the end of a worker does not lengthen the pause before the next."""
_LONGEST_PAUSE = 30.0
_SPARE = 5
"""Seconds after its grace at which a reloaded worker that does not stop is killed."""


class Supervisor:
    """Keeps N workers running until it is stopped, or one of them cannot start."""

    def __init__(self, number: int) -> None:
        self._slots = [_Slot(self, slot) for slot in range(1, number + 1)]
        self.stopping = asyncio.Event()
        """Set when no more workers are to be started."""
        self._stops = 0
        self._code = 0
        cores = os.cpu_count() or 1
        if number > 4 * cores:
            log.warning("%d worker processes on %d cores: they slow each other", number, cores)

    async def run(self) -> int:
        """Return the exit code: 0 after a clean stop, else that of a worker."""
        with self._signals():
            # Only the first worker prints an error in the app or in reaching the database.
            first, *others = self._slots
            keeping = [asyncio.create_task(first.keep())]
            await first.settled.wait()
            keeping += [asyncio.create_task(slot.keep()) for slot in others]
            await asyncio.gather(*keeping)
        return self._code

    def refused(self, slot: _Slot) -> bool:
        """Whether the end of this worker means that another one would not start either."""
        if slot.started or slot.code not in _REFUSED:
            return False
        # A server that is full or restarting is no reason to end the workers that run.
        return not (slot.is_temporary and any(other.started for other in self._slots))

    def end(self, code: int) -> None:
        """Stop all; the exit code is this one, unless another worker ended before."""
        self._code = self._code or (code if code >= 0 else 128 - code)
        if not self._stops:
            self._stop()

    async def pause(self, seconds: float) -> None:
        """Wait this long, or until the stop."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.stopping.wait()

    def _stop(self) -> None:
        self._stops += 1
        self.stopping.set()
        for slot in self._slots:
            slot.stop()

    def _on_signal(self, number: int) -> None:
        what = ("stops", "stops at once", "is killed")[min(self._stops, 2)]
        log.info("%s: every worker %s", signal.Signals(number).name, what)
        if self._stops < 2:
            self._stop()
            return
        self._code = 128 + number
        for slot in self._slots:
            slot.kill()

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        numbers = (signal.SIGINT, signal.SIGTERM)
        for number in numbers:
            loop.add_signal_handler(number, self._on_signal, number)
        try:
            yield
        finally:
            for number in numbers:
                loop.remove_signal_handler(number)


class _Slot:
    """One of the N: its worker, and after the end of that one the next."""

    def __init__(self, supervisor: Supervisor, number: int) -> None:
        self._supervisor = supervisor
        self._number = number
        self._process: asyncio.subprocess.Process | None = None
        self._channel: socket.socket | None = None
        self.settled = asyncio.Event()
        """Set once a worker has started in this slot, or none will."""
        self.started = False
        """Whether the worker has begun to work; kept until keep() has handled its end."""
        self.is_temporary = False
        """Whether the worker reported that its error may not meet the next one."""
        self.code: int | None = None

    async def keep(self) -> None:
        """Keep a worker running in this slot until the stop."""
        short = 0
        while not self._supervisor.stopping.is_set():
            since = time.monotonic()
            try:
                end = await self._live()
            except OSError as error:  # no memory, no descriptor left
                end = f"worker process {self._number} could not be started ({error})"
            if self._supervisor.stopping.is_set():
                # A worker that had not begun to work held nothing that its end could lose.
                if self.code and self.started:
                    log.error("%s while it was stopping", end)
                    self._supervisor.end(self.code)
            elif self._supervisor.refused(self):
                self._supervisor.end(self.code or 1)
            else:
                self.started = False
                short = short + 1 if time.monotonic() - since < _SHORT else 0
                seconds = _pause(short)
                log.warning("%s, another one follows in %.1f s", end, seconds)
                await self._supervisor.pause(seconds)
        self.settled.set()

    def stop(self) -> None:
        """Request a stop of the worker, once more."""
        if self._channel is not None:
            with contextlib.suppress(OSError):  # it has ended
                self._channel.send(STOP)

    def kill(self) -> None:
        """End the worker at once."""
        if self._process is not None and self._process.returncode is None:
            self._process.kill()

    async def _live(self) -> str:
        """Run a worker to its end; return a sentence about that end."""
        self.started = self.is_temporary = False
        self.code = None
        ours, theirs = socket.socketpair()
        loop = asyncio.get_running_loop()
        with ours:
            ours.setblocking(False)
            self._channel = ours
            loop.add_reader(ours, self._receive)
            try:
                with theirs:
                    self._process = await self._spawn(theirs.fileno())
                self.code = await self._process.wait()
            finally:
                self._receive()  # its last report
                loop.remove_reader(ours)
                self._channel = None
        how = f"exit code {self.code}" if self.code >= 0 else f"signal {-self.code}"
        return f"worker process {self._number} (pid {self._process.pid}) ended with {how}"

    async def _spawn(self, descriptor: int) -> asyncio.subprocess.Process:
        # The DSN goes by the environment: every user can read the arguments of a process.
        arguments, handed_down = handing_down_dsn(sys.argv[1:])
        return await asyncio.create_subprocess_exec(
            *_COMMAND,
            *arguments,
            stdin=asyncio.subprocess.DEVNULL,
            env={**os.environ, **handed_down, SLOT: f"{self._number}:{descriptor}"},
            pass_fds=[descriptor],
        )

    def _receive(self) -> None:
        if self._channel is None:
            return
        report = received(self._channel)
        if report == b"":
            asyncio.get_running_loop().remove_reader(self._channel)
        elif report is not None:
            self.started = self.started or STARTED in report
            self.is_temporary = TEMPORARY in report
            if self.started:
                self.settled.set()


def _pause(short: int) -> float:
    """Seconds before the next worker after this many short-lived ones."""
    return min(0.5 * 2.0 ** min(short, 10), _LONGEST_PAUSE) * random.uniform(0.5, 1)  # noqa: S311


def run_and_reload(grace: timedelta) -> None:
    """Keep a worker of this command running, without --reload, until a signal stops it.

    It starts again whenever a Python file in or below the current folder changes. A worker that
    cannot start, as after a mistake in a file, is tried again at the next change.
    """
    try:
        import watchfiles
    except ImportError as error:
        raise ConfigurationError(
            "--reload needs the package watchfiles: run `pip install 'notifyq[reload]'`"
        ) from error

    def report(changes: set[tuple[watchfiles.Change, str]]) -> None:
        names = sorted({os.path.relpath(path) for _, path in changes})
        log.info("%s changed: the worker starts again", ", ".join(names))

    logging.getLogger("watchfiles").setLevel(logging.ERROR)
    arguments, handed_down = handing_down_dsn([arg for arg in sys.argv[1:] if arg != "--reload"])
    os.environ.update(handed_down)
    watchfiles.run_process(
        Path.cwd(),
        target=shlex.join([*_COMMAND, *arguments]),
        target_type="command",
        watch_filter=watchfiles.PythonFilter(),
        callback=report,
        debounce=200,
        sigint_timeout=int(grace.total_seconds()) + _SPARE,
    )
