"""Paths that users pass, made absolute, and locations of lakes: a local folder or a URI."""

from __future__ import annotations

import os
import re
from pathlib import Path
from urllib.parse import unquote

from notifyq.errors import ConfigurationError

# One letter is a drive. `Path` turns `s3://bucket` into `s3:/bucket`, a local folder.
_URI = re.compile(
    r"[a-z][a-z0-9+.-]+:(?:[/\\]|$)|(?:abfss?|file|gs|hdfs|s3[an]?|wasbs?):", re.IGNORECASE
)
_REMOTE = re.compile(
    r"""
    (?: (?:s3|gs)://[a-z0-9][a-z0-9._-]+
      | hdfs://[A-Za-z0-9._-]+(?::\d{1,5})?
      | abfss://[a-z0-9-]+@[a-z0-9]+(?:\.[a-z0-9-]+)+
    )
    (?:/(?!\.{1,2}(?:/|$))[A-Za-z0-9._=+,-]+)*
    """,
    re.VERBOSE,
)
_SECRET = re.compile(r"^([^:]+:/*)[^:]*:.*@", re.DOTALL)
"""What precedes a host, if it may be a name with a password."""
_FORMS = (
    "/data/lake, file:///data/lake, s3://bucket/lake, gs://bucket/lake, "
    "abfss://container@account.dfs.core.windows.net/lake or hdfs://host:8020/lake"
)


def local_path(given: str | os.PathLike[str]) -> Path:
    """Return the absolute path.

    Raises ConfigurationError for a URI such as `s3://bucket`, without a password that it has.
    """
    text = os.fspath(given)
    if is_uri(text):
        raise ConfigurationError(
            f"{_shown(text)} is a URI, but notifyq reads and writes mounted file systems only: "
            "pass the path of a file or folder, such as /data/lake"
        )
    return Path(text).absolute()


def sync_folder(folder: Path) -> None:
    """Have the disk keep the names in a folder, as those of new and renamed files."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def is_uri(text: str) -> bool:
    """Whether a text is a URI and not a path."""
    return _URI.match(text) is not None


def lake_location(given: str | os.PathLike[str]) -> str:
    """Return where a lake is, always in the same form: an absolute path without links, or a URI.

    Raises ConfigurationError for a URI of another scheme or form; the text then shows no password
    that the URI has.
    """
    text = os.fspath(given)
    if not is_uri(text):
        return str(Path(text).resolve())
    scheme, _, rest = text.partition("://")
    if scheme.lower() == "file" and rest.startswith(("/", "localhost/")):
        return str(Path(unquote(rest.removeprefix("localhost"))).resolve())
    location = f"{scheme.lower()}://{rest.rstrip('/')}"
    if isinstance(given, str) and _REMOTE.fullmatch(location):
        return location
    raise ConfigurationError(
        f"{_shown(text)} is a URI that cannot be a lake: pass a text such as {_FORMS}; "
        "credentials and other options are passed as storage options or by the environment"
    )


def _shown(uri: str) -> str:
    return _SECRET.sub(r"\1…@", uri).partition("?")[0]
