"""Faults of the machine: wrong clocks and full disks."""

from __future__ import annotations

import asyncio
import ctypes
import errno
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from notifyq.chaos.faults.base import Fault
from notifyq.chaos.history import Call, ChaosError
from notifyq.chaos.kinds import payload
from notifyq.chaos.load import FAILURES, send
from notifyq.chaos.server import until
from notifyq.queues.publisher import Publisher

if TYPE_CHECKING:
    from notifyq.chaos.rig import Rig


_SETTLES = 1.1
"""Seconds until all processes see a step: they read the file once a second."""
_MEMORY = Path("/dev/shm")  # noqa: S108  POSIX shared memory of Linux


def library() -> Path | None:
    """Return libfaketime for programs with threads, if it is installed."""
    folders = ("lib*/faketime", "lib*/*/faketime", "local/lib/faketime")
    found = (it for at in folders for it in Path("/usr").glob(f"{at}/libfaketimeMT.so.1"))
    return next(found, None) if sys.platform == "linux" else None


class Clock:
    """The clock of all processes started with `environment`; correct until it is stepped.

    Only the wall clock is faked: monotonic time and file times stay correct.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._semaphore = f"{file.name}-semaphore"
        self.environment = {
            "LD_PRELOAD": str(library() or ""),
            "FAKETIME_TIMESTAMP_FILE": str(file),
            "FAKETIME_CACHE_DURATION": "0",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            # Else the library changes monotonic deadlines, and threads wait too long.
            "FAKETIME_FORCE_MONOTONIC_FIX": "0",
            "NO_FAKE_STAT": "1",
            # Else each process makes its own, which it cannot open after giving up root, and which
            # a kill -9 leaves behind.
            "FAKETIME_SHARED": f"/{self._semaphore} /{file.name}",
        }

    def make(self) -> None:
        """Make the files of a correct clock."""
        self.step(0)
        memory = _MEMORY / self._file.name
        memory.write_bytes(bytes(4096))
        memory.chmod(0o666)
        sem_open = ctypes.CDLL(None).sem_open
        sem_open.restype = ctypes.c_void_p
        if not sem_open(f"/{self._semaphore}".encode(), os.O_CREAT, 0o666, 1):
            raise OSError("sem_open failed: no semaphore for libfaketime")
        (_MEMORY / f"sem.{self._semaphore}").chmod(0o666)

    def step(self, seconds: float) -> None:
        """Set the clock so many seconds after the machine's; negative: behind it."""
        partial = self._file.with_name(f"{self._file.name}.partial")
        partial.write_text(f"{seconds:+.0f}\n")
        partial.chmod(0o644)  # the server runs as another user
        os.replace(partial, self._file)  # noqa: PTH105  atomic: a process may be reading it

    def remove(self) -> None:
        """Delete the files; running processes keep the last step that they saw."""
        for name in (self._file.name, f"sem.{self._semaphore}"):
            (_MEMORY / name).unlink(missing_ok=True)
        self._file.unlink(missing_ok=True)


_CLOCK = Clock(Path(tempfile.gettempdir()) / f"notifyq-chaos-clock-{os.getpid()}")


class _Clocked(Fault):
    """A fault of a clock; it needs a new cluster, because the clock is in its environment."""

    own_server = True

    def lacking(self) -> str | None:
        return None if library() else "needs libfaketime (Debian: apt install faketime)"

    def prepare(self, folder: Path) -> None:
        _CLOCK.make()

    def clean_up(self) -> None:
        _CLOCK.remove()

    async def step(self, rig: Rig, seconds: float) -> None:
        """Step the clock, and wait until all see it."""
        # The checker must know: instants of the database may occur twice.
        call = rig.history.invoke("clock" if self.environment else "worker clock", seconds=seconds)
        _CLOCK.step(seconds)
        await asyncio.sleep(_SETTLES)
        call.ok()


class ClockWorker(_Clocked):
    """The workers' clocks jump by an hour, forward and back."""

    name = "clock-worker"
    worker_settings = _CLOCK.environment
    # Kinds that never outlive their lock and need one attempt only.
    mix = {"quick": 4, "slow": 1, "reject": 1}

    async def inject(self, rig: Rig) -> None:
        with rig.injecting(self.name):
            for _ in rig.rounds():
                await self.step(rig, rig.random.choice((-3600, 0, 3600)))
            await self.step(rig, 0)

    async def conclude(self, rig: Rig, history: Sequence[Call]) -> None:
        again = sum(call.op == "execute" and call.fields["attempts"] > 1 for call in history)
        rig.figure("early expiries", again, most=0)


class ClockServer(_Clocked):
    """The server's clock is set back by 5 minutes, and later corrected."""

    name = "clock-server"
    environment = _CLOCK.environment

    async def inject(self, rig: Rig) -> None:
        with rig.injecting(self.name):
            await self.step(rig, -300)
            # Its messages must be claimed again, at the latest after the clock is correct.
            rig.kill_worker()
            await rig.pause(rig.seconds)
            await self.step(rig, 0)


_MEGABYTES = 256
_TEXT = 200_000
"""Bytes of text in a message; random, because TOAST compresses."""


class SmallDisk:
    """A tmpfs of so many megabytes over an empty folder, whose owner and permissions it gets."""

    def __init__(self, folder: Path, megabytes: int) -> None:
        self._folder = folder
        self._ballast = folder / "ballast"
        was = folder.stat()
        options = f"size={megabytes}m,mode={was.st_mode & 0o7777:o},uid={was.st_uid}"
        _run("mount", "-t", "tmpfs", "-o", f"{options},gid={was.st_gid}", "tmpfs", folder)

    def unmount(self) -> None:
        """Unmount it if it is mounted, also while files on it are open; its contents are gone."""
        if self._folder.is_mount():
            _run("umount", "--lazy", self._folder)

    def fill(self) -> None:
        """Fill all free space."""
        with self._ballast.open("ab", buffering=0) as ballast:
            try:
                while True:
                    ballast.write(bytes(64 * 1024))
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise

    def relieve(self) -> None:
        """Free what `fill()` took."""
        self._ballast.unlink(missing_ok=True)


def _run(*command: str | Path) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    if done.returncode:
        raise OSError(done.stderr.strip() or f"{command[0]}: exit code {done.returncode}")


@cache
def lacking() -> str | None:
    """Return why this process cannot mount a file system; None if it can."""
    if not sys.platform.startswith("linux"):
        return "needs Linux"
    if os.geteuid() != 0:
        return "needs root, to mount a small disk"
    with tempfile.TemporaryDirectory(prefix="notifyq-chaos-") as folder:
        try:
            SmallDisk(Path(folder), 1).unmount()
        except OSError as error:
            return f"cannot mount a small disk: {error}"
    return None


class DiskFull(Fault):
    """The disk of the data directory is full, and later has space again."""

    name = "disk-full"
    own_server = True
    settings = {"min_wal_size": "32MB", "max_wal_size": "64MB"}
    _disk: SmallDisk | None = None

    def lacking(self) -> str | None:
        return lacking()

    def prepare(self, folder: Path) -> None:
        self._disk = SmallDisk(folder, _MEGABYTES)

    def clean_up(self) -> None:
        if self._disk is not None:
            self._disk.unmount()

    async def inject(self, rig: Rig) -> None:
        disk = await self._find_disk(rig)
        async with rig.publisher() as publisher:
            with rig.injecting(self.name, outage=True):
                await self._exhaust(rig, disk, publisher)
                for _ in rig.rounds():
                    disk.fill()
                    await rig.pause(0.2)
                disk.relieve()
                began = time.monotonic()
                try:
                    await rig.server.until_ready()
                except ChaosError:
                    # It stopped: recovery needs space, too.
                    await rig.server.start()
            await until(
                lambda: self._publish(rig, publisher), "a publication succeeds on the freed disk"
            )
            rig.figure("s to recover", time.monotonic() - began)
        rig.figure("refused as 53100", rig.server.logged("53100"))

    async def _find_disk(self, rig: Rig) -> SmallDisk:
        if self._disk is None:
            raise ChaosError(f"{rig.server.folder} is not on a small disk")
        return self._disk

    async def _exhaust(self, rig: Rig, disk: SmallDisk, publisher: Publisher) -> None:
        """Publish until the server refuses for lack of space."""

        async def is_full() -> bool:
            disk.fill()
            return not await self._write(rig, publisher)

        await until(is_full, "the disk is full for the server")

    async def _write(self, rig: Rig, publisher: Publisher) -> bool:
        return await self._publish(rig, publisher, text=rig.random.randbytes(_TEXT // 2).hex())

    async def _publish(self, rig: Rig, publisher: Publisher, **fields: str) -> bool:
        try:
            message = payload(rig.random, "quick") | fields
            await send(rig.history, publisher, "quick", [message])
        except FAILURES:
            return False
        return True


class WalFull(DiskFull):
    """The disk of the write-ahead log is full: the server crashes and cannot recover."""

    name = "wal-full"

    def prepare(self, folder: Path) -> None:
        """Mount nothing yet: the log exists once the cluster does."""

    async def _find_disk(self, rig: Rig) -> SmallDisk:
        """Move the log to a small disk."""
        log, target = rig.server.data / "pg_wal", rig.server.folder / "wal"
        owner = log.stat()
        target.mkdir(mode=0o700)
        os.chown(target, owner.st_uid, owner.st_gid)
        self._disk = SmallDisk(target, _MEGABYTES)
        with rig.injecting("server-restart"):
            await rig.server.stop()
            shutil.copytree(log, target, dirs_exist_ok=True)
            for path in target.rglob("*"):
                os.chown(path, owner.st_uid, owner.st_gid)
            shutil.rmtree(log)
            log.symlink_to(target)
            await rig.server.start()
        return self._disk

    async def _write(self, rig: Rig, publisher: Publisher) -> bool:
        """Switch the segment of the log, which needs another one."""
        if not await self._publish(rig, publisher):
            return False
        try:
            async with rig.connection() as owner:
                await owner.execute("select pg_switch_wal()")
        except FAILURES:
            return False
        return True
