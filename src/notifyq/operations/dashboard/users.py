"""The users of the dashboard and their passwords."""

from __future__ import annotations

import logging
import os
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from notifyq.errors import ConfigurationError

log = logging.getLogger("notifyq.dashboard")

MISSING = "the dashboard needs more packages: pip install 'notifyq[dashboard]'"


@dataclass(frozen=True, slots=True)
class User:
    """A user of the dashboard."""

    name: str
    may_write: bool = True


def hash_password(password: str) -> str:
    """A salted Argon2id hash of a password, for the file of users."""
    return str(_argon2().PasswordHasher().hash(password))


def verify_password(password: str, hashed: str) -> bool:
    """Whether this is the password, compared in constant time."""
    argon2 = _argon2()
    try:
        return bool(argon2.PasswordHasher().verify(hashed, password))
    except (argon2.exceptions.VerificationError, argon2.exceptions.InvalidHashError):
        return False


def _is_hash(text: str) -> bool:
    argon2 = _argon2()
    try:
        return text.isascii() and argon2.extract_parameters(text).type is argon2.Type.ID
    except argon2.exceptions.InvalidHashError:
        return False


def _argon2() -> Any:
    try:
        import argon2
    except ImportError as error:
        raise ConfigurationError(MISSING) from error
    return argon2


class Users:
    """The users of a dashboard and their passwords, read again when their file changes."""

    def __init__(self, users: Mapping[User, str]) -> None:
        self._hashes = {user.name: hashed for user, hashed in users.items()}
        self._users = {user.name: user for user in users}
        self._credentials = self._hashes
        self._read: Callable[[], Users] | None = None
        self._path = Path()
        self._version: object = None

    @classmethod
    def of_password(cls, password: str, name: str = "operator") -> Users:
        """One user with this password."""
        if not password:
            raise ConfigurationError("the password of the dashboard is empty")
        users = cls({User(name): hash_password(password)})
        # Hashes differ between processes; sessions must be valid in all that share a secret.
        users._credentials = {name: password}
        return users

    @classmethod
    def of_password_file(cls, path: Path) -> Users:
        """One user whose password is in a file."""
        return cls._of_path(
            path, lambda: cls.of_password(_text("--password-file", path).strip("\r\n"))
        )

    @classmethod
    def of_file(cls, path: Path) -> Users:
        """Users of a file with NAME:ROLE:HASH lines; `notifyq dashboard --add-user` writes it."""
        return cls._of_path(path, lambda: cls._of_lines(path))

    @classmethod
    def _of_path(cls, path: Path, read: Callable[[], Users]) -> Users:
        version = _version(path)
        return read().following(path, version, read)

    def following(self, path: Path, version: object, read: Callable[[], Users]) -> Users:
        """These users, read again whenever their file has another version."""
        self._path, self._version, self._read = path, version, read
        return self

    def _refresh(self) -> None:
        """Read the file again if it has changed: old passwords must stop working."""
        if self._read is None or (version := _version(self._path)) == self._version:
            return
        self._version = version
        try:
            found = self._read()
        except ConfigurationError as error:
            log.error("nobody can log in until this error is fixed: %s", error)  # noqa: TRY400
            found = Users({})
        self._hashes, self._users = found._hashes, found._users
        self._credentials = found._credentials

    @classmethod
    def _of_lines(cls, path: Path) -> Users:
        users: dict[User, str] = {}
        for number, line in enumerate(_text("--auth-file", path).splitlines(), 1):
            if not line.strip() or line.startswith("#"):
                continue
            name, role, hashed = [*line.strip().split(":", 2), "", ""][:3]
            if not name or role not in {"read", "write"} or not _is_hash(hashed):
                raise ConfigurationError(
                    f"--auth-file {path}, line {number} is not NAME:read:HASH or NAME:write:HASH: "
                    "`notifyq dashboard --auth-file FILE --add-user NAME` writes it"
                )
            users[User(name, role == "write")] = hashed
        if not users:
            raise ConfigurationError(
                f"--auth-file {path} has no users: add one with --add-user NAME"
            )
        return cls(users)

    def find(self, name: str | None) -> User | None:
        """The user with this name, if it still exists."""
        self._refresh()
        return self._users.get(name or "")

    def credential(self, name: str) -> str | None:
        """A value that changes with the password of a user; None without such a user."""
        self._refresh()
        return self._credentials.get(name)

    @property
    def only(self) -> str | None:
        """The name of the only user, who does not have to type it."""
        return next(iter(self._users)) if len(self._users) == 1 else None

    def check(self, name: str, password: str) -> User | None:
        """The user, if the password is right; takes as long for unknown users."""
        self._refresh()
        # Of an unknown user it is compared with the password of another one.
        hashed = self._hashes.get(name) or next(iter(self._hashes.values()), "")
        is_right = verify_password(password, hashed)
        return self._users.get(name) if is_right else None


def write_user(path: Path, user: User, password: str) -> None:
    """Add a user to a file, or change the password; only the owner may read the file."""
    if not user.name or not user.name.isprintable() or ":" in user.name or len(user.name) > 100:
        raise ConfigurationError(f"{user.name!r} is not a valid user name")
    if len(password) < 8:
        raise ConfigurationError("a password must have 8 characters or more")
    kept: list[str] = []
    if path.exists():
        lines = _text("--auth-file", path).splitlines()
        kept = [line for line in lines if line.partition(":")[0] != user.name]
    role = "write" if user.may_write else "read"
    text = "\n".join([*kept, f"{user.name}:{role}:{hash_password(password)}", ""])
    # Replaced atomically: a running dashboard reads the old or the new file.
    beside = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    handle = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(text)
    beside.replace(path)


def _text(option: str, path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise ConfigurationError(f"{option} {path} is not text in UTF-8") from None
    except OSError as error:
        raise ConfigurationError(f"{option} {path}: {error.strerror}") from error


def _version(path: Path) -> object:
    """A value that changes with the contents of a file."""
    try:
        status = path.stat()
    except OSError as error:
        return error.errno
    return status.st_ino, status.st_mtime_ns, status.st_size
