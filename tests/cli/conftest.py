"""Databases and commands for the tests of the command line."""

from __future__ import annotations

import itertools
import os
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from cli.advice import pasted, try_out
from cli.programs import Notifyq
from notifyq.operations.doctor import Finding
from notifyq.testing.plugin import cloned
from support.database import session

_numbers = itertools.count(1)


@pytest.fixture
async def advice_that_works(
    shared_database: str, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[None]:
    """Try out all that is to be pasted of what a doctor advises in this test."""
    advices: list[str] = []
    begin = Finding.__init__

    def note(self: Finding, *args: Any, **options: Any) -> None:
        begin(self, *args, **options)
        advices.append(self.advice)

    monkeypatch.setattr(Finding, "__init__", note)
    yield
    async with session(shared_database) as connection:
        for advice in dict.fromkeys(advices):
            for text in pasted(advice):
                await try_out(connection, text)


@pytest.fixture(scope="module")
def shared_database(server: str, template: str) -> Iterator[str]:
    """Give the address of a database with the schema, for all tests of a module."""
    with cloned(server, template, f"notifyq_test_{os.getpid()}_cli_{next(_numbers)}") as dsn:
        yield dsn


@pytest.fixture(scope="session")
def anywhere() -> Iterator[Notifyq]:
    """Give the command line without a database."""
    with Notifyq() as notifyq:
        yield notifyq


@pytest.fixture
def notifyq(anywhere: Notifyq, shared_database: str) -> Iterator[Notifyq]:
    """Give the command line with the database of the module."""
    anywhere.dsn = shared_database
    yield anywhere
    anywhere.dsn = None


@pytest.fixture
def queue(notifyq: Notifyq, request: pytest.FixtureRequest) -> str:
    """Give a queue of the test's own."""
    name = f"{request.node.originalname}.{next(_numbers)}"
    notifyq.good("queues", "create", name)
    return name


@pytest.fixture
def count(notifyq: Notifyq, queue: str) -> Callable[[], int]:
    """Give a function that counts the live messages of the queue."""

    def waiting() -> int:
        rows = notifyq.good("queues", "--json").data
        return sum(row["waiting"] + row["scheduled"] for row in rows if row["queue"] == queue)

    return waiting
