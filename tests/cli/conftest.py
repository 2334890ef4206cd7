"""Databases and commands for the tests of the command line."""

from __future__ import annotations

import itertools
import os
from typing import TYPE_CHECKING

import pytest

from cli.programs import Notifyq
from notifyq.testing.plugin import cloned

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_numbers = itertools.count(1)


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
