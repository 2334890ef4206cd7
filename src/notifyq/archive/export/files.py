"""Write files completely or not at all, with compression."""

from __future__ import annotations

import contextlib
import gzip
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, cast

from notifyq.errors import ConfigurationError
from notifyq.paths import sync_folder

_GZIP = 5


class Pending:
    """Files under temporary names beside their targets, until all of them are complete."""

    def __init__(self, *, force: bool) -> None:
        self._force = force
        self._files: list[tuple[Path, Path]] = []

    def __enter__(self) -> Pending:
        return self

    def __exit__(self, *exc_info: object) -> None:
        for temporary, _ in self._files:
            temporary.unlink(missing_ok=True)

    def check(self, target: Path) -> None:
        """Raise where a file cannot be written or exists, before any work is done."""
        if target.is_dir():
            raise ConfigurationError(f"{target} is a folder: give --by day, or the name of a file")
        if target.exists() and not self._force:
            raise ConfigurationError(f"{target} exists: give --force to replace it")
        if not target.parent.is_dir():
            raise ConfigurationError(f"there is no folder {target.parent}")

    @contextlib.contextmanager
    def open(self, target: Path) -> Iterator[IO[bytes]]:
        """Write a file; `publish` gives it its name."""
        self.check(target)
        handle, name = tempfile.mkstemp(prefix=".notifyq-", dir=target.parent)
        self._files.append((Path(name), target))
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())

    def drop_last(self) -> None:
        """Delete the file that was written last: it has no rows."""
        temporary, _ = self._files.pop()
        temporary.unlink(missing_ok=True)

    def publish(self) -> int:
        """Give all files their names, and return their size in bytes."""
        # The permissions of any new file; those of a temporary file are for its owner only.
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
                _rename(temporary, target)
            self._files.pop(0)
            sync_folder(target.parent)
        return size


def _rename(temporary: Path, target: Path) -> None:
    """Rename, without replacing a file that was created in the meantime."""
    try:
        target.hardlink_to(temporary)
    except FileExistsError:
        raise ConfigurationError(f"{target} exists: give --force to replace it") from None
    except OSError:
        temporary.rename(target)  # a file system without links
    else:
        temporary.unlink()


@contextlib.contextmanager
def compressed(file: IO[bytes], compression: str | None) -> Iterator[IO[bytes]]:
    """Write into a file through gzip or Zstandard."""
    if compression is None:
        yield file
    elif compression == "gz":
        # Without name and time, so that the same rows give the same bytes.
        with gzip.GzipFile("", "wb", _GZIP, file, mtime=0) as stream:
            yield cast("IO[bytes]", stream)
    else:
        with pyarrow().CompressedOutputStream(file, "zstd") as stream:
            yield stream


def pyarrow() -> Any:
    """Import the package that writes Parquet and Zstandard."""
    try:
        import pyarrow as package
    except ModuleNotFoundError:
        raise ConfigurationError(
            "pyarrow is missing, this needs more packages: pip install 'notifyq[archive]'"
        ) from None
    return package
