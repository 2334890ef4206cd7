"""What becomes of a message whose attempt ended with an error."""

import statistics
from datetime import timedelta
from typing import Any

import pytest
from tenacity import (
    RetryCallState,
    wait_chain,
    wait_exponential_jitter,
    wait_fixed,
    wait_incrementing,
    wait_random,
)

from notifyq import ConfigurationError, Reject, Retry
from notifyq.handlers.retries import Decision, Retries
from support.rows import message, register

HOUR = timedelta(hours=1)
FIRST = message()


class Busy(ConnectionError):  # noqa: N818
    """One of a tree."""


def after(retries: Retries, attempt: int = 1, error: BaseException | None = None) -> float:
    decision = retries.decide(error or ValueError("x"), message(attempts=attempt))
    assert decision.after is not None, decision
    assert (decision.gives_up, decision.complaint) == (False, None)
    return decision.after.total_seconds()


def test_without_a_backoff_that_of_the_queue_counts() -> None:
    assert Retries().decide(ValueError(), FIRST) == Decision(None)


@pytest.mark.parametrize("base", [10, 10.0, timedelta(seconds=10)])
def test_a_duration_is_the_base_of_an_exponential_backoff_with_jitter(base: Any) -> None:
    retries = Retries(base)
    for attempt, most in ((1, 10), (2, 20), (5, 160), (6, 300), (1000, 300)):
        found = [after(retries, attempt) for _ in range(200)]
        assert most / 2 <= min(found) < max(found) <= most
        assert statistics.stdev(found) > most / 10
    assert max(after(Retries(base, 15), 9) for _ in range(50)) <= 15
    # A base that is longer than the usual bound is its own.
    assert 3600 >= after(Retries(HOUR), 5) >= 1800
    assert after(Retries(0), 5) == 0


def test_backoff_max_alone_limits_the_default_backoff() -> None:
    assert 0.5 <= after(Retries(None, 1), 10) <= 1
    assert 1 <= after(Retries(None, HOUR), 1) <= 2


def test_a_tenacity_strategy_gets_the_attempt_and_the_error() -> None:
    assert after(Retries(wait_fixed(7)), 3) == 7
    assert after(Retries(wait_incrementing(1, 2)), 4) == 7
    chain = wait_chain(wait_fixed(1), wait_fixed(5), wait_fixed(60))
    assert [after(Retries(chain), n) for n in (1, 2, 3, 4)] == [1, 5, 60, 60]
    found = [after(Retries(wait_fixed(3) + wait_random(0, 2))) for _ in range(50)]
    assert 3 <= min(found) < max(found) <= 5
    assert 1 <= after(Retries(wait_exponential_jitter(max=300))) <= 2

    def by_error(state: RetryCallState) -> timedelta:
        assert state.outcome is not None
        error = state.outcome.exception()
        assert isinstance(error, Busy)
        assert state.seconds_since_start is not None
        return timedelta(seconds=state.attempt_number * len(str(error)))

    assert after(Retries(by_error), 2, Busy("four")) == 8

    def by_headers(state: RetryCallState) -> float:
        return float(state.args[0].headers["patience"])

    patient = message(headers={"patience": 11})
    assert Retries(by_headers).decide(Busy(), patient) == Decision(timedelta(seconds=11))
    assert after(Retries(by_error, 5), 2, Busy("four")) == 5


def test_the_closest_class_of_the_error_decides() -> None:
    retries = Retries(
        {OSError: wait_fixed(1), ConnectionError: wait_fixed(2), Exception: wait_fixed(3)}
    )
    assert after(retries, 1, Busy()) == 2
    assert after(retries, 1, PermissionError()) == 1
    assert after(retries, 1, ValueError()) == 3
    assert retries.decide(SystemExit(), FIRST) == Decision(None)
    assert 30 <= after(Retries({Busy: 60}), 1, Busy()) <= 60


def test_none_fails_and_reject_rejects_the_message() -> None:
    retries = Retries({KeyError: None, OSError: Reject, Busy: 0})
    assert retries.decide(KeyError(), FIRST) == Decision(gives_up=True)
    assert retries.decide(PermissionError(), FIRST) == Decision(gives_up=True, is_rejected=True)
    assert after(retries, 1, Busy()) == 0
    assert retries.decide(LookupError(), FIRST) == Decision(None)


def test_a_group_of_one_error_counts_as_that_error() -> None:
    retries = Retries({KeyError: wait_fixed(1), Exception: None})
    inner = ExceptionGroup("inner", [KeyError()])
    assert after(retries, 1, ExceptionGroup("outer", [inner])) == 1
    assert retries.decide(ExceptionGroup("two", [KeyError(), OSError()]), FIRST).gives_up
    named = Retries({ExceptionGroup: wait_fixed(9), KeyError: wait_fixed(1)})
    assert after(named, 1, inner) == 9


def test_retry_causes_another_attempt_in_spite_of_the_mapping() -> None:
    for backoff in (None, 5, wait_fixed(5), {Exception: None}, {Exception: Reject}):
        assert Retries(backoff).decide(Retry(after=HOUR), FIRST) == Decision(HOUR)
    assert Retries({Exception: None}).decide(Retry(), FIRST) == Decision(None)
    assert after(Retries({Retry: wait_fixed(4), Exception: None}), 1, Retry()) == 4
    assert after(Retries(wait_fixed(4)), 1, Retry()) == 4
    # backoff_max does not limit the delay of a Retry.
    assert Retries(1, 2).decide(Retry(after=HOUR), FIRST) == Decision(HOUR)


@pytest.mark.parametrize("delay", [-1, "soon", None, float("nan"), float("inf"), 1e300, object()])
def test_without_a_duration_from_a_strategy_the_queue_decides(delay: Any) -> None:
    decision = Retries(lambda _state: delay).decide(ValueError(), FIRST)
    assert decision.after is None
    assert "which is no duration" in (decision.complaint or "")


def test_when_a_strategy_raises_the_queue_decides() -> None:
    def wrong(_state: RetryCallState) -> float:
        raise ZeroDivisionError("by zero")

    async def never(_state: RetryCallState) -> float:
        raise AssertionError

    decision = Retries(wrong).decide(ValueError(), FIRST)
    assert decision == Decision(complaint="the handler's raised ZeroDivisionError: by zero")
    asynchronous: Any = never
    assert (
        Retries(asynchronous).decide(ValueError(), FIRST).complaint
    )  # and no warning of a coroutine


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"backoff": -1}, "backoff must be a duration"),
        ({"backoff": float("nan")}, "backoff must be a duration"),
        ({"backoff": "5s"}, "backoff must be a duration .* or a wait strategy of tenacity"),
        ({"backoff": wait_fixed}, "backoff must be a duration .* or a wait strategy of tenacity"),
        ({"backoff_max": "5s"}, "backoff_max must be a duration"),
        ({"backoff": {"ValueError": 5}}, "backoff has 'ValueError' as a key"),
        ({"backoff": {int: 5}}, "backoff has <class 'int'> as a key"),
        ({"backoff": {ValueError: "5s"}}, "backoff of ValueError must be a duration"),
        ({"backoff": {ValueError: -5}}, "backoff of ValueError must be a duration"),
        ({"max_attempts": 0}, "max_attempts must be between 1 and 1000, not 0"),
        ({"max_attempts": 1001}, "max_attempts must be between 1 and 1000, not 1001"),
    ],
)
def test_a_wrong_backoff_is_refused_at_once(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        register(lambda: None, **options)


def test_a_queue_is_created_with_the_backoff_of_its_handler() -> None:
    policy = register(lambda: None, backoff=3, backoff_max=60, max_attempts=4).policy
    assert (policy.backoff, policy.backoff_max) == (timedelta(seconds=3), timedelta(seconds=60))
    assert policy.max_attempts == 4
    for backoff in (wait_fixed(1), {ValueError: 5}):
        policy = register(lambda: None, backoff=backoff, backoff_max=1).policy
        assert (policy.backoff, policy.backoff_max) == (None, None)
