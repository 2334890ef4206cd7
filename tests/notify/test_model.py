"""Notifications and wake-ups, proved: spin visits all states of the models; every mutant fails.

It needs Debian's packages spin and gcc. With NOTIFYQ_REQUIRE_SPIN=1, as in .ci/run, it is an error
that they are missing.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import pytest

MODELS = {path.stem: path for path in Path(__file__).parents[1].glob("*/*.pml")}
NEEDED = ("spin", "gcc")
MISSING = [program for program in NEEDED if not shutil.which(program)]
if MISSING and os.environ.get("NOTIFYQ_REQUIRE_SPIN") == "1":
    pytest.fail(f"not installed: {', '.join(MISSING)}", pytrace=False)

pytestmark = [
    pytest.mark.skipif(
        bool(MISSING),
        reason=f"THE PROOF OF THE WAKE-UPS IS SKIPPED: install {' and '.join(NEEDED)}",
    ),
    # The first test waits for the searches of all of them.
    pytest.mark.timeout(600),
]

MOST_MEGABYTES = 4000

PROTOCOLS = [
    "suppression CAP=1",
    "suppression CAP=2 FEWER=1",
    "suppression CAP=1 FEWER=1 STOP",
    "suppression CAP=1 FEWER=1 CRASH",
    "wake_slots SLOTS=1 MESSAGES=2",
    "wake_slots SLOTS=2 MESSAGES=2",
    "wake_slots SLOTS=1 MESSAGES=1 WORKERS=4",
    "wake_slots SLOTS=1 MESSAGES=1 CRASH",
    "wake_up KILLS=3 WAKES=2",
    "wake_up MESSAGES=2 WAKES=0",
    "wake_up WAITS=2",
    "wake_up WAITS=2 TO_ONE",
]

LOST = r"assertion violated .*waiting==0"
HELD = r"assertion violated +!\(\(holder=="
PARKED = r"assertion violated \(state\["
TWICE = r"assertion violated \((receipts|received)\["
ALL_ASLEEP = r"assertion violated .*asleep==0\)\|\|\(slot"

MUTANTS = {
    "suppression CAP=1 NEVER_NOTIFY": LOST,
    "suppression CAP=1 KEY_BEFORE_ROW": LOST,
    "suppression CAP=1 SNAPSHOT_BEFORE_RELEASE": LOST,
    "suppression CAP=1 SNAPSHOT_OF_ENDED": LOST,
    "suppression CAP=1 NO_WAIT": LOST,
    "suppression CAP=1 NO_WAIT_AFTER_TIMEOUT": LOST,
    "suppression CAP=1 POLL_BEFORE_WAIT": LOST,
    "suppression CAP=1 NO_LAST_POLL": LOST,
    "suppression CAP=1 CLEAR_BEFORE_SLEEP": LOST,
    "suppression CAP=1 SLEEP_SUPPRESSING": HELD,
    "suppression CAP=1 NO_WAKE_WHILE_FULL": LOST,
    "suppression CAP=1 NO_WAKE_AT_HAND_OVER": LOST,
    "suppression CAP=1 NO_WAKE_AFTER_POLL": LOST,
    "suppression CAP=1 STOP NO_WAKE_AT_STOP": LOST,
    "suppression CAP=1 STOP NO_WAIT_AFTER_WAKE": LOST,
    "suppression CAP=1 CRASH NO_POLL": LOST,
    "wake_slots SLOTS=2 MESSAGES=2 WAKE_IF_WAITING": ALL_ASLEEP,
    "wake_slots SLOTS=2 MESSAGES=3 LOSS_ONLY WAKE_IF_WAITING": LOST,
    "wake_slots SLOTS=2 MESSAGES=2 EXCLUSIVE_CHECK": ALL_ASLEEP,
    "wake_slots SLOTS=2 MESSAGES=3 LOSS_ONLY EXCLUSIVE_CHECK": LOST,
    "wake_slots SLOTS=2 MESSAGES=2 CHECK_TO_THE_END": ALL_ASLEEP,
    "wake_slots SLOTS=2 MESSAGES=2 CHECK_BEFORE_RELEASE": ALL_ASLEEP,
    "wake_slots SLOTS=1 MESSAGES=2 NO_WAKE": ALL_ASLEEP,
    "wake_slots SLOTS=1 MESSAGES=2 KEEP_SLOT": LOST,
    "wake_slots SLOTS=1 MESSAGES=2 SLOT_AFTER_POLL": LOST,
    "wake_slots SLOTS=1 MESSAGES=2 CLEAR_AFTER_SLOT": ALL_ASLEEP,
    "wake_slots SLOTS=1 MESSAGES=1 CRASH NO_POLL": ALL_ASLEEP,
    "wake_up KILLS=0 WAKES=0 NO_ROW": PARKED,
    "wake_up NO_RECORD": TWICE,
    "wake_up TO_ONE NO_RECORD": PARKED,
    "wake_up KILLS=0 WAKES=0 NO_CHECK_OF_SIGNALS": PARKED,
    "wake_up KILLS=0 WAKES=0 NO_CHECK_OF_WAITS": PARKED,
    "wake_up WAKES=0 CHECK_FORGOTTEN": PARKED,
    "wake_up KILLS=0 NOT_NEW_AGAIN": PARKED,
    "wake_up WAKES=0 PARK_BEFORE_WAIT": PARKED,
    "wake_up ATTEMPT_COUNTED": r"assertion violated \(attempts\[",
    "wake_up WAITS=2 TO_ONE NO_DELETE": TWICE,
}


@dataclass(frozen=True)
class Search:
    """What the search over all states has found."""

    errors: int
    states: int
    text: str


Searches: TypeAlias = "dict[str, Future[Search]]"


def verify(run: str, folder: Path) -> Search:
    """Search all states of a run, which is a model's name and what is defined for it."""
    model, *defines = run.split()
    folder.mkdir()
    _call(folder, "spin", *(f"-D{define}" for define in defines), "-a", MODELS[model])
    # No warnings about generated code; -O2 takes longer to compile than it saves.
    _call(
        folder, "gcc", "-O1", "-w", "-DSAFETY", f"-DMEMLIM={MOST_MEGABYTES}", "-o", "pan", "pan.c"
    )
    text = _call(folder, folder / "pan", "-m1000000")
    shutil.rmtree(folder)
    errors, states = re.search(r"errors: (\d+)", text), re.search(r"(\d+) states, stored", text)
    assert errors, text
    assert states, text
    # A search that was cut short proves nothing.
    cut_short = re.search(r"max search depth too small|MEMLIM|out of memory|Interrupted", text)
    assert not cut_short, text
    return Search(int(errors[1]), int(states[1]), text)


def _call(folder: Path, *command: str | Path) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def searches(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Searches]:
    """Give the search of each run that is selected; as many at once as there are processors."""
    here = [item for item in request.session.items if item.path == Path(__file__)]
    calls = [item.callspec for item in here if hasattr(item, "callspec")]
    wanted = [call.params["run"] for call in calls if "run" in call.params]
    folder = tmp_path_factory.mktemp("spin")
    pool = ThreadPoolExecutor(os.cpu_count())
    yield {run: pool.submit(verify, run, folder / re.sub(r"[ =]", "_", run)) for run in wanted}
    pool.shutdown(cancel_futures=True)


@pytest.mark.parametrize("run", PROTOCOLS)
def test_the_protocol_holds_in_all_states(searches: Searches, run: str) -> None:
    search = searches[run].result()
    print(f"{run}: {search.states} states")
    assert search.errors == 0, search.text
    assert search.states > 10_000


@pytest.mark.parametrize("run", MUTANTS)
def test_every_mutant_breaks_a_guarantee(searches: Searches, run: str) -> None:
    search = searches[run].result()
    assert search.errors > 0, search.text
    assert re.search(MUTANTS[run], search.text), search.text


@pytest.mark.parametrize("model", MODELS)
def test_every_mutant_of_a_model_is_run(model: str) -> None:
    text = MODELS[model].read_text(encoding="utf-8")
    known = set(re.findall(r"(?:#ifn?def |defined\()([A-Z_]+)", text))
    used = {word.partition("=")[0] for run in (*PROTOCOLS, *MUTANTS) for word in run.split()[1:]}
    assert known - used <= {"PUBLISHERS", "WORKERS", "MESSAGES", "CAP", "SLOTS", "FEWER", "WAITS"}
