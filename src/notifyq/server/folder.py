"""The directory of one server: its owner, locks and files."""

from __future__ import annotations

import json
import os
import pwd
import secrets
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from notifyq.config import from_environment
from notifyq.errors import ServerError
from notifyq.server.launch import Account
from notifyq.server.locks import locked, takes

_SERVER_USERS = ("postgres", "nobody")


@dataclass(frozen=True, slots=True, kw_only=True)
class Starter:
    """The process that started the server."""

    pid: int
    detached: bool
    version: str

    @property
    def alive(self) -> bool:
        """Whether the process still runs; a zombie does not."""
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            return True
        try:
            after_name = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2]
        except OSError:
            return True
        return not after_name.lstrip().startswith("Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """A running server, by its files."""

    pid: int
    port: int
    starter: Starter


def home() -> Path:
    """Return the directory of the persistent development server."""
    if chosen := from_environment("NOTIFYQ_HOME"):
        return Path(chosen).expanduser().absolute()
    if os.geteuid() == 0:
        return Path("/var/lib/notifyq")
    if sys.platform == "darwin":
        return Path.home() / "Library/Application Support/notifyq"
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local/share") / "notifyq"


class Folder:
    """The directory of a server."""

    def __init__(self, path: Path) -> None:
        self.path = path.expanduser().absolute()
        self.data = self.path / "data"
        self.log = self.path / "log"
        self.secret = self.path / "secret"  # the password, readable for the server that is created
        self._password = self.path / "password"
        self._starter = self.path / "starter.json"
        self._port = self.path / "port"
        self._turn = self.path / "turn.lock"
        self._alive = self.path / "alive.lock"

    def claim(self) -> None:
        """Create the directory, or check that it is of a server and of this user."""
        try:
            self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._require_own()
            if any(self.path.iterdir()) and not self._turn.exists():
                raise ServerError(
                    f"{self.path} is not empty and holds no notifyq server: "
                    "set NOTIFYQ_HOME to a new directory"
                )
            self._turn.touch(mode=0o600)
            # A server started by root runs as another user, which must enter the directory; the
            # files inside have permissions of their own.
            self.path.chmod(0o711 if os.geteuid() == 0 else 0o700)
        except OSError as error:
            raise ServerError(
                f"cannot use {self.path} ({error.strerror}): "
                "set NOTIFYQ_HOME to a directory you can write to"
            ) from error

    @property
    def exists(self) -> bool:
        """Whether a server was ever started here."""
        if not os.path.exists(self.path):  # noqa: PTH110  Path.exists raises in a closed parent
            return False
        self._require_own()
        return self._turn.exists()

    def account(self) -> Account | None:
        """Return the user that the server runs as if root starts it; None for other users."""
        if os.geteuid() != 0:
            return None
        # Existing data have an owner; without data try these users in order.
        wanted = [self.data.stat().st_uid] if self.data.exists() else _SERVER_USERS
        for user in wanted:
            with suppress(KeyError):
                entry = pwd.getpwuid(user) if isinstance(user, int) else pwd.getpwnam(user)
                return Account(entry.pw_name, entry.pw_uid, entry.pw_gid)
        raise ServerError(
            f"PostgreSQL does not run as root, and there is no user for {self.data}: "
            "start it as an ordinary user, or set NOTIFYQ_DSN"
        )

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Keep every other process from starting, stopping or inspecting the server."""
        with locked(self._turn):
            yield

    @contextmanager
    def occupied(self) -> Iterator[int]:
        """Yield a descriptor for server processes to inherit.

        The directory is in use while one of them has it open. A process id proves less: another
        process may get the same one.
        """
        handle = os.open(self._alive, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            if not takes(handle):
                raise ServerError(f"a server still runs in {self.path}: try again later")
            yield handle
        finally:
            os.close(handle)

    @property
    def in_use(self) -> bool:
        """Whether any server process runs; call it within `turn()` only."""
        handle = os.open(self._alive, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            return not takes(handle)
        finally:
            os.close(handle)

    def postmaster(self) -> tuple[int, int, bool] | None:
        """Return process id, port and readiness from postmaster.pid."""
        try:
            lines = (self.data / "postmaster.pid").read_text().splitlines()
            return int(lines[0]), int(lines[3]), lines[7].strip() == "ready"
        except (OSError, IndexError, ValueError):
            return None  # absent, or being written

    def state(self) -> State | None:
        """Describe the running server; call it within `turn()` only."""
        found = self.postmaster()
        starter = self.starter()
        if found is None or starter is None or not found[2] or not self.in_use:
            return None
        return State(pid=found[0], port=found[1], starter=starter)

    def starter(self) -> Starter | None:
        """Return the last process that started the server."""
        try:
            return Starter(**json.loads(self._starter.read_text()))
        except (OSError, ValueError, TypeError):
            return None

    @property
    def port(self) -> int:
        """The port of the last start, to keep DSNs valid; 0: none."""
        try:
            return int(self._port.read_text())
        except (OSError, ValueError):
            return 0

    def remember_port(self, port: int) -> None:
        """Store the port for the next start."""
        write_private(self._port, str(port))

    def remember(self, starter: Starter) -> None:
        """Store the process that starts the server now."""
        write_private(self._starter, json.dumps(asdict(starter)))

    def new_password(self) -> str:
        """Make and store the password of a new server."""
        password = secrets.token_urlsafe(24)
        write_private(self._password, password)
        return password

    def password(self) -> str:
        """Return the password of the server."""
        try:
            return self._password.read_text()
        except OSError as error:
            raise ServerError(
                f"cannot read {self._password} ({error.strerror}): "
                "`notifyq server stop --delete` deletes the server"
            ) from error

    def _require_own(self) -> None:
        owner = self.path.stat().st_uid
        if owner != os.geteuid():
            raise ServerError(
                f"{self.path} belongs to user {_user_name(owner)}: "
                "set NOTIFYQ_HOME to a directory of your own"
            )

    def empty(self) -> None:
        """Delete the server's data, but not the locks: another process may wait for them."""
        for tree in (self.data, self.path / "data.new"):
            shutil.rmtree(tree, ignore_errors=True)
        for file in (self.log, self._password, self._starter, self.secret, self._port):
            file.unlink(missing_ok=True)


def write_private(path: Path, text: str, account: Account | None = None) -> None:
    """Replace a file by one that only its owner can read."""
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        if account:
            os.fchown(file.fileno(), account.uid, account.gid)
        file.write(text)


def _user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
