"""The functions of schema messages against a model of them, over runs that hypothesis makes up.

NOTIFYQ_MODEL_EXAMPLES=5000 makes that many runs, other ones each time.
"""

from __future__ import annotations

import os
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

import asyncpg
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from notifyq.testing.plugin import cloned
from stateful.bench import Session
from stateful.machine import Machine
from support.database import INIT_FILES

if TYPE_CHECKING:
    from collections.abc import Iterator

EXAMPLES = int(os.environ.get("NOTIFYQ_MODEL_EXAMPLES", "0"))
_BASE = settings(
    deadline=None,
    database=None,
    print_blob=True,
    suppress_health_check=list(HealthCheck),
    report_multiple_bugs=False,
)
# The same runs each time where nothing else is asked for: a red run is one of the change.
CALM = settings(_BASE, max_examples=50, stateful_step_count=40, derandomize=True)
LONG = settings(_BASE, max_examples=max(EXAMPLES, 1), stateful_step_count=60)
# A failure need not be made small.
HUNT = settings(
    _BASE, max_examples=400, stateful_step_count=50, derandomize=True, phases=[Phase.generate]
)


@contextmanager
def machines(server: str, template: str) -> Iterator[type[Machine]]:
    """Give a machine with a database of its own."""
    with cloned(server, template, f"{template}_model") as dsn, closing(Session(dsn)) as ours:
        yield type("Bound", (Machine,), {"session": ours})


@pytest.mark.timeout(0 if EXAMPLES else 180)
def test_the_functions_do_what_the_model_does(server: str, template: str) -> None:
    with machines(server, template) as machine:
        run_state_machine_as_test(machine, settings=LONG if EXAMPLES else CALM)


MUTANTS = {
    "retry keeps the token": (
        "queue/finish.sql",
        "lock_token = least(m.lock_token, 9223372036854775806) + 1,\n      available_at",
        "available_at",
    ),
    "the lowest priority goes first": (
        "queue/find.sql",
        "order by m.priority desc, m.id",
        "order by m.priority, m.id",
    ),
    "release burns an attempt": (
        "queue/settle.sql",
        "attempts = greatest(m.attempts, -2147483647) - 1,",
        "attempts = m.attempts,",
    ),
    "cancel ends what is locked": (
        "queue/settle.sql",
        "and m.state <> 'locked'\n  for update skip locked",
        "for update skip locked",
    ),
    "extend asks for no token": (
        "queue/settle.sql",
        "select g.id, g.lock_token, 'locked'::messages.message_state\n"
        "        from unnest(extend_many.ids, extend_many.lock_tokens)",
        "select g.id, m.lock_token, 'locked'::messages.message_state\n"
        "        from unnest(extend_many.ids, extend_many.lock_tokens)",
    ),
    "the reaper counts no attempts": (
        "maintenance/maintain.sql",
        "where e.attempts < q.max_attempts",
        "where e.attempts <= q.max_attempts",
    ),
    "a claim waits for no commit": (
        "queue/find.sql",
        "      limit _look.quantity - cardinality(v_ids)\n      for update skip locked",
        "      limit _look.quantity - cardinality(v_ids)",
    ),
    "a key is free too soon": (
        "queue/publish.sql",
        "    exit when v_id is not null;\n    select m.id",
        "    exit when true;\n    select m.id",
    ),
}


# The machine finds these within seconds; the others when there is time for a long run.
_QUICK = {"release burns an attempt", "cancel ends what is locked", "retry keeps the token"}


@pytest.mark.timeout(0 if EXAMPLES else 180)
@pytest.mark.parametrize("name", [name for name in MUTANTS if EXAMPLES or name in _QUICK])
def test_a_change_of_what_they_do_is_found(server: str, template: str, name: str) -> None:
    file, right, wrong = MUTANTS[name]
    (path,) = (path for path in INIT_FILES if path.match(file))
    text = path.read_text(encoding="utf-8")
    assert right in text
    with machines(server, template) as machine:
        ours = machine.session
        ours.run(ours.ours.execute(text.replace(right, wrong)))
        # The server may be the first to object.
        with pytest.raises((AssertionError, asyncpg.PostgresError)):
            run_state_machine_as_test(machine, settings=HUNT)
