"""The mark of a lake: a file in its folder that identifies the lake on each machine.

The same path may be another folder on an executor, or none. Files written there would be listed as
part of the lake, and the archive would be dropped though the lake lacks them.
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
    """The folder of a lake and the identity in its mark: what a task needs to find the lake."""

    path: str
    token: str

    def check(self) -> Path:
        """Return the folder; raise LakeError unless it has the mark of the lake on this machine."""
        folder = Path(self.path)
        found = read(folder)
        if found != self.token:
            seen = f"has no file {NAME}" if found is None else f"has {NAME} of another lake"
            raise LakeError(
                f"the lake {folder} is not visible on {socket.gethostname()}: the folder {seen} "
                f"there: {SHARED}"
            )
        return folder


def content(token: str) -> bytes:
    """Return the content of the mark of a lake."""
    return json.dumps({"format": FORMAT, "lake": token}).encode() + b"\n"


def read(folder: Path) -> str | None:
    """Return the identity of the lake in a folder; None: there is no mark."""
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
        raise LakeError(f"{folder} is a lake of format {form}: upgrade notifyq to read it")
    return str(token)
