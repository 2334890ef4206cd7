"""`notifyq chaos` as a program: what it lists, refuses, runs, judges again, and leaves behind."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from cli.programs import NOTIFYQ, environment
from notifyq.chaos.final import Final, Row
from notifyq.chaos.history import History
from notifyq.chaos.kept import keep
from notifyq.cli import main as cli
from notifyq.server import wheel_binaries
from support.database import until

if TYPE_CHECKING:
    from collections.abc import Iterator


def programs() -> dict[str, str]:
    """Name the programs of the engine under test; by default the command takes Debian's."""
    found = wheel_binaries()
    is_asked_for = os.environ.get("NOTIFYQ_TEST_ENGINE") == "embedded" and found
    return {"NOTIFYQ_PG_BIN": str(found)} if is_asked_for else {}


@pytest.fixture
def place() -> Iterator[Path]:
    """Give a folder for all that a run makes, which the server's user can pass through."""
    path = Path(tempfile.mkdtemp(prefix="notifyq-test-"))
    path.chmod(0o711)
    yield path
    shutil.rmtree(path, ignore_errors=True)


def start(place: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*NOTIFYQ, "chaos", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(TMPDIR=str(place), **programs()),
    )


def at_work(place: Path) -> list[int]:
    """Name the processes whose working folder is in `place`: servers and workers."""
    found = []
    for link in Path("/proc").glob("[0-9]*/cwd"):
        try:
            if link.readlink().is_relative_to(place):
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
def test_a_run_reports_and_leaves_nothing(place: Path) -> None:
    output = place / "output"
    options = ["--faults", "worker-kill", "--minutes", "0", "--seed", "5"]
    process = start(place, *options, "--output", str(output))
    out, err = process.communicate()
    assert process.returncode == 0, out + err
    assert err.startswith("seed 5\n")

    report = json.loads((output / "report.json").read_text())
    assert (report["seed"], report["ok"]) == (5, True)
    [row] = report["faults"]
    assert row["verdict"]["attempts"] == row["verdict"]["acknowledged"] > 50
    assert [row["verdict"][name] for name in ("lost", "unexpected", "doubled_archive")] == [0] * 3
    assert row["figures"]["kills"] == len(row["injections"]) >= 3
    assert row["recovery"]["max"] is not None
    assert "| worker-kill | " in (output / "report.md").read_text()
    assert report["machine"] in (output / "report.txt").read_text()

    assert not at_work(place)
    assert list(place.iterdir()) == [output]


@pytest.mark.timeout(120)
async def test_an_interrupted_run_leaves_nothing(place: Path) -> None:
    process = start(place, "--faults", "worker-pause", "--minutes", "5")

    async def is_at_work() -> bool:
        assert process.poll() is None
        return any(place.glob("*/history/worker-pause/worker-*.jsonl"))

    await until(is_at_work, "a worker writes its history", 60)
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate()
    assert process.returncode == 143, err
    assert not at_work(place)
    assert list(place.iterdir()) == []


def test_a_kept_history_is_judged_again(chaos: Chaos, tmp_path: Path) -> None:
    place = tmp_path
    with History(place, "publisher-1") as history:
        call = history.invoke("publish", key="k", queue="quick", digest="d")
        call.ok(id=1)
    with History(place, "worker-1.1") as history:
        message = {"id": 1, "lock_token": 1, "attempts": 1}
        instants = {"locked_at": None, "lock_expires_at": None}
        history.note("claim", messages=[message | instants])
    row = Row(id=1, queue="quick", lock_token=1, attempts=1, key="k", digest="d", status="success")
    keep(Final(archive=[row], max_attempts={"quick": 1}), place)
    assert chaos("--check", str(place))[:2] == (0, "ok: 1 messages, no promise broken\n")

    keep(Final(archive=[row, row], max_attempts={"quick": 1}), place)
    code, out, _ = chaos("--check", str(place))
    assert code == 1
    assert out == "I2: message 1 is archived 2 times\n"

    keep(Final(max_attempts={"quick": 1}), place)
    code, out, _ = chaos("--check", str(place))
    assert code == 1
    assert out == "lost: message 1, acknowledged to publisher-1, is nowhere\n"


def test_what_is_no_history_cannot_be_judged(chaos: Chaos, tmp_path: Path) -> None:
    code, _, err = chaos("--check", str(tmp_path))
    assert code == 1
    assert "has no history that came to its end" in err
