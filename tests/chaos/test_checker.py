"""The checker: what it accepts, which violations it finds, and which histories are unusable."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from chaos.corruption import CORRUPTIONS, Corruption
from chaos.mutants import MUTANTS, Mutant
from chaos.simulation import Simulation
from notifyq.chaos.checker import CheckResult, check
from notifyq.chaos.final import Final, Row
from notifyq.chaos.history import Op

ACTIONS = st.lists(
    st.tuples(st.sampled_from(Simulation.ACTIONS), st.integers(0, 100)), min_size=8, max_size=60
)


class Script:
    """A history written by hand: one call after the other."""

    def __init__(self) -> None:
        self.ops: list[Op] = []

    def __call__(self, op: str, end: str | None = "ok", /, *, by: str = "w", **fields: Any) -> None:
        """A call with its end, of the type given; None: it has no end."""
        number = len(self.ops)
        given = {name: fields.pop(name) for name in ("id", "held", "messages") if name in fields}
        if op != "publish" and "id" in given:
            fields["id"] = given.pop("id")
        self._line(op, "invoke", number, by, fields)
        if end is not None:
            self._line(op, end, number, by, given)

    def note(self, op: str, **fields: Any) -> None:
        self._line(op, "ok", None, "rig", fields)

    def publish(self, id_: int | None = 1, end: str | None = "ok", key: str | None = None) -> None:
        """Publish; a message has the key `k<id>` by default, and the digest `d<id>`."""
        answer: dict[str, Any] = {"id": id_} if end == "ok" else {}
        self("publish", end, key=key or f"k{id_}", queue="q", digest=f"d{id_}", **answer)

    def claim(self, token: int, at: int, until: int, *, id_: int = 1, by: str = "w") -> None:
        """Claim one message, locked from one second to another."""
        message = {
            "id": id_, "lock_token": token, "attempts": 1,
            "locked_at": instant(at), "lock_expires_at": instant(until),
        }  # fmt: skip
        self("claim", messages=[message], by=by)

    def execute(self, token: int, end: str | None = "ok", id_: int = 1, **fields: Any) -> None:
        common: dict[str, Any] = {"id": id_, "lock_token": token, "attempts": 1, "key": f"k{id_}"}
        self("execute", end, **(common | {"digest": f"d{id_}"} | fields))

    def settle(self, op: str, token: int, *, held: bool | None, id_: int = 1, **f: Any) -> None:
        """Settle; with held None nobody knows how it ended."""
        answer: dict[str, Any] = {} if held is None else {"held": held}
        self(op, "unknown" if held is None else "ok", id=id_, lock_token=token, **answer, **f)

    def finish(self, token: int, *, held: bool | None = True, id_: int = 1, **f: Any) -> None:
        self.settle("finish", token, held=held, id_=id_, **({"status": "success"} | f))

    def _line(self, op: str, type_: str, call: int | None, by: str, fields: Any) -> None:
        at = float(len(self.ops))
        self.ops.append(Op(at, by, op, type_, call, fields))


def instant(seconds: int) -> str:
    return f"2026-01-01T00:{seconds // 60:02}:{seconds % 60:02}+00:00"


def row(token: int = 1, id_: int = 1, **fields: Any) -> Row:
    common: dict[str, Any] = {"id": id_, "queue": "q", "lock_token": token, "attempts": 1}
    return Row(**(common | {"key": f"k{id_}", "digest": f"d{id_}", "status": "success"} | fields))


def final(*archive: Row, live: tuple[Row, ...] = (), most: int = 3) -> Final:
    return Final(archive=archive, live=live, max_attempts={"q": most})


def broken(result: CheckResult) -> list[str]:
    return sorted({violation.invariant for violation in result.violations})


@pytest.fixture
def script() -> Script:
    """Give a history in which message 1 was published, and nothing else."""
    script = Script()
    script.publish()
    return script


def test_a_handled_message_is_no_violation(script: Script) -> None:
    script.claim(1, 0, 10)
    script.execute(1)
    script.finish(1)
    result = check(script.ops, final(row()))
    assert result.ok
    assert result == CheckResult(attempts=1, acknowledged=1)


def test_an_acknowledged_message_that_is_nowhere_is_lost(script: Script) -> None:
    script.publish(2)
    script.claim(1, 0, 10)
    result = check(script.ops, final(row()))
    assert broken(result) == ["lost"]
    assert (result.attempts, result.acknowledged, result.lost) == (2, 2, 1)


@pytest.mark.parametrize("end", ["unknown", None])
def test_without_an_answer_a_message_may_be_there_or_not(script: Script, end: str | None) -> None:
    script.publish(2, end)
    script.publish(3, end)
    script.claim(1, 0, 10)
    script.claim(1, 0, 10, id_=2)
    result = check(script.ops, final(row(), row(id_=2)))
    assert result.ok
    assert (result.attempts, result.acknowledged, result.recovered) == (3, 1, 1)


def test_each_try_of_a_publication_explains_one_message(script: Script) -> None:
    for end in ("unknown", "fail"):
        script.publish(2, end, key="k2")
    script.claim(1, 0, 10)
    script.claim(1, 0, 10, id_=2)
    script.claim(1, 0, 10, id_=3)
    result = check(script.ops, final(row(), row(id_=2), row(id_=3, key="k2", digest="d2")))
    assert broken(result) == ["unexpected"]
    assert (result.recovered, result.unexpected) == (1, 1)


def test_what_was_refused_or_never_published_is_unexpected(script: Script) -> None:
    script.publish(2, "fail")
    script.execute(1)
    script.execute(1, id_=3)
    result = check(script.ops, final(row(), row(id_=2)))
    assert broken(result) == ["unexpected"]
    assert result.unexpected == 2


def test_a_message_in_both_tables_breaks_i1(script: Script) -> None:
    script.claim(1, 0, 10)
    result = check(script.ops, final(row(), live=(row(status=None, state="locked"),)))
    assert broken(result) == ["I1", "unusable"]


def test_two_archived_rows_of_a_message_break_i2(script: Script) -> None:
    script.claim(1, 0, 10)
    result = check(script.ops, final(row(), row(status="lock_expired")))
    assert broken(result) == ["I2"]
    assert result.doubled_archive == 1


def test_an_archived_token_that_is_not_the_last_breaks_i3(script: Script) -> None:
    script.claim(1, 0, 10)
    script.claim(3, 20, 30)
    assert broken(check(script.ops, final(row(1)))) == ["I3"]
    assert check(script.ops, final(row(3))).ok


def test_a_token_that_was_not_granted_breaks_i3_if_all_claims_are_known(script: Script) -> None:
    script.claim(1, 0, 10)
    assert broken(check(script.ops, final(row(2)))) == ["I3"]
    script("claim", None)
    assert check(script.ops, final(row(2))).ok


@pytest.mark.parametrize(("op", "invariant"), [("release", "I3"), ("extend", "I5")])
def test_a_call_under_a_token_that_was_followed_by_another_must_be_refused(
    script: Script, op: str, invariant: str
) -> None:
    script.claim(1, 0, 10)
    script.claim(3, 20, 30)
    script.settle(op, 1, held=False)
    assert check(script.ops, final(row(3))).ok
    script.settle(op, 1, held=True)
    assert broken(check(script.ops, final(row(3)))) == [invariant]


def test_a_token_that_falls_or_comes_twice_breaks_i4(script: Script) -> None:
    script.claim(3, 0, 10)
    script.claim(1, 20, 30)
    assert broken(check(script.ops, final(row(3)))) == ["I4"]
    script.ops[-1].fields["messages"][0]["lock_token"] = 3
    assert broken(check(script.ops, final(row(3)))) == ["I4"]


def test_two_locks_that_stand_together_break_i5(script: Script) -> None:
    script.claim(1, 0, 10)
    script.claim(3, 9, 19)
    assert broken(check(script.ops, final(row(3)))) == ["I5"]
    script.ops[-1].fields["messages"][0]["locked_at"] = instant(10)
    assert check(script.ops, final(row(3))).ok


def test_an_extension_that_was_confirmed_prolongs_a_lock(script: Script) -> None:
    script.claim(1, 0, 10)
    script.settle("extend", 1, held=True, lock_expires_at=instant(20))
    script.claim(3, 15, 25)
    assert broken(check(script.ops, final(row(3)))) == ["I5"]
    script.ops[5] = replace(script.ops[5], type="unknown")
    assert check(script.ops, final(row(3))).ok


def test_an_extension_may_also_shorten_a_lock(script: Script) -> None:
    script.claim(1, 0, 60)
    script.settle("extend", 1, held=True, lock_expires_at=instant(20))
    script.claim(3, 20, 30)
    assert check(script.ops, final(row(3))).ok


@pytest.mark.parametrize("is_settled_twice", [False, True])
def test_a_lock_is_given_up_once(script: Script, is_settled_twice: bool) -> None:
    script.claim(1, 0, 10)
    script.settle("release", 1, held=True)
    script.settle("retry", 1, held=is_settled_twice)
    script.claim(3, 20, 30)
    assert broken(check(script.ops, final(row(3)))) == (["I3"] if is_settled_twice else [])


@pytest.mark.parametrize("op", ["release", "retry", "finish"])
@pytest.mark.parametrize(("held", "excused"), [(True, True), (None, True), (False, False)])
def test_a_lock_that_may_have_been_given_up_excuses_the_next(
    script: Script, op: str, held: bool | None, excused: bool
) -> None:
    script.claim(1, 0, 10)
    script.settle(op, 1, held=held, status="success")
    script.claim(3, 5, 15)
    assert ("I5" not in broken(check(script.ops, final(row(3))))) is excused


def test_a_lock_that_is_given_up_after_the_next_was_granted_excuses_nothing(script: Script) -> None:
    script.claim(1, 0, 10)
    script.claim(3, 5, 15)
    script.settle("release", 1, held=None)
    assert broken(check(script.ops, final(row(3)))) == ["I5"]


@pytest.mark.parametrize("index", [2, 3, 4])
def test_a_stepped_clock_excuses_overlapping_locks(script: Script, index: int) -> None:
    script.claim(1, 0, 10)
    script.claim(3, 5, 15)
    assert broken(check(script.ops, final(row(3)))) == ["I5"]
    for shift, type_ in ((-0.5, "invoke"), (0.5, "ok")):
        at = script.ops[index].at + shift
        script.ops.append(Op(at, "rig", "clock", type_, 1, {}))
    assert check(script.ops, final(row(3))).ok


def test_a_clock_stepped_at_another_time_excuses_nothing(script: Script) -> None:
    script.note("clock")
    script.claim(1, 0, 10)
    script.claim(3, 5, 15)
    script.note("clock")
    assert broken(check(script.ops, final(row(3)))) == ["I5"]


def test_a_worker_without_recorded_claims_may_settle_after_its_handler(script: Script) -> None:
    script.execute(1, "fail", locked_at=instant(0), lock_expires_at=instant(10))
    script.execute(3, locked_at=instant(5), lock_expires_at=instant(15))
    result = check(script.ops, final(row(3)))
    assert result.ok
    assert result.doubled_execution == 1


@pytest.mark.parametrize("start", [4, 10])
def test_a_killed_worker_leaves_its_lock_to_expire(script: Script, start: int) -> None:
    script.execute(1, None, locked_at=instant(0), lock_expires_at=instant(10))
    script.execute(3, locked_at=instant(start), lock_expires_at=instant(25))
    assert broken(check(script.ops, final(row(3)))) == (["I5"] if start < 10 else [])


def test_one_lock_is_used_once(script: Script) -> None:
    script.execute(1)
    script.execute(1)
    assert broken(check(script.ops, final(row()))) == ["I5"]


def test_a_claim_too_many_breaks_i6_even_if_it_was_not_counted(script: Script) -> None:
    script.claim(1, 0, 10)
    script.claim(3, 20, 30)
    assert broken(check(script.ops, final(row(3), most=1))) == ["I6"]
    script.settle("release", 1, held=None)
    assert check(script.ops, final(row(3), most=1)).ok
    assert broken(check(script.ops, final(row(3, attempts=2), most=1))) == ["I6"]


@pytest.mark.parametrize("digest", ["d1", "another"])
def test_a_payload_that_changed_breaks_i7(script: Script, digest: str) -> None:
    script.execute(1, digest=digest)
    expected = [] if digest == "d1" else ["I7"]
    assert broken(check(script.ops, final(row(digest=digest)))) == expected


def test_a_payload_that_lost_its_key_is_still_known_by_its_id(script: Script) -> None:
    script.claim(1, 0, 10)
    assert broken(check(script.ops, final(row(key=None)))) == []
    assert broken(check(script.ops, final(row(key=None, digest=None)))) == []
    assert broken(check(script.ops, final(row(key=None, digest="another")))) == ["I7"]


def test_each_message_dead_after_the_watcher_began_is_reported() -> None:
    script = Script()
    script.publish(1)
    script.note("watch")
    script.publish(2)
    script.note("watch")
    script.claim(1, 0, 10)
    script.claim(1, 0, 10, id_=2)
    rows = (row(status="failed"), row(id_=2, status="rejected"))
    assert broken(check(script.ops, final(*rows))) == ["I8"]
    script.note("dead", id=2)
    assert check(script.ops, final(*rows)).ok
    script.note("dead", id=1)
    assert check(script.ops, final(*rows)).ok
    assert broken(check(script.ops, final(row(), rows[1]))) == ["I8"]


def test_a_message_that_is_not_claimed_before_the_deadline_breaks_i9(script: Script) -> None:
    script.publish(2)
    script.claim(1, 0, 10)
    script.note("deadline")
    script.publish(3)
    script.claim(1, 0, 10, id_=2)
    script.claim(1, 0, 10, id_=3)
    result = check(script.ops, final(row(), row(id_=2), row(id_=3)))
    assert [(it.invariant, it.message) for it in result.violations] == [
        ("I9", "message 2 was not claimed until the deadline")
    ]


def test_a_failed_drain_with_waiting_messages_breaks_i9(script: Script) -> None:
    script.publish(2)
    script.claim(1, 0, 10)
    script("drain", "fail")
    waiting = row(0, id_=2, status=None, state="waiting")
    assert broken(check(script.ops, final(row(), live=(waiting,)))) == ["I9", "unusable"]


@pytest.mark.parametrize("held", [True, False, None])
@pytest.mark.parametrize(
    "found",
    [row(), row(status="lock_expired"), row(2), None],
    ids=["same", "status", "token", "none"],
)
def test_a_finish_that_was_confirmed_is_in_the_archive(
    script: Script, held: bool | None, found: Row | None
) -> None:
    script("claim", None)
    script.claim(1, 0, 10)
    script.finish(1, held=held)
    result = check(script.ops, final(*([found] if found else [])))
    is_false = bool(held) and found != row()
    assert result.false_acknowledgement == is_false
    assert ("false_acknowledgement" in broken(result)) is is_false


def test_a_history_that_proves_nothing_is_no_success(script: Script) -> None:
    assert [it.message for it in check([], final()).violations] == ["the history is empty"]
    unanswered = Script()
    unanswered.publish(1, "unknown")
    assert [it.message for it in check(unanswered.ops, final()).violations] == [
        "no message was acknowledged"
    ]
    assert [it.message for it in check(script.ops, final(row(0))).violations] == [
        "no message was claimed or executed"
    ]


@pytest.mark.parametrize("end", ["fail", "unknown", None])
@pytest.mark.parametrize("op", ["fault", "drain"])
def test_a_run_that_broke_off_is_no_success(script: Script, op: str, end: str | None) -> None:
    script.claim(1, 0, 10)
    script(op, end, name="worker-kill")
    result = check(script.ops, final(row()))
    assert [(it.invariant, it.message) for it in result.violations] == [
        ("unusable", f"{op} worker-kill did not complete")
    ]


def simulate(actions: list[tuple[str, int]]) -> Simulation:
    simulation = Simulation()
    simulation.publish(0)
    for action, choice in actions:
        getattr(simulation, action)(choice)
    simulation.drain()
    return simulation


@given(ACTIONS)
@settings(max_examples=200, deadline=None)
def test_whatever_a_correct_queue_does_is_accepted(actions: list[tuple[str, int]]) -> None:
    simulation = simulate(actions)
    assert check(simulation.ops, simulation.final).violations == []


@pytest.mark.parametrize(
    ("corruption", "invariant"), CORRUPTIONS.items(), ids=[it.__name__ for it in CORRUPTIONS]
)
@given(actions=ACTIONS, choice=st.integers(0, 1000))
@settings(max_examples=25, deadline=None)
def test_one_violation_is_found(
    corruption: Corruption, invariant: str, actions: list[tuple[str, int]], choice: int
) -> None:
    simulation = simulate(actions)
    cases = list(corruption(simulation.ops, simulation.final))
    assume(cases)
    ops, found = cases[choice % len(cases)]
    assert invariant in broken(check(ops, found))


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda it: it.name)
def test_each_mutant_of_the_schema_still_applies(mutant: Mutant) -> None:
    """In the quick tier: those who change the SQL must notice at once."""
    assert mutant.texts()
