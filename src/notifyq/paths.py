"""Paths that users pass: of the file system of this machine, made absolute."""

from __future__ import annotations

import os
import re
from pathlib import Path

from notifyq.errors import ConfigurationError

# One letter is a drive. `Path` turns `s3://bucket` into `s3:/bucket`, a local folder.
_URI = re.compile(
    r"[a-z][a-z0-9+.-]+:(?:[/\\]|$)|(?:abfss?|file|gs|hdfs|s3[an]?|wasbs?):", re.IGNORECASE
)


def local_path(given: str | os.PathLike[str]) -> Path:
    """Return the absolute path; raise ConfigurationError for a URI such as `s3://bucket`."""
    text = os.fspath(given)
    if is_uri(text):
        raise ConfigurationError(
            f"{text} is a URI, but notifyq reads and writes mounted file systems only: pass the "
            "path of a file or folder, such as /data/lake"
        )
    return Path(text).absolute()


def is_uri(text: str) -> bool:
    """Whether a text is a URI and not a path."""
    return _URI.match(text) is not None
