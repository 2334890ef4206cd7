"""What is of the wrong kind is refused where it is written, by its name."""

from __future__ import annotations

from dataclasses import fields
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from notifyq import App, ConfigurationError, Policy, Schedule, StreamPolicy
from notifyq.arguments import _KINDS, plain
from notifyq.config import DatabaseOptions, DatabaseSettings, WorkerOptions, WorkerSettings

WRONG: list[tuple[type, str, Any, str]] = [
    (Policy, "lock_duration", "5s", r"a duration \(timedelta or seconds\).*, not '5s'"),
    (Policy, "retention", -1, "a duration .* that is not negative, not -1"),
    (Policy, "rate_period", float("nan"), "a duration .*, not nan"),
    (Policy, "concurrency", "5", "an integer, not '5'"),
    (Policy, "concurrency", True, "an integer, not True"),
    (Policy, "ordered", 1, "True or False, not 1"),
    (Policy, "payload_type", int, "a text, not <class 'int'>"),
    (Policy, "notify", False, "a text, not False"),
    (StreamPolicy, "max_lag", "1h", "a duration .*, not '1h'"),
    (StreamPolicy, "max_events", 1.5, "an integer, not 1.5"),
    (Schedule, "jitter", "1h", "a duration .*, not '1h'"),
    (Schedule, "grace", None, "a duration .*, not None"),
    (Schedule, "overlap", True, "a text, not True"),
    (Schedule, "when_unserved", True, "a text, not True"),
    (Schedule, "headers", ["a"], r"a mapping, not \['a'\]"),
    (Schedule, "timezone", None, "a text, not None"),
]
NEEDED: dict[type, dict[str, str]] = {Schedule: {"name": "s", "cron": "@daily", "queue": "q"}}


@pytest.mark.parametrize(("kind", "name", "value", "reason"), WRONG)
def test_a_field_of_the_wrong_type_is_named(
    kind: type, name: str, value: object, reason: str
) -> None:
    with pytest.raises(ConfigurationError, match=f"^{name} must be {reason}"):
        kind(**{**NEEDED.get(kind, {}), name: value})


@pytest.mark.parametrize("kind", [Policy, StreamPolicy, Schedule])
def test_the_type_of_each_field_is_checked(kind: type) -> None:
    found = {str(field.type).removesuffix(" | None") for field in fields(kind)}
    # Both of these are JSON in the end, which has an error of its own.
    assert found - {"Schema", "Any"} <= {"timedelta | float", *_KINDS}


def test_durations_are_seconds_or_timedeltas() -> None:
    policy = Policy(lock_duration=1.5, backoff=timedelta(minutes=1), retention=0)
    given = {name: value for name, value in plain(policy).items() if value is not None}
    assert given == {
        "lock_duration": timedelta(seconds=1.5),
        "backoff": timedelta(minutes=1),
        "retention": timedelta(0),
    }


def test_a_wrong_cron_option_is_refused_at_the_decorator() -> None:
    with pytest.raises(ConfigurationError, match=r"^jitter must be a duration"):
        App().cron("@daily", jitter="1h")(lambda: None)  # type: ignore[arg-type]


WRONG_OF_SUBSCRIBERS: list[tuple[dict[str, Any], str]] = [
    ({"rest": "5s"}, "rest must be between 0, .*, not '5s'"),
    ({"rest": 61}, "rest must be between 0, .*, not 61"),
    ({"max_attempts": "3"}, "max_attempts must be between 1 and 1000, not '3'"),
    ({"batch": "3"}, "batch must be between 1 and 10000, not '3'"),
    ({"members": 0}, "members must be between 1 and 64, not 0"),
    ({"stream": 5}, "stream must be a text, not 5"),
    ({"subscriber": None}, "a subscriber needs the name of its stream and a name"),
]


@pytest.mark.parametrize(("options", "reason"), WRONG_OF_SUBSCRIBERS)
def test_a_wrong_option_of_a_subscriber_is_named(options: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigurationError, match=f"^{reason}"):
        App().subscriber(**{"stream": "s", "subscriber": "w", **options})(lambda: None)


@pytest.mark.parametrize(
    ("options", "settings"), [(DatabaseOptions, DatabaseSettings), (WorkerOptions, WorkerSettings)]
)
def test_options_match_their_settings(options: Any, settings: Any) -> None:
    assert options.__annotations__.keys() == settings.model_fields.keys()


async def test_true_is_no_number() -> None:
    with pytest.raises(ConfigurationError, match=r"^batch must be between 1 and 10000, not True"):
        App().handler(batch=True)(lambda: None)
    with pytest.raises(TypeError, match=r"^priority must be an integer, not True"):
        await App("postgresql://nowhere").publish("q", 1, priority=True)


@pytest.mark.parametrize("timeout", [float("nan"), "5", True])
async def test_a_wait_needs_a_number_of_seconds(timeout: Any) -> None:
    app = App("postgresql://nowhere")
    with pytest.raises(ConfigurationError, match=r"^timeout must be a duration"):
        await app.result(1, timeout=timeout)
    with pytest.raises(ConfigurationError, match=r"^timeout must be a duration"):
        await app.inbox().wait(["q"], timeout=timeout)


@pytest.mark.parametrize(
    ("until", "reason"),
    [
        ("tomorrow", "must be a datetime"),
        (datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=1))), "must be between the years 1"),
    ],
)
async def test_the_end_of_a_pause_is_checked(until: Any, reason: str) -> None:
    with pytest.raises((TypeError, ConfigurationError), match=f"^until {reason}"):
        await App("postgresql://nowhere").admin.pause_queue("q", until=until)
