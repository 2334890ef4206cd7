"""The checker: what it accepts, which violations it finds, and which histories are unusable."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

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

    def claim(
        self, token: int, at: int, until: int, *, id_: int = 1, by: str = "w", attempts: int = 1
    ) -> None:
        """Claim one message, locked from one second to another."""
        message = {
            "id": id_, "lock_token": token, "attempts": attempts,
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


Step: TypeAlias = Callable[[Script], None]


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
    assert check(script.ops, final(row())) == CheckResult(attempts=1, acknowledged=1)


def test_the_counts_of_a_result(script: Script) -> None:
    script.publish(2)
    script.claim(1, 0, 10)
    result = check(script.ops, final(row(), row()))
    assert (result.attempts, result.acknowledged, result.lost) == (2, 2, 1)
    assert (broken(result), result.doubled_archive) == (["I2", "lost"], 1)


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
    for id_ in (1, 2, 3):
        script.claim(1, 0, 10, id_=id_)
    result = check(script.ops, final(row(), row(id_=2), row(id_=3, key="k2", digest="d2")))
    assert broken(result) == ["unexpected"]
    assert (result.recovered, result.unexpected) == (1, 1)


def test_what_was_refused_or_never_published_is_unexpected(script: Script) -> None:
    script.publish(2, "fail")
    script.execute(1)
    script.execute(1, id_=3)
    result = check(script.ops, final(row(), row(id_=2)))
    assert (broken(result), result.unexpected) == (["unexpected"], 2)


def locks(at: int, *, until: int = 10, then: Step | None = None, last: Step | None = None) -> Step:
    """Message 1 is locked under token 1, later under token 3; `then` between, `last` after."""

    def steps(s: Script) -> None:
        s.claim(1, 0, until)
        (then or nothing)(s)
        s.claim(3, at, at + 10)
        (last or nothing)(s)

    return steps


def settle(op: str, *, held: bool | None, token: int = 1, **fields: Any) -> Step:
    return lambda s: s.settle(op, token, held=held, **({"status": "success"} | fields))


def nothing(_: Script) -> None:
    pass


def executed(at: int, end: str | None) -> Step:
    """Two executions of a worker whose claims are not recorded."""

    def steps(s: Script) -> None:
        s.execute(1, end, locked_at=instant(0), lock_expires_at=instant(10))
        s.execute(3, locked_at=instant(at), lock_expires_at=instant(at + 10))

    return steps


def then(*steps: Step) -> Step:
    def each(s: Script) -> None:
        for step in steps:
            step(s)

    return each


def claim(token: int, at: int) -> Step:
    return lambda s: s.claim(token, at, at + 10)


def execute(**fields: Any) -> Step:
    return lambda s: s.execute(1, **fields)


def again(attempts: int) -> Step:
    """Message 1 is released, and claimed as this attempt."""
    released = settle("release", held=True)
    return then(one, released, lambda s: s.claim(3, 20, 30, attempts=attempts))


def charge(end: str | None = "ok") -> Step:
    return lambda s: s("step", end, id=1, step="charge")


def signal(end: str | None = "ok", to: int | None = None, payload: str = "p") -> Step:
    return lambda s: s("signal", end, name="go", to=to, payload=payload)


def wait(name: str = "wait", **found: Any) -> Step:
    """A wait of message 1 parks it, or has found this."""
    end, answer = ("fail", found) if found else ("ok", {"held": True})
    lock: dict[str, Any] = {"id": 1, "lock_token": 1, "step": name, "signals": ["go"]}
    return lambda s: s("release", end, **lock | answer)


def child(number: int) -> Step:
    """Message 1 has published a child without an answer; so many are found."""

    def steps(s: Script) -> None:
        one(s)
        for _ in range(2):
            s("publish", "unknown", key="k2", queue="q", digest="d2", parent=1)
        for id_ in range(2, 2 + number):
            s.claim(1, 0, 10, id_=id_)

    return steps


RECEIVED: dict[str, Any] = {"received": ["go", "p"]}
one = claim(1, 0)
UNKNOWN_CLAIM: Step = lambda s: s("claim", None)  # noqa: E731
EXTENDED = settle("extend", held=True, lock_expires_at=instant(20))
LAST = final(row(3))
BOTH = final(row(), live=(row(status=None, state="locked"),))
PARKED = final(row(), live=(row(1, id_=2, status=None, state="scheduled", is_parked=True),))
WAITING = final(row(), live=(row(0, id_=2, status=None, state="waiting"),))
ONE = final(row())
CHILDREN = [
    final(row(), *(row(id_=id_, key="k2", digest="d2") for id_ in range(2, 2 + number)))
    for number in range(3)
]
CASES: dict[str, tuple[Step, Final, str]] = {
    "in both tables": (one, BOTH, "I1 unusable"),
    "two archived rows": (one, final(row(), row(status="lock_expired")), "I2"),
    "an archived token that is not the last": (locks(20), final(row(1)), "I3"),
    "the last token": (locks(20), LAST, ""),
    "a token that was not granted": (one, final(row(2)), "I3"),
    "the same, and a claim is unknown": (then(one, UNKNOWN_CLAIM), final(row(2)), ""),
    "a release after the next grant": (locks(20, last=settle("release", held=True)), LAST, "I3"),
    "an extension after the next": (locks(20, last=settle("extend", held=True)), LAST, "I5"),
    "a release is refused": (locks(20, last=settle("release", held=False)), LAST, ""),
    "an extension is refused": (locks(20, last=settle("extend", held=False)), LAST, ""),
    "a token falls": (then(claim(3, 0), claim(1, 20)), LAST, "I4"),
    "a token comes twice": (then(claim(3, 0), claim(3, 20)), LAST, "I4"),
    "two locks stand together": (locks(9), LAST, "I5"),
    "one follows the other": (locks(10), LAST, ""),
    "an extension prolongs a lock": (locks(15, then=EXTENDED), LAST, "I5"),
    "an unknown extension": (locks(15, then=settle("extend", held=None)), LAST, ""),
    "an extension shortens a lock": (locks(20, until=60, then=EXTENDED), LAST, ""),
    "given up once": (
        locks(20, then=then(settle("release", held=True), settle("retry", held=False))), LAST, "",
    ),
    "given up twice": (
        locks(20, then=then(settle("release", held=True), settle("retry", held=True))), LAST, "I3",
    ),
    "given up too late": (locks(5, last=settle("release", held=None)), LAST, "I5"),
    "a clock at another time": (
        then(lambda s: s.note("clock"), locks(5), lambda s: s.note("clock")), LAST, "I5",
    ),
    "it may settle after its handler": (executed(5, "fail"), LAST, ""),
    "a killed worker leaves its lock": (executed(4, None), LAST, "I5"),
    "until it expires": (executed(10, None), LAST, ""),
    "a lock is used twice": (then(execute(), execute()), final(row()), "I5"),
    "a claim too many": (locks(20), final(row(3), most=1), "I6"),
    "the same, perhaps released": (
        locks(20, last=settle("release", held=None)), final(row(3), most=1), "",
    ),
    "an attempt too many": (
        locks(20, last=settle("release", held=None)), final(row(3, attempts=2), most=1), "I6",
    ),
    "another payload": (
        execute(digest="another"), final(row(digest="another")), "I7",
    ),
    "the same payload": (execute(digest="d1"), final(row(digest="d1")), ""),
    "it lost its key": (one, final(row(key=None)), ""),
    "it cannot be decoded": (one, final(row(key=None, digest=None)), ""),
    "it lost its key and changed": (one, final(row(key=None, digest="another")), "I7"),
    "a failed drain": (
        then(lambda s: s.publish(2), one, lambda s: s("drain", "fail")), WAITING, "I9 unusable",
    ),
    "parked after a failed drain": (
        then(lambda s: s.publish(2), one, lambda s: s("drain", "fail")), PARKED, "I9 unusable",
    ),
    "a release uses no attempt": (again(1), LAST, ""),
    "a release uses an attempt": (again(2), LAST, "I6"),
    "a step again that is not recorded": (then(one, charge(None), charge()), ONE, ""),
    "a step again that is recorded": (then(one, charge(), charge(None)), ONE, "I10"),
    "a child without an answer": (child(1), CHILDREN[1], ""),
    "two children of one step": (child(2), CHILDREN[2], "I10"),
    "a wait misses a signal": (then(one, signal(), wait()), ONE, "I11"),
    "a wait comes before a signal": (then(one, wait(), signal()), ONE, ""),
    "a signal was perhaps not sent": (then(one, signal("unknown"), wait()), ONE, ""),
    "a signal to another message": (then(one, signal(to=2), wait()), ONE, ""),
    "a signal to it": (then(one, signal(to=1), wait()), ONE, "I11"),
    "a signal to it that another wait has": (
        then(one, signal(to=1), wait("other", **RECEIVED), wait()), ONE, "",
    ),
    "a signal was there at the deadline": (
        then(one, signal(), wait(timed_out=True)), ONE, "I11",
    ),
    "a signal after the deadline": (then(one, signal(), wait(timed_out=False)), ONE, ""),
    "a signal to it that two waits have": (
        then(one, signal(to=1), wait("other", **RECEIVED), wait(**RECEIVED)), ONE, "I11",
    ),
    "a signal to all that two waits have": (
        then(one, signal(), wait("other", **RECEIVED), wait(**RECEIVED)), ONE, "",
    ),
    "a wait that has two signals": (
        then(one, wait(**RECEIVED), wait(received=["go", "q"])), ONE, "I11",
    ),
}  # fmt: skip
for op in ("release", "retry", "finish"):
    for held in (True, None):
        step = locks(5, then=settle(op, held=held))
        # What was finished must be archived, which is another violation.
        CASES[f"{op} {held} excuses the next"] = (step, LAST, "" if op != "finish" else "not I5")
    CASES[f"a refused {op} excuses nothing"] = (locks(5, then=settle(op, held=False)), LAST, "I5")


@pytest.mark.parametrize(("steps", "found", "expected"), CASES.values(), ids=CASES)
def test_what_a_history_violates(script: Script, steps: Step, found: Final, expected: str) -> None:
    steps(script)
    violated = broken(check(script.ops, found))
    if expected == "not I5":
        assert "I5" not in violated
    else:
        assert violated == expected.split()


def test_executions_beyond_the_first_are_counted(script: Script) -> None:
    executed(5, "fail")(script)
    assert check(script.ops, LAST).doubled_execution == 1


@pytest.mark.parametrize("index", [2, 3, 4])
def test_a_stepped_clock_excuses_overlapping_locks(script: Script, index: int) -> None:
    locks(5)(script)
    for shift, type_ in ((-0.5, "invoke"), (0.5, "ok")):
        at = script.ops[index].at + shift
        script.ops.append(Op(at, "rig", "clock", type_, 1, {}))
    assert check(script.ops, LAST).ok


def test_each_message_dead_after_the_watcher_began_is_reported() -> None:
    script = Script()
    script.publish(1)
    script.note("watch")
    script.publish(2)
    script.note("watch")
    for id_ in (1, 2):
        script.claim(1, 0, 10, id_=id_)
    rows = (row(status="failed"), row(id_=2, status="rejected"))
    assert broken(check(script.ops, final(*rows))) == ["I8"]
    for id_ in (2, 1):
        script.note("dead", id=id_)
        assert check(script.ops, final(*rows)).ok
    assert broken(check(script.ops, final(row(), rows[1]))) == ["I8"]


def test_a_message_that_is_not_claimed_before_the_deadline_breaks_i9(script: Script) -> None:
    script.publish(2)
    one(script)
    script.note("deadline")
    script.publish(3)
    for id_ in (2, 3):
        script.claim(1, 0, 10, id_=id_)
    result = check(script.ops, final(row(), row(id_=2), row(id_=3)))
    assert result.findings() == ["I9: message 2 was not claimed until the deadline"]


@pytest.mark.parametrize("held", [True, False, None])
@pytest.mark.parametrize("found", [row(), row(status="lock_expired"), row(2), None])
def test_a_finish_that_was_confirmed_is_in_the_archive(
    script: Script, held: bool | None, found: Row | None
) -> None:
    UNKNOWN_CLAIM(script)
    one(script)
    script.finish(1, held=held)
    result = check(script.ops, final(*([found] if found else [])))
    is_false = bool(held) and found != row()
    assert result.false_acknowledgement == is_false
    assert ("false_acknowledgement" in broken(result)) is is_false


def test_a_history_that_proves_nothing_is_no_success(script: Script) -> None:
    unanswered = Script()
    unanswered.publish(1, "unknown")
    for ops, found, reason in (
        ([], final(), "the history is empty"),
        (unanswered.ops, final(), "no message was acknowledged"),
        (script.ops, final(row(0)), "no message was claimed or executed"),
    ):
        assert check(ops, found).findings() == [f"unusable: {reason}"]


@pytest.mark.parametrize("end", ["fail", "unknown", None])
@pytest.mark.parametrize("op", ["fault", "drain"])
def test_a_run_that_broke_off_is_no_success(script: Script, op: str, end: str | None) -> None:
    one(script)
    script(op, end, name="worker-kill")
    found = check(script.ops, final(row())).findings()
    assert found == [f"unusable: {op} worker-kill did not complete"]


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
