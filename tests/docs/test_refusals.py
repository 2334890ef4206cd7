"""The table of refused calls in the errors' reference is the policy, and what tests refuse."""

from __future__ import annotations

import re

import asyncpg
import pytest

from archive import test_dead_letters as dead_letters
from broker import test_refusals as broker
from docs.pages import DOCS
from notifyq.database.pool import explained
from notifyq.database.refusals import concerns_all, is_refusal
from notifyq.database.retry import is_passing
from operations.dashboard import test_refusals as dashboard
from operations.top import test_refusals as top
from relay import test_refusals as relay
from support.refusing import LIMITED, OF_ALL
from worker import test_refusals as worker

TESTS = {
    "worker": worker.CALLS,
    "relay": relay.CALLS,
    "broker": broker.CALLS,
    "`notifyq dead watch`": dead_letters.CALLS,
    "`dead_letters()`": dead_letters.CALLS,
    "`notifyq top`": top.CALLS,
    "dashboard": dashboard.CALLS,
}


def rows(first: str) -> list[list[str]]:
    """Give the cells of the table of refused calls whose first column has this name."""
    page = (DOCS / "reference/errors.md").read_text()
    _, _, section = page.partition("## Refused calls\n")
    [table] = re.findall(rf"^\| {first} \|.*\n\| ---.*\n((?:\|.*\n)+)", section, re.MULTILINE)
    return [[cell.strip() for cell in row.split("|")[1:-1]] for row in table.splitlines()]


def test_each_process_has_the_calls_that_tests_refuse() -> None:
    documented: dict[str, set[str]] = {}
    for processes, _, functions, *_ in rows("process"):
        for process in processes.split(", "):
            documented.setdefault(process, set()).update(re.findall(r"`(\w+)`", functions))
    tested = {name: {it.partition(".")[2] for it in calls} for name, calls in TESTS.items()}
    assert documented == tested


def kind(sqlstate: str) -> str:
    """Give what the policy makes of an error of the server."""
    error = asyncpg.PostgresError.new({"C": sqlstate, "M": "refused"})
    ours = explained(error, "postgresql://localhost/x") or error
    if is_passing(error):
        return "retries"
    assert is_refusal(ours)
    return "ends" if concerns_all(ours) else "goes on"


@pytest.mark.parametrize(("states", "_example", "does"), rows("SQLSTATEs"))
def test_each_sqlstate_is_handled_as_documented(states: str, _example: str, does: str) -> None:
    for state in states.split(", "):
        assert does.startswith(kind(state)), state


def test_each_sqlstate_of_the_tests_is_in_the_table() -> None:
    documented = {state for row in rows("SQLSTATEs") for state in row[0].split(", ")}
    tested = {*worker.STATES, *worker.PASSING, *OF_ALL, *LIMITED}
    # A dropped and a denied queue need no raised error.
    assert documented - {"NQ001", "NQ007"} == tested
