"""Who may enter the dashboard: users and their passwords, sessions, and how often one may try."""

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

LIFE = 12 * 3600
"""Seconds after which one has to log in again."""
KNOWN = 7 * 86400
"""Seconds for which a browser is known by a login that succeeded there."""
SHORTEST_SECRET = 32
"""Characters of a secret that signs sessions."""

# What OWASP recommends for a login; about 0.1 s and 64 MB for each try.
_COST, _BLOCK, _PARALLEL = 2**16, 8, 1
_MEMORY = 128 * 1024 * 1024
_LONGEST = 1024
_MOST_ADDRESSES = 10_000
_MOST_ENDED = 10_000
_HOUR = 3600.0
_LOOPBACK = "this machine"


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
    seal: str = ""
    """Fits only while the user has the password of the login."""


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
    """The users of a dashboard and their passwords, as its file has them at this moment."""

    def __init__(self, users: Mapping[User, str]) -> None:
        self._hashes = {user.name: hashed for user, hashed in users.items()}
        self._users = {user.name: user for user in users}
        self._credentials = self._hashes
        # Of no password, and as dear to try as those of the users.
        cost = max((int(hashed.split("$")[1]) for hashed in users.values()), default=_COST)
        parts = (_b64(secrets.token_bytes(size)) for size in (16, 64))
        self._nobody = "$".join(["scrypt", str(cost), *parts])
        self._read: Callable[[], Users] | None = None
        self._path = Path()
        self._version: object = None

    @classmethod
    def of_password(cls, password: str, name: str = "operator") -> Users:
        """One user, whose password is given."""
        if not password:
            raise ConfigurationError("the password of the dashboard is empty")
        users = cls({User(name): hash_password(password)})
        # The hash has another salt in each process; all accept the sessions of one secret.
        users._credentials = {name: password}
        return users

    @classmethod
    def of_password_file(cls, path: Path) -> Users:
        """One user, whose password is the text of a file."""

        def read() -> Users:
            try:
                return cls.of_password(path.read_text(encoding="utf-8").strip("\r\n"))
            except OSError as error:
                raise ConfigurationError(f"--password-file {path}: {error.strerror}") from error

        return cls._of_path(path, read)

    @classmethod
    def of_file(cls, path: Path) -> Users:
        """Read NAME:ROLE:HASH lines, as `notifyq dashboard --add-user` writes them."""
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
        """Read a file that has changed: a password that was replaced admits nobody any more."""
        if self._read is None or (version := _version(self._path)) == self._version:
            return
        self._version = version
        try:
            found = self._read()
        except ConfigurationError as error:
            log.error("nobody can log in until this is corrected: %s", error)  # noqa: TRY400
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
        """The user of this name, if there is still one."""
        self._refresh()
        return self._users.get(name or "")

    def credential(self, name: str) -> str | None:
        """What changes with the password of a user; None without such a user."""
        self._refresh()
        return self._credentials.get(name)

    @property
    def only(self) -> str | None:
        """The name of the user where there is but one, who need not type it."""
        return next(iter(self._users)) if len(self._users) == 1 else None

    def check(self, name: str, password: str) -> User | None:
        """The user, if the password is right; it takes as long if there is no such user."""
        self._refresh()
        is_right = verify_password(password, self._hashes.get(name, self._nobody))
        return self._users.get(name) if is_right else None


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


def _version(path: Path) -> object:
    """What changes with the contents of a file."""
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
    """Signs what browsers keep, so that only sessions that were logged out are kept here."""

    def __init__(self, secret: str | bytes | None = None) -> None:
        """Sign with a secret, which processes may share; without one, with a random key."""
        if secret is not None and len(secret) < SHORTEST_SECRET:
            raise ConfigurationError(
                f"the secret of the dashboard must have {SHORTEST_SECRET} characters or more: "
                "`openssl rand -hex 32` makes one"
            )
        text = secret.encode() if isinstance(secret, str) else secret or secrets.token_bytes(32)
        self._key = hashlib.sha256(b"notifyq dashboard sessions\n" + text).digest()
        self._ended: dict[str, float] = {}
        # Cookies know no ports: two dashboards of one host must not take each other's.
        self.cookie = f"notifyq_{hashlib.sha256(self._key).hexdigest()[:8]}"

    def begin(self, user: str | None, credential: str = "") -> Session:
        """A new session; one that was there before a login is not the one after it."""
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
        """Have a session end now, also for whoever has copied its cookie."""
        self._ended[session.key] = session.began_at + LIFE
        if len(self._ended) > _MOST_ENDED:
            now = time.time()
            self._ended = {key: end for key, end in self._ended.items() if end > now}

    def write(self, session: Session) -> str:
        """The value of the cookie."""
        name = "" if session.user is None else f"u{_b64(session.user.encode())}"
        return self.sign("session", f"{session.key}.{session.began_at}.{name}.{session.seal}")

    def read(self, value: str | None) -> Session | None:
        """The session of a cookie; None if there is none, it is forged, over or ended."""
        text = self.unsign("session", value or "")
        if text is None or text.count(".") != 3:
            return None
        key, began_at, name, seal = text.split(".")
        user = _unb64(name[1:]).decode() if name else None
        session = Session(key, user, int(began_at), seal)
        return session if self.is_open(session) else None

    def know(self, user: str, credential: str) -> str:
        """The value of a cookie by which a browser is known after a login."""
        text = f"{secrets.token_urlsafe(18)}.{int(time.time())}.{self._seal(user, credential)}"
        return self.sign("known", text)

    def known(self, value: str | None, user: str, credential: str | None) -> str | None:
        """The name of a browser where this user has logged in with the password he still has."""
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
    """Counts failed logins of each address and of all, and says how long the next has to wait.

    All strangers together wait longer with each failure, so that many addresses are of no use. This
    delay holds up neither a browser that is known nor this machine, so that nobody else can lock
    the owner out. Both have the bound of one address.
    """

    most: int = 5
    seconds: float = 300
    free: int = 20
    """Failures of all strangers within an hour after which they wait, first for a second."""
    longest: float = 60
    """Seconds that all strangers wait at most after the last failure."""
    _failed: dict[str, list[tuple[float, str]]] = field(default_factory=dict)
    _strangers: list[tuple[float, str, str]] = field(default_factory=list)

    def wait(self, address: str, browser: str | None = None) -> float:
        """Seconds until this address, or this known browser, may try again; 0: now."""
        place = _place(address, browser)
        recent, now = self._recent(place), time.monotonic()
        own = 0.0 if len(recent) < self.most else recent[-self.most][0] + self.seconds - now
        return max(own, self._wait_of_strangers(now) if _is_stranger(place) else 0.0)

    def _wait_of_strangers(self, now: float) -> float:
        self._strangers = [it for it in self._strangers if it[0] > now - _HOUR]
        beyond = len(self._strangers) - self.free
        if beyond < 0:
            return 0.0
        return max(0.0, self._strangers[-1][0] + min(self.longest, 2.0 ** min(beyond, 30)) - now)

    def fail(self, address: str, name: str = "", browser: str | None = None) -> None:
        """Note a failure to log in under a name."""
        place, now = _place(address, browser), time.monotonic()
        self._failed[place] = [*self._recent(place), (now, name)][-self.most :]
        if len(self._failed) > _MOST_ADDRESSES:
            # The oldest: all strangers together are held up anyway.
            del self._failed[next(iter(self._failed))]
        if _is_stranger(place):
            self._strangers.append((now, place, name))

    def clear(self, address: str, name: str = "", browser: str | None = None) -> None:
        """Forget the failures of an address under the name that has logged in.

        Those under other names stay: a user must not reset the tries at another's password.
        """
        place = _place(address, browser)
        left = [it for it in self._recent(place) if it[1] != name]
        self._failed.pop(place, None)
        if left:
            self._failed[place] = left
        self._strangers = [it for it in self._strangers if it[1:] != (place, name)]

    def _recent(self, place: str) -> list[tuple[float, str]]:
        since = time.monotonic() - self.seconds
        return [it for it in self._failed.get(place, []) if it[0] > since]


def _place(address: str, browser: str | None) -> str:
    """What attempts are counted by: who has one address of these has all of them."""
    if browser is not None:
        return f"browser {browser}"
    try:
        ip = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address[:100]
    ip = getattr(ip, "ipv4_mapped", None) or ip
    if ip.is_loopback:
        return _LOOPBACK
    return str(ip) if ip.version == 4 else str(ipaddress.ip_network((ip, 64), strict=False))


def _is_stranger(place: str) -> bool:
    return place != _LOOPBACK and not place.startswith("browser ")


def _b64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def _unb64(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
