"""The rig itself: it sees what goes wrong, repeats what a seed decides, and measures recovery."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path

import pytest

from notifyq.chaos.checker import judge
from notifyq.chaos.faults import Fault, catalogue
from notifyq.chaos.history import Call, percentile, recoveries
from notifyq.chaos.kinds import payload
from notifyq.chaos.rig import Rig
from notifyq.chaos.run import Report, Row, Run
from notifyq.chaos.server import until
from notifyq.server import wheel_binaries


class Naps(Fault):
    """Pauses workers in an order, and for times, that the seed decides."""

    name = "naps"
    rate = 40

    async def inject(self, rig: Rig) -> None:
        """Pause eight."""
        for _ in range(8):
            worker = rig.random.choice(rig.workers)
            seconds = rig.random.uniform(0, 0.05)
            with rig.injecting(self.name, victim=worker.name, seconds=seconds):
                worker.pause()
                await rig.pause(seconds)
                worker.resume()


class Theft(Fault):
    """Takes an archived message away."""

    name = "theft"

    async def inject(self, rig: Rig) -> None:
        """Wait for one, and take it."""
        async with rig.connection() as connection:
            await until(
                lambda: connection.fetchval("select exists (select from messages.message_archive)"),
                "a message is archived",
            )
            await connection.execute("""
                delete from messages.message_archive
                where id = (select min(id) from messages.message_archive)
            """)


class Collapse(Fault):
    """Ends with an error of its own."""

    name = "collapse"

    async def inject(self, rig: Rig) -> None:
        """Fail."""
        rig.workers[0].pause()
        raise ZeroDivisionError


@pytest.mark.timeout(120)
async def test_the_rig_sees_what_goes_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if os.environ.get("NOTIFYQ_TEST_ENGINE") == "embedded":
        monkeypatch.setenv("NOTIFYQ_PG_BIN", str(wheel_binaries()))
    reported: list[Row] = []
    faults = [Naps(), Naps(), Collapse(), Theft()]
    run = Run(faults=faults, seed=3, seconds=1, workers=2, kept=tmp_path, report=reported.append)
    report = await run.run()
    first, second, collapse, theft = report.faults
    assert reported == report.faults

    assert (first.findings, second.findings) == ([], [])
    assert len({it["victim"] for it in first.injections}) == 2
    assert first.injections == second.injections

    assert collapse.findings == ["the fault did not complete: ZeroDivisionError()"]
    assert theft.findings[0].startswith("lost: message ")
    assert not report.ok
    again = "theft: again: notifyq chaos --seed 3 --faults theft --workers 2 --minutes 0.0167"
    assert again in report.remarks()
    assert theft.history == str(tmp_path / "theft")
    assert judge(tmp_path / "theft").lost == 1


def test_every_fault_has_a_name_and_a_title() -> None:
    known = catalogue()
    assert len(known) >= 26
    assert all(name == fault.name for name, fault in known.items())
    assert all(fault.title for fault in known.values())


def test_a_seed_repeats_the_messages() -> None:
    first, second = (
        [payload(random.Random(seed), kind) for kind in ("quick", "flaky", "outlive")]
        for seed in (7, 7)
    )
    assert first == second
    assert payload(random.Random(8), "quick") not in first


def call(op: str, process: str, began: float, ended: float | None, **fields: object) -> Call:
    outcome = "unknown" if ended is None else "ok"
    return Call(op, process, began, ended, outcome, dict(fields))


def test_recovery_of_a_victim_counts_what_it_held() -> None:
    history = [
        call("claim", "worker-1.1", 1, 1, messages=[{"id": 1}, {"id": 2}, {"id": 3}]),
        call("finish", "worker-1.1", 2, 2, id=1, held=True),
        call("fault", "rig", 3, 4, victim="worker-1.1"),
        call("execute", "worker-2.1", 5, 6, id=2),
        call("execute", "worker-2.1", 5.5, 6, id=1),
        call("execute", "worker-2.1", 7, None, id=2),
    ]
    assert recoveries(history) == [2]


def test_recovery_of_an_outage_counts_from_its_end_to_a_claim() -> None:
    history = [
        call("fault", "rig", 3, 4, outage=True),
        call("claim", "worker-1.1", 3, 3.5, messages=[{"id": 1}]),
        call("claim", "worker-1.1", 4.1, 4.2, messages=[]),
        call("claim", "worker-1.1", 4.3, 4.5, messages=[{"id": 2}]),
    ]
    assert recoveries(history) == [0.5]


def test_percentiles_are_values_that_occurred() -> None:
    assert percentile([3, 1, 2], 0.5) == 2
    assert percentile([3, 1, 2], 1) == 3


def test_a_skipped_fault_breaks_nothing(tmp_path: Path) -> None:
    row = Row(fault="disk-full", skipped="needs root")
    report = Report(seed=1, workers=2, seconds=3, machine="here", faults=[row])
    report.write(tmp_path)
    assert json.loads((tmp_path / "report.json").read_text())["ok"]
    assert row.cells()[-1] == "skipped: needs root"
