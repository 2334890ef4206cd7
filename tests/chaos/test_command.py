"""`notifyq chaos` as a program: what it lists, refuses, runs, checks again, and leaves behind."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cli.programs import NOTIFYQ, environment
from notifyq.chaos.final import Final, Row
from notifyq.chaos.history import History
from notifyq.cli import main as cli
from notifyq.server import wheel_binaries


def programs() -> dict[str, str]:
    """Name the programs of the engine under test; by default the command takes Debian's."""
    found = wheel_binaries()
    is_embedded = os.environ.get("NOTIFYQ_TEST_ENGINE") == "embedded" and found
    return {"NOTIFYQ_PG_BIN": str(found)} if is_embedded else {}


@pytest.fixture
def folder() -> Iterator[Path]:
    """Give a folder for all that a run makes, which the server's user can pass through."""
    path = Path(tempfile.mkdtemp(prefix="notifyq-test-"))
    path.chmod(0o711)
    yield path
    shutil.rmtree(path, ignore_errors=True)


def at_work(folder: Path) -> list[int]:
    """Name the processes whose working folder is in `folder`: servers and workers."""
    found = []
    for link in Path("/proc").glob("[0-9]*/cwd"):
        try:
            if link.readlink().is_relative_to(folder):
                found.append(int(link.parent.name))
        except OSError:  # it has gone
            continue
    return found


Chaos = Callable[..., tuple[int, str, str]]


@pytest.fixture
def chaos(capfd: pytest.CaptureFixture[str]) -> Chaos:
    """Give the command, run in this process: exit code and what was printed."""

    def invoke(*arguments: str) -> tuple[int, str, str]:
        code = cli._invoke(["chaos", *arguments], debug=False)
        return code, *capfd.readouterr()

    return invoke


def test_the_faults_are_listed(chaos: Chaos) -> None:
    code, out, _ = chaos("--list")
    assert code == 0
    assert {"worker-kill", "failover", "soak"} <= {line.split()[0] for line in out.splitlines()}


@pytest.mark.parametrize(
    ("faults", "reason"),
    [
        ("worker-kil", "there is no fault 'worker-kil': did you mean 'worker-kill'?"),
        ("reapers,earthquake", "there is no fault 'earthquake', see --list"),
        (",", "--faults names no fault"),
    ],
)
def test_an_unknown_fault_is_refused(chaos: Chaos, faults: str, reason: str) -> None:
    code, _, err = chaos("--faults", faults)
    assert code == 2
    assert reason in err


@pytest.mark.timeout(120)
def test_a_run_reports_and_leaves_nothing(folder: Path) -> None:
    output = folder / "output"
    options = ["--faults", "worker-kill", "--minutes", "0", "--seed", "5"]
    done = subprocess.run(
        [*NOTIFYQ, "chaos", *options, "--output", str(output)],
        capture_output=True,
        text=True,
        check=False,
        env=environment(TMPDIR=str(folder), **programs()),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr.startswith("seed 5\n")

    report = json.loads((output / "report.json").read_text())
    assert (report["seed"], report["ok"]) == (5, True)
    [row] = report["faults"]
    assert row["result"]["attempts"] == row["result"]["acknowledged"] > 50
    assert [row["result"][name] for name in ("lost", "unexpected", "doubled_archive")] == [0] * 3
    assert row["figures"]["times"] == len(row["injections"]) >= 3
    assert row["figures"]["recovery max s"] > 0
    assert report["machine"] in done.stdout

    assert not at_work(folder)
    assert list(folder.iterdir()) == [output]


def test_a_kept_history_is_checked_again(chaos: Chaos, tmp_path: Path) -> None:
    folder = tmp_path
    with History(folder, "publisher-1") as history:
        call = history.invoke("publish", key="k", queue="quick", digest="d")
        call.ok(id=1)
    with History(folder, "worker-1.1") as history:
        message = {"id": 1, "lock_token": 1, "attempts": 1}
        instants = {"locked_at": None, "lock_expires_at": None}
        history.note("claim", messages=[message | instants])
    row = Row(id=1, queue="quick", lock_token=1, attempts=1, key="k", digest="d", status="success")
    Final(archive=[row], max_attempts={"quick": 1}).write(folder)
    assert chaos("--check", str(folder))[:2] == (0, "ok: 1 messages, no guarantee broken\n")

    Final(archive=[row, row], max_attempts={"quick": 1}).write(folder)
    code, out, _ = chaos("--check", str(folder))
    assert code == 1
    assert out == "I2: message 1 is archived 2 times\n"

    Final(max_attempts={"quick": 1}).write(folder)
    code, out, _ = chaos("--check", str(folder))
    assert code == 1
    assert out == "lost: message 1, acknowledged to publisher-1, is missing\n"


def test_a_folder_without_a_history_is_an_error(chaos: Chaos, tmp_path: Path) -> None:
    code, _, err = chaos("--check", str(tmp_path))
    assert code == 1
    assert "has no complete history" in err
