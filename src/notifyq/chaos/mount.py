"""A small disk that a fault can fill."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import Self

_BLOCK = bytes(64 * 1024)


@cache
def lacking() -> str | None:
    """Return why this process cannot mount a file system; None if it can."""
    if not sys.platform.startswith("linux"):
        return "needs Linux"
    if os.geteuid() != 0:
        return "needs root, to mount a small disk"
    with tempfile.TemporaryDirectory(prefix="notifyq-chaos-") as folder:
        try:
            with SmallDisk(Path(folder), 1):
                pass
        except OSError as error:
            return f"cannot mount a small disk: {error}"
    return None


class SmallDisk:
    """A tmpfs of so many megabytes, mounted over an empty folder."""

    def __init__(self, folder: Path, megabytes: int) -> None:
        self._folder = folder
        self._size = megabytes
        self._ballast = folder / "ballast"

    def __enter__(self) -> Self:
        """Mount it."""
        self.mount()
        return self

    def __exit__(self, *_: object) -> None:
        """Unmount it, which deletes its contents."""
        self.unmount()

    def mount(self) -> None:
        """Mount it with the owner and the permissions of the folder."""
        was = self._folder.stat()
        options = f"size={self._size}m,mode={was.st_mode & 0o7777:o},uid={was.st_uid}"
        _run("mount", "-t", "tmpfs", "-o", f"{options},gid={was.st_gid}", "tmpfs", self._folder)

    def unmount(self) -> None:
        """Unmount it if it is mounted, also while files on it are open."""
        if self._folder.is_mount():
            _run("umount", "--lazy", self._folder)

    @property
    def free(self) -> int:
        """Bytes of free space."""
        found = os.statvfs(self._folder)
        return found.f_bavail * found.f_frsize

    def fill(self) -> None:
        """Fill all free space."""
        with self._ballast.open("ab", buffering=0) as ballast:
            try:
                while True:
                    ballast.write(_BLOCK)
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
