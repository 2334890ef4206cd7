"""How many messages to have at hand, by a clock that the test moves."""

from datetime import timedelta

import pytest

from notifyq.notify import wake as pace
from notifyq.notify.wake import PATIENCE, TokenBucket, due_in
from notifyq.worker.prefetch import Prefetch


class Clock:
    """Stands still until it is moved."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(pace, "time", clock)
    monkeypatch.setattr("notifyq.worker.prefetch.time", clock)
    return clock


def handle(pace: Prefetch, quantity: int, seconds: float) -> None:
    for _ in range(quantity):
        pace.handled(seconds)


def test_nothing_is_at_hand_before_the_first_measurement(clock: Clock) -> None:
    pace = Prefetch()
    handle(pace, 1000, 0.0001)
    clock.now += 0.01
    assert pace.ahead() == 0


def test_a_tenth_of_a_second_of_work_is_at_hand(clock: Clock) -> None:
    pace = Prefetch()
    handle(pace, 50, 0.01)
    clock.now += 0.05
    assert pace.ahead() == 100
    clock.now += 0.01  # too short for another measurement
    assert pace.ahead() == 100


def test_there_is_a_most(clock: Clock) -> None:
    pace = Prefetch()
    handle(pace, 1000, 0.0001)
    clock.now += 0.03
    assert pace.ahead() == 1000


def test_slow_handlers_have_nothing_at_hand_however_many_they_are(clock: Clock) -> None:
    pace = Prefetch()
    handle(pace, 5000, 10)
    clock.now += 10
    assert pace.ahead() == 0


def test_a_pace_is_forgotten_when_nothing_is_handled(clock: Clock) -> None:
    pace = Prefetch()
    handle(pace, 50, 0.01)
    clock.now += 0.05
    assert pace.ahead() == 100
    clock.now += PATIENCE / 2
    assert pace.ahead() == 100
    clock.now += PATIENCE / 2
    assert pace.ahead() == 0


def test_after_a_stumble_it_is_measured_again(clock: Clock) -> None:
    pace = Prefetch()
    handle(pace, 50, 0.01)
    clock.now += 0.05
    assert pace.ahead() == 100
    pace.stumble()
    assert pace.ahead() == 0
    handle(pace, 50, 0.01)
    clock.now += 0.05
    assert pace.ahead() == 100


def test_a_burst_is_allowed_and_after_that_so_many_a_second(clock: Clock) -> None:
    allowance = TokenBucket(10, 100)
    assert [allowance.spend() for _ in range(10)] == [0] * 10
    assert allowance.spend() == pytest.approx(0.01)
    spent = 0
    began = clock.now
    while clock.now < began + 1:
        clock.now += allowance.spend()
        spent += 1
    assert spent == pytest.approx(100, abs=2)
    clock.now += 60
    assert [allowance.spend() for _ in range(10)] == [0] * 10


@pytest.mark.parametrize(
    ("looked", "takes", "asked"),
    [
        (0.1, [0.01], [0.12]),
        # On its way for longer than allowed for, it may not have counted the first moments.
        (0.1, [0.3, 0.1], [0.12, 1.0]),
        (0.1, [0.03, 0.07, 0.1], [0.12, 0.19, 0.34]),
        (60, [0.3], [5]),
    ],
)
async def test_a_question_for_what_came_since_a_look_is_asked_until_it_was_in_time(
    clock: Clock, looked: float, takes: list[float], asked: list[float]
) -> None:
    sinces = []

    async def ask(since: timedelta) -> timedelta:
        sinces.append(since.total_seconds())
        clock.now += takes[len(sinces) - 1]
        return timedelta(seconds=-len(sinces))

    assert await due_in(clock.now - looked, ask) == -len(asked)
    assert sinces == pytest.approx(asked)
