"""The mark of a lake: a file in its folder that identifies the lake on each machine.

The same path may be another folder on an executor, or none. Files written there would be listed as
part of the lake, and the archive would be dropped though the lake lacks them.
"""

from __future__ import annotations

import json
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING

from notifyq.errors import LakeError

if TYPE_CHECKING:
    from notifyq.spark.lake.storage import Storage

NAME = "_notifyq.json"
FORMAT = 1
SHARED = "the driver and every executor must have the same folder there"


@dataclass(frozen=True, slots=True)
class Root:
    """Where a lake is and the identity in its mark: what a task needs to find the lake."""

    storage: Storage
    token: str

    def check(self) -> Storage:
        """Return the storage; raise LakeError unless it has the mark of the lake here."""
        # A folder may be unmounted at any time, a URI means the same everywhere.
        if self.storage.is_local or self not in _seen:
            self._check()
            _seen.add(self)
        return self.storage

    def _check(self) -> None:
        found = read(self.storage)
        if found == self.token:
            return
        seen = f"has no file {NAME}" if found is None else f"has {NAME} of another lake"
        raise LakeError(
            f"the lake {self.storage.location} is not visible on {socket.gethostname()}: the "
            f"folder {seen} there: {SHARED}"
        )


_seen: set[Root] = set()


def content(token: str) -> bytes:
    """Return the content of the mark of a lake."""
    return json.dumps({"format": FORMAT, "lake": token}).encode() + b"\n"


def read(storage: Storage) -> str | None:
    """Return the identity of the lake in a storage; None: there is no mark."""
    text = storage.read(NAME)
    if text is None:
        return None
    try:
        mark = json.loads(text)
        form, token = mark["format"], mark["lake"]
    except (ValueError, TypeError, KeyError):
        raise LakeError(f"{storage.name(NAME)} is damaged: restore it from a backup") from None
    if form != FORMAT:
        raise LakeError(
            f"{storage.location} is a lake of format {form}: upgrade notifyq to read it"
        )
    return str(token)
