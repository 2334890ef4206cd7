"""`notifyq worker --processes N`: keeps N workers running, each a fresh process of its command."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import signal
import socket
import sys
import time
from typing import TYPE_CHECKING

from notifyq.cli.arguments import handing_down_dsn
from notifyq.cli.signals import PASSING, PLACE, STARTED, STOP, received

if TYPE_CHECKING:
    from collections.abc import Iterator

log = logging.getLogger("notifyq.processes")

_REFUSED = {1, 2}
"""Exit codes of a command that has said in one line what is wrong."""
_SHORT = 60.0
"""Seconds that a worker must last for its end not to count as one of a row."""
_LONGEST_PAUSE = 30.0


class Supervisor:
    """Keeps N workers running until it is stopped, or one of them cannot start."""

    def __init__(self, number: int) -> None:
        self._places = [_Place(self, place) for place in range(1, number + 1)]
        self.stopping = asyncio.Event()
        """Set when no worker is to be started any more."""
        self._stops = 0
        self._code = 0
        cores = os.cpu_count() or 1
        if number > 4 * cores:
            log.warning("%d worker processes on %d cores: they will slow each other", number, cores)

    async def run(self) -> int:
        """Return the exit code: 0 after a clean stop, else that of a worker."""
        with self._signals():
            # What is wrong with the app or the database is said by the first one, and only once.
            first, *others = self._places
            keeping = [asyncio.create_task(first.keep())]
            await first.settled.wait()
            keeping += [asyncio.create_task(place.keep()) for place in others]
            await asyncio.gather(*keeping)
        return self._code

    def refused(self, place: _Place) -> bool:
        """Whether the end of this worker means that another one would not start either."""
        if place.started or place.code not in _REFUSED:
            return False
        # A server that is full or restarting is no reason to end those that do run.
        return not (place.passing and any(other.started for other in self._places))

    def end(self, code: int) -> None:
        """Stop them all; the exit code is this one, unless another end came before."""
        self._code = self._code or (code if code >= 0 else 128 - code)
        if not self._stops:
            self._stop()

    async def pause(self, seconds: float) -> None:
        """Wait so long, or until the stop."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.stopping.wait()

    def _stop(self) -> None:
        self._stops += 1
        self.stopping.set()
        for place in self._places:
            place.stop()

    def _on_signal(self, number: int) -> None:
        what = ("stops", "stops at once", "is killed")[min(self._stops, 2)]
        log.info("%s: every worker %s", signal.Signals(number).name, what)
        if self._stops < 2:
            self._stop()
            return
        self._code = 128 + number
        for place in self._places:
            place.kill()

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


class _Place:
    """One of the N: the worker that runs there, and after its end the next one."""

    def __init__(self, supervisor: Supervisor, number: int) -> None:
        self._supervisor = supervisor
        self._number = number
        self._process: asyncio.subprocess.Process | None = None
        self._channel: socket.socket | None = None
        self.settled = asyncio.Event()
        """Set once a worker has started here, or none will."""
        self.started = False
        """Whether the worker has begun to work; it stays so until its end has been judged."""
        self.passing = False
        self.code: int | None = None

    async def keep(self) -> None:
        """Have a worker here until the stop."""
        short = 0
        while not self._supervisor.stopping.is_set():
            since = time.monotonic()
            try:
                end = await self._live()
            except OSError as error:  # no memory, no descriptor left
                end = f"worker process {self._number} could not be started ({error})"
            if self._supervisor.stopping.is_set():
                # One that had not begun to work held nothing that its end could lose.
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
        """Ask the worker to stop, once more."""
        if self._channel is not None:
            with contextlib.suppress(OSError):  # it has ended
                self._channel.send(STOP)

    def kill(self) -> None:
        """End the worker at once."""
        if self._process is not None and self._process.returncode is None:
            self._process.kill()

    async def _live(self) -> str:
        """Run a worker to its end; return that in words."""
        self.started = self.passing = False
        self.code = None
        ours, theirs = socket.socketpair()
        loop = asyncio.get_running_loop()
        with ours:
            ours.setblocking(False)
            self._channel = ours
            loop.add_reader(ours, self._hear)
            try:
                with theirs:
                    self._process = await self._spawn(theirs.fileno())
                self.code = await self._process.wait()
            finally:
                self._hear()  # what it said last
                loop.remove_reader(ours)
                self._channel = None
        how = f"exit code {self.code}" if self.code >= 0 else f"signal {-self.code}"
        return f"worker process {self._number} (pid {self._process.pid}) ended with {how}"

    async def _spawn(self, descriptor: int) -> asyncio.subprocess.Process:
        # Arguments may be read by everybody.
        arguments, handed_down = handing_down_dsn(sys.argv[1:])
        return await asyncio.create_subprocess_exec(
            # -P: a notifyq.py in the current folder is not this package.
            *(sys.executable, "-P", "-m", "notifyq", *arguments),
            stdin=asyncio.subprocess.DEVNULL,
            env={**os.environ, **handed_down, PLACE: f"{self._number}:{descriptor}"},
            pass_fds=[descriptor],
        )

    def _hear(self) -> None:
        if self._channel is None:
            return
        said = received(self._channel)
        if said == b"":
            asyncio.get_running_loop().remove_reader(self._channel)
        elif said is not None:
            self.started = self.started or STARTED in said
            self.passing = PASSING in said
            if self.started:
                self.settled.set()


def _pause(short: int) -> float:
    """Seconds before the next worker after so many that did not last."""
    return min(0.5 * 2.0 ** min(short, 10), _LONGEST_PAUSE) * random.uniform(0.5, 1)  # noqa: S311
