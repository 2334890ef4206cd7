"""The server of the tests, one fresh database for each test, and a guard against leaks.

The server is NOTIFYQ_TEST_DSN if that is set, else the compose service `db` where containers can be
run, else Debian's PostgreSQL, else the embedded one. NOTIFYQ_TEST_ENGINE forces one of them.
"""

from __future__ import annotations

import asyncio
import gc
import inspect
import itertools
import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import asyncpg
import pytest
import pytest_asyncio

from notifyq import App
from notifyq.database import statements as sql
from notifyq.database.pool import Database
from notifyq.dsn import with_database
from notifyq.server import Server, debian_binaries, wheel_binaries
from notifyq.testing.plugin import private_server
from support.database import (
    Connect,
    Connection,
    Notices,
    Notifications,
    drop_database,
    guard_bounds,
    install,
    open_session,
    session,
)
from support.databases import Databases
from support.engine import Engine, choose_engine, compose_command
from support.quick import HINT, QUICK
from support.running import Events
from support.servers import kept_server

_PASSWORD = os.environ.get("NOTIFYQ_PASSWORD", "notifyq")
# The names of databases are shared by all test runs on a server.
_RUN = f"notifyq_test_{os.getpid()}"
_numbers = itertools.count(1)

_ENGINE = pytest.StashKey[Engine]()
_IS_QUICK = pytest.StashKey[bool]()
_HERE = Path(__file__).parent


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--all", action="store_true", help="Run all tests, not only the quick tier.")


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """Run the quick tier in two processes, unless the command names tests or a number."""
    if config.args_source is pytest.Config.ArgsSource.ARGS:
        return
    if not config.option.all:
        config.args[:] = [str(_HERE / name) for name in QUICK]
    # The processes that run the tests get the same command, and must not start more of themselves.
    if hasattr(config, "workerinput"):
        return
    config.stash[_IS_QUICK] = not config.option.all
    options = config.option
    if getattr(options, "numprocesses", 0) is None and not options.usepdb:
        options.numprocesses, options.dist = 2, "loadfile"
        options.loadscopereorder = False


def pytest_unconfigure(config: pytest.Config) -> None:
    # After the summary, which otherwise is the last line of a run.
    if config.stash.get(_IS_QUICK, False):
        print(HINT)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "plpgsql_check: needs a server with plpgsql_check")
    config.stash[_ENGINE] = choose_engine()
    # A signal that is ignored where the tests were started, in the background or under nohup, would
    # be ignored by the commands that they start, too.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGHUP, signal.SIGTERM):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)


def pytest_report_header(config: pytest.Config) -> list[str]:
    engine = config.stash[_ENGINE]
    left_out = [
        f"notifyq: tests marked {mark} are left out: {why}" for mark, why in engine.lacks.items()
    ]
    return [f"notifyq: database engine {engine.kind}", *left_out]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    lacks = config.stash[_ENGINE].lacks
    left_out = [item for item in items if any(mark.name in lacks for mark in item.iter_markers())]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]


def pytest_collection_finish() -> None:
    # Otherwise every collection traverses modules and thousands of collected tests.
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def dockercompose_command() -> str:
    return compose_command() or "docker compose"


@pytest.fixture(scope="session")
def docker_compose_file(pytestconfig: pytest.Config) -> str:
    return str(pytestconfig.rootpath / "docker-compose.yml")


@pytest.fixture(scope="session")
def docker_compose_project_name() -> str:
    return f"notifyqtest{os.getpid()}"


@pytest.fixture(scope="session")
def docker_setup() -> list[str]:
    return ["up -d --build db"]


@pytest.fixture(scope="session")
def docker_cleanup() -> list[str]:
    return ["down -v --remove-orphans -t 5"]


def _accepts(dsn: str) -> bool:
    async def connect() -> None:
        async with session(dsn):
            pass

    try:
        asyncio.run(connect())
    except (OSError, asyncpg.PostgresError, TimeoutError):
        return False
    return True


@contextmanager
def _compose(request: pytest.FixtureRequest) -> Iterator[str]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NOTIFYQ_DB_PORT", "")  # the engine picks a free one
        services = request.getfixturevalue("docker_services")
        host = request.getfixturevalue("docker_ip")
        port = services.port_for("db", 5432)
        dsn = f"postgresql://postgres:{quote(_PASSWORD, safe='')}@{host}:{port}/notifyq"
        services.wait_until_responsive(lambda: _accepts(dsn), timeout=120, pause=0.2)
        yield dsn


@pytest.fixture(scope="session")
def server(request: pytest.FixtureRequest) -> Iterator[str]:
    """Give the address of the server's own database, the one that pg_cron serves, if any."""
    engine = request.config.stash[_ENGINE]
    if engine.kind == "url":
        yield os.environ["NOTIFYQ_TEST_DSN"]
    elif engine.kind == "docker":
        with _compose(request) as dsn:
            yield dsn
    else:
        with private_server(
            debian_binaries() if engine.kind == "debian" else wheel_binaries()
        ) as dsn:
            yield dsn


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def template(server: str, pytestconfig: pytest.Config) -> AsyncIterator[str]:
    """Give the name of a database with the schema installed, to which nobody is connected."""
    name = f"{_RUN}_template"
    async with session(server) as admin:
        version = await admin.fetchval("show server_version")
        cron = await admin.fetchval(
            "select default_version from pg_available_extensions where name = 'pg_cron'"
        )
        _report(pytestconfig, f"PostgreSQL {version}, pg_cron {cron or 'absent'}")
        await admin.execute(f'create database "{name}" template template0')
        async with session(with_database(server, name)) as connection:
            await install(connection)
            await guard_bounds(connection)
        yield name
        await drop_database(admin, name)


def _report(config: pytest.Config, line: str) -> None:
    reporter: Any = config.pluginmanager.get_plugin("terminalreporter")
    capture: Any = config.pluginmanager.get_plugin("capturemanager")
    if reporter and capture:
        with capture.global_and_fixture_disabled():
            reporter.ensure_newline()
            reporter.write_line(f"notifyq: {line}")


@pytest.fixture(scope="session")
def databases(server: str, template: str) -> Iterator[Databases]:
    with closing(Databases(server, template, _RUN)) as databases:
        yield databases


@pytest.fixture
def database(databases: Databases) -> Iterator[str]:
    """Give the address of a database as a fresh install leaves it."""
    with databases.lend() as dsn:
        yield dsn


@pytest.fixture
async def empty_database(server: str) -> AsyncIterator[str]:
    """Give the address of a fresh database without the schema, gone after the test."""
    name = f"{_RUN}_empty_{next(_numbers)}"
    async with session(server) as admin:
        await admin.execute(f'create database "{name}" template template0')
        yield with_database(server, name)
        await drop_database(admin, name)


@pytest.fixture
async def connect(database: str) -> AsyncIterator[Connect]:
    """Give a function that opens one more session, closed after the test."""
    async with AsyncExitStack() as stack:

        async def open_one(**options: Any) -> Connection:
            connection = await open_session(database, **options)
            stack.push_async_callback(_close, connection)
            return connection

        yield open_one


async def _close(connection: Connection) -> None:
    # A test may leave a statement waiting for a lock that another session holds: terminating does
    # not wait for an answer.
    if connection.is_in_transaction():
        connection.terminate()
    else:
        await connection.close(timeout=10)


@pytest.fixture
async def connection(connect: Connect) -> Connection:
    """Give a session in the database of the test."""
    return await connect()


@pytest.fixture
async def notifications(connect: Connect) -> Notifications:
    """Give a listener in a session of its own that receives all notifications from now on."""
    notifications = Notifications(await connect())
    await notifications.listen()
    return notifications


@pytest.fixture
def notices(connection: Connection) -> Notices:
    """Give the notices of the server to the session of the test."""
    return Notices(connection)


@pytest.fixture
def events() -> Events:
    """Give a telemetry handler that can be waited on."""
    return Events()


@pytest.fixture
async def app(database: str) -> AsyncIterator[App]:
    """Give an App that gives up on a lost server after 30 s."""
    app = App(database, retry_for=30)
    yield app
    await app.close()


@pytest.fixture
def claims(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Give a list with the queues of every claim that is sent."""
    claims: list[list[str]] = []
    send = Database.fetch

    async def fetch(self: Database, statement: str, *args: Any) -> Any:
        if statement == sql.CLAIM:
            claims.append(args[0])
        return await send(self, statement, *args)

    monkeypatch.setattr(Database, "fetch", fetch)
    return claims


@pytest.fixture
async def mortal_server() -> AsyncIterator[Server]:
    """Give a server with the schema that keeps data and port when it is stopped and started."""
    with kept_server() as server:
        async with session(await asyncio.to_thread(server.start)) as connection:
            await install(connection)
        yield server


@pytest.fixture
async def watched_loop() -> AsyncIterator[None]:
    """Fail a test that leaves tasks running or errors in the event loop."""
    loop = asyncio.get_running_loop()
    unseen: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda _, context: unseen.append(context))
    # asyncpg requests TLS and drops the future of the answer when that connection is reset.
    of_asyncpg = "unexpected connection_lost() call"
    before = asyncio.all_tasks()
    yield
    left = asyncio.all_tasks() - before - {asyncio.current_task()}
    if left:
        # Tasks that are being cancelled, and async generators that are being closed, need a moment.
        _, left = await asyncio.wait(left, timeout=10)
    for task in left:
        task.cancel()
    gc.collect()  # a task reports an unretrieved error when it is collected
    assert not left, f"tasks are left running: {left}"
    ours = [context for context in unseen if str(context.get("exception")) != of_asyncpg]
    assert not ours, f"errors reached the event loop: {ours}"


@pytest.fixture(autouse=True)
def leak_guard(request: pytest.FixtureRequest) -> None:
    """Watch the loop of every test that has one."""
    function = getattr(request.node, "function", None)
    if inspect.iscoroutinefunction(function):
        request.getfixturevalue("watched_loop")
