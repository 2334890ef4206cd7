"""Full disks."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import time
from typing import TYPE_CHECKING

from notifyq.chaos import mount
from notifyq.chaos.errors import ChaosError
from notifyq.chaos.faults.base import Fault
from notifyq.chaos.kinds import payload
from notifyq.chaos.load import FAILURES, send
from notifyq.queues.publisher import Publisher

if TYPE_CHECKING:
    from pathlib import Path

    from notifyq.chaos.rig import Rig

_MEGABYTES = 256
_TEXT = 200_000
"""Bytes of text in a message; random, because TOAST compresses."""


class DiskFull(Fault):
    """The disk of the data directory is full, and later has space again."""

    name = "disk-full"
    own_server = True
    settings = {"min_wal_size": "32MB", "max_wal_size": "64MB"}

    def __init__(self) -> None:
        self._disk: mount.SmallDisk | None = None

    def lacking(self) -> str | None:
        return mount.lacking()

    def prepare(self, folder: Path) -> None:
        self._mount(folder)

    def clean_up(self, folder: Path) -> None:
        if self._disk is not None:
            self._disk.unmount()

    async def inject(self, rig: Rig) -> None:
        disk = await self._find_disk(rig)
        async with rig.database() as database:
            publisher = Publisher(database)
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
            rig.figure("s to recover", await self._publish_again(rig, publisher, began))
        rig.figure("refused as 53100", rig.server.logged("53100"))
        rig.figure("crashes", _count(rig.server.log, "PANIC:"))

    def _mount(self, folder: Path) -> mount.SmallDisk:
        self._disk = mount.SmallDisk(folder, _MEGABYTES)
        self._disk.mount()
        return self._disk

    async def _find_disk(self, rig: Rig) -> mount.SmallDisk:
        if self._disk is None:
            raise ChaosError(f"{rig.server.folder} is not on a small disk")
        return self._disk

    async def _exhaust(self, rig: Rig, disk: mount.SmallDisk, publisher: Publisher) -> None:
        """Publish until the server refuses for lack of space."""
        give_up = time.monotonic() + 30
        while time.monotonic() < give_up:
            disk.fill()
            message = payload(rig.random, "quick")
            message["text"] = rig.random.randbytes(_TEXT // 2).hex()
            try:
                await send(rig.history, publisher, "quick", [message])
            except FAILURES:
                return
        rig.findings.append("the disk never became full for the server")

    async def _publish_again(self, rig: Rig, publisher: Publisher, began: float) -> float:
        give_up = began + 30
        while time.monotonic() < give_up:
            try:
                await send(rig.history, publisher, "quick", [payload(rig.random, "quick")])
            except FAILURES:
                await asyncio.sleep(0.05)
            else:
                break
        else:
            rig.findings.append("no publication succeeded after the disk was freed")
        return time.monotonic() - began


class WalFull(DiskFull):
    """The disk of the write-ahead log is full: the server crashes and cannot recover."""

    name = "wal-full"

    def prepare(self, folder: Path) -> None:
        """Mount nothing yet: the log exists once the cluster does."""

    async def _find_disk(self, rig: Rig) -> mount.SmallDisk:
        """Move the log to a small disk."""
        log, target = rig.server.data / "pg_wal", rig.server.folder / "wal"
        owner = log.stat()
        target.mkdir(mode=0o700)
        os.chown(target, owner.st_uid, owner.st_gid)
        disk = self._mount(target)
        with rig.injecting("server-restart"):
            await rig.server.stop()
            shutil.copytree(log, target, dirs_exist_ok=True)
            for path in target.rglob("*"):
                os.chown(path, owner.st_uid, owner.st_gid)
            shutil.rmtree(log)
            log.symlink_to(target)
            await rig.server.start()
        return disk

    async def _exhaust(self, rig: Rig, disk: mount.SmallDisk, publisher: Publisher) -> None:
        """Switch segments of the log until there is no space for another."""
        give_up = time.monotonic() + 30
        with contextlib.suppress(*FAILURES):
            while time.monotonic() < give_up:
                disk.fill()
                await send(rig.history, publisher, "quick", [payload(rig.random, "quick")])
                async with rig.connection() as owner:
                    await owner.execute("select pg_switch_wal()")
            rig.findings.append("the disk never became full for the server")


def _count(log: Path, marker: str) -> int:
    return log.read_text(encoding="utf-8", errors="replace").count(marker)
