"""Makes a data directory with one empty database."""

from __future__ import annotations

import os
import shutil
import subprocess
from typing import TYPE_CHECKING

from notifyq.errors import ServerError
from notifyq.server.binaries import clean_environment
from notifyq.server.folder import write_private
from notifyq.server.launch import Tie, launcher

if TYPE_CHECKING:
    from pathlib import Path

    from notifyq.server.folder import Folder


def create(folder: Folder, binaries: Path, database: str, *, durable: bool) -> None:
    """Make the data directory under another name first, so that half of one is never started."""
    account = folder.account()
    fresh = folder.path / "data.new"
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(mode=0o700)
    if account:
        os.chown(fresh, account.uid, account.gid)
    write_private(folder.secret, folder.new_password(), account)
    auth = ["--username=postgres", "--auth=scram-sha-256", f"--pwfile={folder.secret}"]
    shape = ["--encoding=UTF8", "--locale=C", "--no-sync", f"--pgdata={fresh}"]
    try:
        _run(folder, [binaries / "initdb", *auth, *shape])
    finally:
        folder.secret.unlink()
    name = database.replace('"', '""')
    _run(
        folder,
        [binaries / "postgres", "--single", "-D", fresh, "-c", "fsync=off", "postgres"],
        f'create database "{name}"\n',
    )
    if durable:
        os.sync()  # once for all, where initdb would do it file by file
    fresh.rename(folder.data)


def _run(folder: Folder, command: list[str | Path], text: str = "") -> None:
    with folder.occupied() as alive:
        result = subprocess.run(  # noqa: S603  the command is our own
            launcher(Tie.thread, folder.account(), command),
            input=text,
            capture_output=True,
            text=True,
            check=False,
            cwd=folder.path,
            env=clean_environment(),
            pass_fds=[alive],
            start_new_session=True,
        )
    # A single-user server reports an error and then ends as if nothing had happened.
    complaints = [line for line in result.stderr.splitlines() if "ERROR" in line]
    if result.returncode or complaints:
        reason = (complaints or result.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise ServerError(f"cannot create a server in {folder.path}: {reason}")
