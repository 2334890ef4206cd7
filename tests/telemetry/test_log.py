"""The log as a telemetry of events."""

import logging
from dataclasses import fields
from typing import Any

import pytest

from notifyq.telemetry import (
    HandlerStuck,
    ListenerLost,
    LockLost,
    MaintenanceFailing,
    MessagesClaimed,
    SchedulesFired,
    TelemetryEvent,
    WorkerStarted,
    log_each,
    log_events,
)


def test_a_schedule_that_fires_is_logged_only_if_all_is(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "notifyq"):
        for handler in (log_events, log_each):
            handler(SchedulesFired(quantity=1, schedules=("tick",)))
    [record] = caplog.records
    assert record.getMessage() == "schedules fired: tick; messages published: 1"


def test_an_event_is_logged_as_a_sentence_with_its_fields(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "notifyq"):
        log_events(MessagesClaimed(quantity=2, queues=("a", "b"), by_queue={"a": 2}))
    (record,) = caplog.records
    assert record.getMessage() == "claimed 2 messages: a 2"
    assert vars(record)["event_name"] == "MessagesClaimed"
    assert record.levelno == logging.DEBUG
    assert record.name == "notifyq"
    assert vars(record)["event"] == {
        "quantity": 2,
        "queues": ("a", "b"),
        "by_queue": {"a": 2},
        "since_notification": None,
    }


@pytest.mark.parametrize(
    ("event", "level"),
    [
        (WorkerStarted(worker="w", queues=("q",)), logging.INFO),
        (MessagesClaimed(quantity=1, queues=("q",)), logging.DEBUG),
        (LockLost(queue="q", message_id=1, lock_token=1), logging.WARNING),
        (ListenerLost(error="x"), logging.WARNING),
        (HandlerStuck(queue="q", message_id=1), logging.WARNING),
    ],
)
def test_an_event_has_a_log_level(event: TelemetryEvent, level: int) -> None:
    assert event.level == level


VALUES: dict[str, Any] = {
    "int": 3, "bool": True, "float": 1.5, "str": "x\x1b\ny", "str | None": None,
    "tuple[str, ...]": ("a", "b"), "dict[str, int]": {"q": 1}, "float | None": None,
    "int | None": None,
}  # fmt: skip


@pytest.mark.parametrize("kind", TelemetryEvent.__subclasses__(), ids=lambda it: it.__name__)
def test_each_event_is_one_line(kind: type[TelemetryEvent]) -> None:
    event = kind(**{field.name: VALUES[str(field.type)] for field in fields(kind)})
    assert str(event).isprintable()
    assert "{" not in str(event)


def test_maintenance_that_works_again_is_logged_so() -> None:
    assert str(MaintenanceFailing(failing=("x",))) == "maintenance fails to do: x"
    assert str(MaintenanceFailing(failing=())) == "maintenance works again"


def test_an_event_below_the_log_level_is_not_built(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "notifyq"):
        log_events(MessagesClaimed(quantity=2, queues=()))
    assert caplog.records == []


def test_the_fields_do_not_collide_with_those_of_a_log_record(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.DEBUG, "notifyq"):
        for kind in TelemetryEvent.__subclasses__():
            values = {it.name: "a" if "str" in str(it.type) else 0 for it in fields(kind)}
            log_events(kind(**values))
    assert len(caplog.records) == len(TelemetryEvent.__subclasses__()) > 8
