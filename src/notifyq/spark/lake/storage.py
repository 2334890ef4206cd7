"""Files of a lake, in a local folder or in a store behind a URI.

Names are relative to the lake. Data files have random names and are never written twice. Whether a
file is part of a lake is decided by PostgreSQL only: a failed write may leave one that nobody
lists.
"""

from __future__ import annotations

import functools
import hashlib
import io
import os
import secrets
from abc import ABC, abstractmethod
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from socket import gethostname
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import pyarrow as pa
import pyarrow.fs

from notifyq.errors import LakeError
from notifyq.paths import lake_location, sync_folder
from notifyq.spark.lake import stores

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

DATA = "part-"
"""Data files are named so."""


@dataclass(frozen=True)
class Storage(ABC):
    """Where a lake is. It is picklable. Its repr has no options: some are credentials."""

    location: str
    """An absolute path or a URI, as PostgreSQL lists it."""
    options: tuple[tuple[str, str], ...] = field(default=(), repr=False)

    @property
    @abstractmethod
    def filesystem(self) -> Any:
        """The file system of pyarrow."""

    @abstractmethod
    def key(self, name: str) -> str:
        """Return the path of a file in the file system of pyarrow."""

    @abstractmethod
    def create(self, name: str) -> Output:
        """Create a new file, with its folder."""

    @abstractmethod
    def sizes(self, names: Sequence[str]) -> dict[str, int | str]:
        """Return the size of each file in bytes, or why it cannot be read."""

    @abstractmethod
    def read(self, name: str) -> bytes | None:
        """Return the content of a small file; None: there is none."""

    @abstractmethod
    def write(self, name: str, content: bytes) -> None:
        """Write a small file atomically."""

    @abstractmethod
    def is_empty(self) -> bool:
        """Return whether there is nothing; what the lake would be in must exist in a store."""

    @abstractmethod
    def tables(self) -> list[str]:
        """Return the names of the folders in the lake."""

    @abstractmethod
    def data(self, table: str) -> list[tuple[str, float]]:
        """Return names of data files and when they were last modified, in seconds of Unix time."""

    @abstractmethod
    def delete(self, name: str) -> bool:
        """Delete a file; return whether there was one."""

    @property
    def is_local(self) -> bool:
        """Whether other machines may have another folder at the same place."""
        return not stores.scheme_of(self.location)

    @property
    def delta_options(self) -> dict[str, str] | None:
        """The options of deltalake."""
        return stores.for_delta(self.location, dict(self.options)) or None

    @property
    def iceberg_options(self) -> dict[str, str]:
        """The options of pyiceberg."""
        return stores.for_iceberg(self.location, dict(self.options))

    def name(self, name: str) -> str:
        """Return the whole name of a file or folder, for texts and other libraries."""
        return f"{self.location.rstrip('/')}/{name}"

    def open(self, name: str) -> Any:
        """Open a file to read it from any place."""
        return self.filesystem.open_input_file(self.key(name))

    @contextmanager
    def writing(self, name: str) -> Iterator[None]:
        """Raise errors of the file system as LakeError that names a file or folder."""
        try:
            yield
        except (OSError, pa.ArrowException) as error:
            raise LakeError(
                f"{self.name(name)} cannot be written: {stores.reason(error)}"
            ) from None

    @contextmanager
    def reading(self, name: str) -> Iterator[None]:
        """Raise errors of the file system as LakeError that names a file or folder."""
        try:
            yield
        except FileNotFoundError:
            raise LakeError(f"{self.name(name)} cannot be read: there is no such file") from None
        except (OSError, pa.ArrowException) as error:
            raise LakeError(f"{self.name(name)} cannot be read: {stores.reason(error)}") from None


class Sink(Protocol):
    """Where the bytes of a new file go."""

    def write(self, data: memoryview) -> None:
        """Write all bytes."""

    def close(self) -> None:
        """Complete the file: it is there, also after a power failure."""

    def discard(self) -> None:
        """Delete what was written."""


class Output(io.RawIOBase):
    """A new file that computes size and checksum of all bytes written."""

    def __init__(self, sink: Sink) -> None:
        super().__init__()
        self._sink = sink
        self._digest = hashlib.sha256()
        self.size = 0

    @property
    def checksum(self) -> str:
        """SHA-256 of the bytes written."""
        return self._digest.hexdigest()

    def writable(self) -> bool:
        """Return true."""
        return True

    def write(self, data: Any) -> int:
        """Write all bytes."""
        view = memoryview(data)
        if not self.closed:  # else it was discarded, and Arrow flushes its buffer
            self._digest.update(view)
            self._sink.write(view)
            self.size += len(view)
        return len(view)

    def close(self) -> None:
        """Complete the file."""
        if not self.closed:
            super().close()
            self._sink.close()

    def discard(self) -> None:
        """Delete what was written."""
        super().close()
        self._sink.discard()


Location: TypeAlias = str | os.PathLike[str] | Storage
"""A local folder or a URI, whose options the environment has, or both in a Storage."""


def storage_at(location: Location, options: Mapping[str, str] | None = None) -> Storage:
    """Return the storage of a lake: a location and the options of its store; nothing is opened.

    Options that are not given are taken from the environment. Raises ConfigurationError for a URI
    of another scheme, and for wrong options.
    """
    if isinstance(location, Storage):
        return location
    found = lake_location(location)
    settled = tuple(sorted(stores.resolved(found, options).items()))
    return (RemoteStorage if stores.scheme_of(found) else LocalStorage)(found, settled)


class LocalStorage(Storage):
    """A folder of this machine: what is written is on its disk before it counts."""

    @property
    def filesystem(self) -> Any:
        """The file system of pyarrow."""
        return pyarrow.fs.LocalFileSystem()

    def key(self, name: str) -> str:
        """Return the path of a file."""
        return str(Path(self.location) / name)

    def create(self, name: str) -> Output:
        """Create a new file, with its folder."""
        return Output(_LocalSink(Path(self.key(name))))

    def sizes(self, names: Sequence[str]) -> dict[str, int | str]:
        """Return the size of each file in bytes, or why it cannot be read."""
        return {name: self._size(name) for name in names}

    def _size(self, name: str) -> int | str:
        try:
            return Path(self.key(name)).stat().st_size
        except OSError as error:
            return f"cannot be read on {gethostname()}: {error.strerror}"

    def read(self, name: str) -> bytes | None:
        """Return the content of a small file; None: there is none."""
        path = Path(self.key(name))
        try:
            return path.read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise LakeError(f"{path} cannot be read on {gethostname()}: {error.strerror}") from None

    def write(self, name: str, content: bytes) -> None:
        """Write a small file atomically."""
        path = Path(self.key(name))
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
        try:
            with draft.open("xb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            draft.replace(path)
            sync_folder(path.parent)
        finally:
            draft.unlink(missing_ok=True)

    def is_empty(self) -> bool:
        """Return whether the folder is missing or empty."""
        root = Path(self.location)
        return not (root.exists() and any(root.iterdir()))

    def tables(self) -> list[str]:
        """Return the names of the folders in the lake."""
        return sorted(it.name for it in Path(self.location).iterdir() if it.is_dir())

    def data(self, table: str) -> list[tuple[str, float]]:
        """Return names of data files and when they were last modified, in seconds of Unix time."""
        root = Path(self.location)
        found = (root / table).rglob(f"{DATA}*.parquet")
        return [(it.relative_to(root).as_posix(), it.stat().st_mtime) for it in found]

    def delete(self, name: str) -> bool:
        """Delete a file; return whether there was one."""
        try:
            Path(self.key(name)).unlink()
        except FileNotFoundError:
            return False
        return True


class _LocalSink:
    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        self._file = io.FileIO(path, "xb")

    def write(self, data: memoryview) -> None:
        written = 0
        try:
            while written < len(data):
                written += self._file.write(data[written:]) or 0
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(self._path)) from None

    def close(self) -> None:
        with self._file:
            os.fsync(self._file.fileno())
        sync_folder(self._path.parent)

    def discard(self) -> None:
        self._file.close()
        self._path.unlink(missing_ok=True)


class RemoteStorage(Storage):
    """A store behind a URI: a file is there at once and whole when it is closed."""

    @property
    def filesystem(self) -> Any:
        """The file system of pyarrow, one for each process and set of options."""
        return _connected(self.location, self.options)

    @property
    def _root(self) -> str:
        # A container is a part of a path of pyarrow, a server or an account is not.
        scheme, _, rest = self.location.partition("://")
        container, _, path = rest.partition("/")
        if scheme == "hdfs":
            return f"/{path}"
        return "/".join(part for part in (container.partition("@")[0], path) if part)

    def key(self, name: str) -> str:
        """Return the path of a file in the file system of pyarrow."""
        return f"{self._root.rstrip('/')}/{name}" if name else self._root

    def create(self, name: str) -> Output:
        """Create a new file, with its folder."""
        return Output(_RemoteSink(self, name))

    def sizes(self, names: Sequence[str]) -> dict[str, int | str]:
        """Return the size of each file in bytes, or why it cannot be read.

        Days are listed: a request for each file would take minutes.
        """
        found: dict[str, int | str] = {}
        for folder in sorted({_day_of(name) for name in names}):
            wanted = [name for name in names if _day_of(name) == folder]
            try:
                there = {name: size for name, size, _ in self._listed(folder)}
            except (OSError, pa.ArrowException) as error:
                found |= dict.fromkeys(wanted, f"cannot be read: {stores.reason(error)}")
            else:
                found |= {name: there.get(name, "is not there") for name in wanted}
        return found

    def _listed(self, folder: str) -> list[tuple[str, int, float]]:
        """Return name, size and time of each file below a folder; there may be none."""
        wanted = pyarrow.fs.FileSelector(self.key(folder), recursive=True, allow_not_found=True)
        found = self.filesystem.get_file_info(wanted)
        above = len(self.key("x")) - 1
        return [
            (it.path[above:], it.size, it.mtime.timestamp() if it.mtime else 0.0)
            for it in found
            if it.type == pyarrow.fs.FileType.File
        ]

    def read(self, name: str) -> bytes | None:
        """Return the content of a small file; None: there is none."""
        with self.reading(name):
            try:
                with self.filesystem.open_input_stream(self.key(name)) as file:
                    return bytes(file.read())
            except FileNotFoundError:
                return None

    def write(self, name: str, content: bytes) -> None:
        """Write a small file atomically."""
        file = self.create(name)
        file.write(content)
        file.close()

    def is_empty(self) -> bool:
        """Return whether there is nothing; the bucket or container must exist."""
        container = self._root.partition("/")[0] or "/"
        with self.reading(""):
            found = self.filesystem.get_file_info(container)
            if found.type == pyarrow.fs.FileType.NotFound:
                raise LakeError(f"{self.location}: there is no bucket {container}")
            wanted = pyarrow.fs.FileSelector(self.key(""), allow_not_found=True)
            return not self.filesystem.get_file_info(wanted)

    def tables(self) -> list[str]:
        """Return the names of the folders in the lake."""
        wanted = pyarrow.fs.FileSelector(self.key(""))
        with self.reading(""):
            found = self.filesystem.get_file_info(wanted)
        return sorted(it.base_name for it in found if it.type == pyarrow.fs.FileType.Directory)

    def data(self, table: str) -> list[tuple[str, float]]:
        """Return names of data files and when they were last modified, in seconds of Unix time."""
        with self.reading(table):
            listed = self._listed(table)
        return [
            (name, modified)
            for name, _, modified in listed
            if name.rpartition("/")[2].startswith(DATA) and name.endswith(".parquet")
        ]

    def delete(self, name: str) -> bool:
        """Delete a file; return whether there was one."""
        try:
            self.filesystem.delete_file(self.key(name))
        except FileNotFoundError:
            return False
        except OSError as error:
            raise LakeError(
                f"{self.name(name)} cannot be deleted: {stores.reason(error)}"
            ) from None
        return True


def _day_of(name: str) -> str:
    """Return the folder of a table and day."""
    return "/".join(name.split("/")[:2]) if name.count("/") > 1 else name.rpartition("/")[0]


@functools.lru_cache(maxsize=16)
def _connected(location: str, options: tuple[tuple[str, str], ...]) -> Any:
    try:
        return stores.connected(location, dict(options))
    except (OSError, ValueError, pa.ArrowException) as error:
        raise LakeError(f"{location} cannot be reached: {stores.reason(error)}") from None


class _RemoteSink:
    def __init__(self, storage: RemoteStorage, name: str) -> None:
        self._storage, self._name = storage, name
        self._is_whole = True
        with storage.writing(name):
            self._stream = storage.filesystem.open_output_stream(storage.key(name))

    def write(self, data: memoryview) -> None:
        self._call(self._stream.write, data)

    def close(self) -> None:
        self._call(self._stream.close)

    def _call(self, call: Callable[..., object], *arguments: object) -> None:
        is_whole, self._is_whole = self._is_whole, False
        with self._storage.writing(self._name):
            call(*arguments)
        self._is_whole = is_whole

    def discard(self) -> None:
        # A store that has just failed would fail again, after the same wait: `tidy` deletes what it
        # may have.
        if self._is_whole:
            self.close()
            self._storage.delete(self._name)
