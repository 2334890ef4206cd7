"""The mark of a lake: the file in its folder by which each machine knows that it sees the lake.

A path says little. Where an executor has another folder there, or none, its files would be part of
the lake in the list and nowhere else, and the archive would be dropped for them.
"""

from __future__ import annotations

import json
import socket
from dataclasses import dataclass
from pathlib import Path

from notifyq.errors import LakeError

NAME = "_notifyq.json"
FORMAT = 1
SHARED = "the driver and every executor must have the same folder there"


@dataclass(frozen=True, slots=True)
class Root:
    """The folder of a lake and the identity in its mark: what a task gets to know of the lake."""

    path: str
    token: str

    def check(self) -> Path:
        """Return the folder; raise LakeError unless this machine sees the lake in it."""
        folder = Path(self.path)
        found = read(folder)
        if found != self.token:
            seen = "no file" if found is None else "that of another lake:"
            raise LakeError(
                f"the lake {folder} is not seen on {socket.gethostname()}, which has {seen} "
                f"{NAME} there: {SHARED}"
            )
        return folder


def content(token: str) -> bytes:
    """Return what the mark of a lake has in it."""
    return json.dumps({"format": FORMAT, "lake": token}).encode() + b"\n"


def read(folder: Path) -> str | None:
    """Return the identity of the lake in a folder; None if there is no mark."""
    path = folder / NAME
    try:
        mark = json.loads(path.read_bytes())
        form, token = mark["format"], mark["lake"]
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise LakeError(
            f"{path} cannot be read on {socket.gethostname()}: {error.strerror}"
        ) from None
    except (ValueError, TypeError, KeyError):
        raise LakeError(f"{path} is damaged: restore it from a backup") from None
    if form != FORMAT:
        raise LakeError(f"{folder} is a lake of format {form}, which a later notifyq can read")
    return str(token)
