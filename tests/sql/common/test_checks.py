"""Refusals: which errors concern one message."""

from __future__ import annotations

import inspect

import asyncpg

from notifyq import errors
from notifyq.errors import REFUSED
from support.database import Connection


async def test_python_and_sql_have_the_same_refusals(connection: Connection) -> None:
    kinds = {
        str(kind.sqlstate): kind
        for module in (asyncpg, errors)
        for _, kind in inspect.getmembers(module, inspect.isclass)
        if issubclass(kind, asyncpg.PostgresError) and kind.sqlstate
    }
    rows = await connection.fetch(
        "select c as code from unnest($1::text[]) as c where notifyq.is_refusal(c)", list(kinds)
    )
    refused = {code for code, kind in kinds.items() if issubclass(kind, REFUSED)}
    assert {row["code"] for row in rows} == refused
    assert {"NQ030", "42804", "22003", "23514", "54000"} <= refused
    assert not refused & {"NQ001", "NQ010", "42501", "42P01", "40001", "57014", "53100"}
