"""Files that are there as a whole or not at all, compressed as they are written."""

from __future__ import annotations

import contextlib
import gzip
import os
import tempfile
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast

from notifyq.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterator

_GZIP = 5


class Pending:
    """Files under temporary names beside their places, until all of them are complete."""

    def __init__(self, *, force: bool) -> None:
        self._force = force
        self._files: list[tuple[Path, Path]] = []

    def __enter__(self) -> Pending:
        return self

    def __exit__(self, *exc_info: object) -> None:
        for temporary, _ in self._files:
            temporary.unlink(missing_ok=True)

    def check(self, target: Path) -> None:
        """Refuse a place that is taken, before any work is done."""
        if target.is_dir():
            raise ConfigurationError(f"{target} is a folder: give --by day, or the name of a file")
        if target.exists() and not self._force:
            raise ConfigurationError(f"{target} exists: give --force to replace it")
        if not target.parent.is_dir():
            raise ConfigurationError(f"there is no folder {target.parent}")

    @contextlib.contextmanager
    def open(self, target: Path) -> Iterator[IO[bytes]]:
        """Write a file; it takes its place with the others."""
        self.check(target)
        handle, name = tempfile.mkstemp(prefix=".notifyq-", dir=target.parent)
        self._files.append((Path(name), target))
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())

    def drop_last(self) -> None:
        """Forget the file that was written last: it has no rows."""
        temporary, _ = self._files.pop()
        temporary.unlink(missing_ok=True)

    def publish(self) -> int:
        """Let all files take their places, and return how many bytes they have."""
        # As any other file that is made here: not only for its owner.
        mask = os.umask(0)
        os.umask(mask)
        size = 0
        while self._files:
            temporary, target = self._files[0]
            temporary.chmod(0o666 & ~mask)
            size += temporary.stat().st_size
            if self._force:
                temporary.replace(target)
            else:
                _take(temporary, target)
            self._files.pop(0)
            _sync(target.parent)
        return size


def _take(temporary: Path, target: Path) -> None:
    """Rename, but replace nothing that came meanwhile."""
    try:
        target.hardlink_to(temporary)
    except FileExistsError:
        raise ConfigurationError(f"{target} exists: give --force to replace it") from None
    except OSError:
        temporary.rename(target)  # a file system without links
    else:
        temporary.unlink()


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextlib.contextmanager
def compressed(file: IO[bytes], compression: str | None) -> Iterator[IO[bytes]]:
    """Write into a file through gzip or Zstandard."""
    if compression is None:
        yield file
    elif compression == "gz":
        # Without a name and a time: the same rows are the same bytes.
        with gzip.GzipFile("", "wb", _GZIP, file, mtime=0) as stream:
            yield cast("IO[bytes]", stream)
    else:
        with pyarrow().CompressedOutputStream(file, "zstd") as stream:
            yield stream


def pyarrow() -> Any:
    """The package that writes Parquet and Zstandard."""
    try:
        import pyarrow as package
    except ModuleNotFoundError:
        raise ConfigurationError(
            "pyarrow is missing, this needs more packages: pip install 'notifyq[archive]'"
        ) from None
    return package
