"""Who may enter the dashboard: users and their passwords, sessions, and how often one may try."""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import secrets
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from notifyq.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping

LIFE = 12 * 3600
"""Seconds after which one has to log in again."""

# What OWASP recommends for a login; about 0.1 s and 64 MB for each try.
_COST, _BLOCK, _PARALLEL = 2**16, 8, 1
_MEMORY = 128 * 1024 * 1024
_LONGEST = 1024
_MOST_ADDRESSES = 10_000
_MOST_ENDED = 10_000


@dataclass(frozen=True, slots=True)
class User:
    """One who may enter."""

    name: str
    may_write: bool = True


@dataclass(frozen=True, slots=True)
class Session:
    """What the cookie of a browser says, once its signature holds."""

    key: str
    user: str | None
    """None: nobody has logged in."""
    began_at: int


def hash_password(password: str, *, cost: int = _COST) -> str:
    """The text that stands for a password in a file: scrypt with a salt of its own."""
    salt = secrets.token_bytes(16)
    return f"scrypt${cost}${_b64(salt)}${_b64(_scrypt(password, salt, cost))}"


def verify_password(password: str, hashed: str) -> bool:
    """Whether this is the password, in a time that does not tell how much of it is right."""
    _, cost, salt, expected = hashed.split("$")
    found = _scrypt(password, _unb64(salt), int(cost))
    return hmac.compare_digest(found, _unb64(expected))


def _scrypt(password: str, salt: bytes, cost: int) -> bytes:
    return hashlib.scrypt(
        password[:_LONGEST].encode(), salt=salt, n=cost, r=_BLOCK, p=_PARALLEL, maxmem=_MEMORY
    )


class Users:
    """The users of a dashboard, and the key with which their sessions are signed."""

    def __init__(self, users: Mapping[User, str]) -> None:
        self._users = {user.name: (user, hashed) for user, hashed in users.items()}
        # Hashes have salts, so nobody who has not read the file can know the key; all processes
        # with the same file have the same, and a changed password ends all sessions.
        text = "\n".join(f"{name}:{hashed}" for name, (_, hashed) in sorted(self._users.items()))
        self.key = hashlib.sha256(b"notifyq dashboard sessions\n" + text.encode()).digest()
        # Of no password, and as dear to try as those of the users.
        cost = max(int(hashed.split("$")[1]) for hashed in users.values())
        parts = (_b64(secrets.token_bytes(size)) for size in (16, 64))
        self._nobody = "$".join(["scrypt", str(cost), *parts])

    @classmethod
    def of_password(cls, password: str, name: str = "operator") -> Users:
        """One user, whose password is given."""
        if not password:
            raise ConfigurationError("the password of the dashboard is empty")
        return cls({User(name): hash_password(password)})

    @classmethod
    def of_file(cls, path: Path) -> Users:
        """Read NAME:ROLE:HASH lines, as `notifyq dashboard --add-user` writes them."""
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except OSError as error:
            raise ConfigurationError(f"--auth-file {path}: {error.strerror}") from error
        users: dict[User, str] = {}
        for number, line in enumerate(lines, 1):
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
        """The user of this name, if there is still one."""
        found = self._users.get(name or "")
        return found and found[0]

    @property
    def only(self) -> str | None:
        """The name of the user where there is but one, who need not type it."""
        return next(iter(self._users)) if len(self._users) == 1 else None

    def check(self, name: str, password: str) -> User | None:
        """The user, if the password is right; it takes as long if there is no such user."""
        user, hashed = self._users.get(name, (None, self._nobody))
        return user if verify_password(password, hashed) else None


def write_user(path: Path, user: User, password: str) -> None:
    """Add a user to a file, or give one another password; only its owner may read the file."""
    if not user.name or not user.name.isprintable() or ":" in user.name or len(user.name) > 100:
        raise ConfigurationError(f"{user.name!r} cannot be the name of a user")
    if len(password) < 8:
        raise ConfigurationError("a password must have 8 characters or more")
    kept: list[str] = []
    if path.exists():
        lines = path.read_text(encoding="utf-8").splitlines()
        kept = [line for line in lines if line.partition(":")[0] != user.name]
    role = "write" if user.may_write else "read"
    text = "\n".join([*kept, f"{user.name}:{role}:{hash_password(password)}", ""])
    # Written beside and moved over: a dashboard that starts meanwhile reads one or the other.
    beside = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    handle = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(text)
    beside.replace(path)


def _is_hash(text: str) -> bool:
    kind, *rest = text.split("$")
    if kind != "scrypt" or len(rest) != 3 or not rest[0].isdigit():
        return False
    try:
        return 2**14 <= int(rest[0]) <= 2**16 and all(len(_unb64(part)) >= 16 for part in rest[1:])
    except ValueError:
        return False


class Sessions:
    """Signs what browsers keep, so that nothing of it has to be kept here but who logged out."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._ended: dict[str, float] = {}
        # Cookies know no ports: two dashboards of one host must not take each other's.
        self.cookie = f"notifyq_{hashlib.sha256(key).hexdigest()[:8]}"

    def begin(self, user: str | None) -> Session:
        """A new session; one that was there before a login is not the one after it."""
        return Session(secrets.token_urlsafe(18), user, int(time.time()))

    def end(self, session: Session) -> None:
        """Have a session end now, also for whoever has copied its cookie."""
        self._ended[session.key] = session.began_at + LIFE
        if len(self._ended) > _MOST_ENDED:
            now = time.time()
            self._ended = {key: end for key, end in self._ended.items() if end > now}

    def write(self, session: Session) -> str:
        """The value of the cookie."""
        name = "" if session.user is None else f"u{_b64(session.user.encode())}"
        return self.sign("session", f"{session.key}.{session.began_at}.{name}")

    def read(self, value: str | None) -> Session | None:
        """The session of a cookie; None if there is none, it is forged, over or ended."""
        text = self.unsign("session", value or "")
        if text is None or text.count(".") != 2:
            return None
        key, began_at, name = text.split(".")
        if int(began_at) + LIFE < time.time() or key in self._ended:
            return None
        return Session(key, _unb64(name[1:]).decode() if name else None, int(began_at))

    def token(self, session: Session) -> str:
        """What a form of this session must bring along: no other site can know it."""
        return _b64(self._mac("form", session.key))

    def sign(self, purpose: str, text: str) -> str:
        """The text with a signature, which is good for this purpose only."""
        return f"{text}.{_b64(self._mac(purpose, text))}"

    def unsign(self, purpose: str, value: str) -> str | None:
        """The text of what was signed here for this purpose, else None."""
        text, _, mac = value.rpartition(".")
        is_ours = hmac.compare_digest(_b64(self._mac(purpose, text)).encode(), mac.encode())
        return text if is_ours else None

    def _mac(self, purpose: str, text: str) -> bytes:
        return hmac.digest(self._key, f"{purpose}\n{text}".encode(), "sha256")


@dataclass
class Attempts:
    """Counts failed logins of each address, and says how long the next has to wait."""

    most: int = 5
    seconds: float = 300
    _failed: dict[str, list[float]] = field(default_factory=dict)

    def wait(self, address: str) -> float:
        """Seconds until this address may try again; 0: now."""
        recent = self._recent(address)
        return (
            0 if len(recent) < self.most else recent[-self.most] + self.seconds - time.monotonic()
        )

    def fail(self, address: str) -> None:
        """Note a failure."""
        self._failed[address] = [*self._recent(address), time.monotonic()][-self.most :]
        if len(self._failed) > _MOST_ADDRESSES:
            # The oldest: who has that many addresses is held up by the cost of each try.
            del self._failed[next(iter(self._failed))]

    def clear(self, address: str) -> None:
        """Forget the failures of an address, which has logged in."""
        self._failed.pop(address, None)

    def _recent(self, address: str) -> list[float]:
        since = time.monotonic() - self.seconds
        return [at for at in self._failed.get(address, []) if at > since]


def _b64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def _unb64(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
