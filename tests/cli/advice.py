"""Judges what `notifyq doctor` advises: what is to be pasted works when it is."""

from __future__ import annotations

import re
import shlex

import asyncpg

from docs.test_examples import parse
from notifyq.cli.main import tree
from support.database import Connection

_VERB = re.compile(r"(alter|analyze|create|drop|grant|reindex|revoke|rollback|select|vacuum) ")
# In a sentence each of these begins something that a person would copy.
_BARE = re.compile(
    rf"\bnotifyq ({'|'.join(tree().commands)})\b|\bselect [a-z_.]+\(|"
    r"\balter (table|system|role|database)\b|\bmessages\.\w+\(|"
    r"\b(drop|create) (table|index|rule|trigger)\b|\bvacuum (messages|\()|\breindex schema\b|"
    r"\bpg_\w+\(|\brevoke \w+ on\b"
)


def pasted(advice: str) -> list[str]:
    """Return the commands and statements of an advice, and check that the rest contains none."""
    if _VERB.match(advice):
        return _statements(advice)
    parts = advice.split("`")
    assert len(parts) % 2, advice
    left = _BARE.search(" ".join(parts[::2]))
    assert left is None, f"{left and left[0]!r} is not in backticks: {advice}"
    return [piece for part in parts[1::2] for piece in _pieces(part)]


def _pieces(part: str) -> list[str]:
    return [part] if part.startswith("notifyq ") else _statements(part)


def _statements(text: str) -> list[str]:
    return [it.strip() for it in re.sub(r" --.*", "", text).split(";") if it.strip()]


async def try_out(connection: Connection, text: str) -> None:
    """Have the command line, or the server, read it, and do nothing."""
    if text.startswith("notifyq "):
        parse(shlex.split(text)[1:])
        return
    assert _VERB.match(text + " "), text
    # Of utilities the server reads no more than the grammar, of queries the names, too.
    try:
        await connection.prepare(text)
    except (asyncpg.InvalidSchemaNameError, asyncpg.UndefinedTableError):
        # pg_cron is in one database of a server only.
        assert " cron." in text
