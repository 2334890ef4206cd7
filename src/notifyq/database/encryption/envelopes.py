"""Envelopes of payloads, results, errors, steps and output: made and opened here.

AES-256-GCM of the library `cryptography`, which is imported for the first envelope. The queue (or
stream), the use and the class of an error are authenticated with the ciphertext. The database only
checks the form of an envelope, see queue/encryption.sql.
"""

from __future__ import annotations

import base64
import json
import os
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from functools import cache
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from notifyq.config import from_environment, secret_lines
from notifyq.errors import ConfigurationError, DecryptionError, MissingKeyError
from notifyq.models.message import LogRecord, copied
from notifyq.models.payload import SEALED, check_json, is_sealed

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

KeySource: TypeAlias = Mapping[str, bytes] | Callable[[], Mapping[str, bytes]]
"""Keys of 32 bytes by id, of which the first encrypts, or what returns them."""

R = TypeVar("R", bound=Any)

_USES = {
    "message": "payload", "result": "result", "details": "details", "traceback": "traceback",
}  # fmt: skip
"""What the columns of live and archived messages are encrypted as."""
LOG = "log"
"""What all that a call has logged is encrypted as, in one record."""
_ID = re.compile(r"[A-Za-z0-9._-]{1,100}")
_CLASS = re.compile(r"[A-Za-z0-9_.<>]{1,200}")
_READ_AGAIN = 60.0
"""Seconds between two calls of a source, where an unknown key is asked for."""
_LONGEST = {"details": 5_300, "traceback": 23_300}
"""Most bytes of a text: the database cuts those whose envelope has more than 8000 or 32000."""


class Keys:
    """The keys of a program. Its methods may be called from any thread."""

    def __init__(self, source: KeySource) -> None:
        self._source = source
        self._ciphers: dict[str, AESGCM] = {}
        self._current = ""
        self._read_at = float("-inf")
        self._lock = threading.Lock()
        if isinstance(source, Mapping):
            _checked(source)

    @property
    def current(self) -> str:
        """The id of the key that encrypts."""
        if not self._current:
            self._read()
        return self._current

    def encrypt(self, queue: str, use: str, text: str, error: str | None = None) -> str:
        """The envelope of a text, as JSON. `error`, the class of an error, stays plain."""
        if use in _LONGEST:
            text = text.encode()[: _LONGEST[use]].decode(errors="ignore")
        if error is not None and not _CLASS.fullmatch(error):
            error = None
        key, nonce = self.current, os.urandom(12)
        data = self._ciphers[key].encrypt(nonce, text.encode(), _context(queue, use, error))
        seal = {"key": key, "use": use, "data": _text(data), "nonce": _text(nonce), "queue": queue}
        if error is not None:
            seal["error"] = error
        return json.dumps({"$encrypted": seal}, ensure_ascii=False)

    def encrypt_json(self, queue: str, use: str, text: str) -> str:
        """The envelope of JSON text; raises for what the database would refuse as plain text."""
        try:
            check_json(text)
        except ValueError as reason:
            raise ConfigurationError(f"PostgreSQL cannot store the message: {reason}") from reason
        return self.encrypt(queue, use, text)

    def decrypt(self, queue: str, use: str, envelope: str) -> str:
        """The text in an envelope; raises MissingKeyError or DecryptionError."""
        seal = _seal_of(envelope, queue, use)
        key = str(seal.get("key"))
        cipher = self._cipher(key)
        from cryptography.exceptions import InvalidTag

        try:
            nonce, data = (
                base64.b64decode(seal[name], validate=True) for name in ("nonce", "data")
            )
            return cipher.decrypt(nonce, data, _context(queue, use, seal.get("error"))).decode()
        except (InvalidTag, ValueError, KeyError, TypeError):
            # Without the cause: nothing of it helps.
            raise DecryptionError(
                f"the {use} cannot be decrypted with key {key!r}: it was changed, or this is "
                "another key"
            ) from None

    def encrypted_again(self, value: Any, queue: str | None = None) -> Any:
        """A JSON value with all envelopes in it encrypted by the current key; of one queue."""

        def again(seal: dict[str, Any], envelope: str) -> str:
            if seal.get("key") == self.current or queue not in {None, seal.get("queue")}:
                return envelope
            name, use = str(seal.get("queue")), str(seal.get("use"))
            text = self.decrypt(name, use, envelope)
            return self.encrypt(name, use, text, seal.get("error"))

        return _changed(value, again)

    def _cipher(self, key: str) -> AESGCM:
        if key not in self._ciphers and time.monotonic() - self._read_at > _READ_AGAIN:
            self._read()
        try:
            return self._ciphers[key]
        except KeyError:
            raise _missing(key) from None

    def _read(self) -> None:
        with self._lock:
            source = self._source
            keys = _checked(source if isinstance(source, Mapping) else source())
            aes = _library()
            self._ciphers = {name: aes(key) for name, key in keys.items()}
            self._current = next(iter(keys))
            self._read_at = time.monotonic()


def keys_of(source: KeySource | None) -> Keys | None:
    """These keys; without any, those of the environment."""
    return environment_keys() if source is None else Keys(source)


def environment_keys() -> Keys | None:
    """The keys in NOTIFYQ_KEYS, else in the file that NOTIFYQ_KEYS_FILE names; None: no keys."""
    if text := from_environment("NOTIFYQ_KEYS"):
        return Keys(_parsed(text, "NOTIFYQ_KEYS"))
    if path := from_environment("NOTIFYQ_KEYS_FILE"):
        keys = Keys(lambda: _parsed(",".join(secret_lines(path, "the key file")), path))
        keys.current  # noqa: B018  a file that cannot be read is an error now
        return keys
    return None


def required_keys() -> Keys:
    """The keys of the environment; raises where there are none."""
    if (keys := environment_keys()) is None:
        raise ConfigurationError("there are no keys: set NOTIFYQ_KEYS or NOTIFYQ_KEYS_FILE")
    return keys


def opened(keys: Keys | None, queue: str, use: str, text: str) -> str:
    """The text, decrypted where it is an envelope."""
    if not is_sealed(text):
        return text
    if keys is None:
        raise _missing(str(_seal_of(text, queue, use).get("key")))
    return keys.decrypt(queue, use, text)


def shown(keys: Keys | None, queue: str, use: str, text: str | None) -> str | None:
    """The text, decrypted where that is possible."""
    try:
        return None if text is None else opened(keys, queue, use, text)
    except DecryptionError:
        return text


def shown_json(keys: Keys | None, text: str | None) -> str | None:
    """JSON with the envelopes in it decrypted, as far as possible, each as what it claims to be."""
    if keys is None or text is None or '"$encrypted"' not in text.replace("\\", ""):
        return text
    return json.dumps(_decrypted(keys, json.loads(text)), ensure_ascii=False)


def _decrypted(keys: Keys, value: Any) -> Any:
    def decrypt(seal: dict[str, Any], envelope: str) -> str:
        return shown(keys, seal.get("queue", ""), seal.get("use", ""), envelope) or envelope

    return _changed(value, decrypt)


def _changed(value: Any, change: Callable[[dict[str, Any], str], str]) -> Any:
    """A JSON value with each envelope in it changed, also where it is in a text."""
    if isinstance(value, list):
        return [_changed(it, change) for it in value]
    envelope = _object_in(value) if isinstance(value, str) else value
    if not isinstance(envelope, dict):
        return value
    seal = envelope.get("$encrypted")
    if isinstance(value, str):
        return change(seal, value) if isinstance(seal, dict) else value
    if not isinstance(seal, dict):
        return {name: _changed(it, change) for name, it in value.items()}
    return json.loads(change(seal, json.dumps(value, ensure_ascii=False)))


def decrypted(keys: Keys | None, row: dict[str, Any]) -> dict[str, Any]:
    """The columns of a message, an attempt, a step or a report, with what can be decrypted."""
    if keys is None:
        return row
    changed = {
        name: shown(keys, row.get("queue") or "", use, row[name])
        for name, use in _USES.items()
        if name in row
    }
    if "value" in row:
        changed["value"] = shown_json(keys, row["value"])
    if "note" in row:
        changed["note"] = _decrypted(keys, row["note"])
    return row | changed


def decrypted_row(keys: Keys | None, row: R) -> R:
    """The same for an object with these columns."""
    if keys is None:
        return row
    columns = {name: getattr(row, name) for name in row.__dataclass_fields__}
    return copied(row, type(row), **decrypted(keys, columns))


def decrypted_logs(keys: Keys | None, records: Iterable[LogRecord]) -> Iterator[LogRecord]:
    """The records of calls, those in envelopes decrypted where that is possible."""
    for record in records:
        text = record.text if keys is None else _decrypted(keys, record.text)
        if text == record.text:
            yield record
            continue
        for line in json.loads(text):
            at = datetime.fromisoformat(line.pop("created_at"))
            yield copied(record, LogRecord, created_at=at, **line)


def _missing(key: str) -> MissingKeyError:
    error = MissingKeyError(
        f"key {key!r} is missing: add it to NOTIFYQ_KEYS, NOTIFYQ_KEYS_FILE or App(encryption=…)"
    )
    error.key = key
    return error


def _seal_of(envelope: str, queue: str, use: str) -> dict[str, Any]:
    """What is in an envelope; raises DecryptionError for one that was made for something else."""
    try:
        seal = json.loads(envelope)["$encrypted"]
    except (ValueError, KeyError, TypeError):
        seal = None
    if not isinstance(seal, dict):
        raise DecryptionError(f"this begins like an envelope and is none: {SEALED}")
    if (seal.get("queue"), seal.get("use")) != (queue, use):
        raise DecryptionError(
            f"the {use} cannot be decrypted: it was encrypted as {seal.get('use')} of "
            f"{seal.get('queue')!r}, not of {queue!r}"
        )
    return seal


def _context(queue: str, use: str, error: str | None) -> bytes:
    """What is authenticated with the ciphertext."""
    return json.dumps(["notifyq", use, queue, error]).encode()


def _object_in(text: str) -> dict[str, Any] | None:
    """The envelope that a text is; None: it is none, and may begin like one."""
    try:
        value = json.loads(text) if is_sealed(text) else None
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _parsed(text: str, source: str) -> dict[str, bytes]:
    """Keys as `id:base64,id:base64`. No error shows any part of a key."""
    keys: dict[str, bytes] = {}
    for number, part in enumerate(filter(None, (it.strip() for it in text.split(","))), 1):
        name, _, encoded = part.partition(":")
        try:
            key = base64.b64decode(encoded, validate=True)
        except ValueError:
            key = b""
        if not _ID.fullmatch(name) or len(key) != 32 or name in keys:
            raise ConfigurationError(
                f"key {number} of {source} is not id:base64 with an id of its own and 32 bytes: "
                "make one with `openssl rand -base64 32`"
            )
        keys[name] = key
    return _checked(keys, source)


def _checked(keys: Mapping[str, bytes], source: str = "encryption") -> dict[str, bytes]:
    if not keys:
        raise ConfigurationError(f"{source} has no key")
    for name, key in keys.items():
        if not isinstance(name, str) or not _ID.fullmatch(name):
            raise ConfigurationError(
                f"{source} has the id {name!r}: it must be 1 to 100 of A-Z a-z 0-9 . _ -"
            )
        if not isinstance(key, bytes) or len(key) != 32:
            raise ConfigurationError(f"key {name!r} of {source} must be 32 bytes")
    return dict(keys)


@cache
def _library() -> type[AESGCM]:
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    except ImportError:
        raise ConfigurationError(
            "encryption needs one more package: pip install 'notifyq[encryption]'"
        ) from None
    return AESGCM
