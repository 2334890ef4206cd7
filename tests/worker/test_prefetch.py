"""How many messages to prefetch, by a clock that the test moves."""

from datetime import timedelta

import pytest

from notifyq.notify.wake import TokenBucket, due_in
from notifyq.worker.fetch import PATIENCE, Prefetch


class Clock:
    """Stands still until it is moved."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("notifyq.notify.wake.time", clock)
    monkeypatch.setattr("notifyq.worker.fetch.time", clock)
    return clock


def handle(prefetch: Prefetch, quantity: int, seconds: float) -> None:
    for _ in range(quantity):
        prefetch.handled(seconds)


@pytest.mark.parametrize(
    ("handled", "seconds", "after", "quantity"),
    [(1000, 0.0001, 0.01, 0), (1000, 0.0001, 0.03, 1000), (5000, 10, 10, 0)],
    ids=["before the first measurement", "at the upper limit", "slow handlers"],
)
def test_the_quantity(
    clock: Clock, handled: int, seconds: float, after: float, quantity: int
) -> None:
    prefetch = Prefetch()
    handle(prefetch, handled, seconds)
    clock.now += after
    assert prefetch.quantity() == quantity


def test_a_tenth_of_a_second_of_work_is_prefetched(clock: Clock) -> None:
    prefetch = Prefetch()
    handle(prefetch, 50, 0.01)
    clock.now += 0.05
    assert prefetch.quantity() == 100
    clock.now += 0.01  # too short for another measurement
    assert prefetch.quantity() == 100


def test_the_measurement_ends_when_nothing_is_handled(clock: Clock) -> None:
    prefetch = Prefetch()
    handle(prefetch, 50, 0.01)
    clock.now += 0.05
    assert prefetch.quantity() == 100
    clock.now += PATIENCE / 2
    assert prefetch.quantity() == 100
    clock.now += PATIENCE / 2
    assert prefetch.quantity() == 0


def test_after_a_reset_it_is_measured_again(clock: Clock) -> None:
    prefetch = Prefetch()
    handle(prefetch, 50, 0.01)
    clock.now += 0.05
    assert prefetch.quantity() == 100
    prefetch.reset()
    assert prefetch.quantity() == 0
    handle(prefetch, 50, 0.01)
    clock.now += 0.05
    assert prefetch.quantity() == 100


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
    ("polled", "takes", "expected"),
    [
        (0.1, [0.01], [0.12]),
        # It took longer than expected, and may have missed the first moments.
        (0.1, [0.3, 0.1], [0.12, 1.0]),
        (0.1, [0.03, 0.07, 0.1], [0.12, 0.19, 0.34]),
        (60, [0.3], [5]),
    ],
)
async def test_a_query_for_what_came_after_a_poll_repeats_until_it_was_in_time(
    clock: Clock, polled: float, takes: list[float], expected: list[float]
) -> None:
    sinces = []

    async def query(since: timedelta) -> timedelta:
        sinces.append(since.total_seconds())
        clock.now += takes[len(sinces) - 1]
        return timedelta(seconds=-len(sinces))

    assert await due_in(clock.now - polled, query) == -len(expected)
    assert sinces == pytest.approx(expected)
