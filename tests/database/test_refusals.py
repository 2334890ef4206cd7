"""How often refusals are logged: each once, and the same of one thing once a minute at most."""

import logging

import pytest

from notifyq.database.refusals import Refusals, RefusedQueues
from notifyq.errors import QueueFullError, QueueNotFoundError

FULL, ABSENT = QueueFullError("full"), QueueNotFoundError("absent")


class Clock:
    """The clock of the refusals, which a test sets."""

    now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Clock:
    caplog.set_level(logging.INFO)
    clock = Clock()
    monkeypatch.setattr("notifyq.database.refusals.time", clock)
    return clock


@pytest.fixture
def refusals(clock: Clock) -> Refusals:
    return Refusals(logging.getLogger("test"))


def taken(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Take the lines that were logged since the last call."""
    lines = [it.getMessage() for it in caplog.records]
    caplog.clear()
    return lines


def test_a_refusal_is_logged_once_and_its_end_once(
    refusals: Refusals, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(3):
        refusals.refused("it", FULL, "others go on")
        clock.now += 100
    for _ in range(3):
        refusals.works("it")
    assert taken(caplog) == ["it: full; others go on", "it: it works again"]


def test_what_is_refused_now_and_then_is_logged_once_a_minute(
    refusals: Refusals, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(120):
        refusals.refused("it", FULL, "others go on")
        refusals.works("it")
        clock.now += 1
    assert taken(caplog) == ["it: full; others go on", "it: it works again"] * 2


def test_what_is_refused_again_within_the_minute_and_stays_so_is_logged_after_it(
    refusals: Refusals, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    refusals.refused("it", FULL, "others go on")
    refusals.works("it")
    taken(caplog)
    for _ in range(120):
        clock.now += 1
        refusals.refused("it", FULL, "others go on")
    refusals.works("it")
    assert taken(caplog) == ["it: full; others go on", "it: it works again"]


def test_reasons_that_alternate_are_logged_once_a_minute_each_and_so_is_the_end(
    refusals: Refusals, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(10):
        refusals.refused("it", FULL, "others go on")
        refusals.refused("it", ABSENT, "others go on")
        clock.now += 1
    refusals.works("it")
    assert taken(caplog) == [
        "it: full; others go on", "it: absent; others go on", "it: it works again"
    ]  # fmt: skip


def test_each_queue_is_logged_for_itself(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    refused = RefusedQueues(logging.getLogger("test"))
    for queue in ("one", "two", "one"):
        refused.refuse(queue, FULL)
    refused.works(["two", "three"])
    assert taken(caplog) == [
        "queue 'one': full; it is tried again each second",
        "queue 'two': full; it is tried again each second",
        "queue 'two': it works again",
    ]
