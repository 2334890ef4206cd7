"""A database that cannot be used: one line with advice, and never a password."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Iterator, Sequence
from urllib.parse import urlsplit

import pytest

from cli.programs import Notifyq
from notifyq import schema
from notifyq.dsn import with_database
from support.database import session

COMMANDS: list[tuple[str, ...]] = [
    ("queues",),
    ("queues", "create", "x"),
    ("queues", "alter", "x", "--notify", "off"),
    ("queues", "pause", "x"),
    ("queues", "resume", "x"),
    ("queues", "drop", "x"),
    ("ls",),
    ("ls", "--finished"),
    ("show", "1"),
    ("cancel", "1"),
    ("publish", "default", "1"),
    ("publish", "default", "-"),
    ("dead", "ls"),
    ("dead", "show", "1"),
    ("dead", "retry", "1"),
    ("dead", "retry", "--all"),
    ("dead", "delete", "1"),
    ("dead", "watch"),
    ("worker", "notifyq.demo.index:app"),
]
INSTALLERS = [("init",), ("migrate",), ("demo",)]
SECRET = "s3cr3t-%2Fpass"


# Those that serve would wait for a server that is away.
AT_ONCE = {"NOTIFYQ_RETRY_FOR": "0"}


def refusals(notifyq: Notifyq, commands: Sequence[tuple[str, ...]], dsn: str) -> Iterator[str]:
    for command in commands:
        line = notifyq.refused(*command, stdin="1\n", env={"NOTIFYQ_DSN": dsn, **AT_ONCE})
        assert SECRET not in line
        assert "s3cr3t" not in line
        yield line


def with_login(dsn: str, login: str) -> str:
    parts = urlsplit(dsn)
    return parts._replace(netloc=f"{login}@{parts.netloc.rpartition('@')[2]}").geturl()


@pytest.fixture(scope="module")
def free_port() -> Iterator[int]:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound and not listening: refuses
        yield taken.getsockname()[1]


def test_server_that_is_not_there(anywhere: Notifyq, free_port: int) -> None:
    dsn = f"postgresql://me:{SECRET}@127.0.0.1:{free_port}/x"
    for line in refusals(anywhere, [*COMMANDS, *INSTALLERS, ("ping",)], dsn):
        assert f"no connection to postgresql://me:***@127.0.0.1:{free_port}/x" in line
        assert "is the server running?" in line


def test_password_that_is_wrong(anywhere: Notifyq, server: str) -> None:
    dsn = with_login(server, f"postgres:{SECRET}")
    for line in refusals(anywhere, [("ls",), ("dead", "watch"), *INSTALLERS, ("ping",)], dsn):
        assert "check user and password of postgresql://postgres:***@" in line


def test_database_that_does_not_exist(anywhere: Notifyq, server: str) -> None:
    dsn = with_database(server, "no_such_database")
    for line in refusals(anywhere, [("ls",), ("dead", "watch"), *INSTALLERS, ("ping",)], dsn):
        assert 'database "no_such_database" does not exist: create it, or correct' in line


def test_option_of_the_address_that_the_server_does_not_know(
    anywhere: Notifyq, shared_database: str
) -> None:
    line = anywhere.refused("ping", env={"NOTIFYQ_DSN": f"{shared_database}?no_such_option=1"})
    assert "the DSN has the option no_such_option, which libpq does not know" in line
    options = "options=-c%20no_such_option%3D1"
    line = anywhere.refused("ping", env={"NOTIFYQ_DSN": f"{shared_database}?{options}"})
    assert 'unrecognized configuration parameter "no_such_option"' in line


def test_schema_that_is_not_installed(anywhere: Notifyq, empty_database: str) -> None:
    for line in refusals(anywhere, COMMANDS, empty_database):
        assert "install the schema with `notifyq init`" in line
    assert anywhere.good("ping", env={"NOTIFYQ_DSN": empty_database}).out == "ok\n"


async def test_schema_that_is_older(anywhere: Notifyq, empty_database: str) -> None:
    async with session(empty_database) as connection:
        await schema.install(connection)
        await connection.execute("update notifyq.schema_version set version = 0")
        await connection.execute(
            "create or replace function messages.version() returns integer "
            "language sql immutable as 'select 0'"
        )
    for line in refusals(anywhere, [*COMMANDS, ("init",), ("demo",)], empty_database):
        assert "run `notifyq migrate`" in line


@pytest.fixture
async def stranger(server: str) -> AsyncIterator[str]:
    """Give the login of a database user without any right."""
    async with session(server) as admin:
        await admin.execute(f"create role test_stranger login password '{SECRET}'")
        yield f"test_stranger:{SECRET.replace('%', '%25')}"
        await admin.execute("drop role test_stranger")


def test_user_without_rights(anywhere: Notifyq, shared_database: str, stranger: str) -> None:
    dsn = with_login(shared_database, stranger)
    for line in refusals(anywhere, COMMANDS, dsn):
        assert "permission denied" in line
        assert "ask the owner for one of the roles notifyq_publisher" in line
    for line in refusals(anywhere, INSTALLERS, dsn):
        assert "user test_stranger may not change schema messages" in line
        assert "run as its owner" in line


def test_a_traceback_is_only_printed_on_request(anywhere: Notifyq, server: str) -> None:
    dsn = with_login(server, f"postgres:{SECRET}")
    for args in (("--debug", "queues"), ("queues", "--debug")):
        result = anywhere(*args, env={"NOTIFYQ_DSN": dsn})
        assert result.code == 1
        assert "Traceback" in result.err
        assert "AccessDeniedError" in result.err
        assert SECRET not in result.err
