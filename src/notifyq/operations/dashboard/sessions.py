"""Sessions of the dashboard, kept in cookies that the server signs."""

import hashlib
import hmac
import secrets
import time
from typing import Any, NamedTuple

from itsdangerous import BadData, Signer, URLSafeSerializer

from notifyq.errors import ConfigurationError
from notifyq.operations.dashboard.users import User, Users

LIFE = 12 * 3600
"""Seconds after which a user must log in again."""
KNOWN = 7 * 86400
"""Seconds for which a browser is known after a successful login."""
SHORTEST_SECRET = 32
"""Characters of a secret that signs sessions."""

_MOST_ENDED = 10_000
_ALGORITHM: dict[str, Any] = {"key_derivation": "hmac", "digest_method": hashlib.sha256}


class Session(NamedTuple):
    """The contents of a valid session cookie."""

    key: str
    user: str | None
    """None before a login."""
    began_at: int
    seal: str = ""
    """Valid only while the user keeps the password of the login."""


class Sessions:
    """Signs cookies; the server only remembers the sessions that were logged out."""

    def __init__(self, secret: str | bytes | None = None) -> None:
        """Sign with a secret, which processes may share, or with a random one."""
        if secret is not None and len(secret) < SHORTEST_SECRET:
            raise ConfigurationError(
                f"the secret of the dashboard must have {SHORTEST_SECRET} characters or more: "
                "`openssl rand -hex 32` makes one"
            )
        self._secret = secret or secrets.token_bytes(32)
        self._ended: dict[str, float] = {}
        # Cookies do not depend on the port: two dashboards on one host need different names.
        self.cookie = f"notifyq_{hashlib.sha256(self._mac('cookie', '')).hexdigest()[:8]}"

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
        return self.sign("session", session)

    def read(self, value: str | None) -> Session | None:
        """The session of a cookie; None if it is missing, forged, expired or ended."""
        content = self.unsign("session", value)
        session = None if content is None else Session(*content)
        return session if session and self.is_open(session) else None

    def know(self, user: str, credential: str) -> str:
        """The value of the cookie that identifies a known browser after a login."""
        content = [secrets.token_urlsafe(18), int(time.time()), self._seal(user, credential)]
        return self.sign("known", content)

    def known(self, value: str | None, user: str, credential: str | None) -> str | None:
        """The key of a known browser, where this user logged in with the current password."""
        content = self.unsign("known", value)
        if content is None or credential is None:
            return None
        key, began_at, seal = content
        is_known = began_at + KNOWN >= time.time() and self._fits(seal, user, credential)
        return str(key) if is_known else None

    def token(self, session: Session) -> str:
        """The token that forms of this session must contain; other sites cannot know it."""
        return self.sign("form", session.key)

    def sign(self, purpose: str, content: Any) -> str:
        """JSON with a signature for this purpose, as text for a cookie."""
        return str(self._serializer(purpose).dumps(content))

    def unsign(self, purpose: str, signed: str | None) -> Any:
        """What was signed, or None if the signature is wrong or has another purpose."""
        try:
            return self._serializer(purpose).loads(signed or "")
        except BadData:
            return None

    def _serializer(self, purpose: str) -> URLSafeSerializer:
        return URLSafeSerializer(self._secret, salt=purpose, signer_kwargs=_ALGORITHM)

    def _seal(self, user: str, credential: str) -> str:
        return self._mac("seal", f"{user}\n{credential}").decode()

    def _fits(self, seal: str, user: str, credential: str) -> bool:
        return hmac.compare_digest(seal, self._seal(user, credential))

    def _mac(self, purpose: str, text: str) -> bytes:
        return Signer(self._secret, salt=purpose, **_ALGORITHM).get_signature(text)
