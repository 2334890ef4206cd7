"""The parts of faults: clocks that step, and full disks."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from notifyq.chaos.faults import machine

needs_clock = pytest.mark.skipif(machine.library() is None, reason="needs libfaketime")
needs_mount = pytest.mark.skipif(machine.lacking() is not None, reason=str(machine.lacking()))

_CLOCKS = """
import sys, time
for _ in sys.stdin:
    print(time.time(), time.monotonic(), flush=True)
"""


@needs_clock
def test_a_step_changes_the_calendar_of_a_running_process_and_nothing_else(
    request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    steered = machine.Clock(tmp_path / f"notifyq-test-clock-{os.getpid()}")
    request.addfinalizer(steered.remove)
    steered.make()
    with subprocess.Popen(
        [sys.executable, "-c", _CLOCKS],
        env=os.environ | steered.environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:

        def offsets() -> tuple[float, float]:
            assert process.stdin is not None
            assert process.stdout is not None
            print(file=process.stdin, flush=True)
            calendar, monotonic = map(float, process.stdout.readline().split())
            return calendar - time.time(), monotonic - time.monotonic()

        for step in (3600, -300):
            steered.step(step)
            deadline = time.monotonic() + 10
            while abs(offsets()[0] - step) > 2 and time.monotonic() < deadline:
                pass
            calendar, monotonic = offsets()
            assert calendar == pytest.approx(step, abs=2)
            assert monotonic == pytest.approx(0, abs=2)


@needs_mount
def test_a_small_disk_is_full_until_it_is_relieved(tmp_path: Path) -> None:
    folder = tmp_path / "disk"
    folder.mkdir(mode=0o751)
    disk = machine.SmallDisk(folder, 4)
    try:
        assert folder.is_mount()
        assert folder.stat().st_mode & 0o777 == 0o751
        disk.fill()
        with pytest.raises(OSError, match="No space left"):
            (folder / "more").write_bytes(bytes(8192))
        disk.relieve()
        (folder / "more").write_bytes(bytes(8192))
        open_file = (folder / "more").open("rb")
    finally:
        disk.unmount()
    with open_file:
        assert not folder.is_mount()
    assert not list(folder.iterdir())
