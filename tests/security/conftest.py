"""Logins that have no more than they were given, in the database of the test."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any, Protocol
from urllib.parse import urlsplit, urlunsplit

import pytest
import pytest_asyncio

from support.database import Connection, open_session, session

_PASSWORD = "guessed"
ROLES = {
    "mallory": (),
    "publisher": ("notifyq_publisher",),
    "worker": ("notifyq_worker",),
    "viewer": ("notifyq_viewer",),
    "reader": ("notifyq_reader",),
    "admin": ("notifyq_admin",),
    # What the grants of the tests are made to, and a member of it.
    "billing": ("notifyq_publisher", "notifyq_worker"),
    "biller": (),
}


class Enter(Protocol):
    """Opens a session of one of the roles; it is closed with the test."""

    async def __call__(self, who: str, **options: Any) -> Connection: ...


def role_name(who: str) -> str:
    """Name of a role on the server, which other test runs may share."""
    return f"test_{os.getpid()}_{who}"


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def roles(server: str, template: str) -> AsyncIterator[None]:
    """Make the roles for all tests, on a server that has the group roles."""
    async with session(server) as admin:
        for who, groups in ROLES.items():
            await admin.execute(f"create role {role_name(who)} login password '{_PASSWORD}'")
            for group in groups:
                await admin.execute(f"grant {group} to {role_name(who)}")
        await admin.execute(f"grant {role_name('billing')} to {role_name('biller')}")
        yield
        for who in ROLES:
            await admin.execute(f"drop role {role_name(who)}")


def dsn_of(dsn: str, who: str) -> str:
    """The same database, as one of the roles."""
    parts = urlsplit(dsn)
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit(parts._replace(netloc=f"{role_name(who)}:{_PASSWORD}@{host}"))


@pytest.fixture
async def enter(database: str, roles: None) -> AsyncIterator[Enter]:
    """Give a function that opens a session of a role."""
    async with AsyncExitStack() as stack:

        async def open_one(who: str, **options: Any) -> Connection:
            opened = await open_session(dsn_of(database, who), **options)
            stack.callback(opened.terminate)
            return opened

        yield open_one
