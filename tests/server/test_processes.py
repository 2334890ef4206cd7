"""Who may start and stop a server, and that none is left behind."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from notifyq.errors import ServerError
from notifyq.server import Server
from notifyq.server.folder import Folder, Starter
from notifyq.server.locks import wait_until
from server.starters import Program, first_line

START = """
import sys, signal, threading
from pathlib import Path
from notifyq.server import Server
server = Server(Path(sys.argv[1]), binaries=Path(sys.argv[2]))
how = sys.argv[3]
if how == "thread":
    thread = threading.Thread(target=server.start)
    thread.start()
    thread.join()
else:
    server.start(detached=how == "detached")
print(server.running, flush=True)
if how == "detached":
    sys.exit()
signal.pause()
"""

needs_pidfd = pytest.mark.skipif(sys.platform != "linux", reason="needs pidfd")


@needs_pidfd
@pytest.mark.parametrize("how", ["main", "thread"])
def test_the_server_ends_with_a_killed_starter(
    how: str, server: Server, program: Program, ends: Callable[[int], bool]
) -> None:
    with program.popen(START, server.directory, server.binaries, how) as starter:
        pid = int(first_line(starter))
        assert server.running == pid
        starter.kill()
    assert ends(pid)
    assert server.running is None


@pytest.mark.parametrize("how", ["main", "thread"])
def test_start_right_after_a_killed_starter_waits_for_its_server(
    how: str, server: Server, program: Program
) -> None:
    with program.popen(START, server.directory, server.binaries, how) as starter:
        old = int(first_line(starter))
        starter.kill()
        with server:
            assert server.running not in {None, old}
    assert not Folder(server.directory).in_use


@needs_pidfd
def test_detached_server_outlives_its_starter(
    server: Server, program: Program, ends: Callable[[int], bool]
) -> None:
    pid = int(program.output(START, server.directory, server.binaries, "detached"))
    assert server.running == pid
    with server:
        assert not server.started_here
    assert server.running == pid
    server.stop(force=True)
    assert ends(pid)


def test_concurrent_first_starts_make_one_server(
    spot: Path, binaries: Path, program: Program
) -> None:
    server = Server(spot / "server", binaries=binaries)
    starters = [
        program.popen(START, server.directory, server.binaries, "detached") for _ in range(2)
    ]
    found = {starter.communicate(timeout=40)[0] for starter in starters}
    assert found == {f"{server.running}\n"}
    server.stop(force=True)


def test_server_of_another_live_process_is_not_joined(server: Server, program: Program) -> None:
    with program.popen(START, server.directory, server.binaries, "main") as starter:
        pid = int(first_line(starter))
        with pytest.raises(ServerError, match=f"process {starter.pid} .* `notifyq server start`"):
            server.start()
        assert server.running == pid
        server.stop()
        assert server.running == pid
        server.stop(force=True)
        assert not Folder(server.directory).in_use
        starter.kill()


def test_ordinary_user_starts_a_server(spot: Path, binaries: Path, nobody: Program) -> None:
    directory = spot / "server"
    assert nobody.output(
        "import sys; from pathlib import Path; from notifyq.server import Server\n"
        "with Server(Path(sys.argv[1]), binaries=Path(sys.argv[2])) as server:\n"
        "    print(Path('/proc', str(server.running)).stat().st_uid)",
        directory,
        binaries,
    ) == str(nobody.user)
    with pytest.raises(ServerError, match="belongs to user nobody"):
        Server(directory).start()
    with pytest.raises(ServerError, match="belongs to user nobody"):
        _ = Server(directory).state


def test_server_of_root_is_closed_to_others(server: Server, nobody: Program) -> None:
    with server:
        answer = nobody.output(
            "import sys; from pathlib import Path; from notifyq.server import Server\n"
            "try: Server(Path(sys.argv[1])).dsn\n"
            "except Exception as error: print(type(error).__name__, error)",
            server.directory,
        )
    assert answer.startswith("ServerError")
    assert "belongs to user root" in answer


def test_a_zombie_starter_does_not_run(program: Program) -> None:
    if not Path("/proc/self/stat").exists():
        pytest.skip("needs /proc")
    with program.popen("pass") as process:
        starter = Starter(pid=process.pid, detached=False, version="18.6")
        assert wait_until(lambda: not starter.alive, 20)
        assert process.poll() == 0
    assert not starter.alive


def test_copy_of_the_server_object_in_a_fork_does_not_stop_it(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    with server:
        monkeypatch.setattr("notifyq.server.server.os.getpid", lambda: 1)
        server.stop()
        monkeypatch.undo()
        assert Server(server.directory).running
