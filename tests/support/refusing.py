"""Has the server refuse what a function of the database does."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from support.database import Connection

OF_ALL = ["42501", "42P01", "42883", "3F000"]
"""SQLSTATEs for want of a right, or of the schema: each such call is refused."""
LIMITED = ["55000", "57014", "40001", "53300", "XX000"]
"""Others, of what passes by itself and what does not."""

_BODY = """begin raise exception 'refused for a test' using errcode = '{}'; end"""


def errors(caplog: pytest.LogCaptureFixture, text: str) -> int:
    """How many errors were logged with this text."""
    return sum(text in it.getMessage() for it in caplog.records if it.levelno >= logging.ERROR)


@asynccontextmanager
async def refusing(connection: Connection, function: str, sqlstate: str) -> AsyncIterator[None]:
    """Have all functions of this name raise an error; their bodies come back at the end.

    `function` is like `messages.claim`.
    """
    schema, name = function.split(".")
    definitions = await connection.fetch(
        "select pg_get_functiondef(p.oid) as text, l.lanname, p.prosrc from pg_proc as p "
        "join pg_language as l on l.oid = p.prolang "
        "where p.pronamespace = $1::text::regnamespace and p.proname = $2",
        schema,
        name,
    )
    assert definitions, f"there is no function {function}"
    for text, language, body in definitions:
        before, _, after = text.rpartition(body)
        head = before.replace(f"LANGUAGE {language}", "LANGUAGE plpgsql")
        await connection.execute(head + _BODY.format(sqlstate) + after)
    try:
        yield
    finally:
        for text, *_ in definitions:
            await connection.execute(text)
