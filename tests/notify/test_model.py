"""The protocol of the bell, proved: spin visits all states of the models, and every mutant fails.

Wants Debian's packages spin and gcc. NOTIFYQ_REQUIRE_SPIN=1, as .ci/run has it, makes it an error
that they are missing.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

HERE = Path(__file__).parent
NEEDED = ("spin", "gcc")
MISSING = [program for program in NEEDED if not shutil.which(program)]
if MISSING and os.environ.get("NOTIFYQ_REQUIRE_SPIN") == "1":
    pytest.fail(f"not installed: {', '.join(MISSING)}", pytrace=False)

pytestmark = [
    pytest.mark.skipif(
        bool(MISSING),
        reason=f"THE PROOF OF THE BELL IS LEFT OUT: install the packages {' and '.join(NEEDED)}",
    ),
    # The first test waits for what the machine has to do for all of them.
    pytest.mark.timeout(600),
]

MOST_MEGABYTES = 4000

PROTOCOLS = [
    "bell CAP=1",
    "bell CAP=2 FEWER=1",
    "bell CAP=1 FEWER=1 STOP",
    "bell CAP=1 FEWER=1 CRASH",
    "watch PLACES=1 MESSAGES=2",
    "watch PLACES=2 MESSAGES=2",
    "watch PLACES=1 MESSAGES=1 WORKERS=4",
    "watch PLACES=1 MESSAGES=1 CRASH",
]

LOST = r"assertion violated .*waiting==0"
HELD = r"assertion violated +!\(\(holder=="
DEAF = r"assertion violated .*asleep==0\)\|\|\(place"

MUTANTS = {
    "bell CAP=1 SILENT_ALWAYS": LOST,
    "bell CAP=1 KEY_BEFORE_ROW": LOST,
    "bell CAP=1 SNAPSHOT_BEFORE_RELEASE": LOST,
    "bell CAP=1 SNAPSHOT_OF_ENDED": LOST,
    "bell CAP=1 NO_SETTLING": LOST,
    "bell CAP=1 NO_SETTLING_AFTER_TIMEOUT": LOST,
    "bell CAP=1 LOOK_BEFORE_SETTLING": LOST,
    "bell CAP=1 NO_LAST_LOOK": LOST,
    "bell CAP=1 CLEAR_BEFORE_SLEEP": LOST,
    "bell CAP=1 SLEEP_ATTENDING": HELD,
    "bell CAP=1 NO_SUMMON_WHILE_FULL": LOST,
    "bell CAP=1 NO_SUMMON_AT_HAND_OVER": LOST,
    "bell CAP=1 NO_SUMMON_AFTER_LOOK": LOST,
    "bell CAP=1 STOP NO_SUMMON_AT_STOP": LOST,
    "bell CAP=1 STOP NO_SETTLING_AFTER_SUMMONS": LOST,
    "bell CAP=1 CRASH NO_POLL": LOST,
    "watch PLACES=2 MESSAGES=2 SUMMON_IF_WAITING": DEAF,
    "watch PLACES=2 MESSAGES=3 LOSS_ONLY SUMMON_IF_WAITING": LOST,
    "watch PLACES=2 MESSAGES=2 EXCLUSIVE_CHECK": DEAF,
    "watch PLACES=2 MESSAGES=3 LOSS_ONLY EXCLUSIVE_CHECK": LOST,
    "watch PLACES=2 MESSAGES=2 CHECK_TO_THE_END": DEAF,
    "watch PLACES=2 MESSAGES=2 CHECK_BEFORE_RELEASE": DEAF,
    "watch PLACES=1 MESSAGES=2 NO_SUMMON": DEAF,
    "watch PLACES=1 MESSAGES=2 NO_UNWATCH": LOST,
    "watch PLACES=1 MESSAGES=2 PLACE_AFTER_LOOK": LOST,
    "watch PLACES=1 MESSAGES=2 CLEAR_AFTER_WATCH": DEAF,
    "watch PLACES=1 MESSAGES=1 CRASH NO_POLL": DEAF,
}


@dataclass(frozen=True)
class Verdict:
    """What the search over all states has found."""

    errors: int
    states: int
    text: str


Verdicts: TypeAlias = "dict[str, Future[Verdict]]"


def verify(run: str, folder: Path) -> Verdict:
    """Search all states of a run, which is a model's name and what is defined for it."""
    model, *defines = run.split()
    folder.mkdir()
    _call(folder, "spin", *(f"-D{define}" for define in defines), "-a", HERE / f"{model}.pml")
    # What spin generates is not ours to be warned of; -O2 takes longer to compile than it saves.
    _call(
        folder, "gcc", "-O1", "-w", "-DSAFETY", f"-DMEMLIM={MOST_MEGABYTES}", "-o", "pan", "pan.c"
    )
    text = _call(folder, folder / "pan", "-m1000000")
    shutil.rmtree(folder)
    errors, states = re.search(r"errors: (\d+)", text), re.search(r"(\d+) states, stored", text)
    assert errors, text
    assert states, text
    # A search that was cut short has found nothing, but says nothing of the rest either.
    cut_short = re.search(r"max search depth too small|MEMLIM|out of memory|Interrupted", text)
    assert not cut_short, text
    return Verdict(int(errors[1]), int(states[1]), text)


def _call(folder: Path, *command: str | Path) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def verdicts(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Verdicts]:
    """Give the verdict on each run that was asked for; as many as there are processors at once."""
    here = [item for item in request.session.items if item.path == Path(__file__)]
    calls = [item.callspec for item in here if hasattr(item, "callspec")]
    wanted = [call.params["run"] for call in calls if "run" in call.params]
    folder = tmp_path_factory.mktemp("spin")
    pool = ThreadPoolExecutor(os.cpu_count())
    yield {run: pool.submit(verify, run, folder / re.sub(r"[ =]", "_", run)) for run in wanted}
    pool.shutdown(cancel_futures=True)


@pytest.mark.parametrize("run", PROTOCOLS)
def test_the_protocol_keeps_its_promises_in_all_states(verdicts: Verdicts, run: str) -> None:
    verdict = verdicts[run].result()
    print(f"{run}: {verdict.states} states")
    assert verdict.errors == 0, verdict.text
    assert verdict.states > 10_000


@pytest.mark.parametrize("run", MUTANTS)
def test_a_protocol_that_leaves_something_out_breaks_a_promise(
    verdicts: Verdicts, run: str
) -> None:
    verdict = verdicts[run].result()
    assert verdict.errors > 0, verdict.text
    assert re.search(MUTANTS[run], verdict.text), verdict.text


@pytest.mark.parametrize("model", ["bell", "watch"])
def test_every_mutant_of_a_model_is_run(model: str) -> None:
    text = (HERE / f"{model}.pml").read_text(encoding="utf-8")
    known = set(re.findall(r"(?:#ifn?def |defined\()([A-Z_]+)", text))
    used = {word.partition("=")[0] for run in (*PROTOCOLS, *MUTANTS) for word in run.split()[1:]}
    assert known - used <= {"PUBLISHERS", "WORKERS", "MESSAGES", "CAP", "PLACES", "FEWER"}
