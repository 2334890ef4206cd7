"""A private server's life: first use, address, restart, end."""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import asyncpg
import pytest

from notifyq.errors import ServerError
from notifyq.server import Server, debian_binaries, development, home, wheel_binaries
from server.starters import Program

DSN_OF = """
import sys
from pathlib import Path
from notifyq.server import Server
print(Server(Path(sys.argv[1])).dsn)
"""


async def fetch_value(dsn: str, query: str) -> object:
    connection = await asyncpg.connect(dsn)
    try:
        return await connection.fetchval(query)
    finally:
        await connection.close()


@pytest.mark.parametrize("find", [wheel_binaries, debian_binaries])
async def test_throwaway_server_answers_and_leaves_nothing(
    find: Callable[[], Path | None], spot: Path
) -> None:
    binaries = find()
    if binaries is None:
        pytest.skip("these programs are not installed")
    with Server(spot / "server", binaries=binaries, database="a b", throwaway=True) as server:
        assert await fetch_value(server.dsn, "select current_database()") == "a b"
        assert await fetch_value(server.dsn, "show fsync") == "off"
    assert not server.directory.exists()
    server.stop()


async def test_restart_keeps_the_data(server: Server) -> None:
    with server:
        await fetch_value(server.dsn, "create table kept as select 42 as answer")
        assert await fetch_value(server.dsn, "show fsync") == "on"
    assert server.running is None
    with server:
        assert await fetch_value(server.dsn, "select answer from kept") == 42


async def test_restart_keeps_the_port_while_it_is_free(server: Server) -> None:
    with server:
        before = server.dsn
        await fetch_value(before, "select 1")
    with server:
        assert server.dsn == before
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(("127.0.0.1", urlsplit(before).port or 0))
        other.listen()
        with server:
            after = server.dsn
            assert after != before
            await fetch_value(after, "select 1")
    with server:
        assert server.dsn == after


async def test_password_is_required_and_private(server: Server) -> None:
    dsn = server.start()
    password = (server.directory / "password").read_text()
    with pytest.raises(asyncpg.InvalidPasswordError):
        await fetch_value(dsn.replace(password, "guess"), "select 1")
    assert await fetch_value(dsn, "show listen_addresses") == "127.0.0.1"
    assert await fetch_value(dsn, "show unix_socket_directories") == ""
    server.stop()
    for name, mode in {"password": 0o600, "log": 0o600, "data": 0o700}.items():
        assert stat.S_IMODE((server.directory / name).stat().st_mode) == mode
    assert not list(server.directory.glob("secret*"))


async def test_settings_override_the_defaults(server: Server) -> None:
    few = {"max_connections": "7"}
    with Server(server.directory, binaries=server.binaries, settings=few) as small:
        assert await fetch_value(small.dsn, "show max_connections") == "7"


@pytest.mark.cron
async def test_cron_is_loaded_where_it_is_installed(spot: Path) -> None:
    server = Server(spot / "server", binaries=debian_binaries(), throwaway=True)
    if not server.has_cron:
        pytest.skip("no pg_cron")
    with server:
        await fetch_value(server.dsn, "create extension pg_cron")
        assert await fetch_value(server.dsn, "show cron.use_background_workers") == "on"


def test_second_start_joins_the_running_server(server: Server) -> None:
    dsn = server.start()
    other = Server(server.directory, binaries=server.binaries)
    with other:
        assert other.dsn == dsn
        assert not other.started_here
    assert server.running
    server.stop()
    assert Server(server.directory).running is None
    server.stop()


def test_dsn_is_known_to_other_processes(server: Server, program: Program) -> None:
    with server:
        assert program.output(DSN_OF, server.directory) == server.dsn
    with pytest.raises(ServerError, match="notifyq server start"):
        _ = server.dsn


def test_delete_removes_data_and_password(server: Server) -> None:
    server.start()
    server.delete()
    assert Server(server.directory).running is None
    assert {path.suffix for path in server.directory.iterdir()} == {".lock"}
    with server:
        assert server.running


def test_log_is_cut_when_it_has_grown(server: Server) -> None:
    with server:
        pass
    with (server.directory / "log").open("ab") as log:
        log.truncate(10_000_001)
    with server:
        assert (server.directory / "log").stat().st_size < 100_000


def test_home_is_chosen_by_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOTIFYQ_HOME", "/somewhere")
    assert home() == development().directory == Path("/somewhere")
    monkeypatch.delenv("NOTIFYQ_HOME")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert home() == Path("/var/lib/notifyq")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setenv("XDG_DATA_HOME", "/data")
    assert home() == Path("/data/notifyq")
