"""Access to the dashboard: users and passwords, sessions, and the limit of failed logins."""

from __future__ import annotations

import base64
import hashlib
import hmac
import ipaddress
import logging
import os
import secrets
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from notifyq.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

log = logging.getLogger("notifyq.dashboard")

LOOPBACK = ("localhost", "127.0.0.1", "[::1]")
"""Host names of this machine."""
LIFE = 12 * 3600
"""Seconds after which a user must log in again."""
KNOWN = 7 * 86400
"""Seconds for which a browser is known after a successful login."""
SHORTEST_SECRET = 32
"""Characters of a secret that signs sessions."""

# As OWASP recommends; about 0.1 s and 64 MB for each attempt.
_COST, _BLOCK, _PARALLEL = 2**16, 8, 1
_MEMORY = 128 * 1024 * 1024
_LONGEST = 1024
_MOST_ADDRESSES = 10_000
_MOST_ENDED = 10_000
_HOUR = 3600.0
_LOCAL = "this machine"


@dataclass(frozen=True, slots=True)
class User:
    """A user of the dashboard."""

    name: str
    may_write: bool = True


@dataclass(frozen=True, slots=True)
class Session:
    """The contents of a valid session cookie."""

    key: str
    user: str | None
    """None before a login."""
    began_at: int
    seal: str = ""
    """Valid only while the user keeps the password of the login."""


def hash_password(password: str, *, cost: int = _COST) -> str:
    """A salted scrypt hash of a password, for the file of users."""
    salt = secrets.token_bytes(16)
    return f"scrypt${cost}${_b64(salt)}${_b64(_scrypt(password, salt, cost))}"


def verify_password(password: str, hashed: str) -> bool:
    """Whether this is the password, compared in constant time."""
    _, cost, salt, expected = hashed.split("$")
    found = _scrypt(password, _unb64(salt), int(cost))
    return hmac.compare_digest(found, _unb64(expected))


def _scrypt(password: str, salt: bytes, cost: int) -> bytes:
    return hashlib.scrypt(
        password[:_LONGEST].encode(), salt=salt, n=cost, r=_BLOCK, p=_PARALLEL, maxmem=_MEMORY
    )


class Users:
    """The users of a dashboard and their passwords, read again when their file changes."""

    def __init__(self, users: Mapping[User, str]) -> None:
        self._hashes = {user.name: hashed for user, hashed in users.items()}
        self._users = {user.name: user for user in users}
        self._credentials = self._hashes
        # No password has this hash; a login of an unknown user takes as long as others.
        cost = max((int(hashed.split("$")[1]) for hashed in users.values()), default=_COST)
        parts = (_b64(secrets.token_bytes(size)) for size in (16, 64))
        self._nobody = "$".join(["scrypt", str(cost), *parts])
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

        def read() -> Users:
            try:
                return cls.of_password(path.read_text(encoding="utf-8").strip("\r\n"))
            except OSError as error:
                raise ConfigurationError(f"--password-file {path}: {error.strerror}") from error

        return cls._of_path(path, read)

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
        self._credentials, self._nobody = found._credentials, found._nobody

    @classmethod
    def _of_lines(cls, path: Path) -> Users:
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
        is_right = verify_password(password, self._hashes.get(name, self._nobody))
        return self._users.get(name) if is_right else None


def write_user(path: Path, user: User, password: str) -> None:
    """Add a user to a file, or change the password; only the owner may read the file."""
    if not user.name or not user.name.isprintable() or ":" in user.name or len(user.name) > 100:
        raise ConfigurationError(f"{user.name!r} is not a valid user name")
    if len(password) < 8:
        raise ConfigurationError("a password must have 8 characters or more")
    kept: list[str] = []
    if path.exists():
        lines = path.read_text(encoding="utf-8").splitlines()
        kept = [line for line in lines if line.partition(":")[0] != user.name]
    role = "write" if user.may_write else "read"
    text = "\n".join([*kept, f"{user.name}:{role}:{hash_password(password)}", ""])
    # Replaced atomically: a running dashboard reads the old or the new file.
    beside = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    handle = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(text)
    beside.replace(path)


def _version(path: Path) -> object:
    """A value that changes with the contents of a file."""
    try:
        status = path.stat()
    except OSError as error:
        return error.errno
    return status.st_ino, status.st_mtime_ns, status.st_size


def _is_hash(text: str) -> bool:
    kind, *rest = text.split("$")
    if kind != "scrypt" or len(rest) != 3 or not rest[0].isdigit():
        return False
    try:
        return 2**14 <= int(rest[0]) <= 2**16 and all(len(_unb64(part)) >= 16 for part in rest[1:])
    except ValueError:
        return False


class Sessions:
    """Signs cookies; the server only remembers the sessions that were logged out."""

    def __init__(self, secret: str | bytes | None = None) -> None:
        """Sign with a secret, which processes may share, or with a random key."""
        if secret is not None and len(secret) < SHORTEST_SECRET:
            raise ConfigurationError(
                f"the secret of the dashboard must have {SHORTEST_SECRET} characters or more: "
                "`openssl rand -hex 32` makes one"
            )
        text = secret.encode() if isinstance(secret, str) else secret or secrets.token_bytes(32)
        self._key = hashlib.sha256(b"notifyq dashboard sessions\n" + text).digest()
        self._ended: dict[str, float] = {}
        # Cookies do not depend on the port: two dashboards on one host need different names.
        self.cookie = f"notifyq_{hashlib.sha256(self._key).hexdigest()[:8]}"

    def begin(self, user: str | None, credential: str = "") -> Session:
        """A new session; a login never continues the session before it."""
        seal = "" if user is None else self._seal(user, credential)
        return Session(secrets.token_urlsafe(18), user, int(time.time()), seal)

    def is_open(self, session: Session) -> bool:
        """Whether a session has neither ended nor expired."""
        return session.began_at + LIFE >= time.time() and session.key not in self._ended

    def user_of(self, session: Session, users: Users) -> User | None:
        """The user of an open session whose password is still that of the login."""
        if session.user is None or not self.is_open(session):
            return None
        credential = users.credential(session.user)
        if credential is None or not self._fits(session.seal, session.user, credential):
            return None
        return users.find(session.user)

    def end(self, session: Session) -> None:
        """End a session, also for copies of its cookie."""
        self._ended[session.key] = session.began_at + LIFE
        if len(self._ended) > _MOST_ENDED:
            now = time.time()
            self._ended = {key: end for key, end in self._ended.items() if end > now}

    def write(self, session: Session) -> str:
        """The value of the cookie."""
        name = "" if session.user is None else f"u{_b64(session.user.encode())}"
        return self.sign("session", f"{session.key}.{session.began_at}.{name}.{session.seal}")

    def read(self, value: str | None) -> Session | None:
        """The session of a cookie; None if it is missing, forged, expired or ended."""
        text = self.unsign("session", value or "")
        if text is None or text.count(".") != 3:
            return None
        key, began_at, name, seal = text.split(".")
        user = _unb64(name[1:]).decode() if name else None
        session = Session(key, user, int(began_at), seal)
        return session if self.is_open(session) else None

    def know(self, user: str, credential: str) -> str:
        """The value of the cookie that identifies a known browser after a login."""
        text = f"{secrets.token_urlsafe(18)}.{int(time.time())}.{self._seal(user, credential)}"
        return self.sign("known", text)

    def known(self, value: str | None, user: str, credential: str | None) -> str | None:
        """The key of a known browser, where this user logged in with the current password."""
        text = self.unsign("known", value or "")
        if text is None or credential is None:
            return None
        key, began_at, seal = text.split(".")
        is_known = int(began_at) + KNOWN >= time.time() and self._fits(seal, user, credential)
        return key if is_known else None

    def _seal(self, user: str, credential: str) -> str:
        return _b64(self._mac("seal", f"{user}\n{credential}"))

    def _fits(self, seal: str, user: str, credential: str) -> bool:
        return hmac.compare_digest(seal.encode(), self._seal(user, credential).encode())

    def token(self, session: Session) -> str:
        """The token that forms of this session must contain; other sites cannot know it."""
        return _b64(self._mac("form", session.key))

    def sign(self, purpose: str, text: str) -> str:
        """The text with a signature for this purpose."""
        return f"{text}.{_b64(self._mac(purpose, text))}"

    def unsign(self, purpose: str, value: str) -> str | None:
        """The signed text, or None if the signature is wrong or has another purpose."""
        text, _, mac = value.rpartition(".")
        is_valid = hmac.compare_digest(_b64(self._mac(purpose, text)).encode(), mac.encode())
        return text if is_valid else None

    def _mac(self, purpose: str, text: str) -> bytes:
        return hmac.digest(self._key, f"{purpose}\n{text}".encode(), "sha256")


@dataclass
class Attempts:
    """Counts failed logins of each client and of all clients, and delays the next attempt.

    All unknown clients share a delay that grows with each failure, because an attacker may use many
    addresses. Known browsers and this machine only have the limit of a single client: an attacker
    must not lock the owner out.
    """

    most: int = 5
    seconds: float = 300
    free: int = 20
    """Failures of all unknown clients within an hour before the shared delay begins."""
    longest: float = 60
    """The longest shared delay in seconds."""
    _failed: dict[str, list[tuple[float, str]]] = field(default_factory=dict)
    _unknown: list[tuple[float, str, str]] = field(default_factory=list)

    def wait(self, address: str, browser: str | None = None) -> float:
        """Seconds until this address, or this known browser, may log in; 0: now."""
        client = _client(address, browser)
        recent, now = self._recent(client), time.monotonic()
        own = 0.0 if len(recent) < self.most else recent[-self.most][0] + self.seconds - now
        return max(own, self._shared_wait(now) if _is_unknown(client) else 0.0)

    def _shared_wait(self, now: float) -> float:
        self._unknown = [it for it in self._unknown if it[0] > now - _HOUR]
        beyond = len(self._unknown) - self.free
        if beyond < 0:
            return 0.0
        return max(0.0, self._unknown[-1][0] + min(self.longest, 2.0 ** min(beyond, 30)) - now)

    def fail(self, address: str, name: str = "", browser: str | None = None) -> None:
        """Count a failed login with this name."""
        client, now = _client(address, browser), time.monotonic()
        self._failed[client] = [*self._recent(client), (now, name)][-self.most :]
        if len(self._failed) > _MOST_ADDRESSES:
            # The oldest: all unknown clients share a delay anyway.
            del self._failed[next(iter(self._failed))]
        if _is_unknown(client):
            self._unknown.append((now, client, name))

    def clear(self, address: str, name: str = "", browser: str | None = None) -> None:
        """Forget the failures of a client with the name that has logged in.

        Those with other names stay: a user must not reset the attempts at another password.
        """
        client = _client(address, browser)
        left = [it for it in self._recent(client) if it[1] != name]
        self._failed.pop(client, None)
        if left:
            self._failed[client] = left
        self._unknown = [it for it in self._unknown if it[1:] != (client, name)]

    def _recent(self, client: str) -> list[tuple[float, str]]:
        since = time.monotonic() - self.seconds
        return [it for it in self._failed.get(client, []) if it[0] > since]


def _client(address: str, browser: str | None) -> str:
    """The client by which attempts are counted; an IPv6 network counts as one."""
    if browser is not None:
        return f"browser {browser}"
    try:
        ip = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address[:100]
    ip = getattr(ip, "ipv4_mapped", None) or ip
    if ip.is_loopback:
        return _LOCAL
    return str(ip) if ip.version == 4 else str(ipaddress.ip_network((ip, 64), strict=False))


def _is_unknown(client: str) -> bool:
    return client != _LOCAL and not client.startswith("browser ")


def _b64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def _unb64(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
