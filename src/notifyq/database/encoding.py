"""What a database can store: values of callers, and texts where its encoding is not UTF-8."""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import asyncpg

from notifyq.errors import ConfigurationError, NotifyqError


@contextmanager
def storing(what: str, kind: type[NotifyqError] = ConfigurationError) -> Iterator[None]:
    r"""Raise this error for a value that PostgreSQL cannot store.

    That is NaN, \u0000, half a surrogate pair, or a date beyond what PostgreSQL has.
    """
    try:
        yield
    except asyncpg.DataError as error:
        raise kind(f"PostgreSQL cannot store {what}: {error}") from error


def storable(text: str, encoding: str) -> str:
    r"""A text for people that a database of this encoding can store; others become \u…."""
    return text.encode(_codec_of(encoding), "backslashreplace").decode(_codec_of(encoding))


@cache
def _codec_of(encoding: str) -> str:
    """Python's codec of an encoding of PostgreSQL; ASCII where it has none."""
    if encoding == "SQL_ASCII":  # the server stores any bytes
        return "utf-8"
    try:
        return codecs.lookup(encoding.replace("WIN", "cp").replace("KOI8", "koi8-")).name
    except LookupError:
        return "ascii"
