"""Full disks."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
import tempfile
import time
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from notifyq.chaos.faults.base import Fault
from notifyq.chaos.history import ChaosError
from notifyq.chaos.kinds import payload
from notifyq.chaos.load import FAILURES, send

if TYPE_CHECKING:
    from notifyq.chaos.rig import Rig
    from notifyq.queues.publisher import Publisher

_MEGABYTES = 256
_TEXT = 200_000
"""Bytes of text in a message; random, because TOAST compresses."""
_PATIENCE = 30.0
"""Seconds until the disk must be full."""


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
            await rig.until(
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
        give_up = time.monotonic() + _PATIENCE
        while time.monotonic() < give_up:
            disk.fill()
            if not await self._write(rig, publisher):
                return
        rig.findings.append("the disk never became full for the server")

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
