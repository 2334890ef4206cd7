"""The functions of schema messages compared with a model, in random runs of hypothesis.

NOTIFYQ_MODEL_EXAMPLES=5000 makes 5000 runs, different ones each time.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing, contextmanager

import asyncpg
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from notifyq.testing.plugin import cloned
from stateful.bench import Session
from stateful.machine import Machine
from support.database import INIT_FILES

EXAMPLES = int(os.environ.get("NOTIFYQ_MODEL_EXAMPLES", "0"))
_BASE = settings(
    deadline=None,
    database=None,
    print_blob=True,
    suppress_health_check=list(HealthCheck),
    report_multiple_bugs=False,
)
# The same runs each time by default: a failure is then caused by the change.
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
        "queue/locks.sql",
        "attempts = greatest(m.attempts, -2147483647) - 1,",
        "attempts = m.attempts,",
    ),
    "cancel ends what is locked": (
        "queue/change.sql",
        "and (cancel_all.running or m.state <> 'locked')\n",
        "\n",
    ),
    "extend needs no token": (
        "queue/locks.sql",
        "select g.id, g.lock_token, 'locked'::messages.message_state\n"
        "        from unnest(extend_many.ids, extend_many.lock_tokens)",
        "select g.id, m.lock_token, 'locked'::messages.message_state\n"
        "        from unnest(extend_many.ids, extend_many.lock_tokens)",
    ),
    "a message has one attempt too many": (
        "queue/finish.sql",
        "h.attempts >= h.most",
        "h.attempts > h.most",
    ),
    "a claim takes locked rows": (
        "queue/find.sql",
        "limit find_messages.quantity - cardinality(v_ids)\n      for update skip locked",
        "limit find_messages.quantity - cardinality(v_ids)",
    ),
    "a duplicate gets no id": (
        "queue/publish.sql",
        "exit when v_id is not null;\n    if publish.dedup_key is null then",
        "exit when v_id is not null or publish.dedup_key is not null;\n"
        "    if publish.dedup_key is null then",
    ),
}


# The machine finds these within seconds, the others in a long run.
_QUICK = {"release burns an attempt", "cancel ends what is locked", "retry keeps the token"}


def mutated(name: str) -> str:
    """The text of the file that a mutant changes."""
    (path,) = (path for path in INIT_FILES if path.match(MUTANTS[name][0]))
    return path.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_applies_once(name: str) -> None:
    assert mutated(name).count(MUTANTS[name][1]) == 1


@pytest.mark.timeout(0 if EXAMPLES else 180)
@pytest.mark.parametrize("name", [name for name in MUTANTS if EXAMPLES or name in _QUICK])
def test_the_machine_finds_a_mutant(server: str, template: str, name: str) -> None:
    _, right, wrong = MUTANTS[name]
    text = mutated(name)
    with machines(server, template) as machine:
        ours = machine.session
        ours.run(ours.ours.execute(text.replace(right, wrong)))
        # The server may raise an error first.
        with pytest.raises((AssertionError, asyncpg.PostgresError)):
            run_state_machine_as_test(machine, settings=HUNT)
